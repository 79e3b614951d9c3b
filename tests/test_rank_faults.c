/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_random.h"

#include <inttypes.h>

static const weir_tensor tensors[] = { { .page_bytes = 2 * 8, .row_bytes = 8 },
                                       { .page_bytes = 2 * 3, .row_bytes = 3 } };
static const weir_shape shape = {
    .page_tokens = 2, .n_layers = 3, .n_tensors = 2, .tensors = tensors
};

static weir_rank_params small_params(void)
{
    weir_rank_params params = world_params(&shape, WEIR_HOST_SEGMENTED);
    params.max_steps = 5;
    return params;
}

static uint32_t failed_loads(const struct world *w)
{
    uint32_t n = 0;
    for (uint64_t step = 1; step <= w->newest; step++)
        n += w->steps[step].load_rc != 0;
    return n;
}

static uint32_t failed_writes(const struct world *w)
{
    uint32_t n = 0;
    for (uint64_t step = 1; step <= w->newest; step++)
        n += w->steps[step].write_rc != 0;
    return n;
}

static void run_steps(struct world *w, unsigned n)
{
    for (unsigned i = 0; i < n && world_random_step(w); i++) {
        world_run_a_little(w);
        if (!w->seeded && i % 4 == 3)
            world_settle(w);
    }
}

/* ---- Opening -------------------------------------------------------------- */

Test(rank_faults, open_leaves_nothing_behind)
{
    static const weir_cpu_call calls[] = { WEIR_CPU_CALL_MEMORY_ALLOC, WEIR_CPU_CALL_HOST_REGISTER,
                                           WEIR_CPU_CALL_WORDS_ALLOC, WEIR_CPU_CALL_STREAM_CREATE,
                                           WEIR_CPU_CALL_EVENT_CREATE };
    static const unsigned made[] = { 1, 1, 2, 2, 5 };
    weir_rank_params params = small_params();
    params.segment_pages = WORLD_HOST_PAGES; /* one segment: no smaller chunk to try */
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (unsigned n = 1; n <= made[c] + 1; n++) {
            struct world *w = world_create(1, 8);
            uint64_t before = weir_cpu_device_calls(w->device, calls[c]);
            cr_assert(eq(int, weir_cpu_device_fail(w->device, calls[c], n, -ENOMEM), 0));
            unsigned lines = w->log.lines;
            int rc = world_open_rank(w, &params);
            cr_assert(eq(int, rc, n <= made[c] ? -ENOMEM : 0), "%zu %u", c, n);
            cr_assert(eq(u32, w->log.lines, lines + 1)); /* what failed, or what it took */
            if (n > made[c])
                cr_assert(eq(u64, weir_cpu_device_calls(w->device, calls[c]), before + made[c]));
            weir_cpu_device_release(w->device);
            if (rc) {
                cr_assert(eq(ptr, w->rank, NULL));
                cr_assert(eq(int, world_open_rank(w, &params), 0));
            }
            run_steps(w, 3);
            world_finish(w);
            world_close(w);
        }
    check_leaks();
}

/* ---- Every call once ------------------------------------------------------ */

struct strike {
    weir_cpu_call call;
    uint32_t loads;  /* that it makes fail */
    uint32_t writes; /* likewise */
    bool maybe;      /* or none */
};

/* What the n-th call of a kind makes of a workload; false: it has fewer. */
static bool strike_one(uint64_t seed, const struct strike *strike, unsigned n)
{
    weir_rank_params params = small_params();
    struct world *w = world_open(seed, &params);
    uint64_t before = weir_cpu_device_calls(w->device, strike->call);
    cr_assert(eq(int, weir_cpu_device_fail(w->device, strike->call, n, -EIO), 0));
    run_steps(w, 14);
    world_finish(w);
    bool struck = weir_cpu_device_calls(w->device, strike->call) >= before + n;
    uint32_t loads = failed_loads(w);
    uint32_t writes = failed_writes(w);
    cr_assert(zero(u64, world_wrong(w)), "call %d, n %u", (int)strike->call, n);
    cr_assert(le(u32, loads, struck ? strike->loads : 0), "call %d, n %u", (int)strike->call, n);
    cr_assert(le(u32, writes, struck ? strike->writes : 0), "call %d, n %u", (int)strike->call, n);
    if (struck && !strike->maybe)
        cr_assert(eq(u32, loads + writes, strike->loads + strike->writes));
    /* A load that nothing orders is one that nobody may read. */
    if (strike->call != WEIR_CPU_CALL_STREAM_WAIT_EVENT || loads == 0)
        cr_assert(zero(u64, weir_cpu_device_races(w->device)), "%s", w->log.last);
    world_close(w);
    return struck;
}

static void strike_all(const struct strike *strike)
{
    for (uint64_t seed = 0; seed <= 3; seed++) {
        unsigned n = 1;
        while (strike_one(seed, strike, n))
            n++;
        if (seed != 0) /* with threads, what is over by then needs no call */
            cr_assert(lt(u32, 5, n));
    }
    check_leaks();
}

Test(rank_faults, event_record)
{
    strike_all(&(struct strike){ .call = WEIR_CPU_CALL_EVENT_RECORD });
}

Test(rank_faults, stream_wait_event)
{
    strike_all(&(struct strike){
        .call = WEIR_CPU_CALL_STREAM_WAIT_EVENT, .loads = 1, .writes = 1, .maybe = true });
}

Test(rank_faults, stream_wait_word)
{
    strike_all(&(struct strike){ .call = WEIR_CPU_CALL_STREAM_WAIT_WORD });
}

Test(rank_faults, stream_write_word)
{
    strike_all(&(struct strike){ .call = WEIR_CPU_CALL_STREAM_WRITE_WORD });
}

Test(rank_faults, copy_load)
{
    strike_all(&(struct strike){ .call = WEIR_CPU_CALL_COPY_LOAD, .loads = 1 });
}

Test(rank_faults, copy_write_back)
{
    strike_all(&(struct strike){ .call = WEIR_CPU_CALL_COPY_WRITE_BACK, .writes = 1 });
}

/* ---- Many at once --------------------------------------------------------- */

Test(rank_faults, many)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        weir_rank_params params = small_params();
        struct world *w = world_open(seed, &params);
        weir_engine_start_at(&w->rank->engine, UINT32_MAX - 3);
        uint32_t percent = (uint32_t)(seed % 4) * 20;
        for (unsigned i = 0; i < 30; i++) {
            while (random_percent(&w->random, percent)) {
                weir_cpu_call call =
                    WEIR_CPU_CALL_EVENT_RECORD +
                    random_below(&w->random, WEIR_CPU_CALL_COUNT - WEIR_CPU_CALL_EVENT_RECORD);
                weir_cpu_device_fail(w->device, call, 1 + random_below(&w->random, 6), -EIO);
            }
            run_steps(w, 1);
        }
        weir_cpu_device_release(w->device);
        world_finish(w);
        cr_assert(zero(u64, world_wrong(w)));
        world_close(w);
    }
    check_leaks();
}

/* A failing mark is made up for by reports alone, without another step. */
Test(rank_faults, an_idle_server_gets_its_reports)
{
    static const weir_cpu_call calls[] = { WEIR_CPU_CALL_EVENT_RECORD,
                                           WEIR_CPU_CALL_STREAM_WRITE_WORD };
    for (size_t c = 0; c < 2; c++)
        for (unsigned n = 1; n <= 3; n++) {
            weir_rank_params params = small_params();
            struct world *w = world_open(2, &params);
            weir_move write = { { 1 }, { 1 } };
            uint64_t step =
                world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, w->streams[0]);
            for (unsigned i = 1; i <= n; i++)
                weir_cpu_device_fail(w->device, calls[c], i, -EIO);
            world_end(w, step);
            for (unsigned i = 0; i < 4; i++) /* a mark a report, at the least */
                world_settle(w);
            world_check_reports(w);
            cr_assert(zero(int, w->steps[step].write_rc));
            world_close(w);
        }
}

Test(rank_faults, layers_before_the_failing_one_arrive)
{
    for (uint64_t seed = 0; seed <= 5; seed++)
        for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
            weir_rank_params params = small_params();
            struct world *w = world_open(seed, &params);
            weir_move write = { { 1 }, { 1 } };
            uint64_t first =
                world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, w->streams[0]);
            w->pages[1].content = 5;
            for (uint32_t l = 0; l < shape.n_layers; l++)
                world_launch(w, w->streams[0], 1, l, 5, true);
            world_end(w, first);
            world_settle(w);
            weir_cpu_device_fail(w->device, WEIR_CPU_CALL_COPY_LOAD, layer + 1, -EIO);
            weir_move load = { { 2 }, { 1 } };
            uint64_t step =
                world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[1]);
            for (uint32_t l = 0; l < shape.n_layers; l++) {
                cr_assert(eq(int, weir_rank_wait_layer(w->rank, step, l, w->streams[1]), 0));
                struct world_kernel *k = world_launch(w, w->streams[1], 2, l, 5, false);
                k->load = l < layer ? 0 : step;
            }
            world_finish(w);
            cr_assert(eq(int, w->steps[step].load_rc, -EIO));
            cr_assert(zero(u64, world_wrong(w)));
            world_close(w);
        }
}

/* Whoever is told that a step has ended uses what it computed, so it has to know by
 * then that a load under it has failed: its own, or one that it joined. */
static void failed_load_is_told_first(uint64_t seed, uint32_t layer, bool joined)
{
    weir_rank_params params = small_params();
    struct world *w = world_open(seed, &params);
    weir_move write = { { 1 }, { 1 } };
    uint64_t first = world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, w->streams[0]);
    world_end(w, first);
    world_settle(w);
    /* The layers that do not come are published by the host, at once. */
    weir_cpu_device_fail(w->device, WEIR_CPU_CALL_COPY_LOAD, layer + 1, -EIO);
    for (unsigned n = 1; n <= 3; n++)
        weir_cpu_device_fail(w->device, WEIR_CPU_CALL_STREAM_WRITE_WORD, n, -EIO);
    weir_move load = { { 2 }, { 1 } };
    uint64_t loads = world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[1]);
    uint64_t reads = loads;
    if (joined) {
        world_end(w, loads);
        reads = world_begin(w, (weir_order){ .n_joins = 1, .joins = &loads }, w->streams[0]);
    }
    for (uint32_t l = 0; l < shape.n_layers; l++)
        cr_assert(eq(int, weir_rank_wait_layer(w->rank, reads, l, w->steps[reads].stream), 0));
    world_end(w, reads);
    while (weir_cpu_device_run(w->device, 1) == 1) {
        uint64_t buffer[64];
        size_t bytes, n;
        const weir_report_item *items;
        cr_assert(eq(int, weir_rank_report(w->rank, buffer, weir_report_bytes(1), &bytes), 0));
        if (bytes == 0)
            continue;
        cr_assert(eq(int, weir_report_decode(&items, &n, buffer, bytes, NULL), 0));
        world_take(w, items);
        cr_assert(w->steps[loads].load_reported || !w->steps[reads].reported,
                  "seed %" PRIu64 ", layer %u", seed, layer);
    }
    world_finish(w);
    cr_assert(eq(int, w->steps[loads].load_rc, -EIO));
    cr_assert(w->steps[reads].reported && w->steps[reads].rc == 0);
    world_close(w);
}

Test(rank_faults, a_failed_load_is_told_before_its_step)
{
    for (uint64_t seed = 1; seed <= 40; seed++)
        for (uint32_t layer = 0; layer < shape.n_layers; layer++)
            for (int joined = 0; joined <= 1; joined++)
                failed_load_is_told_first(seed, layer, joined);
    check_leaks();
}

/* ---- A lost device -------------------------------------------------------- */

Test(rank_faults, lost)
{
    for (uint64_t seed = 0; seed <= 4; seed++)
        for (unsigned at = 0; at <= 12; at++) {
            weir_rank_params params = small_params();
            struct world *w = world_open(seed, &params);
            run_steps(w, at);
            weir_cpu_device_lose(w->device);
            w->lost = true;
            run_steps(w, 2); /* are refused */
            cr_assert(eq(u64, w->newest, at));
            world_end_some(w, 100);
            cr_assert(eq(int, weir_rank_synchronize(w->rank), -EIO));
            world_report(w, 2);
            world_check_reports(w);
            cr_assert(zero(sz, world_report(w, 20)));
            world_close(w);
        }
    check_leaks();
}

/* What had ended before is told apart from what had not. */
Test(rank_faults, lost_between)
{
    weir_rank_params params = small_params();
    struct world *w = world_open(3, &params);
    weir_move moves[] = { { { 1 }, { 1 } }, { { 2 }, { 2 } } };
    uint64_t done =
        world_begin(w, (weir_order){ .n_writes = 1, .writes = &moves[0] }, w->streams[0]);
    world_end(w, done);
    while (weir_cpu_device_run(w->device, 100) == 100)
        continue;
    uint64_t ended =
        world_begin(w, (weir_order){ .n_writes = 1, .writes = &moves[1] }, w->streams[0]);
    world_end(w, ended);
    uint64_t open = world_begin(w, (weir_order){ .n_loads = 1, .loads = &moves[0] }, w->streams[0]);
    weir_cpu_device_lose(w->device);
    w->lost = true;
    world_report(w, 20);
    cr_assert(zero(int, w->steps[done].write_rc));
    cr_assert(eq(int, w->steps[ended].write_rc, -EIO));
    cr_assert(eq(int, w->steps[open].load_rc, -EIO));
    cr_assert(w->steps[ended].reported);
    cr_assert(not(w->steps[open].reported));
    cr_assert(eq(int, weir_rank_wait_layer(w->rank, open, 0, w->streams[0]), -EIO));
    world_end(w, open);
    world_report(w, 20);
    world_check_reports(w);
    world_close(w);
}
