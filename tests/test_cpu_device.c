/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_rig.h"
#include "device/cpu_link.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* ---- Memory -------------------------------------------------------------- */

Test(cpu_device, memory_and_words)
{
    struct rig rig;
    rig_open(&rig, rig_params(0), WEIR_HOST_SEGMENTED);
    for (uint64_t bytes = 1; bytes < 5000; bytes = bytes * 3 + 1) {
        uint64_t address;
        cr_assert(eq(int, rig.ops->memory_alloc(rig.device, bytes, &address), 0));
        cr_assert(eq(u64, address % 256, 0));
        memset((void *)(uintptr_t)address, 1, bytes);
        rig.ops->memory_free(rig.device, address);
    }
    uint64_t address = 7;
    cr_assert(eq(int, rig.ops->memory_alloc(rig.device, UINT64_MAX, &address), -ENOMEM));
    cr_assert(eq(u64, address, 7));
    for (uint32_t n = 1; n < 100; n += 9) {
        uint32_t *words;
        cr_assert(eq(int, rig.ops->words_alloc(rig.device, n, &words), 0));
        for (uint32_t i = 0; i < n; i++)
            cr_assert(eq(u32, rig.ops->word_load(rig.device, &words[i]), 0));
        rig.ops->word_store(rig.device, &words[n - 1], n);
        cr_assert(eq(u32, rig.ops->word_load(rig.device, &words[n - 1]), n));
        rig.ops->words_free(rig.device, words);
    }
    rig_close(&rig);
}

Test(cpu_device, no_graphs)
{
    struct rig rig;
    rig_open(&rig, rig_params(0), WEIR_HOST_SEGMENTED);
    weir_stream *stream = rig_stream(&rig);
    weir_event *event = rig_event(&rig);
    bool capturing = true;
    cr_assert(eq(int, rig.ops->stream_is_capturing(rig.device, stream, &capturing), 0));
    cr_assert(not(capturing));
    cr_assert(eq(int, rig.ops->stream_wait_event_external(rig.device, stream, event), -ENOTSUP));
    rig.ops->event_destroy(rig.device, event);
    weir_cpu_stream_destroy(rig.device, &stream);
    rig_close(&rig);
}

/* ---- Order and time ------------------------------------------------------ */

struct journal {
    atomic_uint n;
    atomic_uint entries[256];
};

struct note {
    struct journal *journal;
    unsigned value;
};

static void write_note(void *arg)
{
    struct note *note = arg;
    atomic_store(&note->journal->entries[atomic_fetch_add(&note->journal->n, 1)], note->value);
}

/* Enqueueing runs nothing, a stream is in order, all of it has run after
 * synchronize. */
Test(cpu_device, streams_run_later_and_in_order)
{
    EACH_MODE(seed)
    {
        struct rig rig;
        rig_open(&rig, rig_params(seed), WEIR_HOST_SEGMENTED);
        struct journal journal = { 0 };
        struct note notes[96];
        weir_stream *streams[3];
        for (unsigned s = 0; s < 3; s++) {
            streams[s] = rig_stream(&rig);
            weir_cpu_stream_park(rig.device, streams[s]);
        }
        for (unsigned i = 0; i < 96; i++) {
            notes[i] = (struct note){ &journal, i };
            rig_launch(&rig, streams[i % 3], write_note, &notes[i]);
        }
        rig_run(&rig);
        cr_assert(eq(u32, atomic_load(&journal.n), 0));
        for (unsigned s = 0; s < 3; s++)
            weir_cpu_stream_release(rig.device, streams[s]);
        for (unsigned s = 0; s < 3; s++)
            rig_synchronize(&rig, streams[s]);
        cr_assert(eq(u32, atomic_load(&journal.n), 96));
        unsigned last[3] = { 0, 0, 0 };
        bool interleaved = false;
        for (unsigned i = 0; i < 96; i++) {
            unsigned value = atomic_load(&journal.entries[i]);
            cr_assert(ge(u32, value, last[value % 3]));
            last[value % 3] = value;
            interleaved = interleaved || value != i;
        }
        if (seed)
            cr_assert(interleaved);
        for (unsigned s = 0; s < 3; s++)
            weir_cpu_stream_destroy(rig.device, &streams[s]);
        rig_close(&rig);
    }
}

/* The same seed does the same, different seeds differ. */
Test(cpu_device, seeds_are_reproducible)
{
    unsigned orders[3][48];
    for (unsigned round = 0; round < 3; round++) {
        struct rig rig;
        rig_open(&rig, rig_params(round < 2 ? 5 : 6), WEIR_HOST_SEGMENTED);
        struct journal journal = { 0 };
        struct note notes[48];
        weir_stream *streams[4];
        for (unsigned s = 0; s < 4; s++)
            streams[s] = rig_stream(&rig);
        for (unsigned i = 0; i < 48; i++) {
            notes[i] = (struct note){ &journal, i };
            rig_launch(&rig, streams[i % 4], write_note, &notes[i]);
        }
        cr_assert(eq(sz, weir_cpu_device_run(rig.device, 7), 7));
        cr_assert(eq(sz, weir_cpu_device_run(rig.device, 1000), 2 * 48 - 7));
        cr_assert(eq(sz, weir_cpu_device_run(rig.device, 1), 0));
        for (unsigned i = 0; i < 48; i++)
            orders[round][i] = atomic_load(&journal.entries[i]);
        for (unsigned s = 0; s < 4; s++)
            weir_cpu_stream_destroy(rig.device, &streams[s]);
        rig_close(&rig);
    }
    cr_assert(memcmp(orders[0], orders[1], sizeof orders[0]) == 0);
    cr_assert(memcmp(orders[0], orders[2], sizeof orders[0]) != 0);
}

/* Streams are dealt to queues in turn; a head that cannot start holds up what
 * was submitted to its queue behind it, and nothing in another queue. */
Test(cpu_device, head_of_line)
{
    EACH_MODE(seed)
    {
        for (uint32_t n_queues = 1; n_queues <= 4; n_queues++) {
            struct rig rig;
            weir_cpu_device_params params = rig_params(seed);
            params.n_queues = n_queues;
            rig_open(&rig, params, WEIR_HOST_SEGMENTED);
            weir_stream *streams[6];
            atomic_uint ran[6] = { 0 };
            for (unsigned s = 0; s < 6; s++)
                streams[s] = rig_stream(&rig);
            weir_cpu_stream_park(rig.device, streams[1]);
            rig_launch(&rig, streams[0], rig_raise, &ran[0]);
            for (unsigned s = 1; s < 6; s++)
                rig_launch(&rig, streams[s], rig_raise, &ran[s]);
            rig_run(&rig);
            for (unsigned s = 0; s < 6; s++) {
                bool held = s >= 1 && s % n_queues == 1 % n_queues;
                if (!held)
                    rig_synchronize(&rig, streams[s]);
                cr_assert(eq(u32, atomic_load(&ran[s]), !held));
                if (held && seed)
                    cr_assert(
                        eq(int, rig.ops->stream_synchronize(rig.device, streams[s]), -EDEADLK));
            }
            weir_cpu_stream_release(rig.device, streams[1]);
            for (unsigned s = 0; s < 6; s++) {
                rig_synchronize(&rig, streams[s]);
                cr_assert(eq(u32, atomic_load(&ran[s]), 1));
                weir_cpu_stream_destroy(rig.device, &streams[s]);
            }
            rig_close(&rig);
        }
    }
}

struct depth_check {
    atomic_uint submitted;
    atomic_uint ran;
    atomic_uint most_ahead;
};

static void check_depth(void *arg)
{
    struct depth_check *check = arg;
    unsigned ahead = atomic_load(&check->submitted) - atomic_fetch_add(&check->ran, 1);
    if (atomic_load(&check->most_ahead) < ahead)
        atomic_store(&check->most_ahead, ahead);
}

struct submitter {
    struct rig *rig;
    weir_stream *stream;
    struct depth_check *check;
    unsigned n;
    int rc;
};

static void *submit_many(void *arg)
{
    struct submitter *s = arg;
    for (unsigned i = 0; i < s->n && !s->rc; i++) {
        s->rc = weir_cpu_launch(s->rig->device, s->stream, check_depth, s->check, NULL, 0);
        if (!s->rc)
            atomic_fetch_add(&s->check->submitted, 1);
    }
    return NULL;
}

/* A full queue blocks the submitter; one op may be running beside it. */
Test(cpu_device, full_queue_with_threads)
{
    for (uint32_t depth = 1; depth <= 9; depth += 4) {
        struct rig rig;
        weir_cpu_device_params params = rig_params(0);
        params.queue_depth = depth;
        rig_open(&rig, params, WEIR_HOST_SEGMENTED);
        struct depth_check check = { 0 };
        struct submitter s = { &rig, rig_stream(&rig), &check, 200, 0 };
        weir_cpu_stream_park(rig.device, s.stream);
        pthread_t thread;
        cr_assert(eq(int, pthread_create(&thread, NULL, submit_many, &s), 0));
        while (atomic_load(&check.submitted) < depth)
            sched_yield();
        weir_cpu_stream_release(rig.device, s.stream);
        pthread_join(thread, NULL);
        cr_assert(eq(int, s.rc, 0));
        rig_synchronize(&rig, s.stream);
        cr_assert(eq(u32, atomic_load(&check.ran), 200));
        cr_assert(le(u32, atomic_load(&check.most_ahead), depth + 1));
        weir_cpu_stream_destroy(rig.device, &s.stream);
        rig_close(&rig);
    }
}

Test(cpu_device, full_queue_with_a_seed)
{
    EACH_SEED(seed)
    {
        struct rig rig;
        weir_cpu_device_params params = rig_params(seed);
        params.queue_depth = 3;
        rig_open(&rig, params, WEIR_HOST_SEGMENTED);
        struct depth_check check = { 0 };
        struct submitter s = { &rig, rig_stream(&rig), &check, 50, 0 };
        submit_many(&s);
        cr_assert(eq(int, s.rc, 0));
        cr_assert(ge(u32, atomic_load(&check.ran), 50 - 3 - 1));
        rig_synchronize(&rig, s.stream);
        weir_cpu_stream_park(rig.device, s.stream);
        submit_many(&s);
        cr_assert(eq(int, s.rc, -EDEADLK));
        cr_assert(eq(u32, atomic_load(&check.submitted), 53));
        cr_assert(eq(u32, atomic_load(&check.ran), 50));
        weir_cpu_stream_destroy(rig.device, &s.stream); /* releases what it parked */
        cr_assert(eq(u32, atomic_load(&check.ran), 53));
        rig_close(&rig);
    }
}

/* ---- Copies -------------------------------------------------------------- */

static void round_trip(uint64_t seed, weir_host_layout layout)
{
    struct rig rig;
    rig_open(&rig, rig_params(seed), layout);
    rig_fill(&rig, true);
    weir_stream *stream = rig_stream(&rig);
    /* Device pages 1 to 8 get host pages 4 5 6 1 2 3 8 7. */
    static const int32_t source[] = { 4, 5, 6, 1, 2, 3, 8, 7 };
    struct weir_run runs[] = { { 1, 4, 3 }, { 4, 1, 3 }, { 7, 8, 1 }, { 8, 7, 1 } };
    struct weir_transfer load = rig_transfer(&rig, WEIR_LOAD, runs, 4);
    load.words = rig.words;
    load.generation = 9;
    rig_copy(&rig, stream, &load);
    memset(runs, 0, sizeof runs);
    rig_synchronize(&rig, stream);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        cr_assert(eq(u32, rig.ops->word_load(rig.device, &rig.words[layer]), 9));
        for (int32_t page = 1; page <= (int32_t)RIG_PAGES; page++)
            cr_assert(rig_layer_is(&rig, false, layer, page, source[page - 1]));
    }
    cr_assert(eq(u32, rig.words[RIG_LAYERS], 0));

    /* Device page 2, layers 1 and 2, to host page 8; layer 0 stays. */
    struct weir_run back = { 2, 8, 1 };
    struct weir_transfer write = rig_transfer(&rig, WEIR_WRITE_BACK, &back, 1);
    write.layer_begin = 1;
    rig_copy(&rig, stream, &write);
    rig_synchronize(&rig, stream);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        cr_assert(rig_layer_is(&rig, true, layer, 8, layer >= 1 ? 5 : 8));
        for (int32_t page = 1; page < 8; page++)
            cr_assert(rig_layer_is(&rig, true, layer, page, page));
    }
    cr_assert(eq(u64, weir_cpu_device_races(rig.device), 0), "%s", rig.lines[0]);
    weir_cpu_stream_destroy(rig.device, &stream);
    rig_close(&rig);
}

Test(cpu_device, copies_every_byte)
{
    EACH_MODE(seed)
    {
        round_trip(seed, WEIR_HOST_SEGMENTED);
        round_trip(seed, WEIR_HOST_LAYER_FIRST);
        round_trip(seed, WEIR_HOST_PAGE_FIRST);
        round_trip(seed, WEIR_HOST_PAGE_FIRST_DIRECT);
    }
}

Test(cpu_device, empty_copies_publish_too)
{
    EACH_MODE(seed)
    {
        struct rig rig;
        rig_open(&rig, rig_params(seed), WEIR_HOST_SEGMENTED);
        weir_stream *stream = rig_stream(&rig);
        struct weir_transfer nothing = rig_transfer(&rig, WEIR_LOAD, NULL, 0);
        nothing.words = rig.words;
        nothing.generation = 3;
        nothing.layer_begin = 1;
        rig_copy(&rig, stream, &nothing);
        rig_synchronize(&rig, stream);
        cr_assert(eq(u32, rig.words[0], 0));
        cr_assert(eq(u32, rig.words[1], 3));
        cr_assert(eq(u32, rig.words[2], 3));
        nothing.layer_begin = nothing.layer_end = 3;
        nothing.generation = 4;
        rig_copy(&rig, stream, &nothing);
        rig_synchronize(&rig, stream);
        cr_assert(eq(u32, rig.words[2], 3));
        weir_cpu_stream_destroy(rig.device, &stream);
        rig_close(&rig);
    }
}

/* From its first step to its last, a layer's destination is neither what it was
 * nor what it will be, and its word comes after the last; other layers are not
 * touched early. */
Test(cpu_device, garbage_while_a_copy_runs)
{
    unsigned read_early = 0;
    unsigned read_late = 0;
    EACH_SEED(seed)
    {
        struct rig rig;
        rig_open(&rig, rig_params(seed), WEIR_HOST_SEGMENTED);
        rig_fill(&rig, true);
        rig_fill(&rig, false);
        weir_stream *stream = rig_stream(&rig);
        struct weir_run run = { 3, 1, 1 };
        struct weir_transfer load = rig_transfer(&rig, WEIR_LOAD, &run, 1);
        load.words = rig.words;
        load.generation = 1;
        rig_copy(&rig, stream, &load);
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
            cr_assert(rig_layer_is(&rig, false, layer, 3, 3));
            cr_assert(eq(sz, weir_cpu_device_run(rig.device, 1), 1));
            cr_assert(eq(u32, rig.words[layer], 0));
            cr_assert(not(rig_piece(&rig, false, false, 0, layer, 3, 3)));
            cr_assert(not(rig_piece(&rig, false, false, 0, layer, 3, 1)));
            for (uint32_t later = layer + 1; later < RIG_LAYERS; later++)
                cr_assert(rig_layer_is(&rig, false, later, 3, 3));
            rig_piece(&rig, true, true, 0, layer, 1, 6); /* the source changes under the copy */
            cr_assert(eq(sz, weir_cpu_device_run(rig.device, 1), 1));
            cr_assert(eq(u32, rig.words[layer], 1));
            bool early = rig_piece(&rig, false, false, 0, layer, 3, 1);
            bool late = rig_piece(&rig, false, false, 0, layer, 3, 6);
            cr_assert(early != late);
            read_early += early;
            read_late += late;
        }
        weir_cpu_stream_destroy(rig.device, &stream);
        rig_close(&rig);
    }
    cr_assert(lt(u32, 0, read_early));
    cr_assert(lt(u32, 0, read_late));
}

/* A copy starts when the link is free; its latency does not occupy the link. */
Test(cpu_device, link_arithmetic)
{
    struct weir_cpu_link none = { 0 };
    cr_assert(eq(u64, weir_cpu_link_take(&none, 1 << 30), 0));
    for (uint64_t latency = 0; latency <= 3000; latency += 1500) {
        uint64_t before = weir_cpu_now();
        struct weir_cpu_link link = { .ns_per_byte = 2.5, .latency_ns = latency };
        cr_assert(eq(u64, weir_cpu_link_take(&link, 0), 0));
        uint64_t busy = before + UINT64_C(1000000000000);
        cr_assert(ge(u64, weir_cpu_link_take(&link, 4000), before + 10000 + latency));
        link.free_ns = busy;
        cr_assert(eq(u64, weir_cpu_link_take(&link, 1000), busy + 2500 + latency));
        cr_assert(eq(u64, weir_cpu_link_take(&link, 2), busy + 2505 + latency));
        link.ns_per_byte = 1e300;
        cr_assert(lt(u64, busy, weir_cpu_link_take(&link, UINT64_MAX)));
    }
}

/* A copy ends no earlier than its link lets it; a direction's link is shared. */
Test(cpu_device, link_model)
{
    weir_cpu_device_params params = rig_params(0);
    params.load_gbps = 0.1;
    params.load_latency_us = 50;
    struct rig rig;
    rig_open(&rig, params, WEIR_HOST_SEGMENTED);
    weir_stream *streams[2] = { rig_stream(&rig), rig_stream(&rig) };
    struct weir_run run = { 1, 1, 3 };
    struct weir_transfer load = rig_transfer(&rig, WEIR_LOAD, &run, 1);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (unsigned s = 0; s < 2; s++)
        rig_copy(&rig, streams[s], &load);
    for (unsigned s = 0; s < 2; s++)
        rig_synchronize(&rig, streams[s]);
    clock_gettime(CLOCK_MONOTONIC, &after);
    double ns =
        (double)(after.tv_sec - before.tv_sec) * 1e9 + (double)(after.tv_nsec - before.tv_nsec);
    double bytes = 2 * 3 * (3 * 6000 + 2 * 52); /* streams, pages, pieces */
    cr_assert(ge(dbl, ns, bytes / 0.1 + 50e3), "%g ns", ns);
    for (unsigned s = 0; s < 2; s++)
        weir_cpu_stream_destroy(rig.device, &streams[s]);
    rig_close(&rig);
}

/* ---- Events and words ---------------------------------------------------- */

Test(cpu_device, events)
{
    EACH_MODE(seed)
    {
        struct rig rig;
        rig_open(&rig, rig_params(seed), WEIR_HOST_SEGMENTED);
        weir_stream *a = rig_stream(&rig);
        weir_stream *b = rig_stream(&rig);
        weir_stream *c = rig_stream(&rig);
        weir_event *event = rig_event(&rig);
        atomic_uint ran = 0;

        /* Never recorded: no wait, also if it is recorded afterwards. */
        cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, b, event), 0));
        weir_cpu_stream_park(rig.device, a);
        cr_assert(eq(int, rig.ops->event_record(rig.device, event, a), 0));
        rig_launch(&rig, b, rig_raise, &ran);
        rig_synchronize(&rig, b);
        cr_assert(eq(u32, atomic_load(&ran), 1));

        /* Recorded: waits, for the newest record at the time of the call. */
        cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, b, event), 0));
        rig_launch(&rig, b, rig_raise, &ran);
        cr_assert(eq(int, rig.ops->event_record(rig.device, event, c), 0));
        rig_synchronize(&rig, c);
        rig_run(&rig);
        cr_assert(eq(u32, atomic_load(&ran), 1));

        /* A later wait is bound to the record in c, which is over. */
        cr_assert(eq(int, rig.ops->stream_wait_event(rig.device, c, event), 0));
        rig_launch(&rig, c, rig_raise, &ran);
        rig_synchronize(&rig, c);
        cr_assert(eq(u32, atomic_load(&ran), 2));

        /* A wait outlives its event. */
        rig.ops->event_destroy(rig.device, event);
        rig_run(&rig);
        cr_assert(eq(u32, atomic_load(&ran), 2));
        weir_cpu_stream_release(rig.device, a);
        rig_synchronize(&rig, b);
        cr_assert(eq(u32, atomic_load(&ran), 3));
        weir_cpu_stream_destroy(rig.device, &a);
        weir_cpu_stream_destroy(rig.device, &b);
        weir_cpu_stream_destroy(rig.device, &c);
        rig_close(&rig);
    }
}

Test(cpu_device, words_wait_cyclically)
{
    static const struct {
        uint32_t now, wanted;
        bool passes;
    } cases[] = {
        { 0, 0, true },           { 0, 1, false },          { 1, 1, true },
        { 2, 1, true },           { 0xFFFFFFFF, 0, false }, { 0, 0xFFFFFFFF, true },
        { 5, 0x80000005, false }, { 0x7FFFFFFF, 0, true },  { 0x80000000, 0, false },
        { 3, 0xFFFFFFF0, true },
    };
    EACH_MODE(seed)
    {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct rig rig;
            rig_open(&rig, rig_params(seed), WEIR_HOST_SEGMENTED);
            weir_stream *stream = rig_stream(&rig);
            atomic_uint ran = 0;
            rig.ops->word_store(rig.device, &rig.words[2], cases[i].now);
            cr_assert(eq(
                int, rig.ops->stream_wait_word(rig.device, stream, &rig.words[2], cases[i].wanted),
                0));
            rig_launch(&rig, stream, rig_raise, &ran);
            rig_run(&rig);
            if (cases[i].passes)
                rig_synchronize(&rig, stream);
            cr_assert(eq(u32, atomic_load(&ran), cases[i].passes), "case %zu", i);
            rig.ops->word_store(rig.device, &rig.words[2], cases[i].wanted);
            rig_synchronize(&rig, stream);
            cr_assert(eq(u32, atomic_load(&ran), 1));
            weir_cpu_stream_destroy(rig.device, &stream);
            rig_close(&rig);
        }
    }
}

Test(cpu_device, words_written_by_streams)
{
    EACH_MODE(seed)
    {
        struct rig rig;
        rig_open(&rig, rig_params(seed), WEIR_HOST_SEGMENTED);
        weir_stream *a = rig_stream(&rig);
        weir_stream *b = rig_stream(&rig);
        atomic_uint ran_a = 0;
        atomic_uint ran_b = 0;
        weir_cpu_stream_park(rig.device, a);
        rig_launch(&rig, a, rig_raise, &ran_a);
        cr_assert(eq(int, rig.ops->stream_write_word(rig.device, a, &rig.words[5], 8), 0));
        cr_assert(eq(int, rig.ops->stream_wait_word(rig.device, b, &rig.words[5], 7), 0));
        rig_launch(&rig, b, rig_raise, &ran_b);
        rig_run(&rig);
        cr_assert(eq(u32, atomic_load(&ran_b), 0));
        cr_assert(eq(u32, rig.ops->word_load(rig.device, &rig.words[5]), 0));
        weir_cpu_stream_release(rig.device, a);
        rig_synchronize(&rig, b);
        cr_assert(eq(u32, atomic_load(&ran_a), 1));
        cr_assert(eq(u32, atomic_load(&ran_b), 1));
        cr_assert(eq(u32, rig.ops->word_load(rig.device, &rig.words[5]), 8));
        weir_cpu_stream_destroy(rig.device, &a);
        weir_cpu_stream_destroy(rig.device, &b);
        rig_close(&rig);
    }
}
