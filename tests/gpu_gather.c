/* SPDX-License-Identifier: Apache-2.0 */

/* The gather on a real GPU, byte for byte against a naive copier: all engines and
 * directions, eager and in graphs whose lists and layer bases change. What must
 * not change is compared as well. Exit 77 without a GPU.
 *
 * usage: gpu_gather [ORDINAL [CALLS]]
 *   CALLS  verified calls of small banks, eager and by graph (44000) */

#include "gather_case.h"
#include "device/cuda_kernels.h"
#include "gpu_tier.h"

#include <inttypes.h>

#define MIB (1u << 20)

static struct gpu_graphs calls;

/* ---- A gather with both sides ---------------------------------------------- */

/* The lists in device memory: the count, then one list a side. */
struct world {
    struct gather_case c;
    weir_copy_direction direction;
    struct tier sides[2];
    struct tier lists;
    weir_gather *gather;
    uint32_t skipped;
};

static uint64_t list_at(const struct world *w, uint32_t side)
{
    return 8 + side * 8ull * w->c.max_count;
}

static void world_open(struct world *w, weir_copy_direction direction, weir_transfer_engine engine)
{
    w->direction = direction;
    tier_open(&w->sides[0], direction != WEIR_COPY_DEVICE_TO_HOST, w->c.bytes[0]);
    tier_open(&w->sides[1], direction != WEIR_COPY_HOST_TO_DEVICE, w->c.bytes[1]);
    tier_open(&w->lists, true, list_at(w, 2));
    fill(&w->sides[0], 1);
    fill(&w->sides[1], 2);
    weir_bank banks[WEIR_GATHER_MAX_BANKS];
    weir_gather_params p =
        gather_case_params(&w->c, w->sides[0].address, w->sides[1].address, banks);
    p.direction = direction;
    p.engine = engine;
    ok(weir_gather_create(&w->gather, device, &p), "create");
}

static void world_close(struct world *w)
{
    weir_gather_destroy(&w->gather);
    tier_close(&w->lists);
    tier_close(&w->sides[0]);
    tier_close(&w->sides[1]);
}

static weir_gather_rows rows_of(const struct world *w, bool count_on_device, int64_t count)
{
    const uint8_t *lists = (const uint8_t *)(uintptr_t)w->lists.address;
    return (weir_gather_rows){ lists + list_at(w, 0), lists + list_at(w, 1),
                               count_on_device ? (const int64_t *)(const void *)lists : NULL,
                               count_on_device ? -7 : count };
}

/* Nothing of the stream may be under way. */
static void upload_lists(struct world *w, int64_t count)
{
    memcpy(w->lists.staging, &count, 8);
    for (uint32_t side = 0; side < 2; side++)
        gather_case_pack(&w->c, side, w->lists.staging + list_at(w, side));
    transfer_bytes(w->lists.address, (uintptr_t)w->lists.staging, w->lists.bytes);
}

static uint64_t bytes_of(const struct gather_case *c, int64_t count)
{
    uint64_t row = 0;
    for (uint32_t i = 0; i < c->n_banks; i++)
        row += c->banks[i].payload_bytes ? c->banks[i].payload_bytes * c->banks[i].payload_lines
                                         : c->banks[i].row_bytes;
    return count < 0 ? 0 : row * (uint64_t)(count < c->max_count ? count : c->max_count);
}

/* What the last launch of `c`, which may be the world's case at other bases, has
 * done, once it has run. */
static bool right(struct world *w, const struct gather_case *c, int64_t count)
{
    w->skipped += gather_case_expect(c, w->sides[0].expected, w->sides[1].expected, count);
    group_bytes += bytes_of(c, count);
    uint32_t skipped = 0;
    bool same = holds(&w->sides[0]);
    ok(weir_gather_errors(w->gather, &skipped), "errors");
    return same && skipped == w->skipped;
}

static void eager(struct world *w, int64_t count, bool count_on_device, const char *what)
{
    upload_lists(w, count);
    weir_gather_rows rows = rows_of(w, count_on_device, count);
    int rc = weir_gather_launch(w->gather, &rows, NULL, stream);
    char text[160];
    snprintf(text, sizeof text, "%s: %" PRId64 " rows, direction %d, %u-byte indices", what, count,
             (int)w->direction, w->c.index_bytes);
    verdict(rc == 0 && right(w, &w->c, count), text);
}

/* ---- Every list of banks ---------------------------------------------------- */

/* TMA last: not every GPU has it. */
static const weir_transfer_engine engines[] = { WEIR_ENGINE_AUTO, WEIR_ENGINE_VECTOR,
                                                WEIR_ENGINE_TMA };

static uint32_t n_engines(void)
{
    return weir_cuda_from(device)->kernels->functions[WEIR_KERNEL_GATHER_TMA] ? 3 : 2;
}

static void counts_of(const char *name, const uint64_t *row_bytes, uint32_t n_banks, uint32_t slots,
                      const int64_t *counts, uint32_t n_counts)
{
    struct random random = { slots };
    for (uint32_t e = 0; e < n_engines(); e++) {
        for (uint32_t direction = 0; direction < 3; direction++) {
            static struct world w;
            memset(&w, 0, sizeof w);
            gather_case_banks(&w.c, row_bytes, n_banks, slots, slots + 7);
            w.c.index_bytes = (e + direction) % 2 ? 8 : 4;
            w.c.max_count = (uint32_t)counts[n_counts - 1];
            world_open(&w, (weir_copy_direction)direction, engines[e]);
            for (uint32_t i = 0; i < n_counts; i++) {
                gather_case_lists(&w.c, &random, w.c.max_count, 0);
                uint32_t last = 0; /* the last slot takes the last row */
                for (uint32_t k = 0; k < w.c.max_count; k++)
                    if (w.c.rows[0][k] == slots - 1)
                        last = k;
                w.c.rows[0][last] = w.c.rows[0][0];
                w.c.rows[0][0] = slots - 1;
                w.c.rows[1][0] = slots + 6;
                eager(&w, counts[i], i % 2, name);
            }
            gather_case_lists(&w.c, &random, w.c.max_count, 20);
            eager(&w, w.c.max_count, true, "with indices outside");
            eager(&w, w.c.max_count + 1, true, "with a count too large");
            eager(&w, -3, true, "with a negative count");
            world_close(&w);
        }
        char title[64];
        snprintf(title, sizeof title, "%s, %s", name, weir_transfer_engine_name(engines[e]));
        group_end(title);
    }
}

static void random_banks(uint32_t unit)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        static struct world w;
        struct random random = { seed };
        memset(&w, 0, sizeof w);
        gather_case_random_banks(&w.c, &random, unit, 60000);
        w.c.max_count = 1 + random_below(&random, w.c.n_rows[0]);
        world_open(&w, (weir_copy_direction)(seed % 3),
                   engines[random_below(&random, n_engines())]);
        for (uint32_t i = 0; i < 4; i++) {
            gather_case_lists(&w.c, &random, w.c.max_count, random_below(&random, 3) * 15);
            int64_t count = random_below(&random, w.c.max_count + 3);
            char what[64];
            snprintf(what, sizeof what, "seed %" PRIu64 ", multiples of %u", seed, unit);
            eager(&w, count, random_percent(&random, 70), what);
        }
        world_close(&w);
    }
    char title[64];
    snprintf(title, sizeof title, "any banks, strides, payloads: units of %u", unit);
    group_end(title);
}

/* 600 experts at once: a gigabyte. */
static void many_experts(weir_transfer_engine engine)
{
    static struct world w;
    struct random random = { 600 };
    memset(&w, 0, sizeof w);
    gather_case_banks(&w.c, gather_case_experts, 6, 610, 100);
    w.c.max_count = 600;
    world_open(&w, WEIR_COPY_HOST_TO_DEVICE, engine);
    gather_case_lists(&w.c, &random, 600, 0);
    eager(&w, 600, true, "600 experts");
    world_close(&w);
    char title[64];
    snprintf(title, sizeof title, "600 experts, %s", weir_transfer_engine_name(engine));
    group_end(title);
}

/* ---- Layers, eager and by graph ---------------------------------------------- */

#define LAYERS 8u
#define EXPERTS 48u
#define SLOTS 40u

static void layer_of(const struct world *w, uint32_t layer, struct gather_case *c,
                     weir_bank_bases *bases)
{
    *c = w->c;
    for (uint32_t i = 0; i < c->n_banks; i++) {
        c->banks[i].src += layer * EXPERTS * c->banks[i].row_bytes;
        bases[i] = (weir_bank_bases){ w->sides[0].address + c->banks[i].dst,
                                      w->sides[1].address + c->banks[i].src };
    }
}

static CUgraphExec capture(struct world *w, uint32_t layer)
{
    static struct gather_case c;
    weir_bank_bases bases[WEIR_GATHER_MAX_BANKS];
    layer_of(w, layer, &c, bases);
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    weir_gather_rows rows = rows_of(w, true, 0);
    driver_ok(calls.begin((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin capture");
    ok(weir_gather_launch(w->gather, &rows, bases, stream), "a launch in a capture");
    memset(bases, 0, sizeof bases); /* a graph keeps its own */
    driver_ok(calls.end((CUstream)stream, &graph), "end capture");
    driver_ok(calls.instantiate(&exec, graph, 0), "instantiate");
    driver_ok(calls.destroy(graph), "destroy graph");
    return exec;
}

static void many_calls(const uint64_t *row_bytes, uint32_t n_banks, weir_transfer_engine engine,
                       uint32_t n_calls, const char *name)
{
    static struct world w;
    static struct gather_case c;
    struct random random = { n_calls };
    weir_bank_bases bases[WEIR_GATHER_MAX_BANKS];
    CUgraphExec graphs[LAYERS];
    memset(&w, 0, sizeof w);
    gather_case_banks(&w.c, row_bytes, n_banks, SLOTS, LAYERS * EXPERTS);
    w.c.n_rows[1] = EXPERTS;
    for (uint32_t i = 0; i < n_banks; i++)
        w.c.banks[i].src_rows = EXPERTS;
    w.c.max_count = SLOTS - 4;
    world_open(&w, WEIR_COPY_HOST_TO_DEVICE, engine);
    struct weir_cuda_device *cuda = weir_cuda_from(device);
    CUstreamCaptureMode mode;
    ok(weir_cuda_enter(cuda, &mode), "enter");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        graphs[layer] = capture(&w, layer);
    for (uint32_t i = 0; i < n_calls; i++) {
        uint32_t layer = i % 5 == 0 ? LAYERS - 1 : random_below(&random, LAYERS);
        int64_t count = random_percent(&random, 10) ? 0 : random_below(&random, w.c.max_count + 2);
        gather_case_lists(&w.c, &random, w.c.max_count, i % 7 == 0 ? 20 : 0);
        layer_of(&w, layer, &c, bases);
        upload_lists(&w, count);
        bool by_graph = i % 2;
        weir_gather_rows rows = rows_of(&w, i % 4 == 0, count);
        if (by_graph)
            driver_ok(calls.launch(graphs[layer], (CUstream)stream), "graph launch");
        else
            ok(weir_gather_launch(w.gather, &rows, bases, stream), "launch");
        char what[96];
        snprintf(what, sizeof what, "call %u %s, layer %u, %" PRId64 " rows", i,
                 by_graph ? "by graph" : "eager", layer, count);
        verdict(right(&w, &c, count), what);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        driver_ok(calls.destroy_exec(graphs[layer]), "destroy exec");
    weir_cuda_leave(cuda, mode);
    world_close(&w);
    char title[64];
    snprintf(title, sizeof title, "calls and replays, %s, %s", name,
             weir_transfer_engine_name(engine));
    group_end(title);
}

/* Launches of one gather that overlap count what they skip together. */
static void skipped_side_by_side(void)
{
    static struct world w;
    struct random random = { 3 };
    weir_stream *other;
    memset(&w, 0, sizeof w);
    gather_case_banks(&w.c, gather_case_small, 6, SLOTS, EXPERTS);
    w.c.max_count = SLOTS;
    world_open(&w, WEIR_COPY_HOST_TO_DEVICE, WEIR_ENGINE_AUTO);
    ok(ops->stream_create(device, 0, &other), "stream");
    gather_case_lists(&w.c, &random, SLOTS, 40);
    upload_lists(&w, SLOTS);
    ok(ops->stream_synchronize(device, stream), "synchronize");
    weir_gather_rows rows = rows_of(&w, true, 0);
    for (uint32_t i = 0; i < 500; i++) {
        ok(weir_gather_launch(w.gather, &rows, NULL, i % 2 ? other : stream), "launch");
        if (i < 499)
            w.skipped += gather_case_expect(&w.c, w.sides[0].expected, w.sides[1].expected, SLOTS);
    }
    ok(ops->stream_synchronize(device, other), "synchronize");
    verdict(right(&w, &w.c, SLOTS), "two streams");
    ops->stream_destroy(device, other);
    world_close(&w);
    group_end("two streams, indices outside");
}

/* ---- Device memory ------------------------------------------------------------ */

static size_t available(void)
{
    struct weir_cuda_device *cuda = weir_cuda_from(device);
    CUstreamCaptureMode mode;
    size_t bytes = 0, total = 0;
    ok(weir_cuda_enter(cuda, &mode), "enter");
    driver_ok(calls.memory(&bytes, &total), "cuMemGetInfo");
    weir_cuda_leave(cuda, mode);
    return bytes;
}

/* Before any other launch: no kernel grows what the GPU sets aside for stacks. */
static void first_launch_takes_no_memory(void)
{
    static struct world w;
    struct random random = { 4 };
    gather_case_banks(&w.c, gather_case_experts, 6, 4, 4);
    w.c.max_count = 4;
    world_open(&w, WEIR_COPY_HOST_TO_DEVICE, WEIR_ENGINE_AUTO);
    gather_case_lists(&w.c, &random, 4, 0);
    size_t before = available();
    eager(&w, 4, true, "the first launch");
    size_t after = available();
    size_t taken = after < before ? before - after : 0;
    verdict(taken < 8 * MIB, "the first launch takes device memory");
    world_close(&w);
    char title[64];
    snprintf(title, sizeof title, "the first launch, %zu bytes taken", taken);
    group_end(title);
}

int main(int argc, char **argv)
{
    static const int64_t few[] = { 0, 1, 2, 3, 5, 8, 16, 31, 32 };
    static const int64_t many[] = { 0, 1, 4, 31, 32, 33, 64, 65, 150, 299, 599, 600 };
    static const uint64_t mixed[] = { 65536, 200, 4096, 24, 132, 1, 8192, 40, 1000 };
    uint32_t n_calls = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 44000;
    tier_open_device(argc, argv);
    find_graphs(&calls);
    if (!weir_cuda_from(device)->kernels->compute) {
        printf("skipped: no kernel for this gpu\n");
        return 77;
    }
    first_launch_takes_no_memory();
    counts_of("experts", gather_case_experts, 6, 36, few, 9);
    counts_of("small banks", gather_case_small, 6, 640, many, 12);
    counts_of("odd banks", gather_case_odd, 4, 640, many, 12);
    counts_of("mixed banks", mixed, 9, 80, many, 7);
    random_banks(1);
    random_banks(16);
    many_experts(WEIR_ENGINE_AUTO);
    many_calls(gather_case_small, 6, WEIR_ENGINE_AUTO, n_calls * 3 / 4, "small");
    many_calls(gather_case_small, 6, WEIR_ENGINE_VECTOR, n_calls / 8, "small");
    many_calls(gather_case_odd, 4, WEIR_ENGINE_AUTO, n_calls / 16, "odd");
    many_calls(mixed, 9, WEIR_ENGINE_AUTO, n_calls / 16, "mixed");
    skipped_side_by_side();
    return tier_close_device();
}
