/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/lifecycle.h>

#define T 16u /* tokens of a page */

static void expect_lengths(struct rig *r, weir_seq seq, size_t committed, size_t tokens,
                           size_t pages)
{
    weir_seq_info info = rig_info(r, seq);
    cr_assert(eq(sz, info.n_committed, committed));
    cr_assert(eq(sz, info.n_tokens, tokens));
    cr_assert(eq(sz, info.n_reserved, pages * T));
}

/* ---- Where the cut lies --------------------------------------------------- */

/* Draft tokens are computed ahead and only some are accepted: their rows are
 * written over, and nothing is cut or copied. */
Test(cache_truncate, speculation_needs_none)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_computed(&r, "A", 3);
    size_t committed = T + 3;
    int32_t first[RIG_PAGES], now[RIG_PAGES];
    gives(&r, rig_reserve(&r, seq, committed + 20, NULL), 0);
    size_t n = rig_table(&r, seq, first);
    for (int32_t round = 0; round < 4; round++) {
        rig_begin(&r);
        rig_add(&r, seq);
        const weir_order *order = rig_end(&r);
        cr_assert(zero(u32, order->n_copies));
        rig_ack(&r, order->step);
        rig_commit_new(&r, seq, 100 * round, 1 + (size_t)round); /* of the drafts, so many */
        committed += 1 + (size_t)round;
        expect_lengths(&r, seq, committed, committed, n);
    }
    cr_assert(eq(sz, rig_table(&r, seq, now), n));
    cr_assert(zero(int, memcmp(first, now, n * sizeof *now)));
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(cache_truncate, in_a_page_of_its_own_it_stays_there)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_computed(&r, "AB", 9);
    int32_t before[RIG_PAGES], after[RIG_PAGES];
    gives(&r, rig_reserve(&r, seq, 5 * T, NULL), 0);
    rig_table(&r, seq, before);
    gives(&r, weir_seq_truncate(seq, 2 * T + 4), 0);
    expect_lengths(&r, seq, 2 * T + 4, 2 * T + 9, 3); /* its key is known still */
    cr_assert(eq(sz, rig_available(&r).free, 8 - 3));
    cr_assert(eq(sz, rig_table(&r, seq, after), 3));
    cr_assert(zero(int, memcmp(before, after, 3 * sizeof *after)));
    gives(&r, weir_seq_commit(seq, NULL, 5), -EINVAL); /* no step since */
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, weir_seq_commit(seq, NULL, 5), 0);
    rig_commit_new(&r, seq, 1, 2);
    const weir_order *order = rig_end(&r);
    cr_assert(zero(u32, order->n_copies));
    rig_ack(&r, order->step);
    gives(&r, weir_seq_truncate(seq, 2 * T + 10), 0);
    expect_lengths(&r, seq, 2 * T + 10, 2 * T + 10, 3);
    gives(&r, weir_seq_truncate(seq, 2 * T + 10), 0);
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(cache_truncate, inside_a_page_of_the_index_that_is_copied)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "ABCD", 3);
    int32_t before[RIG_PAGES], after[RIG_PAGES];
    rig_table(&r, seq, before);
    gives(&r, weir_seq_truncate(seq, 2 * T + 4), 0);
    expect_lengths(&r, seq, 2 * T + 4, 4 * T + 3, 2); /* the third is to be another */
    rig_expect_hit(&r, "ABCD", 4, 0, 0);
    rig_begin(&r);
    gives(&r, weir_step_add(r.step, seq), -EINVAL);
    rig_ack(&r, rig_end(&r)->step);
    gives(&r, weir_seq_commit(seq, NULL, 1), -EINVAL);

    gives(&r, rig_reserve(&r, seq, 1, NULL), 0); /* at least what it has */
    cr_assert(eq(sz, rig_table(&r, seq, after), 3));
    cr_assert(zero(int, memcmp(before, after, 2 * sizeof *after)));
    for (int i = 0; i < 4; i++)
        cr_assert(ne(i32, after[2], before[i]));
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, weir_seq_commit(seq, NULL, T - 4), 0);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 1));
    rig_expect_copy(order, 0, before[2], after[2], 0);
    rig_ack(&r, order->step);
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 1)); /* the same again */
    rig_done(&r, &seq);
    rig_expect_hit(&r, "ABCD", 4, 0, 0);
    rig_close(&r);
}

Test(cache_truncate, between_pages_and_to_nothing)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "ABCD", 3);
    gives(&r, weir_seq_truncate(seq, 2 * T), 0);
    expect_lengths(&r, seq, 2 * T, 4 * T + 3, 2);
    gives(&r, rig_reserve(&r, seq, 4 * T + 3, NULL), 0);
    cr_assert(zero(u32, rig_run(&r, seq, 0)->n_copies));
    gives(&r, weir_seq_truncate(seq, 0), 0);
    expect_lengths(&r, seq, 0, 4 * T + 3, 0);
    rig_expect_hit(&r, "ABCD", 4, 0, 0);
    gives(&r, rig_reserve(&r, seq, 4 * T + 3, NULL), 0);
    rig_step(&r, seq, 4 * T);
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 4));
    rig_ack(&r, 2);
    rig_done(&r, &seq);
    rig_close(&r);
}

/* A page that only holds the same as the index is the sequence's own. */
Test(cache_truncate, inside_a_private_duplicate_it_stays_there)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq a = rig_start(&r, "AB", 1), b = rig_start(&r, "AB", 1);
    rig_ack(&r, rig_run(&r, a, 2)->step);
    rig_ack(&r, rig_run(&r, b, 2)->step);
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 2));
    int32_t before[RIG_PAGES], after[RIG_PAGES];
    rig_table(&r, b, before);
    gives(&r, weir_seq_truncate(b, T + 4), 0);
    cr_assert(eq(sz, rig_table(&r, b, after), 2));
    cr_assert(zero(int, memcmp(before, after, 2 * sizeof *after)));
    rig_begin(&r);
    rig_add(&r, b);
    rig_commit_new(&r, b, 0, 0);
    cr_assert(zero(u32, rig_end(&r)->n_copies));
    rig_ack(&r, 3);
    rig_done(&r, &a);
    rig_done(&r, &b);
    rig_close(&r);
}

/* What is cut off is given to others behind the steps that used it. */
Test(cache_truncate, pages_are_reissued_behind_running_steps)
{
    struct rig r;
    rig_open(&r, rig_params(T, 4, 0));
    weir_seq seq = rig_start(&r, "A", 3);
    gives(&r, rig_reserve(&r, seq, 4 * T, NULL), 0);
    uint64_t step = rig_run(&r, seq, 0)->step;
    gives(&r, weir_seq_truncate(seq, 0), 0);
    cr_assert(eq(sz, rig_available(&r).free, 4));
    weir_seq other = rig_seq(&r, "", 1);
    gives(&r, rig_reserve(&r, other, T, NULL), 0);
    const weir_order *order = rig_run(&r, other, 0);
    cr_assert(rig_names(order->fences, order->n_fences, step));
    rig_done(&r, &seq);
    rig_done(&r, &other);
    rig_ack(&r, 1);
    rig_ack(&r, 2);
    rig_close(&r);
}

/* ---- With forks ----------------------------------------------------------- */

/* The kid's copy is still due: who cuts must not write what it is to be. */
Test(cache_truncate, a_page_that_a_kid_waits_for_is_copied)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "A", 9), kid;
    int32_t before[RIG_PAGES], after[RIG_PAGES];
    rig_table(&r, seq, before);
    gives(&r, weir_seq_fork(&kid, 1, seq, T + 6, NULL), 0);
    gives(&r, weir_seq_truncate(seq, T + 9), 0); /* nothing is cut */
    expect_lengths(&r, seq, T + 9, T + 9, 2);
    gives(&r, weir_seq_truncate(seq, T + 2), 0);
    expect_lengths(&r, seq, T + 2, T + 9, 1);
    gives(&r, rig_reserve(&r, seq, 2 * T, NULL), 0);
    rig_table(&r, seq, after);
    cr_assert(ne(i32, after[1], before[1]));
    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, kid);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 2));
    cr_assert(eq(i32, order->copies[0].from.id, before[1]));
    cr_assert(eq(i32, order->copies[1].from.id, before[1]));
    rig_ack(&r, order->step);
    /* Nobody has it any more. */
    cr_assert(eq(sz, rig_available(&r).free, 10 - 3));
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    rig_close(&r);
}

/* A page that a kid had too, whose steps still read it. */
Test(cache_truncate, a_page_that_was_shared_is_written_behind_its_readers)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq first = rig_computed(&r, "AB", 1), seq = rig_seq(&r, "AB", 1), kid;
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = 2 * T + 1;
    request.use_hit = 0; /* to have pages that the index has no use for */
    gives(&r, weir_seq_reserve(seq, &request, NULL), 0);
    rig_ack(&r, rig_run(&r, seq, 2)->step);
    gives(&r, weir_seq_fork(&kid, 1, seq, 2 * T, NULL), 0);
    uint64_t reader = rig_run(&r, kid, 0)->step;
    rig_done(&r, &kid);
    gives(&r, weir_seq_truncate(seq, T + 2), 0);
    expect_lengths(&r, seq, T + 2, 2 * T + 1, 2); /* in place */
    const weir_order *order = rig_run(&r, seq, 0);
    cr_assert(rig_names(order->fences, order->n_fences, reader));
    rig_done(&r, &first);
    rig_done(&r, &seq);
    rig_ack(&r, 3);
    rig_ack(&r, 4);
    rig_close(&r);
}

/* What guards a page of its own may be a load that nobody else wants any more. */
Test(cache_truncate, a_load_that_only_guarded_is_cancelled)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq hit = rig_start(&r, "A", 1), seq = rig_seq(&r, "A", 1);
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = T + 1;
    request.use_hit = 0;
    gives(&r, weir_seq_reserve(seq, &request, NULL), 0);
    uint64_t step = rig_run(&r, seq, 1)->step;
    rig_done(&r, &hit);
    rig_expect_hit(&r, "A", 0, 0, 1);
    gives(&r, weir_seq_truncate(seq, 3), 0);
    rig_expect_hit(&r, "A", 0, 1, 0);
    rig_ack(&r, step);
    cr_assert(eq(sz, rig_available(&r).free, 8 - 1));
    rig_done(&r, &seq);
    rig_close(&r);
}

/* The copy was made by a step that still runs: written in place behind it. */
Test(cache_truncate, a_page_that_is_being_copied_is_written_behind_that)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "A", 9), kid;
    gives(&r, weir_seq_fork(&kid, 1, seq, T + 6, NULL), 0);
    uint64_t copy = rig_run(&r, kid, 0)->step;
    gives(&r, weir_seq_truncate(seq, T + 2), 0);
    expect_lengths(&r, seq, T + 2, T + 9, 2);
    const weir_order *order = rig_run(&r, seq, 0);
    cr_assert(zero(u32, order->n_copies));
    cr_assert(rig_names(order->fences, order->n_fences, copy));
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    rig_ack(&r, 2);
    rig_ack(&r, 3);
    rig_close(&r);
}

Test(cache_truncate, a_due_copy_is_cut_too)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "AB", 9), kid;
    int32_t table[RIG_PAGES], own[RIG_PAGES];
    rig_table(&r, seq, table);
    gives(&r, weir_seq_fork(&kid, 1, seq, 2 * T + 6, NULL), 0);
    rig_table(&r, kid, own);
    gives(&r, weir_seq_truncate(kid, 2 * T + 3), 0); /* fewer rows of it */
    expect_lengths(&r, kid, 2 * T + 3, 2 * T + 6, 3);
    gives(&r, weir_seq_truncate(kid, T + 3), 0); /* of another page, which it shares */
    expect_lengths(&r, kid, T + 3, 2 * T + 6, 1);
    gives(&r, weir_seq_truncate(kid, T + 2), 0); /* without a page for it */
    expect_lengths(&r, kid, T + 2, 2 * T + 6, 1);
    gives(&r, rig_reserve(&r, kid, 2 * T, NULL), 0);
    rig_table(&r, kid, own);
    const weir_order *order = rig_run(&r, kid, 0);
    cr_assert(eq(u32, order->n_copies, 1));
    rig_expect_copy(order, 0, table[1], own[1], 0);
    gives(&r, weir_seq_truncate(kid, T + 1), 0);
    gives(&r, weir_seq_truncate(kid, T), 0);
    cr_assert(zero(u32, rig_run(&r, kid, 0)->n_copies));
    rig_ack(&r, 2);
    rig_ack(&r, 3);
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    rig_close(&r);
}

/* ---- After failures ------------------------------------------------------- */

Test(cache_truncate, makes_a_sequence_usable_after_a_failed_load)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 16));
    rig_compute(&r, "ABCD");
    rig_push_out(&r);
    weir_seq two = rig_start(&r, "AB", 1);
    rig_ack(&r, rig_run(&r, two, 2)->step);
    weir_seq seq = rig_start(&r, "ABCD", 5);
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, weir_seq_commit(seq, NULL, 5), 0);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_loads, 2));
    rig_report(&r, WEIR_REPORT_LOAD, order->step, -EIO);
    rig_report(&r, WEIR_REPORT_STEP, order->step, 0);
    gives(&r, rig_reserve(&r, seq, 5 * T, NULL), -EIO);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seq), 1));
    cr_assert(eq(sz, r.events[0].good_tokens, 2 * T));
    uint64_t digest = weir_cache_digest(r.cache);
    gives(&r, weir_seq_truncate(seq, 2 * T + 1), -EIO);
    cr_assert(eq(u64, weir_cache_digest(r.cache), digest));
    gives(&r, weir_seq_truncate(seq, 2 * T), 0);
    expect_lengths(&r, seq, 2 * T, 4 * T + 5, 2);
    cr_assert(eq(sz, rig_info(&r, seq).n_hit, 2 * T));

    gives(&r, rig_reserve(&r, seq, 4 * T + 5, NULL), 0);
    rig_step(&r, seq, 2 * T + 5);
    rig_expect_hit(&r, "ABCD", 4, 0, 0);
    rig_poll(&r);
    cr_assert(zero(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, NULL)));
    rig_done(&r, &two);
    rig_done(&r, &seq);
    rig_settle(&r);
    rig_close(&r);
}

/* The event says nothing that the server has not already done. */
Test(cache_truncate, drops_the_event_that_was_not_polled)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 16));
    rig_compute(&r, "AB");
    rig_push_out(&r);
    weir_seq seq = rig_start(&r, "AB", 5);
    uint64_t step = rig_run(&r, seq, 0)->step;
    rig_report(&r, WEIR_REPORT_LOAD, step, -EIO);
    gives(&r, weir_seq_truncate(seq, 0), 0);
    rig_poll(&r);
    cr_assert(zero(sz, r.n_events));
    gives(&r, rig_reserve(&r, seq, 2 * T + 5, NULL), 0);
    rig_report(&r, WEIR_REPORT_STEP, step, 0);
    rig_step(&r, seq, 2 * T);
    rig_expect_hit(&r, "AB", 2, 0, 0);
    rig_done(&r, &seq);
    rig_settle(&r);
    rig_close(&r);
}

Test(cache_truncate, makes_a_sequence_usable_after_a_failed_step)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "AB", T + 4);
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, rig_reserve(&r, seq, 4 * T, NULL), 0);
    rig_commit_new(&r, seq, 1, 6);
    uint64_t step = rig_end(&r)->step;
    /* What an open step commits for it does not enter the index either. */
    rig_begin(&r);
    rig_add(&r, seq);
    rig_commit_new(&r, seq, 7, T - 10);
    rig_report(&r, WEIR_REPORT_STEP, step, -EIO);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 3));
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seq), 1));
    cr_assert(eq(sz, r.events[0].good_tokens, 3 * T));
    gives(&r, weir_seq_truncate(seq, 3 * T), 0);
    gives(&r, rig_reserve(&r, seq, 4 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, weir_seq_commit(seq, NULL, 4), 0);
    rig_commit_new(&r, seq, 50, T - 4);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 4));
    rig_done(&r, &seq);
    rig_close(&r);
}

/* ---- Claims and arguments ------------------------------------------------- */

Test(cache_truncate, ends_a_claim)
{
    struct rig r;
    weir_cache_params params = rig_params(T, 5, 8);
    params.write_back = "write_back";
    rig_open(&r, params);
    rig_compute(&r, "XYZ");
    weir_seq seq = rig_start(&r, "A", 1);
    rig_ack(&r, rig_run(&r, seq, 0)->step);
    gives(&r, rig_reserve(&r, seq, 5 * T, NULL), -EAGAIN);
    cr_assert(lt(sz, 0, rig_available(&r).claimed));
    gives(&r, weir_seq_truncate(seq, 0), 0);
    cr_assert(zero(sz, rig_available(&r).claimed));
    rig_settle(&r);
    rig_poll(&r);
    cr_assert(zero(sz, rig_events(&r, WEIR_EVENT_RESERVE_READY, NULL)));
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(cache_truncate, arguments)
{
    struct rig r;
    rig_open(&r, rig_params(T, 10, 0));
    weir_seq seq = rig_computed(&r, "A", 3), closed = seq;
    unsigned lines = r.log.lines;
    gives(&r, weir_seq_truncate(seq, T + 4), -EINVAL);
    cr_assert(eq(u32, r.log.lines, lines + 1));
    gives(&r, weir_seq_truncate((weir_seq){ 0 }, 0), -EINVAL);
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, weir_seq_truncate(seq, 1), -EBUSY);
    gives(&r, weir_step_abort(&r.step), 0);
    weir_seq fresh = rig_seq(&r, "B", 1);
    gives(&r, weir_seq_truncate(fresh, 0), 0);
    rig_done(&r, &fresh);
    rig_done(&r, &seq);
    gives(&r, weir_seq_truncate(closed, 0), -ESTALE);
    rig_close(&r);
}

static weir_seq late_hit(struct rig *r, const char *letters, uint64_t deadline_ns)
{
    weir_seq seq = rig_seq(r, letters, 1);
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = strlen(letters) * T + 1;
    request.deadline_ns = deadline_ns;
    gives(r, weir_seq_reserve(seq, &request, NULL), 0);
    return seq;
}

/* The late load is cancelled, nobody waits for it, and the sequence computes anew. */
Test(cache_truncate, makes_a_late_sequence_usable)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq seq = late_hit(&r, "A", r.now + 1);
    uint64_t late = rig_run(&r, seq, 0)->step;
    r.now += 5;
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seq), 1));
    cr_assert(eq(int, r.events[0].rc, -ETIMEDOUT));
    gives(&r, weir_seq_truncate(seq, 1), -EIO);
    gives(&r, weir_seq_truncate(seq, 0), 0);
    rig_report(&r, WEIR_REPORT_STEP, late, 0);
    gives(&r, rig_reserve(&r, seq, T, NULL), 0);
    const weir_order *order = rig_run(&r, seq, 0);
    cr_assert(eq(u32, order->n_cancels, 1));
    cr_assert(eq(u64, order->cancels[0].number, late));
    cr_assert(zero(u32, order->n_joins));
    rig_ack(&r, order->step);
    order = rig_run(&r, seq, 1);
    rig_report(&r, WEIR_REPORT_LOAD, late, -ECANCELED);
    rig_ack(&r, order->step);
    rig_expect_hit(&r, "A", 1, 0, 0);
    rig_poll(&r);
    cr_assert(zero(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seq)));
    rig_done(&r, &seq);
    rig_close(&r);
}

/* It fails in the step that was to load: another, whose step loads the pages, comes
 * behind its kernels. */
Test(cache_truncate, a_load_comes_behind_who_failed_before_it)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq late = late_hit(&r, "A", r.now + 1), other = late_hit(&r, "A", 0);
    rig_begin(&r);
    rig_add(&r, late);
    r.now += 5;
    rig_poll(&r);
    const weir_order *order = rig_end(&r);
    uint64_t reader = order->step;
    cr_assert(zero(u32, order->n_loads));
    order = rig_run(&r, other, 0);
    cr_assert(eq(u32, order->n_loads, 1));
    cr_assert(rig_names(order->load_fences, order->n_load_fences, reader));
    uint64_t step = order->step;
    rig_ack(&r, reader);
    rig_ack(&r, step);
    rig_done(&r, &late);
    rig_done(&r, &other);
    rig_close(&r);
}

/* Of what it forgot it puts nothing back, whatever is left of it. */
Test(cache_truncate, what_was_forgotten_stays_out_of_the_index)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_start(&r, "AB", 1);
    uint64_t step = rig_run(&r, seq, 2)->step;
    gives(&r, weir_cache_forget_all(r.cache), 0);
    rig_report(&r, WEIR_REPORT_STEP, step, -EIO);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seq), 1));
    gives(&r, weir_seq_truncate(seq, 0), 0);
    gives(&r, rig_reserve(&r, seq, 2 * T, NULL), 0);
    step = rig_run(&r, seq, 1)->step;
    weir_seq kid;
    gives(&r, weir_seq_fork(&kid, 1, seq, T, NULL), 0);
    gives(&r, rig_reserve(&r, kid, 2 * T, NULL), 0);
    gives(&r, weir_seq_truncate(kid, 0), 0);
    rig_expect_hit(&r, "AB", 0, 0, 0);
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    rig_ack(&r, step);
    rig_close(&r);
}

/* The page of its own is lacking, and what it would copy goes with a rank. */
Test(cache_truncate, a_copy_that_is_due_is_lost_with_a_rank)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_start(&r, "A", 1);
    rig_ack(&r, rig_run(&r, seq, 1)->step);
    gives(&r, weir_seq_truncate(seq, 3), 0);
    expect_lengths(&r, seq, 3, T + 1, 0);
    uint64_t first;
    gives(&r, weir_cache_rank_lost(r.cache, 0, &first), 0);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seq), 1));
    cr_assert(zero(sz, r.events[0].good_tokens));
    gives(&r, rig_reserve(&r, seq, T, NULL), -EIO);
    gives(&r, weir_seq_truncate(seq, 0), 0);
    gives(&r, rig_reserve(&r, seq, T, NULL), 0);
    const weir_order *order = rig_run(&r, seq, 1);
    cr_assert(zero(u32, order->n_copies));
    rig_ack(&r, order->step);
    rig_expect_hit(&r, "A", 1, 0, 0); /* it is well again */
    rig_done(&r, &seq);
    rig_close(&r);
}
