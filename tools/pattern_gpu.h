/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_PATTERN_GPU_H
#define WEIR_TOOLS_PATTERN_GPU_H

/* The pattern on a GPU: kernels that fill the pages of a rank, and count the
 * bytes that differ.
 *
 *   batch, pinned   ┌ wrong ┬ fills ┬ checks ┬ fingerprints ┐  the host writes
 *                   └───────┴───────┴────────┴──────────────┘
 *             upload │       ▲
 *   device           ▼       │ download: wrong only
 *                   ┌ wrong ┬ fills ┬ checks ┬ fingerprints ┐  kernels read
 *                   └───────┴───────┴────────┴──────────────┘
 *
 * A batch is what one step fills and checks, in all layers. All calls with a
 * stream only enqueue. Invariants: between upload and the end of the last kernel
 * or download the host leaves the batch alone; begin with numbers that fit
 * moves nothing, so that a graph may hold a batch's kernels. */

#include "gpu.h"
#include "kernels/pattern_args.h"

#include <weir/rank.h>

struct weir_pattern_gpu {
    struct weir_gpu gpu;
    CUfunction fill;
    CUfunction check;
};

/* The pieces of one rank, as the kernels find them. */
struct weir_pattern_planes {
    uint64_t table; /* struct weir_pattern_plane [layer][tensor] */
    uint32_t n_tensors;
    uint32_t parts; /* that a piece is shared out to */
};

struct weir_pattern_batch {
    uint32_t *pinned;
    uint64_t device;
    uint64_t capacity; /* bytes of both */
    uint32_t n_fills;
    uint32_t n_checks;
    uint64_t n_fingerprints;
    struct weir_pattern_wrong *wrong; /* these four in `pinned` */
    struct weir_pattern_entry *fills;
    struct weir_pattern_entry *checks;
    uint64_t *fingerprints;
};

/* Errors as for weir_gpu_open. */
int weir_pattern_gpu_open(struct weir_pattern_gpu *pattern, weir_device *device);
void weir_pattern_gpu_close(struct weir_pattern_gpu *pattern);

/* `number` is the rank's in the pattern. Blocks. -ENOMEM, -EIO. */
int weir_pattern_planes_create(struct weir_pattern_planes *planes, struct weir_pattern_gpu *pattern,
                               const weir_rank *rank, const weir_shape *shape, uint32_t number,
                               weir_stream *stream);
void weir_pattern_planes_destroy(struct weir_pattern_planes *planes,
                                 struct weir_pattern_gpu *pattern);

/* Makes room for so many and clears `wrong`; the caller then writes the entries
 * and the fingerprints. Pre: nothing of the batch is in a stream. -ENOMEM. */
int weir_pattern_batch_begin(struct weir_pattern_batch *batch, struct weir_pattern_gpu *pattern,
                             uint32_t n_fills, uint32_t n_checks, uint64_t n_fingerprints);
void weir_pattern_batch_destroy(struct weir_pattern_batch *batch, struct weir_pattern_gpu *pattern);

int weir_pattern_batch_upload(const struct weir_pattern_batch *batch,
                              struct weir_pattern_gpu *pattern, weir_stream *stream);
int weir_pattern_batch_download(const struct weir_pattern_batch *batch,
                                struct weir_pattern_gpu *pattern, weir_stream *stream);

/* One layer; nothing is launched where there is nothing to do. */
int weir_pattern_batch_fill(const struct weir_pattern_batch *batch,
                            struct weir_pattern_gpu *pattern,
                            const struct weir_pattern_planes *planes, uint32_t layer,
                            weir_stream *stream);
int weir_pattern_batch_check(const struct weir_pattern_batch *batch,
                             struct weir_pattern_gpu *pattern,
                             const struct weir_pattern_planes *planes, uint32_t layer,
                             weir_stream *stream);

/* What a kernel for the batch's checks of a layer is told. */
struct weir_pattern_args weir_pattern_batch_args(const struct weir_pattern_batch *batch,
                                                 const struct weir_pattern_planes *planes,
                                                 uint32_t layer);

#endif
