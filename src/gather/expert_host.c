/* SPDX-License-Identifier: Apache-2.0 */
#include "gather/expert_host.h"

#include <stdbool.h>
#include <string.h>

/* The steps are those of kernels/expert_ensure.cu. */

struct sets {
    uint32_t missing[WEIR_EXPERT_WORDS(WEIR_EXPERT_MAX_EXPERTS)];
    uint32_t touched[WEIR_EXPERT_WORDS(WEIR_EXPERT_MAX_SLOTS)];
};

/* True if it was not in the set before. */
static bool put(uint32_t *set, uint32_t number)
{
    uint32_t bit = UINT32_C(1) << number % 32;
    bool added = (set[number / 32] & bit) == 0;
    set[number / 32] |= bit;
    return added;
}

static bool has(const uint32_t *set, uint32_t number)
{
    return (set[number / 32] >> number % 32 & 1) != 0;
}

static uint32_t size_of(const uint32_t *set, uint32_t n)
{
    uint32_t size = 0;
    for (uint32_t w = 0; w < WEIR_EXPERT_WORDS(n); w++)
        size += (uint32_t)__builtin_popcount(set[w]);
    return size;
}

static void publish(const struct weir_expert_args *args, enum weir_expert_total which,
                    uint64_t value)
{
    args->totals[which] = value;
    __atomic_store_n(&args->published[which], value, __ATOMIC_RELAXED);
}

static void add_total(const struct weir_expert_args *args, enum weir_expert_total which, uint64_t n)
{
    publish(args, which, args->totals[which] + n);
}

static void look_up(const struct weir_expert_args *args, struct sets *sets)
{
    uint64_t hits = 0;
    uint64_t invalid = 0;
    for (uint32_t i = 0; i < args->n; i++) {
        uint32_t expert = (uint32_t)args->ids[i];
        if (expert >= args->n_experts) {
            invalid += args->ids[i] != -1;
            continue;
        }
        int32_t slot = args->slot_of[args->id_base + expert];
        if (slot >= 0)
            hits += put(sets->touched, (uint32_t)slot);
        else
            put(sets->missing, expert);
    }
    add_total(args, WEIR_EXPERT_HITS, hits);
    add_total(args, WEIR_EXPERT_INVALID, invalid);
}

static bool counts(const struct weir_expert_args *args, const struct sets *sets, uint32_t position)
{
    int32_t slot = args->order[position & args->order_mask];
    return args->place[slot] == position && !has(sets->touched, (uint32_t)slot);
}

/* Takes the next victim out of the order; false: all slots are touched. */
static bool next_victim(const struct weir_expert_args *args, const struct sets *sets,
                        uint32_t *position, uint32_t tail, int32_t *slot)
{
    while (*position != tail && !counts(args, sets, *position))
        ++*position;
    if (*position == tail)
        return false;
    *slot = args->order[(*position)++ & args->order_mask];
    return true;
}

static void give_slot(const struct weir_expert_args *args, uint32_t i, int32_t slot,
                      uint32_t expert)
{
    int32_t id = (int32_t)(args->id_base + expert);
    int32_t before = args->id_of[slot];
    if (before >= 0)
        args->slot_of[before] = -1;
    args->id_of[slot] = id;
    args->slot_of[id] = slot;
    args->dst_rows[i] = slot;
    args->src_rows[i] = (int32_t)expert;
}

/* In ascending order: those of the lowest ids get a slot if not all can. */
static void give_slots(const struct weir_expert_args *args, struct sets *sets)
{
    uint32_t missing = size_of(sets->missing, args->n_experts);
    uint32_t head = args->ends[0];
    uint32_t given = 0;
    int32_t slot;
    for (uint32_t expert = 0; expert < args->n_experts && given < missing; expert++) {
        if (!has(sets->missing, expert))
            continue;
        if (!next_victim(args, sets, &head, args->ends[1], &slot))
            break;
        args->ends[0] = head;
        give_slot(args, given++, slot, expert);
    }
    for (uint32_t i = 0; i < given; i++)
        put(sets->touched, (uint32_t)args->dst_rows[i]);
    *args->count = given;
    add_total(args, WEIR_EXPERT_MISSES, given);
    add_total(args, WEIR_EXPERT_SKIPPED, missing - given);
}

static void append(const struct weir_expert_args *args, int32_t slot)
{
    uint32_t position = args->ends[1]++;
    args->order[position & args->order_mask] = slot;
    args->place[slot] = position;
}

static void squeeze(const struct weir_expert_args *args, const struct sets *sets)
{
    uint32_t tail = args->ends[1];
    args->ends[1] = args->ends[0];
    for (uint32_t position = args->ends[0]; position != tail; position++)
        if (counts(args, sets, position))
            append(args, args->order[position & args->order_mask]);
}

static void append_touched(const struct weir_expert_args *args, const struct sets *sets)
{
    uint32_t touched = size_of(sets->touched, args->n_slots);
    if (args->ends[1] - args->ends[0] + touched > args->order_mask + 1)
        squeeze(args, sets);
    for (uint32_t slot = 0; slot < args->n_slots; slot++)
        if (has(sets->touched, slot))
            append(args, (int32_t)slot);
}

void weir_expert_host_ensure(const struct weir_expert_args *args)
{
    struct sets sets;
    memset(sets.missing, 0, sizeof *sets.missing * WEIR_EXPERT_WORDS(args->n_experts));
    memset(sets.touched, 0, sizeof *sets.touched * WEIR_EXPERT_WORDS(args->n_slots));
    look_up(args, &sets);
    give_slots(args, &sets);
    append_touched(args, &sets);
    for (uint32_t i = 0; i < args->n; i++) {
        uint32_t expert = (uint32_t)args->ids[i];
        args->slots[i] = expert < args->n_experts ? args->slot_of[args->id_base + expert] : -1;
    }
    add_total(args, WEIR_EXPERT_CALLS, 1);
}

void weir_expert_host_reset(const struct weir_expert_args *args)
{
    for (uint32_t id = 0; id < args->n_ids; id++)
        args->slot_of[id] = -1;
    for (uint32_t slot = 0; slot < args->n_slots; slot++) {
        args->id_of[slot] = -1;
        args->place[slot] = slot;
        args->order[slot] = (int32_t)slot;
    }
    args->ends[0] = 0;
    args->ends[1] = args->n_slots;
    *args->count = 0;
    for (uint32_t i = 0; i < WEIR_EXPERT_TOTALS; i++)
        publish(args, (enum weir_expert_total)i, 0);
}
