/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_EXPERT_MODEL_H
#define WEIR_TESTS_EXPERT_MODEL_H

/* What an expert cache should do, said in another way than it is done: each slot
 * has the number of the call that used it last, and a victim is found by looking
 * at all of them. And what its arrays must be between two calls. */

#include "kernels/expert_args.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct expert_model {
    uint32_t n_slots;
    uint32_t n_experts;
    uint64_t step;
    int64_t *id_of;   /* [slot], -1: empty */
    uint64_t *usage;  /* [slot], 0: never */
    int64_t *missing; /* [ids of a call] */
    uint32_t n_missing;
    uint32_t n_given;
    int64_t *victims;
    uint64_t totals[WEIR_EXPERT_TOTALS];
};

static inline void expert_model_clear(struct expert_model *m)
{
    m->step = 0;
    for (uint32_t i = 0; i < m->n_slots; i++) {
        m->id_of[i] = -1;
        m->usage[i] = 0;
    }
    memset(m->totals, 0, sizeof m->totals);
}

static inline void expert_model_open(struct expert_model *m, uint32_t n_slots, uint32_t n_experts,
                                     uint32_t max_ids)
{
    *m = (struct expert_model){ .n_slots = n_slots, .n_experts = n_experts };
    m->id_of = malloc(n_slots * sizeof *m->id_of);
    m->usage = malloc(n_slots * sizeof *m->usage);
    m->missing = malloc((max_ids + 1) * sizeof *m->missing);
    m->victims = malloc((max_ids + 1) * sizeof *m->victims);
    expert_model_clear(m);
}

static inline void expert_model_close(struct expert_model *m)
{
    free(m->id_of);
    free(m->usage);
    free(m->missing);
    free(m->victims);
}

static inline int64_t expert_model_find(const struct expert_model *m, int64_t id)
{
    for (uint32_t i = 0; i < m->n_slots; i++)
        if (m->id_of[i] == id)
            return i;
    return -1;
}

static inline int expert_model_by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static inline bool expert_model_valid(const struct expert_model *m, int32_t expert)
{
    return expert >= 0 && (uint32_t)expert < m->n_experts;
}

/* The longest unused slot of those that this step has not used; -1: none. */
static inline int64_t expert_model_victim(const struct expert_model *m)
{
    int64_t best = -1;
    for (uint32_t i = 0; i < m->n_slots; i++)
        if (m->usage[i] != m->step && (best < 0 || m->usage[i] < m->usage[best]))
            best = i;
    return best;
}

/* One call; slots[i] for ids[i]. */
static inline void expert_model_ensure(struct expert_model *m, int64_t base, const int32_t *ids,
                                       uint32_t n, int32_t *slots)
{
    m->step++;
    m->totals[WEIR_EXPERT_CALLS]++;
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < n; i++) {
        m->totals[WEIR_EXPERT_INVALID] += !expert_model_valid(m, ids[i]) && ids[i] != -1;
        if (!expert_model_valid(m, ids[i]))
            continue;
        int64_t slot = expert_model_find(m, base + ids[i]);
        if (slot < 0) {
            m->missing[n_found++] = ids[i];
        } else {
            m->totals[WEIR_EXPERT_HITS] += m->usage[slot] != m->step;
            m->usage[slot] = m->step;
        }
    }
    qsort(m->missing, n_found, sizeof *m->missing, expert_model_by_value);
    m->n_missing = 0;
    for (uint32_t i = 0; i < n_found; i++)
        if (i == 0 || m->missing[i] != m->missing[i - 1])
            m->missing[m->n_missing++] = m->missing[i];
    m->n_given = 0;
    for (uint32_t i = 0; i < m->n_missing; i++) {
        int64_t slot = expert_model_victim(m);
        m->totals[slot < 0 ? WEIR_EXPERT_SKIPPED : WEIR_EXPERT_MISSES]++;
        if (slot < 0)
            continue;
        m->victims[m->n_given++] = slot;
        m->usage[slot] = m->step;
        m->id_of[slot] = base + m->missing[i];
    }
    for (uint32_t i = 0; i < n; i++)
        slots[i] =
            expert_model_valid(m, ids[i]) ? (int32_t)expert_model_find(m, base + ids[i]) : -1;
}

/* ---- Arrays ---------------------------------------------------------------- */

/* Arrays of exactly the lengths that the limits ask for, on the heap. `order` is
 * as short as it may be, unless it is told otherwise. */
static inline void expert_state_open(struct weir_expert_args *args, uint32_t n_slots,
                                     uint32_t n_layers, uint32_t n_experts, uint32_t max_ids,
                                     uint32_t order_length)
{
    uint32_t length = 1;
    while (length < n_slots || length < order_length)
        length *= 2;
    uint32_t rows = max_ids < n_experts ? max_ids : n_experts;
    rows = rows < n_slots ? rows : n_slots;
    *args = (struct weir_expert_args){ .n_slots = n_slots,
                                       .n_experts = n_experts,
                                       .n_ids = n_layers * n_experts,
                                       .order_mask = length - 1 };
    args->slot_of = calloc(args->n_ids, sizeof *args->slot_of);
    args->id_of = calloc(n_slots, sizeof *args->id_of);
    args->place = calloc(n_slots, sizeof *args->place);
    args->order = calloc(length, sizeof *args->order);
    args->ends = calloc(2, sizeof *args->ends);
    args->totals = calloc(WEIR_EXPERT_TOTALS, sizeof *args->totals);
    args->published = calloc(WEIR_EXPERT_TOTALS, sizeof *args->published);
    args->dst_rows = calloc(rows, sizeof *args->dst_rows);
    args->src_rows = calloc(rows, sizeof *args->src_rows);
    args->count = calloc(1, sizeof *args->count);
}

static inline void expert_state_close(struct weir_expert_args *args)
{
    free(args->slot_of);
    free(args->id_of);
    free(args->place);
    free(args->order);
    free(args->ends);
    free(args->totals);
    free(args->published);
    free(args->dst_rows);
    free(args->src_rows);
    free(args->count);
}

/* As a reset leaves it, had the ring begun at `first`. */
static inline void expert_state_begin_at(struct weir_expert_args *args, uint32_t first)
{
    for (uint32_t slot = 0; slot < args->n_slots; slot++) {
        args->place[slot] = first + slot;
        args->order[(first + slot) & args->order_mask] = (int32_t)slot;
    }
    args->ends[0] = first;
    args->ends[1] = first + args->n_slots;
}

/* NULL, or which invariant of expert_args.h is broken. */
static inline const char *expert_state_check(const struct weir_expert_args *args)
{
    uint32_t n_held = 0;
    for (uint32_t slot = 0; slot < args->n_slots; slot++) {
        int32_t id = args->id_of[slot];
        if (id >= 0 && ((uint32_t)id >= args->n_ids || args->slot_of[id] != (int32_t)slot))
            return "a slot's id does not know the slot";
        n_held += id >= 0;
    }
    for (uint32_t id = 0; id < args->n_ids; id++)
        n_held -= args->slot_of[id] >= 0;
    if (n_held != 0)
        return "an id has a slot that does not know it";
    uint32_t length = args->ends[1] - args->ends[0];
    if (length > args->order_mask + 1)
        return "the order is longer than its ring";
    uint32_t n_counting = 0;
    for (uint32_t i = 0; i < length; i++) {
        uint32_t position = args->ends[0] + i;
        int32_t slot = args->order[position & args->order_mask];
        if (slot < 0 || (uint32_t)slot >= args->n_slots)
            return "the order holds no slot";
        n_counting += args->place[slot] == position;
    }
    if (n_counting != args->n_slots)
        return "a slot does not count once";
    for (uint32_t i = 0; i < WEIR_EXPERT_TOTALS; i++)
        if (args->published[i] != args->totals[i])
            return "a total was not published";
    return NULL;
}

/* NULL, or in what the arrays differ from the model. */
static inline const char *expert_state_compare(const struct weir_expert_args *args,
                                               const struct expert_model *m)
{
    for (uint32_t slot = 0; slot < args->n_slots; slot++)
        if (args->id_of[slot] != m->id_of[slot])
            return "what the slots hold";
    if (*args->count != m->n_given)
        return "the count";
    for (uint32_t i = 0; i < m->n_given; i++)
        if (args->dst_rows[i] != m->victims[i] || args->src_rows[i] != m->missing[i])
            return "the lists";
    if (memcmp(args->totals, m->totals, sizeof m->totals) != 0)
        return "the totals";
    return NULL;
}

/* ---- Ids ------------------------------------------------------------------- */

/* n ids of a layer: some popular, some any, few of them none or wrong. */
static inline void expert_ids_random(struct random *random, uint32_t n_experts, int32_t *ids,
                                     uint32_t n)
{
    static const int32_t wrong[] = { -2, INT32_MIN, INT32_MAX };
    for (uint32_t i = 0; i < n; i++) {
        uint32_t kind = random_below(random, 100);
        uint32_t hot = n_experts < 9 ? n_experts : n_experts / 8;
        ids[i] = (int32_t)random_below(random, kind < 70 ? hot : n_experts);
        if (kind >= 98)
            ids[i] = -1;
        else if (kind == 97)
            ids[i] =
                random_percent(random, 40) ? (int32_t)n_experts : wrong[random_below(random, 3)];
    }
}

#endif
