/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* Loads that fail under sequences that stand on them in every way: each that has
 * a wrong page is told once what is right, and no other. */

static struct rig rig;

/* The letters are in the host tier only. */
static void open_with_host_pages(struct rig *r, uint32_t n_ranks, const char *letters)
{
    weir_cache_params params = rig_params(16, 24, 24);
    params.n_ranks = n_ranks;
    rig_open(r, params);
    rig_compute(r, letters);
    rig_push_out(r);
}

static void expect_told(struct rig *r, weir_seq seq, size_t good_pages)
{
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, &seq), 1));
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i].seq.id == seq.id)
            cr_assert(eq(sz, r->events[i].good_tokens, good_pages * 16));
    gives(r, rig_reserve(r, seq, 1, NULL), -EIO);
}

static void expect_all_free(struct rig *r, uint64_t host)
{
    weir_stats stats = rig_stats(r);
    cr_assert(stats.device_free == 24 && stats.host_free == host, "%d and %d free",
              (int)stats.device_free, (int)stats.host_free);
    cr_assert(zero(u64, stats.orders_in_flight));
    cr_assert(zero(u64, stats.write_backs_in_flight));
}

/* Who computes a page itself needs no load of it, though the index has its path
 * below the page that is being loaded. */
Test(cache_failures, a_private_duplicate_is_right)
{
    struct rig *r = &rig;
    open_with_host_pages(r, 1, "A");
    weir_seq own = rig_seq(r, "ABC", 1);
    weir_request request;
    weir_request_init(&request);
    request.use_hit = 0;
    request.total_tokens = 49;
    gives(r, weir_seq_reserve(own, &request, NULL), 0);
    weir_seq loader = rig_start(r, "A", 1);
    uint64_t load = rig_run(r, loader, 0)->step;
    const weir_order *order = rig_run(r, own, 2);
    uint64_t computed = order->step, ticket = order->write_ticket;
    cr_assert(eq(u32, order->n_writes, 1), "B; A is on the host");
    weir_seq heir = rig_start(r, "AB", 1);
    rig_expect_hit(r, "AB", 1, 0, 1);
    rig_report(r, WEIR_REPORT_LOAD, load, -EIO);
    rig_poll(r);
    cr_assert(eq(sz, r->n_events, 2));
    expect_told(r, loader, 0);
    expect_told(r, heir, 0);
    rig_expect_hit(r, "AB", 0, 0, 0);
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_report(r, WEIR_REPORT_STEP, computed, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    rig_ack(r, rig_run(r, own, 3)->step);
    rig_expect_hit(r, "ABC", 0, 0, 0);
    rig_done(r, &own);
    rig_done(r, &loader);
    rig_done(r, &heir);
    expect_all_free(r, 24);
    rig_close(r);
}

/* A step fails that has computed pages which the index has from another: there they
 * stay, and who computed them anew has nothing good but what is older. */
Test(cache_failures, a_failed_step_leaves_no_duplicate_good)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 24, 0));
    rig_compute(r, "ABC");
    weir_seq own = rig_seq(r, "ABC", 1), kid;
    weir_request request;
    weir_request_init(&request);
    request.use_hit = 0;
    request.total_tokens = 49;
    gives(r, weir_seq_reserve(own, &request, NULL), 0);
    rig_ack(r, rig_run(r, own, 1)->step);
    uint64_t second = rig_run(r, own, 2)->step;
    uint64_t third = rig_run(r, own, 3)->step;
    cr_assert(eq(u64, rig_stats(r).duplicate_pages, 3));
    gives(r, weir_seq_fork(&kid, 1, own, 40, NULL), 0);
    rig_report(r, WEIR_REPORT_STEP, second, -EIO);
    rig_poll(r);
    cr_assert(eq(sz, r->n_events, 2));
    expect_told(r, own, 1);
    expect_told(r, kid, 1);
    rig_expect_hit(r, "ABC", 3, 0, 0);
    rig_report(r, WEIR_REPORT_STEP, third, 0);

    /* Computed once more it is right, whatever was wrong before. */
    gives(r, weir_seq_truncate(own, 16), 0);
    gives(r, rig_reserve(r, own, 49, NULL), 0);
    uint64_t again = rig_run(r, own, 3)->step;
    rig_report(r, WEIR_REPORT_STEP, again, 0);
    uint64_t tail = rig_run(r, own, 0)->step;
    rig_report(r, WEIR_REPORT_STEP, tail, -EIO);
    rig_poll(r);
    expect_told(r, own, 3);
    rig_done(r, &kid);
    rig_done(r, &own);
    rig_close(r);
}

/* Each computes on what the one before has computed. */
Test(cache_failures, heirs_of_heirs)
{
    struct rig *r = &rig;
    open_with_host_pages(r, 1, "AB");
    static const char *const prompts[] = { "ABC", "ABCD", "ABCDE", "ABCDEF" };
    weir_seq seqs[4];
    uint64_t load = 0, last = 0;
    for (int i = 0; i < 4; i++) {
        seqs[i] = rig_start(r, prompts[i], 1);
        last = rig_run(r, seqs[i], strlen(prompts[i]))->step;
        load = load ? load : last;
    }
    rig_expect_hit(r, "ABCDEF", 4, 0, 2);
    weir_seq gone = rig_start(r, "ABCDEF", 1);
    rig_done(r, &gone);
    rig_report(r, WEIR_REPORT_LOAD, load, -EIO);
    rig_expect_hit(r, "ABCDEF", 0, 0, 0);
    rig_poll(r);
    cr_assert(eq(sz, r->n_events, 4));
    for (int i = 0; i < 4; i++)
        expect_told(r, seqs[i], 0);
    rig_poll(r);
    cr_assert(zero(sz, r->n_events));
    for (uint64_t step = load; step <= last; step++)
        rig_report(r, WEIR_REPORT_STEP, step, 0);
    uint64_t first_ticket = r->orders[load % RIG_ORDERS].decoded.write_ticket;
    for (int i = 0; i < 4; i++)
        rig_report(r, WEIR_REPORT_WRITE_BACK, first_ticket + (uint64_t)i, 0);
    for (int i = 0; i < 4; i++)
        rig_done(r, &seqs[i]);
    expect_all_free(r, 24);
    rig_close(r);
}

/* Of a path that two steps load one load fails: what is before it is right. */
Test(cache_failures, one_of_two_loads)
{
    for (int which = 0; which < 2; which++) {
        struct rig *r = &rig;
        open_with_host_pages(r, 1, "ABC");
        weir_seq shorter = rig_start(r, "A", 1);
        uint64_t upper = rig_run(r, shorter, 0)->step;
        weir_seq longer = rig_start(r, "ABCD", 1);
        const weir_order *order = rig_run(r, longer, 4);
        uint64_t lower = order->step, ticket = order->write_ticket;
        rig_report(r, WEIR_REPORT_LOAD, which ? upper : lower, -EIO);
        rig_poll(r);
        cr_assert(eq(sz, r->n_events, which ? 2 : 1));
        expect_told(r, longer, which ? 0 : 1);
        if (which)
            expect_told(r, shorter, 0);
        rig_report(r, WEIR_REPORT_LOAD, which ? lower : upper, which ? 0 : -EIO);
        rig_poll(r);
        /* The longer one has still less, if the upper load has failed too. */
        cr_assert(eq(sz, r->n_events, which ? 0 : 2));
        if (!which)
            expect_told(r, longer, 0);
        rig_expect_hit(r, "ABCD", 0, 0, 0);
        rig_report(r, WEIR_REPORT_STEP, upper, 0);
        rig_report(r, WEIR_REPORT_STEP, lower, 0);
        rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
        rig_done(r, &longer);
        rig_done(r, &shorter);
        expect_all_free(r, 24);
        rig_close(r);
    }
}

/* The failure comes while a step is open in which the sequences commit, one of
 * them closed in it. */
Test(cache_failures, in_the_open_step)
{
    for (int aborted = 0; aborted < 2; aborted++) {
        struct rig *r = &rig;
        open_with_host_pages(r, 2, "AB");
        weir_seq seq = rig_start(r, "ABCD", 1), closing = rig_start(r, "ABX", 1);
        const weir_order *order = rig_run(r, seq, 3);
        uint64_t load = order->step, ticket = order->write_ticket;
        rig_begin(r);
        rig_add(r, seq);
        rig_add(r, closing);
        rig_commit(r, seq, 4);
        rig_commit(r, closing, 3);
        rig_done(r, &closing);
        gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, load, -EIO), 0);
        gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, load, -ECANCELED), 0);
        gives(r, weir_seq_commit(seq, NULL, 0), -EIO);
        rig_poll(r);
        cr_assert(eq(sz, r->n_events, 1));
        cr_assert(zero(sz, r->events[0].good_tokens));
        if (aborted) {
            gives(r, weir_step_abort(&r->step), 0);
        } else {
            order = rig_end(r);
            cr_assert(zero(u32, order->n_writes));
            rig_ack(r, order->step);
        }
        rig_expect_hit(r, "ABCD", 0, 0, 0);
        rig_expect_hit(r, "ABX", 0, 0, 0);
        rig_report(r, WEIR_REPORT_STEP, load, 0);
        rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
        rig_done(r, &seq);
        expect_all_free(r, 24);
        rig_close(r);
    }
}

/* Three ranks, each with an outcome of its own, in any order: one outcome. */
Test(cache_failures, ranks_that_differ)
{
    static const int rcs[] = { 0, -EIO, -ECANCELED };
    for (int i = 0; i < 27; i++) {
        struct rig *r = &rig;
        open_with_host_pages(r, 3, "AB");
        weir_seq seq = rig_start(r, "AB", 1), other = rig_start(r, "ABC", 1);
        uint64_t load = rig_run(r, seq, 0)->step;
        const weir_order *order = rig_run(r, other, 3);
        uint64_t step = order->step, ticket = order->write_ticket;
        int outcomes[] = { rcs[i % 3], rcs[i / 3 % 3], rcs[i / 9] };
        for (uint32_t k = 0; k < 3; k++) {
            rig_poll(r);
            cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL)));
            uint32_t rank = (k + (uint32_t)i) % 3;
            gives(r, rig_try_report(r, rank, WEIR_REPORT_LOAD, load, outcomes[rank]), 0);
        }
        bool failed = i > 0;
        rig_poll(r);
        cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL), failed ? 2 : 0));
        rig_expect_hit(r, "ABC", failed ? 0 : 3, 0, 0);
        rig_report(r, WEIR_REPORT_STEP, load, 0);
        rig_report(r, WEIR_REPORT_STEP, step, 0);
        rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
        rig_done(r, &seq);
        rig_done(r, &other);
        rig_push_out(r);
        expect_all_free(r, failed ? 24 : 21);
        rig_close(r);
    }
}

/* A load that was cancelled and that one rank has not reported yet reads the same host
 * page as the load that came after it: a changed page is that of both. */
Test(cache_failures, a_page_that_changed_under_two_loads)
{
    struct rig *r = &rig;
    open_with_host_pages(r, 2, "A");
    weir_seq first = rig_start(r, "A", 1);
    const weir_order *order = rig_run(r, first, 0);
    uint64_t cancelled = order->step, page = (uint64_t)order->loads[0].host.id;
    rig_done(r, &first);
    rig_begin(r);
    order = rig_end(r);
    uint64_t empty = order->step;
    cr_assert(eq(u32, order->n_cancels, 1));
    weir_seq second = rig_start(r, "A", 1);
    order = rig_run(r, second, 0);
    uint64_t load = order->step;
    cr_assert(eq(u32, order->n_loads, 1));
    cr_assert(eq(i32, order->loads[0].host.id, (int32_t)page));
    gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, cancelled, 0), 0);
    gives(r, rig_try_report(r, 0, WEIR_REPORT_PAGE, page, -EIO), 0);
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    rig_poll(r);
    expect_told(r, second, 0);
    rig_expect_hit(r, "A", 0, 0, 0);
    weir_stats stats = rig_stats(r);
    cr_assert(eq(u64, stats.damaged_pages, 1));
    cr_assert(zero(u64, stats.loaded_pages));
    gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, cancelled, -ECANCELED), 0);
    rig_report(r, WEIR_REPORT_STEP, cancelled, 0);
    rig_report(r, WEIR_REPORT_STEP, empty, 0);
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_done(r, &second);
    expect_all_free(r, 24);
    rig_close(r);
}

/* Reports come in any order: the page is loaded again before its step is told to have
 * failed, and is as wrong on the host as it was on the device. */
Test(cache_failures, a_page_that_was_loaded_before_its_step_was_told)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 24, 24));
    weir_seq seq = rig_start(r, "A", 1);
    const weir_order *order = rig_run(r, seq, 1);
    uint64_t step = order->step, ticket = order->write_ticket;
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    rig_done(r, &seq);
    rig_push_out(r);
    weir_seq heir = rig_start(r, "AB", 1);
    order = rig_run(r, heir, 2);
    uint64_t load = order->step, writing = order->write_ticket;
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    rig_report(r, WEIR_REPORT_STEP, step, -EIO);
    rig_poll(r);
    expect_told(r, heir, 0);
    rig_expect_hit(r, "AB", 0, 0, 0);
    rig_done(r, &heir);
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, writing, 0);
    rig_close(r);
}
