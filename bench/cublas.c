/* SPDX-License-Identifier: Apache-2.0 */
#include "cublas.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* cuBLAS's own numbers. */
enum {
    NO_TRANSPOSE = 0,
    TRANSPOSE = 1,
    TYPE_FP16 = 2,
    COMPUTE_FP32 = 68,
    DEFAULT_ALGORITHM = -1
};

struct weir_bench_cublas {
    struct weir_bench_device *device;
    void *library;
    void *handle;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, CUstream stream);
    int (*multiply)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                    const void *alpha, const void *a, int type_a, int step_a, const void *b,
                    int type_b, int step_b, const void *beta, void *c, int type_c, int step_c,
                    int compute, int algorithm);
};

static int find(struct weir_bench_cublas *cublas)
{
    const char *const libraries[] = { "libcublas.so.13", "libcublas.so.12",
                                      "/usr/local/cuda/lib64/libcublas.so.13",
                                      "/usr/local/cuda/lib64/libcublas.so.12" };
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0] && !cublas->library; i++)
        cublas->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (!cublas->library)
        return -ENOTSUP;
    const struct {
        const char *name;
        void *place;
    } functions[] = {
        { "cublasCreate_v2", &cublas->create },
        { "cublasDestroy_v2", &cublas->destroy },
        { "cublasSetStream_v2", &cublas->set_stream },
        { "cublasGemmEx", &cublas->multiply },
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(cublas->library, functions[i].name);
        if (!function)
            return -ENOTSUP;
        memcpy(functions[i].place, &function, sizeof function);
    }
    return 0;
}

static int start(struct weir_bench_cublas *cublas)
{
    struct weir_cuda_device *device = cublas->device->gpu->device;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    if (cublas->create(&cublas->handle) != 0) {
        cublas->handle = NULL;
        rc = -ENOTSUP;
    } else if (cublas->set_stream(cublas->handle, (CUstream)cublas->device->stream) != 0) {
        rc = -ENOTSUP;
    }
    weir_cuda_leave(device, mode);
    return rc;
}

int weir_bench_cublas_open(struct weir_bench_cublas **cublas, struct weir_bench_device *device)
{
    struct weir_bench_cublas *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->device = device;
    int rc = find(made);
    if (!rc)
        rc = start(made);
    if (rc)
        weir_bench_cublas_close(&made);
    else
        *cublas = made;
    return rc;
}

/* The library stays loaded: it has threads and exit handlers of its own. */
void weir_bench_cublas_close(struct weir_bench_cublas **cublas)
{
    struct weir_bench_cublas *closed = *cublas;
    if (!closed)
        return;
    CUstreamCaptureMode mode;
    struct weir_cuda_device *device = closed->device->gpu->device;
    if (closed->handle && weir_cuda_enter(device, &mode) == 0) {
        (void)closed->destroy(closed->handle);
        weir_cuda_leave(device, mode);
    }
    free(closed);
    *cublas = NULL;
}

/* cuBLAS counts by columns, so to it every matrix here is the transposed one,
 * and the product is that of weights × activations. */
int weir_bench_cublas_multiply(struct weir_bench_cublas *cublas, uint64_t output,
                               uint64_t activations, uint64_t weights, uint32_t rows,
                               uint32_t columns, uint32_t depth)
{
    const float one = 1;
    const float zero = 0;
    int status = cublas->multiply(cublas->handle, TRANSPOSE, NO_TRANSPOSE, (int)columns, (int)rows,
                                  (int)depth, &one, (const void *)(uintptr_t)weights, TYPE_FP16,
                                  (int)depth, (const void *)(uintptr_t)activations, TYPE_FP16,
                                  (int)depth, &zero, (void *)(uintptr_t)output, TYPE_FP16,
                                  (int)columns, COMPUTE_FP32, DEFAULT_ALGORITHM);
    return status ? -EIO : 0;
}
