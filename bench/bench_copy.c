/* SPDX-License-Identifier: Apache-2.0 */

/* copy: how fast pages move with nothing beside them.
 *
 *   grid ─► groups, one a geometry ─► modes: engine, CTAs, ring
 *                                       │ verify, warm up
 *                                       ▼
 *                       call 1: A B C   call 2: A B C   …    interleaved
 *
 * The modes of a group share their device memory and each have a host pool. A
 * call's time ends when the rank reports it, so it has a server's whole path in
 * it: the plan, the enqueueing, the completion word. Of several calls in a row
 * (--queued) only the first has: the others are enqueued beside it. */

#include "baseline.h"
#include "bench.h"
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_MODES 64u
#define SMALL_PIECE (16u << 10)
#define SMALL_BYTES (UINT64_C(64) << 20)

struct grid {
    struct weir_bench_list engines;
    struct weir_bench_list ctas;
    struct weir_bench_list rings;
    struct weir_bench_list layouts;
    struct weir_bench_list row_bytes;
    struct weir_bench_list page_tokens;
    struct weir_bench_list runs;
};

struct options {
    struct weir_bench_common common;
    struct grid grid; /* lists that were given */
    struct weir_bench_list directions;
    uint64_t bytes;
    uint32_t n_layers;
    uint32_t n_tensors;
    uint32_t queued;
};

struct mode {
    uint32_t engine;
    uint32_t ctas; /* 0: the default */
    uint32_t ring; /* 0: the default */
    struct weir_bench_rig *rig;
    struct weir_bench_baseline *baseline;
    struct weir_bench_samples times;
    struct weir_bench_samples enqueue;
    uint64_t wrong;
    int rc;
    char reason[WEIR_BENCH_REASON];
};

struct group {
    const struct options *options;
    struct weir_bench_device *device;
    struct weir_bench_layout layout;
    uint64_t planes;
    struct mode modes[MAX_MODES];
    uint32_t n_modes;
    uint64_t faults; /* wrong bytes, calls that failed */
};

/* ---- The default sweep ------------------------------------------------------ */

enum {
    AUTO = WEIR_ENGINE_AUTO,
    TMA = WEIR_ENGINE_TMA,
    VECTOR = WEIR_ENGINE_VECTOR,
    COPY = WEIR_ENGINE_COPY,
    REGISTER = WEIR_BENCH_REGISTER,
    SEGMENTED = WEIR_HOST_SEGMENTED,
    LAYER_FIRST = WEIR_HOST_LAYER_FIRST,
    PAGE_FIRST = WEIR_HOST_PAGE_FIRST,
    DIRECT = WEIR_HOST_PAGE_FIRST_DIRECT
};

#define COUNT(...) (sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))
#define LIST(...)                                          \
    {                                                      \
        .n = COUNT(__VA_ARGS__), .values = { __VA_ARGS__ } \
    }

/* How many CTAs, for pieces of 128 KiB at random places. */
static const struct grid by_ctas = { LIST(TMA, VECTOR, COPY, REGISTER, AUTO),
                                     LIST(1, 2, 4, 8),
                                     LIST(0),
                                     LIST(DIRECT),
                                     LIST(2048),
                                     LIST(64),
                                     LIST(1) };

/* How deep a ring. */
static const struct grid by_ring = { LIST(TMA),
                                     LIST(1, 2),
                                     LIST(0, WEIR_BENCH_RING(6, 32768), WEIR_BENCH_RING(4, 32768),
                                          WEIR_BENCH_RING(4, 16384), WEIR_BENCH_RING(3, 16384)),
                                     LIST(LAYER_FIRST),
                                     LIST(2048),
                                     LIST(64),
                                     LIST(64) };

/* How long the runs. */
static const struct grid by_run = { LIST(COPY, TMA),      LIST(2),    LIST(0),
                                    LIST(LAYER_FIRST),    LIST(2048), LIST(64),
                                    LIST(1, 2, 4, 16, 64) };

/* Which host layout, with short rows. */
static const struct grid by_layout = { LIST(TMA, VECTOR, COPY, REGISTER),
                                       LIST(2, 4),
                                       LIST(0),
                                       LIST(SEGMENTED, LAYER_FIRST, PAGE_FIRST, DIRECT),
                                       LIST(512),
                                       LIST(64),
                                       LIST(1) };

/* How long the rows. */
static const struct grid by_row = { LIST(TMA, VECTOR),
                                    LIST(2),
                                    LIST(0),
                                    LIST(SEGMENTED, PAGE_FIRST),
                                    LIST(128, 256, 576, 656, 1024, 1152, 2048, 4096),
                                    LIST(64),
                                    LIST(1) };

/* How many tokens a page. */
static const struct grid by_tokens = {
    LIST(TMA, VECTOR, COPY), LIST(2), LIST(0), LIST(DIRECT), LIST(1024),
    LIST(1, 16, 64, 128),    LIST(1)
};

static const struct grid *const sweep[] = { &by_ctas,   &by_ring, &by_run,
                                            &by_layout, &by_row,  &by_tokens };

/* What a grid has where no option says more. */
static const struct grid single = { LIST(TMA, VECTOR, COPY, REGISTER, AUTO),
                                    LIST(2),
                                    LIST(0),
                                    LIST(SEGMENTED),
                                    LIST(2048),
                                    LIST(64),
                                    LIST(1) };

/* Engines are a GPU's. */
static const struct weir_bench_list cpu_engines = LIST(AUTO, REGISTER);

/* ---- A mode ----------------------------------------------------------------- */

static int open_mode(struct group *group, struct mode *mode)
{
    weir_transfer_tuning tuning = { 0 };
    int rc = weir_bench_has_engine(group->device, mode->engine);
    if (rc)
        return rc;
    if (mode->engine != REGISTER) {
        tuning.engine = mode->engine;
        tuning.ctas = mode->ctas;
        tuning.stages = WEIR_BENCH_RING_STAGES(mode->ring);
        tuning.stage_bytes = WEIR_BENCH_RING_BYTES(mode->ring);
    }
    rc = weir_bench_rig_open(&mode->rig, group->device, &group->layout, &tuning, &tuning,
                             group->planes);
    if (!rc && mode->engine == REGISTER)
        rc = weir_bench_baseline_open(&mode->baseline, mode->rig, mode->ctas);
    return rc;
}

static void close_mode(struct mode *mode)
{
    weir_bench_baseline_close(&mode->baseline);
    weir_bench_rig_close(&mode->rig);
    weir_bench_samples_free(&mode->times);
    weir_bench_samples_free(&mode->enqueue);
}

static void give_up(struct group *group, struct mode *mode, int rc)
{
    mode->rc = rc;
    snprintf(mode->reason, sizeof mode->reason, "%s", weir_bench_reason(group->device, rc));
}

static int call(struct mode *mode, enum weir_direction direction, uint32_t queued, double *seconds)
{
    return mode->baseline ? weir_bench_baseline_time(mode->baseline, direction, queued, seconds)
                          : weir_bench_rig_time(mode->rig, direction, queued, seconds);
}

static int verified_call(const struct options *options, struct mode *mode,
                         enum weir_direction direction)
{
    double seconds;
    uint64_t wrong = 0;
    int rc = weir_bench_rig_prepare(mode->rig, direction);
    if (!rc)
        rc = call(mode, direction, 1, &seconds);
    if (!rc)
        rc = weir_bench_rig_check(mode->rig, direction, options->common.plant_error, &wrong);
    mode->wrong += wrong;
    return rc;
}

static int timed_call(const struct options *options, struct mode *mode,
                      enum weir_direction direction)
{
    double seconds;
    int rc = call(mode, direction, options->queued, &seconds);
    if (!rc)
        rc = weir_bench_samples_add(&mode->times, seconds);
    if (!rc && !mode->baseline)
        rc = weir_bench_samples_add(&mode->enqueue, mode->rig->enqueue_seconds);
    return rc;
}

/* ---- A group ---------------------------------------------------------------- */

enum phase {
    VERIFY,
    WARM_UP,
    TIME
};

static void each_mode(struct group *group, enum weir_direction direction, enum phase phase)
{
    for (uint32_t i = 0; i < group->n_modes; i++) {
        struct mode *mode = &group->modes[i];
        double ignored;
        int rc = 0;
        if (mode->rc)
            continue;
        if (phase == TIME)
            rc = timed_call(group->options, mode, direction);
        else if (phase == WARM_UP)
            rc = call(mode, direction, group->options->queued, &ignored);
        else if (group->options->common.verify)
            rc = verified_call(group->options, mode, direction);
        if (!rc)
            continue;
        give_up(group, mode, rc);
        group->faults++;
    }
}

static void put_mode(struct weir_bench_report *report, struct group *group,
                     enum weir_direction direction, struct mode *mode)
{
    const struct weir_bench_layout *layout = &group->layout;
    json_t *row = weir_bench_report_row(report);
    weir_bench_put_text(report, row, "engine", weir_bench_engine_name(mode->engine));
    weir_bench_put_text(report, row, "direction", direction == WEIR_LOAD ? "load" : "write_back");
    weir_bench_put_text(report, row, "layout", weir_bench_layout_name(layout->host));
    weir_bench_put_integer(report, row, "row_bytes", layout->row_bytes);
    weir_bench_put_integer(report, row, "page_tokens", layout->page_tokens);
    weir_bench_put_integer(report, row, "run_pages", layout->run_pages);
    weir_bench_put_integer(report, row, "ctas", mode->ctas);
    char ring[32] = "default";
    if (mode->ring)
        snprintf(ring, sizeof ring, "%ux%u", WEIR_BENCH_RING_STAGES(mode->ring),
                 WEIR_BENCH_RING_BYTES(mode->ring));
    weir_bench_put_text(report, row, "ring", ring);
    weir_bench_put_integer(report, row, "bytes", weir_bench_layout_bytes(layout));
    if (mode->rc) {
        weir_bench_put_text(report, row, "skipped", mode->reason);
        return;
    }
    struct weir_bench_stats times = weir_bench_stats_of(&mode->times);
    struct weir_bench_stats rates =
        weir_bench_stats_of_rates(&times, (double)weir_bench_layout_bytes(layout) * 1e-9);
    weir_bench_put_stats(report, row, "gbps", rates);
    weir_bench_put_number(report, row, "spread_percent", rates.spread * 100);
    if (mode->enqueue.n > 0)
        weir_bench_put_number(report, row, "enqueue_us",
                              weir_bench_stats_of(&mode->enqueue).median * 1e6);
    weir_bench_put_integer(report, row, "wrong_bytes", mode->wrong);
}

static void run_group(struct group *group, struct weir_bench_report *report)
{
    const struct weir_bench_common *common = &group->options->common;
    for (uint32_t i = 0; i < group->n_modes; i++) {
        int rc = open_mode(group, &group->modes[i]);
        if (rc)
            give_up(group, &group->modes[i], rc);
    }
    const struct weir_bench_list *directions = &group->options->directions;
    for (uint32_t d = 0; d < directions->n; d++) {
        enum weir_direction direction = directions->values[d] ? WEIR_WRITE_BACK : WEIR_LOAD;
        for (uint32_t i = 0; i < group->n_modes; i++) {
            group->modes[i].times.n = group->modes[i].enqueue.n = 0;
            group->modes[i].wrong = 0;
        }
        each_mode(group, direction, VERIFY);
        for (uint32_t i = 0; i < common->warm_up; i++)
            each_mode(group, direction, WARM_UP);
        for (uint32_t i = 0; i < common->repeats; i++)
            each_mode(group, direction, TIME);
        each_mode(group, direction, VERIFY);
        for (uint32_t i = 0; i < group->n_modes; i++) {
            put_mode(report, group, direction, &group->modes[i]);
            group->faults += group->modes[i].wrong;
        }
    }
    for (uint32_t i = 0; i < group->n_modes; i++)
        close_mode(&group->modes[i]);
}

/* CTAs and rings are for engines that have them. */
static void add_modes(struct group *group, const struct grid *grid)
{
    group->n_modes = 0;
    for (uint32_t e = 0; e < grid->engines.n; e++) {
        uint32_t engine = grid->engines.values[e];
        bool has_ctas = engine != AUTO && engine != COPY;
        uint32_t n_ctas = has_ctas ? grid->ctas.n : 1;
        uint32_t n_rings = engine == TMA ? grid->rings.n : 1;
        for (uint32_t c = 0; c < n_ctas; c++)
            for (uint32_t r = 0; r < n_rings && group->n_modes < MAX_MODES; r++)
                group->modes[group->n_modes++] =
                    (struct mode){ .engine = engine,
                                   .ctas = has_ctas ? grid->ctas.values[c] : 0,
                                   .ring = engine == TMA ? grid->rings.values[r] : 0 };
    }
}

static void set_layout(struct group *group, uint32_t host, uint32_t row_bytes, uint32_t page_tokens,
                       uint32_t run)
{
    const struct options *options = group->options;
    uint64_t piece = (uint64_t)row_bytes * page_tokens;
    uint64_t bytes = options->bytes;
    /* Where a piece costs a microsecond, fewer of them tell the same. */
    if (piece < SMALL_PIECE && bytes > SMALL_BYTES)
        bytes = SMALL_BYTES;
    uint64_t runs = bytes / (piece * options->n_layers * options->n_tensors * run);
    group->layout = (struct weir_bench_layout){ .n_layers = options->n_layers,
                                                .n_tensors = options->n_tensors,
                                                .row_bytes = row_bytes,
                                                .page_tokens = page_tokens,
                                                .n_pages = (uint32_t)(runs > 0 ? runs * run : run),
                                                .run_pages = run,
                                                .host = host };
}

static int run_layout(struct group *group, struct weir_bench_report *report)
{
    weir_device *device = group->device->device;
    int rc = device->ops->memory_alloc(device, weir_bench_layout_device_bytes(&group->layout),
                                       &group->planes);
    if (rc)
        return rc;
    run_group(group, report);
    device->ops->memory_free(device, group->planes);
    return device->ops->status(device);
}

static int run_grid(struct group *group, const struct grid *grid, struct weir_bench_report *report)
{
    int rc = 0;
    for (uint32_t l = 0; l < grid->layouts.n; l++)
        for (uint32_t b = 0; b < grid->row_bytes.n; b++)
            for (uint32_t t = 0; t < grid->page_tokens.n; t++)
                for (uint32_t r = 0; r < grid->runs.n && !rc; r++) {
                    set_layout(group, grid->layouts.values[l], grid->row_bytes.values[b],
                               grid->page_tokens.values[t], grid->runs.values[r]);
                    add_modes(group, grid);
                    rc = run_layout(group, report);
                }
    return rc;
}

/* ---- Options ---------------------------------------------------------------- */

enum {
    KEY_ENGINES = 256,
    KEY_CTAS,
    KEY_RINGS,
    KEY_LAYOUTS,
    KEY_ROW_BYTES,
    KEY_PAGE_TOKENS,
    KEY_RUNS,
    KEY_DIRECTIONS,
    KEY_BYTES,
    KEY_LAYERS,
    KEY_TENSORS,
    KEY_QUEUED
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "What is measured; the product of these lists, or a sweep if none is given:", 1 },
    { "engines", KEY_ENGINES, "LIST", 0, "auto, tma, vector, copy, register (all)", 0 },
    { "ctas", KEY_CTAS, "LIST", 0, "CTAs of a kernel (2)", 0 },
    { "rings", KEY_RINGS, "LIST", 0, "Rings of the TMA kernel, such as 6x32768 (the default)", 0 },
    { "layouts", KEY_LAYOUTS, "LIST", 0, "Host layouts (segmented)", 0 },
    { "row-bytes", KEY_ROW_BYTES, "LIST", 0, "Bytes of a token in a tensor and layer (2048)", 0 },
    { "page-tokens", KEY_PAGE_TOKENS, "LIST", 0, "Tokens of a page (64)", 0 },
    { "runs", KEY_RUNS, "LIST", 0, "Pages that lie together on both sides (1)", 0 },
    { 0, 0, 0, 0, "How much:", 2 },
    { "directions", KEY_DIRECTIONS, "LIST", 0, "load, write_back (both)", 0 },
    { "bytes", KEY_BYTES, "N", 0,
      "Bytes of a call (268435456); at most 64 MiB where a page has less than 16 KiB a layer", 0 },
    { "layers", KEY_LAYERS, "N", 0, "Layers (8)", 0 },
    { "tensors", KEY_TENSORS, "N", 0, "Tensors of a layer (2)", 0 },
    { "queued", KEY_QUEUED, "N", 0,
      "Calls in a row, each enqueued while the one before it runs (1)", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

static const char *direction_name(uint32_t direction)
{
    static const char *const names[] = { "load", "write_back" };
    return direction < 2 ? names[direction] : NULL;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    struct grid *grid = &options->grid;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        break;
    case KEY_ENGINES:
        weir_bench_read_names(state, "engines", text, weir_bench_engine_name, &grid->engines);
        break;
    case KEY_CTAS:
        weir_bench_read_list(state, "ctas", text, 1, 1024, &grid->ctas);
        break;
    case KEY_RINGS:
        weir_bench_read_rings(state, text, &grid->rings);
        break;
    case KEY_LAYOUTS:
        weir_bench_read_names(state, "layouts", text, weir_bench_layout_name, &grid->layouts);
        break;
    case KEY_ROW_BYTES:
        weir_bench_read_list(state, "row-bytes", text, 1, WEIR_MAX_ROW_BYTES, &grid->row_bytes);
        break;
    case KEY_PAGE_TOKENS:
        weir_bench_read_list(state, "page-tokens", text, 1, WEIR_MAX_PAGE_TOKENS,
                             &grid->page_tokens);
        break;
    case KEY_RUNS:
        weir_bench_read_list(state, "runs", text, 1, 1u << 20, &grid->runs);
        break;
    case KEY_DIRECTIONS:
        weir_bench_read_names(state, "directions", text, direction_name, &options->directions);
        break;
    case KEY_BYTES:
        weir_bench_read_bytes(state, "bytes", text, &options->bytes);
        break;
    case KEY_LAYERS:
        weir_bench_read_u32(state, "layers", text, 1, WEIR_MAX_LAYERS, &options->n_layers);
        break;
    case KEY_TENSORS:
        weir_bench_read_u32(state, "tensors", text, 1, WEIR_MAX_TENSORS, &options->n_tensors);
        break;
    case KEY_QUEUED:
        weir_bench_read_u32(state, "queued", text, 1, 1000, &options->queued);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static bool complete_list(struct weir_bench_list *list, const struct weir_bench_list *defaults)
{
    bool given = list->n > 0;
    if (!given)
        *list = *defaults;
    return given;
}

/* Whether a list was given. */
static bool complete(struct grid *grid, bool gpu)
{
    bool given = complete_list(&grid->engines, gpu ? &single.engines : &cpu_engines);
    given |= complete_list(&grid->ctas, &single.ctas);
    given |= complete_list(&grid->rings, &single.rings);
    given |= complete_list(&grid->layouts, &single.layouts);
    given |= complete_list(&grid->row_bytes, &single.row_bytes);
    given |= complete_list(&grid->page_tokens, &single.page_tokens);
    given |= complete_list(&grid->runs, &single.runs);
    return given;
}

/* ---- The benchmark ---------------------------------------------------------- */

static const struct weir_bench_column columns[] = {
    { "engine", "engine", 0 },
    { "ctas", "CTAs", 0 },
    { "ring", "ring", 0 },
    { "direction", "direction", 0 },
    { "layout", "host layout", 0 },
    { "row_bytes", "row B", 0 },
    { "page_tokens", "tokens", 0 },
    { "run_pages", "run", 0 },
    { "gbps", "GB/s", 2 },
    { "spread_percent", "spread %", 1 },
    { "enqueue_us", "enqueue us", 1 },
    { "wrong_bytes", "wrong bytes", 0 },
};

static int measure(struct options *options, struct group *group, struct weir_bench_report *report)
{
    bool gpu = group->device->gpu != NULL;
    bool given = complete(&options->grid, gpu);
    if (given || !gpu)
        return run_grid(group, &options->grid, report);
    int rc = 0;
    for (size_t i = 0; i < sizeof sweep / sizeof sweep[0] && !rc; i++)
        rc = run_grid(group, sweep[i], report);
    return rc;
}

int weir_bench_copy(int argc, char **argv)
{
    static const struct argp argp = { option_list,
                                      parse,
                                      NULL,
                                      "Moves pages with nothing beside them.",
                                      weir_bench_common_children,
                                      NULL,
                                      NULL };
    struct options options = { .common = weir_bench_common_defaults(),
                               .directions = LIST(0, 1),
                               .bytes = UINT64_C(256) << 20,
                               .n_layers = 8,
                               .n_tensors = 2,
                               .queued = 1 };
    argp_parse(&argp, argc, argv, 0, NULL, &options);

    struct weir_bench_device *device = NULL;
    struct group *group = calloc(1, sizeof *group);
    if (!group || weir_bench_device_open(&device, &options.common)) {
        free(group);
        return WEIR_BENCH_BROKEN;
    }
    *group = (struct group){ .options = &options, .device = device };
    struct weir_bench_report report;
    weir_bench_report_begin(&report, "copy", &options.common, device);
    weir_bench_put_integer(&report, report.settings, "layers", options.n_layers);
    weir_bench_put_integer(&report, report.settings, "tensors", options.n_tensors);
    weir_bench_put_integer(&report, report.settings, "queued", options.queued);
    int rc = measure(&options, group, &report);
    if (rc)
        fprintf(stderr, "weir-bench copy: %s\n", weir_bench_reason(device, rc));
    int written = weir_bench_report_finish(&report, &options.common, columns,
                                           sizeof columns / sizeof columns[0]);
    bool faults = group->faults > 0;
    free(group);
    weir_bench_device_close(&device);
    if (rc || written)
        return WEIR_BENCH_BROKEN;
    return faults ? WEIR_BENCH_WRONG : 0;
}
