/* SPDX-License-Identifier: Apache-2.0 */
#include "forward_cuda.h"

#include "driver.h"
#include "kernels.h"

#include <weir/cuda.h>

#include <errno.h>
#include <stdlib.h>

/* From nvcc and bin2c. */
extern const unsigned long long transformer_image[];

#define PLAN_BYTES offsetof(struct plan, order)

/* Returns from the calling function if a call of the driver fails. */
#define TRY(forward, name, ...)                                                 \
    do {                                                                        \
        int try_rc = driver_result(#name, (forward)->driver.name(__VA_ARGS__)); \
        if (try_rc)                                                             \
            return try_rc;                                                      \
    } while (0)

enum kernel {
    KERNEL_EMBED,
    KERNEL_PROJECT,
    KERNEL_ATTEND,
    KERNEL_ADD,
    KERNEL_MLP,
    KERNEL_CHOOSE,
    N_KERNELS
};

static const struct {
    const char *name;
    uint32_t groups; /* blocks a row */
    uint32_t threads;
} kernels[N_KERNELS] = {
    [KERNEL_EMBED] = { "transformer_embed", 1, D_MODEL },
    [KERNEL_PROJECT] = { "transformer_project", N_GROUPS, D_MODEL },
    [KERNEL_ATTEND] = { "transformer_attend", N_GROUPS, D_MODEL },
    [KERNEL_ADD] = { "transformer_add", 1, D_MODEL },
    [KERNEL_MLP] = { "transformer_mlp", N_GROUPS, D_MODEL },
    [KERNEL_CHOOSE] = { "transformer_choose", 1, VOCABULARY },
};

/* One allocation, by its parts. */
struct device_memory {
    struct model model;
    float x[MAX_ROWS][D_MODEL];
    struct model_query queries[MAX_ROWS][N_GROUPS];
    float partials[MAX_ROWS][N_GROUPS][D_MODEL];
    int32_t next_token[MAX_CHATS];
    struct plan plans[MAX_STEPS];
};

struct slot {
    struct plan plan;
    struct model_answer answers[MAX_ROWS];
};

struct forward {
    struct forward_params with;
    struct driver driver;
    CUdevice gpu;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction functions[N_KERNELS];
    CUdeviceptr memory, kv;
    struct slot *slots; /* pinned; the GPU writes the answers there */
    weir_device_plane planes[N_PAGE_TENSORS][N_LAYERS];
    CUgraphExec graphs[MAX_STEPS];
};

#define ON_DEVICE(forward, part) ((forward)->memory + offsetof(struct device_memory, part))

/* ---- Launching ------------------------------------------------------------- */

static int launch(struct forward *forward, enum kernel kernel, uint32_t n_rows, uint32_t slot,
                  uint32_t layer)
{
    struct kernel_args args = {
        .model = (const void *)ON_DEVICE(forward, model),
        .plan = (const void *)(ON_DEVICE(forward, plans) + slot * sizeof(struct plan)),
        .x = (void *)ON_DEVICE(forward, x),
        .queries = (void *)ON_DEVICE(forward, queries),
        .partials = (void *)ON_DEVICE(forward, partials),
        .next_token = (void *)ON_DEVICE(forward, next_token),
        .answers = forward->slots[slot].answers,
        .keys = forward->planes[PAGE_KEYS][layer].base,
        .values = forward->planes[PAGE_VALUES][layer].base,
        .page_bytes = forward->planes[PAGE_KEYS][layer].page_stride,
        .layer = layer,
    };
    void *parameters[] = { &args };
    TRY(forward, cuLaunchKernel, forward->functions[kernel], n_rows, kernels[kernel].groups, 1,
        kernels[kernel].threads, 1, 1, 0, forward->stream, parameters, NULL);
    return 0;
}

static int enqueue_begin(struct forward *forward, uint32_t slot, uint32_t n_rows)
{
    TRY(forward, cuMemcpyHtoDAsync, ON_DEVICE(forward, plans) + slot * sizeof(struct plan),
        &forward->slots[slot].plan, PLAN_BYTES, forward->stream);
    return launch(forward, KERNEL_EMBED, n_rows, slot, 0);
}

static int enqueue_layer(struct forward *forward, uint32_t slot, uint32_t layer, uint32_t n_rows)
{
    static const enum kernel order[] = { KERNEL_PROJECT, KERNEL_ATTEND, KERNEL_ADD, KERNEL_MLP,
                                         KERNEL_ADD };
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        int rc = launch(forward, order[i], n_rows, slot, layer);
        if (rc)
            return rc;
    }
    return 0;
}

static uint32_t rows_of(const struct forward *forward, uint32_t slot)
{
    return forward->slots[slot].plan.n_rows;
}

static int cuda_begin(struct forward *forward, uint32_t slot)
{
    return enqueue_begin(forward, slot, rows_of(forward, slot));
}

static int cuda_layer(struct forward *forward, uint32_t slot, uint32_t layer)
{
    return enqueue_layer(forward, slot, layer, rows_of(forward, slot));
}

static int cuda_end(struct forward *forward, uint32_t slot)
{
    return launch(forward, KERNEL_CHOOSE, rows_of(forward, slot), slot, 0);
}

/* ---- Graphs ---------------------------------------------------------------- */

static int enqueue_all(struct forward *forward, weir_rank *rank, uint32_t slot)
{
    int rc = enqueue_begin(forward, slot, MAX_BATCH);
    for (uint32_t l = 0; l < N_LAYERS && rc == 0; l++) {
        rc = weir_rank_capture_wait(rank, slot, l, weir_stream_from_cuda(forward->stream));
        if (rc == 0)
            rc = enqueue_layer(forward, slot, l, MAX_BATCH);
    }
    return rc ? rc : launch(forward, KERNEL_CHOOSE, MAX_BATCH, slot, 0);
}

static int capture(struct forward *forward, weir_rank *rank, uint32_t slot)
{
    CUgraph graph;
    TRY(forward, cuStreamBeginCapture, forward->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    int rc = enqueue_all(forward, rank, slot);
    TRY(forward, cuStreamEndCapture, forward->stream, &graph);
    if (rc == 0)
        rc = driver_result("cuGraphInstantiate",
                           forward->driver.cuGraphInstantiate(&forward->graphs[slot], graph, 0));
    TRY(forward, cuGraphDestroy, graph);
    return rc;
}

static int cuda_attach(struct forward *forward, weir_rank *rank)
{
    int rc = 0;
    for (uint32_t slot = 0; slot < MAX_STEPS && rc == 0; slot++)
        rc = capture(forward, rank, slot);
    return rc;
}

static int cuda_replay(struct forward *forward, uint32_t slot, bool *done)
{
    *done = rows_of(forward, slot) <= MAX_BATCH;
    if (*done)
        TRY(forward, cuGraphLaunch, forward->graphs[slot], forward->stream);
    return 0;
}

/* ---- Opening and closing --------------------------------------------------- */

/* The server's KV: a buffer, in it [tensor][layer][page], page 0 the dummy. */
static void lay_out_planes(struct forward *forward)
{
    uint64_t page_bytes = sizeof(float) * HEAD_DIM * N_GROUPS * PAGE_TOKENS;
    uint64_t base = forward->kv;
    for (uint32_t t = 0; t < N_PAGE_TENSORS; t++) {
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            forward->planes[t][l] = (weir_device_plane){ base, page_bytes };
            base += (forward->with.device_pages + UINT64_C(1)) * page_bytes;
        }
    }
}

static int allocate(struct forward *forward)
{
    uint64_t page_bytes = sizeof(float) * HEAD_DIM * N_GROUPS * PAGE_TOKENS;
    uint64_t n_pieces = N_PAGE_TENSORS * N_LAYERS * (forward->with.device_pages + UINT64_C(1));
    TRY(forward, cuMemAlloc, &forward->memory, sizeof(struct device_memory));
    TRY(forward, cuMemAlloc, &forward->kv, n_pieces * page_bytes);
    TRY(forward, cuMemHostAlloc, (void **)&forward->slots, MAX_STEPS * sizeof(struct slot), 0);
    lay_out_planes(forward);
    return 0;
}

static int load_kernels(struct forward *forward)
{
    TRY(forward, cuModuleLoadData, &forward->module, transformer_image);
    for (uint32_t i = 0; i < N_KERNELS; i++)
        TRY(forward, cuModuleGetFunction, &forward->functions[i], forward->module, kernels[i].name);
    return 0;
}

/* The primary context is the one that weir works in. */
static int open_all(struct forward *forward)
{
    int rc = driver_open(&forward->driver);
    if (rc)
        return rc;
    TRY(forward, cuDeviceGet, &forward->gpu, 0);
    TRY(forward, cuDevicePrimaryCtxRetain, &forward->context, forward->gpu);
    TRY(forward, cuCtxSetCurrent, forward->context);
    TRY(forward, cuStreamCreate, &forward->stream, CU_STREAM_NON_BLOCKING);
    rc = allocate(forward);
    if (rc == 0)
        rc = load_kernels(forward);
    if (rc)
        return rc;
    TRY(forward, cuMemcpyHtoDAsync, ON_DEVICE(forward, model), forward->with.model,
        sizeof(struct model), forward->stream);
    TRY(forward, cuStreamSynchronize, forward->stream);
    return 0;
}

/* Accepts what open_all has left behind when it failed. */
static void cuda_close(struct forward *forward)
{
    const struct driver *driver = &forward->driver;
    for (uint32_t slot = 0; slot < MAX_STEPS; slot++)
        if (forward->graphs[slot])
            driver->cuGraphExecDestroy(forward->graphs[slot]);
    if (forward->module)
        driver->cuModuleUnload(forward->module);
    if (forward->slots)
        driver->cuMemFreeHost(forward->slots);
    if (forward->kv)
        driver->cuMemFree(forward->kv);
    if (forward->memory)
        driver->cuMemFree(forward->memory);
    if (forward->stream)
        driver->cuStreamDestroy(forward->stream);
    if (forward->context)
        driver->cuDevicePrimaryCtxRelease(forward->gpu);
    free(forward);
}

static int cuda_open(struct forward **opened, const struct forward_params *params)
{
    if (params->groups.n != N_GROUPS)
        return -ENOTSUP;
    struct forward *forward = calloc(1, sizeof *forward);
    if (!forward)
        return -ENOMEM;
    forward->with = *params;
    int rc = open_all(forward);
    if (rc) {
        cuda_close(forward);
        return rc;
    }
    *opened = forward;
    return 0;
}

int forward_cuda_synchronize(struct forward *forward)
{
    TRY(forward, cuStreamSynchronize, forward->stream);
    return 0;
}

static const weir_device_plane *cuda_planes(const struct forward *forward)
{
    return forward->planes[0];
}

static weir_stream *cuda_stream(const struct forward *forward)
{
    return weir_stream_from_cuda(forward->stream);
}

static struct plan *cuda_plan(struct forward *forward, uint32_t slot)
{
    return &forward->slots[slot].plan;
}

static const struct model_answer *cuda_answers(const struct forward *forward, uint32_t slot)
{
    return forward->slots[slot].answers;
}

const struct forward_ops forward_cuda = {
    .open = cuda_open,
    .close = cuda_close,
    .planes = cuda_planes,
    .attach = cuda_attach,
    .stream = cuda_stream,
    .plan = cuda_plan,
    .begin = cuda_begin,
    .layer = cuda_layer,
    .end = cuda_end,
    .replay = cuda_replay,
    .answers = cuda_answers,
};
