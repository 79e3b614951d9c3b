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

/* The first page of the sequence that has not arrived, by its load or as a copy of
 * what a load brings; UINT32_MAX: none. A copy is of a page behind those that it
 * took from the index, or of the last of them. */
static uint32_t first_missing(const weir_cache *cache, const struct seq *seq)
{
    uint32_t n_hit = (uint32_t)(seq->n_hit / cache->page_tokens);
    for (uint32_t i = 0; i < n_hit && i < seq->n_pages; i++)
        if (cache->device_pages[seq->pages[i].page].mover > 0)
            return i;
    if (load_is_running(cache, seq->tail_load))
        return seq->tail_index;
    return seq->source.page && source_is_loading(cache, &seq->source) ? seq->source_index
                                                                      : UINT32_MAX;
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
        if (missing == UINT32_MAX || seq->closing)
            continue;
        cache->stats.late_loads++;
        weir_fail_seq(cache, seq, (size_t)missing * cache->page_tokens, -ETIMEDOUT);
    }
}
