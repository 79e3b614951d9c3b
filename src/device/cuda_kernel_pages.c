/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_kernels.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Transfers by kernel: the tables of a geometry and the rings of page lists. Copies
 * within the device are loads from a host tier that lies on the device pages. */

#define BLOCK_ALIGN 256u

/* In flight is at most what the smaller tier has, but a list's room may be found
 * free only after its transfer was reported and the next one ordered. */
#define RING_TIERS 2u

/* The third ring, after those of the directions. */
#define WITHIN 2u
#define RINGS 3u

/* Powers of two: a step has one load and one list of copies, so there are as many as
 * steps in flight; write-backs outlive their steps. */
#define LOAD_SLOTS 64u
#define WRITE_BACK_SLOTS 1024u
#define WITHIN_SLOTS 64u

/* Sets of counters a direction. Lists that have one in common are so far apart that the
 * later one comes behind the earlier one in their stream. */
#define ARRIVALS 64u

struct list_slot {
    uint32_t n_pages;
    CUstream stream;
};

/* The lists of one direction. Slot s % n_slots belongs to list s; lists end in the
 * order of their numbers as far as anyone here can tell: later room is reused
 * only when all earlier lists have ended. */
struct list_ring {
    uint64_t pages_at; /* offsets in the block */
    uint64_t arrivals_at;
    uint64_t words_at; /* pinned only */
    uint32_t begun;
    uint32_t ended;
    uint32_t head; /* of the ring of pages; indices run on past its end */
    uint32_t used;
    uint32_t n_slots;
    struct list_slot *slots;
};

struct weir_cuda_pages {
    struct weir_cuda_kernels *kernels;
    const struct weir_geometry *geometry;
    uint8_t *pinned; /* both blocks have one layout */
    CUdeviceptr device;
    uint64_t bytes;
    uint64_t planes_at;
    uint64_t within_at; /* the same planes, with the device in the host's place */
    uint64_t layers_at;
    uint32_t n_maps;
    uint32_t capacity;             /* of a ring of pages; a power of two */
    bool aligned;                  /* every address, stride and length is a multiple of 16 */
    struct list_ring rings[RINGS]; /* by weir_direction, and WITHIN */
    struct list_slot slots[LOAD_SLOTS + WRITE_BACK_SLOTS + WITHIN_SLOTS];
};

/* ---- Tables -------------------------------------------------------------- */

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t mine = *at;
    *at += (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    return mine;
}

static uint64_t lay_out(struct weir_cuda_pages *p)
{
    const struct weir_geometry *g = p->geometry;
    uint64_t at = 0;
    take(&at, g->n_tensors * sizeof(struct weir_tensor_map));
    p->planes_at = take(&at, g->n_planes * sizeof(struct weir_copy_plane));
    p->within_at = take(&at, g->n_planes * sizeof(struct weir_copy_plane));
    p->layers_at = take(&at, (g->n_layers + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < 2; i++)
        p->rings[i].arrivals_at = take(&at, (uint64_t)ARRIVALS * g->n_layers * sizeof(uint32_t));
    for (uint32_t i = 0; i < RINGS; i++)
        p->rings[i].pages_at = take(&at, (uint64_t)p->capacity * sizeof(struct weir_page_pair));
    for (uint32_t i = 0; i < RINGS; i++)
        p->rings[i].words_at = take(&at, p->rings[i].n_slots * sizeof(uint32_t));
    return at;
}

static void deal_slots(struct weir_cuda_pages *p)
{
    static const uint32_t n_slots[RINGS] = {
        [WEIR_LOAD] = LOAD_SLOTS, [WEIR_WRITE_BACK] = WRITE_BACK_SLOTS, [WITHIN] = WITHIN_SLOTS
    };
    struct list_slot *next = p->slots;
    for (uint32_t i = 0; i < RINGS; i++) {
        p->rings[i].n_slots = n_slots[i];
        p->rings[i].slots = next;
        next += n_slots[i];
    }
}

static void fill_plane(struct weir_cuda_pages *p, uint32_t tensor, uint32_t layer, uint32_t index,
                       struct weir_copy_plane *out)
{
    const struct weir_geometry *g = p->geometry;
    const struct weir_geometry_tensor *t = &g->tensors[tensor];
    const weir_device_plane *plane = &g->planes[t->first_plane + index];
    *out = (struct weir_copy_plane){
        .device_base = plane->base,
        .device_stride = plane->page_stride,
        .host_base = weir_geometry_host(g, tensor, layer, (weir_host_page){ 1 }, 0),
        .segment_stride = weir_geometry_place(g, t).segment_stride,
        .host_stride = t->host_page_stride,
        .unit_bytes = t->page_bytes,
        .units = 1,
        .map = tensor,
        .map_layer = index,
    };
    if (!t->host_contiguous) {
        out->unit_stride = t->host_token_stride;
        out->unit_bytes = t->row_bytes;
        out->units = g->page_tokens;
        out->units_magic = WEIR_MAGIC(g->page_tokens);
    }
    uint64_t bits = out->device_base | out->device_stride | out->host_base | out->segment_stride |
                    out->host_stride | out->unit_stride | out->unit_bytes;
    p->aligned = p->aligned && bits % 16 == 0;
}

static struct weir_copy_plane plane_within(const struct weir_copy_plane *plane, uint64_t page_bytes)
{
    return (struct weir_copy_plane){
        .device_base = plane->device_base,
        .device_stride = plane->device_stride,
        .host_base = plane->device_base + plane->device_stride, /* of page 1 */
        .host_stride = plane->device_stride,
        .unit_bytes = page_bytes,
        .units = 1,
    };
}

/* A map of a tensor whose rows are apart: the whole host pool, rows of all
 * tokens of all pages one stride from each other. */
static uint32_t make_map(struct weir_cuda_pages *p, uint32_t tensor, struct weir_tensor_map *map)
{
    const struct weir_geometry *g = p->geometry;
    const struct weir_geometry_tensor *t = &g->tensors[tensor];
    if (t->host_contiguous || p->kernels->stages == 0 || t->n_layers == 0)
        return 0;
    uint32_t rows = weir_cuda_kernels_box_rows(t->row_bytes, g->page_tokens);
    bool made = weir_cuda_kernels_encode(
        p->kernels, map, weir_geometry_place(g, t).base + t->host_offset, t->row_bytes, t->n_layers,
        t->host_layer_stride, (uint64_t)g->host_pages * g->page_tokens, t->host_token_stride, rows);
    return made ? rows : 0;
}

static void fill_tables(struct weir_cuda_pages *p)
{
    const struct weir_geometry *g = p->geometry;
    struct weir_tensor_map *maps = (struct weir_tensor_map *)p->pinned;
    struct weir_copy_plane *planes = (struct weir_copy_plane *)(p->pinned + p->planes_at);
    struct weir_copy_plane *within = (struct weir_copy_plane *)(p->pinned + p->within_at);
    uint32_t *plane_begin = (uint32_t *)(p->pinned + p->layers_at);
    uint32_t box_rows[WEIR_MAX_TENSORS];
    p->aligned = true;
    for (uint32_t tensor = 0; tensor < g->n_tensors; tensor++) {
        box_rows[tensor] = make_map(p, tensor, &maps[tensor]);
        if (box_rows[tensor])
            p->n_maps = g->n_tensors; /* a map that is all zero is never used */
    }
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < g->n_layers; layer++) {
        plane_begin[layer] = n;
        for (uint32_t tensor = 0; tensor < g->n_tensors; tensor++) {
            int32_t index = g->layer_index[(size_t)tensor * g->n_layers + layer];
            if (index < 0)
                continue;
            fill_plane(p, tensor, layer, (uint32_t)index, &planes[n]);
            planes[n].box_rows = box_rows[tensor];
            within[n] = plane_within(&planes[n], g->tensors[tensor].page_bytes);
            n++;
        }
    }
    plane_begin[g->n_layers] = n;
}

static int allocate(struct weir_cuda_pages *p)
{
    struct weir_cuda_device *device = p->kernels->device;
    const struct weir_cuda_driver *d = device->driver;
    p->bytes = lay_out(p);
    void *pinned = NULL;
    int rc = weir_cuda_result(
        device, "cuMemHostAlloc",
        d->cuMemHostAlloc(&pinned, p->bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    if (rc)
        return rc;
    p->pinned = pinned;
    memset(pinned, 0, p->bytes);
    return weir_cuda_result(device, "cuMemAlloc", d->cuMemAlloc(&p->device, p->bytes));
}

int weir_cuda_kernels_prepare(struct weir_cuda_kernels *kernels,
                              const struct weir_geometry *geometry, struct weir_cuda_pages **pages)
{
    if (kernels->compute == 0) {
        *pages = NULL;
        return 0;
    }
    struct weir_cuda_pages *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->kernels = kernels;
    p->geometry = geometry;
    uint32_t most = geometry->device_pages < geometry->host_pages ? geometry->device_pages
                                                                  : geometry->host_pages;
    for (p->capacity = 1; p->capacity < RING_TIERS * most;)
        p->capacity *= 2;
    deal_slots(p);
    int rc = allocate(p);
    if (!rc) {
        fill_tables(p);
        /* This also zeroes the arrivals. */
        rc = weir_cuda_kernels_upload(kernels, p->device, p->pinned, p->bytes);
    }
    if (rc) {
        weir_cuda_kernels_release(&p);
        return rc;
    }
    weir_log_line(&kernels->device->base.log, WEIR_LOG_DEBUG,
                  "cuda device %d: copy tables take %" PRIu64 " bytes, and as many pinned",
                  kernels->device->ordinal, p->bytes);
    *pages = p;
    return 0;
}

void weir_cuda_kernels_release(struct weir_cuda_pages **pages)
{
    struct weir_cuda_pages *p = *pages;
    *pages = NULL;
    if (!p)
        return;
    const struct weir_cuda_driver *d = p->kernels->device->driver;
    if (p->device)
        (void)d->cuMemFree(p->device);
    if (p->pinned)
        (void)d->cuMemFreeHost(p->pinned);
    free(p);
}

uint64_t weir_cuda_kernels_bytes(const struct weir_cuda_pages *pages)
{
    return pages ? pages->bytes : 0;
}

bool weir_cuda_kernels_can_tma(const struct weir_cuda_pages *pages)
{
    return pages && pages->aligned && pages->kernels->functions[WEIR_KERNEL_PAGES_TMA];
}

/* ---- Lists --------------------------------------------------------------- */

static struct list_slot *slot_of(const struct list_ring *ring, uint32_t list)
{
    return &ring->slots[list % ring->n_slots];
}

/* Becomes list + 1 when the list ends. */
static uint32_t *word_of(const struct weir_cuda_pages *p, const struct list_ring *ring,
                         uint32_t list)
{
    return (uint32_t *)(p->pinned + ring->words_at) + list % ring->n_slots;
}

static bool has_ended(const struct weir_cuda_pages *p, const struct list_ring *ring, uint32_t list)
{
    return __atomic_load_n(word_of(p, ring, list), __ATOMIC_ACQUIRE) == list + 1;
}

static void retire_oldest(struct list_ring *ring)
{
    ring->used -= slot_of(ring, ring->ended)->n_pages;
    ring->ended++;
}

/* Frees what has ended; whether n pages and a slot are free then. */
static bool has_room(struct weir_cuda_pages *p, struct list_ring *ring, uint32_t n)
{
    while (ring->ended != ring->begun && has_ended(p, ring, ring->ended))
        retire_oldest(ring);
    return ring->begun - ring->ended < ring->n_slots && ring->used + n <= p->capacity;
}

/* Waits until n pages and a slot are free. */
static int make_room(struct weir_cuda_pages *p, struct list_ring *ring, uint32_t n)
{
    struct weir_cuda_device *device = p->kernels->device;
    while (!has_room(p, ring, n)) {
        CUstream stream = slot_of(ring, ring->ended)->stream;
        int rc = weir_cuda_result(device, "cuStreamSynchronize",
                                  device->driver->cuStreamSynchronize(stream));
        if (rc)
            return rc;
        retire_oldest(ring);
    }
    return 0;
}

static void write_pages(struct weir_cuda_pages *p, const struct list_ring *ring,
                        const struct weir_transfer *transfer)
{
    struct weir_page_pair *pairs = (struct weir_page_pair *)(p->pinned + ring->pages_at);
    uint32_t at = ring->head;
    for (uint32_t r = 0; r < transfer->n_runs; r++) {
        struct weir_run run = transfer->runs[r];
        for (int32_t i = 0; i < run.count; i++)
            pairs[at++ & (p->capacity - 1)] =
                (struct weir_page_pair){ run.device + i, run.host + i };
    }
}

/* `n` pages from ring index `from` on, which do not wrap. */
static int upload_part(struct weir_cuda_pages *p, const struct list_ring *ring, CUstream stream,
                       uint32_t from, uint32_t n)
{
    if (n == 0)
        return 0;
    struct weir_cuda_device *device = p->kernels->device;
    uint64_t at = ring->pages_at + (uint64_t)from * sizeof(struct weir_page_pair);
    return weir_cuda_result(
        device, "cuMemcpyHtoDAsync",
        device->driver->cuMemcpyHtoDAsync(p->device + at, p->pinned + at,
                                          (size_t)n * sizeof(struct weir_page_pair), stream));
}

static int upload_pages(struct weir_cuda_pages *p, const struct list_ring *ring, CUstream stream,
                        uint32_t n)
{
    uint32_t from = ring->head & (p->capacity - 1);
    uint32_t first = p->capacity - from < n ? p->capacity - from : n;
    int rc = upload_part(p, ring, stream, from, first);
    return rc ? rc : upload_part(p, ring, stream, 0, n - first);
}

static uint64_t count_pages(const struct weir_transfer *transfer)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < transfer->n_runs; i++)
        n += (uint32_t)transfer->runs[i].count;
    return n;
}

/* Uploads the n pages that were written for the list. */
static int open_list(struct weir_cuda_list *list, uint32_t n)
{
    struct weir_cuda_pages *p = list->pages;
    struct list_ring *ring = &p->rings[list->ring];
    int rc = upload_pages(p, ring, list->stream, n);
    if (rc) {
        /* Half of the list may be on its way: nothing may follow it there. */
        (void)p->kernels->device->driver->cuStreamSynchronize(list->stream);
        return rc;
    }
    list->number = ring->begun;
    list->first = ring->head;
    list->n_pages = n;
    *slot_of(ring, list->number) = (struct list_slot){ n, list->stream };
    ring->begun++;
    ring->head += n;
    ring->used += n;
    return 0;
}

int weir_cuda_list_begin(struct weir_cuda_list *list, struct weir_cuda_pages *pages,
                         CUstream stream, const struct weir_transfer *transfer)
{
    struct list_ring *ring = &pages->rings[transfer->direction];
    struct weir_cuda_device *device = pages->kernels->device;
    uint64_t n = count_pages(transfer);
    if (n > pages->capacity) {
        weir_log_line(&device->base.log, WEIR_LOG_ERROR,
                      "copy: %" PRIu64 " pages in one transfer, at most %u", n, pages->capacity);
        return -E2BIG;
    }
    int rc = make_room(pages, ring, (uint32_t)n);
    if (rc)
        return rc;
    write_pages(pages, ring, transfer);
    *list = (struct weir_cuda_list){
        .pages = pages, .transfer = transfer, .ring = transfer->direction, .stream = stream
    };
    return open_list(list, (uint32_t)n);
}

void weir_cuda_list_end(struct weir_cuda_list *list)
{
    struct weir_cuda_device *device = list->pages->kernels->device;
    const struct list_ring *ring = &list->pages->rings[list->ring];
    uint32_t *word = word_of(list->pages, ring, list->number);
    uint32_t value = list->number + 1;
    if (weir_cuda_result(device, "cuStreamWriteValue32",
                         device->driver->cuStreamWriteValue32(list->stream,
                                                              (CUdeviceptr)(uintptr_t)word, value,
                                                              CU_STREAM_WRITE_VALUE_DEFAULT)) == 0)
        return;
    /* No later list would find the room free, so wait here. A device that fails
     * this as well runs nothing any more. */
    (void)device->driver->cuStreamSynchronize(list->stream);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* ---- Launching ----------------------------------------------------------- */

/* The kernels number a plane's items in 32 bits. */
static bool countable(const struct weir_cuda_pages *p, uint64_t n_pages, uint32_t chunk_bytes)
{
    const struct weir_geometry *g = p->geometry;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct weir_geometry_tensor *t = &g->tensors[i];
        uint64_t unit = t->host_contiguous ? t->page_bytes : t->row_bytes;
        uint64_t units = n_pages * (t->host_contiguous ? 1 : g->page_tokens);
        if (units > 0 && unit / chunk_bytes + 1 > UINT32_MAX / units)
            return false;
    }
    return true;
}

static int make_grid(const struct weir_cuda_pages *p, const struct weir_launch *launch,
                     struct weir_cuda_grid *grid)
{
    if (launch->engine == WEIR_ENGINE_TMA && !p->aligned)
        return weir_invalid(&p->kernels->device->base.log,
                            "copy: engine is tma, but not all of the pages is aligned to 16");
    return weir_cuda_kernels_grid(p->kernels, WEIR_KERNEL_PAGES_TMA, WEIR_KERNEL_PAGES_VECTOR,
                                  launch, "copy", grid);
}

int weir_cuda_kernels_check(const struct weir_cuda_pages *pages, const struct weir_launch *launch)
{
    struct weir_cuda_grid grid;
    return pages ? make_grid(pages, launch, &grid) : -ENOTSUP;
}

int weir_cuda_list_launch(const struct weir_cuda_list *list, uint32_t layer_begin,
                          uint32_t layer_end, const struct weir_launch *launch, bool publish)
{
    const struct weir_cuda_pages *p = list->pages;
    const struct weir_geometry *g = p->geometry;
    const struct weir_transfer *transfer = list->transfer;
    const struct list_ring *ring = &p->rings[list->ring];
    if (layer_begin == layer_end)
        return 0;
    struct weir_cuda_grid grid;
    int rc = make_grid(p, launch, &grid);
    if (rc)
        return rc;
    uint32_t chunk = grid.stage_bytes ? grid.stage_bytes : WEIR_VECTOR_CHUNK_BYTES;
    if (!countable(p, list->n_pages, chunk))
        return weir_invalid(&p->kernels->device->base.log,
                            "copy: %u pages are more than a kernel can count in chunks of %u bytes",
                            list->n_pages, chunk);
    uint64_t arrivals =
        ring->arrivals_at + (uint64_t)(list->number % ARRIVALS) * g->n_layers * sizeof(uint32_t);
    struct weir_pages_args args = {
        .planes = (const struct weir_copy_plane *)(uintptr_t)(p->device + p->planes_at),
        .plane_begin = (const uint32_t *)(uintptr_t)(p->device + p->layers_at),
        .maps = (const struct weir_tensor_map *)(uintptr_t)p->device,
        .pages = (const struct weir_page_pair *)(uintptr_t)(p->device + ring->pages_at),
        .arrivals = (uint32_t *)(uintptr_t)(p->device + arrivals),
        .words = publish ? transfer->words : NULL,
        .generation = transfer->generation,
        .first = list->first,
        .mask = p->capacity - 1,
        .n_pages = list->n_pages,
        .layer_begin = layer_begin,
        .layer_end = layer_end,
        .segment_pages = g->segment_pages,
        .segment_magic = WEIR_MAGIC(g->segment_pages),
        .page_tokens = g->page_tokens,
        .n_maps = p->n_maps,
        .load = transfer->direction == WEIR_LOAD,
        .stage_bytes = grid.stage_bytes,
    };
    return weir_cuda_kernels_launch(p->kernels, &grid, list->stream, &args);
}

int weir_cuda_kernels_copy(struct weir_cuda_pages *pages, CUstream stream,
                           const struct weir_transfer *transfer, uint32_t layer_begin,
                           uint32_t layer_end, const struct weir_launch *launch, bool publish)
{
    struct weir_cuda_list list;
    int rc = weir_cuda_list_begin(&list, pages, stream, transfer);
    if (rc)
        return rc;
    rc = weir_cuda_list_launch(&list, layer_begin, layer_end, launch, publish);
    weir_cuda_list_end(&list);
    return rc;
}

/* ---- Within the device ----------------------------------------------------- */

/* The stream has nothing else to do meanwhile: a CTA for so many bytes. */
#define BYTES_OF_A_CTA (UINT64_C(512) << 10)
#define MAX_WITHIN_CTAS 64u

static int launch_within(const struct weir_cuda_list *list)
{
    const struct weir_cuda_pages *p = list->pages;
    const struct weir_geometry *g = p->geometry;
    uint64_t ctas = list->n_pages * g->page_bytes / BYTES_OF_A_CTA + 1;
    const struct weir_launch launch = {
        .engine = WEIR_ENGINE_VECTOR,
        .ctas = (uint32_t)(ctas < MAX_WITHIN_CTAS ? ctas : MAX_WITHIN_CTAS),
    };
    struct weir_cuda_grid grid;
    int rc = weir_cuda_kernels_grid(p->kernels, WEIR_KERNEL_PAGES_TMA, WEIR_KERNEL_PAGES_VECTOR,
                                    &launch, "copy pages", &grid);
    if (rc)
        return rc;
    struct weir_pages_args args = {
        .planes = (const struct weir_copy_plane *)(uintptr_t)(p->device + p->within_at),
        .plane_begin = (const uint32_t *)(uintptr_t)(p->device + p->layers_at),
        .pages = (const struct weir_page_pair *)(uintptr_t)(p->device + p->rings[WITHIN].pages_at),
        .first = list->first,
        .mask = p->capacity - 1,
        .n_pages = list->n_pages,
        .layer_end = g->n_layers,
        .segment_pages = g->device_pages,
        .segment_magic = WEIR_MAGIC(g->device_pages),
        .page_tokens = g->page_tokens,
        .load = 1,
    };
    return weir_cuda_kernels_launch(p->kernels, &grid, list->stream, &args);
}

/* Whether the kernel can number the chunks of a copy of whole pages. */
static bool within_is_countable(const struct weir_geometry *g, uint32_t n)
{
    for (uint32_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].page_bytes / WEIR_VECTOR_CHUNK_BYTES + 1 > UINT32_MAX / n)
            return false;
    return true;
}

int weir_cuda_kernels_copy_within(struct weir_cuda_pages *pages, CUstream stream,
                                  const weir_page_copy *copies, uint32_t n)
{
    if (!pages)
        return -ENOTSUP;
    struct list_ring *ring = &pages->rings[WITHIN];
    if (n > pages->capacity || !within_is_countable(pages->geometry, n))
        return -E2BIG;
    if (!has_room(pages, ring, n))
        return -EAGAIN;
    struct weir_page_pair *pairs = (struct weir_page_pair *)(pages->pinned + ring->pages_at);
    for (uint32_t i = 0; i < n; i++)
        pairs[(ring->head + i) & (pages->capacity - 1)] =
            (struct weir_page_pair){ copies[i].to.id, copies[i].from.id };
    struct weir_cuda_list list = { .pages = pages, .ring = WITHIN, .stream = stream };
    int rc = open_list(&list, n);
    if (rc)
        return rc;
    rc = launch_within(&list);
    weir_cuda_list_end(&list);
    return rc;
}
