/* SPDX-License-Identifier: Apache-2.0 */

/* The scheduler's thread stands still: in an eviction that spins until a copy has
 * ended, in a hand-shake with a thread that never came up, in a synchronization in
 * every turn. Here devices stand still, and no call does: what cannot be had yet
 * is answered, and what is waited for is told by an event. */

#include "server_rig.h"

#include <pthread.h>

/* ---- Threads -------------------------------------------------------------- */

static unsigned threads_started;
static bool threads_refused;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

/* The test is linked so that the library's calls come here. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument)
{
    threads_started++;
    return threads_refused ? EAGAIN : __real_pthread_create(thread, attributes, start, argument);
}

/* There is no thread that could be waited for in vain: only the first touch of a
 * large host pool has some, while weir_rank_open runs, and can do without. */
Test(scheduler_waits, no_thread_to_shake_hands_with)
{
    for (int refused = 0; refused < 2; refused++) {
        struct server_params params = server_params(1, 1, 12, 4096);
        params.rank.touch_threads = 2;
        threads_refused = refused;
        threads_started = 0;
        struct server *s = server_open(params);
        cr_assert(eq(u32, threads_started, 1));
        server_serve(s, "ABC");
        server_push_out(s);
        server_serve(s, "ABCD");
        server_expect_right(s);
        server_close(s);
        cr_assert(eq(u32, threads_started, 1));
    }
}

/* ---- Devices that stand still --------------------------------------------- */

static void raise_flag(void *flag)
{
    ++*(unsigned *)flag;
}

/* A seeded device runs nothing by itself, and all that it can as soon as someone
 * waits for it; so what runs tells on who waits. */
static void watch(struct server *s, unsigned *flags)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        cr_assert(zero(int, weir_cpu_launch(s->ranks[rank].device, s->ranks[rank].streams[1],
                                            raise_flag, flags, NULL, 0)));
}

Test(scheduler_waits, no_call_waits_for_a_device)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct server *s = server_open(server_params(seed, 2, 12, 20));
        server_serve(s, "ABC");
        server_serve(s, "XY");
        server_push_out(s);
        unsigned waited = 0;
        watch(s, &waited);

        /* Loads, write-backs, a full device, a full line of steps. */
        struct server_request *request = server_start(s, "ABC");
        struct server_request *fresh = server_start(s, "DE");
        struct server_request *both[] = { request, fresh };
        cr_assert(zero(int, server_try_step(s, 0, SIZE_MAX, 2, both)));
        cr_assert(s->last.n_loads == 3 && s->last.n_writes == 2);
        server_leave(s, request);
        struct server_request *joins = server_start(s, "ABCX");
        server_step(s, 0, joins);
        server_leave(s, fresh);
        struct server_request *large = server_ask(s, "PQRSTU");
        cr_assert(eq(int, server_reserve(s, large), -EAGAIN));
        while (server_try_step(s, 0, SIZE_MAX, 1, &joins) == 0)
            continue;
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 8));
        server_poll(s);
        for (uint32_t rank = 0; rank < 2; rank++)
            cr_assert(zero(sz, server_carry(s, rank, 20, NULL)));
        server_leave(s, joins);
        server_leave(s, large);
        SERVER_GIVES(s, weir_cache_destroy(&(weir_cache *){ c }), -EBUSY);
        cr_assert(zero(u32, waited), "a call has waited for a device");

        server_run(s);
        cr_assert(eq(u32, waited, 2));
        server_expect_right(s);
        server_close(s);
    }
}

/* ---- Evictions that wait for write-backs ---------------------------------- */

static struct server *open_dirty(uint64_t seed, uint32_t device_pages)
{
    struct server_params params = server_params(seed, 2, device_pages, 20);
    params.cache.write_back = "write_back";
    struct server *s = server_open(params);
    struct server_request *request = server_start(s, "ABCDEFG");
    server_step(s, 0, request);
    server_leave(s, request);
    server_run(s);
    cr_assert(zero(u64, server_stats(s).written_pages));
    return s;
}

/* The device is full of pages that have no other copy, and the way down stands
 * still: the answer comes at once, says how much is missing, takes nothing, asks for
 * each page's write-back once, and the pages are there when the way is free. */
Test(scheduler_waits, an_eviction_waits_for_write_backs)
{
    for (int where = 0; where < 3; where++) {
        struct server *s = open_dirty((uint64_t)where + 1, 8);
        /* The layer that stalls; 0: the server's stream does, and with it the fence. */
        if (where == 0)
            server_park(s, 0);
        else
            for (uint32_t rank = 0; rank < 2; rank++)
                cr_assert(zero(int, weir_cpu_device_stall(s->ranks[rank].device,
                                                          WEIR_CPU_CALL_COPY_WRITE_BACK,
                                                          where == 1 ? 1 : 3)));
        struct server_request *first = server_ask(s, "PQRS");
        struct server_request *second = server_ask(s, "UV");
        cr_assert(eq(int, server_reserve(s, first), -EAGAIN));
        cr_assert(eq(int, server_reserve(s, second), -EAGAIN));
        server_poll(s);
        cr_assert(eq(u32, s->write_waiting, 1));
        uint64_t digest = 0;
        for (int i = 0; i < 6; i++) {
            if (i < 2)
                server_step(s, 0, NULL);
            server_run(s);
            cr_assert(eq(int, server_reserve(s, i % 2 ? first : second), -EAGAIN));
            weir_available available = server_available(s);
            cr_assert(available.free == 1 && available.offered == 0 && available.pending >= 7,
                      "%zu free, %zu offered, %zu pending", available.free, available.offered,
                      available.pending);
            cr_assert(i < 3 || digest == weir_cache_digest(s->caches[0]));
            digest = weir_cache_digest(s->caches[0]);
        }
        server_expect_hit(s, "ABCDEFG", 7, 0, 0);
        cr_assert(not(first->ready || second->ready));

        server_unpark(s, 0);
        server_release(s);
        server_run(s);
        cr_assert(eq(u64, server_stats(s).written_pages, 7));
        cr_assert(first->ready && second->ready);
        cr_assert(zero(int, server_reserve(s, first)));
        cr_assert(zero(int, server_reserve(s, second)));
        server_step(s, 1, first);
        server_leave(s, first);
        server_step(s, 1, second);
        server_leave(s, second);
        server_serve(s, "ABCDEFG");
        cr_assert(ge(u64, server_stats(s).loaded_pages, 6));
        server_expect_right(s);
        server_close(s);
    }
}

/* A write-back that an eviction waits for fails, on any rank and at any layer, or
 * finds the host tier full of pages that cannot go: the one in line is served all the same. */
Test(scheduler_waits, an_eviction_waits_for_write_backs_that_fail)
{
    for (uint64_t n = 1; n <= 6; n++)
        for (uint32_t whose = 0; whose < 2; whose++) {
            struct server *s = open_dirty(n, 8);
            cr_assert(zero(int, weir_cpu_device_fail(s->ranks[whose].device,
                                                     WEIR_CPU_CALL_COPY_WRITE_BACK, n, -EIO)));
            struct server_request *request = server_ask(s, "PQRSTU");
            cr_assert(eq(int, server_reserve(s, request), -EAGAIN));
            for (int i = 0; i < 4 && !request->ready; i++) {
                server_step(s, 0, NULL);
                server_run(s);
            }
            cr_assert(request->ready);
            cr_assert(zero(int, server_reserve(s, request)));
            server_step(s, 0, request);
            server_leave(s, request);
            server_release(s);
            server_run(s);
            weir_stats stats = server_stats(s);
            cr_assert(eq(u64, stats.write_failed_pages > 0, n <= 3));
            server_serve(s, "ABCDEFG");
            server_expect_right(s);
            server_close(s);
        }
}

Test(scheduler_waits, an_eviction_finds_the_host_tier_in_use)
{
    struct server_params params = server_params(9, 1, 8, 4);
    params.cache.write_back = "write_back";
    struct server *s = server_open(params);
    server_serve(s, "ABCD");
    server_push_out(s);
    server_settle(s);
    server_push_out(s);
    server_expect_hit(s, "ABCD", 0, 4, 0);
    /* All host pages are the source of a load that stands still. */
    server_stall(s, WEIR_CPU_CALL_COPY_LOAD);
    struct server_request *loads = server_start(s, "ABCD");
    server_step(s, 0, loads);
    struct server_request *dirty = server_start(s, "EF");
    server_step(s, 1, dirty);
    server_leave(s, dirty);
    server_run(s);
    struct server_request *request = server_ask(s, "XY");
    int rc = server_reserve(s, request);
    for (int i = 0; i < 4 && rc == -EAGAIN; i++) {
        server_step(s, 1, NULL);
        server_run(s);
        rc = server_reserve(s, request);
    }
    cr_assert(zero(int, rc), "%s", weir_error_name(rc));
    cr_assert(ge(u64, server_stats(s).write_skipped_pages, 1));
    server_step(s, 1, request);
    server_run(s);
    server_release(s);
    server_expect_right(s);
    server_close(s);
}

/* What nothing in flight can help is said at once, too, and is no claim. */
Test(scheduler_waits, an_eviction_that_nothing_helps)
{
    struct server *s = server_open(server_params(1, 1, 8, 20));
    struct server_request *holder = server_start(s, "ABCD");
    server_park(s, 0);
    server_step(s, 0, holder);
    struct server_request *request = server_ask(s, "PQRST");
    cr_assert(eq(int, server_reserve(s, request), -ENOSPC));
    cr_assert(zero(sz, server_available(s).claimed));
    /* Its step runs, but it holds nothing any more: that will help. */
    server_leave(s, holder);
    cr_assert(eq(int, server_reserve(s, request), -EAGAIN));
    server_run(s);
    cr_assert(not(request->ready));
    server_unpark(s, 0);
    server_run(s);
    cr_assert(request->ready);
    cr_assert(zero(int, server_reserve(s, request)));
    server_expect_right(s);
    server_close(s);
}

/* ---- Turns without work --------------------------------------------------- */

static unsigned policy_calls;
static const weir_evict_policy *lru;

static int counting_create(void **state, uint32_t capacity)
{
    return lru->create(state, capacity);
}

static void counting_destroy(void *state)
{
    lru->destroy(state);
}

static void counting_add(void *state, const weir_evict_entry *entry)
{
    policy_calls++;
    lru->add(state, entry);
}

static void counting_use(void *state, const weir_evict_entry *entry)
{
    policy_calls++;
    lru->use(state, entry);
}

static void counting_remove(void *state, uint32_t entry)
{
    policy_calls++;
    lru->remove(state, entry);
}

static void counting_forget(void *state, uint32_t entry)
{
    policy_calls++;
    lru->forget(state, entry);
}

static int32_t counting_next(void *state)
{
    policy_calls++;
    return lru->next(state);
}

static void *counting_alloc(void *user, size_t bytes)
{
    ++*(unsigned *)user;
    return malloc(bytes);
}

static void counting_free(void *user, void *block, size_t bytes)
{
    ++*(unsigned *)user;
    (void)bytes;
    free(block);
}

/* A turn in which nothing has happened costs nothing: no policy is asked but for
 * room that is not there, nothing is allocated, no device is called, nothing
 * changes. With the tiers warm, and with work in flight that stands still. */
Test(scheduler_waits, a_turn_without_work)
{
    lru = weir_evict_policy_find("lru");
    const weir_evict_policy counting = { "counting",      counting_create, counting_destroy,
                                         counting_add,    counting_use,    counting_remove,
                                         counting_forget, counting_next,   NULL };
    unsigned allocations = 0;
    struct server_params params = server_params(1, 2, 40, 60);
    params.cache.offered = 0.1;
    params.cache.eviction_policy = &counting;
    params.cache.allocator = (weir_allocator){ counting_alloc, counting_free, &allocations };
    struct server *s = server_open(params);
    server_serve(s, "ABCDEFGHIJKLMNOPQRST");
    server_serve(s, "abcdefghijklmnopqrstuvwx");
    server_settle(s);
    for (int flight = 0; flight < 2; flight++) {
        if (flight) {
            server_park(s, 0);
            server_step(s, 0, server_start(s, "ABCDEFGHIJ"));
            server_run(s);
        }
        server_poll(s);
        policy_calls = 0;
        unsigned before = allocations;
        uint64_t digest = weir_cache_digest(s->caches[0]);
        uint64_t calls[WEIR_CPU_CALL_COUNT];
        for (int i = 0; i < WEIR_CPU_CALL_COUNT; i++)
            calls[i] = weir_cpu_device_calls(s->ranks[0].device, (weir_cpu_call)i);
        for (int i = 0; i < 1000; i++) {
            weir_cache_event event;
            weir_available available;
            uint64_t report[8];
            size_t n;
            cr_assert(zero(int, weir_cache_poll(s->caches[0], s->now, &event, 1, &n)));
            cr_assert(zero(sz, n));
            cr_assert(zero(int, weir_cache_available(s->caches[0], &available)));
            cr_assert(zero(int, weir_rank_report(s->ranks[0].rank, report, sizeof report, &n)));
            cr_assert(zero(sz, n));
        }
        cr_assert(zero(u32, policy_calls));
        cr_assert(eq(u32, allocations, before));
        cr_assert(eq(u64, weir_cache_digest(s->caches[0]), digest));
        for (int i = 0; i < WEIR_CPU_CALL_COUNT; i++)
            cr_assert(
                eq(u64, weir_cpu_device_calls(s->ranks[0].device, (weir_cpu_call)i), calls[i]));
    }
    server_unpark(s, 0);
    server_expect_right(s);
    server_close(s);
}
