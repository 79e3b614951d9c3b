/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/lifecycle.h>

#define T 16u /* tokens of a page */
#define TAIL 5u

/* Of test_cache_fork: inside a page that a load brings, and after failures. */

/* "ABC" on the host only, and a sequence that hits it; its load is not begun. */
static weir_seq hit_on_host(struct rig *r)
{
    rig_open(r, rig_params(T, 8, 16));
    rig_compute(r, "ABC");
    rig_push_out(r);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    return rig_start(r, "ABC", TAIL);
}

static void close_all(struct rig *r, weir_seq *seqs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        rig_done(r, &seqs[i]);
    rig_settle(r);
    rig_close(r);
}

Test(cache_fork, inside_a_page_whose_load_the_step_begins)
{
    struct rig r;
    weir_seq seq = hit_on_host(&r);
    weir_seq kid = rig_fork(&r, seq, 2 * T + 4);
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    rig_table(&r, seq, table);
    rig_table(&r, kid, kid_table);
    rig_done(&r, &seq); /* the kid alone wants the load now */
    const weir_order *order = rig_run(&r, kid, 0);
    cr_assert(eq(u32, order->n_loads, 3));
    rig_expect_copy(order, 0, table[2], kid_table[2], order->step);
    rig_ack(&r, order->step);
    rig_expect_hit(&r, "ABC", 3, 0, 0);
    close_all(&r, &kid, 1);
}

Test(cache_fork, inside_a_page_whose_load_is_running)
{
    struct rig r;
    weir_seq seq = hit_on_host(&r);
    const weir_order *first = rig_run(&r, seq, 0);
    uint64_t load = first->step;
    weir_seq kid = rig_fork(&r, seq, 2 * T + 4);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 9, T - 4);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 1));
    cr_assert(eq(u64, order->copies[0].load, load));
    cr_assert(rig_names(order->joins, order->n_joins, load));
    /* What is made of it is not in the index until the load has ended well. */
    cr_assert(eq(u64, rig_stats(&r).index_pages, 3));
    rig_ack(&r, load);
    rig_ack(&r, order->step);
    gives(&r, rig_reserve(&r, kid, 4 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 99, 1);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 4));
    weir_seq seqs[] = { seq, kid };
    close_all(&r, seqs, 2);
}

Test(cache_fork, a_failed_load_is_told_to_all_that_copied_it)
{
    struct rig r;
    weir_seq seq = hit_on_host(&r);
    weir_seq due = rig_fork(&r, seq, 2 * T + 4);    /* its copy is still due */
    weir_seq copied = rig_fork(&r, seq, 2 * T + 4); /* made */
    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, copied);
    rig_commit_new(&r, copied, 9, 2);
    weir_seq born = rig_fork(&r, copied, 2 * T + 6); /* of what is copied */
    uint64_t load = rig_end(&r)->step;
    weir_seq later = rig_fork(&r, copied, 2 * T + 5);
    weir_seq far = rig_fork(&r, copied, 2 * T);
    rig_report(&r, WEIR_REPORT_LOAD, load, -EIO);
    rig_poll(&r);
    weir_seq seqs[] = { seq, due, copied, born, later, far };
    for (size_t i = 0; i < 6; i++)
        cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seqs[i]), 1), "%zu", i);
    for (size_t i = 0; i < r.n_events; i++)
        cr_assert(zero(sz, r.events[i].good_tokens));
    weir_seq kid;
    gives(&r, weir_seq_fork(&kid, 1, seq, T, NULL), -EIO);
    rig_report(&r, WEIR_REPORT_STEP, load, 0);
    close_all(&r, seqs, 6);
}

/* The load brings only the page that was copied: what is before it is right. */
Test(cache_fork, a_failed_copy_leaves_what_is_before_it)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "ABC");
    rig_push_out(&r);
    weir_seq two = rig_start(&r, "AB", 1);
    rig_ack(&r, rig_run(&r, two, 2)->step);
    weir_seq seq = rig_start(&r, "ABC", 1);
    weir_seq kid = rig_fork(&r, seq, 2 * T + 4);
    rig_done(&r, &seq);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 9, T - 4);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_loads, 1));
    uint64_t step = order->step;
    rig_report(&r, WEIR_REPORT_LOAD, step, -EIO);
    rig_report(&r, WEIR_REPORT_STEP, step, 0);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &kid), 1));
    cr_assert(eq(sz, r.events[0].good_tokens, 2 * T));
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));

    /* And it can go on from there. */
    gives(&r, weir_seq_truncate(kid, 2 * T), 0);
    gives(&r, rig_reserve(&r, kid, 3 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_known(&r, kid, 4);
    rig_commit_new(&r, kid, 9, T - 4);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 3));
    weir_seq seqs[] = { two, kid };
    close_all(&r, seqs, 2);
}

/* Of what was wrong the abort leaves nothing. */
Test(cache_fork, an_abort_makes_a_kid_of_a_failed_parent_usable)
{
    struct rig r;
    weir_seq seq = hit_on_host(&r);
    weir_seq kid = rig_fork(&r, seq, 4);
    gives(&r, rig_reserve(&r, kid, 2 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 9, 3);
    uint64_t load = rig_end(&r)->step;
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 12, T);
    weir_seq born = rig_fork(&r, kid, T + 1);
    rig_report(&r, WEIR_REPORT_LOAD, load, -EIO);
    gives(&r, weir_step_abort(&r.step), 0);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &kid), 1));
    cr_assert(zero(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &born)));
    gives(&r, rig_reserve(&r, born, T, NULL), 0);
    gives(&r, rig_reserve(&r, kid, 3 * T, NULL), -EIO);
    rig_report(&r, WEIR_REPORT_STEP, load, 0);
    weir_seq seqs[] = { seq, kid, born };
    close_all(&r, seqs, 3);
}

/* What a failed step wrote is wrong in every copy too. */
Test(cache_fork, a_failed_step_is_told_to_the_kids)
{
    struct rig r;
    rig_open(&r, rig_params(T, 12, 0));
    weir_seq seq = rig_start(&r, "AB", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    rig_commit_known(&r, seq, 2 * T + TAIL);
    weir_seq born = rig_fork(&r, seq, 2 * T + 2);
    uint64_t step = rig_end(&r)->step;
    weir_seq kid = rig_fork(&r, seq, 2 * T + 2);
    /* Another hits its pages, and a third goes on inside one of them. */
    weir_seq other = rig_start(&r, "AB", 1);
    weir_seq third = rig_fork(&r, other, T + 2);
    uint64_t copy = rig_run(&r, third, 0)->step;
    rig_report(&r, WEIR_REPORT_STEP, step, -EIO);
    rig_poll(&r);
    weir_seq seqs[] = { seq, born, kid, other, third };
    for (size_t i = 0; i < 5; i++)
        cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seqs[i]), 1), "%zu", i);
    rig_report(&r, WEIR_REPORT_STEP, copy, 0);
    cr_assert(zero(u64, rig_stats(&r).index_pages));
    close_all(&r, seqs, 5);
}

/* Nobody holds the load's target any more, but a kid has copied it. */
Test(cache_fork, a_load_that_was_copied_is_not_cancelled)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq seq = rig_start(&r, "A", 1), kid;
    rig_begin(&r);
    rig_add(&r, seq);
    uint64_t load = rig_end(&r)->step;
    gives(&r, weir_seq_fork(&kid, 1, seq, 5, NULL), 0);
    rig_done(&r, &seq);
    rig_begin(&r);
    rig_add(&r, kid);
    const weir_order *order = rig_end(&r);
    cr_assert(zero(u32, order->n_cancels)); /* while the copy was due */
    cr_assert(eq(u32, order->n_copies, 1));
    cr_assert(eq(u64, order->copies[0].load, load));
    rig_begin(&r);
    order = rig_end(&r);
    cr_assert(zero(u32, order->n_cancels));
    rig_report(&r, WEIR_REPORT_LOAD, load, -EIO);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &kid), 1));
    rig_report(&r, WEIR_REPORT_STEP, load, 0);
    rig_ack(&r, load + 1);
    rig_ack(&r, load + 2);
    rig_done(&r, &kid);
    rig_close(&r);
}

/* Kids and the copies that they wait for end with all sequences. */
Test(cache_fork, reset_ends_kids)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq seq = rig_start(&r, "A", 1), kid;
    rig_begin(&r);
    rig_add(&r, seq);
    uint64_t load = rig_end(&r)->step;
    gives(&r, weir_seq_fork(&kid, 1, seq, 5, NULL), 0);
    gives(&r, weir_cache_reset(r.cache), 0);
    gives(&r, weir_seq_close(&kid), -ESTALE);
    gives(&r, weir_seq_close(&seq), -ESTALE);
    rig_begin(&r);
    const weir_order *order = rig_end(&r);
    cr_assert(zero(u32, order->n_copies));
    cr_assert(eq(u32, order->n_cancels, 1)); /* no copy wants the load any more */
    rig_report(&r, WEIR_REPORT_STEP, load, 0);
    rig_report(&r, WEIR_REPORT_LOAD, load, -ECANCELED);
    rig_ack(&r, load + 1);
    cr_assert(eq(sz, rig_available(&r).free, 8));
    rig_close(&r);
}

/* The step that has not had its load is told of by the kid, too. */
Test(cache_fork, of_an_open_step_that_is_late)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq seq = rig_seq(&r, "A", 1), kid;
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = 2 * T;
    request.deadline_ns = r.now + 1;
    gives(&r, weir_seq_reserve(seq, &request, NULL), 0);
    rig_begin(&r);
    rig_add(&r, seq);
    gives(&r, weir_seq_commit(seq, NULL, 1), 0);
    gives(&r, weir_seq_fork(&kid, 1, seq, T + 1, NULL), 0);
    r.now += 5;
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, NULL), 1));
    const weir_order *order = rig_end(&r);
    cr_assert(zero(u32, order->n_loads));
    rig_ack(&r, order->step);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &kid), 1));
    cr_assert(eq(int, r.events[0].rc, -ETIMEDOUT));
    cr_assert(zero(sz, r.events[0].good_tokens));
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    rig_close(&r);
}

/* A page of the index may be the work of several steps, of which only the last is its
 * writer. Who has copied it has what the others wrote too. */
Test(cache_fork, a_copy_is_as_wrong_as_any_step_that_wrote_it)
{
    for (int last = 0; last < 2; last++) {
        struct rig r;
        rig_open(&r, rig_params(T, 12, 0));
        rig_compute(&r, "A"); /* before all of them */
        weir_seq seq = rig_start(&r, "AB", 1);
        rig_begin(&r);
        rig_add(&r, seq);
        rig_commit_known(&r, seq, 4);
        uint64_t half = rig_end(&r)->step;
        rig_begin(&r);
        rig_add(&r, seq);
        rig_commit_known(&r, seq, T - 4);
        uint64_t whole = rig_end(&r)->step;
        weir_seq other = rig_start(&r, "AB", 1), copied = rig_fork(&r, other, T + 2);
        gives(&r, weir_seq_truncate(other, T + 3), 0);
        gives(&r, rig_reserve(&r, other, 2 * T, NULL), 0);
        rig_begin(&r);
        rig_add(&r, other);
        rig_add(&r, copied);
        uint64_t copy = rig_end(&r)->step;
        weir_seq kid = rig_fork(&r, copied, T + 1), before = rig_fork(&r, copied, T);
        if (last)
            rig_report(&r, WEIR_REPORT_STEP, half, 0);
        rig_report(&r, WEIR_REPORT_STEP, last ? whole : half, -EIO);
        rig_poll(&r);
        weir_seq seqs[] = { seq, other, copied, kid, before };
        for (size_t i = 0; i < 4; i++)
            cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seqs[i]), 1), "%zu", i);
        cr_assert(eq(sz, r.n_events, 4));
        for (size_t i = 0; i < r.n_events; i++)
            cr_assert(eq(sz, r.events[i].good_tokens, T));
        if (!last)
            rig_report(&r, WEIR_REPORT_STEP, whole, 0);
        rig_report(&r, WEIR_REPORT_STEP, copy, 0);
        rig_expect_hit(&r, "AB", 1, 0, 0);
        close_all(&r, seqs, 5);
    }
}

/* A page that a kid shares left the index with a failed step that is none of the kid's,
 * while it was being written back. */
Test(cache_fork, a_page_enters_the_index_again_when_its_write_back_has_ended)
{
    struct rig r;
    rig_open(&r, rig_params(T, 12, 16));
    rig_compute(&r, "A");
    rig_push_out(&r);
    weir_seq seq = rig_start(&r, "A", 1), none = rig_start(&r, "Z", 1);
    weir_seq kid = rig_fork(&r, seq, 4);
    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 9, T - 4); /* not in the index: the load is running */
    uint64_t load = rig_end(&r)->step;
    weir_seq heir = rig_fork(&r, kid, T);
    uint64_t failing = rig_run(&r, none, 0)->step;
    rig_report(&r, WEIR_REPORT_LOAD, load, 0);
    rig_report(&r, WEIR_REPORT_STEP, load, 0);
    gives(&r, rig_reserve(&r, kid, 2 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 99, 1);
    const weir_order *order = rig_end(&r);
    uint64_t step = order->step, ticket = order->write_ticket;
    cr_assert(eq(u32, order->n_writes, 1));
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));
    rig_report(&r, WEIR_REPORT_STEP, failing, -EIO);
    rig_poll(&r);
    cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &kid), 1));
    cr_assert(zero(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &heir)));
    cr_assert(eq(u64, rig_stats(&r).index_pages, 1));

    gives(&r, rig_reserve(&r, heir, 2 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, heir);
    rig_commit_new(&r, heir, 99, 1);
    order = rig_end(&r);
    uint64_t later = order->step;
    cr_assert(eq(u64, rig_stats(&r).index_pages, 1));
    cr_assert(eq(u32, order->n_cancels, 1));
    rig_report(&r, WEIR_REPORT_WRITE_BACK, ticket, -ECANCELED);
    rig_report(&r, WEIR_REPORT_STEP, step, 0);
    rig_report(&r, WEIR_REPORT_STEP, later, 0);
    rig_begin(&r);
    rig_add(&r, heir);
    rig_commit_new(&r, heir, 100, 1);
    order = rig_end(&r);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));
    rig_begin(&r); /* may take the write-back */
    rig_ack(&r, rig_end(&r)->step);
    rig_ack(&r, order->step);
    weir_seq seqs[] = { seq, none, kid, heir };
    close_all(&r, seqs, 4);
}
