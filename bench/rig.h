/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_RIG_H
#define WEIR_BENCH_RIG_H

/* A rank under measurement, and the one list of pages that it moves.
 *
 *   device pages   1 2 3 4 │ 5 6 7 8 │ 9 …      blocks of run_pages
 *                      \        /
 *                       \      /                shuffled, so that two blocks
 *   host pages     5 6 7 8 │ 1 2 3 4 │ 13 …     never make a longer run
 *
 *   load, wait_layer …, end, drain ─► the load has arrived
 *   write_back,         end, drain ─► the write-back has
 *
 * The cache is not here: orders are made by hand, before the clock starts. Move
 * i carries content i on both sides, so that either tier can be filled with it
 * and the other one checked.
 *
 * Invariants: at most two transfers at a time, of one direction, which copy the
 * same bytes; `due` counts the reports that have not come; every page of both
 * pools is in exactly one move. */

#include "device.h"

#include "transfer/rank.h"

struct weir_bench_layout {
    uint32_t n_layers;
    uint32_t n_tensors;
    uint32_t row_bytes;
    uint32_t page_tokens;
    uint32_t n_pages; /* a multiple of run_pages */
    uint32_t run_pages;
    weir_host_layout host;
};

struct weir_bench_rig {
    struct weir_bench_device *device;
    struct weir_bench_layout layout;
    weir_shape shape;
    weir_tensor tensors[WEIR_MAX_TENSORS];
    weir_rank *rank;
    uint64_t planes_base;  /* of device memory of the rig's own; 0: it is lent */
    weir_move *moves;      /* [n_pages] */
    int32_t *pages;        /* device page of each move, for the host */
    uint64_t device_pages; /* the same where the device's kernels read it */
    void *order;
    size_t order_capacity;
    void *report;
    uint64_t step; /* the newest */
    uint32_t due;
    uint32_t in_flight;     /* transfers */
    double enqueue_seconds; /* of the last begin */
};

/* Bytes of one transfer. */
uint64_t weir_bench_layout_bytes(const struct weir_bench_layout *layout);

/* Bytes of device memory that a rig of this layout works on. */
uint64_t weir_bench_layout_device_bytes(const struct weir_bench_layout *layout);

/* planes: device memory that several rigs may share as long as one at a time
 * copies; 0: the rig takes its own. Errors as for weir_rank_open; the device's
 * reason says more. */
int weir_bench_rig_open(struct weir_bench_rig **rig, struct weir_bench_device *device,
                        const struct weir_bench_layout *layout, const weir_transfer_tuning *load,
                        const weir_transfer_tuning *write_back, uint64_t planes);
void weir_bench_rig_close(struct weir_bench_rig **rig);

/* Begins a step in the device's stream that loads, or writes back, all moves.
 * A write-back starts after weir_bench_rig_end, in a call to drain or poll. */
int weir_bench_rig_load(struct weir_bench_rig *rig);
int weir_bench_rig_write_back(struct weir_bench_rig *rig);
int weir_bench_rig_wait_layer(struct weir_bench_rig *rig, uint32_t layer);
int weir_bench_rig_end(struct weir_bench_rig *rig);

/* Takes the reports that have come. -EIO: a transfer failed. */
int weir_bench_rig_poll(struct weir_bench_rig *rig);

/* Polls until none is due. */
int weir_bench_rig_drain(struct weir_bench_rig *rig);

/* n calls of a direction, each enqueued while the one before it runs, and how long
 * one took, until the last was reported. */
int weir_bench_rig_time(struct weir_bench_rig *rig, enum weir_direction direction, uint32_t n,
                        double *seconds);

/* What a verified call needs: the source is filled, the target with something
 * else; then the call; then *n_wrong bytes of the target differ. `plant` damages
 * the target before that. */
int weir_bench_rig_prepare(struct weir_bench_rig *rig, enum weir_direction direction);
int weir_bench_rig_check(struct weir_bench_rig *rig, enum weir_direction direction, bool plant,
                         uint64_t *n_wrong);

#endif
