/* SPDX-License-Identifier: Apache-2.0 */

/* gather: missed experts from pinned banks into slots, by lists on the device.
 *
 *   alone    side    gather gather gather … mark      time / number
 *   beside   stream  GEMM GEMM GEMM ………………… mark     slow-down of the pass
 *            side    gather gather gather … mark      rate while it runs
 *
 * All modes and the pass alone take turns, size by size. */

#include "bench.h"
#include "forward.h"
#include "gather_rig.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_MODES 66u
#define LAYERS 32u /* in which the pass is enqueued */
#define MAX_CALLS 2048u

struct options {
    struct weir_bench_common common;
    struct weir_bench_list row_bytes;
    struct weir_bench_list experts;
    struct weir_bench_list ctas;
    struct weir_bench_list rings;
    uint32_t batch;
    double milliseconds;
};

struct mode {
    char name[48];
    enum weir_bench_gather_kind kind;
    weir_gather *gather;
    int rc;
    char reason[WEIR_BENCH_REASON];
    /* Of the size that is measured: */
    struct weir_bench_samples times;  /* of a call, alone */
    struct weir_bench_samples passes; /* with calls beside them */
    struct weir_bench_samples beside; /* of a call, beside a pass */
    uint64_t wrong;
};

struct run {
    const struct options *options;
    struct weir_bench_device *device;
    struct weir_bench_gather_rig *rig;
    struct weir_bench_forward *forward; /* NULL: nothing beside */
    struct weir_bench_samples passes;   /* alone */
    uint32_t n_modes;
    struct mode modes[MAX_MODES];
    uint64_t first_launch_bytes;
    uint64_t faults;
};

/* ---- Modes ---------------------------------------------------------------------- */

static void note(struct run *run, struct mode *mode, int rc)
{
    if (!rc)
        return;
    mode->rc = rc;
    snprintf(mode->reason, sizeof mode->reason, "%s", weir_bench_reason(run->device, rc));
}

static void add_mode(struct run *run, const char *name, enum weir_bench_gather_kind kind,
                     const weir_gather_params *params)
{
    struct mode *mode = &run->modes[run->n_modes++];
    snprintf(mode->name, sizeof mode->name, "%s", name);
    mode->kind = kind;
    run->device->reason[0] = '\0';
    int rc = weir_bench_gather_rig_can(run->rig, kind);
    if (!rc && kind == WEIR_BENCH_GATHER_WEIR)
        rc = weir_bench_has_engine(run->device, params->engine);
    if (!rc && kind == WEIR_BENCH_GATHER_WEIR)
        rc = weir_bench_gather_rig_make(run->rig, params, &mode->gather);
    note(run, mode, rc);
}

/* 0 in a list of one: the default. */
static void add_sweep(struct run *run)
{
    static const struct weir_bench_list by_default = { 1, { 0 } };
    const struct options *options = run->options;
    if (options->ctas.n == 0 && options->rings.n == 0)
        return;
    const struct weir_bench_list *ctas = options->ctas.n ? &options->ctas : &by_default;
    const struct weir_bench_list *rings = options->rings.n ? &options->rings : &by_default;
    for (uint32_t c = 0; c < ctas->n; c++)
        for (uint32_t r = 0; r < rings->n && run->n_modes < MAX_MODES; r++) {
            weir_gather_params p;
            weir_gather_params_init(&p);
            p.engine = WEIR_ENGINE_TMA;
            p.ctas = ctas->values[c];
            p.stages = WEIR_BENCH_RING_STAGES(rings->values[r]);
            p.stage_bytes = WEIR_BENCH_RING_BYTES(rings->values[r]);
            char name[sizeof run->modes->name];
            snprintf(name, sizeof name, "tma, %u ctas, %ux%u", p.ctas, p.stages, p.stage_bytes);
            add_mode(run, name, WEIR_BENCH_GATHER_WEIR, &p);
        }
}

static void open_modes(struct run *run)
{
    weir_gather_params p;
    weir_gather_params_init(&p);
    add_mode(run, "plain loads", WEIR_BENCH_GATHER_PLAIN, NULL);
    add_mode(run, "auto", WEIR_BENCH_GATHER_WEIR, &p);
    p.engine = WEIR_ENGINE_VECTOR;
    add_mode(run, "vector", WEIR_BENCH_GATHER_WEIR, &p);
    add_mode(run, "copy engine, a copy a row", WEIR_BENCH_GATHER_COPY, NULL);
    add_sweep(run);
}

/* ---- One measurement --------------------------------------------------------------- */

static int alone(struct run *run, struct mode *mode, uint32_t size, uint32_t turn, bool keep)
{
    struct weir_bench_device *device = run->device;
    uint32_t n = run->options->batch;
    double start = weir_bench_now();
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = weir_bench_gather_rig_call(run->rig, mode->kind, mode->gather, size, turn * n + i);
    if (!rc)
        rc = weir_bench_mark(device, device->side);
    if (!rc)
        rc = weir_bench_wait(device, device->side);
    double seconds = (weir_bench_now() - start) / n;
    return rc || !keep ? rc : weir_bench_samples_add(&mode->times, seconds);
}

/* Waits for both streams' marks, and when each passed. */
static int wait_for_both(struct weir_bench_device *device, double *stream, double *side)
{
    *stream = *side = 0;
    while (*stream == 0 || *side == 0) {
        if (*stream == 0 && weir_bench_passed(device, device->stream))
            *stream = weir_bench_now();
        if (*side == 0 && weir_bench_passed(device, device->side))
            *side = weir_bench_now();
        int rc = device->ops->status(device->device);
        if (rc)
            return rc;
        weir_bench_relax(device);
    }
    return 0;
}

/* A pass with n calls beside it, enqueued in turns; mode NULL: without. */
static int pass(struct run *run, const struct mode *mode, uint32_t size, uint32_t n,
                double *pass_seconds, double *call_seconds)
{
    struct weir_bench_device *device = run->device;
    double start = weir_bench_now();
    uint32_t called = 0;
    int rc = 0;
    for (uint32_t layer = 0; layer < LAYERS && !rc; layer++) {
        for (; mode && called < (layer + 1) * n / LAYERS && !rc; called++)
            rc = weir_bench_gather_rig_call(run->rig, mode->kind, mode->gather, size, called);
        if (!rc)
            rc = weir_bench_forward_layer(run->forward, layer);
    }
    if (!rc)
        rc = weir_bench_mark(device, device->stream);
    if (!rc)
        rc = weir_bench_mark(device, device->side);
    double passed;
    double gathered;
    if (!rc)
        rc = wait_for_both(device, &passed, &gathered);
    if (rc)
        return rc;
    *pass_seconds = passed - start;
    *call_seconds = (gathered - start) / n;
    return 0;
}

static int pass_alone(struct run *run)
{
    double seconds;
    double ignored;
    int rc = pass(run, NULL, 0, 1, &seconds, &ignored);
    return rc ? rc : weir_bench_samples_add(&run->passes, seconds);
}

/* As many calls as take about as long as the pass. */
static int beside(struct run *run, struct mode *mode, uint32_t size)
{
    double alone_seconds = weir_bench_stats_of(&mode->times).median;
    double pass_seconds = weir_bench_stats_of(&run->passes).median;
    double fit = alone_seconds > 0 ? pass_seconds / alone_seconds : 1;
    uint32_t n = fit < 1 ? 1 : fit > MAX_CALLS ? MAX_CALLS : (uint32_t)fit;
    double call_seconds;
    int rc = pass(run, mode, size, n, &pass_seconds, &call_seconds);
    if (!rc)
        rc = weir_bench_samples_add(&mode->passes, pass_seconds);
    return rc ? rc : weir_bench_samples_add(&mode->beside, call_seconds);
}

/* ---- A size ------------------------------------------------------------------------ */

enum phase {
    VERIFY,
    WARM_UP,
    TIME,
    BESIDE
};

static int measure_mode(struct run *run, struct mode *mode, uint32_t size, uint32_t turn,
                        enum phase phase)
{
    const struct weir_bench_common *common = &run->options->common;
    if (phase == BESIDE)
        return beside(run, mode, size);
    if (phase != VERIFY)
        return alone(run, mode, size, turn, phase == TIME);
    uint64_t wrong = 0;
    int rc = weir_bench_gather_rig_verify(run->rig, mode->kind, mode->gather, size,
                                          common->plant_error, &wrong);
    mode->wrong += wrong;
    run->faults += wrong;
    return rc;
}

static void each_mode(struct run *run, uint32_t size, uint32_t turn, enum phase phase)
{
    for (uint32_t i = 0; i < run->n_modes; i++) {
        struct mode *mode = &run->modes[i];
        if (mode->rc)
            continue;
        note(run, mode, measure_mode(run, mode, size, turn, phase));
        run->faults += mode->rc != 0;
    }
}

static void put_mode(struct run *run, struct weir_bench_report *report, struct mode *mode,
                     uint32_t size, double baseline)
{
    json_t *row = weir_bench_report_row(report);
    double bytes = (double)run->rig->expert_bytes * run->rig->sizes[size];
    weir_bench_put_text(report, row, "mode", mode->name);
    weir_bench_put_integer(report, row, "experts", run->rig->sizes[size]);
    if (mode->rc) {
        weir_bench_put_text(report, row, "skipped", mode->reason);
        return;
    }
    struct weir_bench_stats times = weir_bench_stats_of(&mode->times);
    weir_bench_put_stats(report, row, "gbps", weir_bench_stats_of_rates(&times, bytes * 1e-9));
    weir_bench_put_number(report, row, "us", times.median * 1e6);
    weir_bench_put_number(report, row, "spread_percent", times.spread * 100);
    if (baseline > 0)
        weir_bench_put_number(report, row, "of_plain_percent", baseline / times.median * 100);
    if (run->forward) {
        double pass_alone_seconds = weir_bench_stats_of(&run->passes).median;
        struct weir_bench_stats passes = weir_bench_stats_of(&mode->passes);
        struct weir_bench_stats calls = weir_bench_stats_of(&mode->beside);
        weir_bench_put_number(report, row, "pass_slower_percent",
                              (passes.median / pass_alone_seconds - 1) * 100);
        weir_bench_put_stats(report, row, "gbps_beside",
                             weir_bench_stats_of_rates(&calls, bytes * 1e-9));
    }
    weir_bench_put_integer(report, row, "wrong_bytes", mode->wrong);
}

static void forget_samples(struct run *run)
{
    weir_bench_samples_free(&run->passes);
    run->passes = (struct weir_bench_samples){ 0 };
    for (uint32_t i = 0; i < run->n_modes; i++) {
        struct mode *mode = &run->modes[i];
        weir_bench_samples_free(&mode->times);
        weir_bench_samples_free(&mode->passes);
        weir_bench_samples_free(&mode->beside);
        mode->times = mode->passes = mode->beside = (struct weir_bench_samples){ 0 };
        mode->wrong = 0;
    }
}

static int measure_size(struct run *run, struct weir_bench_report *report, uint32_t size)
{
    const struct weir_bench_common *common = &run->options->common;
    int rc = 0;
    if (common->verify)
        each_mode(run, size, 0, VERIFY);
    for (uint32_t i = 0; i < common->warm_up; i++)
        each_mode(run, size, i, WARM_UP);
    for (uint32_t i = 0; i < common->repeats; i++)
        each_mode(run, size, i, TIME);
    for (uint32_t i = 0; i < common->repeats && run->forward && !rc; i++) {
        rc = pass_alone(run);
        if (!rc)
            each_mode(run, size, i, BESIDE);
    }
    if (common->verify)
        each_mode(run, size, 0, VERIFY);
    struct mode *plain = &run->modes[0];
    double baseline = plain->rc ? 0 : weir_bench_stats_of(&plain->times).median;
    for (uint32_t i = 0; i < run->n_modes; i++)
        put_mode(run, report, &run->modes[i], size, baseline);
    forget_samples(run);
    return rc;
}

/* ---- All -------------------------------------------------------------------------- */

/* The first launch of `auto`, before any other kernel of weir's: what the driver
 * takes for it. */
static void first_launch(struct run *run)
{
    weir_gather_params p;
    weir_gather_params_init(&p);
    weir_gather *gather = NULL;
    if (weir_bench_gather_rig_make(run->rig, &p, &gather))
        return;
    uint64_t before = weir_bench_free_memory(run->device);
    int rc = weir_bench_gather_rig_call(run->rig, WEIR_BENCH_GATHER_WEIR, gather, 0, 0);
    if (!rc)
        rc = run->device->ops->stream_synchronize(run->device->device, run->device->side);
    uint64_t after = weir_bench_free_memory(run->device);
    if (!rc)
        run->first_launch_bytes = before > after ? before - after : 0;
    weir_gather_destroy(&gather);
}

static int measure(struct run *run, struct weir_bench_report *report)
{
    const struct options *options = run->options;
    int rc =
        weir_bench_gather_rig_open(&run->rig, run->device, &options->row_bytes, &options->experts);
    if (rc)
        return rc;
    first_launch(run);
    weir_bench_put_integer(report, report->settings, "expert_bytes", run->rig->expert_bytes);
    weir_bench_put_integer(report, report->settings, "batch", options->batch);
    weir_bench_put_integer(report, report->settings, "first_launch_device_bytes",
                           run->first_launch_bytes);
    if (options->milliseconds > 0)
        rc = weir_bench_forward_open(&run->forward, run->device, WEIR_BENCH_MEMORY, LAYERS,
                                     options->milliseconds, false);
    if (!rc)
        open_modes(run);
    for (uint32_t size = 0; size < options->experts.n && !rc; size++)
        rc = measure_size(run, report, size);
    forget_samples(run);
    for (uint32_t i = 0; i < run->n_modes; i++)
        weir_gather_destroy(&run->modes[i].gather);
    weir_bench_forward_close(&run->forward);
    weir_bench_gather_rig_close(&run->rig);
    return rc;
}

/* ---- Options ------------------------------------------------------------------------ */

enum {
    KEY_ROW_BYTES = 256,
    KEY_EXPERTS,
    KEY_CTAS,
    KEY_RINGS,
    KEY_BATCH,
    KEY_MS
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "What is measured:", 1 },
    { "row-bytes", KEY_ROW_BYTES, "LIST", 0,
      "Bytes of an expert in each of up to 8 banks (1048576,131072,4096,524288,65536,8192)", 0 },
    { "experts", KEY_EXPERTS, "LIST", 0, "Experts that a call misses (1,2,4,8,16,32)", 0 },
    { "batch", KEY_BATCH, "N", 0, "Calls, one behind the other, of a timed one (16)", 0 },
    { "ms", KEY_MS, "MS", 0, "How long the GEMMs of a pass take; 0: none (5)", 0 },
    { 0, 0, 0, 0, "A sweep of the TMA kernel:", 2 },
    { "ctas", KEY_CTAS, "LIST", 0, "CTAs (none)", 0 },
    { "rings", KEY_RINGS, "LIST", 0, "STAGESxBYTES of a CTA (none)", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        break;
    case KEY_ROW_BYTES:
        weir_bench_read_list(state, "row-bytes", text, 1, 1u << 30, &options->row_bytes);
        if (options->row_bytes.n > WEIR_BENCH_GATHER_BANKS)
            argp_error(state, "--row-bytes: more than %u banks", WEIR_BENCH_GATHER_BANKS);
        break;
    case KEY_EXPERTS:
        weir_bench_read_list(state, "experts", text, 1, 1u << 12, &options->experts);
        break;
    case KEY_CTAS:
        weir_bench_read_list(state, "ctas", text, 1, WEIR_GATHER_MAX_CTAS, &options->ctas);
        break;
    case KEY_RINGS:
        weir_bench_read_rings(state, text, &options->rings);
        break;
    case KEY_BATCH:
        weir_bench_read_u32(state, "batch", text, 1, MAX_CALLS, &options->batch);
        break;
    case KEY_MS:
        weir_bench_read_double(state, "ms", text, 0, 1000, &options->milliseconds);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct weir_bench_column columns[] = {
    { "mode", "mode", 0 },
    { "experts", "experts", 0 },
    { "us", "us", 1 },
    { "gbps", "GB/s", 1 },
    { "spread_percent", "spread %", 1 },
    { "of_plain_percent", "% of plain", 1 },
    { "gbps_beside", "GB/s beside", 1 },
    { "pass_slower_percent", "pass slower %", 1 },
    { "wrong_bytes", "wrong bytes", 0 },
};

int weir_bench_gather(int argc, char **argv)
{
    static const struct argp argp = {
        option_list,
        parse,
        NULL,
        "Measures how fast missed experts come from pinned banks, alone and beside a GEMM.",
        weir_bench_common_children,
        NULL,
        NULL
    };
    struct options options = { .common = weir_bench_common_defaults(),
                               .row_bytes = { 6, { 1048576, 131072, 4096, 524288, 65536, 8192 } },
                               .experts = { 6, { 1, 2, 4, 8, 16, 32 } },
                               .batch = 16,
                               .milliseconds = 5 };
    options.common.repeats = 15;
    argp_parse(&argp, argc, argv, 0, NULL, &options);

    static struct run run;
    run = (struct run){ .options = &options };
    if (weir_bench_device_open(&run.device, &options.common))
        return WEIR_BENCH_BROKEN;
    struct weir_bench_report report;
    weir_bench_report_begin(&report, "gather", &options.common, run.device);
    int rc = measure(&run, &report);
    if (rc)
        fprintf(stderr, "weir-bench gather: %s\n", weir_bench_reason(run.device, rc));
    int written = weir_bench_report_finish(&report, &options.common, columns,
                                           sizeof columns / sizeof columns[0]);
    weir_bench_device_close(&run.device);
    if (rc || written)
        return WEIR_BENCH_BROKEN;
    return run.faults ? WEIR_BENCH_WRONG : 0;
}
