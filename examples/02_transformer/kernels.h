/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_KERNELS_H
#define TRANSFORMER_KERNELS_H

/* What the host tells a kernel; read by C and CUDA alike.
 *
 *   plan (a slot's, on the device) ─► x ─► queries, pages ─► partials ─► x ─► answers
 *
 * A block serves one row, or one group of one row: blockIdx.x is the row,
 * blockIdx.y the group. A launch may have more blocks than the plan has rows, so
 * that a graph of one shape serves batches of any size up to it. */

#include "messages.h"

struct kernel_args {
    const struct model *model;
    const struct plan *plan; /* without the order */
    float (*x)[D_MODEL];
    struct model_query (*queries)[N_GROUPS];
    float (*partials)[N_GROUPS][D_MODEL];
    int32_t *next_token; /* what a chat's last row came to */
    struct model_answer *answers;
    uint64_t keys, values; /* page 0 of this layer */
    uint64_t page_bytes;
    uint32_t layer;
};

#endif
