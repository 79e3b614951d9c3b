/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"
#include "random_shape.h"
#include "transfer/plan.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

static const weir_host_layout layouts[] = { WEIR_HOST_SEGMENTED, WEIR_HOST_LAYER_FIRST,
                                            WEIR_HOST_PAGE_FIRST, WEIR_HOST_PAGE_FIRST_DIRECT };
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

/* In loops over single copies: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

/* ---- Runs ---------------------------------------------------------------- */

/* Distinct ids 1..n in an order that has long ascents (disorder 0: one) or none. */
static void random_ids(struct random *random, int32_t *ids, uint32_t n, uint32_t disorder)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)i + 1;
    for (uint32_t k = 0; k < disorder; k++) { /* move a stretch to the end of another */
        uint32_t from = random_below(random, n);
        uint32_t length = 1 + random_below(random, n - from);
        for (uint32_t i = 0; i < length / 2; i++) {
            int32_t id = ids[from + i];
            uint32_t to = from + (length + 1) / 2 + i;
            ids[from + i] = ids[to];
            ids[to] = id;
        }
    }
}

static int compare_moves(const void *a, const void *b)
{
    const weir_move *left = a;
    const weir_move *right = b;
    return (left->device.id > right->device.id) - (left->device.id < right->device.id);
}

static bool may_join(const weir_move *left, const weir_move *right, int32_t segment_pages)
{
    return right->device.id == left->device.id + 1 && right->host.id == left->host.id + 1 &&
           (right->host.id - 1) / segment_pages == (left->host.id - 1) / segment_pages;
}

static void check_runs(uint64_t seed, uint32_t n, uint32_t pages, uint32_t disorder)
{
    struct random random = { seed };
    weir_tensor t = { .page_bytes = 1 };
    weir_shape shape = { 1, 1, 1, &t };
    uint32_t segment_pages = 1 + random_below(&random, 40);
    struct weir_geometry *g;
    cr_assert(eq(int,
                 weir_geometry_create(&g, &shape, NULL, pages, WEIR_HOST_SEGMENTED, pages,
                                      segment_pages, NULL),
                 0));
    /* Exact sizes, so that ASan sees a step beyond them. */
    int32_t *device = malloc(pages * sizeof *device);
    int32_t *host = malloc(pages * sizeof *host);
    weir_move *moves = malloc((n ? n : 1) * sizeof *moves);
    weir_move *sorted = malloc((n ? n : 1) * sizeof *sorted);
    struct weir_run *runs = malloc((n ? n : 1) * sizeof *runs);
    random_ids(&random, device, pages, disorder);
    random_ids(&random, host, pages, disorder / 2);
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = moves[i] = (weir_move){ { device[i] }, { host[i] } };
    qsort(sorted, n, sizeof *sorted, compare_moves);

    uint32_t n_runs = weir_plan_runs(g, moves, n, runs);
    must(n == 0 || memcmp(moves, sorted, n * sizeof *moves) == 0, "seed %d: order", (int)seed);
    uint32_t done = 0;
    for (uint32_t r = 0; r < n_runs; r++) {
        must(runs[r].count > 0 && (uint32_t)runs[r].count <= n - done, "seed %d", (int)seed);
        must(done == 0 || !may_join(&sorted[done - 1], &sorted[done], (int32_t)g->segment_pages),
             "seed %d: run %u could be longer", (int)seed, r);
        must(runs[r].device == sorted[done].device.id && runs[r].host == sorted[done].host.id,
             "seed %d: run %u", (int)seed, r);
        for (int32_t i = 1; i < runs[r].count; i++)
            must(may_join(&sorted[done + (uint32_t)i - 1], &sorted[done + (uint32_t)i],
                          (int32_t)g->segment_pages),
                 "seed %d: run %u is not consecutive", (int)seed, r);
        done += (uint32_t)runs[r].count;
    }
    must(done == n, "seed %d: %u of %u moves", (int)seed, done, n);
    free(runs);
    free(sorted);
    free(moves);
    free(host);
    free(device);
    weir_geometry_destroy(&g);
}

Test(plan, runs_of_random_moves)
{
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct random random = { seed };
        uint32_t pages = 1 + random_below(&random, 300);
        check_runs(seed, random_below(&random, pages + 1), pages, random_below(&random, 12));
    }
    for (uint64_t seed = 1; seed <= 20; seed++)
        check_runs(seed, 5000, 6000, 3000);
}

Test(plan, moves_in_any_order_give_the_same_runs)
{
    weir_tensor t = { .page_bytes = 1 };
    weir_shape shape = { 1, 1, 1, &t };
    struct weir_geometry *g;
    cr_assert(
        eq(int, weir_geometry_create(&g, &shape, NULL, 9, WEIR_HOST_SEGMENTED, 32, 8, NULL), 0));
    /* Device pages 1..9 on host pages 5..13: host page 9 begins a segment. */
    for (int32_t order = 0; order < 3; order++) {
        weir_move moves[9];
        struct weir_run runs[9];
        for (int32_t i = 0; i < 9; i++) {
            int32_t k = order == 0 ? i : order == 1 ? 8 - i : (i * 5) % 9;
            moves[i] = (weir_move){ { k + 1 }, { k + 5 } };
        }
        cr_assert(eq(u32, weir_plan_runs(g, moves, 9, runs), 2));
        const struct weir_run expected[2] = { { 1, 5, 4 }, { 5, 9, 5 } };
        cr_assert(eq(int, memcmp(runs, expected, sizeof expected), 0), "order %d", order);
    }
    cr_assert(eq(u32, weir_plan_runs(g, NULL, 0, NULL), 0));
    weir_geometry_destroy(&g);
}

/* ---- Copies against a naive copier --------------------------------------- */

#define MAX_PAGES 12u
#define MAX_PLANES (RANDOM_SHAPE_TENSORS * RANDOM_SHAPE_LAYERS)

/* One rank's memory, and what a copier made of it. */
struct world {
    struct random_shape s;
    struct weir_geometry *g;
    uint64_t device_bytes;
    unsigned char *device;
    unsigned char *host;
    uint32_t n_moves;
    weir_move moves[MAX_PAGES];
};

/* How a server might lay its planes out: one after another with gaps between
 * pages; all of a page together; all layers of a tensor's page together. */
enum plane_style {
    OWN,
    APART,
    PAGE_TOGETHER,
    TENSOR_TOGETHER,
    N_PLANE_STYLES
};

static uint64_t lay_planes(struct random *random, const weir_shape *shape, enum plane_style style,
                           uint32_t device_pages, weir_device_plane *planes)
{
    uint64_t page_bytes = 0;
    weir_shape_page_bytes(shape, NULL, &page_bytes);
    uint64_t pad = random_below(random, 3) * random_below(random, 70);
    uint64_t base = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < shape->n_tensors; i++) {
        const weir_tensor *t = &shape->tensors[i];
        uint32_t n_layers = t->layers ? t->n_layers : shape->n_layers;
        for (uint32_t l = 0; l < n_layers; l++, n++) {
            planes[n].base = base;
            planes[n].page_stride = style == APART           ? t->page_bytes + pad
                                    : style == PAGE_TOGETHER ? page_bytes + pad
                                                             : t->page_bytes * n_layers + pad;
            base += style == APART ? planes[n].page_stride * (device_pages + 1) : t->page_bytes;
        }
        if (style == TENSOR_TOGETHER)
            base += (t->page_bytes * n_layers + pad) * device_pages + pad;
    }
    return style == PAGE_TOGETHER ? (page_bytes + pad) * (device_pages + 1) : base;
}

static void world_create(struct world *w, struct random *random, weir_host_layout layout)
{
    *w = (struct world){ .n_moves = 0 };
    random_shape(random, &w->s, layout != WEIR_HOST_PAGE_FIRST, 1 << 16);
    uint64_t page_bytes = 0;
    weir_shape_page_bytes(&w->s.shape, NULL, &page_bytes);
    uint32_t most = page_bytes > (1 << 15) ? 4 : MAX_PAGES;
    uint32_t device_pages = 1 + random_below(random, most);
    uint32_t host_pages = 1 + random_below(random, most);
    enum plane_style style = random_below(random, N_PLANE_STYLES);
    weir_device_plane planes[MAX_PLANES] = { { 0, 0 } };
    if (style != OWN) {
        w->device_bytes = lay_planes(random, &w->s.shape, style, device_pages, planes);
        w->device = malloc(w->device_bytes);
        for (uint32_t i = 0; i < MAX_PLANES; i++)
            planes[i].base += (uintptr_t)w->device;
    }
    cr_assert(
        eq(int,
           weir_geometry_create(&w->g, &w->s.shape, style == OWN ? NULL : planes, device_pages,
                                layout, host_pages, random_below(random, 6), NULL),
           0));
    if (style == OWN) {
        w->device_bytes = weir_geometry_device_bytes(w->g);
        w->device = aligned_alloc(256, w->device_bytes);
    }
    w->host = malloc(w->g->host_bytes);
    static const uint64_t chunks[] = { 0, 0, 64, 100, 4096, 1000003 };
    weir_geometry_bind(w->g, style == OWN ? (uintptr_t)w->device : 0, (uintptr_t)w->host,
                       chunks[random_below(random, 6)]);

    int32_t device[MAX_PAGES];
    int32_t host[MAX_PAGES];
    random_ids(random, device, device_pages, random_below(random, 4));
    random_ids(random, host, host_pages, random_below(random, 4));
    w->n_moves = 1 + random_below(random, device_pages < host_pages ? device_pages : host_pages);
    for (uint32_t i = 0; i < w->n_moves; i++)
        w->moves[i] = (weir_move){ { device[i] }, { host[i] } };
}

static void world_destroy(struct world *w)
{
    weir_geometry_destroy(&w->g);
    free(w->device);
    free(w->host);
}

/* The destination of a direction as it was, and which of its bytes were written
 * how often. */
struct result {
    unsigned char *bytes;
    unsigned char *times;
};

static void write_bytes(struct world *w, struct result *r, bool load, uint64_t device,
                        uint64_t host, uint64_t n)
{
    uint64_t device_at = device - (uintptr_t)w->device;
    uint64_t host_at = host - (uintptr_t)w->host;
    must(device_at + n <= w->device_bytes && host_at + n <= w->g->host_bytes, "out of bounds");
    uint64_t at = load ? device_at : host_at;
    memcpy(r->bytes + at, load ? w->host + host_at : w->device + device_at, n);
    for (uint64_t i = 0; i < n; i++)
        r->times[at + i]++;
}

static void copy_row_by_row(struct world *w, struct result *r, bool load)
{
    const struct weir_geometry *g = w->g;
    for (uint32_t m = 0; m < w->n_moves; m++) {
        for (uint32_t t = 0; t < g->n_tensors; t++) {
            for (uint32_t l = 0; l < g->n_layers; l++) {
                if (g->layer_index[t * g->n_layers + l] < 0)
                    continue;
                uint64_t device = weir_geometry_device(g, t, l, w->moves[m].device);
                uint32_t row = g->tensors[t].row_bytes;
                if (row == 0)
                    write_bytes(w, r, load, device,
                                weir_geometry_host(g, t, l, w->moves[m].host, 0),
                                g->tensors[t].page_bytes);
                for (uint32_t k = 0; row && k < g->page_tokens; k++)
                    write_bytes(w, r, load, device + (uint64_t)k * row,
                                weir_geometry_host(g, t, l, w->moves[m].host, k), row);
            }
        }
    }
}

static void copy_by_plan(struct world *w, struct result *r, bool load)
{
    const struct weir_geometry *g = w->g;
    struct weir_run runs[MAX_PAGES];
    uint32_t n_runs = weir_plan_runs(g, w->moves, w->n_moves, runs);
    for (uint32_t i = 0; i < n_runs * g->n_tensors * g->n_layers; i++) {
        uint32_t run = i / (g->n_tensors * g->n_layers);
        struct weir_copies it;
        struct weir_copy copy;
        weir_copies_begin(&it, g, i / g->n_layers % g->n_tensors, i % g->n_layers, runs[run]);
        while (weir_copies_next(&it, &copy)) {
            must(copy.rows > 0 && copy.row_bytes > 0 && copy.device_stride >= copy.row_bytes &&
                     copy.host_stride >= copy.row_bytes,
                 "a copy without rows, or with too small a stride");
            must(copy.rows == 1 || copy.device_stride > copy.row_bytes ||
                     copy.host_stride > copy.row_bytes,
                 "rows that are contiguous on both sides");
            uint64_t first = copy.host - g->host_base;
            uint64_t last = first + (copy.rows - 1) * copy.host_stride + copy.row_bytes - 1;
            must(g->chunk_bytes == 0 || first / g->chunk_bytes == last / g->chunk_bytes,
                 "a copy crosses a registration");
            for (uint64_t k = 0; k < copy.rows; k++)
                write_bytes(w, r, load, copy.device + k * copy.device_stride,
                            copy.host + k * copy.host_stride, copy.row_bytes);
        }
        must(!weir_copies_next(&it, &copy), "a copy after the last");
    }
}

static struct result start(const unsigned char *bytes, uint64_t n)
{
    struct result r = { malloc(n), calloc(n, 1) };
    memcpy(r.bytes, bytes, n);
    return r;
}

static void check_copies(uint64_t seed, weir_host_layout layout, bool load)
{
    struct random random = { seed };
    struct world w;
    world_create(&w, &random, layout);
    for (uint64_t i = 0; i < w.device_bytes; i++)
        w.device[i] = (unsigned char)random_next(&random);
    for (uint64_t i = 0; i < w.g->host_bytes; i++)
        w.host[i] = (unsigned char)random_next(&random);
    uint64_t n = load ? w.device_bytes : w.g->host_bytes;
    struct result expected = start(load ? w.device : w.host, n);
    struct result result = start(load ? w.device : w.host, n);
    copy_row_by_row(&w, &expected, load);
    copy_by_plan(&w, &result, load);
    must(memcmp(expected.bytes, result.bytes, n) == 0, "seed %d, layout %d, load %d: bytes",
         (int)seed, (int)layout, load);
    must(memcmp(expected.times, result.times, n) == 0, "seed %d, layout %d, load %d: coverage",
         (int)seed, (int)layout, load);
    free(expected.bytes);
    free(expected.times);
    free(result.bytes);
    free(result.times);
    world_destroy(&w);
}

Test(plan, copies_equal_a_naive_copier)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        for (size_t i = 0; i < N_LAYOUTS; i++) {
            check_copies(seed * 8 + i, layouts[i], true);
            check_copies(seed * 8 + 4 + i, layouts[i], false);
        }
    }
}

/* ---- The shape of copies ------------------------------------------------- */

static uint32_t copies_of(const struct weir_geometry *g, struct weir_run run, struct weir_copy *out,
                          uint32_t capacity)
{
    struct weir_copies it;
    uint32_t n = 0;
    weir_copies_begin(&it, g, 0, 0, run);
    while (n < capacity && weir_copies_next(&it, &out[n]))
        n++;
    return n;
}

static bool copy_is(const struct weir_copy *copy, uint64_t device, uint64_t host,
                    uint64_t row_bytes, uint64_t rows)
{
    return copy->device == device && copy->host == host && copy->row_bytes == row_bytes &&
           copy->rows == rows;
}

/* A run is as few copies as the strides allow. Rows of 16 bytes, 4 a page. */
Test(plan, each_layout_has_its_own_kind_of_copy)
{
    static const struct {
        weir_host_layout layout;
        bool dense; /* device pages follow one another */
        uint32_t n_layers;
        uint32_t copies;
        uint64_t row_bytes;
        uint64_t rows;
    } cases[] = {
        { WEIR_HOST_SEGMENTED, true, 2, 1, 320, 1 },
        { WEIR_HOST_SEGMENTED, false, 2, 1, 64, 5 },
        { WEIR_HOST_LAYER_FIRST, true, 2, 1, 320, 1 },
        { WEIR_HOST_LAYER_FIRST, false, 2, 1, 64, 5 },
        { WEIR_HOST_PAGE_FIRST, true, 2, 1, 16, 20 },
        { WEIR_HOST_PAGE_FIRST, false, 2, 5, 16, 4 },
        { WEIR_HOST_PAGE_FIRST, true, 1, 1, 320, 1 },
        { WEIR_HOST_PAGE_FIRST, false, 1, 1, 64, 5 },
        { WEIR_HOST_PAGE_FIRST_DIRECT, true, 2, 1, 64, 5 },
        { WEIR_HOST_PAGE_FIRST_DIRECT, false, 2, 1, 64, 5 },
        { WEIR_HOST_PAGE_FIRST_DIRECT, true, 1, 1, 320, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weir_tensor t = { .page_bytes = 64, .row_bytes = 16 };
        weir_shape shape = { 4, cases[i].n_layers, 1, &t };
        weir_device_plane planes[2] = { { 4096, 80 }, { 1 << 20, 80 } };
        struct weir_geometry *g;
        cr_assert(eq(int,
                     weir_geometry_create(&g, &shape, cases[i].dense ? NULL : planes, 20,
                                          cases[i].layout, 20, 0, NULL),
                     0));
        weir_geometry_bind(g, cases[i].dense ? 4096 : 0, 1 << 30, 0);
        struct weir_copy copies[8];
        uint32_t n = copies_of(g, (struct weir_run){ 3, 7, 5 }, copies, 8);
        cr_assert(eq(u32, n, cases[i].copies), "case %zu", i);
        cr_assert(eq(u64, copies[0].row_bytes, cases[i].row_bytes), "case %zu", i);
        cr_assert(eq(u64, copies[0].rows, cases[i].rows), "case %zu", i);
        weir_geometry_destroy(&g);
    }
}

Test(plan, copies_end_where_a_registration_ends)
{
    weir_tensor t = { .page_bytes = 64, .row_bytes = 16 };
    weir_shape shape = { 4, 1, 1, &t };
    weir_device_plane gaps = { 4096, 80 };
    struct weir_copy c[8];
    struct weir_geometry *g;

    /* One row of 320 bytes from host offset 128, in registrations of 150. */
    cr_assert(
        eq(int, weir_geometry_create(&g, &shape, NULL, 20, WEIR_HOST_LAYER_FIRST, 20, 0, NULL), 0));
    weir_geometry_bind(g, 4096, 1000000, 150);
    cr_assert(eq(u32, copies_of(g, (struct weir_run){ 1, 3, 5 }, c, 8), 3));
    cr_assert(copy_is(&c[0], 4096 + 64, 1000128, 22, 1));
    cr_assert(copy_is(&c[1], 4096 + 64 + 22, 1000150, 150, 1));
    cr_assert(copy_is(&c[2], 4096 + 64 + 172, 1000300, 148, 1));
    weir_geometry_destroy(&g);

    /* Five rows of 64 bytes from host offset 0, in registrations of 150: the
     * third row and the fifth straddle. */
    cr_assert(eq(
        int, weir_geometry_create(&g, &shape, &gaps, 20, WEIR_HOST_LAYER_FIRST, 20, 0, NULL), 0));
    weir_geometry_bind(g, 0, 1000000, 150);
    cr_assert(eq(u32, copies_of(g, (struct weir_run){ 1, 1, 5 }, c, 8), 6));
    cr_assert(copy_is(&c[0], 4096 + 80, 1000000, 64, 2));
    cr_assert(copy_is(&c[1], 4096 + 240, 1000128, 22, 1));
    cr_assert(copy_is(&c[2], 4096 + 262, 1000150, 42, 1));
    cr_assert(copy_is(&c[3], 4096 + 320, 1000192, 64, 1));
    cr_assert(copy_is(&c[4], 4096 + 400, 1000256, 44, 1));
    cr_assert(copy_is(&c[5], 4096 + 444, 1000300, 20, 1));
    weir_geometry_bind(g, 0, 1000000, 128); /* rows end where registrations end */
    cr_assert(eq(u32, copies_of(g, (struct weir_run){ 1, 1, 5 }, c, 8), 3));
    cr_assert(copy_is(&c[2], 4096 + 400, 1000256, 64, 1));
    weir_geometry_destroy(&g);
}

Test(plan, a_tensor_without_the_layer_has_no_copies)
{
    static const uint32_t layers[1] = { 1 };
    weir_tensor t = { .page_bytes = 64, .n_layers = 1, .layers = layers };
    weir_shape shape = { 4, 3, 1, &t };
    struct weir_geometry *g;
    cr_assert(
        eq(int, weir_geometry_create(&g, &shape, NULL, 5, WEIR_HOST_SEGMENTED, 5, 0, NULL), 0));
    weir_geometry_bind(g, 4096, 4096, 0);
    for (uint32_t layer = 0; layer < 3; layer++) {
        struct weir_copies it;
        struct weir_copy copy;
        weir_copies_begin(&it, g, 0, layer, (struct weir_run){ 1, 1, 5 });
        cr_assert(eq(int, weir_copies_next(&it, &copy), layer == 1), "layer %u", layer);
    }
    weir_geometry_destroy(&g);
}

/* Terabytes, with nothing allocated: copies follow one another in the run's own
 * order and add up. */
Test(plan, offsets_beyond_4_gib)
{
    const uint32_t pages = 1u << 20;
    weir_tensor t[2] = { { .page_bytes = 64 * 1152, .row_bytes = 1152 },
                         { .page_bytes = 64 * 132, .row_bytes = 132 } };
    weir_shape shape = { 64, 61, 2, t };
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        for (uint64_t chunk = 0; chunk <= UINT64_C(1) << 30; chunk += UINT64_C(1) << 30) {
            struct weir_geometry *g;
            cr_assert(eq(
                int, weir_geometry_create(&g, &shape, NULL, pages, layouts[i], pages, 65536, NULL),
                0));
            weir_geometry_bind(g, UINT64_C(1) << 45, UINT64_C(1) << 46, chunk);
            cr_assert(lt(u64, UINT64_C(1) << 42, g->host_bytes));
            struct weir_run run = { 1000000, 15 * 65536 + 1, 40000 };
            for (uint32_t tensor = 0; tensor < 2; tensor++) {
                struct weir_copies it;
                struct weir_copy copy;
                uint64_t bytes = 0;
                weir_copies_begin(&it, g, tensor, 60, run);
                uint64_t device =
                    weir_geometry_device(g, tensor, 60, (weir_device_page){ 1000000 });
                while (weir_copies_next(&it, &copy)) {
                    uint32_t token = (uint32_t)(bytes / t[tensor].row_bytes);
                    weir_host_page page = { run.host + (int32_t)(token / 64) };
                    uint64_t host = weir_geometry_host(g, tensor, 60, page, token % 64) +
                                    bytes % t[tensor].row_bytes;
                    uint64_t last = copy.host + (copy.rows - 1) * copy.host_stride +
                                    copy.row_bytes - 1 - g->host_base;
                    must(copy.device == device + bytes && copy.host == host, "layout %zu", i);
                    must(last < g->host_bytes, "layout %zu: out of the pool", i);
                    must(!chunk || (copy.host - g->host_base) / chunk == last / chunk,
                         "layout %zu: crosses a registration", i);
                    bytes += copy.rows * copy.row_bytes;
                }
                cr_assert(eq(u64, bytes, 40000 * t[tensor].page_bytes), "layout %zu", i);
            }
            weir_geometry_destroy(&g);
        }
    }
}
