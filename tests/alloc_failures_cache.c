/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_sweep.h"

#include <weir/lifecycle.h>
#include <weir/pin.h>
#include <weir/policy.h>

#include <string.h>

/* Of test_alloc_failures: a cache, from its first namespaces to a lost rank. */

enum {
    T = 4,
    CACHE_SEQS = 20,
    LONG_TOKENS = 600
};

static int32_t prompt[LONG_TOKENS];

struct cache_state {
    uint64_t digest;
    weir_stats stats;
};

static struct cache_state state_of(const weir_cache *cache)
{
    struct cache_state state = { .digest = weir_cache_digest(cache) };
    memset(&state.stats, 0, sizeof state.stats);
    state.stats.struct_size = sizeof state.stats;
    cr_assert(weir_cache_get_stats(cache, &state.stats) == 0);
    state.stats.index_bytes = 0; /* room for a namespace may have been made */
    return state;
}

static void check_same(const weir_cache *cache, const struct cache_state *before)
{
    struct cache_state now = state_of(cache);
    cr_assert(now.digest == before->digest, "the digest changed");
    cr_assert(memcmp(&now.stats, &before->stats, sizeof now.stats) == 0, "a counter changed");
    alloc_check_cache(cache);
}

#define CACHE_CALL(cache, call)                       \
    do {                                              \
        struct cache_state before_ = state_of(cache); \
        MUST_TELL(call, check_same(cache, &before_)); \
        alloc_check_cache(cache);                     \
    } while (0)

static uint64_t cache_now;

static void poll_cache(weir_cache *cache)
{
    weir_cache_event events[8];
    size_t n;
    CACHE_CALL(cache, weir_cache_poll(cache, ++cache_now, events, 8, &n));
}

/* A step of one sequence that computes n tokens; its order done at once. */
static void run_step(weir_cache *cache, const weir_seq *seq, const int32_t *tokens, size_t n)
{
    weir_step step;
    const void *order;
    size_t bytes;
    uint64_t report[16];
    CACHE_CALL(cache, weir_step_begin(&step, cache));
    if (seq) {
        CACHE_CALL(cache, weir_step_add(step, *seq));
        CACHE_CALL(cache, weir_seq_commit(*seq, tokens, n));
    }
    CACHE_CALL(cache, weir_step_end(&step, &order, &bytes));
    cr_assert(weir_order_acknowledge(order, bytes, report, sizeof report, &bytes, NULL) == 0);
    CACHE_CALL(cache, weir_cache_report(cache, 0, report, bytes));
    poll_cache(cache);
}

static const char *cache_policy;

static void cache_workload(void)
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = T;
    params.device_pages = 200;
    params.host_pages = 60;
    params.max_seqs = CACHE_SEQS;
    params.max_steps = 2;
    params.max_write_backs = 2;
    params.eviction = cache_policy;
    params.host_drops_duplicates = true;
    params.priorities = 2;
    cache_now = 0;
    weir_cache *cache = NULL;
    MUST_TELL(weir_cache_create(&cache, &params), is_null(cache));

    /* More namespaces at once than the first table of them holds. */
    weir_seq seqs[CACHE_SEQS] = { { 0 } };
    weir_seq_params seq_params;
    weir_seq_params_init(&seq_params);
    seq_params.priority = 2;
    seq_params.ttl_ns = 3; /* polls */
    for (uint32_t i = 0; i < CACHE_SEQS; i++) {
        weir_field field = { .tag = 1, .bytes = sizeof i, .data = &i };
        weir_key key = { .tokens = prompt, .n_tokens = 40, .fields = &field, .n_fields = i > 0 };
        CACHE_CALL(cache, weir_seq_open(&seqs[i], cache, &key, &seq_params));
    }
    for (uint32_t i = 2; i < CACHE_SEQS; i++)
        CACHE_CALL(cache, weir_seq_close(&seqs[i]));

    /* Tokens from 256 to 512 to 1024, pages from 16 to 32 … 256. */
    size_t done = 0;
    while (done < LONG_TOKENS) {
        size_t to = done + 120 > LONG_TOKENS ? LONG_TOKENS : done + 120;
        weir_request request = alloc_request(to);
        CACHE_CALL(cache, weir_seq_reserve(seqs[0], &request, NULL));
        run_step(cache, &seqs[0], prompt + done, to - done);
        done = to;
    }
    CACHE_CALL(cache, weir_seq_close(&seqs[0]));

    /* A hit of many pages, in an object that has held few. */
    weir_key key = { .tokens = prompt, .n_tokens = 400 };
    weir_field field = { .tag = 9, .bytes = ALLOC_LONG_NAME, .data = alloc_long_name };
    weir_key elsewhere = { .tokens = prompt, .n_tokens = 40, .fields = &field, .n_fields = 1 };
    weir_hit hit;
    CACHE_CALL(cache, weir_cache_peek(cache, &elsewhere, &hit));
    CACHE_CALL(cache, weir_cache_peek(cache, &key, &hit));
    weir_pin pin;
    weir_pin_params pin_params;
    weir_pin_params_init(&pin_params);
    pin_params.n_tokens = 160;
    CACHE_CALL(cache, weir_cache_pin(&pin, cache, &key, &pin_params));
    weir_request request = alloc_request(400);
    /* Most recently freed objects first: those before it stay open. */
    for (int i = 2; i < 6; i++) {
        CACHE_CALL(cache, weir_seq_open(&seqs[i], cache, &key, NULL));
        CACHE_CALL(cache, weir_seq_reserve(seqs[i], &request, NULL));
    }
    weir_seq kids[3];
    weir_seq_info info;
    cr_assert(weir_seq_get_info(seqs[2], &info) == 0 && info.n_committed > 300);
    CACHE_CALL(cache, weir_seq_fork(kids, 3, seqs[2], info.n_committed - 1, NULL));
    CACHE_CALL(cache, weir_seq_truncate(seqs[3], info.n_committed - 1));
    CACHE_CALL(cache, weir_seq_reserve(seqs[3], &request, NULL));
    run_step(cache, &kids[1], NULL, 0);
    for (int i = 0; i < 3; i++)
        CACHE_CALL(cache, weir_seq_close(&kids[i]));
    for (int i = 1; i < 6; i++)
        CACHE_CALL(cache, weir_seq_close(&seqs[i]));

    /* Spans: what a commit takes for them is there since the open. */
    weir_span spans[30];
    for (size_t i = 0; i < 30; i++)
        spans[i] = (weir_span){ .first = 9 * i, .n_tokens = 7 + i % 3, .digest_bytes = 16 };
    weir_key images = { .tokens = prompt, .n_tokens = 400, .spans = spans, .n_spans = 30 };
    CACHE_CALL(cache, weir_seq_open(&seqs[1], cache, &images, NULL));
    CACHE_CALL(cache, weir_seq_reserve(seqs[1], &request, NULL));
    run_step(cache, &seqs[1], prompt, 400);
    CACHE_CALL(cache, weir_seq_close(&seqs[1]));
    CACHE_CALL(cache, weir_cache_peek(cache, &images, &hit));
    cr_assert(hit.n_tokens == 400);
    CACHE_CALL(cache, weir_cache_check(cache, NULL));
    CACHE_CALL(cache, weir_cache_unpin(&pin));
    for (int i = 0; i < 8; i++)
        run_step(cache, NULL, NULL, 0);
    cr_assert(state_of(cache).stats.demoted_pages > 0);

    /* What happens to a cache as a whole, with sequences that are open. */
    request.deadline_ns = cache_now + 2;
    for (uint32_t i = 0; i < 4; i++) {
        CACHE_CALL(cache, weir_seq_open(&seqs[i], cache, i % 2 ? &elsewhere : &key, NULL));
        request.total_tokens = i % 2 ? 40 : 400;
        CACHE_CALL(cache, weir_seq_reserve(seqs[i], &request, NULL));
    }
    CACHE_CALL(cache, weir_cache_forget(cache, &field, 1));
    CACHE_CALL(cache, weir_seq_close(&seqs[1]));
    CACHE_CALL(cache, weir_cache_forget_all(cache));
    run_step(cache, &seqs[3], prompt, 40);
    uint64_t first_step;
    CACHE_CALL(cache, weir_cache_drain(cache));
    CACHE_CALL(cache, weir_cache_resume(cache));
    CACHE_CALL(cache, weir_cache_rank_lost(cache, 0, &first_step));
    poll_cache(cache);
    CACHE_CALL(cache, weir_cache_reset(cache));
    cr_assert(state_of(cache).stats.seqs_open == 0);
    MUST_TELL(weir_cache_destroy(&cache), alloc_check_cache(cache));
    is_null(cache);
}

Test(alloc_failures, cache)
{
    for (int32_t i = 0; i < LONG_TOKENS; i++)
        prompt[i] = i + 1;
    for (size_t i = 0; weir_evict_policy_at(i); i++) {
        char name[32];
        cache_policy = weir_evict_policy_at(i)->name;
        snprintf(name, sizeof name, "cache, %s", cache_policy);
        alloc_sweep(name, cache_workload);
    }
}
