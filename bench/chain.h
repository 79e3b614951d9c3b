/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_CHAIN_H
#define WEIR_BENCH_CHAIN_H

/* A decode pass: a CUDA graph that is a chain of short kernels, each of which
 * reads memory that no cache holds. On the CPU device a launched function sleeps
 * as long as that. */

#include "device.h"

struct weir_bench_chain;

int weir_bench_chain_open(struct weir_bench_chain **chain, struct weir_bench_device *device,
                          uint32_t n_kernels);
void weir_bench_chain_close(struct weir_bench_chain **chain);

/* Enqueues the chain in the device's stream. */
int weir_bench_chain_launch(struct weir_bench_chain *chain);

#endif
