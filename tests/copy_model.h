/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_COPY_MODEL_H
#define WEIR_TESTS_COPY_MODEL_H

/* What a copy by plan should do, a row at a time, to copies of both pools. */

#include "device/device.h"

#include <string.h>

/* Planes for the device's pool in which a gap follows each page, from address 0
 * on. Returns the bytes they need. */
static inline uint64_t model_spaced_planes(const weir_shape *shape, uint32_t n_pages,
                                           weir_device_plane *planes)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < shape->n_tensors; t++) {
        const weir_tensor *tensor = &shape->tensors[t];
        uint64_t stride = (tensor->page_bytes + 15) / 16 * 16 + 48;
        uint32_t n_layers = tensor->layers ? tensor->n_layers : shape->n_layers;
        for (uint32_t l = 0; l < n_layers; l++) {
            *planes++ = (weir_device_plane){ at, stride };
            at += stride * (n_pages + 1);
        }
    }
    return at;
}

static inline void model_copy_page(const struct weir_transfer *transfer, uint32_t tensor,
                                   uint32_t layer, weir_device_page device_page,
                                   weir_host_page host_page, uint8_t *device, uint64_t device_base,
                                   uint8_t *host)
{
    const struct weir_geometry *g = transfer->geometry;
    const struct weir_geometry_tensor *t = &g->tensors[tensor];
    uint64_t bytes = t->host_contiguous ? t->page_bytes : t->row_bytes;
    uint32_t rows = t->host_contiguous ? 1 : g->page_tokens;
    for (uint32_t row = 0; row < rows; row++) {
        uint8_t *there = device + (weir_geometry_device(g, tensor, layer, device_page) +
                                   row * bytes - device_base);
        uint8_t *here =
            host + (weir_geometry_host(g, tensor, layer, host_page, row) - g->host_base);
        if (transfer->direction == WEIR_LOAD)
            memcpy(there, here, bytes);
        else
            memcpy(here, there, bytes);
    }
}

/* `device` and `host` hold what the pools held, the device's from device_base
 * on. */
static inline void model_copy_layer(const struct weir_transfer *transfer, uint32_t layer,
                                    uint8_t *device, uint64_t device_base, uint8_t *host)
{
    const struct weir_geometry *g = transfer->geometry;
    for (uint32_t t = 0; t < g->n_tensors; t++) {
        if (g->layer_index[(size_t)t * g->n_layers + layer] < 0)
            continue;
        for (uint32_t i = 0; i < transfer->n_runs; i++)
            for (int32_t p = 0; p < transfer->runs[i].count; p++)
                model_copy_page(
                    transfer, t, layer, (weir_device_page){ transfer->runs[i].device + p },
                    (weir_host_page){ transfer->runs[i].host + p }, device, device_base, host);
    }
}

#endif
