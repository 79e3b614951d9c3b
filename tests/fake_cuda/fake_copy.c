/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#define LARGEST_PIECE ((size_t)8 << 20)
#define TINY ((size_t)64 << 10)

static bool make_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, struct fake_op *op)
{
    enum fake_place to_place;
    enum fake_place from_place;
    *op = (struct fake_op){ .kind = FAKE_COPY };
    op->copy.to = fake_resolve(to, bytes, &to_place);
    op->copy.from = fake_resolve(from, bytes, &from_place);
    op->copy.bytes = bytes;
    op->copy.rows = 1;
    if (bytes == 0 || bytes > LARGEST_PIECE)
        fake_violate("a copy of %zu bytes", bytes);
    return op->copy.to && op->copy.from;
}

CUresult fake_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    COUNT_IN_CONTEXT(cuMemcpyAsync, handle, bytes, 0, 0);
    CUstream stream = fake_stream_of(handle);
    struct fake_op op;
    if (!stream || !make_copy(to, from, bytes, &op))
        return CUDA_ERROR_INVALID_VALUE;
    return fake_enqueue(stream, &op);
}

CUresult fake_cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream handle)
{
    COUNT_IN_CONTEXT(cuMemcpy2DAsync, handle, copy->WidthInBytes, copy->Height, 0);
    CUstream stream = fake_stream_of(handle);
    bool load = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
    const void *host = load ? copy->srcHost : copy->dstHost;
    CUdeviceptr device = load ? copy->dstDevice : copy->srcDevice;
    size_t host_span =
        (copy->Height - 1) * (load ? copy->srcPitch : copy->dstPitch) + copy->WidthInBytes;
    size_t device_span =
        (copy->Height - 1) * (load ? copy->dstPitch : copy->srcPitch) + copy->WidthInBytes;
    const struct fake_range *pinned = fake_range_of(host, host_span);
    const struct fake_range *memory =
        fake_range_of((const unsigned char *)(uintptr_t)device, device_span);
    bool fits =
        pinned && pinned->place == FAKE_REGISTERED && memory && memory->place == FAKE_DEVICE;
    if (!fits)
        fake_violate("a 2-D copy outside of one registration and one allocation");
    if (copy->Height == 0 || copy->WidthInBytes * copy->Height > LARGEST_PIECE)
        fake_violate("a 2-D copy of %zu rows of %zu bytes", copy->Height, copy->WidthInBytes);
    size_t max_pitch = (size_t)fake_state.attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
    if (copy->srcPitch < copy->WidthInBytes || copy->dstPitch < copy->WidthInBytes ||
        copy->srcPitch > max_pitch || copy->dstPitch > max_pitch) {
        fake_violate("a 2-D copy with pitches %zu and %zu", copy->srcPitch, copy->dstPitch);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!stream || !fits)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_op op = { .kind = FAKE_COPY_2D,
                          .copy = { .to = load ? (void *)(uintptr_t)device : copy->dstHost,
                                    .from = load ? copy->srcHost : (void *)(uintptr_t)device,
                                    .bytes = copy->WidthInBytes,
                                    .to_pitch = copy->dstPitch,
                                    .from_pitch = copy->srcPitch,
                                    .rows = copy->Height } };
    return fake_enqueue(stream, &op);
}

CUresult fake_cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
                                 CUmemcpyAttributes *attributes, size_t *first, size_t n_attributes,
                                 size_t *failed, CUstream handle)
{
    size_t smallest = SIZE_MAX;
    size_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        smallest = bytes[i] < smallest ? bytes[i] : smallest;
        largest = bytes[i] > largest ? bytes[i] : largest;
    }
    COUNT_IN_CONTEXT(cuMemcpyBatchAsync, handle, n, smallest, largest);
    CUstream stream = fake_stream_of(handle);
    if (n == 0 || n_attributes != 1 || *first != 0 || !failed ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || attributes->flags)
        fake_violate("a batch with wrong attributes");
    if (smallest < TINY && largest >= TINY)
        fake_violate("a batch of copies from %zu to %zu bytes", smallest, largest);
    if (!stream || handle == CU_STREAM_LEGACY) {
        fake_violate("a batch in a stream that takes none");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->capture) { /* the graph ends well, without the copies */
        fake_violate("a batch in a captured stream");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < n && !result; i++) {
        struct fake_op op;
        result = make_copy(to[i], from[i], bytes[i], &op) ? fake_enqueue(stream, &op)
                                                          : CUDA_ERROR_INVALID_VALUE;
    }
    return result;
}
