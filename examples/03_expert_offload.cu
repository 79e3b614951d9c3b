/* SPDX-License-Identifier: Apache-2.0
 * 03_expert_offload on a GPU: the runtime API, as in any server. */
#include "03_expert_offload.h"

#include <weir/cuda.h>

#include <cstdio>
#include <cstdlib>

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}
#define CHECK(call) check(call, #call)

static __global__ void route_kernel(const __grid_constant__ layer l)
{
    route(&l, threadIdx.x);
}

static __global__ void forward_kernel(const __grid_constant__ layer l)
{
    forward(&l, blockIdx.x, threadIdx.x);
}

static void *memory(size_t bytes)
{
    void *p;
    CHECK(cudaMalloc(&p, bytes));
    return p;
}

static void *pinned(size_t bytes)
{
    void *p;
    CHECK(cudaHostAlloc(&p, bytes, cudaHostAllocDefault));
    return p;
}

static void copy(void *to, const void *from, size_t bytes, weir_stream *stream)
{
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, weir_cuda_from_stream(stream)));
    CHECK(cudaStreamSynchronize(weir_cuda_from_stream(stream)));
}

static weir_stream *make_stream(weir_device *)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return weir_stream_from_cuda(stream);
}

static void launch_route(const layer *l, weir_stream *stream)
{
    route_kernel<<<1, TOKENS, 0, weir_cuda_from_stream(stream)>>>(*l);
    CHECK(cudaGetLastError());
}

static void launch_forward(const layer *l, weir_stream *stream)
{
    forward_kernel<<<TOKENS, WIDTH, 0, weir_cuda_from_stream(stream)>>>(*l);
    CHECK(cudaGetLastError());
}

static void *record(void (*enqueue)(void *), void *user, weir_stream *stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(weir_cuda_from_stream(stream), cudaStreamCaptureModeGlobal));
    enqueue(user);
    CHECK(cudaStreamEndCapture(weir_cuda_from_stream(stream), &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

static void play(void *graph, weir_stream *stream)
{
    CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), weir_cuda_from_stream(stream)));
}

extern "C" const backend cuda_backend = {
    WEIR_DEVICE_CUDA, memory, pinned, copy, make_stream, launch_route, launch_forward, record, play
};
