/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/lifecycle.h>

#define T 16u /* tokens of a page */
#define TAIL 5u

static weir_cache_params params_of(uint32_t device, uint32_t host)
{
    return rig_params(T, device, host);
}

static void commit(struct rig *r, weir_seq seq, size_t n)
{
    gives(r, weir_seq_commit(seq, NULL, n), 0);
}

/* Tokens that no other prompt has. */
static void commit_new(struct rig *r, weir_seq seq, int32_t first, size_t n)
{
    int32_t tokens[64];
    cr_assert(le(sz, n, 64));
    for (size_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    gives(r, weir_seq_commit(seq, tokens, n), 0);
}

/* Computes a prompt of the letters and TAIL tokens; the step is reported. */
static weir_seq computed(struct rig *r, const char *letters)
{
    weir_seq seq = rig_start(r, letters, TAIL);
    rig_begin(r);
    rig_add(r, seq);
    commit(r, seq, rig_info(r, seq).n_tokens);
    rig_ack(r, rig_end(r)->step);
    return seq;
}

static weir_seq fork_one(struct rig *r, weir_seq seq, size_t len)
{
    weir_seq kid;
    gives(r, weir_seq_fork(&kid, 1, seq, len, NULL), 0);
    return kid;
}

static bool has_step(const uint64_t *steps, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

static const weir_order *run(struct rig *r, weir_seq seq)
{
    rig_begin(r);
    rig_add(r, seq);
    return rig_end(r);
}

static void expect_copy(const weir_order *order, uint32_t i, int32_t from, int32_t to,
                        uint64_t load)
{
    cr_assert(lt(u32, i, order->n_copies));
    cr_assert(eq(i32, order->copies[i].from.id, from));
    cr_assert(eq(i32, order->copies[i].to.id, to));
    cr_assert(eq(u64, order->copies[i].load, load));
}

/* ---- What kids share ------------------------------------------------------ */

Test(cache_fork, full_pages_are_shared_and_the_tail_is_copied_once)
{
    struct rig r;
    rig_open(&r, params_of(20, 0));
    weir_seq seq = computed(&r, "ABC");
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
        expect_copy(order, i, table[3], own[i], 0);
    cr_assert(zero(u32, run(&r, kids[1])->n_copies));
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
    rig_open(&r, params_of(12, 0));
    weir_seq seq = computed(&r, "ABC");
    weir_seq kid = fork_one(&r, seq, 2 * T);
    int32_t table[RIG_PAGES];
    cr_assert(eq(sz, rig_table(&r, kid, table), 2));
    gives(&r, rig_reserve(&r, kid, 3 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 1, T); /* its own way on: the parent's third page is another */
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
    rig_open(&r, params_of(8, 0));
    weir_seq seq = computed(&r, "AB");
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    rig_table(&r, seq, table);
    weir_seq kid = fork_one(&r, seq, 2 * T + 3);
    rig_done(&r, &seq);
    /* The source is not given out before it was copied. */
    cr_assert(eq(sz, rig_available(&r).free, 8 - 4));
    rig_table(&r, kid, kid_table);
    const weir_order *order = run(&r, kid);
    expect_copy(order, 0, table[2], kid_table[2], 0);
    cr_assert(eq(sz, rig_available(&r).free, 8 - 3));

    /* Who gets it then comes behind the copy. */
    weir_seq all = rig_seq(&r, "", 1);
    gives(&r, rig_reserve(&r, all, 5 * T, NULL), 0);
    const weir_order *next = run(&r, all);
    cr_assert(has_step(next->fences, next->n_fences, order->step));
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
    rig_open(&r, params_of(8, 0));
    weir_seq seq = computed(&r, "AB");
    size_t before = rig_available(&r).free;
    weir_seq kid = fork_one(&r, seq, 2 * T + 3);
    cr_assert(eq(sz, rig_available(&r).free, before - 1));
    rig_done(&r, &kid);
    cr_assert(eq(sz, rig_available(&r).free, before));
    cr_assert(zero(u32, run(&r, seq)->n_copies));
    rig_ack(&r, 2);
    rig_done(&r, &seq);
    rig_close(&r);
}

/* A fork of a fork whose copy is not made takes the bytes from where they are. */
Test(cache_fork, a_fork_of_a_fork_copies_from_the_first)
{
    struct rig r;
    rig_open(&r, params_of(12, 0));
    weir_seq seq = computed(&r, "AB");
    weir_seq kid = fork_one(&r, seq, 2 * T + 4);
    weir_seq grandkid = fork_one(&r, kid, 2 * T + 2);
    int32_t table[RIG_PAGES], first[RIG_PAGES], second[RIG_PAGES];
    rig_table(&r, seq, table);
    rig_table(&r, kid, first);
    rig_table(&r, grandkid, second);
    rig_done(&r, &kid);
    rig_done(&r, &seq);
    expect_copy(run(&r, grandkid), 0, table[2], second[2], 0);
    /* Once it is made, from there. */
    weir_seq last = fork_one(&r, grandkid, 2 * T + 1);
    int32_t third[RIG_PAGES];
    rig_table(&r, last, third);
    const weir_order *order = run(&r, last);
    expect_copy(order, 0, second[2], third[2], 0);
    cr_assert(has_step(order->fences, order->n_fences, 2));
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
    rig_open(&r, params_of(12, 0));
    weir_seq seq = computed(&r, "AB");
    weir_seq kid = fork_one(&r, seq, 2 * T + TAIL);
    uint64_t write = run(&r, seq)->step;
    const weir_order *copy = run(&r, kid);
    cr_assert(has_step(copy->fences, copy->n_fences, write));
    const weir_order *later = run(&r, seq);
    cr_assert(has_step(later->fences, later->n_fences, copy->step));
    rig_done(&r, &seq);
    rig_done(&r, &kid);
    for (uint64_t step = 2; step <= 4; step++)
        rig_ack(&r, step);
    rig_close(&r);
}

Test(cache_fork, what_kids_compute_enters_the_index)
{
    struct rig r;
    rig_open(&r, params_of(16, 0));
    weir_seq seq = computed(&r, "A");
    weir_seq kids[2];
    gives(&r, weir_seq_fork(kids, 2, seq, T + 3, NULL), 0);
    rig_begin(&r);
    for (int i = 0; i < 2; i++) {
        rig_add(&r, kids[i]);
        commit_new(&r, kids[i], 7, T - 3); /* the same answer twice */
    }
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 1));
    rig_done(&r, &kids[0]);
    weir_seq late = fork_one(&r, kids[1], 2 * T); /* shares the private duplicate */
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    rig_table(&r, kids[1], table);
    rig_table(&r, late, kid_table);
    cr_assert(zero(int, memcmp(table, kid_table, 2 * sizeof *table)));
    rig_done(&r, &kids[1]);
    rig_done(&r, &seq);
    rig_push_out(&r); /* cannot take what the last one holds, nor what guards it */
    gives(&r, rig_reserve(&r, late, 3 * T, NULL), 0);
    rig_ack(&r, run(&r, late)->step);
    rig_done(&r, &late);
    rig_close(&r);
}

/* A kid that begins inside an image has only so much of it: what it makes of the rest
 * is another page, whatever its tokens are. */
Test(cache_fork, inside_a_span_the_kid_has_the_part_before_it)
{
    struct rig r;
    rig_open(&r, params_of(12, 0));
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
    rig_begin(&r);
    rig_add(&r, seq);
    commit(&r, seq, T - 3);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).duplicate_pages, 2));
    rig_done(&r, &seq);
    rig_close(&r);
}

/* ---- The open step -------------------------------------------------------- */

Test(cache_fork, of_what_the_open_step_computes)
{
    struct rig r;
    rig_open(&r, params_of(16, 0));
    weir_seq seq = rig_start(&r, "AB", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    commit(&r, seq, 2 * T + TAIL);
    weir_seq kid = fork_one(&r, seq, 2 * T + TAIL);
    weir_seq grandkid = fork_one(&r, kid, T + 1);
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
    expect_copy(order, 0, table[2], a[2], 0);
    expect_copy(order, 1, table[1], b[1], 0);
    cr_assert(has_step(order->fences, order->n_fences, first));
    rig_done(&r, &kid);
    rig_done(&r, &grandkid);
    rig_ack(&r, 1);
    rig_ack(&r, 2);
    rig_close(&r);
}

Test(cache_fork, an_abort_takes_back_what_was_forked_off_the_step)
{
    struct rig r;
    rig_open(&r, params_of(16, 0));
    weir_seq seq = rig_start(&r, "ABC", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    commit(&r, seq, T + 4);
    rig_ack(&r, rig_end(&r)->step);
    weir_seq early = fork_one(&r, seq, T + 4);
    size_t free_pages = rig_available(&r).free;

    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, early);
    commit(&r, seq, 2 * T);
    weir_seq kid = fork_one(&r, seq, 3 * T + 4);
    weir_seq closed = fork_one(&r, seq, 3 * T + 4);
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
    commit(&r, kid, 2 * T);
    rig_add(&r, early); /* the copy that was due before is due still */
    cr_assert(eq(u32, rig_end(&r)->n_copies, 1));
    commit(&r, kid, 4); /* of that step, whose number the aborted one had */
    rig_done(&r, &seq);
    rig_done(&r, &early);
    rig_done(&r, &kid);
    rig_ack(&r, 2);
    rig_close(&r);
}

Test(cache_fork, a_parent_closed_in_the_step_commits_for_its_kids)
{
    struct rig r;
    rig_open(&r, params_of(16, 0));
    weir_seq seq = rig_start(&r, "AB", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    commit(&r, seq, 2 * T + TAIL);
    weir_seq kid = fork_one(&r, seq, 2 * T + TAIL);
    gives(&r, weir_seq_close(&seq), 0);
    rig_ack(&r, rig_end(&r)->step);
    rig_expect_hit(&r, "AB", 2, 0, 0);
    cr_assert(eq(u32, run(&r, kid)->n_copies, 1));
    rig_done(&r, &kid);
    rig_ack(&r, 2);
    rig_close(&r);
}

/* The tail that the step copies for the parent is what its kid is to begin with. */
Test(cache_fork, of_a_page_that_the_open_step_copies)
{
    struct rig r;
    rig_open(&r, params_of(16, 0));
    weir_seq seq = computed(&r, "A");
    weir_seq kid = fork_one(&r, seq, T + 4);
    rig_begin(&r);
    rig_add(&r, kid);
    weir_seq twin = fork_one(&r, kid, T + 3); /* of what was there before the step */
    rig_add(&r, twin);
    commit_new(&r, kid, 5, 2);
    weir_seq late = fork_one(&r, kid, T + 6);
    int32_t p[RIG_PAGES], k[RIG_PAGES], t[RIG_PAGES], l[RIG_PAGES];
    rig_table(&r, seq, p);
    rig_table(&r, kid, k);
    rig_table(&r, twin, t);
    rig_table(&r, late, l);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 2));
    expect_copy(order, 0, p[1], k[1], 0);
    expect_copy(order, 1, p[1], t[1], 0);
    expect_copy(run(&r, late), 0, k[1], l[1], 0);
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
    rig_open(&r, params_of(6, 8));
    weir_seq seq = computed(&r, "AB"); /* 3 of 6 pages, two of them written back */
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
    weir_cache_params params = params_of(5, 8);
    params.write_back = "write_back";
    rig_open(&r, params);
    rig_compute(&r, "XY"); /* dirty: to be written before their room can be had */
    weir_seq seq = computed(&r, "A");
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
    weir_cache_params params = params_of(12, 0);
    params.max_seqs = 3;
    rig_open(&r, params);
    weir_seq seq = computed(&r, "A");
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
    rig_open(&r, params_of(8, 0));
    weir_seq seq = computed(&r, "A");
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

/* ---- Loads ---------------------------------------------------------------- */

/* "ABC" on the host only, and a sequence that hits it; its load is not begun. */
static weir_seq hit_on_host(struct rig *r)
{
    rig_open(r, params_of(8, 16));
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
    weir_seq kid = fork_one(&r, seq, 2 * T + 4);
    int32_t table[RIG_PAGES], kid_table[RIG_PAGES];
    rig_table(&r, seq, table);
    rig_table(&r, kid, kid_table);
    rig_done(&r, &seq); /* the kid alone wants the load now */
    const weir_order *order = run(&r, kid);
    cr_assert(eq(u32, order->n_loads, 3));
    expect_copy(order, 0, table[2], kid_table[2], order->step);
    rig_ack(&r, order->step);
    rig_expect_hit(&r, "ABC", 3, 0, 0);
    close_all(&r, &kid, 1);
}

Test(cache_fork, inside_a_page_whose_load_is_running)
{
    struct rig r;
    weir_seq seq = hit_on_host(&r);
    const weir_order *first = run(&r, seq);
    uint64_t load = first->step;
    weir_seq kid = fork_one(&r, seq, 2 * T + 4);
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 9, T - 4);
    const weir_order *order = rig_end(&r);
    cr_assert(eq(u32, order->n_copies, 1));
    cr_assert(eq(u64, order->copies[0].load, load));
    cr_assert(has_step(order->joins, order->n_joins, load));
    /* What is made of it is not in the index until the load has ended well. */
    cr_assert(eq(u64, rig_stats(&r).index_pages, 3));
    rig_ack(&r, load);
    rig_ack(&r, order->step);
    gives(&r, rig_reserve(&r, kid, 4 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 99, 1);
    rig_ack(&r, rig_end(&r)->step);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 4));
    weir_seq seqs[] = { seq, kid };
    close_all(&r, seqs, 2);
}

Test(cache_fork, a_failed_load_is_told_to_all_that_copied_it)
{
    struct rig r;
    weir_seq seq = hit_on_host(&r);
    weir_seq due = fork_one(&r, seq, 2 * T + 4);    /* its copy is still due */
    weir_seq copied = fork_one(&r, seq, 2 * T + 4); /* made */
    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, copied);
    commit_new(&r, copied, 9, 2);
    weir_seq born = fork_one(&r, copied, 2 * T + 6); /* of what is copied */
    uint64_t load = rig_end(&r)->step;
    weir_seq later = fork_one(&r, copied, 2 * T + 5);
    weir_seq far = fork_one(&r, copied, 2 * T);
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
    rig_open(&r, params_of(8, 16));
    rig_compute(&r, "ABC");
    rig_push_out(&r);
    weir_seq two = rig_start(&r, "AB", 1);
    rig_ack(&r, rig_run(&r, two, 2)->step);
    weir_seq seq = rig_start(&r, "ABC", 1);
    weir_seq kid = fork_one(&r, seq, 2 * T + 4);
    rig_done(&r, &seq);
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 9, T - 4);
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
    commit(&r, kid, 4);
    commit_new(&r, kid, 9, T - 4);
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
    weir_seq kid = fork_one(&r, seq, 4);
    gives(&r, rig_reserve(&r, kid, 2 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 9, 3);
    uint64_t load = rig_end(&r)->step;
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 12, T);
    weir_seq born = fork_one(&r, kid, T + 1);
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
    rig_open(&r, params_of(12, 0));
    weir_seq seq = rig_start(&r, "AB", TAIL);
    rig_begin(&r);
    rig_add(&r, seq);
    commit(&r, seq, 2 * T + TAIL);
    weir_seq born = fork_one(&r, seq, 2 * T + 2);
    uint64_t step = rig_end(&r)->step;
    weir_seq kid = fork_one(&r, seq, 2 * T + 2);
    /* Another hits its pages, and a third goes on inside one of them. */
    weir_seq other = rig_start(&r, "AB", 1);
    weir_seq third = fork_one(&r, other, T + 2);
    uint64_t copy = run(&r, third)->step;
    rig_report(&r, WEIR_REPORT_STEP, step, -EIO);
    rig_poll(&r);
    weir_seq seqs[] = { seq, born, kid, other, third };
    for (size_t i = 0; i < 5; i++)
        cr_assert(eq(sz, rig_events(&r, WEIR_EVENT_LOAD_FAILED, &seqs[i]), 1), "%zu", i);
    rig_report(&r, WEIR_REPORT_STEP, copy, 0);
    cr_assert(zero(u64, rig_stats(&r).index_pages));
    close_all(&r, seqs, 5);
}

/* A page of the index may be the work of several steps, of which only the last is its
 * writer. Who has copied it has what the others wrote too. */
Test(cache_fork, a_copy_is_as_wrong_as_any_step_that_wrote_it)
{
    for (int last = 0; last < 2; last++) {
        struct rig r;
        rig_open(&r, params_of(12, 0));
        rig_compute(&r, "A"); /* before all of them */
        weir_seq seq = rig_start(&r, "AB", 1);
        rig_begin(&r);
        rig_add(&r, seq);
        commit(&r, seq, 4);
        uint64_t half = rig_end(&r)->step;
        rig_begin(&r);
        rig_add(&r, seq);
        commit(&r, seq, T - 4);
        uint64_t whole = rig_end(&r)->step;
        weir_seq other = rig_start(&r, "AB", 1), copied = fork_one(&r, other, T + 2);
        gives(&r, weir_seq_truncate(other, T + 3), 0);
        gives(&r, rig_reserve(&r, other, 2 * T, NULL), 0);
        rig_begin(&r);
        rig_add(&r, other);
        rig_add(&r, copied);
        uint64_t copy = rig_end(&r)->step;
        weir_seq kid = fork_one(&r, copied, T + 1), before = fork_one(&r, copied, T);
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
    weir_seq kid = fork_one(&r, seq, 4);
    rig_begin(&r);
    rig_add(&r, seq);
    rig_add(&r, kid);
    commit_new(&r, kid, 9, T - 4); /* not in the index: the load is running */
    uint64_t load = rig_end(&r)->step;
    weir_seq heir = fork_one(&r, kid, T);
    uint64_t failing = run(&r, none)->step;
    rig_report(&r, WEIR_REPORT_LOAD, load, 0);
    rig_report(&r, WEIR_REPORT_STEP, load, 0);
    gives(&r, rig_reserve(&r, kid, 2 * T, NULL), 0);
    rig_begin(&r);
    rig_add(&r, kid);
    commit_new(&r, kid, 99, 1);
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
    commit_new(&r, heir, 99, 1);
    order = rig_end(&r);
    uint64_t later = order->step;
    cr_assert(eq(u64, rig_stats(&r).index_pages, 1));
    cr_assert(eq(u32, order->n_cancels, 1));
    rig_report(&r, WEIR_REPORT_WRITE_BACK, ticket, -ECANCELED);
    rig_report(&r, WEIR_REPORT_STEP, step, 0);
    rig_report(&r, WEIR_REPORT_STEP, later, 0);
    rig_begin(&r);
    rig_add(&r, heir);
    commit_new(&r, heir, 100, 1);
    order = rig_end(&r);
    cr_assert(eq(u64, rig_stats(&r).index_pages, 2));
    rig_begin(&r); /* may take the write-back */
    rig_ack(&r, rig_end(&r)->step);
    rig_ack(&r, order->step);
    weir_seq seqs[] = { seq, none, kid, heir };
    close_all(&r, seqs, 4);
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
