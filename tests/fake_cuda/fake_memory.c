/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#include <stdlib.h>

#define MAX_RANGES 256u

static struct fake_range ranges[MAX_RANGES];
static size_t n_ranges;

static bool same_address(void)
{
    return fake_state.attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM];
}

static CUresult add_range(enum fake_place place, void *begin, size_t bytes)
{
    if (n_ranges == MAX_RANGES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < n_ranges; i++)
        if ((unsigned char *)begin < ranges[i].begin + ranges[i].bytes &&
            ranges[i].begin < (unsigned char *)begin + bytes)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    ranges[n_ranges++] = (struct fake_range){ place, begin, bytes };
    fake_state.n_allocations++;
    return CUDA_SUCCESS;
}

static CUresult remove_range(enum fake_place place, const void *begin)
{
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].place != place || ranges[i].begin != begin)
            continue;
        ranges[i] = ranges[--n_ranges];
        fake_state.n_allocations--;
        return CUDA_SUCCESS;
    }
    fake_violate("%p was not allocated or registered", begin);
    return CUDA_ERROR_INVALID_VALUE;
}

const struct fake_range *fake_range_of(const unsigned char *begin, size_t bytes)
{
    for (size_t i = 0; i < n_ranges; i++)
        if (begin >= ranges[i].begin && bytes <= ranges[i].bytes &&
            (size_t)(begin - ranges[i].begin) <= ranges[i].bytes - bytes)
            return &ranges[i];
    return NULL;
}

/* The host's address for one of the GPU's, or NULL. */
unsigned char *fake_resolve(CUdeviceptr address, size_t bytes, enum fake_place *place)
{
    bool is_alias = address >= FAKE_ALIAS_OFFSET;
    unsigned char *host =
        (unsigned char *)(uintptr_t)(is_alias ? address - FAKE_ALIAS_OFFSET : address);
    const struct fake_range *range = fake_range_of(host, bytes);
    if (!range || is_alias != (range->place != FAKE_DEVICE && !same_address())) {
        fake_violate("%zu bytes at 0x%llx are not in one allocation or registration", bytes,
                     address);
        return NULL;
    }
    *place = range->place;
    return host;
}

/* ---- Calls --------------------------------------------------------------- */

CUresult fake_cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    COUNT_IN_CONTEXT(cuMemAlloc, NULL, bytes, 0, 0);
    CUresult result = fake_check_capture_mode("cuMemAlloc");
    if (result)
        return result;
    void *made = aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(made, 0xee, bytes);
    result = add_range(FAKE_DEVICE, made, bytes);
    if (result)
        free(made);
    else
        *address = (uintptr_t)made;
    return result;
}

CUresult fake_cuMemFree(CUdeviceptr address)
{
    COUNT_IN_CONTEXT(cuMemFree, NULL, address, 0, 0);
    CUresult result = fake_check_capture_mode("cuMemFree");
    if (!result)
        result = remove_range(FAKE_DEVICE, (void *)(uintptr_t)address);
    if (!result)
        free((void *)(uintptr_t)address);
    return result;
}

CUresult fake_cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuMemHostAlloc, NULL, flags, 0, 0);
    CUresult result = fake_check_capture_mode("cuMemHostAlloc");
    if (result)
        return result;
    void *made = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(made, 0xee, bytes);
    result = add_range(FAKE_WORDS, made, bytes);
    if (result)
        free(made);
    else
        *address = made;
    return result;
}

CUresult fake_cuMemFreeHost(void *address)
{
    COUNT_IN_CONTEXT(cuMemFreeHost, NULL, (uintptr_t)address, 0, 0);
    CUresult result = fake_check_capture_mode("cuMemFreeHost");
    if (!result)
        result = remove_range(FAKE_WORDS, address);
    if (!result)
        free(address);
    return result;
}

CUresult fake_cuMemHostRegister(void *address, size_t bytes, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuMemHostRegister, NULL, flags, bytes, 0);
    CUresult result = fake_check_capture_mode("cuMemHostRegister");
    return result ? result : add_range(FAKE_REGISTERED, address, bytes);
}

CUresult fake_cuMemHostUnregister(void *address)
{
    COUNT_IN_CONTEXT(cuMemHostUnregister, NULL, (uintptr_t)address, 0, 0);
    CUresult result = fake_check_capture_mode("cuMemHostUnregister");
    return result ? result : remove_range(FAKE_REGISTERED, address);
}

CUresult fake_cuMemHostGetDevicePointer(CUdeviceptr *alias, void *address, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuMemHostGetDevicePointer, NULL, flags, 0, 0);
    *alias = (uintptr_t)address + (same_address() ? 0 : FAKE_ALIAS_OFFSET);
    return CUDA_SUCCESS;
}
