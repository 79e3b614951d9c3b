/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <errno.h>

void weir_deadline_set(weir_cache *cache, struct seq *seq, uint64_t deadline_ns)
{
    uint32_t index = (uint32_t)seq_index(cache, seq);
    seq->deadline_ns = deadline_ns;
    if (deadline_ns)
        weir_heap_set(cache->deadlines, deadline_ns, 0, index);
    else
        weir_heap_remove(cache->deadlines, index);
}

/* The first page of the sequence whose load has not arrived; n_pages: none. */
static uint32_t first_missing(const weir_cache *cache, const struct seq *seq)
{
    uint32_t n_hit = (uint32_t)(seq->n_hit / cache->page_tokens);
    for (uint32_t i = 0; i < n_hit && i < seq->n_pages; i++)
        if (cache->device_pages[seq->pages[i].page].mover > 0)
            return i;
    return seq->n_pages;
}

void weir_deadline_poll(weir_cache *cache)
{
    struct weir_heap *deadlines = cache->deadlines;
    struct weir_heap_slot slot;
    while (deadlines->n && deadlines->slots[0].key <= cache->now_ns) {
        weir_heap_pop(deadlines, &slot);
        struct seq *seq = &cache->seqs[slot.entry];
        uint32_t missing = first_missing(cache, seq);
        seq->deadline_ns = 0;
        if (missing == seq->n_pages || seq->closing)
            continue;
        cache->stats.late_loads++;
        weir_fail_seq(cache, seq, (size_t)missing * cache->page_tokens, -ETIMEDOUT);
    }
}
