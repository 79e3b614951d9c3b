/* SPDX-License-Identifier: Apache-2.0 */

/* Splits, loads, write-backs and evictions as in the other files, and on top of them
 * whatever ends things early: transfers that fail on one rank, host pages that change,
 * requests that go, namespaces that are forgotten, resets, lost ranks, drains and pins.
 * What nobody was told to be wrong is right. */

#include "server_probe.h"
#include "transfer/rank.h"

enum {
    RANKS = 2,
    MOST_OPEN = 3,
    TURNS = 200
};

struct world {
    struct server *s;
    struct server_request *open[MOST_OPEN];
    uint32_t n_open;
    weir_pin pins[2]; /* of each cache */
    bool drained;
};

static bool is_quiet(const struct server *s)
{
    weir_stats stats = server_stats(s);
    return stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0;
}

/* Who has gone is not told any more what a load did to it. */
static void leave(struct world *w, uint32_t i)
{
    struct server_request *request = w->open[i];
    if (!is_quiet(w->s))
        request->good = 0;
    server_leave(w->s, request);
    w->open[i] = w->open[--w->n_open];
}

static void leave_failed(struct world *w)
{
    for (uint32_t i = w->n_open; i-- > 0;)
        if (w->open[i]->failures)
            leave(w, i);
}

static void come(struct world *w)
{
    static const char *const prompts[] = { "ABCD",   "ABCDEFGH", "ABX", "ABXYZ", "PQ",
                                           "PQRSTU", "PQRV",     "K",   "KLMN",  "ABCDE" };
    struct server *s = w->s;
    struct server_request *request = server_ask(s, prompts[random_below(&s->random, 10)]);
    int rc = server_reserve(s, request);
    cr_assert(rc == 0 || rc == -EAGAIN || rc == -ENOSPC || (rc == -EBUSY && w->drained));
    if (rc == 0)
        w->open[w->n_open++] = request;
    else
        server_leave(s, request);
}

static void break_something(struct world *w)
{
    struct server *s = w->s;
    struct server_rank *r = &s->ranks[random_below(&s->random, RANKS)];
    weir_cpu_call call =
        random_percent(&s->random, 50) ? WEIR_CPU_CALL_COPY_LOAD : WEIR_CPU_CALL_COPY_WRITE_BACK;
    uint64_t n = 1 + random_below(&s->random, 3);
    if (random_percent(&s->random, 50))
        cr_assert(zero(int, weir_cpu_device_fail(r->device, call, n, -EIO)));
    else
        cr_assert(zero(int, weir_cpu_device_stall(r->device, call, n)));
}

/* A bit of a host page; not while one is written, whose sum is not taken yet. */
static void change_a_host_page(struct world *w)
{
    struct server *s = w->s;
    if (!is_quiet(s))
        return;
    const struct server_rank *r = &s->ranks[random_below(&s->random, RANKS)];
    weir_host_page page = { 1 + (int32_t)random_below(&s->random, r->rank->geometry->host_pages) };
    unsigned char *byte =
        (unsigned char *)(uintptr_t)weir_geometry_host(r->rank->geometry, 0, 1, page, 3);
    byte[random_below(&s->random, 24)] ^= 1;
}

static void pin_or_unpin(struct world *w)
{
    struct server *s = w->s;
    int rc;
    if (w->pins[0].cache) {
        SERVER_GIVES(s, weir_cache_unpin(&w->pins[k]), 0);
        return;
    }
    int32_t tokens[SERVER_TOKENS];
    weir_key key = server_key(s, "ABCDEFGH", 0, tokens);
    SERVER_BOTH(s, rc, weir_cache_pin(&w->pins[k], c, &key, NULL));
    cr_assert(rc == 0 || rc == -ENOENT || rc == -ENOSPC || rc == -EAGAIN);
}

static void drain_or_resume(struct world *w)
{
    int rc;
    if (w->drained)
        SERVER_BOTH(w->s, rc, weir_cache_resume(c));
    else
        SERVER_BOTH(w->s, rc, weir_cache_drain(c));
    cr_assert(rc == 0 || (rc == -EAGAIN && !w->drained));
    w->drained = !w->drained;
}

static void reset(struct world *w)
{
    bool quiet = is_quiet(w->s);
    SERVER_GIVES(w->s, weir_cache_reset(c), 0);
    while (w->n_open > 0) {
        struct server_request *request = w->open[--w->n_open];
        request->seq = (weir_seq){ 0 };
        if (!quiet)
            request->good = 0;
    }
}

static void turn(struct world *w)
{
    struct server *s = w->s;
    struct random *random = &s->random;
    if (w->n_open < MOST_OPEN && random_percent(random, 70))
        come(w);
    if (random_percent(random, 50))
        server_release(s);
    if (random_percent(random, 25))
        break_something(w);
    int rc = server_try_step(s, random_below(random, 2), 1 + random_below(random, 4), w->n_open,
                             w->open);
    cr_assert(rc == 0 || rc == -EAGAIN || (rc == -EBUSY && w->drained));
    if (random_percent(random, 75))
        change_a_host_page(w);
    if (random_percent(random, 6))
        pin_or_unpin(w);
    if (random_percent(random, w->drained ? 50 : 4))
        drain_or_resume(w);
    if (random_percent(random, 1))
        SERVER_GIVES(s, weir_cache_forget_all(c), 0);
    if (random_percent(random, 1))
        reset(w);
    if (random_percent(random, 1))
        server_replace_rank(s, random_below(random, RANKS));
    if (random_percent(random, 40))
        server_run(s);
    else
        server_run_a_little(s);
    server_poll(s);
    leave_failed(w);
    if (w->n_open > 0 && random_percent(random, 40))
        leave(w, random_below(random, w->n_open));
}

static weir_stats run(uint64_t seed)
{
    static const char *const write_backs[] = { "write_through", "write_back", "adaptive" };
    static const char *const evictions[] = { "lru", "slru", "cost", "lfu" };
    struct server_params params = server_params(seed, RANKS, 12, 10 + (uint32_t)(seed % 3) * 8);
    params.cache.write_back = write_backs[seed % 3];
    params.cache.eviction = evictions[seed % 4];
    params.cache.offered = seed % 2 ? 0 : 0.1;
    params.cache.host_drops_duplicates = seed % 5 == 1;
    params.cache.max_pinned = 0.5;
    params.cache.max_steps = params.rank.max_steps = 2 + (uint32_t)(seed % 4) * 2;
    params.cache.max_write_backs = params.rank.max_write_backs = 1 + (uint32_t)(seed % 3) * 2;
    params.rank.host_layout = (weir_host_layout)(seed / 2 % 4);
    params.rank.checksums = 1;
    struct world w = { .s = server_open(params) };
    for (int i = 0; i < TURNS; i++)
        turn(&w);
    if (w.drained)
        drain_or_resume(&w);
    server_release(w.s);
    while (w.n_open > 0)
        leave(&w, 0);
    SERVER_GIVES(w.s, weir_cache_unpin(&w.pins[k]), 0);
    server_expect_right(w.s);
    weir_stats stats = server_stats(w.s);
    probe_expect_nothing_left(w.s, 12, params.cache.host_pages);
    server_close(w.s);
    return stats;
}

Test(everything_at_once, what_is_not_said_to_be_wrong_is_right, .timeout = 100)
{
    weir_stats sum = { 0 };
    for (uint64_t seed = 1; seed <= 32; seed++) {
        weir_stats stats = run(seed);
        sum.loaded_pages += stats.loaded_pages;
        sum.load_failed_pages += stats.load_failed_pages;
        sum.load_cancelled_pages += stats.load_cancelled_pages;
        sum.damaged_pages += stats.damaged_pages;
        sum.write_failed_pages += stats.write_failed_pages;
        sum.write_cancelled_pages += stats.write_cancelled_pages;
    }
    cr_assert(lt(u64, 300, sum.loaded_pages));
    cr_assert(lt(u64, 30, sum.load_failed_pages));
    cr_assert(lt(u64, 50, sum.load_cancelled_pages));
    cr_assert(lt(u64, 10, sum.damaged_pages));
    cr_assert(lt(u64, 80, sum.write_failed_pages));
    cr_assert(lt(u64, 30, sum.write_cancelled_pages));
}
