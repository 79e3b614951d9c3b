/* SPDX-License-Identifier: Apache-2.0 */

/* Ranks of one cache finish at different times, report in different orders, lack
 * different things, hold different layers. None of that may make them decide
 * differently, wait for each other or hang: there is one cache that decides, its
 * twin decides the same, and an order is over when the last rank says so. */

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
    cr_assert(gt(u64, loaded, 100));
}
