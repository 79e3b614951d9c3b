/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* Steps, their orders and their fences, and what commits put into the index. */

static struct rig rig;

static bool lists(const uint64_t *steps, uint32_t n, const uint64_t *want, uint32_t n_want)
{
    return n == n_want && (n == 0 || memcmp(steps, want, n * sizeof *want) == 0);
}

#define expect_steps(order, field, ...)                                                         \
    do {                                                                                        \
        const weir_order *o_ = (order);                                                         \
        const uint64_t want_[] = { 0, __VA_ARGS__ };                                            \
        cr_assert(lists(o_->field, o_->n_##field, want_ + 1, sizeof want_ / sizeof *want_ - 1), \
                  "step %d: " #field ": %u of them, the first is %d", (int)o_->step,            \
                  o_->n_##field, o_->n_##field ? (int)o_->field[0] : 0);                        \
    } while (0)

static const int32_t *letters_of(struct rig *r, const char *letters)
{
    return rig_key(r, letters, 0).tokens;
}

/* ---- Commits ------------------------------------------------------------- */

Test(cache_steps, a_page_enters_the_index_when_it_is_full)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        weir_seq seq = rig_start(r, "ABC", 0);
        size_t all = 3 * (size_t)r->t, done = 0;
        size_t chunk = r->t > 8 ? r->t / 8 * 3 : 1; /* does not divide a page */
        while (done < all) {
            size_t n = all - done < chunk ? all - done : chunk;
            rig_begin(r);
            rig_add(r, seq);
            gives(r, weir_seq_commit(seq, NULL, n), 0);
            rig_expect_hit(r, "ABC", done / r->t, 0, 0);
            cr_assert(eq(sz, rig_info(r, seq).n_committed, done + n));
            const weir_order *order = rig_end(r);
            size_t full = (done + n) / r->t - done / r->t;
            done += n;
            cr_assert(eq(u32, order->n_writes, full));
            rig_expect_hit(r, "ABC", done / r->t, 0, 0);
            rig_ack(r, order->step);
        }
        cr_assert(eq(u64, rig_stats(r).committed_pages, 3));
        cr_assert(eq(u64, rig_stats(r).written_pages, 3));
        rig_done(r, &seq);
        rig_expect_hit(r, "ABC", 3, 0, 0);
        rig_close(r);
    }
}

Test(cache_steps, tokens_beyond_the_key_are_told_by_commit)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        weir_seq seq = rig_seq(r, "A", 0);
        gives(r, rig_reserve(r, seq, 4 * r->t, NULL), 0);
        const weir_order *order = rig_run(r, seq, 1);
        rig_ack(r, order->step);
        rig_begin(r);
        rig_add(r, seq);
        gives(r, weir_seq_commit(seq, NULL, 1), -EINVAL);
        gives(r, weir_seq_commit(seq, letters_of(r, "BC"), 2 * r->t), 0);
        cr_assert(eq(sz, rig_info(r, seq).n_tokens, 3 * (size_t)r->t));
        rig_ack(r, rig_end(r)->step);
        rig_expect_hit(r, "ABCD", 3, 0, 0);
        rig_begin(r);
        rig_add(r, seq);
        gives(r, weir_seq_commit(seq, letters_of(r, "D"), r->t), 0);
        rig_ack(r, rig_end(r)->step);
        rig_expect_hit(r, "ABCD", 4, 0, 0);
        rig_done(r, &seq);
        rig_close(r);
    }
}

Test(cache_steps, tokens_that_the_key_tells_must_be_equal)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        weir_seq seq = rig_seq(r, "AB", 0);
        gives(r, rig_reserve(r, seq, 4 * r->t, NULL), 0);
        rig_begin(r);
        rig_add(r, seq);
        size_t n = 2 * (size_t)r->t;
        letters_of(r, "AB");
        uint64_t digest = weir_cache_digest(r->cache);
        for (size_t i = 0; i < n; i += (r->t + 3) / 4) {
            r->tokens[i]++;
            gives(r, weir_seq_commit(seq, r->tokens, n), -EINVAL);
            r->tokens[i]--;
        }
        gives(r, weir_seq_commit(seq, letters_of(r, "ABCDE"), 4 * r->t + 1), -EINVAL);
        gives(r, weir_seq_commit(seq, r->tokens, SIZE_MAX), -EINVAL);
        cr_assert(eq(u64, weir_cache_digest(r->cache), digest));
        gives(r, weir_seq_commit(seq, letters_of(r, "ABCD"), 4 * r->t), 0);
        gives(r, weir_seq_commit(seq, r->tokens, 1), -EINVAL);
        gives(r, weir_seq_commit(seq, NULL, 0), 0);
        rig_ack(r, rig_end(r)->step);
        rig_expect_hit(r, "ABCD", 4, 0, 0);
        rig_done(r, &seq);
        rig_close(r);
    }
}

Test(cache_steps, a_commit_outside_a_step_takes_effect_at_once)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        weir_seq seq = rig_start(r, "ABC", 0);
        gives(r, weir_seq_commit(seq, NULL, r->t), -EINVAL); /* in no step yet */
        const weir_order *order = rig_run(r, seq, 0);
        cr_assert(zero(u32, order->n_writes));
        rig_commit(r, seq, 1);
        rig_expect_hit(r, "ABC", 1, 0, 0);
        rig_begin(r); /* the sequence is not in this one */
        rig_commit(r, seq, 2);
        rig_expect_hit(r, "ABC", 2, 0, 0);
        const weir_order *second = rig_end(r);
        cr_assert(eq(u32, second->n_writes, 2));
        expect_steps(second, write_fences, order->step);
        rig_ack(r, order->step);
        rig_ack(r, second->step);
        rig_commit(r, seq, 3);
        rig_expect_hit(r, "ABC", 3, 0, 0);
        rig_settle(r);
        cr_assert(eq(u64, rig_stats(r).written_pages, 3));
        rig_done(r, &seq);
        rig_close(r);
    }
}

/* Two cold requests compute the same prompt. */
Test(cache_steps, the_second_of_two_keeps_its_pages_to_itself)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        weir_seq first = rig_start(r, "ABC", 0), second = rig_start(r, "ABC", 0);
        int32_t tables[2][RIG_PAGES], now[RIG_PAGES];
        cr_assert(eq(sz, rig_table(r, first, tables[0]), 3));
        cr_assert(eq(sz, rig_table(r, second, tables[1]), 3));
        rig_begin(r);
        rig_add(r, first);
        rig_add(r, second);
        rig_commit(r, first, 3);
        rig_commit(r, second, 3);
        const weir_order *order = rig_end(r);
        cr_assert(eq(u32, order->n_writes, 3), "one of them is written");
        for (int i = 0; i < 3; i++)
            cr_assert(eq(i32, order->writes[i].device.id, tables[0][i]));
        cr_assert(eq(u64, rig_stats(r).duplicate_pages, 3));
        cr_assert(eq(u64, rig_stats(r).committed_pages, 6));
        cr_assert(eq(u64, rig_stats(r).index_pages, 3));
        rig_table(r, first, now);
        cr_assert(zero(int, memcmp(now, tables[0], 3 * sizeof *now)));
        rig_table(r, second, now);
        cr_assert(zero(int, memcmp(now, tables[1], 3 * sizeof *now)));
        rig_ack(r, order->step);
        rig_expect_hit(r, "ABC", 3, 0, 0);

        /* The first closes; the second guards the path that it hangs on. */
        rig_done(r, &first);
        weir_seq taker = rig_seq(r, "XYZ", 0);
        gives(r, rig_reserve(r, taker, 2 * r->t, NULL), 0);
        gives(r, rig_reserve(r, taker, 3 * r->t, NULL), -ENOSPC);
        cr_assert(zero(u64, rig_stats(r).device_free));
        rig_done(r, &second);
        cr_assert(eq(u64, rig_stats(r).device_free, 3), "the duplicates are free");
        rig_expect_hit(r, "ABC", 3, 0, 0);
        rig_done(r, &taker);
        rig_close(r);
    }
}

/* A page computed though it was on the host is its device copy then. */
Test(cache_steps, computing_a_page_of_the_host_tier_adopts_it)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 8, 8));
        rig_compute(r, "ABC");
        rig_push_out(r);
        weir_stats before = rig_stats(r);
        weir_seq seq = rig_seq(r, "ABC", 1);
        weir_request request;
        weir_request_init(&request);
        request.use_hit = r->t;
        request.total_tokens = 3 * (size_t)r->t;
        gives(r, weir_seq_reserve(seq, &request, NULL), 0);
        rig_expect_hit(r, "ABC", 0, 2, 1);
        const weir_order *order = rig_run(r, seq, 3);
        cr_assert(eq(u32, order->n_loads, 1));
        cr_assert(zero(u32, order->n_writes), "the host has them");
        rig_expect_hit(r, "ABC", 2, 0, 1);
        weir_seq heir = rig_start(r, "ABC", 1);
        const weir_order *follower = rig_run(r, heir, 3);
        expect_steps(follower, fences, order->step); /* which computes B and C */
        rig_ack(r, follower->step);
        rig_done(r, &heir);
        rig_ack(r, order->step);
        rig_expect_hit(r, "ABC", 3, 0, 0);
        rig_done(r, &seq);
        rig_expect_hit(r, "ABC", 3, 0, 0);
        weir_stats stats = rig_stats(r);
        cr_assert(eq(u64, stats.duplicate_pages, before.duplicate_pages));
        cr_assert(eq(u64, stats.device_free, 8 - 3));
        cr_assert(eq(u64, stats.index_pages, 3));
        rig_push_out(r);
        rig_expect_hit(r, "ABC", 0, 3, 0);
        rig_close(r);
    }
}

/* ---- Abort --------------------------------------------------------------- */

Test(cache_steps, abort_undoes_the_step)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 12, 12));
        rig_compute(r, "AB");
        rig_push_out(r);
        weir_seq loads = rig_start(r, "ABC", 1), cold = rig_seq(r, "DE", 0);
        gives(r, rig_reserve(r, cold, 4 * r->t, NULL), 0);
        uint64_t digest = weir_cache_digest(r->cache);
        weir_stats before = rig_stats(r);
        for (int i = 0; i < 3; i++) {
            rig_begin(r);
            weir_step stale = r->step;
            rig_add(r, loads);
            rig_add(r, cold);
            rig_commit(r, loads, 3);
            gives(r, weir_seq_commit(cold, letters_of(r, "DEFG"), 4 * r->t), 0);
            cr_assert(eq(sz, rig_info(r, cold).n_tokens, 4 * (size_t)r->t));
            gives(r, weir_step_abort(&r->step), 0);
            cr_assert(r->step.cache == NULL && r->step.id == 0);
            cr_assert(eq(u64, weir_cache_digest(r->cache), digest));
            weir_stats now = rig_stats(r);
            cr_assert(ge(u64, now.index_bytes, before.index_bytes), "a longer buffer may stay");
            now.index_bytes = before.index_bytes;
            cr_assert(zero(int, memcmp(&now, &before, sizeof now)));
            cr_assert(eq(sz, rig_info(r, cold).n_tokens, 2 * (size_t)r->t));
            cr_assert(zero(sz, rig_info(r, cold).n_committed));
            gives(r, weir_step_abort(&stale), -ESTALE);
        }
        const weir_order *order = rig_run(r, loads, 3);
        cr_assert(eq(u32, order->n_loads, 2));
        rig_ack(r, order->step);
        rig_done(r, &loads);
        rig_done(r, &cold);
        rig_close(r);
    }
}

/* ---- Steps in flight ----------------------------------------------------- */

Test(cache_steps, steps_in_flight_are_limited)
{
    for (uint32_t limit = 1; limit <= 64; limit = limit * 2 + 1) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(16, 4, 4);
        params.max_steps = limit;
        rig_open(r, params);
        for (uint32_t i = 1; i <= limit; i++) {
            rig_begin(r);
            weir_step other;
            gives(r, weir_step_begin(&other, r->cache), -EBUSY);
            const weir_order *order = rig_end(r);
            cr_assert(eq(u64, order->step, i));
            cr_assert(order->n_loads + order->n_writes + order->n_fences + order->n_joins == 0);
        }
        gives(r, weir_step_begin(&r->step, r->cache), -EAGAIN);
        cr_assert(eq(u64, rig_stats(r).orders_in_flight, limit));
        rig_ack(r, 1);
        rig_begin(r);
        cr_assert(eq(u64, rig_end(r)->step, limit + 1));
        gives(r, weir_step_begin(&r->step, r->cache), -EAGAIN);
        for (uint32_t i = limit + 1; i > 1; i--) /* in any order */
            rig_ack(r, i);
        cr_assert(zero(u64, rig_stats(r).orders_in_flight));
        rig_close(r);
    }
}

/* The order is the cache's memory until all ranks have reported all of it. */
Test(cache_steps, a_step_retires_after_all_ranks)
{
    for (uint32_t n_ranks = 1; n_ranks <= 64; n_ranks = n_ranks * 3 + 1) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(16, 8, 8);
        params.n_ranks = n_ranks;
        params.max_steps = 1;
        rig_open(r, params);
        rig_compute(r, "AB");
        rig_push_out(r);
        weir_seq seq = rig_start(r, "ABC", 1);
        rig_begin(r);
        rig_add(r, seq);
        rig_commit(r, seq, 3);
        const weir_order order = *rig_end(r);
        cr_assert(order.n_loads == 2 && order.n_writes == 1);
        const struct rig_order *kept = &r->orders[order.step % RIG_ORDERS];
        unsigned char copy[1024];
        cr_assert(le(sz, kept->n, sizeof copy));
        memcpy(copy, kept->bytes, kept->n);
        uint64_t loaded = rig_stats(r).loaded_pages, written = rig_stats(r).written_pages;
        for (uint32_t rank = 0; rank < n_ranks; rank++) {
            const weir_report_item items[] = { { order.step, 0, WEIR_REPORT_STEP },
                                               { order.step, 0, WEIR_REPORT_LOAD },
                                               { order.write_ticket, 0, WEIR_REPORT_WRITE_BACK } };
            for (int i = 0; i < 3; i++) {
                cr_assert(zero(int, memcmp(copy, kept->bytes, kept->n)));
                gives(r, weir_step_begin(&r->step, r->cache), -EAGAIN);
                rig_expect_hit(r, "AB", 0, 0, 2);
                uint32_t which = (n_ranks - 1 - rank + (uint32_t)i) % 2; /* the load last */
                const weir_report_item *item = &items[i < 2 ? which : 2];
                cr_assert(eq(u64, rig_stats(r).loaded_pages, loaded));
                gives(r, rig_try_report(r, rank, item->kind, item->number, 0), 0);
                gives(r, rig_try_report(r, rank, item->kind, item->number, 0), -EINVAL);
                if (rank + 1 == n_ranks && i == 1)
                    break;
            }
        }
        cr_assert(eq(u64, rig_stats(r).loaded_pages, loaded + 2));
        cr_assert(zero(u64, rig_stats(r).orders_in_flight), "a write-back may outlive its step");
        cr_assert(eq(u64, rig_stats(r).written_pages, written));
        cr_assert(eq(u64, rig_stats(r).write_backs_in_flight, 1));
        gives(r, rig_try_report(r, n_ranks - 1, WEIR_REPORT_WRITE_BACK, order.write_ticket, 0), 0);
        cr_assert(eq(u64, rig_stats(r).written_pages, written + 1));
        rig_done(r, &seq);
        rig_close(r);
    }
}

/* Every order of the other tests is held against it, too: see rig_end. */
Test(cache_steps, the_largest_order)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 4, 3);
    params.max_steps = 2;
    params.max_write_backs = 5;
    params.max_seqs = 6;
    rig_open(r, params);
    weir_order largest = { .n_fences = 64,
                           .n_load_fences = 64,
                           .n_write_fences = 65,
                           .n_joins = 64,
                           .n_loads = 3,
                           .n_cancels = 2 + 5,
                           .n_copies = 4 };
    cr_assert(eq(sz, weir_cache_max_order_bytes(r->cache), weir_order_bytes(&largest)));
    cr_assert(zero(sz, weir_cache_max_order_bytes(NULL)));
    rig_close(r);
}

Test(cache_steps, adding_twice_is_adding_once)
{
    rig_open(&rig, rig_params(16, 8, 8));
    weir_seq seq = rig_start(&rig, "AB", 0);
    rig_begin(&rig);
    rig_add(&rig, seq);
    rig_add(&rig, seq);
    rig_commit(&rig, seq, 2);
    rig_add(&rig, seq);
    const weir_order *order = rig_end(&rig);
    cr_expect(eq(u32, order->n_writes, 2));
    rig_ack(&rig, order->step);
    rig_done(&rig, &seq);
    rig_close(&rig);
}

/* ---- Fences -------------------------------------------------------------- */

Test(cache_steps, a_page_whose_writer_runs_is_fenced)
{
    for (size_t p = 0; p < RIG_N_PAGE_TOKENS; p++) {
        struct rig *r = &rig;
        rig_open(r, rig_params(rig_page_tokens[p], 16, 16));
        weir_seq writer = rig_start(r, "AB", 0);
        uint64_t one = rig_run(r, writer, 2)->step;
        weir_seq early = rig_start(r, "AB", 1);
        uint64_t two = rig_run(r, early, 2)->step;
        expect_steps(&r->orders[two].decoded, fences, one);
        uint64_t next = rig_run(r, early, 2)->step;
        expect_steps(&r->orders[next].decoded, fences, two); /* behind which lies the first */
        rig_ack(r, next);
        weir_seq late = rig_start(r, "AB", 1);
        rig_ack(r, one);
        uint64_t three = rig_run(r, late, 2)->step;
        expect_steps(&r->orders[three].decoded, fences); /* it has ended meanwhile */
        rig_ack(r, two);
        rig_ack(r, three);
        weir_seq after = rig_start(r, "AB", 1);
        uint64_t four = rig_run(r, after, 2)->step;
        expect_steps(&r->orders[four].decoded, fences);
        rig_ack(r, four);
        rig_done(r, &writer);
        rig_done(r, &early);
        rig_done(r, &late);
        rig_done(r, &after);
        rig_close(r);
    }
}

Test(cache_steps, each_step_of_a_sequence_follows_the_last)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 8, 0));
    weir_seq seq = rig_start(r, "AB", 0), other = rig_start(r, "CD", 0);
    uint64_t one = rig_run(r, seq, 1)->step;
    expect_steps(rig_run(r, other, 1), fences);
    const weir_order *order = rig_run(r, seq, 2);
    expect_steps(order, fences, one);
    for (uint64_t step = 1; step <= 3; step++)
        rig_ack(r, step);
    order = rig_run(r, seq, 2);
    expect_steps(order, fences);
    rig_ack(r, order->step);
    rig_done(r, &seq);
    rig_done(r, &other);
    rig_close(r);
}

/* Closing with a step in flight frees the pages at once; whoever gets them
 * comes behind that step, whether to compute on them or to load into them. */
Test(cache_steps, reissued_pages_are_fenced)
{
    for (int load = 0; load < 2; load++)
        for (int retired = 0; retired < 2; retired++) {
            struct rig *r = &rig;
            rig_open(r, rig_params(16, 4, 8));
            if (load) {
                weir_seq seq = rig_start(r, "ABCD", 0);
                rig_ack(r, rig_run(r, seq, 4)->step);
                rig_done(r, &seq);
                rig_push_out(r);
            }
            weir_seq user = rig_start(r, "WXYZ", 0);
            uint64_t used = rig_run(r, user, 0)->step;
            rig_done(r, &user);
            cr_assert(eq(u64, rig_stats(r).device_free, 4), "at once");
            if (retired)
                rig_ack(r, used);
            weir_seq seq = rig_seq(r, load ? "ABCD" : "EFGH", 1);
            gives(r, rig_reserve(r, seq, 4 * 16, NULL), 0);
            const weir_order *order = rig_run(r, seq, 4);
            cr_assert(eq(u32, order->n_loads, load ? 4 : 0));
            if (load && !retired)
                expect_steps(order, load_fences, used);
            else
                expect_steps(order, load_fences);
            if (!load && !retired)
                expect_steps(order, fences, used);
            else
                expect_steps(order, fences);
            if (!retired)
                rig_ack(r, used);
            rig_ack(r, order->step);
            rig_done(r, &seq);
            rig_close(r);
        }
}

/* All steps that use a page come before its next owner, not the last alone. */
Test(cache_steps, every_reader_of_a_page_is_fenced)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 4, 0));
    rig_compute(r, "A");
    weir_seq one = rig_start(r, "A", 1), two = rig_start(r, "A", 1);
    uint64_t first = rig_run(r, one, 0)->step, second = rig_run(r, two, 0)->step;
    rig_done(r, &one);
    rig_done(r, &two);
    weir_seq seq = rig_start(r, "WXYZ", 0);
    const weir_order *order = rig_run(r, seq, 0);
    expect_steps(order, fences, first, second);
    for (uint64_t step = first; step <= order->step; step++)
        rig_ack(r, step);
    rig_done(r, &seq);
    rig_close(r);
}

Test(cache_steps, a_write_back_follows_its_producers)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 8, 8);
    params.max_write_backs = 1;
    rig_open(r, params);
    weir_seq a = rig_start(r, "A", 0), b = rig_start(r, "B", 0), c = rig_start(r, "CD", 0);
    const weir_order *order = rig_run(r, a, 1);
    uint64_t one = order->step, ticket = order->write_ticket;
    expect_steps(order, write_fences, one);
    uint64_t two = rig_run(r, b, 1)->step; /* waits: one write-back is in flight */
    uint64_t three = rig_run(r, c, 1)->step;
    rig_report(r, WEIR_REPORT_STEP, one, 0);
    rig_report(r, WEIR_REPORT_STEP, two, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    order = rig_run(r, c, 2);
    cr_assert(eq(u32, order->n_writes, 3));
    expect_steps(order, write_fences, three, order->step);
    rig_ack(r, three);
    rig_ack(r, order->step);
    cr_assert(eq(u64, rig_stats(r).written_pages, 4));
    rig_done(r, &a);
    rig_done(r, &b);
    rig_done(r, &c);
    rig_close(r);
}
