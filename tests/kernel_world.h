/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_KERNEL_WORLD_H
#define WEIR_TESTS_KERNEL_WORLD_H

/* Two tiers for the kernels on the warp model, and what they should hold after a
 * transfer.
 *
 *     host, 28 pages        device, 20 pages
 *     ┌───────────────┐     ┌───────────────┐
 *     │ tier[0]       │ ◄─► │ tier[1]       │   moved by the kernels
 *     │ expected[0]   │ ◄─► │ expected[1]   │   moved by memcpy, row by row
 *     └───────────────┘     └───────────────┘
 *
 * Each tier is an allocation of its own, so that AddressSanitizer sees what lies
 * behind the last page. */

#include "random.h"
#include "warp_model/model_check.h"
#include "warp_model/model_driver.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

static const weir_host_layout layouts[] = { WEIR_HOST_SEGMENTED, WEIR_HOST_LAYER_FIRST,
                                            WEIR_HOST_PAGE_FIRST, WEIR_HOST_PAGE_FIRST_DIRECT };

#define WORLD_LAYERS 8u

struct world {
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    struct weir_geometry *geometry;
    struct weir_cuda_pages *pages;
    uint8_t *tier[2]; /* host, device */
    uint8_t *expected[2];
    uint64_t bytes[2];
    struct weir_transfer transfer;
    struct weir_run runs[64];
    uint32_t words[WORLD_LAYERS];
    uint32_t next_word;
    uint64_t seed;
};

static inline void world_open(struct world *w, uint64_t seed, const weir_shape *shape,
                              weir_host_layout layout, uint32_t compute)
{
    memset(w, 0, sizeof *w);
    w->seed = seed;
    model_start(&w->device, compute);
    model.seed = seed + 1;
    must(weir_cuda_kernels_create(&w->kernels, &w->device) == 0, "kernels");
    must(weir_geometry_create(&w->geometry, shape, NULL, 20, layout, 28, 5, NULL) == 0, "geometry");
    w->bytes[0] = w->geometry->host_bytes;
    w->bytes[1] = weir_geometry_device_bytes(w->geometry);
    for (uint32_t i = 0; i < 2; i++) {
        w->tier[i] = model_alloc(w->bytes[i]);
        w->expected[i] = malloc(w->bytes[i]);
    }
    weir_geometry_bind(w->geometry, (uintptr_t)w->tier[1], (uintptr_t)w->tier[0], 0);
    must(weir_cuda_kernels_prepare(w->kernels, w->geometry, &w->pages) == 0, "prepare");
}

static inline void world_close(struct world *w)
{
    weir_cuda_kernels_release(&w->pages);
    weir_cuda_kernels_destroy(&w->kernels);
    weir_geometry_destroy(&w->geometry);
    for (uint32_t i = 0; i < 2; i++) {
        free(w->tier[i]);
        free(w->expected[i]);
    }
}

/* Distinct pages, some consecutive on both sides, none in two segments. */
static inline void random_runs(struct world *w, struct random *random)
{
    weir_move moves[20];
    int32_t device = 0;
    int32_t host = (int32_t)random_below(random, 4);
    uint32_t n = 0;
    for (;;) {
        bool apart = random_percent(random, 30);
        device += 1 + apart;
        host += 1 + (apart && random_percent(random, 50));
        if (device > 20 || host > 28)
            break;
        moves[n++] = (weir_move){ { device }, { host } };
    }
    w->transfer.runs = w->runs;
    w->transfer.n_runs = weir_plan_runs(w->geometry, moves, n, w->runs);
}

static inline void fill(struct world *w, struct random *random)
{
    for (uint32_t i = 0; i < 2; i++) {
        for (uint64_t b = 0; b < w->bytes[i]; b++)
            w->tier[i][b] = (uint8_t)random_next(random);
        memcpy(w->expected[i], w->tier[i], w->bytes[i]);
    }
}

static inline void expect_layer(struct world *w, uint32_t layer)
{
    const struct weir_transfer *t = &w->transfer;
    for (uint32_t tensor = 0; tensor < w->geometry->n_tensors; tensor++) {
        for (uint32_t r = 0; r < t->n_runs; r++) {
            struct weir_copies it;
            struct weir_copy c;
            weir_copies_begin(&it, w->geometry, tensor, layer, t->runs[r]);
            while (weir_copies_next(&it, &c)) {
                uint64_t device = c.device - (uintptr_t)w->tier[1];
                uint64_t host = c.host - (uintptr_t)w->tier[0];
                for (uint64_t row = 0; row < c.rows; row++) {
                    uint8_t *d = w->expected[1] + device + row * c.device_stride;
                    uint8_t *h = w->expected[0] + host + row * c.host_stride;
                    if (t->direction == WEIR_LOAD)
                        memcpy(d, h, c.row_bytes);
                    else
                        memcpy(h, d, c.row_bytes);
                }
            }
        }
    }
}

/* At the moment a word is stored: it is the next layer's, and all its bytes are
 * there. */
static inline void check_word(void *user, uint32_t *word, uint32_t value)
{
    struct world *w = user;
    uint32_t layer = (uint32_t)(word - w->words);
    must(layer == w->next_word, "seed %d: word %u instead of %u", (int)w->seed, layer,
         w->next_word);
    must(value == w->transfer.generation, "seed %d: value", (int)w->seed);
    w->next_word++;
    const struct weir_transfer *t = &w->transfer;
    for (uint32_t tensor = 0; tensor < w->geometry->n_tensors; tensor++) {
        if (w->geometry->layer_index[tensor * w->geometry->n_layers + layer] < 0)
            continue;
        for (uint32_t r = 0; r < t->n_runs; r++) {
            for (int32_t p = 0; p < t->runs[r].count; p++) {
                uint64_t at = weir_geometry_device(w->geometry, tensor, layer,
                                                   (weir_device_page){ t->runs[r].device + p }) -
                              (uintptr_t)w->tier[1];
                must(memcmp(w->tier[1] + at, w->expected[1] + at,
                            w->geometry->tensors[tensor].page_bytes) == 0,
                     "seed %d: layer %u published before it came", (int)w->seed, layer);
            }
        }
    }
}

#endif
