/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap.h"

#include "chain.h"

/* A decode chain beside a write-back of all pages.
 *
 *   stream    chain ────────────────── mark
 *   weir      write-back ──────── report
 *
 *   factor = chain's time / chain alone
 *
 * The step that the write-back belongs to has ended before, so that the two
 * start together, but for the time that enqueueing the write-back takes. */

/* *began: before the write-back is enqueued, so that enqueueing counts. */
static int start_copy(struct weir_bench_overlap *overlap, struct weir_bench_mode *mode,
                      double *began)
{
    struct weir_bench_device *device = overlap->device;
    int rc = 0;
    *began = weir_bench_now();
    if (mode->way == WEIR_BENCH_ALONE)
        return 0;
    if (mode->way == WEIR_BENCH_BASELINE) {
        for (uint32_t layer = 0; layer < overlap->layout.n_layers && !rc; layer++)
            rc = weir_bench_baseline_copy(mode->baseline, WEIR_WRITE_BACK, layer, device->side);
        return rc ? rc : weir_bench_mark(device, device->side);
    }
    rc = weir_bench_rig_write_back(mode->rig);
    if (!rc)
        rc = weir_bench_rig_end(mode->rig);
    while (!rc && mode->rig->due > 1) {
        weir_bench_relax(device);
        rc = weir_bench_rig_poll(mode->rig);
    }
    /* The report of the step may have come after the look for writes. */
    return rc ? rc : weir_bench_rig_poll(mode->rig);
}

static int copy_ended(struct weir_bench_overlap *overlap, struct weir_bench_mode *mode, bool *ended)
{
    int rc = 0;
    *ended = true;
    if (mode->way == WEIR_BENCH_BASELINE) {
        *ended = weir_bench_passed(overlap->device, overlap->device->side);
    } else if (mode->way != WEIR_BENCH_ALONE) {
        rc = weir_bench_rig_poll(mode->rig);
        *ended = mode->rig->due == 0;
    }
    return rc;
}

static int call(struct weir_bench_overlap *overlap, struct weir_bench_chain *chain,
                struct weir_bench_mode *mode, double *chain_seconds, double *copy_seconds)
{
    struct weir_bench_device *device = overlap->device;
    double began;
    int rc = start_copy(overlap, mode, &began);
    double start = weir_bench_now();
    if (!rc)
        rc = weir_bench_chain_launch(chain);
    if (!rc)
        rc = weir_bench_mark(device, device->stream);
    bool chain_over = false;
    bool copy_over = false;
    while (!rc && !(chain_over && copy_over)) {
        bool ended;
        rc = copy_ended(overlap, mode, &ended);
        double now = weir_bench_now();
        if (ended && !copy_over) {
            *copy_seconds = now - began;
            copy_over = true;
        }
        if (!chain_over && weir_bench_passed(device, device->stream)) {
            *chain_seconds = now - start;
            chain_over = true;
        }
        if (!rc)
            rc = device->ops->status(device->device);
        weir_bench_relax(device);
    }
    return rc;
}

static int verified_call(struct weir_bench_overlap *overlap, struct weir_bench_chain *chain,
                         struct weir_bench_mode *mode)
{
    double ignored;
    uint64_t wrong = 0;
    if (mode->way == WEIR_BENCH_ALONE)
        return 0;
    int rc = weir_bench_rig_prepare(mode->rig, WEIR_WRITE_BACK);
    if (!rc)
        rc = call(overlap, chain, mode, &ignored, &ignored);
    if (!rc)
        rc = weir_bench_rig_check(mode->rig, WEIR_WRITE_BACK, overlap->common.plant_error, &wrong);
    mode->wrong += wrong;
    overlap->faults += wrong;
    return rc;
}

static int timed_call(struct weir_bench_overlap *overlap, struct weir_bench_chain *chain,
                      struct weir_bench_mode *mode, bool keep)
{
    double chain_seconds;
    double copy_seconds;
    int rc = call(overlap, chain, mode, &chain_seconds, &copy_seconds);
    if (!rc && keep)
        rc = weir_bench_samples_add(&mode->times, chain_seconds);
    if (!rc && keep)
        rc = weir_bench_samples_add(&mode->rates, copy_seconds);
    return rc;
}

static void put_mode(struct weir_bench_overlap *overlap, struct weir_bench_mode *mode, double alone)
{
    struct weir_bench_report *report = &overlap->report;
    double bytes = (double)weir_bench_layout_bytes(&overlap->layout);
    json_t *row = weir_bench_mode_row(overlap, mode, "decode",
                                      mode->way == WEIR_BENCH_ALONE ? "chain alone" : mode->name);
    if (!row)
        return;
    struct weir_bench_stats times = weir_bench_stats_of(&mode->times);
    weir_bench_put_stats(report, row, "seconds", times);
    weir_bench_put_number(report, row, "ms", times.median * 1e3);
    weir_bench_put_number(report, row, "spread_percent", times.spread * 100);
    if (mode->way == WEIR_BENCH_ALONE)
        return;
    if (alone > 0)
        weir_bench_put_number(report, row, "factor", times.median / alone);
    struct weir_bench_stats copies = weir_bench_stats_of(&mode->rates);
    weir_bench_put_stats(report, row, "gbps", weir_bench_stats_of_rates(&copies, bytes * 1e-9));
    weir_bench_put_integer(report, row, "wrong_bytes", mode->wrong);
}

enum phase {
    VERIFY,
    WARM_UP,
    TIME
};

static void each_mode(struct weir_bench_overlap *overlap, struct weir_bench_chain *chain,
                      enum phase phase)
{
    for (uint32_t i = 0; i < overlap->n_modes; i++) {
        struct weir_bench_mode *mode = &overlap->modes[i];
        if (mode->rc || mode->way == WEIR_BENCH_LOAD_FIRST)
            continue;
        int rc = phase == VERIFY ? verified_call(overlap, chain, mode)
                                 : timed_call(overlap, chain, mode, phase == TIME);
        if (rc) {
            weir_bench_mode_fails(overlap, mode, rc);
            overlap->faults++;
        }
    }
}

int weir_bench_overlap_decode(struct weir_bench_overlap *overlap)
{
    struct weir_bench_chain *chain;
    int rc = weir_bench_chain_open(&chain, overlap->device, overlap->chain);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < overlap->n_modes; i++) {
        overlap->modes[i].times.n = overlap->modes[i].rates.n = 0;
        overlap->modes[i].wrong = 0;
    }
    if (overlap->common.verify)
        each_mode(overlap, chain, VERIFY);
    for (uint32_t i = 0; i < overlap->common.warm_up; i++)
        each_mode(overlap, chain, WARM_UP);
    for (uint32_t i = 0; i < overlap->common.repeats; i++)
        each_mode(overlap, chain, TIME);
    if (overlap->common.verify)
        each_mode(overlap, chain, VERIFY);
    double alone = 0;
    for (uint32_t i = 0; i < overlap->n_modes; i++)
        if (overlap->modes[i].way == WEIR_BENCH_ALONE && !overlap->modes[i].rc)
            alone = weir_bench_stats_of(&overlap->modes[i].times).median;
    for (uint32_t i = 0; i < overlap->n_modes; i++)
        if (overlap->modes[i].way != WEIR_BENCH_LOAD_FIRST)
            put_mode(overlap, &overlap->modes[i], alone);
    weir_bench_chain_close(&chain);
    return 0;
}
