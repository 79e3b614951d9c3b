/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_GPU_H
#define WEIR_TOOLS_GPU_H

/* Kernels of a program's own on weir's CUDA device, and what little else such a
 * program wants of the driver: as a server has them beside weir.
 *
 * Every function enters the device's context by itself. Invariant: after open
 * nothing is loaded, so that launches may be captured. */

#include "device/cuda_device.h"

struct weir_gpu {
    struct weir_cuda_device *device;
    const struct weir_cuda_driver *driver;
    CUlibrary library;
    CUresult (*event_synchronize)(CUevent event);
};

struct weir_gpu_grid {
    uint32_t x;
    uint32_t y;
    uint32_t z;
    uint32_t threads;
    uint32_t shared_bytes;
};

/* `image`: from nvcc and bin2c; NULL: built without. The device must outlive it.
 * -ENOTSUP: no image, no CUDA device, or a driver that loads no kernels; -EIO:
 * the image has no code for this GPU. */
int weir_gpu_open(struct weir_gpu *gpu, weir_device *device, const void *image);

/* Accepts a zeroed one. Pre: no kernel runs. */
void weir_gpu_close(struct weir_gpu *gpu);

int weir_gpu_function(struct weir_gpu *gpu, const char *name, CUfunction *function);

/* `args` is the kernel's one parameter. */
int weir_gpu_launch(struct weir_gpu *gpu, weir_stream *stream, CUfunction function,
                    struct weir_gpu_grid grid, const void *args);

/* Between any two places that the GPU reaches, in the stream. */
int weir_gpu_copy(struct weir_gpu *gpu, weir_stream *stream, uint64_t to, uint64_t from,
                  uint64_t bytes);

/* Blocks until the newest record of an event has passed. */
int weir_gpu_wait(struct weir_gpu *gpu, weir_event *event);

#endif
