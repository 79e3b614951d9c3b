/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_sweep.h"
#include "device/cpu.h"
#include "transfer/geometry.h"

/* Of test_alloc_failures: the CPU device, with its streams, words, pools and copies. */

enum {
    N_STREAMS = 10, /* more than a clock has components at first */
    N_WORDS = 4,
    DEVICE_PAGES = 7,
    HOST_PAGES = 6
};

static uint32_t n_ran;

static void count_run(void *arg)
{
    (void)arg;
    n_ran++;
}

struct parts {
    weir_device *device;
    const struct weir_device_ops *ops;
    weir_stream *streams[N_STREAMS];
    weir_event *event;
    uint32_t *words, *more_words;
    uint64_t memory;
    uint32_t device_pool, host_pool;
    struct weir_geometry *geometry;
};

/* Layers that were enqueued before the failure are not enqueued again. */
static void copy_all(struct parts *p, struct weir_transfer transfer)
{
    uint32_t enqueued = 99;
    int rc;
    bool failed;
    COUNTED(rc, failed, p->ops->copy(p->device, p->streams[0], &transfer, &enqueued));
    cr_assert(rc == (failed ? -ENOMEM : 0), "copy: %s", weir_error_name(rc));
    if (rc) {
        alloc_fault_cure();
        cr_assert(enqueued < transfer.layer_end);
        transfer.layer_begin = enqueued;
        cr_assert(p->ops->copy(p->device, p->streams[0], &transfer, &enqueued) == 0);
    }
    cr_assert(enqueued == transfer.layer_end);
}

static void enqueue_all(struct parts *p)
{
    weir_cpu_access accesses[8];
    for (size_t i = 0; i < 8; i++)
        accesses[i] = (weir_cpu_access){ .pool = p->device_pool, .page = 1 + (int32_t)i % 7 };
    n_ran = 0;
    for (int i = 0; i < N_STREAMS; i++)
        MUST_TELL(
            weir_cpu_launch(p->device, p->streams[i], count_run, NULL, accesses, (size_t)(i % 8)),
            (void)0);
    MUST_TELL(p->ops->event_record(p->device, p->event, p->streams[1]), (void)0);
    MUST_TELL(p->ops->stream_wait_event(p->device, p->streams[2], p->event), (void)0);
    MUST_TELL(p->ops->stream_write_word(p->device, p->streams[2], p->words, 5), (void)0);
    MUST_TELL(p->ops->stream_wait_word(p->device, p->streams[3], p->words, 5), (void)0);
    MUST_TELL(weir_cpu_launch(p->device, p->streams[3], count_run, NULL, NULL, 0), (void)0);
}

static void load_and_write_back(struct parts *p)
{
    struct weir_run runs[] = { { 1, 1, 2 }, { 5, 4, 1 } };
    struct weir_transfer transfer = { .geometry = p->geometry,
                                      .runs = runs,
                                      .n_runs = 2,
                                      .direction = WEIR_LOAD,
                                      .layer_end = alloc_shape.n_layers,
                                      .words = p->more_words,
                                      .generation = 3,
                                      .device_pool = p->device_pool,
                                      .host_pool = p->host_pool };
    copy_all(p, transfer);
    transfer.direction = WEIR_WRITE_BACK;
    transfer.words = NULL;
    copy_all(p, transfer);
}

static _Alignas(4096) unsigned char host_bytes[1 << 16];

static void open_parts(struct parts *p)
{
    weir_device *device = p->device = alloc_open_device();
    p->ops = device->ops;
    /* Streams whose marks are in flight while the clocks grow. */
    for (int i = 0; i < N_STREAMS; i++) {
        MUST_TELL(weir_cpu_stream_create(device, &p->streams[i]), is_null(p->streams[i]));
        if (i == 0)
            MUST_TELL(p->ops->event_create(device, &p->event), is_null(p->event));
        MUST_TELL(p->ops->event_record(device, p->event, p->streams[i]), (void)0);
    }
    MUST_TELL(p->ops->words_alloc(device, N_WORDS, &p->words), is_null(p->words));
    MUST_TELL(p->ops->words_alloc(device, N_WORDS, &p->more_words), is_null(p->more_words));
    MUST_TELL(weir_geometry_create(&p->geometry, &alloc_shape, NULL, DEVICE_PAGES,
                                   WEIR_HOST_LAYER_FIRST, HOST_PAGES, 0, NULL),
              is_null(p->geometry));
    MUST_TELL(p->ops->memory_alloc(device, weir_geometry_device_bytes(p->geometry), &p->memory),
              cr_assert(p->memory == 0));
    MUST_TELL(p->ops->host_register(device, host_bytes, sizeof host_bytes), (void)0);
    weir_geometry_bind(p->geometry, p->memory, (uintptr_t)host_bytes, sizeof host_bytes);
    MUST_TELL(p->ops->pool_register(device, DEVICE_PAGES, alloc_shape.n_tensors,
                                    alloc_shape.n_layers, &p->device_pool),
              cr_assert(p->device_pool == 0));
    MUST_TELL(p->ops->pool_register(device, HOST_PAGES, alloc_shape.n_tensors, alloc_shape.n_layers,
                                    &p->host_pool),
              cr_assert(p->host_pool == 0));
}

static void close_parts(struct parts *p)
{
    p->ops->pool_unregister(p->device, p->host_pool);
    p->ops->pool_unregister(p->device, p->device_pool);
    p->ops->host_unregister(p->device, host_bytes);
    p->ops->memory_free(p->device, p->memory);
    p->ops->words_free(p->device, p->more_words);
    p->ops->words_free(p->device, p->words);
    p->ops->event_destroy(p->device, p->event);
    for (int i = 0; i < N_STREAMS; i++) {
        alloc_fault_on();
        weir_cpu_stream_destroy(p->device, &p->streams[i]);
        alloc_fault_off();
    }
    weir_geometry_destroy(&p->geometry);
    cr_assert(weir_device_close(&p->device) == 0);
}

static void device_workload(void)
{
    struct parts p = { 0 };
    open_parts(&p);
    MUST_TELL(weir_cpu_device_fail(p.device, WEIR_CPU_CALL_MEMORY_ALLOC, 9, -EIO), (void)0);
    weir_cpu_device_release(p.device);
    enqueue_all(&p);
    alloc_run_all(p.device);
    cr_assert(n_ran == N_STREAMS + 1, "%u of the launches ran", n_ran);
    cr_assert(p.words[0] == 5);
    for (int i = 0; i < N_STREAMS; i++)
        MUST_TELL(weir_cpu_stream_synchronize(p.device, p.streams[i]), (void)0);
    load_and_write_back(&p);
    alloc_run_all(p.device);
    for (uint32_t i = 0; i < alloc_shape.n_layers; i++)
        cr_assert(p.more_words[i] == 3, "layer %u was not published", i);
    cr_assert(weir_cpu_device_races(p.device) == 0, "a race that is none");
    close_parts(&p);
}

Test(alloc_failures, cpu_device)
{
    alloc_sweep("cpu device", device_workload);
}

/* Streams that cannot be had for want of memory, the clocks half grown: those that are
 * there go on. */
static void stunted_workload(void)
{
    weir_device *device = alloc_open_device();
    const struct weir_device_ops *ops = device->ops;
    weir_stream *streams[N_STREAMS] = { NULL };
    weir_event *event;
    cr_assert(ops->event_create(device, &event) == 0);
    int n = 0;
    for (bool failed = false; n < N_STREAMS && !failed; n += !failed) {
        int rc;
        COUNTED(rc, failed, weir_cpu_stream_create(device, &streams[n]));
        cr_assert(rc == (failed ? -ENOMEM : 0));
        if (!failed)
            cr_assert(ops->event_record(device, event, streams[n]) == 0);
    }
    alloc_fault_cure();
    for (int i = 0; i < 2 * n; i++) {
        cr_assert(ops->stream_wait_event(device, streams[i % n], event) == 0);
        cr_assert(ops->event_record(device, event, streams[i % n]) == 0);
    }
    alloc_run_all(device);
    for (int i = 0; i < n; i++)
        weir_cpu_stream_destroy(device, &streams[i]);
    ops->event_destroy(device, event);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, cpu_device_that_cannot_grow)
{
    alloc_sweep("cpu device that cannot grow", stunted_workload);
}
