/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern_gpu.h"

#include "pattern.h"

#include <errno.h>
#include <string.h>

#if WEIR_HAVE_KERNELS
extern const unsigned long long weir_pattern_image[];
static const void *const image = weir_pattern_image;
#else
static const void *const image = NULL;
#endif

#define THREADS 256u
#define PART_BYTES 32768u /* of a piece, for one block of threads */
#define MAX_PARTS 64u

int weir_pattern_gpu_open(struct weir_pattern_gpu *pattern, weir_device *device)
{
    struct weir_pattern_gpu made = { 0 };
    int rc = weir_gpu_open(&made.gpu, device, image);
    if (rc == 0)
        rc = weir_gpu_function(&made.gpu, "weir_pattern_fill", &made.fill);
    if (rc == 0)
        rc = weir_gpu_function(&made.gpu, "weir_pattern_check", &made.check);
    if (rc)
        weir_gpu_close(&made.gpu);
    else
        *pattern = made;
    return rc;
}

void weir_pattern_gpu_close(struct weir_pattern_gpu *pattern)
{
    weir_gpu_close(&pattern->gpu);
}

/* ---- Planes -------------------------------------------------------------- */

static void describe(struct weir_pattern_plane *plane, const weir_rank *rank,
                     const weir_shape *shape, uint32_t number, uint32_t layer, uint32_t tensor)
{
    const weir_tensor *t = &shape->tensors[tensor];
    uint64_t base = weir_rank_device_address(rank, tensor, layer, (weir_device_page){ 0 });
    uint64_t next = weir_rank_device_address(rank, tensor, layer, (weir_device_page){ 1 });
    *plane = (struct weir_pattern_plane){
        .base = base,
        .stride = next - base,
        .place = weir_pattern_place(number, layer, tensor),
        .rows = !base          ? 0
                : t->row_bytes ? shape->page_tokens
                               : 1,
        .row_bytes = t->row_bytes ? t->row_bytes : (uint32_t)t->page_bytes,
    };
}

int weir_pattern_planes_create(struct weir_pattern_planes *planes, struct weir_pattern_gpu *pattern,
                               const weir_rank *rank, const weir_shape *shape, uint32_t number,
                               weir_stream *stream)
{
    weir_device *device = &pattern->gpu.device->base;
    uint64_t bytes =
        (uint64_t)shape->n_layers * shape->n_tensors * sizeof(struct weir_pattern_plane);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < shape->n_tensors; i++)
        if (shape->tensors[i].page_bytes > largest)
            largest = shape->tensors[i].page_bytes;
    uint32_t *pinned = NULL;
    uint64_t table = 0;
    int rc = device->ops->words_alloc(device, (uint32_t)(bytes / sizeof *pinned), &pinned);
    if (rc == 0)
        rc = device->ops->memory_alloc(device, bytes, &table);
    if (rc == 0) {
        struct weir_pattern_plane *plane = (struct weir_pattern_plane *)(void *)pinned;
        for (uint32_t layer = 0; layer < shape->n_layers; layer++)
            for (uint32_t tensor = 0; tensor < shape->n_tensors; tensor++)
                describe(plane++, rank, shape, number, layer, tensor);
        rc = weir_gpu_copy(&pattern->gpu, stream, table, (uintptr_t)pinned, bytes);
        int sync = device->ops->stream_synchronize(device, stream);
        rc = rc ? rc : sync;
    }
    device->ops->words_free(device, pinned);
    if (rc) {
        device->ops->memory_free(device, table);
        return rc;
    }
    uint64_t parts = (largest + PART_BYTES - 1) / PART_BYTES;
    *planes = (struct weir_pattern_planes){ table, shape->n_tensors,
                                            parts > MAX_PARTS ? MAX_PARTS : (uint32_t)parts };
    return 0;
}

void weir_pattern_planes_destroy(struct weir_pattern_planes *planes,
                                 struct weir_pattern_gpu *pattern)
{
    if (planes->table)
        pattern->gpu.device->base.ops->memory_free(&pattern->gpu.device->base, planes->table);
    *planes = (struct weir_pattern_planes){ 0 };
}

/* ---- Batches ------------------------------------------------------------- */

void weir_pattern_batch_destroy(struct weir_pattern_batch *batch, struct weir_pattern_gpu *pattern)
{
    if (batch->pinned) {
        weir_device *device = &pattern->gpu.device->base;
        device->ops->words_free(device, batch->pinned);
        device->ops->memory_free(device, batch->device);
    }
    *batch = (struct weir_pattern_batch){ 0 };
}

/* Nothing in a batch is kept, so a larger one is a new one; twice as large, so
 * that this is rare: the driver waits for the whole GPU. */
static int enlarge(struct weir_pattern_batch *batch, struct weir_pattern_gpu *pattern,
                   uint64_t bytes)
{
    if (bytes <= batch->capacity)
        return 0;
    weir_device *device = &pattern->gpu.device->base;
    bytes = (2 * bytes + 3) / 4 * 4;
    weir_pattern_batch_destroy(batch, pattern);
    if (bytes / 4 > UINT32_MAX)
        return -ENOMEM;
    uint32_t *pinned;
    int rc = device->ops->words_alloc(device, (uint32_t)(bytes / 4), &pinned);
    if (rc)
        return rc;
    rc = device->ops->memory_alloc(device, bytes, &batch->device);
    if (rc) {
        device->ops->words_free(device, pinned);
        return rc;
    }
    batch->pinned = pinned;
    batch->capacity = bytes;
    return 0;
}

static uint64_t used_bytes(const struct weir_pattern_batch *batch)
{
    return (uint64_t)((char *)(batch->fingerprints + batch->n_fingerprints) -
                      (char *)batch->pinned);
}

int weir_pattern_batch_begin(struct weir_pattern_batch *batch, struct weir_pattern_gpu *pattern,
                             uint32_t n_fills, uint32_t n_checks, uint64_t n_fingerprints)
{
    uint64_t entries = ((uint64_t)n_fills + n_checks) * sizeof(struct weir_pattern_entry);
    int rc =
        enlarge(batch, pattern,
                sizeof(struct weir_pattern_wrong) + entries + n_fingerprints * sizeof(uint64_t));
    if (rc)
        return rc;
    batch->n_fills = n_fills;
    batch->n_checks = n_checks;
    batch->n_fingerprints = n_fingerprints;
    batch->wrong = (struct weir_pattern_wrong *)(void *)batch->pinned;
    batch->fills = (struct weir_pattern_entry *)(void *)(batch->wrong + 1);
    batch->checks = batch->fills + n_fills;
    batch->fingerprints = (uint64_t *)(void *)(batch->checks + n_checks);
    *batch->wrong = (struct weir_pattern_wrong){ 0 };
    return 0;
}

int weir_pattern_batch_upload(const struct weir_pattern_batch *batch,
                              struct weir_pattern_gpu *pattern, weir_stream *stream)
{
    return weir_gpu_copy(&pattern->gpu, stream, batch->device, (uintptr_t)batch->pinned,
                         used_bytes(batch));
}

int weir_pattern_batch_download(const struct weir_pattern_batch *batch,
                                struct weir_pattern_gpu *pattern, weir_stream *stream)
{
    return weir_gpu_copy(&pattern->gpu, stream, (uintptr_t)batch->pinned, batch->device,
                         sizeof *batch->wrong);
}

struct weir_pattern_args weir_pattern_batch_args(const struct weir_pattern_batch *batch,
                                                 const struct weir_pattern_planes *planes,
                                                 uint32_t layer)
{
    uint64_t moved = batch->device - (uintptr_t)batch->pinned;
    return (struct weir_pattern_args){
        .planes = (const struct weir_pattern_plane *)(uintptr_t)planes->table +
                  (size_t)layer * planes->n_tensors,
        .entries = (const void *)((uintptr_t)batch->checks + moved),
        .fingerprints = (const void *)((uintptr_t)batch->fingerprints + moved),
        .wrong = (void *)(uintptr_t)batch->device,
        .layer = layer,
    };
}

static int launch(struct weir_pattern_gpu *pattern, const struct weir_pattern_planes *planes,
                  CUfunction function, uint32_t n, const struct weir_pattern_args *args,
                  weir_stream *stream)
{
    struct weir_gpu_grid grid = { n, planes->n_tensors, planes->parts, THREADS, 0 };
    return n ? weir_gpu_launch(&pattern->gpu, stream, function, grid, args) : 0;
}

int weir_pattern_batch_fill(const struct weir_pattern_batch *batch,
                            struct weir_pattern_gpu *pattern,
                            const struct weir_pattern_planes *planes, uint32_t layer,
                            weir_stream *stream)
{
    struct weir_pattern_args args = weir_pattern_batch_args(batch, planes, layer);
    args.entries -= batch->n_fills;
    return launch(pattern, planes, pattern->fill, batch->n_fills, &args, stream);
}

int weir_pattern_batch_check(const struct weir_pattern_batch *batch,
                             struct weir_pattern_gpu *pattern,
                             const struct weir_pattern_planes *planes, uint32_t layer,
                             weir_stream *stream)
{
    struct weir_pattern_args args = weir_pattern_batch_args(batch, planes, layer);
    return launch(pattern, planes, pattern->check, batch->n_checks, &args, stream);
}
