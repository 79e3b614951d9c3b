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
    seq->failed = seq->tell_failed = true;
    weir_seq_drop_claim(cache, seq);
    weir_seq_queue_event(cache, seq);
}

/* Some entries have been dropped although sequences use them: those sequences
 * lose their path from there on. A page that a sequence took from the index is
 * wrong if its entry is gone; one that it computed itself is wrong only if that
 * was in the step that failed or after it. Of what was forgotten only the
 * newest writer is known. */
static void detach(weir_cache *cache, struct seq *seq, uint64_t failed_step)
{
    bool step_failed = failed_step && seq->steps.newest >= failed_step;
    uint32_t n_hit = (uint32_t)(seq->n_hit / cache->page_tokens);
    for (uint32_t i = 0; i < seq->n_pages; i++) {
        struct seq_page *sp = &seq->pages[i];
        size_t before = (size_t)i * cache->page_tokens;
        if (cache->device_pages[sp->page].wrong)
            weir_fail_seq(cache, seq, before, -EIO);
        if (sp->ref < 0 || (cache->entries[sp->ref].flags & ENTRY_LIVE))
            continue;
        sp->ref = WEIR_RADIX_NONE;
        seq->detached = true;
        if (!sp->guard && (i < n_hit || step_failed))
            weir_fail_seq(cache, seq, before, -EIO);
    }
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
