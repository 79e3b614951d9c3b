/* SPDX-License-Identifier: Apache-2.0 */

/* Gathers of several threads on one CPU device, each in a stream of its own with
 * lists that an earlier launch of that stream writes, while another thread reads
 * how many rows were skipped. Exit 1 if bytes or counts are wrong. */

#include <weir/cpu_device.h>
#include <weir/gather.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 3u
#define TURNS 400u
#define SLOTS 16u
#define ROW 64u

struct worker {
    weir_device *device;
    weir_stream *stream;
    weir_gather *gather;
    uint32_t turn; /* of the launch that writes the lists */
    int64_t count;
    int32_t dst[SLOTS];
    int32_t src[SLOTS];
    uint8_t slots[SLOTS][ROW];
    uint8_t rows[SLOTS][ROW];
    pthread_t thread;
    bool wrong;
};

static atomic_bool over;

/* Slot i gets row i + turn; the last index is outside. */
static void make_lists(void *arg)
{
    struct worker *w = arg;
    w->turn++;
    w->count = SLOTS;
    for (uint32_t i = 0; i < SLOTS; i++) {
        w->dst[i] = (int32_t)i;
        w->src[i] = (int32_t)((i + w->turn) % SLOTS);
    }
    w->src[SLOTS - 1] = (int32_t)SLOTS;
}

static void check_slots(void *arg)
{
    struct worker *w = arg;
    for (uint32_t i = 0; i + 1 < SLOTS; i++)
        if (memcmp(w->slots[i], w->rows[(i + w->turn) % SLOTS], ROW) != 0)
            w->wrong = true;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    const weir_gather_rows rows = { w->dst, w->src, &w->count, 0 };
    int rc = 0;
    for (uint32_t i = 0; i < TURNS && !rc; i++) {
        rc = weir_cpu_launch(w->device, w->stream, make_lists, w, NULL, 0);
        if (!rc)
            rc = weir_gather_launch(w->gather, &rows, NULL, w->stream);
        if (!rc)
            rc = weir_cpu_launch(w->device, w->stream, check_slots, w, NULL, 0);
    }
    int waited = weir_cpu_stream_synchronize(w->device, w->stream);
    uint32_t skipped = 0;
    int read = weir_gather_errors(w->gather, &skipped);
    w->wrong = w->wrong || rc || waited || read || skipped != TURNS;
    return NULL;
}

/* Counts never go back. */
static void *watch(void *arg)
{
    struct worker *workers = arg;
    uint32_t newest[THREADS] = { 0 };
    bool wrong = false;
    while (!atomic_load(&over)) {
        for (uint32_t i = 0; i < THREADS; i++) {
            uint32_t now = 0;
            if (weir_gather_errors(workers[i].gather, &now) || now < newest[i])
                wrong = true;
            newest[i] = now;
        }
    }
    return wrong ? workers : NULL;
}

static void open_worker(struct worker *w, weir_device *device)
{
    *w = (struct worker){ .device = device };
    for (uint32_t i = 0; i < SLOTS; i++)
        memset(w->rows[i], (int)i + 1, ROW);
    const weir_bank bank = { .dst = (uintptr_t)w->slots,
                             .src = (uintptr_t)w->rows,
                             .row_bytes = ROW,
                             .dst_rows = SLOTS,
                             .src_rows = SLOTS };
    weir_gather_params params;
    weir_gather_params_init(&params);
    params.banks = &bank;
    params.n_banks = 1;
    params.max_count = SLOTS;
    if (weir_cpu_stream_create(device, &w->stream) ||
        weir_gather_create(&w->gather, device, &params)) {
        fprintf(stderr, "stress_gather: no gather\n");
        exit(1);
    }
}

int main(void)
{
    static struct worker workers[THREADS];
    weir_device *device;
    pthread_t watcher;
    bool wrong = false;
    if (weir_cpu_device_open(&device, NULL))
        return 1;
    for (uint32_t i = 0; i < THREADS; i++)
        open_worker(&workers[i], device);
    if (pthread_create(&watcher, NULL, watch, workers))
        return 1;
    for (uint32_t i = 0; i < THREADS; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            return 1;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        wrong = wrong || workers[i].wrong;
    }
    atomic_store(&over, true);
    void *went_back;
    pthread_join(watcher, &went_back);
    wrong = wrong || went_back || weir_cpu_device_races(device) > 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        weir_gather_destroy(&workers[i].gather);
        weir_cpu_stream_destroy(device, &workers[i].stream);
    }
    wrong = weir_device_close(&device) != 0 || wrong;
    printf("%s\n", wrong ? "wrong" : "ok");
    return wrong;
}
