/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_rig.h"

#include <errno.h>
#include <pthread.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

static void check_leaks(void)
{
#if defined(__SANITIZE_ADDRESS__)
    cr_assert(eq(int, __lsan_do_recoverable_leak_check(), 0));
#endif
}

struct bench {
    struct rig rig;
    weir_stream *stream;
    weir_event *event;
    struct weir_geometry one_layer; /* of one tensor */
};

static void bench_open(struct bench *bench, uint64_t seed)
{
    rig_open(&bench->rig, rig_params(seed), WEIR_HOST_SEGMENTED);
    bench->stream = rig_stream(&bench->rig);
    bench->event = rig_event(&bench->rig);
    bench->one_layer = *bench->rig.geometry;
    bench->one_layer.n_layers = bench->one_layer.n_tensors = 1;
}

static void bench_close(struct bench *bench)
{
    bench->rig.ops->event_destroy(bench->rig.device, bench->event);
    weir_cpu_stream_destroy(bench->rig.device, &bench->stream);
    rig_close(&bench->rig);
}

static int copy_one_layer(struct bench *bench, enum weir_direction direction)
{
    struct weir_run run = { 1, 1, 1 };
    struct weir_transfer transfer = rig_transfer(&bench->rig, direction, &run, 1);
    transfer.layer_end = 1;
    uint32_t enqueued;
    int rc = bench->rig.ops->copy(bench->rig.device, bench->stream, &transfer, &enqueued);
    cr_assert(eq(u32, enqueued, rc ? 0 : 1));
    return rc;
}

static int copy_pages_of_one_layer(struct bench *bench)
{
    static const weir_page_copy copy = { { 1 }, { 2 }, 0 };
    const struct weir_page_copies copies = { .geometry = &bench->one_layer,
                                             .copies = &copy,
                                             .n = 1 };
    return bench->rig.ops->copy_pages(bench->rig.device, bench->stream, &copies);
}

static _Alignas(4096) unsigned char spare_pages[4096];

/* Makes one call of a kind and undoes it. */
static int make_call(struct bench *bench, weir_cpu_call call)
{
    const struct weir_device_ops *ops = bench->rig.ops;
    weir_device *device = bench->rig.device;
    uint64_t address;
    uint32_t *words;
    weir_stream *stream;
    weir_event *event;
    int rc = 0;
    switch (call) {
    case WEIR_CPU_CALL_MEMORY_ALLOC:
        rc = ops->memory_alloc(device, 100, &address);
        if (!rc)
            ops->memory_free(device, address);
        return rc;
    case WEIR_CPU_CALL_HOST_REGISTER:
        rc = ops->host_register(device, spare_pages, sizeof spare_pages);
        if (!rc)
            ops->host_unregister(device, spare_pages);
        return rc;
    case WEIR_CPU_CALL_WORDS_ALLOC:
        rc = ops->words_alloc(device, 3, &words);
        if (!rc)
            ops->words_free(device, words);
        return rc;
    case WEIR_CPU_CALL_STREAM_CREATE:
        rc = ops->stream_create(device, 1, &stream);
        if (!rc)
            ops->stream_destroy(device, stream);
        return rc;
    case WEIR_CPU_CALL_EVENT_CREATE:
        rc = ops->event_create(device, &event);
        if (!rc)
            ops->event_destroy(device, event);
        return rc;
    case WEIR_CPU_CALL_EVENT_RECORD:
        return ops->event_record(device, bench->event, bench->stream);
    case WEIR_CPU_CALL_STREAM_WAIT_EVENT:
        return ops->stream_wait_event(device, bench->stream, bench->event);
    case WEIR_CPU_CALL_STREAM_WAIT_WORD:
        return ops->stream_wait_word(device, bench->stream, &bench->rig.words[7], 0);
    case WEIR_CPU_CALL_STREAM_WRITE_WORD:
        return ops->stream_write_word(device, bench->stream, &bench->rig.words[7], 0);
    case WEIR_CPU_CALL_COPY_LOAD:
        return copy_one_layer(bench, WEIR_LOAD);
    case WEIR_CPU_CALL_COPY_WRITE_BACK:
        return copy_one_layer(bench, WEIR_WRITE_BACK);
    case WEIR_CPU_CALL_COPY_PAGES:
        return copy_pages_of_one_layer(bench);
    case WEIR_CPU_CALL_COUNT:
        break;
    }
    return -EINVAL;
}

static bool enqueues_work(weir_cpu_call call)
{
    return call >= WEIR_CPU_CALL_EVENT_RECORD;
}

/* The nth call from now fails, once, and the calls are counted all the same. */
Test(cpu_faults, fail_every_kind)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct bench bench;
        bench_open(&bench, seed);
        weir_device *device = bench.rig.device;
        for (weir_cpu_call call = 0; call < WEIR_CPU_CALL_COUNT; call++) {
            for (uint64_t n = 1; n <= 4; n++) {
                uint64_t before = weir_cpu_device_calls(device, call);
                cr_assert(eq(int, make_call(&bench, call), 0));
                cr_assert(eq(int, weir_cpu_device_fail(device, call, n, -ENOMEM), 0));
                cr_assert(eq(int, weir_cpu_device_fail(device, call, n + 1, -EIO), 0));
                for (uint64_t i = 1; i <= 5; i++) {
                    int expected = i == n ? -ENOMEM : i == n + 1 ? -EIO : 0;
                    cr_assert(eq(int, make_call(&bench, call), expected), "call %d, n %d, i %d",
                              (int)call, (int)n, (int)i);
                }
                cr_assert(eq(u64, weir_cpu_device_calls(device, call), before + 6));
                rig_synchronize(&bench.rig, bench.stream);
            }
        }
        bench_close(&bench);
        check_leaks();
    }
}

/* What the nth call enqueues, and all behind it, starts with the release. */
Test(cpu_faults, stall_every_kind)
{
    EACH_MODE(seed)
    {
        struct bench bench;
        bench_open(&bench, seed);
        weir_device *device = bench.rig.device;
        for (weir_cpu_call call = 0; call < WEIR_CPU_CALL_COUNT; call++) {
            if (!enqueues_work(call))
                continue;
            atomic_uint before = 0;
            atomic_uint after = 0;
            cr_assert(eq(int, weir_cpu_device_stall(device, call, 2), 0));
            cr_assert(eq(int, make_call(&bench, call), 0));
            rig_launch(&bench.rig, bench.stream, rig_raise, &before);
            cr_assert(eq(int, make_call(&bench, call), 0));
            rig_launch(&bench.rig, bench.stream, rig_raise, &after);
            rig_until(&bench.rig, &before, 1);
            rig_run(&bench.rig);
            if (seed)
                cr_assert(eq(int, weir_cpu_stream_synchronize(device, bench.stream), -EDEADLK));
            cr_assert(eq(u32, atomic_load(&after), 0));
            weir_cpu_device_release(device);
            rig_synchronize(&bench.rig, bench.stream);
            cr_assert(eq(u32, atomic_load(&after), 1));
        }
        bench_close(&bench);
    }
}

Test(cpu_faults, release_ends_faults_that_have_not_struck)
{
    struct bench bench;
    bench_open(&bench, 1);
    weir_device *device = bench.rig.device;
    for (weir_cpu_call call = 0; call < WEIR_CPU_CALL_COUNT; call++) {
        cr_assert(eq(int, weir_cpu_device_fail(device, call, 1, -EIO), 0));
        if (enqueues_work(call))
            cr_assert(eq(int, weir_cpu_device_stall(device, call, 2), 0));
    }
    weir_cpu_device_release(device);
    for (weir_cpu_call call = 0; call < WEIR_CPU_CALL_COUNT; call++)
        for (unsigned i = 0; i < 3; i++)
            cr_assert(eq(int, make_call(&bench, call), 0));
    rig_synchronize(&bench.rig, bench.stream);
    cr_assert(eq(int, weir_cpu_device_fail(device, WEIR_CPU_CALL_COPY_LOAD, 9, -EIO), 0));
    bench_close(&bench);
    check_leaks();
}

/* A copy that fails at a layer says so, and the layers before it still run. */
Test(cpu_faults, copy_fails_at_a_layer)
{
    EACH_MODE(seed)
    {
        for (uint32_t bad = 0; bad < RIG_LAYERS; bad++) {
            struct bench bench;
            bench_open(&bench, seed);
            struct rig *rig = &bench.rig;
            rig_fill(rig, true);
            rig_fill(rig, false);
            struct weir_run run = { 1, 5, 2 };
            struct weir_transfer load = rig_transfer(rig, WEIR_LOAD, &run, 1);
            load.words = rig->words;
            load.generation = 4;
            uint32_t enqueued = 77;
            weir_cpu_device_fail(rig->device, WEIR_CPU_CALL_COPY_LOAD, bad + 1, -EAGAIN);
            cr_assert(
                eq(int, rig->ops->copy(rig->device, bench.stream, &load, &enqueued), -EAGAIN));
            cr_assert(eq(u32, enqueued, bad));
            rig_synchronize(rig, bench.stream);
            for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
                cr_assert(rig_layer_is(rig, false, layer, 1, layer < bad ? 5 : 1));
                cr_assert(rig_layer_is(rig, false, layer, 2, layer < bad ? 6 : 2));
                cr_assert(eq(u32, rig->words[layer], layer < bad ? 4 : 0));
            }
            bench_close(&bench);
        }
    }
}

/* ---- Parking ------------------------------------------------------------- */

struct gate {
    atomic_uint entered;
    atomic_uint open;
};

static void pass_gate(void *arg)
{
    struct gate *gate = arg;
    atomic_store(&gate->entered, 1);
    while (!atomic_load(&gate->open))
        sched_yield();
}

/* A park holds what is enqueued after it, not what was before. */
Test(cpu_faults, park_holds_later_work)
{
    EACH_MODE(seed)
    {
        struct bench bench;
        bench_open(&bench, seed);
        struct rig *rig = &bench.rig;
        struct gate gate = { 0, seed != 0 };
        atomic_uint before = 0;
        atomic_uint after = 0;
        rig_launch(rig, bench.stream, pass_gate, &gate);
        rig_launch(rig, bench.stream, rig_raise, &before);
        weir_cpu_stream_park(rig->device, bench.stream);
        rig_launch(rig, bench.stream, rig_raise, &after);
        weir_cpu_stream_park(rig->device, bench.stream);
        rig_until(rig, &gate.entered, 1);
        atomic_store(&gate.open, 1);
        rig_until(rig, &before, 1);
        rig_run(rig);
        cr_assert(eq(u32, atomic_load(&after), 0));
        weir_cpu_stream_release(rig->device, bench.stream);
        rig_synchronize(rig, bench.stream);
        cr_assert(eq(u32, atomic_load(&after), 1));
        weir_cpu_stream_release(rig->device, bench.stream);
        bench_close(&bench);
    }
}

/* Destroying waits for the work; closing does so for streams left behind. */
Test(cpu_faults, destroy_and_close_wait_for_work)
{
    EACH_MODE(seed)
    {
        for (int by_close = 0; by_close < 2; by_close++) {
            struct bench bench;
            bench_open(&bench, seed);
            struct rig *rig = &bench.rig;
            weir_stream *other = rig_stream(rig);
            atomic_uint ran = 0;
            weir_cpu_device_stall(rig->device, WEIR_CPU_CALL_EVENT_RECORD, 1);
            weir_cpu_stream_park(rig->device, bench.stream);
            rig_launch(rig, other, rig_raise, &ran);
            rig->ops->event_record(rig->device, bench.event, other);
            rig->ops->stream_wait_event(rig->device, bench.stream, bench.event);
            rig_launch(rig, other, rig_raise, &ran);
            rig_launch(rig, bench.stream, rig_raise, &ran);
            if (!by_close) {
                weir_cpu_stream_destroy(rig->device, &other);
                cr_assert(ge(u32, atomic_load(&ran), 2));
                weir_cpu_stream_destroy(rig->device, &bench.stream);
                cr_assert(eq(u32, atomic_load(&ran), 3));
            }
            bench.stream = NULL;
            bench_close(&bench);
            cr_assert(eq(u32, atomic_load(&ran), 3));
            check_leaks();
        }
    }
}

/* With a seed, work that can never run is dropped, with a line in the log. */
Test(cpu_faults, destroy_drops_what_never_runs)
{
    struct bench bench;
    bench_open(&bench, 3);
    struct rig *rig = &bench.rig;
    weir_stream *other = rig_stream(rig);
    atomic_uint ran = 0;
    rig->ops->stream_wait_word(rig->device, bench.stream, &rig->words[0], 1);
    rig->ops->event_record(rig->device, bench.event, bench.stream);
    rig_launch(rig, bench.stream, rig_raise, &ran);
    rig_launch(rig, other, rig_raise, &ran);
    weir_cpu_stream_destroy(rig->device, &bench.stream);
    cr_assert(rig_logged(rig, "dropped"));
    rig_synchronize(rig, other);
    cr_assert(eq(u32, atomic_load(&ran), 1));
    weir_cpu_stream_destroy(rig->device, &other);
    bench_close(&bench);
    check_leaks();
}

/* ---- A lost device ------------------------------------------------------- */

Test(cpu_faults, lost_device)
{
    EACH_MODE(seed)
    {
        struct bench bench;
        bench_open(&bench, seed);
        struct rig *rig = &bench.rig;
        rig_fill(rig, true);
        weir_stream *other = rig_stream(rig);
        atomic_uint ran = 0;
        cr_assert(eq(int, rig->ops->status(rig->device), 0));
        struct weir_run run = { 1, 1, 3 };
        struct weir_transfer load = rig_transfer(rig, WEIR_LOAD, &run, 1);
        load.words = rig->words;
        load.generation = 1;
        weir_cpu_stream_park(rig->device, other);
        rig->ops->event_record(rig->device, bench.event, other);
        rig->ops->stream_wait_event(rig->device, bench.stream, bench.event);
        rig_copy(rig, bench.stream, &load);
        rig_launch(rig, bench.stream, rig_raise, &ran);
        weir_cpu_device_lose(rig->device);
        weir_cpu_stream_release(rig->device, other);
        cr_assert(eq(sz, weir_cpu_device_run(rig->device, 100), 0));

        cr_assert(eq(int, rig->ops->status(rig->device), -EIO));
        for (weir_cpu_call call = 0; call < WEIR_CPU_CALL_COUNT; call++) {
            cr_assert(eq(int, make_call(&bench, call), -EIO), "call %d", (int)call);
            cr_assert(eq(int, weir_cpu_device_fail(rig->device, call, 1, -EIO), -EIO));
        }
        uint32_t pool = 99;
        cr_assert(eq(int, rig->ops->pool_register(rig->device, 1, 1, 1, &pool), -EIO));
        cr_assert(eq(u32, pool, 99));
        cr_assert(eq(int, rig->ops->stream_synchronize(rig->device, bench.stream), -EIO));
        cr_assert(eq(int, weir_cpu_launch(rig->device, other, rig_raise, &ran, NULL, 0), -EIO));
        load.layer_begin = load.layer_end = 2;
        uint32_t enqueued = 0;
        cr_assert(eq(int, rig->ops->copy(rig->device, other, &load, &enqueued), -EIO));
        cr_assert(eq(u32, enqueued, 2));
        cr_assert(eq(u32, rig->ops->word_load(rig->device, rig->words), 0));
        weir_cpu_stream_destroy(rig->device, &other);
        bench_close(&bench);
        cr_assert(eq(u32, atomic_load(&ran), 0));
        check_leaks();
    }
}

/* With a seed, a copy may be half done when the device is lost. */
Test(cpu_faults, lost_in_the_midst_of_a_copy)
{
    for (size_t steps = 0; steps <= 2 * RIG_LAYERS; steps++) {
        struct bench bench;
        bench_open(&bench, 2);
        struct rig *rig = &bench.rig;
        struct weir_run run = { 1, 1, 3 };
        struct weir_transfer load = rig_transfer(rig, WEIR_LOAD, &run, 1);
        load.words = rig->words;
        load.generation = 1;
        rig_copy(rig, bench.stream, &load);
        cr_assert(eq(sz, weir_cpu_device_run(rig->device, steps), steps));
        weir_cpu_device_lose(rig->device);
        cr_assert(eq(sz, weir_cpu_device_run(rig->device, 1), 0));
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
            cr_assert(eq(u32, rig->words[layer], layer < steps / 2));
        bench_close(&bench);
        check_leaks();
    }
}

struct blocked {
    struct rig *rig;
    weir_stream *stream;
    bool submits;
    atomic_uint going;
    int rc;
};

static void *block(void *arg)
{
    struct blocked *b = arg;
    atomic_store(&b->going, 1);
    do {
        b->rc = b->submits
                    ? weir_cpu_launch(b->rig->device, b->stream, rig_raise, &b->going, NULL, 0)
                    : weir_cpu_stream_synchronize(b->rig->device, b->stream);
    } while (b->submits && b->rc == 0);
    return NULL;
}

/* Submitters at a full queue and synchronizers come back with -EIO. */
Test(cpu_faults, losing_frees_who_is_blocked)
{
    for (unsigned round = 0; round < 20; round++) {
        struct bench bench;
        weir_cpu_device_params params = rig_params(0);
        params.queue_depth = 2;
        rig_open(&bench.rig, params, WEIR_HOST_SEGMENTED);
        bench.event = rig_event(&bench.rig);
        bench.stream = rig_stream(&bench.rig);
        weir_cpu_stream_park(bench.rig.device, bench.stream);
        pthread_t threads[3];
        struct blocked blocked[3] = { { &bench.rig, bench.stream, true, 0, 0 },
                                      { &bench.rig, bench.stream, false, 0, 0 },
                                      { &bench.rig, bench.stream, true, 0, 0 } };
        rig_launch(&bench.rig, bench.stream, rig_raise, &blocked[0].going);
        for (unsigned i = 0; i < 3; i++)
            cr_assert(eq(int, pthread_create(&threads[i], NULL, block, &blocked[i]), 0));
        for (unsigned i = 0; i < 3; i++)
            while (!atomic_load(&blocked[i].going))
                sched_yield();
        weir_cpu_device_lose(bench.rig.device);
        for (unsigned i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
            cr_assert(eq(int, blocked[i].rc, -EIO));
        }
        bench_close(&bench);
        check_leaks();
    }
}
