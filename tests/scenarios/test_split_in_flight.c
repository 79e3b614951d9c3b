/* SPDX-License-Identifier: Apache-2.0 */

/* A prompt leaves another one in its middle, and the node of the index that held it
 * becomes two, while its pages are being written back, loaded or read. What is in
 * flight is about pages, and pages do not notice. */

#include "server_probe.h"

static const char eight[] = "ABCDEFGH";

static struct server *open_ranks(uint64_t seed, uint32_t n_ranks, uint32_t device_pages,
                                 uint32_t host_pages)
{
    struct server_params params = server_params(seed, n_ranks, device_pages, host_pages);
    params.cache.max_steps = params.rank.max_steps = 32;
    return server_open(params);
}

/* The first `at` letters of the eight, and one that leaves them there. */
static void branch(char letters[10], size_t at, char leaf)
{
    memcpy(letters, eight, at);
    letters[at] = leaf;
    letters[at + 1] = 0;
}

/* Computes the branch in another stream; its commit is what splits. */
static struct server_request *split(struct server *s, size_t at, char leaf)
{
    char letters[10];
    branch(letters, at, leaf);
    struct server_request *request = server_start(s, letters);
    cr_assert(eq(sz, request->hit.n_tokens, at));
    server_step(s, 1, request);
    return request;
}

/* Reads a prompt that is in the host tier alone, so that all of it is loaded. */
static void expect_loads(struct server *s, const char *letters)
{
    server_push_out(s);
    server_expect_hit(s, letters, 0, strlen(letters), 0);
    struct server_request *request = server_start(s, letters);
    server_step(s, 0, request);
    server_run(s);
    server_leave(s, request);
    server_expect_hit(s, letters, strlen(letters), 0, 0);
    server_expect_right(s);
}

static void expect_both_load(struct server *s, size_t at, char leaf)
{
    char letters[10];
    branch(letters, at, leaf);
    expect_loads(s, eight);
    expect_loads(s, letters);
    expect_loads(s, eight);
}

/* ---- Being written back --------------------------------------------------- */

enum moment {
    QUEUED,     /* for want of a ticket; no order names it */
    HELD,       /* the rank has not been given the order */
    RUNNING,    /* the copy stands still */
    UNREPORTED, /* it has ended, and nobody has heard of it */
    N_MOMENTS
};

static struct server *open_at(enum moment moment, uint64_t seed)
{
    struct server_params params = server_params(seed, 1, 24, 24);
    params.cache.max_steps = params.rank.max_steps = 32;
    if (moment == QUEUED)
        params.cache.max_write_backs = params.rank.max_write_backs = 1;
    return server_open(params);
}

/* Computes the eight; their write-back is at `moment`. */
static struct server_request *write_eight(struct server *s, enum moment moment)
{
    struct server_request *other = NULL;
    if (moment == HELD)
        server_hold(s, 0);
    if (moment == QUEUED || moment == RUNNING)
        server_stall(s, WEIR_CPU_CALL_COPY_WRITE_BACK);
    if (moment == QUEUED) {
        other = server_start(s, "Z");
        server_step(s, 0, other);
        server_leave(s, other);
    }
    struct server_request *request = server_start(s, eight);
    server_step(s, 0, request);
    cr_assert(eq(u32, s->last.n_writes, moment == QUEUED ? 0 : 8));
    if (moment != HELD)
        server_run_devices(s);
    cr_assert(zero(u64, server_stats(s).written_pages));
    return request;
}

static void split_while_written(size_t at, enum moment moment, unsigned n_splits)
{
    struct server *s = open_at(moment, at);
    struct server_request *first = write_eight(s, moment);
    server_leave(s, split(s, at, 'x'));
    if (n_splits == 2)
        server_leave(s, split(s, at / 2, 'y'));
    server_leave(s, first);
    server_let_go(s, 0);
    server_release(s);
    server_settle(s);

    /* Each page once, and both parts of what was one node are in both tiers. */
    weir_stats stats = server_stats(s);
    cr_assert(eq(u64, stats.written_pages, 8 + n_splits + (moment == QUEUED)));
    cr_assert(eq(u64, stats.index_pages, 8 + n_splits + (moment == QUEUED)));
    server_expect_hit(s, eight, 8, 0, 0);
    expect_both_load(s, at, 'x');
    if (n_splits == 2)
        expect_both_load(s, at / 2, 'y');
    server_close(s);
}

Test(split_in_flight, while_it_is_written_back, .timeout = 100)
{
    for (enum moment moment = QUEUED; moment < N_MOMENTS; moment++)
        for (size_t at = 1; at < 8; at++)
            for (unsigned n_splits = 1; n_splits <= (at >= 2 ? 2u : 1u); n_splits++)
                split_while_written(at, moment, n_splits);
}

/* The write-back fails on one of two ranks: neither part has a host copy, and both are
 * still there. */
Test(split_in_flight, while_a_write_back_is_failing)
{
    for (size_t at = 1; at < 8; at++) {
        struct server *s = open_ranks(at, 2, 24, 24);
        cr_assert(zero(int, weir_cpu_device_fail(s->ranks[at % 2].device,
                                                 WEIR_CPU_CALL_COPY_WRITE_BACK, 3, -EIO)));
        server_stall(s, WEIR_CPU_CALL_COPY_WRITE_BACK);
        struct server_request *first = server_start(s, eight);
        server_step(s, 0, first);
        server_run_devices(s);
        server_leave(s, split(s, at, 'x'));
        server_release(s);
        server_settle(s);
        weir_stats stats = server_stats(s);
        cr_assert(eq(u64, stats.write_failed_pages, 8));
        cr_assert(eq(u64, stats.written_pages, 1));
        server_expect_hit(s, eight, 8, 0, 0);
        server_leave(s, first);
        server_push_out(s);
        server_expect_hit(s, eight, 0, 0, 0);
        server_expect_right(s);
        server_close(s);
    }
}

/* ---- Being loaded --------------------------------------------------------- */

static void split_while_loaded(size_t at, bool fails, bool closed)
{
    struct server *s = open_ranks(at, 2, 24, 14);
    server_serve(s, eight);
    server_push_out(s);
    if (fails)
        cr_assert(zero(
            int, weir_cpu_device_fail(s->ranks[at % 2].device, WEIR_CPU_CALL_COPY_LOAD, 2, -EIO)));
    server_stall(s, WEIR_CPU_CALL_COPY_LOAD);
    struct server_request *reader = server_start(s, eight);
    server_step(s, 0, reader);
    server_expect_hit(s, eight, 0, 0, 8);
    struct server_request *other = split(s, at, 'x');
    cr_assert(eq(u32, s->last.n_joins, 1));
    if (closed)
        server_leave(s, reader);

    /* All of the host tier that is not on its way is taken by others. */
    struct server_request *flood = server_start(s, "PQRSTU");
    server_step(s, 1, flood);
    server_run(s);
    server_release(s);
    server_settle(s);
    server_leave(s, flood);
    size_t left = fails ? 0 : 8;
    server_expect_hit(s, eight, left, 0, 0);
    char letters[10];
    branch(letters, at, 'x');
    server_expect_hit(s, letters, fails ? 0 : at + 1, 0, 0);
    cr_assert(eq(u32, other->failures, fails));
    cr_assert(eq(u32, reader->failures, fails && !closed));
    if (fails)
        cr_assert(other->good == 0 && (closed || reader->good == 0));
    if (!closed)
        server_leave(s, reader);
    server_leave(s, other);
    server_expect_right(s);
    if (!fails)
        expect_loads(s, eight);
    else
        server_serve(s, eight);
    server_expect_right(s);
    server_close(s);
}

Test(split_in_flight, while_it_is_loaded)
{
    for (size_t at = 1; at < 8; at++)
        for (int fails = 0; fails < 2; fails++)
            for (int closed = 0; closed < 2; closed++)
                split_while_loaded(at, fails, closed);
}

/* ---- Being read ----------------------------------------------------------- */

/* A request reads all of it, others split it again and again, and room is needed for
 * everything else: neither part of any node may go, in either tier. */
Test(split_in_flight, while_it_is_read)
{
    struct server *s = open_ranks(3, 1, 12, 10);
    server_serve(s, eight);
    struct server_request *reader = server_start(s, eight);
    server_step(s, 0, reader);
    for (size_t at = 7; at > 0; at--) {
        struct server_request *request = split(s, at, 'x');
        server_run(s);
        server_leave(s, request);
        server_settle(s);
        struct server_request *all = server_ask(s, "PQ");
        cr_assert(zero(int, server_reserve(s, all)));
        cr_assert(eq(int, server_reserve_more(s, all, 1), -ENOSPC));
        server_leave(s, all);
        server_expect_hit(s, eight, 8, 0, 0);
    }
    server_step(s, 0, reader);
    server_run(s);
    server_leave(s, reader);
    server_expect_right(s);
    server_close(s);
}

/* A server has pinned all of it in the tier where it was. Splits at every place, before
 * and after, and then everything else is wanted: no part of it goes while the pin is
 * held, and all can go afterwards. */
static void split_while_pinned(bool host, size_t first)
{
    struct server_params params = server_params(first, 1, 12, 14);
    params.cache.max_steps = params.rank.max_steps = 32;
    params.cache.max_pinned = 1;
    struct server *s = server_open(params);
    server_serve(s, eight);
    server_leave(s, split(s, first, 'y'));
    server_settle(s);
    if (host)
        server_push_out(s);
    int32_t tokens[SERVER_TOKENS];
    weir_key key = server_key(s, eight, 0, tokens);
    weir_pin pins[2];
    SERVER_GIVES(s, weir_cache_pin(&pins[k], c, &key, NULL), 0);
    for (size_t at = 1; at < 8; at++) {
        probe_expect(s, (char[]){ (char)('a' + at), 0 }, 0);
        server_leave(s, split(s, at, 'x'));
        server_settle(s);
        probe_expect_room(s, host ? 12 : 4);
        probe_expect(s, "PQ", probe_holds(s, "PQ"));
        server_settle(s);
        server_expect_hit(s, eight, host ? 0 : 8, host ? 8 : 0, 0);
    }
    cr_assert(eq(u64, server_stats(s).pinned_host_pages, host ? 8 : 0));
    cr_assert(eq(u64, server_stats(s).pinned_device_pages, host ? 0 : 8));
    probe_expect(s, eight, 8);
    SERVER_GIVES(s, weir_cache_unpin(&pins[k]), 0);
    for (char letter = 'a'; letter < 'p'; letter++)
        probe_expect(s, (char[]){ letter, 0 }, probe_holds(s, (char[]){ letter, 0 }));
    server_settle(s);
    probe_expect_room(s, 12);
    cr_assert(lt(sz, probe_holds(s, eight), 8));
    probe_expect_nothing_left(s, 12, 14);
    server_close(s);
}

Test(split_in_flight, while_it_is_pinned)
{
    for (size_t first = 1; first < 8; first += 3) {
        split_while_pinned(false, first);
        split_while_pinned(true, first);
    }
}

/* ---- Again and again ------------------------------------------------------ */

/* Prompts of two letters: each meets, leaves or continues the others at some page, in
 * tiers that hold few of them. */
static void random_prompt(struct random *random, char letters[14])
{
    uint32_t n = 1 + random_below(random, 9);
    for (uint32_t i = 0; i < n; i++)
        letters[i] = random_percent(random, 60) ? 'A' : 'B';
    letters[n] = 0;
}

static void leave_one(struct server *s, struct server_request **open, uint32_t *n_open)
{
    uint32_t i = random_below(&s->random, *n_open);
    server_leave(s, open[i]);
    open[i] = open[--*n_open];
}

static void random_turn(struct server *s, struct server_request **open, uint32_t *n_open)
{
    struct random *random = &s->random;
    if (*n_open < 3 && random_percent(random, 60)) {
        char letters[14];
        random_prompt(random, letters);
        struct server_request *request = server_ask(s, letters);
        int rc = server_reserve(s, request);
        cr_assert(rc == 0 || rc == -EAGAIN || rc == -ENOSPC);
        if (rc == 0)
            open[(*n_open)++] = request;
        else
            server_leave(s, request);
    }
    int rc =
        server_try_step(s, random_below(random, 2), 1 + random_below(random, 5), *n_open, open);
    cr_assert(rc == 0 || rc == -EAGAIN);
    if (random_percent(random, 10))
        server_stall(s, random_percent(random, 50) ? WEIR_CPU_CALL_COPY_LOAD
                                                   : WEIR_CPU_CALL_COPY_WRITE_BACK);
    if (random_percent(random, 40))
        server_release(s);
    server_run_a_little(s);
    if (*n_open > 0 && random_percent(random, 40))
        leave_one(s, open, n_open);
}

Test(split_in_flight, again_and_again, .timeout = 100)
{
    static const char *const write_backs[] = { "write_through", "write_back",
                                               "write_through_selective(2)" };
    uint64_t loaded = 0, evicted = 0, dropped = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct server_params params = server_params(seed, 1, 14, 14 + (uint32_t)(seed % 4) * 8);
        params.cache.write_back = write_backs[seed % 3];
        params.cache.offered = seed % 2 ? 0 : 0.2;
        struct server *s = server_open(params);
        struct server_request *open[3];
        uint32_t n_open = 0;
        for (int i = 0; i < 300; i++)
            random_turn(s, open, &n_open);
        server_release(s);
        server_expect_right(s);
        weir_stats stats = server_stats(s);
        loaded += stats.loaded_pages;
        evicted += stats.evicted_host_pages;
        dropped += stats.dropped_pages;
        server_close(s);
    }
    cr_assert(loaded > 200 && evicted > 150 && dropped > 300, "%lu, %lu, %lu",
              (unsigned long)loaded, (unsigned long)evicted, (unsigned long)dropped);
}
