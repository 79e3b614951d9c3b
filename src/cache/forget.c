/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <weir/lifecycle.h>

#include <errno.h>

/* Dropping what the index holds. Entries go at once, pages with their last pin;
 * a load in flight fills pages that only sequences still know of. */

void weir_forget_entries(weir_cache *cache, int32_t root)
{
    if (root == WEIR_RADIX_NONE) {
        for (uint32_t ref = 0; ref < cache->n_entries; ref++)
            if ((cache->entries[ref].flags & ENTRY_LIVE) &&
                weir_radix_parent(cache->radix, (int32_t)ref) < 0)
                weir_entry_drop(cache, (int32_t)ref);
        weir_cancel_unbuild(cache);
        return;
    }
    /* The root itself may go with its last page: then it has no child. */
    for (int32_t ref; (ref = weir_radix_first_child(cache->radix, root)) >= 0;)
        weir_entry_drop(cache, ref);
}

/* Page i of a sequence, or what it is to be copied from. */
static void detach_page(const weir_cache *cache, struct seq *seq, struct seq_page *sp, uint32_t i)
{
    if (sp->ref < 0)
        return;
    weir_seq_note_writer(cache, seq, i, cache->entries[sp->ref].writer);
    sp->ref = WEIR_RADIX_NONE;
}

/* The sequence keeps its pages and has no part in the index from now on. */
static void detach(const weir_cache *cache, struct seq *seq)
{
    for (uint32_t i = 0; i < seq->n_pages; i++)
        detach_page(cache, seq, &seq->pages[i], i);
    if (seq->source.page)
        detach_page(cache, seq, &seq->source, seq->source_index);
    seq->detached = seq->forgotten = true;
}

static void forget(weir_cache *cache, int32_t root)
{
    for (uint32_t i = 0; i < cache->max_seqs; i++) {
        struct seq *seq = &cache->seqs[i];
        if (seq->id && (root == WEIR_RADIX_NONE || seq->root == root))
            detach(cache, seq);
    }
    weir_forget_entries(cache, root);
}

int weir_cache_forget(weir_cache *cache, const weir_field *fields, size_t n_fields)
{
    if (!cache)
        return -EINVAL;
    int32_t root;
    int rc = weir_radix_find_root(cache->radix, fields, n_fields, &root);
    if (rc)
        return rc == -ENOENT ? 0 : weir_key_root_result(cache, rc, "forget");
    forget(cache, root);
    return 0;
}

int weir_cache_forget_all(weir_cache *cache)
{
    if (!cache)
        return -EINVAL;
    forget(cache, WEIR_RADIX_NONE);
    return 0;
}

int weir_cache_reset(weir_cache *cache)
{
    if (!cache)
        return -EINVAL;
    if (cache->step_open)
        return -EBUSY;
    for (uint32_t i = 0; i < cache->max_seqs; i++)
        if (cache->seqs[i].id)
            weir_seq_release(cache, &cache->seqs[i]);
    weir_forget_entries(cache, WEIR_RADIX_NONE);
    weir_write_finish(cache, &cache->write_queue, -ECANCELED);
    cache->write_told = false;
    return 0;
}
