/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/lifecycle.h>

/* A cache that is to stand still. */

static struct rig rig;

static void drain(struct rig *r, int rc)
{
    gives(r, weir_cache_drain(r->cache), rc);
}

Test(cache_drain, until_all_is_reported)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 16, 16);
    params.n_ranks = 2;
    rig_open(r, params);
    drain(r, 0);
    gives(r, weir_cache_resume(r->cache), 0);
    weir_seq seq = rig_start(r, "AB", 1);
    rig_begin(r);
    rig_add(r, seq);
    rig_commit(r, seq, 2);
    drain(r, -EAGAIN); /* a step is open, and can end */
    const weir_order *order = rig_end(r);
    uint64_t step = order->step;
    cr_assert(zero(u64, order->write_ticket), "nothing is queued any more");
    cr_assert(eq(u64, rig_stats(r).write_skipped_pages, 2));
    drain(r, -EAGAIN);
    weir_step next;
    gives(r, weir_step_begin(&next, r->cache), -EBUSY);
    gives(r, rig_try_report(r, 0, WEIR_REPORT_STEP, step, 0), 0);
    drain(r, -EAGAIN);
    gives(r, rig_try_report(r, 1, WEIR_REPORT_STEP, step, 0), 0);
    drain(r, 0);
    gives(r, weir_step_begin(&next, r->cache), -EBUSY);
    gives(r, weir_cache_resume(r->cache), 0);
    gives(r, weir_cache_resume(r->cache), 0);
    rig_ack(r, rig_run(r, seq, 2)->step);
    rig_done(r, &seq);
    rig_close(r);
    cr_expect(eq(int, weir_cache_drain(NULL), -EINVAL));
    cr_expect(eq(int, weir_cache_resume(NULL), -EINVAL));
}

/* The write-back alone, and one that waits for an order. */
Test(cache_drain, write_backs)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 8, 8);
    params.max_write_backs = 1;
    rig_open(r, params);
    weir_seq seq = rig_start(r, "ABC", 1);
    const weir_order *order = rig_run(r, seq, 1);
    uint64_t ticket = order->write_ticket;
    rig_report(r, WEIR_REPORT_STEP, order->step, 0);
    order = rig_run(r, seq, 2);
    cr_assert(zero(u64, order->write_ticket), "one at a time");
    rig_report(r, WEIR_REPORT_STEP, order->step, 0);
    drain(r, -EAGAIN);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    drain(r, 0);
    rig_poll(r);
    cr_assert(zero(sz, r->n_events), "no step can take it");
    rig_commit(r, seq, 3); /* counts, and is not written */
    cr_assert(eq(u64, rig_stats(r).write_skipped_pages, 1));
    gives(r, weir_cache_resume(r->cache), 0);
    rig_poll(r);
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_WRITE_WAITING, NULL), 1));
    rig_begin(r);
    order = rig_end(r);
    cr_assert(eq(u32, order->n_writes, 1));
    rig_ack(r, order->step);
    rig_done(r, &seq);
    rig_close(r);
}

/* What is free or offered is given out, loads and cleaning are not. */
Test(cache_drain, reserves)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 4, 8);
    params.write_back = "write_back";
    rig_open(r, params);
    rig_compute(r, "WX");
    weir_seq one = rig_start(r, "A", 0), two = rig_seq(r, "", 1), hit = rig_seq(r, "WX", 1);
    drain(r, 0);
    gives(r, rig_reserve(r, one, 2 * 16, NULL), 0); /* the last free page */
    gives(r, rig_reserve(r, two, 16, NULL), -EBUSY);
    gives(r, rig_reserve(r, two, 5 * 16, NULL), -E2BIG);
    gives(r, rig_reserve(r, hit, 2 * 16, NULL), 0); /* both on the device */
    cr_assert(zero(sz, rig_available(r).claimed));
    rig_done(r, &hit);
    rig_poll(r);
    gives(r, weir_cache_resume(r->cache), 0);
    gives(r, rig_reserve(r, two, 16, NULL), -EAGAIN);
    drain(r, 0);
    gives(r, rig_reserve(r, two, 16, NULL), -EBUSY);
    cr_assert(eq(sz, rig_available(r).claimed, 1), "it keeps its place");
    gives(r, weir_cache_resume(r->cache), 0);
    rig_settle(r);
    gives(r, rig_reserve(r, two, 16, NULL), 0);
    rig_done(r, &one);
    rig_done(r, &two);

    rig_push_out(r);
    rig_expect_hit(r, "WX", 0, 2, 0);
    hit = rig_seq(r, "WX", 1);
    drain(r, 0);
    gives(r, rig_reserve(r, hit, 33, NULL), -EBUSY); /* would load */
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = 33;
    request.use_hit = 0;
    gives(r, weir_seq_reserve(hit, &request, NULL), 0);
    gives(r, weir_cache_resume(r->cache), 0);
    rig_done(r, &hit);
    rig_close(r);
}
