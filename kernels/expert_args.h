/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_EXPERT_ARGS_H
#define WEIR_KERNELS_EXPERT_ARGS_H

/* An expert cache's state in device memory, and one call on it; read by C and
 * CUDA alike. The kernel (expert_ensure.cu) and the host's function
 * (src/gather/expert_host.c) leave the same state, bit for bit.
 *
 *   slot_of [id]    ──► slot, -1: absent         id = id_base + expert
 *   id_of   [slot]  ──► id, -1: empty
 *
 *   order: a ring of slots, appended to at each use, never edited
 *
 *        head                                   tail
 *          │ 3 │ 7 │ 1 │ 7 │ 0 │ 3 │ 2 │ 5 │ … │
 *                ╳       │       ╳ stale: the slot was used again later
 *                        └ place[7] is here
 *
 * A slot's entry counts at position place[slot] and nowhere else. Each call
 * appends the slots that it used in ascending order, so what counts from head on
 * is all slots by (last use, slot): the first that this call has not used is the
 * next victim. A call costs what it touches, however many slots there are. When
 * the ring is full the stale entries are squeezed out of it.
 *
 * Invariants between calls: slot_of and id_of are each other's inverse; each slot
 * counts exactly once between head and tail; tail - head <= length of the ring;
 * positions are 32 bits and wrap. */

#include <stdint.h>

#define WEIR_EXPERT_MAX_SLOTS (1u << 18)
#define WEIR_EXPERT_MAX_EXPERTS (1u << 16)
#define WEIR_EXPERT_MAX_IDS (1u << 20)
#define WEIR_EXPERT_MAX_THREADS 1024u

/* Words of a set of n numbers, a bit each. */
#define WEIR_EXPERT_WORDS(n) (((n) + 31u) / 32u)

/* Shared memory of a CTA: its warps' sums, the new head, two sets. */
#define WEIR_EXPERT_SHARED_BYTES(n_slots, n_experts) \
    (33u * 8u + 4u * (WEIR_EXPERT_WORDS(n_slots) + WEIR_EXPERT_WORDS(n_experts)))

enum weir_expert_total {
    WEIR_EXPERT_CALLS,
    WEIR_EXPERT_HITS,
    WEIR_EXPERT_MISSES,
    WEIR_EXPERT_SKIPPED,
    WEIR_EXPERT_INVALID,
    WEIR_EXPERT_TOTALS
};

struct weir_expert_args {
    int32_t *slot_of;
    int32_t *id_of;
    uint32_t *place;
    int32_t *order;
    uint32_t *ends; /* head, tail */
    uint64_t *totals;
    uint64_t *published; /* pinned; a copy of totals */
    int32_t *dst_rows;   /* this call's misses: slots … */
    int32_t *src_rows;   /* … and experts */
    int64_t *count;
    uint32_t n_slots;
    uint32_t n_experts; /* ids of a call are id_base + 0..n_experts-1 */
    uint32_t n_ids;     /* of all layers */
    uint32_t order_mask;
    uint32_t race_pool; /* of the CPU device's race check: all of this is its one page */

    const int32_t *ids;
    int32_t *slots; /* may be ids */
    uint32_t n;
    uint32_t id_base;
};

#endif
