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

/* A page with many users in both streams, the last of them not the slowest. */
Test(copies_cross_forward, a_load_into_pages_of_many_steps)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct server *s = open_server(seed, "write_through_selective");
        server_serve(s, "DEFGHIJ");
        server_park(s, 0);
        uint64_t first = s->n_steps + 1;
        struct server_request *readers[3];
        for (uint32_t i = 0; i < 3; i++) {
            readers[i] = server_ask(s, "DEFGHIJ");
            readers[i]->letters[6 - i] = '\0'; /* the next letter is computed by nobody */
            readers[i]->n = 6 - i;
        }
        for (uint32_t i = 0; i < 3; i++) {
            server_leave(s, readers[i]);
            struct server_request *reader = server_start(s, i == 0 ? "DEFGHIJ" : "DEF");
            server_step(s, i % 2, reader);
            server_leave(s, reader);
        }
        server_run(s);
        cr_assert(eq(u64, server_stats(s).orders_in_flight, 2));
        struct server_request *request = server_start(s, "ABC");
        server_step(s, 1, request);
        cr_assert(names(s->last.load_fences, s->last.n_load_fences, first));
        server_run(s);
        server_expect_hit(s, "ABC", 0, 0, 3);
        server_unpark(s, 0);
        server_expect_right(s);
        server_close(s);
    }
}
