/* SPDX-License-Identifier: Apache-2.0 */
#include "log_capture.h"
#include "random.h"

#include <weir/cpu_device.h>
#include <weir/expert_cache.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Updates with their gathers: the bytes behind the numbers. */

#define LAYERS 3u
#define EXPERTS 12u
#define SLOTS 10u
#define IDS 8u
#define BANKS 3u

static const uint32_t row_bytes[BANKS] = { 256, 24, 7 };

struct rig {
    struct log_capture capture;
    weir_device *device;
    weir_stream *stream;
    weir_expert_cache *cache;
    weir_gather *gather;
    uint8_t *experts[LAYERS][BANKS];
    uint8_t *slots[BANKS];
    weir_bank_bases bases[LAYERS][BANKS];
};

/* Every byte tells its expert, but for one in 251. */
static uint8_t byte_of(uint32_t layer, uint32_t bank, uint32_t expert, uint32_t at)
{
    return (uint8_t)((89 * layer + 17 * expert + 5 * bank + at) % 251);
}

static weir_gather_params gather_params(const struct rig *rig, weir_bank *banks)
{
    weir_gather_params params;
    weir_gather_params_init(&params);
    for (uint32_t b = 0; b < BANKS; b++)
        banks[b] = (weir_bank){ .dst = (uintptr_t)rig->slots[b],
                                .src = (uintptr_t)rig->experts[0][b],
                                .row_bytes = row_bytes[b],
                                .dst_rows = SLOTS,
                                .src_rows = EXPERTS };
    params.banks = banks;
    params.n_banks = BANKS;
    params.max_count = IDS;
    return params;
}

static void fill_experts(struct rig *rig)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t b = 0; b < BANKS; b++) {
            rig->experts[layer][b] = malloc(EXPERTS * row_bytes[b]);
            rig->bases[layer][b] =
                (weir_bank_bases){ (uintptr_t)rig->slots[b], (uintptr_t)rig->experts[layer][b] };
            for (uint32_t i = 0; i < EXPERTS * row_bytes[b]; i++)
                rig->experts[layer][b][i] = byte_of(layer, b, i / row_bytes[b], i % row_bytes[b]);
        }
    }
}

static void rig_open(struct rig *rig, uint64_t seed)
{
    *rig = (struct rig){ 0 };
    weir_cpu_device_params device;
    weir_cpu_device_params_init(&device);
    device.seed = seed;
    device.log = log_capture_log(&rig->capture);
    cr_assert(zero(int, weir_cpu_device_open(&rig->device, &device)));
    cr_assert(zero(int, weir_cpu_stream_create(rig->device, &rig->stream)));
    for (uint32_t b = 0; b < BANKS; b++)
        rig->slots[b] = calloc(SLOTS, row_bytes[b]);
    fill_experts(rig);
    weir_bank banks[BANKS];
    weir_gather_params gather = gather_params(rig, banks);
    cr_assert(zero(int, weir_gather_create(&rig->gather, rig->device, &gather)));
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_layers = LAYERS;
    params.n_experts = EXPERTS;
    params.n_slots = SLOTS;
    params.max_ids = IDS;
    cr_assert(zero(int, weir_expert_cache_create(&rig->cache, rig->device, &params)));
    rig->capture.lines = 0;
}

static void rig_close(struct rig *rig)
{
    weir_expert_cache_destroy(&rig->cache);
    weir_gather_destroy(&rig->gather);
    weir_cpu_stream_destroy(rig->device, &rig->stream);
    cr_assert(zero(int, weir_device_close(&rig->device)));
    for (uint32_t b = 0; b < BANKS; b++) {
        free(rig->slots[b]);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            free(rig->experts[layer][b]);
    }
}

static void synchronize(struct rig *rig)
{
    cr_assert(zero(int, weir_cpu_stream_synchronize(rig->device, rig->stream)));
}

static void check_slot(const struct rig *rig, int32_t slot, uint32_t layer, uint32_t expert)
{
    for (uint32_t b = 0; b < BANKS; b++)
        for (uint32_t i = 0; i < row_bytes[b]; i++)
            cr_assert(eq(u8, rig->slots[b][(uint32_t)slot * row_bytes[b] + i],
                         byte_of(layer, b, expert, i)),
                      "slot %d, layer %u, expert %u", slot, layer, expert);
}

static void check_all_slots(const struct rig *rig)
{
    weir_expert_tables tables;
    cr_assert(zero(int, weir_expert_cache_tables(rig->cache, &tables)));
    for (int32_t slot = 0; slot < (int32_t)SLOTS; slot++)
        if (tables.expert_of[slot] >= 0)
            check_slot(rig, slot, (uint32_t)tables.expert_of[slot] / EXPERTS,
                       (uint32_t)tables.expert_of[slot] % EXPERTS);
}

static void random_ids(struct random *random, int32_t *ids)
{
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = random_percent(random, 5) ? -1 : (int32_t)random_below(random, EXPERTS);
}

static void steps(uint64_t seed)
{
    struct rig rig;
    rig_open(&rig, seed);
    struct random random = { seed };
    for (uint32_t i = 0; i < 200; i++) {
        int32_t ids[IDS], slots[IDS];
        random_ids(&random, ids);
        uint32_t layer = random_below(&random, LAYERS);
        weir_expert_ids call = { layer, IDS, ids, slots };
        cr_assert(zero(int, weir_expert_cache_step(rig.cache, &call, rig.gather, rig.bases[layer],
                                                   rig.stream)));
        synchronize(&rig);
        for (uint32_t k = 0; k < IDS; k++) {
            cr_assert(eq(int, slots[k] < 0, ids[k] < 0), "no room for all");
            if (ids[k] >= 0)
                check_slot(&rig, slots[k], layer, (uint32_t)ids[k]);
        }
        check_all_slots(&rig);
    }
    uint32_t errors;
    cr_assert(zero(int, weir_gather_errors(rig.gather, &errors)));
    cr_assert(zero(u32, errors));
    rig_close(&rig);
}

Test(expert_step, slots_hold_their_experts)
{
    steps(0);
    steps(5);
}

/* The gather's own bases are the first layer's. */
Test(expert_step, bases_may_be_the_gathers)
{
    struct rig rig;
    rig_open(&rig, 3);
    int32_t ids[] = { 5, 11 };
    weir_expert_ids call = { 0, 2, ids, ids };
    cr_assert(zero(int, weir_expert_cache_step(rig.cache, &call, rig.gather, NULL, rig.stream)));
    synchronize(&rig);
    check_slot(&rig, ids[0], 0, 5);
    check_slot(&rig, ids[1], 0, 11);
    rig_close(&rig);
}

/* By hand, as a server that has a gather of its own would do it. */
Test(expert_step, an_update_and_a_gather)
{
    struct rig rig;
    rig_open(&rig, 4);
    int32_t ids[] = { 5, 11, 5 };
    weir_expert_ids call = { 2, 3, ids, ids };
    weir_expert_tables tables;
    cr_assert(zero(int, weir_expert_cache_tables(rig.cache, &tables)));
    cr_assert(zero(int, weir_expert_cache_ensure(rig.cache, &call, rig.stream)));
    cr_assert(zero(int, weir_gather_launch(rig.gather, &tables.rows, rig.bases[2], rig.stream)));
    synchronize(&rig);
    check_slot(&rig, ids[0], 2, 5);
    check_slot(&rig, ids[1], 2, 11);
    rig_close(&rig);
}

/* ---- Refusals -------------------------------------------------------------- */

static void refuse(struct rig *rig, weir_gather *gather, const weir_expert_ids *ids,
                   const char *word)
{
    rig->capture.lines = 0;
    int rc = weir_expert_cache_step(rig->cache, ids, gather, NULL, rig->stream);
    cr_assert(eq(int, rc, -EINVAL), "%s", word);
    cr_assert(eq(u32, rig->capture.lines, 1));
    cr_assert(ne(ptr, (void *)(uintptr_t)strstr(rig->capture.last, word), NULL), "\"%s\"",
              rig->capture.last);
}

static void refuse_gather(struct rig *rig, weir_device *device, const weir_gather_params *params,
                          const weir_expert_ids *ids, const char *word)
{
    weir_gather *gather;
    cr_assert(zero(int, weir_gather_create(&gather, device, params)));
    refuse(rig, gather, ids, word);
    weir_gather_destroy(&gather);
}

Test(expert_step, refuses)
{
    struct rig rig;
    rig_open(&rig, 1);
    int32_t ids[] = { 5, 11 };
    weir_expert_ids call = { 0, 2, ids, ids };
    weir_bank banks[BANKS];
    refuse(&rig, NULL, &call, "gather is NULL");
    refuse(&rig, rig.gather, NULL, "ids is NULL");
    weir_gather_params params = gather_params(&rig, banks);
    params.index_bytes = 8;
    refuse_gather(&rig, rig.device, &params, &call, "index_bytes");
    params = gather_params(&rig, banks);
    params.max_count = IDS - 1;
    refuse_gather(&rig, rig.device, &params, &call, "max_count");
    params = gather_params(&rig, banks);
    banks[2].dst_rows = SLOTS - 1;
    refuse_gather(&rig, rig.device, &params, &call, "bank 2");
    banks[2].dst_rows = 0;
    weir_device *other;
    cr_assert(zero(int, weir_cpu_device_open(&other, NULL)));
    refuse_gather(&rig, other, &params, &call, "another device");
    cr_assert(zero(int, weir_device_close(&other)));
    cr_assert(eq(int, weir_expert_cache_step(NULL, &call, rig.gather, NULL, rig.stream), -EINVAL));

    /* None of them has done anything. */
    cr_assert(zero(int, weir_expert_cache_step(rig.cache, &call, rig.gather, NULL, rig.stream)));
    synchronize(&rig);
    weir_expert_cache_stats stats = { .struct_size = sizeof stats };
    cr_assert(zero(int, weir_expert_cache_get_stats(rig.cache, &stats)));
    cr_assert(eq(u64, stats.calls, 1));
    rig_close(&rig);
}

/* The update has run, the gather has not: nothing may rely on the tables. */
Test(expert_step, a_failed_gather_stops_it_until_a_reset)
{
    struct rig rig;
    rig_open(&rig, 1);
    int32_t ids[] = { 5, 11 };
    int32_t slots[2];
    weir_expert_ids call = { 0, 2, ids, slots };
    weir_bank_bases bad[BANKS];
    memcpy(bad, rig.bases[0], sizeof bad);
    bad[1].src = 0;
    cr_assert(
        eq(int, weir_expert_cache_step(rig.cache, &call, rig.gather, bad, rig.stream), -EINVAL));
    cr_assert(
        eq(int, weir_expert_cache_step(rig.cache, &call, rig.gather, NULL, rig.stream), -EIO));
    cr_assert(eq(int, weir_expert_cache_ensure(rig.cache, &call, rig.stream), -EIO));
    cr_assert(zero(int, weir_expert_cache_reset(rig.cache, rig.stream)));
    cr_assert(zero(int, weir_expert_cache_step(rig.cache, &call, rig.gather, NULL, rig.stream)));
    synchronize(&rig);
    check_slot(&rig, slots[0], 0, 5);
    check_slot(&rig, slots[1], 0, 11);
    rig_close(&rig);
}
