/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"

#include <errno.h>

static CUstream stream_of(weir_stream *stream)
{
    return (CUstream)stream;
}

static CUevent event_of(weir_event *event)
{
    return (CUevent)event;
}

/* ---- Streams --------------------------------------------------------------- */

/* The driver counts the other way round: least important is largest. */
static int driver_priority(const struct weir_cuda_device *device, int priority)
{
    int span = device->lowest_priority - device->highest_priority;
    if (priority < 0)
        priority = 0;
    return device->lowest_priority - (priority > span ? span : priority);
}

int weir_cuda_stream_create(weir_device *base, int priority, weir_stream **stream)
{
    if (!stream)
        return weir_invalid(&base->log, "stream create: stream is NULL");
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    CUstream made = NULL;
    rc = weir_cuda_result(device, "cuStreamCreateWithPriority",
                          device->driver->cuStreamCreateWithPriority(
                              &made, CU_STREAM_NON_BLOCKING, driver_priority(device, priority)));
    weir_cuda_leave(device, mode);
    if (rc == 0)
        *stream = (weir_stream *)made;
    return rc;
}

void weir_cuda_stream_destroy(weir_device *base, weir_stream *stream)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    if (!stream || weir_cuda_enter_to_free(device, &mode))
        return;
    if (!atomic_load(&device->lost))
        (void)weir_cuda_result(device, "cuStreamSynchronize",
                               device->driver->cuStreamSynchronize(stream_of(stream)));
    (void)weir_cuda_result(device, "cuStreamDestroy",
                           device->driver->cuStreamDestroy(stream_of(stream)));
    weir_cuda_leave(device, mode);
}

int weir_cuda_stream_synchronize(weir_device *base, weir_stream *stream)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_check_stream(base, stream, "stream synchronize");
    if (rc == 0)
        rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_result(device, "cuStreamSynchronize",
                          device->driver->cuStreamSynchronize(stream_of(stream)));
    weir_cuda_leave(device, mode);
    return rc;
}

int weir_cuda_capture_status(struct weir_cuda_device *device, CUstream stream,
                             CUstreamCaptureStatus *status)
{
    return weir_cuda_result(device, "cuStreamIsCapturing",
                            device->driver->cuStreamIsCapturing(stream, status));
}

int weir_cuda_stream_is_capturing(weir_device *base, weir_stream *stream, bool *capturing)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_check_stream(base, stream, "stream is capturing");
    if (rc == 0)
        rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    rc = weir_cuda_capture_status(device, stream_of(stream), &status);
    weir_cuda_leave(device, mode);
    if (rc == 0)
        *capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return rc;
}

/* ---- Events ---------------------------------------------------------------- */

int weir_cuda_event_create(weir_device *base, weir_event **event)
{
    if (!event)
        return weir_invalid(&base->log, "event create: event is NULL");
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    CUevent made = NULL;
    rc = weir_cuda_result(device, "cuEventCreate",
                          device->driver->cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    weir_cuda_leave(device, mode);
    if (rc == 0)
        *event = (weir_event *)made;
    return rc;
}

void weir_cuda_event_destroy(weir_device *base, weir_event *event)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    if (!event || weir_cuda_enter_to_free(device, &mode))
        return;
    (void)weir_cuda_result(device, "cuEventDestroy",
                           device->driver->cuEventDestroy(event_of(event)));
    weir_cuda_leave(device, mode);
}

/* What the event calls have in common before their driver call. */
static int enter_with_event(weir_device *base, const weir_stream *stream, const weir_event *event,
                            const char *call, CUstreamCaptureMode *mode)
{
    int rc = weir_cuda_check_stream(base, stream, call);
    if (rc)
        return rc;
    if (!event)
        return weir_invalid(&base->log, "%s: event is NULL", call);
    return weir_cuda_enter(weir_cuda_from(base), mode);
}

int weir_cuda_event_record(weir_device *base, weir_event *event, weir_stream *stream)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = enter_with_event(base, stream, event, "event record", &mode);
    if (rc)
        return rc;
    rc = weir_cuda_result(device, "cuEventRecord",
                          device->driver->cuEventRecord(event_of(event), stream_of(stream)));
    weir_cuda_leave(device, mode);
    return rc;
}

static int wait_event(struct weir_cuda_device *device, weir_stream *stream, weir_event *event,
                      unsigned flags)
{
    return weir_cuda_result(
        device, "cuStreamWaitEvent",
        device->driver->cuStreamWaitEvent(stream_of(stream), event_of(event), flags));
}

int weir_cuda_stream_wait_event(weir_device *base, weir_stream *stream, weir_event *event)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = enter_with_event(base, stream, event, "wait event", &mode);
    if (rc)
        return rc;
    rc = wait_event(device, stream, event, CU_EVENT_WAIT_DEFAULT);
    weir_cuda_leave(device, mode);
    return rc;
}

int weir_cuda_stream_wait_event_external(weir_device *base, weir_stream *stream, weir_event *event)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = enter_with_event(base, stream, event, "wait event external", &mode);
    if (rc)
        return rc;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    rc = weir_cuda_capture_status(device, stream_of(stream), &status);
    if (rc == 0 && status == CU_STREAM_CAPTURE_STATUS_NONE)
        rc = weir_invalid(&base->log, "wait event external: the stream is not being captured");
    if (rc == 0)
        rc = wait_event(device, stream, event, CU_EVENT_WAIT_EXTERNAL);
    weir_cuda_leave(device, mode);
    return rc;
}

/* ---- Words ----------------------------------------------------------------- */

int weir_cuda_write_word(struct weir_cuda_device *device, CUstream stream, uint32_t *word,
                         uint32_t value)
{
    CUdeviceptr alias;
    int rc = weir_cuda_alias(device, (uintptr_t)word, sizeof *word, &alias);
    if (rc)
        return rc;
    /* The default: a barrier before the write, for all that the stream did. */
    return weir_cuda_result(
        device, "cuStreamWriteValue32",
        device->driver->cuStreamWriteValue32(stream, alias, value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

static int wait_word(struct weir_cuda_device *device, CUstream stream, const uint32_t *word,
                     uint32_t value)
{
    CUdeviceptr alias;
    int rc = weir_cuda_alias(device, (uintptr_t)word, sizeof *word, &alias);
    if (rc)
        return rc;
    /* GEQ is cyclic: (int32_t)(*word - value) >= 0. */
    return weir_cuda_result(
        device, "cuStreamWaitValue32",
        device->driver->cuStreamWaitValue32(stream, alias, value, CU_STREAM_WAIT_VALUE_GEQ));
}

static int enter_with_word(weir_device *base, const weir_stream *stream, const uint32_t *word,
                           const char *call, CUstreamCaptureMode *mode)
{
    int rc = weir_cuda_check_stream(base, stream, call);
    if (rc)
        return rc;
    if (!word)
        return weir_invalid(&base->log, "%s: word is NULL", call);
    return weir_cuda_enter(weir_cuda_from(base), mode);
}

int weir_cuda_stream_write_word(weir_device *base, weir_stream *stream, uint32_t *word,
                                uint32_t value)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = enter_with_word(base, stream, word, "write word", &mode);
    if (rc)
        return rc;
    rc = weir_cuda_write_word(device, stream_of(stream), word, value);
    weir_cuda_leave(device, mode);
    return rc;
}

int weir_cuda_stream_wait_word(weir_device *base, weir_stream *stream, const uint32_t *word,
                               uint32_t value)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = enter_with_word(base, stream, word, "wait word", &mode);
    if (rc)
        return rc;
    rc = wait_word(device, stream_of(stream), word, value);
    weir_cuda_leave(device, mode);
    return rc;
}
