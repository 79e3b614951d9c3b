/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_rig.h"

#include <weir/cuda.h>
#include <weir/expert_cache.h>
#include <weir/gather.h>
#include <weir/rank.h>

#include <stdio.h>
#include <sys/mman.h>

/* ---- Gather: the fake GPU has no kernels ------------------------------------ */

Test(cuda_device, a_gather_without_kernels_leaves_nothing)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    const weir_bank bank = { .dst = 4096, .src = 8192, .row_bytes = 64 };
    weir_gather_params params;
    weir_gather_params_init(&params);
    params.banks = &bank;
    params.n_banks = 1;
    params.max_count = 8;
    weir_gather *gather = NULL;
    cr_assert(eq(int, weir_gather_create(&gather, rig.device, &params), -ENOTSUP));
    cr_assert(eq(ptr, gather, NULL));
    fake_cuda_fail(rig.fake, FAKE_cuMemHostAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert(eq(int, weir_gather_create(&gather, rig.device, &params), -ENOMEM));
    fake_cuda_fail(rig.fake, FAKE_cuCtxPushCurrent, 2, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert(eq(int, weir_gather_create(&gather, rig.device, &params), -ENOMEM));
    rig_close_device(&rig);
}

Test(cuda_device, an_expert_cache_without_kernels_leaves_nothing)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_experts = 8;
    params.n_slots = 4;
    params.max_ids = 8;
    weir_expert_cache *cache = NULL;
    cr_assert(eq(int, weir_expert_cache_create(&cache, rig.device, &params), -ENOTSUP));
    cr_assert(eq(ptr, cache, NULL));
    static const enum fake_function functions[] = { FAKE_cuMemAlloc, FAKE_cuMemHostAlloc,
                                                    FAKE_cuStreamCreateWithPriority };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        fake_cuda_fail(rig.fake, functions[i], 1, CUDA_ERROR_OUT_OF_MEMORY);
        cr_assert(eq(int, weir_expert_cache_create(&cache, rig.device, &params), -ENOMEM));
        cr_assert(eq(ptr, cache, NULL));
    }
    rig_close_device(&rig);
}

/* ---- Opening and closing --------------------------------------------------- */

Test(cuda_device, opens_and_closes)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    cr_assert(zero(int, strcmp(weir_device_name(rig.device), "cuda")));
    cr_assert(eq(int, rig.ops->status(rig.device), 0));
    cr_assert(eq(int, rig.fake->retained, 1));
    cr_assert(zero(int, rig.fake->contexts));
    cr_assert(eq(u32, rig.capture.lines, 1));
    rig_close_device(&rig);
}

Test(cuda_device, a_failure_to_open_leaves_nothing)
{
    static const enum fake_function functions[] = { FAKE_cuDeviceGet, FAKE_cuDevicePrimaryCtxRetain,
                                                    FAKE_cuCtxPushCurrent,
                                                    FAKE_cuThreadExchangeStreamCaptureMode,
                                                    FAKE_cuCtxGetStreamPriorityRange };
    struct fake_cuda *fake = fake_cuda_find();
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        weir_device *device = NULL;
        fake_cuda_fail(fake, functions[i], 1, CUDA_ERROR_OUT_OF_MEMORY);
        cr_assert(eq(int, weir_device_open(&device, &params), -ENOMEM));
        cr_assert(eq(ptr, device, NULL));
        rig_check_clean(fake);
    }
    weir_device *device = NULL;
    fake->attributes[CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 0;
    cr_assert(eq(int, weir_device_open(&device, &params), -ENOTSUP));
    rig_check_clean(fake);
}

/* ---- Memory ---------------------------------------------------------------- */

Test(cuda_device, memory_words_and_registrations)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    uint64_t address = 0;
    cr_assert(eq(int, rig.ops->memory_alloc(rig.device, 1000, &address), 0));
    cr_assert(zero(u64, address % 256));
    rig.ops->memory_free(rig.device, address);
    rig.ops->memory_free(rig.device, 0);

    uint32_t *words = NULL;
    cr_assert(eq(int, rig.ops->words_alloc(rig.device, 1000, &words), 0));
    for (uint32_t i = 0; i < 1000; i++)
        cr_assert(zero(u32, words[i]));
    cr_assert(eq(u64, rig_last_call(&rig, FAKE_cuMemHostAlloc)->arguments[0], 3));
    rig.ops->word_store(rig.device, &words[7], 9);
    cr_assert(eq(u32, rig.ops->word_load(rig.device, &words[7]), 9));
    rig.ops->words_free(rig.device, words);
    rig.ops->words_free(rig.device, NULL);

    void *host = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(eq(int, rig.ops->host_register(rig.device, host, 8192), 0));
    cr_assert(eq(u64, rig_last_call(&rig, FAKE_cuMemHostRegister)->arguments[0], 3));
    cr_assert(eq(int, rig.ops->host_register(rig.device, host, 4096), -EIO));
    rig.ops->host_unregister(rig.device, host);
    uint32_t n = rig.fake->counts[FAKE_cuMemHostUnregister];
    rig.ops->host_unregister(rig.device, host);
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemHostUnregister], n));
    cr_assert(ne(ptr, strstr(rig.capture.last, "not registered"), NULL));
    munmap(host, 8192);
    rig_close_device(&rig);
}

Test(cuda_device, what_cannot_be_had_is_given_back)
{
    fake_cuda_find()->attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 0;
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    static const struct {
        CUresult result;
        int rc;
    } errors[] = { { CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM },
                   { CUDA_ERROR_NOT_SUPPORTED, -ENOTSUP },
                   { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, -ENOTSUP },
                   { CUDA_ERROR_NOT_PERMITTED, -EIO } };
    void *host = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        uint64_t address = 1;
        uint32_t *words = NULL;
        weir_stream *stream = NULL;
        weir_event *event = NULL;
        fake_cuda_fail(rig.fake, FAKE_cuMemAlloc, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->memory_alloc(rig.device, 8, &address), errors[i].rc));
        cr_assert(eq(u64, address, 1));
        fake_cuda_fail(rig.fake, FAKE_cuMemHostAlloc, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->words_alloc(rig.device, 1, &words), errors[i].rc));
        fake_cuda_fail(rig.fake, FAKE_cuMemHostGetDevicePointer, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->words_alloc(rig.device, 1, &words), errors[i].rc));
        cr_assert(eq(ptr, words, NULL));
        fake_cuda_fail(rig.fake, FAKE_cuMemHostRegister, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->host_register(rig.device, host, 8192), errors[i].rc));
        fake_cuda_fail(rig.fake, FAKE_cuMemHostGetDevicePointer, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->host_register(rig.device, host, 8192), errors[i].rc));
        fake_cuda_fail(rig.fake, FAKE_cuStreamCreateWithPriority, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->stream_create(rig.device, 0, &stream), errors[i].rc));
        cr_assert(eq(ptr, stream, NULL));
        fake_cuda_fail(rig.fake, FAKE_cuEventCreate, 1, errors[i].result);
        cr_assert(eq(int, rig.ops->event_create(rig.device, &event), errors[i].rc));
        cr_assert(eq(ptr, event, NULL));
        cr_assert(zero(u32, rig.fake->n_allocations));
    }
    cr_assert(eq(int, rig.ops->status(rig.device), 0));
    munmap(host, 8192);
    rig_close_device(&rig);
}

Test(cuda_device, host_memory_prefers_the_node_of_the_device)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    cr_assert(zero(int, rig.device->numa_node));
    struct weir_host_memory_params params = { .bytes = 4 << 20, .granule = 1 };
    struct weir_host_memory *memory = NULL;
    cr_assert(eq(int, weir_host_memory_create(&memory, rig.device, &params, NULL), 0));
    char begin[32];
    char line[512];
    snprintf(begin, sizeof begin, "%lx ", (unsigned long)(uintptr_t)memory->base);
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    bool preferred = !maps; /* a kernel without nodes */
    while (maps && fgets(line, sizeof line, maps))
        if (strncmp(line, begin, strlen(begin)) == 0)
            preferred = strstr(line, "prefer") != NULL;
    if (maps)
        fclose(maps);
    cr_assert(preferred);
    weir_host_memory_destroy(&memory);
    rig_close_device(&rig);
}

/* ---- Arguments ------------------------------------------------------------- */

Test(cuda_device, arguments)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    weir_device *d = rig.device;
    const struct weir_device_ops *ops = rig.ops;
    uint64_t address;
    uint32_t *words = NULL;
    uint32_t enqueued = 77;
    bool capturing;
    weir_event *event = NULL;
    cr_assert(eq(int, ops->event_create(d, &event), 0));
    cr_assert(eq(int, ops->words_alloc(d, 1, &words), 0));
#define INVALID(call, part)                                                               \
    do {                                                                                  \
        rig.capture.lines = 0;                                                            \
        cr_assert(eq(int, (call), -EINVAL), #call);                                       \
        cr_assert(eq(u32, rig.capture.lines, 1), #call);                                  \
        cr_assert(ne(ptr, strstr(rig.capture.last, part), NULL), "%s", rig.capture.last); \
    } while (0)
    INVALID(ops->memory_alloc(d, 0, &address), "bytes");
    INVALID(ops->memory_alloc(d, 1, NULL), "address");
    INVALID(ops->host_register(d, NULL, 4096), "address");
    INVALID(ops->host_register(d, (void *)4097, 4096), "address");
    INVALID(ops->host_register(d, (void *)4096, 0), "bytes");
    INVALID(ops->host_register(d, (void *)4096, UINT64_MAX), "bytes");
    INVALID(ops->words_alloc(d, 0, &words), "n is 0");
    INVALID(ops->words_alloc(d, 1, NULL), "words");
    INVALID(ops->stream_create(d, 0, NULL), "stream");
    INVALID(ops->stream_synchronize(d, NULL), "stream");
    INVALID(ops->stream_is_capturing(d, NULL, &capturing), "stream");
    INVALID(ops->event_create(d, NULL), "event");
    INVALID(ops->event_record(d, NULL, rig.stream), "event is");
    INVALID(ops->event_record(d, event, NULL), "stream");
    INVALID(ops->stream_wait_event(d, rig.stream, NULL), "event is");
    INVALID(ops->stream_wait_event(d, NULL, event), "stream");
    INVALID(ops->stream_wait_event_external(d, NULL, event), "stream");
    INVALID(ops->stream_wait_event_external(d, rig.stream, NULL), "event is");
    INVALID(ops->stream_wait_event_external(d, rig.stream, event), "not being captured");
    INVALID(ops->stream_write_word(d, rig.stream, NULL, 1), "word is");
    INVALID(ops->stream_write_word(d, NULL, words, 1), "stream");
    INVALID(ops->stream_wait_word(d, rig.stream, NULL, 1), "word is");
    INVALID(ops->stream_wait_word(d, NULL, words, 1), "stream");
    INVALID(ops->copy(d, rig.stream, NULL, &enqueued), "transfer is NULL");

    struct random random = { 3 };
    struct random_shape shape;
    struct cuda_pools pools;
    random_shape(&random, &shape, false, 65536);
    pools_open(&rig, &pools, &shape.shape, WEIR_HOST_SEGMENTED, false, 0, &random);
    struct weir_run run = { 1, 1, 1 };
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    INVALID(ops->copy(d, NULL, &transfer, &enqueued), "stream");
    INVALID(ops->copy(d, rig.stream, &transfer, NULL), "enqueued");
    transfer.state = NULL;
    INVALID(ops->copy(d, rig.stream, &transfer, &enqueued), "state");
    transfer.state = pools.state;
    run.count = RIG_PAGES + 1;
    INVALID(ops->copy(d, rig.stream, &transfer, &enqueued), "run 0");
    cr_assert(zero(u32, enqueued));
    cr_assert(rig.fake->idle());
    pools_close(&rig, &pools);
#undef INVALID
    ops->words_free(d, words);
    ops->event_destroy(d, event);
    ops->event_destroy(d, NULL);
    ops->stream_destroy(d, NULL);
    rig_close_device(&rig);
}

/* ---- Streams, events, words ------------------------------------------------ */

Test(cuda_device, a_larger_priority_is_more_important)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    static const int pairs[][2] = { { -3, 0 }, { 0, 0 }, { 1, -1 }, { 5, -5 }, { 6, -5 } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        weir_stream *stream;
        cr_assert(eq(int, rig.ops->stream_create(rig.device, pairs[i][0], &stream), 0));
        const struct fake_call *call = rig_last_call(&rig, FAKE_cuStreamCreateWithPriority);
        cr_assert(eq(u64, call->arguments[0], CU_STREAM_NON_BLOCKING));
        cr_assert(eq(int, (int)call->arguments[1], pairs[i][1]));
        rig.ops->stream_destroy(rig.device, stream);
    }
    rig_close_device(&rig);
}

Test(cuda_device, words_and_events_order_streams)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    weir_stream *other;
    weir_event *event;
    uint32_t *words;
    cr_assert(eq(int, rig.ops->stream_create(rig.device, 1, &other), 0));
    cr_assert(eq(int, rig.ops->event_create(rig.device, &event), 0));
    cr_assert(
        eq(u64, rig_last_call(&rig, FAKE_cuEventCreate)->arguments[0], CU_EVENT_DISABLE_TIMING));
    cr_assert(eq(int, rig.ops->words_alloc(rig.device, 3, &words), 0));

    /* Passes at once: nothing was recorded. */
    cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, other, event), 0));
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, other), 0));

    cr_assert(eq(int, rig.ops->stream_write_word(rig.device, rig.stream, &words[0], 5), 0));
    cr_assert(eq(int, rig.ops->event_record(rig.device, event, rig.stream), 0));
    cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, other, event), 0));
    cr_assert(eq(int, rig.ops->stream_wait_word(rig.device, other, &words[0], UINT32_MAX), 0));
    cr_assert(eq(int, rig.ops->stream_write_word(rig.device, other, &words[1], 6), 0));
    cr_assert(zero(u32, rig.ops->word_load(rig.device, &words[0])));
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, other), 0));
    cr_assert(eq(u32, rig.ops->word_load(rig.device, &words[0]), 5));
    cr_assert(eq(u32, rig.ops->word_load(rig.device, &words[1]), 6));
    cr_assert(zero(u32, words[2]));
    /* Without flags: the barrier before the write, the cyclic comparison. */
    cr_assert(zero(u64, rig_last_call(&rig, FAKE_cuStreamWriteValue32)->arguments[2]));
    cr_assert(zero(u64, rig_last_call(&rig, FAKE_cuStreamWaitValue32)->arguments[2]));

    /* Destroying a stream waits for its work. */
    cr_assert(eq(int, rig.ops->stream_write_word(rig.device, other, &words[2], 7), 0));
    rig.ops->stream_destroy(rig.device, other);
    cr_assert(eq(u32, words[2], 7));
    rig.ops->event_destroy(rig.device, event);
    rig.ops->words_free(rig.device, words);
    rig_close_device(&rig);
}

Test(cuda_device, stream_handles_are_the_drivers)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    CUstream stream = rig_handle(rig.stream);
    cr_assert(eq(ptr, weir_stream_from_cuda(stream), rig.stream));
    cr_assert(eq(ptr, rig_handle(weir_stream_from_cuda(NULL)), (void *)CU_STREAM_LEGACY));
    uint32_t *words;
    cr_assert(eq(int, rig.ops->words_alloc(rig.device, 1, &words), 0));
    weir_stream *legacy = weir_stream_from_cuda(NULL);
    cr_assert(eq(int, rig.ops->stream_write_word(rig.device, legacy, words, 5), 0));
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, legacy), 0));
    cr_assert(eq(u32, words[0], 5));
    rig.ops->words_free(rig.device, words);
    rig_close_device(&rig);
}

/* ---- Capture --------------------------------------------------------------- */

Test(cuda_device, a_captured_copy_is_not_lost)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    pools_open_plain(&rig, &pools, 100000);
    struct weir_run runs[] = { { 3, 5, 1 }, { 9, 2, 1 } };
    struct weir_transfer transfer = pools_transfer(&pools, runs, 2, WEIR_LOAD);
    uint32_t enqueued = 99;
    bool capturing = false;
    rig.fake->set_capture(rig_handle(rig.stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert(eq(int, rig.ops->stream_is_capturing(rig.device, rig.stream, &capturing), 0));
    cr_assert(capturing);
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    cr_assert(eq(u32, rig.fake->captured(rig_handle(rig.stream)), 4));

    rig.fake->set_capture(rig_handle(rig.stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    uint32_t n_copies = rig.fake->counts[FAKE_cuMemcpyAsync];
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), -ENOTSUP));
    cr_assert(zero(u32, enqueued));
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyAsync], n_copies));
    rig.fake->set_capture(rig_handle(rig.stream), CU_STREAM_CAPTURE_STATUS_NONE);
    cr_assert(eq(int, rig.ops->stream_is_capturing(rig.device, rig.stream, &capturing), 0));
    cr_assert(not(capturing));
    pools_check(&pools);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

Test(cuda_device, a_captured_wait_is_external)
{
    struct cuda_rig rig = { 0 };
    weir_event *event;
    rig_open_device(&rig);
    cr_assert(eq(int, rig.ops->event_create(rig.device, &event), 0));
    rig.fake->set_capture(rig_handle(rig.stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert(eq(int, rig.ops->stream_wait_event_external(rig.device, rig.stream, event), 0));
    cr_assert(
        eq(u64, rig_last_call(&rig, FAKE_cuStreamWaitEvent)->arguments[0], CU_EVENT_WAIT_EXTERNAL));
    cr_assert(eq(u32, rig.fake->captured(rig_handle(rig.stream)), 1));
    /* The other wait cannot be captured, and says so. */
    cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, rig.stream, event), -ENOTSUP));
    rig.fake->set_capture(rig_handle(rig.stream), CU_STREAM_CAPTURE_STATUS_NONE);
    rig.ops->event_destroy(rig.device, event);
    rig_close_device(&rig);
}

/* Another stream is being captured, in the mode that forbids most. */
Test(cuda_device, no_call_breaks_a_capture)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    weir_stream *captured;
    rig_open_device(&rig);
    cr_assert(eq(int, rig.ops->stream_create(rig.device, 0, &captured), 0));
    rig.fake->set_capture(rig_handle(captured), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    pools_open_plain(&rig, &pools, 1000);
    rig_run(&rig);
    pools_close(&rig, &pools);
    bool capturing = false;
    cr_assert(eq(int, rig.ops->stream_is_capturing(rig.device, captured, &capturing), 0));
    cr_assert(capturing);
    rig.fake->set_capture(rig_handle(captured), CU_STREAM_CAPTURE_STATUS_NONE);
    rig.ops->stream_destroy(rig.device, captured);
    rig_close_device(&rig);
}

/* ---- A lost context -------------------------------------------------------- */

Test(cuda_device, a_lost_device_answers_eio)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    weir_event *event;
    rig_open_device(&rig);
    pools_open_plain(&rig, &pools, 1000);
    cr_assert(eq(int, rig.ops->event_create(rig.device, &event), 0));
    rig.fake->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    rig.capture.lines = 0;
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, rig.stream), -EIO));
    cr_assert(eq(u32, rig.capture.lines, 1));
    cr_assert(ne(ptr, strstr(rig.capture.last, "CUDA_ERROR_ILLEGAL_ADDRESS"), NULL));
    cr_assert(ne(ptr, strstr(rig.capture.last, "lost"), NULL));

    weir_device *d = rig.device;
    struct weir_run run = { 3, 5, 1 };
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint64_t address = 0;
    uint32_t *words = NULL;
    uint32_t enqueued = 99;
    uint32_t pool = 0;
    weir_stream *stream = NULL;
    weir_event *made = NULL;
    void *state = NULL;
    bool capturing = false;
    void *host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t n_calls = rig.fake->n_calls;
    cr_assert(eq(int, rig.ops->status(d), -EIO));
    cr_assert(eq(int, rig.ops->memory_alloc(d, 8, &address), -EIO));
    cr_assert(eq(int, rig.ops->words_alloc(d, 1, &words), -EIO));
    cr_assert(eq(int, rig.ops->host_register(d, host, 4096), -EIO));
    cr_assert(eq(int, rig.ops->stream_create(d, 0, &stream), -EIO));
    cr_assert(eq(int, rig.ops->stream_synchronize(d, rig.stream), -EIO));
    cr_assert(eq(int, rig.ops->stream_is_capturing(d, rig.stream, &capturing), -EIO));
    cr_assert(eq(int, rig.ops->event_create(d, &made), -EIO));
    cr_assert(eq(int, rig.ops->event_record(d, event, rig.stream), -EIO));
    cr_assert(eq(int, rig.ops->stream_wait_event(d, rig.stream, event), -EIO));
    cr_assert(eq(int, rig.ops->stream_wait_event_external(d, rig.stream, event), -EIO));
    cr_assert(eq(int, rig.ops->stream_write_word(d, rig.stream, pools.words, 1), -EIO));
    cr_assert(eq(int, rig.ops->stream_wait_word(d, rig.stream, pools.words, 1), -EIO));
    cr_assert(eq(int, rig.ops->transfer_prepare(d, pools.geometry, 1, &state), -EIO));
    cr_assert(eq(int, rig.ops->copy(d, rig.stream, &transfer, &enqueued), -EIO));
    cr_assert(zero(u32, enqueued));
    cr_assert(eq(int, rig.ops->pool_register(d, 1, 1, 1, &pool), -EIO));
    cr_assert(eq(u32, rig.fake->n_calls, n_calls)); /* the driver was left alone */
    cr_assert(eq(u32, rig.capture.lines, 1));

    /* What was pinned is given back all the same, as far as the driver lets. */
    rig.fake->sticky = CUDA_SUCCESS;
    rig.ops->event_destroy(d, event);
    pools_close(&rig, &pools);
    cr_assert(eq(int, rig.ops->status(d), -EIO));
    munmap(host, 4096);
    rig_close_device(&rig);
}

/* Every error that is the end of a context, from a call that only copies. */
Test(cuda_device, fatal_errors_are_told_from_others)
{
    static const CUresult fatal[] = {
        CUDA_ERROR_DEINITIALIZED,  CUDA_ERROR_ECC_UNCORRECTABLE,  CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_UNKNOWN
    };
    static const CUresult harmless[] = { CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
                                         CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_SUPPORTED };
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal + sizeof harmless / sizeof *harmless; i++) {
        bool is_fatal = i < sizeof fatal / sizeof *fatal;
        struct cuda_rig rig = { 0 };
        weir_event *event;
        rig_open_device(&rig);
        cr_assert(eq(int, rig.ops->event_create(rig.device, &event), 0));
        fake_cuda_fail(rig.fake, FAKE_cuEventRecord, 1,
                       is_fatal ? fatal[i] : harmless[i - sizeof fatal / sizeof *fatal]);
        cr_assert(lt(int, rig.ops->event_record(rig.device, event, rig.stream), 0));
        cr_assert(eq(int, rig.ops->status(rig.device), is_fatal ? -EIO : 0));
        rig.ops->event_destroy(rig.device, event);
        rig_close_device(&rig);
    }
}

/* ---- A rank on it ---------------------------------------------------------- */

static int open_rank(struct cuda_rig *rig, weir_rank **rank)
{
    weir_tensor tensors[] = { { .page_bytes = 4096, .row_bytes = 256 },
                              { .page_bytes = 4096, .row_bytes = 256 } };
    weir_shape shape = { .page_tokens = 16, .n_layers = 3, .n_tensors = 2, .tensors = tensors };
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = RIG_PAGES;
    params.host_pages = RIG_PAGES;
    params.max_steps = 2;
    return weir_rank_open(rank, rig->device, &params);
}

Test(cuda_device, a_rank_that_cannot_open_leaves_nothing, .timeout = 100)
{
    static const enum fake_function functions[] = {
        FAKE_cuMemAlloc,        FAKE_cuMemHostAlloc,
        FAKE_cuMemHostRegister, FAKE_cuStreamCreateWithPriority,
        FAKE_cuEventCreate,     FAKE_cuCtxPushCurrent
    };
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        weir_rank *rank = NULL;
        int rc = -1;
        for (uint32_t n = 1; rc; n++) {
            fake_cuda_fail(rig.fake, functions[i], n, CUDA_ERROR_NOT_PERMITTED);
            /* The same error for every try at pinning, else it succeeds in halves. */
            if (functions[i] == FAKE_cuMemHostRegister)
                rig.fake->faults[functions[i]].last = n < 2 ? UINT32_MAX : 0;
            rc = open_rank(&rig, &rank);
            rig.fake->faults[functions[i]] = (struct fake_fault){ 0 };
            if (rc == 0)
                weir_rank_close(&rank);
            cr_assert(eq(ptr, rank, NULL));
            cr_assert(zero(u32, rig.fake->n_allocations));
            cr_assert(eq(u32, rig.fake->n_streams, 1));
            cr_assert(zero(u32, rig.fake->n_events));
            cr_assert(rc != 0 || n > 1);
        }
    }
    rig_close_device(&rig);
}
