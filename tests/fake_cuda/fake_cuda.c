/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#include <stdarg.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

struct CUctx_st {
    int dummy;
};

static struct CUctx_st context;

struct fake_cuda fake_state = {
    .n_devices = 1,
    .attributes = {
        [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
        [CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 132,
        [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
        [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9,
        [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
        [CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES] = 0,
        [CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID] = 0,
    },
    .greatest_priority = -5,
};

/* ---- Accounts ------------------------------------------------------------ */

void fake_violate(const char *format, ...)
{
    if (fake_state.n_violations++ > 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fake_state.violation, sizeof fake_state.violation, format, arguments);
    va_end(arguments);
}

CUresult fake_count(enum fake_function function, CUstream stream, uint64_t a, uint64_t b,
                    uint64_t c)
{
    uint32_t n = ++fake_state.counts[function];
    if (fake_state.n_calls < FAKE_CALLS)
        fake_state.calls[fake_state.n_calls++] =
            (struct fake_call){ function, stream, { a, b, c } };
    const struct fake_fault *fault = &fake_state.faults[function];
    return n >= fault->first && n <= fault->last ? fault->result : CUDA_SUCCESS;
}

/* ---- The device ---------------------------------------------------------- */

CUresult fake_cuInit(unsigned int flags)
{
    COUNT(cuInit, NULL, flags, 0, 0);
    return CUDA_SUCCESS;
}

CUresult fake_cuDriverGetVersion(int *version)
{
    COUNT(cuDriverGetVersion, NULL, 0, 0, 0);
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult fake_cuGetErrorName(CUresult error, const char **name)
{
    COUNT(cuGetErrorName, NULL, error, 0, 0);
    switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        return CUDA_SUCCESS;
    case CUDA_ERROR_NO_DEVICE:
        *name = "CUDA_ERROR_NO_DEVICE";
        return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult fake_cuDeviceGetCount(int *n)
{
    COUNT(cuDeviceGetCount, NULL, 0, 0, 0);
    *n = fake_state.n_devices;
    return CUDA_SUCCESS;
}

CUresult fake_cuDeviceGet(CUdevice *device, int ordinal)
{
    COUNT(cuDeviceGet, NULL, (uint64_t)ordinal, 0, 0);
    *device = ordinal;
    return ordinal < fake_state.n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult fake_cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    COUNT(cuDeviceGetName, NULL, (uint64_t)device, 0, 0);
    snprintf(name, (size_t)bytes, "fake gpu");
    return CUDA_SUCCESS;
}

CUresult fake_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    COUNT(cuDeviceGetAttribute, NULL, attribute, (uint64_t)device, 0);
    *value = fake_state.attributes[attribute];
    return CUDA_SUCCESS;
}

CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    COUNT(cuDevicePrimaryCtxRetain, NULL, (uint64_t)device, 0, 0);
    fake_state.retained++;
    *made = &context;
    return CUDA_SUCCESS;
}

CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
    COUNT(cuDevicePrimaryCtxRelease, NULL, (uint64_t)device, 0, 0);
    if (--fake_state.retained < 0)
        fake_violate("the context was released more often than retained");
    return CUDA_SUCCESS;
}

CUresult fake_cuCtxPushCurrent(CUcontext pushed)
{
    COUNT(cuCtxPushCurrent, NULL, 0, 0, 0);
    if (pushed != &context || fake_state.retained < 1) {
        fake_violate("a context was pushed that is not retained");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    fake_state.contexts++;
    return CUDA_SUCCESS;
}

CUresult fake_cuCtxPopCurrent(CUcontext *popped)
{
    COUNT(cuCtxPopCurrent, NULL, 0, 0, 0);
    if (--fake_state.contexts < 0)
        fake_violate("a context was popped more often than pushed");
    *popped = &context;
    return CUDA_SUCCESS;
}

CUresult fake_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    COUNT_IN_CONTEXT(cuCtxGetStreamPriorityRange, NULL, 0, 0, 0);
    *least = fake_state.least_priority;
    *greatest = fake_state.greatest_priority;
    return CUDA_SUCCESS;
}

CUresult fake_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    COUNT(cuThreadExchangeStreamCaptureMode, NULL, *mode, 0, 0);
    CUstreamCaptureMode old = fake_state.mode;
    fake_state.mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* ---- What the loader and the tests look up ------------------------------- */

static void (*const functions[FAKE_FUNCTIONS])(void) = {
#define HAVE(name) [FAKE_##name] = (void (*)(void))fake_##name
    HAVE(cuInit),
    HAVE(cuDriverGetVersion),
    HAVE(cuGetErrorName),
    HAVE(cuDeviceGetCount),
    HAVE(cuDeviceGet),
    HAVE(cuDeviceGetName),
    HAVE(cuDeviceGetAttribute),
    HAVE(cuDevicePrimaryCtxRetain),
    HAVE(cuDevicePrimaryCtxRelease),
    HAVE(cuCtxPushCurrent),
    HAVE(cuCtxPopCurrent),
    HAVE(cuCtxGetStreamPriorityRange),
    HAVE(cuThreadExchangeStreamCaptureMode),
    HAVE(cuMemAlloc),
    HAVE(cuMemFree),
    HAVE(cuMemHostAlloc),
    HAVE(cuMemFreeHost),
    HAVE(cuMemHostRegister),
    HAVE(cuMemHostUnregister),
    HAVE(cuMemHostGetDevicePointer),
    HAVE(cuStreamCreateWithPriority),
    HAVE(cuStreamDestroy),
    HAVE(cuStreamSynchronize),
    HAVE(cuStreamWaitEvent),
    HAVE(cuStreamIsCapturing),
    HAVE(cuEventCreate),
    HAVE(cuEventDestroy),
    HAVE(cuEventRecord),
    HAVE(cuStreamWriteValue32),
    HAVE(cuStreamWaitValue32),
    HAVE(cuMemcpyAsync),
    HAVE(cuMemcpy2DAsync),
    HAVE(cuMemcpyBatchAsync),
#undef HAVE
};

static const char *const names[FAKE_FUNCTIONS] = {
#define NAME(name, version, need, parameters) #name,
    WEIR_CUDA_FUNCTIONS(NAME)
#undef NAME
};

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found);

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found)
{
    size_t i = 0;
    while (i < FAKE_FUNCTIONS && strcmp(names[i], name) != 0)
        i++;
    *function = NULL;
    *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (i == FAKE_FUNCTIONS || !functions[i])
        return CUDA_ERROR_NOT_FOUND;
    fake_state.versions[i] = version;
    fake_state.flags[i] = flags;
    switch (fake_state.presence[i]) {
    case FAKE_NOT_FOUND:
        return CUDA_SUCCESS;
    case FAKE_TOO_OLD:
        *found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
    case FAKE_REFUSED:
        *found = CU_GET_PROC_ADDRESS_SUCCESS;
        memcpy(function, &functions[i], sizeof *function);
        return CUDA_ERROR_INVALID_VALUE;
    case FAKE_NULL:
        *found = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    case FAKE_PRESENT:
        break;
    }
    *found = CU_GET_PROC_ADDRESS_SUCCESS;
    memcpy(function, &functions[i], sizeof *function);
    return CUDA_SUCCESS;
}

EXPORT struct fake_cuda *fake_cuda_state(void);

EXPORT struct fake_cuda *fake_cuda_state(void)
{
    fake_state.set_capture = fake_set_capture;
    fake_state.captured = fake_captured;
    fake_state.replay = fake_replay;
    fake_state.idle = fake_idle;
    return &fake_state;
}
