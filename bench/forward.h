/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_FORWARD_H
#define WEIR_BENCH_FORWARD_H

/* A forward pass that does what a model's would to the GPU, without its result.
 *
 *   shape         work                              takes, alone
 *   big           GEMM, 4096 rows                   26.7 ms
 *   short         GEMM, 1024 rows: one wave         17.8 ms
 *   memory        GEMM, 16 rows: weights stream     22.9 ms
 *   cooperative   a grid on all SMs at once         20 ms
 *
 * The number of GEMMs is found at open, so that the pass takes about that long;
 * they are spread evenly over the layers. What it takes exactly is for the
 * caller to measure. On the CPU device a layer sleeps its share. */

#include "device.h"

enum weir_bench_shape {
    WEIR_BENCH_BIG,
    WEIR_BENCH_SHORT,
    WEIR_BENCH_MEMORY,
    WEIR_BENCH_COOPERATIVE_SHAPE,
    WEIR_BENCH_SHAPES
};

/* NULL for a number that is no shape. */
const char *weir_bench_shape_name(uint32_t shape);

struct weir_bench_forward;

/* milliseconds: what the pass shall take; 0: as above. cublas: GEMMs by cuBLAS;
 * -ENOTSUP: it is not there. */
int weir_bench_forward_open(struct weir_bench_forward **forward, struct weir_bench_device *device,
                            enum weir_bench_shape shape, uint32_t n_layers, double milliseconds,
                            bool cublas);
void weir_bench_forward_close(struct weir_bench_forward **forward);

/* Enqueues one layer in the device's stream. */
int weir_bench_forward_layer(struct weir_bench_forward *forward, uint32_t layer);

/* GEMMs, or cooperative launches, of a pass. */
uint32_t weir_bench_forward_calls(const struct weir_bench_forward *forward);

#endif
