/* SPDX-License-Identifier: Apache-2.0 */

/* Copies and forward passes on the same pages at the same time: a load into a page
 * that a step of a request long gone still writes, a write-back that nobody waits
 * for, a page that is taken while it is read. A page is had at once, on the host;
 * on the device who takes it comes behind who used it, and nobody else does. */

#include "server_rig.h"

enum {
    DEVICE_PAGES = 8,
    HOST_PAGES = 30
};

/* "ABC" and "DEFGHIJ" are in host memory, the device is empty. With this policy what
 * a prompt computes is written when it is used again. */
static struct server *open_server(uint64_t seed, const char *write_back)
{
    struct server_params params = server_params(seed, 2, DEVICE_PAGES, HOST_PAGES);
    params.cache.write_back = write_back;
    struct server *s = server_open(params);
    for (int i = 0; i < 2; i++)
        server_serve(s, "ABC");
    server_push_out(s);
    for (int i = 0; i < 2; i++)
        server_serve(s, "DEFGHIJ");
    server_push_out(s);
    server_expect_hit(s, "ABC", 0, 3, 0);
    server_expect_hit(s, "DEFGHIJ", 0, 7, 0);
    return s;
}

static bool names(const uint64_t *steps, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

/* ---- Pages that a step still uses ----------------------------------------- */

/* A step on all pages of the device, whose request is closed at once. */
static uint64_t write_all(struct server *s, uint32_t stream)
{
    struct server_request *request = server_start(s, "PQRSTUV");
    cr_assert(zero(int, server_try_step(s, stream, 0, 1, &request)));
    server_leave(s, request);
    return s->n_steps;
}

/* As above; it reads seven of them. */
static uint64_t read_all(struct server *s, uint32_t stream)
{
    server_unpark(s, stream);
    server_serve(s, "DEFGHIJ");
    server_park(s, stream);
    struct server_request *request = server_start(s, "DEFGHIJ");
    cr_assert(eq(sz, request->hit.n_device, 7));
    server_step(s, stream, request);
    server_leave(s, request);
    return s->n_steps;
}

/* The pages are reissued to a load at once, and the load stands behind the step on
 * the device, in whichever streams the two run. */
static void load_over(uint64_t (*use_all)(struct server *, uint32_t), uint64_t seed)
{
    for (uint32_t stream = 0; stream < 2; stream++) {
        struct server *s = open_server(seed, "write_through_selective");
        server_park(s, 0);
        uint64_t user = use_all(s, 0);
        struct server_request *request = server_start(s, "ABC");
        cr_assert(eq(sz, request->hit.n_host, 3));
        server_step(s, stream, request);
        cr_assert(eq(u32, s->last.n_loads, 3));
        cr_assert(names(s->last.load_fences, s->last.n_load_fences, user));
        server_run(s);
        server_expect_hit(s, "ABC", 0, 0, 3);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 2));
        /* One that joins the load, in the other stream. */
        struct server_request *joins = server_start(s, "ABCX");
        cr_assert(eq(sz, joins->hit.n_loading, 3));
        server_step(s, !stream, joins);
        server_run(s);
        server_unpark(s, 0);
        server_run(s);
        server_expect_hit(s, "ABC", 3, 0, 0);
        server_expect_right(s);
        server_close(s);
    }
}

Test(copies_cross_forward, a_load_into_pages_that_are_written)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        load_over(write_all, seed);
}

Test(copies_cross_forward, a_load_into_pages_that_are_read)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        load_over(read_all, seed);
}

/* The same for a prompt that is computed there. */
Test(copies_cross_forward, a_forward_into_pages_that_are_in_use)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int reads = 0; reads < 2; reads++) {
            struct server *s = open_server(seed, "write_through_selective");
            server_park(s, 0);
            uint64_t user = reads ? read_all(s, 0) : write_all(s, 0);
            struct server_request *request = server_start(s, "XYZ");
            server_step(s, 1, request);
            cr_assert(names(s->last.fences, s->last.n_fences, user));
            server_run(s);
            cr_assert(eq(u64, server_stats(s).orders_in_flight, 2));
            server_unpark(s, 0);
            server_expect_right(s);
            server_close(s);
        }
}

/* Whether a step that has been ordered touches a page. */
static bool touches(const struct server *s, uint64_t step, int32_t page)
{
    const struct server_work *work = &s->works[step % SERVER_ORDERS];
    for (uint32_t i = 0; i < work->n; i++)
        for (uint32_t p = 0; p < work->n_pages[i]; p++)
            if (work->requests[i]->table[p] == page)
                return true;
    return false;
}

/* The last step's load waits for all steps in flight that use its targets, and for
 * no other. Returns how many there are. */
static uint32_t expect_exact_fences(const struct server *s, const uint64_t *in_flight, uint32_t n)
{
    uint32_t n_due = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool due = false;
        for (uint32_t m = 0; m < s->last.n_loads; m++)
            due = due || touches(s, in_flight[i], s->last.loads[m].device.id);
        cr_assert(names(s->last.load_fences, s->last.n_load_fences, in_flight[i]) == due,
                  "step %lu %s", (unsigned long)in_flight[i],
                  due ? "is missing" : "is one too many");
        n_due += due;
    }
    cr_assert(eq(u32, s->last.n_load_fences, n_due));
    return n_due;
}

/* Pages with several users in both streams, the last of them not the slowest, some
 * of them gone, some of them known to have ended. */
Test(copies_cross_forward, a_load_into_pages_of_many_steps)
{
    uint32_t due = 0, not_due = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct server *s = open_server(seed, "write_through_selective");
        server_serve(s, "DEFGHIJ");
        server_park(s, 0);
        uint64_t in_flight[4];
        uint32_t n = 0;
        static const char *const prompts[] = { "DEFG", "D", "DE", "DEF", "PQ" };
        struct server_request *open = NULL;
        for (uint32_t i = 0; i < 4; i++) {
            struct server_request *reader = server_start(s, prompts[random_below(&s->random, 5)]);
            server_step(s, random_below(&s->random, 2), reader);
            server_run(s);
            bool ended = server_stats(s).orders_in_flight == n;
            if (!ended)
                in_flight[n++] = s->n_steps;
            if (open)
                server_leave(s, open);
            open = reader;
        }
        server_leave(s, open);
        struct server_request *request = server_start(s, "ABC");
        server_step(s, 1, request);
        uint32_t n_due = expect_exact_fences(s, in_flight, n);
        due += n_due;
        not_due += n - n_due;
        server_run(s);
        if (n_due)
            server_expect_hit(s, "ABC", 0, 0, 3);
        server_unpark(s, 0);
        server_expect_right(s);
        server_close(s);
    }
    cr_assert(due >= 10 && not_due >= 3, "%u, %u", due, not_due);
}

/* What is too much: a load into pages that no step in flight uses waits for none,
 * whichever stand still. */
Test(copies_cross_forward, a_load_beside_steps_that_stand_still)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct server *s = open_server(seed, "write_through_selective");
        server_park(s, 0);
        struct server_request *parked = server_start(s, "P");
        server_step(s, 0, parked);
        /* Used, and known to have ended. */
        struct server_request *ended = server_start(s, "X");
        server_step(s, 1, ended);
        server_run(s);
        server_leave(s, ended);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 1));
        server_step(s, 0, server_start(s, "Q"));
        struct server_request *request = server_start(s, "ABC");
        server_step(s, 1, request);
        cr_assert(zero(u32, s->last.n_load_fences));
        cr_assert(zero(u32, s->last.n_fences));
        server_run(s);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 2));
        server_expect_hit(s, "ABC", 3, 0, 0);
        server_unpark(s, 0);
        server_expect_right(s);
        server_close(s);
    }
}

/* A step that was undone has touched nothing; its pages are like new. */
Test(copies_cross_forward, a_load_into_pages_of_an_undone_step)
{
    struct server *s = open_server(3, "write_through_selective");
    struct server_request *request = server_start(s, "PQRSTUV");
    weir_step steps[2];
    SERVER_GIVES(s, weir_step_begin(&steps[k], c), 0);
    SERVER_GIVES(s, weir_step_add(steps[k], server_seq(s, request, k)), 0);
    SERVER_GIVES(s, weir_seq_commit(server_seq(s, request, k), NULL, s->t), 0);
    server_leave(s, request);
    SERVER_GIVES(s, weir_step_abort(&steps[k]), 0);
    request = server_start(s, "ABC");
    server_step(s, 0, request);
    cr_assert(zero(u32, s->last.n_load_fences));
    server_expect_right(s);
    server_close(s);
}

/* A page that is the target of a load, or the source of a write-back, is given to
 * nobody before that has ended, on any rank; then it is. */
Test(copies_cross_forward, pages_of_a_copy_in_flight)
{
    static const weir_cpu_call calls[] = { WEIR_CPU_CALL_COPY_LOAD, WEIR_CPU_CALL_COPY_WRITE_BACK };
    for (int write = 0; write < 2; write++)
        for (uint64_t layer = 1; layer <= 3; layer++)
            for (uint32_t whose = 0; whose < 2; whose++) {
                struct server *s =
                    open_server(layer, write ? "write_through" : "write_through_selective");
                cr_assert(
                    zero(int, weir_cpu_device_stall(s->ranks[whose].device, calls[write], layer)));
                struct server_request *request = server_start(s, write ? "PQR" : "ABC");
                server_step(s, 0, request);
                weir_move moves[3];
                cr_assert(eq(u32, write ? s->last.n_writes : s->last.n_loads, 3));
                memcpy(moves, write ? s->last.writes : s->last.loads, sizeof moves);
                server_leave(s, request);
                server_run(s);
                /* There is room for five beside them. */
                struct server_request *large = server_ask(s, "STUVWX");
                cr_assert(eq(int, server_reserve(s, large), -EAGAIN));
                server_leave(s, large);
                struct server_request *small = server_start(s, "Y");
                for (size_t i = 0; i < small->n_pages; i++)
                    for (int m = 0; m < 3; m++)
                        cr_assert(ne(i32, small->table[i], moves[m].device.id));
                server_step(s, 1, small);
                server_run(s);
                server_release(s);
                server_run(s);
                server_leave(s, small);
                server_serve(s, "STUVWX");
                server_push_out(s);
                if (!write)
                    server_serve(s, "ABC");
                server_expect_right(s);
                server_close(s);
            }
}

/* ---- Write-backs ---------------------------------------------------------- */

/* A write-back forks off the server's stream and is never joined again: it holds no
 * forward pass up, its pages can be read but not be had, and what arrives is what they
 * held. */
Test(copies_cross_forward, a_write_back_that_nobody_joins)
{
    for (uint64_t layer = 1; layer <= 3; layer++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct server *s = open_server(seed, "write_through");
            for (uint32_t rank = 0; rank < 2; rank++)
                cr_assert(zero(int, weir_cpu_device_stall(s->ranks[rank].device,
                                                          WEIR_CPU_CALL_COPY_WRITE_BACK, layer)));
            struct server_request *request = server_start(s, "PQ");
            server_step(s, 0, request);
            cr_assert(eq(u32, s->last.n_writes, 2));
            for (int i = 0; i < 4; i++) {
                struct server_request *reader = server_start(s, i % 2 ? "PQ" : "PQX");
                cr_assert(ge(sz, reader->hit.n_device, 2));
                server_step(s, (uint32_t)i / 2, reader);
                server_leave(s, reader);
                server_run(s);
                cr_assert(zero(u64, server_stats(s).orders_in_flight));
                cr_assert(ge(u64, server_stats(s).write_backs_in_flight, 1));
            }
            server_leave(s, request);
            /* Loads are not behind it either, and come to other pages. */
            request = server_start(s, "ABC");
            server_step(s, 0, request);
            server_run(s);
            server_expect_hit(s, "ABC", 3, 0, 0);
            server_expect_hit(s, "PQ", 2, 0, 0);
            server_leave(s, request);
            server_release(s);
            server_settle(s);
            server_push_out(s);
            server_expect_hit(s, "PQX", 0, 3, 0);
            server_serve(s, "PQX");
            server_expect_right(s);
            server_close(s);
        }
}

/* The host copy is none before it has arrived: no request may load from it, and
 * its host page is no one else's. A failure gives both back. */
Test(copies_cross_forward, a_host_page_that_is_being_written)
{
    for (int fails = 0; fails < 2; fails++) {
        struct server_params params = server_params(4, 2, DEVICE_PAGES, 4);
        struct server *s = server_open(params);
        for (uint32_t rank = 0; rank < 2; rank++) {
            cr_assert(zero(int, weir_cpu_device_stall(s->ranks[rank].device,
                                                      WEIR_CPU_CALL_COPY_WRITE_BACK, 1)));
            if (fails && rank == 1)
                cr_assert(zero(int, weir_cpu_device_fail(s->ranks[rank].device,
                                                         WEIR_CPU_CALL_COPY_WRITE_BACK, 3, -EIO)));
        }
        struct server_request *request = server_start(s, "PQR");
        server_step(s, 0, request);
        weir_move moves[3];
        cr_assert(eq(u32, s->last.n_writes, 3));
        memcpy(moves, s->last.writes, sizeof moves);
        server_leave(s, request);
        /* One host page is left; what else is computed is written there or not at all. */
        request = server_start(s, "XY");
        server_step(s, 1, request);
        cr_assert(eq(u32, s->last.n_writes, 1));
        for (int i = 0; i < 3; i++)
            cr_assert(ne(i32, s->last.writes[0].host.id, moves[i].host.id));
        server_leave(s, request);
        server_run(s);
        cr_assert(zero(u64, server_stats(s).written_pages));
        cr_assert(eq(u64, server_stats(s).write_skipped_pages, 1));
        server_expect_hit(s, "PQR", 3, 0, 0);
        server_release(s);
        server_run(s);
        server_push_out(s);
        server_expect_hit(s, "PQR", 0, fails ? 0 : 3, 0);
        cr_assert(eq(u64, server_stats(s).host_free, fails ? 3 : 0));
        server_serve(s, "PQR");
        server_expect_right(s);
        server_close(s);
    }
}

/* A page is written back while the step that computes it has not begun to run, by
 * another step, which has nothing to do with it and does not wait. */
Test(copies_cross_forward, a_write_back_of_pages_that_are_being_computed)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct server *s = open_server(seed, "write_through_selective");
        server_park(s, 0);
        struct server_request *request = server_start(s, "PQR");
        uint64_t producer = server_step(s, 0, request);
        cr_assert(zero(u32, s->last.n_writes));
        struct server_request *again = server_start(s, "PQRX"); /* the second use */
        cr_assert(eq(sz, again->hit.n_device, 3));
        server_step(s, 1, NULL);
        cr_assert(eq(u32, s->last.n_writes, 3));
        cr_assert(names(s->last.write_fences, s->last.n_write_fences, producer));
        cr_assert(zero(u32, s->last.n_fences));
        server_run(s);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 1));
        cr_assert(eq(u64, server_stats(s).write_backs_in_flight, 1));
        server_unpark(s, 0);
        server_run(s);
        server_leave(s, request);
        server_leave(s, again);
        server_push_out(s);
        server_expect_hit(s, "PQR", 0, 3, 0);
        server_serve(s, "PQR");
        server_expect_right(s);
        server_close(s);
    }
}
