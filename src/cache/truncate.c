/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

#include <errno.h>

/* Whether another may read the page's rows: the index, another sequence, a load or
 * a write-back that is still running. */
static bool is_shared(const weir_cache *cache, int32_t page)
{
    const weir_page_pool *pool = cache->tiers[DEVICE].pool;
    return weir_page_pool_owner(pool, page) != WEIR_NO_OWNER ||
           cache->device_pages[page].users > 1 || weir_page_pool_pins(pool, page) > 1;
}

/* The sequence is to go on inside its page i, the last one that it has. */
static void go_on_inside(weir_cache *cache, struct seq *seq, uint32_t i)
{
    struct seq_page *sp = &seq->pages[i];
    if (is_shared(cache, sp->page)) {
        weir_tail_owe(cache, seq, *sp, i);
        seq->n_pages = i;
        return;
    }
    /* Others that had it may be gone and their steps still read it. */
    seq->fences =
        weir_step_set_merge(seq->fences, weir_page_pool_steps(cache->tiers[DEVICE].pool, sp->page));
    if (sp->guard)
        weir_seq_let_page_go(cache, sp->guard);
    *sp = (struct seq_page){ .page = sp->page, .ref = WEIR_RADIX_NONE };
}

/* All of the sequence's path is in the index again, up to where it was put there. */
static bool is_whole(const struct seq *seq)
{
    for (uint32_t i = 0; i < seq->n_indexed; i++)
        if (seq->pages[i].ref < 0)
            return false;
    return true;
}

/* A load that only pages beyond the cut were for may be cancelled, and is not to be
 * waited for in any case. */
void weir_seq_find_joins(weir_cache *cache, struct seq *seq)
{
    weir_step_set joins = { 0 };
    if (load_is_running(cache, seq->tail_load))
        joins = weir_step_set_add(joins, seq->tail_load);
    for (uint32_t i = 0; i < seq->n_pages; i++) {
        int16_t mover = cache->device_pages[seq->pages[i].page].mover;
        if (mover > 0 && mover != MOVER_WAITING)
            joins = weir_step_set_add(joins, cache->flights[mover - 1].id);
    }
    seq->joins = joins;
}

static void cut_pages(weir_cache *cache, struct seq *seq, size_t n_tokens)
{
    uint32_t full = (uint32_t)(n_tokens / cache->page_tokens);
    uint32_t n = full + (n_tokens % cache->page_tokens != 0);
    bool due = seq->source.page && seq->source_index < n;
    if (!due)
        weir_tail_forget(cache, seq);
    weir_seq_keep_pages(cache, seq, n);
    if (n > full && !due && n_tokens < seq->n_committed)
        go_on_inside(cache, seq, full);
    if (seq->tail_index >= n)
        seq->tail_load = 0;
    if (seq->lost_from >= n)
        seq->lost_writer = 0;
    if (seq->n_indexed > full)
        seq->n_indexed = full;
    if (seq->n_load_scan > seq->n_pages)
        seq->n_load_scan = seq->n_pages;
}

void weir_seq_cut(weir_cache *cache, struct seq *seq, size_t n_tokens)
{
    cut_pages(cache, seq, n_tokens);
    seq->n_committed = n_tokens;
    seq->n_tokens = n_tokens > seq->n_key ? n_tokens : seq->n_key;
    if (seq->n_hit > n_tokens)
        seq->n_hit = n_tokens;
    seq->first_step = cache->next_step;
    weir_seq_find_joins(cache, seq);
    if (n_tokens > seq->good_tokens)
        return;
    if (seq->failed && !seq->forgotten && is_whole(seq))
        seq->detached = false;
    seq->failed = seq->tell_failed = false;
    seq->failed_rc = 0;
    seq->good_tokens = SIZE_MAX;
}

int weir_seq_truncate(weir_seq handle, size_t n_tokens)
{
    int rc;
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    weir_cache *cache = handle.cache;
    if (n_tokens > seq->n_committed + seq->n_pending)
        return weir_invalid(&cache->log,
                            "seq_truncate: n_tokens is %zu, must be at most the %zu committed",
                            n_tokens, seq->n_committed + seq->n_pending);
    if (seq->in_step)
        return -EBUSY;
    if (n_tokens > seq->good_tokens)
        return -EIO;

    rc = weir_seq_hold_spans(cache, seq, (uint32_t)(n_tokens / cache->page_tokens));
    if (rc)
        return rc;
    weir_seq_drop_claim(cache, seq);
    weir_seq_cut(cache, seq, n_tokens);
    return 0;
}
