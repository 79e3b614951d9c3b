/* SPDX-License-Identifier: Apache-2.0 */

/* What other caches' kernels have come to grief on, on a GPU: the device memory
 * that a first launch takes, memory that goes while a server serves, rows of any
 * size by each engine, and pools that end within a kernel's chunk, with memory
 * behind them that must not change. Exit 77 without a GPU.
 *
 * usage: gpu_limits */

#include "copy_model.h"
#include "device/cuda_device.h"
#include "pool/host_memory.h"
#include "random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGES 24u
#define SLACK (UINT64_C(64) << 10) /* bytes behind the device pool */
#define MIB (UINT64_C(1) << 20)
#define OPERATIONS 20000u

static unsigned n_failed;

#define CHECK(condition, ...)                                              \
    do {                                                                   \
        if (!(condition) && n_failed++ < 20) {                             \
            printf("%s:%d: not so: %s: ", __FILE__, __LINE__, #condition); \
            printf(__VA_ARGS__);                                           \
            putchar('\n');                                                 \
        }                                                                  \
    } while (0)

static void ok(int rc, const char *what)
{
    if (rc == 0)
        return;
    printf("%s: %s\n", what, weir_error_name(rc));
    exit(1);
}

/* ---- The GPU ----------------------------------------------------------------- */

static weir_device *device;
static const struct weir_device_ops *ops;
static weir_stream *stream;
static CUresult (*memory_info)(size_t *available, size_t *total);

static bool open_gpu(void)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.log = weir_log_stderr(WEIR_LOG_INFO);
    int rc = weir_device_open(&device, &params);
    if (rc == -ENODEV)
        return false;
    ok(rc, "the device");
    ops = device->ops;
    ok(ops->stream_create(device, 0, &stream), "a stream");
    void *function;
    ok(weir_cuda_driver_find("cuMemGetInfo", 3020, &function), "cuMemGetInfo");
    memcpy(&memory_info, &function, sizeof function);
    return true;
}

static size_t available(void)
{
    struct weir_cuda_device *cuda = weir_cuda_from(device);
    CUstreamCaptureMode mode;
    size_t bytes = 0, total = 0;
    ok(weir_cuda_enter(cuda, &mode), "the context");
    ok(memory_info(&bytes, &total) ? -EIO : 0, "cuMemGetInfo");
    weir_cuda_leave(cuda, mode);
    return bytes;
}

/* ---- Pools ------------------------------------------------------------------- */

struct pools {
    struct weir_geometry *geometry;
    struct weir_host_memory *host;
    struct weir_host_memory *mirror; /* of the device pool and what lies behind it */
    uint64_t device_base;
    uint64_t device_bytes;
    uint8_t *device_model;
    uint8_t *host_model;
    uint32_t *words;
    void *state;
};

static void pin(struct weir_host_memory **memory, uint64_t bytes)
{
    struct weir_host_memory_params params = { .bytes = bytes, .granule = 1 };
    ok(weir_host_memory_create(memory, device, &params, &device->log), "pinned memory");
}

static void open_pools(struct pools *p, const weir_shape *shape, weir_host_layout layout)
{
    *p = (struct pools){ 0 };
    ok(weir_geometry_create(&p->geometry, shape, NULL, PAGES, layout, PAGES, 8, &device->log),
       "a geometry");
    p->device_bytes = weir_geometry_device_bytes(p->geometry) + SLACK;
    ok(ops->memory_alloc(device, p->device_bytes, &p->device_base), "a device pool");
    pin(&p->host, p->geometry->host_bytes);
    pin(&p->mirror, p->device_bytes);
    weir_geometry_bind(p->geometry, p->device_base, (uintptr_t)p->host->base, p->host->chunk_bytes);
    ok(ops->words_alloc(device, shape->n_layers, &p->words), "words");
    ok(ops->transfer_prepare(device, p->geometry, PAGES, &p->state), "a transfer's state");
    p->device_model = malloc(p->device_bytes);
    p->host_model = malloc(p->host->bytes);
    ok(p->device_model && p->host_model ? 0 : -ENOMEM, "the models");
}

static void close_pools(struct pools *p)
{
    free(p->device_model);
    free(p->host_model);
    ops->transfer_release(device, p->state);
    ops->words_free(device, p->words);
    weir_host_memory_destroy(&p->mirror);
    weir_host_memory_destroy(&p->host);
    ops->memory_free(device, p->device_base);
    weir_geometry_destroy(&p->geometry);
}

/* Between the device pool, with what lies behind it, and its mirror. */
static void copy_mirror(struct pools *p, bool to_device)
{
    struct weir_cuda_device *cuda = weir_cuda_from(device);
    CUstreamCaptureMode mode;
    uint64_t mirror = (uintptr_t)p->mirror->base;
    ok(weir_cuda_enter(cuda, &mode), "the context");
    ok(cuda->driver->cuMemcpyAsync(to_device ? p->device_base : mirror,
                                   to_device ? mirror : p->device_base, p->device_bytes,
                                   (CUstream)stream)
           ? -EIO
           : 0,
       "a copy");
    weir_cuda_leave(cuda, mode);
    ok(ops->stream_synchronize(device, stream), "the stream");
}

static void fill(struct random *random, uint8_t *bytes, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += 8) {
        uint64_t value = random_next(random);
        memcpy(bytes + at, &value, n - at < 8 ? n - at : 8);
    }
}

/* ---- Copies ------------------------------------------------------------------ */

static const weir_transfer_engine engines[] = { WEIR_ENGINE_TMA, WEIR_ENGINE_VECTOR,
                                                WEIR_ENGINE_COPY };

/* Each pool's last page is among the moves; no two runs touch. */
static const struct weir_run some_runs[] = {
    { 1, 3, 2 }, { 6, 9, 5 }, { 12, (int32_t)PAGES, 1 }, { (int32_t)PAGES, 1, 1 }
};

static struct weir_transfer make_transfer(const struct pools *p, enum weir_direction direction,
                                          weir_transfer_engine engine, uint32_t generation)
{
    return (struct weir_transfer){ .geometry = p->geometry,
                                   .runs = some_runs,
                                   .n_runs = sizeof some_runs / sizeof *some_runs,
                                   .direction = direction,
                                   .layer_end = p->geometry->n_layers,
                                   .words = direction == WEIR_LOAD ? p->words : NULL,
                                   .generation = generation,
                                   .tuning = { .engine = engine },
                                   .max_enqueue_us = 200,
                                   .state = p->state };
}

static void check_copy(struct pools *p, struct random *random, enum weir_direction direction,
                       weir_transfer_engine engine, uint32_t generation, const char *name)
{
    struct weir_transfer transfer = make_transfer(p, direction, engine, generation);
    uint32_t enqueued;
    fill(random, p->device_model, p->device_bytes);
    fill(random, p->host_model, p->host->bytes);
    memcpy(p->mirror->base, p->device_model, p->device_bytes);
    memcpy(p->host->base, p->host_model, p->host->bytes);
    copy_mirror(p, true);
    ok(ops->copy(device, stream, &transfer, &enqueued), name);
    ok(ops->stream_synchronize(device, stream), name);
    for (uint32_t l = 0; l < transfer.layer_end; l++) {
        model_copy_layer(&transfer, l, p->device_model, p->device_base, p->host_model);
        CHECK(!transfer.words || ops->word_load(device, &p->words[l]) == generation,
              "%s: layer %u is not published", name, l);
    }
    copy_mirror(p, false);
    CHECK(memcmp(p->mirror->base, p->device_model, p->device_bytes) == 0, "%s: device", name);
    CHECK(memcmp(p->host->base, p->host_model, p->host->bytes) == 0, "%s: host", name);
}

static void check_rows(uint32_t row_bytes, uint32_t page_tokens)
{
    struct random random = { row_bytes + page_tokens };
    weir_tensor tensor = { .page_bytes = (uint64_t)row_bytes * page_tokens,
                           .row_bytes = row_bytes };
    weir_shape shape = { page_tokens, 2, 1, &tensor };
    for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++) {
        struct pools p;
        open_pools(&p, &shape, (weir_host_layout)layout);
        uint32_t generation = 0;
        for (size_t e = 0; e < sizeof engines / sizeof *engines; e++)
            for (int direction = 0; direction < 2; direction++) {
                char name[96];
                snprintf(name, sizeof name, "%s, %u tokens of %u bytes, layout %s, direction %d",
                         weir_transfer_engine_name(engines[e]), page_tokens, row_bytes,
                         weir_host_layout_name((weir_host_layout)layout), direction);
                check_copy(&p, &random, (enum weir_direction)direction, engines[e], ++generation,
                           name);
            }
        close_pools(&p);
    }
}

/* An engine that cannot copy a row gives way to one that can. */
static void check_all_rows(void)
{
    static const uint32_t rows[] = { 1,   4,   8,   16,   24,   72,   128,       132,
                                     528, 576, 656, 1152, 2048, 4096, 32768 + 16 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_rows(rows[i], rows[i] > 4096 ? 3 : 16);
    printf("rows of any size: %u failed\n", n_failed);
}

/* Pages of one chunk and r rows: boxes and stages end behind no pool. */
static void check_tails(void)
{
    for (uint32_t tokens = 17; tokens < 32; tokens += 2) {
        check_rows(512, tokens);
        check_rows(656, tokens);
    }
    check_rows(32, 129);
    check_rows(32, 255);
    printf("pools that end within a chunk: %u failed\n", n_failed);
}

/* ---- Device memory ------------------------------------------------------------ */

/* The first launches come before any other test. What they take beyond the pool is
 * the driver's, for stacks and code. */
static void check_memory(void)
{
    weir_tensor tensor = { .page_bytes = 64 * 512, .row_bytes = 512 };
    weir_shape shape = { 64, 8, 1, &tensor };
    struct pools p;
    open_pools(&p, &shape, WEIR_HOST_PAGE_FIRST);
    size_t before = available();
    uint32_t generation = 0;
    uint32_t enqueued;
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        struct weir_transfer transfer =
            make_transfer(&p, (enum weir_direction)(i % 2), engines[i / 2 % 3], ++generation);
        ok(ops->copy(device, stream, &transfer, &enqueued), "a copy");
        if (i % 64 == 63)
            ok(ops->stream_synchronize(device, stream), "the stream");
        if (i == 63) {
            size_t after = available();
            CHECK(before < after + 64 * MIB, "the first launches take %zu bytes", before - after);
            before = after;
        }
    }
    ok(ops->stream_synchronize(device, stream), "the stream");
    size_t after = available();
    CHECK(before == after, "%zu bytes were free before %u operations, %zu after", before,
          OPERATIONS, after);
    close_pools(&p);
    printf("device memory: %u failed\n", n_failed);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!open_gpu()) {
        printf("skipped: no GPU\n");
        return 77;
    }
    check_memory();
    check_all_rows();
    check_tails();
    ops->stream_destroy(device, stream);
    ok(weir_device_close(&device), "closing");
    printf("%u checks failed\n", n_failed);
    return n_failed > 0;
}
