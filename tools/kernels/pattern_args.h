/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_KERNELS_PATTERN_ARGS_H
#define WEIR_TOOLS_KERNELS_PATTERN_ARGS_H

/* What the host tells the pattern kernels; read by C and CUDA alike.
 *
 *   planes [layer][tensor] ──► where a piece lies, what its rows are like
 *   entries ──► page, rows begin..end-1 ──► fingerprints[first + row]
 *
 * Invariants: pointers are device addresses; bases, strides and rows may have
 * any alignment. */

#include <stdint.h>

/* One tensor of one layer. rows is 0 where the layer has no such tensor; an
 * opaque page is one row. */
struct weir_pattern_plane {
    uint64_t base; /* of page 0 */
    uint64_t stride;
    uint64_t place; /* weir_pattern_place */
    uint32_t rows;
    uint32_t row_bytes;
};

/* Rows of one page, in all tensors; those a tensor does not have are left out. */
struct weir_pattern_entry {
    int32_t page;
    uint32_t begin;
    uint32_t end;
    uint32_t first; /* fingerprint of row 0 */
};

/* What checks have found, and where one wrong row is. */
struct weir_pattern_wrong {
    uint64_t bytes;
    uint32_t told; /* the rest is written by who finds it 0 */
    uint32_t layer;
    uint32_t tensor;
    uint32_t entry;
    uint32_t row;
    uint32_t unused;
};

struct weir_pattern_args {
    const struct weir_pattern_plane *planes; /* [n_tensors], of `layer` */
    const struct weir_pattern_entry *entries;
    const uint64_t *fingerprints;
    struct weir_pattern_wrong *wrong;
    uint32_t layer;
    uint32_t unused;
};

#endif
