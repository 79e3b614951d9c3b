/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_MODEL_DRIVER_H
#define WEIR_TESTS_MODEL_DRIVER_H

/* The driver functions that src/device/cuda_kernel*.c call, for a GPU that is
 * the warp model: memory is the host's, copies and kernels run in the call. */

#include "device/cuda_kernels.h"
#include "warp_model.h"

#include <stdlib.h>
#include <string.h>

#define MODEL_SHARED_BYTES 232448

static struct {
    uint64_t seed;
    uint32_t compute;
    void (*on_word)(void *user, uint32_t *word, uint32_t value);
    void *user;
    const char *failure;             /* of the last launch */
    struct warp_model_counts counts; /* of the last launch */
    uint32_t launches;
    uint32_t synchronized;
    bool hold_words; /* writes wait for a synchronize */
    uint32_t held;
    uint32_t *held_words[2048];
    uint32_t held_values[2048];
    bool fail_write;
    bool fail_upload;
    bool fail_launch;
    bool fail_map;
} model;

static inline void *model_alloc(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}
static CUresult model_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = (int)model.compute / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = (int)model.compute % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = MODEL_SHARED_BYTES;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
static CUresult model_mem_alloc(CUdeviceptr *address, size_t bytes)
{
    void *p = model_alloc(bytes);
    memset(p, 0xEE, bytes);
    *address = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}
static CUresult model_mem_free(CUdeviceptr address)
{
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}
static CUresult model_host_alloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    *address = model_alloc(bytes);
    return CUDA_SUCCESS;
}
static CUresult model_host_free(void *address)
{
    free(address);
    return CUDA_SUCCESS;
}
static CUresult model_stream_create(CUstream *stream, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    *stream = (CUstream)(uintptr_t)0x40;
    return CUDA_SUCCESS;
}
static CUresult model_stream_destroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}
static CUresult model_stream_synchronize(CUstream stream)
{
    (void)stream;
    model.synchronized++;
    for (uint32_t i = 0; i < model.held; i++)
        *model.held_words[i] = model.held_values[i];
    model.held = 0;
    return CUDA_SUCCESS;
}
static CUresult model_write_value(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                  unsigned flags)
{
    (void)stream;
    (void)flags;
    if (model.fail_write)
        return CUDA_ERROR_INVALID_VALUE;
    if (model.hold_words) {
        model.held_words[model.held] = (uint32_t *)(uintptr_t)word;
        model.held_values[model.held++] = value;
    } else {
        *(uint32_t *)(uintptr_t)word = value;
    }
    return CUDA_SUCCESS;
}
static CUresult model_upload(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    (void)stream;
    if (model.fail_upload)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}
static CUresult model_load(CUlibrary *library, const void *code, CUjit_option *jit_options,
                           void **jit_values, unsigned n_jit, CUlibraryOption *options,
                           void **values, unsigned n)
{
    (void)code;
    (void)jit_options;
    (void)jit_values;
    (void)n_jit;
    (void)options;
    (void)values;
    (void)n;
    *library = (CUlibrary)(uintptr_t)1;
    return CUDA_SUCCESS;
}
static CUresult model_unload(CUlibrary library)
{
    (void)library;
    return CUDA_SUCCESS;
}
static CUresult model_get_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    (void)library;
    *kernel = (CUkernel)(uintptr_t)name;
    return CUDA_SUCCESS;
}
static CUresult model_get_function(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
static CUresult model_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                    CUdevice device)
{
    (void)attribute;
    (void)value;
    (void)kernel;
    (void)device;
    return CUDA_SUCCESS;
}
static CUresult model_launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             CUstream stream, void **parameters, void **extra)
{
    (void)grid_y;
    (void)grid_z;
    (void)block_y;
    (void)block_z;
    (void)stream;
    (void)extra;
    if (model.fail_launch)
        return CUDA_ERROR_INVALID_VALUE;
    model.launches++;
    struct warp_model_launch launch = { .kernel = (const char *)function,
                                        .args = parameters[0],
                                        .ctas = grid_x,
                                        .threads = block_x,
                                        .shared_bytes = shared,
                                        .seed = model.seed,
                                        .on_word = model.on_word,
                                        .user = model.user };
    model.failure = warp_model_run(&launch, &model.counts);
    return CUDA_SUCCESS;
}
static CUresult model_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                             void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                             const cuuint32_t *box, const cuuint32_t *steps,
                             CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)steps;
    (void)interleave;
    (void)swizzle;
    (void)promotion;
    (void)fill;
    /* The rules of the driver's documentation. */
    if (model.fail_map || type != CU_TENSOR_MAP_DATA_TYPE_UINT64 || rank != 3 ||
        (uintptr_t)address % 16 != 0 || strides[0] % 16 != 0 || strides[1] % 16 != 0 ||
        box[0] > 256 || box[2] > 256 || box[0] * 8 % 16 != 0 || dims[2] == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct warp_model_map made = { .base = (uintptr_t)address,
                                   .layer_stride = strides[0],
                                   .row_stride = strides[1],
                                   .n_layers = dims[1],
                                   .n_rows = dims[2],
                                   .row_bytes = box[0] * 8,
                                   .box_rows = box[2] };
    memcpy(map, &made, sizeof made);
    return CUDA_SUCCESS;
}
static CUresult model_error_name(CUresult error, const char **name)
{
    (void)error;
    *name = "CUDA_ERROR_OF_THE_MODEL";
    return CUDA_SUCCESS;
}

static const struct weir_cuda_driver model_driver = {
    .cuGetErrorName = model_error_name,
    .cuDeviceGetAttribute = model_attribute,
    .cuMemAlloc = model_mem_alloc,
    .cuMemFree = model_mem_free,
    .cuMemHostAlloc = model_host_alloc,
    .cuMemFreeHost = model_host_free,
    .cuStreamCreateWithPriority = model_stream_create,
    .cuStreamDestroy = model_stream_destroy,
    .cuStreamSynchronize = model_stream_synchronize,
    .cuStreamWriteValue32 = model_write_value,
    .cuMemcpyHtoDAsync = model_upload,
    .cuLibraryLoadData = model_load,
    .cuLibraryUnload = model_unload,
    .cuLibraryGetKernel = model_get_kernel,
    .cuKernelGetFunction = model_get_function,
    .cuKernelSetAttribute = model_set_attribute,
    .cuLaunchKernel = model_launch,
    .cuTensorMapEncodeTiled = model_encode,
};

/* A GPU of that compute capability. */
static inline void model_start(struct weir_cuda_device *device, uint32_t compute)
{
    memset(&model, 0, sizeof model);
    model.seed = 1;
    model.compute = compute;
    memset(device, 0, sizeof *device);
    device->driver = &model_driver;
    device->same_address = true;
}

#define MODEL_STREAM ((CUstream)(uintptr_t)0x40)

#endif
