/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_rig.h"

#include <weir/cuda.h>

/* Of test_cuda_device: copies by the copy engine, whole and when a call of them fails. */

/* Runs without a page in common, none across segments of 8. */
static uint32_t random_runs(struct random *random, const struct weir_geometry *geometry,
                            struct weir_run *runs)
{
    weir_move moves[RIG_PAGES];
    int32_t ids[RIG_PAGES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < RIG_PAGES; i++)
        ids[i] = (int32_t)i + 1;
    for (uint32_t i = 0; i < RIG_PAGES; i++) {
        if (random_percent(random, 20)) {
            uint32_t j = random_below(random, RIG_PAGES);
            int32_t id = ids[i];
            ids[i] = ids[j];
            ids[j] = id;
        }
    }
    for (uint32_t i = 0; i < RIG_PAGES; i++)
        if (random_percent(random, 70))
            moves[n++] = (weir_move){ { (int32_t)i + 1 }, { ids[i] } };
    return weir_plan_runs(geometry, moves, n, runs);
}

static bool has_opaque(const weir_shape *shape)
{
    for (uint32_t t = 0; t < shape->n_tensors; t++)
        if (shape->tensors[t].row_bytes == 0)
            return true;
    return false;
}

/* A copy of some pages and layers, against the model: every byte of both tiers,
 * and the words of its layers and no others. */
static void check_random_copy(struct cuda_rig *rig, struct cuda_pools *pools, struct random *random,
                              uint32_t generation)
{
    struct weir_run runs[RIG_PAGES];
    uint32_t n_runs = random_runs(random, pools->geometry, runs);
    struct weir_transfer transfer = pools_transfer(
        pools, runs, n_runs, random_percent(random, 50) ? WEIR_LOAD : WEIR_WRITE_BACK);
    transfer.layer_begin = random_below(random, pools->geometry->n_layers);
    transfer.words = random_percent(random, 70) ? pools->words : NULL;
    transfer.generation = generation;
    uint32_t enqueued = 99;
    cr_assert(eq(int, rig->ops->copy(rig->device, rig->stream, &transfer, &enqueued), 0), "%s",
              rig->fake->violation);
    cr_assert(eq(u32, enqueued, transfer.layer_end));
    pools_model_copy(pools, &transfer);
    memset(runs, 0, sizeof runs); /* they are copied before the call returns */
    rig_run(rig);
    pools_check(pools);
    for (uint32_t l = 0; l < transfer.layer_end; l++)
        cr_assert(eq(int, pools->words[l] == generation,
                     transfer.words != NULL && l >= transfer.layer_begin));
}

static void check_random_copies(struct cuda_rig *rig, uint64_t seed, uint32_t n_shapes)
{
    struct random random = { seed };
    for (uint32_t i = 0; i < n_shapes; i++) {
        struct random_shape shape;
        random_shape(&random, &shape, true, 400000);
        for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++) {
            if (layout == WEIR_HOST_PAGE_FIRST && has_opaque(&shape.shape))
                continue;
            struct cuda_pools pools;
            pools_open(rig, &pools, &shape.shape, (weir_host_layout)layout,
                       random_percent(&random, 50), random_percent(&random, 50) ? 0 : 65536,
                       &random);
            for (uint32_t round = 1; round <= 3; round++)
                check_random_copy(rig, &pools, &random, round);
            pools_close(rig, &pools);
        }
    }
}

Test(cuda_device, copies_are_exact_in_batches, .timeout = 100)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    check_random_copies(&rig, 1, 12);
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyBatchAsync]));
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpy2DAsync]));
    cr_assert(zero(u32, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

Test(cuda_device, copies_are_exact_one_by_one, .timeout = 100)
{
    struct cuda_rig rig = { 0 };
    fake_cuda_find()->presence[FAKE_cuMemcpyBatchAsync] = FAKE_NOT_FOUND;
    rig_open_device(&rig);
    check_random_copies(&rig, 2, 12);
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

/* Where the GPU has another address for the host's memory. */
Test(cuda_device, copies_are_exact_by_alias, .timeout = 100)
{
    struct cuda_rig rig = { 0 };
    fake_cuda_find()->attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 0;
    rig_open_device(&rig);
    check_random_copies(&rig, 3, 6);
    rig_close_device(&rig);
}

/* A pitch that the driver does not take is copied a row at a time. */
Test(cuda_device, copies_are_exact_beyond_the_largest_pitch, .timeout = 100)
{
    struct cuda_rig rig = { 0 };
    fake_cuda_find()->attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2000;
    rig_open_device(&rig);
    check_random_copies(&rig, 4, 6);
    rig_close_device(&rig);
}

Test(cuda_device, large_pieces_are_split_evenly)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    pools_open_plain(&rig, &pools, (4 << 20) + 8);
    struct weir_run run = { 3, 5, 2 }; /* 8 MiB and 16 bytes */
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint32_t enqueued;
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    const struct fake_call *call = rig_last_call(&rig, FAKE_cuMemcpyBatchAsync);
    cr_assert(eq(u64, call->arguments[0], 2));
    cr_assert(lt(u64, 4000000, call->arguments[1]));
    rig_run(&rig);
    pools_check_copy(&pools, &transfer);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* The fake objects to a batch of both. */
Test(cuda_device, tiny_pieces_have_batches_of_their_own)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    pools_open_plain(&rig, &pools, 40000);
    struct weir_run runs[] = { { 3, 1, 1 }, { 7, 9, 3 }, { 1, 5, 1 }, { 12, 18, 2 } };
    struct weir_transfer transfer = pools_transfer(&pools, runs, 4, WEIR_WRITE_BACK);
    uint32_t enqueued;
    uint32_t before = rig.fake->counts[FAKE_cuMemcpyBatchAsync];
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyBatchAsync] - before, 4)); /* 2 a layer */
    rig_run(&rig);
    pools_check_copy(&pools, &transfer);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* A layer of more pieces than a batch holds: rows of a byte that lie apart, on a
 * GPU that takes no pitch. */
Test(cuda_device, a_batch_has_a_limit)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools = { 0 };
    struct random random = { 5 };
    rig_open_device(&rig);
    weir_tensor tensors[RANDOM_SHAPE_TENSORS];
    for (uint32_t t = 0; t < RANDOM_SHAPE_TENSORS; t++)
        tensors[t] = (weir_tensor){ .page_bytes = 1024, .row_bytes = 1 };
    weir_shape shape = {
        .page_tokens = 1024, .n_layers = 2, .n_tensors = RANDOM_SHAPE_TENSORS, .tensors = tensors
    };
    rig.fake->attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 1;
    rig.ops->stream_destroy(rig.device, rig.stream);
    cr_assert(eq(int, weir_device_close(&rig.device), 0));
    rig_open_device(&rig);
    pools_open(&rig, &pools, &shape, WEIR_HOST_PAGE_FIRST, false, 0, &random);
    struct weir_run run = { 2, 3, 1 }; /* 1024 rows a tensor, 5120 a layer */
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint32_t enqueued;
    uint32_t before = rig.fake->counts[FAKE_cuMemcpyBatchAsync];
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyBatchAsync] - before, 10));
    cr_assert(eq(u64, rig_last_call(&rig, FAKE_cuMemcpyBatchAsync)->arguments[0], WEIR_CUDA_BATCH));
    rig_run(&rig);
    pools_check_copy(&pools, &transfer);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* 4 pages of 1024 rows of 600 bytes, the two layers' rows in turns on the host. */
Test(cuda_device, a_large_2d_copy_is_split)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    struct random random = { 10 };
    rig_open_device(&rig);
    weir_tensor tensor = { .page_bytes = 1024 * 2400, .row_bytes = 2400 };
    weir_shape shape = { .page_tokens = 1024, .n_layers = 2, .n_tensors = 1, .tensors = &tensor };
    pools_open(&rig, &pools, &shape, WEIR_HOST_PAGE_FIRST, false, 0, &random);
    struct weir_run run = { 3, 5, 4 };
    for (int direction = 0; direction < 2; direction++) {
        struct weir_transfer transfer =
            pools_transfer(&pools, &run, 1, (enum weir_direction)direction);
        uint32_t enqueued;
        uint32_t before = rig.fake->counts[FAKE_cuMemcpy2DAsync];
        cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
        cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpy2DAsync] - before, 4));
        rig_run(&rig);
        pools_check_copy(&pools, &transfer);
        run = (struct weir_run){ 9, 1, 4 };
    }
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* ---- Failures -------------------------------------------------------------- */

/* Each driver call of a copy fails once: the layers before it run and publish,
 * the others never publish, and the next copy is as if nothing had been. */
static void check_failing_copy(enum fake_function function, weir_host_layout layout)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    struct random random = { 6 };
    rig_open_device(&rig);
    weir_tensor tensors[] = { { .page_bytes = 16 * 700, .row_bytes = 700 },
                              { .page_bytes = 16 * 5000, .row_bytes = 5000 } };
    weir_shape shape = { .page_tokens = 16, .n_layers = 4, .n_tensors = 2, .tensors = tensors };
    pools_open(&rig, &pools, &shape, layout, true, 0, &random);
    struct weir_run runs[] = { { 3, 1, 1 }, { 7, 9, 3 } };
    struct weir_transfer transfer = pools_transfer(&pools, runs, 2, WEIR_LOAD);
    transfer.words = pools.words;
    bool failed = true;
    for (uint32_t n = 1; failed; n++) {
        uint32_t enqueued = 99;
        transfer.generation = 2 * n - 1;
        fake_cuda_fail(rig.fake, function, n, CUDA_ERROR_OUT_OF_MEMORY);
        int rc = rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued);
        failed = rc != 0;
        cr_assert(eq(int, rc, failed ? -ENOMEM : 0));
        cr_assert(eq(int, enqueued < 4, failed));
        rig_run(&rig);
        for (uint32_t l = 0; l < 4; l++)
            cr_assert(eq(int, pools.words[l] == transfer.generation, l < enqueued));

        rig.fake->faults[function] = (struct fake_fault){ 0 };
        pools_fill(&random, (void *)(uintptr_t)pools.device_base, pools.device_bytes);
        memcpy(pools.device_model, (void *)(uintptr_t)pools.device_base, pools.device_bytes);
        struct weir_run other_runs[] = { { 4, 11, 2 }, { 20, 2, 1 } };
        struct weir_transfer next = transfer;
        next.runs = other_runs;
        next.generation = 2 * n;
        cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &next, &enqueued), 0));
        rig_run(&rig);
        pools_check_copy(&pools, &next);
        cr_assert(lt(u32, failed ? 0 : 4, n), "nothing failed");
    }
    cr_assert(eq(int, rig.ops->status(rig.device), 0));
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

Test(cuda_device, a_batch_fails)
{
    check_failing_copy(FAKE_cuMemcpyBatchAsync, WEIR_HOST_SEGMENTED);
}

Test(cuda_device, a_2d_copy_fails)
{
    check_failing_copy(FAKE_cuMemcpy2DAsync, WEIR_HOST_PAGE_FIRST);
}

Test(cuda_device, a_plain_copy_fails)
{
    fake_cuda_find()->presence[FAKE_cuMemcpyBatchAsync] = FAKE_NOT_FOUND;
    check_failing_copy(FAKE_cuMemcpyAsync, WEIR_HOST_SEGMENTED);
}

Test(cuda_device, a_word_fails)
{
    check_failing_copy(FAKE_cuStreamWriteValue32, WEIR_HOST_SEGMENTED);
}

Test(cuda_device, a_capture_query_fails)
{
    check_failing_copy(FAKE_cuStreamIsCapturing, WEIR_HOST_SEGMENTED);
}

Test(cuda_device, batches_that_a_gpu_refuses_are_tried_once)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    rig.fake->faults[FAKE_cuMemcpyBatchAsync] =
        (struct fake_fault){ 1, UINT32_MAX, CUDA_ERROR_NOT_SUPPORTED };
    check_random_copies(&rig, 7, 2);
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyBatchAsync], 1));
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

Test(cuda_device, the_legacy_stream_takes_no_batches)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    pools_open_plain(&rig, &pools, 100000);
    struct weir_run run = { 3, 5, 1 };
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint32_t enqueued;
    weir_stream *legacy = weir_stream_from_cuda(NULL);
    cr_assert(eq(int, rig.ops->copy(rig.device, legacy, &transfer, &enqueued), 0));
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, legacy), 0));
    pools_check_copy(&pools, &transfer);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}
