/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_rig.h"

#include <errno.h>
#include <math.h>

/* ---- Opening ------------------------------------------------------------- */

static void open_fails(weir_cpu_device_params params, struct rig *rig, const char *line)
{
    params.log = (weir_log){ rig_log, rig, WEIR_LOG_DEBUG };
    weir_device *device = NULL;
    rig->n_lines = 0;
    cr_assert(eq(int, weir_cpu_device_open(&device, &params), -EINVAL));
    cr_assert(eq(ptr, device, NULL));
    cr_assert(eq(u32, rig->n_lines, 1));
    cr_assert(rig_logged(rig, line), "%s: %s", line, rig->lines[0]);
}

Test(device, cpu_wrong_parameters)
{
    struct rig rig = { 0 };
    weir_cpu_device_params params;
#define TRY(change, line)   \
    params = rig_params(0); \
    change;                 \
    open_fails(params, &rig, line)
    TRY(params.n_queues = 0, "n_queues");
    TRY(params.n_queues = 65, "n_queues");
    TRY(params.queue_depth = 0, "queue_depth");
    TRY(params.load_gbps = -1, "rates");
    TRY(params.write_back_gbps = NAN, "rates");
    TRY(params.load_gbps = INFINITY, "rates");
    TRY(params.load_latency_us = NAN, "latencies");
    TRY(params.write_back_latency_us = 1e10, "latencies");
#undef TRY
    params = rig_params(0);
    params.struct_size--;
    weir_device *device = NULL;
    cr_assert(eq(int, weir_cpu_device_open(&device, &params), -EINVAL));
    cr_assert(eq(int, weir_cpu_device_open(NULL, NULL), -EINVAL));
    cr_assert(eq(int, weir_cpu_device_open(&device, NULL), 0));
    cr_assert(eq(int, weir_device_close(&device), 0));
}

Test(device, kinds)
{
    struct rig rig = { 0 };
    weir_device_params params;
    weir_device_params_init(&params);
    params.log = (weir_log){ rig_log, &rig, WEIR_LOG_DEBUG };
    weir_device *device = NULL;

    params.kind = WEIR_DEVICE_CUDA;
    int cuda = weir_device_open(&device, &params);
    cr_assert(cuda == 0 || cuda == -ENODEV || cuda == -ENOTSUP, "%d: %s", cuda, rig.lines[0]);
    cr_assert(eq(int, device != NULL, cuda == 0));
    cr_assert(eq(int, weir_device_close(&device), 0));
    params.kind = (weir_device_kind)3;
    cr_assert(eq(int, weir_device_open(&device, &params), -EINVAL));
    cr_assert(rig_logged(&rig, "kind"));
    cr_assert(eq(int, weir_device_open(NULL, &params), -EINVAL));

    rig.n_lines = 0;
    params.kind = WEIR_DEVICE_CPU;
    cr_assert(eq(int, weir_device_open(&device, &params), 0));
    cr_assert(eq(u32, rig.n_lines, 0));
    cr_assert(eq(int, strcmp(weir_device_name(device), "cpu"), 0));
    atomic_store(&device->users, 2);
    cr_assert(eq(int, weir_device_close(&device), -EBUSY));
    cr_assert(ne(ptr, device, NULL));
    cr_assert(rig_logged(&rig, "2 ranks"));
    atomic_store(&device->users, 0);
    cr_assert(eq(int, weir_device_close(&device), 0));
    cr_assert(eq(ptr, device, NULL));
    cr_assert(eq(int, weir_device_close(&device), 0));
    cr_assert(eq(int, weir_device_close(NULL), -EINVAL));

    rig.n_lines = 0;
    params.kind = WEIR_DEVICE_AUTO;
    cr_assert(eq(int, weir_device_open(&device, &params), 0));
    if (cuda) {
        cr_assert(eq(int, strcmp(weir_device_name(device), "cpu"), 0));
        cr_assert(eq(u32, rig.n_lines, 1));
        cr_assert(eq(int, rig.levels[0], WEIR_LOG_INFO));
        cr_assert(rig_logged(&rig, "cpu device"));
    } else {
        cr_assert(eq(int, strcmp(weir_device_name(device), "cuda"), 0));
    }
    cr_assert(eq(int, weir_device_close(&device), 0));

    params.struct_size++;
    cr_assert(eq(int, weir_device_open(&device, &params), -EINVAL));
}

Test(device, cpu_wrong_arguments)
{
    struct rig rig, other;
    rig_open(&rig, rig_params(1), WEIR_HOST_SEGMENTED);
    rig_open(&other, rig_params(1), WEIR_HOST_SEGMENTED);
    weir_stream *stream = rig_stream(&rig);
    weir_event *event = rig_event(&rig);
    uint64_t address;
    uint32_t id, enqueued;
    uint32_t *words;
    uint32_t foreign = 0;
    struct weir_run run = { 1, 1, 1 };
    struct weir_transfer good = rig_transfer(&rig, WEIR_LOAD, &run, 1);
    struct weir_transfer bad;
#define INVALID(call, line)                     \
    rig.n_lines = 0;                            \
    cr_assert(eq(int, (call), -EINVAL), #call); \
    cr_assert(eq(u32, rig.n_lines, 1), #call);  \
    cr_assert(rig_logged(&rig, line), #call " said %s", rig.lines[0])
    INVALID(rig.ops->memory_alloc(rig.device, 0, &address), "bytes");
    INVALID(rig.ops->memory_alloc(rig.device, 1, NULL), "address");
    INVALID(rig.ops->host_register(rig.device, NULL, 4096), "address");
    INVALID(rig.ops->host_register(rig.device, rig.host + 1, 4096), "multiple");
    INVALID(rig.ops->host_register(rig.device, rig.host, 0), "bytes");
    INVALID(rig.ops->host_register(rig.device, rig.host, 4096), "registered");
    INVALID(rig.ops->words_alloc(rig.device, 0, &words), "n is 0");
    INVALID(rig.ops->words_alloc(rig.device, 1, NULL), "words");
    INVALID(rig.ops->stream_create(rig.device, 0, NULL), "stream");
    INVALID(rig.ops->stream_synchronize(rig.device, NULL), "stream");
    INVALID(rig.ops->event_create(rig.device, NULL), "event");
    INVALID(rig.ops->event_record(rig.device, NULL, stream), "event");
    INVALID(rig.ops->event_record(rig.device, event, NULL), "stream");
    INVALID(rig.ops->stream_wait_event(rig.device, stream, NULL), "event");
    INVALID(rig.ops->stream_wait_event(rig.device, NULL, event), "stream");
    INVALID(rig.ops->stream_write_word(rig.device, stream, &foreign, 1), "word");
    INVALID(rig.ops->stream_wait_word(rig.device, stream, NULL, 1), "word");
    INVALID(rig.ops->stream_wait_word(rig.device, stream, rig.words + RIG_WORDS, 1), "word");
    INVALID(rig.ops->pool_register(rig.device, 0, 1, 1, &id), "pages");
    INVALID(rig.ops->pool_register(rig.device, 1, 1, 1, NULL), "pool");
    INVALID(weir_cpu_stream_create(rig.device, NULL), "stream");
    INVALID(weir_cpu_launch(rig.device, stream, NULL, NULL, NULL, 0), "fn");
    INVALID(weir_cpu_launch(rig.device, stream, rig_raise, NULL, NULL, 1), "accesses");
    INVALID(weir_cpu_launch(rig.device, NULL, rig_raise, NULL, NULL, 0), "stream");
    INVALID(weir_cpu_device_fail(rig.device, WEIR_CPU_CALL_COUNT, 1, -EIO), "call");
    INVALID(weir_cpu_device_fail(rig.device, WEIR_CPU_CALL_COPY_LOAD, 0, -EIO), "n is 0");
    INVALID(weir_cpu_device_fail(rig.device, WEIR_CPU_CALL_COPY_LOAD, 1, 0), "rc");
    INVALID(weir_cpu_device_stall(rig.device, WEIR_CPU_CALL_COPY_LOAD, 0), "n is 0");
    INVALID(weir_cpu_device_stall(rig.device, WEIR_CPU_CALL_MEMORY_ALLOC, 1), "no work");
    INVALID(rig.ops->copy(rig.device, stream, &good, NULL), "enqueued");
    INVALID(rig.ops->copy(rig.device, stream, NULL, &enqueued), "transfer");
#define BAD_COPY(change, line)                                         \
    bad = good;                                                        \
    change;                                                            \
    INVALID(rig.ops->copy(rig.device, stream, &bad, &enqueued), line); \
    cr_assert(eq(u32, enqueued, bad.layer_begin))
    BAD_COPY(bad.geometry = NULL, "geometry");
    BAD_COPY(bad.direction = (enum weir_direction)2, "direction");
    BAD_COPY(bad.layer_end = RIG_LAYERS + 1, "layers");
    BAD_COPY((bad.layer_begin = 2, bad.layer_end = 1), "layers");
    BAD_COPY(bad.runs = NULL, "runs");
    BAD_COPY(bad.words = rig.words + RIG_WORDS - 2, "words");
    static const struct weir_run bad_runs[] = {
        { 0, 1, 1 },
        { 1, 0, 1 },
        { 1, 1, 0 },
        { 1, 1, -1 },
        { RIG_PAGES, 1, 2 },
        { 1, RIG_PAGES, 2 },
        { 1, 1, 4 },
        { INT32_MAX, 1, INT32_MAX },
        { 1, INT32_MAX, INT32_MAX },
    };
    for (size_t i = 0; i < sizeof bad_runs / sizeof *bad_runs; i++) {
        BAD_COPY(bad.runs = &bad_runs[i], "run 0");
    }
#undef BAD_COPY
#undef INVALID
    /* Another device's stream. */
    cr_assert(eq(int, other.ops->stream_synchronize(other.device, stream), -EINVAL));
    cr_assert(rig_logged(&other, "another device"));
    cr_assert(eq(int, weir_cpu_stream_synchronize(NULL, stream), -EINVAL));
    cr_assert(eq(int, weir_cpu_stream_create(NULL, &stream), -EINVAL));
    rig.ops->event_destroy(rig.device, event);
    weir_cpu_stream_destroy(rig.device, &stream);
    cr_assert(eq(ptr, stream, NULL));
    weir_cpu_stream_destroy(rig.device, &stream);
    rig_close(&rig);
    rig_close(&other);
}
