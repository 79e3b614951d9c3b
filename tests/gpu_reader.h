/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_GPU_READER_H
#define WEIR_TESTS_GPU_READER_H

/* Steps whose kernels read what a load brings as soon as its layer's wait lets
 * them. A page that was loaded too late, or only in part, still holds poison,
 * which is fresh each time.
 *
 *   sets of pages, one a slot     step s  │ loads some pages of set s % SLOTS
 *   ┌─────┬─────┬─────┬─ ─                │ layer by layer: wait, read the set;
 *   │  0  │  1  │  2  │                   │   if it joins, also set s - 1
 *   └─────┴─────┴─────┴─ ─                │ poisons set s + distance
 *
 * A load comes behind the step that poisoned its targets and nothing else, so it
 * runs while the kernels already wait. With distance 1 it starts when the step
 * does. Pages that a step does not load must still hold the poison.
 *
 * Layers are read through waits of the step, or by a graph a slot with captured
 * waits, which is launched again and again. */

#include "gpu_graphs.h"
#include "gpu_rig.h"

#include <limits.h>

enum {
    READER_SLOTS = 8,
    READER_PAGES = 32, /* of a set */
    READER_ALL_PAGES = READER_SLOTS * READER_PAGES,
    READER_HOSTS = 512, /* a power of two */
    READER_PAGE_TOKENS = 16,
    READER_ROW_BYTES = 1024
};

/* Ways to copy that differ in what a waiting stream sees. */
struct reader_way {
    const char *name;
    weir_transfer_tuning tuning;
};

static const struct reader_way reader_ways[] = {
    { "auto", { 0 } },
    { "tma", { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_ONE } },
    { "vector", { .engine = WEIR_ENGINE_VECTOR } },
    { "copy engine", { .engine = WEIR_ENGINE_COPY } },
};

struct reader {
    struct rig *rig;
    struct random random;
    weir_tensor tensor;
    weir_shape shape;
    uint32_t distance;
    bool joins; /* steps may join */
    weir_rank *rank;
    struct weir_pattern_planes planes;
    struct weir_pattern_batch batches[READER_SLOTS];
    weir_event *events[READER_SLOTS]; /* behind each slot's step */
    struct gpu_graphs calls;
    CUgraphExec graphs[READER_SLOTS]; /* NULL: none */
    uint64_t contents[READER_ALL_PAGES + 1];
    uint64_t host_contents[READER_HOSTS + 1];
    uint64_t next_content;
    uint64_t newest;
    uint64_t reported_steps[READER_SLOTS]; /* of each slot, the last */
    uint64_t reported_loads[READER_SLOTS];
    uint64_t loading[READER_SLOTS]; /* the slot's last step with a load */
    uint64_t n_loads;
    uint64_t n_joins;
    uint64_t stale_bytes;
};

/* ---- Opening and closing ------------------------------------------------- */

static inline void reader_find_calls(struct gpu_graphs *calls)
{
    const char *name = NULL;
    int rc = gpu_graphs_find(calls, &name);
    REQUIRE(rc == 0, "%s", name);
}

static inline int32_t reader_page(uint64_t step, uint32_t index)
{
    return (int32_t)(step % READER_SLOTS * READER_PAGES + index + 1);
}

/* Pages that a step looks at, and those of the step that it joins. */
static inline uint32_t reader_n_checks(const struct reader *r)
{
    return r->joins ? 2 * READER_PAGES : READER_PAGES;
}

static inline int reader_begin_batch(struct reader *r, uint32_t slot)
{
    uint32_t n = reader_n_checks(r);
    return weir_pattern_batch_begin(&r->batches[slot], &r->rig->pattern, READER_PAGES, n,
                                    (uint64_t)(READER_PAGES + n) * READER_PAGE_TOKENS);
}

/* Poisons a set in all layers by one launch: the table of planes is one array. */
static inline int reader_poison(struct reader *r, const struct weir_pattern_batch *batch,
                                weir_stream *stream)
{
    struct weir_pattern_planes planes = r->planes;
    planes.n_tensors *= r->shape.n_layers;
    return weir_pattern_batch_fill(batch, &r->rig->pattern, &planes, 0, stream);
}

static inline void reader_poison_entries(struct reader *r, struct weir_pattern_batch *batch,
                                         uint64_t set)
{
    for (uint32_t i = 0; i < READER_PAGES; i++) {
        int32_t page = reader_page(set, i);
        r->contents[page] = ++r->next_content;
        content_entry(batch, &r->shape, &batch->fills[i], i, page, r->contents[page]);
    }
}

static inline void reader_poison_all(struct reader *r)
{
    for (uint32_t slot = 0; slot < READER_SLOTS; slot++) {
        struct weir_pattern_batch *batch = &r->batches[slot];
        int rc = reader_begin_batch(r, slot);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
        reader_poison_entries(r, batch, slot);
        memset(batch->checks, 0, batch->n_checks * sizeof *batch->checks);
        rc = weir_pattern_batch_upload(batch, &r->rig->pattern, r->rig->streams[0]);
        if (!rc)
            rc = reader_poison(r, batch, r->rig->streams[0]);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
    }
    rig_synchronize(r->rig, r->rig->streams[0]);
}

static inline void reader_open(struct reader *r, struct rig *rig, uint32_t n_layers,
                               uint32_t distance, bool joins, const weir_transfer_tuning *tuning,
                               bool captured_waits)
{
    *r = (struct reader){ .rig = rig, .random = { 7 }, .distance = distance, .joins = joins };
    r->tensor = (weir_tensor){ .page_bytes = READER_PAGE_TOKENS * READER_ROW_BYTES,
                               .row_bytes = READER_ROW_BYTES };
    r->shape = (weir_shape){ .page_tokens = READER_PAGE_TOKENS,
                             .n_layers = n_layers,
                             .n_tensors = 1,
                             .tensors = &r->tensor };
    reader_find_calls(&r->calls);
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &r->shape;
    params.device_pages = READER_ALL_PAGES;
    params.host_pages = READER_HOSTS;
    params.max_steps = 2 * READER_SLOTS;
    params.n_slots = READER_SLOTS;
    params.load = *tuning;
    params.captured_waits = captured_waits;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_rank_open(&r->rank, rig->device, &params);
    if (!rc)
        rc = weir_pattern_planes_create(&r->planes, &rig->pattern, r->rank, &r->shape, 0,
                                        rig->streams[0]);
    for (uint32_t i = 0; !rc && i < READER_SLOTS; i++)
        rc = rig->ops->event_create(rig->device, &r->events[i]);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (int32_t h = 1; h <= READER_HOSTS; h++) {
        r->host_contents[h] = ++r->next_content;
        content_write(content_host(r->rank), h, r->host_contents[h]);
    }
    reader_poison_all(r);
}

/* The server's graph calls need its context; its capture mode is the strictest,
 * the default. */
static inline void reader_enter(struct reader *r)
{
    const struct weir_gpu *gpu = &r->rig->tests;
    REQUIRE(gpu->driver->cuCtxPushCurrent(gpu->device->context) == 0, "the context");
}

static inline void reader_leave(struct reader *r)
{
    CUcontext context;
    CHECK(r->rig->tests.driver->cuCtxPopCurrent(&context) == 0, "the context");
}

/* Pre: reader_drain. */
static inline void reader_close(struct reader *r)
{
    reader_enter(r);
    for (uint32_t i = 0; i < READER_SLOTS; i++)
        if (r->graphs[i])
            REQUIRE(r->calls.destroy_exec(r->graphs[i]) == 0, "a graph");
    reader_leave(r);
    weir_rank_close(&r->rank);
    weir_pattern_planes_destroy(&r->planes, &r->rig->pattern);
    for (uint32_t i = 0; i < READER_SLOTS; i++) {
        weir_pattern_batch_destroy(&r->batches[i], &r->rig->pattern);
        r->rig->ops->event_destroy(r->rig->device, r->events[i]);
    }
}

/* ---- Reports ------------------------------------------------------------- */

static inline void reader_take_step(struct reader *r, uint64_t step)
{
    const struct weir_pattern_wrong *wrong = r->batches[step % READER_SLOTS].wrong;
    CHECK(wrong->bytes == 0,
          "%lu stale bytes in step %lu, layer %u, page %u of the %s, row %u, by %s",
          (unsigned long)wrong->bytes, (unsigned long)step, wrong->layer,
          wrong->entry % READER_PAGES, wrong->entry < READER_PAGES ? "step's" : "joined step's",
          wrong->row & INT_MAX, wrong->row > INT_MAX ? "a bulk copy" : "loads");
    r->stale_bytes += wrong->bytes;
    r->reported_steps[step % READER_SLOTS] = step;
}

static inline void reader_report(struct reader *r)
{
    uint64_t buffer[64];
    size_t bytes = 0;
    const weir_report_item *items;
    size_t n = 0;
    int rc = weir_rank_report(r->rank, buffer, sizeof buffer, &bytes);
    if (rc == 0 && bytes > 0)
        rc = weir_report_decode(&items, &n, buffer, bytes, NULL);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (size_t i = 0; i < n; i++) {
        CHECK(items[i].rc == 0, "kind %u of %lu: %s", items[i].kind, (unsigned long)items[i].number,
              weir_error_name(items[i].rc));
        if (items[i].kind == WEIR_REPORT_STEP)
            reader_take_step(r, items[i].number);
        else
            r->reported_loads[items[i].number % READER_SLOTS] = items[i].number;
    }
}

/* Waits until the slot's last step, and its load, have been reported: their words
 * are written right behind what the event and the waits have waited for. */
static inline void reader_free_slot(struct reader *r, uint64_t step)
{
    if (step == 0)
        return;
    uint32_t slot = (uint32_t)(step % READER_SLOTS);
    int rc = weir_gpu_wait(&r->rig->tests, r->events[slot]);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    while (r->reported_steps[slot] < step || r->reported_loads[slot] < r->loading[slot])
        reader_report(r);
}

static inline void reader_drain(struct reader *r)
{
    uint64_t first = r->newest < READER_SLOTS ? 1 : r->newest - READER_SLOTS + 1;
    for (uint64_t step = first; step <= r->newest; step++)
        reader_free_slot(r, step);
}

/* ---- Steps --------------------------------------------------------------- */

static inline int reader_read_layer(struct reader *r, uint32_t slot, uint32_t layer,
                                    weir_stream *stream)
{
    const struct weir_pattern_batch *batch = &r->batches[slot];
    struct weir_pattern_args args = weir_pattern_batch_args(batch, &r->planes, layer);
    struct weir_gpu_grid grid = { batch->n_checks, 1, 2, 128, 0 };
    return weir_gpu_launch(&r->rig->tests, stream, r->rig->check_both, grid, &args);
}

/* Captures the slot's forward pass; its kernels find their pages in the batch. */
static inline void reader_capture(struct reader *r, uint32_t slot, weir_stream *stream)
{
    CUgraph graph = NULL;
    reader_enter(r);
    CHECK(r->calls.begin((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0, "capture");
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer < r->shape.n_layers; layer++) {
        rc = weir_rank_capture_wait(r->rank, slot, layer, stream);
        if (!rc)
            rc = reader_read_layer(r, slot, layer, stream);
    }
    CHECK(r->calls.end((CUstream)stream, &graph) == 0, "capture");
    REQUIRE(rc == 0 && graph, "%s", weir_error_name(rc));
    REQUIRE(r->calls.instantiate(&r->graphs[slot], graph, 0) == 0, "a graph");
    CHECK(r->calls.destroy(graph) == 0, "a graph");
    reader_leave(r);
}

static inline int reader_forward(struct reader *r, uint64_t step, weir_stream *stream)
{
    uint32_t slot = (uint32_t)(step % READER_SLOTS);
    if (r->graphs[slot]) {
        reader_enter(r);
        CUresult result = r->calls.launch(r->graphs[slot], (CUstream)stream);
        reader_leave(r);
        return result ? -EIO : 0;
    }
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer < r->shape.n_layers; layer++) {
        rc = weir_rank_wait_layer(r->rank, step, layer, stream);
        if (!rc)
            rc = reader_read_layer(r, slot, layer, stream);
    }
    return rc;
}

/* Users of what a step poisons: the step SLOTS - distance before it, and who
 * joined that. Who poisoned what it reads: the step `distance` before it, and the
 * one before that, if it joins. */
static inline uint32_t reader_fences(const struct reader *r, uint64_t step, uint64_t *fences)
{
    uint32_t set = 1u << (READER_SLOTS - r->distance) | 1u << r->distance;
    if (r->joins)
        set |= 1u << (READER_SLOTS - r->distance - 1) | 1u << (r->distance + 1);
    uint32_t n = 0;
    for (uint64_t back = READER_SLOTS; back > 0; back--)
        if (set >> back & 1 && back < step)
            fences[n++] = step - back;
    return n;
}

/* Distinct host pages: an odd stride visits them all. */
static inline void reader_pick_loads(struct reader *r, uint64_t step, uint32_t n, weir_move *loads)
{
    uint32_t at = random_below(&r->random, READER_HOSTS);
    uint32_t stride = random_percent(&r->random, 30) ? 1 : 2 * random_below(&r->random, 256) + 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t h = (at + i * stride) % READER_HOSTS + 1;
        int32_t page = reader_page(step, i);
        loads[i] = (weir_move){ { page }, { (int32_t)h } };
        r->contents[page] = r->host_contents[h];
    }
}

static inline int reader_begin(struct reader *r, uint64_t step, uint32_t n_loads, bool join,
                               weir_stream *stream)
{
    uint64_t fences[READER_SLOTS];
    uint64_t bytes[512];
    weir_move loads[READER_PAGES];
    uint64_t poisoned = step - r->distance;
    uint64_t joined = step - 1;
    weir_order order = { .step = step,
                         .device_pages = READER_ALL_PAGES,
                         .host_pages = READER_HOSTS,
                         .fences = fences,
                         .loads = loads,
                         .n_loads = n_loads };
    order.n_fences = reader_fences(r, step, fences);
    if (n_loads > 0 && step > r->distance) {
        order.n_load_fences = 1;
        order.load_fences = &poisoned;
    }
    if (join) {
        order.n_joins = 1;
        order.joins = &joined;
    }
    reader_pick_loads(r, step, n_loads, loads);
    size_t size;
    int rc = weir_order_encode(&order, bytes, sizeof bytes, &size, &r->rig->device->log);
    uint64_t begun = 0;
    if (!rc)
        rc = weir_rank_begin(r->rank, bytes, size, (uint32_t)(step % READER_SLOTS), stream, &begun);
    return rc;
}

static inline void reader_write_batch(struct reader *r, uint64_t step, bool join)
{
    struct weir_pattern_batch *batch = &r->batches[step % READER_SLOTS];
    int rc = reader_begin_batch(r, (uint32_t)(step % READER_SLOTS));
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (uint32_t i = 0; i < batch->n_checks; i++) {
        bool own = i < READER_PAGES;
        int32_t page = own ? reader_page(step, i) : reader_page(step - 1, i - READER_PAGES);
        if (own || join)
            content_entry(batch, &r->shape, &batch->checks[i], READER_PAGES + i, page,
                          r->contents[page]);
        else
            batch->checks[i] = (struct weir_pattern_entry){ 0 };
    }
    reader_poison_entries(r, batch, step + r->distance);
}

/* join: the step before has a load, which this one waits for, too. */
static inline void reader_step(struct reader *r, uint32_t n_loads, bool join, weir_stream *stream)
{
    uint64_t step = r->newest + 1;
    uint32_t slot = (uint32_t)(step % READER_SLOTS);
    struct weir_pattern_batch *batch = &r->batches[slot];
    reader_free_slot(r, step > READER_SLOTS ? step - READER_SLOTS : 0);
    int rc = reader_begin(r, step, n_loads, join, stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    r->newest = step;
    if (n_loads > 0)
        r->loading[slot] = step;
    r->n_loads += n_loads > 0;
    r->n_joins += join;
    reader_write_batch(r, step, join);
    rc = weir_pattern_batch_upload(batch, &r->rig->pattern, stream);
    if (!rc)
        rc = reader_forward(r, step, stream);
    if (!rc)
        rc = reader_poison(r, batch, stream);
    if (!rc)
        rc = weir_pattern_batch_download(batch, &r->rig->pattern, stream);
    if (!rc)
        rc = weir_rank_end(r->rank, step, stream);
    if (!rc)
        rc = r->rig->ops->event_record(r->rig->device, r->events[slot], stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

#endif
