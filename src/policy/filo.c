/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap_policy.h"

/* First in, last out: what entered the tier last goes first, however often it
 * was used. Long-lived prompts that a server warms up at its start stay. */

static void add(void *state, const weir_evict_entry *entry)
{
    weir_heap_set(state, UINT64_MAX - entry->since, entry->depth, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    (void)state;
    (void)entry;
}

const weir_evict_policy weir_evict_filo = {
    .name = "filo",
    .create = weir_heap_policy_create,
    .create_in = weir_heap_policy_create_in,
    .destroy = weir_heap_policy_destroy,
    .add = add,
    .use = use,
    .remove = weir_heap_policy_remove,
    .forget = weir_heap_policy_remove,
    .next = weir_heap_policy_next,
};
