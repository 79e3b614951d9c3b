/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_hands.h"

#include <weir/lifecycle.h>

/* Loads and write-backs that nobody wants any more, in every state. */

static struct rig rig;

/* The index holds the letters in the host tier only; all device pages are free. */
static void open_with(struct rig *r, uint32_t n_ranks, const char *letters)
{
    weir_cache_params params = rig_params(16, 16, 16);
    params.n_ranks = n_ranks;
    rig_open(r, params);
    rig_compute(r, letters);
    rig_push_out(r);
    cr_assert(eq(u64, rig_stats(r).device_free, 16));
}

static void expect_free(struct rig *r, uint64_t device, uint64_t host)
{
    weir_stats stats = rig_stats(r);
    cr_assert(stats.device_free == device && stats.host_free == host, "%d and %d free",
              (int)stats.device_free, (int)stats.host_free);
}

/* An empty step's order. */
static const weir_order *next_order(struct rig *r)
{
    rig_begin(r);
    return rig_end(r);
}

static void expect_cancels(const weir_order *order, weir_report_kind kind, uint64_t number)
{
    cr_assert(eq(u32, order->n_cancels, 1));
    cr_assert(eq(u32, order->cancels[0].kind, kind));
    cr_assert(eq(u64, order->cancels[0].number, number));
}

/* Nothing is open: the steps that are in flight end, and nothing is left. */
static void finish(struct rig *r, uint64_t first, uint64_t last)
{
    for (uint64_t step = first; step <= last; step++)
        rig_report(r, WEIR_REPORT_STEP, step, 0);
    weir_stats stats = rig_stats(r);
    cr_assert(zero(u64, stats.orders_in_flight));
    cr_assert(zero(u64, stats.write_backs_in_flight));
    weir_available available = rig_available(r);
    cr_assert(available.pending == 0 && available.claimed == 0);
    rig_poll(r);
    cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL)));
}

/* ---- Loads --------------------------------------------------------------- */

Test(cache_cancel, a_load_that_no_order_holds_is_not_made)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    weir_seq seq = rig_start(r, "ABC", 1);
    expect_free(r, 12, 13);
    rig_done(r, &seq);
    expect_free(r, 16, 13);
    const weir_order *order = next_order(r);
    cr_expect(order->n_loads == 0 && order->n_cancels == 0);
    finish(r, order->step, order->step);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    cr_expect(zero(u64, rig_stats(r).load_cancelled_pages));
    rig_close(r);
}

/* Whatever each rank makes of it, it is one outcome, and pages are reissued only
 * when all have reported. */
static void cancel_in_flight(struct rig *r, int first_rc, int second_rc, bool first_reports_before)
{
    weir_seq seq = rig_start(r, "ABC", 1);
    const weir_order *order = rig_run(r, seq, 0);
    cr_assert(eq(u32, order->n_loads, 3));
    uint64_t load = order->step;
    rig_done(r, &seq);
    rig_expect_hit(r, "ABC", 0, 0, 3);
    expect_free(r, 13, 13);
    if (first_reports_before)
        gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, load, first_rc), 0);
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, load);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    cr_assert(zero(u32, next_order(r)->n_cancels), "once");
    if (!first_reports_before)
        gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, load, first_rc), 0);
    expect_free(r, 13, 13);
    cr_assert(eq(sz, rig_available(r).pending, 3));
    gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, load, second_rc), 0);
    expect_free(r, 16, 13);
    gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, load, second_rc), -EINVAL);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    finish(r, load, load + 2);
    weir_stats stats = rig_stats(r);
    cr_assert(eq(u64, stats.load_cancelled_pages, 3));
    cr_assert(stats.loaded_pages == 0 && stats.load_failed_pages == 0);
    seq = rig_start(r, "ABC", 1);
    rig_ack(r, rig_run(r, seq, 0)->step);
    rig_expect_hit(r, "ABC", 3, 0, 0);
    rig_done(r, &seq);
}

Test(cache_cancel, a_load_in_flight_is_named_by_the_next_order)
{
    static const int rcs[] = { 0, -EIO, -ECANCELED };
    for (int i = 0; i < 18; i++) {
        open_with(&rig, 2, "ABC");
        cancel_in_flight(&rig, rcs[i % 3], rcs[i / 3 % 3], i >= 9);
        rig_close(&rig);
    }
}

/* All ranks have reported it, and nobody has polled or ended a step since. */
Test(cache_cancel, a_load_that_is_over_is_not_cancelled)
{
    struct rig *r = &rig;
    open_with(r, 2, "ABC");
    weir_seq seq = rig_start(r, "ABC", 1);
    uint64_t load = rig_run(r, seq, 0)->step;
    rig_done(r, &seq);
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    rig_expect_hit(r, "ABC", 3, 0, 0);
    cr_expect(zero(u32, next_order(r)->n_cancels));
    finish(r, load, load + 1);
    cr_expect(eq(u64, rig_stats(r).loaded_pages, 3));
    rig_push_out(r);
    expect_free(r, 16, 13);
    rig_close(r);
}

Test(cache_cancel, a_load_can_be_wanted_again)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    weir_seq seq = rig_start(r, "ABC", 1);
    uint64_t load = rig_run(r, seq, 0)->step;
    rig_done(r, &seq);
    seq = rig_seq(r, "AB", 1);
    weir_hit hit;
    gives(r, rig_reserve(r, seq, 2 * 16 + 1, &hit), 0);
    cr_assert(eq(sz, hit.n_loading, 32));
    const weir_order *order = rig_run(r, seq, 0);
    cr_expect(zero(u32, order->n_cancels));
    cr_expect(order->n_joins == 1 && order->joins[0] == load);
    rig_done(r, &seq);
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, load);
    rig_report(r, WEIR_REPORT_LOAD, load, -ECANCELED);
    expect_free(r, 16, 13);
    finish(r, load, load + 2);
    rig_close(r);
}

/* A reserve that is refused lets go of what it had a look at. */
Test(cache_cancel, a_refused_reserve_wants_nothing)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    weir_seq seq = rig_start(r, "ABC", 1), big = rig_seq(r, "ABC", 1);
    uint64_t load = rig_run(r, seq, 0)->step;
    weir_seq rest = rig_start(r, "", 12 * 16);
    rig_done(r, &seq);
    gives(r, rig_reserve(r, big, 16 * 16, NULL), -ENOSPC);
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, load);
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    rig_done(r, &rest);
    rig_done(r, &big);
    finish(r, load, load + 1);
    expect_free(r, 16, 13);
    rig_close(r);
}

/* The cancelled load still runs: the next hit takes other pages, and the host
 * page outlives both. */
static void load_again(struct rig *r, bool new_one_first, int rc)
{
    weir_seq seq = rig_start(r, "ABC", 1);
    const weir_order *order = rig_run(r, seq, 0);
    uint64_t old = order->step;
    int32_t before[3];
    for (int i = 0; i < 3; i++)
        before[i] = order->loads[i].device.id;
    rig_done(r, &seq);
    (void)next_order(r);
    seq = rig_start(r, "ABC", 1);
    rig_expect_hit(r, "ABC", 0, 0, 3);
    order = rig_run(r, seq, 0);
    cr_assert(order->n_loads == 3 && order->n_joins == 0);
    for (int i = 0; i < 9; i++)
        cr_assert(ne(i32, order->loads[i / 3].device.id, before[i % 3]));
    uint64_t fresh = order->step;
    expect_free(r, 16 - 3 - 4, 13);
    rig_report(r, WEIR_REPORT_LOAD, new_one_first ? fresh : old, new_one_first ? rc : -ECANCELED);
    rig_report(r, WEIR_REPORT_LOAD, new_one_first ? old : fresh, new_one_first ? -ECANCELED : rc);
    rig_expect_hit(r, "ABC", rc ? 0 : 3, 0, 0);
    rig_poll(r);
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, &seq), rc ? 1 : 0));
    rig_done(r, &seq);
    finish(r, old, fresh);
    rig_push_out(r);
    expect_free(r, 16, rc ? 16 : 13);
}

Test(cache_cancel, a_cancelled_load_is_made_again_elsewhere)
{
    for (int i = 0; i < 4; i++) {
        open_with(&rig, 2, "ABC");
        load_again(&rig, i & 1, i & 2 ? -EIO : 0);
        rig_close(&rig);
    }
}

Test(cache_cancel, what_was_computed_on_a_load_keeps_it)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    weir_seq seq = rig_start(r, "ABCD", 1);
    const weir_order *order = rig_run(r, seq, 4);
    uint64_t load = order->step, ticket = order->write_ticket;
    rig_done(r, &seq);
    cr_expect(zero(u32, next_order(r)->n_cancels));
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    finish(r, load, load + 1);
    rig_expect_hit(r, "ABCD", 4, 0, 0);
    rig_close(r);
}

Test(cache_cancel, one_page_that_is_wanted_keeps_the_load)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    weir_seq longer = rig_start(r, "ABC", 1), shorter = rig_start(r, "A", 1);
    uint64_t load = rig_run(r, longer, 0)->step;
    rig_done(r, &longer);
    cr_expect(zero(u32, rig_run(r, shorter, 0)->n_cancels));
    rig_done(r, &shorter);
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, load);
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    finish(r, load, load + 2);
    expect_free(r, 16, 13);
    rig_close(r);
}

/* The page of a sequence that computes for itself what another loads: the path
 * below it stays whole, so the load is wanted. */
Test(cache_cancel, a_private_duplicate_wants_the_load)
{
    struct rig *r = &rig;
    open_with(r, 1, "A");
    weir_seq own = rig_seq(r, "A", 1), loader;
    weir_request request;
    weir_request_init(&request);
    request.use_hit = 0;
    request.total_tokens = 17;
    gives(r, weir_seq_reserve(own, &request, NULL), 0);
    loader = rig_start(r, "A", 1);
    uint64_t load = rig_run(r, loader, 0)->step;
    rig_run(r, own, 1);
    rig_done(r, &loader);
    cr_expect(zero(u32, next_order(r)->n_cancels));
    rig_done(r, &own);
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, load);
    rig_report(r, WEIR_REPORT_LOAD, load, -ECANCELED);
    finish(r, load, load + 3);
    expect_free(r, 16, 15);
    rig_close(r);
}

/* The order of a step cannot cancel its own load. */
Test(cache_cancel, closing_in_the_step_that_loads)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    weir_seq seq = rig_start(r, "ABC", 1);
    rig_begin(r);
    rig_add(r, seq);
    rig_done(r, &seq);
    const weir_order *order = rig_end(r);
    cr_assert(order->n_loads == 3 && order->n_cancels == 0);
    uint64_t load = order->step;
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, load);
    rig_report(r, WEIR_REPORT_LOAD, load, -ECANCELED);
    finish(r, load, load + 1);
    expect_free(r, 16, 13);
    rig_close(r);
}

/* Of a path that two steps load only the upper part is cancelled, because the
 * lower shares its load with a sequence: it has no place without the upper. */
Test(cache_cancel, a_path_of_two_loads)
{
    struct rig *r = &rig;
    open_with(r, 1, "ABC");
    rig_compute(r, "X");
    rig_push_out(r);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    weir_seq upper = rig_start(r, "AB", 1), lower, other;
    uint64_t first = rig_run(r, upper, 0)->step;
    lower = rig_start(r, "ABC", 1);
    other = rig_start(r, "X", 1);
    rig_begin(r);
    rig_add(r, lower);
    rig_add(r, other);
    const weir_order *order = rig_end(r);
    uint64_t second = order->step;
    cr_assert(order->n_loads == 2 && order->n_joins == 1);
    rig_done(r, &upper);
    rig_done(r, &lower);
    expect_cancels(next_order(r), WEIR_REPORT_LOAD, first);
    rig_expect_hit(r, "ABC", 0, 3, 0);
    rig_expect_hit(r, "X", 0, 0, 1);
    rig_report(r, WEIR_REPORT_LOAD, second, 0);
    rig_report(r, WEIR_REPORT_LOAD, first, -ECANCELED);
    rig_expect_hit(r, "X", 1, 0, 0);
    rig_done(r, &other);
    finish(r, first, second + 1);
    rig_push_out(r);
    expect_free(r, 16, 12);
    rig_close(r);
}

/* Several at once are named in the order of their steps. */
Test(cache_cancel, many)
{
    struct rig *r = &rig;
    open_with(r, 1, "A");
    rig_compute(r, "B");
    rig_compute(r, "C");
    rig_push_out(r);
    weir_seq seqs[3];
    uint64_t first = 0;
    for (int i = 0; i < 3; i++) {
        seqs[i] = rig_start(r, i == 0 ? "A" : i == 1 ? "B" : "C", 1);
        uint64_t step = rig_run(r, seqs[i], 0)->step;
        first = first ? first : step;
    }
    rig_done(r, &seqs[2]);
    rig_done(r, &seqs[0]);
    rig_done(r, &seqs[1]);
    const weir_order *order = next_order(r);
    cr_assert(eq(u32, order->n_cancels, 3));
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(eq(u64, order->cancels[i].number, first + i));
        rig_report(r, WEIR_REPORT_LOAD, first + i, -ECANCELED);
    }
    finish(r, first, first + 3);
    expect_free(r, 16, 13);
    rig_close(r);
}

/* ---- Write-backs --------------------------------------------------------- */

Test(cache_cancel, a_write_back_whose_entries_are_gone)
{
    static const int rcs[] = { 0, -EIO, -ECANCELED };
    for (int i = 0; i < 9; i++) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(16, 8, 8);
        params.n_ranks = 2;
        rig_open(r, params);
        weir_seq seq = rig_start(r, "AB", 1);
        const weir_order *order = rig_run(r, seq, 2);
        uint64_t step = order->step, ticket = order->write_ticket;
        cr_assert(eq(u32, order->n_writes, 2));
        rig_done(r, &seq);
        gives(r, weir_cache_forget_all(r->cache), 0);
        expect_free(r, 6, 6);
        expect_cancels(next_order(r), WEIR_REPORT_WRITE_BACK, ticket);
        cr_assert(zero(u32, next_order(r)->n_cancels));
        gives(r, rig_try_report(r, 1, WEIR_REPORT_WRITE_BACK, ticket, rcs[i % 3]), 0);
        expect_free(r, 6, 6);
        gives(r, rig_try_report(r, 0, WEIR_REPORT_WRITE_BACK, ticket, rcs[i / 3]), 0);
        expect_free(r, 8, 8);
        finish(r, step, step + 2);
        weir_stats stats = rig_stats(r);
        cr_assert(eq(u64, stats.write_cancelled_pages, 2));
        cr_assert(stats.written_pages == 0 && stats.write_failed_pages == 0);
        rig_close(r);
    }
}

static weir_seq start_in(struct rig *r, const weir_field *field, const char *letters)
{
    weir_key key = rig_key(r, letters, 1);
    key.fields = field;
    key.n_fields = 1;
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, NULL), 0);
    gives(r, rig_reserve(r, seq, key.n_tokens, NULL), 0);
    return seq;
}

Test(cache_cancel, a_write_back_of_which_one_entry_lives)
{
    struct rig *r = &rig;
    static const weir_field a = { 1, 1, "a" }, b = { 1, 1, "b" };
    rig_open(r, rig_params(16, 8, 8));
    weir_seq first = start_in(r, &a, "X"), second = start_in(r, &b, "X");
    rig_begin(r);
    rig_add(r, first);
    rig_add(r, second);
    rig_commit(r, first, 1);
    rig_commit(r, second, 1);
    const weir_order *order = rig_end(r);
    uint64_t step = order->step, ticket = order->write_ticket;
    cr_assert(eq(u32, order->n_writes, 2));
    gives(r, weir_cache_forget(r->cache, &a, 1), 0);
    cr_expect(zero(u32, next_order(r)->n_cancels));
    gives(r, weir_cache_forget(r->cache, &b, 1), 0);
    expect_cancels(next_order(r), WEIR_REPORT_WRITE_BACK, ticket);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, -ECANCELED);
    rig_done(r, &first);
    rig_done(r, &second);
    finish(r, step, step + 2);
    expect_free(r, 8, 8);
    rig_close(r);
}

/* No order holds it yet: nothing is in flight, so nothing is named. */
Test(cache_cancel, a_write_back_that_waits_for_an_order)
{
    struct rig *r = &rig;
    rig_open(r, rig_params(16, 8, 8));
    weir_seq seq = rig_start(r, "AB", 1);
    uint64_t step = rig_run(r, seq, 0)->step;
    rig_commit(r, seq, 2);
    expect_free(r, 5, 6);
    gives(r, weir_cache_forget_all(r->cache), 0);
    const weir_order *order = next_order(r);
    cr_expect(order->n_writes == 0 && order->n_cancels == 0);
    expect_free(r, 5, 8);
    rig_done(r, &seq);
    finish(r, step, step + 1);
    expect_free(r, 8, 8);
    cr_expect(eq(u64, rig_stats(r).write_cancelled_pages, 2));
    rig_close(r);
}

/* ---- With ranks ---------------------------------------------------------- */

static void hand_run(const struct hand *hand)
{
    while (weir_cpu_device_run(hand->device, 100) == 100)
        continue;
}

/* The load's targets are still in use on the first rank, which drops it, and not
 * on the second, which has made it by then. */
static void ranks_differ(struct rig *r, bool waits)
{
    hands_open(r);
    weir_seq seq = hands_there_and_back(r);
    rig_done(r, &seq);
    weir_seq user = rig_start(r, "", HAND_PAGES * 4);
    int32_t table[RIG_PAGES];
    rig_table(r, user, table);
    weir_cpu_stream_park(hands[0].device, hands[0].stream);
    uint64_t step = rig_run(r, user, 0)->step;
    for (int i = 0; i < 2; i++)
        hand_forward(&hands[i], &r->orders[step % RIG_ORDERS], table, 0, HAND_PAGES);
    rig_done(r, &user);
    hand_run(&hands[1]);

    seq = rig_start(r, "AB", 1);
    uint64_t load = rig_run(r, seq, 0)->step;
    const struct rig_order *order = &r->orders[load % RIG_ORDERS];
    cr_assert(eq(u32, order->decoded.n_loads, 2));
    cr_assert(order->decoded.n_load_fences == 1 && order->decoded.load_fences[0] == step);
    rig_table(r, seq, table);
    for (int i = 0; i < 2; i++)
        hand_forward(&hands[i], order, table, 2, waits ? 2 : 0);
    rig_done(r, &seq);
    rig_begin(r);
    uint64_t last = rig_end(r)->step;
    expect_cancels(&r->orders[last % RIG_ORDERS].decoded, WEIR_REPORT_LOAD, load);
    for (int i = 0; i < 2; i++)
        hand_forward(&hands[i], &r->orders[last % RIG_ORDERS], NULL, 0, 0);
    cr_assert(eq(u64, weir_cpu_device_calls(hands[0].device, WEIR_CPU_CALL_COPY_LOAD),
                 waits ? HAND_LAYERS : 0));
    cr_assert(
        eq(u64, weir_cpu_device_calls(hands[1].device, WEIR_CPU_CALL_COPY_LOAD), HAND_LAYERS));
    hands_report(r);
    expect_free(r, waits ? HAND_PAGES - 2 : HAND_PAGES, HAND_PAGES - 2);
    weir_cpu_stream_release(hands[0].device, hands[0].stream);
    hands_report(r);
    expect_free(r, HAND_PAGES, HAND_PAGES - 2);
    cr_assert(eq(u64, rig_stats(r).load_cancelled_pages, 2));
    cr_assert(zero(u64, rig_stats(r).orders_in_flight));
    rig_expect_hit(r, "AB", 0, 2, 0);

    seq = rig_start(r, "AB", 1);
    hands_serve(r, seq, 2, 2);
    hands_report(r);
    rig_expect_hit(r, "AB", 2, 0, 0);
    rig_done(r, &seq);
    hands_close(r);
}

Test(cache_cancel, ranks_may_differ)
{
    ranks_differ(&rig, false);
    ranks_differ(&rig, true);
}
