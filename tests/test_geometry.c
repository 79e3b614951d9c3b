/* SPDX-License-Identifier: Apache-2.0 */
#include "log_capture.h"
#include "random.h"
#include "random_shape.h"
#include "transfer/geometry.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

static const weir_host_layout layouts[] = { WEIR_HOST_SEGMENTED, WEIR_HOST_LAYER_FIRST,
                                            WEIR_HOST_PAGE_FIRST, WEIR_HOST_PAGE_FIRST_DIRECT };
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

static struct weir_geometry *create(const weir_shape *shape, uint32_t device_pages,
                                    weir_host_layout layout, uint32_t host_pages,
                                    uint32_t segment_pages)
{
    struct weir_geometry *g = NULL;
    cr_assert(eq(int,
                 weir_geometry_create(&g, shape, NULL, device_pages, layout, host_pages,
                                      segment_pages, NULL),
                 0));
    return g;
}

/* ---- Host layouts -------------------------------------------------------- */

/* Walks the pool in the order that a layout's definition spells out, and counts
 * the rows that the formula puts elsewhere. An opaque piece is one row. */
struct walk {
    const struct weir_geometry *g;
    uint64_t at;
    uint64_t rows;
    uint64_t wrong;
};

static void visit(struct walk *w, uint32_t tensor, uint32_t layer, uint32_t page, uint32_t token)
{
    const struct weir_geometry_tensor *t = &w->g->tensors[tensor];
    if (page <= w->g->host_pages) {
        weir_host_page host = { (int32_t)page };
        w->wrong += weir_geometry_host(w->g, tensor, layer, host, token) != w->at;
        w->rows++;
    }
    w->at += t->row_bytes ? t->row_bytes : t->page_bytes;
}

static uint32_t tokens_of(const struct weir_geometry *g, uint32_t tensor)
{
    return g->tensors[tensor].row_bytes ? g->page_tokens : 1;
}

static void walk_layer_first(struct walk *w, uint32_t tensor, uint32_t first, uint32_t pages)
{
    for (uint32_t layer = 0; layer < w->g->n_layers; layer++) {
        if (w->g->layer_index[tensor * w->g->n_layers + layer] < 0)
            continue;
        for (uint32_t page = first; page < first + pages; page++) {
            for (uint32_t token = 0; token < tokens_of(w->g, tensor); token++)
                visit(w, tensor, layer, page, token);
        }
    }
}

static void walk_page_first(struct walk *w, uint32_t tensor)
{
    for (uint32_t page = 1; page <= w->g->host_pages; page++) {
        for (uint32_t token = 0; token < w->g->page_tokens; token++) {
            for (uint32_t layer = 0; layer < w->g->n_layers; layer++) {
                if (w->g->layer_index[tensor * w->g->n_layers + layer] >= 0)
                    visit(w, tensor, layer, page, token);
            }
        }
    }
}

static void walk_segments(struct walk *w)
{
    uint32_t pages = w->g->segment_pages;
    uint64_t base = w->at;
    for (uint32_t first = 1; first <= w->g->host_pages; first += pages) {
        for (uint32_t tensor = 0; tensor < w->g->n_tensors; tensor++)
            walk_layer_first(w, tensor, first, pages);
        while ((w->at - base) % 4096)
            w->at++;
    }
}

static void walk_pool(struct walk *w)
{
    if (w->g->host_layout == WEIR_HOST_SEGMENTED) {
        walk_segments(w);
        return;
    }
    for (uint32_t tensor = 0; tensor < w->g->n_tensors; tensor++) {
        if (w->g->host_layout == WEIR_HOST_PAGE_FIRST) {
            walk_page_first(w, tensor);
        } else if (w->g->host_layout == WEIR_HOST_LAYER_FIRST) {
            walk_layer_first(w, tensor, 1, w->g->host_pages);
        } else {
            for (uint32_t page = 1; page <= w->g->host_pages; page++)
                walk_layer_first(w, tensor, page, 1);
        }
    }
}

Test(geometry, every_row_is_where_the_layout_says)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        struct random random = { seed };
        for (size_t i = 0; i < N_LAYOUTS; i++) {
            struct random_shape s;
            random_shape(&random, &s, layouts[i] != WEIR_HOST_PAGE_FIRST, 1 << 20);
            uint32_t host_pages = 1 + random_below(&random, 40);
            struct weir_geometry *g =
                create(&s.shape, 3, layouts[i], host_pages, random_below(&random, 12));
            uint64_t base = UINT64_C(1) << 40;
            weir_geometry_bind(g, 4096, base, 0);
            struct walk w = { .g = g, .at = base };
            walk_pool(&w);
            cr_assert(eq(u64, w.wrong, 0), "layout %zu, seed %d", i, (int)seed);
            cr_assert(lt(u64, 0, w.rows));
            cr_assert(eq(u64, w.at - base, g->host_bytes), "layout %zu, seed %d", i, (int)seed);
            weir_geometry_destroy(&g);
        }
    }
}

/* The strides of HiCache's pools, from their dimensions: two buffers, K and V,
 * of L layers and S = P * T token slots. */
Test(geometry, hicache_strides)
{
    for (uint32_t t_log = 0; t_log <= 6; t_log++) {
        const uint64_t n_layers = 61, n_pages = 1000, page_tokens = UINT64_C(1) << t_log;
        const uint64_t row = 1152, slots = n_pages * page_tokens, buffer = n_layers * slots * row;
        weir_tensor kv[2] = { { .page_bytes = row * page_tokens, .row_bytes = 1152 },
                              { .page_bytes = row * page_tokens, .row_bytes = 1152 } };
        weir_shape shape = { (uint32_t)page_tokens, 61, 2, kv };
        for (size_t i = 1; i < N_LAYOUTS; i++) {
            struct weir_geometry *g = create(&shape, 1, layouts[i], 1000, 0);
            uint64_t wrong = 0;
            for (uint32_t v = 0; v < 2; v++) {
                for (uint64_t l = 0; l < n_layers; l += 20) {
                    for (uint64_t slot = 0; slot < slots; slot += 7) {
                        uint64_t p = slot / page_tokens;
                        uint64_t o = slot % page_tokens;
                        uint64_t expected = v * buffer;
                        if (layouts[i] == WEIR_HOST_LAYER_FIRST)
                            expected += l * slots * row + slot * row;
                        else if (layouts[i] == WEIR_HOST_PAGE_FIRST)
                            expected += slot * n_layers * row + l * row;
                        else
                            expected +=
                                p * n_layers * page_tokens * row + l * page_tokens * row + o * row;
                        weir_host_page page = { (int32_t)p + 1 };
                        wrong +=
                            weir_geometry_host(g, v, (uint32_t)l, page, (uint32_t)o) != expected;
                    }
                }
            }
            cr_assert(eq(u64, wrong, 0), "layout %zu, %u tokens", i, shape.page_tokens);
            cr_assert(eq(u64, g->host_bytes, 2 * buffer));
            weir_geometry_destroy(&g);
        }
    }
}

Test(geometry, contiguous_pieces_are_known)
{
    for (uint32_t tokens = 1; tokens <= 3; tokens++) {
        for (uint32_t n_layers = 1; n_layers <= 3; n_layers++) {
            weir_tensor t = { .page_bytes = 16 * tokens, .row_bytes = 16 };
            weir_shape shape = { tokens, n_layers, 1, &t };
            for (size_t i = 0; i < N_LAYOUTS; i++) {
                struct weir_geometry *g = create(&shape, 1, layouts[i], 4, 0);
                bool expected = layouts[i] != WEIR_HOST_PAGE_FIRST || tokens == 1 || n_layers == 1;
                cr_assert(eq(int, g->tensors[0].host_contiguous, expected), "%u tokens, %u layers",
                          tokens, n_layers);
                weir_geometry_destroy(&g);
            }
        }
    }
}

Test(geometry, no_host_tier)
{
    weir_tensor t = { .page_bytes = 64, .row_bytes = 4 };
    weir_shape shape = { 16, 2, 1, &t };
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        struct weir_geometry *g = create(&shape, 10, layouts[i], 0, 0);
        cr_assert(eq(u64, g->host_bytes, 0));
        cr_assert(eq(u32, g->host_pages, 0));
        weir_geometry_destroy(&g);
    }
}

/* ---- Segments ------------------------------------------------------------ */

Test(geometry, segments_have_the_pages_that_stripes_need)
{
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct random random = { seed };
        uint32_t rows[2] = { 1 + random_below(&random, 8192), 1 + random_below(&random, 8192) };
        weir_tensor t[2] = { { .page_bytes = 16 * rows[0], .row_bytes = rows[0] },
                             { .page_bytes = 16 * rows[1], .row_bytes = rows[1] } };
        weir_shape shape = { 16, 3, 2, t };
        uint32_t host_pages = 1 + random_below(&random, 1u << random_below(&random, 18));
        struct weir_geometry *g = create(&shape, 1, WEIR_HOST_SEGMENTED, host_pages, 0);
        uint64_t smallest = t[0].page_bytes < t[1].page_bytes ? t[0].page_bytes : t[1].page_bytes;
        uint64_t least = (2097152 + smallest - 1) / smallest;
        if (least < 32)
            least = 32;
        uint32_t segment = g->segment_pages;
        uint64_t n_segments = g->host_bytes / g->segment_stride;
        cr_assert(le(u32, segment, host_pages));
        cr_assert(segment == host_pages || segment >= least, "seed %d", (int)seed);
        cr_assert(lt(u64, segment, 2 * least), "seed %d", (int)seed);
        cr_assert(ge(u64, n_segments * segment, host_pages));
        cr_assert(lt(u64, n_segments * segment - host_pages, n_segments), "seed %d", (int)seed);
        cr_assert(eq(u64, g->segment_stride % 4096, 0));
        weir_geometry_destroy(&g);
    }
}

Test(geometry, segment_pages_as_asked_but_no_more_than_there_are)
{
    weir_tensor t = { .page_bytes = 65536 };
    weir_shape shape = { 16, 2, 1, &t };
    static const uint32_t cases[][3] = { /* host pages, asked, given */
                                         { 64, 0, 32 },  { 96, 0, 32 },  { 33, 0, 33 },
                                         { 7, 0, 7 },    { 100, 8, 8 },  { 100, 1, 1 },
                                         { 10, 32, 10 }, { 10, 10, 10 }, { 1, UINT32_MAX, 1 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weir_geometry *g = create(&shape, 1, WEIR_HOST_SEGMENTED, cases[i][0], cases[i][1]);
        cr_assert(eq(u32, g->segment_pages, cases[i][2]), "case %zu", i);
        weir_geometry_destroy(&g);
    }
}

/* ---- Planes -------------------------------------------------------------- */

Test(geometry, own_planes_are_aligned_and_fill_what_was_asked_for)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct random random = { seed };
        struct random_shape s;
        random_shape(&random, &s, true, 1 << 20);
        uint32_t pages = 1 + random_below(&random, 1000);
        struct weir_geometry *g = create(&s.shape, pages, WEIR_HOST_SEGMENTED, 5, 0);
        const uint64_t base = UINT64_C(0x7000000000);
        weir_geometry_bind(g, base, 4096, 0);
        uint64_t end = base;
        for (uint32_t t = 0; t < g->n_tensors; t++) {
            for (uint32_t l = 0; l < g->n_layers; l++) {
                if (g->layer_index[t * g->n_layers + l] < 0)
                    continue;
                uint64_t first = weir_geometry_device(g, t, l, (weir_device_page){ 0 });
                uint64_t last = weir_geometry_device(g, t, l, (weir_device_page){ (int)pages });
                cr_assert(eq(u64, first, (end + 255) / 256 * 256));
                cr_assert(eq(u64, last - first, pages * g->tensors[t].page_bytes));
                end = last + g->tensors[t].page_bytes;
            }
        }
        uint64_t bytes = weir_geometry_device_bytes(g);
        cr_assert(le(u64, end - base, bytes));
        cr_assert(lt(u64, bytes - (end - base), 256));
        weir_geometry_destroy(&g);
    }
}

static int create_with_planes(const uint64_t *page_bytes, const weir_device_plane *planes,
                              uint32_t n, uint32_t device_pages, const weir_log *log)
{
    weir_tensor tensors[4] = { { .name = NULL } };
    for (uint32_t i = 0; i < n; i++)
        tensors[i].page_bytes = page_bytes[i];
    weir_shape shape = { 1, 1, n, tensors };
    struct weir_geometry *g = NULL;
    int rc = weir_geometry_create(&g, &shape, planes, device_pages, WEIR_HOST_SEGMENTED, 0, 0, log);
    if (!rc) {
        cr_assert(eq(u64, weir_geometry_device_bytes(g), 0));
        weir_geometry_bind(g, 0, 4096, 0);
        cr_assert(eq(u64, weir_geometry_device(g, n - 1, 0, (weir_device_page){ 1 }),
                     planes[n - 1].base + planes[n - 1].page_stride));
        weir_geometry_destroy(&g);
    }
    return rc;
}

Test(geometry, overlaps_are_found_exactly)
{
    unsigned found[2] = { 0, 0 };
    for (uint64_t seed = 1; seed <= 30000; seed++) {
        struct random random = { seed };
        uint32_t n = 2 + random_below(&random, 3);
        uint32_t pages = 1 + random_below(&random, 9);
        uint32_t spread = 1 + random_below(&random, 100);
        bool equal = random_percent(&random, 30);
        weir_device_plane planes[4];
        uint64_t page_bytes[4];
        unsigned char used[400] = { 0 };
        bool overlap = false;
        for (uint32_t i = 0; i < n; i++) {
            page_bytes[i] = 1 + random_below(&random, 4);
            planes[i].base = 1 + random_below(&random, spread);
            planes[i].page_stride = page_bytes[i] + random_below(&random, 20);
            if (equal && i > 0 && planes[0].page_stride >= page_bytes[i])
                planes[i].page_stride = planes[0].page_stride;
            for (uint32_t p = 0; p <= pages; p++) {
                for (uint64_t b = 0; b < page_bytes[i]; b++)
                    overlap |= used[planes[i].base + p * planes[i].page_stride + b]++ > 0;
            }
        }
        int rc = create_with_planes(page_bytes, planes, n, pages, NULL);
        if (rc != (overlap ? -EINVAL : 0))
            cr_fatal("seed %d: rc %d, overlap %d", (int)seed, rc, overlap);
        found[overlap]++;
    }
    cr_assert(lt(u32, 3000, found[0]));
    cr_assert(lt(u32, 3000, found[1]));
}

/* Two strides without a common divisor meet once: in piece i of one plane and
 * piece j of the other. */
Test(geometry, overlaps_are_found_in_huge_planes)
{
    const uint64_t page_bytes[2] = { 1, 1 };
    const uint64_t strides[2] = { UINT64_C(2147483647), UINT64_C(4294967291) };
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct random random = { seed };
        uint32_t i = 1 + random_below(&random, 1u << (1 + random_below(&random, 29)));
        uint32_t j = random_below(&random, i);
        uint32_t swap = random_below(&random, 2);
        uint32_t last = i > j ? i : j;
        uint64_t meet = UINT64_C(1) << 62;
        weir_device_plane planes[2] = { { meet - i * strides[0], strides[0] },
                                        { meet - j * strides[1], strides[1] } };
        if (swap) {
            planes[0] = (weir_device_plane){ meet - j * strides[0], strides[0] };
            planes[1] = (weir_device_plane){ meet - i * strides[1], strides[1] };
        }
        cr_assert(eq(int, create_with_planes(page_bytes, planes, 2, last, NULL), -EINVAL));
        if (last > 1)
            cr_assert(eq(int, create_with_planes(page_bytes, planes, 2, last - 1, NULL), 0));
    }
}

Test(geometry, interleaved_planes)
{
    const uint64_t page_bytes[2] = { 4096, 4096 };
    const weir_device_plane kv[2] = { { 1 << 20, 8192 }, { (1 << 20) + 4096, 8192 } };
    const weir_device_plane vk[2] = { kv[1], kv[0] };
    const weir_device_plane close[2] = { { 1 << 20, 8192 }, { (1 << 20) + 4095, 8192 } };
    const weir_device_plane late[2] = { { 1 << 20, 8192 }, { (1 << 20) + 4097, 8192 } };
    const weir_device_plane behind[2] = { { 1 << 20, 8192 }, { (1 << 20) + 11 * 8192, 8192 } };
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    cr_assert(eq(int, create_with_planes(page_bytes, kv, 2, 10, &log), 0));
    cr_assert(eq(int, create_with_planes(page_bytes, vk, 2, 10, &log), 0));
    cr_assert(eq(int, create_with_planes(page_bytes, behind, 2, 10, &log), 0));
    cr_assert(eq(u32, capture.lines, 0));
    cr_assert(eq(int, create_with_planes(page_bytes, close, 2, 10, &log), -EINVAL));
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(ne(ptr, strstr(capture.last, "planes[0] and planes[1] overlap"), NULL));
    cr_assert(eq(int, create_with_planes(page_bytes, late, 2, 10, NULL), -EINVAL));
    cr_assert(eq(int, create_with_planes(page_bytes, behind, 2, 11, NULL), -EINVAL));
}

Test(geometry, planes_must_stay_below_the_address_limit)
{
    const uint64_t limit = UINT64_C(1) << 63;
    const uint64_t page_bytes[1] = { 100 };
    weir_device_plane plane = { limit - 10 * UINT64_C(1000) - 100, 1000 };
    cr_assert(eq(int, create_with_planes(page_bytes, &plane, 1, 10, NULL), 0));
    cr_assert(eq(int, create_with_planes(page_bytes, &plane, 1, 11, NULL), -EINVAL));
    plane.base++;
    cr_assert(eq(int, create_with_planes(page_bytes, &plane, 1, 10, NULL), -EINVAL));
    plane = (weir_device_plane){ 4096, UINT64_MAX };
    cr_assert(eq(int, create_with_planes(page_bytes, &plane, 1, 10, NULL), -EINVAL));
    plane = (weir_device_plane){ UINT64_MAX, 100 };
    cr_assert(eq(int, create_with_planes(page_bytes, &plane, 1, 1, NULL), -EINVAL));
}

/* ---- Limits -------------------------------------------------------------- */

struct arguments {
    weir_shape shape;
    weir_tensor tensors[2];
    const weir_device_plane *planes;
    uint32_t device_pages;
    uint32_t host_pages;
    weir_host_layout layout;
};

static int create_arguments(const struct arguments *a, const weir_log *log)
{
    struct weir_geometry *g = (void *)1;
    int rc = weir_geometry_create(&g, &a->shape, a->planes, a->device_pages, a->layout,
                                  a->host_pages, 0, log);
    if (rc)
        cr_assert(eq(ptr, g, (void *)1));
    else
        weir_geometry_destroy(&g);
    return rc;
}

/* Breaks one argument after `change`; the log line must begin with `text`. */
#define broken(expected, text, change)                                                          \
    do {                                                                                        \
        struct arguments a = good;                                                              \
        a.shape.tensors = a.tensors;                                                            \
        struct log_capture capture = { 0 };                                                     \
        weir_log log = log_capture_log(&capture);                                               \
        cr_assert(eq(int, create_arguments(&a, &log), 0));                                      \
        change;                                                                                 \
        cr_assert(eq(int, create_arguments(&a, &log), (expected)), "%s", #change);              \
        cr_assert(eq(u32, capture.lines, 1), "%s", #change);                                    \
        cr_assert(eq(int, strncmp(capture.last, (text), strlen(text)), 0), "%s", capture.last); \
    } while (0)

Test(geometry, each_limit_is_named)
{
    static const uint32_t two[2] = { 0, 2 };
    static const uint32_t descending[2] = { 2, 1 };
    static const uint32_t twice[2] = { 1, 1 };
    static const uint32_t beyond[2] = { 0, 3 };
    static const weir_device_plane planes[5] = {
        { 1 << 20, 160 }, { 2 << 20, 160 }, { 3 << 20, 160 }, { 4 << 20, 200 }, { 5 << 20, 200 }
    };
    static const weir_device_plane no_base[5] = {
        { 1 << 20, 160 }, { 2 << 20, 160 }, { 3 << 20, 160 }, { 0, 200 }, { 5 << 20, 200 }
    };
    static const weir_device_plane short_stride[5] = {
        { 1 << 20, 160 }, { 2 << 20, 160 }, { 3 << 20, 159 }, { 4 << 20, 200 }, { 5 << 20, 200 }
    };
    const struct arguments good = {
        .shape = { 16, 3, 2, NULL },
        .tensors = { { "k", 160, 10, 0, NULL, false }, { "s", 200, 0, 2, two, false } },
        .device_pages = 10,
        .host_pages = 10,
        .layout = WEIR_HOST_SEGMENTED,
        .planes = planes,
    };
    const uint64_t huge = UINT64_C(1) << 63;

    broken(-EINVAL, "page_tokens is 0", a.shape.page_tokens = 0);
    broken(-EINVAL, "page_tokens is 1025", a.shape.page_tokens = 1025);
    broken(-EINVAL, "n_layers is 0", a.shape.n_layers = 0);
    broken(-EINVAL, "n_layers is 1025", a.shape.n_layers = 1025);
    broken(-EINVAL, "n_tensors is 0", a.shape.n_tensors = 0);
    broken(-EINVAL, "n_tensors is 33", a.shape.n_tensors = 33);
    broken(-EINVAL, "tensors: must not be NULL", a.shape.tensors = NULL);
    broken(-EINVAL, "tensors[1].page_bytes is 0", a.tensors[1].page_bytes = 0);
    broken(-EINVAL, "tensors[0].page_bytes is 161", a.tensors[0].page_bytes = 161);
    broken(-EINVAL, "tensors[0].row_bytes is 65537", a.tensors[0].row_bytes = 65537);
    broken(-EINVAL, "tensors[0].layers: must not be NULL", a.tensors[0].n_layers = 3);
    broken(-EINVAL, "tensors[1].n_layers is 0", a.tensors[1].n_layers = 0);
    broken(-EINVAL, "tensors[1].n_layers is 4", a.tensors[1].n_layers = 4);
    broken(-EINVAL, "tensors[1].layers[1] is 1", a.tensors[1].layers = descending);
    broken(-EINVAL, "tensors[1].layers[1] is 1", a.tensors[1].layers = twice);
    broken(-EINVAL, "tensors[1].layers[1] is 3", a.tensors[1].layers = beyond);
    broken(-EINVAL, "tensors[1].page_bytes is 9223372036854775808: the bytes",
           a.tensors[1].page_bytes = huge);
    broken(-EINVAL, "tensors[1].page_bytes is 4611686018427387904: the bytes",
           a.tensors[0] = (weir_tensor){ .page_bytes = huge / 2 };
           a.tensors[1].page_bytes = huge / 2);
    broken(-EINVAL, "device_pages is 0", a.device_pages = 0);
    broken(-EINVAL, "device_pages is 1073741825", a.device_pages = (1u << 30) + 1);
    broken(-EINVAL, "host_pages is 1073741825", a.host_pages = (1u << 30) + 1);
    broken(-EINVAL, "host_layout is 4", a.layout = (weir_host_layout)4);
    broken(-ENOTSUP, "tensors[1].row_bytes is 0", a.layout = WEIR_HOST_PAGE_FIRST);
    broken(-EINVAL, "planes[3].base is 0", a.planes = no_base);
    broken(-EINVAL, "planes[2].page_stride is 159", a.planes = short_stride);
    broken(-EINVAL, "planes[3].page_stride is 200", a.tensors[1].page_bytes = 201);

#ifdef __SANITIZE_ADDRESS__
    cr_assert(eq(int, __lsan_do_recoverable_leak_check(), 0));
#endif
}

Test(geometry, pools_must_stay_below_the_address_limit)
{
    const uint64_t quarter = UINT64_C(1) << 61;
    const struct arguments good = {
        .shape = { 1, 1, 1, NULL },
        .tensors = { { .page_bytes = quarter } },
        .device_pages = 2,
        .host_pages = 3,
        .layout = WEIR_HOST_LAYER_FIRST,
    };
    broken(-EINVAL, "host_pages is 4", a.host_pages = 4);
    broken(-EINVAL, "host_pages is 1073741824", a.host_pages = 1u << 30);
    broken(-EINVAL, "host_pages is 4", a.host_pages = 4; a.layout = WEIR_HOST_SEGMENTED);
    broken(-EINVAL, "device_pages is 3", a.device_pages = 3);
    broken(-EINVAL, "device_pages is 1073741824", a.device_pages = 1u << 30);
    broken(-EINVAL, "host_pages is 0", a.host_pages = 0; a.tensors[0].page_bytes = UINT64_MAX);
    broken(-EINVAL, "host_pages is 1", a.host_pages = 1; a.tensors[0].page_bytes = UINT64_MAX;
           a.layout = WEIR_HOST_SEGMENTED);
}

Test(geometry, null)
{
    weir_tensor t = { .page_bytes = 1 };
    weir_shape shape = { 1, 1, 1, &t };
    struct weir_geometry *g = NULL;
    uint64_t bytes = 7;
    cr_assert(
        eq(int, weir_geometry_create(NULL, &shape, NULL, 1, layouts[0], 1, 0, NULL), -EINVAL));
    cr_assert(eq(int, weir_geometry_create(&g, NULL, NULL, 1, layouts[0], 1, 0, NULL), -EINVAL));
    cr_assert(eq(int, weir_shape_page_bytes(&shape, NULL, NULL), -EINVAL));
    cr_assert(eq(int, weir_shape_page_bytes(NULL, NULL, &bytes), -EINVAL));
    cr_assert(eq(u64, bytes, 7));
    weir_geometry_destroy(&g);
}

Test(shape, page_bytes_counts_all_tensors_and_layers)
{
    static const uint32_t some[3] = { 0, 5, 60 };
    weir_tensor t[3] = { { .page_bytes = 64 * 1152, .row_bytes = 1152 },
                         { .page_bytes = 64 * 132, .row_bytes = 132, 3, some },
                         { .page_bytes = 77, .n_layers = 3, .layers = some } };
    weir_shape shape = { 64, 61, 3, t };
    uint64_t bytes;
    cr_assert(eq(int, weir_shape_page_bytes(&shape, NULL, &bytes), 0));
    cr_assert(eq(u64, bytes, 61 * 64 * 1152 + 3 * 64 * 132 + 3 * 77));
}

Test(shape, layout_names)
{
    weir_host_layout layout;
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        cr_assert(eq(int, weir_host_layout_parse(weir_host_layout_name(layouts[i]), &layout), 0));
        cr_assert(eq(int, (int)layout, (int)layouts[i]));
    }
    layout = WEIR_HOST_PAGE_FIRST;
    cr_assert(eq(int, weir_host_layout_parse("page_fist", &layout), -EINVAL));
    cr_assert(eq(int, weir_host_layout_parse("", &layout), -EINVAL));
    cr_assert(eq(int, weir_host_layout_parse(NULL, &layout), -EINVAL));
    cr_assert(eq(int, weir_host_layout_parse("segmented", NULL), -EINVAL));
    cr_assert(eq(int, (int)layout, (int)WEIR_HOST_PAGE_FIRST));
    cr_assert(eq(ptr, (void *)weir_host_layout_name((weir_host_layout)4), NULL));
    cr_assert(eq(ptr, (void *)weir_host_layout_name((weir_host_layout)-1), NULL));
}
