/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/heap_policy.h"

int weir_heap_policy_create_in(void **state, uint32_t capacity, const weir_allocator *allocator)
{
    struct weir_heap *heap;
    int rc = weir_heap_create(&heap, capacity, allocator);
    if (rc == 0)
        *state = heap;
    return rc;
}

int weir_heap_policy_create(void **state, uint32_t capacity)
{
    return weir_heap_policy_create_in(state, capacity, NULL);
}

void weir_heap_policy_destroy(void *state)
{
    struct weir_heap *heap = state;
    weir_heap_destroy(&heap);
}

void weir_heap_policy_remove(void *state, uint32_t entry)
{
    weir_heap_remove(state, entry);
}

int32_t weir_heap_policy_next(void *state)
{
    struct weir_heap_slot slot;
    return weir_heap_pop(state, &slot) ? (int32_t)slot.entry : -1;
}
