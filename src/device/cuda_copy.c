/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"

#include <errno.h>
#include <stdlib.h>

int weir_cuda_transfer_prepare(weir_device *base, const struct weir_geometry *geometry,
                               uint32_t max_runs, void **state)
{
    (void)geometry;
    (void)max_runs;
    if (base->ops->status(base))
        return -EIO;
    struct weir_cuda_transfer *made = malloc(sizeof *made);
    if (!made)
        return -ENOMEM;
    made->large.n = 0;
    made->small.n = 0;
    *state = made;
    return 0;
}

void weir_cuda_transfer_release(weir_device *base, void *state)
{
    (void)base;
    free(state);
}

typedef int (*copy_layers)(struct weir_cuda_device *device, weir_stream *stream,
                           const struct weir_transfer *transfer, uint32_t layer_begin,
                           uint32_t layer_end);

/* The engine of a whole transfer. The copy engine can do every one: it takes no
 * SM, and time on the CPU where the runs are short. */
static copy_layers choose_engine(const struct weir_transfer *transfer)
{
    (void)transfer;
    return weir_cuda_copy_engine;
}

static int copy_layer(struct weir_cuda_device *device, weir_stream *stream,
                      const struct weir_transfer *transfer, copy_layers copy, uint32_t layer)
{
    int rc = copy(device, stream, transfer, layer, layer + 1);
    if (rc || !transfer->words)
        return rc;
    return weir_cuda_write_word(device, (CUstream)stream, &transfer->words[layer],
                                transfer->generation);
}

int weir_cuda_copy(weir_device *base, weir_stream *stream, const struct weir_transfer *transfer,
                   uint32_t *enqueued)
{
    int rc = weir_cuda_check_stream(base, stream, "copy");
    if (rc)
        return rc;
    if (!enqueued)
        return weir_invalid(&base->log, "copy: enqueued is NULL");
    *enqueued = transfer ? transfer->layer_begin : 0;
    rc = weir_transfer_check(transfer, &base->log);
    if (rc)
        return rc;
    if (!transfer->state)
        return weir_invalid(&base->log, "copy: state is NULL, must be from transfer_prepare");

    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    copy_layers copy = choose_engine(transfer);
    for (uint32_t layer = transfer->layer_begin; layer < transfer->layer_end && !rc; layer++) {
        rc = copy_layer(device, stream, transfer, copy, layer);
        if (!rc)
            *enqueued = layer + 1;
    }
    weir_cuda_leave(device, mode);
    return rc;
}
