/* SPDX-License-Identifier: Apache-2.0 */

/* What is given to the driver, and how often: write-backs of a whole batch are one
 * transfer, pages that lie together are one copy a layer and tensor, and what a
 * layer has goes in one call. Counted, not timed. */

#include "cuda_server.h"

/* ---- The driver's calls ---------------------------------------------------------- */

struct counts {
    uint32_t calls;  /* of any copying function */
    uint64_t copies; /* in them */
};

static struct counts count_copies(const struct fake_cuda *fake)
{
    struct counts counts = { 0 };
    for (uint32_t i = 0; i < fake->n_calls; i++) {
        const struct fake_call *call = &fake->calls[i];
        bool batch = call->function == FAKE_cuMemcpyBatchAsync;
        bool one = call->function == FAKE_cuMemcpyAsync || call->function == FAKE_cuMemcpy2DAsync;
        counts.calls += batch || one;
        counts.copies += batch ? call->arguments[0] : one;
    }
    return counts;
}

/* Two tensors on three layers, one of them on two. */
enum {
    PIECES = 5
};

static struct counts copy_runs(struct cuda_rig *rig, struct cuda_pools *pools,
                               const struct weir_run *runs, uint32_t n_runs,
                               enum weir_direction direction)
{
    struct weir_transfer transfer = pools_transfer(pools, runs, n_runs, direction);
    uint32_t enqueued;
    rig->fake->n_calls = 0;
    cr_assert(zero(int, rig->ops->copy(rig->device, rig->stream, &transfer, &enqueued)));
    struct counts counts = count_copies(rig->fake);
    rig_run(rig);
    pools_check_copy(pools, &transfer);
    return counts;
}

static void open_pools(struct cuda_rig *rig, struct cuda_pools *pools, weir_host_layout layout)
{
    struct random random = { 4 };
    rig_open_device(rig);
    pools_open(rig, pools, &server_shape, layout, false, 0, &random);
}

/* However many pages: a call a layer, and as many copies as there are runs. */
Test(copies_are_few, a_run_is_one_copy)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    open_pools(&rig, &pools, WEIR_HOST_LAYER_FIRST);
    for (int32_t n = 1; n <= (int32_t)RIG_PAGES; n++)
        for (int direction = 0; direction < 2; direction++) {
            const struct weir_run run = { 1, (int32_t)RIG_PAGES + 1 - n, n };
            struct counts counts = copy_runs(&rig, &pools, &run, 1, (enum weir_direction)direction);
            cr_assert(eq(u32, counts.calls, SERVER_LAYERS));
            cr_assert(eq(u64, counts.copies, PIECES));
        }
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* Pages that lie apart are more copies, in the same calls. */
Test(copies_are_few, scattered_pages_share_a_call)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    open_pools(&rig, &pools, WEIR_HOST_LAYER_FIRST);
    struct weir_run runs[8];
    for (uint32_t n = 1; n <= 8; n++) {
        runs[n - 1] = (struct weir_run){ (int32_t)(3 * n - 2), (int32_t)(25 - 3 * n), 1 };
        struct counts counts = copy_runs(&rig, &pools, runs, n, WEIR_LOAD);
        cr_assert(eq(u32, counts.calls, SERVER_LAYERS));
        cr_assert(eq(u64, counts.copies, PIECES * n));
    }
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* Moves come in any order, and neighbours are found all the same. */
Test(copies_are_few, neighbours_are_found_in_any_order)
{
    struct cuda_rig rig = { 0 };
    struct cuda_pools pools;
    struct random random = { 8 };
    open_pools(&rig, &pools, WEIR_HOST_LAYER_FIRST);
    for (int round = 0; round < 20; round++) {
        weir_move moves[12];
        struct weir_run runs[12];
        for (int32_t i = 0; i < 12; i++)
            moves[i] = (weir_move){ { 5 + i }, { 9 + i } };
        for (uint32_t i = 11; i > 0; i--) {
            uint32_t k = random_below(&random, i + 1);
            weir_move move = moves[i];
            moves[i] = moves[k];
            moves[k] = move;
        }
        uint32_t n_runs = weir_plan_runs(pools.geometry, moves, 12, runs);
        struct counts counts = copy_runs(&rig, &pools, runs, n_runs, WEIR_WRITE_BACK);
        cr_assert(eq(u64, counts.copies, PIECES));
    }
    pools_close(&rig, &pools);
    rig_close_device(&rig);
}

/* ---- Orders ------------------------------------------------------------------------ */

enum {
    BATCH = 24
};

/* A batch finishes at once: one order, one write-back of all pages, and nothing is
 * asked of any device by closing them. */
Test(copies_are_few, a_batch_of_write_backs_is_one)
{
    weir_cache *cache;
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = 4;
    params.device_pages = 4 * BATCH;
    params.host_pages = 4 * BATCH;
    params.max_seqs = BATCH;
    cr_assert(zero(int, weir_cache_create(&cache, &params)));
    weir_seq seqs[BATCH];
    weir_step step;
    for (int32_t i = 0; i < BATCH; i++) {
        int32_t tokens[9];
        for (int32_t at = 0; at < 9; at++)
            tokens[at] = i * 100 + at;
        const weir_key key = { .tokens = tokens, .n_tokens = 9 };
        weir_request request;
        weir_request_init(&request);
        request.total_tokens = 9;
        cr_assert(zero(int, weir_seq_open(&seqs[i], cache, &key, NULL)));
        cr_assert(zero(int, weir_seq_reserve(seqs[i], &request, NULL)));
    }
    uint64_t tickets = 0;
    uint32_t n_writes = 0;
    for (int round = 0; round < 2; round++) {
        const void *bytes;
        size_t n;
        weir_order order;
        cr_assert(zero(int, weir_step_begin(&step, cache)));
        for (int i = 0; i < BATCH && round == 0; i++) {
            cr_assert(zero(int, weir_step_add(step, seqs[i])));
            cr_assert(zero(int, weir_seq_commit(seqs[i], NULL, 8)));
        }
        cr_assert(zero(int, weir_step_end(&step, &bytes, &n)));
        cr_assert(zero(int, weir_order_decode(&order, bytes, n, NULL)));
        tickets += order.write_ticket != 0;
        n_writes += order.n_writes;
        for (int i = 0; i < BATCH && round == 0; i++)
            cr_assert(zero(int, weir_seq_close(&seqs[i])));
        uint64_t report[16];
        size_t report_bytes;
        cr_assert(zero(
            int, weir_order_acknowledge(bytes, n, report, sizeof report, &report_bytes, NULL)));
        cr_assert(zero(int, weir_cache_report(cache, 0, report, report_bytes)));
    }
    cr_assert(eq(u64, tickets, 1));
    cr_assert(eq(u32, n_writes, 2 * BATCH));
    cr_assert(zero(int, weir_cache_destroy(&cache)));
}

/* And of the driver: the copies of what one order asks for, in a call a layer. */
Test(copies_are_few, an_order_is_a_call_a_layer)
{
    struct server s;
    server_open(&s, 17, 40, WEIR_HOST_LAYER_FIRST);
    s.rig.fake->n_calls = 0;
    server_serve(&s, "ABCDEFGHIJKLMNOP");
    struct counts written = count_copies(s.rig.fake);
    cr_assert(eq(u32, written.calls, SERVER_LAYERS));
    cr_assert(eq(u64, written.copies, PIECES));
    server_serve(&s, "QRSTUVWXYZqrstuv");
    s.rig.fake->n_calls = 0;
    weir_hit hit = server_serve(&s, "ABCDEFGHIJKLMNOP");
    struct counts loaded = count_copies(s.rig.fake);
    cr_assert(eq(sz, hit.n_host, 16 * SERVER_TOKENS));
    cr_assert(eq(u32, loaded.calls, SERVER_LAYERS));
    cr_assert(eq(u64, loaded.copies, PIECES));
    server_settle(&s);
    server_close(&s);
    rig_check_clean(s.rig.fake);
}
