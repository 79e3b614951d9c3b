/* SPDX-License-Identifier: Apache-2.0 */

/* Loads, steps and write-backs come faster than they end: one more than there are
 * slots, records or tickets. Elsewhere that was an assertion. Here the call says so, has
 * done nothing, and goes through later; or the work waits in the cache. */

#include "server_rig.h"

static uint64_t all_calls(const struct server *s)
{
    uint64_t n = 0;
    for (int i = WEIR_CPU_CALL_EVENT_RECORD; i < WEIR_CPU_CALL_COUNT; i++)
        n += weir_cpu_device_calls(s->ranks[0].device, (weir_cpu_call)i);
    return n;
}

/* Single pages, each in host memory. */
static void fill_host(struct server *s, const char *prompts)
{
    char prompt[2] = "";
    for (; *prompts; prompts++) {
        prompt[0] = *prompts;
        server_serve(s, prompt);
    }
    server_push_out(s);
}

/* A step for each letter, which loads it, ordered and not yet given to the rank. */
static void order_loads(struct server *s, const char *letters)
{
    char prompt[2] = "";
    for (; *letters; letters++) {
        prompt[0] = *letters;
        server_step(s, 0, server_start(s, prompt));
        cr_assert(eq(u32, s->last.n_loads, 1));
    }
}

static void expect_refused(struct server *s, int rc)
{
    uint64_t calls = all_calls(s);
    for (int i = 0; i < 3; i++)
        cr_assert(eq(int, server_try_deliver(s, 0), rc));
    cr_assert(eq(u64, all_calls(s), calls), "a refused step has enqueued something");
}

Test(slots_run_out, more_loads_than_slots)
{
    for (uint32_t n_slots = 1; n_slots <= 4; n_slots++)
        for (uint64_t layer = 1; layer <= 3; layer++) {
            struct server_params params = server_params(n_slots, 1, 20, 20);
            params.rank.n_slots = n_slots;
            struct server *s = server_open(params);
            fill_host(s, "ABCDEF");
            server_hold(s, 0);
            order_loads(s, "ABCDEF");
            uint64_t first = s->ranks[0].begun;
            cr_assert(zero(
                int, weir_cpu_device_stall(s->ranks[0].device, WEIR_CPU_CALL_COPY_LOAD, layer)));
            for (uint32_t i = 0; i < n_slots; i++)
                cr_assert(zero(int, server_try_deliver(s, 0)));
            expect_refused(s, -EBUSY);
            server_run(s);
            expect_refused(s, -EBUSY); /* still: the first load stands still */
            server_expect_hit(s, "A", 0, 0, 1);
            server_release(s);
            server_run_devices(s);
            expect_refused(s, -EBUSY); /* it has ended, and nobody has been told */
            while (s->ranks[0].begun < first + 6) {
                server_run(s);
                cr_assert(zero(int, server_try_deliver(s, 0)));
            }
            s->ranks[0].held = false;
            server_expect_right(s);
            server_close(s);
        }
}

/* The cache counts its steps itself, and a rank with fewer records says so. */
Test(slots_run_out, more_steps_than_records)
{
    for (uint32_t cache_steps = 1; cache_steps <= 5; cache_steps += 2)
        for (uint32_t rank_steps = 1; rank_steps <= 5; rank_steps += 2) {
            struct server_params params = server_params(cache_steps, 1, 20, 20);
            params.cache.max_steps = cache_steps;
            params.rank.max_steps = rank_steps;
            params.rank.n_slots = 8;
            struct server *s = server_open(params);
            server_hold(s, 0);
            struct server_request *request = server_start(s, "ABCDEFGHI");
            uint32_t ordered = 0;
            while (server_try_step(s, 0, 1, 1, &request) == 0)
                ordered++;
            cr_assert(eq(u32, ordered, cache_steps));
            uint64_t digest = weir_cache_digest(s->caches[0]);
            cr_assert(eq(int, server_try_step(s, 0, 1, 1, &request), -EAGAIN));
            cr_assert(eq(u64, weir_cache_digest(s->caches[0]), digest));

            server_park(s, 0);
            uint32_t begun = 0;
            while (begun < ordered && server_try_deliver(s, 0) == 0)
                begun++;
            cr_assert(eq(u32, begun, cache_steps < rank_steps ? cache_steps : rank_steps));
            if (begun < ordered)
                expect_refused(s, -EAGAIN);
            server_run(s);
            cr_assert(eq(u64, server_stats(s).orders_in_flight, ordered));
            server_unpark(s, 0);
            while (begun < 9) {
                server_run(s);
                if (begun < ordered && server_try_deliver(s, 0) == 0)
                    begun++;
                if (ordered < 9 && server_try_step(s, 0, 1, 1, &request) == 0)
                    ordered++;
            }
            s->ranks[0].held = false;
            server_expect_hit(s, "ABCDEFGHI", 9, 0, 0);
            server_settle(s);
            server_push_out(s);
            server_serve(s, "ABCDEFGHI");
            server_expect_right(s);
            server_close(s);
        }
}

/* Write-backs beyond the tickets wait in the cache, together, and the server is told
 * that a step would take them. */
Test(slots_run_out, more_write_backs_than_tickets)
{
    for (uint32_t n = 1; n <= 3; n++) {
        struct server_params params = server_params(n, 2, 20, 20);
        params.cache.max_write_backs = params.rank.max_write_backs = n;
        struct server *s = server_open(params);
        server_stall(s, WEIR_CPU_CALL_COPY_WRITE_BACK);
        for (uint32_t i = 0; i < n + 3; i++) {
            char prompt[2] = { (char)('A' + i), '\0' };
            struct server_request *request = server_start(s, prompt);
            server_step(s, 0, request);
            cr_assert(eq(u32, s->last.n_writes, i < n));
            server_run(s);
            server_leave(s, request);
        }
        cr_assert(eq(u64, server_stats(s).write_backs_in_flight, n));
        cr_assert(zero(u32, s->write_waiting));
        server_release(s);
        server_run(s);
        cr_assert(eq(u64, server_stats(s).written_pages, n));
        cr_assert(eq(u32, s->write_waiting, 1));
        server_step(s, 0, NULL);
        cr_assert(eq(u32, s->last.n_writes, 3));
        server_run(s);
        server_push_out(s);
        for (uint32_t i = 0; i < n + 3; i++) {
            char prompt[2] = { (char)('A' + i), '\0' };
            server_expect_hit(s, prompt, 0, 1, 0);
            server_serve(s, prompt);
        }
        server_expect_right(s);
        server_close(s);
    }
}

/* A rank with fewer tickets than the cache has refuses the step, and takes it later. */
Test(slots_run_out, more_write_backs_than_the_rank_has_tickets)
{
    struct server_params params = server_params(5, 1, 20, 20);
    params.rank.max_write_backs = 1;
    struct server *s = server_open(params);
    server_stall(s, WEIR_CPU_CALL_COPY_WRITE_BACK);
    server_hold(s, 0);
    for (int i = 0; i < 3; i++) {
        char prompt[2] = { (char)('A' + i), '\0' };
        server_step(s, 0, server_start(s, prompt));
        cr_assert(eq(u32, s->last.n_writes, 1));
    }
    cr_assert(zero(int, server_try_deliver(s, 0)));
    expect_refused(s, -EAGAIN);
    server_run(s);
    expect_refused(s, -EAGAIN);
    server_release(s);
    for (int i = 0; i < 2; i++) {
        server_run(s);
        cr_assert(zero(int, server_try_deliver(s, 0)));
    }
    s->ranks[0].held = false;
    server_expect_right(s);
    cr_assert(eq(u64, server_stats(s).written_pages, 3));
    server_close(s);
}

/* One slot, again and again, for loads and joins, in any timing: a late word of an
 * old load never lets a new one through. */
Test(slots_run_out, a_slot_is_used_again)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct server_params params = server_params(seed, 1, 6, 20);
        params.rank.n_slots = 1 + (uint32_t)(seed % 2);
        struct server *s = server_open(params);
        fill_host(s, "ABCDEFGH");
        server_hold(s, 0);
        uint64_t loads = 0;
        for (int i = 0; i < 40; i++) {
            char prompt[2] = { (char)('A' + random_below(&s->random, 8)), '\0' };
            struct server_request *request = server_ask(s, prompt);
            for (int rc = server_reserve(s, request); rc; rc = server_reserve(s, request)) {
                cr_assert(eq(int, rc, -EAGAIN));
                server_run(s);
            }
            int rc = server_try_step(s, (uint32_t)i % 2, SIZE_MAX, 1, &request);
            cr_assert(zero(int, rc));
            loads += s->last.n_loads;
            while (server_try_deliver(s, 0))
                server_run_a_little(s);
            server_leave(s, request);
        }
        cr_assert(ge(u64, loads, 10));
        s->ranks[0].held = false;
        server_expect_right(s);
        server_close(s);
    }
}
