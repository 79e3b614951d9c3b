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
    bool fill;
    bool ran;
    uint64_t wrong;
};

struct world_page {
    uint64_t content;  /* 0: nothing of use */
    uint64_t load;     /* step whose load brings it; 0: it was computed */
    uint64_t producer; /* step that computed it */
    bool writing;      /* a write-back reads it */
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
    uint64_t uses; /* bit p: its kernels touch device page p */
    weir_move loads[WORLD_MOVES];
    uint32_t n_loads;
    bool load_reported;
    int load_rc;
    weir_move writes[WORLD_MOVES];
    uint32_t n_writes;
    bool write_reported;
    int write_rc;
    uint64_t order[64];
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
    uint32_t refused; /* begins that were told to come again */
    uint32_t failed;  /* calls that failed with -EIO, and were made again */
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
    if (rc)
        w->failed++;
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

/* Begins a hand-made order as the next step, in slot step % n_slots. */
static inline uint64_t world_begin(struct world *w, weir_order order, weir_stream *stream)
{
    order.step = ++w->newest;
    struct world_step *s = &w->steps[order.step];
    s->stream = stream;
    s->n_loads = order.n_loads;
    s->n_writes = order.n_writes;
    if (order.n_writes > 0)
        order.write_ticket = order.step + 5000;
    for (uint32_t i = 0; i < order.n_loads; i++)
        s->loads[i] = order.loads[i];
    for (uint32_t i = 0; i < order.n_writes; i++)
        s->writes[i] = order.writes[i];
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
    cr_assert(gt(u32, s->n_loads, 0));
    cr_assert(not(s->load_reported));
    s->load_reported = true;
    s->load_rc = rc;
    for (uint32_t i = 0; i < s->n_loads; i++) {
        struct world_page *page = &w->pages[s->loads[i].device.id];
        w->hosts[s->loads[i].host.id].loading--;
        if (rc && page->load == step)
            page->content = 0;
    }
}

static inline void world_take_write(struct world *w, uint64_t step, int rc)
{
    struct world_step *s = &w->steps[step];
    cr_assert(gt(u32, s->n_writes, 0));
    cr_assert(not(s->write_reported));
    cr_assert(s->ended);
    s->write_reported = true;
    s->write_rc = rc;
    for (uint32_t i = 0; i < s->n_writes; i++) {
        struct world_page *page = &w->pages[s->writes[i].device.id];
        struct world_host *host = &w->hosts[s->writes[i].host.id];
        page->writing = host->writing = false;
        host->content = rc ? 0 : page->content;
    }
}

static inline void world_take(struct world *w, const weir_report_item *item)
{
    bool is_write = item->kind == WEIR_REPORT_WRITE_BACK;
    uint64_t step = is_write ? item->number - 5000 : item->number;
    cr_assert(ge(u64, step, 1));
    cr_assert(le(u64, step, w->newest));
    cr_assert(item->rc == 0 || item->rc == -EIO);
    if (item->kind == WEIR_REPORT_LOAD) {
        world_take_load(w, step, item->rc);
    } else if (is_write) {
        world_take_write(w, step, item->rc);
    } else {
        cr_assert(w->steps[step].ended);
        cr_assert(not(w->steps[step].reported));
        w->steps[step].reported = true;
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

/* What was read was right, except what failed loads should have brought. */
static inline uint64_t world_wrong(const struct world *w)
{
    uint64_t wrong = 0;
    for (const struct world_kernel *k = w->kernels; k; k = k->next)
        if (k->load == 0 || w->steps[k->load].load_rc == 0)
            wrong += k->wrong + !k->ran;
    return wrong;
}

/* ---- Random steps --------------------------------------------------------- */

/* A plan of one step, as a cache would make it. */
struct world_plan {
    weir_order order;
    uint64_t fences[WORLD_STEPS];
    uint64_t load_fences[WORLD_STEPS];
    uint64_t write_fences[WORLD_STEPS];
    uint64_t joins[WORLD_STEPS];
    weir_move loads[WORLD_MOVES];
    weir_move writes[WORLD_MOVES];
    uint64_t fence_set; /* bit i: step - 1 - i */
    uint64_t load_set;
    uint64_t write_set;
    uint64_t join_set;
    uint64_t reads; /* bit p: page p */
    uint64_t fills;
};

/* Steps before `step` that use a page and are not known to have ended. */
static inline uint64_t world_users(const struct world *w, uint64_t step, int32_t page)
{
    uint64_t set = 0;
    for (uint64_t i = 0; i < 64 && i + 1 < step; i++) {
        const struct world_step *s = &w->steps[step - 1 - i];
        if (!s->reported && s->uses >> page & 1)
            set |= UINT64_C(1) << i;
    }
    return set;
}

static inline bool world_open_user(const struct world *w, uint64_t step, int32_t page)
{
    for (uint64_t i = 1; i < step && i <= 64; i++)
        if (!w->steps[step - i].ended && w->steps[step - i].uses >> page & 1)
            return true;
    return false;
}

static inline bool world_loading(const struct world *w, int32_t page)
{
    uint64_t load = w->pages[page].load;
    return load && !w->steps[load].load_reported;
}

static inline uint64_t world_before(uint64_t step, uint64_t earlier)
{
    return step - earlier <= 64 ? UINT64_C(1) << (step - earlier - 1) : 0;
}

static inline void world_plan_page(struct world *w, struct world_plan *plan, uint64_t step,
                                   int32_t p)
{
    struct world_page *page = &w->pages[p];
    bool open = world_open_user(w, step, p);
    bool writable = !open && !page->writing && !world_loading(w, p);
    int32_t h = 1 + (int32_t)random_below(&w->random, w->rank->geometry->host_pages);
    struct world_host *host = &w->hosts[h];
    uint32_t choice = random_below(&w->random, 100);
    if (choice < 25 && writable && host->content && !host->writing &&
        plan->order.n_loads < WORLD_MOVES) {
        for (uint32_t i = 0; i < plan->order.n_loads; i++)
            if (plan->loads[i].host.id == h)
                return;
        plan->load_set |= world_users(w, step, p);
        plan->loads[plan->order.n_loads++] = (weir_move){ { p }, { h } };
        host->loading++;
        *page = (struct world_page){ .content = host->content, .load = step };
        plan->reads |= UINT64_C(1) << p;
    } else if (choice < 55 && page->content && !open) {
        plan->reads |= UINT64_C(1) << p;
        if (world_loading(w, p))
            plan->join_set |= world_before(step, page->load);
        else if (page->producer && !w->steps[page->producer].reported)
            plan->fence_set |= world_before(step, page->producer);
    } else if (choice < 70 && writable) {
        plan->fence_set |= world_users(w, step, p);
        *page = (struct world_page){ .content = ++w->next_content, .producer = step };
        plan->fills |= UINT64_C(1) << p;
    }
}

static inline void world_plan_write(struct world *w, struct world_plan *plan, uint64_t step,
                                    int32_t p)
{
    struct world_page *page = &w->pages[p];
    int32_t h = 1 + (int32_t)random_below(&w->random, w->rank->geometry->host_pages);
    struct world_host *host = &w->hosts[h];
    if (!page->content || page->writing || !page->producer || host->writing || host->loading ||
        plan->order.n_writes == WORLD_MOVES || random_percent(&w->random, 60))
        return;
    plan->writes[plan->order.n_writes++] = (weir_move){ { p }, { h } };
    page->writing = host->writing = true;
    host->content = 0;
    if (page->producer != step)
        plan->write_set |= world_before(step, page->producer);
}

static inline uint32_t world_list(uint64_t step, uint64_t set, uint64_t *list)
{
    uint32_t n = 0;
    for (int i = 63; i >= 0; i--)
        if (set >> i & 1)
            list[n++] = step - 1 - (uint64_t)i;
    return n;
}

static inline void world_plan_step(struct world *w, struct world_plan *plan, uint64_t step)
{
    for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++)
        world_plan_page(w, plan, step, p);
    for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++)
        world_plan_write(w, plan, step, p);
    weir_order *order = &plan->order;
    order->step = step;
    order->write_ticket = order->n_writes > 0 ? step + 5000 : 0;
    order->n_fences = world_list(step, plan->fence_set, plan->fences);
    order->n_load_fences = world_list(step, plan->load_set, plan->load_fences);
    order->n_write_fences = world_list(step, plan->write_set, plan->write_fences);
    order->n_joins = world_list(step, plan->join_set, plan->joins);
    order->fences = plan->fences;
    order->load_fences = plan->load_fences;
    order->write_fences = plan->write_fences;
    order->joins = plan->joins;
    order->loads = plan->loads;
    order->writes = plan->writes;
}

static inline void world_forward(struct world *w, const struct world_plan *plan, uint64_t step)
{
    weir_stream *stream = w->steps[step].stream;
    for (uint32_t layer = 0; layer < w->shape->n_layers; layer++) {
        int rc;
        while ((rc = weir_rank_wait_layer(w->rank, step, layer, stream)) != 0 && !w->lost) {
            cr_assert(eq(int, rc, -EIO));
            w->failed++; /* a fault strikes once */
        }
        if (rc)
            return;
        for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++) {
            bool fill = plan->fills >> p & 1;
            if (!fill && !(plan->reads >> p & 1))
                continue;
            struct world_kernel *k = world_launch(w, stream, p, layer, w->pages[p].content, fill);
            k->load = w->pages[p].load;
        }
        world_run_a_little(w);
    }
}

static inline void world_end_some(struct world *w, uint32_t percent)
{
    for (uint64_t step = 1; step <= w->newest; step++)
        if (!w->steps[step].ended && random_percent(&w->random, percent))
            world_end(w, step);
}

/* One random step; false if the device is lost. */
static inline bool world_random_step(struct world *w)
{
    struct world_plan plan = { 0 };
    uint64_t step = w->newest + 1;
    world_plan_step(w, &plan, step);
    struct world_step *s = &w->steps[step];
    s->stream = w->streams[random_below(&w->random, 2)];
    s->uses = plan.reads | plan.fills;
    s->n_loads = plan.order.n_loads;
    s->n_writes = plan.order.n_writes;
    memcpy(s->loads, plan.loads, sizeof plan.loads);
    memcpy(s->writes, plan.writes, sizeof plan.writes);
    world_encode(w, s, &plan.order);

    uint64_t begun = 0;
    uint32_t slot = (uint32_t)(step % w->n_slots);
    for (int attempt = 0;; attempt++) {
        int rc = weir_rank_begin(w->rank, s->order, s->order_bytes, slot, s->stream, &begun);
        if (rc == 0)
            break;
        cr_assert(zero(u64, begun));
        cr_assert(rc == -EAGAIN || rc == -EBUSY || rc == -EIO, "%d: %s", rc, w->log.last);
        cr_assert(lt(int, attempt, 8));
        if (w->lost) {
            cr_assert(eq(int, rc, -EIO));
            *s = (struct world_step){ 0 };
            return false;
        }
        w->failed += rc == -EIO;
        w->refused += rc != -EIO;
        world_end_some(w, 100);
        world_settle(w);
    }
    cr_assert(eq(u64, begun, step));
    w->newest = step;
    world_forward(w, &plan, step);
    if (random_percent(&w->random, 75))
        world_end(w, step);
    if (random_percent(&w->random, 50))
        world_end_some(w, 50);
    return true;
}

static inline void world_finish(struct world *w)
{
    world_end_some(w, 100);
    for (int i = 0; i < 3; i++)
        world_settle(w);
    world_check_reports(w);
}

#endif
