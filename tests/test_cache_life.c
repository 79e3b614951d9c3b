/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* Closing at any time, loads that are shared, and what fails. */

static struct rig rig;

/* Nothing is open or in flight: all of the device tier can be had, and the
 * index still holds so many pages of "ABCDE" in the host tier. */
static void expect_all_back(struct rig *r, size_t host)
{
    weir_stats stats = rig_stats(r);
    cr_assert(zero(u64, stats.seqs_open));
    cr_assert(zero(u64, stats.orders_in_flight));
    cr_assert(zero(u64, stats.write_backs_in_flight));
    weir_available available = rig_available(r);
    cr_assert(available.pending == 0 && available.claimed == 0);
    weir_seq seq = rig_seq(r, "", 1);
    gives(r, rig_reserve(r, seq, (size_t)r->device_pages * r->t, NULL), 0);
    rig_expect_hit(r, "ABCDE", 0, host, 0);
    rig_done(r, &seq);
    cr_assert(eq(u64, rig_stats(r).device_free, r->device_pages));
}

/* The index holds the letters in the host tier only. */
static void open_with_host_pages(struct rig *r, uint32_t page_tokens, const char *letters)
{
    rig_open(r, rig_params(page_tokens, 8, 16));
    rig_compute(r, letters);
    rig_push_out(r);
}

/* ---- Closing ------------------------------------------------------------- */

enum state {
    OPENED,
    RESERVED, /* with a load that no step has taken yet */
    IN_STEP,
    IN_STEP_ABORTED,
    IN_FLIGHT, /* step, load and write-back */
    STEP_ENDED,
    LOAD_ENDED,
    ALL_ENDED,
    N_STATES
};

/* Closes a sequence that hits "ABC" on the host and computes "DE". */
static void close_in(struct rig *r, enum state state)
{
    weir_seq seq = rig_seq(r, "ABCDE", 1);
    if (state >= RESERVED)
        gives(r, rig_reserve(r, seq, 5 * r->t, NULL), 0);
    if (state <= RESERVED) {
        rig_done(r, &seq);
        expect_all_back(r, 3);
        return;
    }
    rig_begin(r);
    rig_add(r, seq);
    rig_commit(r, seq, 5);
    if (state == IN_STEP || state == IN_STEP_ABORTED) {
        weir_seq closed = seq;
        rig_done(r, &seq);
        gives(r, weir_step_add(r->step, closed), -ESTALE);
        gives(r, weir_seq_commit(closed, NULL, 0), -ESTALE);
        gives(r, rig_reserve(r, closed, 1, NULL), -ESTALE);
    }
    if (state == IN_STEP_ABORTED) {
        gives(r, weir_step_abort(&r->step), 0);
        expect_all_back(r, 3);
        return;
    }
    const weir_order *order = rig_end(r);
    cr_assert(order->n_loads == 3 && order->n_writes == 2, "the step does what was asked of it");
    if (state == STEP_ENDED || state == ALL_ENDED)
        rig_report(r, WEIR_REPORT_STEP, order->step, 0);
    if (state == LOAD_ENDED || state == ALL_ENDED)
        rig_report(r, WEIR_REPORT_LOAD, order->step, 0);
    if (state == ALL_ENDED)
        rig_report(r, WEIR_REPORT_WRITE_BACK, order->write_ticket, 0);
    uint64_t step = order->step, ticket = order->write_ticket;
    if (state != IN_STEP)
        rig_done(r, &seq);
    rig_poll(r);
    if (state < ALL_ENDED)
        cr_assert(lt(sz, 0, rig_available(r).pending));
    if (state != LOAD_ENDED && state != ALL_ENDED)
        rig_report(r, WEIR_REPORT_LOAD, step, 0);
    if (state != STEP_ENDED && state != ALL_ENDED)
        rig_report(r, WEIR_REPORT_STEP, step, 0);
    if (state != ALL_ENDED)
        rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    rig_expect_hit(r, "ABCDE", 5, 0, 0);
    expect_all_back(r, 5);
}

Test(cache_life, close_at_any_time)
{
    for (enum state state = OPENED; state < N_STATES; state++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            open_with_host_pages(&rig, rig_page_tokens[p], "ABC");
            close_in(&rig, state);
            rig_close(&rig);
        }
}

Test(cache_life, closing_nothing_is_allowed)
{
    weir_seq none = { 0 };
    cr_expect(eq(int, weir_seq_close(&none), 0));
}

Test(cache_life, closing_in_line_lets_the_next_one_go)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 4, 8);
    params.write_back = "write_back";
    rig_open(r, params);
    weir_seq seq = rig_start(r, "WXYZ", 0);
    rig_ack(r, rig_run(r, seq, 4)->step);
    rig_done(r, &seq);
    weir_seq first = rig_seq(r, "", 1), second = rig_seq(r, "", 1);
    gives(r, rig_reserve(r, first, 3 * 16, NULL), -EAGAIN);
    gives(r, rig_reserve(r, second, 2 * 16, NULL), -ENOSPC);
    rig_done(r, &first);
    gives(r, rig_reserve(r, second, 2 * 16, NULL), -EAGAIN);
    rig_settle(r);
    gives(r, rig_reserve(r, second, 2 * 16, NULL), 0);
    rig_done(r, &second);
    rig_close(r);
}

/* The claim of a growing sequence, which is closed in the open step. */
Test(cache_life, closing_in_a_step_leaves_the_line)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 4, 8);
    params.write_back = "write_back";
    rig_open(r, params);
    weir_seq seq = rig_start(r, "WXY", 0);
    rig_ack(r, rig_run(r, seq, 3)->step);
    rig_done(r, &seq);
    seq = rig_start(r, "A", 0);
    gives(r, rig_reserve(r, seq, 4 * 16, NULL), -EAGAIN);
    cr_assert(eq(sz, rig_available(r).claimed, 3));
    rig_begin(r);
    rig_add(r, seq);
    rig_done(r, &seq);
    cr_expect(zero(sz, rig_available(r).claimed));
    rig_ack(r, rig_end(r)->step);
    rig_close(r);
}

/* A slot of the open sequences comes back at once. */
Test(cache_life, sequences_are_limited)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 4, 0);
    params.max_seqs = 3;
    rig_open(r, params);
    weir_seq seqs[3], other = { 0 };
    weir_key key = rig_key(r, "A", 1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            gives(r, weir_seq_open(&seqs[i], r->cache, &key, NULL), 0);
        gives(r, weir_seq_open(&other, r->cache, &key, NULL), -ENOSPC);
        cr_assert(zero(u64, other.id));
        weir_seq old = seqs[round];
        rig_done(r, &seqs[round]);
        gives(r, weir_seq_open(&seqs[round], r->cache, &key, NULL), 0);
        cr_assert(ne(u64, seqs[round].id, old.id), "a handle tells who had the slot");
        gives(r, rig_reserve(r, old, 1, NULL), -ESTALE);
        for (int i = 0; i < 3; i++)
            rig_done(r, &seqs[i]);
    }
    rig_close(r);
}

Test(cache_life, destroy_while_in_use_is_refused)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 4, 4));
    rig_begin(r);
    gives(r, weir_cache_destroy(&r->cache), -EBUSY); /* an open step, nothing else */
    gives(r, weir_step_abort(&r->step), 0);
    weir_seq seq = rig_start(r, "AB", 0);
    gives(r, weir_cache_destroy(&r->cache), -EBUSY);
    rig_begin(r);
    rig_add(r, seq);
    rig_commit(r, seq, 2);
    rig_done(r, &seq);
    gives(r, weir_cache_destroy(&r->cache), -EBUSY);
    const weir_order *order = rig_end(r);
    uint64_t ticket = order->write_ticket;
    gives(r, weir_cache_destroy(&r->cache), -EBUSY);
    rig_report(r, WEIR_REPORT_STEP, order->step, 0);
    unsigned lines = r->log.lines;
    gives(r, weir_cache_destroy(&r->cache), -EBUSY); /* the write-back */
    cr_expect(eq(u32, r->log.lines, lines + 1));
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    rig_close(r);
}

/* ---- Loads --------------------------------------------------------------- */

/* Two sequences share a host prefix; the first closes early. */
static void share_a_load(struct rig *r, bool close_before_step, bool close_in_flight)
{
    weir_seq first = rig_start(r, "ABCD", 1);
    weir_hit hit;
    weir_seq second = rig_seq(r, "ABCE", 1);
    gives(r, rig_reserve(r, second, 4 * r->t, &hit), 0);
    cr_assert(eq(sz, hit.n_loading, 3 * (size_t)r->t));
    cr_assert(zero(sz, hit.n_host));
    if (close_before_step) {
        rig_done(r, &first);
        rig_expect_hit(r, "ABC", 0, 0, 3);
        const weir_order *order = rig_run(r, second, 4);
        cr_assert(eq(u32, order->n_loads, 3), "the second starts it");
        cr_assert(zero(u32, order->n_joins));
        rig_ack(r, order->step);
        rig_done(r, &second);
        return;
    }
    const weir_order *order = rig_run(r, first, 4);
    cr_assert(eq(u32, order->n_loads, 3));
    uint64_t load = order->step;
    if (close_in_flight)
        rig_done(r, &first);
    order = rig_run(r, second, 4);
    cr_assert(zero(u32, order->n_loads), "once");
    cr_assert(order->n_joins == 1 && order->joins[0] == load);
    const weir_order *again = rig_run(r, second, 4);
    cr_assert(again->n_joins == 1 && again->joins[0] == load, "as long as it is in flight");
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    const weir_order *after = rig_run(r, second, 4);
    cr_assert(zero(u32, after->n_joins));
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, 2, 0);
    rig_ack(r, order->step);
    rig_ack(r, again->step);
    rig_ack(r, after->step);
    if (!close_in_flight)
        rig_done(r, &first);
    rig_done(r, &second);
    rig_expect_hit(r, "ABCE", 4, 0, 0);
}

Test(cache_life, a_load_is_shared)
{
    for (int how = 0; how < 3; how++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            struct rig *r = &rig;
            rig_open(r, rig_params(rig_page_tokens[p], 10, 16));
            rig_compute(r, "ABC");
            rig_push_out(r);
            uint64_t loaded = rig_stats(r).loaded_pages;
            share_a_load(r, how == 1, how == 2);
            cr_assert(eq(u64, rig_stats(r).loaded_pages, loaded + 3));
            expect_all_back(r, how == 1 ? 3 : 4);
            rig_close(r);
        }
}

/* The part of a prefix that both need is loaded by the first, the rest by who
 * needs it. */
Test(cache_life, a_longer_hit_loads_only_its_rest)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 12, 16));
    rig_compute(r, "ABCDE");
    rig_push_out(r);
    weir_seq shorter = rig_start(r, "AB", 1), longer = rig_start(r, "ABCDE", 1);
    rig_begin(r);
    rig_add(r, longer); /* also what the other asked for first */
    rig_add(r, shorter);
    const weir_order *order = rig_end(r);
    cr_expect(eq(u32, order->n_loads, 5));
    cr_expect(zero(u32, order->n_joins));
    rig_ack(r, order->step);
    rig_done(r, &shorter);
    rig_done(r, &longer);
    rig_push_out(r);
    shorter = rig_start(r, "AB", 1);
    uint64_t first = rig_run(r, shorter, 0)->step;
    longer = rig_start(r, "ABCDE", 1);
    order = rig_run(r, longer, 0);
    cr_expect(eq(u32, order->n_loads, 3));
    cr_expect(order->n_joins == 1 && order->joins[0] == first);
    rig_ack(r, first);
    rig_ack(r, order->step);
    rig_done(r, &shorter);
    rig_done(r, &longer);
    rig_close(r);
}

/* ---- Failures ------------------------------------------------------------ */

/* The one event of a sequence, with what of it is right. */
static void expect_failure(struct rig *r, weir_seq seq, size_t good_pages)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_events; i++) {
        const weir_cache_event *event = &r->events[i];
        if (event->seq.id != seq.id)
            continue;
        n++;
        cr_assert(event->kind == WEIR_EVENT_LOAD_FAILED);
        cr_assert(eq(int, event->rc, -EIO));
        cr_assert(eq(sz, event->good_tokens, good_pages * r->t));
        cr_assert(zero(ptr, event->user));
    }
    cr_assert(eq(sz, n, 1));
    gives(r, rig_reserve(r, seq, 1, NULL), -EIO);
    gives(r, weir_seq_commit(seq, NULL, 0), -EIO);
    rig_begin(r);
    gives(r, weir_step_add(r->step, seq), -EIO);
    gives(r, weir_step_abort(&r->step), 0);
}

Test(cache_life, a_failed_load_takes_what_was_built_on_it)
{
    static const int errors[] = { -EIO, -ECANCELED };
    for (int i = 0; i < 2; i++)
        for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
            struct rig *r = &rig;
            rig_open(r, rig_params(rig_page_tokens[p], 16, 16));
            rig_compute(r, "ABC");
            rig_push_out(r);
            rig_compute(r, "A"); /* loads A; B and C stay on the host */
            uint64_t failed_before = rig_stats(r).load_failed_pages;

            weir_seq loader = rig_start(r, "ABC", 1), on_top = rig_start(r, "ABCD", 1);
            weir_seq apart = rig_start(r, "AX", 1);
            const weir_order *order = rig_run(r, loader, 3);
            cr_assert(eq(u32, order->n_loads, 2));
            uint64_t load = order->step;
            uint64_t computed = rig_run(r, on_top, 4)->step;
            uint64_t other = rig_run(r, apart, 2)->step;
            weir_seq heir = rig_start(r, "ABCD", 1); /* hits what is provisional */
            rig_expect_hit(r, "ABCD", 2, 0, 2);
            rig_ack(r, computed);
            rig_ack(r, other);

            rig_report(r, WEIR_REPORT_STEP, load, 0);
            rig_report(r, WEIR_REPORT_LOAD, load, errors[i]);
            rig_expect_hit(r, "ABCD", 1, 0, 0);
            rig_expect_hit(r, "AX", 2, 0, 0);
            cr_assert(eq(u64, rig_stats(r).load_failed_pages, failed_before + 2));
            cr_assert(eq(u64, rig_stats(r).host_free, 16 - 2), "A and X are left");
            rig_poll(r);
            expect_failure(r, loader, 1);
            expect_failure(r, on_top, 1);
            expect_failure(r, heir, 1);
            cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL), 3));
            rig_poll(r);
            cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL)), "once each");
            gives(r, rig_reserve(r, apart, 1, NULL), 0);
            uint64_t free_before = rig_stats(r).device_free;
            rig_done(r, &loader);
            rig_done(r, &on_top);
            rig_done(r, &heir);
            cr_assert(eq(u64, rig_stats(r).device_free, free_before + 2 + 1 + 3),
                      "B, C and D once, and three tails");
            rig_done(r, &apart);
            rig_push_out(r);
            rig_expect_hit(r, "AX", 0, 2, 0);
            cr_assert(eq(u64, rig_stats(r).device_free, 16));
            rig_close(r);
        }
}

/* One rank's failure is everyone's, but only when all have reported. */
Test(cache_life, a_load_fails_when_all_ranks_have_reported)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 8, 8);
    params.n_ranks = 3;
    rig_open(r, params);
    rig_compute(r, "AB");
    rig_push_out(r);
    weir_seq seq = rig_start(r, "AB", 1);
    uint64_t step = rig_run(r, seq, 0)->step;
    gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, step, 0), 0);
    gives(r, rig_try_report(r, 2, WEIR_REPORT_LOAD, step, -EIO), 0);
    rig_poll(r);
    cr_expect(zero(sz, r->n_events));
    rig_expect_hit(r, "AB", 0, 0, 2);
    gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, step, 0), 0);
    rig_poll(r);
    expect_failure(r, seq, 0);
    rig_expect_hit(r, "AB", 0, 0, 0);
    rig_report(r, WEIR_REPORT_STEP, step, 0);
    rig_done(r, &seq);
    cr_expect(eq(u64, rig_stats(r).device_free, 8));
    cr_expect(eq(u64, rig_stats(r).host_free, 8));
    rig_close(r);
}

Test(cache_life, a_closed_sequence_has_no_events)
{
    struct rig *r = &rig;
    open_with_host_pages(r, 16, "AB");
    weir_seq seq = rig_start(r, "AB", 1);
    uint64_t load = rig_run(r, seq, 0)->step;
    rig_begin(r);
    rig_add(r, seq);
    rig_done(r, &seq); /* it stays in the open step */
    rig_report(r, WEIR_REPORT_LOAD, load, -EIO);
    rig_poll(r);
    cr_expect(zero(sz, r->n_events));
    uint64_t step = rig_end(r)->step;
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_ack(r, step);
    rig_close(r);
}

/* The event waits in the queue while the sequence closes in a step. */
Test(cache_life, an_event_goes_with_its_sequence)
{
    for (int in_step = 0; in_step < 2; in_step++) {
        struct rig *r = &rig;
        open_with_host_pages(r, 16, "AB");
        weir_seq seq = rig_start(r, "AB", 1), other = rig_start(r, "AB", 1);
        uint64_t load = rig_run(r, seq, 0)->step;
        if (in_step) {
            rig_begin(r);
            rig_add(r, seq);
        }
        rig_report(r, WEIR_REPORT_LOAD, load, -EIO);
        rig_done(r, &seq);
        rig_poll(r);
        cr_assert(eq(sz, r->n_events, 1));
        cr_assert(eq(u64, r->events[0].seq.id, other.id));
        if (in_step)
            rig_ack(r, rig_end(r)->step);
        rig_report(r, WEIR_REPORT_STEP, load, 0);
        rig_done(r, &other);
        rig_close(r);
    }
}

/* Nothing is lost but the copy: the page can be written again. */
Test(cache_life, a_failed_write_back_is_no_copy)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        weir_seq seq = rig_start(r, "AB", 1);
        const weir_order *order = rig_run(r, seq, 2);
        uint64_t ticket = order->write_ticket;
        rig_report(r, WEIR_REPORT_STEP, order->step, 0);
        cr_assert(eq(u64, rig_stats(r).host_free, 6));
        rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, -EIO);
        cr_assert(eq(u64, rig_stats(r).write_failed_pages, 2));
        cr_assert(zero(u64, rig_stats(r).written_pages));
        cr_assert(eq(u64, rig_stats(r).host_free, 8));
        rig_poll(r);
        cr_assert(zero(sz, r->n_events));
        rig_expect_hit(r, "AB", 2, 0, 0);
        rig_done(r, &seq);
        seq = rig_start(r, "AB", 1); /* a hit on a page without a host copy */
        order = rig_run(r, seq, 2);
        cr_assert(eq(u32, order->n_writes, 2));
        rig_ack(r, order->step);
        rig_done(r, &seq);
        rig_push_out(r);
        rig_expect_hit(r, "AB", 0, 2, 0);
        rig_close(r);
    }
}

/* A page that was to be evicted when written is given up, not kept for ever. */
Test(cache_life, a_failed_cleaning_does_not_keep_the_page)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 2, 8);
    params.write_back = "write_back";
    rig_open(r, params);
    weir_seq seq = rig_start(r, "AB", 0);
    rig_ack(r, rig_run(r, seq, 2)->step);
    rig_done(r, &seq);
    seq = rig_seq(r, "CD", 0);
    gives(r, rig_reserve(r, seq, 2 * 16, NULL), -EAGAIN);
    for (int attempt = 0; attempt < 8; attempt++) {
        rig_begin(r);
        const weir_order *order = rig_end(r);
        uint64_t ticket = order->write_ticket;
        rig_report(r, WEIR_REPORT_STEP, order->step, 0);
        if (ticket)
            rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, -EIO);
        rig_poll(r);
    }
    gives(r, rig_reserve(r, seq, 2 * 16, NULL), 0);
    rig_expect_hit(r, "AB", 0, 0, 0);
    rig_done(r, &seq);
    rig_close(r);
}

/* What a step computed is wrong if it failed on a rank, and what was computed
 * since may rest on it. */
Test(cache_life, a_failed_step_takes_its_pages_out)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(rig_page_tokens[p], 16, 16);
        params.n_ranks = 2;
        rig_open(r, params);
        rig_compute(r, "A");
        weir_seq seq = rig_start(r, "ABCD", 1), before = rig_start(r, "X", 1);
        weir_seq after = rig_start(r, "Y", 1);
        rig_ack(r, rig_run(r, seq, 2)->step);
        uint64_t earlier = rig_run(r, before, 1)->step;
        const weir_order *order = rig_run(r, seq, 4);
        uint64_t bad = order->step, ticket = order->write_ticket;
        uint64_t later = rig_run(r, after, 1)->step;
        weir_seq heir = rig_start(r, "ABC", 1);
        rig_ack(r, earlier);
        rig_ack(r, later);
        gives(r, rig_try_report(r, 0, WEIR_REPORT_STEP, bad, -EIO), 0);
        rig_expect_hit(r, "ABCD", 4, 0, 0);
        gives(r, rig_try_report(r, 1, WEIR_REPORT_STEP, bad, 0), 0);
        rig_expect_hit(r, "ABCD", 2, 0, 0);
        rig_expect_hit(r, "X", 1, 0, 0);
        rig_expect_hit(r, "Y", 0, 0, 0);
        rig_poll(r);
        expect_failure(r, seq, 2);
        expect_failure(r, heir, 2);
        expect_failure(r, after, 0);
        cr_assert(eq(sz, r->n_events, 3));
        gives(r, rig_reserve(r, before, 1, NULL), 0);
        rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
        rig_done(r, &seq);
        rig_done(r, &heir);
        rig_done(r, &before);
        rig_done(r, &after);
        cr_assert(eq(u64, rig_stats(r).index_pages, 3));
        cr_assert(eq(u64, rig_stats(r).device_free, 16 - 3));
        cr_assert(eq(u64, rig_stats(r).host_free, 16 - 3));
        rig_close(r);
    }
}
