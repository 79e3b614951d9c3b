/* SPDX-License-Identifier: Apache-2.0 */

/* Time on the scheduler's or the GPU's thread: a synchronization in every turn, some
 * calls for each page of each layer, so that a load costs more to give than to make.
 * Counted here in driver calls, which are what costs. */

#include "driver_rig.h"

static uint32_t all_calls(const struct driver_rig *d)
{
    uint32_t n = 0;
    for (int i = 0; i < FAKE_FUNCTIONS; i++)
        n += d->cuda.fake->counts[i];
    return n;
}

enum {
    LAYERS = 80,
    /* Around each call the device makes current and relaxes, and undoes both. */
    AROUND = 4
};

/* Pages apart from each other on both sides, so that nothing merges. */
static uint32_t scattered(weir_move *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        moves[i] = (weir_move){ { 1 + (int32_t)(i * 2) }, { 2 + (int32_t)(i * 148 % 149) * 2 } };
    return n;
}

struct cost {
    uint32_t begin;
    uint32_t wait; /* the dearest layer */
    uint32_t end;
};

static struct cost cost_of(uint32_t n_loads, uint32_t n_writes)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, LAYERS);
    struct driver_rig d;
    driver_open(&d, &shape, false);
    weir_move loads[149], writes[149];
    weir_order order = { .n_loads = scattered(loads, n_loads),
                         .loads = loads,
                         .n_writes = scattered(writes, n_writes),
                         .writes = writes };
    struct cost cost = { .begin = all_calls(&d) };
    uint64_t step = driver_begin(&d, order, 0, d.streams[0]);
    cost.begin = all_calls(&d) - cost.begin;
    uint32_t note = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t before = all_calls(&d);
        cr_assert(zero(int, weir_rank_wait_layer(d.rank, step, layer, d.streams[0])));
        uint32_t now = all_calls(&d) - before;
        cost.wait = now > cost.wait ? now : cost.wait;
        if (layer == LAYERS - 1)
            note = driver_forward(&d, 1, layer, d.streams[0]);
    }
    cost.end = all_calls(&d);
    driver_end(&d, step, d.streams[0]);
    cost.end = all_calls(&d) - cost.end;
    driver_settle(&d);
    if (n_loads > 0)
        cr_assert(eq(u8, driver_note(&d, note), driver_byte(loads[0].host.id, LAYERS - 1)));
    cr_assert(eq(sz, d.n_items, 1 + (n_loads > 0) + (n_writes > 0)));
    driver_close(&d);
    return cost;
}

/* What a step of eighty layers costs follows from its layers, never from its pages: a
 * query, a batch and its word a layer, and a query and a wait for each that is waited
 * for. */
Test(enqueueing_costs, a_layer_is_one_call)
{
    struct cost none = cost_of(0, 0);
    cr_assert(le(u32, none.begin, 2 * (AROUND + 1)));
    cr_assert(le(u32, none.wait, AROUND + 1));
    struct cost one = cost_of(1, 0);
    struct cost many = cost_of(149, 0);
    cr_assert(eq(u32, one.begin, many.begin), "%u and %u", one.begin, many.begin);
    cr_assert(le(u32, many.begin, none.begin + LAYERS * 3 + 4 * (AROUND + 1)), "%u", many.begin);
    cr_assert(le(u32, many.wait, 2 * (AROUND + 1)), "%u", many.wait);
    cr_assert(eq(u32, one.end, many.end));
    one = cost_of(0, 1);
    many = cost_of(0, 149);
    cr_assert(eq(u32, one.begin + one.end, many.begin + many.end));
    cr_assert(le(u32, many.end, none.end + LAYERS * 2 + 6 * (AROUND + 1)), "%u", many.end);
}

/* Neighbours in both tiers are one copy: eight pages of a layer are a piece for each
 * tensor. */
Test(enqueueing_costs, neighbours_are_one_copy)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, 2);
    struct driver_rig d;
    driver_open(&d, &shape, false);
    weir_move loads[8];
    for (int32_t i = 0; i < 8; i++)
        loads[i] = (weir_move){ { 10 + i }, { 33 + i } };
    uint32_t first = d.cuda.fake->n_calls;
    uint64_t step = driver_begin(&d, (weir_order){ .n_loads = 8, .loads = loads }, 0, d.streams[0]);
    uint32_t n_pieces = 0, n_batches = 0;
    for (uint32_t i = first; i < d.cuda.fake->n_calls; i++) {
        const struct fake_call *call = &d.cuda.fake->calls[i];
        cr_assert(ne(int, (int)call->function, FAKE_cuMemcpyAsync));
        if (call->function != FAKE_cuMemcpyBatchAsync)
            continue;
        n_batches++;
        n_pieces += (uint32_t)call->arguments[0];
    }
    cr_assert(n_batches == 2 && n_pieces == 4, "%u batches, %u pieces", n_batches, n_pieces);
    driver_end(&d, step, d.streams[0]);
    driver_settle(&d);
    driver_close(&d);
}

/* What is in flight is looked for in pinned memory: no call of the driver, however
 * often. */
Test(enqueueing_costs, a_report_asks_no_driver)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, 3);
    struct driver_rig d;
    driver_open(&d, &shape, false);
    for (int flight = 0; flight < 2; flight++) {
        if (flight) {
            driver_shut(&d, d.streams[0]);
            weir_move move = { { 3 }, { 7 } };
            uint64_t step =
                driver_begin(&d, (weir_order){ .n_writes = 1, .writes = &move }, 0, d.streams[0]);
            driver_end(&d, step, d.streams[0]);
            move.device.id = 5;
            step = driver_begin(&d, (weir_order){ .n_loads = 1, .loads = &move }, 1, d.streams[0]);
            driver_end(&d, step, d.streams[0]);
        }
        uint32_t calls = all_calls(&d);
        for (int i = 0; i < 1000; i++)
            driver_report(&d);
        cr_assert(eq(u32, all_calls(&d), calls));
    }
    driver_open_gate(&d);
    uint32_t calls = all_calls(&d);
    cr_assert(ge(sz, driver_report(&d), 3));
    cr_assert(eq(u32, all_calls(&d), calls));
    driver_settle(&d);
    cr_assert(eq(sz, d.n_items, 4));
    driver_close(&d);
}

/* A slot whose load is in flight is busy, also when its step has ended and is
 * reported because it waited for nothing; and a refusal enqueues nothing. */
Test(enqueueing_costs, a_busy_slot_costs_nothing)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, 3);
    struct driver_rig d;
    driver_open(&d, &shape, false);
    driver_shut(&d, d.streams[0]);
    uint64_t user = driver_begin(&d, (weir_order){ 0 }, 2, d.streams[0]);
    driver_end(&d, user, d.streams[0]);
    weir_move load = { { 3 }, { 7 } };
    weir_order order = { .n_loads = 1, .loads = &load, .n_load_fences = 1, .load_fences = &user };
    driver_end(&d, driver_begin(&d, order, 0, d.streams[1]), d.streams[1]);
    driver_run(&d);
    cr_assert(eq(sz, driver_report(&d), 1));
    cr_assert(d.items[0].kind == WEIR_REPORT_STEP && d.items[0].number == 2);
    weir_order next = { 0 };
    for (int i = 0; i < 3; i++) {
        uint32_t calls = all_calls(&d);
        cr_assert(eq(int, driver_try_begin(&d, next, 0, d.streams[1]), -EBUSY));
        cr_assert(le(u32, all_calls(&d) - calls, 2 * (AROUND + 1)));
    }
    driver_end(&d, driver_begin(&d, next, 1, d.streams[1]), d.streams[1]); /* another is free */
    driver_open_gate(&d);
    driver_settle(&d);
    driver_end(&d, driver_begin(&d, next, 0, d.streams[1]), d.streams[1]);
    driver_settle(&d);
    cr_assert(eq(sz, d.n_items, 5));
    driver_close(&d);
}
