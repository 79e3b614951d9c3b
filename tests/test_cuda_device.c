/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_rig.h"

#include <weir/cuda.h>
#include <weir/expert_cache.h>
#include <weir/gather.h>
#include <weir/rank.h>

#include <stdio.h>
#include <sys/mman.h>

static CUstream handle(weir_stream *stream)
{
    return (CUstream)weir_cuda_from_stream(stream);
}

static const struct fake_call *last_call(const struct cuda_rig *rig, enum fake_function function)
{
    for (uint32_t i = rig->fake->n_calls; i-- > 0;)
        if (rig->fake->calls[i].function == function)
            return &rig->fake->calls[i];
    cr_assert(false, "function %d was not called", (int)function);
    return NULL;
}

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
    cr_assert(eq(u64, last_call(&rig, FAKE_cuMemHostAlloc)->arguments[0], 3));
    rig.ops->word_store(rig.device, &words[7], 9);
    cr_assert(eq(u32, rig.ops->word_load(rig.device, &words[7]), 9));
    rig.ops->words_free(rig.device, words);
    rig.ops->words_free(rig.device, NULL);

    void *host = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(eq(int, rig.ops->host_register(rig.device, host, 8192), 0));
    cr_assert(eq(u64, last_call(&rig, FAKE_cuMemHostRegister)->arguments[0], 3));
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
        const struct fake_call *call = last_call(&rig, FAKE_cuStreamCreateWithPriority);
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
    cr_assert(eq(u64, last_call(&rig, FAKE_cuEventCreate)->arguments[0], CU_EVENT_DISABLE_TIMING));
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
    cr_assert(zero(u64, last_call(&rig, FAKE_cuStreamWriteValue32)->arguments[2]));
    cr_assert(zero(u64, last_call(&rig, FAKE_cuStreamWaitValue32)->arguments[2]));

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
    CUstream stream = handle(rig.stream);
    cr_assert(eq(ptr, weir_stream_from_cuda(stream), rig.stream));
    cr_assert(eq(ptr, handle(weir_stream_from_cuda(NULL)), (void *)CU_STREAM_LEGACY));
    uint32_t *words;
    cr_assert(eq(int, rig.ops->words_alloc(rig.device, 1, &words), 0));
    weir_stream *legacy = weir_stream_from_cuda(NULL);
    cr_assert(eq(int, rig.ops->stream_write_word(rig.device, legacy, words, 5), 0));
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, legacy), 0));
    cr_assert(eq(u32, words[0], 5));
    rig.ops->words_free(rig.device, words);
    rig_close_device(&rig);
}

/* ---- Copies ---------------------------------------------------------------- */

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
    for (uint32_t l = transfer.layer_begin; l < transfer.layer_end; l++)
        pools_model_layer(pools, &transfer, l);
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

/* One tensor, two layers, opaque pages of these bytes. */
static void open_plain(struct cuda_rig *rig, struct cuda_pools *pools, uint64_t page_bytes)
{
    struct random random = { 9 };
    weir_tensor tensor = { .page_bytes = page_bytes };
    weir_shape shape = { .page_tokens = 1, .n_layers = 2, .n_tensors = 1, .tensors = &tensor };
    pools_open(rig, pools, &shape, WEIR_HOST_SEGMENTED, false, 0, &random);
}

Test(cuda_device, large_pieces_are_split_evenly)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    open_plain(&rig, &pools, (4 << 20) + 8);
    struct weir_run run = { 3, 5, 2 }; /* 8 MiB and 16 bytes */
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint32_t enqueued;
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    const struct fake_call *call = last_call(&rig, FAKE_cuMemcpyBatchAsync);
    cr_assert(eq(u64, call->arguments[0], 2));
    cr_assert(lt(u64, 4000000, call->arguments[1]));
    rig_run(&rig);
    for (uint32_t l = 0; l < 2; l++)
        pools_model_layer(&pools, &transfer, l);
    pools_check(&pools);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* The fake objects to a batch of both. */
Test(cuda_device, tiny_pieces_have_batches_of_their_own)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    open_plain(&rig, &pools, 40000);
    struct weir_run runs[] = { { 3, 1, 1 }, { 7, 9, 3 }, { 1, 5, 1 }, { 12, 18, 2 } };
    struct weir_transfer transfer = pools_transfer(&pools, runs, 4, WEIR_WRITE_BACK);
    uint32_t enqueued;
    uint32_t before = rig.fake->counts[FAKE_cuMemcpyBatchAsync];
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyBatchAsync] - before, 4)); /* 2 a layer */
    rig_run(&rig);
    for (uint32_t l = 0; l < 2; l++)
        pools_model_layer(&pools, &transfer, l);
    pools_check(&pools);
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
    cr_assert(eq(u64, last_call(&rig, FAKE_cuMemcpyBatchAsync)->arguments[0], WEIR_CUDA_BATCH));
    rig_run(&rig);
    for (uint32_t l = 0; l < 2; l++)
        pools_model_layer(&pools, &transfer, l);
    pools_check(&pools);
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
        for (uint32_t l = 0; l < 2; l++)
            pools_model_layer(&pools, &transfer, l);
        pools_check(&pools);
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
        for (uint32_t l = 0; l < 4; l++)
            pools_model_layer(&pools, &next, l);
        rig_run(&rig);
        pools_check(&pools);
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
    open_plain(&rig, &pools, 100000);
    struct weir_run run = { 3, 5, 1 };
    struct weir_transfer transfer = pools_transfer(&pools, &run, 1, WEIR_LOAD);
    uint32_t enqueued;
    weir_stream *legacy = weir_stream_from_cuda(NULL);
    cr_assert(eq(int, rig.ops->copy(rig.device, legacy, &transfer, &enqueued), 0));
    cr_assert(eq(int, rig.ops->stream_synchronize(rig.device, legacy), 0));
    for (uint32_t l = 0; l < 2; l++)
        pools_model_layer(&pools, &transfer, l);
    pools_check(&pools);
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* ---- Capture --------------------------------------------------------------- */

Test(cuda_device, a_captured_copy_is_not_lost)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    rig_open_device(&rig);
    open_plain(&rig, &pools, 100000);
    struct weir_run runs[] = { { 3, 5, 1 }, { 9, 2, 1 } };
    struct weir_transfer transfer = pools_transfer(&pools, runs, 2, WEIR_LOAD);
    uint32_t enqueued = 99;
    bool capturing = false;
    rig.fake->set_capture(handle(rig.stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert(eq(int, rig.ops->stream_is_capturing(rig.device, rig.stream, &capturing), 0));
    cr_assert(capturing);
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), 0));
    cr_assert(eq(u32, rig.fake->captured(handle(rig.stream)), 4));

    rig.fake->set_capture(handle(rig.stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    uint32_t n_copies = rig.fake->counts[FAKE_cuMemcpyAsync];
    cr_assert(eq(int, rig.ops->copy(rig.device, rig.stream, &transfer, &enqueued), -ENOTSUP));
    cr_assert(zero(u32, enqueued));
    cr_assert(eq(u32, rig.fake->counts[FAKE_cuMemcpyAsync], n_copies));
    rig.fake->set_capture(handle(rig.stream), CU_STREAM_CAPTURE_STATUS_NONE);
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
    rig.fake->set_capture(handle(rig.stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert(eq(int, rig.ops->stream_wait_event_external(rig.device, rig.stream, event), 0));
    cr_assert(
        eq(u64, last_call(&rig, FAKE_cuStreamWaitEvent)->arguments[0], CU_EVENT_WAIT_EXTERNAL));
    cr_assert(eq(u32, rig.fake->captured(handle(rig.stream)), 1));
    /* The other wait cannot be captured, and says so. */
    cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, rig.stream, event), -ENOTSUP));
    rig.fake->set_capture(handle(rig.stream), CU_STREAM_CAPTURE_STATUS_NONE);
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
    rig.fake->set_capture(handle(captured), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    open_plain(&rig, &pools, 1000);
    rig_run(&rig);
    pools_close(&rig, &pools);
    bool capturing = false;
    cr_assert(eq(int, rig.ops->stream_is_capturing(rig.device, captured, &capturing), 0));
    cr_assert(capturing);
    rig.fake->set_capture(handle(captured), CU_STREAM_CAPTURE_STATUS_NONE);
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
    open_plain(&rig, &pools, 1000);
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
