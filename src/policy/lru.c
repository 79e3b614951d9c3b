/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap_policy.h"

/* Least recently used first. The time of use is the cache's request counter,
 * so all pages of one request are equally old, and the heap's tie-break gives
 * up a prefix from its end. */

static void add(void *state, const weir_evict_entry *entry)
{
    weir_heap_set(state, entry->last_use, entry->depth, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    if (weir_heap_has(state, entry->entry))
        add(state, entry);
}

const weir_evict_policy weir_evict_lru = {
    .name = "lru",
    .create = weir_heap_policy_create,
    .create_in = weir_heap_policy_create_in,
    .destroy = weir_heap_policy_destroy,
    .add = add,
    .use = use,
    .remove = weir_heap_policy_remove,
    .forget = weir_heap_policy_remove,
    .next = weir_heap_policy_next,
};
