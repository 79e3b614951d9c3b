/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_BRAIN_RIG_H
#define WEIR_TESTS_BRAIN_RIG_H

/* A small scheduler over a cache: random prompts from a tree of pages, so that
 * they share prefixes, a step each or for two. A second cache is given the same
 * calls and reports; after each the digests are equal. What a page must hold is a
 * function of the tokens up to its end. */

#include "hands_rig.h"

#include <weir/cache.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

enum {
    BRAIN_TOKENS = 4, /* of a page */
    BRAIN_DEPTH = 6,  /* pages of the longest prompt */
    BRAIN_WORKS = 2 * (BRAIN_DEPTH + 1)
};

struct brain {
    weir_cache *caches[2];
    struct random random;
    uint64_t now;
    struct log_capture log;
    struct hand_work works[BRAIN_WORKS]; /* of the last step */
    size_t n_works;
    const void *order;
    size_t order_bytes;
};

static inline void brain_same(struct brain *b)
{
    cr_assert(eq(u64, weir_cache_digest(b->caches[0]), weir_cache_digest(b->caches[1])));
    const char *reason = "";
    cr_assert(zero(int, weir_cache_check(b->caches[0], &reason)), "%s", reason);
}

static inline void brain_open(struct brain *b, uint64_t seed, uint32_t n_ranks, uint32_t device,
                              uint32_t host)
{
    *b = (struct brain){ .random = { seed } };
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = BRAIN_TOKENS;
    params.device_pages = device;
    params.host_pages = host;
    params.n_ranks = n_ranks;
    params.max_seqs = 8;
    params.log = log_capture_log(&b->log);
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_cache_create(&b->caches[i], &params)), "%s", b->log.last);
}

static inline void brain_close(struct brain *b)
{
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_cache_destroy(&b->caches[i])), "%s", b->log.last);
}

static inline weir_stats brain_stats(const struct brain *b)
{
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(zero(int, weir_cache_get_stats(b->caches[0], &stats)));
    return stats;
}

static inline void brain_report(struct brain *b, uint32_t rank, const void *report, size_t bytes)
{
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_cache_report(b->caches[i], rank, report, bytes)), "%s",
                  b->log.last);
    brain_same(b);
}

static inline void brain_poll(struct brain *b)
{
    weir_cache_event events[16];
    size_t n[2];
    b->now++;
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_cache_poll(b->caches[i], b->now, events, 16, &n[i])));
    cr_assert(eq(sz, n[0], n[1]));
    brain_same(b);
}

/* ---- A step --------------------------------------------------------------- */

struct brain_prompt {
    int32_t tokens[BRAIN_DEPTH * BRAIN_TOKENS + 1];
    size_t n; /* whole pages and a token, for a forward pass needs an input */
    weir_seq seqs[2];
};

static inline uint64_t brain_content(const int32_t *tokens, size_t n)
{
    uint64_t content = 1;
    for (size_t i = 0; i < n; i++)
        content = (content + (uint64_t)tokens[i]) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return content;
}

static inline void brain_prompt(struct brain *b, struct brain_prompt *p)
{
    size_t pages = 1 + random_below(&b->random, BRAIN_DEPTH);
    p->n = 0;
    for (size_t i = 0; i < pages; i++) {
        int32_t branch = (int32_t)random_below(&b->random, 2);
        for (int32_t t = 0; t < BRAIN_TOKENS; t++)
            p->tokens[p->n++] = branch * 100 + t;
    }
    p->tokens[p->n++] = -1;
}

static inline int brain_reserve(struct brain *b, struct brain_prompt *p)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = p->n;
    int rcs[2];
    for (int i = 0; i < 2; i++)
        rcs[i] = weir_seq_reserve(p->seqs[i], &request, NULL);
    cr_assert(eq(int, rcs[0], rcs[1]));
    brain_same(b);
    return rcs[0];
}

/* Opens a sequence and reserves for it; false: there is no room now. */
static inline bool brain_start(struct brain *b, struct brain_prompt *p)
{
    weir_key key = { .tokens = p->tokens, .n_tokens = p->n };
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_seq_open(&p->seqs[i], b->caches[i], &key, NULL)), "%s",
                  b->log.last);
    int rc = brain_reserve(b, p);
    if (rc == 0)
        return true;
    cr_assert(rc == -EAGAIN || rc == -ENOSPC, "%d", rc);
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_seq_close(&p->seqs[i])));
    return false;
}

/* What the forward pass does with the sequence's pages. */
static inline void brain_works(struct brain *b, const struct brain_prompt *p)
{
    int32_t table[BRAIN_DEPTH + 1];
    size_t n;
    weir_seq_info info;
    cr_assert(zero(int, weir_seq_get_info(p->seqs[0], &info)));
    cr_assert(zero(int, weir_seq_pages(p->seqs[0], 0, BRAIN_TOKENS, table, BRAIN_DEPTH + 1, &n)));
    for (size_t i = 0; i < p->n / BRAIN_TOKENS; i++) {
        size_t end = (i + 1) * BRAIN_TOKENS;
        b->works[b->n_works++] =
            (struct hand_work){ table[i], end > info.n_hit, brain_content(p->tokens, end) };
    }
}

/* One step of up to two new sequences, which close at its end: b->order and b->works are
 * to be carried to every rank. False: max_steps are in flight. */
static inline bool brain_step(struct brain *b, uint32_t n_seqs)
{
    struct brain_prompt prompts[2];
    weir_step steps[2];
    uint32_t n = 0;
    for (int i = 0; i < 2; i++) {
        int rc = weir_step_begin(&steps[i], b->caches[i]);
        if (rc == -EAGAIN)
            return false;
        cr_assert(zero(int, rc));
    }
    b->n_works = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        brain_prompt(b, &prompts[n]);
        n += brain_start(b, &prompts[n]);
    }
    for (uint32_t i = 0; i < n; i++) {
        brain_works(b, &prompts[i]);
        weir_seq_info info;
        cr_assert(zero(int, weir_seq_get_info(prompts[i].seqs[0], &info)));
        for (int c = 0; c < 2; c++) {
            cr_assert(zero(int, weir_step_add(steps[c], prompts[i].seqs[c])));
            cr_assert(zero(
                int, weir_seq_commit(prompts[i].seqs[c], NULL, prompts[i].n - info.n_committed)));
        }
    }
    const void *orders[2];
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_step_end(&steps[i], &orders[i], &b->order_bytes)));
    cr_assert(zero(int, memcmp(orders[0], orders[1], b->order_bytes)));
    b->order = orders[0];
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < 2; c++)
            cr_assert(zero(int, weir_seq_close(&prompts[i].seqs[c])));
    brain_same(b);
    return true;
}

#endif
