/* SPDX-License-Identifier: Apache-2.0 */

/* The CUDA device on a real GPU: every op of the contract, and the copy engine
 * byte for byte over all host layouts. Exit 77 without a GPU.
 *
 * usage: gpu_device [ORDINAL] */

#include "copy_model.h"
#include "device/cuda_device.h"
#include "gpu_graphs.h"
#include "pool/host_memory.h"
#include "random.h"

#include <weir/cuda.h>
#include <weir/rank.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGES 24u
#define MAX_PLANES 16u
#define MIB (UINT64_C(1) << 20)

static unsigned n_checks;
static unsigned n_failed;

#define CHECK(condition)                                                   \
    do {                                                                   \
        n_checks++;                                                        \
        if (!(condition)) {                                                \
            n_failed++;                                                    \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                  \
    } while (0)

struct gpu {
    weir_device *device;
    const struct weir_device_ops *ops;
    struct weir_cuda_device *cuda;
    weir_stream *stream;
    weir_stream *other;
    bool blocking; /* CUDA_LAUNCH_BLOCKING: what the host holds back would hold the host */
};

/* The host lets work go on that waits for this value: before it is enqueued or
 * after. */
static void release_before(struct gpu *gpu, uint32_t *word, uint32_t value)
{
    if (gpu->blocking)
        gpu->ops->word_store(gpu->device, word, value);
}

static void release_after(struct gpu *gpu, uint32_t *word, uint32_t value)
{
    if (!gpu->blocking)
        gpu->ops->word_store(gpu->device, word, value);
}

/* A copy of any two addresses, pinned or the device's, with the driver alone. */
static void copy_bytes(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes)
{
    CUstreamCaptureMode mode;
    if (weir_cuda_enter(gpu->cuda, &mode)) {
        CHECK(!"the device is there");
        return;
    }
    for (uint64_t at = 0; at < bytes; at += MIB)
        CHECK(gpu->cuda->driver->cuMemcpyAsync(to + at, from + at,
                                               bytes - at < MIB ? bytes - at : MIB,
                                               (CUstream)gpu->stream) == 0);
    CHECK(gpu->cuda->driver->cuStreamSynchronize((CUstream)gpu->stream) == 0);
    weir_cuda_leave(gpu->cuda, mode);
}

/* ---- Streams, events, words ------------------------------------------------ */

static void check_words(struct gpu *gpu)
{
    const struct weir_device_ops *ops = gpu->ops;
    weir_device *d = gpu->device;
    uint32_t *words = NULL;
    CHECK(ops->words_alloc(d, 4096, &words) == 0);
    if (!words)
        return;
    bool zero = true;
    for (uint32_t i = 0; i < 4096; i++)
        zero = zero && words[i] == 0;
    CHECK(zero);
    for (uint32_t value = 1; value <= 1000; value++) {
        CHECK(ops->stream_write_word(d, gpu->stream, &words[0], value) == 0);
        CHECK(ops->stream_wait_word(d, gpu->other, &words[0], value) == 0);
        CHECK(ops->stream_write_word(d, gpu->other, &words[4095], value) == 0);
        if (value % 100 == 0)
            CHECK(ops->stream_synchronize(d, gpu->other) == 0 &&
                  ops->word_load(d, &words[4095]) == value);
    }
    /* Cyclic: 1000 is ahead of a value that is negative as an int32. */
    CHECK(ops->stream_wait_word(d, gpu->other, &words[0], UINT32_MAX - 5) == 0);
    CHECK(ops->stream_synchronize(d, gpu->other) == 0);

    /* The host releases a stream. */
    release_before(gpu, &words[1], 3);
    CHECK(ops->stream_wait_word(d, gpu->stream, &words[1], 3) == 0);
    CHECK(ops->stream_write_word(d, gpu->stream, &words[2], 4) == 0);
    CHECK(gpu->blocking || ops->word_load(d, &words[2]) == 0);
    release_after(gpu, &words[1], 3);
    CHECK(ops->stream_synchronize(d, gpu->stream) == 0);
    CHECK(ops->word_load(d, &words[2]) == 4);
    ops->words_free(d, words);
}

static void check_events(struct gpu *gpu)
{
    const struct weir_device_ops *ops = gpu->ops;
    weir_device *d = gpu->device;
    weir_event *event = NULL;
    uint32_t *words = NULL;
    CHECK(ops->event_create(d, &event) == 0);
    CHECK(ops->words_alloc(d, 3, &words) == 0);
    if (!event || !words)
        return;
    CHECK(ops->stream_wait_event(d, gpu->other, event) == 0); /* never recorded */
    CHECK(ops->stream_synchronize(d, gpu->other) == 0);
    for (uint32_t value = 1; value <= 100; value++) {
        release_before(gpu, &words[0], value);
        CHECK(ops->stream_wait_word(d, gpu->stream, &words[0], value) == 0);
        CHECK(ops->stream_write_word(d, gpu->stream, &words[1], value) == 0);
        CHECK(ops->event_record(d, event, gpu->stream) == 0);
        CHECK(ops->stream_wait_event(d, gpu->other, event) == 0);
        CHECK(ops->stream_write_word(d, gpu->other, &words[2], value) == 0);
        CHECK(gpu->blocking || ops->word_load(d, &words[2]) == value - 1);
        release_after(gpu, &words[0], value);
        CHECK(ops->stream_synchronize(d, gpu->other) == 0);
        CHECK(ops->word_load(d, &words[1]) == value && ops->word_load(d, &words[2]) == value);
    }
    /* Destroying a stream waits for its work. */
    weir_stream *made = NULL;
    for (int priority = -1; priority <= 9; priority++) {
        CHECK(ops->stream_create(d, priority, &made) == 0);
        CHECK(ops->stream_write_word(d, made, &words[2], 1000 + (uint32_t)priority) == 0);
        ops->stream_destroy(d, made);
        CHECK(ops->word_load(d, &words[2]) == 1000 + (uint32_t)priority);
    }
    /* The legacy stream, as the runtime's default stream arrives. */
    CHECK(ops->stream_write_word(d, weir_stream_from_cuda(NULL), &words[2], 5000) == 0);
    CHECK(ops->stream_synchronize(d, weir_stream_from_cuda(NULL)) == 0);
    CHECK(ops->word_load(d, &words[2]) == 5000);
    ops->words_free(d, words);
    ops->event_destroy(d, event);
}

/* ---- Pools ----------------------------------------------------------------- */

struct pools {
    struct weir_geometry *geometry;
    struct weir_host_memory *host;
    struct weir_host_memory *mirror; /* of the device's pool: pinned, to fill and look at it */
    uint64_t device_base;
    uint64_t device_bytes;
    uint8_t *device_model;
    uint8_t *host_model;
    uint32_t *words;
    void *state;
    weir_device_plane planes[MAX_PLANES];
};

static void close_pools(struct gpu *gpu, struct pools *pools)
{
    free(pools->device_model);
    free(pools->host_model);
    gpu->ops->transfer_release(gpu->device, pools->state);
    gpu->ops->words_free(gpu->device, pools->words);
    weir_host_memory_destroy(&pools->mirror);
    weir_host_memory_destroy(&pools->host);
    gpu->ops->memory_free(gpu->device, pools->device_base);
    weir_geometry_destroy(&pools->geometry);
}

static int pin(struct gpu *gpu, struct weir_host_memory **memory, uint64_t bytes, uint64_t chunk)
{
    struct weir_host_memory_params params = { .bytes = bytes, .granule = 1, .chunk_limit = chunk };
    return weir_host_memory_create(memory, gpu->device, &params, &gpu->device->log);
}

static bool open_pools(struct gpu *gpu, struct pools *pools, const weir_shape *shape,
                       weir_host_layout layout, bool spaced, uint64_t chunk)
{
    const struct weir_device_ops *ops = gpu->ops;
    *pools = (struct pools){ 0 };
    int rc = 0;
    if (spaced) {
        pools->device_bytes = model_spaced_planes(shape, PAGES, pools->planes);
        rc = ops->memory_alloc(gpu->device, pools->device_bytes, &pools->device_base);
        for (uint32_t i = 0; i < MAX_PLANES; i++)
            pools->planes[i].base += pools->device_base;
    }
    if (rc == 0)
        rc = weir_geometry_create(&pools->geometry, shape, spaced ? pools->planes : NULL, PAGES,
                                  layout, PAGES, 0, &gpu->device->log);
    if (rc == 0 && !spaced) {
        pools->device_bytes = weir_geometry_device_bytes(pools->geometry);
        rc = ops->memory_alloc(gpu->device, pools->device_bytes, &pools->device_base);
    }
    if (rc == 0)
        rc = pin(gpu, &pools->host, pools->geometry->host_bytes, chunk);
    if (rc == 0)
        rc = pin(gpu, &pools->mirror, pools->device_bytes, 0);
    if (rc == 0)
        weir_geometry_bind(pools->geometry, spaced ? 0 : pools->device_base,
                           (uintptr_t)pools->host->base, pools->host->chunk_bytes);
    if (rc == 0)
        rc = ops->words_alloc(gpu->device, shape->n_layers, &pools->words);
    if (rc == 0)
        rc = ops->transfer_prepare(gpu->device, pools->geometry, PAGES, &pools->state);
    if (rc == 0) {
        pools->device_model = malloc(pools->device_bytes);
        pools->host_model = malloc(pools->host->bytes);
        rc = pools->device_model && pools->host_model ? 0 : -ENOMEM;
    }
    CHECK(rc == 0);
    if (rc)
        close_pools(gpu, pools);
    return rc == 0;
}

static void fill(struct random *random, uint8_t *bytes, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += 8) {
        uint64_t value = random_next(random);
        memcpy(bytes + at, &value, n - at < 8 ? n - at : 8);
    }
}

static void fill_pools(struct gpu *gpu, struct pools *pools, struct random *random)
{
    fill(random, pools->device_model, pools->device_bytes);
    fill(random, pools->host_model, pools->host->bytes);
    memcpy(pools->mirror->base, pools->device_model, pools->device_bytes);
    memcpy(pools->host->base, pools->host_model, pools->host->bytes);
    copy_bytes(gpu, pools->device_base, (uintptr_t)pools->mirror->base, pools->device_bytes);
}

static void check_pools(struct gpu *gpu, struct pools *pools)
{
    copy_bytes(gpu, (uintptr_t)pools->mirror->base, pools->device_base, pools->device_bytes);
    CHECK(memcmp(pools->mirror->base, pools->device_model, pools->device_bytes) == 0);
    CHECK(memcmp(pools->host->base, pools->host_model, pools->host->bytes) == 0);
}

/* Pages in runs of 1..8 and alone, the first and the last page among them. */
static uint32_t make_runs(struct random *random, const struct weir_geometry *geometry,
                          struct weir_run *runs)
{
    weir_move moves[PAGES];
    uint32_t n = 0;
    uint32_t shift = random_below(random, PAGES);
    for (uint32_t i = 0; i < PAGES; i++)
        if (i == 0 || i == PAGES - 1 || !random_percent(random, 20))
            moves[n++] = (weir_move){ { (int32_t)i + 1 }, { (int32_t)((i + shift) % PAGES) + 1 } };
    return weir_plan_runs(geometry, moves, n, runs);
}

/* ---- The copy engine ------------------------------------------------------- */

static struct weir_transfer make_transfer(const struct pools *pools, const struct weir_run *runs,
                                          uint32_t n_runs, enum weir_direction direction,
                                          uint32_t generation)
{
    return (struct weir_transfer){ .geometry = pools->geometry,
                                   .runs = runs,
                                   .n_runs = n_runs,
                                   .direction = direction,
                                   .layer_end = pools->geometry->n_layers,
                                   .words = pools->words,
                                   .generation = generation,
                                   .state = pools->state };
}

/* Another stream waits for the last layer's word, as a forward pass does, so
 * that synchronizing it must be enough to see all bytes. */
static void check_one_copy(struct gpu *gpu, struct pools *pools, struct random *random,
                           enum weir_direction direction, uint32_t generation)
{
    struct weir_run runs[PAGES];
    uint32_t n_runs = make_runs(random, pools->geometry, runs);
    struct weir_transfer transfer = make_transfer(pools, runs, n_runs, direction, generation);
    uint32_t n_layers = transfer.layer_end;
    uint32_t enqueued = 99;
    fill_pools(gpu, pools, random);
    int rc = gpu->ops->copy(gpu->device, gpu->stream, &transfer, &enqueued);
    CHECK(rc == 0 && enqueued == n_layers);
    if (rc) /* the words would never come */
        return;
    for (uint32_t l = 0; l < n_layers; l++)
        model_copy_layer(&transfer, l, pools->device_model, pools->device_base, pools->host_model);
    CHECK(gpu->ops->stream_wait_word(gpu->device, gpu->other, &pools->words[n_layers - 1],
                                     generation) == 0);
    CHECK(gpu->ops->stream_synchronize(gpu->device, gpu->other) == 0);
    for (uint32_t l = 0; l < n_layers; l++)
        CHECK(gpu->ops->word_load(gpu->device, &pools->words[l]) == generation);
    check_pools(gpu, pools);
}

static void check_shape(struct gpu *gpu, const weir_shape *shape, const char *name)
{
    struct random random = { 1 };
    unsigned failed_before = n_failed;
    for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++) {
        if (layout == WEIR_HOST_PAGE_FIRST && shape->tensors[0].row_bytes == 0)
            continue;
        for (int spaced = 0; spaced < 2; spaced++)
            for (int chunked = 0; chunked < 2; chunked++) {
                struct pools pools;
                if (!open_pools(gpu, &pools, shape, (weir_host_layout)layout, spaced,
                                chunked ? MIB : 0))
                    continue;
                for (uint32_t i = 0; i < 2; i++)
                    check_one_copy(gpu, &pools, &random, (enum weir_direction)i, i + 1);
                close_pools(gpu, &pools);
            }
    }
    printf("%-40s %s\n", name, n_failed == failed_before ? "ok" : "FAILED");
}

static void check_shapes(struct gpu *gpu)
{
    static const uint32_t rows[] = { 132, 512, 576, 656, 1152, 2048 };
    bool batches = atomic_load(&gpu->cuda->batches);
    for (int batched = 0; batched < 1 + batches; batched++) {
        atomic_store(&gpu->cuda->batches, batched);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            weir_tensor tensors[2];
            for (int t = 0; t < 2; t++)
                tensors[t] = (weir_tensor){ .page_bytes = 64 * rows[i], .row_bytes = rows[i] };
            weir_shape shape = {
                .page_tokens = 64, .n_layers = 3, .n_tensors = 2, .tensors = tensors
            };
            char name[64];
            snprintf(name, sizeof name, "copy engine, %s, %u-byte rows",
                     batched ? "batches" : "one by one", rows[i]);
            check_shape(gpu, &shape, name);
        }
        weir_tensor opaque = { .page_bytes = 3 * MIB + 24 };
        weir_shape shape = { .page_tokens = 64, .n_layers = 2, .n_tensors = 1, .tensors = &opaque };
        check_shape(gpu, &shape,
                    batched ? "copy engine, batches, opaque" : "copy engine, one by one, opaque");
    }
    atomic_store(&gpu->cuda->batches, batches);
}

/* ---- Capture --------------------------------------------------------------- */

/* The ops that may be called while a stream is captured in the strictest mode,
 * the capture surviving all of them. */
static void check_ops_beside_capture(struct gpu *gpu)
{
    const struct weir_device_ops *ops = gpu->ops;
    weir_device *d = gpu->device;
    uint64_t address = 0;
    uint32_t *words = NULL;
    weir_stream *stream = NULL;
    weir_event *event = NULL;
    struct weir_host_memory *memory = NULL;
    CHECK(ops->memory_alloc(d, 1000, &address) == 0);
    CHECK(ops->words_alloc(d, 1, &words) == 0);
    CHECK(ops->stream_create(d, 1, &stream) == 0);
    CHECK(ops->event_create(d, &event) == 0);
    CHECK(pin(gpu, &memory, MIB, 0) == 0);
    if (stream && words && event) {
        CHECK(ops->stream_write_word(d, stream, words, 6) == 0);
        CHECK(ops->event_record(d, event, stream) == 0);
        CHECK(ops->stream_synchronize(d, stream) == 0);
        CHECK(ops->word_load(d, words) == 6);
    }
    weir_host_memory_destroy(&memory);
    ops->event_destroy(d, event);
    ops->stream_destroy(d, stream);
    ops->words_free(d, words);
    ops->memory_free(d, address);
}

/* Captures a wait for `event` and a copy, and replays them: behind an event that
 * is recorded again, and once more without. */
static void replay(struct gpu *gpu, const struct gpu_graphs *calls, struct pools *pools,
                   weir_event *event, struct random *random)
{
    const struct weir_device_ops *ops = gpu->ops;
    CUstream captured = (CUstream)weir_cuda_from_stream(gpu->stream);
    struct weir_run runs[PAGES];
    struct weir_transfer transfer =
        make_transfer(pools, runs, make_runs(random, pools->geometry, runs), WEIR_LOAD, 0);
    transfer.words = NULL;
    uint32_t enqueued;
    bool capturing = false;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CHECK(ops->stream_wait_event_external(gpu->device, gpu->stream, event) == -EINVAL);
    CHECK(calls->begin(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0);
    CHECK(ops->stream_is_capturing(gpu->device, gpu->stream, &capturing) == 0 && capturing);
    check_ops_beside_capture(gpu);
    CHECK(ops->stream_wait_event_external(gpu->device, gpu->stream, event) == 0);
    CHECK(ops->copy(gpu->device, gpu->stream, &transfer, &enqueued) == 0);
    CHECK(calls->end(captured, &graph) == 0 && graph);
    CHECK(ops->stream_is_capturing(gpu->device, gpu->stream, &capturing) == 0 && !capturing);
    CHECK(calls->instantiate(&exec, graph, 0) == 0);
    for (uint32_t round = 1; round <= 3 && exec; round++) {
        fill_pools(gpu, pools, random);
        /* `other` holds the event back until the host has looked. */
        release_before(gpu, pools->words, round);
        if (round != 2) {
            CHECK(ops->stream_wait_word(gpu->device, gpu->other, pools->words, round) == 0);
            CHECK(ops->event_record(gpu->device, event, gpu->other) == 0);
        }
        CHECK(calls->launch(exec, captured) == 0);
        CHECK(ops->stream_write_word(gpu->device, gpu->stream, &pools->words[1], round) == 0);
        if (round != 2 && !gpu->blocking)
            CHECK(ops->word_load(gpu->device, &pools->words[1]) == round - 1);
        release_after(gpu, pools->words, round);
        CHECK(ops->stream_synchronize(gpu->device, gpu->stream) == 0);
        for (uint32_t l = 0; l < transfer.layer_end; l++)
            model_copy_layer(&transfer, l, pools->device_model, pools->device_base,
                             pools->host_model);
        check_pools(gpu, pools);
    }
    if (exec)
        CHECK(calls->destroy_exec(exec) == 0);
    if (graph)
        CHECK(calls->destroy(graph) == 0);
}

static void check_capture(struct gpu *gpu)
{
    struct random random = { 8 };
    struct gpu_graphs calls;
    struct pools pools;
    weir_event *event = NULL;
    weir_tensor tensor = { .page_bytes = 70000 };
    weir_shape shape = { .page_tokens = 64, .n_layers = 2, .n_tensors = 1, .tensors = &tensor };
    const char *name;
    bool found = gpu_graphs_find(&calls, &name) == 0;
    CHECK(found);
    if (!found)
        return;
    CHECK(gpu->ops->event_create(gpu->device, &event) == 0);
    if (!event || !open_pools(gpu, &pools, &shape, WEIR_HOST_SEGMENTED, false, 0))
        return;
    /* The graph calls above are the server's: they need its context current. */
    CHECK(gpu->cuda->driver->cuCtxPushCurrent(gpu->cuda->context) == 0);
    replay(gpu, &calls, &pools, event, &random);
    CUcontext popped;
    CHECK(gpu->cuda->driver->cuCtxPopCurrent(&popped) == 0 && popped == gpu->cuda->context);
    close_pools(gpu, &pools);
    gpu->ops->event_destroy(gpu->device, event);
}

/* ---- The rest -------------------------------------------------------------- */

static void check_memory(struct gpu *gpu)
{
    const struct weir_device_ops *ops = gpu->ops;
    uint64_t address = 0;
    CHECK(ops->memory_alloc(gpu->device, 12345, &address) == 0 && address % 256 == 0);
    ops->memory_free(gpu->device, address);
    address = 1;
    CHECK(ops->memory_alloc(gpu->device, UINT64_C(1) << 50, &address) == -ENOMEM && address == 1);
    void *host = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(ops->host_register(gpu->device, host, 4 * MIB) == 0);
    CHECK(ops->host_register(gpu->device, host, 4 * MIB) == -EIO); /* it is */
    ops->host_unregister(gpu->device, host);
    CHECK(ops->host_register(gpu->device, host, 4 * MIB) == 0);
    ops->host_unregister(gpu->device, host);
    munmap(host, 4 * MIB);
    uint32_t pool = 7;
    CHECK(ops->pool_register(gpu->device, 10, 2, 3, &pool) == 0 && pool == 0);
    ops->pool_unregister(gpu->device, pool);
    CHECK(ops->status(gpu->device) == 0);
}

static void check_rank(struct gpu *gpu)
{
    weir_tensor tensors[2];
    for (int t = 0; t < 2; t++)
        tensors[t] = (weir_tensor){ .page_bytes = 64 * 1024, .row_bytes = 1024 };
    weir_shape shape = { .page_tokens = 64, .n_layers = 8, .n_tensors = 2, .tensors = tensors };
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = 200;
    params.host_pages = 1000;
    params.log = gpu->device->log;
    weir_rank *rank = NULL;
    CHECK(weir_rank_open(&rank, gpu->device, &params) == 0);
    CHECK(weir_device_close(&gpu->device) == -EBUSY);
    CHECK(!rank || weir_rank_synchronize(rank) == 0);
    weir_rank_close(&rank);
}

static void section(const char *name, struct gpu *gpu, void (*check)(struct gpu *))
{
    unsigned failed_before = n_failed;
    check(gpu);
    printf("%-40s %s\n", name, n_failed == failed_before ? "ok" : "FAILED");
}

static int run(weir_device *device)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    struct gpu gpu = { .device = device,
                       .ops = device->ops,
                       .cuda = weir_cuda_from(device),
                       .blocking = blocking && strcmp(blocking, "0") != 0 };
    CHECK(gpu.ops->stream_create(device, 0, &gpu.stream) == 0);
    CHECK(gpu.ops->stream_create(device, 1, &gpu.other) == 0);
    if (gpu.stream && gpu.other) {
        section("memory", &gpu, check_memory);
        section("words", &gpu, check_words);
        section("events, streams", &gpu, check_events);
        check_shapes(&gpu);
        section("capture", &gpu, check_capture);
        section("rank", &gpu, check_rank);
    }
    gpu.ops->stream_destroy(device, gpu.stream);
    gpu.ops->stream_destroy(device, gpu.other);
    CHECK(weir_device_close(&device) == 0);
    printf("%u checks, %u failed\n", n_checks, n_failed);
    return n_failed > 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.ordinal = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    params.log = weir_log_stderr(WEIR_LOG_INFO);
    weir_device *device = NULL;
    int rc = weir_device_open(&device, &params);
    if (rc == -ENODEV)
        return 77;
    return rc ? 1 : run(device);
}
