/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "kernels/bench_args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#if WEIR_BENCH_HAVE_KERNELS
/* Made by nvcc and bin2c. */
extern const unsigned long long weir_bench_kernels_image[];
static const void *const image = weir_bench_kernels_image;
#else
static const void *const image = NULL;
#endif

static const struct {
    const char *name;
    uint32_t shared_bytes;
} kernels[WEIR_BENCH_KERNELS] = {
    [WEIR_BENCH_PATTERN] = { "weir_bench_pattern", 0 },
    [WEIR_BENCH_REGISTER_COPY] = { "weir_bench_register_copy", 0 },
    [WEIR_BENCH_GEMM] = { "weir_bench_gemm", WEIR_BENCH_GEMM_SHARED },
    [WEIR_BENCH_SMALL_GEMM] = { "weir_bench_small_gemm", WEIR_BENCH_SMALL_SHARED },
    [WEIR_BENCH_FILL_HALF] = { "weir_bench_fill_half", 0 },
    [WEIR_BENCH_COOPERATIVE] = { "weir_bench_cooperative", 0 },
    [WEIR_BENCH_DECODE] = { "weir_bench_decode", 0 },
    [WEIR_BENCH_GATHER_BASELINE] = { "weir_bench_gather_baseline", 0 },
};

/* The cooperative grid takes half of an SM's shared memory, so that nothing that
 * takes more than the other half can be beside it. */
static uint32_t shared_of(const struct weir_bench_gpu *gpu, uint32_t kernel)
{
    return kernel == WEIR_BENCH_COOPERATIVE ? gpu->shared_bytes / 2 : kernels[kernel].shared_bytes;
}

static int find_functions(struct weir_bench_gpu *gpu)
{
    const struct {
        const char *name;
        int version;
        void *place;
    } functions[] = {
        { "cuLaunchCooperativeKernel", 9000, &gpu->launch_cooperative },
        { "cuStreamBeginCapture", 10010, &gpu->capture_begin },
        { "cuStreamEndCapture", 10000, &gpu->capture_end },
        { "cuGraphInstantiateWithFlags", 11040, &gpu->graph_instantiate },
        { "cuGraphLaunch", 10000, &gpu->graph_launch },
        { "cuGraphExecDestroy", 10000, &gpu->graph_exec_destroy },
        { "cuGraphDestroy", 10000, &gpu->graph_destroy },
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function;
        int rc = weir_cuda_driver_find(functions[i].name, functions[i].version, &function);
        if (rc)
            return rc;
        memcpy(functions[i].place, &function, sizeof function);
    }
    return 0;
}

static int read_facts(struct weir_bench_gpu *gpu)
{
    const struct weir_cuda_driver *driver = gpu->driver;
    CUdevice device = gpu->device->ordinal;
    int version, sms, shared, major, minor;
    CUresult result = driver->cuDriverGetVersion(&version);
    if (!result)
        result = driver->cuDeviceGetName(gpu->name, (int)sizeof gpu->name, device);
    if (!result)
        result =
            driver->cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (!result)
        result = driver->cuDeviceGetAttribute(
            &shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    if (!result)
        result = driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                              device);
    if (!result)
        result = driver->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                              device);
    if (result)
        return weir_cuda_result(gpu->device, "cuDeviceGetAttribute", result);
    gpu->cuda_version = (uint32_t)version;
    gpu->n_sms = (uint32_t)sms;
    gpu->shared_bytes = (uint32_t)shared;
    gpu->compute = (uint32_t)(major * 10 + minor);
    return 0;
}

/* Also brings every kernel's code to the GPU, so that no timed launch does. */
static int load_kernel(struct weir_bench_gpu *gpu, uint32_t kernel)
{
    const struct weir_cuda_driver *driver = gpu->driver;
    CUkernel handle;
    CUresult result = driver->cuLibraryGetKernel(&handle, gpu->library, kernels[kernel].name);
    if (result)
        return weir_cuda_result(gpu->device, "cuLibraryGetKernel", result);
    result =
        driver->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                     (int)shared_of(gpu, kernel), handle, gpu->device->ordinal);
    if (result)
        return weir_cuda_result(gpu->device, "cuKernelSetAttribute", result);
    return weir_cuda_result(gpu->device, "cuKernelGetFunction",
                            driver->cuKernelGetFunction(&gpu->functions[kernel], handle));
}

static int load_kernels(struct weir_bench_gpu *gpu)
{
    if (!image || !gpu->driver->cuLibraryLoadData || !gpu->driver->cuLibraryGetKernel ||
        !gpu->driver->cuKernelSetAttribute || !gpu->driver->cuKernelGetFunction ||
        !gpu->driver->cuLibraryUnload || !gpu->driver->cuLaunchKernel)
        return -ENOTSUP;
    CUresult result =
        gpu->driver->cuLibraryLoadData(&gpu->library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (result)
        return result == CUDA_ERROR_NO_BINARY_FOR_GPU
                   ? -ENOTSUP
                   : weir_cuda_result(gpu->device, "cuLibraryLoadData", result);
    int rc = 0;
    for (uint32_t kernel = 0; kernel < WEIR_BENCH_KERNELS && !rc; kernel++)
        rc = load_kernel(gpu, kernel);
    return rc;
}

static int clear_scratch(struct weir_bench_gpu *gpu)
{
    static const unsigned char zeros[WEIR_BENCH_SCRATCH];
    int rc = weir_bench_gpu_copy(gpu, (weir_stream *)CU_STREAM_LEGACY, gpu->scratch,
                                 (uintptr_t)zeros, sizeof zeros);
    return rc ? rc
              : gpu->device->base.ops->stream_synchronize(&gpu->device->base,
                                                          (weir_stream *)CU_STREAM_LEGACY);
}

int weir_bench_gpu_open(struct weir_bench_gpu **gpu, weir_device *device)
{
    struct weir_bench_gpu *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->device = weir_cuda_from(device);
    made->driver = made->device->driver;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(made->device, &mode);
    if (rc) {
        free(made);
        return rc;
    }
    rc = read_facts(made);
    if (!rc)
        rc = find_functions(made);
    if (!rc)
        rc = load_kernels(made);
    weir_cuda_leave(made->device, mode);
    uint64_t scratch;
    if (!rc)
        rc = device->ops->memory_alloc(device, WEIR_BENCH_SCRATCH, &scratch);
    if (!rc) {
        made->scratch = scratch;
        rc = clear_scratch(made);
    }
    if (rc)
        weir_bench_gpu_close(&made);
    else
        *gpu = made;
    return rc;
}

void weir_bench_gpu_close(struct weir_bench_gpu **gpu)
{
    struct weir_bench_gpu *closed = *gpu;
    if (!closed)
        return;
    weir_device *device = &closed->device->base;
    if (closed->scratch)
        device->ops->memory_free(device, closed->scratch);
    CUstreamCaptureMode mode;
    if (closed->library && weir_cuda_enter_to_free(closed->device, &mode) == 0) {
        (void)weir_cuda_result(closed->device, "cuLibraryUnload",
                               closed->driver->cuLibraryUnload(closed->library));
        weir_cuda_leave(closed->device, mode);
    }
    free(closed);
    *gpu = NULL;
}

int weir_bench_gpu_launch(struct weir_bench_gpu *gpu, weir_stream *stream,
                          enum weir_bench_kernel kernel, uint32_t grid_x, uint32_t grid_y,
                          uint32_t threads, uint32_t shared_bytes, void **parameters)
{
    return weir_cuda_result(gpu->device, kernels[kernel].name,
                            gpu->driver->cuLaunchKernel(gpu->functions[kernel], grid_x, grid_y, 1,
                                                        threads, 1, 1, shared_bytes,
                                                        (CUstream)stream, parameters, NULL));
}

int weir_bench_gpu_run(struct weir_bench_gpu *gpu, weir_stream *stream,
                       enum weir_bench_kernel kernel, uint32_t grid_x, uint32_t grid_y,
                       uint32_t threads, uint32_t shared_bytes, void **parameters)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(gpu->device, &mode);
    if (rc)
        return rc;
    rc = weir_bench_gpu_launch(gpu, stream, kernel, grid_x, grid_y, threads, shared_bytes,
                               parameters);
    weir_cuda_leave(gpu->device, mode);
    return rc;
}

int weir_bench_gpu_copy(struct weir_bench_gpu *gpu, weir_stream *stream, uint64_t to, uint64_t from,
                        uint64_t bytes)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(gpu->device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_result(gpu->device, "cuMemcpyAsync",
                          gpu->driver->cuMemcpyAsync(to, from, bytes, (CUstream)stream));
    weir_cuda_leave(gpu->device, mode);
    return rc;
}
