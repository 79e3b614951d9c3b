/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_SERVER_WORLD_H
#define WEIR_TESTS_SERVER_WORLD_H

/* A whole server in small: a cache, its twin, and ranks on CPU devices of their
 * own, whose kernels know which bytes every page must hold.
 *
 *   request "ABC" ─ reserve ─┐                    ┌─► rank 0: device, 2 streams
 *   request "AD"  ─ reserve ─┴─ server_step ─ order ─► rank 1: device, 2 streams
 *                                  ▲              └─► …
 *              server_carry: reports, rank by rank, so many items at a time
 *
 *   letters  a prompt is a page a letter, and one token more, which differs in
 *            each request, so that a forward pass has an input
 *   content  a page's bytes follow from the letters up to it, the rank, the
 *            tensor, the layer and the place
 *   kernel   of a request in a step and layer: compares the pages that are
 *            computed before, fills those that the step computes, and writes
 *            garbage into the rest, which is nobody else's
 *   twin     a cache that is given the same calls and reports: same answers,
 *            same orders, same digest after each. Every call also checks the
 *            cache's invariants
 *
 * Devices are seeded: nothing runs but in server_run and server_run_a_little. A
 * held rank is given no orders until it is let go; a parked stream stands still
 * on all ranks. A rank that is lost and replaced begins with an empty device. */

#include "log_capture.h"
#include "random.h"

#include <weir/weir.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Only there under AddressSanitizer. Criterion alone does not fail on a leak. */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

enum {
    SERVER_RANKS = 4,
    SERVER_STREAMS = 2,
    SERVER_LETTERS = 40,
    SERVER_PAGES = SERVER_LETTERS + 1,
    SERVER_ORDERS = 64
};

struct server_request {
    struct server_request *next;
    weir_seq seq; /* {0, 0}: closed */
    char letters[SERVER_LETTERS + 1];
    size_t n; /* letters */
    int32_t table[SERVER_PAGES];
    size_t n_pages;
    weir_hit hit;  /* of the first reserve, in pages */
    size_t n_done; /* letters that are computed, or hit */
    size_t good;   /* letters that hold what they should; fewer after a failed load */
    bool ready;    /* an event has said to reserve again */
    unsigned failures;
};

struct server_kernel {
    struct server_kernel *next;
    struct server *server;
    struct server_request *request;
    uint32_t rank;
    uint32_t layer;
    uint32_t n_done; /* as of the step */
    uint32_t n_end;
    uint32_t n_pages;
    uint64_t wrong[SERVER_PAGES];
    bool ran;
};

/* A step as the ranks are given it, kept until the cache uses the order's memory
 * for another. */
struct server_work {
    const void *order;
    size_t bytes;
    uint32_t stream;
    uint32_t n;
    struct server_request *requests[SERVER_PAGES];
    uint32_t n_done[SERVER_PAGES];
    uint32_t n_end[SERVER_PAGES];
    uint32_t n_pages[SERVER_PAGES];
};

struct server_rank {
    weir_device *device;
    weir_rank *rank;
    const weir_shape *shape;
    weir_stream *streams[SERVER_STREAMS];
    bool held;
    uint64_t begun; /* steps */
};

/*   cache, rank  of both caches and all ranks; the test may change them
 *   shapes       of each rank; NULL: as rank.shape
 *   seed         of the devices and the server's random choices, 1 or more */
struct server_params {
    weir_cache_params cache;
    weir_rank_params rank;
    const weir_shape *shapes[SERVER_RANKS];
    uint64_t seed;
};

struct server {
    struct log_capture log;
    struct random random;
    weir_cache *caches[2]; /* the cache and its twin */
    uint32_t t;            /* tokens of a page */
    uint32_t n_ranks;
    uint32_t n_slots;
    struct server_rank ranks[SERVER_RANKS];
    struct server_request *requests;
    struct server_kernel *kernels;
    struct server_work works[SERVER_ORDERS]; /* step % SERVER_ORDERS */
    uint64_t n_steps;
    uint64_t now;
    int32_t next_tail;
    unsigned write_waiting; /* events */
    weir_order last;        /* the last step's; valid until that step is retired */
    struct server_params params;
};

/* ---- What a page holds ---------------------------------------------------- */

static const uint32_t server_some_layers[] = { 0, 2 };
static const weir_tensor server_tensors[] = {
    { .name = "kv", .page_bytes = 4 * 24, .row_bytes = 24 },
    { .name = "scales",
      .page_bytes = 4 * 3,
      .row_bytes = 3,
      .layers = server_some_layers,
      .n_layers = 2 },
};
static const weir_shape server_shape = { 4, 3, 2, server_tensors };

static inline unsigned char server_byte(const char *letters, size_t page, uint32_t rank,
                                        uint32_t tensor, uint32_t layer, uint64_t at)
{
    uint64_t content = rank;
    for (size_t i = 0; i <= page; i++)
        content = content * 131 + (unsigned char)letters[i];
    struct random random = { content * 1000003 + tensor * 8191 + layer * 127 + at };
    return (unsigned char)random_next(&random);
}

enum server_act {
    SERVER_CHECK,
    SERVER_FILL,
    SERVER_SPOIL
};

/* Fills or spoils a page of a layer, or counts the bytes that are wrong. */
static inline uint64_t server_touch(const struct server *s, uint32_t rank, int32_t page,
                                    const char *letters, size_t at, uint32_t layer,
                                    enum server_act act)
{
    const struct server_rank *r = &s->ranks[rank];
    uint64_t wrong = 0;
    for (uint32_t t = 0; t < r->shape->n_tensors; t++) {
        unsigned char *piece = (unsigned char *)(uintptr_t)weir_rank_device_address(
            r->rank, t, layer, (weir_device_page){ page });
        for (uint64_t i = 0; piece && i < r->shape->tensors[t].page_bytes; i++) {
            unsigned char right =
                act == SERVER_SPOIL ? 0xEE : server_byte(letters, at, rank, t, layer, i);
            if (act != SERVER_CHECK)
                piece[i] = right;
            wrong += piece[i] != right;
        }
    }
    return wrong;
}

/* ---- Opening -------------------------------------------------------------- */

static inline struct server_params server_params(uint64_t seed, uint32_t n_ranks,
                                                 uint32_t device_pages, uint32_t host_pages)
{
    struct server_params params = { .seed = seed };
    weir_cache_params_init(&params.cache);
    params.cache.page_tokens = 4;
    params.cache.device_pages = device_pages;
    params.cache.host_pages = host_pages;
    params.cache.n_ranks = n_ranks;
    params.cache.max_steps = 8;
    params.cache.max_write_backs = 8;
    params.cache.max_seqs = 32;
    params.cache.offered = 0;
    weir_rank_params_init(&params.rank);
    params.rank.shape = &server_shape;
    params.rank.device_pages = device_pages;
    params.rank.host_pages = host_pages;
    params.rank.segment_pages = 4;
    params.rank.max_steps = 8;
    params.rank.max_write_backs = 8;
    params.rank.touch_threads = 1;
    return params;
}

static inline void server_check(const struct server *s)
{
    const char *reason = "";
    cr_assert(weir_cache_check(s->caches[0], &reason) == 0, "%s", reason);
    cr_assert(eq(u64, weir_cache_digest(s->caches[0]), weir_cache_digest(s->caches[1])),
              "the twin has come apart");
}

static inline void server_open_rank(struct server *s, uint32_t index, uint64_t first_step)
{
    const struct server_params *params = &s->params;
    struct server_rank *r = &s->ranks[index];
    *r = (struct server_rank){ .begun = first_step - 1 };
    r->shape = params->shapes[index] ? params->shapes[index] : params->rank.shape;
    weir_cpu_device_params device;
    weir_cpu_device_params_init(&device);
    device.seed = params->seed * SERVER_RANKS + index + 1;
    device.log = log_capture_log(&s->log);
    cr_assert(zero(int, weir_cpu_device_open(&r->device, &device)));
    for (int i = 0; i < SERVER_STREAMS; i++)
        cr_assert(zero(int, weir_cpu_stream_create(r->device, &r->streams[i])));
    weir_rank_params own = params->rank;
    own.shape = r->shape;
    own.first_step = first_step;
    own.log = device.log;
    cr_assert(zero(int, weir_rank_open(&r->rank, r->device, &own)), "%s", s->log.last);
}

static inline struct server *server_open(struct server_params params)
{
    struct server *s = calloc(1, sizeof *s);
    cr_assert(ne(ptr, s, NULL));
    s->random.state = params.seed;
    s->params = params;
    s->t = params.cache.page_tokens;
    s->n_ranks = params.cache.n_ranks;
    s->n_slots = params.rank.n_slots ? params.rank.n_slots : params.rank.max_steps;
    params.cache.log = log_capture_log(&s->log);
    for (int i = 0; i < 2; i++)
        cr_assert(zero(int, weir_cache_create(&s->caches[i], &params.cache)), "%s", s->log.last);
    for (uint32_t i = 0; i < s->n_ranks; i++)
        server_open_rank(s, i, 1);
    server_check(s);
    return s;
}

/* ---- Calls of both caches ------------------------------------------------- */

/* `call` names the cache `c`, and the number `k` of it. Leaves the answer, the same of
 * both, in `rc`. */
#define SERVER_BOTH(s, rc, call)                                                   \
    do {                                                                           \
        int answers_[2];                                                           \
        for (int k = 0; k < 2; k++) {                                              \
            weir_cache *c = (s)->caches[k];                                        \
            (void)c;                                                               \
            answers_[k] = (call);                                                  \
        }                                                                          \
        cr_assert(answers_[0] == answers_[1], "%s: %s, and of the twin %s", #call, \
                  weir_error_name(answers_[0]), weir_error_name(answers_[1]));     \
        (rc) = answers_[0];                                                        \
        server_check(s);                                                           \
    } while (0)

#define SERVER_GIVES(s, call, want)                                                            \
    do {                                                                                       \
        int rc_;                                                                               \
        SERVER_BOTH(s, rc_, call);                                                             \
        cr_assert(rc_ == (want), "%s: %s, not %s; last line: %s", #call, weir_error_name(rc_), \
                  weir_error_name(want), (s)->log.last);                                       \
    } while (0)

/* ---- Looking -------------------------------------------------------------- */

static inline weir_stats server_stats(const struct server *s)
{
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(zero(int, weir_cache_get_stats(s->caches[0], &stats)));
    return stats;
}

static inline weir_available server_available(const struct server *s)
{
    weir_available available;
    cr_assert(zero(int, weir_cache_available(s->caches[0], &available)));
    return available;
}

/* Writes the tokens of a prompt; `tail` 0: without a last one. */
static inline weir_key server_key(const struct server *s, const char *letters, int32_t tail,
                                  int32_t *tokens)
{
    size_t n = 0;
    for (; *letters; letters++)
        for (uint32_t i = 0; i < s->t; i++)
            tokens[n++] = *letters * 4096 + (int32_t)i;
    if (tail)
        tokens[n++] = -tail;
    return (weir_key){ .tokens = tokens, .n_tokens = n };
}

enum {
    SERVER_TOKENS = SERVER_LETTERS * 64 + 1
};

static inline void server_expect_hit(struct server *s, const char *letters, size_t device,
                                     size_t host, size_t loading)
{
    int32_t tokens[SERVER_TOKENS];
    weir_key key = server_key(s, letters, 0, tokens);
    weir_hit hit[2];
    SERVER_GIVES(s, weir_cache_peek(c, &key, &hit[k]), 0);
    cr_assert(hit->n_device == device * s->t && hit->n_host == host * s->t &&
                  hit->n_loading == loading * s->t,
              "%s: tokens %zu device, %zu host, %zu loading; not pages %zu, %zu, %zu", letters,
              hit->n_device, hit->n_host, hit->n_loading, device, host, loading);
}

static inline uint64_t server_races(const struct server *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_ranks; i++)
        n += weir_cpu_device_races(s->ranks[i].device);
    return n;
}

/* Bytes that kernels found wrong, but for what a failed load should have brought. */
static inline uint64_t server_wrong(const struct server *s)
{
    uint64_t wrong = 0;
    for (const struct server_kernel *kernel = s->kernels; kernel; kernel = kernel->next)
        for (size_t i = 0; i < kernel->n_done && i < kernel->request->good; i++)
            wrong += kernel->wrong[i];
    return wrong;
}

#endif
