/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

static void operate(struct world *w)
{
    uint32_t what = random_below(&w->random, 1080);
    w->m.operation++;
    if (what < 120) {
        op_open(w);
    } else if (what < 330) {
        op_reserve(w);
    } else if (what < 600) {
        op_step(w);
    } else if (what < 620) {
        op_late_commit(w);
    } else if (what < 720) {
        op_report(w);
    } else if (what < 800) {
        op_poll(w);
    } else if (what < 840) {
        op_peek(w);
    } else if (what < 860) {
        op_look(w);
    } else if (what < 870) {
        op_nonsense(w);
    } else if (what < 872) {
        op_drain(w);
    } else if (what < 875) {
        op_forget(w);
    } else if (what < 876) {
        op_reset(w);
    } else if (what < 879) {
        op_quiesce(w);
    } else if (what < 893) {
        op_pin(w);
    } else if (what < 896) {
        op_rates(w);
    } else if (what < 897) {
        op_rank_lost(w);
    } else if (what >= 1000) {
        if (random_percent(&w->random, 60))
            op_fork(w);
        else
            op_truncate(w);
    } else {
        uint32_t slot = world_pick(w);
        if (slot != MODEL_SEQS)
            op_close(w, slot);
    }
    world_check_pin(w, &w->pins[w->m.operation % WORLD_PINS]);
    world_check(w);
}

ParameterizedTestParameters(cache_random, equals_a_naive_model)
{
    static uint32_t configs[WORLD_CONFIGS];
    for (uint32_t i = 0; i < WORLD_CONFIGS; i++)
        configs[i] = i;
    return cr_make_param_array(uint32_t, configs, WORLD_CONFIGS, NULL);
}

ParameterizedTest(uint32_t *config, cache_random, equals_a_naive_model)
{
    static struct world w;
    uint64_t steps = world_environment("WEIR_RANDOM_STEPS", 100000) / WORLD_CONFIGS;
    if (world_environment("WEIR_RANDOM_CONFIG", *config) != *config)
        return;
    world_open(&w, *config);
    for (uint64_t i = 0; i < steps; i++)
        operate(&w);
    world_close(&w);
}

/* Pools that are too small for what is asked, so that most reserves wait. */
Test(cache_random, after_draining_every_wait_is_over)
{
    static struct world w;
    for (uint32_t config = 0; config < WORLD_CONFIGS; config++) {
        if (world_environment("WEIR_RANDOM_CONFIG", config) != config)
            continue;
        world_open(&w, config);
        for (int round = 0; round < 15; round++) {
            for (int i = 0; i < 40; i++)
                operate(&w);
            op_drain(&w);
        }
        world_close(&w);
    }
}
