/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"
#include "transfer/gate.h"

#include <errno.h>

/* A layer's copies become pieces, and pieces become calls:
 *
 *   contiguous, or rows of TINY and more ─► pieces ─► large batch ─┐
 *                              of less than TINY ───► small batch ─┴► 1024 a call
 *   narrow rows with a stride ─► 2-D copies
 *
 * A piece has at most WEIR_GATE_PIECE_BYTES: a server's own small copy waits for
 * the piece that is running, and two engines of one direction take turns between
 * pieces, not within.
 * TINY: beside large pieces of one batch, smaller ones make the call block until
 * all have been copied; below it, too, rows go faster as one 2-D copy. */

#define TINY (UINT64_C(64) << 10)
#define PIECE_ALIGN UINT64_C(4096)

struct pass {
    struct weir_cuda_device *device;
    CUstream stream;
    const struct weir_transfer *transfer;
    struct weir_cuda_transfer *state;
    bool batches; /* this stream takes them now */
};

/* ---- Calls ----------------------------------------------------------------- */

static int copy_one_by_one(struct pass *pass, const struct weir_cuda_batch *batch, size_t n)
{
    const struct weir_cuda_driver *driver = pass->device->driver;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = weir_cuda_result(
            pass->device, "cuMemcpyAsync",
            driver->cuMemcpyAsync(batch->to[i], batch->from[i], batch->bytes[i], pass->stream));
    return rc;
}

static CUresult copy_batch(struct pass *pass, struct weir_cuda_batch *batch, size_t n)
{
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    size_t first = 0;
    size_t failed = 0;
    return pass->device->driver->cuMemcpyBatchAsync(batch->to, batch->from, batch->bytes, n,
                                                    &attributes, &first, 1, &failed, pass->stream);
}

/* Drivers refuse batches for what plain copies take: a GPU that has none, memory of
 * some allocators. Which of the batch is enqueued then is not said, but the same
 * bytes once more do no harm. Where plain copies pass, batches are left alone from
 * then on: the next one would be refused as well. */
static int copy_refused(struct pass *pass, const struct weir_cuda_batch *batch, size_t n,
                        CUresult refusal)
{
    struct weir_cuda_device *device = pass->device;
    pass->batches = false;
    int rc = copy_one_by_one(pass, batch, n);
    if (rc == 0 && atomic_exchange(&device->batches, false))
        weir_log_line(&device->base.log, WEIR_LOG_WARN,
                      "cuda device %d: cuMemcpyBatchAsync refuses with %s: copies go one by one",
                      device->ordinal, weir_cuda_error_name(device->driver, refusal));
    return rc;
}

/* Empties the batch, also when it fails: the next transfer starts afresh. */
static int flush(struct pass *pass, struct weir_cuda_batch *batch)
{
    size_t n = batch->n;
    batch->n = 0;
    if (n == 0)
        return 0;
    if (!pass->batches)
        return copy_one_by_one(pass, batch, n);
    CUresult result = copy_batch(pass, batch, n);
    if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE)
        return copy_refused(pass, batch, n, result);
    return weir_cuda_result(pass->device, "cuMemcpyBatchAsync", result);
}

static int copy_2d(struct pass *pass, const struct weir_copy *copy)
{
    CUDA_MEMCPY2D c = { .WidthInBytes = copy->row_bytes, .Height = copy->rows };
    if (pass->transfer->direction == WEIR_LOAD) {
        c.srcMemoryType = CU_MEMORYTYPE_HOST;
        c.srcHost = (const void *)(uintptr_t)copy->host;
        c.srcPitch = copy->host_stride;
        c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        c.dstDevice = copy->device;
        c.dstPitch = copy->device_stride;
    } else {
        c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        c.srcDevice = copy->device;
        c.srcPitch = copy->device_stride;
        c.dstMemoryType = CU_MEMORYTYPE_HOST;
        c.dstHost = (void *)(uintptr_t)copy->host;
        c.dstPitch = copy->host_stride;
    }
    return weir_cuda_result(pass->device, "cuMemcpy2DAsync",
                            pass->device->driver->cuMemcpy2DAsync(&c, pass->stream));
}

/* ---- Pieces ---------------------------------------------------------------- */

static int put_piece(struct pass *pass, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct weir_cuda_batch *batch = bytes < TINY ? &pass->state->small : &pass->state->large;
    batch->to[batch->n] = to;
    batch->from[batch->n] = from;
    batch->bytes[batch->n] = bytes;
    return ++batch->n < WEIR_CUDA_BATCH ? 0 : flush(pass, batch);
}

static int add_piece(struct pass *pass, uint64_t device, uint64_t host, uint64_t bytes)
{
    CUdeviceptr alias;
    int rc = weir_cuda_alias(pass->device, host, bytes, &alias);
    if (rc)
        return rc;
    return pass->transfer->direction == WEIR_LOAD ? put_piece(pass, device, alias, bytes)
                                                  : put_piece(pass, alias, device, bytes);
}

/* Pieces of one size but for the last, so that none is tiny that need not be. */
static int add_bytes(struct pass *pass, uint64_t device, uint64_t host, uint64_t bytes)
{
    uint64_t n = (bytes + WEIR_GATE_PIECE_BYTES - 1) / WEIR_GATE_PIECE_BYTES;
    uint64_t piece = ((bytes + n - 1) / n + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc; at += piece) {
        uint64_t left = bytes - at;
        rc = add_piece(pass, device + at, host + at, left < piece ? left : piece);
    }
    return rc;
}

static int add_rows(struct pass *pass, const struct weir_copy *copy)
{
    int rc = 0;
    for (uint64_t row = 0; row < copy->rows && !rc; row++)
        rc = add_bytes(pass, copy->device + row * copy->device_stride,
                       copy->host + row * copy->host_stride, copy->row_bytes);
    return rc;
}

static int copy_rows_2d(struct pass *pass, const struct weir_copy *copy)
{
    uint64_t at_once = WEIR_GATE_PIECE_BYTES / copy->row_bytes;
    struct weir_copy part = *copy;
    int rc = 0;
    for (uint64_t left = copy->rows; left > 0 && !rc; left -= part.rows) {
        part.rows = left < at_once ? left : at_once;
        rc = copy_2d(pass, &part);
        part.device += part.rows * part.device_stride;
        part.host += part.rows * part.host_stride;
    }
    return rc;
}

static int add_copy(struct pass *pass, const struct weir_copy *copy)
{
    uint64_t pitch =
        copy->device_stride > copy->host_stride ? copy->device_stride : copy->host_stride;
    bool narrow = copy->rows > 1 && copy->row_bytes < TINY && pitch <= pass->device->max_pitch;
    return narrow ? copy_rows_2d(pass, copy) : add_rows(pass, copy);
}

/* ---- Layers ---------------------------------------------------------------- */

static int add_layer(struct pass *pass, uint32_t layer)
{
    const struct weir_transfer *transfer = pass->transfer;
    for (uint32_t tensor = 0; tensor < transfer->geometry->n_tensors; tensor++) {
        for (uint32_t i = 0; i < transfer->n_runs; i++) {
            struct weir_copies it;
            struct weir_copy copy;
            weir_copies_begin(&it, transfer->geometry, tensor, layer, transfer->runs[i]);
            while (weir_copies_next(&it, &copy)) {
                int rc = add_copy(pass, &copy);
                if (rc)
                    return rc;
            }
        }
    }
    return 0;
}

/* Enqueues what was gathered, if that went well; leaves nothing behind. */
static int flush_all(struct pass *pass, int rc)
{
    if (rc == 0)
        rc = flush(pass, &pass->state->large);
    if (rc == 0)
        rc = flush(pass, &pass->state->small);
    if (rc) {
        pass->state->large.n = 0;
        pass->state->small.n = 0;
    }
    return rc;
}

/* A batch in a captured stream would fail and be missing from the graph, which
 * ends well all the same; plain copies are captured. The driver refuses batches
 * in the legacy stream. */
static int ask_for_batches(struct pass *pass)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int rc = weir_cuda_capture_status(pass->device, pass->stream, &status);
    if (rc)
        return rc;
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return -ENOTSUP;
    pass->batches = status == CU_STREAM_CAPTURE_STATUS_NONE && pass->stream != CU_STREAM_LEGACY &&
                    atomic_load(&pass->device->batches);
    return 0;
}

int weir_cuda_copy_engine(struct weir_cuda_device *device, weir_stream *stream,
                          const struct weir_transfer *transfer, uint32_t layer_begin,
                          uint32_t layer_end)
{
    struct pass pass = {
        .device = device, .stream = (CUstream)stream, .transfer = transfer, .state = transfer->state
    };
    int rc = ask_for_batches(&pass);
    for (uint32_t layer = layer_begin; layer < layer_end && !rc; layer++)
        rc = flush_all(&pass, add_layer(&pass, layer));
    return rc;
}

/* ---- Within the device ------------------------------------------------------ */

static int add_pages(struct pass *pass, const struct weir_page_copies *copies, uint32_t tensor,
                     uint32_t layer)
{
    const struct weir_geometry *g = copies->geometry;
    int rc = 0;
    if (g->layer_index[(size_t)tensor * g->n_layers + layer] < 0)
        return 0;
    for (uint32_t i = 0; i < copies->n && !rc; i++)
        rc = put_piece(pass, weir_geometry_device(g, tensor, layer, copies->copies[i].to),
                       weir_geometry_device(g, tensor, layer, copies->copies[i].from),
                       g->tensors[tensor].page_bytes);
    return rc;
}

int weir_cuda_copy_engine_pages(struct weir_cuda_device *device, weir_stream *stream,
                                const struct weir_page_copies *copies)
{
    struct pass pass = { .device = device, .stream = (CUstream)stream, .state = copies->state };
    int rc = ask_for_batches(&pass);
    for (uint32_t layer = 0; layer < copies->geometry->n_layers && !rc; layer++)
        for (uint32_t tensor = 0; tensor < copies->geometry->n_tensors && !rc; tensor++)
            rc = add_pages(&pass, copies, tensor, layer);
    return flush_all(&pass, rc);
}
