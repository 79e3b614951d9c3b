/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_world.h"
#include "random_shape.h"
#include "transfer/rank.h"

#include <errno.h>

/* The kernels' own code on the warp model, launched by the library's own code on
 * a driver made of it: every byte of every layout. */

static void run_transfer(struct world *w, struct random *random, const struct weir_launch *launch)
{
    uint32_t n_layers = w->geometry->n_layers;
    random_runs(w, random);
    fill(w, random);
    struct weir_transfer *t = &w->transfer;
    t->geometry = w->geometry;
    t->direction = random_percent(random, 50) ? WEIR_LOAD : WEIR_WRITE_BACK;
    t->layer_begin = random_below(random, n_layers);
    t->layer_end = t->layer_begin + 1 + random_below(random, n_layers - t->layer_begin);
    t->words = w->words;
    t->generation++;
    bool publish = t->direction == WEIR_LOAD && random_percent(random, 80);
    for (uint32_t layer = t->layer_begin; layer < t->layer_end; layer++)
        expect_layer(w, layer);
    w->next_word = t->layer_begin;
    model.on_word = check_word;
    model.user = w;
    int rc = weir_cuda_kernels_copy(w->pages, MODEL_STREAM, t, t->layer_begin, t->layer_end, launch,
                                    publish);
    must(rc == 0, "seed %d: rc %d", (int)w->seed, rc);
    must(!model.failure, "seed %d: %s", (int)w->seed, model.failure);
    must(w->next_word == (publish ? t->layer_end : t->layer_begin), "seed %d: words", (int)w->seed);
    for (uint32_t i = 0; i < 2; i++)
        must(memcmp(w->tier[i], w->expected[i], w->bytes[i]) == 0,
             "seed %d: layout %d, direction %d: tier %u differs", (int)w->seed,
             (int)w->geometry->host_layout, (int)t->direction, i);
}

static void random_launch(struct random *random, weir_transfer_engine engine,
                          struct weir_launch *launch)
{
    static const uint32_t stage_bytes[] = { 1024, 2048, 4096, 16384, 32768 };
    *launch = (struct weir_launch){ .engine = engine, .ctas = 1 + random_below(random, 4) };
    launch->threads = 32 * (1 + random_below(random, 3));
    launch->stages = 2 + random_below(random, 15);
    launch->stage_bytes = stage_bytes[random_below(random, 5)];
    while (launch->stages * (launch->stage_bytes + 8) > MODEL_SHARED_BYTES)
        launch->stages--;
}

/* Rows of multiples of 16 in ways that need each path: packed, split, boxed. */
static void tma_shape(struct random *random, struct random_shape *s)
{
    static const uint32_t row_bytes[] = { 16, 64, 128, 512, 576, 656, 1152, 2048, 2064, 4096 };
    random_shape(random, s, true, 1 << 16);
    for (uint32_t i = 0; i < s->shape.n_tensors; i++) {
        weir_tensor *t = &s->tensors[i];
        if (t->row_bytes) {
            t->row_bytes = row_bytes[random_below(random, 10)];
            t->page_bytes = (uint64_t)t->row_bytes * s->shape.page_tokens;
        } else {
            t->page_bytes = (t->page_bytes + 15) / 16 * 16;
        }
    }
}

static bool has_opaque(const weir_shape *shape)
{
    for (uint32_t i = 0; i < shape->n_tensors; i++)
        if (shape->tensors[i].row_bytes == 0)
            return true;
    return false;
}

static void pages_case(uint64_t seed, weir_transfer_engine engine, uint32_t compute)
{
    struct random random = { seed };
    struct random_shape s;
    struct world w;
    if (engine == WEIR_ENGINE_TMA)
        tma_shape(&random, &s);
    else
        random_shape(&random, &s, true, 1 << 16);
    uint64_t bytes = 0;
    (void)weir_shape_page_bytes(&s.shape, NULL, &bytes);
    if (bytes > 200000)
        return; /* too slow here */
    weir_host_layout layout = layouts[seed % 4];
    if (layout == WEIR_HOST_PAGE_FIRST && has_opaque(&s.shape))
        layout = WEIR_HOST_SEGMENTED;
    world_open(&w, seed, &s.shape, layout, compute);
    struct weir_launch launch;
    for (uint32_t i = 0; i < 3; i++) {
        random_launch(&random, engine, &launch);
        run_transfer(&w, &random, &launch);
    }
    world_close(&w);
}

Test(kernels, pages_tma)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        pages_case(seed, WEIR_ENGINE_TMA, 90);
}

Test(kernels, pages_vector)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        pages_case(seed, WEIR_ENGINE_VECTOR, 80);
}

/* ---- Within the device ----------------------------------------------------- */

/* Some pages to others of a shuffled order. */
static uint32_t random_page_copies(struct random *random, weir_page_copy *copies)
{
    int32_t pages[20];
    for (int32_t i = 0; i < 20; i++)
        pages[i] = i + 1;
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t other = i + random_below(random, 20 - i);
        int32_t page = pages[i];
        pages[i] = pages[other];
        pages[other] = page;
    }
    uint32_t n = 1 + random_below(random, 10);
    for (uint32_t i = 0; i < n; i++)
        copies[i] = (weir_page_copy){ { pages[10 + random_below(random, 10)] }, { pages[i] }, 0 };
    return n;
}

static void within_case(uint64_t seed)
{
    struct random random = { seed };
    struct random_shape s;
    struct world w;
    random_shape(&random, &s, true, 1 << 16);
    world_open(&w, seed, &s.shape, WEIR_HOST_SEGMENTED, 80);
    for (uint32_t round = 0; round < 6; round++) {
        weir_page_copy copies[10];
        uint32_t n = random_page_copies(&random, copies);
        fill(&w, &random);
        for (uint32_t t = 0; t < w.geometry->n_tensors; t++)
            for (uint32_t l = 0; l < w.geometry->n_layers; l++)
                for (uint32_t i = 0; i < n; i++)
                    if (w.geometry->layer_index[t * w.geometry->n_layers + l] >= 0)
                        memcpy(w.expected[1] +
                                   (weir_geometry_device(w.geometry, t, l, copies[i].to) -
                                    (uintptr_t)w.tier[1]),
                               w.tier[1] + (weir_geometry_device(w.geometry, t, l, copies[i].from) -
                                            (uintptr_t)w.tier[1]),
                               w.geometry->tensors[t].page_bytes);
        int rc = weir_cuda_kernels_copy_within(w.pages, MODEL_STREAM, copies, n);
        must(rc == 0 && !model.failure, "seed %d: rc %d, %s", (int)seed, rc, model.failure);
        for (uint32_t i = 0; i < 2; i++)
            must(memcmp(w.tier[i], w.expected[i], w.bytes[i]) == 0, "seed %d: tier %u differs",
                 (int)seed, i);
    }
    world_close(&w);
}

Test(kernels, pages_within_the_device)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        within_case(seed);
}

static const weir_tensor strided_tensor = { .page_bytes = 64 * 512, .row_bytes = 512 };
static const weir_shape strided_shape = { 64, 3, 1, &strided_tensor };

/* Boxes load whole groups of strided rows; without a map each row is an op. */
Test(kernels, strided_rows_are_loaded_as_boxes)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    struct random random = { 7 };
    world_open(&w, 7, &strided_shape, WEIR_HOST_PAGE_FIRST, 90);
    const struct weir_launch launch = { .engine = WEIR_ENGINE_TMA };
    do
        run_transfer(&w, &random, &launch);
    while (w.transfer.direction != WEIR_LOAD);
    uint64_t pages = 0;
    for (uint32_t i = 0; i < w.transfer.n_runs; i++)
        pages += (uint32_t)w.transfer.runs[i].count;
    uint64_t layers = w.transfer.layer_end - w.transfer.layer_begin;
    must(model.counts.boxes == pages * layers * 2 && model.counts.loads == 0, "%d boxes, %d loads",
         (int)model.counts.boxes, (int)model.counts.loads);
    world_close(&w);
}

Test(kernels, rows_without_a_map_are_loaded_one_by_one)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    struct random random = { 7 };
    world_open(&w, 7, &strided_shape, WEIR_HOST_PAGE_FIRST, 90);
    weir_cuda_kernels_release(&w.pages);
    model.fail_map = true;
    must(weir_cuda_kernels_prepare(w.kernels, w.geometry, &w.pages) == 0, "prepare");
    const struct weir_launch launch = { .engine = WEIR_ENGINE_TMA };
    for (uint32_t i = 0; i < 4; i++) {
        run_transfer(&w, &random, &launch);
        must(model.counts.boxes == 0, "boxes without a map");
    }
    world_close(&w);
}

Test(kernels, rows_of_a_box)
{
    static const struct {
        uint32_t row_bytes, page_tokens, rows;
    } cases[] = { { 512, 64, 32 }, { 512, 20, 4 },  { 512, 1, 0 },   { 512, 0, 32 },
                  { 656, 64, 16 }, { 1152, 64, 8 }, { 2048, 64, 8 }, { 2064, 64, 0 },
                  { 132, 64, 0 },  { 16, 64, 32 },  { 48, 2, 0 },    { 0, 64, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        must(weir_cuda_kernels_box_rows(cases[i].row_bytes, cases[i].page_tokens) == cases[i].rows,
             "case %d", (int)i);
}

/* Runs of pieces that are contiguous on both sides are few long copies. */
Test(kernels, runs_are_merged)
{
    SKIP_WITHOUT_KERNELS;
    weir_tensor tensor = { .page_bytes = 1024, .row_bytes = 256 };
    weir_shape shape = { 4, 1, 1, &tensor };
    struct world w;
    world_open(&w, 3, &shape, WEIR_HOST_LAYER_FIRST, 90);
    w.runs[0] = (struct weir_run){ 2, 3, 16 };
    w.transfer = (struct weir_transfer){
        .geometry = w.geometry, .runs = w.runs, .n_runs = 1, .direction = WEIR_LOAD, .layer_end = 1
    };
    const struct weir_launch launch = { .engine = WEIR_ENGINE_TMA, .ctas = 1 };
    must(weir_cuda_kernels_copy(w.pages, MODEL_STREAM, &w.transfer, 0, 1, &launch, false) == 0,
         "copy");
    must(!model.failure && model.counts.loads == 1 && model.counts.stores == 1, "%d, %d",
         (int)model.counts.loads, (int)model.counts.stores);
    world_close(&w);
}

/* A tuning that no transfer could be launched with is told when a rank opens; an
 * engine that cannot do the pages gives way. */
Test(kernels, a_tuning_is_refused_before_any_transfer)
{
    SKIP_WITHOUT_KERNELS;
    static const struct {
        weir_transfer_tuning tuning;
        int load, write_back;
    } cases[] = {
        { { 0 }, 0, 0 },
        { { .engine = WEIR_ENGINE_TMA, .stages = 6, .stage_bytes = 32768 }, 0, 0 },
        { { .engine = WEIR_ENGINE_TMA, .stages = 16, .stage_bytes = 65536 }, -EINVAL, -EINVAL },
        { { .stages = 16, .stage_bytes = 65536 }, -EINVAL, 0 },
        { { .engine = WEIR_ENGINE_TMA, .stage_bytes = 1000 }, -EINVAL, -EINVAL },
        { { .engine = WEIR_ENGINE_VECTOR, .stages = 16, .stage_bytes = 65536 }, 0, 0 },
        { { .engine = WEIR_ENGINE_COPY, .stages = 16, .stage_bytes = 65536 }, 0, 0 },
    };
    for (uint32_t row_bytes = 16; row_bytes >= 13; row_bytes -= 3) { /* pages of 64 and 52 bytes */
        const weir_tensor tensor = { .page_bytes = 4 * row_bytes, .row_bytes = row_bytes };
        const weir_shape shape = { 4, 2, 1, &tensor };
        struct world w;
        world_open(&w, 5, &shape, WEIR_HOST_SEGMENTED, 90);
        struct weir_cuda_transfer state = { .pages = w.pages };
        w.device.kernels = w.kernels;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            bool tma = row_bytes % 16 == 0;
            int load = weir_cuda_transfer_tune(&w.device.base, &state, WEIR_LOAD, &cases[i].tuning);
            int back =
                weir_cuda_transfer_tune(&w.device.base, &state, WEIR_WRITE_BACK, &cases[i].tuning);
            must(load == (tma ? cases[i].load : 0), "case %d: %d", (int)i, load);
            must(back == (tma ? cases[i].write_back : 0), "case %d: %d", (int)i, back);
        }
        must(weir_cuda_transfer_bytes(&w.device.base, &state) == weir_cuda_kernels_bytes(w.pages) &&
                 weir_cuda_kernels_bytes(w.pages) > 0,
             "bytes");
        world_close(&w);
    }
}

/* ---- Lists ----------------------------------------------------------------- */

static void small_world(struct world *w)
{
    static const weir_tensor tensor = { .page_bytes = 64, .row_bytes = 16 };
    static const weir_shape shape = { 4, 2, 1, &tensor };
    world_open(w, 5, &shape, WEIR_HOST_SEGMENTED, 90);
    w->runs[0] = (struct weir_run){ 1, 1, 5 };
    w->transfer = (struct weir_transfer){ .geometry = w->geometry,
                                          .runs = w->runs,
                                          .n_runs = 1,
                                          .direction = WEIR_LOAD,
                                          .layer_end = 2 };
}

/* 64 pages of room (2 x 20 rounded up): a thirteenth list of five waits for the first. */
Test(kernels, a_full_ring_waits_for_the_oldest_list)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    small_world(&w);
    struct weir_cuda_list list;
    model.hold_words = true;
    model.synchronized = 0;
    for (uint32_t i = 0; i < 12; i++) {
        must(weir_cuda_list_begin(&list, w.pages, MODEL_STREAM, &w.transfer) == 0, "begin");
        weir_cuda_list_end(&list);
    }
    must(model.synchronized == 0, "waited too early");
    must(weir_cuda_list_begin(&list, w.pages, MODEL_STREAM, &w.transfer) == 0, "begin");
    must(model.synchronized == 1, "did not wait");
    must(list.first + list.n_pages > 64, "the list does not wrap");
    weir_cuda_list_end(&list);
    /* The other direction has a ring of its own. */
    w.transfer.direction = WEIR_WRITE_BACK;
    must(weir_cuda_list_begin(&list, w.pages, MODEL_STREAM, &w.transfer) == 0, "begin");
    must(model.synchronized == 1, "a write-back waited for a load");
    weir_cuda_list_end(&list);
    world_close(&w);
}

/* How many lists of a direction are in flight before one waits. */
static uint32_t lists_in_flight(struct world *w, enum weir_direction direction)
{
    struct weir_cuda_list list;
    w->transfer.direction = direction;
    model.synchronized = 0;
    for (uint32_t n = 0;; n++) {
        must(weir_cuda_list_begin(&list, w->pages, MODEL_STREAM, &w->transfer) == 0, "begin");
        weir_cuda_list_end(&list);
        if (model.synchronized > 0)
            return n;
    }
}

/* As many as a rank may have, whose calls do not wait. */
Test(kernels, lists_wait_beyond_what_a_rank_has_in_flight)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    small_world(&w);
    w.transfer.n_runs = 0;
    model.hold_words = true;
    must(lists_in_flight(&w, WEIR_LOAD) == WEIR_MAX_STEPS, "loads");
    must(lists_in_flight(&w, WEIR_WRITE_BACK) == WEIR_MAX_WRITE_BACKS, "write-backs");
    world_close(&w);
}

/* Who copies within the device can do without a kernel, and does not wait. */
Test(kernels, a_full_ring_refuses_copies_within_the_device)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    small_world(&w);
    const weir_page_copy copies[12] = {
        { { 1 }, { 2 }, 0 },  { { 1 }, { 3 }, 0 },  { { 1 }, { 4 }, 0 },  { { 1 }, { 5 }, 0 },
        { { 1 }, { 6 }, 0 },  { { 1 }, { 7 }, 0 },  { { 1 }, { 8 }, 0 },  { { 1 }, { 9 }, 0 },
        { { 1 }, { 10 }, 0 }, { { 1 }, { 11 }, 0 }, { { 1 }, { 12 }, 0 }, { { 1 }, { 13 }, 0 }
    };
    must(weir_cuda_kernels_copy_within(NULL, MODEL_STREAM, copies, 12) == -ENOTSUP, "no kernels");
    must(weir_cuda_kernels_copy_within(w.pages, MODEL_STREAM, copies, 65) == -E2BIG, "too many");
    model.hold_words = true;
    model.synchronized = 0;
    for (uint32_t i = 0; i < 5; i++) /* 64 pages of room */
        must(weir_cuda_kernels_copy_within(w.pages, MODEL_STREAM, copies, 12) == 0, "copy");
    must(weir_cuda_kernels_copy_within(w.pages, MODEL_STREAM, copies, 12) == -EAGAIN, "full");
    must(weir_cuda_kernels_copy_within(w.pages, MODEL_STREAM, copies, 4) == 0, "the rest");
    must(model.synchronized == 0, "waited");
    must(model.launches == 6, "%u launches", model.launches);
    world_close(&w);
}

Test(kernels, a_list_serves_several_launches)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    struct random random = { 5 };
    small_world(&w);
    fill(&w, &random);
    expect_layer(&w, 0);
    expect_layer(&w, 1);
    struct weir_cuda_list list;
    const struct weir_launch launch = { .engine = WEIR_ENGINE_TMA };
    must(weir_cuda_list_begin(&list, w.pages, MODEL_STREAM, &w.transfer) == 0, "begin");
    must(weir_cuda_list_launch(&list, 0, 1, &launch, false) == 0, "launch");
    must(weir_cuda_list_launch(&list, 1, 1, &launch, false) == 0, "no layer");
    must(weir_cuda_list_launch(&list, 1, 2, &launch, false) == 0, "launch");
    weir_cuda_list_end(&list);
    must(model.launches == 2, "%u launches", model.launches);
    must(memcmp(w.tier[1], w.expected[1], w.bytes[1]) == 0, "bytes");
    world_close(&w);
}

Test(kernels, an_empty_list_publishes_its_words)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    small_world(&w);
    w.transfer.n_runs = 0;
    w.transfer.words = w.words;
    w.transfer.generation = 9;
    struct weir_launch launch = { .engine = WEIR_ENGINE_TMA, .ctas = 3 };
    for (uint32_t i = 0; i < 2; i++) {
        w.words[0] = w.words[1] = 0;
        must(weir_cuda_kernels_copy(w.pages, MODEL_STREAM, &w.transfer, 0, 2, &launch, true) == 0,
             "copy");
        must(!model.failure, "%s", model.failure);
        must(w.words[0] == 9 && w.words[1] == 9, "words");
        launch.engine = WEIR_ENGINE_VECTOR;
    }
    world_close(&w);
}

/* ---- Failures -------------------------------------------------------------- */

Test(kernels, driver_failures)
{
    SKIP_WITHOUT_KERNELS;
    struct world w;
    small_world(&w);
    const struct weir_launch launch = { .engine = WEIR_ENGINE_TMA };
    model.fail_upload = true;
    must(weir_cuda_kernels_copy(w.pages, MODEL_STREAM, &w.transfer, 0, 2, &launch, false) == -EIO,
         "upload");
    model.fail_upload = false;
    model.fail_launch = true;
    must(weir_cuda_kernels_copy(w.pages, MODEL_STREAM, &w.transfer, 0, 2, &launch, false) == -EIO,
         "launch");
    model.fail_launch = false;
    /* A word that cannot be written is made up for on the spot, so the room of
     * these lists comes back. */
    model.fail_write = true;
    model.synchronized = 0;
    for (uint32_t i = 0; i < 100; i++)
        must(weir_cuda_kernels_copy(w.pages, MODEL_STREAM, &w.transfer, 0, 2, &launch, false) == 0,
             "write");
    must(model.synchronized == 100, "%u synchronized", model.synchronized);
    w.transfer.runs = w.runs;
    w.runs[0].count = 65;
    must(weir_cuda_kernels_copy(w.pages, MODEL_STREAM, &w.transfer, 0, 2, &launch, false) == -E2BIG,
         "too many");
    world_close(&w);
}

Test(kernels, launches_are_checked)
{
    SKIP_WITHOUT_KERNELS;
    static const struct {
        struct weir_launch launch;
        int rc;
    } cases[] = {
        { { .engine = WEIR_ENGINE_TMA }, 0 },
        { { .engine = WEIR_ENGINE_VECTOR }, 0 },
        { { .engine = WEIR_ENGINE_AUTO }, -EINVAL },
        { { .engine = WEIR_ENGINE_COPY }, -EINVAL },
        { { .engine = WEIR_ENGINE_TMA, .ctas = 70000 }, -EINVAL },
        { { .engine = WEIR_ENGINE_TMA, .stages = 1 }, -EINVAL },
        { { .engine = WEIR_ENGINE_TMA, .stages = 17 }, -EINVAL },
        { { .engine = WEIR_ENGINE_TMA, .stages = 16 }, -EINVAL }, /* 16 × 16 KiB do not fit */
        { { .engine = WEIR_ENGINE_TMA, .stages = 8, .stage_bytes = 16384 }, 0 },
        { { .engine = WEIR_ENGINE_TMA, .stage_bytes = 1000 }, -EINVAL },
        { { .engine = WEIR_ENGINE_TMA, .stage_bytes = 1024 + 64 }, -EINVAL },
        { { .engine = WEIR_ENGINE_TMA, .stages = 2, .stage_bytes = 1 << 18 }, -EINVAL },
        { { .engine = WEIR_ENGINE_VECTOR, .threads = 33 }, -EINVAL },
        { { .engine = WEIR_ENGINE_VECTOR, .threads = 1024 }, -EINVAL },
    };
    struct world w;
    small_world(&w);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        must(weir_cuda_kernels_check(w.pages, &cases[i].launch) == cases[i].rc, "case %d", (int)i);
    must(weir_cuda_kernels_check(NULL, &cases[0].launch) == -ENOTSUP, "no kernels");
    must(weir_cuda_kernels_can_tma(w.pages), "can tma");
    world_close(&w);

    static const weir_tensor odd = { .page_bytes = 132, .row_bytes = 132 };
    static const weir_shape shape = { 1, 1, 1, &odd };
    world_open(&w, 1, &shape, WEIR_HOST_SEGMENTED, 90);
    must(!weir_cuda_kernels_can_tma(w.pages), "132 bytes");
    must(weir_cuda_kernels_check(w.pages, &cases[0].launch) == -EINVAL, "132 bytes by tma");
    must(weir_cuda_kernels_check(w.pages, &cases[1].launch) == 0, "132 bytes by vector");
    world_close(&w);

    world_open(&w, 1, &shape, WEIR_HOST_SEGMENTED, 80);
    must(weir_cuda_kernels_check(w.pages, &cases[0].launch) != 0, "tma on 8.0");
    world_close(&w);
}

Test(kernels, a_gpu_too_old_has_none)
{
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    struct weir_cuda_pages *pages;
    model_start(&device, 70);
    must(weir_cuda_kernels_create(&kernels, &device) == 0, "create");
    must(kernels->compute == 0 && kernels->stages == 0, "abilities");
    must(weir_cuda_kernels_prepare(kernels, NULL, &pages) == 0 && !pages, "prepare");
    must(weir_cuda_kernels_bytes(pages) == 0 && !weir_cuda_kernels_can_tma(pages), "nothing");
    weir_cuda_kernels_release(&pages);
    weir_cuda_kernels_destroy(&kernels);
}

/* ---- Rows ------------------------------------------------------------------ */

struct rows_world {
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    weir_copy_rows_params params;
    uint8_t *to, *from, *expected;
    uint64_t buffers[2][2][3]; /* side, buffer, layer: the tables */
    uint64_t to_bytes, from_bytes;
    void *indices[2];
};

static uint64_t index_at(const struct rows_world *w, uint32_t side, uint32_t i)
{
    return w->params.index_bytes == 8 ? ((uint64_t *)w->indices[side])[i]
                                      : ((uint32_t *)w->indices[side])[i];
}

/* Ascending, mostly consecutive, distinct rows below 4 × n. */
static void random_indices(struct rows_world *w, struct random *random, uint32_t side)
{
    uint64_t row = random_below(random, 4);
    for (uint32_t i = 0; i < w->params.n_rows; i++) {
        if (w->params.index_bytes == 8)
            ((uint64_t *)w->indices[side])[i] = row;
        else
            ((uint32_t *)w->indices[side])[i] = (uint32_t)row;
        row += random_percent(random, 90) ? 1 : 1 + random_below(random, 3);
    }
}

static void rows_case(uint64_t seed, weir_transfer_engine engine)
{
    static const uint32_t sizes[2][8] = { { 16, 128, 512, 576, 656, 1152, 4096, 40960 },
                                          { 1, 3, 132, 8, 100, 656, 1152, 9001 } };
    struct random random = { seed };
    struct rows_world w = { 0 };
    model_start(&w.device, 90);
    model.seed = seed;
    must(weir_cuda_kernels_create(&w.kernels, &w.device) == 0, "kernels");
    weir_copy_rows_params *p = &w.params;
    weir_copy_rows_params_init(p);
    bool tables = random_percent(&random, 40);
    p->engine = engine;
    p->row_bytes = sizes[engine == WEIR_ENGINE_VECTOR][random_below(&random, 8)];
    p->n_rows = 1 + random_below(&random, p->row_bytes > 5000 ? 20 : 300);
    p->n_buffers = 1 + random_below(&random, 2);
    p->n_layers = tables ? 3 : 1;
    p->index_bytes = random_percent(&random, 50) ? 8 : 4;
    p->direction = (weir_copy_direction)random_below(&random, 3);
    struct weir_launch launch;
    random_launch(&random, engine, &launch);
    p->ctas = launch.ctas;
    p->threads = launch.threads;
    p->stages = launch.stages;
    p->stage_bytes = launch.stage_bytes;
    uint32_t pad = engine == WEIR_ENGINE_TMA ? 16 : 1;
    p->to.stride = p->row_bytes + (uint64_t)pad * (random_percent(&random, 50) ? 0 : 7);
    p->from.stride = p->row_bytes + (uint64_t)pad * (random_percent(&random, 50) ? 0 : 5);
    uint64_t room = 4ull * (p->n_rows + 4);
    p->from.n_rows = random_percent(&random, 70) ? room : 0;
    uint32_t n_planes = p->n_buffers * p->n_layers;
    w.to_bytes = n_planes * room * p->to.stride;
    w.from_bytes = n_planes * room * p->from.stride;
    w.to = model_alloc(w.to_bytes);
    w.from = model_alloc(w.from_bytes);
    w.expected = malloc(w.to_bytes);
    for (uint64_t i = 0; i < w.from_bytes; i++)
        w.from[i] = (uint8_t)random_next(&random);
    memset(w.to, 0x11, w.to_bytes);
    memset(w.expected, 0x11, w.to_bytes);
    for (uint32_t side = 0; side < 2; side++) {
        w.indices[side] = malloc(p->n_rows * 8ull);
        random_indices(&w, &random, side);
    }
    p->to.indices = w.indices[0];
    p->from.indices = w.indices[1];
    for (uint32_t b = 0; b < p->n_buffers; b++) {
        for (uint32_t l = 0; l < p->n_layers; l++) {
            uint32_t plane = l * p->n_buffers + b;
            w.buffers[0][b][l] = (uintptr_t)w.to + plane * room * p->to.stride;
            w.buffers[1][b][l] = (uintptr_t)w.from + plane * room * p->from.stride;
            for (uint32_t i = 0; i < p->n_rows; i++)
                memcpy(w.expected + plane * room * p->to.stride + index_at(&w, 0, i) * p->to.stride,
                       (uint8_t *)(uintptr_t)w.buffers[1][b][l] +
                           index_at(&w, 1, i) * p->from.stride,
                       p->row_bytes);
        }
        p->to.buffers[b] = tables ? (uintptr_t)w.buffers[0][b] : w.buffers[0][b][0];
        p->from.buffers[b] = tables ? (uintptr_t)w.buffers[1][b] : w.buffers[1][b][0];
    }
    must(weir_cuda_kernels_rows(w.kernels, MODEL_STREAM, p, tables) == 0, "rows");
    must(!model.failure, "seed %d: %s", (int)seed, model.failure);
    must(memcmp(w.to, w.expected, w.to_bytes) == 0,
         "seed %d: %u rows of %u bytes, strides %d and %d, direction %d differ", (int)seed,
         p->n_rows, p->row_bytes, (int)p->to.stride, (int)p->from.stride, (int)p->direction);
    free(w.to);
    free(w.from);
    free(w.expected);
    free(w.indices[0]);
    free(w.indices[1]);
    weir_cuda_kernels_destroy(&w.kernels);
}

/* A group of 32 consecutive rows is a box, one with a gap is not; nor is the
 * rest of less than a group. */
Test(kernels, only_consecutive_rows_are_a_box)
{
    SKIP_WITHOUT_KERNELS;
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    enum {
        ROWS = 70,
        ROW = 512,
        STRIDE = 1024
    };
    model_start(&device, 90);
    must(weir_cuda_kernels_create(&kernels, &device) == 0, "kernels");
    uint8_t *from = model_alloc((ROWS + 10) * STRIDE);
    uint8_t *to = model_alloc(ROWS * ROW);
    uint32_t indices[2][ROWS];
    for (uint32_t i = 0; i < (ROWS + 10) * STRIDE; i++)
        from[i] = (uint8_t)(i / ROW * 7 + i % ROW);
    for (uint32_t i = 0; i < ROWS; i++) {
        indices[0][i] = i;
        indices[1][i] = i + (i >= 40);
    }
    weir_copy_rows_params p;
    weir_copy_rows_params_init(&p);
    p.page_tokens = 64;
    p.row_bytes = ROW;
    p.n_rows = ROWS;
    p.index_bytes = 4;
    p.to = (weir_copy_side){ { (uintptr_t)to }, indices[0], ROW, ROWS };
    p.from = (weir_copy_side){ { (uintptr_t)from }, indices[1], STRIDE, ROWS + 10 };
    must(weir_cuda_kernels_rows(kernels, MODEL_STREAM, &p, false) == 0, "rows by auto");
    must(!model.failure, "%s", model.failure);
    must(model.counts.boxes == 1 && model.counts.loads == 38, "%d boxes, %d loads",
         (int)model.counts.boxes, (int)model.counts.loads);
    for (uint32_t i = 0; i < ROWS; i++)
        must(memcmp(to + i * ROW, from + indices[1][i] * STRIDE, ROW) == 0, "row %u", i);
    free(from);
    free(to);
    weir_cuda_kernels_destroy(&kernels);
}

Test(kernels, rows_tma)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        rows_case(seed, WEIR_ENGINE_TMA);
}

Test(kernels, rows_vector)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        rows_case(seed, WEIR_ENGINE_VECTOR);
}
