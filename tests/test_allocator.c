/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_fault.h"
#include "log_capture.h"

#include <weir/cache.h>
#include <weir/cpu_device.h>
#include <weir/order.h>
#include <weir/page_pool.h>
#include <weir/pin.h>
#include <weir/radix.h>
#include <weir/rank.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Plain conditions in cr_assert where allocations are counted: what the newer
 * macros allocate must not be. */

/* ---- Hooks that remember -------------------------------------------------- */

#define HEADER 16u /* keeps the size, and the alignment of any type */

struct hooks {
    size_t bytes; /* out now */
    uint64_t n_allocs;
    uint64_t fails_at; /* 0: never */
};

static void *hook_alloc(void *user, size_t bytes)
{
    struct hooks *hooks = user;
    cr_assert(bytes > 0);
    if (++hooks->n_allocs == hooks->fails_at)
        return NULL;
    alloc_fault_off();
    unsigned char *block = malloc(HEADER + bytes);
    cr_assert(block != NULL);
    alloc_fault_on();
    memcpy(block, &bytes, sizeof bytes);
    memset(block + HEADER, 0xa5, bytes);
    hooks->bytes += bytes;
    return block + HEADER;
}

static void hook_free(void *user, void *block, size_t bytes)
{
    struct hooks *hooks = user;
    size_t was;
    cr_assert(block != NULL);
    memcpy(&was, (unsigned char *)block - HEADER, sizeof was);
    cr_assert(was == bytes, "a block of %zu bytes comes back as one of %zu", was, bytes);
    hooks->bytes -= bytes;
    free((unsigned char *)block - HEADER);
}

static weir_allocator allocator_of(struct hooks *hooks)
{
    return (weir_allocator){ hook_alloc, hook_free, hooks };
}

/* ---- Index and pool by themselves ----------------------------------------- */

Test(allocator, of_a_radix)
{
    struct hooks hooks = { 0 };
    weir_allocator allocator = allocator_of(&hooks);
    weir_radix *radix;
    alloc_fault_set(0, 1);
    alloc_fault_on();
    cr_assert(weir_radix_create(&radix, 4, 100, &allocator) == 0);
    int32_t root, tokens[80] = { 0 }, refs[20];
    char name[300] = "a long namespace";
    weir_field field = { 1, sizeof name, name };
    weir_span spans[40] = { { 0 } };
    weir_part part = { .tokens = tokens, .n_tokens = 80, .spans = spans, .n_spans = 40 };
    for (size_t i = 0; i < 40; i++)
        spans[i] = (weir_span){ .first = 2 * i, .n_tokens = 1, .digest_bytes = 16 };
    uint32_t n_there;
    for (int i = 0; i < 5; i++) {
        name[20] = spans[0].digest[0] = (char)i;
        cr_assert(weir_radix_hold_root(radix, &field, 1, &root) == 0);
        cr_assert(weir_radix_insert(radix, root, &part, refs, &n_there) == 0);
        cr_assert(weir_radix_bytes(radix) == hooks.bytes);
    }
    weir_radix_destroy(&radix);
    alloc_fault_off();
    cr_expect(alloc_fault_counted() == 0, "nothing goes past the hooks");
    cr_expect(hooks.bytes == 0 && hooks.n_allocs > 10);
}

Test(allocator, of_a_page_pool)
{
    for (int keeps_steps = 0; keeps_steps < 2; keeps_steps++) {
        struct hooks hooks = { 0 };
        weir_allocator allocator = allocator_of(&hooks);
        weir_page_pool *pool;
        weir_step_set set = { 7, 1 };
        alloc_fault_set(0, 1);
        alloc_fault_on();
        cr_assert(weir_page_pool_create(&pool, 1000, keeps_steps, &allocator) == 0);
        cr_assert(weir_page_pool_bytes(pool) == hooks.bytes);
        cr_assert(hooks.bytes < (keeps_steps ? 40 : 24) * 1000u + 2000);
        cr_assert(weir_page_pool_add_steps(pool, 3, &set) == (keeps_steps ? 0 : -ENOTSUP));
        cr_assert(weir_page_pool_steps(pool, 3).newest == (keeps_steps ? 7 : 0));
        weir_page_pool_destroy(&pool);
        alloc_fault_off();
        cr_expect(alloc_fault_counted() == 0 && hooks.bytes == 0);
    }
}

/* ---- A cache --------------------------------------------------------------- */

enum {
    PAGE_TOKENS = 16,
    PROMPT = 40 * PAGE_TOKENS,
    N_SEQS = 8,
    N_PINS = 3
};

struct server {
    struct log_capture log;
    weir_cache *cache;
    weir_seq seqs[N_SEQS];
    weir_pin pins[N_PINS];
    uint64_t now;
    uint64_t n_pinned;
    uint32_t n_requests;
    int32_t tokens[PROMPT];
};

static weir_cache_params params_of(struct server *s, const struct hooks *hooks)
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = PAGE_TOKENS;
    params.device_pages = 300;
    params.host_pages = 600;
    params.max_seqs = 64;
    params.priorities = 2;
    params.max_pins = N_PINS;
    params.host_drops_duplicates = true;
    params.log = log_capture_log(&s->log);
    if (hooks)
        params.allocator = allocator_of((struct hooks *)hooks);
    return params;
}

static void carry(struct server *s, weir_step *step)
{
    const void *order;
    size_t bytes, n;
    uint64_t report[16];
    weir_cache_event events[16];
    cr_assert(weir_step_end(step, &order, &bytes) == 0);
    cr_assert(weir_order_acknowledge(order, bytes, report, sizeof report, &bytes, NULL) == 0);
    cr_assert(weir_cache_report(s->cache, 0, report, bytes) == 0);
    cr_assert(weir_cache_poll(s->cache, ++s->now, events, 16, &n) == 0);
}

/* Lets go of the pin that is the oldest, and pins what the index holds of a key. */
static void pin(struct server *s, const weir_key *key)
{
    weir_pin *pin = &s->pins[s->n_requests % N_PINS];
    weir_pin_params params;
    weir_pin_params_init(&params);
    params.n_tokens = 12 * PAGE_TOKENS;
    cr_assert(weir_cache_unpin(pin) == 0);
    int rc = weir_cache_pin(pin, s->cache, key, &params);
    cr_assert(rc == 0 || rc == -ENOENT);
    s->n_pinned += rc == 0;
}

/* A request of a few turns of one of 50 chats, the first ones more often, with an image and a
 * namespace for some, and a priority for a while or for ever; it is computed in two steps, and
 * stays open while seven others come. The prompt of some is pinned. */
static void serve(struct server *s)
{
    uint32_t i = s->n_requests++;
    uint32_t random = (i * 2654435761u) >> 8;
    uint32_t chat = random % 50 * (random / 50 % 50) / 50, tenant = chat % 2;
    uint32_t turns = 1 + i * 11 % 4;
    size_t n = turns * 9 * PAGE_TOKENS + 5, n_key = n - 20;
    for (size_t k = 0; k < n; k++)
        s->tokens[k] = k < 3 * PAGE_TOKENS ? (int32_t)k : (int32_t)(chat * 100000 + k);
    weir_field field = { 3, sizeof tenant, &tenant };
    weir_span image = { .first = 50, .n_tokens = 60, .digest_bytes = 16 };
    image.digest[3] = (unsigned char)chat;
    weir_key key = { .tokens = s->tokens, .n_tokens = n_key, .fields = &field };
    key.n_fields = chat % 3 == 1;
    key.spans = &image;
    key.n_spans = chat % 3 == 1;

    weir_seq *seq = &s->seqs[i % N_SEQS];
    cr_assert(weir_seq_close(seq) == 0);
    weir_seq_params seq_params;
    weir_seq_params_init(&seq_params);
    seq_params.priority = i % 3;
    seq_params.ttl_ns = i % 5 * 20; /* polls */
    cr_assert(weir_seq_open(seq, s->cache, &key, &seq_params) == 0);
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = n;
    int rc;
    weir_step step;
    while ((rc = weir_seq_reserve(*seq, &request, NULL)) == -EAGAIN) {
        cr_assert(weir_step_begin(&step, s->cache) == 0);
        carry(s, &step);
    }
    cr_assert(rc == 0, "request %u: %d", i, rc);
    weir_seq_info info;
    while (weir_seq_get_info(*seq, &info) == 0 && info.n_committed < n) {
        size_t rest = n - info.n_committed;
        cr_assert(weir_step_begin(&step, s->cache) == 0);
        cr_assert(weir_step_add(step, *seq) == 0);
        cr_assert(weir_seq_commit(*seq, s->tokens + info.n_committed, rest > 60 ? 60 : rest) == 0);
        carry(s, &step);
    }
    if (i % 7 == 0)
        pin(s, &key);
}

static void stop(struct server *s)
{
    for (int i = 0; i < N_PINS; i++)
        cr_assert(weir_cache_unpin(&s->pins[i]) == 0);
    for (int i = 0; i < N_SEQS; i++)
        cr_assert(weir_seq_close(&s->seqs[i]) == 0);
    for (int i = 0; i < 20; i++) {
        weir_step step;
        cr_assert(weir_step_begin(&step, s->cache) == 0);
        carry(s, &step);
    }
    const char *reason = "";
    cr_assert(weir_cache_check(s->cache, &reason) == 0, "%s", reason);
    cr_assert(weir_cache_destroy(&s->cache) == 0);
}

static uint64_t index_bytes(const struct server *s)
{
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(weir_cache_get_stats(s->cache, &stats) == 0);
    return stats.index_bytes;
}

Test(allocator, of_a_cache_with_each_policy)
{
    for (size_t i = 0; weir_evict_policy_at(i); i++) {
        static struct server s;
        struct hooks hooks = { 0 };
        s = (struct server){ 0 };
        weir_cache_params params = params_of(&s, &hooks);
        params.eviction = weir_evict_policy_at(i)->name;
        alloc_fault_set(0, 1);
        alloc_fault_on();
        cr_assert(weir_cache_create(&s.cache, &params) == 0);
        cr_assert(index_bytes(&s) == hooks.bytes);
        for (int k = 0; k < 60; k++) {
            serve(&s);
            cr_assert(index_bytes(&s) == hooks.bytes, "%s, request %d", params.eviction, k);
        }
        stop(&s);
        alloc_fault_off();
        cr_expect(alloc_fault_counted() == 0, "%s: nothing goes past the hooks", params.eviction);
        cr_expect(hooks.bytes == 0, "%s: %zu bytes stay", params.eviction, hooks.bytes);
    }
}

Test(allocator, of_a_cache_that_gets_no_memory)
{
    for (uint64_t at = 1;; at++) {
        static struct server s;
        struct hooks hooks = { .fails_at = at };
        s = (struct server){ 0 };
        weir_cache_params params = params_of(&s, &hooks);
        int rc = weir_cache_create(&s.cache, &params);
        if (rc == 0) {
            cr_assert(at > 20);
            cr_assert(weir_cache_destroy(&s.cache) == 0);
            cr_assert(hooks.bytes == 0);
            break;
        }
        cr_assert(rc == -ENOMEM && s.cache == NULL && hooks.bytes == 0);
    }
    alloc_fault_off();
}

/* A caller's own policy, made from one that is built in: where it has no
 * create_in its state is the caller's matter; where it has, the cache counts. */
static int own_create_in(void **state, uint32_t capacity, const weir_allocator *allocator)
{
    void *block = allocator->alloc(allocator->user, 12345);
    if (!block)
        return -ENOMEM;
    allocator->free(allocator->user, block, 12345);
    return weir_evict_policy_find("lru")->create_in(state, capacity, allocator);
}

Test(allocator, of_a_callers_own_policy)
{
    uint64_t bytes[3];
    for (int i = 0; i < 3; i++) {
        static struct server s;
        struct hooks hooks = { 0 };
        s = (struct server){ 0 };
        weir_cache_params params = params_of(&s, &hooks);
        weir_evict_policy own = *weir_evict_policy_find("lru");
        own.create_in = i == 0 ? NULL : i == 1 ? own_create_in : own.create_in;
        params.eviction_policy = &own;
        cr_assert(weir_cache_create(&s.cache, &params) == 0);
        bytes[i] = index_bytes(&s);
        for (int k = 0; k < 60; k++)
            serve(&s);
        stop(&s);
        cr_assert(hooks.bytes == 0);
    }
    alloc_fault_off();
    cr_expect(bytes[0] < bytes[1] && bytes[1] == bytes[2]);
}

Test(allocator, half_of_one_is_refused)
{
    struct hooks hooks = { 0 };
    for (int i = 0; i < 2; i++) {
        static struct server s;
        s = (struct server){ 0 };
        weir_allocator half = allocator_of(&hooks);
        if (i)
            half.alloc = NULL;
        else
            half.free = NULL;
        weir_cache_params params = params_of(&s, NULL);
        params.allocator = half;
        cr_expect(eq(int, weir_cache_create(&s.cache, &params), -EINVAL));
        cr_expect(eq(uint, s.log.lines, 1));
        weir_radix *radix = NULL;
        cr_expect(eq(int, weir_radix_create(&radix, 4, 4, &half), -EINVAL));
        weir_page_pool *pool = NULL;
        cr_expect(eq(int, weir_page_pool_create(&pool, 4, false, &half), -EINVAL));
        for (size_t k = 0; weir_evict_policy_at(k); k++) {
            void *state = NULL;
            cr_expect(eq(int, weir_evict_policy_at(k)->create_in(&state, 4, &half), -EINVAL));
        }
    }
    cr_expect(zero(u64, hooks.n_allocs));
}

/* ---- A rank ---------------------------------------------------------------- */

Test(allocator, of_a_rank)
{
    static const weir_tensor tensors[] = { { .page_bytes = 64, .row_bytes = 16 } };
    weir_shape shape = { .page_tokens = 4, .n_layers = 3, .n_tensors = 1, .tensors = tensors };
    struct hooks hooks = { 0 };
    struct log_capture log = { 0 };
    weir_device *device;
    weir_cpu_device_params device_params;
    weir_cpu_device_params_init(&device_params);
    cr_assert(weir_cpu_device_open(&device, &device_params) == 0);
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = 50;
    params.host_pages = 70;
    params.log = log_capture_log(&log);
    params.allocator = allocator_of(&hooks);
    params.allocator.free = NULL;
    weir_rank *rank = NULL;
    cr_expect(eq(int, weir_rank_open(&rank, device, &params), -EINVAL));
    cr_expect(eq(uint, log.lines, 1));
    params.allocator.free = hook_free;
    uint64_t fails_at = 1;
    for (;; fails_at++) {
        hooks = (struct hooks){ .fails_at = fails_at };
        int rc = weir_rank_open(&rank, device, &params);
        alloc_fault_off();
        if (rc == 0)
            break;
        cr_assert(rc == -ENOMEM && rank == NULL && hooks.bytes == 0, "%llu: %d",
                  (unsigned long long)fails_at, rc);
    }
    cr_expect(lt(u64, 10, fails_at));
    weir_rank_memory memory;
    weir_rank_get_memory(rank, &memory);
    cr_expect(eq(u64, memory.other_bytes, hooks.bytes));
    weir_rank_close(&rank);
    cr_expect(zero(sz, hooks.bytes));
    cr_assert(weir_device_close(&device) == 0);
}

/* ---- Steady state ---------------------------------------------------------- */

/* A server that has seen its load runs on without one allocation. */
Test(allocator, ten_thousand_requests_allocate_nothing)
{
    static struct server s;
    weir_cache_params params = params_of(&s, NULL);
    cr_assert(weir_cache_create(&s.cache, &params) == 0);
    for (int i = 0; i < 1500; i++)
        serve(&s);
    uint64_t bytes = index_bytes(&s);
    alloc_fault_set(0, 1);
    alloc_fault_on();
    for (int i = 0; i < 10000; i++)
        serve(&s);
    alloc_fault_off();
    cr_assert(alloc_fault_counted() == 0, "%llu allocations",
              (unsigned long long)alloc_fault_counted());
    cr_assert(index_bytes(&s) == bytes);
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(weir_cache_get_stats(s.cache, &stats) == 0);
    uint64_t seen[] = { stats.hit_pages_device,     stats.hit_pages_host,     stats.loaded_pages,
                        stats.written_pages,        stats.evicted_host_pages, stats.dropped_pages,
                        stats.evicted_device_pages, stats.demoted_pages,      s.n_pinned };
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        cr_assert(seen[i] > 1000, "count %zu is %llu: not a load that does everything", i,
                  (unsigned long long)seen[i]);
    stop(&s);
}
