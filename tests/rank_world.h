/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_RANK_WORLD_H
#define WEIR_TESTS_RANK_WORLD_H

/* A server in small: a CPU device, a rank, two streams of its own, and a model
 * of what every page holds. Kernels fill pages with a pattern of their content
 * and compare it; the model makes orders with exactly the fences, joins and
 * moves that are needed, so that a race or a wrong byte is the rank's fault.
 *
 * With a seed the device runs when the world says so, and reports are read at
 * any time. With threads reports are read only when everything stands still,
 * so that decisions, which follow from reports, are the same in every run. */

#include "log_capture.h"
#include "random.h"
#include "transfer/rank.h"

#include <weir/cpu_device.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

enum {
    WORLD_DEVICE_PAGES = 14,
    WORLD_HOST_PAGES = 11,
    WORLD_STEPS = 1024,
    WORLD_MOVES = 4
};

struct world_kernel {
    struct world_kernel *next;
    struct world *world;
    weir_device_page page;
    uint32_t layer;
    uint64_t content;
    uint64_t load; /* the load that brings the content; 0: it was computed */
    uint64_t copy; /* the step that copies it; 0: none */
    bool fill;
    bool ran;
    uint64_t wrong;
};

struct world_page {
    uint64_t content;  /* 0: nothing of use */
    uint64_t load;     /* step whose load brings it; 0: it was computed */
    uint64_t producer; /* step that computed it */
    bool writing;      /* a write-back reads it */
    uint64_t copy;     /* step that copied it from another page */
    uint64_t origin;   /* load that brought what was copied */
};

struct world_host {
    uint64_t content;
    bool writing;
    uint32_t loading;
};

struct world_step {
    weir_stream *stream;
    bool ended;
    bool reported;
    int rc;
    uint32_t n_copies;
    uint64_t uses; /* bit p: its kernels touch device page p */
    weir_move loads[WORLD_MOVES];
    uint32_t n_loads;
    bool load_reported;
    int load_rc;
    weir_move writes[WORLD_MOVES];
    uint32_t n_writes;
    bool write_reported;
    int write_rc;
    bool load_copied;    /* a copy was to come behind it */
    bool load_cancelled; /* by a later order */
    bool write_cancelled;
    uint64_t order[128];
    size_t order_bytes;
};

struct world {
    struct random random;
    struct log_capture log;
    bool seeded;
    bool lost;
    weir_device *device;
    weir_rank *rank;
    const weir_shape *shape;
    weir_stream *streams[2];
    struct world_kernel *kernels;
    uint64_t next_content;
    uint64_t newest;
    uint32_t n_slots;
    uint32_t cancels; /* percent of transfers that random steps cancel */
    struct world_page pages[WORLD_DEVICE_PAGES + 1];
    struct world_host hosts[WORLD_HOST_PAGES + 1];
    struct world_step steps[WORLD_STEPS + 1];
};

static inline void check_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
    cr_assert(eq(int, __lsan_do_recoverable_leak_check(), 0));
#endif
}

/* ---- Opening and closing -------------------------------------------------- */

static inline weir_rank_params world_params(const weir_shape *shape, weir_host_layout layout)
{
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = shape;
    params.device_pages = WORLD_DEVICE_PAGES;
    params.host_pages = WORLD_HOST_PAGES;
    params.host_layout = layout;
    params.segment_pages = 4;
    params.max_steps = 8;
    params.max_write_backs = 3;
    params.touch_threads = 1;
    return params;
}

/* The device and the server's streams; the rank is opened by the caller. */
static inline struct world *world_create(uint64_t seed, uint32_t n_queues)
{
    struct world *w = calloc(1, sizeof *w);
    cr_assert(ne(ptr, w, NULL));
    w->random.state = seed;
    w->seeded = seed != 0;
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.seed = seed;
    params.n_queues = n_queues;
    params.log = log_capture_log(&w->log);
    cr_assert(eq(int, weir_cpu_device_open(&w->device, &params), 0));
    for (int i = 0; i < 2; i++)
        cr_assert(eq(int, weir_cpu_stream_create(w->device, &w->streams[i]), 0));
    return w;
}

static inline int world_open_rank(struct world *w, const weir_rank_params *params)
{
    weir_rank_params own = *params;
    own.log = log_capture_log(&w->log);
    w->shape = params->shape;
    w->n_slots = params->n_slots ? params->n_slots : params->max_steps;
    return weir_rank_open(&w->rank, w->device, &own);
}

static inline struct world *world_open(uint64_t seed, const weir_rank_params *params)
{
    struct world *w = world_create(seed, 8);
    cr_assert(eq(int, world_open_rank(w, params), 0));
    return w;
}

static inline void world_close(struct world *w)
{
    weir_rank_close(&w->rank);
    for (int i = 0; i < 2; i++)
        weir_cpu_stream_destroy(w->device, &w->streams[i]);
    cr_assert(eq(int, weir_device_close(&w->device), 0));
    while (w->kernels) {
        struct world_kernel *next = w->kernels->next;
        free(w->kernels);
        w->kernels = next;
    }
    free(w);
}

/* ---- Kernels -------------------------------------------------------------- */

static inline unsigned char pattern(uint64_t content, uint32_t tensor, uint32_t layer, uint64_t at)
{
    struct random random = { content * 1000003 + tensor * 8191 + layer * 127 + at };
    return (unsigned char)random_next(&random);
}

static inline uint64_t world_piece(const struct world *w, uint32_t tensor, uint32_t layer,
                                   weir_device_page page)
{
    return weir_rank_device_address(w->rank, tensor, layer, page);
}

static inline void world_run_kernel(void *arg)
{
    struct world_kernel *k = arg;
    k->ran = true;
    for (uint32_t t = 0; t < k->world->shape->n_tensors; t++) {
        unsigned char *piece =
            (unsigned char *)(uintptr_t)world_piece(k->world, t, k->layer, k->page);
        for (uint64_t i = 0; piece && i < k->world->shape->tensors[t].page_bytes; i++) {
            unsigned char value = pattern(k->content, t, k->layer, i);
            if (k->fill)
                piece[i] = value;
            else
                k->wrong += piece[i] != value;
        }
    }
}

static inline struct world_kernel *world_launch(struct world *w, weir_stream *stream, int32_t page,
                                                uint32_t layer, uint64_t content, bool fill)
{
    struct world_kernel *k = calloc(1, sizeof *k);
    cr_assert(ne(ptr, k, NULL));
    *k = (struct world_kernel){ .next = w->kernels,
                                .world = w,
                                .page = { page },
                                .layer = layer,
                                .content = content,
                                .fill = fill };
    w->kernels = k;
    weir_cpu_access accesses[WEIR_MAX_TENSORS];
    size_t n = 0;
    for (uint32_t t = 0; t < w->shape->n_tensors; t++)
        if (world_piece(w, t, layer, k->page))
            accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(w->rank),
                                               .page = page,
                                               .tensor = (uint16_t)t,
                                               .layer = (uint16_t)layer,
                                               .write = fill };
    int rc = weir_cpu_launch(w->device, stream, world_run_kernel, k, accesses, n);
    cr_assert(rc == 0 || w->lost);
    return k;
}

/* ---- Orders --------------------------------------------------------------- */

static inline void world_encode(const struct world *w, struct world_step *s, weir_order *order)
{
    order->device_pages = WORLD_DEVICE_PAGES;
    order->host_pages = w->rank->geometry->host_pages;
    cr_assert(
        eq(int, weir_order_encode(order, s->order, sizeof s->order, &s->order_bytes, NULL), 0));
}

/* What an order cancels holds nothing, whatever becomes of it. */
static inline void world_cancel(struct world *w, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_cancels; i++) {
        bool load = order->cancels[i].kind == WEIR_REPORT_LOAD;
        uint64_t step = order->cancels[i].number - (load ? 0 : 5000);
        struct world_step *s = &w->steps[step];
        s->load_cancelled |= load;
        s->write_cancelled |= !load;
        for (uint32_t k = 0; load && k < s->n_loads; k++)
            if (w->pages[s->loads[k].device.id].load == step)
                w->pages[s->loads[k].device.id].content = 0;
    }
}

/* Begins a hand-made order as the next step, in slot step % n_slots. */
static inline uint64_t world_begin(struct world *w, weir_order order, weir_stream *stream)
{
    order.step = ++w->newest;
    struct world_step *s = &w->steps[order.step];
    s->stream = stream;
    s->n_loads = order.n_loads;
    s->n_writes = order.n_writes;
    s->n_copies = order.n_copies;
    if (order.n_writes > 0)
        order.write_ticket = order.step + 5000;
    for (uint32_t i = 0; i < order.n_loads; i++)
        s->loads[i] = order.loads[i];
    for (uint32_t i = 0; i < order.n_writes; i++)
        s->writes[i] = order.writes[i];
    world_cancel(w, &order);
    world_encode(w, s, &order);
    uint64_t step = 0;
    cr_assert(eq(int,
                 weir_rank_begin(w->rank, s->order, s->order_bytes,
                                 (uint32_t)(order.step % w->n_slots), stream, &step),
                 0));
    cr_assert(eq(u64, step, order.step));
    return step;
}

static inline void world_end(struct world *w, uint64_t step)
{
    cr_assert(eq(int, weir_rank_end(w->rank, step, w->steps[step].stream), 0));
    w->steps[step].ended = true;
}

/* ---- Reports -------------------------------------------------------------- */

static inline void world_take_load(struct world *w, uint64_t step, int rc)
{
    struct world_step *s = &w->steps[step];
    cr_assert(lt(u32, 0, s->n_loads));
    cr_assert(not(s->load_reported));
    cr_assert(rc != -ECANCELED || (s->load_cancelled && !s->load_copied));
    s->load_reported = true;
    s->load_rc = rc;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        struct world_page *page = &w->pages[s->loads[i].device.id];
        w->hosts[s->loads[i].host.id].loading--;
        if (rc && page->load == step)
            page->content = 0;
    }
    for (uint32_t p = 1; rc && p <= WORLD_DEVICE_PAGES; p++)
        if (w->pages[p].origin == step)
            w->pages[p].content = 0;
}

static inline void world_take_step(struct world *w, uint64_t step, int rc)
{
    struct world_step *s = &w->steps[step];
    cr_assert(s->ended);
    cr_assert(not(s->reported));
    s->reported = true;
    s->rc = rc;
    for (uint32_t p = 1; rc && p <= WORLD_DEVICE_PAGES; p++)
        if (w->pages[p].copy == step)
            w->pages[p].content = 0;
}

static inline void world_take_write(struct world *w, uint64_t step, int rc)
{
    struct world_step *s = &w->steps[step];
    cr_assert(lt(u32, 0, s->n_writes));
    cr_assert(not(s->write_reported));
    cr_assert(rc == -ECANCELED ? s->write_cancelled : s->ended);
    s->write_reported = true;
    s->write_rc = rc;
    for (uint32_t i = 0; i < s->n_writes; i++) {
        struct world_page *page = &w->pages[s->writes[i].device.id];
        struct world_host *host = &w->hosts[s->writes[i].host.id];
        page->writing = host->writing = false;
        host->content = rc || s->write_cancelled ? 0 : page->content;
    }
}

static inline void world_take(struct world *w, const weir_report_item *item)
{
    bool is_write = item->kind == WEIR_REPORT_WRITE_BACK;
    uint64_t step = is_write ? item->number - 5000 : item->number;
    cr_assert(ge(u64, step, 1));
    cr_assert(le(u64, step, w->newest));
    cr_assert(item->rc == 0 || item->rc == -EIO || item->rc == -ECANCELED);
    if (item->kind == WEIR_REPORT_LOAD) {
        world_take_load(w, step, item->rc);
    } else if (is_write) {
        world_take_write(w, step, item->rc);
    } else {
        world_take_step(w, step, item->rc);
    }
}

/* Takes all reports that there are, n_items at a time; returns their number. */
static inline size_t world_report(struct world *w, size_t n_items)
{
    uint64_t buffer[256];
    size_t total = 0;
    for (;;) {
        size_t bytes = 0;
        cr_assert(
            eq(int, weir_rank_report(w->rank, buffer, weir_report_bytes(n_items), &bytes), 0));
        if (bytes == 0)
            return total;
        const weir_report_item *items;
        size_t n;
        cr_assert(eq(int, weir_report_decode(&items, &n, buffer, bytes, NULL), 0));
        cr_assert(ge(sz, n, 1));
        cr_assert(le(sz, n, n_items));
        for (size_t i = 0; i < n; i++)
            world_take(w, &items[i]);
        total += n;
    }
}

/* Runs all that can run; with threads, all that was enqueued. */
static inline void world_settle(struct world *w)
{
    if (w->seeded) {
        while (weir_cpu_device_run(w->device, 1000) == 1000)
            continue;
        world_report(w, 20);
        return;
    }
    for (int i = 0; i < 2; i++)
        (void)weir_cpu_stream_synchronize(w->device, w->streams[i]);
    (void)weir_rank_synchronize(w->rank);
    for (int i = 0; i < 2; i++)
        (void)weir_cpu_stream_synchronize(w->device, w->streams[i]);
    world_report(w, 20);
}

/* Runs all that can run while the other stream stands still. */
static inline void world_settle_stream(struct world *w, weir_stream *stream)
{
    if (!w->seeded)
        cr_assert(zero(int, weir_cpu_stream_synchronize(w->device, stream)));
    while (weir_cpu_device_run(w->device, 1000) == 1000)
        continue;
    world_report(w, 20);
}

static inline void world_run_a_little(struct world *w)
{
    if (!w->seeded)
        return;
    weir_cpu_device_run(w->device, random_below(&w->random, 12));
    if (random_percent(&w->random, 40))
        world_report(w, 1 + random_below(&w->random, 5));
}

/* Everything was reported, once. */
static inline void world_check_reports(const struct world *w)
{
    for (uint64_t step = 1; step <= w->newest; step++) {
        const struct world_step *s = &w->steps[step];
        cr_assert(s->reported, "step %lu", (unsigned long)step);
        cr_assert(eq(int, s->load_reported, s->n_loads > 0), "load %lu", (unsigned long)step);
        cr_assert(eq(int, s->write_reported, s->n_writes > 0), "write %lu", (unsigned long)step);
    }
}

/* What was read was right, except what failed loads or copies should have brought. */
static inline uint64_t world_wrong(const struct world *w)
{
    uint64_t wrong = 0;
    for (const struct world_kernel *k = w->kernels; k; k = k->next)
        if ((k->load == 0 || w->steps[k->load].load_rc == 0) &&
            (k->copy == 0 || w->steps[k->copy].rc == 0))
            wrong += k->wrong + !k->ran;
    return wrong;
}

static inline void world_end_some(struct world *w, uint32_t percent)
{
    for (uint64_t step = 1; step <= w->newest; step++)
        if (!w->steps[step].ended && random_percent(&w->random, percent))
            world_end(w, step);
}

static inline void world_finish(struct world *w)
{
    world_end_some(w, 100);
    for (int i = 0; i < 3; i++)
        world_settle(w);
    world_check_reports(w);
}

/* Everything ends, is reported, and was right. */
static inline void world_expect_right(struct world *w)
{
    world_finish(w);
    cr_assert(zero(u64, world_wrong(w)));
    cr_assert(zero(u64, weir_cpu_device_races(w->device)), "%s", w->log.last);
}

/* ---- Small steps ---------------------------------------------------------- */

/* Fills page p in its own step, which writes it back to host page p. */
static inline void world_make_page(struct world *w, int32_t p, weir_stream *stream)
{
    weir_move write = { { p }, { p } };
    uint64_t step = world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, stream);
    w->pages[p].content = ++w->next_content;
    for (uint32_t layer = 0; layer < w->shape->n_layers; layer++)
        world_launch(w, stream, p, layer, w->pages[p].content, true);
    world_end(w, step);
}

static inline void world_read_page(struct world *w, uint64_t step, int32_t p, uint64_t content,
                                   uint64_t load)
{
    for (uint32_t layer = 0; layer < w->shape->n_layers; layer++) {
        cr_assert(eq(int, weir_rank_wait_layer(w->rank, step, layer, w->steps[step].stream), 0));
        world_launch(w, w->steps[step].stream, p, layer, content, false)->load = load;
    }
}

#endif
