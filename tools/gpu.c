/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <errno.h>
#include <string.h>

static bool driver_suffices(const struct weir_cuda_driver *d)
{
    return d->cuLibraryLoadData && d->cuLibraryUnload && d->cuLibraryGetKernel &&
           d->cuKernelGetFunction && d->cuLaunchKernel;
}

int weir_gpu_open(struct weir_gpu *gpu, weir_device *device, const void *image)
{
    if (!image || strcmp(weir_device_name(device), "cuda") != 0)
        return -ENOTSUP;
    struct weir_gpu made = { .device = weir_cuda_from(device) };
    made.driver = made.device->driver;
    void *function;
    if (!driver_suffices(made.driver) ||
        weir_cuda_driver_find("cuEventSynchronize", 2000, &function))
        return -ENOTSUP;
    memcpy(&made.event_synchronize, &function, sizeof function);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(made.device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_result(
        made.device, "cuLibraryLoadData",
        made.driver->cuLibraryLoadData(&made.library, image, NULL, NULL, 0, NULL, NULL, 0));
    weir_cuda_leave(made.device, mode);
    if (rc == 0)
        *gpu = made;
    return rc;
}

void weir_gpu_close(struct weir_gpu *gpu)
{
    CUstreamCaptureMode mode;
    if (!gpu->device || weir_cuda_enter_to_free(gpu->device, &mode))
        return;
    (void)weir_cuda_result(gpu->device, "cuLibraryUnload",
                           gpu->driver->cuLibraryUnload(gpu->library));
    weir_cuda_leave(gpu->device, mode);
    *gpu = (struct weir_gpu){ 0 };
}

int weir_gpu_function(struct weir_gpu *gpu, const char *name, CUfunction *function)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(gpu->device, &mode);
    if (rc)
        return rc;
    CUkernel kernel;
    rc = weir_cuda_result(gpu->device, name,
                          gpu->driver->cuLibraryGetKernel(&kernel, gpu->library, name));
    if (rc == 0)
        rc =
            weir_cuda_result(gpu->device, name, gpu->driver->cuKernelGetFunction(function, kernel));
    weir_cuda_leave(gpu->device, mode);
    return rc;
}

int weir_gpu_launch(struct weir_gpu *gpu, weir_stream *stream, CUfunction function,
                    struct weir_gpu_grid grid, const void *args)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(gpu->device, &mode);
    if (rc)
        return rc;
    void *parameters[] = { (void *)args };
    rc = weir_cuda_result(gpu->device, "cuLaunchKernel",
                          gpu->driver->cuLaunchKernel(function, grid.x, grid.y, grid.z,
                                                      grid.threads, 1, 1, grid.shared_bytes,
                                                      (CUstream)stream, parameters, NULL));
    weir_cuda_leave(gpu->device, mode);
    return rc;
}

int weir_gpu_copy(struct weir_gpu *gpu, weir_stream *stream, uint64_t to, uint64_t from,
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

int weir_gpu_wait(struct weir_gpu *gpu, weir_event *event)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(gpu->device, &mode);
    if (rc)
        return rc;
    rc =
        weir_cuda_result(gpu->device, "cuEventSynchronize", gpu->event_synchronize((CUevent)event));
    weir_cuda_leave(gpu->device, mode);
    return rc;
}
