/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CACHE_RIG_H
#define WEIR_TESTS_CACHE_RIG_H

/* A cache, what it logs, and the orders that it gave, for tests that make each
 * call by hand.
 *
 *   letters  "ABC" is a prompt of three pages; every token of a page tells its
 *            letter and its place in the page
 *   tail     tokens behind the letters, different in each prompt, so that a
 *            forward pass has an input and the letters can be hit
 *
 * Every call goes through `gives`, which checks the cache's invariants after it. */

#include "log_capture.h"

#include <weir/cache.h>
#include <weir/order.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RIG_PAGES 64u
#define RIG_ORDERS 128u

/* Only there under AddressSanitizer. Criterion alone does not fail on a leak. */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

static const uint32_t rig_page_tokens[] = { 1, 16, 64, 1024 };
/* Those that give up what was used or came first. */
static const char *const rig_evictions[] = { "lru", "slru", "lfu", "fifo", "priority", "cost" };
#define RIG_N_PAGE_TOKENS (sizeof rig_page_tokens / sizeof *rig_page_tokens)
#define RIG_N_EVICTIONS (sizeof rig_evictions / sizeof *rig_evictions)

struct rig_order {
    const void *bytes;
    size_t n;
    weir_order decoded;
};

struct rig {
    struct log_capture log;
    weir_cache *cache;
    uint32_t t; /* tokens of a page */
    uint32_t n_ranks;
    uint32_t device_pages;
    int32_t next_tail;
    uint64_t now;
    weir_step step;                      /* the open one */
    struct rig_order orders[RIG_ORDERS]; /* by step number */
    weir_cache_event events[16];         /* of the last poll */
    size_t n_events;
    int32_t *tokens; /* of the last key */
};

static inline void rig_check(const struct rig *r)
{
    const char *reason = "";
    cr_assert(weir_cache_check(r->cache, &reason) == 0, "%s", reason);
}

/* A call, what it must return, and the cache's invariants after it. */
#define gives(r, call, want)                                                                     \
    do {                                                                                         \
        int got_ = (call);                                                                       \
        cr_assert(got_ == (want), "%s: %s, not %s; last line: %s", #call, weir_error_name(got_), \
                  weir_error_name(want), (r)->log.last);                                         \
        rig_check(r);                                                                            \
    } while (0)

/* ---- Opening and closing ------------------------------------------------- */

static inline weir_cache_params rig_params(uint32_t page_tokens, uint32_t device, uint32_t host)
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = page_tokens;
    params.device_pages = device;
    params.host_pages = host;
    params.max_seqs = 32;
    params.offered = 0;
    return params;
}

static inline void rig_open(struct rig *r, weir_cache_params params)
{
    *r = (struct rig){ .t = params.page_tokens,
                       .n_ranks = params.n_ranks,
                       .device_pages = params.device_pages };
    params.log = log_capture_log(&r->log);
    r->tokens = calloc((size_t)RIG_PAGES * r->t + 2048, sizeof *r->tokens);
    cr_assert(ne(ptr, r->tokens, NULL));
    gives(r, weir_cache_create(&r->cache, &params), 0);
}

static inline void rig_close(struct rig *r)
{
    cr_assert(eq(int, weir_cache_destroy(&r->cache), 0), "%s", r->log.last);
    cr_assert(zero(ptr, r->cache));
    free(r->tokens);
    if (__lsan_do_recoverable_leak_check)
        cr_assert(zero(int, __lsan_do_recoverable_leak_check()));
}

/* ---- Looking ------------------------------------------------------------- */

static inline weir_stats rig_stats(const struct rig *r)
{
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(zero(int, weir_cache_get_stats(r->cache, &stats)));
    return stats;
}

static inline weir_available rig_available(const struct rig *r)
{
    weir_available available;
    cr_assert(zero(int, weir_cache_available(r->cache, &available)));
    return available;
}

static inline weir_key rig_key(struct rig *r, const char *letters, size_t tail)
{
    size_t n = 0;
    for (; *letters; letters++)
        for (uint32_t i = 0; i < r->t; i++)
            r->tokens[n++] = *letters * 4096 + (int32_t)i;
    r->next_tail += tail > 0;
    for (size_t i = 0; i < tail; i++)
        r->tokens[n++] = -r->next_tail * 4096 - (int32_t)i;
    return (weir_key){ .tokens = r->tokens, .n_tokens = n };
}

/* What the index holds of the letters, in pages. */
static inline weir_hit rig_peek(struct rig *r, const char *letters)
{
    weir_key key = rig_key(r, letters, 0);
    weir_hit hit;
    uint64_t digest = weir_cache_digest(r->cache);
    gives(r, weir_cache_peek(r->cache, &key, &hit), 0);
    cr_assert(eq(u64, weir_cache_digest(r->cache), digest), "a peek changes the cache");
    cr_assert(eq(sz, hit.n_device + hit.n_host + hit.n_loading, hit.n_tokens));
    hit.n_tokens /= r->t;
    hit.n_device /= r->t;
    hit.n_host /= r->t;
    hit.n_loading /= r->t;
    hit.n_worth /= r->t;
    return hit;
}

static inline void rig_expect_hit(struct rig *r, const char *letters, size_t device, size_t host,
                                  size_t loading)
{
    weir_hit hit = rig_peek(r, letters);
    cr_assert(hit.n_device == device && hit.n_host == host && hit.n_loading == loading,
              "%s: %zu device, %zu host, %zu loading; not %zu, %zu, %zu", letters, hit.n_device,
              hit.n_host, hit.n_loading, device, host, loading);
}

static inline weir_seq_info rig_info(struct rig *r, weir_seq seq)
{
    weir_seq_info info;
    gives(r, weir_seq_get_info(seq, &info), 0);
    return info;
}

/* Returns the number of pages. */
static inline size_t rig_table(struct rig *r, weir_seq seq, int32_t table[RIG_PAGES])
{
    size_t n;
    gives(r, weir_seq_pages(seq, 0, r->t, table, RIG_PAGES, &n), 0);
    return n;
}

/* ---- Sequences ----------------------------------------------------------- */

static inline weir_seq rig_seq(struct rig *r, const char *letters, size_t tail)
{
    weir_key key = rig_key(r, letters, tail);
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, NULL), 0);
    return seq;
}

/* Reserves for so many tokens; `hit` may be NULL. */
static inline int rig_reserve(struct rig *r, weir_seq seq, size_t tokens, weir_hit *hit)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = tokens;
    weir_reserved reserved = { 0 };
    int rc = weir_seq_reserve(seq, &request, &reserved);
    if (rc == 0 && hit)
        *hit = reserved.hit;
    rig_check(r);
    return rc;
}

/* Opens and reserves for the whole prompt. */
static inline weir_seq rig_start(struct rig *r, const char *letters, size_t tail)
{
    weir_seq seq = rig_seq(r, letters, tail);
    gives(r, rig_reserve(r, seq, rig_info(r, seq).n_tokens, NULL), 0);
    return seq;
}

static inline void rig_done(struct rig *r, weir_seq *seq)
{
    weir_seq before = *seq;
    gives(r, weir_seq_close(seq), 0);
    cr_assert(seq->cache == NULL && seq->id == 0);
    gives(r, weir_seq_close(&before), -ESTALE);
}

/* Commits the next n tokens of the key. */
static inline void rig_commit_known(struct rig *r, weir_seq seq, size_t n)
{
    gives(r, weir_seq_commit(seq, NULL, n), 0);
}

/* Commits n tokens that no prompt of letters has: first, first + 1, … */
static inline void rig_commit_new(struct rig *r, weir_seq seq, int32_t first, size_t n)
{
    int32_t tokens[64];
    cr_assert(le(sz, n, 64));
    for (size_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    gives(r, weir_seq_commit(seq, tokens, n), 0);
}

/* Commits the key's tokens up to the end of so many pages. */
static inline void rig_commit(struct rig *r, weir_seq seq, size_t pages)
{
    size_t n = rig_info(r, seq).n_committed;
    rig_commit_known(r, seq, pages * r->t - n);
}

static inline weir_seq rig_fork(struct rig *r, weir_seq seq, size_t len)
{
    weir_seq kid;
    gives(r, weir_seq_fork(&kid, 1, seq, len, NULL), 0);
    return kid;
}

/* ---- Steps and reports --------------------------------------------------- */

static inline void rig_begin(struct rig *r)
{
    gives(r, weir_step_begin(&r->step, r->cache), 0);
}

static inline void rig_add(struct rig *r, weir_seq seq)
{
    gives(r, weir_step_add(r->step, seq), 0);
}

/* Ends the open step and returns its order. */
static inline const weir_order *rig_end(struct rig *r)
{
    struct rig_order order;
    gives(r, weir_step_end(&r->step, &order.bytes, &order.n), 0);
    cr_assert(le(sz, order.n, weir_cache_max_order_bytes(r->cache)));
    cr_assert(r->step.cache == NULL && r->step.id == 0);
    cr_assert(zero(int, weir_order_decode(&order.decoded, order.bytes, order.n, NULL)));
    struct rig_order *kept = &r->orders[order.decoded.step % RIG_ORDERS];
    *kept = order;
    return &kept->decoded;
}

/* A step of one sequence that commits the letters up to so many pages, or nothing. */
static inline const weir_order *rig_run(struct rig *r, weir_seq seq, size_t pages)
{
    rig_begin(r);
    rig_add(r, seq);
    if (pages * r->t > rig_info(r, seq).n_committed)
        rig_commit(r, seq, pages);
    return rig_end(r);
}

/* Whether an order's list of steps has this one. */
static inline bool rig_names(const uint64_t *steps, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

/* The order's i-th copy, behind the load of that step, or of none. */
static inline void rig_expect_copy(const weir_order *order, uint32_t i, int32_t from, int32_t to,
                                   uint64_t load)
{
    cr_assert(lt(u32, i, order->n_copies));
    cr_assert(eq(i32, order->copies[i].from.id, from));
    cr_assert(eq(i32, order->copies[i].to.id, to));
    cr_assert(eq(u64, order->copies[i].load, load));
}

static inline int rig_try_report(struct rig *r, uint32_t rank, weir_report_kind kind,
                                 uint64_t number, int rc)
{
    weir_report_item item = { .number = number, .rc = rc, .kind = kind };
    uint64_t report[16];
    size_t bytes;
    cr_assert(zero(int, weir_report_encode(&item, 1, report, sizeof report, &bytes, NULL)));
    return weir_cache_report(r->cache, rank, report, bytes);
}

/* Of all ranks. */
static inline void rig_report(struct rig *r, weir_report_kind kind, uint64_t number, int rc)
{
    for (uint32_t rank = 0; rank < r->n_ranks; rank++)
        gives(r, rig_try_report(r, rank, kind, number, rc), 0);
}

/* All ranks have done all of a step's order. */
static inline void rig_ack(struct rig *r, uint64_t step)
{
    const struct rig_order *order = &r->orders[step % RIG_ORDERS];
    uint64_t report[16];
    size_t bytes;
    cr_assert(zero(
        int, weir_order_acknowledge(order->bytes, order->n, report, sizeof report, &bytes, NULL)));
    for (uint32_t rank = 0; rank < r->n_ranks; rank++)
        gives(r, weir_cache_report(r->cache, rank, report, bytes), 0);
}

static inline void rig_poll(struct rig *r)
{
    gives(r, weir_cache_poll(r->cache, r->now++, r->events, 16, &r->n_events), 0);
}

/* The number of events of a kind in the last poll, of any sequence if `seq` is
 * NULL. */
static inline size_t rig_events(const struct rig *r, weir_event_kind kind, const weir_seq *seq)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_events; i++)
        n += r->events[i].kind == kind && (!seq || r->events[i].seq.id == seq->id);
    return n;
}

/* Empty steps until no write-back waits. */
static inline void rig_settle(struct rig *r)
{
    for (int i = 0; i < 8; i++) {
        rig_begin(r);
        rig_ack(r, rig_end(r)->step);
    }
    rig_poll(r);
}

/* A step of one sequence that commits the next n tokens of its key, and is reported. */
static inline void rig_step(struct rig *r, weir_seq seq, size_t n)
{
    rig_begin(r);
    rig_add(r, seq);
    rig_commit_known(r, seq, n);
    rig_ack(r, rig_end(r)->step);
}

/* Computes a prompt of letters and a tail, and keeps the sequence open; its step is
 * reported. */
static inline weir_seq rig_computed(struct rig *r, const char *letters, size_t tail)
{
    weir_seq seq = rig_start(r, letters, tail);
    weir_seq_info info = rig_info(r, seq);
    rig_step(r, seq, info.n_tokens - info.n_committed);
    return seq;
}

/* Computes a prompt from end to end: the index holds its letters then, and the
 * write-backs that its commit asks for are done. */
static inline void rig_compute(struct rig *r, const char *letters)
{
    weir_seq seq = rig_start(r, letters, 1);
    rig_ack(r, rig_run(r, seq, strlen(letters))->step);
    rig_done(r, &seq);
}

/* Takes the room of all device copies that nobody holds. */
static inline void rig_push_out(struct rig *r)
{
    weir_seq seq = rig_seq(r, "", 1);
    size_t held = 0;
    for (size_t n = r->device_pages; n > 0; n--) {
        int rc = rig_reserve(r, seq, n * r->t, NULL);
        for (int i = 0; rc == -EAGAIN && i < 8; i++) {
            rig_settle(r);
            rc = rig_reserve(r, seq, n * r->t, NULL);
        }
        if (rc == 0)
            break;
        cr_assert(eq(int, rc, -ENOSPC));
        held++;
    }
    cr_assert(lt(sz, held, r->device_pages));
    rig_done(r, &seq);
}

#endif
