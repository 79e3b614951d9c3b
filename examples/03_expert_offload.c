/* SPDX-License-Identifier: Apache-2.0
 * Decode steps of a mixture of experts whose experts are too many for device memory: they live in
 * pinned host memory, a cache on the device holds some, and each layer brings in what it misses.
 * Then the same with all experts on the device: the outputs are equal, bit for bit. On the CPU
 * device and, where there is one, on a GPU, which runs a whole decode step as one graph. */
#include "03_expert_offload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(calls) ((calls) == 0 ? (void)0 : (fprintf(stderr, "failed: %s\n", #calls), exit(1)))
enum {
    SLOTS = 40,
    STEPS = 50,
    BANKS = 2
}; /* of 192 experts, 40 on the device */
static const size_t row_bytes[BANKS] = { WIDTH * WIDTH, WIDTH * sizeof(int32_t) };

static const struct backend *backend;
static weir_device *device;
static weir_stream *stream;
static uint8_t *experts[BANKS]; /* pinned: [LAYERS][EXPERTS] rows */
static struct layer layers[LAYERS];
static weir_expert_cache *cache;
static weir_gather *gather;
static weir_bank_bases bases[LAYERS][BANKS];
static uint32_t outputs[2][STEPS][TOKENS * WIDTH];

/* ---- The CPU device: memory is memory, a kernel is a function ------------------------------- */

static void *cpu_memory(size_t bytes)
{
    static _Alignas(64) uint8_t memory[4 << 20];
    static size_t used;
    size_t at = used;
    used += (bytes + 63) / 64 * 64;
    return used <= sizeof memory ? memory + at : NULL;
}

static void cpu_copy(void *to, const void *from, size_t bytes, weir_stream *s)
{
    TRY(weir_cpu_stream_synchronize(device, s));
    memcpy(to, from, bytes);
}

static weir_stream *cpu_stream(weir_device *d)
{
    weir_stream *s;
    TRY(weir_cpu_stream_create(d, &s));
    return s;
}

static void run_route(void *arg)
{
    for (uint32_t token = 0; token < TOKENS; token++)
        route(arg, token);
}

static void run_forward(void *arg)
{
    for (uint32_t i = 0; i < TOKENS * WIDTH; i++)
        forward(arg, i / WIDTH, i % WIDTH);
}

static void cpu_route(const struct layer *layer, weir_stream *s)
{
    TRY(weir_cpu_launch(device, s, run_route, (void *)(uintptr_t)layer, NULL, 0));
}

static void cpu_forward(const struct layer *layer, weir_stream *s)
{
    TRY(weir_cpu_launch(device, s, run_forward, (void *)(uintptr_t)layer, NULL, 0));
}

static const struct backend cpu_backend = {
    .kind = WEIR_DEVICE_CPU,
    .memory = cpu_memory,
    .pinned = cpu_memory,
    .copy = cpu_copy,
    .stream = cpu_stream,
    .route = cpu_route,
    .forward = cpu_forward,
};

/* ---- A decode step -------------------------------------------------------------------------- */

/* Enqueues it: the host learns neither what is chosen nor what is missing. */
static void decode(void *cached)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        weir_expert_ids ids = { l, IDS, layers[l].ids, layers[l].ids };
        backend->route(&layers[l], stream);
        if (cached) /* ids become slots, and the slots hold their experts */
            TRY(weir_expert_cache_step(cache, &ids, gather, bases[l], stream));
        backend->forward(&layers[l], stream);
    }
}

/* The rows of both banks on the device, for the layers to read. */
static void place_experts(uint32_t n_rows, bool cached)
{
    uint8_t *rows[BANKS];
    weir_bank banks[BANKS];
    for (uint32_t b = 0; b < BANKS; b++) {
        TRY(!(rows[b] = backend->memory(n_rows * row_bytes[b])));
        banks[b] = (weir_bank){ .dst = (uintptr_t)rows[b],
                                .src = (uintptr_t)experts[b],
                                .row_bytes = row_bytes[b],
                                .dst_rows = n_rows,
                                .src_rows = EXPERTS };
        if (!cached)
            backend->copy(rows[b], experts[b], n_rows * row_bytes[b], stream);
    }
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l].weights = (const int8_t *)rows[0];
        layers[l].bias = (const int32_t *)(void *)rows[1];
        layers[l].first_row = cached ? 0 : (int32_t)(l * EXPERTS);
        for (uint32_t b = 0; b < BANKS; b++)
            bases[l][b] = (weir_bank_bases){ (uintptr_t)rows[b],
                                             (uintptr_t)experts[b] + l * EXPERTS * row_bytes[b] };
    }
    if (!cached)
        return;
    weir_gather_params g;
    weir_expert_cache_params c;
    weir_gather_params_init(&g);
    weir_expert_cache_params_init(&c);
    g.banks = banks;
    g.n_banks = BANKS;
    g.max_count = IDS;
    c.n_layers = LAYERS;
    c.n_experts = EXPERTS;
    c.n_slots = SLOTS;
    c.max_ids = IDS;
    TRY(weir_gather_create(&gather, device, &g) || weir_expert_cache_create(&cache, device, &c));
}

/* The layers pass the tokens from one buffer to the other and back. */
static void run(bool cached, uint32_t n_rows, uint32_t out[STEPS][TOKENS * WIDTH])
{
    static uint32_t first[TOKENS * WIDTH];
    uint32_t *tokens[2];
    for (int i = 0; i < 2; i++)
        TRY(!(tokens[i] = backend->memory(sizeof first)));
    for (uint32_t i = 0; i < TOKENS * WIDTH; i++)
        first[i] = mix(i, 77);
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] = (struct layer){ .in = tokens[l % 2], .out = tokens[(l + 1) % 2], .number = l };
        TRY(!(layers[l].ids = backend->memory(IDS * sizeof(int32_t))));
    }
    place_experts(n_rows, cached);
    backend->copy(tokens[0], first, sizeof first, stream);
    void *user = cached ? layers : NULL;
    void *graph = backend->record ? backend->record(decode, user, stream) : NULL;
    for (uint32_t step = 0; step < STEPS; step++) {
        if (graph)
            backend->play(graph, stream);
        else
            decode(user);
        backend->copy(out[step], tokens[LAYERS % 2], sizeof first, stream);
    }
}

/* False: there is no such device. */
static bool compare_on(const struct backend *b)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = b->kind;
    backend = b;
    int rc = weir_device_open(&device, &params);
    if (rc == -ENODEV)
        return false;
    TRY(rc);
    stream = b->stream(device);
    for (uint32_t bank = 0; bank < BANKS; bank++) {
        size_t bytes = LAYERS * EXPERTS * row_bytes[bank];
        TRY(!(experts[bank] = b->pinned(bytes)));
        for (size_t i = 0; i < bytes; i++)
            experts[bank][i] = (uint8_t)mix((uint32_t)i, bank);
    }
    run(false, LAYERS * EXPERTS, outputs[0]);
    run(true, SLOTS, outputs[1]);

    weir_expert_cache_stats stats = { .struct_size = sizeof stats };
    TRY(weir_expert_cache_get_stats(cache, &stats));
    bool equal = memcmp(outputs[0], outputs[1], sizeof outputs[0]) == 0;
    printf("%s: %d steps, %d of %d experts on the device: %llu hits, %llu misses, outputs %s\n",
           weir_device_name(device), STEPS, SLOTS, LAYERS * EXPERTS, (unsigned long long)stats.hits,
           (unsigned long long)stats.misses, equal ? "equal" : "DIFFER");
    TRY(!equal || stats.hits == 0 || stats.misses == 0 || stats.skipped > 0);
    weir_expert_cache_destroy(&cache);
    weir_gather_destroy(&gather);
    return true;
}

int main(void)
{
    TRY(!compare_on(&cpu_backend));
    weir_cpu_stream_destroy(device, &stream);
    TRY(weir_device_close(&device));
#if HAVE_CUDA
    static uint32_t of_cpu[STEPS][TOKENS * WIDTH];
    memcpy(of_cpu, outputs[0], sizeof of_cpu);
    if (!compare_on(&cuda_backend)) {
        printf("cuda: no GPU\n");
        return 0;
    }
    TRY(memcmp(of_cpu, outputs[0], sizeof of_cpu)); /* both devices agree, too */
    TRY(weir_device_close(&device));
#endif
    return 0;
}
