/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_HANDS_DEVICE_H
#define WEIR_TOOLS_HANDS_DEVICE_H

/* What hands.c asks of a kind of device, and what they share.
 *
 *   hands.c        orders, steps, reports; hand_thread.c: the same on threads
 *      │ ops
 *      ├─► hands_cpu.c   a device a rank; functions on its streams
 *      └─► hands_cuda.c  ranks dealt out to n_gpus GPUs; kernels
 *
 * A step on a rank: prepare, weir_rank_begin, forward,
 * weir_rank_end, ended; then, when all ranks have reported its end, retire. */

#include "hands.h"

#include <weir/rank.h>

#include <stdatomic.h>

struct weir_work {
    uint64_t step; /* 0: free */
    struct weir_step_part *parts;
    size_t n_parts;
    size_t capacity;
};

struct weir_hand {
    weir_device *device;
    weir_rank *rank;
    weir_stream *stream;
    uint64_t ended;                  /* the last step whose end was reported */
    struct weir_hand_thread *thread; /* NULL: the scheduler's thread does it */
};

/* Errors as for the calls of the rank. close: of what open has made, all or a
 * part of it, after all work has ended. wait: blocks until the oldest work, or
 * more, has ended, or if there is none all copies. */
struct weir_hands_ops {
    int (*open)(struct weir_hands *hands, const weir_rank_params *params);
    void (*close)(struct weir_hands *hands);
    int (*prepare)(struct weir_hands *hands, size_t work, uint32_t rank);
    int (*forward)(struct weir_hands *hands, size_t work, uint32_t rank);
    int (*ended)(struct weir_hands *hands, size_t work, uint32_t rank);
    void (*retire)(struct weir_hands *hands, size_t work);
    int (*wait)(struct weir_hands *hands);
    uint64_t (*races)(const struct weir_hands *hands);
};

extern const struct weir_hands_ops weir_hands_cpu;
extern const struct weir_hands_ops weir_hands_cuda;

struct weir_hands {
    const struct weir_replay_options *options;
    const struct weir_hands_ops *ops; /* NULL: no devices */
    void *state;                      /* of the ops */
    struct weir_request_pool *pool;
    struct weir_hand *hands; /* [n_ranks] */
    uint64_t last_step;
    struct weir_work works[WEIR_REPLAY_STEPS];
    uint64_t *report;
    size_t report_bytes;
    uint64_t failures;
    atomic_ullong wrong_bytes;
    atomic_flag wrong_told;
};

/* The parts of a step on a rank: what may have to be tried again (-EBUSY, -EAGAIN,
 * -EIO), and the rest. */
int weir_hand_begin(struct weir_hands *hands, size_t work, uint32_t rank, const void *order,
                    size_t bytes);
int weir_hand_run(struct weir_hands *hands, size_t work, uint32_t rank);

/* A report of hands->report_bytes at most; *bytes is 0 if nothing has ended. */
int weir_hand_report(struct weir_hands *hands, uint32_t rank, void *report, size_t *bytes);

/* Where wrong bytes are. */
struct weir_wrong_place {
    const struct weir_work *work;
    const struct weir_step_part *part;
    size_t token;
    uint32_t rank;
    uint32_t layer;
    uint32_t tensor;
};

/* Counts wrong bytes and tells where the first are. Threads: any. */
void weir_hands_add_wrong(struct weir_hands *hands, uint64_t bytes,
                          const struct weir_wrong_place *place);

#endif
