/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CUDA_DRIVER_H
#define WEIR_DEVICE_CUDA_DRIVER_H

/* The CUDA driver, found at run time: weir links to no CUDA library.
 *
 *   dlopen("libcuda.so.1") ─► cuGetProcAddress_v2 ─► one entry a function,
 *                                                    asked for by its name and
 *                                                    the version of its ABI
 *
 * The version is the one in which the prototype below came into being, never
 * the installed driver's: under one name a newer driver holds functions with
 * other arguments. A required function that is missing means no driver; an
 * optional one is NULL. Stream handle 0 would be the legacy stream.
 *
 * Invariants: loaded at most once a process, by whichever thread asks first,
 * and never unloaded, since the driver has threads and exit handlers; the
 * result, good or bad, is kept and constant. */

#include "device/cuda_types.h"

/* name, version of its ABI, REQUIRED or OPTIONAL, parameters */
#define WEIR_CUDA_FUNCTIONS(X)                                                                 \
    X(cuInit, 2000, REQUIRED, (unsigned int flags))                                            \
    X(cuDriverGetVersion, 2020, REQUIRED, (int *version))                                      \
    X(cuGetErrorName, 6000, REQUIRED, (CUresult error, const char **name))                     \
    X(cuDeviceGetCount, 2000, REQUIRED, (int *count))                                          \
    X(cuDeviceGet, 2000, REQUIRED, (CUdevice * device, int ordinal))                           \
    X(cuDeviceGetName, 2000, REQUIRED, (char *name, int bytes, CUdevice device))               \
    X(cuDeviceGetAttribute, 2000, REQUIRED,                                                    \
      (int *value, CUdevice_attribute attribute, CUdevice device))                             \
    X(cuDevicePrimaryCtxRetain, 7000, REQUIRED, (CUcontext * context, CUdevice device))        \
    X(cuDevicePrimaryCtxRelease, 11000, REQUIRED, (CUdevice device))                           \
    X(cuCtxPushCurrent, 4000, REQUIRED, (CUcontext context))                                   \
    X(cuCtxPopCurrent, 4000, REQUIRED, (CUcontext * context))                                  \
    X(cuCtxGetStreamPriorityRange, 5050, REQUIRED, (int *least, int *greatest))                \
    X(cuThreadExchangeStreamCaptureMode, 10010, REQUIRED, (CUstreamCaptureMode * mode))        \
    X(cuMemAlloc, 3020, REQUIRED, (CUdeviceptr * address, size_t bytes))                       \
    X(cuMemFree, 3020, REQUIRED, (CUdeviceptr address))                                        \
    X(cuMemHostAlloc, 2020, REQUIRED, (void **address, size_t bytes, unsigned int flags))      \
    X(cuMemFreeHost, 2000, REQUIRED, (void *address))                                          \
    X(cuMemHostRegister, 6050, REQUIRED, (void *address, size_t bytes, unsigned int flags))    \
    X(cuMemHostUnregister, 4000, REQUIRED, (void *address))                                    \
    X(cuMemHostGetDevicePointer, 3020, REQUIRED,                                               \
      (CUdeviceptr * alias, void *address, unsigned int flags))                                \
    X(cuStreamCreateWithPriority, 5050, REQUIRED,                                              \
      (CUstream * stream, unsigned int flags, int priority))                                   \
    X(cuStreamDestroy, 4000, REQUIRED, (CUstream stream))                                      \
    X(cuStreamSynchronize, 2000, REQUIRED, (CUstream stream))                                  \
    X(cuStreamWaitEvent, 3020, REQUIRED, (CUstream stream, CUevent event, unsigned int flags)) \
    X(cuStreamIsCapturing, 10000, REQUIRED, (CUstream stream, CUstreamCaptureStatus * status)) \
    X(cuEventCreate, 2000, REQUIRED, (CUevent * event, unsigned int flags))                    \
    X(cuEventDestroy, 4000, REQUIRED, (CUevent event))                                         \
    X(cuEventRecord, 2000, REQUIRED, (CUevent event, CUstream stream))                         \
    X(cuStreamWriteValue32, 11070, REQUIRED,                                                   \
      (CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned int flags))               \
    X(cuStreamWaitValue32, 11070, REQUIRED,                                                    \
      (CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned int flags))               \
    X(cuMemcpyAsync, 4000, REQUIRED,                                                           \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                       \
    X(cuMemcpy2DAsync, 3020, REQUIRED, (const CUDA_MEMCPY2D *copy, CUstream stream))           \
    X(cuMemcpyBatchAsync, 12080, OPTIONAL,                                                     \
      (CUdeviceptr * to, CUdeviceptr * from, size_t * bytes, size_t n,                         \
       CUmemcpyAttributes * attributes, size_t * first_of_attribute, size_t n_attributes,      \
       size_t * failed, CUstream stream))                                                      \
    X(cuMemcpyHtoDAsync, 3020, OPTIONAL,                                                       \
      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                       \
    X(cuLibraryLoadData, 12000, OPTIONAL,                                                      \
      (CUlibrary * library, const void *code, CUjit_option *jit_options, void **jit_values,    \
       unsigned int n_jit_options, CUlibraryOption *options, void **values,                    \
       unsigned int n_options))                                                                \
    X(cuLibraryUnload, 12000, OPTIONAL, (CUlibrary library))                                   \
    X(cuLibraryGetKernel, 12000, OPTIONAL,                                                     \
      (CUkernel * kernel, CUlibrary library, const char *name))                                \
    X(cuKernelGetFunction, 12000, OPTIONAL, (CUfunction * function, CUkernel kernel))          \
    X(cuKernelGetAttribute, 12000, OPTIONAL,                                                   \
      (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device))          \
    X(cuKernelSetAttribute, 12000, OPTIONAL,                                                   \
      (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device))           \
    X(cuLaunchKernel, 4000, OPTIONAL,                                                          \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,     \
       unsigned int block_x, unsigned int block_y, unsigned int block_z,                       \
       unsigned int shared_bytes, CUstream stream, void **parameters, void **extra))           \
    X(cuTensorMapEncodeTiled, 12000, OPTIONAL,                                                 \
      (CUtensorMap * map, CUtensorMapDataType type, cuuint32_t rank, void *address,            \
       const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,               \
       const cuuint32_t *element_strides, CUtensorMapInterleave interleave,                    \
       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,                           \
       CUtensorMapFloatOOBfill fill))

struct weir_cuda_driver {
#define WEIR_CUDA_FIELD(name, version, need, parameters) CUresult(*name) parameters;
    WEIR_CUDA_FUNCTIONS(WEIR_CUDA_FIELD)
#undef WEIR_CUDA_FIELD
};

/* The driver, loaded and initialised. -ENODEV: there is none, it is too old, or
 * it does not start. *reason, static, says why; "" on success. May block while
 * the driver starts. Threads: any. */
int weir_cuda_driver_get(const struct weir_cuda_driver **driver, const char **reason);

/* A function that is not in the table, for tests: by name and version of its
 * ABI. Pre: weir_cuda_driver_get has succeeded. -ENOTSUP: the driver lacks it. */
int weir_cuda_driver_find(const char *name, int version, void **function);

/* The driver's name for an error, "unknown error" for one it does not know. */
const char *weir_cuda_error_name(const struct weir_cuda_driver *driver, CUresult error);

#endif
