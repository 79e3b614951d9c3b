/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_CUBLAS_H
#define WEIR_BENCH_CUBLAS_H

/* cuBLAS, if the machine has it: GEMMs as fast, and as hungry, as a server's.
 * Found at run time; nothing links to it. */

#include "device.h"

struct weir_bench_cublas;

/* Works in the device's stream. -ENOTSUP: there is none that can be used. */
int weir_bench_cublas_open(struct weir_bench_cublas **cublas, struct weir_bench_device *device);
void weir_bench_cublas_close(struct weir_bench_cublas **cublas);

/* output [rows][columns] = activations [rows][depth] × weights [columns][depth],
 * fp16. Between weir_cuda_enter and leave. */
int weir_bench_cublas_multiply(struct weir_bench_cublas *cublas, uint64_t output,
                               uint64_t activations, uint64_t weights, uint32_t rows,
                               uint32_t columns, uint32_t depth);

#endif
