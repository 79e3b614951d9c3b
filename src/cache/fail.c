/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

#include <errno.h>

/* What sequences are told when a load or a step has failed. Who holds a page
 * that a load should have filled has a wrong page, also if the page is not in
 * the index any more; all that was computed on it has that page before it. */

void weir_fail_seq(weir_cache *cache, struct seq *seq, size_t good_tokens, int rc)
{
    if (good_tokens >= seq->good_tokens)
        return;
    seq->good_tokens = good_tokens;
    seq->failed_rc = rc;
    seq->failed = seq->tell_failed = seq->detached = true;
    weir_seq_drop_claim(cache, seq);
    weir_seq_queue_event(cache, seq);
}

/* Page i of a sequence, or what it is to be copied from. A page of the index that
 * ends inside, after a cut, counts as whole. */
static void lose_page(weir_cache *cache, struct seq *seq, struct seq_page *sp, uint32_t i,
                      uint64_t failed_step)
{
    bool step_failed = failed_step && seq->steps.newest >= failed_step;
    size_t before = (size_t)i * cache->page_tokens;
    bool wrong = cache->device_pages[sp->page].wrong;
    if (sp->ref >= 0 && !(cache->entries[sp->ref].flags & ENTRY_LIVE)) {
        sp->ref = WEIR_RADIX_NONE;
        seq->detached = true;
        wrong |= !sp->guard && (before < seq->n_hit || step_failed);
    }
    if (wrong)
        weir_fail_seq(cache, seq, before, -EIO);
}

/* Some entries have been dropped although sequences use them: those sequences
 * lose their path from there on. A page that a sequence took from the index is
 * wrong if its entry is gone; one that it computed itself is wrong only if that
 * was in the step that failed or after it. Of what was forgotten, was copied, or
 * duplicates a page of the index, only the newest writer is known. */
static void detach(weir_cache *cache, struct seq *seq, uint64_t failed_step)
{
    if (seq->source.page)
        lose_page(cache, seq, &seq->source, seq->source_index, failed_step);
    for (uint32_t i = 0; i < seq->n_pages; i++)
        lose_page(cache, seq, &seq->pages[i], i, failed_step);
    if (weir_step_set_has(seq->steps, failed_step))
        weir_fail_seq(cache, seq, (size_t)seq->n_indexed * cache->page_tokens, -EIO);
    if (failed_step && seq->lost_writer >= failed_step)
        weir_fail_seq(cache, seq, (size_t)seq->lost_from * cache->page_tokens, -EIO);
}

void weir_fail_drop(weir_cache *cache, const int32_t *refs, uint32_t n, uint64_t failed_step)
{
    for (uint32_t i = 0; i < n; i++)
        if (cache->entries[refs[i]].flags & ENTRY_LIVE)
            weir_entry_drop(cache, refs[i]);
    for (uint32_t i = 0; i < cache->max_seqs; i++)
        if (cache->seqs[i].id)
            detach(cache, &cache->seqs[i], failed_step);
}
