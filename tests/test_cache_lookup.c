/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* What the index holds, where, and what of it a request uses. */

/* Runs `body` with a cache of each page size and eviction policy. */
#define for_each_rig(r, device, host, body)                                           \
    for (size_t p_ = 0; p_ < RIG_N_PAGE_TOKENS; p_++)                                 \
        for (size_t e_ = 0; e_ < RIG_N_EVICTIONS; e_++) {                             \
            weir_cache_params params = rig_params(rig_page_tokens[p_], device, host); \
            params.eviction = rig_evictions[e_];                                      \
            rig_open(r, params);                                                      \
            body(r);                                                                  \
            rig_close(r);                                                             \
        }

static struct rig rig;

static void where_pages_are(struct rig *r)
{
    rig_expect_hit(r, "ABC", 0, 0, 0);
    rig_compute(r, "ABC");
    rig_expect_hit(r, "ABC", 3, 0, 0);
    rig_expect_hit(r, "ABCD", 3, 0, 0);
    rig_expect_hit(r, "AXC", 1, 0, 0);
    rig_expect_hit(r, "XBC", 0, 0, 0);
    rig_push_out(r);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    rig_expect_hit(r, "ABX", 0, 2, 0);

    weir_seq seq = rig_seq(r, "ABX", 1);
    weir_hit hit;
    gives(r, rig_reserve(r, seq, 1, &hit), 0);
    cr_expect(eq(sz, hit.n_host, 2 * (size_t)r->t));
    rig_expect_hit(r, "ABC", 0, 1, 2);
    const weir_order *order = rig_run(r, seq, 2);
    cr_assert(eq(u32, order->n_loads, 2));
    rig_expect_hit(r, "ABC", 0, 1, 2);
    rig_report(r, WEIR_REPORT_LOAD, order->step, 0);
    rig_expect_hit(r, "ABC", 2, 1, 0);
    rig_report(r, WEIR_REPORT_STEP, order->step, 0);
    rig_done(r, &seq);
    rig_expect_hit(r, "ABC", 2, 1, 0);
}

Test(cache_lookup, peek_tells_the_tiers)
{
    for_each_rig(&rig, 8, 8, where_pages_are);
}

Test(cache_lookup, a_hit_has_only_whole_pages)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 0));
        rig_compute(r, "AB");
        weir_key key = rig_key(r, "AB", 0);
        for (size_t n = 0; n <= 2 * (size_t)r->t; n++) {
            weir_hit hit;
            key.n_tokens = n;
            cr_assert(zero(int, weir_cache_peek(r->cache, &key, &hit)));
            cr_assert(eq(sz, hit.n_tokens, n / r->t * r->t));
            cr_assert(eq(sz, hit.n_device, hit.n_tokens));
        }
        rig_close(r);
    }
}

static void peek_keeps_the_order_of_eviction(struct rig *r)
{
    rig_compute(r, "A");
    rig_compute(r, "B");
    for (int i = 0; i < 5; i++)
        rig_peek(r, "A");
    /* Four pages: two are free, so this takes one of A and B. */
    weir_seq seq = rig_start(r, "CDE", 0);
    rig_expect_hit(r, "A", 0, 0, 0);
    rig_expect_hit(r, "B", 1, 0, 0);
    rig_done(r, &seq);
}

Test(cache_lookup, peek_neither_pins_nor_touches)
{
    for_each_rig(&rig, 4, 0, peek_keeps_the_order_of_eviction);
}

Test(cache_lookup, a_hit_touches)
{
    weir_cache_params params = rig_params(16, 4, 0);
    rig_open(&rig, params);
    rig_compute(&rig, "A");
    rig_compute(&rig, "B");
    weir_seq seq = rig_start(&rig, "A", 1);
    rig_done(&rig, &seq);
    seq = rig_start(&rig, "CDE", 0);
    rig_expect_hit(&rig, "A", 1, 0, 0);
    rig_expect_hit(&rig, "B", 0, 0, 0);
    rig_done(&rig, &seq);
    rig_close(&rig);
}

/* The longest prefix of whole pages that leaves so many tokens to compute. */
static void last_tokens_are_computed(struct rig *r)
{
    rig_compute(r, "ABC");
    uint32_t all = 3 * r->t;
    const uint32_t leasts[] = {
        0, 1, 2, r->t - 1, r->t, r->t + 1, all - 1, all, all + 1, UINT32_MAX
    };
    for (size_t i = 0; i < sizeof leasts / sizeof *leasts; i++) {
        weir_seq_params params;
        weir_seq_params_init(&params);
        cr_assert(eq(u32, params.compute_at_least, 1));
        params.compute_at_least = leasts[i];
        weir_key key = rig_key(r, "ABC", 0);
        weir_seq seq;
        gives(r, weir_seq_open(&seq, r->cache, &key, &params), 0);
        weir_hit hit;
        gives(r, rig_reserve(r, seq, all, &hit), 0);
        size_t usable = all > leasts[i] ? all - leasts[i] : 0;
        cr_assert(eq(sz, hit.n_tokens, usable / r->t * r->t), "compute_at_least %u", leasts[i]);
        cr_assert(eq(sz, rig_info(r, seq).n_hit, hit.n_tokens));
        rig_done(r, &seq);
    }
}

Test(cache_lookup, compute_at_least_limits_the_hit)
{
    for_each_rig(&rig, 8, 0, last_tokens_are_computed);
}

static void hits_are_limited(struct rig *r)
{
    rig_compute(r, "ABC");
    size_t all = 3 * (size_t)r->t;
    const size_t uses[] = { 0, 1, r->t - 1, r->t, r->t + 1, all - 1, all, all + 1, SIZE_MAX };
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        weir_seq seq = rig_seq(r, "ABC", 1);
        weir_request request;
        weir_request_init(&request);
        cr_assert(eq(sz, request.use_hit, WEIR_ALL_TOKENS));
        request.use_hit = uses[i];
        request.total_tokens = all + 1;
        weir_reserved reserved;
        gives(r, weir_seq_reserve(seq, &request, &reserved), 0);
        size_t want = (uses[i] < all ? uses[i] : all) / r->t * r->t;
        cr_assert(eq(sz, reserved.hit.n_tokens, want), "use_hit %zu", uses[i]);
        cr_assert(zero(sz, reserved.n_short));
        /* Later calls do not look at it, and find no hit. */
        request.use_hit = WEIR_ALL_TOKENS;
        request.total_tokens = all + 1 + r->t;
        gives(r, weir_seq_reserve(seq, &request, &reserved), 0);
        cr_assert(zero(sz, reserved.hit.n_tokens));
        cr_assert(eq(sz, rig_info(r, seq).n_hit, want));
        rig_done(r, &seq);
    }
}

Test(cache_lookup, use_hit_limits_the_hit)
{
    for_each_rig(&rig, 8, 0, hits_are_limited);
}

/* Computes "AB" in a namespace. */
static void compute_in(struct rig *r, const weir_field *fields, size_t n_fields)
{
    weir_key key = rig_key(r, "AB", 0);
    key.fields = fields;
    key.n_fields = n_fields;
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, NULL), 0);
    gives(r, rig_reserve(r, seq, key.n_tokens, NULL), 0);
    rig_ack(r, rig_run(r, seq, 2)->step);
    rig_done(r, &seq);
}

static size_t hit_in(struct rig *r, const weir_field *fields, size_t n_fields)
{
    weir_key key = rig_key(r, "AB", 0);
    key.fields = fields;
    key.n_fields = n_fields;
    weir_hit hit;
    gives(r, weir_cache_peek(r->cache, &key, &hit), 0);
    return hit.n_tokens / r->t;
}

Test(cache_lookup, namespaces_share_nothing)
{
    static const weir_field names[][2] = {
        { { 1, 1, "a" }, { 1, 2, "bc" } }, { { 1, 2, "ab" }, { 1, 1, "c" } }, /* framed by length */
        { { 1, 1, "a" }, { 2, 2, "bc" } },                                    /* and by tag */
        { { 1, 2, "bc" }, { 1, 1, "a" } },                                    /* and in order */
        { { 1, 1, "a" }, { 1, 0, NULL } },
    };
    const size_t n = sizeof names / sizeof *names;
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        rig_open(&rig, rig_params(rig_page_tokens[p], 16, 16));
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0; k < n; k++)
                cr_assert(eq(sz, hit_in(&rig, names[k], 2), k < i ? 2 : 0), "%zu, %zu", i, k);
            cr_assert(zero(sz, hit_in(&rig, names[i], 1)));
            cr_assert(zero(sz, hit_in(&rig, NULL, 0)));
            compute_in(&rig, names[i], 2);
        }
        compute_in(&rig, NULL, 0);
        cr_assert(eq(sz, hit_in(&rig, NULL, 0), 2));
        cr_assert(eq(u64, rig_stats(&rig).index_pages, 2 * (n + 1)));
        rig_close(&rig);
    }
}

static void counts_of_a_request(struct rig *r)
{
    rig_compute(r, "AB");
    rig_push_out(r);
    weir_stats before = rig_stats(r);
    weir_seq first = rig_start(r, "AB", 1);
    weir_seq second = rig_start(r, "AB", 1);
    weir_stats stats = rig_stats(r);
    cr_expect(eq(u64, stats.requests, before.requests + 2));
    cr_expect(eq(u64, stats.hit_pages_host, before.hit_pages_host + 2));
    cr_expect(eq(u64, stats.hit_pages_loading, before.hit_pages_loading + 2));
    cr_expect(eq(u64, stats.new_pages, before.new_pages + 2));
    cr_expect(eq(u64, stats.seqs_open, 2));

    const weir_order *order = rig_run(r, first, 2);
    cr_expect(eq(u64, rig_stats(r).orders_in_flight, 1));
    cr_expect(eq(u64, rig_stats(r).loaded_pages, before.loaded_pages));
    rig_ack(r, order->step);
    weir_seq third = rig_start(r, "AB", 1);
    stats = rig_stats(r);
    cr_expect(eq(u64, stats.hit_pages_device, before.hit_pages_device + 2));
    cr_expect(eq(u64, stats.loaded_pages, before.loaded_pages + 2));
    cr_expect(eq(u64, stats.load_runs, before.load_runs + 1), "A and B lie one after another");
    cr_expect(eq(u64, stats.load_run_squares, before.load_run_squares + 4));
    cr_expect(eq(u64, stats.steps, before.steps + 1));
    cr_expect(zero(u64, stats.orders_in_flight));
    cr_expect(eq(u64, stats.device_free, 8 - 2 - 3));
    cr_expect(eq(u64, stats.host_free, 8 - 2));
    cr_expect(eq(u64, stats.index_pages, 2));
    cr_expect(eq(u64, stats.evicted_device_pages, before.evicted_device_pages));
    rig_done(r, &first);
    rig_done(r, &second);
    rig_done(r, &third);
    cr_expect(zero(u64, rig_stats(r).seqs_open));
}

Test(cache_lookup, stats_equal_what_was_done)
{
    for_each_rig(&rig, 8, 8, counts_of_a_request);
}

/* A refused reserve is no use: retries would make every page look popular. */
Test(cache_lookup, only_a_reserve_that_succeeds_counts)
{
    weir_cache_params params = rig_params(16, 4, 8);
    params.write_back = "write_through_selective(2)";
    rig_open(&rig, params);
    rig_compute(&rig, "A");
    weir_seq holder = rig_start(&rig, "XYZ", 0);
    weir_seq seq = rig_seq(&rig, "AB", 1);
    uint64_t digest = weir_cache_digest(rig.cache);
    for (int i = 0; i < 5; i++) {
        gives(&rig, rig_reserve(&rig, seq, 2 * 16 + 1, NULL), -ENOSPC);
        cr_assert(eq(u64, weir_cache_digest(rig.cache), digest));
    }
    cr_expect(zero(u64, rig_stats(&rig).hit_pages_device));
    cr_expect(eq(u64, rig_stats(&rig).reserve_nospace, 5));
    rig_settle(&rig);
    cr_expect(zero(u64, rig_stats(&rig).written_pages), "a retry is not a second use");
    rig_done(&rig, &holder);
    gives(&rig, rig_reserve(&rig, seq, 2 * 16 + 1, NULL), 0);
    rig_settle(&rig);
    cr_expect(eq(u64, rig_stats(&rig).written_pages, 1), "this is");
    rig_done(&rig, &seq);
    rig_close(&rig);
}

Test(cache_lookup, a_chunk_at_a_time)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 0));
        weir_seq seq = rig_seq(r, "ABCDEF", 0);
        int32_t table[RIG_PAGES], before[RIG_PAGES] = { 0 };
        size_t n_before = 0;
        for (size_t tokens = 1; tokens <= 6 * (size_t)r->t; tokens += (r->t + 1) / 2) {
            gives(r, rig_reserve(r, seq, tokens, NULL), 0);
            gives(r, rig_reserve(r, seq, 1, NULL), 0); /* a smaller value changes nothing */
            size_t n = rig_table(r, seq, table);
            cr_assert(eq(sz, n, (tokens + r->t - 1) / r->t));
            cr_assert(eq(sz, rig_info(r, seq).n_reserved, n * r->t));
            cr_assert(zero(int, memcmp(table, before, n_before * sizeof *table)));
            memcpy(before, table, sizeof table);
            n_before = n;
        }
        rig_done(r, &seq);
        rig_close(r);
    }
}

Test(cache_lookup, tables_in_kernel_pages)
{
    rig_open(&rig, rig_params(64, 8, 0));
    weir_seq seq = rig_start(&rig, "ABC", 0);
    int32_t pages[RIG_PAGES], table[RIG_PAGES * 8];
    cr_assert(eq(sz, rig_table(&rig, seq, pages), 3));
    const uint32_t sizes[] = { 64, 32, 16, 8 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t ratio = 64 / sizes[i], n = 0;
        for (size_t from = 0; from <= 4 * 64; from += sizes[i]) {
            size_t first = from / sizes[i];
            size_t want = first < 3 * ratio ? 3 * ratio - first : 0;
            gives(&rig, weir_seq_pages(seq, from, sizes[i], table, 3 * ratio, &n), 0);
            cr_assert(eq(sz, n, want));
            for (size_t k = 0; k < n; k++)
                cr_assert(eq(i32, table[k],
                             pages[(first + k) / ratio] * (int32_t)ratio +
                                 (int32_t)((first + k) % ratio)));
        }
        table[0] = -7;
        gives(&rig, weir_seq_pages(seq, 0, sizes[i], table, 3 * ratio - 1, &n), -ENOSPC);
        cr_assert(eq(sz, n, 3 * ratio));
        cr_assert(eq(i32, table[0], -7), "nothing but n is written");
        gives(&rig, weir_seq_pages(seq, 0, sizes[i], NULL, 0, &n), -ENOSPC);
    }
    rig_done(&rig, &seq);
    rig_close(&rig);
}

Test(cache_lookup, info_and_user_pointer)
{
    rig_open(&rig, rig_params(16, 8, 0));
    weir_seq_params params;
    weir_seq_params_init(&params);
    cr_assert(zero(ptr, params.user));
    params.user = &rig;
    weir_key key = rig_key(&rig, "AB", 3);
    weir_seq seq;
    gives(&rig, weir_seq_open(&seq, rig.cache, &key, &params), 0);
    weir_seq_info info = rig_info(&rig, seq);
    cr_expect(eq(sz, info.n_tokens, 35));
    cr_expect(zero(sz, info.n_committed));
    cr_expect(zero(sz, info.n_reserved));
    cr_expect(eq(ptr, info.user, &rig));
    gives(&rig, rig_reserve(&rig, seq, 35, NULL), 0);
    rig_ack(&rig, rig_run(&rig, seq, 2)->step);
    info = rig_info(&rig, seq);
    cr_expect(eq(sz, info.n_committed, 32));
    cr_expect(eq(sz, info.n_reserved, 48));
    rig_done(&rig, &seq);
    rig_close(&rig);
}

/* What is not part of the state may differ: the log, the addresses. */
Test(cache_lookup, two_caches_fed_the_same_have_equal_digests)
{
    static struct rig other;
    uint64_t before = 0;
    for (size_t e = 0; e < RIG_N_EVICTIONS; e++) {
        struct rig *rigs[] = { &rig, &other };
        weir_cache_params params = rig_params(16, 6, 6);
        params.eviction = rig_evictions[e];
        for (int i = 0; i < 2; i++)
            rig_open(rigs[i], params);
        static const char *const prompts[] = { "ABC", "ABD", "EF", "ABC", "GHIJ", "ABDK" };
        for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++) {
            for (int i = 0; i < 2; i++)
                rig_compute(rigs[i], prompts[k]);
            uint64_t digest = weir_cache_digest(rig.cache);
            cr_assert(eq(u64, digest, weir_cache_digest(other.cache)), "%s", prompts[k]);
            cr_assert(ne(u64, digest, before), "a digest that nothing changes");
            before = digest;
        }
        rig_compute(&rig, "L");
        cr_assert(ne(u64, weir_cache_digest(rig.cache), weir_cache_digest(other.cache)));
        for (int i = 0; i < 2; i++)
            rig_close(rigs[i]);
    }
}
