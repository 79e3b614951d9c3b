/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- Device memory --------------------------------------------------------- */

int weir_cuda_memory_alloc(weir_device *base, uint64_t bytes, uint64_t *address)
{
    if (bytes == 0 || !address)
        return weir_invalid(&base->log, "memory alloc: %s",
                            address ? "bytes is 0, must be at least 1" : "address is NULL");
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    CUdeviceptr made = 0;
    rc = weir_cuda_result(device, "cuMemAlloc", device->driver->cuMemAlloc(&made, bytes));
    weir_cuda_leave(device, mode);
    if (rc == 0)
        *address = made;
    return rc;
}

void weir_cuda_memory_free(weir_device *base, uint64_t address)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    if (address == 0 || weir_cuda_enter_to_free(device, &mode))
        return;
    (void)weir_cuda_result(device, "cuMemFree", device->driver->cuMemFree(address));
    weir_cuda_leave(device, mode);
}

/* ---- Pinned host memory ---------------------------------------------------- */

static int remember(struct weir_cuda_device *device, void *host, uint64_t bytes, CUdeviceptr alias)
{
    pthread_mutex_lock(&device->lock);
    int rc = weir_ranges_add(&device->pinned, host, bytes, (void *)(uintptr_t)alias);
    pthread_mutex_unlock(&device->lock);
    return rc;
}

static bool forget(struct weir_cuda_device *device, const void *host)
{
    pthread_mutex_lock(&device->lock);
    int rc = weir_ranges_remove(&device->pinned, host);
    pthread_mutex_unlock(&device->lock);
    return rc == 0;
}

/* Where the device sees what was just pinned, kept for weir_cuda_alias. */
static int remember_pinned(struct weir_cuda_device *device, void *host, uint64_t bytes)
{
    CUdeviceptr alias = (uintptr_t)host;
    int rc = 0;
    if (!device->same_address)
        rc = weir_cuda_result(device, "cuMemHostGetDevicePointer",
                              device->driver->cuMemHostGetDevicePointer(&alias, host, 0));
    return rc ? rc : remember(device, host, bytes, alias);
}

/* What another device of this process has registered is pinned for all of them,
 * and the driver refuses to do it twice: this GPU only needs to know where it
 * sees the memory. Who registered it must keep it until this device lets go. */
static int adopt(struct weir_cuda_device *device, void *host, uint64_t bytes)
{
    CUdeviceptr alias;
    int rc = weir_cuda_result(device, "cuMemHostGetDevicePointer",
                              device->driver->cuMemHostGetDevicePointer(&alias, host, 0));
    if (rc)
        return rc;
    rc = remember(device, host, bytes, alias);
    if (rc == -EEXIST) {
        weir_log_line(&device->base.log, WEIR_LOG_ERROR,
                      "cuda device %d: %p is registered with it already", device->ordinal, host);
        return -EIO;
    }
    if (rc)
        return rc;
    pthread_mutex_lock(&device->lock);
    rc = weir_ranges_add(&device->adopted, host, bytes, NULL);
    pthread_mutex_unlock(&device->lock);
    if (rc)
        (void)forget(device, host);
    return rc;
}

static bool give_up_adopted(struct weir_cuda_device *device, const void *host)
{
    pthread_mutex_lock(&device->lock);
    int rc = weir_ranges_remove(&device->adopted, host);
    pthread_mutex_unlock(&device->lock);
    return rc == 0;
}

int weir_cuda_alias(struct weir_cuda_device *device, uint64_t host, uint64_t bytes,
                    CUdeviceptr *alias)
{
    if (device->same_address) {
        *alias = host;
        return 0;
    }
    pthread_mutex_lock(&device->lock);
    const struct weir_range *range = weir_ranges_find(&device->pinned, host, bytes);
    if (range)
        *alias = (uintptr_t)range->attached + (host - range->begin);
    pthread_mutex_unlock(&device->lock);
    if (!range)
        return weir_invalid(&device->base.log,
                            "cuda device %d: %" PRIu64 " bytes at 0x%" PRIx64 " are not pinned",
                            device->ordinal, bytes, host);
    return 0;
}

int weir_cuda_host_register(weir_device *base, void *address, uint64_t bytes)
{
    int rc = weir_host_register_check(address, bytes, &base->log);
    if (rc)
        return rc;
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    CUresult result = device->driver->cuMemHostRegister(
        address, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
        rc = adopt(device, address, bytes);
        weir_cuda_leave(device, mode);
        return rc;
    }
    rc = weir_cuda_result(device, "cuMemHostRegister", result);
    if (rc == 0) {
        rc = remember_pinned(device, address, bytes);
        if (rc)
            (void)device->driver->cuMemHostUnregister(address);
    }
    weir_cuda_leave(device, mode);
    return rc;
}

void weir_cuda_host_unregister(weir_device *base, void *address)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    if (!forget(device, address)) {
        weir_log_line(&base->log, WEIR_LOG_ERROR, "host unregister: %p is not registered", address);
        return;
    }
    if (give_up_adopted(device, address))
        return;
    CUstreamCaptureMode mode;
    if (weir_cuda_enter_to_free(device, &mode))
        return;
    (void)weir_cuda_result(device, "cuMemHostUnregister",
                           device->driver->cuMemHostUnregister(address));
    weir_cuda_leave(device, mode);
}

/* ---- Words ----------------------------------------------------------------- */

int weir_cuda_words_alloc(weir_device *base, uint32_t n, uint32_t **words)
{
    if (n == 0 || !words)
        return weir_invalid(&base->log, "words alloc: %s",
                            words ? "n is 0, must be at least 1" : "words is NULL");
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    size_t bytes = (size_t)n * sizeof **words;
    void *made = NULL;
    rc = weir_cuda_result(device, "cuMemHostAlloc",
                          device->driver->cuMemHostAlloc(
                              &made, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    if (rc == 0) {
        memset(made, 0, bytes);
        rc = remember_pinned(device, made, bytes);
        if (rc)
            (void)device->driver->cuMemFreeHost(made);
    }
    weir_cuda_leave(device, mode);
    if (rc == 0)
        *words = made;
    return rc;
}

void weir_cuda_words_free(weir_device *base, uint32_t *words)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    if (!words)
        return;
    if (!forget(device, words)) {
        weir_log_line(&base->log, WEIR_LOG_ERROR, "words free: %p are not words", (void *)words);
        return;
    }
    if (weir_cuda_enter_to_free(device, &mode))
        return;
    (void)weir_cuda_result(device, "cuMemFreeHost", device->driver->cuMemFreeHost(words));
    weir_cuda_leave(device, mode);
}

uint32_t weir_cuda_word_load(weir_device *base, const uint32_t *word)
{
    (void)base;
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void weir_cuda_word_store(weir_device *base, uint32_t *word, uint32_t value)
{
    (void)base;
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
