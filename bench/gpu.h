/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_GPU_H
#define WEIR_BENCH_GPU_H

/* What the benchmarks do on a GPU beside weir: kernels of their own, raw copies,
 * graphs. Driver functions that the library has no use for are looked up here.
 *
 * Invariants: everything runs in the device's primary context; a function that
 * says so is called between weir_cuda_enter and weir_cuda_leave. */

#include "device/cuda_device.h"

#include <stdbool.h>

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum weir_bench_kernel {
    WEIR_BENCH_PATTERN,
    WEIR_BENCH_REGISTER_COPY,
    WEIR_BENCH_GEMM,
    WEIR_BENCH_SMALL_GEMM,
    WEIR_BENCH_FILL_HALF,
    WEIR_BENCH_COOPERATIVE,
    WEIR_BENCH_DECODE,
    WEIR_BENCH_GATHER_BASELINE,
    WEIR_BENCH_KERNELS
};

struct weir_bench_gpu {
    struct weir_cuda_device *device;
    const struct weir_cuda_driver *driver;
    CUlibrary library;
    CUfunction functions[WEIR_BENCH_KERNELS];
    CUdeviceptr scratch; /* [WEIR_BENCH_SCRATCH] bytes, zero at open */
    char name[128];
    uint32_t n_sms;
    uint32_t compute;
    uint32_t cuda_version;
    uint32_t shared_bytes; /* a CTA's, by opting in */
    CUresult (*launch_cooperative)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void **);
    CUresult (*capture_begin)(CUstream, CUstreamCaptureMode);
    CUresult (*capture_end)(CUstream, CUgraph *);
    CUresult (*graph_instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*graph_launch)(CUgraphExec, CUstream);
    CUresult (*graph_exec_destroy)(CUgraphExec);
    CUresult (*graph_destroy)(CUgraph);
};

#define WEIR_BENCH_SCRATCH 65536u

/* -ENOTSUP: built without nvcc, or no kernel fits the GPU; -ENOMEM, -EIO. */
int weir_bench_gpu_open(struct weir_bench_gpu **gpu, weir_device *device);
void weir_bench_gpu_close(struct weir_bench_gpu **gpu);

/* Between enter and leave. */
int weir_bench_gpu_launch(struct weir_bench_gpu *gpu, weir_stream *stream,
                          enum weir_bench_kernel kernel, uint32_t grid_x, uint32_t grid_y,
                          uint32_t threads, uint32_t shared_bytes, void **parameters);

/* The same, entering by itself. */
int weir_bench_gpu_run(struct weir_bench_gpu *gpu, weir_stream *stream,
                       enum weir_bench_kernel kernel, uint32_t grid_x, uint32_t grid_y,
                       uint32_t threads, uint32_t shared_bytes, void **parameters);

/* One copy between any two places, by the copy engine. */
int weir_bench_gpu_copy(struct weir_bench_gpu *gpu, weir_stream *stream, uint64_t to, uint64_t from,
                        uint64_t bytes);

#endif
