/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap_policy.h"

/* First in, first out: what entered the tier first goes first, however often
 * it was used. It is the baseline that the others must beat. */

static void add(void *state, const weir_evict_entry *entry)
{
    weir_heap_set(state, entry->since, entry->depth, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    (void)state;
    (void)entry;
}

const weir_evict_policy weir_evict_fifo = {
    .name = "fifo",
    .create = weir_heap_policy_create,
    .create_in = weir_heap_policy_create_in,
    .destroy = weir_heap_policy_destroy,
    .add = add,
    .use = use,
    .remove = weir_heap_policy_remove,
    .forget = weir_heap_policy_remove,
    .next = weir_heap_policy_next,
};
