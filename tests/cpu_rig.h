/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CPU_RIG_H
#define WEIR_TESTS_CPU_RIG_H

/* A CPU device with a small pool in both tiers, for tests of the device alone.
 * The pieces of a tier are filled with what piece_byte() says of them. */

#include "device/device.h"

#include <weir/cpu_device.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIG_PAGES 8u
#define RIG_LAYERS 3u
#define RIG_TENSORS 2u
#define RIG_WORDS 8u
#define RIG_LINES 64u

/* 0: threads, else the scheduler's seed. */
#define EACH_MODE(seed) for (uint64_t seed = 0; seed <= 12; seed++)
#define EACH_SEED(seed) for (uint64_t seed = 1; seed <= 40; seed++)

struct rig {
    weir_device *device;
    const struct weir_device_ops *ops;
    struct weir_geometry *geometry;
    uint64_t memory;
    uint8_t *host;
    uint32_t *words;
    uint32_t device_pool;
    uint32_t host_pool;
    weir_log_level levels[RIG_LINES];
    char lines[RIG_LINES][256];
    uint32_t n_lines;
};

static inline void rig_log(void *user, weir_log_level level, const char *text)
{
    struct rig *rig = user;
    uint32_t i = rig->n_lines++ % RIG_LINES;
    rig->levels[i] = level;
    snprintf(rig->lines[i], sizeof rig->lines[i], "%s", text);
}

static inline bool rig_logged(const struct rig *rig, const char *part)
{
    for (uint32_t i = 0; i < rig->n_lines && i < RIG_LINES; i++)
        if (strstr(rig->lines[i], part))
            return true;
    return false;
}

static inline weir_cpu_device_params rig_params(uint64_t seed)
{
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.seed = seed;
    return params;
}

/* Tensor 0 is in all layers, its pages longer than a block; tensor 1 is not in
 * layer 1. */
static inline void rig_open(struct rig *rig, weir_cpu_device_params params, weir_host_layout layout)
{
    *rig = (struct rig){ 0 };
    params.log = (weir_log){ rig_log, rig, WEIR_LOG_DEBUG };
    cr_assert(eq(int, weir_cpu_device_open(&rig->device, &params), 0));
    rig->ops = rig->device->ops;

    static const uint32_t layers[] = { 0, 2 };
    const weir_tensor tensors[RIG_TENSORS] = {
        { .name = "k", .row_bytes = 1500, .page_bytes = 6000 },
        { .name = "v", .row_bytes = 13, .page_bytes = 52, .n_layers = 2, .layers = layers }
    };
    const weir_shape shape = { 4, RIG_LAYERS, RIG_TENSORS, tensors };
    cr_assert(eq(int,
                 weir_geometry_create(&rig->geometry, &shape, NULL, RIG_PAGES, layout, RIG_PAGES, 3,
                                      &params.log),
                 0));
    struct weir_geometry *g = rig->geometry;
    cr_assert(eq(
        int, rig->ops->memory_alloc(rig->device, weir_geometry_device_bytes(g), &rig->memory), 0));
    uint64_t bytes = (g->host_bytes + 4095) / 4096 * 4096;
    rig->host = aligned_alloc(4096, bytes);
    cr_assert(ne(ptr, rig->host, NULL));
    memset(rig->host, 0xEE, bytes);
    memset((void *)(uintptr_t)rig->memory, 0xDD, weir_geometry_device_bytes(g));
    cr_assert(eq(int, rig->ops->host_register(rig->device, rig->host, bytes), 0));
    weir_geometry_bind(g, rig->memory, (uintptr_t)rig->host, 0);
    cr_assert(eq(int, rig->ops->words_alloc(rig->device, RIG_WORDS, &rig->words), 0));
    cr_assert(eq(
        int,
        rig->ops->pool_register(rig->device, RIG_PAGES, RIG_TENSORS, RIG_LAYERS, &rig->device_pool),
        0));
    cr_assert(eq(
        int,
        rig->ops->pool_register(rig->device, RIG_PAGES, RIG_TENSORS, RIG_LAYERS, &rig->host_pool),
        0));
}

static inline void rig_close(struct rig *rig)
{
    rig->ops->pool_unregister(rig->device, rig->device_pool);
    rig->ops->pool_unregister(rig->device, rig->host_pool);
    rig->ops->words_free(rig->device, rig->words);
    rig->ops->host_unregister(rig->device, rig->host);
    rig->ops->memory_free(rig->device, rig->memory);
    cr_assert(eq(int, weir_device_close(&rig->device), 0));
    cr_assert(eq(ptr, rig->device, NULL));
    free(rig->host);
    weir_geometry_destroy(&rig->geometry);
}

static inline weir_stream *rig_stream(struct rig *rig)
{
    weir_stream *stream;
    cr_assert(eq(int, weir_cpu_stream_create(rig->device, &stream), 0));
    return stream;
}

static inline weir_event *rig_event(struct rig *rig)
{
    weir_event *event;
    cr_assert(eq(int, rig->ops->event_create(rig->device, &event), 0));
    return event;
}

static inline void rig_synchronize(struct rig *rig, weir_stream *stream)
{
    cr_assert(eq(int, rig->ops->stream_synchronize(rig->device, stream), 0));
}

/* Lets everything run that can; with threads, nothing needs to be done. */
static inline void rig_run(struct rig *rig)
{
    weir_cpu_device_run(rig->device, SIZE_MAX);
}

static inline struct weir_transfer rig_transfer(struct rig *rig, enum weir_direction direction,
                                                const struct weir_run *runs, uint32_t n_runs)
{
    return (struct weir_transfer){ .geometry = rig->geometry,
                                   .runs = runs,
                                   .n_runs = n_runs,
                                   .direction = direction,
                                   .layer_end = RIG_LAYERS,
                                   .device_pool = rig->device_pool,
                                   .host_pool = rig->host_pool };
}

static inline void rig_copy(struct rig *rig, weir_stream *stream, const struct weir_transfer *t)
{
    uint32_t enqueued = UINT32_MAX;
    cr_assert(eq(int, rig->ops->copy(rig->device, stream, t, &enqueued), 0));
    cr_assert(eq(u32, enqueued, t->layer_end));
}

static inline bool rig_has_piece(const struct rig *rig, uint32_t tensor, uint32_t layer)
{
    return rig->geometry->layer_index[tensor * RIG_LAYERS + layer] >= 0;
}

static inline uint8_t *rig_device_row(const struct rig *rig, uint32_t tensor, uint32_t layer,
                                      int32_t page, uint32_t token)
{
    uint64_t piece = weir_geometry_device(rig->geometry, tensor, layer, (weir_device_page){ page });
    return (uint8_t *)(uintptr_t)piece + token * rig->geometry->tensors[tensor].row_bytes;
}

static inline uint8_t *rig_host_row(const struct rig *rig, uint32_t tensor, uint32_t layer,
                                    int32_t page, uint32_t token)
{
    return (uint8_t *)(uintptr_t)weir_geometry_host(rig->geometry, tensor, layer,
                                                    (weir_host_page){ page }, token);
}

static inline uint8_t piece_byte(int32_t page, uint32_t tensor, uint32_t layer, uint64_t at)
{
    return (uint8_t)(17u * (uint32_t)page + 5u * tensor + 3u * layer + 7u * at + (at >> 8));
}

/* Whether a row-finding function's piece holds the bytes of page `as`; fills it
 * with them first if `fill`. */
static inline bool rig_piece(const struct rig *rig, bool host, bool fill, uint32_t tensor,
                             uint32_t layer, int32_t page, int32_t as)
{
    uint32_t row_bytes = rig->geometry->tensors[tensor].row_bytes;
    bool same = true;
    for (uint32_t token = 0; token < rig->geometry->page_tokens; token++) {
        uint8_t *row = host ? rig_host_row(rig, tensor, layer, page, token)
                            : rig_device_row(rig, tensor, layer, page, token);
        for (uint32_t i = 0; i < row_bytes; i++) {
            uint8_t expected = piece_byte(as, tensor, layer, (uint64_t)token * row_bytes + i);
            if (fill)
                row[i] = expected;
            same = same && row[i] == expected;
        }
    }
    return same;
}

static inline void rig_fill(struct rig *rig, bool host)
{
    for (uint32_t tensor = 0; tensor < RIG_TENSORS; tensor++)
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
            for (int32_t page = 1; page <= (int32_t)RIG_PAGES; page++)
                if (rig_has_piece(rig, tensor, layer))
                    rig_piece(rig, host, true, tensor, layer, page, page);
}

/* Whether all pieces of a page in one layer hold the bytes of page `as`. */
static inline bool rig_layer_is(const struct rig *rig, bool host, uint32_t layer, int32_t page,
                                int32_t as)
{
    bool same = true;
    for (uint32_t tensor = 0; tensor < RIG_TENSORS; tensor++)
        if (rig_has_piece(rig, tensor, layer))
            same = same && rig_piece(rig, host, false, tensor, layer, page, as);
    return same;
}

/* A launched function that says that it ran. */
static inline void rig_raise(void *flag)
{
    atomic_fetch_add((atomic_uint *)flag, 1);
}

static inline void rig_launch(struct rig *rig, weir_stream *stream, void (*fn)(void *), void *arg)
{
    cr_assert(eq(int, weir_cpu_launch(rig->device, stream, fn, arg, NULL, 0), 0));
}

/* Waits until a launched function has run, without the host being ordered
 * after anything. */
static inline void rig_until(struct rig *rig, atomic_uint *flag, unsigned value)
{
    while (atomic_load(flag) < value) {
        if (weir_cpu_device_run(rig->device, 1) == 0)
            sched_yield();
    }
}

#endif
