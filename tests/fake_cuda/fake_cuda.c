/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_RANGES 256u
#define MAX_HANDLES 64u
#define LARGEST_PIECE ((size_t)8 << 20)
#define TINY ((size_t)64 << 10)

enum kind {
    COPY,
    COPY_2D,
    RECORD,
    WAIT_EVENT,
    WRITE_WORD,
    WAIT_WORD
};

struct CUevent_st {
    uint64_t recorded; /* records that were enqueued */
    uint64_t passed;   /* the newest that has run */
};

struct op {
    struct op *next;
    enum kind kind;
    union {
        struct {
            unsigned char *to;
            const unsigned char *from;
            size_t bytes;
            size_t to_pitch;
            size_t from_pitch;
            size_t rows;
        } copy;
        struct {
            CUevent event;
            uint64_t number;
        } event;
        struct {
            uint32_t *word;
            uint32_t value;
        } word;
    };
};

struct CUstream_st {
    struct op *first;
    struct op **end;
    CUstreamCaptureStatus capture;
    struct op *graph; /* what was captured last, kept for replays */
    struct op **graph_end;
    uint32_t captured;
};

struct CUctx_st {
    int dummy;
};

enum place {
    DEVICE,
    WORDS,
    REGISTERED
};

static struct range {
    enum place place;
    unsigned char *begin;
    size_t bytes;
} ranges[MAX_RANGES];
static size_t n_ranges;

static struct CUctx_st context;
static struct CUstream_st legacy = { .end = &legacy.first, .graph_end = &legacy.graph };
static CUstream streams[MAX_HANDLES] = { &legacy };
static CUevent events[MAX_HANDLES];

static struct fake_cuda state = {
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

/* ---- Accounts -------------------------------------------------------------- */

static void __attribute__((format(printf, 1, 2))) violate(const char *format, ...)
{
    if (state.n_violations++ > 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(state.violation, sizeof state.violation, format, arguments);
    va_end(arguments);
}

static CUresult count(enum fake_function function, CUstream stream, uint64_t a, uint64_t b,
                      uint64_t c)
{
    uint32_t n = ++state.counts[function];
    if (state.n_calls < FAKE_CALLS)
        state.calls[state.n_calls++] = (struct fake_call){ function, stream, { a, b, c } };
    const struct fake_fault *fault = &state.faults[function];
    return n >= fault->first && n <= fault->last ? fault->result : CUDA_SUCCESS;
}

/* Leaves the function that names itself if the call is to fail. */
#define COUNT(name, stream, a, b, c)                            \
    do {                                                        \
        CUresult counted = count(FAKE_##name, stream, a, b, c); \
        if (counted)                                            \
            return counted;                                     \
    } while (0)

#define COUNT_IN_CONTEXT(name, stream, a, b, c)  \
    do {                                         \
        COUNT(name, stream, a, b, c);            \
        if (state.contexts < 1) {                \
            violate(#name " without a context"); \
            return CUDA_ERROR_INVALID_CONTEXT;   \
        }                                        \
        if (state.sticky)                        \
            return state.sticky;                 \
    } while (0)

static size_t handle_at(void **handles, const void *handle)
{
    size_t i = 0;
    while (i < MAX_HANDLES && (!handle || handles[i] != handle))
        i++;
    return i;
}

static CUstream stream_of(CUstream stream)
{
    if (stream == CU_STREAM_LEGACY)
        return &legacy;
    if (stream != &legacy && handle_at((void **)streams, stream) < MAX_HANDLES)
        return stream;
    violate("%p is no stream", (void *)stream);
    return NULL;
}

static bool is_event(CUevent event)
{
    bool is = handle_at((void **)events, event) < MAX_HANDLES;
    if (!is)
        violate("%p is no event", (void *)event);
    return is;
}

/* What a driver does to a capture in a mode that is not relaxed. */
static CUresult check_capture_mode(const char *name)
{
    bool broken = false;
    for (size_t i = 0; i < MAX_HANDLES; i++) {
        if (!streams[i] || streams[i]->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE ||
            state.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        streams[i]->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        broken = true;
    }
    if (!broken)
        return CUDA_SUCCESS;
    violate("%s broke a capture", name);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* ---- Memory ---------------------------------------------------------------- */

static bool same_address(void)
{
    return state.attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM];
}

static CUresult add_range(enum place place, void *begin, size_t bytes)
{
    if (n_ranges == MAX_RANGES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < n_ranges; i++)
        if ((unsigned char *)begin < ranges[i].begin + ranges[i].bytes &&
            ranges[i].begin < (unsigned char *)begin + bytes)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    ranges[n_ranges++] = (struct range){ place, begin, bytes };
    state.n_allocations++;
    return CUDA_SUCCESS;
}

static CUresult remove_range(enum place place, const void *begin)
{
    for (size_t i = 0; i < n_ranges; i++) {
        if (ranges[i].place != place || ranges[i].begin != begin)
            continue;
        ranges[i] = ranges[--n_ranges];
        state.n_allocations--;
        return CUDA_SUCCESS;
    }
    violate("%p was not allocated or registered", begin);
    return CUDA_ERROR_INVALID_VALUE;
}

static const struct range *range_of(const unsigned char *begin, size_t bytes)
{
    for (size_t i = 0; i < n_ranges; i++)
        if (begin >= ranges[i].begin && bytes <= ranges[i].bytes &&
            (size_t)(begin - ranges[i].begin) <= ranges[i].bytes - bytes)
            return &ranges[i];
    return NULL;
}

/* The host's address for one of the GPU's, or NULL. */
static unsigned char *resolve(CUdeviceptr address, size_t bytes, enum place *place)
{
    bool is_alias = address >= FAKE_ALIAS_OFFSET;
    unsigned char *host =
        (unsigned char *)(uintptr_t)(is_alias ? address - FAKE_ALIAS_OFFSET : address);
    const struct range *range = range_of(host, bytes);
    if (!range || is_alias != (range->place != DEVICE && !same_address())) {
        violate("%zu bytes at 0x%llx are not in one allocation or registration", bytes, address);
        return NULL;
    }
    *place = range->place;
    return host;
}

static CUresult fake_cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    COUNT_IN_CONTEXT(cuMemAlloc, NULL, bytes, 0, 0);
    CUresult result = check_capture_mode("cuMemAlloc");
    if (result)
        return result;
    void *made = aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(made, 0xee, bytes);
    result = add_range(DEVICE, made, bytes);
    if (result)
        free(made);
    else
        *address = (uintptr_t)made;
    return result;
}

static CUresult fake_cuMemFree(CUdeviceptr address)
{
    COUNT_IN_CONTEXT(cuMemFree, NULL, address, 0, 0);
    CUresult result = check_capture_mode("cuMemFree");
    if (!result)
        result = remove_range(DEVICE, (void *)(uintptr_t)address);
    if (!result)
        free((void *)(uintptr_t)address);
    return result;
}

static CUresult fake_cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuMemHostAlloc, NULL, flags, 0, 0);
    CUresult result = check_capture_mode("cuMemHostAlloc");
    if (result)
        return result;
    void *made = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(made, 0xee, bytes);
    result = add_range(WORDS, made, bytes);
    if (result)
        free(made);
    else
        *address = made;
    return result;
}

static CUresult fake_cuMemFreeHost(void *address)
{
    COUNT_IN_CONTEXT(cuMemFreeHost, NULL, (uintptr_t)address, 0, 0);
    CUresult result = check_capture_mode("cuMemFreeHost");
    if (!result)
        result = remove_range(WORDS, address);
    if (!result)
        free(address);
    return result;
}

static CUresult fake_cuMemHostRegister(void *address, size_t bytes, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuMemHostRegister, NULL, flags, bytes, 0);
    CUresult result = check_capture_mode("cuMemHostRegister");
    return result ? result : add_range(REGISTERED, address, bytes);
}

static CUresult fake_cuMemHostUnregister(void *address)
{
    COUNT_IN_CONTEXT(cuMemHostUnregister, NULL, (uintptr_t)address, 0, 0);
    CUresult result = check_capture_mode("cuMemHostUnregister");
    return result ? result : remove_range(REGISTERED, address);
}

static CUresult fake_cuMemHostGetDevicePointer(CUdeviceptr *alias, void *address,
                                               unsigned int flags)
{
    COUNT_IN_CONTEXT(cuMemHostGetDevicePointer, NULL, flags, 0, 0);
    *alias = (uintptr_t)address + (same_address() ? 0 : FAKE_ALIAS_OFFSET);
    return CUDA_SUCCESS;
}

/* ---- Running --------------------------------------------------------------- */

static bool is_ready(const struct op *op)
{
    if (op->kind == WAIT_EVENT)
        return op->event.event->passed >= op->event.number;
    if (op->kind == WAIT_WORD)
        return (int32_t)(__atomic_load_n(op->word.word, __ATOMIC_ACQUIRE) - op->word.value) >= 0;
    return true;
}

static void perform(const struct op *op)
{
    if (op->kind == COPY || op->kind == COPY_2D)
        for (size_t row = 0; row < op->copy.rows; row++)
            memcpy(op->copy.to + row * op->copy.to_pitch, op->copy.from + row * op->copy.from_pitch,
                   op->copy.bytes);
    else if (op->kind == RECORD)
        op->event.event->passed = op->event.number;
    else if (op->kind == WRITE_WORD)
        __atomic_store_n(op->word.word, op->word.value, __ATOMIC_RELEASE);
}

/* One op of each stream that can go on. */
static bool run_some(void)
{
    bool ran = false;
    for (size_t i = MAX_HANDLES; i-- > 0;) {
        CUstream stream = streams[i];
        if (!stream || !stream->first || !is_ready(stream->first))
            continue;
        struct op *op = stream->first;
        stream->first = op->next;
        if (!stream->first)
            stream->end = &stream->first;
        perform(op);
        free(op);
        ran = true;
    }
    return ran;
}

static CUresult enqueue(CUstream stream, const struct op *op)
{
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct op *made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = *op;
    made->next = NULL;
    struct op ***end = &stream->end;
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        stream->captured++;
        end = &stream->graph_end;
    }
    **end = made;
    *end = &made->next;
    return CUDA_SUCCESS;
}

static void drop_graph(CUstream stream)
{
    while (stream->graph) {
        struct op *next = stream->graph->next;
        free(stream->graph);
        stream->graph = next;
    }
    stream->graph_end = &stream->graph;
    stream->captured = 0;
}

/* ---- Copies ---------------------------------------------------------------- */

static bool make_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, struct op *op)
{
    enum place to_place;
    enum place from_place;
    *op = (struct op){ .kind = COPY };
    op->copy.to = resolve(to, bytes, &to_place);
    op->copy.from = resolve(from, bytes, &from_place);
    op->copy.bytes = bytes;
    op->copy.rows = 1;
    if (bytes == 0 || bytes > LARGEST_PIECE)
        violate("a copy of %zu bytes", bytes);
    return op->copy.to && op->copy.from;
}

static CUresult fake_cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    COUNT_IN_CONTEXT(cuMemcpyAsync, handle, bytes, 0, 0);
    CUstream stream = stream_of(handle);
    struct op op;
    if (!stream || !make_copy(to, from, bytes, &op))
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, &op);
}

static CUresult fake_cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream handle)
{
    COUNT_IN_CONTEXT(cuMemcpy2DAsync, handle, copy->WidthInBytes, copy->Height, 0);
    CUstream stream = stream_of(handle);
    bool load = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
    const void *host = load ? copy->srcHost : copy->dstHost;
    CUdeviceptr device = load ? copy->dstDevice : copy->srcDevice;
    size_t host_span =
        (copy->Height - 1) * (load ? copy->srcPitch : copy->dstPitch) + copy->WidthInBytes;
    size_t device_span =
        (copy->Height - 1) * (load ? copy->dstPitch : copy->srcPitch) + copy->WidthInBytes;
    const struct range *pinned = range_of(host, host_span);
    const struct range *memory = range_of((const unsigned char *)(uintptr_t)device, device_span);
    bool fits = pinned && pinned->place == REGISTERED && memory && memory->place == DEVICE;
    if (!fits)
        violate("a 2-D copy outside of one registration and one allocation");
    if (copy->Height == 0 || copy->WidthInBytes * copy->Height > LARGEST_PIECE)
        violate("a 2-D copy of %zu rows of %zu bytes", copy->Height, copy->WidthInBytes);
    size_t max_pitch = (size_t)state.attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
    if (copy->srcPitch < copy->WidthInBytes || copy->dstPitch < copy->WidthInBytes ||
        copy->srcPitch > max_pitch || copy->dstPitch > max_pitch) {
        violate("a 2-D copy with pitches %zu and %zu", copy->srcPitch, copy->dstPitch);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!stream || !fits)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = { .kind = COPY_2D,
                     .copy = { .to = load ? (void *)(uintptr_t)device : copy->dstHost,
                               .from = load ? copy->srcHost : (void *)(uintptr_t)device,
                               .bytes = copy->WidthInBytes,
                               .to_pitch = copy->dstPitch,
                               .from_pitch = copy->srcPitch,
                               .rows = copy->Height } };
    return enqueue(stream, &op);
}

static CUresult fake_cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
                                        CUmemcpyAttributes *attributes, size_t *first,
                                        size_t n_attributes, size_t *failed, CUstream handle)
{
    size_t smallest = SIZE_MAX;
    size_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        smallest = bytes[i] < smallest ? bytes[i] : smallest;
        largest = bytes[i] > largest ? bytes[i] : largest;
    }
    COUNT_IN_CONTEXT(cuMemcpyBatchAsync, handle, n, smallest, largest);
    CUstream stream = stream_of(handle);
    if (n == 0 || n_attributes != 1 || *first != 0 || !failed ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || attributes->flags)
        violate("a batch with wrong attributes");
    if (smallest < TINY && largest >= TINY)
        violate("a batch of copies from %zu to %zu bytes", smallest, largest);
    if (!stream || stream == &legacy) {
        violate("a batch in a stream that takes none");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->capture) { /* the graph ends well, without the copies */
        violate("a batch in a captured stream");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < n && !result; i++) {
        struct op op;
        result = make_copy(to[i], from[i], bytes[i], &op) ? enqueue(stream, &op)
                                                          : CUDA_ERROR_INVALID_VALUE;
    }
    return result;
}

/* ---- Streams --------------------------------------------------------------- */

static CUresult fake_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    COUNT_IN_CONTEXT(cuStreamCreateWithPriority, NULL, flags, (uint64_t)(int64_t)priority, 0);
    size_t i = 0;
    while (i < MAX_HANDLES && streams[i])
        i++;
    CUstream made = i < MAX_HANDLES ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->end = &made->first;
    made->graph_end = &made->graph;
    streams[i] = made;
    state.n_streams++;
    *stream = made;
    return CUDA_SUCCESS;
}

static CUresult fake_cuStreamDestroy(CUstream stream)
{
    COUNT_IN_CONTEXT(cuStreamDestroy, stream, 0, 0, 0);
    if (!stream_of(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->first && !state.dropped)
        violate("a stream was destroyed that had work");
    while (stream->first) {
        struct op *op = stream->first;
        stream->first = op->next;
        free(op);
    }
    streams[handle_at((void **)streams, stream)] = NULL;
    state.n_streams--;
    drop_graph(stream);
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult fake_cuStreamSynchronize(CUstream handle)
{
    COUNT_IN_CONTEXT(cuStreamSynchronize, handle, 0, 0, 0);
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    while (run_some())
        continue;
    if (!stream->first)
        return CUDA_SUCCESS;
    violate("a stream waits for what is not enqueued");
    return CUDA_ERROR_LAUNCH_TIMEOUT;
}

static CUresult fake_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    COUNT_IN_CONTEXT(cuStreamIsCapturing, handle, 0, 0, 0);
    CUstream stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *status = stream->capture;
    return CUDA_SUCCESS;
}

static CUresult fake_cuEventCreate(CUevent *event, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuEventCreate, NULL, flags, 0, 0);
    size_t i = 0;
    while (i < MAX_HANDLES && events[i])
        i++;
    CUevent made = i < MAX_HANDLES ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    events[i] = made;
    state.n_events++;
    *event = made;
    return CUDA_SUCCESS;
}

static CUresult fake_cuEventDestroy(CUevent event)
{
    COUNT_IN_CONTEXT(cuEventDestroy, NULL, 0, 0, 0);
    if (!is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    events[handle_at((void **)events, event)] = NULL;
    state.n_events--;
    free(event);
    return CUDA_SUCCESS;
}

static CUresult fake_cuEventRecord(CUevent event, CUstream handle)
{
    COUNT_IN_CONTEXT(cuEventRecord, handle, 0, 0, 0);
    CUstream stream = stream_of(handle);
    if (!stream || !is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    struct op op = { .kind = RECORD, .event = { event, event->recorded + 1 } };
    CUresult result = enqueue(stream, &op);
    if (!result && !stream->capture)
        event->recorded++;
    return result;
}

static CUresult fake_cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuStreamWaitEvent, handle, flags, 0, 0);
    CUstream stream = stream_of(handle);
    if (!stream || !is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags == CU_EVENT_WAIT_EXTERNAL && !stream->capture)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_EVENT_WAIT_DEFAULT && stream->capture) {
        stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    struct op op = { .kind = WAIT_EVENT, .event = { event, event->recorded } };
    return enqueue(stream, &op);
}

static CUresult enqueue_word(CUstream handle, enum kind kind, CUdeviceptr address, uint32_t value)
{
    CUstream stream = stream_of(handle);
    enum place place;
    uint32_t *word = (uint32_t *)(void *)resolve(address, sizeof *word, &place);
    if (!stream || !word)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = { .kind = kind, .word = { word, value } };
    return enqueue(stream, &op);
}

static CUresult fake_cuStreamWriteValue32(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                          unsigned int flags)
{
    COUNT_IN_CONTEXT(cuStreamWriteValue32, stream, word, value, flags);
    return enqueue_word(stream, WRITE_WORD, word, value);
}

static CUresult fake_cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                         unsigned int flags)
{
    COUNT_IN_CONTEXT(cuStreamWaitValue32, stream, word, value, flags);
    return enqueue_word(stream, WAIT_WORD, word, value);
}

/* ---- The device ------------------------------------------------------------ */

static CUresult fake_cuInit(unsigned int flags)
{
    COUNT(cuInit, NULL, flags, 0, 0);
    return CUDA_SUCCESS;
}

static CUresult fake_cuDriverGetVersion(int *version)
{
    COUNT(cuDriverGetVersion, NULL, 0, 0, 0);
    *version = 13000;
    return CUDA_SUCCESS;
}

static CUresult fake_cuGetErrorName(CUresult error, const char **name)
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

static CUresult fake_cuDeviceGetCount(int *n)
{
    COUNT(cuDeviceGetCount, NULL, 0, 0, 0);
    *n = state.n_devices;
    return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGet(CUdevice *device, int ordinal)
{
    COUNT(cuDeviceGet, NULL, (uint64_t)ordinal, 0, 0);
    *device = ordinal;
    return ordinal < state.n_devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult fake_cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    COUNT(cuDeviceGetName, NULL, (uint64_t)device, 0, 0);
    snprintf(name, (size_t)bytes, "fake gpu");
    return CUDA_SUCCESS;
}

static CUresult fake_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    COUNT(cuDeviceGetAttribute, NULL, attribute, (uint64_t)device, 0);
    *value = state.attributes[attribute];
    return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
    COUNT(cuDevicePrimaryCtxRetain, NULL, (uint64_t)device, 0, 0);
    state.retained++;
    *made = &context;
    return CUDA_SUCCESS;
}

static CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
    COUNT(cuDevicePrimaryCtxRelease, NULL, (uint64_t)device, 0, 0);
    if (--state.retained < 0)
        violate("the context was released more often than retained");
    return CUDA_SUCCESS;
}

static CUresult fake_cuCtxPushCurrent(CUcontext pushed)
{
    COUNT(cuCtxPushCurrent, NULL, 0, 0, 0);
    if (pushed != &context || state.retained < 1) {
        violate("a context was pushed that is not retained");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    state.contexts++;
    return CUDA_SUCCESS;
}

static CUresult fake_cuCtxPopCurrent(CUcontext *popped)
{
    COUNT(cuCtxPopCurrent, NULL, 0, 0, 0);
    if (--state.contexts < 0)
        violate("a context was popped more often than pushed");
    *popped = &context;
    return CUDA_SUCCESS;
}

static CUresult fake_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    COUNT_IN_CONTEXT(cuCtxGetStreamPriorityRange, NULL, 0, 0, 0);
    *least = state.least_priority;
    *greatest = state.greatest_priority;
    return CUDA_SUCCESS;
}

static CUresult fake_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    COUNT(cuThreadExchangeStreamCaptureMode, NULL, *mode, 0, 0);
    CUstreamCaptureMode old = state.mode;
    state.mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* ---- What the loader and the tests look up --------------------------------- */

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
    state.versions[i] = version;
    state.flags[i] = flags;
    switch (state.presence[i]) {
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

static void set_capture(CUstream handle, CUstreamCaptureStatus status)
{
    CUstream stream = stream_of(handle);
    if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE && !stream->capture)
        drop_graph(stream);
    stream->capture = status;
}

/* An external wait waits for the newest record before the launch. */
static void replay(CUstream from, CUstream to)
{
    for (const struct op *op = stream_of(from)->graph; op; op = op->next) {
        struct op now = *op;
        if (now.kind == RECORD)
            now.event.number = ++now.event.event->recorded;
        else if (now.kind == WAIT_EVENT)
            now.event.number = now.event.event->recorded;
        if (enqueue(stream_of(to), &now))
            violate("a replay without memory, or into a captured stream");
    }
}

static uint32_t captured(CUstream stream)
{
    return stream_of(stream)->captured;
}

static bool idle(void)
{
    for (size_t i = 0; i < MAX_HANDLES; i++)
        if (streams[i] && streams[i]->first)
            return false;
    return true;
}

EXPORT struct fake_cuda *fake_cuda_state(void);

EXPORT struct fake_cuda *fake_cuda_state(void)
{
    state.set_capture = set_capture;
    state.captured = captured;
    state.replay = replay;
    state.idle = idle;
    return &state;
}
