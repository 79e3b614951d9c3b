/* SPDX-License-Identifier: Apache-2.0 */
#include "chain.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define KERNEL_BYTES (UINT64_C(24) << 20) /* about 8 us on an H200 */
#define MEMORY_BYTES (UINT64_C(960) << 20)
#define NANOSECONDS 8000u

struct weir_bench_chain {
    struct weir_bench_device *device;
    uint32_t n_kernels;
    uint64_t memory;
    CUgraphExec exec;
};

/* Between enter and leave, in a stream that is being captured. */
static int record_kernels(struct weir_bench_chain *chain)
{
    struct weir_bench_gpu *gpu = chain->device->gpu;
    uint64_t n = KERNEL_BYTES / 16;
    uint64_t sink = gpu->scratch + 8;
    int rc = 0;
    for (uint32_t i = 0; i < chain->n_kernels && !rc; i++) {
        uint64_t from = chain->memory + i * KERNEL_BYTES % MEMORY_BYTES;
        void *parameters[] = { &from, &n, &sink };
        rc = weir_bench_gpu_launch(gpu, chain->device->stream, WEIR_BENCH_DECODE, gpu->n_sms * 2, 1,
                                   512, 0, parameters);
    }
    return rc;
}

static int capture(struct weir_bench_chain *chain, CUgraph *graph)
{
    struct weir_bench_gpu *gpu = chain->device->gpu;
    CUstream stream = (CUstream)chain->device->stream;
    int rc = weir_cuda_result(gpu->device, "cuStreamBeginCapture",
                              gpu->capture_begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (rc)
        return rc;
    rc = record_kernels(chain);
    int ended =
        weir_cuda_result(gpu->device, "cuStreamEndCapture", gpu->capture_end(stream, graph));
    return rc ? rc : ended;
}

static int make_graph(struct weir_bench_chain *chain)
{
    struct weir_bench_gpu *gpu = chain->device->gpu;
    CUgraph graph = NULL;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(gpu->device, &mode);
    if (rc)
        return rc;
    rc = capture(chain, &graph);
    if (!rc)
        rc = weir_cuda_result(gpu->device, "cuGraphInstantiateWithFlags",
                              gpu->graph_instantiate(&chain->exec, graph, 0));
    if (graph)
        (void)gpu->graph_destroy(graph);
    weir_cuda_leave(gpu->device, mode);
    return rc;
}

int weir_bench_chain_open(struct weir_bench_chain **chain, struct weir_bench_device *device,
                          uint32_t n_kernels)
{
    struct weir_bench_chain *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->device = device;
    made->n_kernels = n_kernels;
    int rc = 0;
    if (device->gpu) {
        rc = device->ops->memory_alloc(device->device, MEMORY_BYTES, &made->memory);
        if (!rc)
            rc = make_graph(made);
    }
    if (rc)
        weir_bench_chain_close(&made);
    else
        *chain = made;
    return rc;
}

void weir_bench_chain_close(struct weir_bench_chain **chain)
{
    struct weir_bench_chain *closed = *chain;
    if (!closed)
        return;
    struct weir_bench_device *device = closed->device;
    CUstreamCaptureMode mode;
    if (closed->exec && weir_cuda_enter_to_free(device->gpu->device, &mode) == 0) {
        (void)device->gpu->graph_exec_destroy(closed->exec);
        weir_cuda_leave(device->gpu->device, mode);
    }
    if (closed->memory)
        device->ops->memory_free(device->device, closed->memory);
    free(closed);
    *chain = NULL;
}

static void sleep_on_cpu(void *arg)
{
    const struct weir_bench_chain *chain = arg;
    uint64_t nanoseconds = (uint64_t)chain->n_kernels * NANOSECONDS;
    struct timespec time = { (time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000) };
    (void)nanosleep(&time, NULL);
}

int weir_bench_chain_launch(struct weir_bench_chain *chain)
{
    struct weir_bench_device *device = chain->device;
    if (!device->gpu)
        return weir_cpu_launch(device->device, device->stream, sleep_on_cpu, chain, NULL, 0);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device->gpu->device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_result(device->gpu->device, "cuGraphLaunch",
                          device->gpu->graph_launch(chain->exec, (CUstream)device->stream));
    weir_cuda_leave(device->gpu->device, mode);
    return rc;
}
