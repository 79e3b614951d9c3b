/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#define T 16u /* tokens of a page */
#define TAIL 5u

/* ---- What kids share ------------------------------------------------------ */

Test(cache_fork, full_pages_are_shared_and_the_tail_is_copied_once)
{
    struct rig r;
    rig_open(&r, rig_params(T, 20, 0));
    weir_seq seq = rig_computed(&r, "ABC", TAIL);
    int users[3];
    void *const pointers[] = { &users[0], &users[1], &users[2] };
    weir_seq kids[3];
    size_t len = 3 * T + TAIL;
    gives(&r, weir_seq_fork(kids, 3, seq, len, pointers), 0);

    int32_t table[RIG_PAGES], own[3];
    cr_assert(eq(sz, rig_table(&r, seq, table), 4));
    for (int i = 0; i < 3; i++) {
        weir_seq_info info = rig_info(&r, kids[i]);
        cr_assert(eq(sz, info.n_tokens, len));
        cr_assert(eq(sz, info.n_committed, len));
        cr_assert(eq(sz, info.n_reserved, 4 * T));
        cr_assert(eq(ptr, info.user, pointers[i]));
        int32_t kid[RIG_PAGES];
        cr_assert(eq(sz, rig_table(&r, kids[i], kid), 4));
        cr_assert(zero(int, memcmp(kid, table, 3 * sizeof *kid)));
        own[i] = kid[3];
        cr_assert(ne(i32, own[i], table[3]));
        for (int k = 0; k < i; k++)
            cr_assert(ne(i32, own[i], own[k]));
    }
    rig_begin(&r);
    for (int i = 0; i < 3; i++)
        rig_add(&r, kids[i]);
    rig_add(&r, seq);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 3));
    for (uint32_t i = 0; i < 3; i++)
        rig_expect_copy(order, i, table[3], own[i], 0);
    cr_assert(zero(u32, rig_run(&r, kids[1], 0)->n_copies));
    weir_stats stats = rig_stats(&r);
    cr_assert(eq(u64, stats.forks, 3));
    cr_assert(eq(u64, stats.copied_pages, 3));
    for (int i = 0; i < 3; i++)
        rig_done(&r, &kids[i]);
    rig_done(&r, &seq);
    rig_ack(&r, 2);
    rig_ack(&r, 3);
    rig_close(&r);
}

Test(cache_fork, a_fork_between_pages_copies_nothing)
{
    struct rig r;
    rig_open(&r, rig_params(T, 12, 0));
    weir_seq seq = rig_computed(&r, "ABC", TAIL);
    weir_seq kid = rig_fork(&r, seq, 2 * T);
    int32_t table[RIG_PAGES];
    cr_assert(eq(sz, rig_table(&r, kid, table), 2));
    gives(&r, rig_reserve(&r, kid, 3 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_new(&r, kid, 1, T); /* its own way on: the parent's third page is another */
    const weir_order *order = rig_end(&r);
    cr_assert(zero(u32, order->n_copies));
    rig_ack(&r, order->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 4));
    cr_assert(zero(u64, rig_stats(&r).duplicate_pages));
    rig_done(&r, &kid);
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(cache_fork, kids_outlive_the_parent)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_computed(&r, "AB", TAIL);
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    rig_table(&r, seq, table);
    weir_seq kid = rig_fork(&r, seq, 2 * T + 3);
    rig_done(&r, &seq);
    /* The source is not given out before it was copied. */
    cr_assert(eq(sz, rig_available(&r).free, 8 - 4));
    rig_table(&r, kid, kid_table);
    const weir_order *order = rig_run(&r, kid, 0);
    rig_expect_copy(order, 0, table[2], kid_table[2], 0);
    cr_assert(eq(sz, rig_available(&r).free, 8 - 3));

    /* Who gets it then comes behind the copy. */
    weir_seq all = rig_seq(&r, "", 1);
    gives(&r, rig_reserve(&r, all, 5 * T, NULL), 0);
    const weir_order *next = rig_run(&r, all, 0);
    cr_assert(rig_names(next->fences, next->n_fences, order->step));
    rig_done(&r, &all);
    rig_done(&r, &kid);
    rig_ack(&r, 2);
    rig_ack(&r, 3);
    cr_assert(eq(sz, rig_available(&r).free, 8 - 2));
    rig_close(&r);
}

Test(cache_fork, a_kid_that_is_closed_before_its_step_leaves_nothing)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_computed(&r, "AB", TAIL);
    size_t before = rig_available(&r).free;
    weir_seq kid = rig_fork(&r, seq, 2 * T + 3);
    cr_assert(eq(sz, rig_available(&r).free, before - 1));
    rig_done(&r, &kid);
    cr_assert(eq(sz, rig_available(&r).free, before));
    cr_assert(zero(u32, rig_run(&r, seq, 0)->n_copies));
    rig_ack(&r, 2);
    rig_done(&r, &seq);
    rig_close(&r);
}

/* A fork of a fork whose copy is not made takes the bytes from where they are. */
Test(cache_fork, a_fork_of_a_fork_copies_from_the_first)
{
    struct rig r;
    rig_open(&r, rig_params(T, 12, 0));
    weir_seq seq = rig_computed(&r, "AB", TAIL);
    weir_seq kid = rig_fork(&r, seq, 2 * T + 4);
    weir_seq grandkid = rig_fork(&r, kid, 2 * T + 2);
    int32_t table[RIG_PAGES], first[RIG_PAGES], second[RIG_PAGES];
    rig_table(&r, seq, table);
    rig_table(&r, kid, first);
    rig_table(&r, grandkid, second);
    rig_done(&r, &kid);
    rig_done(&r, &seq);
    rig_expect_copy(rig_run(&r, grandkid, 0), 0, table[2], second[2], 0);
    /* Once it is made, from there. */
    weir_seq last = rig_fork(&r, grandkid, 2 * T + 1);
    int32_t third[RIG_PAGES];
    rig_table(&r, last, third);
    const weir_order *order = rig_run(&r, last, 0);
    rig_expect_copy(order, 0, second[2], third[2], 0);
    cr_assert(rig_names(order->fences, order->n_fences, 2));
    rig_done(&r, &grandkid);
    rig_done(&r, &last);
    rig_ack(&r, 2);
    rig_ack(&r, 3);
    rig_close(&r);
}

/* Both write, or read, the same page: rows apart, but a copy takes it whole. */
Test(cache_fork, copies_and_writes_of_a_page_are_ordered)
{
    struct rig r;
    rig_open(&r, rig_params(T, 12, 0));
    weir_seq seq = rig_computed(&r, "AB", TAIL);
    weir_seq kid = rig_fork(&r, seq, 2 * T + TAIL);
    uint64_t write = rig_run(&r, seq, 0)->step;
    const weir_order *copy = rig_run(&r, kid, 0);
    cr_assert(rig_names(copy->fences, copy->n_fences, write));
    const weir_order *later = rig_run(&r, seq, 0);
    cr_assert(rig_names(later->fences, later->n_fences, copy->step));
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    for (uint64_t step = 2; step <= 4; step++)
        rig_ack(&r, step);
    rig_close(&r);
}

Test(cache_fork, what_kids_compute_enters_the_index)
{
    struct rig r;
    rig_open(&r, rig_params(T, 16, 0));
    weir_seq seq = rig_computed(&r, "A", TAIL);
    weir_seq kids[2];
    gives(&r, weir_seq_fork(kids, 2, seq, T + 3, NULL), 0);
    rig_begin(&r);
    for (int i = 0; i < 2; i++) {
        rig_add(&r, kids[i]);
        rig_commit_new(&r, kids[i], 7, T - 3); /* the same answer twice */
    }
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 1));
    rig_done(&r, &kids[0]);
    weir_seq late = rig_fork(&r, kids[1], 2 * T); /* shares the private duplicate */
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    rig_table(&r, kids[1], table);
    rig_table(&r, late, kid_table);
    cr_assert(zero(int, memcmp(table, kid_table, 2 * sizeof *table)));
    rig_done(&r, &kids[1]);
    rig_done(&r, &seq);
    rig_push_out(&r); /* cannot take what the last one holds, nor what guards it */
    gives(&r, rig_reserve(&r, late, 3 * T, NULL), 0);
    rig_ack(&r, rig_run(&r, late, 0)->step);
    rig_done(&r, &late);
    rig_close(&r);
}

/* A kid that begins inside an image has only so much of it: what it makes of the rest
 * is another page, whatever its tokens are. */
Test(cache_fork, inside_a_span_the_kid_has_the_part_before_it)
{
    struct rig r;
    rig_open(&r, rig_params(T, 12, 0));
    const weir_span image = {
        .first = T + 2, .n_tokens = 10, .digest = "0123456789abcdef", .digest_bytes = 16
    };
    weir_key key = rig_key(&r, "AB", 1);
    key.spans = &image;
    key.n_spans = 1;
    int32_t tokens[2 * T + 1];
    memcpy(tokens, key.tokens, sizeof tokens);
    weir_seq seq, kid;
    gives(&r, weir_seq_open(&seq, r.cache, &key, NULL), 0);
    gives(&r, rig_reserve(&r, seq, 2 * T + 1, NULL), 0);
    rig_ack(&r, rig_run(&r, seq, 2)->step);
    gives(&r, weir_seq_fork(&kid, 1, seq, T + 6, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    gives(&r, weir_seq_commit(kid, tokens + T + 6, T - 6), 0);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 3));
    cr_assert(zero(u64, rig_stats(&r).duplicate_pages));
    rig_done(&r, &kid);

    /* Behind the image it has all of it. */
    gives(&r, weir_seq_fork(&kid, 1, seq, T + 12, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    gives(&r, weir_seq_commit(kid, tokens + T + 12, T - 12), 0);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 3));
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 1));
    rig_done(&r, &kid);

    /* What is cut and computed again finds its page. */
    gives(&r, weir_seq_truncate(seq, T + 3), 0);
    gives(&r, rig_reserve(&r, seq, 2 * T, NULL), 0);
    rig_step(&r, seq, T - 3);
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 2));
    rig_done(&r, &seq);
    rig_close(&r);
}

/* ---- The open step -------------------------------------------------------- */

Test(cache_fork, of_what_the_open_step_computes)
{
    struct rig r;
    rig_open(&r, rig_params(T, 16, 0));
    weir_seq seq = rig_start(&r, "AB", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    rig_commit_known(&r, seq, 2 * T + TAIL);
    weir_seq kid = rig_fork(&r, seq, 2 * T + TAIL);
    weir_seq grandkid = rig_fork(&r, kid, T + 1);
    cr_assert(eq(sz, rig_info(&r, kid).n_committed, 2 * T + TAIL));
    gives(&r, weir_step_add(r.step, kid), -EBUSY);
    gives(&r, weir_seq_truncate(kid, T), -EBUSY);
    int32_t token = 1;
    gives(&r, weir_seq_commit(kid, &token, 1), -EINVAL);
    const weir_order *order = rig_end(&r);
    uint64_t first = order->step;
    cr_assert(zero(u32, order->n_copies));
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));
    cr_assert(eq(u64, rig_stats(&r).committed_pages, 2));
    cr_assert(zero(u64, rig_stats(&r).duplicate_pages));
    gives(&r, weir_seq_commit(kid, &token, 1), -EINVAL); /* that step was not its own */

    int32_t table[RIG_PAGES], a[RIG_PAGES], b[RIG_PAGES];
    rig_table(&r, seq, table);
    rig_table(&r, kid, a);
    rig_table(&r, grandkid, b);
    rig_done(&r, &seq);
    rig_begin(&r);
    rig_add(&r, kid);
    rig_add(&r, grandkid);
    order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 2));
    rig_expect_copy(order, 0, table[2], a[2], 0);
    rig_expect_copy(order, 1, table[1], b[1], 0);
    cr_assert(rig_names(order->fences, order->n_fences, first));
    rig_done(&r, &kid);
    rig_done(&r, &grandkid);
    rig_ack(&r, 1);
    rig_ack(&r, 2);
    rig_close(&r);
}

Test(cache_fork, an_abort_takes_back_what_was_forked_off_the_step)
{
    struct rig r;
    rig_open(&r, rig_params(T, 16, 0));
    weir_seq seq = rig_start(&r, "ABC", TAIL);
    rig_step(&r, seq, T + 4);
    weir_seq early = rig_fork(&r, seq, T + 4);
    size_t free_pages = rig_available(&r).free;

    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, early);
    rig_commit_known(&r, seq, 2 * T);
    weir_seq kid = rig_fork(&r, seq, 3 * T + 4);
    weir_seq closed = rig_fork(&r, seq, 3 * T + 4);
    gives(&r, rig_reserve(&r, kid, 5 * T, NULL), 0);
    gives(&r, weir_seq_close(&closed), 0);
    gives(&r, weir_step_abort(&r.step), 0);
    cr_assert(eq(sz, rig_available(&r).free, free_pages));
    weir_seq_info info = rig_info(&r, kid);
    cr_assert(eq(sz, info.n_committed, T));
    cr_assert(eq(sz, info.n_reserved, T));
    cr_assert(eq(sz, info.n_tokens, 3 * T + 4)); /* it still knows what to compute */

    gives(&r, rig_reserve(&r, kid, 3 * T + 4, NULL), 0);
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    size_t n = rig_table(&r, seq, table);
    rig_table(&r, kid, kid_table);
    for (size_t i = 1; i < 4; i++)
        for (size_t k = 0; k < n; k++)
            cr_assert(ne(i32, kid_table[i], table[k]));
    rig_begin(&r);
    rig_add(&r, kid);
    rig_commit_known(&r, kid, 2 * T);
    rig_add(&r, early); /* the copy that was due before is due still */
    cr_assert(eq(u32, rig_end(&r)->n_copies, 1));
    rig_commit_known(&r, kid, 4); /* of that step, whose number the aborted one had */
    rig_done(&r, &seq);
    rig_done(&r, &early);
    rig_done(&r, &kid);
    rig_ack(&r, 2);
    rig_close(&r);
}

Test(cache_fork, a_parent_closed_in_the_step_commits_for_its_kids)
{
    struct rig r;
    rig_open(&r, rig_params(T, 16, 0));
    weir_seq seq = rig_start(&r, "AB", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    rig_commit_known(&r, seq, 2 * T + TAIL);
    weir_seq kid = rig_fork(&r, seq, 2 * T + TAIL);
    gives(&r, weir_seq_close(&seq), 0);
    rig_ack(&r, rig_end(&r)->step);
    rig_expect_hit(&r, "AB", 2, 0, 0);
    cr_assert(eq(u32, rig_run(&r, kid, 0)->n_copies, 1));
    rig_done(&r, &kid);
    rig_ack(&r, 2);
    rig_close(&r);
}

/* The tail that the step copies for the parent is what its kid is to begin with. */
Test(cache_fork, of_a_page_that_the_open_step_copies)
{
    struct rig r;
    rig_open(&r, rig_params(T, 16, 0));
    weir_seq seq = rig_computed(&r, "A", TAIL);
    weir_seq kid = rig_fork(&r, seq, T + 4);
    rig_begin(&r);
    rig_add(&r, kid);
    weir_seq twin = rig_fork(&r, kid, T + 3); /* of what was there before the step */
    rig_add(&r, twin);
    rig_commit_new(&r, kid, 5, 2);
    weir_seq late = rig_fork(&r, kid, T + 6);
    int32_t p[RIG_PAGES], k[RIG_PAGES], t[RIG_PAGES], l[RIG_PAGES];
    rig_table(&r, seq, p);
    rig_table(&r, kid, k);
    rig_table(&r, twin, t);
    rig_table(&r, late, l);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 2));
    rig_expect_copy(order, 0, p[1], k[1], 0);
    rig_expect_copy(order, 1, p[1], t[1], 0);
    rig_expect_copy(rig_run(&r, late, 0), 0, k[1], l[1], 0);
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    rig_done(&r, &twin);
    rig_done(&r, &late);
    rig_ack(&r, 2);
    rig_ack(&r, 3);
    rig_close(&r);
}

/* ---- Room ----------------------------------------------------------------- */

Test(cache_fork, is_all_or_nothing)
{
    struct rig r;
    rig_open(&r, rig_params(T, 6, 8));
    weir_seq seq = rig_computed(&r, "AB", TAIL); /* 3 of 6 pages, two of them written back */
    rig_settle(&r);
    weir_seq kids[5] = { { NULL, 77 } };
    uint64_t digest = weir_cache_digest(r.cache);
    gives(&r, weir_seq_fork(kids, 4, seq, 2 * T + 1, NULL), -ENOSPC);
    cr_assert(eq(u64, weir_cache_digest(r.cache), digest));
    cr_assert(eq(u64, kids[0].id, 77));
    gives(&r, weir_seq_fork(kids, 3, seq, 2 * T + 1, NULL), 0);
    gives(&r, weir_seq_fork(&kids[3], 1, seq, 2 * T + 1, NULL), -ENOSPC);
    gives(&r, weir_seq_fork(&kids[3], 1, seq, 2 * T, NULL), 0); /* needs none */
    for (int i = 0; i < 4; i++)
        rig_done(&r, &kids[i]);
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(cache_fork, waits_for_pages_that_are_on_their_way)
{
    struct rig r;
    weir_cache_params params = rig_params(T, 5, 8);
    params.write_back = "write_back";
    rig_open(&r, params);
    rig_compute(&r, "XY"); /* dirty: to be written before their room can be had */
    weir_seq seq = rig_computed(&r, "A", TAIL);
    weir_seq kids[2];
    gives(&r, weir_seq_fork(kids, 2, seq, T + 1, NULL), -EAGAIN);
    cr_assert(zero(sz, rig_available(&r).claimed));
    rig_settle(&r);
    gives(&r, weir_seq_fork(kids, 2, seq, T + 1, NULL), 0);
    rig_done(&r, &kids[0]);
    rig_done(&r, &kids[1]);

    /* What is set aside for another is not taken. */
    weir_seq other = rig_seq(&r, "", 1);
    rig_compute(&r, "Z");
    gives(&r, rig_reserve(&r, other, 3 * T, NULL), -EAGAIN);
    gives(&r, weir_seq_fork(kids, 1, seq, T + 1, NULL), -ENOSPC);
    rig_done(&r, &other);
    gives(&r, weir_seq_fork(kids, 1, seq, T + 1, NULL), 0);
    rig_done(&r, &kids[0]);
    rig_done(&r, &seq);
    rig_settle(&r);
    rig_close(&r);
}

Test(cache_fork, needs_free_sequences)
{
    struct rig r;
    weir_cache_params params = rig_params(T, 12, 0);
    params.max_seqs = 3;
    rig_open(&r, params);
    weir_seq seq = rig_computed(&r, "A", TAIL);
    weir_seq kids[3];
    gives(&r, weir_seq_fork(kids, 3, seq, T + 1, NULL), -ENOSPC);
    gives(&r, weir_seq_fork(kids, SIZE_MAX, seq, T + 1, NULL), -ENOSPC);
    gives(&r, weir_seq_fork(kids, 2, seq, T + 1, NULL), 0);
    rig_done(&r, &kids[0]);
    rig_done(&r, &kids[1]);
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(cache_fork, arguments)
{
    struct rig r;
    rig_open(&r, rig_params(T, 8, 0));
    weir_seq seq = rig_computed(&r, "A", TAIL);
    weir_seq kid, closed = seq;
    unsigned lines = r.log.lines;
    gives(&r, weir_seq_fork(NULL, 1, seq, T, NULL), -EINVAL);
    gives(&r, weir_seq_fork(&kid, 0, seq, T, NULL), -EINVAL);
    gives(&r, weir_seq_fork(&kid, 1, seq, 0, NULL), -EINVAL);
    gives(&r, weir_seq_fork(&kid, 1, seq, T + TAIL + 1, NULL), -EINVAL);
    cr_assert(eq(u32, r.log.lines, lines + 4));
    gives(&r, weir_seq_fork(&kid, 1, (weir_seq){ 0 }, T, NULL), -EINVAL);
    rig_done(&r, &seq);
    gives(&r, weir_seq_fork(&kid, 1, closed, T, NULL), -ESTALE);
    rig_close(&r);
}
