/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_hands.h"

#include <weir/lifecycle.h>

/* A rank that reports no more, and another in its place: for the cache alone,
 * then with two ranks that move bytes. */

static struct rig rig;

static void open_cache(struct rig *r, uint32_t n_ranks)
{
    weir_cache_params params = rig_params(16, 16, 16);
    params.n_ranks = n_ranks;
    rig_open(r, params);
}

static void expect_free(struct rig *r, uint64_t device, uint64_t host)
{
    weir_stats stats = rig_stats(r);
    cr_assert(stats.device_free == device && stats.host_free == host, "%d and %d free",
              (int)stats.device_free, (int)stats.host_free);
}

static uint64_t lose(struct rig *r, uint32_t rank)
{
    uint64_t first = 0;
    gives(r, weir_cache_rank_lost(r->cache, rank, &first), 0);
    return first;
}

static void expect_nothing_is_right(struct rig *r, const weir_seq *seq)
{
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, seq), 1));
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i].seq.id == seq->id) {
            cr_assert(eq(int, r->events[i].rc, -EIO));
            cr_assert(zero(sz, r->events[i].good_tokens));
        }
    gives(r, rig_reserve(r, *seq, 1, NULL), -EIO);
}

/* ---- The cache alone ----------------------------------------------------- */

/* A step that was in flight then ends on the other ranks later: what began in the
 * meantime has nothing of it. */
Test(cache_rank_lost, what_begins_afterwards_is_right)
{
    struct rig *r = &rig;
    open_cache(r, 2);
    weir_seq old = rig_start(r, "AB", 1);
    uint64_t before = rig_run(r, old, 2)->step;
    lose(r, 0);
    weir_seq seq = rig_start(r, "CD", 1);
    uint64_t step = rig_run(r, seq, 2)->step;
    gives(r, rig_try_report(r, 1, WEIR_REPORT_STEP, before, 0), 0);
    rig_poll(r);
    expect_nothing_is_right(r, &old);
    cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, &seq)));
    rig_expect_hit(r, "CD", 2, 0, 0);
    rig_done(r, &old);
    rig_done(r, &seq);
    gives(r, rig_try_report(r, 1, WEIR_REPORT_WRITE_BACK, before, 0), 0);
    rig_ack(r, step);
    rig_expect_hit(r, "CD", 2, 0, 0);
    rig_settle(r);
    rig_close(r);
}

Test(cache_rank_lost, with_everything_in_flight)
{
    struct rig *r = &rig;
    open_cache(r, 2);
    rig_compute(r, "ABC");
    rig_push_out(r);
    weir_seq loading = rig_start(r, "ABCD", 1), unsent = rig_start(r, "AB", 1);
    weir_seq opened = rig_seq(r, "ABC", 1), cold = rig_start(r, "X", 1);
    const weir_order *order = rig_run(r, loading, 4);
    uint64_t load = order->step, ticket = order->write_ticket;
    gives(r, rig_try_report(r, 1, WEIR_REPORT_STEP, load, 0), 0);

    cr_assert(eq(u64, lose(r, 1), load + 1));
    rig_expect_hit(r, "ABCD", 0, 0, 0);
    cr_assert(zero(u64, rig_stats(r).index_pages));
    rig_poll(r);
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL), 3));
    expect_nothing_is_right(r, &loading);
    expect_nothing_is_right(r, &unsent);
    expect_nothing_is_right(r, &cold);
    gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, load, 0), -EINVAL);
    gives(r, rig_try_report(r, 1, WEIR_REPORT_WRITE_BACK, ticket, 0), -EINVAL);

    /* What has no pages has lost none. */
    weir_hit hit = { .n_tokens = 1 };
    gives(r, rig_reserve(r, opened, 33, &hit), 0);
    cr_assert(zero(sz, hit.n_tokens));
    rig_done(r, &loading);
    rig_done(r, &unsent);
    rig_done(r, &cold);
    expect_free(r, 16 - 3 - 1 - 3, 16 - 3 - 1);
    gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, load, 0), 0);
    gives(r, rig_try_report(r, 0, WEIR_REPORT_WRITE_BACK, ticket, 0), 0);
    gives(r, rig_try_report(r, 0, WEIR_REPORT_STEP, load, 0), 0);
    cr_assert(zero(u64, rig_stats(r).orders_in_flight));
    expect_free(r, 16 - 3, 16);

    /* The new rank answers for what comes now. */
    order = rig_run(r, opened, 2);
    cr_assert(eq(u64, order->step, load + 1));
    cr_assert(eq(u32, order->n_fences, 0));
    rig_ack(r, order->step);
    rig_expect_hit(r, "AB", 2, 0, 0);
    rig_done(r, &opened);
    expect_free(r, 14, 14);
    rig_close(r);
}

/* A step whose last outstanding rank is lost is over at once. */
Test(cache_rank_lost, the_last_that_was_waited_for)
{
    struct rig *r = &rig;
    open_cache(r, 3);
    weir_seq seq = rig_start(r, "AB", 1);
    const weir_order *order = rig_run(r, seq, 2);
    uint64_t step = order->step, ticket = order->write_ticket;
    for (uint32_t rank = 0; rank < 2; rank++) {
        gives(r, rig_try_report(r, rank, WEIR_REPORT_STEP, step, 0), 0);
        gives(r, rig_try_report(r, rank, WEIR_REPORT_WRITE_BACK, ticket, 0), 0);
    }
    rig_done(r, &seq);
    cr_assert(eq(u64, lose(r, 2), step + 1));
    expect_free(r, 16, 16);
    cr_assert(zero(u64, rig_stats(r).orders_in_flight));
    cr_assert(zero(u64, rig_stats(r).write_backs_in_flight));
    cr_assert(zero(u64, rig_stats(r).written_pages));
    rig_poll(r);
    cr_assert(zero(sz, r->n_events));
    cr_assert(eq(u64, lose(r, 2), step + 1), "again, and nothing was in flight");
    cr_assert(eq(u64, lose(r, 0), step + 1));
    rig_compute(r, "AB");
    rig_close(r);
}

/* The open step is the first that the new rank begins. */
Test(cache_rank_lost, in_the_open_step)
{
    struct rig *r = &rig;
    open_cache(r, 2);
    rig_compute(r, "AB");
    rig_push_out(r);
    weir_seq seq = rig_start(r, "ABC", 1);
    rig_begin(r);
    uint64_t open = r->step.id;
    rig_add(r, seq);
    rig_commit(r, seq, 3);
    cr_assert(eq(u64, lose(r, 0), open));
    const weir_order *order = rig_end(r);
    cr_assert(eq(u64, order->step, open));
    cr_assert(order->n_loads == 0 && order->n_writes == 0, "nothing of it is worth moving");
    rig_ack(r, open);
    rig_poll(r);
    expect_nothing_is_right(r, &seq);
    rig_done(r, &seq);
    expect_free(r, 16, 16);
    rig_close(r);
}

Test(cache_rank_lost, what_it_refuses)
{
    struct rig *r = &rig;
    open_cache(r, 2);
    uint64_t first = 77;
    unsigned lines = r->log.lines;
    gives(r, weir_cache_rank_lost(r->cache, 2, &first), -EINVAL);
    gives(r, weir_cache_rank_lost(r->cache, 0, NULL), -EINVAL);
    cr_expect(eq(u32, r->log.lines, lines + 2));
    cr_expect(eq(int, weir_cache_rank_lost(NULL, 0, &first), -EINVAL));
    cr_expect(eq(u64, first, 77));
    rig_close(r);
}

/* ---- With ranks ---------------------------------------------------------- */

/* Rank 1 dies before, while or after it has enqueued the load that rank 0 makes. */
static void lose_one_of_two(struct rig *r, int when)
{
    hands_open(r);
    weir_seq seq = hands_there_and_back(r);
    if (when == 0)
        hand_close(&hands[1]);
    hands_serve(r, seq, 2, 2);
    if (when == 2) /* some of it has run */
        weir_cpu_device_run(hands[1].device, 9);
    if (when > 0)
        hand_close(&hands[1]);
    uint64_t first;
    gives(r, weir_cache_rank_lost(r->cache, 1, &first), 0);
    rig_poll(r);
    expect_nothing_is_right(r, &seq);
    rig_done(r, &seq);
    hands_idle(r); /* the cancel of the load is not for a rank that is gone */
    hands_report(r);
    uint64_t second;
    gives(r, weir_cache_rank_lost(r->cache, 1, &second), 0);
    cr_assert(eq(u64, second, first + 1), "rank 0 has gone on meanwhile");
    cr_assert(zero(u64, rig_stats(r).orders_in_flight));
    expect_free(r, HAND_PAGES, HAND_PAGES);

    hand_open(&hands[1], 1, second);
    seq = hands_there_and_back(r);
    hands_serve(r, seq, 2, 2);
    hands_report(r);
    cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL)));
    rig_expect_hit(r, "AB", 2, 0, 0);
    rig_done(r, &seq);
    hands_close(r);
}

Test(cache_rank_lost, another_rank_takes_its_place)
{
    for (int when = 0; when < 3; when++)
        lose_one_of_two(&rig, when);
}
