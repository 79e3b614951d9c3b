/* SPDX-License-Identifier: Apache-2.0 */

/* The CPU device under ThreadSanitizer: several host threads, each with streams
 * of its own, load, compute, write back and compare around small, full queues,
 * while another thread watches words, counters and the status. Every access is
 * ordered, so neither the sanitizer nor the device's own check may find a race
 * and no byte may be wrong. Then again, and the device is lost on the way.
 * Exit: 0, or 1 with a line on standard error. */

#include "device/device.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 3u
#define ROUNDS 60u
#define LAYERS 3u
#define PAGES 4u /* of a worker */
#define TOKENS 4u
#define ROW_BYTES 96u
#define PIECE_BYTES (TOKENS * ROW_BYTES)

struct world {
    weir_device *device;
    const struct weir_device_ops *ops;
    struct weir_geometry *geometry;
    uint32_t *words; /* [WORKERS][LAYERS] of loads, then [WORKERS] of write-backs */
    uint32_t device_pool;
    uint32_t host_pool;
    bool may_be_lost;
    atomic_uint rounds; /* that all workers together have ended */
    atomic_bool over;
    atomic_uint failures;
};

struct worker {
    struct world *world;
    uint32_t index;
    weir_stream *load;
    weir_stream *compute;
    weir_stream *write;
    weir_event *computed;
    weir_event *written;
};

/* A launched function: adds one to each byte of the worker's pieces in a layer. */
struct kernel {
    struct worker *worker;
    uint32_t layer;
};

static void fail(struct world *world, const char *what, int rc)
{
    if (world->may_be_lost && rc == -EIO)
        return;
    atomic_fetch_add(&world->failures, 1);
    fprintf(stderr, "stress_cpu_device: %s: %s\n", what, weir_error_name(rc));
}

static int32_t first_page(const struct worker *worker)
{
    return 1 + (int32_t)(worker->index * PAGES);
}

static uint8_t *host_piece(const struct worker *worker, uint32_t layer, uint32_t page)
{
    weir_host_page id = { first_page(worker) + (int32_t)page };
    return (uint8_t *)(uintptr_t)weir_geometry_host(worker->world->geometry, 0, layer, id, 0);
}

static void add_one(void *arg)
{
    const struct kernel *kernel = arg;
    for (uint32_t page = 0; page < PAGES; page++) {
        weir_device_page id = { first_page(kernel->worker) + (int32_t)page };
        uint8_t *piece = (uint8_t *)(uintptr_t)weir_geometry_device(kernel->worker->world->geometry,
                                                                    0, kernel->layer, id);
        for (uint32_t i = 0; i < PIECE_BYTES; i++)
            piece[i]++;
    }
}

static int launch(struct worker *worker, struct kernel *kernel)
{
    weir_cpu_access accesses[PAGES];
    for (uint32_t page = 0; page < PAGES; page++)
        accesses[page] =
            (weir_cpu_access){ worker->world->device_pool, first_page(worker) + (int32_t)page, 0,
                               (uint16_t)kernel->layer, true };
    return weir_cpu_launch(worker->world->device, worker->compute, add_one, kernel, accesses,
                           PAGES);
}

/* Load, layer by layer behind it the kernel, behind all of it the write-back. */
static int enqueue_round(struct worker *worker, uint32_t round, struct kernel *kernels)
{
    struct world *w = worker->world;
    uint32_t *words = w->words + worker->index * LAYERS;
    struct weir_run run = { first_page(worker), first_page(worker), PAGES };
    struct weir_transfer transfer = { .geometry = w->geometry,
                                      .runs = &run,
                                      .n_runs = 1,
                                      .direction = WEIR_LOAD,
                                      .layer_end = LAYERS,
                                      .words = words,
                                      .generation = round,
                                      .device_pool = w->device_pool,
                                      .host_pool = w->host_pool };
    uint32_t enqueued;
    int rc = w->ops->stream_wait_event(w->device, worker->load, worker->written);
    if (!rc)
        rc = w->ops->copy(w->device, worker->load, &transfer, &enqueued);
    for (uint32_t layer = 0; layer < LAYERS && !rc; layer++) {
        kernels[layer] = (struct kernel){ worker, layer };
        rc = w->ops->stream_wait_word(w->device, worker->compute, &words[layer], round);
        if (!rc)
            rc = launch(worker, &kernels[layer]);
    }
    if (!rc)
        rc = w->ops->event_record(w->device, worker->computed, worker->compute);
    if (!rc)
        rc = w->ops->stream_wait_event(w->device, worker->write, worker->computed);
    transfer.direction = WEIR_WRITE_BACK;
    transfer.words = NULL;
    if (!rc)
        rc = w->ops->copy(w->device, worker->write, &transfer, &enqueued);
    if (!rc)
        rc = w->ops->event_record(w->device, worker->written, worker->write);
    if (!rc)
        rc = w->ops->stream_write_word(w->device, worker->write,
                                       &w->words[WORKERS * LAYERS + worker->index], round);
    return rc;
}

/* Waits for a round by its word or by synchronizing, in turn. */
static int await_round(struct worker *worker, uint32_t round)
{
    struct world *w = worker->world;
    if (round % 2)
        return w->ops->stream_synchronize(w->device, worker->write);
    const uint32_t *word = &w->words[WORKERS * LAYERS + worker->index];
    while ((int32_t)(w->ops->word_load(w->device, word) - round) < 0) {
        int rc = w->ops->status(w->device);
        if (rc)
            return rc;
        sched_yield();
    }
    return 0;
}

static void check_bytes(struct worker *worker, uint32_t round)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t page = 0; page < PAGES; page++) {
            const uint8_t *piece = host_piece(worker, layer, page);
            for (uint32_t i = 0; i < PIECE_BYTES; i++)
                if (piece[i] != (uint8_t)(i + layer + round)) {
                    fail(worker->world, "wrong byte", -EINVAL);
                    return;
                }
        }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    /* Two rounds may be on their way, so two sets of arguments are in use. */
    struct kernel kernels[2][LAYERS];
    int rc = 0;
    for (uint32_t round = 1; round <= ROUNDS && !rc; round++) {
        rc = enqueue_round(worker, round, kernels[round % 2]);
        if (!rc && round % 2 == 0) {
            rc = await_round(worker, round);
            if (!rc)
                check_bytes(worker, round);
        } else if (!rc && round % 7 == 0) {
            rc = await_round(worker, round);
        }
        atomic_fetch_add(&worker->world->rounds, 1);
    }
    if (rc)
        fail(worker->world, "a round", rc);
    /* The arguments must outlive the kernels. */
    weir_cpu_stream_destroy(worker->world->device, &worker->load);
    weir_cpu_stream_destroy(worker->world->device, &worker->compute);
    weir_cpu_stream_destroy(worker->world->device, &worker->write);
    return NULL;
}

static void *watch(void *arg)
{
    struct world *w = arg;
    uint32_t seen = 0;
    while (!atomic_load(&w->over)) {
        for (uint32_t i = 0; i < WORKERS * (LAYERS + 1); i++)
            seen += w->ops->word_load(w->device, &w->words[i]);
        seen += (uint32_t)weir_cpu_device_calls(w->device, WEIR_CPU_CALL_COPY_LOAD);
        if (weir_cpu_device_races(w->device) > 0)
            break;
        if (w->may_be_lost && atomic_load(&w->rounds) > WORKERS * ROUNDS / 2)
            weir_cpu_device_lose(w->device);
        sched_yield();
    }
    return (void *)(uintptr_t)seen;
}

static int make_worker(struct worker *worker)
{
    struct world *w = worker->world;
    int rc = weir_cpu_stream_create(w->device, &worker->load);
    if (!rc)
        rc = weir_cpu_stream_create(w->device, &worker->compute);
    if (!rc)
        rc = weir_cpu_stream_create(w->device, &worker->write);
    if (!rc)
        rc = w->ops->event_create(w->device, &worker->computed);
    if (!rc)
        rc = w->ops->event_create(w->device, &worker->written);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t page = 0; page < PAGES; page++)
            for (uint32_t i = 0; i < PIECE_BYTES; i++)
                host_piece(worker, layer, page)[i] = (uint8_t)(i + layer);
    return rc;
}

static int run_workers(struct world *world)
{
    struct worker workers[WORKERS];
    pthread_t threads[WORKERS];
    pthread_t watcher;
    int rc = 0;
    for (uint32_t i = 0; i < WORKERS && !rc; i++) {
        workers[i] = (struct worker){ .world = world, .index = i };
        rc = make_worker(&workers[i]);
    }
    if (rc || pthread_create(&watcher, NULL, watch, world))
        return -EAGAIN;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]))
            exit(1);
    for (uint32_t i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&world->over, true);
    pthread_join(watcher, NULL);
    for (uint32_t i = 0; i < WORKERS; i++) {
        world->ops->event_destroy(world->device, workers[i].computed);
        world->ops->event_destroy(world->device, workers[i].written);
    }
    return 0;
}

static int run_world(uint32_t n_queues, uint32_t queue_depth, double gbps, bool lose)
{
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.n_queues = n_queues;
    params.queue_depth = queue_depth;
    params.load_gbps = gbps;
    params.write_back_latency_us = gbps > 0 ? 20 : 0;
    params.log = weir_log_stderr(WEIR_LOG_ERROR);
    struct world world = { .may_be_lost = lose };
    int rc = weir_cpu_device_open(&world.device, &params);
    if (rc)
        return 1;
    world.ops = world.device->ops;

    const weir_tensor tensor = { .name = "kv", .row_bytes = ROW_BYTES, .page_bytes = PIECE_BYTES };
    const weir_shape shape = { TOKENS, LAYERS, 1, &tensor };
    uint64_t memory = 0;
    rc = weir_geometry_create(&world.geometry, &shape, NULL, WORKERS * PAGES, WEIR_HOST_SEGMENTED,
                              WORKERS * PAGES, PAGES, &params.log);
    if (rc)
        return 1;
    uint64_t bytes = (world.geometry->host_bytes + 4095) / 4096 * 4096;
    void *host = aligned_alloc(4096, bytes);
    rc = host ? world.ops->memory_alloc(world.device, weir_geometry_device_bytes(world.geometry),
                                        &memory)
              : -ENOMEM;
    if (!rc)
        rc = world.ops->host_register(world.device, host, bytes);
    if (!rc)
        rc = world.ops->words_alloc(world.device, WORKERS * (LAYERS + 1), &world.words);
    if (!rc)
        rc = world.ops->pool_register(world.device, WORKERS * PAGES, 1, LAYERS, &world.device_pool);
    if (!rc)
        rc = world.ops->pool_register(world.device, WORKERS * PAGES, 1, LAYERS, &world.host_pool);
    if (rc)
        return 1;
    weir_geometry_bind(world.geometry, memory, (uintptr_t)host, 0);

    rc = run_workers(&world);
    if (rc)
        fail(&world, "threads", rc);
    if (weir_cpu_device_races(world.device) > 0)
        fail(&world, "races", -EINVAL);
    if (!lose && atomic_load(&world.rounds) != WORKERS * ROUNDS)
        fail(&world, "rounds", -EINVAL);
    world.ops->pool_unregister(world.device, world.device_pool);
    world.ops->pool_unregister(world.device, world.host_pool);
    world.ops->words_free(world.device, world.words);
    world.ops->host_unregister(world.device, host);
    world.ops->memory_free(world.device, memory);
    if (weir_device_close(&world.device))
        fail(&world, "close", -EBUSY);
    free(host);
    weir_geometry_destroy(&world.geometry);
    return atomic_load(&world.failures) > 0;
}

int main(void)
{
    int failed = 0;
    for (uint32_t n_queues = 1; n_queues <= 9; n_queues += 4)
        for (uint32_t depth = 1; depth <= 65; depth += 32)
            failed |= run_world(n_queues, depth, 0, false);
    failed |= run_world(8, 4, 1, false);
    for (uint32_t n_queues = 1; n_queues <= 9; n_queues += 4)
        failed |= run_world(n_queues, 3, 0, true);
    return failed;
}
