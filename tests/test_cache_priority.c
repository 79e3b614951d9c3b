/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* Priorities: whose pages go first, and when they cease to be preferred. */

static struct rig rig;

static weir_cache_params priority_params(uint32_t device, uint32_t host)
{
    weir_cache_params params = rig_params(4, device, host);
    params.eviction = "priority";
    params.priorities = 5;
    return params;
}

/* Computes a prompt of whole pages, none beside. */
static void compute(struct rig *r, const char *letters, uint32_t priority, uint64_t ttl_ns)
{
    weir_key key = rig_key(r, letters, 0);
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.compute_at_least = 0;
    params.priority = priority;
    params.ttl_ns = ttl_ns;
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, &params), 0);
    gives(r, rig_reserve(r, seq, key.n_tokens, NULL), 0);
    rig_ack(r, rig_run(r, seq, strlen(letters))->step);
    rig_done(r, &seq);
}

static void poll_at(struct rig *r, uint64_t now)
{
    r->now = now;
    rig_poll(r);
}

/* Takes n pages, whoever has them. */
static void squeeze(struct rig *r, size_t n)
{
    weir_seq seq = rig_seq(r, "", 1);
    gives(r, rig_reserve(r, seq, n * r->t, NULL), 0);
    rig_done(r, &seq);
}

static void expect_there(struct rig *r, const char *letters, const char *gone)
{
    for (char name[2] = { 0 }; *letters; letters++) {
        name[0] = *letters;
        cr_assert(eq(sz, rig_peek(r, name).n_tokens, 1), "%s is gone", name);
    }
    for (char name[2] = { 0 }; *gone; gone++) {
        name[0] = *gone;
        cr_assert(zero(sz, rig_peek(r, name).n_tokens), "%s is there", name);
    }
}

/* All that is free is taken first, then class after class. */
Test(cache_priority, lower_priorities_go_first)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(6, 0));
    static const char *const names[] = { "A", "B", "C", "D", "E", "F" };
    static const uint32_t priorities[] = { 0, 5, 1, 0, 1, 3 };
    for (size_t i = 0; i < 6; i++)
        compute(r, names[i], priorities[i], 0);
    compute(r, "C", 0, 0); /* used again: the last of its class */
    squeeze(r, 1);
    expect_there(r, "BCDEF", "A");
    squeeze(r, 2);
    expect_there(r, "BCEF", "AD");
    squeeze(r, 3);
    expect_there(r, "BCF", "ADE");
    squeeze(r, 5);
    expect_there(r, "B", "ACDEF");
    rig_close(r);
}

Test(cache_priority, a_priority_ends_with_its_time)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(4, 0));
    poll_at(r, 100);
    compute(r, "A", 2, 50);
    compute(r, "B", 1, 0);
    compute(r, "C", 0, 0);
    poll_at(r, 149);
    squeeze(r, 2);
    expect_there(r, "AB", "C");
    compute(r, "C", 0, 0);
    cr_assert(zero(u64, rig_stats(r).demoted_pages));
    poll_at(r, 150);
    cr_assert(eq(u64, rig_stats(r).demoted_pages, 1));
    expect_there(r, "ABC", "");
    squeeze(r, 2); /* without priority now, and older than C */
    expect_there(r, "BC", "A");
    rig_close(r);
}

/* B is given priority 4 until 200 and 2 until 300, and 1 for ever. */
Test(cache_priority, the_highest_that_lives_counts)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(3, 0));
    poll_at(r, 100);
    compute(r, "A", 3, 0);
    compute(r, "B", 2, 200);
    compute(r, "B", 4, 100);
    compute(r, "B", 1, 0);
    compute(r, "B", 4, 10); /* does not shorten what it has */
    compute(r, "C", 2, 0);  /* used later than B */
    poll_at(r, 199);
    squeeze(r, 1);
    expect_there(r, "AB", "C");
    compute(r, "C", 2, 0);
    poll_at(r, 200);
    cr_assert(eq(u64, rig_stats(r).demoted_pages, 1));
    squeeze(r, 1);
    expect_there(r, "AC", "B");
    compute(r, "B", 0, 0);
    squeeze(r, 1); /* a page that has gone takes nothing along */
    expect_there(r, "AC", "B");
    rig_close(r);
}

Test(cache_priority, one_after_the_other_ends)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(3, 0));
    compute(r, "A", 5, 100);
    compute(r, "A", 3, 300);
    compute(r, "A", 4, 200);
    compute(r, "A", 2, 150); /* over before it could count */
    for (uint64_t now = 100; now <= 300; now += 100) {
        poll_at(r, now - 1);
        cr_assert(eq(u64, rig_stats(r).demoted_pages, now / 100 - 1));
        poll_at(r, now);
        cr_assert(eq(u64, rig_stats(r).demoted_pages, now / 100));
    }
    poll_at(r, UINT64_MAX - 100);
    cr_assert(eq(u64, rig_stats(r).demoted_pages, 3));
    compute(r, "A", 1, 200); /* beyond the clock's end: for ever */
    poll_at(r, UINT64_MAX);
    cr_assert(eq(u64, rig_stats(r).demoted_pages, 3));
    compute(r, "B", 0, 0);
    compute(r, "C", 0, 0);
    squeeze(r, 2);
    expect_there(r, "A", "BC");
    rig_close(r);
}

/* A page of a running sequence is no candidate when its priority ends. */
Test(cache_priority, it_ends_while_the_page_is_used)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(3, 0));
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.priority = 1;
    params.ttl_ns = 10;
    weir_key key = rig_key(r, "A", 0);
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, &params), 0);
    gives(r, rig_reserve(r, seq, r->t, NULL), 0);
    rig_ack(r, rig_run(r, seq, 1)->step);
    poll_at(r, 20);
    cr_assert(eq(u64, rig_stats(r).demoted_pages, 1));
    rig_done(r, &seq);
    compute(r, "B", 0, 0);
    compute(r, "C", 1, 0);
    squeeze(r, 1);
    expect_there(r, "BC", "A");
    rig_close(r);
}

/* What a hit uses takes the priority of the sequence; what it loads keeps it in
 * both tiers. */
Test(cache_priority, a_use_gives_it_in_both_tiers)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(4, 3));
    compute(r, "A", 0, 0);
    compute(r, "B", 0, 0);
    rig_settle(r);
    squeeze(r, 4);
    compute(r, "A", 3, 0); /* a host hit */
    compute(r, "C", 0, 0);
    compute(r, "D", 0, 0);
    rig_settle(r);
    squeeze(r, 3);
    rig_expect_hit(r, "A", 1, 0, 0);
    squeeze(r, 4);
    rig_expect_hit(r, "A", 0, 1, 0); /* older than B was, and yet B went for D */
    rig_expect_hit(r, "B", 0, 0, 0);
    rig_close(r);
}

/* So many pages that a poll does not demote them all. */
Test(cache_priority, a_poll_demotes_some_and_the_next_ones_the_rest)
{
    struct rig *r = &rig;
    rig_open(r, priority_params(1200, 0));
    for (uint64_t i = 0; i < 10; i++) {
        int32_t tokens[400];
        for (int32_t k = 0; k < 400; k++)
            tokens[k] = (int32_t)i * 1000 + k;
        weir_key key = { .tokens = tokens, .n_tokens = 400 };
        weir_seq_params params;
        weir_seq_params_init(&params);
        params.priority = 1;
        params.ttl_ns = 1000 - 100 * i; /* the last ones end first */
        weir_seq seq;
        gives(r, weir_seq_open(&seq, r->cache, &key, &params), 0);
        gives(r, rig_reserve(r, seq, 400, NULL), 0);
        rig_ack(r, rig_run(r, seq, 100)->step);
        rig_done(r, &seq);
    }
    uint64_t before = 0;
    unsigned polls = 0;
    for (; before < 1000; polls++) {
        poll_at(r, 2000);
        uint64_t demoted = rig_stats(r).demoted_pages;
        cr_assert(demoted > before && demoted - before <= 256, "%d, then %d", (int)before,
                  (int)demoted);
        before = demoted;
    }
    cr_assert(eq(u32, polls, 4));
    poll_at(r, 3000);
    cr_assert(eq(u64, rig_stats(r).demoted_pages, 1000));
    rig_close(r);
}

Test(cache_priority, range)
{
    static const uint32_t most[] = { 0, 3, 15 };
    for (size_t i = 0; i < 3; i++) {
        struct rig *r = &rig;
        weir_cache_params params = priority_params(4, 0);
        params.priorities = most[i];
        rig_open(r, params);
        weir_key key = rig_key(r, "A", 0);
        weir_seq_params seq_params;
        weir_seq_params_init(&seq_params);
        seq_params.priority = most[i] + 1;
        weir_seq seq;
        uint32_t lines = r->log.lines;
        gives(r, weir_seq_open(&seq, r->cache, &key, &seq_params), -EINVAL);
        cr_assert(eq(u32, r->log.lines, lines + 1));
        compute(r, "A", most[i], 1);
        poll_at(r, 5);
        cr_assert(eq(u64, rig_stats(r).demoted_pages, most[i] > 0));
        rig_close(r);
    }
}

static weir_write_facts asked;

static weir_write_answer ask(const weir_write_facts *facts, uint32_t parameter)
{
    (void)parameter;
    asked = *facts;
    return WEIR_WRITE_LATER;
}

Test(cache_priority, a_write_back_policy_is_told)
{
    struct rig *r = &rig;
    weir_cache_params params = priority_params(4, 4);
    params.write_policy.decide = ask;
    rig_open(r, params);
    compute(r, "A", 2, 0);
    cr_assert(asked.event == WEIR_WRITE_ON_COMMIT && asked.priority == 2);
    compute(r, "A", 4, 0);
    cr_assert(asked.event == WEIR_WRITE_ON_HIT && asked.priority == 4);
    rig_close(r);
}
