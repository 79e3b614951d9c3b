/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_FORWARD_H
#define TRANSFORMER_FORWARD_H

/* The forward pass of one rank on a stream: what is enqueued between
 * weir_rank_begin and weir_rank_end. There is one for the CPU device and one for
 * CUDA.
 *
 *   begin   embeds the plan's rows
 *   layer   projects the rows, writes their keys and values into the pages,
 *           attends; enqueued behind weir_rank_wait_layer
 *   end     logits, and the token that each wanted row comes to
 *
 * All return at once. A slot keeps what its step needs until the step has been
 * reported; then answers says what the rows came to. */

#include "exchange.h"
#include "pages.h"

struct forward;

struct forward_params {
    const struct model *model;
    weir_device *device;
    weir_rank *rank;
    struct page_groups groups;
    struct exchange *exchange;
};

struct forward_ops {
    int (*open)(struct forward **forward, const struct forward_params *params);
    /* All steps have been reported, and the rank is still open. */
    void (*close)(struct forward *forward);
    weir_stream *(*stream)(struct forward *forward);
    struct plan *(*plan)(struct forward *forward, uint32_t slot);
    int (*begin)(struct forward *forward, uint32_t slot);
    int (*layer)(struct forward *forward, uint32_t slot, uint32_t layer);
    int (*end)(struct forward *forward, uint32_t slot);
    /* Does all three by a graph that holds the layer waits too; *done says
     * whether there is one for this plan. NULL: there are no graphs. */
    int (*replay)(struct forward *forward, uint32_t slot, bool *done);
    const struct model_answer *(*answers)(struct forward *forward, uint32_t slot);
};

extern const struct forward_ops forward_cpu;

#endif
