/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/lifecycle.h>
#include <weir/pin.h>

/* What pins keep, under pressure and when it goes wrong. */

static struct rig rig;

static weir_pin pin_of(struct rig *r, const char *letters)
{
    weir_key key = rig_key(r, letters, 0);
    weir_pin pin;
    gives(r, weir_cache_pin(&pin, r->cache, &key, NULL), 0);
    return pin;
}

static int try_pin(struct rig *r, const char *letters, size_t n_tokens)
{
    weir_key key = rig_key(r, letters, 0);
    weir_pin_params params;
    weir_pin_params_init(&params);
    params.n_tokens = n_tokens;
    weir_pin pin = { (weir_cache *)(void *)r, 77 };
    uint64_t digest = weir_cache_digest(r->cache);
    int rc = weir_cache_pin(&pin, r->cache, &key, &params);
    rig_check(r);
    if (rc) {
        cr_assert(pin.id == 77, "an out-parameter is written on failure");
        cr_assert(eq(u64, weir_cache_digest(r->cache), digest));
        return rc;
    }
    gives(r, weir_cache_unpin(&pin), 0);
    return 0;
}

static void expect_kept(struct rig *r, weir_pin pin, size_t pages, size_t on_device)
{
    weir_pin_info info;
    gives(r, weir_cache_get_pin(pin, &info), 0);
    cr_assert(eq(sz, info.n_tokens, pages * r->t));
    cr_assert(eq(sz, info.n_device, on_device * r->t));
}

static void expect_pinned(struct rig *r, uint64_t device, uint64_t host)
{
    weir_stats stats = rig_stats(r);
    cr_assert(stats.pinned_device_pages == device && stats.pinned_host_pages == host,
              "%d device and %d host pages pinned", (int)stats.pinned_device_pages,
              (int)stats.pinned_host_pages);
}

/* All of both tiers once over. */
static void flood(struct rig *r)
{
    static const char *const floods[] = { "abc", "def", "ghi", "jkl", "mno", "pqr", "stu", "vwx" };
    for (size_t i = 0; i < sizeof floods / sizeof *floods; i++) {
        rig_compute(r, floods[i]);
        rig_settle(r);
    }
}

static weir_cache_params pin_params(uint32_t device, uint32_t host)
{
    weir_cache_params params = rig_params(4, device, host);
    params.max_pinned = 0.5;
    return params;
}

Test(cache_pin, a_system_prompt_stays_on_the_device)
{
    for (size_t i = 0; i < RIG_N_EVICTIONS; i++) {
        for (uint32_t host = 0; host <= 16; host += 16) {
            struct rig *r = &rig;
            weir_cache_params params = pin_params(8, host);
            params.eviction = rig_evictions[i];
            params.offered = 0.25;
            rig_open(r, params);
            rig_compute(r, "ABC");
            weir_pin pin = pin_of(r, "ABCD");
            flood(r);
            rig_push_out(r);
            rig_expect_hit(r, "ABC", 3, 0, 0);
            expect_kept(r, pin, 3, 3);
            gives(r, weir_cache_unpin(&pin), 0);
            rig_push_out(r);
            cr_assert(zero(sz, rig_peek(r, "ABC").n_device), "%s", rig_evictions[i]);
            rig_close(r);
        }
    }
}

Test(cache_pin, a_host_copy_stays_on_the_host)
{
    for (int drops = 0; drops < 2; drops++) {
        struct rig *r = &rig;
        weir_cache_params params = pin_params(8, 8);
        params.host_drops_duplicates = drops;
        rig_open(r, params);
        rig_compute(r, "ABC");
        rig_settle(r);
        rig_push_out(r);
        rig_expect_hit(r, "ABC", 0, 3, 0);
        weir_pin pin = pin_of(r, "ABC");
        expect_kept(r, pin, 3, 0);
        flood(r);
        rig_expect_hit(r, "ABC", 0, 3, 0);
        /* a request brings it to the device, which may give it up again */
        rig_compute(r, "ABC");
        rig_expect_hit(r, "ABC", 3, 0, 0);
        flood(r);
        rig_push_out(r);
        rig_expect_hit(r, "ABC", 0, 3, 0);
        gives(r, weir_cache_unpin(&pin), 0);
        flood(r);
        rig_expect_hit(r, "ABC", 0, 0, 0);
        rig_close(r);
    }
}

/* The last one to let go of a page frees it, and a page counts once. */
Test(cache_pin, pins_share_pages)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(16, 16));
    rig_compute(r, "ABCD");
    rig_settle(r);
    weir_pin first = pin_of(r, "AB");
    weir_pin second = pin_of(r, "ABCD");
    weir_pin third = pin_of(r, "AB");
    expect_pinned(r, 4, 0);
    cr_assert(eq(u64, rig_stats(r).pins, 3));
    gives(r, weir_cache_unpin(&second), 0);
    expect_pinned(r, 2, 0);
    gives(r, weir_cache_unpin(&first), 0);
    rig_push_out(r);
    rig_expect_hit(r, "ABCD", 2, 2, 0);
    gives(r, weir_cache_unpin(&third), 0);
    expect_pinned(r, 0, 0);
    rig_push_out(r);
    rig_expect_hit(r, "ABCD", 0, 4, 0);
    rig_close(r);
}

/* A later pin finds on the device what an earlier one keeps on the host: then it
 * is kept there, for both, until the last of them is gone. */
Test(cache_pin, a_second_pin_takes_it_to_the_device)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 8));
    rig_compute(r, "ABC");
    rig_settle(r);
    rig_push_out(r);
    weir_pin host = pin_of(r, "ABC");
    rig_compute(r, "AB");
    rig_expect_hit(r, "ABC", 2, 1, 0);
    weir_pin both = pin_of(r, "ABC");
    expect_pinned(r, 2, 1);
    expect_kept(r, host, 3, 2);
    gives(r, weir_cache_unpin(&both), 0);
    expect_pinned(r, 2, 1);
    flood(r);
    rig_push_out(r);
    rig_expect_hit(r, "ABC", 2, 1, 0);
    gives(r, weir_cache_unpin(&host), 0);
    expect_pinned(r, 0, 0);
    rig_close(r);
}

Test(cache_pin, a_page_on_its_way_is_kept_on_the_host)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 8));
    rig_compute(r, "AB");
    rig_settle(r);
    rig_push_out(r);
    weir_seq seq = rig_start(r, "AB", 1);
    rig_expect_hit(r, "AB", 0, 0, 2);
    weir_pin pin = pin_of(r, "AB");
    expect_kept(r, pin, 2, 0);
    rig_done(r, &seq); /* the load is called off */
    rig_expect_hit(r, "AB", 0, 2, 0);
    flood(r);
    rig_expect_hit(r, "AB", 0, 2, 0);
    gives(r, weir_cache_unpin(&pin), 0);
    rig_close(r);
}

Test(cache_pin, splits_and_branches_leave_it_alone)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(16, 0));
    rig_compute(r, "ABCDE");
    weir_pin pin = pin_of(r, "ABCDE");
    rig_compute(r, "ABXYZ");
    rig_compute(r, "AQRST");
    rig_push_out(r);
    rig_expect_hit(r, "ABCDE", 5, 0, 0);
    rig_expect_hit(r, "ABX", 2, 0, 0);
    expect_kept(r, pin, 5, 5);
    gives(r, weir_cache_unpin(&pin), 0);
    rig_close(r);
}

Test(cache_pin, what_a_failed_step_computed_is_not_held)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 0));
    rig_compute(r, "A");
    weir_seq seq = rig_start(r, "ABC", 1);
    uint64_t step = rig_run(r, seq, 3)->step;
    weir_pin pin = pin_of(r, "ABC"), other = pin_of(r, "AB");
    expect_kept(r, pin, 3, 3);
    rig_report(r, WEIR_REPORT_STEP, step, -EIO);
    rig_done(r, &seq);
    expect_kept(r, pin, 1, 1);
    expect_kept(r, other, 1, 1);
    expect_pinned(r, 1, 0);
    rig_push_out(r);
    rig_expect_hit(r, "ABC", 1, 0, 0);
    gives(r, weir_cache_unpin(&pin), 0);
    gives(r, weir_cache_unpin(&other), 0);
    cr_assert(eq(sz, rig_available(r).free + rig_available(r).offered, 7));
    rig_close(r);
}

Test(cache_pin, a_pin_may_lose_everything_and_is_still_a_pin)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 8));
    rig_compute(r, "AB");
    rig_settle(r);
    rig_push_out(r);
    weir_pin pin = pin_of(r, "AB");
    weir_seq seq = rig_start(r, "AB", 1);
    uint64_t step = rig_run(r, seq, 2)->step;
    rig_report(r, WEIR_REPORT_LOAD, step, -EIO);
    rig_report(r, WEIR_REPORT_STEP, step, 0);
    rig_done(r, &seq);
    expect_kept(r, pin, 0, 0);
    expect_pinned(r, 0, 0);
    rig_compute(r, "AB"); /* a new page of the same tokens is none of its own */
    expect_kept(r, pin, 0, 0);
    weir_cache *cache = r->cache;
    gives(r, weir_cache_destroy(&cache), -EBUSY);
    gives(r, weir_cache_unpin(&pin), 0);
    rig_expect_hit(r, "AB", 2, 0, 0);
    rig_settle(r);
    rig_close(r);
}

Test(cache_pin, shares_of_the_tiers_are_the_limit)
{
    struct rig *r = &rig;
    weir_cache_params params = pin_params(8, 20);
    params.max_pinned = 0.4; /* 3 and 8 pages */
    rig_open(r, params);
    rig_compute(r, "ABCDEF");
    rig_settle(r);
    cr_assert(eq(int, try_pin(r, "ABCD", WEIR_ALL_TOKENS), -ENOSPC));
    cr_assert(eq(int, try_pin(r, "ABCD", 4 * (size_t)r->t - 1), 0), "rounded down to three pages");
    cr_assert(eq(int, try_pin(r, "ABCD", r->t - 1), -ENOENT));
    cr_assert(eq(int, try_pin(r, "ABCD", 0), -ENOENT));
    cr_assert(eq(int, try_pin(r, "XBCD", WEIR_ALL_TOKENS), -ENOENT));
    weir_pin pin = pin_of(r, "ABC");
    cr_assert(eq(int, try_pin(r, "ABC", WEIR_ALL_TOKENS), 0), "no page more");
    cr_assert(eq(int, try_pin(r, "ABCD", WEIR_ALL_TOKENS), -ENOSPC));
    gives(r, weir_cache_unpin(&pin), 0);
    rig_push_out(r);
    cr_assert(eq(int, try_pin(r, "ABCDEF", WEIR_ALL_TOKENS), 0), "on the host there is room");
    weir_pin host = pin_of(r, "ABCDEF");
    rig_compute(r, "GHI");
    rig_settle(r);
    rig_push_out(r);
    rig_expect_hit(r, "GHI", 0, 3, 0);
    cr_assert(eq(int, try_pin(r, "GHI", WEIR_ALL_TOKENS), -ENOSPC));
    cr_assert(eq(int, try_pin(r, "GH", WEIR_ALL_TOKENS), 0));
    gives(r, weir_cache_unpin(&host), 0);
    rig_close(r);
}

Test(cache_pin, none_may_be_pinned_with_a_share_of_0)
{
    struct rig *r = &rig;
    weir_cache_params params = pin_params(8, 8);
    params.max_pinned = 0;
    rig_open(r, params);
    rig_compute(r, "A");
    cr_assert(eq(int, try_pin(r, "A", WEIR_ALL_TOKENS), -ENOSPC));
    rig_settle(r);
    rig_close(r);
}

/* Held by a pin is held: a reserve that needs the page is told that only an
 * unpin would help, at once and without waiting for anything. */
Test(cache_pin, a_reserve_does_not_wait_for_a_pin)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 0));
    rig_compute(r, "ABC");
    weir_pin pin = pin_of(r, "ABC");
    weir_seq seq = rig_seq(r, "UVWXYZ", 0);
    gives(r, rig_reserve(r, seq, 6 * r->t, NULL), -ENOSPC);
    gives(r, rig_reserve(r, seq, 5 * r->t, NULL), 0);
    gives(r, rig_reserve(r, seq, 6 * r->t, NULL), -ENOSPC);
    gives(r, weir_cache_unpin(&pin), 0);
    gives(r, rig_reserve(r, seq, 6 * r->t, NULL), 0);
    rig_done(r, &seq);
    rig_close(r);
}

/* Four dirty pages, a sequence in line for three of them: one more may be held. */
Test(cache_pin, who_stands_in_line_goes_first)
{
    struct rig *r = &rig;
    weir_cache_params params = pin_params(4, 16);
    params.write_back = "write_back";
    rig_open(r, params);
    weir_seq seq = rig_start(r, "ABCD", 0);
    rig_ack(r, rig_run(r, seq, 4)->step);
    rig_done(r, &seq);
    seq = rig_seq(r, "XYZ", 0);
    gives(r, rig_reserve(r, seq, 3 * r->t, NULL), -EAGAIN);
    cr_assert(eq(int, try_pin(r, "AB", WEIR_ALL_TOKENS), -EAGAIN));
    weir_pin pin = pin_of(r, "A");
    cr_assert(eq(int, try_pin(r, "AB", WEIR_ALL_TOKENS), -EAGAIN));
    rig_settle(r);
    cr_assert(eq(sz, rig_events(r, WEIR_EVENT_RESERVE_READY, &seq), 1));
    gives(r, rig_reserve(r, seq, 3 * r->t, NULL), 0);
    rig_done(r, &seq);
    gives(r, weir_cache_unpin(&pin), 0);
    rig_close(r);
}

Test(cache_pin, the_oldest_is_told)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 0));
    rig_compute(r, "AB");
    cr_assert(zero(u64, rig_stats(r).oldest_pin_ns));
    weir_pin pins[3];
    for (uint64_t i = 0; i < 3; i++) {
        r->now = 1000 * (i + 1);
        rig_poll(r);
        pins[i] = pin_of(r, "AB");
        weir_pin_info info;
        gives(r, weir_cache_get_pin(pins[i], &info), 0);
        cr_assert(eq(u64, info.since_ns, 1000 * (i + 1)));
        cr_assert(zero(ptr, info.user));
    }
    r->now = 5000;
    rig_poll(r);
    cr_assert(eq(u64, rig_stats(r).oldest_pin_ns, 4000));
    gives(r, weir_cache_unpin(&pins[1]), 0);
    cr_assert(eq(u64, rig_stats(r).oldest_pin_ns, 4000));
    gives(r, weir_cache_unpin(&pins[0]), 0);
    cr_assert(eq(u64, rig_stats(r).oldest_pin_ns, 2000));
    gives(r, weir_cache_unpin(&pins[2]), 0);
    cr_assert(zero(u64, rig_stats(r).oldest_pin_ns));
    rig_close(r);
}

Test(cache_pin, handles)
{
    struct rig *r = &rig;
    weir_cache_params params = pin_params(8, 0);
    params.max_pins = 2;
    rig_open(r, params);
    rig_compute(r, "AB");
    weir_pin pin = pin_of(r, "AB"), copy = pin;
    weir_pin second = pin_of(r, "A");
    cr_assert(ne(u64, pin.id, second.id));
    cr_assert(eq(int, try_pin(r, "A", WEIR_ALL_TOKENS), -ENOSPC), "max_pins");
    gives(r, weir_cache_unpin(&pin), 0);
    cr_assert(pin.cache == NULL && pin.id == 0);
    gives(r, weir_cache_unpin(&pin), 0);
    gives(r, weir_cache_unpin(&copy), -ESTALE);
    weir_pin third = pin_of(r, "A"); /* in the same slot */
    gives(r, weir_cache_unpin(&copy), -ESTALE);
    weir_pin_info info = { .n_tokens = 77 };
    gives(r, weir_cache_get_pin(copy, &info), -ESTALE);
    gives(r, weir_cache_get_pin((weir_pin){ 0 }, &info), -EINVAL);
    gives(r, weir_cache_get_pin((weir_pin){ r->cache, 3 }, &info), -EINVAL);
    gives(r, weir_cache_get_pin((weir_pin){ r->cache, 0 }, &info), -EINVAL);
    cr_assert(eq(sz, info.n_tokens, 77));
    gives(r, weir_cache_get_pin(third, NULL), -EINVAL);
    gives(r, weir_cache_unpin(NULL), -EINVAL);
    gives(r, weir_cache_unpin(&second), 0);
    gives(r, weir_cache_unpin(&third), 0);
    rig_close(r);
}

/* Prompts that part at an image: each is pinned with its own. */
Test(cache_pin, what_is_kept_ends_where_an_image_is_another)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 0));
    weir_span image = { .first = 2 * r->t + 1, .n_tokens = 2, .digest_bytes = 16 };
    weir_key key = rig_key(r, "ABCD", 0);
    key.spans = &image;
    key.n_spans = 1;
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, NULL), 0);
    gives(r, rig_reserve(r, seq, key.n_tokens, NULL), 0);
    rig_ack(r, rig_run(r, seq, 4)->step);
    rig_done(r, &seq);
    weir_pin pin, other, text;
    gives(r, weir_cache_pin(&pin, r->cache, &key, NULL), 0);
    expect_kept(r, pin, 4, 4);
    image.digest[15] = 1;
    gives(r, weir_cache_pin(&other, r->cache, &key, NULL), 0);
    expect_kept(r, other, 2, 2);
    text = pin_of(r, "ABCD");
    expect_kept(r, text, 2, 2);
    expect_pinned(r, 4, 0);
    image.digest_bytes = WEIR_MAX_DIGEST_BYTES + 1;
    weir_pin none;
    gives(r, weir_cache_pin(&none, r->cache, &key, NULL), -EINVAL);
    gives(r, weir_cache_unpin(&pin), 0);
    expect_pinned(r, 2, 0);
    gives(r, weir_cache_unpin(&other), 0);
    gives(r, weir_cache_unpin(&text), 0);
    rig_close(r);
}

/* What the server forgets leaves the pin, which is still to be unpinned; what is
 * computed again is not part of it. */
Test(cache_pin, what_is_forgotten_is_not_kept)
{
    for (int reset = 0; reset < 2; reset++) {
        struct rig *r = &rig;
        rig_open(r, pin_params(8, 8));
        rig_compute(r, "AB");
        weir_pin pin = pin_of(r, "AB");
        gives(r, reset ? weir_cache_reset(r->cache) : weir_cache_forget_all(r->cache), 0);
        rig_expect_hit(r, "AB", 0, 0, 0);
        expect_kept(r, pin, 0, 0);
        expect_pinned(r, 0, 0);
        rig_compute(r, "AB");
        expect_kept(r, pin, 0, 0);
        cr_assert(eq(u64, rig_stats(r).pins, 1));
        gives(r, weir_cache_unpin(&pin), 0);
        rig_settle(r);
        rig_close(r);
    }
}

Test(cache_pin, arguments)
{
    struct rig *r = &rig;
    rig_open(r, pin_params(8, 0));
    rig_compute(r, "A");
    weir_key key = rig_key(r, "A", 0), no_tokens = { .n_tokens = 4 };
    weir_pin pin;
    weir_pin_params wrong;
    weir_pin_params_init(&wrong);
    wrong.struct_size--;
    weir_pin_params_init(NULL);
    weir_field field = { .tag = 1, .bytes = 4 }; /* no data */
    weir_key bad = { .tokens = key.tokens, .n_tokens = 4, .fields = &field, .n_fields = 1 };
    uint32_t lines = r->log.lines;
    gives(r, weir_cache_pin(&pin, NULL, &key, NULL), -EINVAL);
    cr_assert(eq(u32, r->log.lines, lines));
    gives(r, weir_cache_pin(NULL, r->cache, &key, NULL), -EINVAL);
    gives(r, weir_cache_pin(&pin, r->cache, NULL, NULL), -EINVAL);
    gives(r, weir_cache_pin(&pin, r->cache, &no_tokens, NULL), -EINVAL);
    gives(r, weir_cache_pin(&pin, r->cache, &key, &wrong), -EINVAL);
    gives(r, weir_cache_pin(&pin, r->cache, &bad, NULL), -EINVAL);
    cr_assert(eq(u32, r->log.lines, lines + 5), "a line each");
    weir_key elsewhere = { .tokens = key.tokens, .n_tokens = 4, .fields = &field, .n_fields = 1 };
    field = (weir_field){ .tag = 1, .bytes = 1, .data = "x" };
    gives(r, weir_cache_pin(&pin, r->cache, &elsewhere, NULL), -ENOENT);
    rig_close(r);
}
