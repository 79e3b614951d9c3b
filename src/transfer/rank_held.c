/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/rank.h"

#include <string.h>

/* Transfers that a rank has been given and not enqueued yet: they wait on the
 * host, so that they hold up nothing and can still be dropped. */

bool weir_rank_hold(struct weir_rank *rank, struct weir_held_list *list, const weir_move *moves,
                    uint32_t n)
{
    if (n > rank->n_free_held)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = rank->free_held;
        rank->free_held = rank->held[place].next;
        rank->held[place] = (struct weir_held_move){ moves[i], list->first };
        list->first = place;
    }
    list->n = n;
    rank->n_free_held -= n;
    return true;
}

uint32_t weir_rank_take_held(struct weir_rank *rank, struct weir_held_list *list)
{
    uint32_t n = list->n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = list->first;
        list->first = rank->held[place].next;
        rank->engine.moves[i] = rank->held[place].move;
        rank->held[place].next = rank->free_held;
        rank->free_held = place;
    }
    rank->n_free_held += n;
    list->n = 0;
    return n;
}

/* ---- Loads ---------------------------------------------------------------- */

/* Enqueues engine->moves[0..n) as the load of a step. */
static void enter(struct weir_rank *rank, uint64_t step, uint32_t n, bool failed)
{
    struct weir_rank_step *record = weir_rank_record(rank, step);
    weir_stream *stream = rank->engine.lanes[WEIR_LOAD].stream;
    for (uint64_t bits = record->load_fences; bits && !failed; bits &= bits - 1)
        failed = weir_fences_wait(&rank->fences, step - 1 - (uint64_t)__builtin_ctzll(bits),
                                  stream) != 0;
    weir_engine_load(&rank->engine, record->slot, n, failed, &record->load);
    record->load_state = WEIR_LOAD_ENTERED;
    record->check_end = weir_checks_load(&rank->checks, rank->engine.moves, n);
}

static bool has_passed(struct weir_rank *rank, uint64_t step)
{
    for (uint64_t bits = weir_rank_record(rank, step)->load_fences; bits; bits &= bits - 1)
        if (!weir_fences_passed(&rank->fences, step - 1 - (uint64_t)__builtin_ctzll(bits)))
            return false;
    return true;
}

static void enter_held(struct weir_rank *rank, uint64_t step, bool failed)
{
    rank->n_load_held--;
    enter(rank, step, weir_rank_take_held(rank, &weir_rank_record(rank, step)->held_load), failed);
}

void weir_rank_start_load(struct weir_rank *rank, uint64_t step, const weir_order *order,
                          bool at_once)
{
    struct weir_rank_step *record = weir_rank_record(rank, step);
    record->load_due = true;
    if (!at_once && !has_passed(rank, step) &&
        weir_rank_hold(rank, &record->held_load, order->loads, order->n_loads)) {
        record->load_state = WEIR_LOAD_HELD;
        rank->n_load_held++;
        return;
    }
    memcpy(rank->engine.moves, order->loads, order->n_loads * sizeof *order->loads);
    enter(rank, step, order->n_loads, false);
}

void weir_rank_need_load(struct weir_rank *rank, uint64_t step)
{
    if (weir_rank_record(rank, step)->load_state == WEIR_LOAD_HELD)
        enter_held(rank, step, false);
}

void weir_rank_start_loads(struct weir_rank *rank)
{
    if (rank->n_load_held == 0)
        return;
    bool lost = rank->device->ops->status(rank->device) != 0;
    for (uint64_t step = weir_rank_oldest(rank); step <= rank->fences.newest; step++) {
        if (weir_rank_record(rank, step)->load_state != WEIR_LOAD_HELD)
            continue;
        if (lost || has_passed(rank, step))
            enter_held(rank, step, lost);
    }
}

/* ---- Cancelling ----------------------------------------------------------- */

static void cancel_load(struct weir_rank *rank, uint64_t step)
{
    if (!weir_rank_has_record(rank, step))
        return;
    struct weir_rank_step *record = weir_rank_record(rank, step);
    if (record->load_state != WEIR_LOAD_HELD)
        return;
    weir_rank_take_held(rank, &record->held_load);
    rank->n_load_held--;
    record->load_state = WEIR_LOAD_DROPPED;
}

static void cancel_write(struct weir_rank *rank, uint64_t number)
{
    if (rank->n_write_due == 0)
        return;
    for (uint64_t step = weir_rank_oldest(rank); step <= rank->fences.newest; step++) {
        struct weir_rank_step *record = weir_rank_record(rank, step);
        if (!record->write_due || record->write_number != number)
            continue;
        weir_rank_take_held(rank, &record->held_write);
        record->write_dropped = true;
        return;
    }
}

void weir_rank_cancel(struct weir_rank *rank, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_cancels; i++) {
        if (order->cancels[i].kind == WEIR_REPORT_LOAD)
            cancel_load(rank, order->cancels[i].number);
        else
            cancel_write(rank, order->cancels[i].number);
    }
}
