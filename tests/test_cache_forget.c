/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/lifecycle.h>

/* Namespaces that are forgotten, and caches that begin anew, with sequences open
 * and transfers in flight. */

static struct rig rig;

static const weir_field lora = { .tag = 1, .bytes = 4, .data = "lora" };

static void open_cache(struct rig *r, uint32_t n_ranks)
{
    weir_cache_params params = rig_params(16, 16, 16);
    params.n_ranks = n_ranks;
    rig_open(r, params);
}

/* The letters are in the host tier only; all device pages are free. */
static void open_with_host_pages(struct rig *r, const char *letters)
{
    open_cache(r, 2);
    rig_compute(r, letters);
    rig_push_out(r);
}

static void forget(struct rig *r)
{
    gives(r, weir_cache_forget(r->cache, NULL, 0), 0);
}

static void expect_free(struct rig *r, uint64_t device, uint64_t host)
{
    weir_stats stats = rig_stats(r);
    cr_assert(stats.device_free == device && stats.host_free == host, "%d and %d free",
              (int)stats.device_free, (int)stats.host_free);
}

static void expect_failed(struct rig *r, const weir_seq *seq, size_t good_pages)
{
    rig_poll(r);
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, seq), 1));
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i].seq.id == seq->id) {
            cr_assert(eq(int, r->events[i].rc, -EIO));
            cr_assert(eq(sz, r->events[i].good_tokens, good_pages * r->t));
        }
}

static weir_seq lora_seq(struct rig *r, const char *letters)
{
    weir_key key = rig_key(r, letters, 1);
    key.fields = &lora;
    key.n_fields = 1;
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, NULL), 0);
    gives(r, rig_reserve(r, seq, key.n_tokens, NULL), 0);
    return seq;
}

/* ---- Forget -------------------------------------------------------------- */

Test(cache_forget, one_namespace_of_two)
{
    struct rig *r = &rig;
    open_cache(r, 1);
    rig_compute(r, "ABC");
    rig_compute(r, "ABX");
    weir_seq seq = lora_seq(r, "AB");
    rig_ack(r, rig_run(r, seq, 2)->step);
    rig_done(r, &seq);
    cr_assert(eq(u64, rig_stats(r).index_pages, 6));
    gives(r, weir_cache_forget(r->cache, &lora, 1), 0);
    rig_expect_hit(r, "ABC", 3, 0, 0);
    cr_assert(eq(u64, rig_stats(r).index_pages, 4));
    expect_free(r, 12, 12);
    gives(r, weir_cache_forget(r->cache, &lora, 1), 0); /* there is none any more */
    forget(r);
    rig_expect_hit(r, "ABC", 0, 0, 0);
    rig_expect_hit(r, "ABX", 0, 0, 0);
    cr_assert(zero(u64, rig_stats(r).index_pages));
    expect_free(r, 16, 16);
    rig_close(r);
}

Test(cache_forget, what_it_refuses)
{
    struct rig *r = &rig;
    open_cache(r, 1);
    unsigned lines = r->log.lines;
    gives(r, weir_cache_forget(r->cache, NULL, 1), -EINVAL);
    gives(r, weir_cache_forget(r->cache, &lora, WEIR_MAX_FIELDS + 1), -EINVAL);
    cr_expect(eq(u32, r->log.lines, lines + 2));
    cr_expect(eq(int, weir_cache_forget(NULL, NULL, 0), -EINVAL));
    cr_expect(eq(int, weir_cache_forget_all(NULL), -EINVAL));
    cr_expect(eq(int, weir_cache_reset(NULL), -EINVAL));
    rig_close(r);
}

/* The old one goes on outside of the index, the new one begins anew in it. */
Test(cache_forget, old_and_new_sequences_at_once)
{
    struct rig *r = &rig;
    open_cache(r, 1);
    weir_seq old = rig_start(r, "ABCD", 1), waiting = rig_seq(r, "ABCD", 1);
    rig_ack(r, rig_run(r, old, 2)->step);
    int32_t before[RIG_PAGES], table[RIG_PAGES];
    rig_table(r, old, before);
    forget(r);
    rig_expect_hit(r, "ABCD", 0, 0, 0);
    expect_free(r, 16 - 5, 16);
    weir_seq fresh = rig_seq(r, "ABCD", 1);
    weir_hit hit = { .n_tokens = 1 };
    gives(r, rig_reserve(r, fresh, 3 * 16, &hit), 0);
    cr_assert(zero(sz, hit.n_tokens));
    rig_ack(r, rig_run(r, old, 3)->step);
    rig_expect_hit(r, "ABCD", 0, 0, 0);
    rig_ack(r, rig_run(r, fresh, 2)->step);
    rig_expect_hit(r, "ABCD", 2, 0, 0);
    gives(r, rig_reserve(r, waiting, 4 * 16 + 1, &hit), 0);
    cr_assert(zero(sz, hit.n_tokens), "it was opened before");
    rig_ack(r, rig_run(r, waiting, 4)->step);
    rig_expect_hit(r, "ABCD", 2, 0, 0);
    rig_table(r, old, table);
    cr_assert(eq(int, memcmp(table, before, 5 * sizeof *table), 0), "a block table changed");
    rig_ack(r, rig_run(r, old, 4)->step);
    rig_done(r, &old);
    rig_done(r, &waiting);
    rig_expect_hit(r, "ABCD", 2, 0, 0);
    rig_done(r, &fresh);
    expect_free(r, 14, 14);
    rig_close(r);
}

Test(cache_forget, in_the_open_step)
{
    struct rig *r = &rig;
    open_cache(r, 1);
    weir_seq old = rig_start(r, "AB", 1), other = lora_seq(r, "A");
    rig_begin(r);
    rig_add(r, old);
    rig_add(r, other);
    rig_commit(r, old, 2);
    rig_commit(r, other, 1);
    forget(r);
    const weir_order *order = rig_end(r);
    cr_assert(eq(u32, order->n_writes, 1), "the other namespace's page");
    rig_ack(r, order->step);
    rig_expect_hit(r, "AB", 0, 0, 0);
    cr_assert(eq(u64, rig_stats(r).index_pages, 1));
    cr_assert(eq(sz, rig_info(r, old).n_committed, 32));
    rig_done(r, &old);
    rig_done(r, &other);
    expect_free(r, 15, 15);
    rig_close(r);
}

/* ---- Forget while loads are to come -------------------------------------- */

/* The one who reserved first starts the loads though the index knows nothing of
 * them any more, and the other joins. */
Test(cache_forget, loads_that_wait_are_made)
{
    struct rig *r = &rig;
    open_with_host_pages(r, "ABC");
    weir_seq first = rig_start(r, "ABC", 1), second = rig_start(r, "AB", 1);
    gives(r, weir_cache_forget_all(r->cache), 0);
    rig_expect_hit(r, "ABC", 0, 0, 0);
    expect_free(r, 16 - 5, 13);
    const weir_order *order = rig_run(r, second, 0);
    uint64_t load = order->step;
    cr_assert(eq(u32, order->n_loads, 2));
    order = rig_run(r, first, 3);
    cr_assert(order->n_loads == 1 && order->n_joins == 1 && order->joins[0] == load);
    rig_report(r, WEIR_REPORT_LOAD, load, 0);
    expect_free(r, 16 - 5, 15);
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    rig_ack(r, order->step);
    cr_assert(eq(u64, rig_stats(r).loaded_pages, 3));
    gives(r, rig_reserve(r, first, 60, NULL), 0);
    rig_done(r, &first);
    rig_done(r, &second);
    expect_free(r, 16, 16);
    rig_close(r);
}

Test(cache_forget, loads_that_wait_and_nobody_wants)
{
    struct rig *r = &rig;
    open_with_host_pages(r, "ABC");
    weir_seq first = rig_start(r, "ABC", 1), second = rig_start(r, "AB", 1);
    gives(r, weir_cache_forget_all(r->cache), 0);
    rig_done(r, &first);
    expect_free(r, 16 - 3, 14);
    rig_done(r, &second);
    expect_free(r, 16, 16);
    rig_close(r);
}

/* In flight, nobody wants it after all: cancelled as any other. */
Test(cache_forget, a_load_in_flight_is_cancelled_with_its_sequence)
{
    struct rig *r = &rig;
    open_with_host_pages(r, "ABC");
    weir_seq seq = rig_start(r, "ABCD", 1);
    const weir_order *order = rig_run(r, seq, 4);
    uint64_t load = order->step, ticket = order->write_ticket;
    gives(r, weir_cache_forget_all(r->cache), 0);
    rig_begin(r);
    order = rig_end(r);
    cr_assert(order->n_cancels == 1 && order->cancels[0].number == ticket);
    rig_done(r, &seq);
    rig_begin(r);
    order = rig_end(r);
    cr_assert(order->n_cancels == 1 && order->cancels[0].number == load);
    rig_report(r, WEIR_REPORT_LOAD, load, -ECANCELED);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, -ECANCELED);
    for (uint64_t step = load; step <= load + 2; step++)
        rig_report(r, WEIR_REPORT_STEP, step, 0);
    expect_free(r, 16, 16);
    rig_close(r);
}

/* It is told all the same, and so is who computed on it. */
Test(cache_forget, a_load_that_fails_afterwards)
{
    struct rig *r = &rig;
    open_with_host_pages(r, "ABC");
    rig_compute(r, "A"); /* on the device now */
    weir_seq seq = rig_start(r, "ABCD", 1), joined = rig_start(r, "ABCX", 1);
    weir_seq apart = rig_start(r, "AY", 1);
    uint64_t load = rig_run(r, seq, 4)->step;
    uint64_t on_top = rig_run(r, joined, 4)->step;
    uint64_t other = rig_run(r, apart, 2)->step;
    weir_seq heir = rig_start(r, "ABCD", 1); /* hits what was computed on it */
    rig_run(r, heir, 0);
    forget(r);
    rig_report(r, WEIR_REPORT_STEP, load, 0);
    gives(r, rig_try_report(r, 0, WEIR_REPORT_LOAD, load, -EIO), 0);
    rig_poll(r);
    cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL)));
    gives(r, rig_try_report(r, 1, WEIR_REPORT_LOAD, load, 0), 0);
    rig_poll(r);
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, NULL), 3));
    for (size_t i = 0; i < r->n_events; i++)
        if (r->events[i].kind == WEIR_EVENT_LOAD_FAILED)
            cr_assert(eq(sz, r->events[i].good_tokens, 16));
    cr_assert(zero(sz, rig_events(r, WEIR_EVENT_LOAD_FAILED, &apart)));
    rig_done(r, &seq);
    rig_done(r, &joined);
    rig_done(r, &apart);
    rig_done(r, &heir);
    for (uint64_t step = on_top; step <= other + 1; step++)
        rig_report(r, WEIR_REPORT_STEP, step, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, 2, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, 3, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, 4, 0);
    expect_free(r, 16, 16);
    rig_close(r);
}

/* What a step wrote is known after it was forgotten: it may fail yet. */
Test(cache_forget, a_step_that_fails_afterwards)
{
    struct rig *r = &rig;
    open_cache(r, 1);
    rig_compute(r, "A");
    weir_seq writer = rig_start(r, "ABC", 1);
    const weir_order *order = rig_run(r, writer, 3);
    uint64_t step = order->step, ticket = order->write_ticket;
    weir_seq heir = rig_start(r, "ABC", 1), apart = rig_start(r, "A", 1);
    forget(r);
    rig_report(r, WEIR_REPORT_STEP, step, -EIO);
    expect_failed(r, &writer, 1);
    cr_assert(eq(sz, r->n_events, 2));
    for (size_t i = 0; i < 2; i++)
        cr_assert(eq(sz, r->events[i].good_tokens, 16));
    gives(r, rig_reserve(r, heir, 1, NULL), -EIO);
    gives(r, rig_reserve(r, apart, 1, NULL), 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, 0);
    rig_done(r, &writer);
    rig_done(r, &heir);
    rig_done(r, &apart);
    expect_free(r, 16, 16);
    rig_close(r);
}

/* ---- Reset --------------------------------------------------------------- */

Test(cache_forget, reset_with_everything_in_flight)
{
    struct rig *r = &rig;
    open_with_host_pages(r, "ABC");
    weir_seq loading = rig_start(r, "ABCD", 1), queued = rig_start(r, "EF", 1);
    weir_seq unsent = rig_seq(r, "AB", 1), waiting = rig_seq(r, "", 1);
    const weir_order *order = rig_run(r, loading, 4);
    uint64_t load = order->step, ticket = order->write_ticket;
    uint64_t step = rig_run(r, queued, 1)->step;
    uint64_t second = r->orders[step % RIG_ORDERS].decoded.write_ticket;
    rig_commit(r, queued, 2); /* queued to be written */
    gives(r, rig_reserve(r, unsent, 33, NULL), 0);
    gives(r, rig_reserve(r, waiting, 16 * 16, NULL), -ENOSPC);
    uint64_t requests = rig_stats(r).requests;

    rig_begin(r);
    gives(r, weir_cache_reset(r->cache), -EBUSY);
    gives(r, weir_step_abort(&r->step), 0);
    gives(r, weir_cache_reset(r->cache), 0);
    weir_seq *seqs[] = { &loading, &queued, &unsent, &waiting };
    for (int i = 0; i < 4; i++)
        gives(r, weir_seq_close(seqs[i]), -ESTALE);
    cr_assert(zero(u64, rig_stats(r).index_pages));
    cr_assert(zero(u64, rig_stats(r).seqs_open));
    rig_expect_hit(r, "ABCD", 0, 0, 0);
    expect_free(r, 16 - 3 - 1 - 1, 16 - 3 - 1 - 1);
    rig_poll(r);
    cr_assert(zero(sz, r->n_events));
    gives(r, weir_cache_reset(r->cache), 0); /* nothing is left to be reset */

    rig_begin(r);
    order = rig_end(r);
    cr_assert(eq(u64, order->step, step + 1), "steps keep their numbers");
    cr_assert(eq(u32, order->n_cancels, 3));
    cr_assert(order->cancels[0].kind == WEIR_REPORT_LOAD && order->cancels[0].number == load);
    cr_assert(order->cancels[1].number == ticket && order->cancels[2].number == second);
    gives(r, weir_cache_destroy(&r->cache), -EBUSY);
    rig_report(r, WEIR_REPORT_LOAD, load, -ECANCELED);
    rig_report(r, WEIR_REPORT_WRITE_BACK, second, 0);
    rig_report(r, WEIR_REPORT_WRITE_BACK, ticket, -ECANCELED);
    expect_free(r, 16, 16);
    for (uint64_t i = load; i <= step + 1; i++)
        rig_report(r, WEIR_REPORT_STEP, i, 0);
    cr_assert(zero(u64, rig_stats(r).orders_in_flight));
    cr_assert(eq(u64, rig_stats(r).requests, requests), "statistics go on");
    rig_compute(r, "ABC");
    rig_expect_hit(r, "ABC", 3, 0, 0);
    cr_assert(eq(u64, rig_stats(r).requests, requests + 1));
    rig_close(r);
}

/* One in line, one that has an event to come, and a full table of sequences. */
Test(cache_forget, reset_ends_claims_and_events)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 4, 8);
    params.write_back = "write_back";
    params.max_seqs = 3;
    rig_open(r, params);
    rig_compute(r, "WXY");
    weir_seq seq = rig_seq(r, "", 1), second = rig_seq(r, "", 1), third = rig_seq(r, "", 1);
    gives(r, rig_reserve(r, seq, 4 * 16, NULL), -EAGAIN);
    cr_assert(lt(sz, 0, rig_available(r).claimed));
    rig_begin(r);
    rig_ack(r, rig_end(r)->step);
    gives(r, weir_cache_poll(r->cache, r->now++, NULL, 0, &r->n_events), 0);
    gives(r, weir_cache_reset(r->cache), 0);
    cr_assert(zero(sz, rig_available(r).claimed));
    expect_free(r, 4, 8);
    rig_poll(r);
    cr_assert(zero(sz, r->n_events));
    gives(r, rig_reserve(r, second, 1, NULL), -ESTALE);
    gives(r, weir_seq_close(&third), -ESTALE);
    weir_seq again[3];
    for (int i = 0; i < 3; i++)
        again[i] = rig_start(r, "", 1);
    for (int i = 0; i < 3; i++)
        rig_done(r, &again[i]);
    rig_close(r);
}
