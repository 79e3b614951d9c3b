/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_SERVER_RIG_H
#define WEIR_TESTS_SERVER_RIG_H

/* What a server in small does: requests, steps, reports, and what befalls its
 * devices. What it is made of is in server_world.h.
 *
 *   server_start ── server_step ── server_run ── server_leave      one request
 *   server_hold, server_deliver, server_carry                      one rank
 *   server_park, server_stall, server_release, server_replace_rank devices
 *   server_expect_right, server_close                              the end */

#include "server_world.h"

/* ---- Requests ------------------------------------------------------------- */

static inline struct server_request *server_ask(struct server *s, const char *letters)
{
    struct server_request *request = calloc(1, sizeof *request);
    cr_assert(request && strlen(letters) <= SERVER_LETTERS);
    request->next = s->requests;
    s->requests = request;
    strcpy(request->letters, letters);
    request->n = strlen(letters);
    request->good = SIZE_MAX;
    int32_t tokens[SERVER_TOKENS];
    weir_key key = server_key(s, letters, ++s->next_tail, tokens);
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.user = request;
    weir_seq seqs[2];
    SERVER_GIVES(s, weir_seq_open(&seqs[k], c, &key, &params), 0);
    cr_assert(eq(u64, seqs[0].id, seqs[1].id));
    request->seq = seqs[0];
    return request;
}

static inline weir_seq server_seq(const struct server *s, const struct server_request *request,
                                  int k)
{
    return (weir_seq){ s->caches[k], request->seq.id };
}

/* Reserves for all of the prompt and so many pages more. */
static inline int server_reserve_more(struct server *s, struct server_request *request, size_t more)
{
    weir_request wish;
    weir_request_init(&wish);
    wish.total_tokens = (request->n + more) * s->t + 1;
    weir_reserved reserved[2] = { { .n_short = 0 }, { .n_short = 0 } };
    int rc;
    SERVER_BOTH(s, rc, weir_seq_reserve(server_seq(s, request, k), &wish, &reserved[k]));
    cr_assert(eq(sz, reserved[0].n_short, reserved[1].n_short));
    cr_assert(eq(sz, reserved[0].hit.n_tokens, reserved[1].hit.n_tokens));
    if (rc)
        return rc;
    if (request->n_pages == 0) {
        weir_hit hit = reserved[0].hit;
        request->hit = (weir_hit){ .n_tokens = hit.n_tokens / s->t,
                                   .n_device = hit.n_device / s->t,
                                   .n_host = hit.n_host / s->t,
                                   .n_loading = hit.n_loading / s->t };
        request->n_done = request->hit.n_tokens;
    }
    int32_t tables[2][SERVER_PAGES];
    size_t n[2];
    SERVER_GIVES(
        s, weir_seq_pages(server_seq(s, request, k), 0, s->t, tables[k], SERVER_PAGES, &n[k]), 0);
    cr_assert(eq(sz, n[0], n[1]));
    cr_assert(zero(int, memcmp(tables[0], tables[1], n[0] * sizeof **tables)));
    cr_assert(zero(int, memcmp(tables[0], request->table, request->n_pages * sizeof **tables)),
              "a running sequence's pages have changed");
    memcpy(request->table, tables[0], n[0] * sizeof **tables);
    request->n_pages = n[0];
    request->ready = false;
    return 0;
}

static inline int server_reserve(struct server *s, struct server_request *request)
{
    return server_reserve_more(s, request, 0);
}

static inline struct server_request *server_start(struct server *s, const char *letters)
{
    struct server_request *request = server_ask(s, letters);
    int rc = server_reserve(s, request);
    cr_assert(rc == 0, "%s: %s", letters, weir_error_name(rc));
    return request;
}

static inline void server_leave(struct server *s, struct server_request *request)
{
    weir_seq seqs[2] = { server_seq(s, request, 0), server_seq(s, request, 1) };
    SERVER_GIVES(s, weir_seq_close(&seqs[k]), 0);
    (void)seqs;
    request->seq = (weir_seq){ 0 };
}

/* ---- Steps ---------------------------------------------------------------- */

static inline void server_run_kernel(void *arg)
{
    struct server_kernel *kernel = arg;
    const struct server_request *request = kernel->request;
    kernel->ran = true;
    for (uint32_t i = 0; i < kernel->n_pages; i++) {
        enum server_act act = i < kernel->n_done  ? SERVER_CHECK
                              : i < kernel->n_end ? SERVER_FILL
                                                  : SERVER_SPOIL;
        kernel->wrong[i] = server_touch(kernel->server, kernel->rank, request->table[i],
                                        request->letters, i, kernel->layer, act);
    }
}

static inline void server_launch(struct server *s, uint32_t rank, uint32_t layer,
                                 const struct server_work *work, uint32_t i)
{
    const struct server_rank *r = &s->ranks[rank];
    struct server_kernel *kernel = calloc(1, sizeof *kernel);
    cr_assert(ne(ptr, kernel, NULL));
    *kernel = (struct server_kernel){ .next = s->kernels,
                                      .server = s,
                                      .request = work->requests[i],
                                      .rank = rank,
                                      .layer = layer,
                                      .n_done = work->n_done[i],
                                      .n_end = work->n_end[i],
                                      .n_pages = work->n_pages[i] };
    s->kernels = kernel;
    weir_cpu_access accesses[SERVER_PAGES * WEIR_MAX_TENSORS];
    size_t n = 0;
    for (uint32_t p = 0; p < kernel->n_pages; p++)
        for (uint32_t t = 0; t < r->shape->n_tensors; t++) {
            weir_device_page page = { kernel->request->table[p] };
            if (weir_rank_device_address(r->rank, t, layer, page))
                accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(r->rank),
                                                   .page = page.id,
                                                   .tensor = (uint16_t)t,
                                                   .layer = (uint16_t)layer,
                                                   .write = p >= kernel->n_done };
        }
    cr_assert(zero(int, weir_cpu_launch(r->device, r->streams[work->stream], server_run_kernel,
                                        kernel, accesses, n)));
}

/* Gives a rank the next order that it has not been given; what weir_rank_begin
 * answers, and on a failure nothing has happened. */
static inline int server_try_deliver(struct server *s, uint32_t rank)
{
    struct server_rank *r = &s->ranks[rank];
    const struct server_work *work = &s->works[(r->begun + 1) % SERVER_ORDERS];
    weir_stream *stream = r->streams[work->stream];
    uint64_t step = 0;
    int rc = weir_rank_begin(r->rank, work->order, work->bytes,
                             (uint32_t)((r->begun + 1) % s->n_slots), stream, &step);
    if (rc)
        return rc;
    cr_assert(eq(u64, step, ++r->begun));
    for (uint32_t layer = 0; layer < r->shape->n_layers; layer++) {
        cr_assert(zero(int, weir_rank_wait_layer(r->rank, step, layer, stream)));
        for (uint32_t i = 0; i < work->n; i++)
            server_launch(s, rank, layer, work, i);
    }
    cr_assert(zero(int, weir_rank_end(r->rank, step, stream)));
    return 0;
}

/* Gives a rank all orders that it has not been given. */
static inline void server_deliver(struct server *s, uint32_t rank)
{
    while (s->ranks[rank].begun < s->n_steps)
        cr_assert(zero(int, server_try_deliver(s, rank)), "%s", s->log.last);
}

static inline void server_hold(struct server *s, uint32_t rank)
{
    s->ranks[rank].held = true;
}

static inline void server_let_go(struct server *s, uint32_t rank)
{
    s->ranks[rank].held = false;
    server_deliver(s, rank);
}

/* Begins a step of n requests and computes what is left of their letters, at
 * most `pages` of each; weir_step_begin's answer. */
static inline int server_try_step(struct server *s, uint32_t stream, size_t pages, uint32_t n,
                                  struct server_request *const *requests)
{
    weir_step steps[2];
    int rc;
    SERVER_BOTH(s, rc, weir_step_begin(&steps[k], c));
    if (rc)
        return rc;
    struct server_work *work = &s->works[++s->n_steps % SERVER_ORDERS];
    *work = (struct server_work){ .stream = stream, .n = n };
    for (uint32_t i = 0; i < n; i++) {
        struct server_request *request = requests[i];
        SERVER_GIVES(s, weir_step_add(steps[k], server_seq(s, request, k)), 0);
        size_t left = request->n - request->n_done;
        size_t now = left < pages ? left : pages;
        work->requests[i] = request;
        work->n_done[i] = (uint32_t)request->n_done;
        work->n_end[i] = (uint32_t)(request->n_done += now);
        work->n_pages[i] = (uint32_t)request->n_pages;
        if (now > 0)
            SERVER_GIVES(s, weir_seq_commit(server_seq(s, request, k), NULL, now * s->t), 0);
    }
    const void *orders[2] = { NULL, NULL };
    size_t bytes[2] = { 0, 0 };
    SERVER_GIVES(s, weir_step_end(&steps[k], &orders[k], &bytes[k]), 0);
    cr_assert(eq(sz, bytes[0], bytes[1]));
    cr_assert(zero(int, memcmp(orders[0], orders[1], bytes[0])), "the twin orders something else");
    work->order = orders[0];
    work->bytes = bytes[0];
    cr_assert(zero(int, weir_order_decode(&s->last, orders[0], bytes[0], NULL)));
    cr_assert(eq(u64, s->last.step, s->n_steps));
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        if (!s->ranks[rank].held)
            server_deliver(s, rank);
    return 0;
}

/* A step of one request, or, if that is NULL, of none. Returns its number. */
static inline uint64_t server_step(struct server *s, uint32_t stream,
                                   struct server_request *request)
{
    int rc = server_try_step(s, stream, SIZE_MAX, request != NULL, &request);
    cr_assert(zero(int, rc), "%s", s->log.last);
    return s->n_steps;
}

/* ---- Reports -------------------------------------------------------------- */

/* Takes at most so many items of what a rank has to report; returns their number,
 * and the items in `items` if that is not NULL. */
static inline size_t server_carry(struct server *s, uint32_t rank, size_t most,
                                  weir_report_item *items)
{
    uint64_t report[128];
    size_t bytes = 0, n = 0;
    const weir_report_item *list;
    cr_assert(le(sz, weir_report_bytes(most), sizeof report));
    cr_assert(
        zero(int, weir_rank_report(s->ranks[rank].rank, report, weir_report_bytes(most), &bytes)));
    if (bytes == 0)
        return 0;
    SERVER_GIVES(s, weir_cache_report(c, rank, report, bytes), 0);
    cr_assert(zero(int, weir_report_decode(&list, &n, report, bytes, NULL)));
    for (size_t i = 0; items && i < n; i++)
        items[i] = list[i];
    return n;
}

/* Polls, and notes what the events say at their requests. */
static inline size_t server_poll(struct server *s)
{
    weir_cache_event events[2][16];
    size_t n[2];
    s->now++;
    SERVER_GIVES(s, weir_cache_poll(c, s->now, events[k], 16, &n[k]), 0);
    cr_assert(eq(sz, n[0], n[1]));
    for (size_t i = 0; i < n[0]; i++) {
        const weir_cache_event *event = &events[0][i];
        cr_assert(event->kind == events[1][i].kind && event->seq.id == events[1][i].seq.id &&
                  event->good_tokens == events[1][i].good_tokens);
        struct server_request *request = event->user;
        if (event->kind == WEIR_EVENT_RESERVE_READY) {
            request->ready = true;
        } else if (event->kind == WEIR_EVENT_LOAD_FAILED) {
            request->failures++;
            request->good = event->good_tokens / s->t;
        } else if (event->kind == WEIR_EVENT_WRITE_WAITING) {
            s->write_waiting++;
        }
    }
    return n[0];
}

static inline void server_run_devices(struct server *s)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        weir_cpu_device_run(s->ranks[rank].device, SIZE_MAX);
}

/* Runs all that can run and takes all reports and events. */
static inline void server_run(struct server *s)
{
    size_t n;
    do {
        server_run_devices(s);
        n = server_poll(s);
        for (uint32_t rank = 0; rank < s->n_ranks; rank++)
            n += server_carry(s, rank, 20, NULL);
    } while (n > 0);
}

/* Some work of each device, some items of some ranks. */
static inline void server_run_a_little(struct server *s)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++) {
        weir_cpu_device_run(s->ranks[rank].device, random_below(&s->random, 16));
        if (random_percent(&s->random, 50))
            server_carry(s, rank, 1 + random_below(&s->random, 4), NULL);
    }
    if (random_percent(&s->random, 50))
        server_poll(s);
}

/* Empty steps until no write-back waits or is in flight. */
static inline void server_settle(struct server *s)
{
    for (int i = 0; i < 3; i++) {
        server_run(s);
        server_step(s, 0, NULL);
    }
    server_run(s);
}

/* ---- Whole requests ------------------------------------------------------- */

/* Computes a prompt from end to end; its pages are written back then, if the
 * cache writes through and has room. */
static inline void server_serve(struct server *s, const char *letters)
{
    struct server_request *request = server_ask(s, letters);
    int rc = server_reserve(s, request);
    for (int i = 0; rc == -EAGAIN && i < 8; i++) {
        server_settle(s);
        rc = server_reserve(s, request);
    }
    cr_assert(rc == 0, "%s: %s", letters, weir_error_name(rc));
    server_step(s, 0, request);
    server_leave(s, request);
    server_settle(s);
}

/* Takes the room of all device copies that nobody holds. */
static inline void server_push_out(struct server *s)
{
    struct server_request *request = server_ask(s, "");
    size_t pages = SERVER_LETTERS;
    for (; pages > 0; pages--) {
        int rc = server_reserve_more(s, request, pages - 1);
        for (int i = 0; rc == -EAGAIN && i < 8; i++) {
            server_settle(s);
            rc = server_reserve_more(s, request, pages - 1);
        }
        if (rc == 0)
            break;
    }
    cr_assert(lt(sz, 0, pages));
    server_leave(s, request);
}

/* ---- Stalls --------------------------------------------------------------- */

static inline void server_park(struct server *s, uint32_t stream)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        weir_cpu_stream_park(s->ranks[rank].device, s->ranks[rank].streams[stream]);
}

static inline void server_unpark(struct server *s, uint32_t stream)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        weir_cpu_stream_release(s->ranks[rank].device, s->ranks[rank].streams[stream]);
}

/* The next such call on each rank, and all behind it in its stream, stands still. */
static inline void server_stall(struct server *s, weir_cpu_call call)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        cr_assert(zero(int, weir_cpu_device_stall(s->ranks[rank].device, call, 1)));
}

static inline void server_release(struct server *s)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        weir_cpu_device_release(s->ranks[rank].device);
}

/* ---- Losing a rank -------------------------------------------------------- */

static inline void server_close_rank(struct server *s, uint32_t index)
{
    struct server_rank *r = &s->ranks[index];
    weir_rank_close(&r->rank);
    for (int k = 0; k < SERVER_STREAMS; k++)
        weir_cpu_stream_destroy(r->device, &r->streams[k]);
    cr_assert(zero(int, weir_device_close(&r->device)));
}

/* Loses a rank's device and puts another in its place. What the device had not run
 * it never runs. */
static inline void server_replace_rank(struct server *s, uint32_t index)
{
    weir_cpu_device_lose(s->ranks[index].device);
    uint64_t first_steps[2] = { 0, 0 };
    SERVER_GIVES(s, weir_cache_rank_lost(c, index, &first_steps[k]), 0);
    cr_assert(eq(u64, first_steps[0], first_steps[1]));
    server_close_rank(s, index);
    for (struct server_kernel *kernel = s->kernels; kernel; kernel = kernel->next)
        if (kernel->rank == index)
            kernel->ran = true;
    server_open_rank(s, index, first_steps[0]);
}

/* ---- Closing -------------------------------------------------------------- */

/* All ends; each kernel ran, and what it read was right. */
static inline void server_expect_right(struct server *s)
{
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        server_deliver(s, rank);
    server_settle(s);
    for (const struct server_kernel *kernel = s->kernels; kernel; kernel = kernel->next)
        cr_assert(kernel->ran);
    cr_assert(zero(u64, server_wrong(s)));
    cr_assert(zero(u64, server_races(s)), "%s", s->log.last);
}

/* Closes what is open; nothing is left. */
static inline void server_close(struct server *s)
{
    for (struct server_request *request = s->requests; request; request = request->next)
        if (request->seq.cache)
            server_leave(s, request);
    server_settle(s);
    weir_stats stats = server_stats(s);
    cr_assert(stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0);
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_cache_destroy(&s->caches[i])), "%s", s->log.last);
    for (uint32_t i = 0; i < s->n_ranks; i++)
        server_close_rank(s, i);
    while (s->requests) {
        struct server_request *next = s->requests->next;
        free(s->requests);
        s->requests = next;
    }
    while (s->kernels) {
        struct server_kernel *next = s->kernels->next;
        free(s->kernels);
        s->kernels = next;
    }
    free(s);
    if (__lsan_do_recoverable_leak_check)
        cr_assert(zero(int, __lsan_do_recoverable_leak_check()));
}

#endif
