/* SPDX-License-Identifier: Apache-2.0 */

/* Ranks of one process that keep their replicated tensors in host memory once. */

#include "brain_rig.h"

#include <sched.h>

/* Only there under AddressSanitizer. Criterion alone does not fail on a leak. */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

enum {
    RANKS = 3,
    DEVICE_PAGES = 16,
    HOST_PAGES = 30
};

static const uint32_t latent_layers[] = { 0, 2 };

/* A sharded tensor between two replicated ones, of other layers and sizes. */
static const weir_tensor mixed_tensors[] = {
    { .name = "latent",
      .row_bytes = 24,
      .page_bytes = 96,
      .n_layers = 2,
      .layers = latent_layers,
      .replicated = true },
    { .name = "k", .row_bytes = 10, .page_bytes = 40 },
    { .name = "index", .row_bytes = 3, .page_bytes = 12, .replicated = true },
};
static const weir_shape mixed = { BRAIN_TOKENS, 3, 3, mixed_tensors };

static const weir_tensor mla_tensors[] = {
    { .name = "latent", .row_bytes = 576, .page_bytes = 2304, .replicated = true },
};
static const weir_shape mla = { BRAIN_TOKENS, 2, 1, mla_tensors };

static weir_rank_params params_of(const weir_shape *shape, weir_host_layout layout,
                                  weir_host_share *share)
{
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = shape;
    params.device_pages = DEVICE_PAGES;
    params.host_pages = HOST_PAGES;
    params.host_layout = layout;
    params.segment_pages = 8;
    params.touch_threads = 1;
    params.share = share;
    return params;
}

struct team {
    struct hand hands[RANKS];
    weir_host_share *share;
    uint32_t n;
    bool one_device;
    struct brain brain;
};

static void team_open(struct team *team, const weir_shape *shape, weir_host_layout layout,
                      uint32_t n, bool one_device, uint64_t seed)
{
    *team = (struct team){ .n = n, .one_device = one_device };
    cr_assert(zero(int, weir_host_share_create(&team->share, n, NULL)));
    weir_rank_params params = params_of(shape, layout, team->share);
    for (uint32_t i = 0; i < n; i++) {
        weir_device *device = i > 0 && one_device ? team->hands[0].device : NULL;
        uint64_t own_seed = seed ? seed + i : 0;
        cr_assert(zero(int, hand_open(&team->hands[i], device, own_seed, params, i)), "%s",
                  team->hands[i].log.last);
    }
    brain_open(&team->brain, seed + 77, n, DEVICE_PAGES, HOST_PAGES);
}

static void team_close(struct team *team)
{
    brain_close(&team->brain);
    for (uint32_t i = 0; i < team->n; i++)
        hand_close(&team->hands[i]);
    weir_host_share_close(&team->share);
    for (uint32_t i = 0; i < team->n; i++)
        if (i == 0 || !team->one_device)
            cr_assert(zero(int, weir_device_close(&team->hands[i].device)));
    if (__lsan_do_recoverable_leak_check)
        cr_assert(zero(int, __lsan_do_recoverable_leak_check()));
}

/* Carries what rank i has to report. */
static void carry(struct team *team, uint32_t i)
{
    uint64_t report[256];
    size_t bytes;
    cr_assert(zero(int, weir_rank_report(team->hands[i].rank, report, sizeof report, &bytes)));
    if (bytes)
        brain_report(&team->brain, i, report, bytes);
}

static void run_all(struct team *team)
{
    for (uint32_t i = 0; i < team->n; i++) {
        struct hand *hand = &team->hands[i];
        hand_run(hand);
        (void)weir_cpu_stream_synchronize(hand->device, hand->stream);
        (void)weir_rank_synchronize(hand->rank);
        carry(team, i);
    }
}

static void give_order(struct team *team)
{
    struct brain *b = &team->brain;
    for (uint32_t i = 0; i < team->n; i++) {
        int rc;
        while ((rc = hand_step(&team->hands[i], b->order, b->order_bytes, b->works, b->n_works)) ==
                   -EBUSY ||
               rc == -EAGAIN)
            carry(team, i), hand_run(&team->hands[i]), sched_yield();
        cr_assert(zero(int, rc), "%s", team->hands[i].log.last);
    }
}

/* Empty steps until nothing is in flight and no write-back waits. */
static void settle(struct team *team)
{
    for (int i = 0; i < 24; i++) {
        run_all(team);
        run_all(team); /* what the first has let start */
        brain_poll(&team->brain);
        if (i < 20 && brain_step(&team->brain, 0))
            give_order(team);
    }
    weir_stats stats = brain_stats(&team->brain);
    cr_assert(zero(u64, stats.orders_in_flight));
    cr_assert(zero(u64, stats.write_backs_in_flight));
}

static void expect_right(struct team *team)
{
    for (uint32_t i = 0; i < team->n; i++) {
        struct hand *hand = &team->hands[i];
        cr_assert(zero(u64, hand->wrong), "rank %u", i);
        cr_assert(hand->looked > 0);
        cr_assert(zero(u64, weir_cpu_device_races(hand->device)), "%s", hand->log.last);
    }
}

static void random_steps(struct team *team, int n)
{
    struct random *random = &team->brain.random;
    for (int step = 0; step < n; step++) {
        if (brain_step(&team->brain, 1 + random_below(random, 2)))
            give_order(team);
        else
            run_all(team);
        for (uint32_t i = 0; i < 2 * team->n; i++) {
            uint32_t rank = random_below(random, team->n);
            weir_cpu_device_run(team->hands[rank].device, random_below(random, 30));
            if (random_percent(random, 60))
                carry(team, rank);
        }
        brain_poll(&team->brain);
    }
}

/* ---- It works ------------------------------------------------------------- */

static void run_team(const weir_shape *shape, weir_host_layout layout, uint32_t n, bool one_device,
                     uint64_t seed)
{
    struct team team;
    team_open(&team, shape, layout, n, one_device, seed);
    random_steps(&team, 60);
    settle(&team);
    expect_right(&team);
    weir_stats stats = brain_stats(&team.brain);
    cr_assert(seed == 0 || stats.loaded_pages > 5); /* threads may be slow */
    cr_assert(zero(u64, stats.load_failed_pages + stats.write_failed_pages));
    team_close(&team);
}

Test(host_share, every_layout_on_devices_of_their_own_and_on_one)
{
    for (int layout = 0; layout < 4; layout++)
        for (uint64_t seed = 1; seed <= 6; seed++)
            run_team(&mixed, (weir_host_layout)layout, 2 + (uint32_t)(seed % 2), seed > 3, seed);
}

Test(host_share, a_model_of_nothing_but_latents)
{
    for (int layout = 0; layout < 4; layout++)
        run_team(&mla, (weir_host_layout)layout, RANKS, layout % 2, 20 + (uint64_t)layout);
}

Test(host_share, with_threads)
{
    run_team(&mixed, WEIR_HOST_SEGMENTED, RANKS, false, 0);
    run_team(&mla, WEIR_HOST_PAGE_FIRST, 2, true, 0);
}

Test(host_share, the_copy_is_there_once)
{
    struct team team;
    team_open(&team, &mla, WEIR_HOST_SEGMENTED, RANKS, false, 1);
    for (uint32_t i = 0; i < RANKS; i++) {
        weir_rank_memory memory;
        weir_rank_get_memory(team.hands[i].rank, &memory);
        cr_assert(zero(u64, memory.host_pool_bytes));
        cr_assert(ge(u64, memory.shared_host_bytes, 2 * 2304 * HOST_PAGES));
        cr_assert(eq(u64, team.hands[i].rank->geometry->shared.base,
                     team.hands[0].rank->geometry->shared.base));
    }
    team_close(&team);
}

/* ---- When a copy counts --------------------------------------------------- */

/* Of the pages of an order's write-back, those whose replicated bytes are on the
 * host: bit i for the i-th in the order of device pages. */
static uint64_t on_host(const struct team *team, const weir_order *order)
{
    const struct hand *hand = &team->hands[0];
    const struct weir_geometry *g = hand->rank->geometry;
    uint64_t set = 0;
    for (uint32_t i = 0; i < order->n_writes; i++) {
        uint32_t place = 0;
        for (uint32_t k = 0; k < order->n_writes; k++)
            place += order->writes[k].device.id < order->writes[i].device.id;
        uint64_t content = 0;
        for (size_t k = 0; k < team->brain.n_works; k++)
            if (team->brain.works[k].page == order->writes[i].device.id)
                content = team->brain.works[k].content;
        bool there = true;
        for (uint32_t t = 0; t < g->n_tensors; t++) {
            for (uint32_t layer = 0; layer < g->n_layers; layer++) {
                if (!g->tensors[t].shared || g->layer_index[t * g->n_layers + layer] < 0)
                    continue;
                const unsigned char *piece = (const unsigned char *)(uintptr_t)weir_geometry_host(
                    g, t, layer, order->writes[i].host, 0);
                for (uint64_t at = 0; at < g->tensors[t].page_bytes; at++)
                    there = there && piece[at] == hand_byte(hand, content, t, layer, at);
            }
        }
        set |= (uint64_t)there << place;
    }
    return set;
}

/* A step that computes pages and writes them back. */
static weir_order write_some(struct team *team)
{
    weir_order order = { 0 };
    do {
        run_all(team);
        cr_assert(brain_step(&team->brain, 2));
        cr_assert(
            zero(int, weir_order_decode(&order, team->brain.order, team->brain.order_bytes, NULL)));
        give_order(team);
    } while (order.n_writes < RANKS);
    return order;
}

Test(host_share, each_writes_a_block_and_the_copy_counts_when_all_have)
{
    struct team team;
    team_open(&team, &mixed, WEIR_HOST_SEGMENTED, RANKS, false, 3);
    /* The last one's own tensors are the first layer of its write-backs. */
    cr_assert(
        zero(int, weir_cpu_device_stall(team.hands[2].device, WEIR_CPU_CALL_COPY_WRITE_BACK, 1)));
    weir_order order = write_some(&team);
    run_all(&team);
    cr_assert(le(u32, order.n_writes, 60));
    uint32_t begin, end;
    weir_engine_my_block(&team.hands[2].rank->engine, order.n_writes, order.write_ticket, &begin,
                         &end);
    cr_assert(lt(u32, begin, end));
    uint64_t all = (UINT64_C(1) << order.n_writes) - 1;
    uint64_t missing = ((UINT64_C(1) << end) - 1) & ~((UINT64_C(1) << begin) - 1);
    cr_assert(eq(u64, on_host(&team, &order), all & ~missing));
    cr_assert(zero(u64, brain_stats(&team.brain).written_pages));

    weir_cpu_device_release(team.hands[2].device);
    run_all(&team);
    cr_assert(eq(u64, on_host(&team, &order), all));
    cr_assert(eq(u64, brain_stats(&team.brain).written_pages, order.n_writes));
    random_steps(&team, 30);
    settle(&team);
    expect_right(&team);
    team_close(&team);
}

Test(host_share, a_write_back_that_one_rank_fails_is_nobodys_copy)
{
    /* 3 layers of the rank's own tensors, then 3 of the share's. */
    for (uint64_t call = 1; call <= 6; call++) {
        struct team team;
        team_open(&team, &mixed, WEIR_HOST_LAYER_FIRST, 2, call % 2, call);
        cr_assert(zero(int, weir_cpu_device_fail(team.hands[1].device,
                                                 WEIR_CPU_CALL_COPY_WRITE_BACK, call, -EIO)));
        weir_order order = write_some(&team);
        run_all(&team);
        run_all(&team);
        weir_stats stats = brain_stats(&team.brain);
        cr_assert(eq(u64, stats.write_failed_pages, order.n_writes));
        cr_assert(zero(u64, stats.written_pages));
        random_steps(&team, 30);
        settle(&team);
        expect_right(&team);
        cr_assert(brain_stats(&team.brain).loaded_pages > 0);
        team_close(&team);
    }
}

/* Rank 1 loads what rank 0 has not reported: no cache orders that. The race check
 * sees it only because both name the same pool. */
Test(host_share, the_race_check_sees_one_pool)
{
    struct team team;
    team_open(&team, &mla, WEIR_HOST_SEGMENTED, 2, true, 5);
    weir_move move = { { 1 }, { 1 } };
    for (uint32_t i = 0; i < 2; i++) {
        weir_order order = { .step = 1, .device_pages = DEVICE_PAGES, .host_pages = HOST_PAGES };
        order.write_ticket = i == 0 ? 1 : 0; /* of one page: the first of two ranks' */
        order.n_writes = i == 0;
        order.n_loads = i == 1;
        order.writes = order.loads = &move;
        uint64_t bytes[64];
        size_t n;
        cr_assert(zero(int, weir_order_encode(&order, bytes, sizeof bytes, &n, NULL)));
        cr_assert(zero(int, hand_step(&team.hands[i], bytes, n, NULL, 0)), "%s",
                  team.hands[i].log.last);
    }
    hand_run(&team.hands[0]);
    cr_assert(weir_cpu_device_races(team.hands[0].device) > 0);
    team_close(&team);
}

/* ---- Refused -------------------------------------------------------------- */

static void refused(struct team *team, weir_rank_params params, int want, const char *line)
{
    struct hand hand;
    int rc = hand_open(&hand, NULL, 1, params, 1);
    cr_assert(eq(int, rc, want), "%s", hand.log.last);
    cr_assert(ne(ptr, strstr(hand.log.last, line), NULL), "%s", hand.log.last);
    hand_close(&hand);
    cr_assert(zero(int, weir_device_close(&hand.device)));
    cr_assert(eq(u64, team->share->open, 1));
    cr_assert(eq(u32, team->share->n_devices, 1));
}

Test(host_share, what_lies_otherwise_is_refused)
{
    struct team team = { .n = 1 };
    cr_assert(zero(int, weir_host_share_create(&team.share, 2, NULL)));
    weir_rank_params good = params_of(&mixed, WEIR_HOST_SEGMENTED, team.share);
    cr_assert(zero(int, hand_open(&team.hands[0], NULL, 1, good, 0)));

    weir_tensor tensors[4];
    weir_shape shape = { BRAIN_TOKENS, 3, 3, tensors };
    weir_rank_params bad = good;
    bad.shape = &shape;
    static const uint32_t other_layers[] = { 1, 2 };
    memcpy(tensors, mixed_tensors, sizeof mixed_tensors);
    tensors[0].layers = other_layers;
    refused(&team, bad, -EINVAL, "the same layers");
    memcpy(tensors, mixed_tensors, sizeof mixed_tensors);
    tensors[2].row_bytes = 0; /* opaque, of the same size */
    refused(&team, bad, -EINVAL, "tensors[2]");
    memcpy(tensors, mixed_tensors, sizeof mixed_tensors);
    tensors[2].replicated = false;
    refused(&team, bad, -EINVAL, "1 tensors are replicated");
    tensors[0].replicated = false;
    refused(&team, bad, -EINVAL, "0 tensors");
    memcpy(tensors, mixed_tensors, sizeof mixed_tensors);
    tensors[3] = tensors[2];
    shape.n_tensors = 4;
    refused(&team, bad, -EINVAL, "tensors[3]");

    bad = good;
    bad.host_pages--;
    refused(&team, bad, -EINVAL, "host_pages");
    bad = good;
    bad.host_layout = WEIR_HOST_LAYER_FIRST;
    refused(&team, bad, -EINVAL, "layer_first");
    bad = good;
    bad.segment_pages = 4;
    refused(&team, bad, -EINVAL, "segment_pages");
    bad = good;
    bad.host_bytes_limit = 8192; /* its own pool takes all of it */
    refused(&team, bad, -ENOSPC, "host_bytes_limit");

    /* Other tensors of its own are no matter, and do not change the segments. */
    memcpy(tensors, mixed_tensors, sizeof mixed_tensors);
    tensors[1].row_bytes = 1000;
    tensors[1].page_bytes = 4000;
    shape.n_tensors = 3;
    bad = good;
    bad.shape = &shape;
    cr_assert(zero(int, hand_open(&team.hands[1], NULL, 1, bad, 1)), "%s", team.hands[1].log.last);
    struct hand third;
    cr_assert(eq(int, hand_open(&third, team.hands[0].device, 1, good, 2), -EINVAL));
    cr_assert(ne(ptr, strstr(third.log.last, "2 ranks, which are open"), NULL));
    hand_close(&third);
    hand_close(&team.hands[0]);
    hand_close(&team.hands[1]);
    weir_host_share_close(&team.share);
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_device_close(&team.hands[i].device)));
}

/* Launches that a device can make of all tensors together, but not of those that lie in
 * the share, or not of the others. */
static uint32_t launchable;

static int prepare_whatever(weir_device *device, const struct weir_geometry *geometry,
                            uint32_t max_runs, void **state)
{
    (void)device;
    (void)max_runs;
    memcpy(state, &geometry, sizeof *state);
    return 0;
}

static int tune_some(weir_device *device, const void *state, enum weir_direction direction,
                     const weir_transfer_tuning *tuning)
{
    (void)device;
    const struct weir_geometry *geometry = state;
    return direction == WEIR_LOAD || !tuning->stages || launchable >> geometry->n_tensors & 1
               ? 0
               : -EINVAL;
}

Test(host_share, a_tuning_must_do_for_each_part)
{
    weir_rank_params params = params_of(&mixed, WEIR_HOST_SEGMENTED, NULL);
    params.write_back.stages = 3;
    cr_assert(zero(int, weir_host_share_create(&params.share, 1, NULL)));
    weir_device *device;
    cr_assert(zero(int, weir_cpu_device_open(&device, NULL)));
    struct weir_device_ops ops = *device->ops;
    ops.transfer_prepare = prepare_whatever;
    ops.transfer_tune = tune_some;
    device->ops = &ops;
    for (launchable = 0; launchable < 16; launchable += 2) { /* of 1, 2 and 3 tensors */
        struct hand hand;
        int rc = hand_open(&hand, device, 1, params, 0);
        cr_assert(eq(int, rc, launchable == 14 ? 0 : -EINVAL));
        hand_close(&hand);
    }
    weir_host_share_close(&params.share);
    cr_assert(zero(int, weir_device_close(&device)));
}

Test(host_share, nothing_begins_before_all_are_open)
{
    struct team team = { .n = 2 };
    cr_assert(zero(int, weir_host_share_create(&team.share, 2, NULL)));
    weir_rank_params params = params_of(&mixed, WEIR_HOST_SEGMENTED, team.share);
    brain_open(&team.brain, 9, 2, DEVICE_PAGES, HOST_PAGES);
    cr_assert(zero(int, hand_open(&team.hands[0], NULL, 1, params, 0)));
    cr_assert(brain_step(&team.brain, 1));
    struct brain *b = &team.brain;
    cr_assert(eq(int, hand_step(&team.hands[0], b->order, b->order_bytes, b->works, b->n_works),
                 -EINVAL));
    cr_assert(ne(ptr, strstr(team.hands[0].log.last, "2 ranks"), NULL));

    /* One that has joined and could not open has not been open. */
    weir_device *device;
    cr_assert(zero(int, weir_cpu_device_open(&device, NULL)));
    cr_assert(zero(int, weir_cpu_device_fail(device, WEIR_CPU_CALL_EVENT_CREATE, 1, -EIO)));
    cr_assert(eq(int, hand_open(&team.hands[1], device, 1, params, 1), -EIO));
    hand_close(&team.hands[1]);
    cr_assert(eq(int, hand_step(&team.hands[0], b->order, b->order_bytes, b->works, b->n_works),
                 -EINVAL));
    cr_assert(zero(int, weir_device_close(&device)));

    cr_assert(zero(int, hand_open(&team.hands[1], NULL, 1, params, 1)));
    give_order(&team);
    random_steps(&team, 20);
    settle(&team);
    expect_right(&team);
    team_close(&team);
}

Test(host_share, arguments)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    weir_host_share *share = NULL;
    cr_assert(eq(int, weir_host_share_create(NULL, 1, &log), -EINVAL));
    cr_assert(eq(int, weir_host_share_create(&share, 0, &log), -EINVAL));
    cr_assert(eq(int, weir_host_share_create(&share, WEIR_MAX_SHARE_RANKS + 1, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "must be 1..64"), NULL));
    cr_assert(zero(ptr, share));
    weir_host_share_close(&share);
    weir_host_share_close(NULL);
    cr_assert(zero(int, weir_host_share_create(&share, WEIR_MAX_SHARE_RANKS, NULL)));
    weir_host_share_close(&share);
    cr_assert(zero(ptr, share));
}

/* ---- Opening and closing -------------------------------------------------- */

Test(host_share, closes_in_any_order)
{
    static const int orders[][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 1, 3, 0, 2 },
                                     { 2, 0, 3, 1 }, { 3, 0, 1, 2 }, { 1, 2, 0, 3 } };
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        struct team team;
        team_open(&team, &mixed, WEIR_HOST_SEGMENTED, RANKS, false, o + 1);
        random_steps(&team, 10);
        settle(&team);
        brain_close(&team.brain);
        uint32_t n_open = RANKS;
        for (int i = 0; i < 4; i++) {
            int what = orders[o][i];
            if (what == RANKS) {
                weir_host_share_close(&team.share);
                continue;
            }
            hand_close(&team.hands[what]);
            n_open--;
            /* The memory is pinned for this device as long as another uses it. */
            cr_assert(eq(int, weir_device_close(&team.hands[what].device), n_open ? -EBUSY : 0));
        }
        for (int i = 0; i < RANKS; i++)
            cr_assert(zero(int, weir_device_close(&team.hands[i].device)));
        if (__lsan_do_recoverable_leak_check)
            cr_assert(zero(int, __lsan_do_recoverable_leak_check()));
    }
}

Test(host_share, a_rank_that_opens_again_gets_its_place)
{
    struct team team;
    team_open(&team, &mla, WEIR_HOST_SEGMENTED, RANKS, false, 2);
    weir_device *device = team.hands[1].device;
    hand_close(&team.hands[1]);
    cr_assert(eq(u64, team.share->open, 5));
    weir_rank_params params = params_of(&mla, WEIR_HOST_SEGMENTED, team.share);
    cr_assert(zero(int, hand_open(&team.hands[1], device, 0, params, 1)));
    cr_assert(eq(u32, team.hands[1].rank->engine.share_index, 1));
    random_steps(&team, 20);
    settle(&team);
    expect_right(&team);
    team_close(&team);
}

Test(host_share, a_device_that_refuses_leaves_the_others_alone)
{
    for (int which = 0; which < 2; which++) {
        struct team team = { .n = 1 };
        cr_assert(zero(int, weir_host_share_create(&team.share, 1 + (uint32_t)which, NULL)));
        weir_rank_params params = params_of(&mla, WEIR_HOST_SEGMENTED, team.share);
        if (which == 1)
            cr_assert(zero(int, hand_open(&team.hands[0], NULL, 1, params, 0)));
        weir_device *device;
        cr_assert(zero(int, weir_cpu_device_open(&device, NULL)));
        for (uint64_t n = 1; n <= 8; n++) /* by halves, each refused */
            cr_assert(
                zero(int, weir_cpu_device_fail(device, WEIR_CPU_CALL_HOST_REGISTER, n, -ENOMEM)));
        struct hand hand;
        cr_assert(eq(int, hand_open(&hand, device, 0, params, 1), -ENOMEM));
        hand_close(&hand);
        cr_assert(eq(u64, team.share->open, which));
        cr_assert(eq(u32, team.share->n_devices, (uint32_t)which));
        cr_assert(eq(int, team.share->memory != NULL, which));
        weir_cpu_device_release(device);
        cr_assert(zero(int, hand_open(&hand, device, 0, params, 1)), "%s", hand.log.last);
        hand_close(&hand);
        if (which == 1)
            hand_close(&team.hands[0]);
        cr_assert(zero(int, weir_device_close(&device)));
        weir_host_share_close(&team.share);
        if (which == 1)
            cr_assert(zero(int, weir_device_close(&team.hands[0].device)));
    }
}
