/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_COPY_H
#define WEIR_COPY_H

/* Copies rows by index, for servers that bring their own pools: the jobs that
 * HiCache's kernels do, without a rank and without a plan.
 *
 *     for each layer, for each buffer (K, V), for i in 0..n_rows-1:
 *         to.buffer + to.indices[i] * to.stride
 *             becomes the row_bytes bytes at
 *         from.buffer + from.indices[i] * from.stride
 *
 * A row is a token, or a page where pages are contiguous. Neighbouring indices
 * that are consecutive on a side whose stride is row_bytes are copied as one. */

#include <weir/device.h>
#include <weir/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_COPY_MAX_ROW_BYTES (1u << 20)

typedef enum weir_copy_direction {
    WEIR_COPY_HOST_TO_DEVICE = 0,
    WEIR_COPY_DEVICE_TO_HOST = 1,
    WEIR_COPY_DEVICE_TO_DEVICE = 2
} weir_copy_direction;

/* One side of a copy.
 *
 *   buffers  addresses of row 0 of K and V; for weir_copy_rows_layers, of two
 *            arrays in device memory, each of n_layers such addresses. The
 *            host's memory is pinned
 *   indices  in device memory: n_rows rows of each buffer; not checked
 *   stride   bytes from one row to the next, at least row_bytes
 *   n_rows   rows that each buffer has; 0 (default): unknown. Where known, they
 *            are held against the other side for overlaps, and strided rows of
 *            host memory are loaded faster */
typedef struct weir_copy_side {
    uint64_t buffers[2];
    const void *indices;
    uint64_t stride;
    uint64_t n_rows;
} weir_copy_side;

/*   struct_size  written by weir_copy_rows_params_init
 *   engine       AUTO (default), TMA or VECTOR. AUTO with row_bytes % 16 == 0
 *                takes tables of buffers to hold multiples of 16
 *   direction    default HOST_TO_DEVICE
 *   n_buffers    1 (default) or 2
 *   row_bytes    1..WEIR_COPY_MAX_ROW_BYTES; TMA: a multiple of 16, as all
 *                addresses and strides then are
 *   n_rows       how many; 0 (default): the call does nothing
 *   index_bytes  4 (int32) or 8 (int64, default), both sides
 *   page_tokens  rows that usually lie together; 1 (default): none do
 *   n_layers     for weir_copy_rows_layers; default 1
 *   ctas         0 (default): 2
 *   threads      of a VECTOR CTA, a multiple of 32 up to 512; 0 (default): 512
 *   stages, stage_bytes
 *                of a TMA CTA's ring, 2..16 and a multiple of 128 from 1024 to
 *                131072; 0 (default): as fits the device */
typedef struct weir_copy_rows_params {
    uint32_t struct_size;
    weir_transfer_engine engine;
    weir_copy_direction direction;
    uint32_t n_buffers;
    weir_copy_side to;
    weir_copy_side from;
    uint32_t row_bytes;
    uint32_t n_rows;
    uint32_t index_bytes;
    uint32_t page_tokens;
    uint32_t n_layers;
    uint32_t ctas;
    uint32_t threads;
    uint32_t stages;
    uint32_t stage_bytes;
} weir_copy_rows_params;

WEIR_API void weir_copy_rows_params_init(weir_copy_rows_params *params) WEIR_NOEXCEPT;

/* Enqueues the copy of one layer in `stream`, which may be one that is being
 * captured. Buffers and indices must live until it has run; the params need
 * not. Target rows must not repeat. Allocates nothing.
 * -EINVAL, with a line to the device's log: a field breaks a rule above, or the
 * sides overlap; -ENOTSUP: a CPU device, a library without kernels, or a GPU
 * without this engine; -EIO: the device is lost. Threads: one at a time a
 * stream. */
WEIR_API int weir_copy_rows(weir_device *device, weir_stream *stream,
                            const weir_copy_rows_params *params) WEIR_NOEXCEPT;

/* The same for n_layers layers in one launch, one layer after the other. Both
 * sides name tables of buffers. */
WEIR_API int weir_copy_rows_layers(weir_device *device, weir_stream *stream,
                                   const weir_copy_rows_params *params) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
