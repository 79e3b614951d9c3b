/* SPDX-License-Identifier: Apache-2.0 */

/* overlap: what a load costs the forward pass that it feeds. This file makes the
 * modes and runs the shapes; overlap_forward.c and overlap_decode.c measure. */

#include "bench.h"
#include "cublas.h"
#include "overlap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct weir_bench_overlap *overlap;
    struct weir_bench_list engines;
    struct weir_bench_list ctas;
    struct weir_bench_list rings;
    struct weir_bench_list register_ctas;
    struct weir_bench_list launches;
    struct weir_bench_list runs;
    bool cublas_given;
};

void weir_bench_mode_fails(struct weir_bench_overlap *overlap, struct weir_bench_mode *mode, int rc)
{
    mode->rc = rc;
    snprintf(mode->reason, sizeof mode->reason, "%s", weir_bench_reason(overlap->device, rc));
}

json_t *weir_bench_mode_row(struct weir_bench_overlap *overlap, const struct weir_bench_mode *mode,
                            const char *shape, const char *name)
{
    json_t *row = weir_bench_report_row(&overlap->report);
    weir_bench_put_text(&overlap->report, row, "shape", shape);
    weir_bench_put_text(&overlap->report, row, "mode", name);
    if (!mode->rc)
        return row;
    weir_bench_put_text(&overlap->report, row, "skipped", mode->reason);
    return NULL;
}

/* ---- Modes ------------------------------------------------------------------- */

static struct weir_bench_mode *add_mode(struct weir_bench_overlap *overlap, enum weir_bench_way way,
                                        uint32_t run)
{
    if (overlap->n_modes == WEIR_BENCH_MAX_MODES)
        return NULL;
    struct weir_bench_mode *mode = &overlap->modes[overlap->n_modes++];
    mode->way = way;
    mode->run_pages = run;
    return mode;
}

static const char *launch_name(uint32_t launch)
{
    static const char *const names[] = { "one", "per_layer" };
    return launch < 2 ? names[launch] : NULL;
}

/* `ring`: 0 is the default. */
static void add_kernel_mode(struct weir_bench_overlap *overlap, uint32_t engine, uint32_t ctas,
                            uint32_t ring, uint32_t launch)
{
    struct weir_bench_mode *mode = add_mode(overlap, WEIR_BENCH_LAYER_WISE, 1);
    if (!mode)
        return;
    mode->tuning = (weir_transfer_tuning){
        .engine = engine,
        .launch = launch ? WEIR_LAUNCH_PER_LAYER : WEIR_LAUNCH_ONE,
        .ctas = ctas,
        .stages = WEIR_BENCH_RING_STAGES(ring),
        .stage_bytes = WEIR_BENCH_RING_BYTES(ring),
    };
    int n = snprintf(mode->name, sizeof mode->name, "%s %u CTA, %s", weir_bench_engine_name(engine),
                     ctas, launch ? "a launch a layer" : "one launch");
    if (ring)
        snprintf(mode->name + n, sizeof mode->name - (size_t)n, ", %ux%u", mode->tuning.stages,
                 mode->tuning.stage_bytes);
}

static void add_kernel_modes(const struct options *options, uint32_t engine)
{
    uint32_t n_rings = engine == WEIR_ENGINE_TMA ? options->rings.n : 1;
    for (uint32_t c = 0; c < options->ctas.n; c++)
        for (uint32_t r = 0; r < n_rings; r++)
            for (uint32_t l = 0; l < options->launches.n; l++)
                add_kernel_mode(options->overlap, engine, options->ctas.values[c],
                                engine == WEIR_ENGINE_TMA ? options->rings.values[r] : 0,
                                options->launches.values[l]);
}

static void add_register_modes(const struct options *options)
{
    for (uint32_t c = 0; c < options->register_ctas.n; c++) {
        struct weir_bench_mode *mode = add_mode(options->overlap, WEIR_BENCH_BASELINE, 1);
        if (!mode)
            return;
        mode->ctas = options->register_ctas.values[c];
        snprintf(mode->name, sizeof mode->name, "register %u x %u threads, a launch a layer",
                 mode->ctas, WEIR_BENCH_ROWS_THREADS);
    }
}

/* Engines whose work depends on how long the runs are. */
static void add_run_modes(const struct options *options, uint32_t engine)
{
    for (uint32_t r = 0; r < options->runs.n; r++) {
        uint32_t run = options->runs.values[r];
        struct weir_bench_mode *mode = NULL;
        if (options->overlap->layout.n_pages % run == 0)
            mode = add_mode(options->overlap, WEIR_BENCH_LAYER_WISE, run);
        if (!mode)
            continue;
        mode->tuning.engine = engine;
        snprintf(mode->name, sizeof mode->name, "%s, runs of %u", weir_bench_engine_name(engine),
                 run);
    }
}

static void make_modes(const struct options *options)
{
    struct weir_bench_overlap *overlap = options->overlap;
    bool gpu = overlap->device->gpu != NULL;
    struct weir_bench_mode *alone = &overlap->modes[0];
    struct weir_bench_mode *first = &overlap->modes[1];
    overlap->n_modes = 2;
    alone->way = WEIR_BENCH_ALONE;
    snprintf(alone->name, sizeof alone->name, "forward alone");
    first->way = WEIR_BENCH_LOAD_FIRST;
    first->run_pages = overlap->layout.n_pages;
    first->tuning.engine = WEIR_ENGINE_COPY;
    snprintf(first->name, sizeof first->name, "load all, then forward");
    for (uint32_t e = 0; e < options->engines.n; e++) {
        uint32_t engine = options->engines.values[e];
        if (engine == WEIR_BENCH_REGISTER)
            add_register_modes(options);
        else if (engine == WEIR_ENGINE_AUTO || (engine == WEIR_ENGINE_COPY && gpu))
            add_run_modes(options, engine);
        else if (gpu)
            add_kernel_modes(options, engine);
    }
}

/* The baseline has the layout that caches of its kind have. */
static int open_mode(struct weir_bench_overlap *overlap, struct weir_bench_mode *mode)
{
    struct weir_bench_layout layout = overlap->layout;
    if (mode->way == WEIR_BENCH_ALONE)
        return 0;
    if (mode->way == WEIR_BENCH_BASELINE)
        layout.host = WEIR_HOST_LAYER_FIRST;
    layout.run_pages = mode->run_pages;
    int rc = weir_bench_rig_open(&mode->rig, overlap->device, &layout, &mode->tuning, &mode->tuning,
                                 overlap->planes);
    if (!rc && mode->way == WEIR_BENCH_BASELINE)
        rc = weir_bench_baseline_open(&mode->baseline, mode->rig, mode->ctas);
    return rc;
}

static int open_parts(struct weir_bench_overlap *overlap)
{
    struct weir_bench_device *device = overlap->device;
    uint32_t n_layers = overlap->layout.n_layers;
    overlap->events = calloc(n_layers, sizeof *overlap->events);
    if (!overlap->events)
        return -ENOMEM;
    int rc = 0;
    for (uint32_t layer = 0; layer < n_layers && !rc; layer++)
        rc = device->ops->event_create(device->device, &overlap->events[layer]);
    if (!rc)
        rc = device->ops->memory_alloc(
            device->device, weir_bench_layout_device_bytes(&overlap->layout), &overlap->planes);
    for (uint32_t i = 0; i < overlap->n_modes && !rc; i++) {
        int opened = open_mode(overlap, &overlap->modes[i]);
        if (opened)
            weir_bench_mode_fails(overlap, &overlap->modes[i], opened);
    }
    return rc;
}

static void close_parts(struct weir_bench_overlap *overlap)
{
    struct weir_bench_device *device = overlap->device;
    for (uint32_t i = 0; i < overlap->n_modes; i++) {
        struct weir_bench_mode *mode = &overlap->modes[i];
        weir_bench_baseline_close(&mode->baseline);
        weir_bench_rig_close(&mode->rig);
        weir_bench_samples_free(&mode->times);
        weir_bench_samples_free(&mode->enqueue);
        weir_bench_samples_free(&mode->victims);
        weir_bench_samples_free(&mode->rates);
    }
    if (overlap->planes)
        device->ops->memory_free(device->device, overlap->planes);
    for (uint32_t layer = 0; overlap->events && layer < overlap->layout.n_layers; layer++)
        if (overlap->events[layer])
            device->ops->event_destroy(device->device, overlap->events[layer]);
    free(overlap->events);
}

/* ---- Options ------------------------------------------------------------------ */

enum {
    KEY_SHAPES = 256,
    KEY_WHENS,
    KEY_ENGINES,
    KEY_CTAS,
    KEY_RINGS,
    KEY_REGISTER_CTAS,
    KEY_LAUNCHES,
    KEY_RUNS,
    KEY_LAYERS,
    KEY_PAGES,
    KEY_PAGE_TOKENS,
    KEY_ROW_BYTES,
    KEY_LAYOUT,
    KEY_MILLISECONDS,
    KEY_GEMM,
    KEY_VICTIMS,
    KEY_CHAIN
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "The pass:", 1 },
    { "shapes", KEY_SHAPES, "LIST", 0, "big, short, memory, cooperative, decode (all)", 0 },
    { "ms", KEY_MILLISECONDS, "TIME", 0, "What a pass takes alone; 0: the shape's own (0)", 0 },
    { "gemm", KEY_GEMM, "plain|cublas", 0, "Whose GEMMs (cublas if it is there)", 0 },
    { "chain", KEY_CHAIN, "N", 0, "Kernels of a decode chain (2400)", 0 },
    { 0, 0, 0, 0, "The load:", 2 },
    { "engines", KEY_ENGINES, "LIST", 0, "tma, vector, copy, register, auto (all)", 0 },
    { "ctas", KEY_CTAS, "LIST", 0, "CTAs of a kernel (1,2,3,4)", 0 },
    { "rings", KEY_RINGS, "LIST", 0, "Rings of the TMA kernel, such as 6x32768 (the default)", 0 },
    { "register-ctas", KEY_REGISTER_CTAS, "LIST", 0, "CTAs of the baseline (2,6)", 0 },
    { "launches", KEY_LAUNCHES, "LIST", 0, "one, per_layer (both)", 0 },
    { "runs", KEY_RUNS, "LIST", 0, "Pages that lie together, for copy and auto (1,4,16,128)", 0 },
    { "enqueued", KEY_WHENS, "LIST", 0, "own, previous: at which pass (both)", 0 },
    { "victims", KEY_VICTIMS, "N", 0, "Passes beside which a server's 4 KiB are copied (3)", 0 },
    { 0, 0, 0, 0, "Its size:", 3 },
    { "layers", KEY_LAYERS, "N", 0, "Layers (32)", 0 },
    { "pages", KEY_PAGES, "N", 0, "Pages (128)", 0 },
    { "page-tokens", KEY_PAGE_TOKENS, "N", 0, "Tokens of a page (64)", 0 },
    { "row-bytes", KEY_ROW_BYTES, "N", 0, "Bytes of a token in a tensor and layer (2048)", 0 },
    { "layout", KEY_LAYOUT, "NAME", 0, "Host layout; the baseline's is layer_first (segmented)",
      0 },
    { 0, 0, 0, 0, 0, 0 }
};

static const char *shape_or_decode(uint32_t shape)
{
    return shape == WEIR_BENCH_SHAPES ? "decode" : weir_bench_shape_name(shape);
}

static const char *when_name(uint32_t when)
{
    static const char *const names[] = { "own", "previous" };
    return when < 2 ? names[when] : NULL;
}

static void read_gemm(struct argp_state *state, const char *text, struct options *options)
{
    options->cublas_given = true;
    options->overlap->cublas = strcmp(text, "cublas") == 0;
    if (!options->overlap->cublas && strcmp(text, "plain") != 0)
        argp_error(state, "--gemm %s is unknown; there are: plain, cublas", text);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    struct weir_bench_overlap *overlap = options->overlap;
    struct weir_bench_layout *layout = &overlap->layout;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &overlap->common;
        break;
    case KEY_SHAPES:
        weir_bench_read_names(state, "shapes", text, shape_or_decode, &overlap->shapes);
        break;
    case KEY_WHENS:
        weir_bench_read_names(state, "enqueued", text, when_name, &overlap->whens);
        break;
    case KEY_ENGINES:
        weir_bench_read_names(state, "engines", text, weir_bench_engine_name, &options->engines);
        break;
    case KEY_CTAS:
        weir_bench_read_list(state, "ctas", text, 1, 1024, &options->ctas);
        break;
    case KEY_RINGS:
        weir_bench_read_rings(state, text, &options->rings);
        break;
    case KEY_REGISTER_CTAS:
        weir_bench_read_list(state, "register-ctas", text, 1, 1024, &options->register_ctas);
        break;
    case KEY_LAUNCHES:
        weir_bench_read_names(state, "launches", text, launch_name, &options->launches);
        break;
    case KEY_RUNS:
        weir_bench_read_list(state, "runs", text, 1, 1u << 20, &options->runs);
        break;
    case KEY_LAYERS:
        weir_bench_read_u32(state, "layers", text, 1, WEIR_MAX_LAYERS, &layout->n_layers);
        break;
    case KEY_PAGES:
        weir_bench_read_u32(state, "pages", text, 1, 1u << 20, &layout->n_pages);
        break;
    case KEY_PAGE_TOKENS:
        weir_bench_read_u32(state, "page-tokens", text, 1, WEIR_MAX_PAGE_TOKENS,
                            &layout->page_tokens);
        break;
    case KEY_ROW_BYTES:
        weir_bench_read_u32(state, "row-bytes", text, 1, WEIR_MAX_ROW_BYTES, &layout->row_bytes);
        break;
    case KEY_LAYOUT:
        if (weir_host_layout_parse(text, &layout->host))
            argp_error(state, "--layout %s is unknown", text);
        break;
    case KEY_MILLISECONDS:
        weir_bench_read_double(state, "ms", text, 0, 10000, &overlap->milliseconds);
        break;
    case KEY_GEMM:
        read_gemm(state, text, options);
        break;
    case KEY_VICTIMS:
        weir_bench_read_u32(state, "victims", text, 0, 1000, &overlap->victims);
        break;
    case KEY_CHAIN:
        weir_bench_read_u32(state, "chain", text, 1, 1u << 20, &overlap->chain);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- The benchmark -------------------------------------------------------------- */

static const struct weir_bench_column columns[] = {
    { "shape", "shape", 0 },
    { "enqueued", "enqueued", 0 },
    { "mode", "mode", 0 },
    { "ms", "ms", 3 },
    { "spread_percent", "spread %", 1 },
    { "efficiency", "efficiency", 3 },
    { "against_baseline", "x baseline", 2 },
    { "factor", "x chain", 3 },
    { "gbps", "GB/s", 1 },
    { "enqueue_us", "enqueue us", 1 },
    { "victim_p50_us", "victim p50", 1 },
    { "victim_p99_us", "p99 us", 1 },
    { "wrong_bytes", "wrong bytes", 0 },
};

/* cuBLAS unless told otherwise, if it works at all. */
static void choose_gemm(const struct options *options)
{
    struct weir_bench_overlap *overlap = options->overlap;
    struct weir_bench_cublas *cublas;
    if (options->cublas_given || !overlap->device->gpu)
        return;
    overlap->cublas = weir_bench_cublas_open(&cublas, overlap->device) == 0;
    if (overlap->cublas)
        weir_bench_cublas_close(&cublas);
}

static void put_settings(struct weir_bench_overlap *overlap)
{
    struct weir_bench_report *report = &overlap->report;
    const struct weir_bench_layout *layout = &overlap->layout;
    weir_bench_put_integer(report, report->settings, "layers", layout->n_layers);
    weir_bench_put_integer(report, report->settings, "pages", layout->n_pages);
    weir_bench_put_integer(report, report->settings, "page_tokens", layout->page_tokens);
    weir_bench_put_integer(report, report->settings, "row_bytes", layout->row_bytes);
    weir_bench_put_integer(report, report->settings, "tensors", layout->n_tensors);
    weir_bench_put_text(report, report->settings, "layout", weir_bench_layout_name(layout->host));
    weir_bench_put_integer(report, report->settings, "bytes", weir_bench_layout_bytes(layout));
    weir_bench_put_text(report, report->settings, "gemm",
                        !overlap->device->gpu ? "none"
                        : overlap->cublas     ? "cublas"
                                              : "plain");
}

static int measure(struct weir_bench_overlap *overlap)
{
    int rc = open_parts(overlap);
    for (uint32_t i = 0; i < overlap->shapes.n && !rc; i++) {
        uint32_t shape = overlap->shapes.values[i];
        overlap->device->reason[0] = 0;
        rc = shape == WEIR_BENCH_SHAPES
                 ? weir_bench_overlap_decode(overlap)
                 : weir_bench_overlap_forward(overlap, (enum weir_bench_shape)shape);
    }
    if (rc)
        fprintf(stderr, "weir-bench overlap: %s\n", weir_bench_reason(overlap->device, rc));
    close_parts(overlap);
    return rc;
}

static int run(struct options *options)
{
    struct weir_bench_overlap *overlap = options->overlap;
    if (weir_bench_device_open(&overlap->device, &overlap->common))
        return WEIR_BENCH_BROKEN;
    choose_gemm(options);
    make_modes(options);
    weir_bench_report_begin(&overlap->report, "overlap", &overlap->common, overlap->device);
    put_settings(overlap);
    int rc = measure(overlap);
    int written = weir_bench_report_finish(&overlap->report, &overlap->common, columns,
                                           sizeof columns / sizeof columns[0]);
    weir_bench_device_close(&overlap->device);
    if (rc || written)
        return WEIR_BENCH_BROKEN;
    return overlap->faults ? WEIR_BENCH_WRONG : 0;
}

int weir_bench_overlap(int argc, char **argv)
{
    static const struct argp argp = { option_list,
                                      parse,
                                      NULL,
                                      "Times forward passes whose layers wait for a load's layers.",
                                      weir_bench_common_children,
                                      NULL,
                                      NULL };
    struct options options = {
        .engines = { 5,
                     { WEIR_BENCH_REGISTER, WEIR_ENGINE_TMA, WEIR_ENGINE_VECTOR, WEIR_ENGINE_COPY,
                       WEIR_ENGINE_AUTO } },
        .ctas = { 4, { 1, 2, 3, 4 } },
        .rings = { 1, { 0 } },
        .register_ctas = { 2, { 2, 6 } },
        .launches = { 2, { 0, 1 } },
        .runs = { 4, { 1, 4, 16, 128 } },
    };
    options.overlap = calloc(1, sizeof *options.overlap);
    if (!options.overlap)
        return WEIR_BENCH_BROKEN;
    options.overlap->common = weir_bench_common_defaults();
    options.overlap->shapes = (struct weir_bench_list){ 5, { 0, 1, 2, 3, WEIR_BENCH_SHAPES } };
    options.overlap->whens = (struct weir_bench_list){ 2, { WEIR_BENCH_OWN, WEIR_BENCH_PREVIOUS } };
    options.overlap->layout = (struct weir_bench_layout){
        .n_layers = 32, .n_tensors = 2, .row_bytes = 2048, .page_tokens = 64, .n_pages = 128
    };
    options.overlap->victims = 3;
    options.overlap->chain = 2400;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    int status = run(&options);
    free(options.overlap);
    return status;
}
