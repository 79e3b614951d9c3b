/* SPDX-License-Identifier: Apache-2.0 */
#include "index.h"

#include "device.h"

#include <weir/cache.h>
#include <weir/order.h>
#include <weir/page_pool.h>
#include <weir/radix.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A cache whose orders are done as soon as they are given. */
struct world {
    weir_cache *cache;
    uint32_t page_tokens;
    uint64_t now;
    int32_t *tokens;
    uint64_t *report;
    size_t report_bytes;
};

static weir_cache_params params_of(uint32_t device_pages, uint32_t host_pages, uint32_t page_tokens)
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = page_tokens;
    params.device_pages = device_pages;
    params.host_pages = host_pages;
    return params;
}

static int world_open(struct world *w, const weir_cache_params *params, size_t n_tokens)
{
    *w = (struct world){ .page_tokens = params->page_tokens };
    w->report_bytes = weir_report_bytes(3); /* a step, its load and its write-back */
    w->tokens = calloc(n_tokens, sizeof *w->tokens);
    w->report = malloc(w->report_bytes);
    return w->tokens && w->report ? weir_cache_create(&w->cache, params) : -ENOMEM;
}

/* Of a cache without open sequences; an error on the way leaves it alone. */
static void world_close(struct world *w)
{
    (void)weir_cache_destroy(&w->cache);
    free(w->tokens);
    free(w->report);
}

static int acknowledge(struct world *w, const void *order, size_t bytes)
{
    int rc = weir_order_acknowledge(order, bytes, w->report, w->report_bytes, &bytes, NULL);
    if (!rc)
        rc = weir_cache_report(w->cache, 0, w->report, bytes);
    return rc;
}

static int end_step(struct world *w, weir_step *step)
{
    const void *order;
    size_t bytes;
    int rc = weir_step_end(step, &order, &bytes);
    return rc ? rc : acknowledge(w, order, bytes);
}

static int poll(struct world *w)
{
    weir_cache_event event;
    size_t n;
    return weir_cache_poll(w->cache, ++w->now, &event, 1, &n);
}

static int open(struct world *w, size_t n, size_t total, weir_seq *seq)
{
    weir_key key = { .tokens = w->tokens, .n_tokens = n };
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = total;
    int rc = weir_seq_open(seq, w->cache, &key, NULL);
    return rc ? rc : weir_seq_reserve(*seq, &request, NULL);
}

/* ---- A long prompt -------------------------------------------------------- */

static int time_long(struct weir_bench_index *bench, struct world *w, const int32_t *copy,
                     struct weir_bench_samples *match, struct weir_bench_samples *compare)
{
    weir_key key = { .tokens = w->tokens, .n_tokens = WEIR_BENCH_LONG_TOKENS };
    weir_hit hit;
    size_t whole = key.n_tokens / w->page_tokens * w->page_tokens;
    for (uint32_t i = 0; i < 20 * bench->common.repeats; i++) {
        double start = weir_bench_now();
        int rc = weir_cache_peek(w->cache, &key, &hit);
        double middle = weir_bench_now();
        bool equal = memcmp(w->tokens, copy, WEIR_BENCH_LONG_TOKENS * sizeof *copy) == 0;
        double end = weir_bench_now();
        bench->wrong += hit.n_tokens != whole || !equal;
        if (!rc)
            rc = weir_bench_samples_add(match, (middle - start) * 1e9);
        if (!rc)
            rc = weir_bench_samples_add(compare, (end - middle) * 1e9);
        if (rc)
            return rc;
    }
    return 0;
}

static int measure_long(struct weir_bench_index *bench, struct world *w, int32_t *copy)
{
    struct weir_bench_samples match = { 0 }, compare = { 0 };
    size_t n = WEIR_BENCH_LONG_TOKENS;
    for (size_t i = 0; i < n; i++)
        copy[i] = w->tokens[i] = (int32_t)(i * 7);
    weir_seq seq;
    weir_step step;
    int rc = open(w, n, n, &seq);
    if (!rc)
        rc = weir_step_begin(&step, w->cache);
    if (!rc)
        rc = weir_step_add(step, seq);
    if (!rc)
        rc = weir_seq_commit(seq, NULL, n);
    if (!rc)
        rc = end_step(w, &step);
    if (!rc)
        rc = weir_seq_close(&seq);
    if (bench->common.plant_error)
        w->tokens[n - 1] ^= 1;
    if (!rc)
        rc = time_long(bench, w, copy, &match, &compare);
    struct weir_bench_stats compared = weir_bench_stats_of(&compare);
    weir_bench_samples_free(&compare);
    struct weir_bench_stats matched = weir_bench_stats_of(&match);
    uint32_t pages = (uint32_t)(n / w->page_tokens);
    json_t *row =
        weir_bench_index_row(bench, "match 128K tokens", "prompt", pages, w->page_tokens, &match);
    weir_bench_put_stats(&bench->report, row, "match_128k_ns", matched);
    weir_bench_put_stats(&bench->report, row, "memcmp_128k_ns", compared);
    if (compared.median > 0)
        weir_bench_put_number(&bench->report, row, "ratio", matched.median / compared.median);
    return rc;
}

int weir_bench_index_long(struct weir_bench_index *bench, uint32_t page_tokens)
{
    struct world w;
    uint32_t pages = WEIR_BENCH_LONG_TOKENS / page_tokens + 1;
    weir_cache_params params = params_of(pages, 0, page_tokens);
    int32_t *copy = malloc(WEIR_BENCH_LONG_TOKENS * sizeof *copy);
    int rc = world_open(&w, &params, WEIR_BENCH_LONG_TOKENS);
    if (!rc)
        rc = copy ? measure_long(bench, &w, copy) : -ENOMEM;
    world_close(&w);
    free(copy);
    return rc;
}

/* ---- Many leaves ---------------------------------------------------------- */

/* Prompts of one page, as many at a time as there may be sequences. */
static int add_leaves(struct world *w, uint32_t first, uint32_t n, weir_seq *seqs)
{
    weir_step step;
    int rc = weir_step_begin(&step, w->cache);
    for (uint32_t i = 0; i < n && !rc; i++) {
        w->tokens[0] = (int32_t)(first + i);
        rc = open(w, w->page_tokens, w->page_tokens, &seqs[i]);
        if (!rc)
            rc = weir_step_add(step, seqs[i]);
        if (!rc)
            rc = weir_seq_commit(seqs[i], NULL, w->page_tokens);
    }
    if (!rc)
        rc = end_step(w, &step);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = weir_seq_close(&seqs[i]);
    return rc ? rc : poll(w);
}

/* The reserve has one page to evict for the one that it gives; the new page
 * becomes a leaf in its turn. */
static int time_eviction(struct world *w, uint32_t leaf, struct weir_bench_samples *samples)
{
    weir_key key = { .tokens = w->tokens, .n_tokens = w->page_tokens };
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = w->page_tokens;
    w->tokens[0] = (int32_t)leaf;
    weir_seq seq;
    weir_step step;
    int rc = weir_seq_open(&seq, w->cache, &key, NULL);
    if (rc)
        return rc;
    double start = weir_bench_now();
    rc = weir_seq_reserve(seq, &request, NULL);
    double end = weir_bench_now();
    if (!rc)
        rc = weir_bench_samples_add(samples, (end - start) * 1e9);
    if (!rc)
        rc = weir_step_begin(&step, w->cache);
    if (!rc)
        rc = weir_step_add(step, seq);
    if (!rc)
        rc = weir_seq_commit(seq, NULL, w->page_tokens);
    if (!rc)
        rc = end_step(w, &step);
    return rc ? rc : weir_seq_close(&seq);
}

static int time_polls(struct world *w, struct weir_bench_samples *samples)
{
    enum {
        POLLS = 1000
    };
    int rc = poll(w);
    double start = weir_bench_now();
    for (int i = 0; i < POLLS && !rc; i++)
        rc = poll(w);
    double end = weir_bench_now();
    return rc ? rc : weir_bench_samples_add(samples, (end - start) * 1e9 / POLLS);
}

static int measure_leaves(struct weir_bench_index *bench, struct world *w, weir_seq *seqs,
                          uint32_t n_seqs)
{
    struct weir_bench_samples evict = { 0 }, idle = { 0 };
    int rc = 0;
    for (uint32_t first = 0; first < bench->leaves && !rc; first += n_seqs) {
        uint32_t rest = bench->leaves - first;
        rc = add_leaves(w, first, rest < n_seqs ? rest : n_seqs, seqs);
    }
    for (uint32_t i = 0; i < 2000 * bench->common.repeats && !rc; i++)
        rc = time_eviction(w, bench->leaves + i, &evict);
    for (uint32_t i = 0; i < 10 * bench->common.repeats && !rc; i++)
        rc = time_polls(w, &idle);
    weir_stats stats = { .struct_size = sizeof stats };
    if (!rc)
        rc = weir_cache_get_stats(w->cache, &stats);
    bench->wrong += !rc && stats.index_pages != bench->leaves;
    weir_bench_index_row(bench, "reserve a page, evicting a leaf", "call", bench->leaves,
                         w->page_tokens, &evict);
    weir_bench_index_row(bench, "poll, idle", "call", bench->leaves, w->page_tokens, &idle);
    return rc;
}

int weir_bench_index_leaves(struct weir_bench_index *bench, uint32_t page_tokens)
{
    struct world w;
    weir_cache_params params = params_of(bench->leaves, 0, page_tokens);
    params.offered = 0;
    weir_seq *seqs = calloc(params.max_seqs, sizeof *seqs);
    int rc = world_open(&w, &params, page_tokens);
    if (!rc)
        rc = seqs ? measure_leaves(bench, &w, seqs, params.max_seqs) : -ENOMEM;
    world_close(&w);
    free(seqs);
    return rc;
}

/* ---- Decoding ------------------------------------------------------------- */

#define PROMPT_TOKENS 512u
#define DECODE_TOKENS 128u

static int time_step(struct world *w, weir_seq *seqs, uint32_t n,
                     struct weir_bench_samples *samples)
{
    weir_step step;
    const void *order;
    size_t bytes;
    int32_t token = 7;
    double start = weir_bench_now();
    int rc = weir_step_begin(&step, w->cache);
    for (uint32_t i = 0; i < n && !rc; i++) {
        rc = weir_step_add(step, seqs[i]);
        if (!rc)
            rc = weir_seq_commit(seqs[i], &token, 1);
    }
    if (!rc)
        rc = weir_step_end(&step, &order, &bytes);
    double end = weir_bench_now();
    if (!rc)
        rc = acknowledge(w, order, bytes);
    if (!rc && samples)
        rc = weir_bench_samples_add(samples, (end - start) * 1e9);
    return rc ? rc : poll(w);
}

/* Sequences of one length each more than the other's, so that every step fills
 * pages of some; all that they will need is reserved. */
static int start_decoding(struct world *w, weir_seq *seqs, uint32_t n)
{
    weir_step step;
    int rc = weir_step_begin(&step, w->cache);
    for (uint32_t i = 0; i < n && !rc; i++) {
        size_t length = PROMPT_TOKENS + i % w->page_tokens;
        w->tokens[0] = (int32_t)i;
        rc = open(w, length, length + DECODE_TOKENS, &seqs[i]);
        if (!rc)
            rc = weir_step_add(step, seqs[i]);
        weir_seq_info info;
        if (!rc)
            rc = weir_seq_get_info(seqs[i], &info);
        if (!rc)
            rc = weir_seq_commit(seqs[i], NULL, length - info.n_committed);
    }
    return rc ? rc : end_step(w, &step);
}

static int measure_decode(struct weir_bench_index *bench, struct world *w, weir_seq *seqs)
{
    struct weir_bench_samples samples = { 0 };
    uint32_t n = bench->seqs;
    int rc = 0;
    for (uint32_t r = 0; r < bench->common.warm_up + bench->common.repeats && !rc; r++) {
        rc = start_decoding(w, seqs, n);
        for (uint32_t i = 0; i < DECODE_TOKENS && !rc; i++)
            rc = time_step(w, seqs, n, r < bench->common.warm_up ? NULL : &samples);
        for (uint32_t i = 0; i < n && !rc; i++)
            rc = weir_seq_close(&seqs[i]);
    }
    char what[64];
    snprintf(what, sizeof what, "step of %u that decode", n);
    weir_stats stats = { .struct_size = sizeof stats };
    if (!rc)
        rc = weir_cache_get_stats(w->cache, &stats);
    weir_bench_index_row(bench, what, "step", (uint32_t)stats.index_pages, w->page_tokens,
                         &samples);
    return rc;
}

int weir_bench_index_decode(struct weir_bench_index *bench, uint32_t page_tokens)
{
    struct world w;
    size_t most = PROMPT_TOKENS + page_tokens + DECODE_TOKENS;
    uint32_t pages = (uint32_t)(2 * bench->seqs * (most / page_tokens + 1));
    weir_cache_params params = params_of(pages, 4 * pages, page_tokens);
    params.max_seqs = bench->seqs;
    weir_seq *seqs = calloc(bench->seqs, sizeof *seqs);
    int rc = world_open(&w, &params, most);
    if (!rc)
        rc = seqs ? measure_decode(bench, &w, seqs) : -ENOMEM;
    world_close(&w);
    free(seqs);
    return rc;
}

/* ---- Bytes ---------------------------------------------------------------- */

static void put_bytes(struct weir_bench_index *bench, const char *what, uint32_t pages,
                      uint32_t page_tokens, double bytes)
{
    json_t *row = weir_bench_report_row(&bench->report);
    weir_bench_put_text(&bench->report, row, "what", what);
    weir_bench_put_integer(&bench->report, row, "pages", pages);
    weir_bench_put_integer(&bench->report, row, "page_tokens", page_tokens);
    weir_bench_put_number(&bench->report, row, "bytes_page", bytes / pages);
    weir_bench_put_number(&bench->report, row, "beside_tokens", bytes / pages - 4.0 * page_tokens);
}

static int put_cache_bytes(struct weir_bench_index *bench, const char *what, uint32_t device_pages,
                           uint32_t host_pages, uint32_t page_tokens)
{
    weir_cache_params params = params_of(device_pages, host_pages, page_tokens);
    weir_cache *cache;
    int rc = weir_cache_create(&cache, &params);
    if (rc)
        return rc;
    weir_stats stats = { .struct_size = sizeof stats };
    rc = weir_cache_get_stats(cache, &stats);
    put_bytes(bench, what, device_pages + host_pages, page_tokens, (double)stats.index_bytes);
    (void)weir_cache_destroy(&cache);
    return rc;
}

int weir_bench_index_bytes(struct weir_bench_index *bench, uint32_t pages, uint32_t page_tokens)
{
    weir_radix *radix;
    int rc = weir_radix_create(&radix, page_tokens, pages, NULL);
    if (rc)
        return rc;
    put_bytes(bench, "bytes of the tree", pages, page_tokens, (double)weir_radix_bytes(radix));
    weir_radix_destroy(&radix);
    rc = put_cache_bytes(bench, "bytes of a cache, a tenth on the device", pages / 10,
                         pages - pages / 10, page_tokens);
    return rc ? rc
              : put_cache_bytes(bench, "bytes of a cache, all on the device", pages, 0,
                                page_tokens);
}
