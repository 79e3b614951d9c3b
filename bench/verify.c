/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MAX_THREADS 16u
#define PAGES_PER_THREAD 16u /* fewer are not worth a thread */

enum fill {
    FILL_GOOD,
    FILL_POISON,
    FILL_DAMAGE
};

static uint64_t key_of(enum fill fill, uint32_t tensor, uint32_t layer)
{
    return ((uint64_t)fill << 60) + ((uint64_t)tensor << 40) * 7919 + ((uint64_t)layer << 32) * 31;
}

/* ---- Host memory, by several threads --------------------------------------- */

struct job {
    const struct weir_bench_rig *rig;
    enum fill fill;
    bool check;
    uint32_t n_moves;
    atomic_uint next;
    atomic_ullong wrong;
};

static uint64_t host_page(const struct weir_bench_rig *rig, enum fill fill, bool check,
                          uint32_t move)
{
    const struct weir_bench_layout *layout = &rig->layout;
    const struct weir_geometry *geometry = rig->rank->geometry;
    uint64_t wrong = 0;
    for (uint32_t tensor = 0; tensor < layout->n_tensors; tensor++)
        for (uint32_t layer = 0; layer < layout->n_layers; layer++)
            for (uint32_t token = 0; token < layout->page_tokens; token++) {
                uint64_t row =
                    weir_geometry_host(geometry, tensor, layer, rig->moves[move].host, token);
                wrong += weir_bench_pattern_bytes(
                    (unsigned char *)(uintptr_t)row, layout->row_bytes,
                    (uint64_t)token * layout->row_bytes, key_of(fill, tensor, layer), move, check);
            }
    return wrong;
}

static void *work(void *arg)
{
    struct job *job = arg;
    uint64_t wrong = 0;
    uint32_t move;
    while ((move = atomic_fetch_add(&job->next, 1)) < job->n_moves)
        wrong += host_page(job->rig, job->fill, job->check, move);
    atomic_fetch_add(&job->wrong, wrong);
    return NULL;
}

static uint64_t host_pages(const struct weir_bench_rig *rig, enum fill fill, bool check,
                           uint32_t n_moves)
{
    struct job job = { .rig = rig, .fill = fill, .check = check, .n_moves = n_moves };
    pthread_t threads[MAX_THREADS];
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n_threads = n_moves / PAGES_PER_THREAD;
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    if (n_cpus > 0 && n_threads > (uint32_t)n_cpus)
        n_threads = (uint32_t)n_cpus;
    uint32_t started = 0;
    /* This thread works too, so one that does not start is no loss. */
    while (started + 1 < n_threads && pthread_create(&threads[started], NULL, work, &job) == 0)
        started++;
    work(&job);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return atomic_load(&job.wrong);
}

/* ---- Device memory --------------------------------------------------------- */

static int device_pages(struct weir_bench_rig *rig, enum fill fill, bool check, uint32_t n_tensors,
                        uint32_t n_layers, uint32_t n_moves, uint64_t *n_wrong)
{
    const struct weir_geometry *geometry = rig->rank->geometry;
    const int32_t *pages =
        rig->device->gpu ? (const int32_t *)(uintptr_t)rig->device_pages : rig->pages;
    *n_wrong = 0;
    for (uint32_t tensor = 0; tensor < n_tensors; tensor++)
        for (uint32_t layer = 0; layer < n_layers; layer++) {
            struct weir_bench_pattern_args args = {
                .base = weir_geometry_device(geometry, tensor, layer, (weir_device_page){ 0 }),
                .page_stride = rig->tensors[tensor].page_bytes,
                .page_bytes = rig->tensors[tensor].page_bytes,
                .pages = pages,
                .n_pages = n_moves,
                .check = check,
                .key = key_of(fill, tensor, layer),
            };
            uint64_t wrong;
            int rc = weir_bench_pattern(rig->device, args, &wrong);
            if (rc)
                return rc;
            *n_wrong += wrong;
        }
    return 0;
}

/* ---- A verified call -------------------------------------------------------- */

int weir_bench_rig_prepare(struct weir_bench_rig *rig, enum weir_direction direction)
{
    const struct weir_bench_layout *layout = &rig->layout;
    bool load = direction == WEIR_LOAD;
    uint64_t ignored;
    (void)host_pages(rig, load ? FILL_GOOD : FILL_POISON, false, layout->n_pages);
    return device_pages(rig, load ? FILL_POISON : FILL_GOOD, false, layout->n_tensors,
                        layout->n_layers, layout->n_pages, &ignored);
}

int weir_bench_rig_check(struct weir_bench_rig *rig, enum weir_direction direction, bool plant,
                         uint64_t *n_wrong)
{
    const struct weir_bench_layout *layout = &rig->layout;
    if (direction == WEIR_WRITE_BACK) {
        unsigned char *byte = (unsigned char *)(uintptr_t)weir_geometry_host(
            rig->rank->geometry, layout->n_tensors - 1, layout->n_layers - 1,
            rig->moves[layout->n_pages - 1].host, layout->page_tokens - 1);
        byte[layout->row_bytes - 1] ^= plant;
        *n_wrong = host_pages(rig, FILL_GOOD, true, layout->n_pages);
        return 0;
    }
    uint64_t ignored;
    int rc = plant ? device_pages(rig, FILL_DAMAGE, false, 1, 1, 1, &ignored) : 0;
    if (rc)
        return rc;
    return device_pages(rig, FILL_GOOD, true, layout->n_tensors, layout->n_layers, layout->n_pages,
                        n_wrong);
}
