/* SPDX-License-Identifier: Apache-2.0 */

/* Every engine, byte for byte, on a real GPU: pages by plan in all layouts, both
 * directions, odd and even rows, and rows by index in all their forms. What must
 * not change is compared as well. Exit 77 without a GPU.
 *
 * usage: gpu_copy_rows [ORDINAL [rows]], the latter for a sanitizer, with which
 * large pools take too long */

#include "copy_model.h"
#include "gpu_tier.h"
#include "random.h"

#include <weir/copy.h>

#include <string.h>

#define GIB (UINT64_C(1) << 30)

/* ---- Pages ----------------------------------------------------------------- */

struct pages_world {
    struct weir_geometry *geometry;
    struct tier host;
    struct tier gpu;
    uint32_t *words;
    void *state;
    uint32_t generation;
};

static void pages_open(struct pages_world *w, const weir_shape *shape, weir_host_layout layout,
                       uint32_t device_pages, uint32_t host_pages)
{
    *w = (struct pages_world){ 0 };
    ok(weir_geometry_create(&w->geometry, shape, NULL, device_pages, layout, host_pages, 0,
                            &device->log),
       "geometry");
    tier_open(&w->host, false, w->geometry->host_bytes);
    tier_open(&w->gpu, true, weir_geometry_device_bytes(w->geometry));
    weir_geometry_bind(w->geometry, w->gpu.address, w->host.address, 0);
    ok(ops->words_alloc(device, shape->n_layers, &w->words), "words");
    ok(ops->transfer_prepare(device, w->geometry, device_pages, &w->state), "prepare");
}

static void pages_close(struct pages_world *w)
{
    ops->transfer_release(device, w->state);
    ops->words_free(device, w->words);
    tier_close(&w->gpu);
    tier_close(&w->host);
    weir_geometry_destroy(&w->geometry);
}

static void copy_pages(struct pages_world *w, const struct weir_run *runs, uint32_t n_runs,
                       enum weir_direction direction, const weir_transfer_tuning *tuning,
                       const char *what)
{
    struct weir_geometry *g = w->geometry;
    struct weir_transfer t = { .geometry = g,
                               .runs = runs,
                               .n_runs = n_runs,
                               .direction = direction,
                               .layer_end = g->n_layers,
                               .words = w->words,
                               .generation = ++w->generation,
                               .tuning = *tuning,
                               .max_enqueue_us = 200,
                               .state = w->state };
    uint32_t enqueued = 0;
    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        model_copy_layer(&t, layer, w->gpu.expected, w->gpu.address, w->host.expected);
    ok(ops->copy(device, stream, &t, &enqueued), what);
    bool right = holds(&w->gpu) && holds(&w->host);
    for (uint32_t layer = 0; layer < g->n_layers; layer++)
        right = right && ops->word_load(device, &w->words[layer]) == t.generation;
    for (uint32_t i = 0; i < n_runs; i++)
        group_bytes += (uint64_t)runs[i].count * g->page_bytes;
    verdict(right, what);
}

/* First pages and last pages, runs and single ones. */
static uint32_t some_runs(const struct weir_geometry *g, struct random *random,
                          struct weir_run *runs)
{
    weir_move moves[256];
    uint32_t n = 0;
    int32_t d = 1, h = 1;
    while (d <= (int32_t)g->device_pages && h <= (int32_t)g->host_pages && n < 256) {
        moves[n++] = (weir_move){ { d }, { h } };
        d += random_percent(random, 60) ? 1 : 2;
        h += random_percent(random, 70) ? 1 : 3;
    }
    moves[n - 1] = (weir_move){ { (int32_t)g->device_pages }, { (int32_t)g->host_pages } };
    return weir_plan_runs(g, moves, n, runs);
}

static const weir_transfer_tuning tunings[] = {
    { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_ONE },
    { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 1 },
    { .engine = WEIR_ENGINE_TMA,
      .launch = WEIR_LAUNCH_ONE,
      .ctas = 5,
      .stages = 3,
      .stage_bytes = 9088 },
    { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_ONE },
    { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 3 },
    { .engine = WEIR_ENGINE_COPY },
};

static void pages_of_rows(uint32_t row_bytes, uint32_t page_tokens, weir_host_layout layout,
                          struct random *random)
{
    static const uint32_t some_layers[] = { 0, 2 };
    /* K and V, and a tensor of other rows that not every layer has. */
    weir_tensor tensors[] = {
        { .row_bytes = row_bytes },
        { .row_bytes = row_bytes },
        { .row_bytes = row_bytes % 16 ? 20 : 144, .n_layers = 2, .layers = some_layers },
    };
    for (uint32_t i = 0; i < 3; i++)
        tensors[i].page_bytes = (uint64_t)tensors[i].row_bytes * page_tokens;
    weir_shape shape = { page_tokens, 4, 3, tensors };
    struct pages_world w;
    struct weir_run runs[256];
    char what[160];
    pages_open(&w, &shape, layout, 23, 37);
    fill(&w.host, row_bytes + 1);
    fill(&w.gpu, row_bytes + 2);
    for (size_t i = 0; i < sizeof tunings / sizeof *tunings; i++) {
        for (int direction = 0; direction < 2; direction++) {
            uint32_t n = some_runs(w.geometry, random, runs);
            snprintf(what, sizeof what, "%s, %s, %u tokens of %u bytes, tuning %zu",
                     weir_host_layout_name(layout), direction ? "write-back" : "load", page_tokens,
                     row_bytes, i);
            copy_pages(&w, runs, n, (enum weir_direction)direction, &tunings[i], what);
        }
    }
    pages_close(&w);
}

static void all_pages(void)
{
    static const uint32_t row_bytes[] = { 512, 2048, 1152, 576, 656, 132, 3, 40000 };
    static const uint32_t page_tokens[] = { 1, 16, 64, 20 };
    struct random random = { 3 };
    for (int layout = 0; layout < 4; layout++) {
        char name[64];
        for (uint32_t r = 0; r < 8; r++)
            for (uint32_t t = 0; t < 4; t++)
                if (row_bytes[r] < 10000 || page_tokens[t] < 20)
                    pages_of_rows(row_bytes[r], page_tokens[t], (weir_host_layout)layout, &random);
        snprintf(name, sizeof name, "pages, %s", weir_host_layout_name((weir_host_layout)layout));
        group_end(name);
    }
}

/* Both pools above 4 GiB, copied at their far ends. */
static void large_pages(weir_host_layout layout)
{
    weir_tensor tensors[] = { { .row_bytes = 2048, .page_bytes = 64 * 2048 } };
    weir_shape shape = { 64, 2, 1, tensors };
    uint32_t pages = (uint32_t)(9 * GIB / 2 / (2 * 64 * 2048));
    struct pages_world w;
    pages_open(&w, &shape, layout, pages, pages);
    fill(&w.host, 5);
    fill(&w.gpu, 6);
    const struct weir_run runs[] = { { 1, (int32_t)pages - 2, 1 },
                                     { (int32_t)pages - 3, 1, 2 },
                                     { (int32_t)pages, (int32_t)pages, 1 } };
    for (size_t i = 0; i < sizeof tunings / sizeof *tunings; i += i == 0 ? 3 : 2)
        copy_pages(&w, runs, 3, i == 3 ? WEIR_WRITE_BACK : WEIR_LOAD, &tunings[i], "large pools");
    pages_close(&w);
    group_end(layout == WEIR_HOST_PAGE_FIRST ? "pools of 4.5 GiB, page_first"
                                             : "pools of 4.5 GiB, segmented");
}

/* ---- Rows ------------------------------------------------------------------ */

struct rows_world {
    weir_copy_rows_params params;
    struct tier to;
    struct tier from;
    struct tier indices[2];
    struct tier tables[2]; /* [buffer][layer] */
    bool is_tables;
    uint64_t plane_rows;
};

static void set_index(const struct rows_world *w, int side, uint32_t i, uint64_t row)
{
    memcpy(w->indices[side].expected + (uint64_t)i * w->params.index_bytes, &row,
           w->params.index_bytes);
}

static uint64_t get_index(const struct rows_world *w, int side, uint32_t i)
{
    uint64_t row = 0;
    memcpy(&row, w->indices[side].expected + (uint64_t)i * w->params.index_bytes,
           w->params.index_bytes);
    return row;
}

static void upload(struct tier *t)
{
    memcpy(tier_host(t), t->expected, t->bytes);
    transfer_bytes(t->address, (uintptr_t)t->staging, t->bytes);
}

static void make_indices(struct rows_world *w, struct random *random, uint32_t run)
{
    for (int side = 0; side < 2; side++) {
        uint64_t row = 0;
        for (uint32_t i = 0; i < w->params.n_rows; i++) {
            set_index(w, side, i, row);
            row += (i + 1) % run ? 1 : 1 + random_below(random, 3);
        }
        /* The last row of the buffer, too. */
        set_index(w, side, w->params.n_rows - 1, w->plane_rows - 1);
        upload(&w->indices[side]);
    }
}

static uint64_t plane_at(const struct rows_world *w, uint64_t base, uint64_t stride, uint32_t b,
                         uint32_t layer)
{
    return base + (layer * w->params.n_buffers + b) * w->plane_rows * stride;
}

static void expect_rows(struct rows_world *w)
{
    const weir_copy_rows_params *p = &w->params;
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        for (uint32_t b = 0; b < p->n_buffers; b++)
            for (uint32_t i = 0; i < p->n_rows; i++)
                memcpy(w->to.expected + plane_at(w, 0, p->to.stride, b, layer) +
                           get_index(w, 0, i) * p->to.stride,
                       w->from.expected + plane_at(w, 0, p->from.stride, b, layer) +
                           get_index(w, 1, i) * p->from.stride,
                       p->row_bytes);
}

static void point_at_planes(struct rows_world *w)
{
    weir_copy_rows_params *p = &w->params;
    for (uint32_t b = 0; b < p->n_buffers; b++) {
        p->to.buffers[b] = plane_at(w, w->to.address, p->to.stride, b, 0);
        p->from.buffers[b] = plane_at(w, w->from.address, p->from.stride, b, 0);
    }
    if (!w->is_tables)
        return;
    for (int side = 0; side < 2; side++) {
        weir_copy_side *s = side ? &p->from : &p->to;
        uint64_t base = side ? w->from.address : w->to.address;
        for (uint32_t b = 0; b < p->n_buffers; b++) {
            for (uint32_t layer = 0; layer < p->n_layers; layer++) {
                uint64_t plane = plane_at(w, base, s->stride, b, layer);
                memcpy(w->tables[side].expected + (b * p->n_layers + layer) * 8, &plane, 8);
            }
            s->buffers[b] = w->tables[side].address + (uint64_t)b * p->n_layers * 8;
        }
        upload(&w->tables[side]);
    }
}

/* How one case differs from the next. */
struct rows_case {
    weir_transfer_engine engine;
    weir_copy_direction direction;
    uint32_t row_bytes;
    uint32_t run; /* rows that lie together */
    bool strided; /* the host side; without a host, both */
    bool tables;
    uint32_t index_bytes;
    uint32_t n_buffers;
};

static void copy_some_rows(const struct rows_case *c, struct random *random)
{
    struct rows_world w = { .is_tables = c->tables, .plane_rows = 1200 };
    weir_copy_rows_params *p = &w.params;
    weir_copy_rows_params_init(p);
    p->engine = c->engine;
    p->direction = c->direction;
    p->n_buffers = c->n_buffers;
    p->row_bytes = c->row_bytes;
    p->n_rows = c->row_bytes > 16384 ? 37 : 389;
    p->index_bytes = c->index_bytes;
    p->page_tokens = 64;
    p->n_layers = c->tables ? 3 : 1;
    if (c->row_bytes > 16384)
        w.plane_rows = 120;
    uint64_t apart = c->strided ? 3ull * c->row_bytes : c->row_bytes;
    p->to.stride = c->direction == WEIR_COPY_HOST_TO_DEVICE ? c->row_bytes : apart;
    p->from.stride = c->direction == WEIR_COPY_DEVICE_TO_HOST ? c->row_bytes : apart;
    p->to.n_rows = p->from.n_rows = w.plane_rows;
    uint64_t rows = w.plane_rows * p->n_buffers * p->n_layers;
    tier_open(&w.to, c->direction != WEIR_COPY_DEVICE_TO_HOST, rows * p->to.stride);
    tier_open(&w.from, c->direction != WEIR_COPY_HOST_TO_DEVICE, rows * p->from.stride);
    for (int side = 0; side < 2; side++) {
        tier_open(&w.indices[side], true, (uint64_t)p->n_rows * p->index_bytes);
        tier_open(&w.tables[side], true, 2 * 8ull * p->n_layers);
    }
    p->to.indices = (const void *)(uintptr_t)w.indices[0].address;
    p->from.indices = (const void *)(uintptr_t)w.indices[1].address;
    fill(&w.to, c->row_bytes);
    fill(&w.from, c->row_bytes + 1);
    make_indices(&w, random, c->run);
    point_at_planes(&w);
    expect_rows(&w);
    int rc =
        c->tables ? weir_copy_rows_layers(device, stream, p) : weir_copy_rows(device, stream, p);
    char what[160];
    snprintf(what, sizeof what,
             "%s, direction %d, %u bytes, runs of %u, strided %d, tables %d, %u-byte indices",
             weir_transfer_engine_name(c->engine), (int)c->direction, c->row_bytes, c->run,
             c->strided, c->tables, c->index_bytes);
    verdict(rc == 0 && holds(&w.to) && holds(&w.from), what);
    group_bytes += (uint64_t)p->n_rows * p->row_bytes * p->n_layers * p->n_buffers;
    for (int side = 0; side < 2; side++) {
        tier_close(&w.indices[side]);
        tier_close(&w.tables[side]);
    }
    tier_close(&w.to);
    tier_close(&w.from);
}

static void all_rows(weir_transfer_engine engine, bool tables)
{
    static const uint32_t row_bytes[] = { 512, 128, 1152, 576, 656, 2064, 65536, 132, 1, 1002 };
    static const uint32_t runs[] = { 1, 7, 64, 1000 };
    struct random random = { 11 };
    uint32_t turn = 0;
    for (uint32_t r = 0; r < 10; r++) {
        if (engine == WEIR_ENGINE_TMA && row_bytes[r] % 16)
            continue;
        for (int direction = 0; direction < 3; direction++) {
            for (uint32_t i = 0; i < 4; i++, turn++) {
                struct rows_case c = { .engine = engine,
                                       .direction = (weir_copy_direction)direction,
                                       .row_bytes = row_bytes[r],
                                       .run = runs[i],
                                       .strided = (turn / 2 + r) % 2,
                                       .tables = tables,
                                       .index_bytes = turn % 3 ? 8 : 4,
                                       .n_buffers = 1 + turn % 2 };
                copy_some_rows(&c, &random);
                c.strided = !c.strided;
                copy_some_rows(&c, &random);
            }
        }
    }
    char name[64];
    snprintf(name, sizeof name, "rows, %s, %s", weir_transfer_engine_name(engine),
             tables ? "layers by table" : "one layer");
    group_end(name);
}

int main(int argc, char **argv)
{
    static const weir_transfer_engine engines[] = { WEIR_ENGINE_TMA, WEIR_ENGINE_VECTOR,
                                                    WEIR_ENGINE_AUTO };
    bool only_rows = argc > 2 && strcmp(argv[2], "rows") == 0;
    tier_open_device(argc, argv);
    if (!only_rows) {
        all_pages();
        large_pages(WEIR_HOST_SEGMENTED);
        large_pages(WEIR_HOST_PAGE_FIRST);
    }
    for (int i = 0; i < 3; i++) {
        all_rows(engines[i], false);
        all_rows(engines[i], true);
    }
    return tier_close_device();
}
