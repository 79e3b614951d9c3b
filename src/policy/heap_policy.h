/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POLICY_HEAP_POLICY_H
#define WEIR_POLICY_HEAP_POLICY_H

/* The vtable entries of a policy whose whole state is one heap: such a policy
 * learns nothing that outlives `remove`, and differs from others of its kind
 * in the key alone.
 *
 *   lru,  mru:  add, use  ─┐
 *                          ├─► struct weir_heap ◄── create(_in), destroy, remove,
 *   fifo, filo: add, use  ─┘                        forget, next (here) */

#include "policy/heap.h"

int weir_heap_policy_create(void **state, uint32_t capacity);
int weir_heap_policy_create_in(void **state, uint32_t capacity, const weir_allocator *allocator);
void weir_heap_policy_destroy(void *state);
void weir_heap_policy_remove(void *state, uint32_t entry); /* forget, too */
int32_t weir_heap_policy_next(void *state);

#endif
