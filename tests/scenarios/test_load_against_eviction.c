/* SPDX-License-Identifier: Apache-2.0 */

/* Room is made while copies are under way. A page whose bytes somebody still reads or
 * writes is given to nobody else, in either tier, whatever else goes on; and making
 * room for a load never takes what is to be loaded. */

#include "server_probe.h"

/* ---- Making room for a load ----------------------------------------------- */

/* The device tier is full of pages that nobody has written back, the host tier is full
 * or nearly so, and what is wanted is in the host tier only. To make room the cache
 * writes back, and for that must take host pages: not these. */
static void load_into_full_tiers(uint32_t host_pages)
{
    struct server *s = probe_open("write_back", 6, host_pages);
    server_serve(s, "ABCD");
    server_push_out(s);
    server_expect_hit(s, "ABCD", 0, 4, 0);
    for (uint32_t i = 4; i < host_pages; i++)
        server_serve(s, (char[]){ (char)('a' + i), 0 });
    server_push_out(s);
    server_serve(s, "PQRST");
    server_expect_hit(s, "ABCD", 0, 4, 0);

    struct server_request *request = server_ask(s, "ABCD");
    int rc = server_reserve(s, request);
    cr_assert(rc == 0 || rc == -EAGAIN);
    cr_assert(zero(int, probe_reserve(s, request, 0)));
    cr_assert(eq(sz, request->hit.n_host, 4));
    server_step(s, 0, request);
    server_run(s);
    server_expect_hit(s, "ABCD", 4, 0, 0);
    server_expect_right(s);
    server_close(s);
}

Test(load_against_eviction, room_for_a_load_is_not_made_of_its_source)
{
    for (uint32_t host = 4; host <= 9; host++)
        load_into_full_tiers(host);
}

/* As above, but a running request holds so much that nothing helps: the refusal
 * leaves the prompt where it was, every time. */
Test(load_against_eviction, a_load_that_never_fits_leaves_its_source)
{
    for (uint32_t n_held = 3; n_held <= 5; n_held++) {
        struct server *s = probe_open("write_back", 6, 4);
        server_serve(s, "ABCD");
        server_push_out(s);
        struct server_request *holder = server_ask(s, "PQ");
        cr_assert(zero(int, server_reserve_more(s, holder, n_held - 3)));
        server_step(s, 0, holder);
        server_run(s);
        struct server_request *request = server_ask(s, "ABCD");
        weir_available available = server_available(s);
        for (int i = 0; i < 4; i++) {
            cr_assert(eq(int, server_reserve(s, request), -ENOSPC));
            server_expect_hit(s, "ABCD", 0, 4, 0);
            weir_available now = server_available(s);
            cr_assert(zero(int, memcmp(&available, &now, sizeof now)));
            server_settle(s);
        }
        server_leave(s, holder);
        cr_assert(eq(int, probe_reserve(s, request, 0), 0));
        cr_assert(eq(sz, request->hit.n_host, 4));
        server_step(s, 0, request);
        server_expect_right(s);
        server_close(s);
    }
}

/* ---- The host pages of a load --------------------------------------------- */

enum reader {
    RESERVED, /* no step has taken the load yet */
    HELD,     /* the rank has not been given the order */
    RUNNING,  /* the copy stands still */
    CLOSED,   /* likewise, and who asked for it is gone */
    JOINED,   /* likewise, and another waits for it */
    N_READERS
};

/* Computes prompts that need all of the host tier, each in a step that nobody waits
 * for. */
static void flood_the_host(struct server *s)
{
    static const char *const prompts[] = { "PQ", "RS", "TU", "VW", "XY" };
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        struct server_request *next = server_start(s, prompts[i]);
        server_step(s, 0, next);
        server_leave(s, next);
        server_run(s);
        server_step(s, 0, NULL);
        server_run(s);
    }
}

/* "ABC" is on its way from the host tier when prompt after prompt is written back
 * there. */
static void flood_behind_a_load(enum reader reader, bool fails)
{
    struct server *s = probe_open("write_through", 16, 6);
    server_serve(s, "ABC");
    server_push_out(s);
    server_expect_hit(s, "ABC", 0, 3, 0);
    if (fails)
        cr_assert(
            zero(int, weir_cpu_device_fail(s->ranks[0].device, WEIR_CPU_CALL_COPY_LOAD, 2, -EIO)));
    server_stall(s, WEIR_CPU_CALL_COPY_LOAD);
    struct server_request *request = server_start(s, "ABC"), *other = NULL;
    if (reader == HELD)
        server_hold(s, 0);
    if (reader != RESERVED)
        server_step(s, 1, request);
    if (reader == JOINED) {
        other = server_start(s, "ABC");
        cr_assert(eq(sz, other->hit.n_loading, 3));
    }
    if (reader == CLOSED || reader == JOINED) {
        server_leave(s, request);
        probe_hold_page(s, request->table[3]); /* whoever uses it must wait for the step */
    }
    flood_the_host(s);
    weir_stats stats = server_stats(s);
    if (reader == HELD) /* its three pages and three that wait to be written */
        cr_assert(eq(u64, stats.write_skipped_pages, 7));
    else
        cr_assert(lt(u64, 4, stats.evicted_host_pages));

    if (reader == RESERVED)
        server_step(s, 1, request);
    if (reader == HELD)
        server_let_go(s, 0);
    server_release(s);
    if (other && !fails)
        server_step(s, 1, other);
    server_run(s);
    if (reader == CLOSED) /* cancelled, whatever became of it */
        server_expect_hit(s, "ABC", 0, 3, 0);
    else
        server_expect_hit(s, "ABC", fails ? 0 : 3, 0, 0);
    server_expect_right(s);
    server_push_out(s);
    probe_expect(s, "ABC", probe_holds(s, "ABC"));
    server_close(s);
}

Test(load_against_eviction, the_source_of_a_load_is_not_overwritten)
{
    for (enum reader reader = RESERVED; reader < N_READERS; reader++)
        for (int fails = 0; fails < 2; fails++)
            flood_behind_a_load(reader, fails);
}

/* A load that is over, or was never begun, keeps nothing: all of the host tier can be
 * had again. */
Test(load_against_eviction, the_source_of_a_load_is_free_afterwards)
{
    for (int begun = 0; begun < 2; begun++) {
        struct server *s = probe_open("write_through", 16, 6);
        server_serve(s, "ABC");
        server_push_out(s);
        struct server_request *request = server_start(s, "ABC");
        if (begun) {
            server_step(s, 0, request);
            server_run(s);
        }
        server_leave(s, request);
        uint64_t skipped = server_stats(s).write_skipped_pages;
        server_serve(s, "PQRSTU");
        cr_assert(eq(u64, server_stats(s).write_skipped_pages, skipped));
        server_push_out(s);
        server_expect_hit(s, "PQRSTU", 0, 6, 0);
        server_expect_hit(s, "ABC", 0, 0, 0);
        probe_expect(s, "PQRSTU", 6);
        server_close(s);
    }
}

/* ---- The device pages of a write-back ------------------------------------- */

/* Pages that are being written back in order to be given up. Until the copy has been
 * reported nobody else may have them. */
static void evict_while_written(bool fails, bool hit)
{
    struct server *s = probe_open("write_back", 6, 12);
    server_serve(s, "ABCDE");
    struct server_request *next = server_ask(s, "PQR");
    cr_assert(eq(int, server_reserve(s, next), -EAGAIN));
    if (fails)
        cr_assert(zero(
            int, weir_cpu_device_fail(s->ranks[0].device, WEIR_CPU_CALL_COPY_WRITE_BACK, 2, -EIO)));
    server_stall(s, WEIR_CPU_CALL_COPY_WRITE_BACK);
    server_step(s, 0, NULL);
    cr_assert(eq(u32, s->last.n_writes, 3));
    for (int i = 0; i < 3; i++) {
        server_run(s);
        cr_assert(eq(int, server_reserve(s, next), -EAGAIN));
        cr_assert(not(next->ready));
    }
    server_expect_hit(s, "ABCDE", 5, 0, 0);
    struct server_request *reader = NULL;
    if (hit) { /* it takes them back in the last moment */
        server_leave(s, next);
        reader = server_start(s, "ABCDE");
        cr_assert(eq(sz, reader->hit.n_device, 5));
        server_step(s, 0, reader);
    }
    server_release(s);
    server_run(s);
    if (hit) {
        server_leave(s, reader);
        server_expect_hit(s, "ABCDE", 5, 0, 0);
    } else {
        cr_assert(next->ready);
        cr_assert(zero(int, server_reserve(s, next)));
        server_step(s, 0, next);
        server_run(s);
        server_expect_hit(s, "ABCDE", 2, fails ? 0 : 3, 0);
        server_leave(s, next);
    }
    probe_expect(s, "ABCDE", fails && !hit ? 2 : 5);
    server_close(s);
}

Test(load_against_eviction, pages_being_written_back_are_not_reissued)
{
    for (int fails = 0; fails < 2; fails++)
        for (int hit = 0; hit < 2; hit++)
            evict_while_written(fails, hit);
}

/* Several prompts are given up at once, and the host tier has room for a part of
 * them. What did not fit is gone, what did is right, and no prompt has a hole. */
Test(load_against_eviction, a_host_tier_with_room_for_some)
{
    for (uint32_t host = 1; host <= 7; host++) {
        struct server *s = probe_open("write_back", 7, host);
        static const char *const prompts[] = { "AB", "CD", "EF" };
        for (size_t i = 0; i < 3; i++)
            server_serve(s, prompts[i]);
        struct server_request *holder = server_ask(s, "PQRSTU");
        cr_assert(zero(int, probe_reserve(s, holder, 0)));
        server_step(s, 0, holder);
        server_run(s);
        server_leave(s, holder);
        weir_stats stats = server_stats(s);
        uint64_t room = host < 6 ? host : 6;
        cr_assert(eq(u64, stats.written_pages, room));
        cr_assert(eq(u64, stats.write_skipped_pages, 6 - room));
        size_t n = 0;
        for (size_t i = 0; i < 3; i++)
            n += probe_holds(s, prompts[i]);
        cr_assert(eq(u64, n, room), "parents are kept before their children");
        for (size_t i = 0; i < 3; i++)
            probe_expect(s, prompts[i], probe_holds(s, prompts[i]));
        server_close(s);
    }
}
