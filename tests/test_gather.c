/* SPDX-License-Identifier: Apache-2.0 */
#include "gather_case.h"
#include "log_capture.h"

#include <weir/cpu_device.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

/* The gather's arguments, and its bytes on the CPU device. Those of the kernels
 * are in test_gather_kernels and gpu_gather. */

#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

struct world {
    struct log_capture capture;
    weir_device *device;
    weir_stream *stream;
    struct gather_case c;
    weir_gather *gather;
    uint8_t *arenas[2];
    uint8_t *expected;
    void *lists[2];
    int64_t count;
    uint32_t skipped;
};

static void open_device(struct world *w, uint64_t seed)
{
    weir_cpu_device_params p;
    weir_cpu_device_params_init(&p);
    p.seed = seed;
    p.log = log_capture_log(&w->capture);
    must(weir_cpu_device_open(&w->device, &p) == 0, "device");
    must(weir_cpu_stream_create(w->device, &w->stream) == 0, "stream");
}

static void open_gather(struct world *w, struct random *random)
{
    for (uint32_t side = 0; side < 2; side++) {
        w->arenas[side] = malloc(w->c.bytes[side]);
        gather_case_fill(w->arenas[side], w->c.bytes[side], random);
        w->lists[side] = calloc(w->c.max_count, 8);
    }
    w->expected = malloc(w->c.bytes[0]);
    memcpy(w->expected, w->arenas[0], w->c.bytes[0]);
    weir_bank banks[WEIR_GATHER_MAX_BANKS];
    weir_gather_params p =
        gather_case_params(&w->c, (uintptr_t)w->arenas[0], (uintptr_t)w->arenas[1], banks);
    must(weir_gather_create(&w->gather, w->device, &p) == 0, "create: %s", w->capture.last);
}

static void close_world(struct world *w)
{
    weir_gather_destroy(&w->gather);
    must(!w->gather, "destroyed, but not NULL");
    weir_gather_destroy(&w->gather);
    for (uint32_t side = 0; side < 2; side++) {
        free(w->arenas[side]);
        free(w->lists[side]);
    }
    free(w->expected);
    weir_cpu_stream_destroy(w->device, &w->stream);
    must(weir_device_close(&w->device) == 0, "close");
}

static void check(struct world *w)
{
    must(weir_cpu_stream_synchronize(w->device, w->stream) == 0, "synchronize");
    must(memcmp(w->arenas[0], w->expected, w->c.bytes[0]) == 0, "bytes differ");
    uint32_t skipped;
    must(weir_gather_errors(w->gather, &skipped) == 0 && skipped == w->skipped,
         "%u skipped instead of %u", skipped, w->skipped);
}

static void launch(struct world *w, int64_t count, bool on_device)
{
    for (uint32_t side = 0; side < 2; side++)
        gather_case_pack(&w->c, side, w->lists[side]);
    w->count = count;
    weir_gather_rows rows = { w->lists[0], w->lists[1], on_device ? &w->count : NULL,
                              on_device ? 7777 : count };
    w->skipped += gather_case_expect(&w->c, w->expected, w->arenas[1], count);
    must(weir_gather_launch(w->gather, &rows, NULL, w->stream) == 0, "launch");
    check(w);
}

/* ---- Bytes ----------------------------------------------------------------- */

static void issue_case(const uint64_t *row_bytes, uint32_t n, uint32_t index_bytes, uint32_t slots,
                       uint32_t max_count, uint32_t most)
{
    struct random random = { n + index_bytes };
    struct world w = { 0 };
    open_device(&w, index_bytes == 4 ? 0 : 3);
    gather_case_banks(&w.c, row_bytes, n, slots, slots + 3);
    w.c.index_bytes = index_bytes;
    w.c.max_count = max_count;
    open_gather(&w, &random);
    for (uint32_t count = 0; count <= most; count = count < 4 ? count + 1 : count * 3) {
        gather_case_lists(&w.c, &random, w.c.max_count, 0);
        for (uint32_t i = 1; i < w.c.max_count; i++)
            if (w.c.rows[0][i] == slots - 1)
                w.c.rows[0][i] = w.c.rows[0][0];
        w.c.rows[0][0] = slots - 1; /* the last slot, the last row */
        w.c.rows[1][0] = slots + 2;
        launch(&w, count, count % 2);
    }
    close_world(&w);
}

Test(gather, banks_of_an_expert)
{
    issue_case(gather_case_experts, 6, 4, 6, 5, 6);
    issue_case(gather_case_experts, 6, 8, 6, 5, 6);
}

Test(gather, small_banks)
{
    issue_case(gather_case_small, 6, 4, 650, 600, 1000);
    issue_case(gather_case_small, 6, 8, 650, 600, 1000);
}

Test(gather, odd_banks)
{
    issue_case(gather_case_odd, 4, 4, 650, 600, 1000);
    issue_case(gather_case_odd, 4, 8, 650, 600, 1000);
}

Test(gather, any_banks_any_lists)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct random random = { seed };
        struct world w = { 0 };
        open_device(&w, seed % 3);
        gather_case_random_banks(&w.c, &random, 1, 3000);
        w.c.max_count = 1 + random_below(&random, w.c.n_rows[0]);
        open_gather(&w, &random);
        for (uint32_t i = 0; i < 4; i++) {
            gather_case_lists(&w.c, &random, w.c.max_count, random_below(&random, 3) * 20);
            int64_t count = random_below(&random, w.c.max_count + 3);
            launch(&w, random_percent(&random, 10) ? -count : count, random_percent(&random, 70));
        }
        close_world(&w);
    }
}

/* ---- Calls ----------------------------------------------------------------- */

static void usual(struct world *w, uint64_t seed)
{
    struct random random = { 1 };
    memset(w, 0, sizeof *w);
    open_device(w, seed);
    gather_case_banks(&w->c, gather_case_small, 6, 8, 24);
    w->c.max_count = 4;
    open_gather(w, &random);
    gather_case_lists(&w->c, &random, 4, 0);
}

static void write_lists(void *arg)
{
    struct world *w = arg;
    w->count = 3;
    for (uint32_t side = 0; side < 2; side++)
        gather_case_pack(&w->c, side, w->lists[side]);
}

/* Lists and count are read when the launch runs, not when it is enqueued. */
Test(gather, lists_come_from_the_stream)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct world w;
        usual(&w, seed);
        w.count = -5;
        weir_cpu_stream_park(w.device, w.stream);
        must(weir_cpu_launch(w.device, w.stream, write_lists, &w, NULL, 0) == 0, "lists");
        weir_gather_rows rows = { w.lists[0], w.lists[1], &w.count, 4 };
        must(weir_gather_launch(w.gather, &rows, NULL, w.stream) == 0, "launch");
        memset(&rows, 0, sizeof rows);
        weir_cpu_stream_release(w.device, w.stream);
        gather_case_expect(&w.c, w.expected, w.arenas[1], 3);
        check(&w);
        close_world(&w);
    }
}

/* Rows 8..15 of every source bank as another layer of eight. */
Test(gather, bases_of_another_layer)
{
    struct world w;
    usual(&w, 0);
    weir_bank_bases bases[6];
    struct gather_case layer = w.c;
    for (uint32_t i = 0; i < 6; i++) {
        layer.banks[i].src += 8 * layer.banks[i].row_bytes;
        bases[i] = (weir_bank_bases){ (uintptr_t)w.arenas[0] + layer.banks[i].dst,
                                      (uintptr_t)w.arenas[1] + layer.banks[i].src };
        layer.rows[1][i % 4] = i % 8;
    }
    layer.max_count = 4;
    for (uint32_t side = 0; side < 2; side++)
        gather_case_pack(&layer, side, w.lists[side]);
    weir_gather_rows rows = { w.lists[0], w.lists[1], NULL, 4 };
    must(weir_gather_launch(w.gather, &rows, bases, w.stream) == 0, "launch");
    memset(bases, 0, sizeof bases);
    gather_case_expect(&layer, w.expected, w.arenas[1], 4);
    check(&w);
    close_world(&w);
}

/* Two launches that wait in the stream have their own bases. */
Test(gather, launches_keep_their_bases)
{
    struct world w;
    usual(&w, 0);
    for (uint32_t side = 0; side < 2; side++)
        gather_case_pack(&w.c, side, w.lists[side]);
    weir_bank_bases bases[6];
    weir_cpu_stream_park(w.device, w.stream);
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct gather_case layer = w.c;
        for (uint32_t i = 0; i < 6; i++) {
            layer.banks[i].dst += turn * 64; /* both turns leave their mark */
            bases[i] = (weir_bank_bases){ (uintptr_t)w.arenas[0] + layer.banks[i].dst,
                                          (uintptr_t)w.arenas[1] + layer.banks[i].src };
        }
        for (uint32_t i = 0; i < 4; i++)
            layer.rows[0][i] = i;
        if (turn == 0)
            for (uint32_t i = 0; i < 4; i++)
                w.c.rows[0][i] = i;
        gather_case_pack(&w.c, 0, w.lists[0]);
        weir_gather_rows rows = { w.lists[0], w.lists[1], NULL, 2 };
        must(weir_gather_launch(w.gather, &rows, bases, w.stream) == 0, "launch");
        gather_case_expect(&layer, w.expected, w.arenas[1], 2);
    }
    weir_cpu_stream_release(w.device, w.stream);
    check(&w);
    close_world(&w);
}

static void read_nothing(void *arg)
{
    (void)arg;
}

/* A kernel of another stream that reads a slot without waiting for the gather is a
 * race; one behind it, or of another slot, is none. */
Test(gather, the_race_check_knows_the_slots)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct world w;
        usual(&w, seed);
        weir_stream *other;
        uint32_t pool = weir_gather_cpu_pool(w.gather);
        must(pool > 0, "no pool");
        must(weir_cpu_stream_create(w.device, &other) == 0, "stream");
        w.c.rows[0][0] = 100; /* skipped: writes nothing */
        launch(&w, 2, true);
        int32_t slot = (int32_t)w.c.rows[0][1];
        const weir_cpu_access same = { pool, slot + 1, 3, 0, false };
        const weir_cpu_access free_slot = { pool, (slot + 1) % 8 + 1, 3, 0, false };
        weir_gather_rows rows = { w.lists[0], w.lists[1], &w.count, 0 };
        must(weir_gather_launch(w.gather, &rows, NULL, w.stream) == 0, "launch");
        must(weir_cpu_launch(w.device, other, read_nothing, NULL, &free_slot, 1) == 0, "read");
        must(weir_cpu_launch(w.device, w.stream, read_nothing, NULL, &same, 1) == 0, "read");
        must(weir_cpu_stream_synchronize(w.device, w.stream) == 0, "synchronize");
        must(weir_cpu_stream_synchronize(w.device, other) == 0, "synchronize");
        must(weir_cpu_device_races(w.device) == 0, "a race that is none: %s", w.capture.last);
        must(weir_gather_launch(w.gather, &rows, NULL, w.stream) == 0, "launch");
        must(weir_cpu_launch(w.device, other, read_nothing, NULL, &same, 1) == 0, "read");
        must(weir_cpu_stream_synchronize(w.device, w.stream) == 0, "synchronize");
        must(weir_cpu_stream_synchronize(w.device, other) == 0, "synchronize");
        must(weir_cpu_device_races(w.device) == 1, "%d races",
             (int)weir_cpu_device_races(w.device));
        weir_cpu_stream_destroy(w.device, &other);
        close_world(&w);
    }
    must(weir_gather_cpu_pool(NULL) == 0, "a pool of NULL");
}

Test(gather, an_open_gather_keeps_the_device_open)
{
    struct world w;
    usual(&w, 0);
    weir_device *device = w.device;
    must(weir_device_close(&device) == -EBUSY && device == w.device, "closed");
    must(strstr(w.capture.last, "gather"), "\"%s\"", w.capture.last);
    close_world(&w);
}

Test(gather, a_lost_device_gathers_nothing)
{
    struct world w;
    usual(&w, 0);
    weir_cpu_device_lose(w.device);
    weir_gather_rows rows = { w.lists[0], w.lists[1], NULL, 1 };
    must(weir_gather_launch(w.gather, &rows, NULL, w.stream) == -EIO, "launched");
    weir_gather *other = NULL;
    weir_bank banks[WEIR_GATHER_MAX_BANKS];
    weir_gather_params p =
        gather_case_params(&w.c, (uintptr_t)w.arenas[0], (uintptr_t)w.arenas[1], banks);
    must(weir_gather_create(&other, w.device, &p) == -EIO && !other, "created");
    close_world(&w);
}

Test(gather, launch_refuses)
{
    struct world w;
    usual(&w, 0);
    weir_bank_bases bases[6];
    for (uint32_t i = 0; i < 6; i++)
        bases[i] = (weir_bank_bases){ 4096, 4096 };
    const weir_gather_rows good = { w.lists[0], w.lists[1], &w.count, 0 };
    weir_gather_rows rows;
#define REFUSE(call, word)                                                                     \
    do {                                                                                       \
        unsigned lines = w.capture.lines;                                                      \
        must((call) == -EINVAL, "%s is taken", word);                                          \
        must(w.capture.lines == lines + 1 && strstr(w.capture.last, word), "%s: \"%s\"", word, \
             w.capture.last);                                                                  \
    } while (0)
    must(weir_gather_launch(NULL, &good, NULL, w.stream) == -EINVAL, "no gather");
    REFUSE(weir_gather_launch(w.gather, NULL, NULL, w.stream), "rows is NULL");
    REFUSE(weir_gather_launch(w.gather, &good, NULL, NULL), "stream is NULL");
    rows = good;
    rows.dst_rows = NULL;
    REFUSE(weir_gather_launch(w.gather, &rows, NULL, w.stream), "dst_rows");
    rows = good;
    rows.src_rows = (uint8_t *)w.lists[1] + 2;
    REFUSE(weir_gather_launch(w.gather, &rows, NULL, w.stream), "src_rows");
    rows = good;
    rows.count = (const int64_t *)(uintptr_t)((uintptr_t)&w.count + 4);
    REFUSE(weir_gather_launch(w.gather, &rows, NULL, w.stream), "count");
    bases[4].src = 0;
    REFUSE(weir_gather_launch(w.gather, &good, bases, w.stream), "bank 4: src is 0");
    bases[4] = (weir_bank_bases){ UINT64_MAX - 8, 4096 };
    REFUSE(weir_gather_launch(w.gather, &good, bases, w.stream), "bank 4");
    REFUSE(weir_gather_errors(w.gather, NULL), "n is NULL");
    uint32_t n;
    must(weir_gather_errors(NULL, &n) == -EINVAL, "errors of NULL");
    close_world(&w);
}

/* ---- Creating -------------------------------------------------------------- */

static void refuse(weir_gather_params p, weir_bank bank, const char *word)
{
    struct log_capture capture = { 0 };
    weir_device *device;
    must(weir_cpu_device_open(&device, NULL) == 0, "device");
    p.log = log_capture_log(&capture);
    if (p.banks)
        p.banks = &bank;
    weir_gather *gather = NULL;
    must(weir_gather_create(&gather, device, &p) == -EINVAL && !gather, "%s is taken", word);
    must(capture.lines == 1 && strstr(capture.last, word), "%s: %u lines, \"%s\"", word,
         capture.lines, capture.last);
    must(weir_device_close(&device) == 0, "close");
}

Test(gather, create_refuses)
{
    weir_bank good = { .dst = 4096, .src = 8192, .row_bytes = 100 };
    weir_gather_params usual_params;
    weir_gather_params_init(&usual_params);
    must(usual_params.engine == WEIR_ENGINE_AUTO && usual_params.index_bytes == 4 &&
             usual_params.direction == WEIR_COPY_HOST_TO_DEVICE,
         "defaults");
    usual_params.banks = &good;
    usual_params.n_banks = 1;
    usual_params.max_count = 10;
#define REFUSE_PARAM(field, value, word)       \
    do {                                       \
        weir_gather_params bad = usual_params; \
        bad.field = (value);                   \
        refuse(bad, good, word);               \
    } while (0)
#define REFUSE_BANK(word, ...)                                     \
    do {                                                           \
        weir_bank bad = { .dst = 4096, .src = 8192, __VA_ARGS__ }; \
        refuse(usual_params, bad, word);                           \
    } while (0)
    REFUSE_PARAM(n_banks, 0, "n_banks");
    REFUSE_PARAM(n_banks, 65, "n_banks");
    REFUSE_PARAM(banks, NULL, "banks");
    REFUSE_PARAM(direction, (weir_copy_direction)3, "direction");
    REFUSE_PARAM(engine, WEIR_ENGINE_COPY, "engine");
    REFUSE_PARAM(engine, (weir_transfer_engine)9, "engine");
    REFUSE_PARAM(max_count, 0, "max_count");
    REFUSE_PARAM(max_count, WEIR_GATHER_MAX_COUNT + 1, "max_count");
    REFUSE_PARAM(index_bytes, 2, "index_bytes");
    REFUSE_PARAM(ctas, WEIR_GATHER_MAX_CTAS + 1, "ctas");
    REFUSE_PARAM(threads, 544, "threads");
    REFUSE_PARAM(threads, 40, "threads");
    REFUSE_PARAM(stages, 1, "stages");
    REFUSE_PARAM(stages, 17, "stages");
    REFUSE_PARAM(stage_bytes, 1000, "stage_bytes");
    REFUSE_PARAM(stage_bytes, 131200, "stage_bytes");
    REFUSE_BANK("row_bytes", .row_bytes = 0);
    REFUSE_BANK("row_bytes", .row_bytes = UINT64_C(1) << 32);
    REFUSE_BANK("dst_row_stride", .row_bytes = 100, .dst_row_stride = 99);
    REFUSE_BANK("src_row_stride", .row_bytes = 100, .src_row_stride = 99);
    REFUSE_BANK("dst_rows", .row_bytes = 100, .dst_rows = UINT64_C(1) << 31);
    REFUSE_BANK("src rows", .row_bytes = 100, .src_row_stride = UINT64_C(1) << 62, .src_rows = 5);
    REFUSE_BANK("payload_lines", .row_bytes = 100, .payload_bytes = 10, .dst_pitch = 10,
                .src_pitch = 10);
    REFUSE_BANK("payload_lines", .row_bytes = 100, .payload_bytes = 1 << 20,
                .payload_lines = 1 << 12, .dst_pitch = 1 << 20, .src_pitch = 1 << 20);
    REFUSE_BANK("payload_bytes is 0", .row_bytes = 100, .payload_lines = 3);
    REFUSE_BANK("payload_bytes is 0", .row_bytes = 100, .src_pitch = 3);
    REFUSE_BANK("dst_pitch", .row_bytes = 100, .payload_bytes = 10, .payload_lines = 2,
                .dst_pitch = 9, .src_pitch = 10);
    REFUSE_BANK("src_pitch", .row_bytes = 100, .payload_bytes = 10, .payload_lines = 2,
                .dst_pitch = 10, .src_pitch = UINT64_C(1) << 32);
    REFUSE_BANK("dst_row_stride", .row_bytes = 100, .payload_bytes = 10, .payload_lines = 11,
                .dst_pitch = 10, .src_pitch = 10);

    weir_device *device;
    struct log_capture capture = { 0 };
    weir_device_params dp;
    weir_device_params_init(&dp);
    dp.kind = WEIR_DEVICE_CPU;
    dp.log = log_capture_log(&capture);
    must(weir_device_open(&device, &dp) == 0, "device");
    weir_gather *gather = NULL;
    must(weir_gather_create(&gather, NULL, &usual_params) == -EINVAL, "no device");
    must(weir_gather_create(&gather, device, NULL) == -EINVAL, "no params");
    must(weir_gather_create(NULL, device, &usual_params) == -EINVAL, "no gather");
    weir_gather_params old = usual_params;
    old.struct_size--;
    must(weir_gather_create(&gather, device, &old) == -EINVAL, "struct_size");
    must(capture.lines == 3 && !gather, "%u lines", capture.lines);
    must(weir_device_close(&device) == 0, "close");
}
