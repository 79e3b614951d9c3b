/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POLICY_HEAP_H
#define WEIR_POLICY_HEAP_H

/* The entries that a policy would give up, first one on top: a 4-ary heap, so
 * that the children of a slot share a cache line.
 *
 *   slots      0 │ 1 2 3 4 │ 5 6 7 8 │ 9 …      children of i: 4i+1 .. 4i+4
 *              ▲     │
 *   position   └─[entry]─ slot + 1, 0: not in the heap
 *
 * Order: smaller key, then greater depth (leaves before parents), then smaller
 * entry. No two slots are equal in it, so the order of removal depends on the
 * content only, not on the history.
 *
 * Invariants: no slot is before its parent slot; position[slots[i].entry] ==
 * i + 1 for i < n, and 0 for every other entry. Entries are below capacity.
 * Nothing is allocated after create. */

#include "base/memory.h"

#include <weir/policy.h>

struct weir_heap_slot {
    uint64_t key;
    uint32_t depth;
    uint32_t entry;
};

struct weir_heap {
    struct weir_memory memory; /* counts itself, too */
    uint32_t capacity;
    uint32_t n;
    struct weir_heap_slot *slots; /* [capacity] */
    uint32_t *position;           /* [capacity] */
};

/* For entries 0..capacity-1. allocator: copied, NULL: libc. -EINVAL: half an
 * allocator; -ENOMEM. */
int weir_heap_create(struct weir_heap **heap, uint32_t capacity, const weir_allocator *allocator);
void weir_heap_destroy(struct weir_heap **heap);

static inline bool weir_heap_has(const struct weir_heap *heap, uint32_t entry)
{
    return heap->position[entry] != 0;
}

/* Adds an entry, or gives it a new place if it is there. */
void weir_heap_set(struct weir_heap *heap, uint64_t key, uint32_t depth, uint32_t entry);

/* No-op if the entry is not there. */
void weir_heap_remove(struct weir_heap *heap, uint32_t entry);

/* Takes the first slot out. False: the heap is empty. */
bool weir_heap_pop(struct weir_heap *heap, struct weir_heap_slot *slot);

#endif
