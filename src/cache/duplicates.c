/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"
#include "policy/heap.h"

/* Host copies that the device also holds, for a host tier that gives these up
 * before it gives up only copies. They stay in the policy beside, which calls
 * them the same: who takes one from here takes it out of there.
 *
 * A device copy that is offered or being cleaned is about to go, and its host
 * copy is then the only one; so the device copy must be hot. The one last used
 * goes first: its device copy will stay longest, and its next use may have it
 * written back again. */

int weir_duplicates_create(weir_cache *cache)
{
    weir_allocator hooks = weir_memory_hooks(&cache->memory);
    return weir_heap_create(&cache->duplicates, cache->tiers[HOST].n_pages, &hooks);
}

bool weir_is_duplicate(const weir_cache *cache, int32_t ref)
{
    const struct entry *entry = &cache->entries[ref];
    return (entry->flags & ENTRY_CANDIDATE_HOST) && !(entry->flags & ENTRY_LOADING) &&
           weir_tier_is_hot(cache, DEVICE, ref);
}

void weir_duplicates_update(weir_cache *cache, int32_t ref)
{
    int32_t page = cache->entries[ref].page[HOST];
    if (!cache->duplicates || !page)
        return;
    if (weir_is_duplicate(cache, ref))
        weir_heap_set(cache->duplicates, UINT64_MAX - weir_radix_last_use(cache->radix, ref),
                      cache->entries[ref].depth, (uint32_t)page - 1);
    else
        weir_heap_remove(cache->duplicates, (uint32_t)page - 1);
}

int32_t weir_duplicates_next(weir_cache *cache)
{
    struct weir_heap_slot slot;
    if (!cache->duplicates || !weir_heap_pop(cache->duplicates, &slot))
        return -1;
    const struct tier *host = &cache->tiers[HOST];
    host->policy->remove(host->policy_state, slot.entry);
    return (int32_t)slot.entry;
}
