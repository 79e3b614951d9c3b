/* SPDX-License-Identifier: Apache-2.0 */

/* Checksums of host pages: a rank that finds a byte changed, and what the cache makes
 * of its report. */

#include "cache_rig.h"
#include "hands_rig.h"

enum {
    PAGES = 9,
    HOST_PAGES = 20,
    RANKS = 2
};

static const uint32_t some_layers[] = { 1, 2 };
static const weir_tensor tensors[] = {
    { .name = "k", .row_bytes = 10, .page_bytes = 40 },
    { .name = "latent",
      .row_bytes = 33,
      .page_bytes = 132,
      .n_layers = 2,
      .layers = some_layers,
      .replicated = true },
};
static const weir_shape shape = { 4, 3, 2, tensors };

struct bench {
    weir_host_share *share; /* NULL: one rank without */
    uint32_t n;
    struct hand hands[RANKS];
    uint64_t step;
    uint32_t calls; /* of weir_rank_report in the last step */
    uint32_t n_damaged[RANKS];
    int32_t damaged[RANKS][PAGES];
    int load_rc;
    int write_rc;
};

static void bench_open(struct bench *b, weir_host_layout layout, uint32_t checksums, uint32_t bytes,
                       bool share)
{
    *b = (struct bench){ .n = share ? RANKS : 1 };
    if (share)
        cr_assert(zero(int, weir_host_share_create(&b->share, RANKS, NULL)));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = PAGES + 3;
    params.host_pages = HOST_PAGES;
    params.host_layout = layout;
    params.segment_pages = 4;
    params.touch_threads = 1;
    params.share = b->share;
    params.checksums = checksums;
    params.checksum_bytes = bytes;
    for (uint32_t i = 0; i < b->n; i++)
        cr_assert(zero(int, hand_open(&b->hands[i], NULL, 1 + i, params, i)), "%s",
                  b->hands[i].log.last);
}

static void bench_close(struct bench *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        cr_assert(zero(u64, weir_cpu_device_races(b->hands[i].device)));
        hand_close(&b->hands[i]);
    }
    weir_host_share_close(&b->share);
    for (uint32_t i = 0; i < b->n; i++)
        cr_assert(zero(int, weir_device_close(&b->hands[i].device)));
    if (__lsan_do_recoverable_leak_check)
        cr_assert(zero(int, __lsan_do_recoverable_leak_check()));
}

static int32_t host_page(int32_t page)
{
    return HOST_PAGES - 2 * page + 1;
}

/* Takes the reports of a rank until nothing is left to come. */
static void take_reports(struct bench *b, uint32_t rank, uint32_t n_items)
{
    uint64_t report[64];
    for (uint32_t n = 0; n < n_items;) {
        size_t bytes, got;
        const weir_report_item *items;
        cr_assert(zero(int, weir_rank_report(b->hands[rank].rank, report, sizeof report, &bytes)));
        cr_assert(lt(u32, b->calls++, 20000));
        hand_run(&b->hands[rank]);
        if (bytes == 0)
            continue;
        cr_assert(zero(int, weir_report_decode(&items, &got, report, bytes, NULL)));
        for (size_t i = 0; i < got; i++) {
            if (items[i].kind == WEIR_REPORT_PAGE)
                b->damaged[rank][b->n_damaged[rank]++] = (int32_t)items[i].number;
            else
                n++;
            if (items[i].kind == WEIR_REPORT_LOAD)
                b->load_rc = items[i].rc;
            if (items[i].kind == WEIR_REPORT_WRITE_BACK)
                b->write_rc = items[i].rc;
        }
    }
}

/* Writes all pages back, filled first, or loads them. */
static void bench_step(struct bench *b, bool load)
{
    weir_move moves[PAGES];
    struct hand_work works[PAGES];
    for (int32_t p = 1; p <= PAGES; p++) {
        moves[p - 1] = (weir_move){ { p }, { host_page(p) } };
        works[p - 1] = (struct hand_work){ p, !load, (uint64_t)p };
    }
    weir_order order = { .step = ++b->step, .device_pages = PAGES + 3, .host_pages = HOST_PAGES };
    order.loads = order.writes = moves;
    order.n_loads = load ? PAGES : 0;
    order.n_writes = load ? 0 : PAGES;
    order.write_ticket = load ? 0 : b->step;
    uint64_t bytes[64];
    size_t n;
    cr_assert(zero(int, weir_order_encode(&order, bytes, sizeof bytes, &n, NULL)));
    b->calls = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        b->n_damaged[i] = 0;
        cr_assert(zero(int, hand_step(&b->hands[i], bytes, n, works, PAGES)), "%s",
                  b->hands[i].log.last);
        hand_run(&b->hands[i]);
    }
    for (uint32_t i = 0; i < b->n; i++)
        take_reports(b, i, 2);
}

/* Changes a bit of a host page of a rank. */
static void flip(struct bench *b, uint32_t rank, int32_t page, uint32_t tensor, uint32_t layer,
                 uint64_t at)
{
    const struct weir_geometry *g = b->hands[rank].rank->geometry;
    uint32_t row = (uint32_t)(at / tensors[tensor].row_bytes);
    unsigned char *byte = (unsigned char *)(uintptr_t)weir_geometry_host(
        g, tensor, layer, (weir_host_page){ page }, row);
    byte[at % tensors[tensor].row_bytes] ^= 0x10;
}

/* ---- A rank --------------------------------------------------------------- */

static void run_flips(weir_host_layout layout, bool share)
{
    struct bench b;
    bench_open(&b, layout, 1, 100, share);
    bench_step(&b, false);
    cr_assert(zero(int, b.write_rc));
    bench_step(&b, true);
    struct random random = { 3 };
    for (uint32_t i = 0; i < b.n; i++) {
        cr_assert(zero(u32, b.n_damaged[i]));
        cr_assert(zero(u64, b.hands[i].wrong));
    }
    for (int turn = 0; turn < 60; turn++) {
        uint32_t rank = random_below(&random, b.n);
        uint32_t tensor = random_below(&random, 2);
        uint32_t layer = tensor ? 1 + random_below(&random, 2) : random_below(&random, 3);
        uint64_t at = random_below(&random, (uint32_t)tensors[tensor].page_bytes);
        int32_t page = host_page(1 + (int32_t)random_below(&random, PAGES));
        flip(&b, rank, page, tensor, layer, at);
        bench_step(&b, true);
        cr_assert(zero(int, b.load_rc));
        for (uint32_t i = 0; i < b.n; i++) {
            bool sees = i == rank || (share && tensor == 1);
            cr_assert(eq(u32, b.n_damaged[i], sees), "turn %d", turn);
            if (sees)
                cr_assert(eq(int, b.damaged[i][0], page));
        }
        flip(&b, rank, page, tensor, layer, at);
    }
    bench_step(&b, true);
    for (uint32_t i = 0; i < b.n; i++)
        cr_assert(zero(u32, b.n_damaged[i]));
    bench_close(&b);
}

Test(checksums, a_byte_that_changed_is_found_in_each_layout)
{
    for (int layout = 0; layout < 4; layout++)
        run_flips((weir_host_layout)layout, false);
}

Test(checksums, and_in_a_share_by_every_rank)
{
    for (int layout = 0; layout < 4; layout++)
        run_flips((weir_host_layout)layout, true);
}

Test(checksums, several_pages_of_one_load_come_by_small_reports)
{
    struct bench b;
    bench_open(&b, WEIR_HOST_SEGMENTED, 1, 0, false);
    bench_step(&b, false);
    for (int32_t p = 2; p <= PAGES; p += 2)
        flip(&b, 0, host_page(p), 0, 2, 39);
    bench_step(&b, true);
    cr_assert(eq(u32, b.n_damaged[0], PAGES / 2));
    for (int32_t i = 0; i < PAGES / 2; i++)
        cr_assert(eq(int, b.damaged[0][i], host_page(2 * i + 2)));
    bench_close(&b);
}

/* A call hashes no more than it may: the calls count the bytes. */
Test(checksums, take_as_many_calls_as_the_bytes_need)
{
    uint64_t page_bytes;
    cr_assert(zero(int, weir_shape_page_bytes(&shape, NULL, &page_bytes)));
    for (uint32_t bytes = 7; bytes < 8000; bytes = bytes * 3) {
        struct bench b;
        bench_open(&b, WEIR_HOST_PAGE_FIRST, 1, bytes, false);
        for (int load = 0; load < 2; load++) {
            bench_step(&b, load);
            uint32_t least = (uint32_t)((PAGES * page_bytes + bytes - 1) / bytes);
            cr_assert(ge(u32, b.calls, least));
            cr_assert(le(u32, b.calls, least + 4), "%u bytes: %u calls, not %u", bytes, b.calls,
                      least);
        }
        bench_close(&b);
    }
}

Test(checksums, one_in_so_many_pages)
{
    struct bench b;
    bench_open(&b, WEIR_HOST_LAYER_FIRST, 4, 0, false);
    bench_step(&b, false);
    uint32_t n = 0;
    for (int32_t page = 0; page < HOST_PAGES; page++)
        n += b.hands[0].rank->checks.own_sums[page] != 0;
    cr_assert(eq(u32, n, 3)); /* pages 1, 5 and 9 */
    for (int32_t p = 1; p <= PAGES; p++)
        flip(&b, 0, host_page(p), 0, 0, 0);
    bench_step(&b, true);
    cr_assert(eq(u32, b.n_damaged[0], 3));
    bench_close(&b);

    bench_open(&b, WEIR_HOST_LAYER_FIRST, 0, 0, false);
    bench_step(&b, false);
    for (int32_t p = 1; p <= PAGES; p++)
        flip(&b, 0, host_page(p), 0, 0, 0);
    bench_step(&b, true);
    cr_assert(zero(u32, b.n_damaged[0]));
    bench_close(&b);
}

/* What has not arrived gets no checksum, not even the one that was there before. */
Test(checksums, of_transfers_that_fail)
{
    struct bench b;
    bench_open(&b, WEIR_HOST_SEGMENTED, 1, 50, false);
    bench_step(&b, false);
    for (uint64_t call = 1; call <= 3; call++) {
        cr_assert(zero(
            int, weir_cpu_device_fail(b.hands[0].device, WEIR_CPU_CALL_COPY_LOAD, call, -EIO)));
        bench_step(&b, true);
        cr_assert(eq(int, b.load_rc, -EIO));
        cr_assert(zero(u32, b.n_damaged[0]));
        bench_step(&b, true);
        cr_assert(zero(int, b.load_rc));
        cr_assert(zero(u32, b.n_damaged[0]));
    }
    cr_assert(
        zero(int, weir_cpu_device_fail(b.hands[0].device, WEIR_CPU_CALL_COPY_WRITE_BACK, 2, -EIO)));
    bench_step(&b, false);
    cr_assert(eq(int, b.write_rc, -EIO));
    for (int32_t page = 0; page < HOST_PAGES; page++)
        cr_assert(zero(u64, b.hands[0].rank->checks.own_sums[page]));
    bench_step(&b, false);
    bench_step(&b, true);
    cr_assert(zero(u32, b.n_damaged[0]));
    bench_close(&b);
}

Test(checksums, are_the_same_on_all_ranks_of_a_share)
{
    struct bench b;
    bench_open(&b, WEIR_HOST_SEGMENTED, 2, 0, true);
    weir_device *device = b.hands[1].device;
    hand_close(&b.hands[1]);
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = PAGES + 3;
    params.host_pages = HOST_PAGES;
    params.segment_pages = 4;
    params.share = b.share;
    params.checksums = 1;
    cr_assert(eq(int, hand_open(&b.hands[1], device, 0, params, 1), -EINVAL));
    cr_assert(ne(ptr, strstr(b.hands[1].log.last, "checksums is 1"), NULL));
    hand_close(&b.hands[1]);
    params.checksums = 2;
    cr_assert(zero(int, hand_open(&b.hands[1], device, 0, params, 1)));
    bench_close(&b);
}

/* ---- The cache ------------------------------------------------------------ */

/* ABCD on the host alone, loaded by a step of two sequences: the order is given back. */
static uint64_t load_four(struct rig *r, weir_seq seqs[2])
{
    rig_compute(r, "ABCD");
    rig_push_out(r);
    rig_settle(r);
    rig_expect_hit(r, "ABCD", 0, 4, 0);
    seqs[0] = rig_start(r, "ABCD", 1);
    seqs[1] = rig_start(r, "AB", 1);
    rig_begin(r);
    rig_add(r, seqs[0]);
    rig_add(r, seqs[1]);
    const weir_order *order = rig_end(r);
    cr_assert(eq(u32, order->n_loads, 4));
    return order->step;
}

static int32_t host_of(const struct rig *r, uint64_t step, uint32_t i)
{
    return r->orders[step % RIG_ORDERS].decoded.loads[i].host.id;
}

static void open_cache(struct rig *r, uint32_t n_ranks)
{
    weir_cache_params params = rig_params(16, 8, 16);
    params.n_ranks = n_ranks;
    rig_open(r, params);
}

Test(checksums, a_page_that_changed_leaves_the_index_with_all_behind_it)
{
    struct rig r;
    open_cache(&r, 2);
    weir_seq seqs[2];
    uint64_t step = load_four(&r, seqs);
    int32_t page = host_of(&r, step, 2);
    gives(&r, rig_try_report(&r, 0, WEIR_REPORT_LOAD, step, 0), 0);
    gives(&r, rig_try_report(&r, 0, WEIR_REPORT_PAGE, (uint64_t)page, -EIO), -EINVAL);
    gives(&r, rig_try_report(&r, 1, WEIR_REPORT_PAGE, (uint64_t)page, -EIO), 0);
    gives(&r, rig_try_report(&r, 1, WEIR_REPORT_PAGE, (uint64_t)page, -EIO), 0);
    rig_poll(&r);
    cr_assert(zero(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, NULL)));
    gives(&r, rig_try_report(&r, 1, WEIR_REPORT_LOAD, step, 0), 0);
    rig_report(&r, WEIR_REPORT_STEP, step, 0);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, NULL), 1));
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seqs[0]), 1));
    cr_assert(eq(sz, r.events[0].good_tokens, 2 * 16));
    cr_assert(eq(int, r.events[0].rc, -EIO));
    rig_expect_hit(&r, "ABCD", 2, 0, 0);
    weir_stats stats = rig_stats(&r);
    cr_assert(eq(u64, stats.damaged_pages, 1));
    cr_assert(eq(u64, stats.load_failed_pages, 1));
    cr_assert(eq(u64, stats.loaded_pages, 3));
    rig_done(&r, &seqs[0]);
    rig_done(&r, &seqs[1]);
    rig_close(&r);
}

Test(checksums, a_report_of_a_page_that_is_not_loading_is_refused_whole)
{
    struct rig r;
    open_cache(&r, 1);
    weir_seq seqs[2];
    uint64_t step = load_four(&r, seqs);
    uint64_t page = (uint64_t)host_of(&r, step, 1);
    uint64_t other = 1; /* a host page that nothing loads */
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t l = 0; l < 4; l++)
            other += other == (uint64_t)host_of(&r, step, l);
    const weir_report_item items[] = {
        { .number = page, .rc = -EIO, .kind = WEIR_REPORT_PAGE },
        { .number = step, .kind = WEIR_REPORT_LOAD },
        { .number = step, .kind = WEIR_REPORT_STEP },
        { .number = other, .rc = -EIO, .kind = WEIR_REPORT_PAGE },
    };
    /* After its load, not loading, beyond the pool (as no rank says). */
    static const int orders[][3] = { { 1, 2, 0 }, { 0, 3, 1 }, { 2, 0, 3 } };
    uint64_t report[32];
    size_t bytes;
    uint64_t digest = weir_cache_digest(r.cache);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        weir_report_item these[3];
        for (int k = 0; k < 3; k++)
            these[k] = items[orders[i][k]];
        if (i == 2)
            these[2].number = 1000000;
        cr_assert(zero(int, weir_report_encode(these, 3, report, sizeof report, &bytes, NULL)));
        gives(&r, weir_cache_report(r.cache, 0, report, bytes), -EINVAL);
        cr_assert(eq(u64, weir_cache_digest(r.cache), digest), "%zu", i);
    }
    /* In one report with its load, before it, as a rank sends them. */
    cr_assert(zero(int, weir_report_encode(items, 3, report, sizeof report, &bytes, NULL)));
    gives(&r, weir_cache_report(r.cache, 0, report, bytes), 0);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, NULL), 2));
    rig_expect_hit(&r, "ABCD", 1, 0, 0);
    rig_done(&r, &seqs[0]);
    rig_done(&r, &seqs[1]);
    rig_close(&r);
}

/* The load fails as a whole after all: each page is lost once. */
Test(checksums, a_page_that_changed_in_a_load_that_fails)
{
    struct rig r;
    open_cache(&r, 1);
    weir_seq seqs[2];
    uint64_t step = load_four(&r, seqs);
    gives(&r, rig_try_report(&r, 0, WEIR_REPORT_PAGE, (uint64_t)host_of(&r, step, 3), -EIO), 0);
    gives(&r, rig_try_report(&r, 0, WEIR_REPORT_LOAD, step, -EIO), 0);
    gives(&r, rig_try_report(&r, 0, WEIR_REPORT_STEP, step, 0), 0);
    rig_expect_hit(&r, "ABCD", 0, 0, 0);
    cr_assert(eq(u64, rig_stats(&r).load_failed_pages, 4));
    rig_done(&r, &seqs[0]);
    rig_done(&r, &seqs[1]);
    rig_close(&r);
}
