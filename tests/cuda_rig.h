/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CUDA_RIG_H
#define WEIR_TESTS_CUDA_RIG_H

/* A CUDA device on the fake driver, and a pool in both tiers with a model of
 * what it should hold. Device memory is the fake's, so that tests may look into
 * it. */

#include "copy_model.h"
#include "device/cuda_device.h"
#include "fake_cuda/fake_cuda.h"
#include "log_capture.h"
#include "pool/host_memory.h"
#include "random_shape.h"

#include <weir/cuda.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#define RIG_PAGES 24u
#define RIG_WORDS RANDOM_SHAPE_LAYERS

struct cuda_rig {
    struct fake_cuda *fake;
    struct log_capture capture;
    weir_device *device;
    const struct weir_device_ops *ops;
    weir_stream *stream;
};

static inline void rig_open_device(struct cuda_rig *rig)
{
    rig->fake = fake_cuda_find();
    cr_assert(ne(ptr, rig->fake, NULL), "not the fake driver: is LD_LIBRARY_PATH set?");
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.log = log_capture_log(&rig->capture);
    cr_assert(eq(int, weir_device_open(&rig->device, &params), 0), "%s", rig->capture.last);
    rig->ops = rig->device->ops;
    cr_assert(eq(int, rig->ops->stream_create(rig->device, 0, &rig->stream), 0));
}

/* The driver has everything back, and nothing was done that it would punish. */
static inline void rig_check_driver(const struct fake_cuda *fake)
{
    cr_assert(zero(u32, fake->n_violations), "%s", fake->violation);
    cr_assert(zero(int, fake->contexts));
    cr_assert(eq(int, (int)fake->mode, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert(zero(int, fake->retained));
    cr_assert(zero(u32, fake->n_allocations));
    cr_assert(zero(u32, fake->n_streams));
    cr_assert(zero(u32, fake->n_events));
}

/* Nothing is left anywhere. */
static inline void rig_check_clean(const struct fake_cuda *fake)
{
    rig_check_driver(fake);
#ifdef __SANITIZE_ADDRESS__
    cr_assert(eq(int, __lsan_do_recoverable_leak_check(), 0));
#endif
}

static inline void rig_close_device(struct cuda_rig *rig)
{
    rig->ops->stream_destroy(rig->device, rig->stream);
    cr_assert(eq(int, weir_device_close(&rig->device), 0));
    rig_check_clean(rig->fake);
}

/* The newest of a function. */
static inline const struct fake_call *rig_last_call(const struct cuda_rig *rig,
                                                    enum fake_function function)
{
    for (uint32_t i = rig->fake->n_calls; i-- > 0;)
        if (rig->fake->calls[i].function == function)
            return &rig->fake->calls[i];
    cr_assert(false, "function %d was not called", (int)function);
    return NULL;
}

static inline CUstream rig_handle(weir_stream *stream)
{
    return (CUstream)weir_cuda_from_stream(stream);
}

static inline void rig_run(struct cuda_rig *rig)
{
    cr_assert(eq(int, rig->ops->stream_synchronize(rig->device, rig->stream), 0), "%s",
              rig->capture.last);
}

/* ---- Pools ----------------------------------------------------------------- */

struct cuda_pools {
    struct weir_geometry *geometry;
    struct weir_host_memory *host;
    uint64_t device_base;
    uint64_t device_bytes;
    uint8_t *device_model;
    uint8_t *host_model;
    uint32_t *words;
    void *state;
    weir_device_plane planes[RANDOM_SHAPE_TENSORS * RANDOM_SHAPE_LAYERS];
};

static inline void pools_fill(struct random *random, void *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)random_next(random);
}

/* `spaced`: the device's pages have gaps. `chunk`: the largest registration. */
static inline void pools_open(struct cuda_rig *rig, struct cuda_pools *pools,
                              const weir_shape *shape, weir_host_layout layout, bool spaced,
                              uint64_t chunk, struct random *random)
{
    *pools = (struct cuda_pools){ 0 };
    const weir_log *log = &rig->device->log;
    uint32_t n_planes = RANDOM_SHAPE_TENSORS * RANDOM_SHAPE_LAYERS;
    if (spaced) {
        pools->device_bytes = model_spaced_planes(shape, RIG_PAGES, pools->planes);
        cr_assert(eq(
            int, rig->ops->memory_alloc(rig->device, pools->device_bytes, &pools->device_base), 0));
        for (uint32_t i = 0; i < n_planes; i++)
            pools->planes[i].base += pools->device_base;
    }
    cr_assert(eq(int,
                 weir_geometry_create(&pools->geometry, shape, spaced ? pools->planes : NULL,
                                      RIG_PAGES, layout, RIG_PAGES, 8, log),
                 0));
    if (!spaced) {
        pools->device_bytes = weir_geometry_device_bytes(pools->geometry);
        cr_assert(eq(
            int, rig->ops->memory_alloc(rig->device, pools->device_bytes, &pools->device_base), 0));
    }
    struct weir_host_memory_params params = { .bytes = pools->geometry->host_bytes,
                                              .granule = 1,
                                              .chunk_limit = chunk };
    cr_assert(eq(int, weir_host_memory_create(&pools->host, rig->device, &params, log), 0));
    weir_geometry_bind(pools->geometry, spaced ? 0 : pools->device_base,
                       (uintptr_t)pools->host->base, pools->host->chunk_bytes);
    cr_assert(eq(int, rig->ops->words_alloc(rig->device, RIG_WORDS, &pools->words), 0));
    cr_assert(eq(int,
                 rig->ops->transfer_prepare(rig->device, pools->geometry, RIG_PAGES, &pools->state),
                 0));
    pools_fill(random, (void *)(uintptr_t)pools->device_base, pools->device_bytes);
    pools_fill(random, pools->host->base, pools->host->bytes);
    pools->device_model = malloc(pools->device_bytes);
    pools->host_model = malloc(pools->host->bytes);
    cr_assert(pools->device_model && pools->host_model);
    memcpy(pools->device_model, (void *)(uintptr_t)pools->device_base, pools->device_bytes);
    memcpy(pools->host_model, pools->host->base, pools->host->bytes);
}

/* One tensor, two layers, opaque pages of these bytes. */
static inline void pools_open_plain(struct cuda_rig *rig, struct cuda_pools *pools,
                                    uint64_t page_bytes)
{
    struct random random = { 9 };
    weir_tensor tensor = { .page_bytes = page_bytes };
    weir_shape shape = { .page_tokens = 1, .n_layers = 2, .n_tensors = 1, .tensors = &tensor };
    pools_open(rig, pools, &shape, WEIR_HOST_SEGMENTED, false, 0, &random);
}

static inline void pools_close(struct cuda_rig *rig, struct cuda_pools *pools)
{
    free(pools->device_model);
    free(pools->host_model);
    rig->ops->transfer_release(rig->device, pools->state);
    rig->ops->words_free(rig->device, pools->words);
    weir_host_memory_destroy(&pools->host);
    rig->ops->memory_free(rig->device, pools->device_base);
    weir_geometry_destroy(&pools->geometry);
}

static inline struct weir_transfer pools_transfer(const struct cuda_pools *pools,
                                                  const struct weir_run *runs, uint32_t n_runs,
                                                  enum weir_direction direction)
{
    return (struct weir_transfer){ .geometry = pools->geometry,
                                   .runs = runs,
                                   .n_runs = n_runs,
                                   .direction = direction,
                                   .layer_end = pools->geometry->n_layers,
                                   .state = pools->state };
}

/* Makes a transfer in the model. */
static inline void pools_model_copy(struct cuda_pools *pools, const struct weir_transfer *transfer)
{
    for (uint32_t l = transfer->layer_begin; l < transfer->layer_end; l++)
        model_copy_layer(transfer, l, pools->device_model, pools->device_base, pools->host_model);
}

static inline void pools_check(const struct cuda_pools *pools)
{
    cr_assert(zero(int, memcmp(pools->device_model, (void *)(uintptr_t)pools->device_base,
                               pools->device_bytes)));
    cr_assert(zero(int, memcmp(pools->host_model, pools->host->base, pools->host->bytes)));
}

/* A transfer has run, and nothing else is in flight. */
static inline void pools_check_copy(struct cuda_pools *pools, const struct weir_transfer *transfer)
{
    pools_model_copy(pools, transfer);
    pools_check(pools);
}

#endif
