/* SPDX-License-Identifier: Apache-2.0 */

/* What users of such caches have met in drivers and kernels: work on the default
 * stream, loads into pages that are still in use, write-backs that nobody joins, graphs
 * that were captured too early or too late, more loads than slots. For every way to
 * copy. Exit 77 without a GPU.
 *
 *   gate   a word that a stream waits for, so that what comes behind stands still until
 *          the host has enqueued all and lets it go
 *   part   of a step: pages that it fills and pages that it compares, in all layers
 *
 * Streams stand still here while the host goes on: with CUDA_LAUNCH_BLOCKING this
 * is skipped, and each stream gets a hardware queue of its own.
 *
 * usage: gpu_scenarios [ROUNDS]
 *   ROUNDS  of each scenario and way (20) */

#include "gpu_reader.h"

#include <weir/cuda.h>

enum {
    LAYERS = 12,
    SLOTS = 4,
    STEPS = 16,
    PAGES = 96,
    SET = 24, /* pages that a scenario moves */
    PARTS = 8
};

struct part {
    struct weir_pattern_batch batch;
    int32_t first; /* of SET pages */
    uint64_t fill; /* the content of the first; 0: nothing is filled */
    uint64_t check;
};

struct scene {
    struct rig *rig;
    weir_tensor tensors[2];
    weir_shape shape;
    weir_rank *rank;
    struct weir_pattern_planes planes;
    struct gpu_graphs calls;
    uint32_t *gates;
    struct part parts[PARTS];
    uint32_t n_parts;
    uint64_t newest;
    uint64_t next_content;
    uint64_t host_content;  /* of host page 1; the others follow */
    uint32_t n_reported[4]; /* by kind */
};

/* ---- Opening and closing ------------------------------------------------- */

static void scene_open(struct scene *s, struct rig *rig, const struct reader_way *way)
{
    *s = (struct scene){ .rig = rig, .next_content = 1 };
    s->tensors[0] = (weir_tensor){ .page_bytes = 16 * 1024, .row_bytes = 1024 };
    s->tensors[1] = (weir_tensor){ .page_bytes = 16 * 64, .row_bytes = 64 };
    s->shape = (weir_shape){
        .page_tokens = 16, .n_layers = LAYERS, .n_tensors = 2, .tensors = s->tensors
    };
    reader_find_calls(&s->calls);
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &s->shape;
    params.device_pages = params.host_pages = PAGES;
    params.max_steps = STEPS;
    params.n_slots = SLOTS;
    params.load = params.write_back = way->tuning;
    params.captured_waits = true;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_rank_open(&s->rank, rig->device, &params);
    if (!rc)
        rc = weir_pattern_planes_create(&s->planes, &rig->pattern, s->rank, &s->shape, 0,
                                        rig->streams[0]);
    if (!rc)
        rc = rig->ops->words_alloc(rig->device, 2, &s->gates);
    /* Later a batch must not grow: the driver would wait for the whole GPU. */
    for (uint32_t i = 0; i < PARTS && !rc; i++)
        rc = weir_pattern_batch_begin(&s->parts[i].batch, &rig->pattern, SET, SET,
                                      2 * SET * s->shape.page_tokens);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    s->host_content = s->next_content;
    s->next_content += PAGES;
    for (int32_t h = 1; h <= PAGES; h++)
        content_write(content_host(s->rank), h, s->host_content + (uint64_t)h - 1);
}

static void scene_close(struct scene *s)
{
    weir_rank_close(&s->rank);
    weir_pattern_planes_destroy(&s->planes, &s->rig->pattern);
    for (uint32_t i = 0; i < PARTS; i++)
        weir_pattern_batch_destroy(&s->parts[i].batch, &s->rig->pattern);
    s->rig->ops->words_free(s->rig->device, s->gates);
}

/* ---- Gates --------------------------------------------------------------- */

static void shut(struct scene *s, uint32_t gate, weir_stream *stream)
{
    s->rig->ops->word_store(s->rig->device, &s->gates[gate], 0);
    int rc = s->rig->ops->stream_wait_word(s->rig->device, stream, &s->gates[gate], 1);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

static void let_go(struct scene *s, uint32_t gate)
{
    s->rig->ops->word_store(s->rig->device, &s->gates[gate], 1);
}

/* ---- Parts of steps ------------------------------------------------------ */

/* Contents of 0: nothing of that kind. */
static struct part *make_part(struct scene *s, int32_t first, uint64_t fill, uint64_t check)
{
    REQUIRE(s->n_parts < PARTS, "parts");
    struct part *part = &s->parts[s->n_parts++];
    part->first = first;
    part->fill = fill;
    part->check = check;
    int rc = weir_pattern_batch_begin(&part->batch, &s->rig->pattern, fill ? SET : 0,
                                      check ? SET : 0, 2 * SET * s->shape.page_tokens);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (uint32_t i = 0; i < SET; i++) {
        if (fill)
            content_entry(&part->batch, &s->shape, &part->batch.fills[i], i, first + (int32_t)i,
                          fill + i);
        if (check)
            content_entry(&part->batch, &s->shape, &part->batch.checks[i], SET + i,
                          first + (int32_t)i, check + i);
    }
    return part;
}

static void upload(struct scene *s, struct part *part, weir_stream *stream)
{
    int rc = weir_pattern_batch_upload(&part->batch, &s->rig->pattern, stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

static int run_layer(struct scene *s, struct part *part, uint32_t layer, weir_stream *stream)
{
    struct weir_pattern_gpu *pattern = &s->rig->pattern;
    int rc = weir_pattern_batch_fill(&part->batch, pattern, &s->planes, layer, stream);
    return rc ? rc : weir_pattern_batch_check(&part->batch, pattern, &s->planes, layer, stream);
}

/* Waits, layer by layer, and the part; the answer of its checks comes back. */
static void forward(struct scene *s, uint64_t step, struct part *part, weir_stream *stream)
{
    upload(s, part, stream);
    int rc = 0;
    for (uint32_t layer = 0; layer < LAYERS && !rc; layer++) {
        rc = weir_rank_wait_layer(s->rank, step, layer, stream);
        if (!rc)
            rc = run_layer(s, part, layer, stream);
    }
    if (!rc)
        rc = weir_pattern_batch_download(&part->batch, &s->rig->pattern, stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

/* ---- Steps --------------------------------------------------------------- */

static int try_begin(struct scene *s, weir_order order, weir_stream *stream)
{
    uint64_t bytes[512];
    size_t n;
    order.step = s->newest + 1;
    order.write_ticket = order.n_writes ? order.step : 0;
    order.device_pages = order.host_pages = PAGES;
    int rc = weir_order_encode(&order, bytes, sizeof bytes, &n, &s->rig->device->log);
    uint64_t step = 0;
    if (!rc)
        rc = weir_rank_begin(s->rank, bytes, n, (uint32_t)(order.step % SLOTS), stream, &step);
    s->newest += rc == 0;
    return rc;
}

static uint64_t begin(struct scene *s, weir_order order, weir_stream *stream)
{
    int rc = try_begin(s, order, stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    return s->newest;
}

static void end(struct scene *s, uint64_t step, weir_stream *stream)
{
    int rc = weir_rank_end(s->rank, step, stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

static void report(struct scene *s)
{
    uint64_t buffer[64];
    size_t bytes = 0, n = 0;
    const weir_report_item *items;
    int rc = weir_rank_report(s->rank, buffer, sizeof buffer, &bytes);
    if (!rc && bytes > 0)
        rc = weir_report_decode(&items, &n, buffer, bytes, NULL);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (size_t i = 0; i < n; i++) {
        CHECK(items[i].rc == 0, "kind %u of %lu: %s", items[i].kind, (unsigned long)items[i].number,
              weir_error_name(items[i].rc));
        s->n_reported[items[i].kind]++;
    }
}

/* Waits until so much more has been reported; a gate that holds it up too long is
 * what the watchdog is for. */
static void await(struct scene *s, uint32_t steps, uint32_t loads, uint32_t writes)
{
    while (s->n_reported[WEIR_REPORT_STEP] < steps || s->n_reported[WEIR_REPORT_LOAD] < loads ||
           s->n_reported[WEIR_REPORT_WRITE_BACK] < writes)
        report(s);
}

/* All is reported, and no part has found a wrong byte. */
static void settle(struct scene *s, uint32_t steps, uint32_t loads, uint32_t writes)
{
    await(s, steps, loads, writes);
    for (int i = 0; i < 2; i++)
        rig_synchronize(s->rig, s->rig->streams[i]);
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const struct weir_pattern_wrong *wrong = s->parts[i].batch.wrong;
        CHECK(wrong->bytes == 0, "%lu bytes in part %u, page %d, layer %u",
              (unsigned long)wrong->bytes, i, s->parts[i].first + (int32_t)wrong->entry,
              wrong->layer);
    }
    report(s);
    CHECK(s->n_reported[WEIR_REPORT_STEP] == steps && s->n_reported[WEIR_REPORT_LOAD] == loads &&
              s->n_reported[WEIR_REPORT_WRITE_BACK] == writes,
          "%u steps, %u loads, %u write-backs were reported", s->n_reported[WEIR_REPORT_STEP],
          s->n_reported[WEIR_REPORT_LOAD], s->n_reported[WEIR_REPORT_WRITE_BACK]);
    s->n_parts = 0;
    memset(s->n_reported, 0, sizeof s->n_reported);
}

/* SET moves, the device's pages in a row, the host's in a row or scattered. */
static weir_order load_into(weir_move *moves, int32_t device, int32_t host, bool scatter)
{
    for (int32_t i = 0; i < SET; i++)
        moves[i] = (weir_move){ { device + i }, { host + (scatter ? i * 5 % SET : i) } };
    return (weir_order){ .n_loads = SET, .loads = moves };
}

static weir_order write_from(weir_move *moves, int32_t device, int32_t host)
{
    for (int32_t i = 0; i < SET; i++)
        moves[i] = (weir_move){ { device + i }, { host + i } };
    return (weir_order){ .n_writes = SET, .writes = moves };
}

static uint64_t fresh(struct scene *s)
{
    s->next_content += SET;
    return s->next_content - SET;
}

static uint64_t content_of_host(const struct scene *s, int32_t host)
{
    return s->host_content + (uint64_t)host - 1;
}

/* ---- Scenarios ----------------------------------------------------------- */

/* A step in one stream fills pages behind the gate; its request is gone, and another's
 * load into them is begun in the same stream or in the other. */
static void load_into_pages_in_use(struct scene *s, uint32_t round)
{
    weir_stream *first = s->rig->streams[0], *second = s->rig->streams[round % 2];
    weir_move moves[SET];
    shut(s, 0, first);
    uint64_t user = begin(s, (weir_order){ 0 }, first);
    forward(s, user, make_part(s, 1, fresh(s), 0), first);
    end(s, user, first);
    weir_order order = load_into(moves, 1, 30, false);
    order.n_load_fences = 1;
    order.load_fences = &user;
    uint64_t step = begin(s, order, second);
    forward(s, step, make_part(s, 1, 0, content_of_host(s, 30)), second);
    end(s, step, second);
    let_go(s, 0);
    settle(s, 2, 1, 0);
}

/* The legacy default stream stands still, and with it all that is ordered after it. */
static void load_beside_the_default_stream(struct scene *s, uint32_t round)
{
    weir_move moves[SET];
    weir_stream *stream = s->rig->streams[round % 2];
    shut(s, 0, weir_stream_from_cuda(NULL));
    uint64_t step = begin(s, load_into(moves, 30, 5, false), stream);
    forward(s, step, make_part(s, 30, 0, content_of_host(s, 5)), stream);
    end(s, step, stream);
    await(s, 1, 1, 0);
    let_go(s, 0);
    settle(s, 1, 1, 0);
    rig_synchronize(s->rig, weir_stream_from_cuda(NULL));
}

/* A write-back stands still while steps go on in both streams, which read its pages
 * and fill others; what arrives is what the pages held. */
static void write_back_that_nobody_joins(struct scene *s, uint32_t round)
{
    weir_stream *stream = s->rig->streams[round % 2], *other = s->rig->streams[!(round % 2)];
    weir_move moves[SET];
    uint64_t content = fresh(s);
    shut(s, 0, s->rank->engine.lanes[WEIR_WRITE_BACK].stream);
    uint64_t step = begin(s, write_from(moves, 1, 60), stream);
    forward(s, step, make_part(s, 1, content, 0), stream);
    end(s, step, stream);
    uint64_t producer = step;
    weir_order order = { .n_fences = 1, .fences = &producer };
    step = begin(s, order, other);
    forward(s, step, make_part(s, 1, 0, content), other);
    end(s, step, other);
    uint64_t unrelated = fresh(s);
    step = begin(s, (weir_order){ 0 }, stream);
    forward(s, step, make_part(s, 1 + SET, unrelated, unrelated), stream);
    end(s, step, stream);
    await(s, 3, 0, 0);
    CHECK(s->n_reported[WEIR_REPORT_WRITE_BACK] == 0, "%s", "a write-back went past the gate");
    let_go(s, 0);
    await(s, 3, 0, 1);
    step = begin(s, load_into(moves, 1 + 2 * SET, 60, false), stream);
    forward(s, step, make_part(s, 1 + 2 * SET, 0, content), stream);
    end(s, step, stream);
    settle(s, 4, 1, 1);
    for (int32_t h = 60; h < 60 + SET; h++)
        content_write(content_host(s->rank), h, content_of_host(s, h));
}

static CUgraphExec capture(struct scene *s, uint32_t slot, struct part *part, weir_stream *stream)
{
    const struct weir_gpu *gpu = &s->rig->tests;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUcontext context;
    REQUIRE(gpu->driver->cuCtxPushCurrent(gpu->device->context) == 0, "the context");
    CHECK(s->calls.begin((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0, "%s", "capture");
    int rc = 0;
    for (uint32_t layer = 0; layer < LAYERS && !rc; layer++) {
        rc = weir_rank_capture_wait(s->rank, slot, layer, stream);
        if (!rc)
            rc = run_layer(s, part, layer, stream);
    }
    CHECK(s->calls.end((CUstream)stream, &graph) == 0, "%s", "capture");
    REQUIRE(rc == 0 && graph, "%s", weir_error_name(rc));
    REQUIRE(s->calls.instantiate(&exec, graph, 0) == 0, "a graph");
    CHECK(s->calls.destroy(graph) == 0, "%s", "a graph");
    CHECK(gpu->driver->cuCtxPopCurrent(&context) == 0, "%s", "the context");
    return exec;
}

static void launch(struct scene *s, CUgraphExec exec, weir_stream *stream)
{
    const struct weir_gpu *gpu = &s->rig->tests;
    CUcontext context;
    REQUIRE(gpu->driver->cuCtxPushCurrent(gpu->device->context) == 0, "the context");
    CHECK(s->calls.launch(exec, (CUstream)stream) == 0, "%s", "a launch");
    CHECK(gpu->driver->cuCtxPopCurrent(&context) == 0, "%s", "the context");
}

static void destroy_graph(struct scene *s, CUgraphExec exec)
{
    const struct weir_gpu *gpu = &s->rig->tests;
    CUcontext context;
    REQUIRE(gpu->driver->cuCtxPushCurrent(gpu->device->context) == 0, "the context");
    CHECK(s->calls.destroy_exec(exec) == 0, "%s", "a graph");
    CHECK(gpu->driver->cuCtxPopCurrent(&context) == 0, "%s", "the context");
}

/* The graph of a slot's forward pass is captured when the slot's step has begun: its
 * load, or the one that it joins, is in flight or held back behind the gate. Each round
 * captures a slot that has no captures yet. */
static void graph_of_a_load_in_flight(struct scene *s, uint32_t round)
{
    weir_stream *first = s->rig->streams[0], *second = s->rig->streams[1];
    weir_move moves[SET];
    bool joins = round & 2;
    while ((s->newest + (joins ? 3 : 2)) % SLOTS != round) {
        end(s, begin(s, (weir_order){ 0 }, first), first);
        settle(s, 1, 0, 0);
    }
    shut(s, 0, first);
    uint64_t user = begin(s, (weir_order){ 0 }, first);
    forward(s, user, make_part(s, 1, fresh(s), 0), first);
    end(s, user, first);
    weir_order order = load_into(moves, 1, 40, false);
    order.n_load_fences = 1;
    order.load_fences = &user;
    uint64_t step = begin(s, order, second);
    if (round & 1) {
        /* Enters the load, which was held back until somebody waits for it. */
        int rc = weir_rank_wait_layer(s->rank, step, 0, first);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
    }
    if (joins) {
        uint64_t loaded = step;
        end(s, loaded, first);
        step = begin(s, (weir_order){ .n_joins = 1, .joins = &loaded }, second);
    }
    struct part *part = make_part(s, 1, 0, content_of_host(s, 40));
    CUgraphExec exec = capture(s, (uint32_t)(step % SLOTS), part, second);
    upload(s, part, second);
    launch(s, exec, second);
    int rc = weir_pattern_batch_download(&part->batch, &s->rig->pattern, second);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    end(s, step, second);
    let_go(s, 0);
    settle(s, joins ? 3 : 2, 1, 0);
    destroy_graph(s, exec);
}

/* A slot more than there is, while the loads stand still. */
static void more_loads_than_slots(struct scene *s, uint32_t round)
{
    weir_stream *stream = s->rig->streams[round % 2];
    weir_move moves[SET];
    shut(s, 0, s->rank->engine.lanes[WEIR_LOAD].stream);
    for (int32_t i = 0; i < SLOTS; i++) {
        int32_t host = 1 + i * 5;
        uint64_t user = s->newest;
        weir_order order = load_into(moves, 1 + i % 3 * SET, host, false);
        order.n_load_fences = i > 0;
        order.load_fences = &user;
        uint64_t step = begin(s, order, stream);
        forward(s, step, make_part(s, 1 + i % 3 * SET, 0, content_of_host(s, host)), stream);
        end(s, step, stream);
    }
    for (int i = 0; i < 3; i++) {
        int rc = try_begin(s, (weir_order){ 0 }, stream);
        CHECK(rc == -EBUSY, "%s", weir_error_name(rc));
    }
    let_go(s, 0);
    settle(s, SLOTS, SLOTS, 0);
}

/* ---- All of it ----------------------------------------------------------- */

/* A scenario without its gate: modules that the driver loads when they are first used would
 * wait for what stands still. */
static void warm_up(struct scene *s)
{
    weir_move loads[SET], writes[SET];
    for (int i = 0; i < 2; i++) {
        weir_stream *stream = s->rig->streams[i];
        uint64_t content = fresh(s);
        uint64_t step = begin(s, write_from(writes, 1, 1), stream);
        forward(s, step, make_part(s, 1, content, content), stream);
        end(s, step, stream);
        await(s, 1, 0, 1);
        step = begin(s, load_into(loads, 1 + SET, 1, i > 0), stream);
        forward(s, step, make_part(s, i > 0 ? 1 : 1 + SET, 0, content), stream);
        end(s, step, stream);
        settle(s, 2, 1, 1);
    }
    for (int32_t h = 1; h <= SET; h++)
        content_write(content_host(s->rank), h, content_of_host(s, h));
}

static const struct {
    const char *name;
    void (*run)(struct scene *s, uint32_t round);
    uint32_t most; /* rounds; 0: any number */
} scenarios[] = {
    { "a load into pages in use", load_into_pages_in_use, 0 },
    { "a load beside the default stream", load_beside_the_default_stream, 0 },
    { "a write-back that nobody joins", write_back_that_nobody_joins, 0 },
    { "more loads than slots", more_loads_than_slots, 0 },
    { "a graph of a load in flight", graph_of_a_load_in_flight, SLOTS },
    { "a load into pages in use, captured slots", load_into_pages_in_use, 0 },
};

int main(int argc, char **argv)
{
    uint32_t n_rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20;
    if (getenv("CUDA_LAUNCH_BLOCKING")) {
        printf("skipped: launches block\n");
        return RIG_SKIP;
    }
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    struct rig rig;
    rig_open(&rig);
    for (size_t w = 0; w < sizeof reader_ways / sizeof *reader_ways; w++) {
        static struct scene scene;
        rig_at("%s, warming up", reader_ways[w].name);
        scene_open(&scene, &rig, &reader_ways[w]);
        warm_up(&scene);
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
            uint32_t n = n_rounds;
            if (scenarios[i].most && n > scenarios[i].most)
                n = scenarios[i].most;
            double began = rig_now();
            for (uint32_t round = 0; round < n; round++) {
                rig_at("%s, %s, round %u", reader_ways[w].name, scenarios[i].name, round);
                scenarios[i].run(&scene, round);
            }
            printf("%-12s %-42s %3u rounds, %6.1f ms\n", reader_ways[w].name, scenarios[i].name, n,
                   (rig_now() - began) * 1e3);
        }
        scene_close(&scene);
    }
    return rig_close(&rig);
}
