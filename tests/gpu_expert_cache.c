/* SPDX-License-Identifier: Apache-2.0 */

/* The expert cache on a real GPU: after each call every array is compared with
 * what the host's function leaves, eager and by graph; then whole decode steps,
 * updates and gathers of all layers in one graph, byte for byte. Times of a call,
 * for the reader only. Exit 77 without a GPU.
 *
 * usage: gpu_expert_cache [ORDINAL [CALLS]]
 *   CALLS  compared calls of the smaller caches, in all (40000) */

#include "expert_model.h"
#include "gather/expert_cache.h"
#include "gather/expert_host.h"
#include "gpu_tier.h"

#include "device/cuda_kernels.h"

#include <time.h>

static struct gpu_graphs calls;

static CUstreamCaptureMode enter(void)
{
    CUstreamCaptureMode mode;
    ok(weir_cuda_enter(weir_cuda_from(device), &mode), "enter");
    return mode;
}

static void leave(CUstreamCaptureMode mode)
{
    weir_cuda_leave(weir_cuda_from(device), mode);
}

static void begin_capture(void)
{
    driver_ok(calls.begin((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "begin capture");
}

static CUgraphExec end_capture(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    driver_ok(calls.end((CUstream)stream, &graph), "end capture");
    driver_ok(calls.instantiate(&exec, graph, 0), "instantiate");
    driver_ok(calls.destroy(graph), "destroy graph");
    return exec;
}

static void synchronize(void)
{
    ok(ops->stream_synchronize(device, stream), "synchronize");
}

/* ---- A cache and its twin on the host ---------------------------------------- */

#define MAX_LAYERS 8u

struct size {
    uint32_t n_slots, n_layers, n_experts, max_ids;
};

struct world {
    struct size size;
    weir_expert_cache *cache;
    struct weir_expert_args host;
    struct tier ids;   /* ids, then slots */
    uint8_t *mirror;   /* pinned: the cache's memory */
    int32_t *expected; /* the slots of the last call */
};

static void world_open(struct world *w, const struct size *size)
{
    memset(w, 0, sizeof *w);
    w->size = *size;
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_slots = size->n_slots;
    params.n_layers = size->n_layers;
    params.n_experts = size->n_experts;
    params.max_ids = size->max_ids;
    ok(weir_expert_cache_create(&w->cache, device, &params), "create");
    expert_state_open(&w->host, size->n_slots, size->n_layers, size->n_experts, size->max_ids,
                      w->cache->args.order_mask + 1);
    weir_expert_host_reset(&w->host);
    tier_open(&w->ids, true, 8ull * size->max_ids);
    w->mirror = pin(w->cache->device_bytes);
    w->expected = malloc(size->max_ids * sizeof *w->expected);
}

static void world_close(struct world *w)
{
    unpin(w->mirror, w->cache->device_bytes);
    tier_close(&w->ids);
    weir_expert_cache_destroy(&w->cache);
    expert_state_close(&w->host);
    free(w->expected);
}

static int32_t *device_ids(const struct world *w)
{
    return (int32_t *)(uintptr_t)w->ids.address;
}

static weir_expert_ids call_of(const struct world *w, uint32_t layer, uint32_t n, bool in_place)
{
    return (weir_expert_ids){ layer, n, device_ids(w),
                              in_place ? device_ids(w) : device_ids(w) + w->size.max_ids };
}

static bool same(const struct world *w, const void *on_device, const void *on_host, uint64_t bytes)
{
    return memcmp(w->mirror + ((uintptr_t)on_device - w->cache->memory), on_host, bytes) == 0;
}

/* Every array, once the stream has been synchronized. */
static const char *difference(struct world *w)
{
    const struct weir_expert_args *a = &w->cache->args, *b = &w->host;
    uint64_t n_rows = (uint64_t)*b->count;
    transfer_bytes((uintptr_t)w->mirror, w->cache->memory, w->cache->device_bytes);
    synchronize();
    if (!same(w, a->slot_of, b->slot_of, 4ull * a->n_ids) ||
        !same(w, a->id_of, b->id_of, 4ull * a->n_slots))
        return "the tables";
    if (!same(w, a->count, b->count, 8) || !same(w, a->dst_rows, b->dst_rows, 4 * n_rows) ||
        !same(w, a->src_rows, b->src_rows, 4 * n_rows))
        return "the lists";
    uint32_t length = b->ends[1] - b->ends[0];
    if (!same(w, a->ends, b->ends, 8) || !same(w, a->place, b->place, 4ull * a->n_slots))
        return "the order's ends or places";
    for (uint32_t i = 0; i < length; i++) {
        uint32_t at = (b->ends[0] + i) & b->order_mask;
        if (!same(w, a->order + at, b->order + at, 4))
            return "the order";
    }
    if (!same(w, a->totals, b->totals, 8 * WEIR_EXPERT_TOTALS) ||
        memcmp(a->published, b->totals, 8 * WEIR_EXPERT_TOTALS) != 0)
        return "the totals";
    return NULL;
}

/* The twin's call on the ids in staging; what `slots` must hold. */
static void expect(struct world *w, uint32_t layer, uint32_t n)
{
    struct weir_expert_args call = w->host;
    call.ids = (const int32_t *)(const void *)w->ids.staging;
    call.slots = w->expected;
    call.n = n;
    call.id_base = layer * w->size.n_experts;
    weir_expert_host_ensure(&call);
}

/* After the expectation: the ids in staging become the device's ids and slots. */
static void check(struct world *w, uint32_t n, bool in_place, bool all, const char *what)
{
    uint64_t slots = w->ids.address + (in_place ? 0 : 4ull * w->size.max_ids);
    if (n > 0)
        transfer_bytes((uintptr_t)w->ids.staging, slots, 4ull * n);
    synchronize();
    const char *differs = NULL;
    if (memcmp(w->ids.staging, w->expected, 4ull * n) != 0)
        differs = "the slots' numbers";
    else if (all)
        differs = difference(w);
    char text[160];
    snprintf(text, sizeof text, "%s: %s", what, differs ? differs : "");
    verdict(!differs, text);
    group_bytes += 4ull * n;
}

/* Odd calls are replays, of graphs that take max_ids ids, those beyond n none. */
static void compare(const struct size *size, uint32_t n_calls, uint32_t all_every, uint64_t seed)
{
    static struct world w;
    struct random random = { seed };
    CUgraphExec graphs[MAX_LAYERS][2];
    world_open(&w, size);
    CUstreamCaptureMode mode = enter();
    for (uint32_t i = 0; i < 2 * size->n_layers; i++) {
        weir_expert_ids call = call_of(&w, i / 2, size->max_ids, i % 2);
        begin_capture();
        ok(weir_expert_cache_ensure(w.cache, &call, stream), "a call in a capture");
        graphs[i / 2][i % 2] = end_capture();
    }
    for (uint32_t i = 0; i < n_calls; i++) {
        int32_t *ids = (int32_t *)(void *)w.ids.staging;
        uint32_t layer = random_below(&random, size->n_layers);
        bool by_graph = i % 2, in_place = random_percent(&random, 50);
        uint32_t n =
            random_percent(&random, 60) ? size->max_ids : random_below(&random, size->max_ids + 1);
        expert_ids_random(&random, size->n_experts, ids, n);
        for (uint32_t k = n; k < size->max_ids; k++)
            ids[k] = -1;
        if (by_graph)
            n = size->max_ids;
        transfer_bytes(w.ids.address, (uintptr_t)ids, 4ull * size->max_ids);
        weir_expert_ids call = call_of(&w, layer, n, in_place);
        if (by_graph)
            driver_ok(calls.launch(graphs[layer][in_place], (CUstream)stream), "graph launch");
        else
            ok(weir_expert_cache_ensure(w.cache, &call, stream), "ensure");
        synchronize(); /* the ids are in staging */
        expect(&w, layer, n);
        char what[64];
        snprintf(what, sizeof what, "call %u%s", i, by_graph ? " by graph" : "");
        check(&w, n, in_place, i % all_every == 0 || i + 1 == n_calls, what);
    }
    for (uint32_t i = 0; i < 2 * size->n_layers; i++)
        driver_ok(calls.destroy_exec(graphs[i / 2][i % 2]), "destroy exec");
    leave(mode);
    world_close(&w);
    char title[96];
    snprintf(title, sizeof title, "%u slots, %u x %u, %u ids", size->n_slots, size->n_layers,
             size->n_experts, size->max_ids);
    group_end(title);
}

/* ---- Decode steps ------------------------------------------------------------- */

#define BANKS 3u
#define STEP_LAYERS 6u
#define STEP_EXPERTS 32u
#define STEP_SLOTS 24u
#define STEP_IDS 8u

static const uint32_t row_bytes[BANKS] = { 4096, 132, 24 };

struct decode {
    struct tier ids; /* [layer][id], then slots of the same shape */
    struct tier banks[BANKS];
    struct tier slots[BANKS];
    weir_expert_cache *cache;
    weir_gather *gather;
    CUgraphExec graph;
    struct expert_model model;
};

static void decode_open(struct decode *d)
{
    weir_bank banks[BANKS];
    memset(d, 0, sizeof *d);
    tier_open(&d->ids, true, 2 * 4 * STEP_LAYERS * STEP_IDS);
    for (uint32_t b = 0; b < BANKS; b++) {
        tier_open(&d->banks[b], false, (uint64_t)STEP_LAYERS * STEP_EXPERTS * row_bytes[b]);
        tier_open(&d->slots[b], true, (uint64_t)STEP_SLOTS * row_bytes[b]);
        fill(&d->banks[b], 2 * b);
        fill(&d->slots[b], 2 * b + 1);
        banks[b] = (weir_bank){ .dst = d->slots[b].address,
                                .src = d->banks[b].address,
                                .row_bytes = row_bytes[b],
                                .dst_rows = STEP_SLOTS,
                                .src_rows = STEP_EXPERTS };
    }
    weir_gather_params gather;
    weir_gather_params_init(&gather);
    gather.banks = banks;
    gather.n_banks = BANKS;
    gather.max_count = STEP_IDS;
    ok(weir_gather_create(&d->gather, device, &gather), "gather");
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_slots = STEP_SLOTS;
    params.n_layers = STEP_LAYERS;
    params.n_experts = STEP_EXPERTS;
    params.max_ids = STEP_IDS;
    ok(weir_expert_cache_create(&d->cache, device, &params), "create");
    expert_model_open(&d->model, STEP_SLOTS, STEP_EXPERTS, STEP_IDS);
}

static void decode_close(struct decode *d)
{
    driver_ok(calls.destroy_exec(d->graph), "destroy exec");
    weir_expert_cache_destroy(&d->cache);
    weir_gather_destroy(&d->gather);
    expert_model_close(&d->model);
    tier_close(&d->ids);
    for (uint32_t b = 0; b < BANKS; b++) {
        tier_close(&d->banks[b]);
        tier_close(&d->slots[b]);
    }
}

/* Layer by layer, as a server's forward pass would. */
static void decode_enqueue(struct decode *d)
{
    int32_t *ids = (int32_t *)(uintptr_t)d->ids.address;
    for (uint32_t layer = 0; layer < STEP_LAYERS; layer++) {
        weir_bank_bases bases[BANKS];
        for (uint32_t b = 0; b < BANKS; b++)
            bases[b] = (weir_bank_bases){ d->slots[b].address,
                                          d->banks[b].address +
                                              (uint64_t)layer * STEP_EXPERTS * row_bytes[b] };
        weir_expert_ids call = { layer, STEP_IDS, ids + layer * STEP_IDS,
                                 ids + (STEP_LAYERS + layer) * STEP_IDS };
        ok(weir_expert_cache_step(d->cache, &call, d->gather, bases, stream), "step");
    }
}

static void decode_expect(struct decode *d, const int32_t *ids, int32_t *slots)
{
    for (uint32_t layer = 0; layer < STEP_LAYERS; layer++) {
        expert_model_ensure(&d->model, layer * STEP_EXPERTS, ids + layer * STEP_IDS, STEP_IDS,
                            slots + layer * STEP_IDS);
        for (uint32_t i = 0; i < d->model.n_given; i++) {
            uint64_t row = layer * STEP_EXPERTS + (uint64_t)d->model.missing[i];
            for (uint32_t b = 0; b < BANKS; b++)
                memcpy(d->slots[b].expected + (uint64_t)d->model.victims[i] * row_bytes[b],
                       d->banks[b].expected + row * row_bytes[b], row_bytes[b]);
        }
    }
}

static void decode_steps(uint32_t n_steps)
{
    static struct decode d;
    struct random random = { n_steps };
    int32_t expected[STEP_LAYERS * STEP_IDS];
    decode_open(&d);
    CUstreamCaptureMode mode = enter();
    begin_capture();
    decode_enqueue(&d);
    d.graph = end_capture();
    for (uint32_t i = 0; i < n_steps; i++) {
        int32_t *ids = (int32_t *)(void *)d.ids.staging;
        expert_ids_random(&random, STEP_EXPERTS, ids, STEP_LAYERS * STEP_IDS);
        transfer_bytes(d.ids.address, (uintptr_t)ids, sizeof expected);
        if (i % 4)
            driver_ok(calls.launch(d.graph, (CUstream)stream), "graph launch");
        else
            decode_enqueue(&d);
        synchronize();
        decode_expect(&d, ids, expected);
        transfer_bytes((uintptr_t)ids, d.ids.address + sizeof expected, sizeof expected);
        synchronize();
        bool right = memcmp(ids, expected, sizeof expected) == 0;
        for (uint32_t b = 0; b < BANKS; b++)
            right = holds(&d.slots[b]) && right;
        char what[64];
        snprintf(what, sizeof what, "step %u %s", i, i % 4 ? "by graph" : "eager");
        verdict(right, what);
    }
    uint32_t skipped = 1;
    ok(weir_gather_errors(d.gather, &skipped), "errors");
    verdict(skipped == 0, "rows skipped by the gather");
    leave(mode);
    decode_close(&d);
    group_end("decode steps, updates and gathers");
}

/* ---- Times --------------------------------------------------------------------- */

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Replays of 200 calls. Those with misses alternate between two sets of ids, for
 * which there is not room together. */
static void time_calls(const struct size *size, uint32_t n, bool misses)
{
    static struct world w;
    enum {
        CALLS = 200,
        REPLAYS = 20
    };
    world_open(&w, size);
    int32_t *ids = (int32_t *)(void *)w.ids.staging;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)i;
        ids[size->max_ids + i] = (int32_t)(n + i);
    }
    transfer_bytes(w.ids.address, (uintptr_t)ids, w.ids.bytes);
    struct tier slots;
    tier_open(&slots, true, 4ull * n);
    CUstreamCaptureMode mode = enter();
    begin_capture();
    for (uint32_t i = 0; i < CALLS; i++) {
        weir_expert_ids call = { 0, n, device_ids(&w) + (misses && i % 2 ? size->max_ids : 0),
                                 (int32_t *)(uintptr_t)slots.address };
        ok(weir_expert_cache_ensure(w.cache, &call, stream), "a call in a capture");
    }
    CUgraphExec graph = end_capture();
    double began = 0;
    for (uint32_t i = 0; i <= REPLAYS; i++) {
        driver_ok(calls.launch(graph, (CUstream)stream), "graph launch");
        synchronize();
        if (i == 0)
            began = now_us();
    }
    printf("  %6u slots, %5u experts, %4u ids, %s: %6.2f us a call\n", size->n_slots,
           size->n_experts, n, misses ? "all missing" : "no miss",
           (now_us() - began) / CALLS / REPLAYS);
    driver_ok(calls.destroy_exec(graph), "destroy exec");
    leave(mode);
    tier_close(&slots);
    world_close(&w);
}

static void times(void)
{
    static const uint32_t n_ids[] = { 8, 64, 512 };
    for (uint32_t i = 0; i < 3; i++) {
        const struct size large = { 40000, 1, 65536, n_ids[i] };
        const struct size small = { 2000, 1, 1024, n_ids[i] };
        const struct size tight = { n_ids[i], 1, 1024, n_ids[i] };
        time_calls(&small, n_ids[i], false);
        time_calls(&large, n_ids[i], false);
        time_calls(&tight, n_ids[i], true);
    }
}

int main(int argc, char **argv)
{
    static const struct size sizes[] = {
        { 1, 1, 4, 4 },     { 10, 3, 16, 8 },      { 24, 4, 32, 8 },    { 300, 8, 128, 64 },
        { 700, 4, 256, 8 }, { 2000, 8, 512, 128 }, { 60, 2, 128, 512 },
    };
    static const struct size large[] = { { 40000, 8, 8192, 512 },
                                         { 65536, 2, 65536, 4096 },
                                         { WEIR_EXPERT_MAX_SLOTS, 4, 65536, 20000 } };
    uint32_t n_calls = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 40000;
    uint32_t n_sizes = sizeof sizes / sizeof *sizes;
    tier_open_device(argc, argv);
    find_graphs(&calls);
    if (!weir_cuda_from(device)->kernels->functions[WEIR_KERNEL_EXPERT_ENSURE]) {
        printf("skipped: no kernel for this gpu\n");
        return 77;
    }
    for (uint32_t i = 0; i < n_sizes; i++)
        compare(&sizes[i], n_calls / n_sizes + 1, 1, 50 + i);
    compare(&large[0], 2000, 100, 1);
    compare(&large[1], 500, 50, 2);
    compare(&large[2], 60, 6, 3);
    decode_steps(3000);
    times();
    return tier_close_device();
}
