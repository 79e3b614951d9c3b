/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu_rig.h"
#include "random.h"

#include <errno.h>

/* Two streams, and a flag by which a test knows that something has run without
 * being ordered after it: the kindest timing there is. */
struct pair {
    struct rig rig;
    weir_stream *a;
    weir_stream *b;
    weir_event *event;
    atomic_uint ran;
};

static void pair_open(struct pair *pair, uint64_t seed)
{
    rig_open(&pair->rig, rig_params(seed), WEIR_HOST_SEGMENTED);
    pair->a = rig_stream(&pair->rig);
    pair->b = rig_stream(&pair->rig);
    pair->event = rig_event(&pair->rig);
    atomic_init(&pair->ran, 0);
}

static uint64_t pair_close(struct pair *pair)
{
    rig_synchronize(&pair->rig, pair->a);
    rig_synchronize(&pair->rig, pair->b);
    uint64_t races = weir_cpu_device_races(pair->rig.device);
    pair->rig.ops->event_destroy(pair->rig.device, pair->event);
    weir_cpu_stream_destroy(pair->rig.device, &pair->a);
    weir_cpu_stream_destroy(pair->rig.device, &pair->b);
    rig_close(&pair->rig);
    return races;
}

static void touch(struct pair *pair, weir_stream *stream, weir_cpu_access access)
{
    cr_assert(
        eq(int, weir_cpu_launch(pair->rig.device, stream, rig_raise, &pair->ran, &access, 1), 0));
}

static weir_cpu_access page_access(const struct pair *pair, int32_t page, bool write)
{
    return (weir_cpu_access){ pair->rig.device_pool, page, 1, 2, write };
}

static void touch_page(struct pair *pair, weir_stream *stream, int32_t page, bool write)
{
    touch(pair, stream, page_access(pair, page, write));
}

/* ---- Orderings ----------------------------------------------------------- */

enum edge {
    NO_EDGE,
    SAME_STREAM,
    EVENT,
    WORD,
    HOST_WORD,        /* the host sees a stream's word, then enqueues */
    HOST_STORE,       /* … then stores a word that b waits for */
    HOST_SYNCHRONIZE, /* the host synchronizes, then enqueues */
    OLD_RECORD,       /* b waits for a record before the access */
    OLD_WORD,         /* b waits for a word before the access */
    EDGES
};

static bool orders(enum edge edge)
{
    return edge != NO_EDGE && edge != OLD_RECORD && edge != OLD_WORD;
}

static void until_word(struct rig *rig, const uint32_t *word, uint32_t value)
{
    while (rig->ops->word_load(rig->device, word) != value)
        if (weir_cpu_device_run(rig->device, 1) == 0)
            sched_yield();
}

static uint64_t races_with(uint64_t seed, enum edge edge, bool first_writes, bool second_writes)
{
    struct pair pair;
    pair_open(&pair, seed);
    struct rig *rig = &pair.rig;
    weir_device *d = rig->device;
    weir_stream *second = edge == SAME_STREAM ? pair.a : pair.b;

    if (edge == HOST_WORD) { /* the host knows the word already, with another value */
        cr_assert(eq(int, rig->ops->stream_write_word(d, pair.a, rig->words, 7), 0));
        until_word(rig, rig->words, 7);
    }
    if (edge == OLD_RECORD)
        cr_assert(eq(int, rig->ops->event_record(d, pair.event, pair.a), 0));
    if (edge == OLD_WORD)
        cr_assert(eq(int, rig->ops->stream_write_word(d, pair.a, rig->words, 1), 0));
    touch_page(&pair, pair.a, 3, first_writes);
    if (edge == EVENT)
        cr_assert(eq(int, rig->ops->event_record(d, pair.event, pair.a), 0));
    if (edge == WORD || edge == HOST_WORD || edge == HOST_STORE)
        cr_assert(eq(int, rig->ops->stream_write_word(d, pair.a, rig->words, 1), 0));
    if (edge == OLD_RECORD || edge == EVENT)
        cr_assert(eq(int, rig->ops->stream_wait_event(d, second, pair.event), 0));
    if (edge == OLD_WORD || edge == WORD)
        cr_assert(eq(int, rig->ops->stream_wait_word(d, second, rig->words, 1), 0));
    if (edge == HOST_STORE) {
        cr_assert(eq(int, rig->ops->stream_wait_word(d, second, rig->words + 1, 1), 0));
        touch_page(&pair, second, 3, second_writes);
    }
    rig_until(rig, &pair.ran, 1);
    if (edge == HOST_WORD || edge == HOST_STORE)
        until_word(rig, rig->words, 1);
    if (edge == HOST_STORE)
        rig->ops->word_store(d, rig->words + 1, 1);
    if (edge == HOST_SYNCHRONIZE)
        rig_synchronize(rig, pair.a);
    if (edge != HOST_STORE)
        touch_page(&pair, second, 3, second_writes);
    return pair_close(&pair);
}

Test(cpu_races, every_edge)
{
    EACH_MODE(seed)
    {
        for (enum edge edge = NO_EDGE; edge < EDGES; edge++) {
            for (unsigned accesses = 0; accesses < 4; accesses++) {
                bool first = accesses & 1;
                bool second = accesses & 2;
                uint64_t expected = !orders(edge) && (first || second);
                cr_assert(eq(u64, races_with(seed, edge, first, second), expected),
                          "seed %d edge %d accesses %u", (int)seed, (int)edge, accesses);
            }
        }
    }
}

/* Other pieces of the same page, and page 0, conflict with nothing. */
Test(cpu_races, pieces_are_told_apart)
{
    EACH_MODE(seed)
    {
        struct pair pair;
        pair_open(&pair, seed);
        uint32_t device = pair.rig.device_pool;
        touch(&pair, pair.a, (weir_cpu_access){ device, 2, 0, 0, true });
        touch(&pair, pair.b, (weir_cpu_access){ device, 3, 0, 0, true });
        touch(&pair, pair.b, (weir_cpu_access){ device, 2, 1, 0, true });
        touch(&pair, pair.b, (weir_cpu_access){ device, 2, 0, 1, true });
        touch(&pair, pair.b, (weir_cpu_access){ pair.rig.host_pool, 2, 0, 0, true });
        touch(&pair, pair.a, (weir_cpu_access){ device, 0, 0, 0, true });
        touch(&pair, pair.b, (weir_cpu_access){ device, 0, 0, 0, true });
        touch(&pair, pair.b, (weir_cpu_access){ 0, 2, 0, 0, true });
        cr_assert(eq(u64, pair_close(&pair), 0));
    }
}

/* A write must come behind all readers, not only behind the last. */
Test(cpu_races, every_reader_counts)
{
    EACH_MODE(seed)
    {
        for (unsigned n = 1; n <= 12; n++) {
            for (unsigned left_out = 0; left_out <= n; left_out++) {
                struct pair pair;
                pair_open(&pair, seed);
                struct rig *rig = &pair.rig;
                weir_stream *readers[12];
                for (unsigned r = 0; r < n; r++) {
                    readers[r] = rig_stream(rig);
                    touch_page(&pair, readers[r], 1, false);
                    touch_page(&pair, readers[r], 1, false);
                    if (r == left_out)
                        continue;
                    rig->ops->event_record(rig->device, pair.event, readers[r]);
                    rig->ops->stream_wait_event(rig->device, pair.a, pair.event);
                }
                rig_until(rig, &pair.ran, 2 * n);
                touch_page(&pair, pair.a, 1, true);
                rig_synchronize(rig, pair.a);
                cr_assert(eq(u64, weir_cpu_device_races(rig->device), left_out < n));
                for (unsigned r = 0; r < n; r++)
                    weir_cpu_stream_destroy(rig->device, &readers[r]);
                pair_close(&pair);
            }
        }
    }
}

/* ---- Copies -------------------------------------------------------------- */

/* A forward pass that waits for the words of `waits_for` layers reads all
 * layers: the others are races. */
Test(cpu_races, load_and_forward_pass)
{
    EACH_MODE(seed)
    {
        for (uint32_t waits_for = 0; waits_for <= RIG_LAYERS; waits_for++) {
            struct pair pair;
            pair_open(&pair, seed);
            struct rig *rig = &pair.rig;
            struct weir_run run = { 2, 5, 2 };
            struct weir_transfer load = rig_transfer(rig, WEIR_LOAD, &run, 1);
            load.words = rig->words;
            load.generation = 1;
            rig_copy(rig, pair.a, &load);
            while (__atomic_load_n(&rig->words[RIG_LAYERS - 1], __ATOMIC_ACQUIRE) != 1)
                if (weir_cpu_device_run(rig->device, 1) == 0)
                    sched_yield();
            uint64_t expected = 0;
            for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
                if (layer < waits_for)
                    rig->ops->stream_wait_word(rig->device, pair.b, &rig->words[layer], 1);
                else
                    expected += 2;
                weir_cpu_access reads[2] = { { rig->device_pool, 2, 0, (uint16_t)layer, false },
                                             { rig->device_pool, 3, 0, (uint16_t)layer, false } };
                weir_cpu_launch(rig->device, pair.b, rig_raise, &pair.ran, reads, 2);
            }
            cr_assert(eq(u64, pair_close(&pair), expected));
        }
    }
}

/* The host tier is checked as well: loads that read together are fine, a
 * write-back into what a load reads is not. */
Test(cpu_races, host_pages)
{
    EACH_MODE(seed)
    {
        for (int other_page = 0; other_page < 2; other_page++) {
            struct pair pair;
            pair_open(&pair, seed);
            struct rig *rig = &pair.rig;
            struct weir_run first = { 1, 6, 1 };
            struct weir_run second = { 2, 6, 1 };
            struct weir_run back = { 3, other_page ? 5 : 6, 1 };
            struct weir_transfer t = rig_transfer(rig, WEIR_LOAD, &first, 1);
            rig_copy(rig, pair.a, &t);
            t.runs = &second;
            rig_copy(rig, pair.b, &t);
            rig_synchronize(rig, pair.a);
            cr_assert(eq(u64, weir_cpu_device_races(rig->device), 0));
            t = rig_transfer(rig, WEIR_WRITE_BACK, &back, 1);
            rig_copy(rig, pair.a, &t);
            uint64_t pieces = 2 * RIG_LAYERS - 1;
            cr_assert(eq(u64, pair_close(&pair), other_page ? 0 : pieces));
        }
    }
}

/* A copy without pools is not checked; one whose host memory is not registered
 * is a fault that a GPU would not forgive. */
Test(cpu_races, unpinned_memory)
{
    struct pair pair;
    pair_open(&pair, 0);
    struct rig *rig = &pair.rig;
    struct weir_run run = { 1, 1, 1 };
    struct weir_transfer t = rig_transfer(rig, WEIR_LOAD, &run, 1);
    t.device_pool = t.host_pool = 0;
    t.layer_end = 1;
    rig_copy(rig, pair.a, &t);
    rig_copy(rig, pair.b, &t);
    rig_synchronize(rig, pair.a);
    rig_synchronize(rig, pair.b);
    cr_assert(eq(u64, weir_cpu_device_races(rig->device), 0));
    rig->ops->host_unregister(rig->device, rig->host);
    rig_copy(rig, pair.a, &t);
    rig_synchronize(rig, pair.a);
    cr_assert(eq(u64, weir_cpu_device_races(rig->device), 2));
    cr_assert(rig_logged(rig, "registration"));
    cr_assert(eq(int, rig->ops->host_register(rig->device, rig->host, 4096), 0));
    pair_close(&pair);
}

/* ---- What is said -------------------------------------------------------- */

Test(cpu_races, outside_the_pool)
{
    struct pair pair;
    pair_open(&pair, 0);
    uint32_t pool = pair.rig.device_pool;
    const weir_cpu_access accesses[] = {
        { pool, -1, 0, 0, false },         { pool, RIG_PAGES + 1, 0, 0, true },
        { pool, INT32_MAX, 0, 0, true },   { pool, 1, RIG_TENSORS, 0, true },
        { pool, 1, 0, RIG_LAYERS, false }, { 77, 1, 0, 0, false },
        { UINT32_MAX, 1, 0, 0, false },
    };
    size_t n = sizeof accesses / sizeof *accesses;
    for (size_t i = 0; i < n; i++)
        touch(&pair, pair.a, accesses[i]);
    rig_synchronize(&pair.rig, pair.a);
    cr_assert(eq(u32, pair.rig.n_lines, n));
    cr_assert(rig_logged(&pair.rig, "outside the pool: pool 77 page 1 tensor 0 layer 0"));
    cr_assert(eq(u64, pair_close(&pair), n));
}

Test(cpu_races, lines_in_the_log)
{
    struct pair pair;
    pair_open(&pair, 0);
    for (int32_t page = 1; page <= (int32_t)RIG_PAGES; page++)
        for (uint16_t layer = 0; layer < RIG_LAYERS; layer++)
            touch(&pair, pair.a, (weir_cpu_access){ pair.rig.device_pool, page, 1, layer, true });
    rig_until(&pair.rig, &pair.ran, RIG_PAGES * RIG_LAYERS);
    for (int32_t page = 1; page <= (int32_t)RIG_PAGES; page++)
        for (uint16_t layer = 0; layer < RIG_LAYERS; layer++)
            touch(&pair, pair.b, (weir_cpu_access){ pair.rig.device_pool, page, 1, layer, false });
    rig_synchronize(&pair.rig, pair.b);
    cr_assert(eq(u32, pair.rig.n_lines, 20));
    cr_assert(rig_logged(&pair.rig,
                         "race: read by stream 1 is not ordered after write by stream 0: "
                         "pool 1 page 4 tensor 1 layer 2"),
              "%s", pair.rig.lines[0]);
    cr_assert(eq(u64, pair_close(&pair), RIG_PAGES * RIG_LAYERS));
}

Test(cpu_races, switched_off)
{
    weir_cpu_device_params params = rig_params(0);
    params.check_races = false;
    struct pair pair;
    rig_open(&pair.rig, params, WEIR_HOST_SEGMENTED);
    pair.a = rig_stream(&pair.rig);
    pair.b = rig_stream(&pair.rig);
    pair.event = rig_event(&pair.rig);
    cr_assert(eq(u32, pair.rig.device_pool, 0));
    touch_page(&pair, pair.a, 99, true);
    touch_page(&pair, pair.b, 99, true);
    cr_assert(eq(int, pair.rig.ops->event_record(pair.rig.device, pair.event, pair.a), 0));
    cr_assert(eq(int, pair.rig.ops->stream_wait_event(pair.rig.device, pair.b, pair.event), 0));
    cr_assert(eq(u64, pair_close(&pair), 0));
}

/* ---- Clocks -------------------------------------------------------------- */

/* Streams come and go; their places in the clocks are used again and grow in
 * number while marks are in flight. */
Test(cpu_races, many_streams)
{
    EACH_MODE(seed)
    {
        struct pair pair;
        pair_open(&pair, seed);
        struct rig *rig = &pair.rig;
        for (unsigned round = 0; round < 3; round++) {
            weir_stream *streams[40];
            for (unsigned i = 0; i < 40; i++) {
                weir_cpu_stream_park(rig->device, pair.a);
                streams[i] = rig_stream(rig);
                /* A chain through all streams, each link behind the one before. */
                rig->ops->stream_wait_event(rig->device, streams[i], pair.event);
                touch_page(&pair, streams[i], 1, true);
                rig->ops->event_record(rig->device, pair.event, streams[i]);
                weir_cpu_stream_release(rig->device, pair.a);
            }
            rig->ops->stream_wait_event(rig->device, pair.a, pair.event);
            touch_page(&pair, pair.a, 1, true);
            rig->ops->event_record(rig->device, pair.event, pair.a);
            for (unsigned i = 0; i < 40; i++)
                weir_cpu_stream_destroy(rig->device, &streams[(i * 7) % 40]);
        }
        cr_assert(eq(u64, weir_cpu_device_races(rig->device), 0));
        touch_page(&pair, pair.b, 1, true);
        cr_assert(eq(u64, pair_close(&pair), 1));
    }
}

/* ---- Random programs against the definition ------------------------------ */

#define PROGRAM_OPS 60u
#define PROGRAM_STREAMS 4u
#define PROGRAM_EVENTS 3u

struct program_op {
    uint32_t stream;
    int32_t page; /* 0: none */
    bool write;
    bool before[PROGRAM_OPS]; /* the ops that are ordered before this one */
};

static void order_after(struct program_op *ops, uint32_t later, uint32_t earlier)
{
    ops[later].before[earlier] = true;
    for (uint32_t i = 0; i < earlier; i++)
        ops[later].before[i] = ops[later].before[i] || ops[earlier].before[i];
}

static bool conflict_exists(const struct program_op *ops)
{
    for (uint32_t j = 0; j < PROGRAM_OPS; j++)
        for (uint32_t i = 0; i < j; i++)
            if (ops[i].page && ops[i].page == ops[j].page && (ops[i].write || ops[j].write) &&
                !ops[j].before[i])
                return true;
    return false;
}

/* Enqueues a random program of accesses, records and waits, and computes from
 * its definition whether there is a race in it. */
static bool random_program(struct pair *pair, weir_stream **streams, weir_event **events,
                           struct random *random)
{
    static struct program_op ops[PROGRAM_OPS];
    memset(ops, 0, sizeof ops);
    struct rig *rig = &pair->rig;
    int last[PROGRAM_STREAMS] = { -1, -1, -1, -1 };
    int recorded[PROGRAM_EVENTS] = { -1, -1, -1 };
    for (uint32_t i = 0; i < PROGRAM_OPS; i++) {
        uint32_t s = random_below(random, PROGRAM_STREAMS);
        uint32_t e = random_below(random, PROGRAM_EVENTS);
        ops[i].stream = s;
        if (last[s] >= 0)
            order_after(ops, i, (uint32_t)last[s]);
        last[s] = (int)i;
        uint32_t kind = random_below(random, 100);
        if (kind < 47) {
            cr_assert(eq(int, rig->ops->stream_wait_event(rig->device, streams[s], events[e]), 0));
            if (recorded[e] >= 0)
                order_after(ops, i, (uint32_t)recorded[e]);
        } else if (kind < 90) {
            cr_assert(eq(int, rig->ops->event_record(rig->device, events[e], streams[s]), 0));
            recorded[e] = (int)i;
        } else {
            ops[i].page = 1 + (int32_t)random_below(random, 3);
            ops[i].write = random_percent(random, 30);
            touch_page(pair, streams[s], ops[i].page, ops[i].write);
        }
    }
    return conflict_exists(ops);
}

Test(cpu_races, random_programs)
{
    unsigned racy = 0;
    for (uint64_t n = 0; n < 600; n++) {
        struct random random = { n };
        struct pair pair;
        pair_open(&pair, n % 4 ? n : 0);
        struct rig *rig = &pair.rig;
        weir_stream *streams[PROGRAM_STREAMS] = { pair.a, pair.b, rig_stream(rig),
                                                  rig_stream(rig) };
        weir_event *events[PROGRAM_EVENTS] = { pair.event, rig_event(rig), rig_event(rig) };
        bool expected = random_program(&pair, streams, events, &random);
        racy += expected;
        for (unsigned e = 1; e < PROGRAM_EVENTS; e++)
            rig->ops->event_destroy(rig->device, events[e]);
        for (unsigned s = 2; s < PROGRAM_STREAMS; s++)
            weir_cpu_stream_destroy(rig->device, &streams[s]);
        uint64_t races = pair_close(&pair);
        cr_assert(eq(int, races > 0, expected), "program %d", (int)n);
    }
    cr_assert(lt(u32, 100, racy));
    cr_assert(lt(u32, racy, 500));
}

/* ---- Clocks that grow ------------------------------------------------------ */

struct crowd {
    weir_device *device;
    weir_stream *streams[12];
};

static void come_in_crowds(void *arg)
{
    struct crowd *crowd = arg;
    for (size_t i = 0; i < sizeof crowd->streams / sizeof *crowd->streams; i++)
        cr_assert(zero(int, weir_cpu_stream_create(crowd->device, &crowd->streams[i])));
}

static void do_nothing(void *arg)
{
    (void)arg;
}

/* Who waits for room in a full queue holds a mark that is in no queue yet: it grows as
 * well when many more streams come meanwhile. */
Test(cpu_races, streams_that_come_while_a_record_waits_for_room)
{
    EACH_SEED(seed)
    {
        struct rig rig;
        weir_cpu_device_params params = rig_params(seed);
        params.queue_depth = 1;
        rig_open(&rig, params, WEIR_HOST_SEGMENTED);
        weir_stream *stream = rig_stream(&rig);
        weir_event *event = rig_event(&rig);
        struct crowd crowd = { rig.device, { NULL } };
        cr_assert(zero(int, weir_cpu_launch(rig.device, stream, come_in_crowds, &crowd, NULL, 0)));
        cr_assert(zero(int, weir_cpu_launch(rig.device, stream, do_nothing, NULL, NULL, 0)));
        cr_assert(eq(ptr, crowd.streams[0], NULL), "they came too early");
        cr_assert(zero(int, rig.ops->event_record(rig.device, event, stream)));
        cr_assert(ne(ptr, crowd.streams[0], NULL));
        rig_synchronize(&rig, stream);
        rig.ops->event_destroy(rig.device, event);
        for (size_t i = 0; i < sizeof crowd.streams / sizeof *crowd.streams; i++)
            weir_cpu_stream_destroy(rig.device, &crowd.streams[i]);
        weir_cpu_stream_destroy(rig.device, &stream);
        rig_close(&rig);
    }
}
