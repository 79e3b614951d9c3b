/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_DRIVER_H
#define TRANSFORMER_DRIVER_H

/* The CUDA driver, opened at run time, so that this program starts on a machine
 * without one. A server that needs a GPU anyway just links to libcuda. */

#include <cuda.h>

#define DRIVER_FUNCTIONS(X)      \
    X(cuInit)                    \
    X(cuDeviceGet)               \
    X(cuDevicePrimaryCtxRetain)  \
    X(cuDevicePrimaryCtxRelease) \
    X(cuCtxSetCurrent)           \
    X(cuStreamCreate)            \
    X(cuStreamDestroy)           \
    X(cuStreamSynchronize)       \
    X(cuStreamBeginCapture)      \
    X(cuStreamEndCapture)        \
    X(cuMemAlloc)                \
    X(cuMemFree)                 \
    X(cuMemHostAlloc)            \
    X(cuMemFreeHost)             \
    X(cuMemcpyHtoDAsync)         \
    X(cuModuleLoadData)          \
    X(cuModuleUnload)            \
    X(cuModuleGetFunction)       \
    X(cuLaunchKernel)            \
    X(cuGraphInstantiate)        \
    X(cuGraphLaunch)             \
    X(cuGraphExecDestroy)        \
    X(cuGraphDestroy)

/* cuda.h names of many functions a newer version by a macro (cuMemAlloc_v2). The
 * detour over another macro makes it replace the field's name as well as the
 * name that is looked up. */
#define DRIVER_FIELD(name) DRIVER_FIELD_OF(name)
#define DRIVER_FIELD_OF(name) __typeof__(name) *name;

struct driver {
    DRIVER_FUNCTIONS(DRIVER_FIELD)
};

/* Opens the driver and initialises it. -ENODEV: there is none, or it lacks a
 * function. It is never closed again. */
int driver_open(struct driver *driver);

/* 0, or -EIO after a line that says what failed. */
int driver_result(const char *what, CUresult result);

#endif
