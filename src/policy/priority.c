/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap_policy.h"

/* Lowest priority first, the least recently used of a class first. The key has
 * the priority above the time of use, so that the classes follow each other in
 * one heap. A page whose priority has ended is removed and added by the cache,
 * and so comes to stand where its last use puts it among those without. */

#define PRIORITY_SHIFT 56 /* a request counter stays below 2^56 */

static void add(void *state, const weir_evict_entry *entry)
{
    uint64_t key = (uint64_t)entry->priority << PRIORITY_SHIFT | entry->last_use;
    weir_heap_set(state, key, entry->depth, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    if (weir_heap_has(state, entry->entry))
        add(state, entry);
}

const weir_evict_policy weir_evict_priority = {
    .name = "priority",
    .create = weir_heap_policy_create,
    .create_in = weir_heap_policy_create_in,
    .destroy = weir_heap_policy_destroy,
    .add = add,
    .use = use,
    .remove = weir_heap_policy_remove,
    .forget = weir_heap_policy_remove,
    .next = weir_heap_policy_next,
};
