/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* Who gets a page, whose page goes, and what is written back before it does. */

static struct rig rig;

struct counts {
    uint64_t digest;
    weir_available available;
};

static struct counts counts_of(const struct rig *r)
{
    return (struct counts){ weir_cache_digest(r->cache), rig_available(r) };
}

static void expect_same(const struct rig *r, const struct counts *before)
{
    struct counts now = counts_of(r);
    cr_assert(eq(u64, now.digest, before->digest));
    cr_assert(eq(sz, now.available.free, before->available.free));
    cr_assert(eq(sz, now.available.offered, before->available.offered));
    cr_assert(eq(sz, now.available.pending, before->available.pending));
    cr_assert(eq(sz, now.available.claimed, before->available.claimed));
}

static int reserve_short(struct rig *r, weir_seq seq, size_t pages, size_t *n_short)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = pages * r->t;
    weir_reserved reserved = { .hit = { .n_tokens = 77 } };
    int rc = weir_seq_reserve(seq, &request, &reserved);
    rig_check(r);
    *n_short = reserved.n_short;
    if (rc)
        cr_assert(eq(sz, reserved.hit.n_tokens, 77), "only n_short is written");
    return rc;
}

Test(cache_room, a_refused_reserve_takes_nothing)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        size_t n_short = 0;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        rig_compute(r, "ABC");
        rig_push_out(r);
        weir_seq holder = rig_start(r, "UVWXYZ", 0);
        weir_seq seq = rig_seq(r, "ABC", 1);
        struct counts before = counts_of(r);
        gives(r, reserve_short(r, seq, 9, &n_short), -E2BIG);
        cr_assert(eq(sz, n_short, 1));
        expect_same(r, &before);
        gives(r, reserve_short(r, seq, SIZE_MAX / r->t, &n_short), -E2BIG);
        expect_same(r, &before);
        for (size_t pages = 3; pages <= 8; pages++) {
            gives(r, reserve_short(r, seq, pages, &n_short), -ENOSPC);
            cr_assert(eq(sz, n_short, pages - 2), "%zu pages", pages);
            expect_same(r, &before);
        }
        gives(r, reserve_short(r, seq, 2, &n_short), -ENOSPC); /* the hit has three */
        cr_assert(eq(u64, rig_stats(r).reserve_nospace, 7));
        rig_done(r, &holder);
        gives(r, reserve_short(r, seq, 8, &n_short), 0);
        cr_assert(zero(sz, n_short));
        rig_done(r, &seq);
        rig_close(r);
    }
}

/* All of the device tier is dirty and unused: what is asked for can be had once
 * it is written back. */
static weir_seq wait_for_dirty(struct rig *r, const char *letters)
{
    weir_seq seq = rig_seq(r, letters, 0);
    gives(r, rig_reserve(r, seq, strlen(letters) * r->t, NULL), -EAGAIN);
    return seq;
}

static void open_dirty(struct rig *r, uint32_t page_tokens)
{
    weir_cache_params params = rig_params(page_tokens, 4, 16);
    params.write_back = "write_back";
    rig_open(r, params);
    /* The tail must not take a page away from the letters. */
    weir_seq seq = rig_start(r, "ABCD", 0);
    rig_ack(r, rig_run(r, seq, 4)->step);
    rig_done(r, &seq);
    cr_assert(zero(u64, rig_stats(r).written_pages));
}

Test(cache_room, claims_are_served_first_come)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        open_dirty(r, rig_page_tokens[p]);
        weir_seq first = wait_for_dirty(r, "EF");
        weir_seq second = wait_for_dirty(r, "GH");
        cr_assert(eq(sz, rig_available(r).claimed, 4));
        cr_assert(eq(u64, rig_stats(r).reserve_again, 2));
        rig_poll(r);
        cr_assert(zero(sz, rig_events(r, WEIR_EVENT_RESERVE_READY, NULL)));
        cr_assert(eq(sz, rig_events(r, WEIR_EVENT_WRITE_WAITING, NULL), 1));
        rig_poll(r);
        cr_assert(zero(sz, r->n_events), "said once");

        rig_begin(r);
        const weir_order *order = rig_end(r);
        cr_assert(eq(u32, order->n_writes, 4));
        cr_assert(eq(sz, rig_available(r).pending, 4));
        gives(r, rig_reserve(r, second, 2 * r->t, NULL), -EAGAIN);
        rig_ack(r, order->step);
        rig_poll(r);
        cr_assert(eq(sz, rig_events(r, WEIR_EVENT_RESERVE_READY, &first), 1));
        cr_assert(eq(sz, rig_events(r, WEIR_EVENT_RESERVE_READY, &second), 1));
        rig_poll(r);
        cr_assert(zero(sz, r->n_events), "said once");

        /* A third finds pages that are set aside, not for it. */
        weir_seq third = rig_seq(r, "I", 0);
        cr_assert(eq(sz, rig_available(r).offered, 4));
        gives(r, rig_reserve(r, third, r->t, NULL), -ENOSPC);
        gives(r, rig_reserve(r, second, 2 * r->t, NULL), 0);
        gives(r, rig_reserve(r, third, r->t, NULL), -ENOSPC);
        gives(r, rig_reserve(r, first, 2 * r->t, NULL), 0);
        cr_assert(zero(sz, rig_available(r).claimed));
        rig_done(r, &first);
        gives(r, rig_reserve(r, third, r->t, NULL), 0);
        rig_done(r, &second);
        rig_done(r, &third);
        rig_close(r);
    }
}

/* The pages of one write-back at a time: who came first is told first. */
Test(cache_room, ready_events_keep_the_order_of_the_line)
{
    weir_cache_params params = rig_params(16, 2, 8);
    params.write_back = "write_back";
    rig_open(&rig, params);
    weir_seq a = rig_start(&rig, "A", 0), b = rig_start(&rig, "B", 0);
    rig_ack(&rig, rig_run(&rig, a, 1)->step);
    rig_ack(&rig, rig_run(&rig, b, 1)->step);
    rig_done(&rig, &a);
    weir_seq first = rig_seq(&rig, "C", 0), second = rig_seq(&rig, "D", 0);
    gives(&rig, rig_reserve(&rig, first, 16, NULL), -EAGAIN);
    gives(&rig, rig_reserve(&rig, second, 16, NULL), -ENOSPC); /* b holds the other */
    rig_done(&rig, &b);
    gives(&rig, rig_reserve(&rig, second, 16, NULL), -EAGAIN);
    rig_begin(&rig);
    const weir_order *order = rig_end(&rig);
    rig_report(&rig, WEIR_REPORT_STEP, order->step, 0);
    rig_poll(&rig);
    cr_expect(zero(sz, rig.n_events), "the write-back is in flight");
    rig_report(&rig, WEIR_REPORT_WRITE_BACK, order->write_ticket, 0);
    rig_poll(&rig);
    cr_assert(eq(sz, rig.n_events, 2));
    cr_expect(eq(u64, rig.events[0].seq.id, first.id));
    cr_expect(eq(u64, rig.events[1].seq.id, second.id));
    gives(&rig, rig_reserve(&rig, first, 16, NULL), 0);
    gives(&rig, rig_reserve(&rig, second, 16, NULL), 0);
    rig_done(&rig, &first);
    rig_done(&rig, &second);
    rig_close(&rig);
}

Test(cache_room, an_event_that_is_no_longer_true_is_not_given)
{
    struct rig *r = &rig;
    open_dirty(r, 16);
    weir_seq seq = wait_for_dirty(r, "EF");
    rig_begin(r);
    rig_ack(r, rig_end(r)->step);
    size_t n;
    gives(r, weir_cache_poll(r->cache, r->now, NULL, 0, &n), 0); /* it is queued */
    cr_expect(zero(sz, n));
    gives(r, rig_reserve(r, seq, 2 * 16, NULL), 0);
    rig_poll(r);
    cr_expect(zero(sz, rig_events(r, WEIR_EVENT_RESERVE_READY, NULL)), "the claim was served");
    rig_done(r, &seq);
    rig_close(r);
}

Test(cache_room, events_that_do_not_fit_come_later)
{
    struct rig *r = &rig;
    open_dirty(r, 16);
    weir_seq seqs[4];
    for (int i = 0; i < 4; i++)
        seqs[i] = wait_for_dirty(r, i % 2 ? "E" : "F");
    rig_begin(r);
    rig_ack(r, rig_end(r)->step);
    for (int i = 0; i < 4; i++) {
        weir_cache_event event;
        size_t n;
        gives(r, weir_cache_poll(r->cache, r->now, &event, 1, &n), 0);
        cr_assert(eq(sz, n, 1));
        cr_assert(eq(u64, event.seq.id, seqs[i].id));
        cr_assert(eq(ptr, event.seq.cache, r->cache));
    }
    rig_poll(r);
    cr_assert(zero(sz, r->n_events));
    for (int i = 0; i < 4; i++)
        rig_done(r, &seqs[i]);
    rig_close(r);
}

Test(cache_room, a_claim_ends_with_close_nospace_and_success)
{
    struct rig *r = &rig;
    open_dirty(r, 16);
    weir_seq seq = wait_for_dirty(r, "EF");
    cr_assert(eq(sz, rig_available(r).claimed, 2));
    rig_done(r, &seq);
    cr_assert(zero(sz, rig_available(r).claimed));

    seq = wait_for_dirty(r, "EFG");
    rig_settle(r);
    weir_seq other = rig_seq(r, "WXYZ", 0);
    gives(r, rig_reserve(r, other, 4 * 16, NULL), -ENOSPC);
    cr_assert(eq(sz, rig_available(r).claimed, 3));
    gives(r, rig_reserve(r, seq, 3 * 16, NULL), 0);
    cr_assert(zero(sz, rig_available(r).claimed));
    rig_done(r, &seq);
    rig_done(r, &other);
    rig_close(r);
}

/* What can never be served must not keep others waiting. */
Test(cache_room, a_claim_ends_with_too_big)
{
    struct rig *r = &rig;
    open_dirty(r, 16);
    weir_seq seq = wait_for_dirty(r, "EF");
    gives(r, rig_reserve(r, seq, 5 * 16, NULL), -E2BIG);
    cr_expect(zero(sz, rig_available(r).claimed));
    rig_done(r, &seq);
    rig_close(r);
}

Test(cache_room, waiting_writes_are_told_again_after_a_step)
{
    struct rig *r = &rig;
    open_dirty(r, 16);
    weir_seq seq = wait_for_dirty(r, "E");
    for (size_t pages = 2; pages <= 4; pages++) {
        rig_poll(r);
        cr_assert(eq(sz, rig_events(r, WEIR_EVENT_WRITE_WAITING, NULL), 1));
        rig_begin(r);
        rig_poll(r);
        cr_assert(zero(sz, r->n_events), "the open step will take them");
        rig_ack(r, rig_end(r)->step);
        gives(r, rig_reserve(r, seq, pages * 16, NULL), -EAGAIN); /* one page more */
    }
    rig_done(r, &seq);
    rig_close(r);
}

/* ---- Eviction ------------------------------------------------------------ */

Test(cache_room, leaves_go_before_parents)
{
    for (size_t e = 0; e < RIG_N_EVICTIONS; e++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            struct rig *r = &rig;
            weir_cache_params params = rig_params(rig_page_tokens[p], 6, 0);
            params.eviction = rig_evictions[e];
            rig_open(r, params);
            weir_seq seq = rig_start(r, "ABCDEF", 0);
            for (size_t n = 1; n <= 6; n++) /* the parents are the older ones */
                rig_ack(r, rig_run(r, seq, n)->step);
            rig_done(r, &seq);
            static const char *const all = "ABCDEF";
            for (size_t n = 1; n <= 6; n++) {
                weir_seq taker = rig_seq(r, "", 1);
                gives(r, rig_reserve(r, taker, n * r->t, NULL), 0);
                rig_expect_hit(r, all, 6 - n, 0, 0);
                cr_assert(eq(u64, rig_stats(r).evicted_device_pages, n), "no page more");
                rig_done(r, &taker);
            }
            rig_close(r);
        }
}

/* A was used often, but before all the others that are there in the end. */
Test(cache_room, policies_choose_what_goes)
{
    static const struct {
        const char *eviction;
        bool keeps; /* what was used often */
    } cases[] = { { "lru", false }, { "slru", true }, { "lfu", true }, { "fifo", false } };
    static const char *const others[] = { "W", "X", "Y", "Z", "B", "C", "D", "E" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            struct rig *r = &rig;
            weir_cache_params params = rig_params(rig_page_tokens[p], 6, 0);
            params.eviction = cases[i].eviction;
            rig_open(r, params);
            rig_compute(r, "A");
            for (size_t k = 0; k < 8; k++) {
                for (int use = 0; k == 4 && use < 6; use++) {
                    weir_seq again = rig_start(r, "A", 1);
                    rig_done(r, &again);
                }
                rig_compute(r, others[k]);
            }
            weir_seq seq = rig_start(r, "MN", 0);
            cr_assert(eq(u64, rig_stats(r).index_pages, 4));
            cr_assert(eq(sz, rig_peek(r, "A").n_tokens, cases[i].keeps), "%s", cases[i].eviction);
            rig_done(r, &seq);
            rig_close(r);
        }
}

Test(cache_room, the_window_is_offered_and_still_hit)
{
    for (size_t e = 0; e < RIG_N_EVICTIONS; e++) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(16, 10, 0);
        params.eviction = rig_evictions[e];
        params.offered = 0.3;
        rig_open(r, params);
        weir_seq seq = rig_start(r, "ABCDEFGHIJ", 0);
        rig_ack(r, rig_run(r, seq, 10)->step);
        rig_poll(r);
        cr_assert(zero(sz, rig_available(r).offered), "a sequence holds them");
        rig_done(r, &seq);
        rig_poll(r);
        cr_assert(eq(sz, rig_available(r).offered, 3));
        cr_assert(zero(sz, rig_available(r).free));
        rig_expect_hit(r, "ABCDEFGHIJ", 10, 0, 0);

        weir_hit hit;
        weir_seq_params seq_params;
        weir_seq_params_init(&seq_params);
        seq_params.compute_at_least = 0;
        weir_key key = rig_key(r, "ABCDEFGHI", 0);
        gives(r, weir_seq_open(&seq, r->cache, &key, &seq_params), 0);
        gives(r, rig_reserve(r, seq, key.n_tokens, &hit), 0);
        cr_assert(eq(sz, hit.n_device, 9 * 16));
        cr_assert(eq(sz, rig_available(r).offered, 1), "a hit takes them back");
        cr_assert(zero(u64, rig_stats(r).evicted_device_pages));
        rig_poll(r);
        cr_assert(eq(sz, rig_available(r).offered, 1), "no other can be offered");
        rig_done(r, &seq);
        rig_poll(r);
        cr_assert(eq(sz, rig_available(r).offered, 3));
        seq = rig_seq(r, "XY", 0);
        gives(r, rig_reserve(r, seq, 2 * 16, NULL), 0);
        cr_assert(eq(u64, rig_stats(r).evicted_device_pages, 2));
        cr_assert(eq(sz, rig_available(r).offered + rig_available(r).free, 1));
        rig_done(r, &seq);
        rig_close(r);
    }
}

/* ---- Write-backs --------------------------------------------------------- */

Test(cache_room, write_back_cleans_before_it_evicts)
{
    for (size_t e = 0; e < RIG_N_EVICTIONS; e++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            struct rig *r = &rig;
            weir_cache_params params = rig_params(rig_page_tokens[p], 8, 8);
            params.eviction = rig_evictions[e];
            params.write_back = "write_back";
            params.offered = 0.25;
            rig_open(r, params);
            weir_seq seq = rig_start(r, "ABCDEFGH", 0);
            rig_ack(r, rig_run(r, seq, 8)->step);
            rig_done(r, &seq);
            rig_poll(r);
            cr_assert(eq(sz, rig_events(r, WEIR_EVENT_WRITE_WAITING, NULL), 1));
            cr_assert(zero(sz, rig_available(r).offered), "dirty pages are not offered");
            rig_expect_hit(r, "ABCDEFGH", 8, 0, 0);
            rig_begin(r);
            const weir_order *order = rig_end(r);
            cr_assert(eq(u32, order->n_writes, 2));
            cr_assert(eq(sz, rig_available(r).pending, 2));
            rig_ack(r, order->step);
            cr_assert(eq(sz, rig_available(r).offered, 2));
            cr_assert(eq(u64, rig_stats(r).written_pages, 2));
            rig_push_out(r);
            rig_expect_hit(r, "ABCDEFGH", 0, 8, 0);
            rig_close(r);
        }
}

Test(cache_room, policies_write_when_they_say)
{
    static const struct {
        const char *name;
        uint64_t written_after_uses[4]; /* pages, after 1 to 4 uses of "AB" */
    } cases[] = {
        { "write_through", { 2, 2, 2, 2 } },
        { "write_through_selective(1)", { 2, 2, 2, 2 } },
        { "write_through_selective", { 0, 2, 2, 2 } },
        { "write_through_selective(3)", { 0, 0, 2, 2 } },
        { "write_through_selective(1000)", { 0, 0, 0, 0 } },
        { "write_back", { 0, 0, 0, 0 } },
        { "never", { 0, 0, 0, 0 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            weir_cache_params params = rig_params(rig_page_tokens[p], 8, 8);
            params.write_back = cases[i].name;
            rig_open(&rig, params);
            for (int use = 0; use < 4; use++) {
                weir_seq seq = rig_start(&rig, "AB", 1);
                rig_ack(&rig, rig_run(&rig, seq, 2)->step);
                rig_done(&rig, &seq);
                rig_settle(&rig);
                cr_assert(eq(u64, rig_stats(&rig).written_pages, cases[i].written_after_uses[use]),
                          "%s, use %d", cases[i].name, use + 1);
            }
            rig_close(&rig);
        }
}

Test(cache_room, a_full_host_tier_skips_and_counts)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 2));
        weir_seq seq = rig_start(r, "ABCDE", 1);
        const weir_order *order = rig_run(r, seq, 5);
        cr_assert(eq(u32, order->n_writes, 2));
        cr_assert(eq(u64, rig_stats(r).write_skipped_pages, 3));
        cr_assert(zero(u64, rig_stats(r).host_free));
        rig_ack(r, order->step);
        rig_done(r, &seq);
        rig_push_out(r);
        rig_expect_hit(r, "ABCDE", 0, 2, 0);
        cr_assert(eq(u64, rig_stats(r).dropped_pages, 3));
        rig_close(r);
    }
}

Test(cache_room, the_host_tier_evicts_too)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 8, 3));
    rig_compute(r, "ABC");
    rig_compute(r, "DEF");
    cr_expect(eq(u64, rig_stats(r).evicted_host_pages, 3));
    cr_expect(eq(u64, rig_stats(r).written_pages, 6));
    rig_expect_hit(r, "ABC", 3, 0, 0);
    rig_push_out(r);
    rig_expect_hit(r, "ABC", 0, 0, 0);
    rig_expect_hit(r, "DEF", 0, 3, 0);
    rig_close(r);
}

Test(cache_room, without_a_host_tier_nothing_is_written)
{
    weir_cache_params params = rig_params(16, 4, 0);
    rig_open(&rig, params);
    weir_seq seq = rig_start(&rig, "AB", 1);
    const weir_order *order = rig_run(&rig, seq, 2);
    cr_expect(zero(u32, order->n_writes));
    cr_expect(zero(u32, order->host_pages));
    rig_ack(&rig, order->step);
    rig_done(&rig, &seq);
    cr_expect(zero(u64, rig_stats(&rig).write_skipped_pages));
    rig_push_out(&rig);
    rig_expect_hit(&rig, "AB", 0, 0, 0);
    rig_close(&rig);
}

Test(cache_room, write_backs_in_flight_are_limited)
{
    for (uint32_t limit = 1; limit <= 5; limit += 2) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(16, 16, 16);
        params.max_write_backs = limit;
        rig_open(r, params);
        static const char *const letters[] = { "A", "B", "C", "D", "E", "F", "G" };
        weir_seq seqs[7];
        uint64_t tickets[7];
        for (uint32_t i = 0; i < 7; i++) {
            seqs[i] = rig_start(r, letters[i], 0);
            const weir_order *order = rig_run(r, seqs[i], 1);
            cr_assert(eq(u32, order->n_writes, i < limit));
            tickets[i] = order->write_ticket;
            cr_assert(eq(u64, tickets[i], i < limit ? i + 1 : 0));
            rig_report(r, WEIR_REPORT_STEP, order->step, 0);
        }
        cr_assert(eq(u64, rig_stats(r).write_backs_in_flight, limit));
        rig_poll(r);
        cr_assert(zero(sz, rig_events(r, WEIR_EVENT_WRITE_WAITING, NULL)), "a step is no help");
        rig_report(r, WEIR_REPORT_WRITE_BACK, tickets[0], 0);
        rig_poll(r);
        cr_assert(eq(sz, rig_events(r, WEIR_EVENT_WRITE_WAITING, NULL), 1));
        rig_begin(r);
        const weir_order *order = rig_end(r);
        cr_assert(eq(u32, order->n_writes, 7 - limit), "all that waited go together");
        cr_assert(eq(u64, order->write_ticket, limit + 1));
        rig_ack(r, order->step);
        for (uint32_t i = 1; i < limit; i++)
            rig_report(r, WEIR_REPORT_WRITE_BACK, tickets[i], 0);
        cr_assert(eq(u64, rig_stats(r).written_pages, 7));
        for (uint32_t i = 0; i < 7; i++)
            rig_done(r, &seqs[i]);
        rig_close(r);
    }
}

Test(cache_room, expect_tokens_keeps_room_to_grow)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 12, 0));
    /* Free then: pages 4 to 6, and 9 to 12. */
    weir_seq low = rig_start(r, "ABC", 0), gap = rig_start(r, "DEF", 0);
    weir_seq high = rig_start(r, "GH", 0);
    rig_done(r, &gap);
    int32_t table[RIG_PAGES];
    weir_seq seq = rig_seq(r, "IJ", 0);
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = 2 * 16;
    request.expect_tokens = 4 * 16;
    gives(r, weir_seq_reserve(seq, &request, NULL), 0);
    cr_assert(eq(sz, rig_table(r, seq, table), 2));
    cr_expect(eq(i32, table[0], 9));
    request.total_tokens = request.expect_tokens;
    gives(r, weir_seq_reserve(seq, &request, NULL), 0);
    cr_assert(eq(sz, rig_table(r, seq, table), 4));
    for (int32_t i = 0; i < 4; i++)
        cr_expect(eq(i32, table[i], 9 + i), "one run");
    weir_seq_close(&low);
    weir_seq_close(&high);
    rig_done(r, &seq);
    rig_close(r);
}
