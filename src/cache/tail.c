/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

#include <errno.h>

void weir_tail_forget(weir_cache *cache, struct seq *seq)
{
    if (!seq->source.page)
        return;
    weir_seq_let_go(cache, seq, &seq->source);
    seq->source = (struct seq_page){ .ref = WEIR_RADIX_NONE };
}

void weir_tail_owe(weir_cache *cache, struct seq *seq, struct seq_page source, uint32_t index)
{
    seq->source = source;
    seq->source_index = index;
    uint64_t writer = source.ref >= 0 ? cache->entries[source.ref].writer : 0;
    if (!step_is_running(cache, writer))
        return;
    seq->fences = weir_step_set_add(seq->fences, writer);
    weir_seq_note_writer(cache, seq, index, writer);
}

/* The step uses a page that others may write rows of. Those are other rows, but a
 * copy takes whole pages. */
static void come_behind(weir_cache *cache, int32_t page, uint64_t step, weir_step_set *fences)
{
    uint32_t *tail_step = &cache->device_pages[page].tail_step;
    *fences = weir_step_set_add(*fences, step - (uint32_t)((uint32_t)step - *tail_step));
    *tail_step = (uint32_t)step;
}

static void copy_tail(weir_cache *cache, struct seq *seq, uint64_t step, weir_step_set *fences,
                      weir_page_copy *copy)
{
    const struct seq_page *source = &seq->source;
    *copy =
        (weir_page_copy){ .from = { source->page }, .to = { seq->pages[seq->source_index].page } };
    if (source_is_loading(cache, source)) {
        struct flight *flight = &cache->flights[cache->device_pages[source->page].mover - 1];
        flight->load_copied = true;
        seq->tail_load = copy->load = flight->id;
        seq->tail_index = seq->source_index;
    }
    come_behind(cache, source->page, step, fences);
    cache->stats.copied_pages++;
    weir_tail_forget(cache, seq);
}

void weir_tail_settle(weir_cache *cache, struct seq *seq, uint64_t step, weir_step_set *fences,
                      weir_page_copy *copies, uint32_t *n_copies)
{
    if (seq->source.page && !seq->failed)
        copy_tail(cache, seq, step, fences, &copies[(*n_copies)++]);
    if (seq->n_committed % cache->page_tokens)
        come_behind(cache, seq->pages[seq->n_committed / cache->page_tokens].page, step, fences);
}

void weir_tail_fail(weir_cache *cache, uint64_t load)
{
    for (uint32_t i = 0; i < cache->max_seqs; i++) {
        struct seq *seq = &cache->seqs[i];
        if (seq->id && seq->tail_load == load)
            weir_fail_seq(cache, seq, (size_t)seq->tail_index * cache->page_tokens, -EIO);
    }
}
