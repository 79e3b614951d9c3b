/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_DRIVER_RIG_H
#define WEIR_TESTS_DRIVER_RIG_H

/* A rank on the fake CUDA driver, with orders by hand.
 *
 *   gate       a server's stream waits for its word: what comes behind stands still
 *              until the test opens it
 *   page       a host page holds bytes that follow from its number; a load brings
 *              them to the device, where they can be looked at
 *   forward    of a layer: notes a byte of a page there and then, as a copy within
 *              device memory in the stream, or in the graph that it captures
 *
 * Needs LD_LIBRARY_PATH as scenario_cuda_tests have it. */

#include "../cuda_rig.h"
#include "transfer/rank.h"

#include <weir/cuda.h>
#include <weir/rank.h>

enum {
    DRIVER_PAGES = 300,
    DRIVER_STREAMS = 4,
    DRIVER_NOTES = 64,
    DRIVER_STEPS = 8,
    DRIVER_SLOTS = 3,
    DRIVER_ITEMS = 64
};

struct driver_rig {
    struct cuda_rig cuda;
    weir_rank *rank;
    const weir_shape *shape;
    weir_stream *streams[DRIVER_STREAMS]; /* the server's; the last one stays empty */
    uint32_t *gate;
    uint64_t notes; /* device memory, a byte a note */
    uint32_t n_notes;
    uint64_t newest;
    weir_report_item items[DRIVER_ITEMS]; /* that were reported */
    size_t n_items;
};

/* Two tensors, so that a layer is more than one copy. */
static inline weir_shape driver_shape(weir_tensor tensors[2], uint32_t n_layers)
{
    tensors[0] = (weir_tensor){ .page_bytes = 16 * 256, .row_bytes = 256 };
    tensors[1] = (weir_tensor){ .page_bytes = 16 * 32, .row_bytes = 32 };
    return (
        weir_shape){ .page_tokens = 16, .n_layers = n_layers, .n_tensors = 2, .tensors = tensors };
}

static inline unsigned char driver_byte(int32_t page, uint32_t layer)
{
    return (unsigned char)(page * 31 + (int32_t)layer * 7 + 1);
}

static inline void driver_open(struct driver_rig *d, const weir_shape *shape, bool captured_waits)
{
    *d = (struct driver_rig){ .shape = shape };
    rig_open_device(&d->cuda);
    const struct weir_device_ops *ops = d->cuda.ops;
    weir_device *device = d->cuda.device;
    for (int i = 0; i < DRIVER_STREAMS; i++)
        cr_assert(zero(int, ops->stream_create(device, 0, &d->streams[i])));
    cr_assert(zero(int, ops->words_alloc(device, 1, &d->gate)));
    cr_assert(zero(int, ops->memory_alloc(device, DRIVER_NOTES, &d->notes)));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = shape;
    params.device_pages = params.host_pages = DRIVER_PAGES;
    params.max_steps = DRIVER_STEPS;
    params.n_slots = DRIVER_SLOTS;
    params.max_write_backs = 4;
    params.touch_threads = 1;
    params.captured_waits = captured_waits;
    params.log = log_capture_log(&d->cuda.capture);
    cr_assert(zero(int, weir_rank_open(&d->rank, device, &params)), "%s", d->cuda.capture.last);
    for (int32_t page = 1; page <= DRIVER_PAGES; page++)
        for (uint32_t t = 0; t < shape->n_tensors; t++)
            for (uint32_t layer = 0; layer < shape->n_layers; layer++)
                memset((void *)(uintptr_t)weir_geometry_host(d->rank->geometry, t, layer,
                                                             (weir_host_page){ page }, 0),
                       driver_byte(page, layer), shape->tensors[t].page_bytes);
}

static inline void driver_close(struct driver_rig *d)
{
    const struct weir_device_ops *ops = d->cuda.ops;
    weir_rank_close(&d->rank);
    ops->memory_free(d->cuda.device, d->notes);
    for (int i = 0; i < DRIVER_STREAMS; i++)
        ops->stream_destroy(d->cuda.device, d->streams[i]);
    ops->words_free(d->cuda.device, d->gate);
    rig_close_device(&d->cuda);
}

static inline CUstream driver_handle(weir_stream *stream)
{
    return (CUstream)weir_cuda_from_stream(stream);
}

/* ---- The device's work ---------------------------------------------------- */

/* Runs all that can run. */
static inline void driver_run(struct driver_rig *d)
{
    cr_assert(
        zero(int, d->cuda.ops->stream_synchronize(d->cuda.device, d->streams[DRIVER_STREAMS - 1])));
}

static inline void driver_shut(struct driver_rig *d, weir_stream *stream)
{
    d->cuda.ops->word_store(d->cuda.device, d->gate, 0);
    cr_assert(zero(int, d->cuda.ops->stream_wait_word(d->cuda.device, stream, d->gate, 1)));
}

static inline void driver_open_gate(struct driver_rig *d)
{
    d->cuda.ops->word_store(d->cuda.device, d->gate, 1);
    driver_run(d);
}

/* Returns the number of the note. */
static inline uint32_t driver_forward(struct driver_rig *d, int32_t page, uint32_t layer,
                                      weir_stream *stream)
{
    struct weir_cuda_device *device = weir_cuda_from(d->cuda.device);
    uint32_t note = d->n_notes++;
    cr_assert(lt(u32, note, DRIVER_NOTES));
    *(unsigned char *)(uintptr_t)(d->notes + note) = 0;
    CUstreamCaptureMode mode;
    cr_assert(zero(int, weir_cuda_enter(device, &mode)));
    CUresult result = device->driver->cuMemcpyAsync(
        d->notes + note, weir_rank_device_address(d->rank, 0, layer, (weir_device_page){ page }), 1,
        driver_handle(stream));
    weir_cuda_leave(device, mode);
    cr_assert(eq(int, (int)result, CUDA_SUCCESS));
    return note;
}

/* What a note says; 0: that forward has not run. */
static inline unsigned char driver_note(const struct driver_rig *d, uint32_t note)
{
    return *(const unsigned char *)(uintptr_t)(d->notes + note);
}

static inline void driver_capture(struct driver_rig *d, weir_stream *stream, bool on)
{
    d->cuda.fake->set_capture(driver_handle(stream),
                              on ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE);
}

/* ---- Steps ---------------------------------------------------------------- */

/* What weir_rank_begin says to the next step. */
static inline int driver_try_begin(struct driver_rig *d, weir_order order, uint32_t slot,
                                   weir_stream *stream)
{
    uint64_t bytes[1024];
    size_t n;
    uint64_t step = 0;
    order.step = d->newest + 1;
    order.write_ticket = order.n_writes ? order.step : 0;
    order.device_pages = order.host_pages = DRIVER_PAGES;
    cr_assert(zero(int, weir_order_encode(&order, bytes, sizeof bytes, &n, NULL)));
    int rc = weir_rank_begin(d->rank, bytes, n, slot, stream, &step);
    if (rc == 0)
        cr_assert(eq(u64, step, ++d->newest));
    return rc;
}

static inline uint64_t driver_begin(struct driver_rig *d, weir_order order, uint32_t slot,
                                    weir_stream *stream)
{
    int rc = driver_try_begin(d, order, slot, stream);
    cr_assert(zero(int, rc), "%s", d->cuda.capture.last);
    return d->newest;
}

static inline void driver_end(struct driver_rig *d, uint64_t step, weir_stream *stream)
{
    cr_assert(zero(int, weir_rank_end(d->rank, step, stream)));
}

/* Takes what there is to report; the number of items. */
static inline size_t driver_report(struct driver_rig *d)
{
    uint64_t report[128];
    size_t bytes = 0, n = 0;
    const weir_report_item *items;
    cr_assert(zero(int, weir_rank_report(d->rank, report, sizeof report, &bytes)));
    if (bytes > 0)
        cr_assert(zero(int, weir_report_decode(&items, &n, report, bytes, NULL)));
    for (size_t i = 0; i < n; i++)
        d->items[d->n_items++ % DRIVER_ITEMS] = items[i];
    return n;
}

/* Everything runs and is reported. */
static inline void driver_settle(struct driver_rig *d)
{
    do
        driver_run(d);
    while (driver_report(d) > 0);
    cr_assert(d->cuda.fake->idle());
}

#endif
