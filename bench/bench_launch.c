/* SPDX-License-Identifier: Apache-2.0 */

/* launch: the host's time for one load, by the rank: begin, and the waits of all
 * layers. Pieces are small, so that the link is not what is waited for; modes of
 * one size take turns. */

#include "bench.h"
#include "report.h"
#include "rig.h"

#include <errno.h>
#include <stdio.h>

struct options {
    struct weir_bench_common common;
    struct weir_bench_list layers;
    struct weir_bench_list pages;
    uint32_t row_bytes;
    uint32_t page_tokens;
};

static const struct form {
    const char *name;
    weir_transfer_tuning tuning;
} forms[] = {
    { "auto", { .engine = WEIR_ENGINE_AUTO } },
    { "tma, one", { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_ONE } },
    { "tma, per layer", { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_PER_LAYER } },
    { "vector, one", { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_ONE } },
    { "vector, per layer", { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_PER_LAYER } },
    { "copy engine", { .engine = WEIR_ENGINE_COPY } },
};

#define N_FORMS (sizeof forms / sizeof forms[0])

struct mode {
    struct weir_bench_rig *rig;
    struct weir_bench_samples begin;
    struct weir_bench_samples wait;
    struct weir_bench_samples total;
    uint64_t wrong;
    int rc;
    char reason[WEIR_BENCH_REASON];
};

struct run {
    const struct options *options;
    struct weir_bench_device *device;
    struct weir_bench_layout layout;
    struct mode modes[N_FORMS];
    uint64_t faults;
};

static int load(struct mode *mode, bool timed)
{
    int rc = weir_bench_rig_load(mode->rig);
    double start = weir_bench_now();
    for (uint32_t layer = 0; layer < mode->rig->layout.n_layers && !rc; layer++)
        rc = weir_bench_rig_wait_layer(mode->rig, layer);
    double waits = weir_bench_now() - start;
    if (!rc)
        rc = weir_bench_rig_end(mode->rig);
    if (!rc)
        rc = weir_bench_rig_drain(mode->rig);
    if (rc || !timed)
        return rc;
    double begin = mode->rig->enqueue_seconds;
    rc = weir_bench_samples_add(&mode->begin, begin);
    if (!rc)
        rc = weir_bench_samples_add(&mode->wait, waits);
    return rc ? rc : weir_bench_samples_add(&mode->total, begin + waits);
}

static int verified_load(const struct run *run, struct mode *mode)
{
    uint64_t wrong = 0;
    int rc = weir_bench_rig_prepare(mode->rig, WEIR_LOAD);
    if (!rc)
        rc = load(mode, false);
    if (!rc)
        rc = weir_bench_rig_check(mode->rig, WEIR_LOAD, run->options->common.plant_error, &wrong);
    mode->wrong += wrong;
    return rc;
}

static void note(struct run *run, struct mode *mode, int rc)
{
    if (!rc)
        return;
    mode->rc = rc;
    snprintf(mode->reason, sizeof mode->reason, "%s", weir_bench_reason(run->device, rc));
}

static void open_modes(struct run *run)
{
    for (size_t i = 0; i < N_FORMS; i++) {
        const weir_transfer_tuning *tuning = &forms[i].tuning;
        run->modes[i] = (struct mode){ 0 };
        int rc = weir_bench_has_engine(run->device, tuning->engine);
        if (!rc)
            rc = weir_bench_rig_open(&run->modes[i].rig, run->device, &run->layout, tuning, tuning,
                                     0);
        note(run, &run->modes[i], rc);
    }
}

static void each_mode(struct run *run, bool verify, bool timed)
{
    for (size_t i = 0; i < N_FORMS; i++) {
        struct mode *mode = &run->modes[i];
        if (mode->rc)
            continue;
        note(run, mode, verify ? verified_load(run, mode) : load(mode, timed));
        run->faults += mode->rc != 0;
    }
}

static void put_mode(struct run *run, struct weir_bench_report *report, size_t i)
{
    struct mode *mode = &run->modes[i];
    json_t *row = weir_bench_report_row(report);
    weir_bench_put_text(report, row, "mode", forms[i].name);
    weir_bench_put_integer(report, row, "layers", run->layout.n_layers);
    weir_bench_put_integer(report, row, "pages", run->layout.n_pages);
    if (mode->rc) {
        weir_bench_put_text(report, row, "skipped", mode->reason);
        return;
    }
    struct weir_bench_stats total = weir_bench_stats_of(&mode->total);
    weir_bench_put_number(report, row, "begin_us", weir_bench_stats_of(&mode->begin).median * 1e6);
    weir_bench_put_number(report, row, "waits_us", weir_bench_stats_of(&mode->wait).median * 1e6);
    weir_bench_put_number(report, row, "p50_us", total.median * 1e6);
    weir_bench_put_number(report, row, "p99_us", total.p99 * 1e6);
    weir_bench_put_integer(report, row, "wrong_bytes", mode->wrong);
}

static void measure_size(struct run *run, struct weir_bench_report *report)
{
    const struct weir_bench_common *common = &run->options->common;
    open_modes(run);
    if (common->verify)
        each_mode(run, true, false);
    for (uint32_t i = 0; i < common->warm_up; i++)
        each_mode(run, false, false);
    for (uint32_t i = 0; i < common->repeats; i++)
        each_mode(run, false, true);
    for (size_t i = 0; i < N_FORMS; i++) {
        put_mode(run, report, i);
        run->faults += run->modes[i].wrong;
        weir_bench_rig_close(&run->modes[i].rig);
        weir_bench_samples_free(&run->modes[i].begin);
        weir_bench_samples_free(&run->modes[i].wait);
        weir_bench_samples_free(&run->modes[i].total);
    }
}

static void measure(struct run *run, struct weir_bench_report *report)
{
    const struct options *options = run->options;
    for (uint32_t l = 0; l < options->layers.n; l++)
        for (uint32_t p = 0; p < options->pages.n; p++) {
            run->layout = (struct weir_bench_layout){ .n_layers = options->layers.values[l],
                                                      .n_tensors = 2,
                                                      .row_bytes = options->row_bytes,
                                                      .page_tokens = options->page_tokens,
                                                      .n_pages = options->pages.values[p],
                                                      .run_pages = 1 };
            measure_size(run, report);
        }
}

/* ---- Options ---------------------------------------------------------------- */

enum {
    KEY_LAYERS = 256,
    KEY_PAGES,
    KEY_ROW_BYTES,
    KEY_PAGE_TOKENS
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "What is measured:", 1 },
    { "layers", KEY_LAYERS, "LIST", 0, "Layers (32,80)", 0 },
    { "pages", KEY_PAGES, "LIST", 0, "Pages of a load (1,16,128)", 0 },
    { "row-bytes", KEY_ROW_BYTES, "N", 0, "Bytes of a token in a tensor and layer (256)", 0 },
    { "page-tokens", KEY_PAGE_TOKENS, "N", 0, "Tokens of a page (16)", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        break;
    case KEY_LAYERS:
        weir_bench_read_list(state, "layers", text, 1, WEIR_MAX_LAYERS, &options->layers);
        break;
    case KEY_PAGES:
        weir_bench_read_list(state, "pages", text, 1, 1u << 20, &options->pages);
        break;
    case KEY_ROW_BYTES:
        weir_bench_read_u32(state, "row-bytes", text, 1, WEIR_MAX_ROW_BYTES, &options->row_bytes);
        break;
    case KEY_PAGE_TOKENS:
        weir_bench_read_u32(state, "page-tokens", text, 1, WEIR_MAX_PAGE_TOKENS,
                            &options->page_tokens);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct weir_bench_column columns[] = {
    { "mode", "mode", 0 },         { "layers", "layers", 0 },           { "pages", "pages", 0 },
    { "begin_us", "begin us", 1 }, { "waits_us", "waits us", 1 },       { "p50_us", "both us", 1 },
    { "p99_us", "p99 us", 1 },     { "wrong_bytes", "wrong bytes", 0 },
};

int weir_bench_launch(int argc, char **argv)
{
    static const struct argp argp = {
        option_list, parse, NULL, "Times what a load costs the host.", weir_bench_common_children,
        NULL,        NULL
    };
    struct options options = { .common = weir_bench_common_defaults(),
                               .layers = { 2, { 32, 80 } },
                               .pages = { 3, { 1, 16, 128 } },
                               .row_bytes = 256,
                               .page_tokens = 16 };
    options.common.repeats = 100;
    options.common.warm_up = 5;
    argp_parse(&argp, argc, argv, 0, NULL, &options);

    struct run run = { .options = &options };
    if (weir_bench_device_open(&run.device, &options.common))
        return WEIR_BENCH_BROKEN;
    struct weir_bench_report report;
    weir_bench_report_begin(&report, "launch", &options.common, run.device);
    measure(&run, &report);
    int rc = weir_bench_report_finish(&report, &options.common, columns,
                                      sizeof columns / sizeof columns[0]);
    weir_bench_device_close(&run.device);
    if (rc)
        return WEIR_BENCH_BROKEN;
    return run.faults ? WEIR_BENCH_WRONG : 0;
}
