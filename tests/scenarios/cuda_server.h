/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CUDA_SERVER_H
#define WEIR_TESTS_CUDA_SERVER_H

/* A server in small on the fake driver: a cache, a rank, one request at a time.
 *
 *   server_serve(s, "ABC")   open ─ reserve ─ step ─ rank: begin, waits, end
 *                                                      │ host code in place of
 *                                                      │ kernels compares what was
 *                                                      │ hit and fills the rest
 *                            reports ─ poll ─ close ◄──┘
 *
 * Driver calls may fail at any place: what may be tried again is, a load that
 * failed is known by its event, and every byte that the cache still promises is
 * compared. The cache's invariants are checked after each call. A lost device ends
 * the serving. */

#include "cuda_rig.h"

#include <weir/weir.h>

enum {
    SERVER_TOKENS = 4, /* of a page */
    SERVER_LAYERS = 3,
    SERVER_LETTERS = 16
};

struct server {
    struct cuda_rig rig;
    weir_cache *cache;
    weir_rank *rank;
    uint64_t now;
    int32_t next_tail;
    bool lost;
    bool unchecked;           /* without looking at the invariants, which takes memory */
    unsigned n_load_failures; /* events */
};

static const uint32_t server_some_layers[] = { 0, 2 };
static const weir_tensor server_tensors[] = {
    { .name = "kv", .page_bytes = SERVER_TOKENS * 24, .row_bytes = 24 },
    { .name = "scales",
      .page_bytes = SERVER_TOKENS * 3,
      .row_bytes = 3,
      .layers = server_some_layers,
      .n_layers = 2 },
};
static const weir_shape server_shape = { SERVER_TOKENS, SERVER_LAYERS, 2, server_tensors };

/* A call of the cache's, what it must return, and the invariants after it. */
#define SERVER_GIVES(s, call, want) server_expect(s, #call, call, want)

static inline void server_expect(struct server *s, const char *call, int got, int want)
{
    const char *reason = "";
    cr_assert(got == want, "%s: %s, not %s; last line: %s", call, weir_error_name(got),
              weir_error_name(want), s->rig.capture.last);
    if (!s->unchecked)
        cr_assert(weir_cache_check(s->cache, &reason) == 0, "%s: %s", call, reason);
}

/* ---- Opening and closing --------------------------------------------------- */

static inline weir_rank_params server_rank_params(uint32_t device_pages, uint32_t host_pages,
                                                  weir_host_layout layout)
{
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &server_shape;
    params.device_pages = device_pages;
    params.host_pages = host_pages;
    params.host_layout = layout;
    params.segment_pages = 4;
    params.max_steps = 4;
    params.max_write_backs = 4;
    params.touch_threads = 1;
    return params;
}

static inline weir_cache_params server_cache_params(uint32_t device_pages, uint32_t host_pages)
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = SERVER_TOKENS;
    params.device_pages = device_pages;
    params.host_pages = host_pages;
    params.max_steps = 4;
    params.max_write_backs = 4;
    params.max_seqs = 4;
    params.offered = 0;
    return params;
}

static inline void server_open_with(struct server *s, weir_cache_params cache,
                                    weir_host_layout layout)
{
    *s = (struct server){ 0 };
    rig_open_device(&s->rig);
    cache.log = log_capture_log(&s->rig.capture);
    cr_assert(zero(int, weir_cache_create(&s->cache, &cache)), "%s", s->rig.capture.last);
    weir_rank_params params = server_rank_params(cache.device_pages, cache.host_pages, layout);
    params.log = cache.log;
    cr_assert(zero(int, weir_rank_open(&s->rank, s->rig.device, &params)), "%s",
              s->rig.capture.last);
}

static inline void server_open(struct server *s, uint32_t device_pages, uint32_t host_pages,
                               weir_host_layout layout)
{
    server_open_with(s, server_cache_params(device_pages, host_pages), layout);
}

static inline void server_close(struct server *s)
{
    cr_assert(zero(int, weir_cache_destroy(&s->cache)), "%s", s->rig.capture.last);
    weir_rank_close(&s->rank);
    s->rig.ops->stream_destroy(s->rig.device, s->rig.stream);
    cr_assert(zero(int, weir_device_close(&s->rig.device)));
    rig_check_driver(s->rig.fake);
    s->rig.fake->dropped = false;
}

/* ---- The GPU's side --------------------------------------------------------- */

/* Whether the call is to be made again. A device that is lost answers -EIO for
 * ever. */
static inline bool server_again(struct server *s, int rc)
{
    if (rc == 0)
        return false;
    s->lost = s->rig.ops->status(s->rig.device) != 0;
    s->rig.fake->dropped = s->lost;
    return !s->lost;
}

#define SERVER_TRIES 4

/* Runs all that is enqueued. */
static inline void server_synchronize(struct server *s)
{
    for (int i = 0; i < SERVER_TRIES; i++)
        if (!server_again(s, s->rig.ops->stream_synchronize(s->rig.device, s->rig.stream)))
            return;
    cr_assert(false, "the stream does not synchronize: %s", s->rig.capture.last);
}

static inline void server_begin(struct server *s, const void *order, size_t bytes, uint64_t *step)
{
    weir_order decoded;
    cr_assert(zero(int, weir_order_decode(&decoded, order, bytes, NULL)));
    for (int i = 0; i < SERVER_TRIES; i++) {
        int rc = weir_rank_begin(s->rank, order, bytes, (uint32_t)(decoded.step % 4), s->rig.stream,
                                 step);
        cr_assert(rc == 0 || rc == -EIO, "begin: %s", weir_error_name(rc));
        if (!server_again(s, rc))
            return;
    }
    cr_assert(false, "the step does not begin: %s", s->rig.capture.last);
}

static inline void server_wait_layers(struct server *s, uint64_t step)
{
    for (uint32_t layer = 0; layer < SERVER_LAYERS && !s->lost; layer++)
        for (int i = 0;; i++) {
            cr_assert(lt(int, i, SERVER_TRIES), "layer %u is not waited for", layer);
            int rc = weir_rank_wait_layer(s->rank, step, layer, s->rig.stream);
            cr_assert(rc == 0 || rc == -EIO, "wait: %s", weir_error_name(rc));
            if (!server_again(s, rc))
                break;
        }
}

static inline unsigned char server_byte(const char *letters, size_t page, uint32_t tensor,
                                        uint32_t layer, uint64_t at)
{
    uint64_t content = 7;
    for (size_t i = 0; i <= page; i++)
        content = content * 131 + (unsigned char)letters[i];
    struct random random = { content * 1000003 + tensor * 8191 + layer * 127 + at };
    return (unsigned char)random_next(&random);
}

/* Fills a page, or counts the bytes that are wrong. */
static inline uint64_t server_touch(const struct server *s, int32_t page, const char *letters,
                                    size_t at, bool fill)
{
    uint64_t wrong = 0;
    for (uint32_t tensor = 0; tensor < 2; tensor++)
        for (uint32_t layer = 0; layer < SERVER_LAYERS; layer++) {
            unsigned char *piece = (unsigned char *)(uintptr_t)weir_rank_device_address(
                s->rank, tensor, layer, (weir_device_page){ page });
            for (uint64_t i = 0; piece && i < server_tensors[tensor].page_bytes; i++) {
                unsigned char right = server_byte(letters, at, tensor, layer, i);
                if (fill)
                    piece[i] = right;
                wrong += piece[i] != right;
            }
        }
    return wrong;
}

/* ---- Reports ----------------------------------------------------------------- */

/* Carries reports and polls. `good` receives the tokens that an event leaves a
 * sequence. */
static inline void server_carry(struct server *s, size_t *good)
{
    for (int round = 0; round < 2 && !s->lost; round++) {
        server_synchronize(s);
        uint64_t report[64];
        size_t bytes = 1;
        while (bytes > 0) {
            cr_assert(zero(int, weir_rank_report(s->rank, report, sizeof report, &bytes)));
            if (bytes > 0)
                SERVER_GIVES(s, weir_cache_report(s->cache, 0, report, bytes), 0);
        }
    }
    weir_cache_event events[8];
    size_t n = 0;
    SERVER_GIVES(s, weir_cache_poll(s->cache, s->now++, events, 8, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (events[i].kind == WEIR_EVENT_LOAD_FAILED) {
            s->n_load_failures++;
            if (good && events[i].good_tokens < *good)
                *good = events[i].good_tokens;
        }
}

/* A step without a sequence. */
static inline void server_idle(struct server *s)
{
    weir_step step;
    const void *order;
    size_t bytes;
    uint64_t number;
    int rc = weir_step_begin(&step, s->cache);
    for (int i = 0; rc == -EAGAIN && i < SERVER_TRIES; i++) {
        server_carry(s, NULL);
        rc = weir_step_begin(&step, s->cache);
    }
    SERVER_GIVES(s, rc, 0);
    SERVER_GIVES(s, weir_step_end(&step, &order, &bytes), 0);
    server_begin(s, order, bytes, &number);
    if (s->lost)
        return;
    cr_assert(zero(int, weir_rank_end(s->rank, number, s->rig.stream)));
    server_carry(s, NULL);
}

/* ---- A request ---------------------------------------------------------------- */

static inline weir_seq server_admit(struct server *s, const char *letters, weir_reserved *reserved)
{
    int32_t tokens[SERVER_LETTERS * SERVER_TOKENS + 1];
    size_t n = 0;
    for (const char *letter = letters; *letter; letter++)
        for (int32_t i = 0; i < SERVER_TOKENS; i++)
            tokens[n++] = *letter * 4096 + i;
    tokens[n++] = -++s->next_tail;
    const weir_key key = { .tokens = tokens, .n_tokens = n };
    weir_seq seq;
    SERVER_GIVES(s, weir_seq_open(&seq, s->cache, &key, NULL), 0);
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = n;
    int rc = weir_seq_reserve(seq, &request, reserved);
    for (int i = 0; rc == -EAGAIN && i < 12 && !s->lost; i++) {
        server_idle(s);
        rc = weir_seq_reserve(seq, &request, reserved);
    }
    SERVER_GIVES(s, rc, s->lost ? rc : 0);
    return seq;
}

/* From the order on: returns the tokens that are right. */
static inline size_t server_forward(struct server *s, weir_seq seq, const char *letters,
                                    size_t n_hit)
{
    int32_t table[SERVER_LETTERS + 1];
    uint64_t wrong[SERVER_LETTERS];
    size_t n_pages;
    size_t n_letters = strlen(letters);
    size_t good = n_letters * SERVER_TOKENS;
    weir_step step;
    const void *order;
    size_t bytes;
    uint64_t number;
    SERVER_GIVES(s, weir_seq_pages(seq, 0, SERVER_TOKENS, table, SERVER_LETTERS + 1, &n_pages), 0);
    SERVER_GIVES(s, weir_step_begin(&step, s->cache), 0);
    SERVER_GIVES(s, weir_step_add(step, seq), 0);
    if (n_letters > n_hit)
        SERVER_GIVES(s, weir_seq_commit(seq, NULL, (n_letters - n_hit) * SERVER_TOKENS), 0);
    SERVER_GIVES(s, weir_step_end(&step, &order, &bytes), 0);
    server_begin(s, order, bytes, &number);
    if (s->lost)
        return 0;
    server_wait_layers(s, number);
    server_synchronize(s);
    for (size_t i = 0; i < n_letters && !s->lost; i++)
        wrong[i] = server_touch(s, table[i], letters, i, i >= n_hit);
    cr_assert(zero(int, weir_rank_end(s->rank, number, s->rig.stream)));
    for (int i = 0; i < 3; i++)
        server_carry(s, &good);
    for (size_t i = 0; i < n_hit && i < good / SERVER_TOKENS && !s->lost; i++)
        cr_assert(zero(u64, wrong[i]), "%s: page %zu has wrong bytes", letters, i);
    return good;
}

/* Serves a prompt from end to end; returns what it hit. */
static inline weir_hit server_serve(struct server *s, const char *letters)
{
    weir_reserved reserved = { 0 };
    if (s->lost)
        return reserved.hit;
    for (int i = 0; i < 2; i++)
        server_carry(s, NULL);
    weir_seq seq = server_admit(s, letters, &reserved);
    if (!s->lost)
        server_forward(s, seq, letters, reserved.hit.n_tokens / SERVER_TOKENS);
    SERVER_GIVES(s, weir_seq_close(&seq), 0);
    return reserved.hit;
}

/* Nothing is in flight any more: each transfer and step has ended once, for the
 * cache takes no report of what is not in flight. */
static inline void server_settle(struct server *s)
{
    for (int i = 0; i < 6 && !s->lost; i++)
        server_idle(s);
    if (s->lost) {
        uint64_t first;
        SERVER_GIVES(s, weir_cache_rank_lost(s->cache, 0, &first), 0);
    }
    SERVER_GIVES(s, weir_cache_drain(s->cache), 0);
    SERVER_GIVES(s, weir_cache_resume(s->cache), 0);
}

static inline weir_stats server_stats(const struct server *s)
{
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(zero(int, weir_cache_get_stats(s->cache, &stats)));
    return stats;
}

#endif
