/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#include <stdlib.h>

#define MAX_HANDLES 64u /* of a kind */

static struct CUstream_st legacy = { .end = &legacy.first, .graph_end = &legacy.graph };
static CUstream streams[MAX_HANDLES] = { &legacy };
static CUevent events[MAX_HANDLES];

static size_t handle_at(void **handles, const void *handle)
{
    size_t i = 0;
    while (i < MAX_HANDLES && (!handle || handles[i] != handle))
        i++;
    return i;
}

CUstream fake_stream_of(CUstream stream)
{
    if (stream == CU_STREAM_LEGACY)
        return &legacy;
    if (stream != &legacy && handle_at((void **)streams, stream) < MAX_HANDLES)
        return stream;
    fake_violate("%p is no stream", (void *)stream);
    return NULL;
}

static bool is_event(CUevent event)
{
    bool is = handle_at((void **)events, event) < MAX_HANDLES;
    if (!is)
        fake_violate("%p is no event", (void *)event);
    return is;
}

/* What a driver does to a capture in a mode that is not relaxed. */
CUresult fake_check_capture_mode(const char *name)
{
    bool broken = false;
    for (size_t i = 0; i < MAX_HANDLES; i++) {
        if (!streams[i] || streams[i]->capture != CU_STREAM_CAPTURE_STATUS_ACTIVE ||
            fake_state.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        streams[i]->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        broken = true;
    }
    if (!broken)
        return CUDA_SUCCESS;
    fake_violate("%s broke a capture", name);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* ---- Running ------------------------------------------------------------- */

static bool is_ready(const struct fake_op *op)
{
    if (op->kind == FAKE_WAIT_EVENT)
        return op->event.event->passed >= op->event.number;
    if (op->kind == FAKE_WAIT_WORD)
        return (int32_t)(__atomic_load_n(op->word.word, __ATOMIC_ACQUIRE) - op->word.value) >= 0;
    return true;
}

static void perform(const struct fake_op *op)
{
    if (op->kind == FAKE_COPY || op->kind == FAKE_COPY_2D)
        for (size_t row = 0; row < op->copy.rows; row++)
            memcpy(op->copy.to + row * op->copy.to_pitch, op->copy.from + row * op->copy.from_pitch,
                   op->copy.bytes);
    else if (op->kind == FAKE_RECORD)
        op->event.event->passed = op->event.number;
    else if (op->kind == FAKE_WRITE_WORD)
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
        struct fake_op *op = stream->first;
        stream->first = op->next;
        if (!stream->first)
            stream->end = &stream->first;
        perform(op);
        free(op);
        ran = true;
    }
    return ran;
}

CUresult fake_enqueue(CUstream stream, const struct fake_op *op)
{
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct fake_op *made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = *op;
    made->next = NULL;
    struct fake_op ***end = &stream->end;
    if (stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        stream->captured++;
        end = &stream->graph_end;
    }
    **end = made;
    *end = &made->next;
    return CUDA_SUCCESS;
}

bool fake_idle(void)
{
    for (size_t i = 0; i < MAX_HANDLES; i++)
        if (streams[i] && streams[i]->first)
            return false;
    return true;
}

/* ---- Streams ------------------------------------------------------------- */

CUresult fake_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
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
    fake_state.n_streams++;
    *stream = made;
    return CUDA_SUCCESS;
}

static void drop_graph(CUstream stream)
{
    while (stream->graph) {
        struct fake_op *next = stream->graph->next;
        free(stream->graph);
        stream->graph = next;
    }
    stream->graph_end = &stream->graph;
    stream->captured = 0;
}

CUresult fake_cuStreamDestroy(CUstream stream)
{
    COUNT_IN_CONTEXT(cuStreamDestroy, stream, 0, 0, 0);
    if (!fake_stream_of(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->first && !fake_state.dropped)
        fake_violate("a stream was destroyed that had work");
    while (stream->first) {
        struct fake_op *op = stream->first;
        stream->first = op->next;
        free(op);
    }
    streams[handle_at((void **)streams, stream)] = NULL;
    fake_state.n_streams--;
    drop_graph(stream);
    free(stream);
    return CUDA_SUCCESS;
}

CUresult fake_cuStreamSynchronize(CUstream handle)
{
    COUNT_IN_CONTEXT(cuStreamSynchronize, handle, 0, 0, 0);
    CUstream stream = fake_stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    while (run_some())
        continue;
    if (!stream->first)
        return CUDA_SUCCESS;
    fake_violate("a stream waits for what is not enqueued");
    return CUDA_ERROR_LAUNCH_TIMEOUT;
}

CUresult fake_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    COUNT_IN_CONTEXT(cuStreamIsCapturing, handle, 0, 0, 0);
    CUstream stream = fake_stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    *status = stream->capture;
    return CUDA_SUCCESS;
}

/* ---- Events and words ---------------------------------------------------- */

CUresult fake_cuEventCreate(CUevent *event, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuEventCreate, NULL, flags, 0, 0);
    size_t i = 0;
    while (i < MAX_HANDLES && events[i])
        i++;
    CUevent made = i < MAX_HANDLES ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    events[i] = made;
    fake_state.n_events++;
    *event = made;
    return CUDA_SUCCESS;
}

CUresult fake_cuEventDestroy(CUevent event)
{
    COUNT_IN_CONTEXT(cuEventDestroy, NULL, 0, 0, 0);
    if (!is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    events[handle_at((void **)events, event)] = NULL;
    fake_state.n_events--;
    free(event);
    return CUDA_SUCCESS;
}

CUresult fake_cuEventRecord(CUevent event, CUstream handle)
{
    COUNT_IN_CONTEXT(cuEventRecord, handle, 0, 0, 0);
    CUstream stream = fake_stream_of(handle);
    if (!stream || !is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    struct fake_op op = { .kind = FAKE_RECORD, .event = { event, event->recorded + 1 } };
    CUresult result = fake_enqueue(stream, &op);
    if (!result && !stream->capture)
        event->recorded++;
    return result;
}

CUresult fake_cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    COUNT_IN_CONTEXT(cuStreamWaitEvent, handle, flags, 0, 0);
    CUstream stream = fake_stream_of(handle);
    if (!stream || !is_event(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags == CU_EVENT_WAIT_EXTERNAL && !stream->capture)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_EVENT_WAIT_DEFAULT && stream->capture) {
        stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    struct fake_op op = { .kind = FAKE_WAIT_EVENT, .event = { event, event->recorded } };
    return fake_enqueue(stream, &op);
}

static CUresult enqueue_word(CUstream handle, enum fake_kind kind, CUdeviceptr address,
                             uint32_t value)
{
    CUstream stream = fake_stream_of(handle);
    enum fake_place place;
    uint32_t *word = (uint32_t *)(void *)fake_resolve(address, sizeof *word, &place);
    if (!stream || !word)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_op op = { .kind = kind, .word = { word, value } };
    return fake_enqueue(stream, &op);
}

CUresult fake_cuStreamWriteValue32(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                   unsigned int flags)
{
    COUNT_IN_CONTEXT(cuStreamWriteValue32, stream, word, value, flags);
    return enqueue_word(stream, FAKE_WRITE_WORD, word, value);
}

CUresult fake_cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value,
                                  unsigned int flags)
{
    COUNT_IN_CONTEXT(cuStreamWaitValue32, stream, word, value, flags);
    return enqueue_word(stream, FAKE_WAIT_WORD, word, value);
}

/* ---- Captures ------------------------------------------------------------ */

void fake_set_capture(CUstream handle, CUstreamCaptureStatus status)
{
    CUstream stream = fake_stream_of(handle);
    if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE && !stream->capture)
        drop_graph(stream);
    stream->capture = status;
}

/* An external wait waits for the newest record before the launch. */
void fake_replay(CUstream from, CUstream to)
{
    for (const struct fake_op *op = fake_stream_of(from)->graph; op; op = op->next) {
        struct fake_op now = *op;
        if (now.kind == FAKE_RECORD)
            now.event.number = ++now.event.event->recorded;
        else if (now.kind == FAKE_WAIT_EVENT)
            now.event.number = now.event.event->recorded;
        if (fake_enqueue(fake_stream_of(to), &now))
            fake_violate("a replay without memory, or into a captured stream");
    }
}

uint32_t fake_captured(CUstream stream)
{
    return fake_stream_of(stream)->captured;
}
