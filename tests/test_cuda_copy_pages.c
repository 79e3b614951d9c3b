/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_rig.h"

#include <weir/cuda.h>

/* Copies within the device by the copy engine, on the fake driver, which has no
 * kernels. Those by kernel are in test_kernels.c. */

static const weir_page_copy some_copies[] = { { { 3 }, { 1 }, 0 },
                                              { { 3 }, { RIG_PAGES }, 0 },
                                              { { 7 }, { 2 }, 9 } };
#define N_COPIES 3u

/* Opens pools of a random shape, and gives all copies to be made in them. */
static struct weir_page_copies open_pools(struct cuda_rig *rig, struct cuda_pools *pools,
                                          uint64_t seed, bool spaced)
{
    struct random random = { seed };
    struct random_shape shape;
    random_shape(&random, &shape, true, 1 << 17);
    pools_open(rig, pools, &shape.shape, WEIR_HOST_SEGMENTED, spaced, 0, &random);
    return (struct weir_page_copies){
        .geometry = pools->geometry, .copies = some_copies, .n = N_COPIES, .state = pools->state
    };
}

static void model_copies(struct cuda_pools *pools, const struct weir_page_copies *copies)
{
    const struct weir_geometry *g = pools->geometry;
    for (uint32_t t = 0; t < g->n_tensors; t++)
        for (uint32_t l = 0; l < g->n_layers; l++)
            for (uint32_t i = 0; g->layer_index[t * g->n_layers + l] >= 0 && i < copies->n; i++)
                memcpy(
                    pools->device_model +
                        (weir_geometry_device(g, t, l, copies->copies[i].to) - pools->device_base),
                    pools->device_model + (weir_geometry_device(g, t, l, copies->copies[i].from) -
                                           pools->device_base),
                    g->tensors[t].page_bytes);
}

static void expect_exact(struct cuda_rig *rig, uint64_t seed)
{
    struct cuda_pools pools;
    struct weir_page_copies copies = open_pools(rig, &pools, seed, seed % 2);
    cr_assert(eq(int, rig->ops->copy_pages(rig->device, rig->stream, &copies), 0), "%s",
              rig->capture.last);
    rig_run(rig);
    model_copies(&pools, &copies);
    pools_check(&pools);
    pools_close(rig, &pools);
}

Test(cuda_copy_pages, are_exact_in_batches)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    for (uint64_t seed = 1; seed <= 20; seed++)
        expect_exact(&rig, seed);
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyBatchAsync]));
    cr_assert(zero(u32, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

Test(cuda_copy_pages, are_exact_one_by_one)
{
    struct cuda_rig rig = { 0 };
    fake_cuda_find()->presence[FAKE_cuMemcpyBatchAsync] = FAKE_NOT_FOUND;
    rig_open_device(&rig);
    for (uint64_t seed = 1; seed <= 20; seed++)
        expect_exact(&rig, seed);
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

/* After a failure the next copy starts afresh. */
Test(cuda_copy_pages, failures)
{
    static const enum fake_function functions[] = { FAKE_cuStreamIsCapturing,
                                                    FAKE_cuMemcpyBatchAsync };
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    struct weir_page_copies copies = open_pools(&rig, &pools, 4, false);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        fake_cuda_fail(rig.fake, functions[i], 1, CUDA_ERROR_OUT_OF_MEMORY);
        cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &copies), -ENOMEM));
    }
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &copies), 0));
    rig_run(&rig);
    model_copies(&pools, &copies);
    pools_check(&pools);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* A graph would copy the pages of this step again and again. */
Test(cuda_copy_pages, not_into_a_graph)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    struct weir_page_copies copies = open_pools(&rig, &pools, 4, false);
    CUstream stream = (CUstream)weir_cuda_from_stream(rig.stream);
    rig.fake->set_capture(stream, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &copies), -ENOTSUP));
    rig.fake->set_capture(stream, CU_STREAM_CAPTURE_STATUS_NONE);
    rig_run(&rig);
    pools_check(&pools);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

Test(cuda_copy_pages, arguments)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    struct weir_page_copies copies = open_pools(&rig, &pools, 4, false);
    const weir_page_copy wrong[] = { { { 0 }, { 1 }, 0 }, { { 1 }, { RIG_PAGES + 1 }, 0 } };
    unsigned lines = rig.capture.lines;
    for (uint32_t i = 0; i < 2; i++) {
        struct weir_page_copies bad = copies;
        bad.copies = &wrong[i];
        bad.n = 1;
        cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &bad), -EINVAL));
    }
    struct weir_page_copies bad = copies;
    bad.state = NULL;
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &bad), -EINVAL));
    bad = copies;
    bad.copies = NULL;
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &bad), -EINVAL));
    bad.n = 0; /* no work */
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, &bad), 0));
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, NULL, &copies), -EINVAL));
    cr_assert(eq(int, rig.ops->copy_pages(rig.device, rig.stream, NULL), -EINVAL));
    cr_assert(eq(u32, rig.capture.lines, lines + 6));
    pools_check(&pools);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}
