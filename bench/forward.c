/* SPDX-License-Identifier: Apache-2.0 */
#include "forward.h"

#include "cublas.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define CALIBRATION_CALLS 64u
#define COOPERATIVE_ROUNDS 16u
#define COOPERATIVE_STEPS 4096u

/* Weights are walked through, so that a GEMM never finds its own in the cache. */
#define WEIGHT_SETS 4u

static const struct {
    const char *name;
    double milliseconds;
    uint32_t rows;
    uint32_t columns;
    uint32_t depth;
} shapes[WEIR_BENCH_SHAPES] = {
    [WEIR_BENCH_BIG] = { "big", 26.7, 4096, 4096, 4096 },
    [WEIR_BENCH_SHORT] = { "short", 17.8, 1024, 4096, 4096 },
    [WEIR_BENCH_MEMORY] = { "memory", 22.9, WEIR_BENCH_SMALL_ROWS, 65536, WEIR_BENCH_SMALL_DEPTH },
    [WEIR_BENCH_COOPERATIVE_SHAPE] = { "cooperative", 20, 0, 0, 0 },
};

const char *weir_bench_shape_name(uint32_t shape)
{
    return shape < WEIR_BENCH_SHAPES ? shapes[shape].name : NULL;
}

struct weir_bench_forward {
    struct weir_bench_device *device;
    enum weir_bench_shape shape;
    uint32_t n_layers;
    uint32_t n_calls; /* of a pass */
    uint32_t weights; /* the next set */
    uint64_t memory;  /* activations, output, sets of weights */
    uint64_t activations;
    uint64_t output;
    uint64_t first_weights;
    uint64_t weights_bytes;
    struct weir_bench_cublas *cublas;
    uint32_t steps;       /* of a cooperative call */
    uint32_t arrivals;    /* cooperative: what the counter stands at */
    uint64_t nanoseconds; /* a layer, on the CPU device */
};

/* ---- One call, between enter and leave --------------------------------------- */

static int multiply(struct weir_bench_forward *forward)
{
    struct weir_bench_device *device = forward->device;
    uint32_t rows = shapes[forward->shape].rows;
    uint32_t columns = shapes[forward->shape].columns;
    uint32_t depth = shapes[forward->shape].depth;
    uint64_t output = forward->output;
    uint64_t activations = forward->activations;
    uint64_t weights = forward->first_weights + forward->weights * forward->weights_bytes;
    forward->weights = (forward->weights + 1) % WEIGHT_SETS;
    if (forward->cublas)
        return weir_bench_cublas_multiply(forward->cublas, output, activations, weights, rows,
                                          columns, depth);
    void *parameters[] = { &output, &activations, &weights, &columns, &depth };
    if (forward->shape == WEIR_BENCH_MEMORY)
        return weir_bench_gpu_launch(device->gpu, device->stream, WEIR_BENCH_SMALL_GEMM,
                                     columns / WEIR_BENCH_SMALL_COLUMNS, 1,
                                     WEIR_BENCH_SMALL_THREADS, WEIR_BENCH_SMALL_SHARED, parameters);
    return weir_bench_gpu_launch(device->gpu, device->stream, WEIR_BENCH_GEMM,
                                 columns / WEIR_BENCH_TILE_COLUMNS, rows / WEIR_BENCH_TILE_ROWS,
                                 WEIR_BENCH_GEMM_THREADS, WEIR_BENCH_GEMM_SHARED, parameters);
}

static int meet(struct weir_bench_forward *forward)
{
    struct weir_bench_gpu *gpu = forward->device->gpu;
    struct weir_bench_cooperative_args args = {
        .arrivals = (uint32_t *)(uintptr_t)gpu->scratch + 1,
        .sink = (float *)(uintptr_t)forward->memory,
        .start = forward->arrivals,
        .rounds = COOPERATIVE_ROUNDS,
        .steps = forward->steps,
    };
    void *parameters[] = { &args };
    int rc =
        weir_cuda_result(gpu->device, "cuLaunchCooperativeKernel",
                         gpu->launch_cooperative(gpu->functions[WEIR_BENCH_COOPERATIVE], gpu->n_sms,
                                                 1, 1, 256, 1, 1, gpu->shared_bytes / 2,
                                                 (CUstream)forward->device->stream, parameters));
    forward->arrivals += rc ? 0 : gpu->n_sms * COOPERATIVE_ROUNDS;
    return rc;
}

static int calls(struct weir_bench_forward *forward, uint32_t n)
{
    struct weir_cuda_device *device = forward->device->gpu->device;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = forward->shape == WEIR_BENCH_COOPERATIVE_SHAPE ? meet(forward) : multiply(forward);
    weir_cuda_leave(device, mode);
    return rc;
}

/* ---- Opening ----------------------------------------------------------------- */

static int time_calls(struct weir_bench_forward *forward, uint32_t n, double *seconds)
{
    double start = weir_bench_now();
    int rc = calls(forward, n);
    if (!rc)
        rc = weir_bench_mark(forward->device, forward->device->stream);
    if (!rc)
        rc = weir_bench_wait(forward->device, forward->device->stream);
    *seconds = weir_bench_now() - start;
    return rc;
}

static uint32_t round_up_to_one(double number)
{
    return number > 1 ? (uint32_t)(number + 0.5) : 1;
}

/* GEMMs are of one size and their number is found; a cooperative call is one a
 * layer and its length is found. */
static int calibrate(struct weir_bench_forward *forward, double pass_seconds)
{
    double seconds;
    int rc = time_calls(forward, CALIBRATION_CALLS, &seconds);
    if (!rc)
        rc = time_calls(forward, CALIBRATION_CALLS, &seconds);
    if (rc)
        return rc;
    double calls_of_pass = pass_seconds * CALIBRATION_CALLS / seconds;
    if (forward->shape == WEIR_BENCH_COOPERATIVE_SHAPE) {
        forward->n_calls = forward->n_layers;
        forward->steps = round_up_to_one(forward->steps * calls_of_pass / forward->n_layers);
    } else {
        forward->n_calls = round_up_to_one(calls_of_pass);
    }
    return 0;
}

static int open_operands(struct weir_bench_forward *forward)
{
    struct weir_bench_device *device = forward->device;
    uint64_t rows = shapes[forward->shape].rows;
    uint64_t columns = shapes[forward->shape].columns;
    uint64_t depth = shapes[forward->shape].depth;
    uint64_t activations = rows * depth;
    uint64_t weights = columns * depth * WEIGHT_SETS;
    uint64_t n = activations + weights;
    forward->weights_bytes = columns * depth * 2;
    int rc = device->ops->memory_alloc(device->device, (n + rows * columns) * 2, &forward->memory);
    if (rc)
        return rc;
    forward->activations = forward->memory;
    forward->first_weights = forward->memory + activations * 2;
    forward->output = forward->memory + n * 2;
    void *parameters[] = { &forward->memory, &n };
    return weir_bench_gpu_run(device->gpu, device->stream, WEIR_BENCH_FILL_HALF,
                              device->gpu->n_sms * 8, 1, 256, 0, parameters);
}

/* The counter is shared by all passes of a process, and only ever grows: a word
 * of the scratch memory tells where it stands. */
static int open_meeting(struct weir_bench_forward *forward)
{
    struct weir_bench_device *device = forward->device;
    forward->steps = COOPERATIVE_STEPS;
    int rc = device->ops->memory_alloc(device->device, device->gpu->n_sms * sizeof(float),
                                       &forward->memory);
    if (!rc)
        rc = weir_bench_gpu_copy(device->gpu, device->stream, (uintptr_t)&forward->arrivals,
                                 device->gpu->scratch + 4, 4);
    return rc ? rc : device->ops->stream_synchronize(device->device, device->stream);
}

static int open_on_gpu(struct weir_bench_forward *forward, double seconds, bool cublas)
{
    bool cooperative = forward->shape == WEIR_BENCH_COOPERATIVE_SHAPE;
    int rc = cooperative ? open_meeting(forward) : open_operands(forward);
    if (!rc && cublas && !cooperative)
        rc = weir_bench_cublas_open(&forward->cublas, forward->device);
    return rc ? rc : calibrate(forward, seconds);
}

int weir_bench_forward_open(struct weir_bench_forward **forward, struct weir_bench_device *device,
                            enum weir_bench_shape shape, uint32_t n_layers, double milliseconds,
                            bool cublas)
{
    struct weir_bench_forward *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    double seconds = (milliseconds > 0 ? milliseconds : shapes[shape].milliseconds) * 1e-3;
    made->device = device;
    made->shape = shape;
    made->n_layers = n_layers;
    made->n_calls = n_layers;
    made->nanoseconds = (uint64_t)(seconds / n_layers * 1e9);
    int rc = device->gpu ? open_on_gpu(made, seconds, cublas) : 0;
    if (rc)
        weir_bench_forward_close(&made);
    else
        *forward = made;
    return rc;
}

void weir_bench_forward_close(struct weir_bench_forward **forward)
{
    struct weir_bench_forward *closed = *forward;
    if (!closed)
        return;
    weir_bench_cublas_close(&closed->cublas);
    if (closed->memory)
        closed->device->ops->memory_free(closed->device->device, closed->memory);
    free(closed);
    *forward = NULL;
}

/* ---- A layer ------------------------------------------------------------------ */

static void sleep_on_cpu(void *arg)
{
    const struct weir_bench_forward *forward = arg;
    struct timespec time = { (time_t)(forward->nanoseconds / 1000000000),
                             (long)(forward->nanoseconds % 1000000000) };
    (void)nanosleep(&time, NULL);
}

int weir_bench_forward_layer(struct weir_bench_forward *forward, uint32_t layer)
{
    struct weir_bench_device *device = forward->device;
    if (!device->gpu)
        return weir_cpu_launch(device->device, device->stream, sleep_on_cpu, forward, NULL, 0);
    uint64_t n = forward->n_calls;
    return calls(forward,
                 (uint32_t)(n * (layer + 1) / forward->n_layers - n * layer / forward->n_layers));
}

uint32_t weir_bench_forward_calls(const struct weir_bench_forward *forward)
{
    return forward->n_calls;
}
