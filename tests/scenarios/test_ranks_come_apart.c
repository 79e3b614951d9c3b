/* SPDX-License-Identifier: Apache-2.0 */

/* Ranks of one cache finish at different times, report in different orders, lack
 * different things, hold different layers. None of that may make them decide
 * differently, wait for each other or hang: there is one cache that decides, its
 * twin decides the same, and an order is over when the last rank says so. */

#include "cache_rig.h"
#include "server_rig.h"

static struct server *open_ranks(uint64_t seed, uint32_t n_ranks)
{
    return server_open(server_params(seed, n_ranks, 12, 20));
}

/* ---- Timing --------------------------------------------------------------- */

/* What a random server does next. */
static void random_turn(struct server *s, struct server_request **open, uint32_t *n_open)
{
    static const char *const prompts[] = { "ABCD", "ABCE", "AB", "FGH", "FGHIJ", "KLM", "ABX" };
    struct random *random = &s->random;
    if (*n_open < 3 && random_percent(random, 60)) {
        struct server_request *request = server_ask(s, prompts[random_below(random, 7)]);
        int rc = server_reserve(s, request);
        cr_assert(rc == 0 || rc == -EAGAIN || rc == -ENOSPC);
        if (rc == 0)
            open[(*n_open)++] = request;
        else
            server_leave(s, request);
    }
    int rc =
        server_try_step(s, random_below(random, 2), 1 + random_below(random, 3), *n_open, open);
    cr_assert(rc == 0 || rc == -EAGAIN);
    if (*n_open > 0 && random_percent(random, 40)) {
        uint32_t i = random_below(random, *n_open);
        server_leave(s, open[i]);
        open[i] = open[--*n_open];
    }
}

/* Stalls, holds and frees ranks one by one, so that each is late in its own way. */
static void random_stall(struct server *s)
{
    static const weir_cpu_call calls[] = { WEIR_CPU_CALL_COPY_LOAD, WEIR_CPU_CALL_COPY_WRITE_BACK };
    struct random *random = &s->random;
    uint32_t rank = random_below(random, s->n_ranks);
    struct server_rank *r = &s->ranks[rank];
    switch (random_below(random, 8)) {
    case 0:
        cr_assert(zero(int, weir_cpu_device_stall(r->device, calls[random_below(random, 2)],
                                                  1 + random_below(random, 3))));
        break;
    case 1:
        server_hold(s, rank);
        break;
    case 2:
        weir_cpu_stream_park(r->device, r->streams[random_below(random, 2)]);
        break;
    default:
        weir_cpu_device_release(r->device);
        for (int i = 0; i < SERVER_STREAMS; i++)
            weir_cpu_stream_release(r->device, r->streams[i]);
        server_let_go(s, rank);
    }
}

static void release_all(struct server *s)
{
    server_release(s);
    for (uint32_t i = 0; i < SERVER_STREAMS; i++)
        server_unpark(s, i);
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        server_let_go(s, rank);
}

Test(ranks_come_apart, ranks_are_late_in_their_own_ways, .timeout = 100)
{
    uint64_t loaded = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct server *s = open_ranks(seed, 2 + (uint32_t)seed % 3);
        struct server_request *open[3];
        uint32_t n_open = 0;
        for (int i = 0; i < 200; i++) {
            random_turn(s, open, &n_open);
            if (random_percent(&s->random, 50))
                random_stall(s);
            server_run_a_little(s);
        }
        release_all(s);
        server_expect_right(s);
        loaded += server_stats(s).loaded_pages;
        server_close(s);
    }
    cr_assert(lt(u64, 100, loaded));
}

/* Whoever is the last: until it has spoken, nothing that the step moved may be
 * used or given away; one word more, and all is. */
Test(ranks_come_apart, the_last_rank_ends_an_order)
{
    for (uint32_t last = 0; last < 3; last++) {
        struct server *s = open_ranks(last + 1, 3);
        server_hold(s, last);
        struct server_request *request = server_start(s, "ABC");
        server_step(s, 0, request);
        server_leave(s, request);
        server_run(s);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 1));
        cr_assert(eq(u64, server_stats(s).written_pages, 0));
        /* The pages are in use on the late rank: they cannot be had. */
        struct server_request *all = server_ask(s, "PQRSTUVWXYZ");
        cr_assert(eq(int, server_reserve(s, all), -EAGAIN));
        server_expect_hit(s, "ABC", 3, 0, 0);

        server_let_go(s, last);
        server_run(s);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 0));
        cr_assert(eq(u64, server_stats(s).written_pages, 3));
        cr_assert(all->ready);
        cr_assert(eq(int, server_reserve(s, all), 0));
        server_step(s, 1, all);
        server_run(s);
        server_leave(s, all);

        /* The same for a load: its pages are there when the last rank has them. */
        server_expect_hit(s, "ABC", 0, 3, 0);
        server_hold(s, last);
        struct server_request *again = server_start(s, "ABC");
        server_step(s, 0, again);
        server_run(s);
        server_expect_hit(s, "ABC", 0, 0, 3);
        server_let_go(s, last);
        server_run(s);
        server_expect_hit(s, "ABC", 3, 0, 0);
        server_expect_right(s);
        server_close(s);
    }
}

/* ---- The order of reports ------------------------------------------------- */

enum {
    ITEMS = 5 /* of each rank */
};

/* Three steps are in flight, a load and a write-back with the first: gives a
 * rank's items in the order in which it would report them, and who has the load. */
static weir_seq put_in_flight(struct rig *r, weir_report_item items[ITEMS])
{
    weir_cache_params params = rig_params(4, 8, 12);
    params.n_ranks = 2;
    rig_open(r, params);
    rig_compute(r, "ABC");
    rig_push_out(r);
    weir_seq load = rig_start(r, "ABC", 1), fresh = rig_start(r, "XY", 1);
    rig_begin(r);
    rig_add(r, load);
    rig_add(r, fresh);
    rig_commit(r, fresh, 2);
    const weir_order *order = rig_end(r);
    cr_assert(order->n_loads == 3 && order->n_writes == 2);
    items[0] = (weir_report_item){ .kind = WEIR_REPORT_LOAD, .number = order->step };
    items[1] = (weir_report_item){ .kind = WEIR_REPORT_STEP, .number = order->step };
    items[2] = (weir_report_item){ .kind = WEIR_REPORT_WRITE_BACK, .number = order->write_ticket };
    items[3] = (weir_report_item){ .kind = WEIR_REPORT_STEP, .number = rig_run(r, fresh, 2)->step };
    rig_done(r, &fresh);
    rig_begin(r);
    items[4] = (weir_report_item){ .kind = WEIR_REPORT_STEP, .number = rig_end(r)->step };
    return load;
}

/* Nothing came before the last of both ranks, and then all did. */
static uint64_t take_down(struct rig *r, weir_seq load)
{
    rig_done(r, &load);
    rig_poll(r);
    rig_expect_hit(r, "ABC", 3, 0, 0);
    rig_expect_hit(r, "XY", 2, 0, 0);
    weir_stats stats = rig_stats(r);
    cr_assert(stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0);
    cr_assert(stats.loaded_pages == 3 && stats.written_pages == 5);
    cr_assert(zero(sz, rig_available(r).pending));
    uint64_t digest = weir_cache_digest(r->cache);
    rig_close(r);
    return digest;
}

static void report_item(struct rig *r, uint32_t rank, const weir_report_item *item)
{
    gives(r, rig_try_report(r, rank, item->kind, item->number, 0), 0);
    uint64_t digest = weir_cache_digest(r->cache);
    gives(r, rig_try_report(r, rank, item->kind, item->number, 0), -EINVAL);
    cr_assert(eq(u64, weir_cache_digest(r->cache), digest), "a second report counts");
}

/* Two ranks that report the same in the same order, woven into each other in
 * each of the 252 ways. */
Test(ranks_come_apart, reports_weave)
{
    uint64_t expected = 0;
    unsigned n = 0;
    for (uint32_t ways = 0; ways < 1u << 2 * ITEMS; ways++) {
        if (__builtin_popcount(ways) != ITEMS)
            continue;
        struct rig r;
        weir_report_item items[ITEMS];
        weir_seq load = put_in_flight(&r, items);
        uint32_t taken[2] = { 0, 0 };
        for (uint32_t i = 0; i < 2 * ITEMS; i++) {
            uint32_t rank = ways >> i & 1;
            report_item(&r, rank, &items[taken[rank]++]);
            /* What one rank alone has done has not happened. */
            uint32_t both = taken[0] < taken[1] ? taken[0] : taken[1];
            rig_expect_hit(&r, "ABC", both > 0 ? 3 : 0, 0, both > 0 ? 0 : 3);
            cr_assert(eq(u64, rig_stats(&r).written_pages, both > 2 ? 5 : 3));
        }
        uint64_t digest = take_down(&r, load);
        cr_assert(n == 0 || digest == expected, "ways %x", ways);
        expected = digest;
        n++;
    }
    cr_assert(eq(u32, n, 252));
}

/* Calls `report` with each order of 0..n-1. */
static void permute(uint32_t *order, uint32_t n, uint32_t at, void (*report)(const uint32_t *))
{
    if (at == n)
        report(order);
    for (uint32_t i = at; i < n; i++) {
        uint32_t first = order[at];
        order[at] = order[i];
        order[i] = first;
        permute(order, n, at + 1, report);
        order[i] = order[at];
        order[at] = first;
    }
}

static void report_crosswise(const uint32_t *order)
{
    for (uint32_t late = 0; late < 2; late++) {
        struct rig r;
        weir_report_item items[ITEMS];
        weir_seq load = put_in_flight(&r, items);
        for (uint32_t i = 0; i < ITEMS; i++)
            report_item(&r, !late, &items[i]);
        for (uint32_t i = 0; i < ITEMS; i++)
            report_item(&r, late, &items[order[i]]);
        take_down(&r, load);
    }
}

/* A rank that finishes in another order than its neighbour: loads, write-backs
 * and steps have streams of their own. */
Test(ranks_come_apart, reports_cross)
{
    uint32_t order[ITEMS];
    for (uint32_t i = 0; i < ITEMS; i++)
        order[i] = i;
    permute(order, ITEMS, 0, report_crosswise);
}

/* ---- One rank alone lacks something --------------------------------------- */

struct ending {
    weir_report_kind kind;
    uint64_t number;
};

/* A server's day, on which something fails on one rank; what each rank reports
 * goes to `ends`. */
static uint32_t fail_once(weir_cpu_call call, uint64_t n, uint32_t whose, bool *struck)
{
    struct server *s = open_ranks(n, 2);
    struct server_rank *r = &s->ranks[whose];
    uint64_t before = weir_cpu_device_calls(r->device, call);
    cr_assert(zero(int, weir_cpu_device_fail(r->device, call, n, -ENOMEM)));
    server_serve(s, "ABC");
    server_serve(s, "DEFGH");
    server_push_out(s);
    struct server_request *first = server_start(s, "ABC");
    struct server_request *second = server_start(s, "DEFX");
    server_step(s, 0, first);
    server_step(s, 1, second);
    struct ending ends[2][64];
    size_t n_ends[2] = { 0, 0 };
    for (int i = 0; i < 40; i++) {
        weir_report_item items[1];
        server_run_devices(s);
        uint32_t rank = (uint32_t)i % 2;
        while (server_carry(s, rank, 1, items))
            ends[rank][n_ends[rank]++] = (struct ending){ items->kind, items->number };
        server_poll(s);
    }
    /* Each rank has said the same of everything, whatever became of it. */
    cr_assert(eq(sz, n_ends[0], n_ends[1]));
    for (size_t i = 0; i < n_ends[0]; i++) {
        size_t found = 0;
        for (size_t k = 0; k < n_ends[1]; k++)
            found += ends[0][i].kind == ends[1][k].kind && ends[0][i].number == ends[1][k].number;
        cr_assert(eq(sz, found, 1));
    }
    *struck = weir_cpu_device_calls(r->device, call) >= before + n;
    weir_cpu_device_release(r->device);
    weir_stats stats = server_stats(s);
    uint32_t failed = stats.load_failed_pages + stats.write_failed_pages > 0;
    cr_assert(eq(u32, first->failures + second->failures > 0, stats.load_failed_pages > 0));
    server_leave(s, first);
    server_leave(s, second);

    /* What was lost was lost on both, and comes right again. */
    server_serve(s, "ABCI");
    server_serve(s, "DEFGHI");
    server_expect_hit(s, "ABCI", 4, 0, 0);
    server_expect_hit(s, "DEFGHI", 6, 0, 0);
    server_expect_right(s);
    server_close(s);
    return failed;
}

/* Each call of a device that can fail after the start, on one rank only. Its
 * neighbour has copied all the same; both must take it as failed, and no pages
 * may be lost over it. */
Test(ranks_come_apart, one_rank_fails, .timeout = 100)
{
    static const weir_cpu_call calls[] = {
        WEIR_CPU_CALL_EVENT_RECORD,      WEIR_CPU_CALL_STREAM_WAIT_EVENT,
        WEIR_CPU_CALL_STREAM_WRITE_WORD, WEIR_CPU_CALL_COPY_LOAD,
        WEIR_CPU_CALL_COPY_WRITE_BACK,
    };
    uint32_t failed = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (uint32_t whose = 0; whose < 2; whose++) {
            bool struck = true;
            for (uint64_t n = 1; struck; n++) {
                failed += fail_once(calls[i], n, whose, &struck);
                cr_assert(struck || n > 3, "call %zu is never made", i);
            }
        }
    }
    cr_assert(ge(u32, failed, 24));
}

/* What one rank cannot even begin, all can be asked again: the cache has ordered it
 * once, and no rank is behind for good. */
Test(ranks_come_apart, one_rank_refuses_a_step)
{
    struct server *s = open_ranks(3, 2);
    struct server_rank *r = &s->ranks[1];
    struct server_request *request = server_start(s, "ABC");
    server_step(s, 0, request);
    server_hold(s, 1);
    server_step(s, 1, request);
    /* It must wait for the step before, which ran in another stream, and cannot. */
    cr_assert(zero(int, weir_cpu_device_fail(r->device, WEIR_CPU_CALL_STREAM_WAIT_EVENT, 1, -EIO)));
    cr_assert(eq(int, server_try_deliver(s, 1), -EIO));
    server_run(s);
    cr_assert(eq(u64, server_stats(s).orders_in_flight, 1));
    server_let_go(s, 1);
    server_run(s);
    cr_assert(zero(u64, server_stats(s).orders_in_flight));
    server_expect_right(s);
    server_close(s);
}

/* A server that finds out on one rank that a step cannot run undoes it on none:
 * until weir_step_end nothing has happened, and a refused reserve takes nothing. */
Test(ranks_come_apart, what_is_refused_or_undone_leaves_nothing)
{
    struct server *s = open_ranks(5, 2);
    server_serve(s, "ABC");
    server_push_out(s);
    struct server_request *holder = server_start(s, "PQRSTUVWX"); /* 10 of 12 pages */
    struct server_request *request = server_ask(s, "ABCD");
    uint64_t digest = weir_cache_digest(s->caches[0]);
    weir_available available = server_available(s);
    for (int i = 0; i < 3; i++) {
        cr_assert(eq(int, server_reserve(s, request), -ENOSPC));
        cr_assert(eq(int, server_reserve_more(s, request, 20), -E2BIG));
        cr_assert(eq(u64, weir_cache_digest(s->caches[0]), digest));
    }
    weir_available after = server_available(s);
    cr_assert(zero(int, memcmp(&available, &after, sizeof after)));
    server_leave(s, holder);
    server_run(s);

    cr_assert(zero(int, server_reserve(s, request)));
    digest = weir_cache_digest(s->caches[0]);
    for (int i = 0; i < 3; i++) {
        weir_step steps[2];
        SERVER_GIVES(s, weir_step_begin(&steps[k], c), 0);
        SERVER_GIVES(s, weir_step_add(steps[k], server_seq(s, request, k)), 0);
        SERVER_GIVES(s, weir_seq_commit(server_seq(s, request, k), NULL, s->t), 0);
        SERVER_GIVES(s, weir_step_abort(&steps[k]), 0);
        cr_assert(eq(u64, weir_cache_digest(s->caches[0]), digest));
    }
    server_step(s, 0, request);
    cr_assert(eq(u32, s->last.n_loads, 3));
    server_expect_right(s);
    server_close(s);
}

/* A rank is gone for good, with orders that it has been given, or has not, or has
 * reported in part: the others do not wait for it, and another takes its place. */
Test(ranks_come_apart, one_rank_is_lost)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct server *s = open_ranks(seed, 2 + (uint32_t)seed % 2);
        uint32_t whose = (uint32_t)seed % s->n_ranks;
        server_serve(s, "ABC");
        server_serve(s, "DEFGH");
        server_push_out(s);
        if (seed % 3 == 0)
            server_hold(s, whose);
        else
            server_stall(s,
                         seed % 3 == 1 ? WEIR_CPU_CALL_COPY_LOAD : WEIR_CPU_CALL_COPY_WRITE_BACK);
        struct server_request *loads = server_start(s, "ABC");
        server_step(s, 0, loads);
        struct server_request *fresh = server_start(s, "PQ");
        server_step(s, 1, fresh);
        for (int i = 0; i < 4; i++)
            server_run_a_little(s);
        server_replace_rank(s, whose);
        server_release(s);
        server_run(s);
        weir_stats stats = server_stats(s);
        cr_assert(stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0);
        cr_assert(loads->failures == 1 && loads->good == 0);
        cr_assert(fresh->failures == 1 && fresh->good == 0);
        server_expect_hit(s, "ABC", 0, 0, 0);
        server_expect_hit(s, "DEFGH", 0, 0, 0);
        server_expect_hit(s, "PQ", 0, 0, 0);
        server_leave(s, loads);
        server_leave(s, fresh);

        server_serve(s, "ABC");
        server_push_out(s);
        server_expect_hit(s, "ABC", 0, 3, 0);
        server_serve(s, "ABCD");
        server_expect_right(s);
        server_close(s);
    }
}

/* ---- Ranks that hold different things ------------------------------------- */

/* Pipeline stages: more layers, other layers, wider rows. */
static const uint32_t stage_layers[] = { 1, 3, 4 };
static const weir_tensor stage_tensors[] = {
    { .page_bytes = 4 * 40, .row_bytes = 40 },
    { .page_bytes = 4 * 5, .row_bytes = 5, .layers = stage_layers, .n_layers = 3 },
    { .page_bytes = 77 },
};
static const weir_tensor one_tensor = { .page_bytes = 4, .row_bytes = 1 };
static const weir_shape stages[] = {
    { 4, 5, 3, stage_tensors },
    { 4, 1, 1, &one_tensor },
};

/* The same random day for ranks that are alike and for stages: tiers are counted in
 * pages, so that every answer is the same. */
Test(ranks_come_apart, stages_have_other_layers)
{
    uint64_t digests[2][40];
    for (int unlike = 0; unlike < 2; unlike++) {
        struct server_params params = server_params(7, 3, 10, 16);
        if (unlike) {
            params.shapes[1] = &stages[0];
            params.shapes[2] = &stages[1];
        }
        struct server *s = server_open(params);
        struct server_request *open[3];
        uint32_t n_open = 0;
        for (int i = 0; i < 40; i++) {
            random_turn(s, open, &n_open);
            server_run(s);
            digests[unlike][i] = weir_cache_digest(s->caches[0]);
        }
        cr_assert(le(u64, 3, server_stats(s).loaded_pages));
        cr_assert(lt(u64, 0, server_stats(s).reserve_nospace + server_stats(s).reserve_again));
        server_expect_right(s);
        server_close(s);
    }
    cr_assert(zero(int, memcmp(digests[0], digests[1], sizeof *digests)));
}

/* A rank whose pools are not the cache's says so at the first order, by name and
 * number, and does nothing. */
Test(ranks_come_apart, a_rank_with_other_pools)
{
    for (int device = 0; device < 2; device++) {
        struct server_params params = server_params(1, 1, 12, 20);
        *(device ? &params.rank.device_pages : &params.rank.host_pages) -= 1;
        struct server *s = server_open(params);
        server_hold(s, 0);
        struct server_request *request = server_start(s, "ABC");
        server_step(s, 0, request);
        cr_assert(eq(int, server_try_deliver(s, 0), -EINVAL));
        cr_assert(strstr(s->log.last, "12 and 20") && strstr(s->log.last, device ? "11" : "19"),
                  "%s", s->log.last);
        server_run_devices(s);
        cr_assert(zero(sz, server_carry(s, 0, 20, NULL)));

        /* The order is the cache's still; a rank that fits takes it. */
        weir_rank_close(&s->ranks[0].rank);
        weir_rank_params right = server_params(1, 1, 12, 20).rank;
        right.log = log_capture_log(&s->log);
        cr_assert(zero(int, weir_rank_open(&s->ranks[0].rank, s->ranks[0].device, &right)));
        server_let_go(s, 0);
        server_expect_right(s);
        server_expect_hit(s, "ABC", 3, 0, 0);
        server_close(s);
    }
}
