/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"
#include "device/cuda_kernels.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Around every driver call ---------------------------------------------- */

/* After these nothing works in this context any more, whichever kernel or
 * library of the process it was. */
static bool is_fatal(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

static bool is_unsupported(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                                                  result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

int weir_cuda_result(struct weir_cuda_device *device, const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    bool fatal = is_fatal(result);
    bool known = fatal && atomic_exchange(&device->lost, true);
    if (!known)
        weir_log_line(&device->base.log, fatal ? WEIR_LOG_ERROR : WEIR_LOG_WARN,
                      "cuda device %d: %s: %s%s", device->ordinal, call,
                      weir_cuda_error_name(device->driver, result),
                      fatal ? "; the device is lost" : "");
    if (fatal)
        return -EIO;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return -ENOMEM;
    return is_unsupported(result) ? -ENOTSUP : -EIO;
}

int weir_cuda_enter_to_free(struct weir_cuda_device *device, CUstreamCaptureMode *mode)
{
    int rc = weir_cuda_result(device, "cuCtxPushCurrent",
                              device->driver->cuCtxPushCurrent(device->context));
    if (rc)
        return rc;
    /* In any other mode some calls would break a capture of this thread's, or
     * of any thread's. */
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    rc = weir_cuda_result(device, "cuThreadExchangeStreamCaptureMode",
                          device->driver->cuThreadExchangeStreamCaptureMode(mode));
    if (rc) {
        CUcontext popped;
        (void)device->driver->cuCtxPopCurrent(&popped);
    }
    return rc;
}

int weir_cuda_enter(struct weir_cuda_device *device, CUstreamCaptureMode *mode)
{
    return atomic_load(&device->lost) ? -EIO : weir_cuda_enter_to_free(device, mode);
}

void weir_cuda_leave(struct weir_cuda_device *device, CUstreamCaptureMode mode)
{
    CUcontext popped;
    (void)device->driver->cuThreadExchangeStreamCaptureMode(&mode);
    (void)device->driver->cuCtxPopCurrent(&popped);
}

int weir_cuda_check_stream(weir_device *base, const weir_stream *stream, const char *call)
{
    return stream ? 0 : weir_invalid(&base->log, "%s: stream is NULL", call);
}

/* ---- Ops of the device itself ---------------------------------------------- */

static int status(weir_device *base)
{
    return atomic_load(&weir_cuda_from(base)->lost) ? -EIO : 0;
}

static int pool_register(weir_device *base, uint32_t n_pages, uint32_t n_tensors, uint32_t n_layers,
                         uint32_t *pool)
{
    (void)n_pages;
    (void)n_tensors;
    (void)n_layers;
    int rc = status(base);
    if (rc == 0)
        *pool = 0;
    return rc;
}

static void pool_unregister(weir_device *base, uint32_t pool)
{
    (void)base;
    (void)pool;
}

static void close_device(weir_device *base)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    if (weir_cuda_enter_to_free(device, &mode) == 0) {
        weir_cuda_kernels_destroy(&device->kernels);
        weir_cuda_leave(device, mode);
    }
    (void)weir_cuda_result(device, "cuDevicePrimaryCtxRelease",
                           device->driver->cuDevicePrimaryCtxRelease(device->ordinal));
    pthread_mutex_destroy(&device->lock);
    free(device->pinned.items);
    free(device->adopted.items);
    free(device);
}

static const struct weir_device_ops cuda_ops = {
    .name = "cuda",
    .close = close_device,
    .status = status,
    .memory_alloc = weir_cuda_memory_alloc,
    .memory_free = weir_cuda_memory_free,
    .host_register = weir_cuda_host_register,
    .host_unregister = weir_cuda_host_unregister,
    .words_alloc = weir_cuda_words_alloc,
    .words_free = weir_cuda_words_free,
    .word_load = weir_cuda_word_load,
    .word_store = weir_cuda_word_store,
    .stream_create = weir_cuda_stream_create,
    .stream_destroy = weir_cuda_stream_destroy,
    .stream_synchronize = weir_cuda_stream_synchronize,
    .stream_is_capturing = weir_cuda_stream_is_capturing,
    .event_create = weir_cuda_event_create,
    .event_destroy = weir_cuda_event_destroy,
    .event_record = weir_cuda_event_record,
    .stream_wait_event = weir_cuda_stream_wait_event,
    .stream_wait_event_external = weir_cuda_stream_wait_event_external,
    .stream_write_word = weir_cuda_stream_write_word,
    .stream_wait_word = weir_cuda_stream_wait_word,
    .transfer_prepare = weir_cuda_transfer_prepare,
    .transfer_release = weir_cuda_transfer_release,
    .transfer_bytes = weir_cuda_transfer_bytes,
    .transfer_tune = weir_cuda_transfer_tune,
    .copy = weir_cuda_copy,
    .copy_pages = weir_cuda_copy_pages,
    .copy_rows = weir_cuda_copy_rows,
    .gather_prepare = weir_cuda_gather_prepare,
    .gather_release = weir_cuda_gather_release,
    .gather_launch = weir_cuda_gather_launch,
    .expert_launch = weir_cuda_expert_launch,
    .pool_register = pool_register,
    .pool_unregister = pool_unregister,
};

/* ---- Opening --------------------------------------------------------------- */

int weir_cuda_count_gpus(int *count, const char **reason)
{
    const struct weir_cuda_driver *driver;
    int rc = weir_cuda_driver_get(&driver, reason);
    if (rc)
        return rc;
    int n = 0;
    if (driver->cuDeviceGetCount(&n) || n < 1) {
        *reason = "no gpu";
        return -ENODEV;
    }
    *count = n;
    return 0;
}

/* What the GPU does not answer has the value that promises nothing. */
static int attribute(const struct weir_cuda_device *device, CUdevice_attribute name, int otherwise)
{
    int value;
    return device->driver->cuDeviceGetAttribute(&value, name, device->ordinal) ? otherwise : value;
}

static int read_attributes(struct weir_cuda_device *device)
{
    if (!attribute(device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0)) {
        weir_log_line(&device->base.log, WEIR_LOG_ERROR,
                      "cuda device %d: host and device memory do not share an address space",
                      device->ordinal);
        return -ENOTSUP;
    }
    device->same_address =
        attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0) != 0;
    device->coherent_link =
        attribute(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0) != 0;
    int pitch = attribute(device, CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0);
    device->max_pitch = pitch > 0 ? (uint64_t)pitch : 0;
    device->base.numa_node = attribute(device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
    atomic_init(&device->batches, device->driver->cuMemcpyBatchAsync != NULL);
    return 0;
}

static int read_priorities(struct weir_cuda_device *device)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_result(device, "cuCtxGetStreamPriorityRange",
                          device->driver->cuCtxGetStreamPriorityRange(&device->lowest_priority,
                                                                      &device->highest_priority));
    weir_cuda_leave(device, mode);
    return rc;
}

static int load_kernels(struct weir_cuda_device *device)
{
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_kernels_create(&device->kernels, device);
    weir_cuda_leave(device, mode);
    return rc;
}

static void log_opened(const struct weir_cuda_device *device)
{
    char name[96] = "";
    int version = 0;
    (void)device->driver->cuDeviceGetName(name, sizeof name, device->ordinal);
    (void)device->driver->cuDriverGetVersion(&version);
    const char *kernels = "none";
    if (device->kernels->compute)
        kernels = device->kernels->stages ? "vector and tma" : "vector";
    weir_log_line(&device->base.log, WEIR_LOG_INFO,
                  "cuda device %d: %s, compute %d.%d, driver %d.%d, numa node %d, copies %s, "
                  "kernels %s",
                  device->ordinal, name,
                  attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
                  attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
                  version / 1000, version % 1000 / 10, device->base.numa_node,
                  atomic_load(&device->batches) ? "in batches" : "one by one", kernels);
}

/* The device has its log, driver and lock. */
static int start(struct weir_cuda_device *device, uint32_t ordinal)
{
    const struct weir_cuda_driver *driver = device->driver;
    int rc = weir_cuda_result(device, "cuDeviceGet",
                              driver->cuDeviceGet(&device->ordinal, (int)ordinal));
    if (rc == 0)
        rc = read_attributes(device);
    if (rc == 0)
        rc = weir_cuda_result(device, "cuDevicePrimaryCtxRetain",
                              driver->cuDevicePrimaryCtxRetain(&device->context, device->ordinal));
    if (rc)
        return rc;
    rc = read_priorities(device);
    if (rc == 0)
        rc = load_kernels(device);
    if (rc)
        (void)driver->cuDevicePrimaryCtxRelease(device->ordinal);
    return rc;
}

int weir_cuda_device_open(weir_device **device, const weir_device_params *params)
{
    const char *reason;
    int n = 0;
    int rc = weir_cuda_count_gpus(&n, &reason);
    if (rc) {
        weir_log_line(&params->log, WEIR_LOG_ERROR, "cuda device: %s", reason);
        return rc;
    }
    if (params->ordinal >= (uint32_t)n) {
        weir_log_line(&params->log, WEIR_LOG_ERROR,
                      "cuda device: ordinal is %u, there are %d devices", params->ordinal, n);
        return -ENODEV;
    }
    struct weir_cuda_device *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->base.ops = &cuda_ops;
    made->base.log = params->log;
    rc = weir_cuda_driver_get(&made->driver, &reason);
    if (rc == 0)
        rc = -pthread_mutex_init(&made->lock, NULL);
    if (rc) {
        free(made);
        return rc;
    }
    rc = start(made, params->ordinal);
    if (rc) {
        pthread_mutex_destroy(&made->lock);
        free(made);
        return rc;
    }
    log_opened(made);
    *device = &made->base;
    return 0;
}
