/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/break_even.h"
#include "cache_rig.h"

/* Whether a load is worth it: the sum alone, and what the cache makes of it. */

static struct rig rig;

#define MAX UINT64_MAX

Test(break_even, the_sum)
{
    static const struct {
        uint64_t ns_per_token, bytes_per_second; /* 0: unknown */
        uint64_t page_bytes;
        uint32_t page_tokens;
        uint64_t n_load, n_ahead, n_compute;
        uint64_t load_ns, compute_ns;
        bool load;
    } rows[] = {
        /* a page of 16 tokens and 2 MiB: 40 us by the link, 320 us to compute */
        { 20000, 52428800000, 2097152, 16, 1, 0, 1, 40000, 320000, true },
        { 20000, 52428800000, 2097152, 16, 100, 0, 100, 4000000, 32000000, true },
        { 2499, 52428800000, 2097152, 16, 1, 0, 1, 40000, 39984, false },
        { 2500, 52428800000, 2097152, 16, 1, 0, 1, 40000, 40000, true }, /* equal: load */
        { 2500, 52428800000, 2097152, 16, 1, 1, 1, 80000, 40000, false },
        { 20000, 52428800000, 2097152, 16, 1, 7, 1, 320000, 320000, true },
        { 20000, 52428800000, 2097152, 16, 1, 8, 1, 360000, 320000, false },
        { 2499, 52428800000, 2097152, 16, 1, 0, 2, 40000, 79968, true },
        /* unknown is no reason to compute */
        { 0, 1000, 2097152, 16, 1, 0, 1, 2097152000000, 0, true },
        { 1, 0, 2097152, 16, 1, 0, 1, 0, 16, true },
        { 1, 1000, 0, 16, 1, 0, 1, 0, 16, true },
        { 0, 0, 0, 16, 1, 0, 1, 0, 0, true },
        /* nothing to load */
        { 20000, 1000, 2097152, 16, 0, 5, 0, 0, 0, true },
        /* beyond 64 bits */
        { MAX, MAX, 1, 1, 1, 0, 1, 0, MAX, true },
        { MAX, 1, MAX, 1024, 1u << 30, 1u << 30, 1u << 30, MAX, MAX, true },
        { 1, 1, MAX, 1, 2, 0, 2, MAX, 2, false },
        { MAX, 1000000000, 1, 1, 5, 0, 5, 5, MAX, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rates rates = { rows[i].ns_per_token, rows[i].bytes_per_second };
        struct break_even got = weir_break_even(&rates, rows[i].page_bytes, rows[i].page_tokens,
                                                rows[i].n_load, rows[i].n_ahead, rows[i].n_compute);
        cr_expect(eq(u64, got.load_ns, rows[i].load_ns), "row %zu", i);
        cr_expect(eq(u64, got.compute_ns, rows[i].compute_ns), "row %zu", i);
        cr_expect(got.load == rows[i].load, "row %zu", i);
    }
}

/* Pages of 4 tokens that a link of 1 kB a second brings in a second. AB are on
 * the device then, CDE on the host. */
static void open_halves(struct rig *r, uint64_t ns_per_token)
{
    weir_cache_params params = rig_params(4, 12, 12);
    params.page_bytes = 1000;
    params.ns_per_token = ns_per_token;
    params.link_bytes_per_second = 1000;
    rig_open(r, params);
    rig_compute(r, "ABCDE");
    rig_settle(r);
    rig_push_out(r);
    rig_compute(r, "AB");
    rig_expect_hit(r, "ABCDE", 2, 3, 0);
}

#define SECOND UINT64_C(1000000000)

static void expect_price(const weir_hit *hit, uint64_t load_ns, uint64_t compute_ns, size_t worth)
{
    cr_assert(eq(u64, hit->load_ns, load_ns));
    cr_assert(eq(u64, hit->compute_ns, compute_ns));
    cr_assert(eq(sz, hit->n_worth, worth));
}

static int reserve_cheaper(struct rig *r, weir_seq seq, weir_hit *hit)
{
    weir_request request;
    weir_request_init(&request);
    request.use_hit = WEIR_USE_HIT_IF_CHEAPER;
    request.total_tokens = rig_info(r, seq).n_tokens;
    weir_reserved reserved;
    int rc = weir_seq_reserve(seq, &request, &reserved);
    rig_check(r);
    if (rc == 0)
        *hit = reserved.hit;
    return rc;
}

Test(break_even, peek_tells)
{
    struct rig *r = &rig;
    open_halves(r, SECOND / 4);
    weir_hit hit = rig_peek(r, "ABCDE");
    expect_price(&hit, 3 * SECOND, 3 * SECOND, 5);
    hit = rig_peek(r, "ABC");
    expect_price(&hit, SECOND, SECOND, 3);
    hit = rig_peek(r, "AB");
    expect_price(&hit, 0, 0, 2);
    hit = rig_peek(r, "X");
    expect_price(&hit, 0, 0, 0);
    gives(r, weir_cache_set_rates(r->cache, SECOND / 4 - 1, 1000), 0);
    hit = rig_peek(r, "ABCDE");
    expect_price(&hit, 3 * SECOND, 3 * SECOND - 12, 2);
    gives(r, weir_cache_set_rates(r->cache, 1, 0), 0);
    hit = rig_peek(r, "ABCDE");
    expect_price(&hit, 0, 12, 5);
    gives(r, weir_cache_set_rates(r->cache, 0, 1), 0);
    hit = rig_peek(r, "ABCDE");
    expect_price(&hit, 3000 * SECOND, 0, 5);
    cr_assert(eq(int, weir_cache_set_rates(NULL, 1, 1), -EINVAL));
    rig_close(r);
}

Test(break_even, a_reserve_loads_what_pays)
{
    for (int pays = 0; pays < 2; pays++) {
        struct rig *r = &rig;
        open_halves(r, pays ? SECOND / 4 : SECOND / 4 - 1);
        uint64_t host_hits = rig_stats(r).hit_pages_host;
        weir_seq seq = rig_seq(r, "ABCDE", 1);
        weir_hit hit;
        gives(r, reserve_cheaper(r, seq, &hit), 0);
        expect_price(&hit, 3 * SECOND, 3 * SECOND - (pays ? 0 : 12), (pays ? 5 : 2) * r->t);
        cr_assert(eq(sz, hit.n_tokens, (pays ? 5 : 2) * r->t));
        cr_assert(eq(sz, hit.n_device, 2 * r->t));
        cr_assert(eq(sz, hit.n_host, (pays ? 3 : 0) * r->t));
        cr_assert(eq(u64, rig_stats(r).hit_pages_host - host_hits, pays ? 3 : 0));
        const weir_order *order = rig_run(r, seq, 5);
        cr_assert(eq(u32, order->n_loads, pays ? 3 : 0));
        rig_ack(r, order->step);
        rig_done(r, &seq);
        rig_expect_hit(r, "ABCDE", 5, 0, 0);
        rig_settle(r);
        rig_close(r);
    }
}

/* Who asks for all gets all, and is told what it costs. */
Test(break_even, it_is_told_and_not_decided_by_default)
{
    struct rig *r = &rig;
    open_halves(r, 1);
    weir_seq seq = rig_seq(r, "ABCDE", 1);
    weir_hit hit;
    gives(r, rig_reserve(r, seq, 5 * r->t + 1, &hit), 0);
    expect_price(&hit, 3 * SECOND, 12, 2 * r->t);
    cr_assert(eq(sz, hit.n_host, 3 * r->t));
    gives(r, rig_reserve(r, seq, 6 * r->t + 1, &hit), 0);
    expect_price(&hit, 0, 0, 0);
    rig_done(r, &seq);
    rig_close(r);
}

/* The loads of a step in flight come first. */
Test(break_even, loads_in_flight_come_first)
{
    struct rig *r = &rig;
    open_halves(r, SECOND / 4);
    weir_seq first = rig_start(r, "ABC", 1);
    uint64_t step = rig_run(r, first, 3)->step;
    weir_hit hit = rig_peek(r, "ABCDE");
    expect_price(&hit, 3 * SECOND, 2 * SECOND, 3);
    cr_assert(eq(sz, hit.n_loading, 1));
    weir_seq second = rig_seq(r, "ABCDE", 1);
    gives(r, reserve_cheaper(r, second, &hit), 0);
    cr_assert(eq(sz, hit.n_tokens, 3 * r->t), "what is on its way is paid for");
    cr_assert(eq(sz, hit.n_loading, r->t));
    rig_done(r, &second);
    rig_ack(r, step);
    hit = rig_peek(r, "ABCDE");
    expect_price(&hit, 2 * SECOND, 2 * SECOND, 5);
    rig_done(r, &first);
    rig_close(r);
}

/* A sequence in line is in line for what it will then use. */
Test(break_even, a_claim_counts_what_pays)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(4, 4, 8);
    params.page_bytes = 1000;
    params.ns_per_token = 1;
    params.link_bytes_per_second = 1000;
    params.write_back = "write_back";
    rig_open(r, params);
    rig_compute(r, "AB");
    rig_push_out(r);
    rig_settle(r);
    rig_expect_hit(r, "AB", 0, 2, 0);
    rig_compute(r, "XYZ"); /* dirty, and a page for its tail that is free */
    weir_seq seq = rig_seq(r, "AB", 1);
    weir_hit hit;
    gives(r, reserve_cheaper(r, seq, &hit), -EAGAIN);
    cr_assert(eq(sz, rig_available(r).claimed, 3));
    rig_settle(r);
    gives(r, reserve_cheaper(r, seq, &hit), 0);
    cr_assert(zero(sz, hit.n_tokens));
    rig_done(r, &seq);
    rig_settle(r);
    rig_close(r);
}
