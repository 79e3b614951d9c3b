/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap_policy.h"

/* Most recently used first: for a working set that is walked round and round
 * and is larger than the tier, where the least recently used page is the one
 * that comes next. The key is the complement of lru's; ties are broken as
 * everywhere, so that a prefix is still given up from its end. */

static void add(void *state, const weir_evict_entry *entry)
{
    weir_heap_set(state, UINT64_MAX - entry->last_use, entry->depth, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    if (weir_heap_has(state, entry->entry))
        add(state, entry);
}

const weir_evict_policy weir_evict_mru = {
    .name = "mru",
    .create = weir_heap_policy_create,
    .create_in = weir_heap_policy_create_in,
    .destroy = weir_heap_policy_destroy,
    .add = add,
    .use = use,
    .remove = weir_heap_policy_remove,
    .forget = weir_heap_policy_remove,
    .next = weir_heap_policy_next,
};
