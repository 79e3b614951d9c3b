/* SPDX-License-Identifier: Apache-2.0 */

/* Any call of the driver fails, one at a time, in a workload that loads, writes
 * back and evicts; or it fails as the last thing that the GPU says. No transfer is
 * waited for without end, each ends once, nothing leaks, and every byte that is
 * still promised is right. */

#include "cuda_server.h"

static const char *const prompts[] = { "ABCD", "ABXY", "KLMN", "ABCDEF", "KLOP", "ABXYZ", "KLMNQ" };
#define N_PROMPTS (sizeof prompts / sizeof *prompts)

static void serve_all(struct server *s)
{
    for (size_t i = 0; i < N_PROMPTS; i++)
        server_serve(s, prompts[i]);
}

/* The n-th call from now on fails, and width - 1 after it; false: the workload makes
 * fewer. */
static bool fail_call(enum fake_function function, uint32_t n, uint32_t width, CUresult result,
                      weir_host_layout layout)
{
    struct server s;
    server_open(&s, 7, 14, layout);
    uint32_t at = s.rig.fake->counts[function] + n;
    s.rig.fake->faults[function] = (struct fake_fault){ at, at + width - 1, result };
    serve_all(&s);
    bool struck = s.rig.fake->counts[function] >= at;
    s.rig.fake->faults[function] = (struct fake_fault){ 0 };
    cr_assert(struck || n > 1, "the workload does not make this call");
    server_settle(&s);
    serve_all(&s); /* what is still there is right */
    weir_stats stats = server_stats(&s);
    cr_assert(s.lost || (stats.loaded_pages > 0 && stats.written_pages > 0),
              "the workload moves nothing");
    server_settle(&s);
    server_close(&s);
    return struck;
}

static void fail_each_call(enum fake_function function, CUresult result, weir_host_layout layout)
{
    struct fake_cuda *fake = fake_cuda_find();
    for (uint32_t width = 1; width < SERVER_TRIES; width += 2)
        for (uint32_t n = 1; fail_call(function, n, width, result, layout); n++)
            continue;
    rig_check_clean(fake);
}

#define CALL_FAILS(name, function, layout)                          \
    Test(driver_calls_fail, name, .timeout = 100)                   \
    {                                                               \
        fail_each_call(function, CUDA_ERROR_OUT_OF_MEMORY, layout); \
    }

CALL_FAILS(a_batch, FAKE_cuMemcpyBatchAsync, WEIR_HOST_SEGMENTED)
CALL_FAILS(a_copy_of_rows, FAKE_cuMemcpy2DAsync, WEIR_HOST_PAGE_FIRST)
CALL_FAILS(a_record, FAKE_cuEventRecord, WEIR_HOST_SEGMENTED)
CALL_FAILS(a_wait_for_an_event, FAKE_cuStreamWaitEvent, WEIR_HOST_SEGMENTED)
CALL_FAILS(a_write_of_a_word, FAKE_cuStreamWriteValue32, WEIR_HOST_SEGMENTED)
CALL_FAILS(a_wait_for_a_word, FAKE_cuStreamWaitValue32, WEIR_HOST_SEGMENTED)
CALL_FAILS(a_question_about_a_capture, FAKE_cuStreamIsCapturing, WEIR_HOST_SEGMENTED)
CALL_FAILS(a_synchronization, FAKE_cuStreamSynchronize, WEIR_HOST_SEGMENTED)
CALL_FAILS(entering_the_context, FAKE_cuCtxPushCurrent, WEIR_HOST_SEGMENTED)

Test(driver_calls_fail, a_plain_copy, .timeout = 100)
{
    fake_cuda_find()->presence[FAKE_cuMemcpyBatchAsync] = FAKE_NOT_FOUND;
    fail_each_call(FAKE_cuMemcpyAsync, CUDA_ERROR_OUT_OF_MEMORY, WEIR_HOST_PAGE_FIRST_DIRECT);
}

/* The context is lost at any call: the rank ends what it can, the cache is told, and
 * both are closed with nothing left. */
#define DEVICE_LOST(name, function)                                                 \
    Test(driver_calls_fail, name, .timeout = 100)                                   \
    {                                                                               \
        fail_each_call(function, CUDA_ERROR_ILLEGAL_ADDRESS, WEIR_HOST_PAGE_FIRST); \
    }

DEVICE_LOST(lost_at_a_copy, FAKE_cuMemcpy2DAsync)
DEVICE_LOST(lost_at_a_record, FAKE_cuEventRecord)
DEVICE_LOST(lost_at_a_word, FAKE_cuStreamWriteValue32)
DEVICE_LOST(lost_at_a_wait, FAKE_cuStreamWaitValue32)
DEVICE_LOST(lost_at_a_synchronization, FAKE_cuStreamSynchronize)
