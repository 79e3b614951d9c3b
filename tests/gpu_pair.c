/* SPDX-License-Identifier: Apache-2.0 */

/* Two GPUs of one machine in one process: ranks that work side by side, on one
 * thread and on a thread each; a server whose current context is another GPU's;
 * replicated tensors that both keep once in host memory. Exit 77 without two GPUs.
 *
 * usage: gpu_pair [STEPS]
 *   STEPS  of each random case (400) */

#include "gpu_world.h"

#include <weir/host_share.h>

#include <pthread.h>

enum {
    GPUS = 2,
    PAGES = 22,
    HOSTS = 19
};

static const struct way {
    const char *name;
    weir_transfer_tuning tuning;
} ways[] = {
    { "auto", { 0 } },
    { "tma", { .engine = WEIR_ENGINE_TMA } },
    { "tma, a launch a layer", { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_PER_LAYER } },
    { "vector", { .engine = WEIR_ENGINE_VECTOR } },
    { "copy engine", { .engine = WEIR_ENGINE_COPY } },
};

#define N_WAYS (sizeof ways / sizeof ways[0])

static struct rig rigs[GPUS];

static void group_begin(const char *what, const char *way)
{
    rig_at("%s; %s", what, way);
}

static void group_end(unsigned failed_before)
{
    printf("%-60s %s\n", rig_where, rig_n_failed == failed_before ? "ok" : "FAILED");
}

/* ---- Random steps ---------------------------------------------------------- */

static const weir_tensor world_tensors[] = { { .page_bytes = 32 * 2048, .row_bytes = 2048 },
                                             { .page_bytes = 32 * 576, .row_bytes = 576 } };
static const weir_shape world_shape = { 32, 3, 2, world_tensors };

static void start(struct world *w, uint32_t gpu, const struct way *way, uint64_t seed)
{
    *w = (struct world){ .rig = &rigs[gpu],
                         .random = { seed },
                         .shape = &world_shape,
                         .by_bulk = rigs[gpu].has_bulk,
                         .n_pages = PAGES,
                         .n_hosts = HOSTS,
                         .n_candidates = PAGES,
                         .n_host_candidates = HOSTS };
    for (uint32_t i = 0; i < WORLD_CANDIDATES; i++)
        w->candidates[i] = w->host_candidates[i] = (int32_t)i + 1;
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = w->shape;
    params.device_pages = PAGES;
    params.host_pages = HOSTS;
    params.max_steps = WORLD_IN_FLIGHT;
    params.load = params.write_back = way->tuning;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_rank_open(&w->rank, w->rig->device, &params);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    world_start(w);
}

static void finish(struct world *w)
{
    world_settle(w);
    world_all_pages(w, false);
    CHECK(w->counts.loads > 0 && w->counts.writes > 0, "nothing was copied");
    world_stop(w);
}

static void side_by_side(const struct way *way, uint32_t n_steps)
{
    unsigned failed_before = rig_n_failed;
    struct world worlds[GPUS];
    group_begin("two ranks, one thread", way->name);
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        start(&worlds[gpu], gpu, way, 10 + gpu);
    for (uint32_t i = 0; i < n_steps; i++)
        for (uint32_t gpu = 0; gpu < GPUS; gpu++)
            world_random_step(&worlds[gpu]);
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        finish(&worlds[gpu]);
    group_end(failed_before);
}

struct thread {
    pthread_t thread;
    struct world world;
    uint32_t n_steps;
};

static void *run_thread(void *user)
{
    struct thread *thread = user;
    for (uint32_t i = 0; i < thread->n_steps; i++)
        world_random_step(&thread->world);
    finish(&thread->world);
    return NULL;
}

static void on_threads(const struct way *way, uint32_t n_steps)
{
    unsigned failed_before = rig_n_failed;
    struct thread threads[GPUS];
    group_begin("two ranks, a thread each", way->name);
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        start(&threads[gpu].world, gpu, way, 20 + gpu);
        threads[gpu].n_steps = n_steps;
    }
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        REQUIRE(pthread_create(&threads[gpu].thread, NULL, run_thread, &threads[gpu]) == 0,
                "a thread");
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        pthread_join(threads[gpu].thread, NULL);
    group_end(failed_before);
}

/* ---- The server's context --------------------------------------------------- */

static CUresult (*set_context)(CUcontext context);
static CUresult (*get_context)(CUcontext *context);

static void find_contexts(void)
{
    void *function = NULL;
    REQUIRE(weir_cuda_driver_find("cuCtxSetCurrent", 4000, &function) == 0, "cuCtxSetCurrent");
    memcpy(&set_context, &function, sizeof function);
    REQUIRE(weir_cuda_driver_find("cuCtxGetCurrent", 4000, &function) == 0, "cuCtxGetCurrent");
    memcpy(&get_context, &function, sizeof function);
}

/* Works on the second GPU, and leaves the thread's context as it is. */
static void in_context(CUcontext context, const char *whose, const struct way *way,
                       uint32_t n_steps)
{
    unsigned failed_before = rig_n_failed;
    struct world w;
    CUcontext current = NULL;
    group_begin(whose, way->name);
    REQUIRE(set_context(context) == CUDA_SUCCESS, "cuCtxSetCurrent");
    start(&w, 1, way, 30);
    for (uint32_t i = 0; i < n_steps; i++) {
        world_random_step(&w);
        CHECK(get_context(&current) == CUDA_SUCCESS && current == context, "step %u", i);
    }
    finish(&w);
    CHECK(get_context(&current) == CUDA_SUCCESS && current == context, "the end");
    (void)set_context(NULL);
    group_end(failed_before);
}

/* ---- A share ---------------------------------------------------------------- */

/* Each rank's k is its own; the latent is the same on both and once on the host. */
static const weir_tensor share_tensors[] = {
    { .name = "k", .page_bytes = 16 * 512, .row_bytes = 512 },
    { .name = "latent", .page_bytes = 16 * 1152, .row_bytes = 1152, .replicated = true },
};
static const weir_shape share_shape = { 16, 3, 2, share_tensors };

struct sharer {
    struct rig *rig;
    uint32_t number;
    weir_rank *rank;
    uint32_t *mirror; /* pinned; the pages' pieces one behind another */
};

static uint64_t page_bytes(void)
{
    return (share_tensors[0].page_bytes + share_tensors[1].page_bytes) * share_shape.n_layers;
}

enum mirror_use {
    MIRROR_FILL,  /* with what `content` of the page says */
    MIRROR_CHECK, /* against it */
    MIRROR_WIPE
};

static void use_mirror(struct sharer *s, const uint64_t *contents, enum mirror_use use)
{
    unsigned char *at = (unsigned char *)s->mirror;
    uint64_t wrong = 0;
    for (uint32_t page = 1; page <= PAGES; page++)
        for (uint32_t t = 0; t < share_shape.n_tensors; t++)
            for (uint32_t layer = 0; layer < share_shape.n_layers; layer++) {
                const weir_tensor *tensor = &share_tensors[t];
                uint64_t place =
                    weir_pattern_place(tensor->replicated ? 0 : 1 + s->number, layer, t);
                for (uint32_t row = 0; row < share_shape.page_tokens; row++) {
                    uint64_t fingerprint = content_fingerprint(contents[page], row);
                    if (use == MIRROR_FILL)
                        weir_pattern_fill(at, tensor->row_bytes, place, fingerprint);
                    else if (use == MIRROR_WIPE)
                        memset(at, WORLD_GUARD_DEVICE, tensor->row_bytes);
                    else
                        wrong += weir_pattern_compare(at, tensor->row_bytes, place, fingerprint);
                    at += tensor->row_bytes;
                }
            }
    CHECK(wrong == 0, "%lu bytes on rank %u", (unsigned long)wrong, s->number);
}

static void copy_mirror(struct sharer *s, bool to_device)
{
    uint64_t at = (uintptr_t)s->mirror;
    int rc = 0;
    for (int32_t page = 1; page <= PAGES; page++)
        for (uint32_t t = 0; t < share_shape.n_tensors; t++)
            for (uint32_t layer = 0; layer < share_shape.n_layers && !rc; layer++) {
                uint64_t piece =
                    weir_rank_device_address(s->rank, t, layer, (weir_device_page){ page });
                uint64_t bytes = share_tensors[t].page_bytes;
                rc = weir_gpu_copy(&s->rig->tests, s->rig->streams[0], to_device ? piece : at,
                                   to_device ? at : piece, bytes);
                at += bytes;
            }
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    rig_synchronize(s->rig, s->rig->streams[0]);
}

static void open_sharer(struct sharer *s, uint32_t number, weir_host_share *share,
                        weir_host_layout layout, const struct way *way)
{
    *s = (struct sharer){ .rig = &rigs[number], .number = number };
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &share_shape;
    params.device_pages = params.host_pages = PAGES;
    params.host_layout = layout;
    params.share = share;
    params.load = params.write_back = way->tuning;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_rank_open(&s->rank, s->rig->device, &params);
    if (!rc)
        rc = s->rig->ops->words_alloc(s->rig->device, (uint32_t)(page_bytes() * PAGES / 4),
                                      &s->mirror);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

static void take_reports(struct sharer *s, uint32_t *n)
{
    uint64_t report[64];
    const weir_report_item *items;
    size_t bytes = 0;
    size_t n_items = 0;
    int rc = weir_rank_synchronize(s->rank);
    if (!rc)
        rc = weir_rank_report(s->rank, report, sizeof report, &bytes);
    if (!rc && bytes > 0)
        rc = weir_report_decode(&items, &n_items, report, bytes, NULL);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (size_t i = 0; i < n_items; i++)
        CHECK(items[i].rc == 0, "%s", weir_error_name(items[i].rc));
    *n += (uint32_t)n_items;
}

/* The same order to both, until both have reported the step and its transfer. */
static void step(struct sharer *sharers, weir_order order)
{
    uint64_t bytes[64];
    size_t n;
    order.device_pages = order.host_pages = PAGES;
    int rc = weir_order_encode(&order, bytes, sizeof bytes, &n, NULL);
    uint64_t begun[GPUS];
    for (uint32_t i = 0; i < GPUS && !rc; i++)
        rc = weir_rank_begin(sharers[i].rank, bytes, n, 0, sharers[i].rig->streams[0], &begun[i]);
    for (uint32_t i = 0; i < GPUS && !rc; i++)
        rc = weir_rank_end(sharers[i].rank, begun[i], sharers[i].rig->streams[0]);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (uint32_t i = 0; i < GPUS; i++)
        rig_synchronize(sharers[i].rig, sharers[i].rig->streams[0]);
    for (uint32_t i = 0; i < GPUS; i++) {
        uint32_t reported = 0;
        for (int round = 0; round < 3 && reported < 2; round++)
            take_reports(&sharers[i], &reported);
        CHECK(reported == 2, "%u reports of rank %u", reported, i);
    }
}

/* Written back by both, wiped, and loaded to other pages. */
static void share_round(struct sharer *sharers, uint32_t round)
{
    uint64_t contents[PAGES + 1];
    uint64_t moved[PAGES + 1];
    weir_move writes[PAGES];
    weir_move loads[PAGES];
    for (int32_t page = 1; page <= PAGES; page++) {
        int32_t to = PAGES + 1 - page;
        contents[page] = 1000 * (round + 1) + (uint64_t)page;
        moved[to] = contents[page];
        int32_t host = 1 + (page + 4 * (int32_t)round) % PAGES;
        writes[page - 1] = (weir_move){ { page }, { host } };
        loads[page - 1] = (weir_move){ { to }, { host } };
    }
    for (uint32_t i = 0; i < GPUS; i++) {
        use_mirror(&sharers[i], contents, MIRROR_FILL);
        copy_mirror(&sharers[i], true);
    }
    uint64_t number = 1 + 2 * (uint64_t)round;
    step(sharers,
         (weir_order){ .step = number, .write_ticket = 1, .n_writes = PAGES, .writes = writes });
    for (uint32_t i = 0; i < GPUS; i++) {
        use_mirror(&sharers[i], contents, MIRROR_WIPE);
        copy_mirror(&sharers[i], true);
    }
    step(sharers, (weir_order){ .step = number + 1, .n_loads = PAGES, .loads = loads });
    for (uint32_t i = 0; i < GPUS; i++) {
        copy_mirror(&sharers[i], false);
        use_mirror(&sharers[i], moved, MIRROR_CHECK);
    }
}

static void shared(weir_host_layout layout, const struct way *way, bool first_closes_first)
{
    unsigned failed_before = rig_n_failed;
    struct sharer sharers[GPUS];
    weir_host_share *share;
    char what[64];
    snprintf(what, sizeof what, "a share; %s", weir_host_layout_name(layout));
    group_begin(what, way->name);
    int rc = weir_host_share_create(&share, GPUS, NULL);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (uint32_t i = 0; i < GPUS; i++)
        open_sharer(&sharers[i], i, share, layout, way);
    weir_host_share_close(&share);
    for (uint32_t round = 0; round < 3; round++)
        share_round(sharers, round);
    for (uint32_t i = 0; i < GPUS; i++) {
        struct sharer *s = &sharers[first_closes_first ? i : GPUS - 1 - i];
        weir_rank_close(&s->rank);
        s->rig->ops->words_free(s->rig->device, s->mirror);
    }
    group_end(failed_before);
}

int main(int argc, char **argv)
{
    uint32_t n_steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 400;
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        rig_open_gpu(&rigs[gpu], gpu);
    find_contexts();
    for (size_t i = 0; i < N_WAYS; i++) {
        side_by_side(&ways[i], n_steps);
        on_threads(&ways[i], n_steps);
        in_context(NULL, "no current context", &ways[i], n_steps / 4);
        in_context(rigs[0].tests.device->context, "the other's current context", &ways[i],
                   n_steps / 4);
        for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++)
            shared((weir_host_layout)layout, &ways[i], (layout + (int)i) % 2);
    }
    int failed = 0;
    for (uint32_t gpu = 0; gpu < GPUS; gpu++)
        failed |= rig_close(&rigs[gpu]);
    return failed;
}
