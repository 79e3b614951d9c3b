/* SPDX-License-Identifier: Apache-2.0 */

/* Drivers of other ages and GPUs of other kinds: without copies in batches, with
 * batches that refuse some memory, with other addresses for the host's memory. The
 * bytes are the same on all of them, and no call reaches a function by a prototype
 * that is not its own. */

#include "cuda_rig.h"

static const uint32_t some_rows[] = { 1,   4,   8,   16,   24,   72,   128,       132,
                                      528, 576, 656, 1152, 2048, 4096, 32768 + 16 };
#define N_ROWS (sizeof some_rows / sizeof *some_rows)

/* Both directions, with the last page of each pool, against a naive copier. */
static void copy_both_ways(struct cuda_rig *rig, struct cuda_pools *pools)
{
    const struct weir_run runs[][3] = { { { 3, 1, 1 }, { 7, 9, 3 }, { RIG_PAGES, 5, 1 } },
                                        { { 1, 2, 1 }, { 10, 17, 4 }, { 2, RIG_PAGES, 1 } } };
    for (int direction = 0; direction < 2; direction++) {
        struct weir_transfer transfer =
            pools_transfer(pools, runs[direction], 3, (enum weir_direction)direction);
        uint32_t enqueued = 0;
        cr_assert(eq(int, rig->ops->copy(rig->device, rig->stream, &transfer, &enqueued), 0), "%s",
                  rig->capture.last);
        cr_assert(eq(u32, enqueued, transfer.layer_end));
        rig_run(rig);
        pools_check_copy(pools, &transfer);
    }
}

/* Two tensors of different rows, on one layer both and on another one of them. */
static void open_rows(struct cuda_rig *rig, struct cuda_pools *pools, uint32_t first,
                      uint32_t second, weir_host_layout layout, uint64_t chunk)
{
    static const uint32_t last[] = { 1 };
    struct random random = { first };
    weir_tensor tensors[] = {
        { .page_bytes = 4 * first, .row_bytes = first },
        { .page_bytes = 4 * second, .row_bytes = second, .layers = last, .n_layers = 1 }
    };
    weir_shape shape = { .page_tokens = 4, .n_layers = 2, .n_tensors = 2, .tensors = tensors };
    pools_open(rig, pools, &shape, layout, false, chunk, &random);
}

static void copy_all_rows(struct cuda_rig *rig, uint64_t chunk)
{
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++) {
            struct cuda_pools pools;
            open_rows(rig, &pools, some_rows[i], some_rows[(i * 7 + 3) % N_ROWS],
                      (weir_host_layout)layout, chunk);
            copy_both_ways(rig, &pools);
            pools_close(rig, &pools);
        }
}

/* ---- Copies in batches: there, or not ---------------------------------------- */

static void serve_without_batches(enum fake_presence presence)
{
    struct cuda_rig rig = { 0 };
    fake_cuda_find()->presence[FAKE_cuMemcpyBatchAsync] = presence;
    rig_open_device(&rig);
    copy_all_rows(&rig, 0);
    cr_assert(zero(u32, rig.fake->counts[FAKE_cuMemcpyBatchAsync]));
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

Test(drivers_differ, one_that_lacks_batches, .timeout = 100)
{
    serve_without_batches(FAKE_NOT_FOUND);
}

Test(drivers_differ, one_that_is_older_than_batches, .timeout = 100)
{
    serve_without_batches(FAKE_TOO_OLD);
}

Test(drivers_differ, one_that_finds_batches_and_gives_none, .timeout = 100)
{
    serve_without_batches(FAKE_NULL);
}

Test(drivers_differ, one_that_refuses_to_look_for_batches, .timeout = 100)
{
    serve_without_batches(FAKE_REFUSED);
}

/* Newer drivers have another function of that name, with other arguments: it is
 * asked for by the version whose arguments are passed, whatever is installed. */
Test(drivers_differ, batches_are_asked_for_by_the_version_that_is_called, .timeout = 100)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    cr_assert(eq(int, rig.fake->versions[FAKE_cuMemcpyBatchAsync], 12080));
    copy_all_rows(&rig, 0);
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyBatchAsync]));
    cr_assert(zero(u32, rig.fake->counts[FAKE_cuMemcpyAsync]));
    rig_close_device(&rig);
}

/* ---- Batches that refuse ------------------------------------------------------ */

/* Memory of another allocator, or a GPU whose batches are not there after all: the
 * n-th call is refused. All bytes come, batches are asked no more, one line says so. */
static void refuse_batches_from(uint32_t n, CUresult result)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    open_rows(&rig, &pools, 32768 + 16, 8, WEIR_HOST_SEGMENTED, 0);
    uint32_t before = rig.fake->counts[FAKE_cuMemcpyBatchAsync];
    fake_cuda_fail(rig.fake, FAKE_cuMemcpyBatchAsync, n, result);
    rig.capture.lines = 0;
    for (int i = 0; i < 3; i++)
        copy_both_ways(&rig, &pools);
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyBatchAsync] - before, n));
    cr_assert(lt(u32, 0, rig.fake->counts[FAKE_cuMemcpyAsync]));
    cr_assert(eq(u32, rig.capture.lines, 1));
    cr_assert(ne(ptr, strstr(rig.capture.last, "one by one"), NULL), "%s", rig.capture.last);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

Test(drivers_differ, batches_that_refuse_some_memory)
{
    for (uint32_t n = 1; n <= 5; n++)
        refuse_batches_from(n, CUDA_ERROR_INVALID_VALUE);
}

Test(drivers_differ, batches_that_are_not_supported_after_all)
{
    for (uint32_t n = 1; n <= 5; n++)
        refuse_batches_from(n, CUDA_ERROR_NOT_SUPPORTED);
}

/* It was not the batch: plain copies are refused too. The transfer fails, and later
 * ones go in batches as before. */
Test(drivers_differ, a_copy_that_no_call_makes_fails)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    open_rows(&rig, &pools, 4096, 8, WEIR_HOST_SEGMENTED, 0);
    fake_cuda_fail(rig.fake, FAKE_cuMemcpyBatchAsync, 1, CUDA_ERROR_INVALID_VALUE);
    fake_cuda_fail(rig.fake, FAKE_cuMemcpyAsync, 1, CUDA_ERROR_INVALID_VALUE);
    const struct weir_run run = { 3, 1, 1 };
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint32_t enqueued = 99;
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), -EIO));
    cr_assert(zero(u32, enqueued));
    cr_assert(zero(int, rig.ops->status(rig.device)));
    rig_run(&rig);
    pools_check(&pools);
    uint32_t n_plain = rig.fake->counts[FAKE_cuMemcpyAsync];
    copy_both_ways(&rig, &pools);
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyAsync], n_plain));
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* ---- The host's memory under another address ---------------------------------- */

/* Every registration and every block of words is asked for once, as it is made;
 * the fake notes a violation whenever an address is used that is not the GPU's. */
static void use_addresses(bool same, uint64_t chunk)
{
    struct fake_cuda *fake = fake_cuda_find();
    fake->attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = same;
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    copy_all_rows(&rig, chunk);
    uint32_t made = fake->counts[FAKE_cuMemHostRegister] + fake->counts[FAKE_cuMemHostAlloc];
    cr_assert(eq(u32, fake->counts[FAKE_cuMemHostGetDevicePointer], same ? 0 : made));
    cr_assert(lt(u32, chunk ? 4 * N_ROWS : 0, fake->counts[FAKE_cuMemHostRegister]));
    rig_close_device(&rig);
}

Test(drivers_differ, a_gpu_with_addresses_of_its_own, .timeout = 100)
{
    use_addresses(false, 0);
}

Test(drivers_differ, a_gpu_with_addresses_of_its_own_for_each_registration, .timeout = 100)
{
    use_addresses(false, 131072);
}

Test(drivers_differ, a_gpu_with_the_addresses_of_the_host, .timeout = 100)
{
    use_addresses(true, 131072);
}
