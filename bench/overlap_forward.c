/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap.h"

#include <errno.h>

/* One shape of forward pass.
 *
 *   stream   [previous pass] wait 0 ─ layer 0 ─ wait 1 ─ layer 1 ─ … ─ mark
 *                  ▲            ▲
 *   load           │ PREVIOUS   │ OWN: where the load is enqueued
 *
 *   ideal = max(passes × forward alone, bytes / rate of the copy engine)
 *   efficiency = ideal / time
 *
 * Forward alone and the copy engine's rate are measured in the same rounds as
 * the modes: a GPU's clocks move. */

struct shape_run {
    struct weir_bench_overlap *overlap;
    struct weir_bench_forward *forward;
    enum weir_bench_when when;
    struct weir_bench_samples link; /* seconds for a load's bytes */
};

/* ---- A pass ------------------------------------------------------------------ */

static int forward_all(struct shape_run *run)
{
    int rc = 0;
    for (uint32_t layer = 0; layer < run->overlap->layout.n_layers && !rc; layer++)
        rc = weir_bench_forward_layer(run->forward, layer);
    return rc;
}

static int pass_by_rank(struct shape_run *run, struct weir_bench_mode *mode, double *enqueue)
{
    uint32_t n_layers = run->overlap->layout.n_layers;
    int rc = weir_bench_rig_load(mode->rig);
    *enqueue = mode->rig->enqueue_seconds;
    if (!rc && mode->way == WEIR_BENCH_LOAD_FIRST)
        rc = weir_bench_rig_wait_layer(mode->rig, n_layers - 1);
    for (uint32_t layer = 0; layer < n_layers && !rc; layer++) {
        if (mode->way == WEIR_BENCH_LAYER_WISE)
            rc = weir_bench_rig_wait_layer(mode->rig, layer);
        if (!rc)
            rc = weir_bench_forward_layer(run->forward, layer);
    }
    return rc;
}

static int pass_by_baseline(struct shape_run *run, struct weir_bench_mode *mode, double *enqueue)
{
    struct weir_bench_overlap *overlap = run->overlap;
    struct weir_bench_device *device = overlap->device;
    uint32_t n_layers = overlap->layout.n_layers;
    int rc = 0;
    double start = weir_bench_now();
    for (uint32_t layer = 0; layer < n_layers && !rc; layer++) {
        rc = weir_bench_baseline_copy(mode->baseline, WEIR_LOAD, layer, device->side);
        if (!rc)
            rc = device->ops->event_record(device->device, overlap->events[layer], device->side);
    }
    *enqueue = weir_bench_now() - start;
    for (uint32_t layer = 0; layer < n_layers && !rc; layer++) {
        rc = device->ops->stream_wait_event(device->device, device->stream, overlap->events[layer]);
        if (!rc)
            rc = weir_bench_forward_layer(run->forward, layer);
    }
    return rc;
}

/* Copies of a server's own while the pass runs. */
static int make_victims(struct shape_run *run, struct weir_bench_mode *mode)
{
    struct weir_bench_device *device = run->overlap->device;
    int rc = 0;
    while (!rc && !weir_bench_passed(device, device->stream)) {
        double seconds;
        rc = weir_bench_victim(device, &seconds);
        if (!rc)
            rc = weir_bench_samples_add(&mode->victims, seconds);
    }
    return rc;
}

static int pass(struct shape_run *run, struct weir_bench_mode *mode, bool victim, double *seconds,
                double *enqueue)
{
    struct weir_bench_device *device = run->overlap->device;
    int rc = 0;
    *enqueue = 0;
    double start = weir_bench_now();
    if (run->when == WEIR_BENCH_PREVIOUS)
        rc = forward_all(run);
    if (!rc && mode->way == WEIR_BENCH_ALONE)
        rc = forward_all(run);
    else if (!rc && mode->way == WEIR_BENCH_BASELINE)
        rc = pass_by_baseline(run, mode, enqueue);
    else if (!rc)
        rc = pass_by_rank(run, mode, enqueue);
    if (!rc)
        rc = weir_bench_mark(device, device->stream);
    if (!rc && victim)
        rc = make_victims(run, mode);
    if (!rc)
        rc = weir_bench_wait(device, device->stream);
    *seconds = weir_bench_now() - start;
    if (rc || mode->way == WEIR_BENCH_ALONE || mode->way == WEIR_BENCH_BASELINE)
        return rc;
    rc = weir_bench_rig_end(mode->rig);
    return rc ? rc : weir_bench_rig_drain(mode->rig);
}

/* ---- Phases ------------------------------------------------------------------- */

static int verified_pass(struct shape_run *run, struct weir_bench_mode *mode)
{
    double seconds;
    double enqueue;
    uint64_t wrong = 0;
    if (mode->way == WEIR_BENCH_ALONE)
        return 0;
    int rc = weir_bench_rig_prepare(mode->rig, WEIR_LOAD);
    if (!rc)
        rc = pass(run, mode, false, &seconds, &enqueue);
    if (!rc)
        rc = weir_bench_rig_check(mode->rig, WEIR_LOAD, run->overlap->common.plant_error, &wrong);
    mode->wrong += wrong;
    run->overlap->faults += wrong;
    return rc;
}

static int timed_pass(struct shape_run *run, struct weir_bench_mode *mode)
{
    double seconds;
    double enqueue;
    int rc = pass(run, mode, false, &seconds, &enqueue);
    if (!rc)
        rc = weir_bench_samples_add(&mode->times, seconds);
    return rc ? rc : weir_bench_samples_add(&mode->enqueue, enqueue);
}

enum phase {
    VERIFY,
    WARM_UP,
    TIME,
    VICTIMS
};

static void each_mode(struct shape_run *run, enum phase phase)
{
    struct weir_bench_overlap *overlap = run->overlap;
    double ignored;
    for (uint32_t i = 0; i < overlap->n_modes; i++) {
        struct weir_bench_mode *mode = &overlap->modes[i];
        if (mode->rc)
            continue;
        int rc = 0;
        if (phase == TIME)
            rc = timed_pass(run, mode);
        else if (phase == VERIFY)
            rc = verified_pass(run, mode);
        else
            rc = pass(run, mode, phase == VICTIMS, &ignored, &ignored);
        if (rc) {
            weir_bench_mode_fails(overlap, mode, rc);
            overlap->faults++;
        }
    }
}

/* A load's bytes in the largest pieces that there are: on a GPU one copy of the
 * copy engine, else a load of the first rig. */
static int time_link(struct shape_run *run)
{
    struct weir_bench_overlap *overlap = run->overlap;
    struct weir_bench_device *device = overlap->device;
    struct weir_bench_rig *rig = NULL;
    double seconds;
    for (uint32_t i = 0; i < overlap->n_modes && !rig; i++)
        rig = overlap->modes[i].rc ? NULL : overlap->modes[i].rig;
    if (!rig)
        return -EIO;
    int rc;
    if (device->gpu) {
        double start = weir_bench_now();
        rc = weir_bench_gpu_copy(device->gpu, device->side, overlap->planes,
                                 (uintptr_t)rig->rank->host->base,
                                 weir_bench_layout_bytes(&overlap->layout));
        if (!rc)
            rc = weir_bench_mark(device, device->side);
        if (!rc)
            rc = weir_bench_wait(device, device->side);
        seconds = weir_bench_now() - start;
    } else {
        rc = weir_bench_rig_time(rig, WEIR_LOAD, 1, &seconds);
    }
    return rc ? rc : weir_bench_samples_add(&run->link, seconds);
}

/* ---- Results ------------------------------------------------------------------- */

static void put_mode(struct shape_run *run, struct weir_bench_mode *mode, const char *shape,
                     double ideal, double baseline)
{
    struct weir_bench_overlap *overlap = run->overlap;
    struct weir_bench_report *report = &overlap->report;
    json_t *row = weir_bench_mode_row(overlap, mode, shape, mode->name);
    if (!row)
        return;
    struct weir_bench_stats times = weir_bench_stats_of(&mode->times);
    struct weir_bench_stats victims = weir_bench_stats_of(&mode->victims);
    weir_bench_put_text(report, row, "enqueued", run->when == WEIR_BENCH_OWN ? "own" : "previous");
    weir_bench_put_stats(report, row, "seconds", times);
    weir_bench_put_number(report, row, "ms", times.median * 1e3);
    weir_bench_put_number(report, row, "spread_percent", times.spread * 100);
    if (victims.n > 0) {
        weir_bench_put_number(report, row, "victim_p50_us", victims.median * 1e6);
        weir_bench_put_number(report, row, "victim_p99_us", victims.p99 * 1e6);
    }
    if (mode->way == WEIR_BENCH_ALONE)
        weir_bench_put_integer(report, row, "calls", weir_bench_forward_calls(run->forward));
    if (mode->way == WEIR_BENCH_ALONE || times.median <= 0)
        return;
    weir_bench_put_number(report, row, "efficiency", ideal / times.median);
    if (baseline > 0)
        weir_bench_put_number(report, row, "against_baseline", baseline / times.median);
    weir_bench_put_number(report, row, "enqueue_us",
                          weir_bench_stats_of(&mode->enqueue).median * 1e6);
    weir_bench_put_integer(report, row, "wrong_bytes", mode->wrong);
}

/* The copy engine alone, as a row of its own. */
static void put_link(struct shape_run *run, const char *shape, struct weir_bench_stats link)
{
    struct weir_bench_report *report = &run->overlap->report;
    double bytes = (double)weir_bench_layout_bytes(&run->overlap->layout);
    json_t *row = weir_bench_report_row(report);
    weir_bench_put_text(report, row, "shape", shape);
    weir_bench_put_text(report, row, "mode", "copy engine alone");
    weir_bench_put_number(report, row, "ms", link.median * 1e3);
    weir_bench_put_number(report, row, "spread_percent", link.spread * 100);
    weir_bench_put_number(report, row, "gbps", link.median > 0 ? bytes / link.median * 1e-9 : 0);
}

/* The first mode of that kind; 0 if there is none. */
static double median_of(struct weir_bench_overlap *overlap, enum weir_bench_way way)
{
    for (uint32_t i = 0; i < overlap->n_modes; i++)
        if (overlap->modes[i].way == way && !overlap->modes[i].rc)
            return weir_bench_stats_of(&overlap->modes[i].times).median;
    return 0;
}

static void put_results(struct shape_run *run, const char *shape)
{
    struct weir_bench_overlap *overlap = run->overlap;
    struct weir_bench_stats link = weir_bench_stats_of(&run->link);
    double alone = median_of(overlap, WEIR_BENCH_ALONE);
    double ideal = alone > link.median ? alone : link.median;
    put_link(run, shape, link);
    for (uint32_t i = 0; i < overlap->n_modes; i++)
        put_mode(run, &overlap->modes[i], shape, ideal, median_of(overlap, WEIR_BENCH_BASELINE));
}

static int measure(struct shape_run *run, const char *shape)
{
    struct weir_bench_overlap *overlap = run->overlap;
    int rc = 0;
    run->link.n = 0;
    for (uint32_t i = 0; i < overlap->n_modes; i++) {
        struct weir_bench_mode *mode = &overlap->modes[i];
        mode->times.n = mode->enqueue.n = mode->victims.n = 0;
        mode->wrong = 0;
    }
    if (overlap->common.verify)
        each_mode(run, VERIFY);
    for (uint32_t i = 0; i < overlap->common.warm_up; i++)
        each_mode(run, WARM_UP);
    for (uint32_t i = 0; i < overlap->common.repeats && !rc; i++) {
        rc = time_link(run);
        each_mode(run, TIME);
    }
    for (uint32_t i = 0; i < overlap->victims; i++)
        each_mode(run, VICTIMS);
    if (overlap->common.verify)
        each_mode(run, VERIFY);
    if (!rc)
        put_results(run, shape);
    return rc;
}

int weir_bench_overlap_forward(struct weir_bench_overlap *overlap, enum weir_bench_shape shape)
{
    struct shape_run run = { .overlap = overlap };
    const char *name = weir_bench_shape_name(shape);
    int rc = weir_bench_forward_open(&run.forward, overlap->device, shape, overlap->layout.n_layers,
                                     overlap->milliseconds, overlap->cublas);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < overlap->whens.n && !rc; i++) {
        run.when = (enum weir_bench_when)overlap->whens.values[i];
        rc = measure(&run, name);
    }
    weir_bench_samples_free(&run.link);
    weir_bench_forward_close(&run.forward);
    return rc;
}
