/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POLICY_EVICT_H
#define WEIR_POLICY_EVICT_H

/* The built-in eviction policies, a file each:
 *
 *   weir_evict_policy_find ──► table in evict.c
 *                                │
 *       ┌────────────────────────┴────────────────────┐
 *   lru.c mru.c fifo.c filo.c priority.c     slru.c lfu.c cost.c
 *       └───────────┬───────────────────┘             │
 *             heap_policy.h ──────► heap.h ◄──────────┘
 *
 * Invariant of each: the heap of evictable entries holds exactly those that
 * were added and not removed, forgotten or given up since. */

#include <weir/policy.h>

extern const weir_evict_policy weir_evict_lru;
extern const weir_evict_policy weir_evict_slru;
extern const weir_evict_policy weir_evict_lfu;
extern const weir_evict_policy weir_evict_fifo;
extern const weir_evict_policy weir_evict_mru;
extern const weir_evict_policy weir_evict_filo;
extern const weir_evict_policy weir_evict_priority;
extern const weir_evict_policy weir_evict_cost;

#endif
