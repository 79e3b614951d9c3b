/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_PAGES_H
#define TRANSFORMER_PAGES_H

/* Keys and values in pages, as the kernels see them.
 *
 *   chat's block table   3 │ 17 │ 4        (weir_seq_pages)
 *                            │
 *   a rank's page 17, layer l, tensor K:   (weir_rank_device_address)
 *     row = token 16 of the chat │ group 0 │ group 1 │   the rank's groups
 *     row = token 17             │         │         │
 *     …                          PAGE_TOKENS rows */

#include "messages.h"

#include <weir/weir.h>

enum page_tensor {
    PAGE_KEYS,
    PAGE_VALUES,
    N_PAGE_TENSORS
};

/* Which groups a rank has. */
struct page_groups {
    uint32_t first, n;
};

struct page_groups pages_groups(uint32_t rank, uint32_t n_ranks);

/* What weir must know of them. `tensors` must live as long as the shape. */
weir_shape pages_shape(struct page_groups groups, weir_tensor tensors[N_PAGE_TENSORS]);

/* One group's rows of a chat, in one tensor of one layer. */
struct page_view {
    float *pages[MAX_CHAT_PAGES]; /* at the group's place in the first row */
    uint32_t row_floats;
};

void pages_view(struct page_view *view, const weir_rank *rank, enum page_tensor tensor,
                uint32_t layer, struct page_groups groups, uint32_t group,
                const struct plan_part *part);

float *pages_row(const struct page_view *view, uint32_t position);

/* As model_context wants it. */
const float *pages_row_of(const void *view, uint32_t position);

#define MAX_ACCESSES (MAX_BATCH * MAX_CHAT_PAGES * N_PAGE_TENSORS)

/* Which pieces a layer of a step reads and writes, for the race check of the CPU
 * device: every page of every chat, and the rows' own pages for writing. Returns
 * how many. */
size_t pages_accesses(const weir_rank *rank, uint32_t layer, const struct plan *plan,
                      weir_cpu_access accesses[MAX_ACCESSES]);

#endif
