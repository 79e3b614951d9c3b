/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"
#include "expert_model.h"
#include "gather/expert_host.h"
#include "log_capture.h"

#include <weir/cpu_device.h>
#include <weir/expert_cache.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

/* ---- The update, against the model ----------------------------------------- */

struct world {
    struct weir_expert_args args;
    struct expert_model model;
    uint32_t max_ids;
    int32_t *ids;
    int32_t *slots;
    int32_t *expected;
};

static void world_open(struct world *w, uint32_t n_slots, uint32_t n_layers, uint32_t n_experts,
                       uint32_t max_ids, uint32_t order_length)
{
    expert_state_open(&w->args, n_slots, n_layers, n_experts, max_ids, order_length);
    expert_model_open(&w->model, n_slots, n_experts, max_ids);
    weir_expert_host_reset(&w->args);
    w->max_ids = max_ids;
    w->ids = malloc(max_ids * sizeof *w->ids);
    w->slots = malloc(max_ids * sizeof *w->slots);
    w->expected = malloc(max_ids * sizeof *w->expected);
}

static void world_close(struct world *w)
{
    expert_state_close(&w->args);
    expert_model_close(&w->model);
    free(w->ids);
    free(w->slots);
    free(w->expected);
}

/* w->ids hold n ids of `layer`. */
static void world_step(struct world *w, uint32_t layer, uint32_t n, bool in_place)
{
    struct weir_expert_args call = w->args;
    call.ids = w->ids;
    call.slots = in_place ? w->ids : w->slots;
    call.n = n;
    call.id_base = layer * call.n_experts;
    expert_model_ensure(&w->model, call.id_base, w->ids, n, w->expected);
    weir_expert_host_ensure(&call);
    const char *wrong = expert_state_check(&w->args);
    cr_assert(zero(ptr, (void *)(uintptr_t)wrong), "%s", wrong);
    wrong = expert_state_compare(&w->args, &w->model);
    cr_assert(zero(ptr, (void *)(uintptr_t)wrong), "not as the model: %s", wrong);
    cr_assert(zero(int, memcmp(call.slots, w->expected, n * sizeof *w->ids)), "the slots' numbers");
}

struct size {
    uint32_t n_slots, n_layers, n_experts, max_ids, order_length, steps;
};

static void world_random(const struct size *size, uint64_t seed)
{
    struct world w;
    struct random random = { seed };
    world_open(&w, size->n_slots, size->n_layers, size->n_experts, size->max_ids,
               size->order_length);
    for (uint32_t i = 0; i < size->steps; i++) {
        uint32_t n = random_below(&random, size->max_ids + 1);
        expert_ids_random(&random, size->n_experts, w.ids, n);
        world_step(&w, random_below(&random, size->n_layers), n, random_percent(&random, 50));
    }
    world_close(&w);
}

Test(expert_cache, does_what_the_model_does)
{
    static const struct size sizes[] = {
        { 1, 1, 1, 1, 0, 200 },        { 1, 2, 5, 4, 0, 500 },     { 3, 1, 8, 8, 0, 2000 },
        { 8, 3, 8, 8, 0, 2000 },       { 33, 4, 32, 16, 0, 2000 }, { 64, 2, 33, 200, 100, 1000 },
        { 100, 10, 128, 64, 0, 2000 }, { 200, 4, 64, 64, 0, 500 }, { 2500, 8, 512, 512, 4096, 200 },
        { 20, 1, 3000, 500, 0, 300 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        world_random(&sizes[i], 100 + i);
}

Test(expert_cache, many_slots_and_many_ids)
{
    world_random(&(struct size){ 40000, 2, 65536, 4096, 0, 4 }, 1);
    world_random(&(struct size){ WEIR_EXPERT_MAX_SLOTS, 16, 65536, 8, 0, 3 }, 2);
}

Test(expert_cache, positions_wrap)
{
    struct random random = { 5 };
    for (uint32_t before = 0; before < 40; before += 3) {
        struct world w;
        world_open(&w, 12, 2, 16, 8, 0);
        expert_state_begin_at(&w.args, UINT32_MAX - before);
        for (uint32_t i = 0; i < 60; i++) {
            expert_ids_random(&random, 16, w.ids, 8);
            world_step(&w, i % 2, 8, false);
        }
        cr_assert(lt(u32, w.args.ends[0], 1000), "the head has not wrapped");
        world_close(&w);
    }
}

static void step_with(struct world *w, const int32_t *ids, uint32_t n)
{
    memcpy(w->ids, ids, n * sizeof *ids);
    world_step(w, 0, n, false);
}
#define STEP(w, ...)                                 \
    step_with((w), (const int32_t[]){ __VA_ARGS__ }, \
              (uint32_t)(sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)))

static void slots_are(const struct world *w, const int32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        cr_assert(eq(i32, w->slots[i], slots[i]), "id %u", i);
}
#define SLOTS(w, ...)                                \
    slots_are((w), (const int32_t[]){ __VA_ARGS__ }, \
              (uint32_t)(sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)))

/* The rules in one example, so that a mistake in the model would show. */
Test(expert_cache, by_hand)
{
    struct world w;
    world_open(&w, 4, 1, 10, 8, 0);
    STEP(&w, 7, 3, 7); /* ascending: 3 takes slot 0, 7 takes slot 1 */
    SLOTS(&w, 1, 0, 1);
    STEP(&w, 5);
    SLOTS(&w, 2);
    STEP(&w, 3, 9); /* a hit, then the last empty slot */
    SLOTS(&w, 0, 3);
    STEP(&w, 8); /* slot 1 has not been used for longest */
    SLOTS(&w, 1);
    STEP(&w, 2, 1); /* then 2; of 0 and 3, used together, the lower */
    SLOTS(&w, 0, 2);
    STEP(&w, 8, 6, 4, 0, 7, 5, -1, 10); /* 8 stays; 0, 4, 5 get what is left; 6, 7 nothing */
    SLOTS(&w, 1, -1, 0, 3, -1, 2, -1, -1);
    cr_assert(eq(u64, w.args.totals[WEIR_EXPERT_CALLS], 6));
    cr_assert(eq(u64, w.args.totals[WEIR_EXPERT_HITS], 2));
    cr_assert(eq(u64, w.args.totals[WEIR_EXPERT_MISSES], 10));
    cr_assert(eq(u64, w.args.totals[WEIR_EXPERT_SKIPPED], 2));
    cr_assert(eq(u64, w.args.totals[WEIR_EXPERT_INVALID], 1));
    world_close(&w);
}

/* ---- The object, on the CPU device ----------------------------------------- */

struct rig {
    struct log_capture capture;
    weir_device *device;
    weir_stream *stream;
    weir_expert_cache *cache;
};

static weir_expert_cache_params usual(void)
{
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_layers = 3;
    params.n_experts = 16;
    params.n_slots = 20;
    params.max_ids = 24;
    return params;
}

static void rig_open(struct rig *rig, uint64_t seed)
{
    *rig = (struct rig){ 0 };
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.seed = seed;
    params.log = log_capture_log(&rig->capture);
    cr_assert(eq(int, weir_cpu_device_open(&rig->device, &params), 0));
    cr_assert(eq(int, weir_cpu_stream_create(rig->device, &rig->stream), 0));
}

static void rig_open_cache(struct rig *rig, uint64_t seed)
{
    rig_open(rig, seed);
    weir_expert_cache_params params = usual();
    cr_assert(eq(int, weir_expert_cache_create(&rig->cache, rig->device, &params), 0));
    rig->capture.lines = 0;
}

static void rig_close(struct rig *rig)
{
    weir_expert_cache_destroy(&rig->cache);
    cr_assert(zero(ptr, rig->cache));
    weir_cpu_stream_destroy(rig->device, &rig->stream);
    cr_assert(eq(int, weir_device_close(&rig->device), 0));
#ifdef __SANITIZE_ADDRESS__
    cr_assert(zero(int, __lsan_do_recoverable_leak_check()));
#endif
}

static weir_expert_cache_stats rig_stats(const struct rig *rig)
{
    weir_expert_cache_stats stats = { .struct_size = sizeof stats };
    cr_assert(zero(int, weir_expert_cache_get_stats(rig->cache, &stats)));
    return stats;
}

/* Many calls are enqueued before the first has to have run, and an order of
 * execution other than the stream's would show. */
static void run_calls(uint64_t seed)
{
    enum {
        CALLS = 60,
        IDS = 24
    };
    struct rig rig;
    rig_open_cache(&rig, seed);
    struct expert_model model;
    expert_model_open(&model, 20, 16, IDS);
    struct random random = { seed };
    static int32_t ids[CALLS][IDS], slots[CALLS][IDS], expected[CALLS][IDS];
    for (uint32_t i = 0; i < CALLS; i++) {
        uint32_t n = i % 7 == 0 ? 0 : random_below(&random, IDS + 1);
        uint32_t layer = random_below(&random, 3);
        expert_ids_random(&random, 16, ids[i], IDS);
        memcpy(slots[i], ids[i], sizeof ids[i]);
        expert_model_ensure(&model, 16 * layer, ids[i], n, expected[i]);
        memcpy(expected[i] + n, ids[i] + n, (IDS - n) * sizeof *ids[i]);
        weir_expert_ids call = { layer, n, n ? slots[i] : NULL, n ? slots[i] : NULL };
        cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &call, rig.stream)));
    }
    cr_assert(zero(int, weir_cpu_stream_synchronize(rig.device, rig.stream)));
    cr_assert(zero(int, memcmp(slots, expected, sizeof slots)));
    weir_expert_tables tables;
    cr_assert(zero(int, weir_expert_cache_tables(rig.cache, &tables)));
    cr_assert(eq(u32, tables.max_misses, 16));
    cr_assert(eq(i64, *tables.rows.count, model.n_given));
    for (uint32_t i = 0; i < model.n_given; i++) {
        cr_assert(eq(i64, ((const int32_t *)tables.rows.dst_rows)[i], model.victims[i]));
        cr_assert(eq(i64, ((const int32_t *)tables.rows.src_rows)[i], model.missing[i]));
    }
    for (int32_t slot = 0; slot < 20; slot++) {
        cr_assert(eq(i64, tables.expert_of[slot], model.id_of[slot]));
        if (tables.expert_of[slot] >= 0)
            cr_assert(eq(i32, tables.slot_of[tables.expert_of[slot]], slot));
    }
    weir_expert_cache_stats stats = rig_stats(&rig);
    cr_assert(eq(u64, stats.calls, CALLS));
    cr_assert(eq(u64, stats.hits, model.totals[WEIR_EXPERT_HITS]));
    cr_assert(eq(u64, stats.misses, model.totals[WEIR_EXPERT_MISSES]));
    cr_assert(eq(u64, stats.skipped, model.totals[WEIR_EXPERT_SKIPPED]));
    cr_assert(eq(u64, stats.invalid, model.totals[WEIR_EXPERT_INVALID]));
    cr_assert(ge(u64, stats.device_bytes, 4 * 48 + 24 * 20));
    cr_assert(eq(u64, stats.pinned_bytes, 40));
    expert_model_close(&model);
    rig_close(&rig);
}

Test(expert_cache, calls_run_in_stream_order)
{
    run_calls(0);
    run_calls(7);
}

Test(expert_cache, its_memory_grows_with_it)
{
    struct rig rig;
    rig_open(&rig, 1);
    weir_expert_cache_params params = usual();
    params.n_slots = 5000;
    cr_assert(zero(int, weir_expert_cache_create(&rig.cache, rig.device, &params)));
    cr_assert(ge(u64, rig_stats(&rig).device_bytes, 24 * 5000));
    cr_assert(le(u64, rig_stats(&rig).device_bytes, 41 * 5000));
    rig_close(&rig);
}

/* The ring that create chooses is long, so this takes it round several times. */
Test(expert_cache, a_long_life)
{
    struct rig rig;
    rig_open_cache(&rig, 3);
    struct expert_model model;
    expert_model_open(&model, 20, 16, 24);
    struct random random = { 11 };
    for (uint32_t i = 0; i < 3000; i++) {
        int32_t ids[8], expected[8];
        expert_ids_random(&random, 16, ids, 8);
        expert_model_ensure(&model, 16 * (i % 3), ids, 8, expected);
        weir_expert_ids call = { i % 3, 8, ids, ids };
        cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &call, rig.stream)));
        cr_assert(zero(int, weir_cpu_stream_synchronize(rig.device, rig.stream)));
        cr_assert(zero(int, memcmp(ids, expected, sizeof ids)), "call %u", i);
    }
    expert_model_close(&model);
    rig_close(&rig);
}

Test(expert_cache, a_reset_forgets)
{
    struct rig rig;
    rig_open_cache(&rig, 9);
    int32_t ids[] = { 4, 2, 4 };
    int32_t slots[2][3];
    for (int round = 0; round < 2; round++) {
        weir_expert_ids call = { 1, 3, ids, slots[round] };
        cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &call, rig.stream)));
        if (round == 0)
            cr_assert(zero(int, weir_expert_cache_reset(rig.cache, rig.stream)));
    }
    cr_assert(zero(int, weir_cpu_stream_synchronize(rig.device, rig.stream)));
    cr_assert(zero(int, memcmp(slots[0], slots[1], sizeof slots[0])));
    weir_expert_cache_stats stats = rig_stats(&rig);
    cr_assert(eq(u64, stats.calls, 1));
    cr_assert(eq(u64, stats.hits, 0));
    cr_assert(eq(u64, stats.misses, 2));
    rig_close(&rig);
}

/* Calls in two streams, first unordered, then behind an event. */
Test(expert_cache, unordered_calls_are_a_race)
{
    struct rig rig;
    rig_open_cache(&rig, 4);
    const struct weir_device_ops *ops = rig.device->ops;
    weir_stream *other;
    weir_event *event;
    int32_t ids[2][2] = { { 1, 2 }, { 3, 4 } };
    cr_assert(zero(int, weir_cpu_stream_create(rig.device, &other)));
    cr_assert(zero(int, ops->event_create(rig.device, &event)));
    for (int ordered = 1; ordered >= 0; ordered--) {
        weir_expert_ids calls[] = { { 0, 2, ids[0], ids[0] }, { 0, 2, ids[1], ids[1] } };
        cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &calls[0], rig.stream)));
        if (ordered) {
            cr_assert(zero(int, ops->event_record(rig.device, event, rig.stream)));
            cr_assert(zero(int, ops->stream_wait_event(rig.device, other, event)));
        }
        cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &calls[1], other)));
        cr_assert(zero(int, weir_cpu_stream_synchronize(rig.device, other)));
        cr_assert(zero(int, weir_cpu_stream_synchronize(rig.device, rig.stream)));
        cr_assert(eq(u64, weir_cpu_device_races(rig.device), ordered ? 0 : 1));
    }
    ops->event_destroy(rig.device, event);
    weir_cpu_stream_destroy(rig.device, &other);
    rig_close(&rig);
}

/* ---- Refusals -------------------------------------------------------------- */

static void refuse_params(struct rig *rig, const weir_expert_cache_params *params, const char *word)
{
    weir_expert_cache *cache = (weir_expert_cache *)rig;
    rig->capture.lines = 0;
    cr_assert(eq(int, weir_expert_cache_create(&cache, rig->device, params), -EINVAL), "%s", word);
    cr_assert(eq(ptr, cache, rig));
    cr_assert(eq(u32, rig->capture.lines, 1));
    cr_assert(ne(ptr, (void *)(uintptr_t)strstr(rig->capture.last, word), NULL), "\"%s\"",
              rig->capture.last);
}

#define REFUSE_PARAM(field, value)              \
    do {                                        \
        weir_expert_cache_params bad = usual(); \
        bad.field = (value);                    \
        refuse_params(&rig, &bad, #field);      \
    } while (0)

Test(expert_cache, create_refuses)
{
    struct rig rig;
    rig_open(&rig, 1);
    REFUSE_PARAM(struct_size, 8);
    REFUSE_PARAM(n_layers, 0);
    REFUSE_PARAM(n_layers, WEIR_EXPERT_CACHE_MAX_IDS / 16 + 1);
    REFUSE_PARAM(n_experts, 0);
    REFUSE_PARAM(n_experts, WEIR_EXPERT_CACHE_MAX_EXPERTS + 1);
    REFUSE_PARAM(n_slots, 0);
    REFUSE_PARAM(n_slots, WEIR_EXPERT_CACHE_MAX_SLOTS + 1);
    REFUSE_PARAM(max_ids, 0);
    REFUSE_PARAM(max_ids, WEIR_EXPERT_CACHE_MAX_IDS + 1);
    refuse_params(&rig, NULL, "params");
    weir_expert_cache_params params = usual();
    cr_assert(eq(int, weir_expert_cache_create(NULL, rig.device, &params), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_create(&rig.cache, NULL, &params), -EINVAL));
    weir_expert_cache_params_init(NULL);
    weir_expert_cache_destroy(NULL);
    rig_close(&rig);
}

Test(expert_cache, its_own_log_is_heard)
{
    struct rig rig;
    rig_open(&rig, 1);
    struct log_capture own = { 0 };
    weir_expert_cache_params params = usual();
    params.log = log_capture_log(&own);
    params.n_slots = 0;
    rig.capture.lines = 0;
    cr_assert(eq(int, weir_expert_cache_create(&rig.cache, rig.device, &params), -EINVAL));
    cr_assert(eq(u32, own.lines, 1));
    params.n_slots = 2;
    cr_assert(zero(int, weir_expert_cache_create(&rig.cache, rig.device, &params)));
    cr_assert(eq(int, weir_expert_cache_ensure(rig.cache, NULL, rig.stream), -EINVAL));
    cr_assert(eq(u32, own.lines, 3));
    cr_assert(eq(u32, rig.capture.lines, 0));
    rig_close(&rig);
}

static void refuse_ids(struct rig *rig, weir_expert_ids ids, const char *word)
{
    rig->capture.lines = 0;
    cr_assert(eq(int, weir_expert_cache_ensure(rig->cache, &ids, rig->stream), -EINVAL), "%s",
              word);
    cr_assert(eq(u32, rig->capture.lines, 1));
    cr_assert(ne(ptr, (void *)(uintptr_t)strstr(rig->capture.last, word), NULL), "\"%s\"",
              rig->capture.last);
}

Test(expert_cache, ensure_refuses)
{
    struct rig rig;
    rig_open_cache(&rig, 1);
    int32_t ids[32] = { 0 };
    int32_t *odd = (int32_t *)(void *)((char *)ids + 2);
    refuse_ids(&rig, (weir_expert_ids){ 3, 4, ids, ids }, "layer");
    refuse_ids(&rig, (weir_expert_ids){ 0, 25, ids, ids }, "n is 25");
    refuse_ids(&rig, (weir_expert_ids){ 0, 1, NULL, ids }, "ids.ids");
    refuse_ids(&rig, (weir_expert_ids){ 0, 1, ids, NULL }, "ids.slots");
    refuse_ids(&rig, (weir_expert_ids){ 0, 1, odd, ids }, "ids.ids");
    refuse_ids(&rig, (weir_expert_ids){ 0, 1, ids, odd }, "ids.slots");
    refuse_ids(&rig, (weir_expert_ids){ 0, 8, ids, ids + 7 }, "overlaps");
    refuse_ids(&rig, (weir_expert_ids){ 0, 8, ids + 7, ids }, "overlaps");
    weir_expert_ids good = { 0, 8, ids + 8, ids };
    rig.capture.lines = 0;
    cr_assert(eq(int, weir_expert_cache_ensure(rig.cache, &good, NULL), -EINVAL));
    cr_assert(eq(u32, rig.capture.lines, 1));
    cr_assert(eq(int, weir_expert_cache_ensure(rig.cache, NULL, rig.stream), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_ensure(NULL, &good, rig.stream), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_reset(rig.cache, NULL), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_reset(NULL, rig.stream), -EINVAL));
    cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &good, rig.stream)));
    cr_assert(zero(int, weir_cpu_stream_synchronize(rig.device, rig.stream)));
    cr_assert(eq(u64, rig_stats(&rig).calls, 1), "a refused call has run");
    weir_expert_tables tables;
    cr_assert(eq(int, weir_expert_cache_tables(NULL, &tables), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_tables(rig.cache, NULL), -EINVAL));
    weir_expert_cache_stats stats = { .struct_size = 1 };
    cr_assert(eq(int, weir_expert_cache_get_stats(rig.cache, &stats), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_get_stats(rig.cache, NULL), -EINVAL));
    cr_assert(eq(int, weir_expert_cache_get_stats(NULL, &stats), -EINVAL));
    rig_close(&rig);
}

Test(expert_cache, create_fails_without_a_trace)
{
    static const weir_cpu_call calls[] = { WEIR_CPU_CALL_MEMORY_ALLOC, WEIR_CPU_CALL_WORDS_ALLOC,
                                           WEIR_CPU_CALL_STREAM_CREATE };
    struct rig rig;
    rig_open(&rig, 1);
    weir_expert_cache_params params = usual();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        cr_assert(zero(int, weir_cpu_device_fail(rig.device, calls[i], 1, -ENOMEM)));
        cr_assert(eq(int, weir_expert_cache_create(&rig.cache, rig.device, &params), -ENOMEM));
        cr_assert(zero(ptr, rig.cache));
    }
    rig_close(&rig);
}

Test(expert_cache, a_device_is_not_closed_under_it)
{
    struct rig rig;
    rig_open_cache(&rig, 1);
    cr_assert(eq(int, weir_device_close(&rig.device), -EBUSY));
    weir_cpu_device_lose(rig.device);
    int32_t id = 1;
    weir_expert_ids call = { 0, 1, &id, &id };
    cr_assert(eq(int, weir_expert_cache_ensure(rig.cache, &call, rig.stream), -EIO));
    rig_close(&rig);
}
