/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/geometry.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Page counts are at most 2^30 and planes at most 2^15, so no sum or product
 * of sizes below leaves 128 bits: totals are computed wide, compared with 2^63
 * once, and all parts of a total that passed fit 64 bits. */
__extension__ typedef unsigned __int128 wide;

static const wide ADDRESS_LIMIT = (wide)1 << 63;

static wide align_up(wide value, uint32_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

static uint32_t tensor_layers(const weir_shape *shape, uint32_t tensor)
{
    const weir_tensor *t = &shape->tensors[tensor];
    return t->layers ? t->n_layers : shape->n_layers;
}

/* ---- Host ---------------------------------------------------------------- */

uint32_t weir_geometry_segment(uint64_t smallest, uint32_t host_pages)
{
    uint32_t least = (uint32_t)((WEIR_GEOMETRY_STRIPE_BYTES - 1) / smallest + 1);
    if (least < WEIR_GEOMETRY_MIN_SEGMENT_PAGES)
        least = WEIR_GEOMETRY_MIN_SEGMENT_PAGES;
    uint32_t n_segments = host_pages / least;
    return n_segments ? (host_pages + n_segments - 1) / n_segments : host_pages;
}

static uint32_t choose_segment_pages(const struct weir_geometry *g, bool shared)
{
    uint64_t smallest = UINT64_MAX;
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        if (g->tensors[t].shared == shared && g->tensors[t].page_bytes < smallest)
            smallest = g->tensors[t].page_bytes;
    }
    return weir_geometry_segment(smallest, g->host_pages);
}

static void place_host_tensors(struct weir_geometry *g)
{
    uint64_t offsets[2] = { 0 };
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct weir_geometry_tensor *t = &g->tensors[i];
        t->host_offset = offsets[t->shared];
        t->host_layer_stride = g->segment_pages * t->page_bytes;
        t->host_page_stride = t->page_bytes;
        t->host_token_stride = t->row_bytes;
        if (g->host_layout == WEIR_HOST_PAGE_FIRST) {
            t->host_layer_stride = t->row_bytes;
            t->host_page_stride = t->n_layers * t->page_bytes;
            t->host_token_stride = (uint64_t)t->n_layers * t->row_bytes;
        } else if (g->host_layout == WEIR_HOST_PAGE_FIRST_DIRECT) {
            t->host_layer_stride = t->page_bytes;
            t->host_page_stride = t->n_layers * t->page_bytes;
        }
        t->host_contiguous = g->page_tokens == 1 || t->host_token_stride == t->row_bytes;
        offsets[t->shared] += g->segment_pages * (t->n_layers * t->page_bytes);
    }
}

static int place_host(struct weir_geometry *g, uint32_t segment_pages, const weir_log *log)
{
    bool segmented = g->host_layout == WEIR_HOST_SEGMENTED;
    if (!segmented || segment_pages > g->host_pages)
        segment_pages = g->host_pages;
    else if (segment_pages == 0)
        segment_pages = choose_segment_pages(g, false);
    g->segment_pages = segment_pages ? segment_pages : 1; /* a divisor, also of no pages */

    wide bytes = (wide)g->host_pages * g->page_bytes;
    wide stride = 0;
    if (segmented) {
        uint32_t n_segments = (g->host_pages + g->segment_pages - 1) / g->segment_pages;
        stride = align_up((wide)g->segment_pages * g->page_bytes, WEIR_GEOMETRY_SEGMENT_ALIGN);
        bytes = n_segments * stride;
    }
    /* One page must fit even where there is none: strides are set all the same. */
    if (bytes >= ADDRESS_LIMIT || g->page_bytes >= ADDRESS_LIMIT)
        return weir_invalid(log,
                            "host_pages is %u: with pages of %" PRIu64
                            " bytes the host pool must stay below 2^63 bytes",
                            g->host_pages, g->page_bytes);
    g->segment_stride = (uint64_t)stride;
    g->host_bytes = (uint64_t)bytes;
    place_host_tensors(g);
    return 0;
}

/* A part of what place_host has found to stay below the limit. */
static struct weir_host_place measure_place(const struct weir_geometry *g, bool shared)
{
    uint64_t page_bytes = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].shared == shared)
            page_bytes += g->tensors[i].n_layers * g->tensors[i].page_bytes;
    struct weir_host_place place = { .bytes = g->host_pages * page_bytes };
    if (g->host_layout == WEIR_HOST_SEGMENTED) {
        uint64_t n_segments = ((uint64_t)g->host_pages + g->segment_pages - 1) / g->segment_pages;
        place.segment_stride =
            (uint64_t)align_up((wide)g->segment_pages * page_bytes, WEIR_GEOMETRY_SEGMENT_ALIGN);
        place.bytes = n_segments * place.segment_stride;
    }
    return place;
}

void weir_geometry_share(struct weir_geometry *geometry, uint32_t segment_pages)
{
    uint32_t n_shared = 0;
    for (uint32_t i = 0; i < geometry->n_tensors; i++) {
        struct weir_geometry_tensor *t = &geometry->tensors[i];
        t->shared = t->replicated;
        t->shared_id = t->shared ? n_shared++ : 0;
    }
    if (geometry->host_layout == WEIR_HOST_SEGMENTED && segment_pages == 0 && geometry->host_pages)
        geometry->segment_pages = choose_segment_pages(geometry, true);
    geometry->shared = measure_place(geometry, true);
    struct weir_host_place own = measure_place(geometry, false);
    geometry->segment_stride = own.segment_stride;
    geometry->host_bytes = own.bytes;
    place_host_tensors(geometry);
}

/* ---- Device -------------------------------------------------------------- */

static wide own_plane_bytes(const struct weir_geometry *g, const struct weir_geometry_tensor *t)
{
    return align_up((g->device_pages + (wide)1) * t->page_bytes, WEIR_GEOMETRY_PLANE_ALIGN);
}

static int place_own_planes(struct weir_geometry *g, const weir_log *log)
{
    wide bytes = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct weir_geometry_tensor *t = &g->tensors[i];
        bytes += t->n_layers * own_plane_bytes(g, t);
        for (uint32_t l = 0; l < t->n_layers; l++)
            g->planes[t->first_plane + l] = (weir_device_plane){ 0, t->page_bytes };
    }
    if (bytes >= ADDRESS_LIMIT)
        return weir_invalid(log,
                            "device_pages is %u: with pages of %" PRIu64
                            " bytes the device pool must stay below 2^63 bytes",
                            g->device_pages, g->page_bytes);
    g->device_bytes = (uint64_t)bytes;
    return 0;
}

/* The addresses of a plane's pieces: base + k * stride, `bytes` long, for k from
 * 0 to the last page; `end` is the end of the last one. */
struct span {
    uint64_t base;
    uint64_t end;
    uint64_t stride;
    uint64_t bytes;
    uint32_t plane;
};

static int compare_spans(const void *left, const void *right)
{
    const struct span *a = left;
    const struct span *b = right;
    if (a->base != b->base)
        return a->base < b->base ? -1 : 1;
    return a->plane < b->plane ? -1 : a->plane > b->plane;
}

/* The sum of (step * k + start) / divisor, rounded down, for k from 0 to n - 1,
 * by exchanging the axes of the points counted, as Euclid's algorithm does. */
static wide sum_of_quotients(wide n, wide step, wide start, wide divisor)
{
    wide sum = 0;
    while (n) {
        sum += n * (n - 1) / 2 * (step / divisor) + n * (start / divisor);
        step %= divisor;
        wide top = step * n + start % divisor;
        n = top / divisor;
        start = top % divisor;
        wide swapped = divisor;
        divisor = step;
        step = swapped;
    }
    return sum;
}

/* Do pieces of two planes share a byte? Pre: a->base <= b->base < a->end. With
 * d = b->base - a->base, piece k of b shares a byte with piece i of a if
 *
 *     d + k*b.stride - a.bytes  <  i*a.stride  <  d + k*b.stride + b.bytes
 *
 * A multiple of a.stride between these bounds is never negative, because pieces
 * are no longer than strides; and as long as piece k starts before a's end, an
 * i beyond the last page means that piece k covers the last page as well. So
 * counting the multiples for all such k decides. */
static bool spans_overlap(const struct span *a, const struct span *b, uint32_t last_page)
{
    uint64_t d = b->base - a->base;
    if (a->stride == b->stride) { /* all pieces of b lie alike: look at the first */
        if (d < a->bytes)
            return true;
        wide next = ((d - a->bytes) / a->stride + (wide)1) * a->stride;
        return next < (wide)d + b->bytes;
    }
    wide n = (a->end - 1 - b->base) / b->stride + 1;
    if (n > (wide)last_page + 1)
        n = (wide)last_page + 1;
    wide shift = (wide)d + a->stride; /* by one stride, so that no bound is negative */
    return sum_of_quotients(n, b->stride, shift + b->bytes - 1, a->stride) !=
           sum_of_quotients(n, b->stride, shift - a->bytes, a->stride);
}

static int find_overlap(const struct weir_geometry *g, struct span *spans, const weir_log *log)
{
    qsort(spans, g->n_planes, sizeof *spans, compare_spans);
    for (uint32_t i = 0; i < g->n_planes; i++) {
        for (uint32_t j = i + 1; j < g->n_planes && spans[j].base < spans[i].end; j++) {
            if (spans_overlap(&spans[i], &spans[j], g->device_pages))
                return weir_invalid(log,
                                    "planes[%u] and planes[%u] overlap: two pieces must not share "
                                    "bytes",
                                    spans[i].plane, spans[j].plane);
        }
    }
    return 0;
}

static int check_plane(const struct weir_geometry *g, uint32_t plane, uint64_t page_bytes,
                       struct span *span, const weir_log *log)
{
    const weir_device_plane *p = &g->planes[plane];
    if (p->base == 0)
        return weir_invalid(log, "planes[%u].base is 0: must be an address", plane);
    if (p->page_stride < page_bytes)
        return weir_invalid(log,
                            "planes[%u].page_stride is %" PRIu64
                            ": must be at least the tensor's page_bytes %" PRIu64,
                            plane, p->page_stride, page_bytes);
    wide end = (wide)p->base + (wide)g->device_pages * p->page_stride + page_bytes;
    if (end > ADDRESS_LIMIT)
        return weir_invalid(log,
                            "planes[%u].page_stride is %" PRIu64
                            ": with %u pages every address must be below 2^63",
                            plane, p->page_stride, g->device_pages);
    *span = (struct span){ p->base, (uint64_t)end, p->page_stride, page_bytes, plane };
    return 0;
}

static int place_server_planes(struct weir_geometry *g, const weir_device_plane *planes,
                               const weir_log *log)
{
    struct span *spans = weir_memory_take(g->memory, g->n_planes, sizeof *spans);
    if (!spans)
        return -ENOMEM;
    int rc = 0;
    for (uint32_t i = 0; i < g->n_tensors && !rc; i++) {
        const struct weir_geometry_tensor *t = &g->tensors[i];
        for (uint32_t l = 0; l < t->n_layers && !rc; l++) {
            uint32_t plane = t->first_plane + l;
            g->planes[plane] = planes[plane];
            rc = check_plane(g, plane, t->page_bytes, &spans[plane], log);
        }
    }
    if (!rc)
        rc = find_overlap(g, spans, log);
    weir_memory_give(g->memory, spans, g->n_planes, sizeof *spans);
    return rc;
}

/* ---- Life ---------------------------------------------------------------- */

static int check_arguments(const weir_shape *shape, uint32_t device_pages,
                           weir_host_layout host_layout, uint32_t host_pages, const weir_log *log)
{
    if (device_pages == 0 || device_pages > WEIR_GEOMETRY_MAX_PAGES)
        return weir_invalid(log, "device_pages is %u: must be 1..%u", device_pages,
                            WEIR_GEOMETRY_MAX_PAGES);
    if (host_pages > WEIR_GEOMETRY_MAX_PAGES)
        return weir_invalid(log, "host_pages is %u: must be at most %u", host_pages,
                            WEIR_GEOMETRY_MAX_PAGES);
    if (!weir_host_layout_name(host_layout))
        return weir_invalid(log, "host_layout is %d: must be one of weir_host_layout",
                            (int)host_layout);
    for (uint32_t t = 0; t < shape->n_tensors && host_layout == WEIR_HOST_PAGE_FIRST; t++) {
        if (shape->tensors[t].row_bytes == 0) {
            weir_log_line(log, WEIR_LOG_ERROR,
                          "tensors[%u].row_bytes is 0: host_layout page_first needs rows", t);
            return -ENOTSUP;
        }
    }
    return 0;
}

static void copy_tensors(struct weir_geometry *g, const weir_shape *shape)
{
    uint32_t n_planes = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const weir_tensor *from = &shape->tensors[i];
        struct weir_geometry_tensor *t = &g->tensors[i];
        t->page_bytes = from->page_bytes;
        t->row_bytes = from->row_bytes;
        t->n_layers = tensor_layers(shape, i);
        t->id = i;
        t->replicated = from->replicated;
        t->first_plane = n_planes;
        n_planes += t->n_layers;
        int32_t *layer_index = &g->layer_index[(size_t)i * g->n_layers];
        for (uint32_t l = 0; l < g->n_layers; l++)
            layer_index[l] = from->layers ? -1 : (int32_t)l;
        for (uint32_t l = 0; l < from->n_layers; l++)
            layer_index[from->layers[l]] = (int32_t)l;
    }
}

static struct weir_geometry *allocate(struct weir_memory *memory, const weir_shape *shape)
{
    struct weir_geometry *g = weir_memory_take(memory, 1, sizeof *g);
    if (!g)
        return NULL;
    g->memory = memory;
    g->page_tokens = shape->page_tokens;
    g->n_layers = shape->n_layers;
    g->n_tensors = shape->n_tensors;
    for (uint32_t t = 0; t < shape->n_tensors; t++)
        g->n_planes += tensor_layers(shape, t);
    g->tensors = weir_memory_take(memory, g->n_tensors, sizeof *g->tensors);
    g->layer_index =
        weir_memory_take(memory, (size_t)g->n_tensors * g->n_layers, sizeof *g->layer_index);
    g->planes = weir_memory_take(memory, g->n_planes, sizeof *g->planes);
    if (!g->tensors || !g->layer_index || !g->planes)
        weir_geometry_destroy(&g);
    return g;
}

int weir_geometry_create(struct weir_geometry **geometry, const weir_shape *shape,
                         const weir_device_plane *planes, uint32_t device_pages,
                         weir_host_layout host_layout, uint32_t host_pages, uint32_t segment_pages,
                         const weir_log *log)
{
    return weir_geometry_create_in(NULL, geometry, shape, planes, device_pages, host_layout,
                                   host_pages, segment_pages, log);
}

int weir_geometry_create_in(struct weir_memory *memory, struct weir_geometry **geometry,
                            const weir_shape *shape, const weir_device_plane *planes,
                            uint32_t device_pages, weir_host_layout host_layout,
                            uint32_t host_pages, uint32_t segment_pages, const weir_log *log)
{
    if (!geometry)
        return weir_invalid(log, "geometry: must not be NULL");
    uint64_t page_bytes;
    int rc = weir_shape_page_bytes(shape, log, &page_bytes);
    if (!rc)
        rc = check_arguments(shape, device_pages, host_layout, host_pages, log);
    if (rc)
        return rc;

    struct weir_geometry *g = allocate(memory, shape);
    if (!g)
        return -ENOMEM;
    g->page_bytes = page_bytes;
    g->device_pages = device_pages;
    g->host_pages = host_pages;
    g->host_layout = host_layout;
    copy_tensors(g, shape);
    rc = place_host(g, segment_pages, log);
    if (!rc)
        rc = planes ? place_server_planes(g, planes, log) : place_own_planes(g, log);
    if (rc) {
        weir_geometry_destroy(&g);
        return rc;
    }
    *geometry = g;
    return 0;
}

void weir_geometry_destroy(struct weir_geometry **geometry)
{
    struct weir_geometry *g = *geometry;
    if (!g)
        return;
    struct weir_memory *m = g->memory;
    weir_memory_give(m, g->tensors, g->n_tensors, sizeof *g->tensors);
    weir_memory_give(m, g->layer_index, (size_t)g->n_tensors * g->n_layers, sizeof *g->layer_index);
    weir_memory_give(m, g->planes, g->n_planes, sizeof *g->planes);
    weir_memory_give(m, g, 1, sizeof *g);
    *geometry = NULL;
}

uint64_t weir_geometry_device_bytes(const struct weir_geometry *geometry)
{
    return geometry->device_bytes;
}

void weir_geometry_bind(struct weir_geometry *geometry, uint64_t device_base, uint64_t host_base,
                        uint64_t chunk_bytes)
{
    uint64_t base = device_base;
    for (uint32_t i = 0; i < geometry->n_tensors && device_base; i++) {
        const struct weir_geometry_tensor *t = &geometry->tensors[i];
        for (uint32_t l = 0; l < t->n_layers; l++) {
            geometry->planes[t->first_plane + l].base = base;
            base += (uint64_t)own_plane_bytes(geometry, t);
        }
    }
    geometry->host_base = host_base;
    geometry->chunk_bytes = chunk_bytes;
}

void weir_geometry_bind_shared(struct weir_geometry *geometry, uint64_t base, uint64_t chunk_bytes)
{
    geometry->shared.base = base;
    geometry->shared.chunk_bytes = chunk_bytes;
}

/* ---- Views --------------------------------------------------------------- */

int weir_geometry_view(struct weir_memory *memory, struct weir_geometry **view,
                       const struct weir_geometry *geometry, bool shared)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < geometry->n_tensors; i++)
        n += geometry->tensors[i].shared == shared;
    *view = NULL;
    if (n == 0)
        return 0;
    struct weir_geometry *v = weir_memory_take(memory, 1, sizeof *v);
    if (!v)
        return -ENOMEM;
    *v = *geometry;
    v->memory = memory;
    v->n_tensors = n;
    v->page_bytes = 0;
    v->tensors = weir_memory_take(memory, n, sizeof *v->tensors);
    v->layer_index = weir_memory_take(memory, (size_t)n * v->n_layers, sizeof *v->layer_index);
    if (!v->tensors || !v->layer_index) {
        weir_geometry_destroy_view(&v);
        return -ENOMEM;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < geometry->n_tensors; i++) {
        const struct weir_geometry_tensor *t = &geometry->tensors[i];
        if (t->shared != shared)
            continue;
        memcpy(&v->layer_index[(size_t)at * v->n_layers],
               &geometry->layer_index[(size_t)i * v->n_layers],
               v->n_layers * sizeof *v->layer_index);
        v->tensors[at++] = *t;
        v->page_bytes += t->n_layers * t->page_bytes;
    }
    *view = v;
    return 0;
}

void weir_geometry_destroy_view(struct weir_geometry **view)
{
    struct weir_geometry *v = *view;
    if (!v)
        return;
    struct weir_memory *m = v->memory;
    weir_memory_give(m, v->tensors, v->n_tensors, sizeof *v->tensors);
    weir_memory_give(m, v->layer_index, (size_t)v->n_tensors * v->n_layers, sizeof *v->layer_index);
    weir_memory_give(m, v, 1, sizeof *v);
    *view = NULL;
}
