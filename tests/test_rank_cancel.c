/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_random.h"

/* What an order cancels is dropped by a rank that has not enqueued it, and
 * completed by one that has. */

static const weir_tensor tensors[] = { { .page_bytes = 4 * 24, .row_bytes = 24 },
                                       { .page_bytes = 4 * 5, .row_bytes = 5 } };
static const weir_shape shape = {
    .page_tokens = 4, .n_layers = 3, .n_tensors = 2, .tensors = tensors
};

static struct world *small_world(uint64_t seed)
{
    weir_rank_params params = world_params(&shape, WEIR_HOST_SEGMENTED);
    return world_open(seed, &params);
}

/* Host page 1 holds something; device page 3 is in use by a step of stream 0,
 * which stands still. Returns that step. */
static uint64_t busy_page(struct world *w)
{
    world_make_page(w, 1, w->streams[0]);
    world_make_page(w, 3, w->streams[0]);
    world_settle(w);
    weir_cpu_stream_park(w->device, w->streams[0]);
    uint64_t user = world_begin(w, (weir_order){ 0 }, w->streams[0]);
    world_read_page(w, user, 3, w->pages[3].content, 0);
    world_end(w, user);
    return user;
}

/* Loads host page 1 into device page 3 behind the step that uses it. */
static uint64_t load_behind(struct world *w, uint64_t user)
{
    weir_move move = { { 3 }, { 1 } };
    return world_begin(
        w, (weir_order){ .n_loads = 1, .loads = &move, .n_load_fences = 1, .load_fences = &user },
        w->streams[1]);
}

static uint64_t cancel(struct world *w, weir_report_kind kind, uint64_t number)
{
    weir_cancel one = { .number = number, .kind = kind };
    return world_begin(w, (weir_order){ .n_cancels = 1, .cancels = &one }, w->streams[1]);
}

static void expect_all_held_room(const struct world *w)
{
    cr_assert(eq(u32, w->rank->n_free_held, w->rank->engine.max_moves));
    cr_assert(zero(u32, w->rank->n_load_held));
    cr_assert(zero(u32, w->rank->n_write_due));
}

static void finish(struct world *w)
{
    world_expect_right(w);
    expect_all_held_room(w);
    cr_assert(zero(sz, world_report(w, 20)), "each once");
    world_close(w);
}

/* ---- Loads --------------------------------------------------------------- */

/* It is dropped and reported while its target is still in use, and waits for it
 * pass. */
Test(rank_cancel, a_load_that_is_held_is_dropped)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        uint64_t load = load_behind(w, busy_page(w));
        cr_assert(eq(u32, w->rank->n_load_held, 1));
        uint64_t by = cancel(w, WEIR_REPORT_LOAD, load);
        cr_assert(eq(u32, w->rank->n_free_held, w->rank->engine.max_moves));
        for (uint32_t layer = 0; layer < shape.n_layers; layer++)
            cr_assert(eq(int, weir_rank_wait_layer(w->rank, load, layer, w->streams[1]), 0));
        world_end(w, load);
        world_end(w, by);
        world_settle_stream(w, w->streams[1]);
        cr_assert(eq(int, w->steps[load].load_rc, -ECANCELED));
        cr_assert(w->steps[load].load_reported);
        cr_assert(w->steps[load].reported && w->steps[by].reported);
        cr_assert(zero(u64, weir_cpu_device_calls(w->device, WEIR_CPU_CALL_COPY_LOAD)));
        weir_cpu_stream_release(w->device, w->streams[0]);
        finish(w);
    }
}

Test(rank_cancel, a_load_that_is_waited_for_completes)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        uint64_t load = load_behind(w, busy_page(w));
        world_read_page(w, load, 3, w->pages[1].content, load);
        cr_assert(zero(u32, w->rank->n_load_held));
        uint64_t by = cancel(w, WEIR_REPORT_LOAD, load);
        world_end(w, load);
        world_end(w, by);
        world_report(w, 20);
        cr_assert(not(w->steps[load].load_reported));
        weir_cpu_stream_release(w->device, w->streams[0]);
        world_settle(w);
        cr_assert(zero(int, w->steps[load].load_rc));
        cr_assert(w->steps[load].load_reported);
        finish(w);
    }
}

/* The wait of another step that joins it does so too. */
Test(rank_cancel, a_load_that_is_joined_completes)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        uint64_t load = load_behind(w, busy_page(w));
        uint64_t other =
            world_begin(w, (weir_order){ .n_joins = 1, .joins = &load }, w->streams[1]);
        cr_assert(eq(u32, w->rank->n_load_held, 1), "a join alone waits for nothing");
        world_read_page(w, other, 3, w->pages[1].content, load);
        cr_assert(zero(u32, w->rank->n_load_held));
        cancel(w, WEIR_REPORT_LOAD, load);
        weir_cpu_stream_release(w->device, w->streams[0]);
        world_finish(w);
        cr_assert(zero(int, w->steps[load].load_rc));
        finish(w);
    }
}

/* A copy in the server's stream needs all of it. */
Test(rank_cancel, a_load_that_is_copied_from_completes)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        uint64_t user = busy_page(w), load = load_behind(w, user);
        weir_page_copy copy = { { 3 }, { 5 }, load };
        weir_order order = { .n_joins = 1, .joins = &load, .n_copies = 1, .copies = &copy };
        uint64_t step = world_begin(w, order, w->streams[1]);
        cr_assert(zero(u32, w->rank->n_load_held));
        world_read_page(w, step, 5, w->pages[1].content, load);
        cancel(w, WEIR_REPORT_LOAD, load);
        weir_cpu_stream_release(w->device, w->streams[0]);
        world_finish(w);
        cr_assert(zero(int, w->steps[load].load_rc));
        cr_assert(zero(int, w->steps[step].rc));
        finish(w);
    }
}

/* What was dropped brings nothing: the step says so. */
Test(rank_cancel, a_dropped_load_is_not_copied_from)
{
    struct world *w = small_world(3);
    uint64_t load = load_behind(w, busy_page(w));
    world_end(w, cancel(w, WEIR_REPORT_LOAD, load));
    weir_page_copy copy = { { 3 }, { 5 }, load };
    weir_order order = { .n_joins = 1, .joins = &load, .n_copies = 1, .copies = &copy };
    uint64_t step = world_begin(w, order, w->streams[1]);
    weir_cpu_stream_release(w->device, w->streams[0]);
    world_finish(w);
    cr_assert(eq(int, w->steps[load].load_rc, -ECANCELED));
    cr_assert(eq(int, w->steps[step].rc, -EIO));
    finish(w);
}

/* The copies stand still; they are enqueued, so they run. */
Test(rank_cancel, a_load_that_runs_completes)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        world_make_page(w, 1, w->streams[0]);
        world_settle(w);
        cr_assert(eq(int, weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_LOAD, 2), 0));
        weir_move move = { { 3 }, { 1 } };
        uint64_t load = world_begin(w, (weir_order){ .n_loads = 1, .loads = &move }, w->streams[1]);
        cr_assert(zero(u32, w->rank->n_load_held));
        world_end(w, load);
        uint64_t by = cancel(w, WEIR_REPORT_LOAD, load);
        world_end(w, by);
        world_report(w, 20);
        cr_assert(not(w->steps[load].load_reported));
        weir_cpu_device_release(w->device);
        world_settle(w);
        cr_assert(zero(int, w->steps[load].load_rc));
        finish(w);
    }
}

/* Ended and not reported, or reported already, or of a step too old to be known. */
Test(rank_cancel, a_load_that_is_over_is_reported_once)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int reported = 0; reported < 3; reported++) {
            struct world *w = small_world(seed);
            world_make_page(w, 1, w->streams[0]);
            world_settle(w);
            weir_move move = { { 3 }, { 1 } };
            uint64_t load =
                world_begin(w, (weir_order){ .n_loads = 1, .loads = &move }, w->streams[1]);
            world_end(w, load);
            while (weir_cpu_device_run(w->device, 100) == 100)
                continue;
            if (reported)
                world_report(w, 20);
            for (int i = 0; reported == 2 && i < 9; i++) {
                world_end(w, world_begin(w, (weir_order){ 0 }, w->streams[0]));
                world_settle(w);
            }
            world_end(w, cancel(w, WEIR_REPORT_LOAD, load));
            world_settle(w);
            cr_assert(zero(int, w->steps[load].load_rc));
            finish(w);
        }
}

/* A load that must wait holds up none that need not, and starts by itself. */
Test(rank_cancel, a_held_load_holds_up_nothing)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        uint64_t load = load_behind(w, busy_page(w));
        world_end(w, load);
        weir_move move = { { 5 }, { 1 } };
        uint64_t next = world_begin(w, (weir_order){ .n_loads = 1, .loads = &move }, w->streams[1]);
        world_end(w, next);
        world_settle(w);
        cr_assert(w->steps[next].load_reported);
        cr_assert(not(w->steps[load].load_reported));
        weir_cpu_stream_release(w->device, w->streams[0]);
        world_finish(w);
        cr_assert(zero(int, w->steps[load].load_rc));
        uint64_t reader = world_begin(w, (weir_order){ 0 }, w->streams[1]);
        world_read_page(w, reader, 3, w->pages[1].content, load);
        finish(w);
    }
}

/* As many moves as there is room for are held; what does not fit is enqueued. */
Test(rank_cancel, loads_that_do_not_fit_are_not_held)
{
    struct world *w = small_world(3);
    uint64_t user = busy_page(w);
    w->rank->n_free_held = 0;
    uint64_t load = load_behind(w, user);
    cr_assert(zero(u32, w->rank->n_load_held));
    w->rank->n_free_held = w->rank->engine.max_moves;
    weir_cpu_stream_release(w->device, w->streams[0]);
    world_finish(w);
    cr_assert(zero(int, w->steps[load].load_rc));
    finish(w);
}

Test(rank_cancel, held_loads_fail_with_the_device)
{
    for (uint64_t seed = 0; seed <= 4; seed++) {
        struct world *w = small_world(seed);
        uint64_t load = load_behind(w, busy_page(w));
        weir_cpu_device_lose(w->device);
        w->lost = true;
        world_end(w, load);
        world_report(w, 20);
        cr_assert(w->steps[load].load_reported);
        cr_assert(eq(int, w->steps[load].load_rc, -EIO));
        world_check_reports(w);
        world_close(w);
    }
    check_leaks();
}

/* Whoever waited for it would wait for ever. */
Test(rank_cancel, a_rank_can_be_closed_with_a_held_load)
{
    struct world *w = small_world(0);
    uint64_t load = load_behind(w, busy_page(w));
    cr_assert(eq(u32, w->rank->n_load_held, 1));
    weir_cpu_stream_release(w->device, w->streams[0]);
    world_end(w, load);
    world_close(w);
    check_leaks();
}

/* ---- Write-backs --------------------------------------------------------- */

/* Its step has not ended, or one that wrote its page has not. */
Test(rank_cancel, a_write_back_that_is_not_enqueued_is_dropped)
{
    for (uint64_t seed = 0; seed <= 6; seed++)
        for (int producer_open = 0; producer_open < 2; producer_open++) {
            struct world *w = small_world(seed);
            uint64_t producer = world_begin(w, (weir_order){ 0 }, w->streams[0]);
            weir_move write = { { 1 }, { 5 } };
            uint64_t writer = world_begin(w,
                                          (weir_order){ .n_writes = 1,
                                                        .writes = &write,
                                                        .n_write_fences = 1,
                                                        .write_fences = &producer },
                                          w->streams[1]);
            world_end(w, producer_open ? writer : producer);
            uint64_t by = cancel(w, WEIR_REPORT_WRITE_BACK, writer + 5000);
            world_report(w, 20);
            cr_assert(w->steps[writer].write_reported);
            cr_assert(eq(int, w->steps[writer].write_rc, -ECANCELED));
            expect_all_held_room(w);
            world_end(w, by);
            world_end(w, producer_open ? producer : writer);
            world_settle(w);
            cr_assert(zero(u64, weir_cpu_device_calls(w->device, WEIR_CPU_CALL_COPY_WRITE_BACK)));
            finish(w);
        }
}

Test(rank_cancel, a_write_back_that_is_enqueued_completes)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        cr_assert(eq(int, weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_WRITE_BACK, 1), 0));
        world_make_page(w, 1, w->streams[0]);
        uint64_t by = cancel(w, WEIR_REPORT_WRITE_BACK, 5001);
        world_end(w, by);
        world_report(w, 20);
        cr_assert(not(w->steps[1].write_reported));
        weir_cpu_device_release(w->device);
        world_settle(w);
        cr_assert(w->steps[1].write_reported);
        cr_assert(zero(int, w->steps[1].write_rc));
        finish(w);
    }
}

/* All that it would have waited for ends before the drop is reported. */
Test(rank_cancel, a_dropped_write_back_is_not_enqueued_later)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        weir_move write = { { 1 }, { 5 } };
        uint64_t writer =
            world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, w->streams[1]);
        cancel(w, WEIR_REPORT_WRITE_BACK, writer + 5000);
        world_finish(w);
        cr_assert(eq(int, w->steps[writer].write_rc, -ECANCELED));
        cr_assert(zero(u64, weir_cpu_device_calls(w->device, WEIR_CPU_CALL_COPY_WRITE_BACK)));
        finish(w);
    }
}

/* A dropped write-back counts in max_write_backs until it is reported. */
Test(rank_cancel, a_dropped_write_back_makes_room)
{
    weir_rank_params params = world_params(&shape, WEIR_HOST_SEGMENTED);
    params.max_write_backs = 1;
    struct world *w = world_open(5, &params);
    weir_move write = { { 1 }, { 1 } };
    uint64_t first = world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, w->streams[0]);
    cancel(w, WEIR_REPORT_WRITE_BACK, first + 5000);
    world_report(w, 1);
    cr_assert(eq(int, w->steps[first].write_rc, -ECANCELED));
    weir_move next = { { 2 }, { 2 } };
    uint64_t second = world_begin(w, (weir_order){ .n_writes = 1, .writes = &next }, w->streams[0]);
    world_finish(w);
    cr_assert(zero(int, w->steps[second].write_rc));
    finish(w);
}

/* ---- Random -------------------------------------------------------------- */

/* One of the two streams stands still for four steps at a time, so that some
 * loads are held. */
static void random_cancels(uint64_t seed, unsigned n_steps, uint32_t dropped[2])
{
    weir_rank_params params =
        world_params(&shape, seed % 2 ? WEIR_HOST_SEGMENTED : WEIR_HOST_PAGE_FIRST);
    params.max_steps = 5 + (uint32_t)(seed % 9);
    params.max_write_backs = 64;
    struct world *w = world_open(seed, &params);
    w->cancels = 25;
    for (unsigned i = 0; i < n_steps; i++) {
        if (i % 4 == 0) {
            weir_cpu_stream_release(w->device, w->streams[0]);
            world_end_some(w, 100);
            world_settle(w);
            weir_cpu_stream_park(w->device, w->streams[0]);
        }
        cr_assert(world_random_step(w));
        world_run_a_little(w);
    }
    weir_cpu_stream_release(w->device, w->streams[0]);
    world_finish(w);
    for (uint64_t step = 1; step <= w->newest; step++) {
        dropped[0] += w->steps[step].load_rc == -ECANCELED;
        dropped[1] += w->steps[step].write_rc == -ECANCELED;
    }
    finish(w);
}

Test(rank_cancel, random_steps)
{
    uint32_t dropped[2] = { 0 };
    for (uint64_t seed = 1; seed <= 48; seed++)
        random_cancels(seed, 60, dropped);
    cr_assert(dropped[0] > 20 && dropped[1] > 20, "%u and %u", dropped[0], dropped[1]);
    for (int i = 0; i < 4; i++)
        random_cancels(0, 60, dropped);
    check_leaks();
}

/* ---- In the place of another --------------------------------------------- */

/* What came before the first step is over, whatever an order says of it. */
Test(rank_cancel, a_rank_begins_at_a_later_step)
{
    static const uint64_t firsts[] = { 2, 9, 700, UINT64_C(0x80000005), UINT64_C(0x100000003) };
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        uint64_t first = firsts[i];
        weir_rank_params params = world_params(&shape, WEIR_HOST_SEGMENTED);
        params.first_step = first;
        struct world *w = world_open(i + 1, &params);
        uint64_t before[2] = { first > 2 ? first - 2 : first - 1, first - 1 };
        uint64_t *earlier = first > 2 ? &before[0] : &before[1];
        uint32_t n = first > 2 ? 2 : 1;
        weir_cancel gone = { .number = first - 1, .kind = WEIR_REPORT_LOAD };
        weir_move move = { { 1 }, { 1 } };
        for (uint64_t step = first; step < first + 20; step++) {
            bool writes = (step - first) % 3 == 1;
            weir_order order = { .step = step,
                                 .write_ticket = writes ? step : 0,
                                 .device_pages = WORLD_DEVICE_PAGES,
                                 .host_pages = WORLD_HOST_PAGES,
                                 .n_fences = n,
                                 .fences = earlier,
                                 .n_load_fences = n,
                                 .load_fences = earlier,
                                 .n_write_fences = n,
                                 .write_fences = earlier,
                                 .n_joins = n,
                                 .joins = earlier,
                                 .n_loads = (step - first) % 3 == 2,
                                 .loads = &move,
                                 .n_writes = writes,
                                 .writes = &move,
                                 .n_cancels = 1,
                                 .cancels = &gone };
            uint64_t bytes[64], begun;
            size_t size;
            cr_assert(eq(int, weir_order_encode(&order, bytes, sizeof bytes, &size, NULL), 0));
            int rc = weir_rank_begin(w->rank, bytes, size, 0, w->streams[0], &begun);
            cr_assert(eq(int, rc, 0), "%s", w->log.last);
            cr_assert(eq(u64, begun, step));
            cr_assert(eq(int, weir_rank_wait_layer(w->rank, step, 0, w->streams[0]), 0));
            weir_cpu_stream_park(w->device, w->streams[0]);
            cr_assert(eq(int, weir_rank_end(w->rank, step, w->streams[0]), 0));
            while (weir_cpu_device_run(w->device, 100) == 100)
                continue;
            uint64_t report[32];
            bool loads = order.n_loads;
            cr_assert(eq(int, weir_rank_report(w->rank, report, sizeof report, &size), 0));
            cr_assert(eq(sz, size, loads ? weir_report_bytes(1) : 0), "it has not run");
            weir_cpu_stream_release(w->device, w->streams[0]);
            while (weir_cpu_device_run(w->device, 100) == 100)
                continue;
            const weir_report_item *items;
            size_t n_items = 0;
            cr_assert(eq(int, weir_rank_report(w->rank, report, sizeof report, &size), 0));
            cr_assert(eq(int, weir_report_decode(&items, &n_items, report, size, NULL), 0));
            cr_assert(eq(sz, n_items, 1 + order.n_writes));
            for (size_t k = 0; k < n_items; k++)
                cr_assert(items[k].rc == 0 && items[k].number == step);
        }
        world_close(w);
    }
    check_leaks();
}
