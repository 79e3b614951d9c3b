/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <weir/lifecycle.h>

#include <errno.h>

/* A page is right only if every rank has its share of it: with a rank goes the
 * whole index, and all that sequences have computed. What is in flight on other
 * ranks goes on and keeps its pages until they report. */

static void fail_seqs(weir_cache *cache)
{
    for (uint32_t i = 0; i < cache->max_seqs; i++) {
        struct seq *seq = &cache->seqs[i];
        if (!seq->id || (seq->n_pages == 0 && !seq->source.page))
            continue;
        for (uint32_t j = 0; j < seq->n_pages; j++)
            seq->pages[j].ref = WEIR_RADIX_NONE;
        seq->source.ref = WEIR_RADIX_NONE;
        seq->detached = true;
        weir_fail_seq(cache, seq, 0, -EIO);
    }
}

/* Strikes a rank out; whether it was still due. */
static bool strike(uint64_t *ranks, uint64_t bit)
{
    bool due = *ranks & bit;
    *ranks &= ~bit;
    return due;
}

int weir_cache_rank_lost(weir_cache *cache, uint32_t rank_index, uint64_t *first_step)
{
    if (!cache)
        return -EINVAL;
    if (rank_index >= cache->n_ranks || !first_step)
        return weir_invalid(&cache->log,
                            "rank_lost: rank_index is %u, there are %u ranks, or first_step is "
                            "NULL",
                            rank_index, cache->n_ranks);
    fail_seqs(cache);
    weir_forget_entries(cache, WEIR_RADIX_NONE);
    uint64_t bit = UINT64_C(1) << rank_index;
    for (uint32_t i = 0; i < cache->max_steps; i++) {
        struct flight *flight = &cache->flights[i];
        if (strike(&flight->load_ranks, bit))
            weir_report_load(cache, flight, true);
        /* Not as failed: what it computed is gone already, and what is computed from
         * now on, maybe before it ends on the other ranks, is not its work. */
        if (strike(&flight->step_ranks, bit))
            weir_report_step(cache, flight, false);
    }
    for (uint32_t i = 0; i < cache->max_write_backs; i++)
        if (strike(&cache->writes[i].ranks, bit))
            weir_report_write(cache, &cache->writes[i], true);
    *first_step = cache->next_step;
    weir_log_line(&cache->log, WEIR_LOG_WARN, "cache: rank %u is lost, the index is empty",
                  rank_index);
    return 0;
}
