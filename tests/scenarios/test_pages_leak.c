/* SPDX-License-Identifier: Apache-2.0 */

/* Pages that nobody can have any more, and counts that are not what they count: after
 * aborts at any moment, phases in which nobody polls, retries, hours of use. */

#include "cache_rig.h"
#include "server_probe.h"

/* ---- Nobody polls --------------------------------------------------------- */

/* Carries the reports of a step, or those of the step before it. */
static void carry(struct rig *r, uint64_t step, uint64_t *late)
{
    uint64_t now = late ? *late : step;
    if (now)
        rig_ack(r, now);
    if (late)
        *late = step;
}

/* Long after the last new request one that decodes needs page after page. All that it
 * can have is what is written back and given up on the way: its own calls bring that
 * about, with the steps and reports that there are anyway. */
static void decode_without_polls(const char *write_back, uint64_t *late)
{
    struct rig r;
    weir_cache_params params = rig_params(16, 10, 16);
    params.write_back = write_back;
    rig_open(&r, params);
    weir_seq old = rig_start(&r, "ABCDEFGH", 0);
    rig_ack(&r, rig_run(&r, old, 8)->step);
    rig_done(&r, &old);
    weir_seq seq = rig_start(&r, "P", 0);
    carry(&r, rig_run(&r, seq, 1)->step, late);
    int32_t tokens[16];
    for (int32_t i = 0; i < 16; i++)
        tokens[i] = 7000 + i;
    for (size_t pages = 2; pages <= 10; pages++) {
        int rc = rig_reserve(&r, seq, pages * 16, NULL);
        for (int tries = 0; rc == -EAGAIN && tries < 4; tries++) {
            rig_begin(&r);
            carry(&r, rig_end(&r)->step, late);
            rc = rig_reserve(&r, seq, pages * 16, NULL);
        }
        cr_assert(rc == 0, "%s, page %zu: %s", write_back, pages, weir_error_name(rc));
        rig_begin(&r);
        rig_add(&r, seq);
        gives(&r, weir_seq_commit(seq, tokens, 16), 0);
        carry(&r, rig_end(&r)->step, late);
    }
    if (late)
        carry(&r, 0, late);
    cr_assert(zero(u64, rig_stats(&r).device_free));
    gives(&r, rig_reserve(&r, seq, 11 * 16, NULL), -E2BIG);
    rig_done(&r, &seq);
    rig_close(&r);
}

Test(pages_leak, when_nobody_polls)
{
    static const char *const write_backs[] = { "write_through", "write_back", "never",
                                               "write_through_selective(2)" };
    for (size_t i = 0; i < sizeof write_backs / sizeof *write_backs; i++)
        for (int is_late = 0; is_late < 2; is_late++) {
            uint64_t late = 0;
            decode_without_polls(write_backs[i], is_late ? &late : NULL);
        }
}

/* ---- Ends at any moment --------------------------------------------------- */

enum moment {
    OPENED,
    IN_LINE,
    RESERVED,
    HELD,       /* ordered, and no rank has been told */
    RUNNING,    /* the load and the write-back stand still */
    UNREPORTED, /* all is over, and nobody has heard of it */
    UNPOLLED,
    OVER,
    N_MOMENTS
};

enum end {
    CLOSED,
    CLOSED_BOTH, /* another one has joined the load */
    FORGOTTEN,   /* and closed later */
    RESET,
    FAILED, /* and closed */
    LOST,   /* with a rank, and closed */
    LATE,   /* its loads have a deadline, which is over; closed then */
    N_ENDS
};

static struct server_request *join(struct server *s)
{
    struct server_request *other = server_ask(s, "ABCX");
    cr_assert(zero(int, server_reserve(s, other)));
    return other;
}

/* Says by when the loads must be there, and that it is later than that. */
static void miss_the_deadline(struct server *s, const struct server_request *request)
{
    weir_request wish;
    weir_request_init(&wish);
    wish.total_tokens = 1;
    wish.deadline_ns = 1;
    SERVER_GIVES(s, weir_seq_reserve(server_seq(s, request, k), &wish, NULL), 0);
    server_poll(s);
}

static void end(struct server *s, enum end how, struct server_request **requests, size_t n)
{
    if (how == LATE && requests[0]->n_pages > 0)
        miss_the_deadline(s, requests[0]);
    if (how == FORGOTTEN)
        SERVER_GIVES(s, weir_cache_forget_all(c), 0);
    if (how == LOST)
        server_replace_rank(s, 0);
    if (how == RESET) {
        SERVER_GIVES(s, weir_cache_reset(c), 0);
        for (size_t i = 0; i < n; i++)
            requests[i]->seq = (weir_seq){ 0 };
        return;
    }
    for (size_t i = 0; i < n; i++)
        server_leave(s, requests[i]);
}

/* "ABCDE" hits three pages of the host tier and computes two; it ends at `moment`. */
static void end_at(enum moment moment, enum end how, const char *write_back, uint32_t n_ranks)
{
    struct server_params params = probe_params(7, write_back, 12, 16);
    params.cache.n_ranks = n_ranks;
    struct server *s = server_open(params);
    server_serve(s, "ABC");
    server_push_out(s);
    server_expect_hit(s, "ABC", 0, 3, 0);
    if (how == FAILED)
        cr_assert(
            zero(int, weir_cpu_device_fail(s->ranks[0].device, WEIR_CPU_CALL_COPY_LOAD, 2, -EIO)));
    if (moment == HELD)
        server_hold(s, 0);
    if (moment == RUNNING) {
        server_stall(s, WEIR_CPU_CALL_COPY_LOAD);
        server_stall(s, WEIR_CPU_CALL_COPY_WRITE_BACK);
    }
    struct server_request *requests[3];
    size_t n = 0;
    if (moment == IN_LINE)
        server_serve(s, "PQRSTUVW");
    struct server_request *request = requests[n++] = server_ask(s, "ABCDE");
    bool waits = moment == IN_LINE && strcmp(write_back, "write_back") == 0;
    if (moment != OPENED)
        cr_assert(eq(int, server_reserve(s, request), waits ? -EAGAIN : 0));
    if (moment >= HELD)
        server_step(s, 0, request);
    if (how == CLOSED_BOTH && moment >= RESERVED)
        requests[n++] = join(s);
    if (moment == RUNNING || moment == UNREPORTED)
        server_run_devices(s);
    if (moment == UNPOLLED) {
        server_run_devices(s);
        for (uint32_t rank = 0; rank < n_ranks; rank++)
            server_carry(s, rank, 20, NULL);
    }
    if (moment == OVER)
        server_run(s);

    end(s, how, requests, n);
    if (how == LATE && moment >= RESERVED)
        cr_assert(eq(u32, request->failures, moment < UNPOLLED));
    server_let_go(s, 0);
    server_run(s);
    server_release(s);
    server_run(s);
    server_expect_right(s);
    probe_expect_room(s, 12);
    server_serve(s, "ABCDE");
    server_expect_hit(s, "ABCDE", 5, 0, 0);
    server_expect_right(s);
    probe_expect_nothing_left(s, 12, 16);
    server_close(s);
}

Test(pages_leak, when_a_request_ends_at_any_moment, .timeout = 100)
{
    for (enum moment moment = OPENED; moment < N_MOMENTS; moment++)
        for (enum end how = CLOSED; how < N_ENDS; how++) {
            end_at(moment, how, "write_through", 2);
            end_at(moment, how, "write_back", 1);
        }
}

/* ---- What can be had ------------------------------------------------------ */

/* Pages that open requests hold, each once. */
static size_t count_held(struct server_request *const *open, uint32_t n_open)
{
    bool held[64] = { false };
    size_t n = 0;
    for (uint32_t i = 0; i < n_open; i++)
        for (size_t p = 0; p < open[i]->n_pages; p++) {
            n += !held[open[i]->table[p]];
            held[open[i]->table[p]] = true;
        }
    return n;
}

/* Requests come, hit each other's pages and go, also without having run. Whatever has
 * been: what no open request holds can be had, and not a page more. */
static void expect_rest_can_be_had(uint64_t seed, const char *write_back)
{
    static const char *const prompts[] = { "ABCD", "ABCE", "AB", "FGH", "FGHIJ", "ABC", "K" };
    struct server_params params = probe_params(seed, write_back, 20, 12);
    params.cache.offered = seed % 2 ? 0 : 0.1;
    struct server *s = server_open(params);
    struct server_request *open[4];
    uint32_t n_open = 0;
    for (int turn = 0; turn < 120; turn++) {
        if (n_open < 3) {
            struct server_request *request = server_ask(s, prompts[random_below(&s->random, 7)]);
            if (probe_reserve(s, request, random_below(&s->random, 2)) == 0)
                open[n_open++] = request;
            else
                server_leave(s, request);
        }
        if (n_open > 0 && random_percent(&s->random, 60)) {
            server_step(s, 0, open[random_below(&s->random, n_open)]);
            server_run_a_little(s);
        }
        if (n_open > 0 && random_percent(&s->random, 50)) {
            uint32_t i = random_below(&s->random, n_open);
            server_leave(s, open[i]);
            open[i] = open[--n_open];
        }
        if (turn % 12 == 11) {
            server_settle(s);
            probe_expect_room(s, 20 - count_held(open, n_open));
        }
        if (server_stats(s).orders_in_flight > 20)
            server_run(s);
    }
    server_expect_right(s);
    while (n_open > 0)
        server_leave(s, open[--n_open]);
    probe_expect_nothing_left(s, 20, 12);
    server_close(s);
}

Test(pages_leak, when_requests_come_and_go, .timeout = 100)
{
    static const char *const write_backs[] = { "write_back", "write_through", "never" };
    for (uint64_t seed = 1; seed <= 9; seed++)
        expect_rest_can_be_had(seed, write_backs[seed % 3]);
}

/* Looking, opening, and a reserve that is refused take nothing and give nothing up, and
 * one that succeeds gives up no more than it lacks, in the host tier nothing. */
Test(pages_leak, when_more_is_given_up_than_is_needed)
{
    for (size_t n = 1; n <= 6; n++) {
        struct server *s = probe_open("write_through", 12, 24);
        server_serve(s, "ABCDEF");
        server_push_out(s);
        server_serve(s, "PQRSTUVW"); /* and one page of its own is free again */
        weir_stats before = server_stats(s);
        char letters[7] = "ABCDEF";
        letters[n] = 0;
        struct server_request *request = server_ask(s, letters);
        server_expect_hit(s, letters, 0, n, 0);
        cr_assert(eq(u64, server_stats(s).evicted_device_pages, before.evicted_device_pages));
        cr_assert(eq(int, server_reserve_more(s, request, 12), -E2BIG));
        cr_assert(eq(u64, server_stats(s).evicted_device_pages, before.evicted_device_pages));
        cr_assert(zero(int, server_reserve(s, request)));
        weir_stats after = server_stats(s);
        uint64_t lacks = n + 1 > before.device_free ? n + 1 - before.device_free : 0;
        cr_assert(eq(u64, after.evicted_device_pages - before.evicted_device_pages, lacks));
        cr_assert(eq(u64, after.evicted_host_pages, before.evicted_host_pages));
        server_step(s, 0, request);
        server_run(s);
        server_leave(s, request);
        server_expect_right(s);
        probe_expect_nothing_left(s, 12, 24);
        server_close(s);
    }
}

/* ---- A small host tier ---------------------------------------------------- */

/* All host pages mirror pages that the device holds too. They are given up all the
 * same when there is something new to write: the host tier never stops. If it is to
 * drop mirrors first, it drops those whose device copies will live longest. */
static void fill_with_mirrors(bool drops_duplicates)
{
    struct server_params params = probe_params(7, "write_through", 40, 8);
    params.cache.host_drops_duplicates = drops_duplicates;
    struct server *s = server_open(params);
    for (char letter = 'A'; letter <= 'Z'; letter++)
        server_serve(s, (char[]){ letter, 0 });
    weir_stats stats = server_stats(s);
    cr_assert(zero(u64, stats.write_skipped_pages));
    cr_assert(eq(u64, stats.written_pages, 26));
    cr_assert(eq(u64, stats.evicted_host_pages, 18));
    for (char letter = 'A'; letter <= 'Z'; letter++)
        server_expect_hit(s, (char[]){ letter, 0 }, 1, 0, 0);
    server_push_out(s);
    char kept[27] = { 0 };
    for (char letter = 'A'; letter <= 'Z'; letter++)
        if (probe_holds(s, (char[]){ letter, 0 }))
            kept[strlen(kept)] = letter;
    cr_assert(zero(int, strcmp(kept, drops_duplicates ? "ABCDEFGZ" : "STUVWXYZ")), "%s", kept);
    for (const char *letter = kept; *letter; letter++)
        probe_expect(s, (char[]){ *letter, 0 }, 1);
    probe_expect_nothing_left(s, 40, 8);
    server_close(s);
}

Test(pages_leak, when_the_host_tier_is_all_mirrors)
{
    fill_with_mirrors(false);
    fill_with_mirrors(true);
}

/* Prompts that are longer than the host tier, and end in branches. What is left is a
 * beginning of each, never a hole, and the host tier goes on taking others. */
static void prompts_longer_than_the_host_tier(const char *write_back, uint32_t host)
{
    struct server *s = probe_open(write_back, 16, host);
    static const char *const prompts[] = { "ABCDEFGHI", "ABCDXYZ", "ABPQRSTUV", "KLMNOKLMNO" };
    size_t n = 0;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < 4; i++) {
            probe_expect(s, prompts[i], probe_holds(s, prompts[i]));
            server_settle(s);
            server_push_out(s);
            size_t held = probe_holds(s, prompts[i]);
            server_expect_hit(s, prompts[i], 0, held, 0);
            cr_assert(le(sz, held, host));
            probe_expect(s, prompts[i], held);
            n += held;
        }
    cr_assert(lt(sz, 0, n), "%s, %u: nothing was ever kept", write_back, host);
    probe_expect_nothing_left(s, 16, host);
    server_close(s);
}

Test(pages_leak, when_the_host_tier_is_shorter_than_a_prompt, .timeout = 100)
{
    for (uint32_t host = 1; host <= 10; host += host < 4 ? 1 : 2) {
        prompts_longer_than_the_host_tier("write_through", host);
        prompts_longer_than_the_host_tier("write_back", host);
    }
}

/* ---- Hours ---------------------------------------------------------------- */

/* Round after round of loads, write-backs and refusals, many times around every ring:
 * each round leaves the same behind. */
Test(pages_leak, when_it_has_run_for_long, .timeout = 100)
{
    struct server *s = probe_open("write_back", 12, 12);
    static const char *const prompts[] = { "ABCDE", "ABCX", "PQRSTU" };
    uint64_t bytes = 0;
    for (int round = 0; round < 150; round++) {
        for (size_t i = 0; i < 3; i++)
            probe_expect(s, prompts[i], probe_holds(s, prompts[i]));
        server_push_out(s);
        weir_stats stats = server_stats(s);
        cr_assert(stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0);
        cr_assert(eq(u64, stats.device_free + stats.device_offered, 12));
        bytes = round == 2 ? stats.index_bytes : bytes;
        cr_assert(round < 2 || stats.index_bytes == bytes, "round %d", round);
    }
    cr_assert(lt(u64, 1000, server_stats(s).loaded_pages));
    probe_expect_nothing_left(s, 12, 12);
    server_close(s);
}
