/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_OVERLAP_H
#define WEIR_BENCH_OVERLAP_H

/* What the parts of the overlap benchmark share.
 *
 *   bench_overlap.c     options, the list of modes, their rigs
 *   overlap_forward.c   a forward pass whose layers wait for a load's layers
 *   overlap_decode.c    a decode chain beside a write-back
 *
 *   mode    a way to get the pages there: engine, CTAs, launch shape, runs
 *
 * The rigs live through all shapes and share their device memory; the modes of
 * a shape take turns. */

#include "baseline.h"
#include "forward.h"
#include "report.h"

enum weir_bench_way {
    WEIR_BENCH_ALONE,      /* no load at all */
    WEIR_BENCH_LOAD_FIRST, /* the pass waits for all of it */
    WEIR_BENCH_LAYER_WISE,
    WEIR_BENCH_BASELINE
};

enum weir_bench_when {
    WEIR_BENCH_OWN,     /* the load is enqueued at its own pass */
    WEIR_BENCH_PREVIOUS /* during the pass before it */
};

#define WEIR_BENCH_MAX_MODES 64u

struct weir_bench_mode {
    char name[64];
    enum weir_bench_way way;
    weir_transfer_tuning tuning;
    uint32_t ctas; /* of the baseline */
    uint32_t run_pages;
    struct weir_bench_rig *rig; /* NULL: ALONE */
    struct weir_bench_baseline *baseline;
    struct weir_bench_samples times;
    struct weir_bench_samples enqueue; /* seconds of the host */
    struct weir_bench_samples victims;
    struct weir_bench_samples rates; /* of a write-back, seconds */
    uint64_t wrong;
    int rc;
    char reason[WEIR_BENCH_REASON];
};

struct weir_bench_overlap {
    struct weir_bench_common common;
    struct weir_bench_list shapes; /* WEIR_BENCH_SHAPES: decode */
    struct weir_bench_list whens;
    struct weir_bench_layout layout;
    double milliseconds; /* of a pass; 0: the shape's */
    uint32_t victims;    /* passes with a victim */
    uint32_t chain;      /* kernels of a decode chain */
    bool cublas;
    struct weir_bench_device *device;
    uint64_t planes;
    struct weir_bench_mode modes[WEIR_BENCH_MAX_MODES];
    uint32_t n_modes;
    weir_event **events; /* [n_layers], of the baseline */
    uint64_t faults;     /* wrong bytes, calls that failed */
    struct weir_bench_report report;
};

/* Notes that a mode cannot be, or can no longer be, measured. */
void weir_bench_mode_fails(struct weir_bench_overlap *overlap, struct weir_bench_mode *mode,
                           int rc);

/* A row with a mode's name, or NULL after putting why it was skipped. */
json_t *weir_bench_mode_row(struct weir_bench_overlap *overlap, const struct weir_bench_mode *mode,
                            const char *shape, const char *name);

int weir_bench_overlap_forward(struct weir_bench_overlap *overlap, enum weir_bench_shape shape);
int weir_bench_overlap_decode(struct weir_bench_overlap *overlap);

#endif
