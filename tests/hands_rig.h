/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_HANDS_RIG_H
#define WEIR_TESTS_HANDS_RIG_H

/* A rank with a CPU device and a stream, and a forward pass that fills pages with
 * a pattern and looks whether it is still there. A step is told by a list of
 * works, which with the order is all that a rank needs, in this process or in
 * another. The bytes of a replicated tensor are the same on all ranks, those of
 * the others are not. */

#include "log_capture.h"
#include "random.h"
#include "transfer/rank.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct hand_work {
    int32_t page;
    uint32_t fill; /* else look */
    uint64_t content;
};

struct hand_kernel {
    struct hand_kernel *next;
    struct hand *hand;
    struct hand_work work;
    uint32_t layer;
};

struct hand {
    weir_device *device;
    weir_stream *stream;
    weir_rank *rank;
    const weir_shape *shape;
    uint32_t index;
    uint64_t looked; /* bytes */
    uint64_t wrong;  /* of them */
    struct hand_kernel *kernels;
    struct log_capture log;
};

static inline unsigned char hand_byte(const struct hand *hand, uint64_t content, uint32_t tensor,
                                      uint32_t layer, uint64_t at)
{
    uint64_t index = hand->shape->tensors[tensor].replicated ? 0 : hand->index + 1;
    struct random random = { content * 1000003 + index * 65537 + tensor * 8191 + layer * 127 + at };
    return (unsigned char)random_next(&random);
}

static inline void hand_run_kernel(void *arg)
{
    struct hand_kernel *k = arg;
    struct hand *hand = k->hand;
    for (uint32_t t = 0; t < hand->shape->n_tensors; t++) {
        unsigned char *piece = (unsigned char *)(uintptr_t)weir_rank_device_address(
            hand->rank, t, k->layer, (weir_device_page){ k->work.page });
        for (uint64_t i = 0; piece && i < hand->shape->tensors[t].page_bytes; i++) {
            unsigned char value = hand_byte(hand, k->work.content, t, k->layer, i);
            if (k->work.fill) {
                piece[i] = value;
                continue;
            }
            hand->looked++;
            hand->wrong += piece[i] != value;
        }
    }
}

static inline int hand_launch(struct hand *hand, struct hand_work work, uint32_t layer)
{
    struct hand_kernel *k = malloc(sizeof *k);
    if (!k)
        return -ENOMEM;
    *k = (struct hand_kernel){ hand->kernels, hand, work, layer };
    hand->kernels = k;
    weir_cpu_access accesses[WEIR_MAX_TENSORS];
    size_t n = 0;
    for (uint32_t t = 0; t < hand->shape->n_tensors; t++)
        if (weir_rank_device_address(hand->rank, t, layer, (weir_device_page){ work.page }))
            accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(hand->rank),
                                               .page = work.page,
                                               .tensor = (uint16_t)t,
                                               .layer = (uint16_t)layer,
                                               .write = work.fill };
    return weir_cpu_launch(hand->device, hand->stream, hand_run_kernel, k, accesses, n);
}

/* `device` may be another hand's; NULL: one of its own, with this seed. */
static inline int hand_open(struct hand *hand, weir_device *device, uint64_t seed,
                            weir_rank_params params, uint32_t index)
{
    *hand = (struct hand){ .device = device, .shape = params.shape, .index = index };
    params.log = log_capture_log(&hand->log);
    int rc = 0;
    if (!device) {
        weir_cpu_device_params own;
        weir_cpu_device_params_init(&own);
        own.seed = seed;
        own.log = params.log;
        rc = weir_cpu_device_open(&hand->device, &own);
    }
    if (rc == 0)
        rc = weir_cpu_stream_create(hand->device, &hand->stream);
    if (rc == 0)
        rc = weir_rank_open(&hand->rank, hand->device, &params);
    return rc;
}

/* The device is closed by the caller: hands may share one. */
static inline void hand_close(struct hand *hand)
{
    weir_rank_close(&hand->rank);
    if (hand->stream)
        weir_cpu_stream_destroy(hand->device, &hand->stream);
    while (hand->kernels) {
        struct hand_kernel *next = hand->kernels->next;
        free(hand->kernels);
        hand->kernels = next;
    }
}

/* All that has been enqueued runs, where the device does not run by itself. */
static inline void hand_run(struct hand *hand)
{
    while (weir_cpu_device_run(hand->device, 1000) == 1000)
        continue;
}

/* One step from begin to end; order as for weir_rank_begin. */
static inline int hand_step(struct hand *hand, const void *order, size_t bytes,
                            const struct hand_work *works, size_t n_works)
{
    uint64_t step;
    weir_order decoded;
    int rc = weir_order_decode(&decoded, order, bytes, NULL);
    uint32_t slot = rc ? 0 : (uint32_t)(decoded.step % hand->rank->engine.n_slots);
    if (rc == 0)
        rc = weir_rank_begin(hand->rank, order, bytes, slot, hand->stream, &step);
    if (rc)
        return rc;
    for (uint32_t layer = 0; layer < hand->shape->n_layers && rc == 0; layer++) {
        rc = weir_rank_wait_layer(hand->rank, step, layer, hand->stream);
        for (size_t i = 0; i < n_works && rc == 0; i++)
            rc = hand_launch(hand, works[i], layer);
    }
    int ended = weir_rank_end(hand->rank, step, hand->stream);
    return rc ? rc : ended;
}

#endif
