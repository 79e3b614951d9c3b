/* SPDX-License-Identifier: Apache-2.0 */

/* Expert caches under ThreadSanitizer: two host threads, each with a cache, a
 * gather and a stream of its own on one CPU device, enqueue far ahead of the
 * device, while a third thread reads their statistics. The slots must hold their
 * experts, and no number may go back. Exit: 0, or 1 with a line on standard error. */

#include <weir/cpu_device.h>
#include <weir/expert_cache.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS 2u
#define STEPS 1500u
#define EXPERTS 16u
#define SLOTS 8u
#define IDS 4u
#define ROW 64u

struct worker {
    weir_device *device;
    weir_stream *stream;
    weir_expert_cache *cache;
    weir_gather *gather;
    uint8_t experts[EXPERTS][ROW];
    uint8_t slots[SLOTS][ROW];
    int32_t ids[STEPS][IDS];
    pthread_t thread;
};

/* What the step's kernel checks, in stream order. */
struct look {
    struct worker *worker;
    uint32_t step;
    int32_t slots[IDS];
};

static atomic_uint failures;
static atomic_bool over;

static void must(int rc, const char *what)
{
    if (rc && atomic_fetch_add(&failures, 1) < 5)
        fprintf(stderr, "%s: %s\n", what, weir_error_name(rc));
}

static void read_slots(void *arg)
{
    const struct look *look = arg;
    for (uint32_t i = 0; i < IDS; i++) {
        int32_t slot = look->slots[i];
        bool right = slot >= 0 && look->worker->slots[slot][i] == look->worker->ids[look->step][i];
        must(right ? 0 : -1, "a slot does not hold its expert");
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    static struct look looks[WORKERS][STEPS];
    static atomic_uint next;
    struct look *mine = looks[atomic_fetch_add(&next, 1)];
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < IDS; i++)
            w->ids[step][i] = (int32_t)((step * 7 + i * i * 5 + step / 9) % EXPERTS);
        mine[step] = (struct look){ .worker = w, .step = step };
        weir_expert_ids call = { 0, IDS, w->ids[step], mine[step].slots };
        must(weir_expert_cache_step(w->cache, &call, w->gather, NULL, w->stream), "step");
        must(weir_cpu_launch(w->device, w->stream, read_slots, &mine[step], NULL, 0), "launch");
    }
    must(weir_cpu_stream_synchronize(w->device, w->stream), "synchronize");
    return NULL;
}

static void *watch(void *arg)
{
    struct worker *workers = arg;
    weir_expert_cache_stats last[WORKERS] = { { 0 } };
    while (!atomic_load(&over)) {
        for (uint32_t i = 0; i < WORKERS; i++) {
            weir_expert_cache_stats now = { .struct_size = sizeof now };
            must(weir_expert_cache_get_stats(workers[i].cache, &now), "stats");
            must(now.calls < last[i].calls || now.hits < last[i].hits ? -1 : 0, "went back");
            last[i] = now;
        }
    }
    return NULL;
}

static void open_worker(struct worker *w, weir_device *device, uint8_t seed)
{
    w->device = device;
    for (uint32_t i = 0; i < EXPERTS; i++)
        memset(w->experts[i], (int)i, ROW);
    memset(w->slots, 0xEE ^ seed, sizeof w->slots);
    weir_bank bank = { .dst = (uintptr_t)w->slots,
                       .src = (uintptr_t)w->experts,
                       .row_bytes = ROW,
                       .dst_rows = SLOTS,
                       .src_rows = EXPERTS };
    weir_gather_params gather;
    weir_gather_params_init(&gather);
    gather.banks = &bank;
    gather.n_banks = 1;
    gather.max_count = IDS;
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_experts = EXPERTS;
    params.n_slots = SLOTS;
    params.max_ids = IDS;
    must(weir_cpu_stream_create(device, &w->stream), "stream");
    must(weir_gather_create(&w->gather, device, &gather), "gather");
    must(weir_expert_cache_create(&w->cache, device, &params), "cache");
}

static void close_worker(struct worker *w)
{
    weir_expert_cache_stats stats = { .struct_size = sizeof stats };
    must(weir_expert_cache_get_stats(w->cache, &stats), "stats");
    must(stats.calls == STEPS && stats.skipped == 0 && stats.misses > STEPS ? 0 : -1, "totals");
    weir_expert_cache_destroy(&w->cache);
    weir_gather_destroy(&w->gather);
    weir_cpu_stream_destroy(w->device, &w->stream);
}

int main(void)
{
    static struct worker workers[WORKERS];
    weir_device *device = NULL;
    pthread_t watcher;
    must(weir_cpu_device_open(&device, NULL), "device");
    for (uint32_t i = 0; i < WORKERS; i++)
        open_worker(&workers[i], device, (uint8_t)i);
    if (atomic_load(&failures))
        return 1;
    must(-pthread_create(&watcher, NULL, watch, workers), "thread");
    for (uint32_t i = 0; i < WORKERS; i++)
        must(-pthread_create(&workers[i].thread, NULL, work, &workers[i]), "thread");
    for (uint32_t i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    atomic_store(&over, true);
    pthread_join(watcher, NULL);
    for (uint32_t i = 0; i < WORKERS; i++)
        close_worker(&workers[i]);
    must(weir_device_close(&device), "close");
    return atomic_load(&failures) > 0;
}
