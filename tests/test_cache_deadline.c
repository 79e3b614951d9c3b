/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* Loads that are not there when a request needs them. */

static struct rig rig;

/* "ABC" is in the host tier, of which A is on the device too. */
static void open_with_host_pages(struct rig *r)
{
    rig_open(r, rig_params(16, 16, 16));
    rig_compute(r, "ABC");
    rig_push_out(r);
    rig_compute(r, "A");
    rig_expect_hit(r, "ABC", 1, 2, 0);
}

static int reserve_by(struct rig *r, weir_seq seq, size_t tokens, uint64_t deadline_ns)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = tokens;
    request.deadline_ns = deadline_ns;
    int rc = weir_seq_reserve(seq, &request, NULL);
    rig_check(r);
    return rc;
}

static weir_seq start_by(struct rig *r, const char *letters, uint64_t deadline_ns)
{
    weir_seq seq = rig_seq(r, letters, 1);
    gives(r, reserve_by(r, seq, strlen(letters) * 16 + 1, deadline_ns), 0);
    return seq;
}

static void poll_at(struct rig *r, uint64_t now_ns)
{
    gives(r, weir_cache_poll(r->cache, now_ns, r->events, 16, &r->n_events), 0);
}

static void expect_late(struct rig *r, const weir_seq *seq, size_t good_pages)
{
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, seq), 1));
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i].seq.id == seq->id) {
            cr_assert(eq(int, r->events[i].rc, -ETIMEDOUT));
            cr_assert(eq(sz, r->events[i].good_tokens, good_pages * 16));
        }
    gives(r, rig_reserve(r, *seq, 1, NULL), -EIO);
    gives(r, weir_seq_commit(*seq, NULL, 0), -EIO);
}

Test(cache_deadline, a_load_that_is_late_is_told_once)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    weir_seq seq = start_by(r, "ABC", 1000);
    uint64_t load = rig_run(r, seq, 0)->step;
    poll_at(r, 999);
    cr_assert(zero(sz, r->n_events));
    poll_at(r, 1000);
    cr_assert(eq(sz, r->n_events, 1));
    expect_late(r, &seq, 1);
    poll_at(r, 5000);
    cr_assert(zero(sz, r->n_events));
    cr_assert(eq(u64, rig_stats(r).late_loads, 1));
    rig_ack(r, load);
    rig_expect_hit(r, "ABC", 3, 0, 0); /* it arrived after all */
    rig_done(r, &seq);
    rig_close(r);
}

Test(cache_deadline, a_load_that_is_there_is_not_late)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    weir_seq loads = start_by(r, "ABC", 1000), hits = start_by(r, "A", 1000);
    weir_seq computes = start_by(r, "XYZ", 1000);
    uint64_t load = rig_run(r, loads, 0)->step;
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    poll_at(r, 1000);
    poll_at(r, UINT64_MAX);
    cr_assert(zero(sz, r->n_events));
    cr_assert(zero(u64, rig_stats(r).late_loads));
    gives(r, rig_reserve(r, loads, 60, NULL), 0);
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_done(r, &loads);
    rig_done(r, &hits);
    rig_done(r, &computes);
    rig_close(r);
}

/* Each by its own deadline; the load goes on for who still wants it, and is
 * cancelled when nobody does. */
Test(cache_deadline, others_wait_longer)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    weir_seq first = start_by(r, "ABC", 2000), second = start_by(r, "AB", 1000);
    weir_seq third = start_by(r, "ABC", 0);
    uint64_t load = rig_run(r, first, 0)->step;
    rig_run(r, second, 0);
    poll_at(r, 1500);
    cr_assert(eq(sz, r->n_events, 1));
    expect_late(r, &second, 1);
    rig_done(r, &second);
    poll_at(r, 2500);
    cr_assert(eq(sz, r->n_events, 1));
    expect_late(r, &first, 1);
    rig_done(r, &first);
    const weir_order *order = rig_run(r, third, 0);
    cr_assert(zero(u32, order->n_cancels));
    cr_assert(order->n_joins == 1 && order->joins[0] == load);
    rig_done(r, &third);
    rig_begin(r);
    order = rig_end(r);
    cr_assert(order->n_cancels == 1 && order->cancels[0].number == load);
    rig_report(r, WEIR_REPORT_LOAD, load, -ECANCELED);
    for (uint64_t step = load; step <= order->step; step++)
        rig_report(r, WEIR_REPORT_STEP, step, 0);
    rig_expect_hit(r, "ABC", 1, 2, 0);
    cr_assert(eq(u64, rig_stats(r).device_free, 15));
    rig_close(r);
}

/* No order holds the load yet: it is late, and not made for this sequence. */
Test(cache_deadline, a_load_that_no_step_took)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    weir_seq seq = start_by(r, "ABC", 1000);
    rig_begin(r);
    rig_add(r, seq);
    poll_at(r, 1000);
    expect_late(r, &seq, 1);
    const weir_order *order = rig_end(r);
    cr_assert(zero(u32, order->n_loads));
    rig_ack(r, order->step);
    rig_done(r, &seq);
    rig_expect_hit(r, "ABC", 1, 2, 0);
    cr_assert(eq(u64, rig_stats(r).device_free, 15));
    rig_close(r);
}

Test(cache_deadline, each_reserve_sets_it_anew)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    weir_seq longer = start_by(r, "ABC", 1000), none = start_by(r, "ABC", 1000);
    uint64_t load = rig_run(r, longer, 0)->step;
    gives(r, reserve_by(r, longer, 60, 3000), 0);
    gives(r, reserve_by(r, none, 60, 0), 0);
    gives(r, reserve_by(r, longer, 17 * 16, 1), -E2BIG); /* sets nothing */
    poll_at(r, 2999);
    cr_assert(zero(sz, r->n_events));
    poll_at(r, 3000);
    cr_assert(eq(sz, r->n_events, 1));
    expect_late(r, &longer, 1);
    rig_done(r, &longer);
    rig_done(r, &none);
    rig_ack(r, load);
    rig_close(r);
}

/* Less is good than was told: that is told too. More is not. */
Test(cache_deadline, late_and_then_failed)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    rig_push_out(r);
    weir_seq first = rig_start(r, "A", 1), seq = start_by(r, "ABC", 1000);
    uint64_t upper = rig_run(r, first, 0)->step; /* loads A */
    uint64_t lower = rig_run(r, seq, 0)->step;   /* B and C */
    rig_report(r, WEIR_REPORT_LOAD, lower, 0);
    poll_at(r, 1000);
    expect_late(r, &seq, 0);
    rig_report(r, WEIR_REPORT_LOAD, upper, -EIO);
    poll_at(r, 1001);
    cr_assert(eq(sz, r->n_events, 1), "of the other only");
    cr_assert(eq(u64, r->events[0].seq.id, first.id));
    rig_report(r, WEIR_REPORT_STEP, upper, 0);
    rig_report(r, WEIR_REPORT_STEP, lower, 0);
    rig_done(r, &first);
    rig_done(r, &seq);
    rig_close(r);

    open_with_host_pages(r);
    rig_push_out(r);
    first = rig_start(r, "A", 1);
    seq = start_by(r, "ABC", 1000);
    upper = rig_run(r, first, 0)->step;
    weir_seq third = rig_start(r, "AB", 1);
    lower = rig_run(r, third, 0)->step;       /* B */
    uint64_t last = rig_run(r, seq, 0)->step; /* C */
    rig_report(r, WEIR_REPORT_LOAD, upper, 0);
    rig_report(r, WEIR_REPORT_LOAD, lower, 0);
    poll_at(r, 1000);
    expect_late(r, &seq, 2);
    rig_report(r, WEIR_REPORT_STEP, upper, -EIO); /* of no page of the sequence */
    rig_report(r, WEIR_REPORT_LOAD, last, -EIO);
    poll_at(r, 1001);
    cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, &seq)));
    rig_report(r, WEIR_REPORT_STEP, lower, 0);
    rig_report(r, WEIR_REPORT_STEP, last, 0);
    rig_done(r, &first);
    rig_done(r, &seq);
    rig_done(r, &third);
    rig_close(r);
}

Test(cache_deadline, a_closed_sequence_has_none)
{
    struct rig *r = &rig;
    open_with_host_pages(r);
    weir_seq seq = start_by(r, "ABC", 1000), in_step = start_by(r, "ABC", 1000);
    uint64_t load = rig_run(r, seq, 0)->step;
    rig_done(r, &seq);
    rig_begin(r);
    rig_add(r, in_step);
    rig_done(r, &in_step);
    poll_at(r, 2000);
    cr_assert(zero(sz, r->n_events));
    cr_assert(zero(u64, rig_stats(r).late_loads));
    uint64_t step = rig_end(r)->step;
    rig_ack(r, load);
    rig_ack(r, step);
    rig_close(r);
}
