/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/fences.h"

#include "base/log.h"

#include <errno.h>

int weir_fences_create(struct weir_fences *fences, weir_device *device, uint32_t n, uint64_t first,
                       const weir_log *log)
{
    *fences = (struct weir_fences){ .device = device, .n = n, .first = first, .newest = first - 1 };
    int rc = device->ops->words_alloc(device, n, &fences->words);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        device->ops->word_store(device, &fences->words[i], (uint32_t)(first - 1));
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = device->ops->event_create(device, &fences->ring[i].event);
    if (rc) {
        weir_log_line(log, WEIR_LOG_ERROR, "events and words of %u steps: the device says %s", n,
                      weir_error_name(rc));
        weir_fences_destroy(fences);
    }
    return rc;
}

void weir_fences_destroy(struct weir_fences *fences)
{
    weir_device *device = fences->device;
    if (!device)
        return;
    for (uint32_t i = 0; i < fences->n; i++)
        if (fences->ring[i].event)
            device->ops->event_destroy(device, fences->ring[i].event);
    if (fences->words)
        device->ops->words_free(device, fences->words);
    *fences = (struct weir_fences){ 0 };
}

static struct weir_fence *fence_of(struct weir_fences *fences, uint64_t step)
{
    return &fences->ring[step % fences->n];
}

static bool in_ring(const struct weir_fences *fences, uint64_t step)
{
    return step >= fences->first && step + fences->n > fences->newest;
}

void weir_fences_begin(struct weir_fences *fences)
{
    struct weir_fence *fence = fence_of(fences, ++fences->newest);
    fence->step = fences->newest;
    fence->stream = NULL;
    fence->written = false;
    fence->marked = false;
}

/* Goes on where it failed before. The word is written once only: a second
 * write could come when its place belongs to a later step. */
static int mark(struct weir_fences *fences, struct weir_fence *fence)
{
    weir_device *device = fences->device;
    uint32_t *word = &fences->words[fence->step % fences->n];
    if (!fence->written) {
        int rc = device->ops->stream_write_word(device, fence->stream, word, (uint32_t)fence->step);
        if (rc)
            return rc;
        fence->written = true;
    }
    int rc = device->ops->event_record(device, fence->event, fence->stream);
    fence->marked = rc == 0;
    return rc;
}

/* The server may capture the stream by now. */
static int mark_later(struct weir_fences *fences, struct weir_fence *fence)
{
    bool capturing = false;
    int rc = fences->device->ops->stream_is_capturing(fences->device, fence->stream, &capturing);
    if (rc == 0 && capturing)
        rc = -EAGAIN;
    return rc ? rc : mark(fences, fence);
}

void weir_fences_end(struct weir_fences *fences, uint64_t step, weir_stream *stream, bool now)
{
    struct weir_fence *fence = fence_of(fences, step);
    fence->stream = stream;
    if (!now || mark(fences, fence))
        fences->unmarked = true;
}

bool weir_fences_open(const struct weir_fences *fences, uint64_t step)
{
    return in_ring(fences, step) && !fences->ring[step % fences->n].stream;
}

bool weir_fences_passed(const struct weir_fences *fences, uint64_t step)
{
    if (!in_ring(fences, step))
        return true;
    uint32_t word =
        fences->device->ops->word_load(fences->device, &fences->words[step % fences->n]);
    return (int32_t)(word - (uint32_t)step) >= 0;
}

bool weir_fences_ready(struct weir_fences *fences, uint64_t step)
{
    if (weir_fences_passed(fences, step))
        return true;
    struct weir_fence *fence = fence_of(fences, step);
    return fence->stream && (fence->marked || mark_later(fences, fence) == 0);
}

int weir_fences_wait(struct weir_fences *fences, uint64_t step, weir_stream *stream)
{
    if (weir_fences_passed(fences, step))
        return 0;
    struct weir_fence *fence = fence_of(fences, step);
    if (fence->stream == stream)
        return 0;
    int rc = fence->marked ? 0 : mark_later(fences, fence);
    return rc ? rc : fences->device->ops->stream_wait_event(fences->device, stream, fence->event);
}

void weir_fences_repair(struct weir_fences *fences)
{
    if (!fences->unmarked)
        return;
    fences->unmarked = false;
    for (uint32_t i = 0; i < fences->n; i++) {
        struct weir_fence *fence = &fences->ring[i];
        if (fence->stream && !weir_fences_ready(fences, fence->step))
            fences->unmarked = true;
    }
}

/* A stream that cannot be waited for by an event is waited for here: it may hold
 * waits for words of the rank, or the write of a fence's own. Once the device is
 * lost nothing runs any more, and the streams may be gone. */
void weir_fences_wait_all(struct weir_fences *fences, weir_stream *stream)
{
    const struct weir_device_ops *ops = fences->device->ops;
    if (ops->status(fences->device))
        return;
    for (uint32_t i = 0; i < fences->n; i++) {
        struct weir_fence *fence = &fences->ring[i];
        if (fence->stream && weir_fences_wait(fences, fence->step, stream))
            (void)ops->stream_synchronize(fences->device, fence->stream);
    }
}
