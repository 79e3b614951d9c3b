/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"
#include "policy/heap.h"

#include <errno.h>
#include <string.h>

#define FOR_EVER UINT64_MAX

/* Pages that one poll demotes: at some 200 ns each it stays well under 0.1 ms. */
#define DEMOTIONS_A_POLL 256u

int weir_priority_create(weir_cache *cache, uint32_t n)
{
    struct priorities *p = &cache->priorities;
    if (n == 0)
        return 0;
    p->n = n;
    p->until = weir_memory_take(&cache->memory, (size_t)cache->n_entries * n, sizeof *p->until);
    if (!p->until)
        return -ENOMEM;
    weir_allocator hooks = weir_memory_hooks(&cache->memory);
    return weir_heap_create(&p->ends, cache->n_entries, &hooks);
}

void weir_priority_destroy(weir_cache *cache)
{
    struct priorities *p = &cache->priorities;
    weir_memory_give(&cache->memory, p->until, (size_t)cache->n_entries * p->n, sizeof *p->until);
    weir_heap_destroy(&p->ends);
}

static uint64_t *grants_of(const weir_cache *cache, int32_t ref)
{
    return &cache->priorities.until[(size_t)ref * cache->priorities.n];
}

/* Takes the highest grant that lives for the entry's priority. */
static void settle(weir_cache *cache, int32_t ref)
{
    struct weir_heap *ends = cache->priorities.ends;
    const uint64_t *until = grants_of(cache, ref);
    uint32_t priority = cache->priorities.n;
    while (priority && until[priority - 1] <= cache->now_ns)
        priority--;
    cache->entries[ref].priority = priority & MAX_PRIORITY;
    if (priority && until[priority - 1] != FOR_EVER)
        weir_heap_set(ends, until[priority - 1], 0, (uint32_t)ref);
    else
        weir_heap_remove(ends, (uint32_t)ref);
}

void weir_priority_grant(weir_cache *cache, int32_t ref, uint32_t priority, uint64_t ttl_ns)
{
    if (priority == 0)
        return;
    uint64_t *until = &grants_of(cache, ref)[priority - 1];
    bool ends = ttl_ns && ttl_ns < FOR_EVER - cache->now_ns;
    uint64_t end = ends ? cache->now_ns + ttl_ns : FOR_EVER;
    if (end <= *until)
        return;
    *until = end;
    settle(cache, ref);
}

void weir_priority_forget(weir_cache *cache, int32_t ref)
{
    if (cache->priorities.n == 0)
        return;
    memset(grants_of(cache, ref), 0, cache->priorities.n * sizeof *cache->priorities.until);
    weir_heap_remove(cache->priorities.ends, (uint32_t)ref);
}

void weir_priority_expire(weir_cache *cache)
{
    const struct weir_heap *ends = cache->priorities.ends;
    for (uint32_t i = 0; i < DEMOTIONS_A_POLL; i++) {
        if (!ends || ends->n == 0 || ends->slots[0].key > cache->now_ns)
            return;
        int32_t ref = (int32_t)ends->slots[0].entry;
        settle(cache, ref);
        weir_tier_reconsider(cache, ref);
        cache->stats.demoted_pages++;
    }
}

/* ---- Checking ------------------------------------------------------------ */

static const char *entry_fault(const weir_cache *cache, int32_t ref)
{
    const struct entry *entry = &cache->entries[ref];
    const struct weir_heap *ends = cache->priorities.ends;
    const uint64_t *until = grants_of(cache, ref);
    bool live = (entry->flags & ENTRY_LIVE) != 0;
    for (uint32_t p = 1; p <= cache->priorities.n; p++) {
        if (!live && until[p - 1])
            return "cache: a page without entry has a priority";
        if (live && p > entry->priority && until[p - 1] > cache->now_ns)
            return "cache: an entry has a higher priority than it is taken for";
    }
    if (!live)
        return weir_heap_has(ends, (uint32_t)ref) ? "cache: the end of no entry's priority" : NULL;
    uint64_t end = entry->priority ? until[entry->priority - 1] : FOR_EVER;
    if (end == 0)
        return "cache: an entry has a priority that it was not given";
    if (weir_heap_has(ends, (uint32_t)ref) != (end != FOR_EVER))
        return "cache: a priority that ends is not in line for it, or another is";
    if (end != FOR_EVER && ends->slots[ends->position[ref] - 1].key != end)
        return "cache: a priority ends at another time";
    return NULL;
}

const char *weir_priority_fault(const weir_cache *cache)
{
    const char *fault = NULL;
    for (uint32_t ref = 0; ref < cache->n_entries && cache->priorities.n && !fault; ref++)
        fault = entry_fault(cache, (int32_t)ref);
    return fault;
}
