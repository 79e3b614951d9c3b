/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"
#include "device/cuda_kernels.h"
#include "transfer/gate.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Preparing ------------------------------------------------------------ */

int weir_cuda_transfer_prepare(weir_device *base, const struct weir_geometry *geometry,
                               uint32_t max_runs, void **state)
{
    (void)max_runs; /* the rings hold as many pages as a tier */
    if (base->ops->status(base))
        return -EIO;
    struct weir_cuda_device *device = weir_cuda_from(base);
    struct weir_cuda_transfer *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc == 0) {
        if (geometry->host_pages > 0)
            rc = weir_cuda_kernels_prepare(device->kernels, geometry, &made->pages);
        weir_cuda_leave(device, mode);
    }
    if (rc) {
        free(made);
        return rc;
    }
    *state = made;
    return 0;
}

void weir_cuda_transfer_release(weir_device *base, void *state)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    struct weir_cuda_transfer *transfer = state;
    if (!transfer)
        return;
    CUstreamCaptureMode mode;
    if (weir_cuda_enter_to_free(device, &mode) == 0) {
        weir_cuda_kernels_release(&transfer->pages);
        weir_cuda_leave(device, mode);
    }
    free(transfer);
}

uint64_t weir_cuda_transfer_bytes(weir_device *base, const void *state)
{
    (void)base;
    const struct weir_cuda_transfer *transfer = state;
    return transfer ? weir_cuda_kernels_bytes(transfer->pages) : 0;
}

/* As choose() below: a kernel that cannot do a transfer gives way, but a launch
 * that it might come to must be possible. */
int weir_cuda_transfer_tune(weir_device *base, const void *state, enum weir_direction direction,
                            const weir_transfer_tuning *tuning)
{
    const struct weir_cuda_kernels *kernels = weir_cuda_from(base)->kernels;
    const struct weir_cuda_transfer *transfer = state;
    if (!transfer || !transfer->pages || tuning->engine == WEIR_ENGINE_COPY)
        return 0;
    bool tma = tuning->engine == WEIR_ENGINE_TMA ||
               (tuning->engine == WEIR_ENGINE_AUTO && direction == WEIR_LOAD);
    tma = tma && kernels->stages > 0 && weir_cuda_kernels_can_tma(transfer->pages);
    struct weir_launch launch = {
        .engine = tma ? WEIR_ENGINE_TMA : WEIR_ENGINE_VECTOR,
        .ctas = tuning->ctas,
        .stages = tuning->stages,
        .stage_bytes = tuning->stage_bytes,
    };
    return weir_cuda_kernels_check(transfer->pages, &launch);
}

/* ---- Choosing ------------------------------------------------------------- */

struct choice {
    weir_transfer_engine engine;
    bool per_layer;
    struct weir_launch launch;
};

/* All tensors go by one engine, so that a layer is one launch: the copy engine if
 * it suits each, TMA if it can do each, else the vector kernel. */
static weir_transfer_engine choose_engine(const struct weir_cuda_kernels *kernels,
                                          const struct weir_transfer *transfer)
{
    const struct weir_geometry *g = transfer->geometry;
    weir_transfer_case cases[WEIR_MAX_TENSORS];
    uint64_t copies = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        weir_transfer_case_init(&cases[i]);
        weir_gate_describe(&cases[i], transfer, i);
        copies += cases[i].copies;
    }
    bool copy = true, tma = true;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        cases[i].compute = kernels->compute;
        cases[i].shared_bytes = kernels->shared_bytes;
        cases[i].max_enqueue_us = transfer->max_enqueue_us;
        cases[i].exclusive_sms = transfer->exclusive_sms;
        cases[i].copies = copies;
        weir_transfer_choice choice;
        if (weir_transfer_explain(&cases[i], NULL, &choice))
            return WEIR_ENGINE_COPY;
        copy = copy && choice.engine == WEIR_ENGINE_COPY;
        tma = tma && choice.engine != WEIR_ENGINE_VECTOR;
    }
    return copy ? WEIR_ENGINE_COPY : tma ? WEIR_ENGINE_TMA : WEIR_ENGINE_VECTOR;
}

/* An event is recorded behind a launch. Else one launch: measured on an H200 with
 * 32 MiB a layer (bench/results), a launch a layer takes the CPU six times as long,
 * leaves the link idle in between, and gains beside no forward pass but one that
 * needs every SM, where no kernel should be used. */
static bool choose_per_layer(const struct weir_transfer *transfer)
{
    return transfer->events || transfer->tuning.launch == WEIR_LAUNCH_PER_LAYER;
}

/* A write-back that would take the CPU too long by the copy engine goes by one
 * block of the vector kernel. By measurement on an H200, beside a decode chain:
 * that costs the chain 1 %, one block of the TMA kernel 11 %, two of either 66 %;
 * nobody waits for the rest of the rate. */
static struct choice choose(const struct weir_cuda_device *device,
                            const struct weir_transfer *transfer)
{
    const struct weir_transfer_tuning *tuning = &transfer->tuning;
    const struct weir_cuda_transfer *state = transfer->state;
    struct choice choice = { .engine = WEIR_ENGINE_COPY };
    if (!state->pages || transfer->layer_begin == transfer->layer_end)
        return choice;
    choice.engine = tuning->engine ? tuning->engine : choose_engine(device->kernels, transfer);
    if (choice.engine == WEIR_ENGINE_TMA &&
        (device->kernels->stages == 0 || !weir_cuda_kernels_can_tma(state->pages)))
        choice.engine = WEIR_ENGINE_VECTOR;
    uint32_t ctas = tuning->ctas;
    if (transfer->direction == WEIR_WRITE_BACK && tuning->engine == WEIR_ENGINE_AUTO &&
        choice.engine != WEIR_ENGINE_COPY) {
        choice.engine = WEIR_ENGINE_VECTOR;
        ctas = ctas ? ctas : 1;
    }
    choice.per_layer = choose_per_layer(transfer);
    choice.launch = (struct weir_launch){
        .engine = choice.engine,
        .ctas = ctas,
        .stages = tuning->stages,
        .stage_bytes = tuning->stage_bytes,
    };
    return choice;
}

/* ---- Copying -------------------------------------------------------------- */

static int publish(struct weir_cuda_device *device, weir_stream *stream,
                   const struct weir_transfer *transfer, uint32_t layer)
{
    int rc = 0;
    if (transfer->words)
        rc = weir_cuda_write_word(device, (CUstream)stream, &transfer->words[layer],
                                  transfer->generation);
    if (!rc && transfer->events)
        rc = weir_cuda_result(
            device, "cuEventRecord",
            device->driver->cuEventRecord((CUevent)transfer->events[layer], (CUstream)stream));
    return rc;
}

static int by_copy_engine(struct weir_cuda_device *device, weir_stream *stream,
                          const struct weir_transfer *transfer, uint32_t *enqueued)
{
    int rc = 0;
    for (uint32_t layer = transfer->layer_begin; layer < transfer->layer_end && !rc; layer++) {
        rc = weir_cuda_copy_engine(device, stream, transfer, layer, layer + 1);
        if (!rc)
            rc = publish(device, stream, transfer, layer);
        if (!rc)
            *enqueued = layer + 1;
    }
    return rc;
}

static int launch_each(struct weir_cuda_device *device, weir_stream *stream,
                       const struct weir_cuda_list *list, const struct weir_launch *launch,
                       uint32_t *enqueued)
{
    const struct weir_transfer *transfer = list->transfer;
    int rc = 0;
    for (uint32_t layer = transfer->layer_begin; layer < transfer->layer_end && !rc; layer++) {
        rc = weir_cuda_list_launch(list, layer, layer + 1, launch, false);
        if (!rc)
            rc = publish(device, stream, transfer, layer);
        if (!rc)
            *enqueued = layer + 1;
    }
    return rc;
}

static int by_kernel(struct weir_cuda_device *device, weir_stream *stream,
                     const struct weir_transfer *transfer, const struct choice *choice,
                     uint32_t *enqueued)
{
    struct weir_cuda_transfer *state = transfer->state;
    if (!choice->per_layer) {
        int rc =
            weir_cuda_kernels_copy(state->pages, (CUstream)stream, transfer, transfer->layer_begin,
                                   transfer->layer_end, &choice->launch, transfer->words != NULL);
        if (!rc)
            *enqueued = transfer->layer_end;
        return rc;
    }
    struct weir_cuda_list list;
    int rc = weir_cuda_list_begin(&list, state->pages, (CUstream)stream, transfer);
    if (rc)
        return rc;
    rc = launch_each(device, stream, &list, &choice->launch, enqueued);
    weir_cuda_list_end(&list);
    return rc;
}

int weir_cuda_copy(weir_device *base, weir_stream *stream, const struct weir_transfer *transfer,
                   uint32_t *enqueued)
{
    int rc = weir_cuda_check_stream(base, stream, "copy");
    if (rc)
        return rc;
    rc = weir_transfer_check(transfer, enqueued, &base->log);
    if (rc)
        return rc;
    if (!transfer->state)
        return weir_invalid(&base->log, "copy: state is NULL, must be from transfer_prepare");

    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    struct choice choice = choose(device, transfer);
    rc = choice.engine == WEIR_ENGINE_COPY ? by_copy_engine(device, stream, transfer, enqueued)
                                           : by_kernel(device, stream, transfer, &choice, enqueued);
    weir_cuda_leave(device, mode);
    return rc;
}

/* The list of pages travels in the stream, once: a graph would repeat what it finds
 * there then. */
static int refuse_capture(struct weir_cuda_device *device, weir_stream *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int rc = weir_cuda_capture_status(device, (CUstream)stream, &status);
    return rc == 0 && status != CU_STREAM_CAPTURE_STATUS_NONE ? -ENOTSUP : rc;
}

int weir_cuda_copy_pages(weir_device *base, weir_stream *stream,
                         const struct weir_page_copies *copies)
{
    int rc = weir_cuda_check_stream(base, stream, "copy pages");
    if (rc == 0)
        rc = weir_page_copies_check(copies, &base->log);
    if (rc)
        return rc;
    if (!copies->state)
        return weir_invalid(&base->log, "copy pages: state is NULL, must be from transfer_prepare");
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    const struct weir_cuda_transfer *state = copies->state;
    rc = refuse_capture(device, stream);
    if (rc == 0 && copies->n > 0) {
        rc = weir_cuda_kernels_copy_within(state->pages, (CUstream)stream, copies->copies,
                                           copies->n);
        if (rc == -ENOTSUP || rc == -E2BIG || rc == -EAGAIN)
            rc = weir_cuda_copy_engine_pages(device, stream, copies);
    }
    weir_cuda_leave(device, mode);
    return rc;
}

int weir_cuda_copy_rows(weir_device *base, weir_stream *stream, const weir_copy_rows_params *params,
                        bool tables)
{
    int rc = weir_cuda_check_stream(base, stream, "copy rows");
    if (rc)
        return rc;
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_kernels_rows(device->kernels, (CUstream)stream, params, tables);
    weir_cuda_leave(device, mode);
    return rc;
}
