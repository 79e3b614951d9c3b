/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_random.h"

static const weir_host_layout layouts[] = { WEIR_HOST_SEGMENTED, WEIR_HOST_LAYER_FIRST,
                                            WEIR_HOST_PAGE_FIRST, WEIR_HOST_PAGE_FIRST_DIRECT };
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

static const uint32_t first_layers[] = { 0, 2 };
static const uint32_t last_layer[] = { 3 };

/* K and V; a latent; a latent with index keys on some layers and a tensor that
 * no layer before the last has; one layer of one byte. */
static const weir_tensor kv[] = { { .page_bytes = 4 * 24, .row_bytes = 24 },
                                  { .page_bytes = 4 * 24, .row_bytes = 24 } };
static const weir_tensor latent[] = { { .page_bytes = 8 * 36, .row_bytes = 36 } };
static const weir_tensor mixed[] = {
    { .page_bytes = 2 * 33, .row_bytes = 33 },
    { .page_bytes = 2 * 5, .row_bytes = 5, .layers = first_layers, .n_layers = 2 },
    { .page_bytes = 2 * 7, .row_bytes = 7, .layers = last_layer, .n_layers = 1 },
};
static const weir_tensor tiny[] = { { .page_bytes = 1, .row_bytes = 1 } };
static const weir_shape shapes[] = {
    { .page_tokens = 4, .n_layers = 3, .n_tensors = 2, .tensors = kv },
    { .page_tokens = 8, .n_layers = 2, .n_tensors = 1, .tensors = latent },
    { .page_tokens = 2, .n_layers = 4, .n_tensors = 3, .tensors = mixed },
    { .page_tokens = 1, .n_layers = 1, .n_tensors = 1, .tensors = tiny },
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

/* ---- Random steps --------------------------------------------------------- */

static void random_steps(uint64_t seed, const weir_rank_params *params, unsigned n_steps)
{
    struct world *w = world_open(seed, params);
    for (unsigned i = 0; i < n_steps; i++) {
        cr_assert(world_random_step(w));
        world_run_a_little(w);
        if (!w->seeded && i % 5 == 4)
            world_settle(w);
    }
    world_expect_right(w);
    uint32_t loads = 0;
    uint32_t writes = 0;
    for (uint64_t step = 1; step <= w->newest; step++) {
        loads += w->steps[step].n_loads;
        writes += w->steps[step].n_writes;
        cr_assert(zero(int, w->steps[step].load_rc));
        cr_assert(zero(int, w->steps[step].write_rc));
    }
    cr_assert(ge(u32, loads, n_steps / 4));
    cr_assert(ge(u32, writes, n_steps / 4));
    world_close(w);
}

Test(rank, random_steps_threads)
{
    for (size_t l = 0; l < N_LAYOUTS; l++)
        for (size_t s = 0; s < N_SHAPES; s++) {
            weir_rank_params params = world_params(&shapes[s], layouts[l]);
            random_steps(0, &params, 60);
        }
    check_leaks();
}

Test(rank, random_steps_seeds)
{
    for (uint64_t seed = 1; seed <= 48; seed++) {
        weir_rank_params params = world_params(&shapes[seed % N_SHAPES], layouts[seed / 4 % 4]);
        params.max_steps = 1 + (uint32_t)(seed * 7 % 64);
        params.n_slots = seed % 3 ? 0 : 1 + (uint32_t)(seed % 5);
        random_steps(seed, &params, 60);
    }
    check_leaks();
}

Test(rank, generations_wrap)
{
    for (uint64_t seed = 0; seed <= 4; seed++) {
        weir_rank_params params = world_params(&shapes[0], WEIR_HOST_SEGMENTED);
        params.n_slots = 2;
        struct world *w = world_open(seed, &params);
        weir_engine_start_at(&w->rank->engine, UINT32_MAX - 20);
        for (unsigned i = 0; i < 300; i++) {
            cr_assert(world_random_step(w));
            world_run_a_little(w);
        }
        world_expect_right(w);
        cr_assert(lt(u32, w->rank->engine.generations[0], 1000));
        cr_assert(lt(u64, UINT32_MAX, w->rank->engine.lanes[WEIR_LOAD].done));
        world_close(w);
    }
}

/* ---- What waits for what -------------------------------------------------- */

static struct world *small_world(uint64_t seed)
{
    weir_rank_params params = world_params(&shapes[0], WEIR_HOST_SEGMENTED);
    return world_open(seed, &params);
}

Test(rank, load_waits_for_the_last_use_of_its_target_only)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world *w = small_world(seed);
        for (int32_t p = 1; p <= 2; p++)
            world_make_page(w, p, w->streams[0]);
        world_settle(w);
        uint64_t content[] = { w->pages[1].content, w->pages[2].content };

        /* Step 3 reads page 3 in a stream that stands still. */
        world_make_page(w, 3, w->streams[0]);
        world_settle(w);
        weir_cpu_stream_park(w->device, w->streams[0]);
        uint64_t user = world_begin(w, (weir_order){ 0 }, w->streams[0]);
        world_read_page(w, user, 3, w->pages[3].content, 0);
        world_end(w, user);

        weir_move unrelated = { { 4 }, { 1 } };
        weir_move related = { { 3 }, { 2 } };
        uint64_t free_load =
            world_begin(w, (weir_order){ .n_loads = 1, .loads = &unrelated }, w->streams[1]);
        world_read_page(w, free_load, 4, content[0], free_load);
        world_end(w, free_load);
        uint64_t bound_load = world_begin(
            w,
            (weir_order){
                .n_loads = 1, .loads = &related, .n_load_fences = 1, .load_fences = &user },
            w->streams[1]);
        world_read_page(w, bound_load, 3, content[1], bound_load);
        world_end(w, bound_load);

        world_settle(w);
        cr_assert(w->steps[free_load].load_reported);
        cr_assert(w->steps[free_load].reported);
        cr_assert(not(w->steps[bound_load].load_reported));
        cr_assert(not(w->steps[bound_load].reported));
        cr_assert(not(w->steps[user].reported));
        weir_cpu_stream_release(w->device, w->streams[0]);
        world_expect_right(w);
        world_close(w);
    }
}

Test(rank, loads_are_never_behind_write_backs)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        world_make_page(w, 1, w->streams[0]);
        world_settle(w);
        cr_assert(eq(int, weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_WRITE_BACK, 1), 0));
        world_make_page(w, 2, w->streams[0]);

        weir_move load = { { 3 }, { 1 } };
        uint64_t step = world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[1]);
        world_read_page(w, step, 3, w->pages[1].content, step);
        world_end(w, step);
        cr_assert(eq(int, weir_cpu_stream_synchronize(w->device, w->streams[1]), 0));
        if (w->seeded)
            world_settle(w);
        else
            world_report(w, 20);
        cr_assert(w->steps[step].reported);
        cr_assert(not(w->steps[2].write_reported));
        weir_cpu_device_release(w->device);
        world_expect_right(w);
        world_close(w);
    }
}

Test(rank, write_back_starts_after_the_end_of_its_step)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        weir_cpu_stream_park(w->device, w->streams[0]);
        world_make_page(w, 1, w->streams[0]);
        world_settle(w);
        cr_assert(not(w->steps[1].write_reported));
        weir_cpu_stream_release(w->device, w->streams[0]);
        world_settle(w);
        cr_assert(w->steps[1].write_reported);
        weir_move load = { { 2 }, { 1 } };
        uint64_t step = world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[1]);
        world_read_page(w, step, 2, w->pages[1].content, step);
        world_expect_right(w);
        world_close(w);
    }
}

Test(rank, write_back_waits_for_a_producer_that_ends_later)
{
    for (uint64_t seed = 0; seed <= 6; seed++) {
        struct world *w = small_world(seed);
        uint64_t producer = world_begin(w, (weir_order){ 0 }, w->streams[0]);
        for (uint32_t layer = 0; layer < w->shape->n_layers; layer++)
            world_launch(w, w->streams[0], 1, layer, 77, true);
        weir_move write = { { 1 }, { 5 } };
        uint64_t writer = world_begin(
            w,
            (weir_order){
                .n_writes = 1, .writes = &write, .n_write_fences = 1, .write_fences = &producer },
            w->streams[1]);
        w->pages[1].content = 77;
        world_end(w, writer);
        world_settle(w);
        cr_assert(w->steps[writer].reported);
        cr_assert(not(w->steps[writer].write_reported));
        cr_assert(zero(u64, weir_cpu_device_calls(w->device, WEIR_CPU_CALL_COPY_WRITE_BACK)));
        world_end(w, producer);
        world_expect_right(w);

        weir_move load = { { 2 }, { 5 } };
        uint64_t step = world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[1]);
        world_read_page(w, step, 2, 77, step);
        world_expect_right(w);
        world_close(w);
    }
}

Test(rank, joined_loads_arrive_layer_by_layer)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (uint32_t arrived = 0; arrived < shapes[0].n_layers; arrived++) {
            struct world *w = small_world(seed);
            world_make_page(w, 1, w->streams[0]);
            world_settle(w);
            cr_assert(
                eq(int, weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_LOAD, arrived + 1), 0));
            weir_move load = { { 2 }, { 1 } };
            uint64_t first =
                world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[0]);
            world_end(w, first);
            uint64_t second =
                world_begin(w, (weir_order){ .n_joins = 1, .joins = &first }, w->streams[1]);
            world_read_page(w, second, 2, w->pages[1].content, first);
            const struct world_kernel *kernels = w->kernels; /* the last layer's first */
            world_end(w, second);
            world_settle(w);
            cr_assert(w->steps[first].reported);
            cr_assert(not(w->steps[first].load_reported));
            cr_assert(not(w->steps[second].reported));
            for (uint32_t layer = shapes[0].n_layers; layer-- > 0; kernels = kernels->next)
                cr_assert(eq(int, kernels->ran, layer < arrived));
            weir_cpu_device_release(w->device);
            world_expect_right(w);
            world_close(w);
        }
}

Test(rank, a_join_outlives_its_load)
{
    struct world *w = small_world(5);
    world_make_page(w, 1, w->streams[0]);
    world_settle(w);
    weir_move load = { { 2 }, { 1 } };
    uint64_t first = world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[0]);
    uint64_t joined = world_begin(w, (weir_order){ .n_joins = 1, .joins = &first }, w->streams[1]);
    world_end(w, first);
    /* All records but the joined step's serve other steps meanwhile. */
    for (uint32_t i = 0; i + 2 < w->rank->fences.n; i++) {
        uint64_t step = world_begin(w, (weir_order){ 0 }, w->streams[0]);
        world_end(w, step);
        world_settle(w);
    }
    uint64_t last = world_begin(w, (weir_order){ 0 }, w->streams[0]);
    cr_assert(eq(u64, last, first + w->rank->fences.n));
    world_read_page(w, joined, 2, w->pages[1].content, first);
    world_expect_right(w);
    world_close(w);
}
