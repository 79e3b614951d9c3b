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
 * They return at once. A slot keeps what its step needs until the step has been
 * reported; then answers says what the rows came to. Functions return 0 or a
 * negative errno. */

#include "exchange.h"
#include "pages.h"

struct forward;

struct forward_params {
    const struct model *model;
    weir_device *device;
    struct page_groups groups;
    uint32_t device_pages;
    struct exchange *exchange;
};

struct forward_ops {
    int (*open)(struct forward **forward, const struct forward_params *params);

    /* All steps have been reported, and the rank is closed. */
    void (*close)(struct forward *forward);

    /* The server's own buffers for weir_rank_params; NULL: the rank makes some. */
    const weir_device_plane *(*planes)(const struct forward *forward);

    /* The rank whose pages it works on from now on. */
    int (*attach)(struct forward *forward, weir_rank *rank);

    weir_stream *(*stream)(const struct forward *forward);
    struct plan *(*plan)(struct forward *forward, uint32_t slot);
    int (*begin)(struct forward *forward, uint32_t slot);
    int (*layer)(struct forward *forward, uint32_t slot, uint32_t layer);
    int (*end)(struct forward *forward, uint32_t slot);

    /* All three by a graph, the waits for layers included; *done is false, and
     * nothing enqueued, if there is none that fits the plan. NULL: no graphs. */
    int (*replay)(struct forward *forward, uint32_t slot, bool *done);

    const struct model_answer *(*answers)(const struct forward *forward, uint32_t slot);
};

extern const struct forward_ops forward_cpu;

#endif
