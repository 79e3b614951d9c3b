/* SPDX-License-Identifier: Apache-2.0 */
#include "gather/gather.h"
#include "gather_case.h"
#include "log_capture.h"
#include "warp_model/model_check.h"
#include "warp_model/model_driver.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

/* The gather kernels' own code on the warp model, launched by the library's own
 * code: every byte, every skipped row. */

struct world {
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    struct gather_case c;
    struct weir_gather gather;
    struct weir_cuda_gather *made;
    uint8_t *arenas[2];
    uint8_t *expected;
    uint32_t word; /* pinned */
    uint32_t skipped;
    int64_t count;
    void *lists[2];
    uint64_t seed;
};

static void open_gpu(struct world *w, uint64_t seed, uint32_t compute)
{
    w->seed = seed;
    model_start(&w->device, compute);
    model.seed = seed + 1;
    must(weir_cuda_kernels_create(&w->kernels, &w->device) == 0, "kernels");
}

/* `p`: what differs from the defaults but for the banks. */
static void open_gather(struct world *w, struct random *random, const weir_gather_params *p)
{
    for (uint32_t side = 0; side < 2; side++) {
        w->arenas[side] = model_alloc(w->c.bytes[side]);
        gather_case_fill(w->arenas[side], w->c.bytes[side], random);
        w->lists[side] = calloc(w->c.max_count, 8);
    }
    w->expected = malloc(w->c.bytes[0]);
    memcpy(w->expected, w->arenas[0], w->c.bytes[0]);
    weir_bank banks[WEIR_GATHER_MAX_BANKS];
    weir_gather_params own =
        gather_case_params(&w->c, (uintptr_t)w->arenas[0], (uintptr_t)w->arenas[1], banks);
    own.engine = p->engine;
    own.direction = p->direction;
    own.ctas = p->ctas;
    own.threads = p->threads;
    own.stages = p->stages;
    own.stage_bytes = p->stage_bytes;
    must(weir_gather_check(&own, NULL, w->gather.banks) == 0, "seed %d: banks", (int)w->seed);
    w->gather.params = own;
    w->gather.skipped = &w->word;
    must(weir_cuda_gather_make(w->kernels, &w->gather, &w->made) == 0, "seed %d: make",
         (int)w->seed);
    w->gather.state = w->made;
}

static void close_world(struct world *w)
{
    weir_cuda_gather_free(w->kernels, w->made);
    weir_cuda_kernels_destroy(&w->kernels);
    for (uint32_t side = 0; side < 2; side++) {
        free(w->arenas[side]);
        free(w->lists[side]);
    }
    free(w->expected);
}

static void launch(struct world *w, int64_t count, bool on_device)
{
    for (uint32_t side = 0; side < 2; side++)
        gather_case_pack(&w->c, side, w->lists[side]);
    w->count = count;
    struct weir_gather_call call = { .gather = &w->gather };
    call.rows = (weir_gather_rows){ w->lists[0], w->lists[1], on_device ? &w->count : NULL,
                                    on_device ? 7777 : count };
    for (uint32_t i = 0; i < w->c.n_banks; i++)
        call.bases[i] = (weir_bank_bases){ (uintptr_t)w->arenas[0] + w->c.banks[i].dst,
                                           (uintptr_t)w->arenas[1] + w->c.banks[i].src };
    w->skipped += gather_case_expect(&w->c, w->expected, w->arenas[1], count);
    must(weir_cuda_gather_enqueue(w->kernels, w->made, MODEL_STREAM, &call) == 0, "launch");
    must(!model.failure, "seed %d: %s", (int)w->seed, model.failure);
    must(memcmp(w->arenas[0], w->expected, w->c.bytes[0]) == 0, "seed %d: bytes differ",
         (int)w->seed);
    must(w->word == w->skipped, "seed %d: %u skipped instead of %u", (int)w->seed, w->word,
         w->skipped);
}

static void random_shape_of_launch(struct random *random, weir_gather_params *p)
{
    static const uint32_t stage_bytes[] = { 1024, 2048, 4096, 16384 };
    p->ctas = 1 + random_below(random, 4);
    p->threads = 32 * (1 + random_below(random, 3));
    p->stages = 2 + random_below(random, 11);
    p->stage_bytes = stage_bytes[random_below(random, 4)];
    p->direction = (weir_copy_direction)random_below(random, 3);
}

static void random_case(uint64_t seed, weir_transfer_engine engine, uint32_t unit, uint32_t compute)
{
    struct random random = { seed };
    struct world w = { .seed = seed };
    open_gpu(&w, seed, compute);
    gather_case_random_banks(&w.c, &random, unit, 9000);
    w.c.max_count = 1 + random_below(&random, w.c.n_rows[0]);
    weir_gather_params p = { .engine = engine };
    random_shape_of_launch(&random, &p);
    open_gather(&w, &random, &p);
    for (uint32_t i = 0; i < 3; i++) {
        gather_case_lists(&w.c, &random, w.c.max_count, random_below(&random, 3) * 15);
        int64_t count = random_below(&random, w.c.max_count + 3);
        launch(&w, random_percent(&random, 10) ? -count : count, random_percent(&random, 70));
    }
    close_world(&w);
}

Test(gather_kernels, multiples_of_16_by_tma)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 60; seed++)
        random_case(seed, WEIR_ENGINE_TMA, 16, 90);
}

Test(gather_kernels, any_bytes_by_tma)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        random_case(seed, seed % 2 ? WEIR_ENGINE_TMA : WEIR_ENGINE_AUTO, 1, 90);
}

Test(gather_kernels, any_bytes_by_vector)
{
    SKIP_WITHOUT_KERNELS;
    for (uint64_t seed = 1; seed <= 40; seed++)
        random_case(seed, seed % 2 ? WEIR_ENGINE_VECTOR : WEIR_ENGINE_AUTO, seed % 3 ? 1 : 4, 80);
}

/* Aligned and odd banks in one launch: each byte once, in one kernel. */
Test(gather_kernels, odd_banks_go_through_registers_beside_the_others)
{
    SKIP_WITHOUT_KERNELS;
    static const uint64_t rows[] = { 4096, 200, 512, 24, 132, 1, 8192 };
    struct random random = { 5 };
    struct world w = { .seed = 5 };
    open_gpu(&w, 5, 90);
    gather_case_banks(&w.c, rows, 7, 20, 30);
    w.c.max_count = 12;
    open_gather(&w, &random, &(weir_gather_params){ .ctas = 2 });
    gather_case_lists(&w.c, &random, 12, 0);
    launch(&w, 12, true);
    must(model.launches == 1, "%u launches", model.launches);
    uint64_t bulk = 0;
    for (uint32_t i = 0; i < 7; i++)
        bulk += rows[i] % 16 == 0;
    must(model.counts.loads >= 12 * bulk && model.counts.loads < 24 * bulk, "%d bulk loads",
         (int)model.counts.loads);
    close_world(&w);
}

/* One large bank among many small ones: nobody has more than an equal share of
 * the bytes, however few rows there are. */
Test(gather_kernels, small_rows_share_a_stage)
{
    SKIP_WITHOUT_KERNELS;
    uint64_t rows[32];
    for (uint32_t i = 0; i < 32; i++)
        rows[i] = 64;
    struct random random = { 6 };
    struct world w = { .seed = 6 };
    open_gpu(&w, 6, 90);
    gather_case_banks(&w.c, rows, 32, 20, 30);
    w.c.max_count = 10;
    open_gather(&w, &random, &(weir_gather_params){ .ctas = 1, .stages = 2, .stage_bytes = 4096 });
    gather_case_lists(&w.c, &random, 10, 0);
    launch(&w, 10, true);
    must(model.counts.loads == 320 && model.counts.arms == 10, "%d loads in %d stages",
         (int)model.counts.loads, (int)model.counts.arms);
    close_world(&w);
}

Test(gather_kernels, shares_are_equal)
{
    SKIP_WITHOUT_KERNELS;
    static const uint64_t rows[] = { 65536, 16, 16, 16 };
    struct random random = { 7 };
    struct world w = { .seed = 7 };
    open_gpu(&w, 7, 90);
    gather_case_banks(&w.c, rows, 4, 3, 3);
    w.c.max_count = 1;
    open_gather(&w, &random, &(weir_gather_params){ .ctas = 4, .stages = 2, .stage_bytes = 1024 });
    gather_case_lists(&w.c, &random, 1, 0);
    launch(&w, 1, true);
    for (uint32_t cta = 0; cta < 4; cta++)
        must(model.counts.cta_bytes[cta] > 16000 && model.counts.cta_bytes[cta] < 17000,
             "%d bytes by cta %u", (int)model.counts.cta_bytes[cta], cta);
    close_world(&w);
}

Test(gather_kernels, a_gpu_without_kernels_says_so)
{
    struct world w = { .seed = 8 };
    open_gpu(&w, 8, 70);
    struct log_capture capture = { 0 };
    w.device.base.log = log_capture_log(&capture);
    w.gather.params.n_banks = 1;
    must(weir_cuda_gather_make(w.kernels, &w.gather, &w.made) == -ENOTSUP, "made");
    must(strstr(capture.last, "vector"), "\"%s\"", capture.last);
    w.gather.params.engine = WEIR_ENGINE_TMA;
    must(weir_cuda_gather_make(w.kernels, &w.gather, &w.made) == -ENOTSUP, "made");
    must(strstr(capture.last, "tma"), "\"%s\"", capture.last);
    weir_cuda_kernels_destroy(&w.kernels);
}

Test(gather_kernels, failures_of_the_driver_leave_nothing)
{
    SKIP_WITHOUT_KERNELS;
    struct random random = { 9 };
    struct world w = { .seed = 9 };
    open_gpu(&w, 9, 90);
    gather_case_banks(&w.c, gather_case_small, 6, 8, 8);
    w.c.max_count = 4;
    open_gather(&w, &random, &(weir_gather_params){ .stages = 3 });
    struct weir_cuda_gather *other = NULL;
    model.fail_upload = true;
    must(weir_cuda_gather_make(w.kernels, &w.gather, &other) == -EIO && !other, "upload");
    model.fail_upload = false;
    w.gather.params.stages = 16;
    w.gather.params.stage_bytes = 131072;
    must(weir_cuda_gather_make(w.kernels, &w.gather, &other) == -EINVAL && !other, "ring");
    struct weir_gather_call call = { .gather = &w.gather };
    model.fail_launch = true;
    must(weir_cuda_gather_enqueue(w.kernels, w.made, MODEL_STREAM, &call) == -EIO, "launch");
    close_world(&w);
}
