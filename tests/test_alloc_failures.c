/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_fault.h"
#include "device/cpu.h"
#include "pool/host_memory.h"
#include "transfer/geometry.h"

#include <weir/cache.h>
#include <weir/expert_cache.h>
#include <weir/gather.h>
#include <weir/lifecycle.h>
#include <weir/page_pool.h>
#include <weir/pin.h>
#include <weir/policy.h>
#include <weir/radix.h>
#include <weir/rank.h>

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

/* Each workload is run again and again, and the n-th of its allocations fails,
 * for n = 1, 2, 3 … until none has: first that one alone, then all from it on
 * until the call that is told of it. Plain conditions in cr_assert: what that
 * macro allocates and frees must not be counted here. */

static void sweep(const char *name, void (*workload)(void))
{
    static const uint64_t widths[] = { 1, ALLOC_FAULT_FOREVER };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        int64_t blocks = alloc_fault_blocks();
        int64_t mapped = alloc_fault_mapped();
        for (uint64_t n = 1;; n++) {
            alloc_fault_set(n, widths[i]);
            workload();
            alloc_fault_off();
            cr_assert(alloc_fault_blocks() == blocks, "%s: %lld blocks leak at allocation %llu",
                      name, (long long)(alloc_fault_blocks() - blocks), (unsigned long long)n);
            cr_assert(alloc_fault_mapped() == mapped, "%s: %lld bytes stay mapped at %llu", name,
                      (long long)(alloc_fault_mapped() - mapped), (unsigned long long)n);
            if (alloc_fault_struck() == 0) {
                cr_assert(n > 1, "%s: nothing is allocated", name);
                fprintf(stderr, "alloc_failures: %s: %llu points\n", name,
                        (unsigned long long)(n - 1));
                break;
            }
        }
    }
    alloc_fault_set(0, 1);
#ifdef __SANITIZE_ADDRESS__
    cr_assert(__lsan_do_recoverable_leak_check() == 0);
#endif
}

/* rc = call with counting on; `failed` is whether an allocation failed in it. */
#define COUNTED(rc, failed, call)                   \
    do {                                            \
        uint64_t struck_ = alloc_fault_struck();    \
        alloc_fault_on();                           \
        (rc) = (call);                              \
        alloc_fault_off();                          \
        (failed) = alloc_fault_struck() != struck_; \
    } while (0)

/* A call that must say -ENOMEM exactly if an allocation failed, change nothing
 * that `same` looks at, and succeed when it is made again. */
#define MUST_TELL(call, same)                                                             \
    do {                                                                                  \
        int rc_;                                                                          \
        bool failed_;                                                                     \
        COUNTED(rc_, failed_, call);                                                      \
        cr_assert(rc_ == (failed_ ? -ENOMEM : 0), "%s: %s", #call, weir_error_name(rc_)); \
        if (failed_) {                                                                    \
            alloc_fault_cure();                                                           \
            same;                                                                         \
            rc_ = (call);                                                                 \
            cr_assert(rc_ == 0, "%s, again: %s", #call, weir_error_name(rc_));            \
        }                                                                                 \
    } while (0)

/* One that may do without: it may also succeed. */
#define MAY_TELL(call)                                                                       \
    do {                                                                                     \
        int rc_;                                                                             \
        bool failed_;                                                                        \
        COUNTED(rc_, failed_, call);                                                         \
        cr_assert(rc_ == 0 || (failed_ && (rc_ == -ENOMEM || rc_ == -EIO)), "%s: %s", #call, \
                  weir_error_name(rc_));                                                     \
        if (rc_) {                                                                           \
            alloc_fault_cure();                                                              \
            rc_ = (call);                                                                    \
            cr_assert(rc_ == 0, "%s, again: %s", #call, weir_error_name(rc_));               \
        }                                                                                    \
    } while (0)

static void is_null(const void *pointer)
{
    cr_assert(pointer == NULL, "an out-parameter was written on failure");
}

/* ---- The index ------------------------------------------------------------ */

enum {
    N_ROOTS = 400, /* several growths of the table, and of the hash table's buckets */
    LONG_FIELD = 2048
};

static unsigned char long_field[LONG_FIELD];

/* The first has a name that is too long for the stack. */
static weir_field name_of(const uint32_t *i)
{
    if (*i == 0)
        return (weir_field){ .tag = 7, .bytes = LONG_FIELD, .data = long_field };
    return (weir_field){ .tag = 1, .bytes = sizeof *i, .data = i };
}

/* Roots 0..n-1 are there, that of n is not. */
static void check_roots(const weir_radix *radix, const int32_t *roots, uint32_t n)
{
    const char *reason = "";
    cr_assert(weir_radix_check(radix, &reason) == 0, "%s", reason);
    for (uint32_t i = 0; i <= n; i++) {
        weir_field field = name_of(&i);
        int32_t root = 0;
        int rc = weir_radix_find_root(radix, &field, 1, &root);
        cr_assert(i < n ? rc == 0 && root == roots[i] : rc == -ENOENT, "root %u of %u: %d", i, n,
                  rc);
    }
}

static void radix_workload(void)
{
    enum {
        T = 4,
        PAGES = 12
    };
    static int32_t roots[N_ROOTS];
    weir_radix *radix = NULL;
    MUST_TELL(weir_radix_create(&radix, T, 80, NULL), is_null(radix));
    for (uint32_t i = 0; i < N_ROOTS; i++) {
        weir_field field = name_of(&i);
        MUST_TELL(weir_radix_hold_root(radix, &field, 1, &roots[i]), check_roots(radix, roots, i));
    }
    uint32_t zero = 0;
    weir_field field = name_of(&zero);
    int32_t found = 0;
    MUST_TELL(weir_radix_find_root(radix, &field, 1, &found), cr_assert(found == 0));
    cr_assert(found == roots[0]);
    MUST_TELL(weir_radix_check(radix, NULL), (void)0);

    int32_t tokens[PAGES * T], refs[PAGES];
    for (int32_t i = 0; i < PAGES * T; i++)
        tokens[i] = i;
    uint32_t n_there;
    weir_part part = { .tokens = tokens, .n_tokens = PAGES * T };
    MUST_TELL(weir_radix_insert(radix, roots[5], &part, refs, &n_there), (void)0);
    tokens[6 * T] = -1;
    MUST_TELL(weir_radix_insert(radix, roots[5], &part, refs, &n_there), (void)0);
    cr_assert(n_there == 6);
    cr_assert(weir_radix_match(radix, roots[5], &part, refs, PAGES) == PAGES);
    for (uint32_t i = PAGES; i-- > 6;)
        MUST_TELL(weir_radix_remove(radix, refs[i]), (void)0);

    /* The first spans, and more than the first records of them. */
    weir_span spans[20] = { 0 };
    for (size_t i = 0; i < 20; i++)
        spans[i] = (weir_span){ .first = 2 * i, .n_tokens = 2, .digest_bytes = 32 };
    part.spans = spans;
    for (uint32_t i = 0; i < 5; i++) {
        part.n_spans = i + 16;
        spans[0].digest[0] = (unsigned char)i;
        MUST_TELL(weir_radix_insert(radix, roots[6], &part, refs, &n_there),
                  cr_assert(weir_radix_peek(radix, roots[6], &part, NULL, PAGES) == 0));
        cr_assert(n_there == 0);
    }
    MUST_TELL(weir_radix_hold_spans(radix, 500), cr_assert(weir_radix_spans_held(radix) == 0));
    cr_assert(weir_radix_spans_held(radix) == 500);
    weir_radix_release_spans(radix, 500);
    for (uint32_t i = 0; i < N_ROOTS; i++)
        weir_radix_release_root(radix, roots[i]);
    const char *reason = "";
    cr_assert(weir_radix_check(radix, &reason) == 0, "%s", reason);
    weir_radix_destroy(&radix);
}

Test(alloc_failures, radix)
{
    sweep("radix", radix_workload);
}

/* ---- Pools and policies --------------------------------------------------- */

static void pool_workload(void)
{
    weir_page_pool *pool = NULL;
    MUST_TELL(weir_page_pool_create(&pool, 100, true, NULL), is_null(pool));
    int32_t pages[100], owners[100];
    MUST_TELL(weir_page_pool_alloc(pool, 100, 0, 0, pages, owners), (void)0);
    for (uint32_t i = 0; i < 100; i += 3)
        MUST_TELL(weir_page_pool_free(pool, pages[i]), (void)0);
    MUST_TELL(weir_page_pool_check(pool, NULL), (void)0);
    weir_page_pool_destroy(&pool);
}

Test(alloc_failures, page_pool)
{
    sweep("page pool", pool_workload);
}

static void policies_workload(void)
{
    for (size_t i = 0; weir_evict_policy_at(i); i++) {
        const weir_evict_policy *policy = weir_evict_policy_at(i);
        void *state = NULL;
        MUST_TELL(policy->create(&state, 50), is_null(state));
        alloc_fault_on(); /* these cannot tell: they must not allocate */
        uint64_t before = alloc_fault_counted();
        for (uint32_t e = 0; e < 50; e++) {
            weir_evict_entry entry = { .entry = e, .hits = 1 + e % 3, .last_use = e + 1 };
            policy->add(state, &entry);
            policy->use(state, &entry);
        }
        policy->remove(state, 20);
        policy->forget(state, 20);
        int n = 0;
        while (policy->next(state) >= 0)
            n++;
        alloc_fault_off();
        cr_assert(alloc_fault_counted() == before, "%s allocates", policy->name);
        cr_assert(n == 49, "%s: %d entries", policy->name, n);
        policy->destroy(state);
    }
}

Test(alloc_failures, policies)
{
    sweep("policies", policies_workload);
}

/* ---- The cache ------------------------------------------------------------ */

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

static void check_cache(const weir_cache *cache)
{
    const char *reason = "";
    cr_assert(weir_cache_check(cache, &reason) == 0, "%s", reason);
}

static void check_same(const weir_cache *cache, const struct cache_state *before)
{
    struct cache_state now = state_of(cache);
    cr_assert(now.digest == before->digest, "the digest changed");
    cr_assert(memcmp(&now.stats, &before->stats, sizeof now.stats) == 0, "a counter changed");
    check_cache(cache);
}

#define CACHE_CALL(cache, call)                       \
    do {                                              \
        struct cache_state before_ = state_of(cache); \
        MUST_TELL(call, check_same(cache, &before_)); \
        check_cache(cache);                           \
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

static weir_request request_for(size_t tokens)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = tokens;
    return request;
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
        weir_request request = request_for(to);
        CACHE_CALL(cache, weir_seq_reserve(seqs[0], &request, NULL));
        run_step(cache, &seqs[0], prompt + done, to - done);
        done = to;
    }
    CACHE_CALL(cache, weir_seq_close(&seqs[0]));

    /* A hit of many pages, in an object that has held few. */
    weir_key key = { .tokens = prompt, .n_tokens = 400 };
    weir_field field = { .tag = 9, .bytes = LONG_FIELD, .data = long_field };
    weir_key elsewhere = { .tokens = prompt, .n_tokens = 40, .fields = &field, .n_fields = 1 };
    weir_hit hit;
    CACHE_CALL(cache, weir_cache_peek(cache, &elsewhere, &hit));
    CACHE_CALL(cache, weir_cache_peek(cache, &key, &hit));
    weir_pin pin;
    weir_pin_params pin_params;
    weir_pin_params_init(&pin_params);
    pin_params.n_tokens = 160;
    CACHE_CALL(cache, weir_cache_pin(&pin, cache, &key, &pin_params));
    weir_request request = request_for(400);
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
    MUST_TELL(weir_cache_destroy(&cache), check_cache(cache));
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
        sweep(name, cache_workload);
    }
}

/* ---- Geometry and host memory --------------------------------------------- */

static const uint32_t odd_layers[] = { 1, 3 };
static const weir_tensor tensors[] = {
    { .page_bytes = 2 * 8, .row_bytes = 8 },
    { .page_bytes = 2 * 3, .row_bytes = 3, .n_layers = 2, .layers = odd_layers },
};
static const weir_shape shape = {
    .page_tokens = 2, .n_layers = 4, .n_tensors = 2, .tensors = tensors
};

static void geometry_workload(void)
{
    weir_device_plane planes[6];
    for (uint64_t i = 0; i < 6; i++)
        planes[i] = (weir_device_plane){ .base = 4096 * (i + 1), .page_stride = 16 };
    for (int own = 0; own < 2; own++) {
        struct weir_geometry *geometry = NULL;
        MUST_TELL(weir_geometry_create(&geometry, &shape, own ? NULL : planes, 7,
                                       WEIR_HOST_SEGMENTED, 6, 4, NULL),
                  is_null(geometry));
        weir_geometry_destroy(&geometry);
    }
}

Test(alloc_failures, geometry)
{
    sweep("geometry", geometry_workload);
}

static weir_device *open_device(void)
{
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.seed = 11;
    weir_device *device = NULL;
    MUST_TELL(weir_cpu_device_open(&device, &params), is_null(device));
    return device;
}

static void host_memory_workload(void)
{
    weir_device *device = open_device();
    /* So many chunks that the device's table of registrations grows. A chunk
     * that is refused is tried at half the size, so that one failure is none. */
    struct weir_host_memory_params params = {
        .bytes = 3 << 20, .granule = 4096, .chunk_limit = 256 << 10, .touch_threads = 1
    };
    struct weir_host_memory *memory = NULL;
    MAY_TELL(weir_host_memory_create(&memory, device, &params, NULL));
    weir_host_memory_destroy(&memory);
    cr_assert(weir_cpu_from(device)->registrations.n == 0);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, host_memory)
{
    sweep("host memory", host_memory_workload);
}

/* ---- The CPU device ------------------------------------------------------- */

enum {
    N_STREAMS = 10, /* more than a clock has components at first */
    N_WORDS = 4,
    DEVICE_PAGES = 7,
    HOST_PAGES = 6
};

static uint32_t n_ran;

static void count_run(void *arg)
{
    (void)arg;
    n_ran++;
}

static void run_all(weir_device *device)
{
    alloc_fault_on(); /* it cannot tell; the race check may give up */
    while (weir_cpu_device_run(device, 1000) == 1000)
        continue;
    alloc_fault_off();
}

struct parts {
    weir_device *device;
    const struct weir_device_ops *ops;
    weir_stream *streams[N_STREAMS];
    weir_event *event;
    uint32_t *words, *more_words;
    uint64_t memory;
    uint32_t device_pool, host_pool;
    struct weir_geometry *geometry;
};

/* Layers that were enqueued before the failure are not enqueued again. */
static void copy_all(struct parts *p, struct weir_transfer transfer)
{
    uint32_t enqueued = 99;
    int rc;
    bool failed;
    COUNTED(rc, failed, p->ops->copy(p->device, p->streams[0], &transfer, &enqueued));
    cr_assert(rc == (failed ? -ENOMEM : 0), "copy: %s", weir_error_name(rc));
    if (rc) {
        alloc_fault_cure();
        cr_assert(enqueued < transfer.layer_end);
        transfer.layer_begin = enqueued;
        cr_assert(p->ops->copy(p->device, p->streams[0], &transfer, &enqueued) == 0);
    }
    cr_assert(enqueued == transfer.layer_end);
}

static void enqueue_all(struct parts *p)
{
    weir_cpu_access accesses[8];
    for (size_t i = 0; i < 8; i++)
        accesses[i] = (weir_cpu_access){ .pool = p->device_pool, .page = 1 + (int32_t)i % 7 };
    n_ran = 0;
    for (int i = 0; i < N_STREAMS; i++)
        MUST_TELL(
            weir_cpu_launch(p->device, p->streams[i], count_run, NULL, accesses, (size_t)(i % 8)),
            (void)0);
    MUST_TELL(p->ops->event_record(p->device, p->event, p->streams[1]), (void)0);
    MUST_TELL(p->ops->stream_wait_event(p->device, p->streams[2], p->event), (void)0);
    MUST_TELL(p->ops->stream_write_word(p->device, p->streams[2], p->words, 5), (void)0);
    MUST_TELL(p->ops->stream_wait_word(p->device, p->streams[3], p->words, 5), (void)0);
    MUST_TELL(weir_cpu_launch(p->device, p->streams[3], count_run, NULL, NULL, 0), (void)0);
}

static void load_and_write_back(struct parts *p)
{
    struct weir_run runs[] = { { 1, 1, 2 }, { 5, 4, 1 } };
    struct weir_transfer transfer = { .geometry = p->geometry,
                                      .runs = runs,
                                      .n_runs = 2,
                                      .direction = WEIR_LOAD,
                                      .layer_end = shape.n_layers,
                                      .words = p->more_words,
                                      .generation = 3,
                                      .device_pool = p->device_pool,
                                      .host_pool = p->host_pool };
    copy_all(p, transfer);
    transfer.direction = WEIR_WRITE_BACK;
    transfer.words = NULL;
    copy_all(p, transfer);
}

static _Alignas(4096) unsigned char host_bytes[1 << 16];

static void open_parts(struct parts *p)
{
    weir_device *device = p->device = open_device();
    p->ops = device->ops;
    /* Streams whose marks are in flight while the clocks grow. */
    for (int i = 0; i < N_STREAMS; i++) {
        MUST_TELL(weir_cpu_stream_create(device, &p->streams[i]), is_null(p->streams[i]));
        if (i == 0)
            MUST_TELL(p->ops->event_create(device, &p->event), is_null(p->event));
        MUST_TELL(p->ops->event_record(device, p->event, p->streams[i]), (void)0);
    }
    MUST_TELL(p->ops->words_alloc(device, N_WORDS, &p->words), is_null(p->words));
    MUST_TELL(p->ops->words_alloc(device, N_WORDS, &p->more_words), is_null(p->more_words));
    MUST_TELL(weir_geometry_create(&p->geometry, &shape, NULL, DEVICE_PAGES, WEIR_HOST_LAYER_FIRST,
                                   HOST_PAGES, 0, NULL),
              is_null(p->geometry));
    MUST_TELL(p->ops->memory_alloc(device, weir_geometry_device_bytes(p->geometry), &p->memory),
              cr_assert(p->memory == 0));
    MUST_TELL(p->ops->host_register(device, host_bytes, sizeof host_bytes), (void)0);
    weir_geometry_bind(p->geometry, p->memory, (uintptr_t)host_bytes, sizeof host_bytes);
    MUST_TELL(p->ops->pool_register(device, DEVICE_PAGES, shape.n_tensors, shape.n_layers,
                                    &p->device_pool),
              cr_assert(p->device_pool == 0));
    MUST_TELL(
        p->ops->pool_register(device, HOST_PAGES, shape.n_tensors, shape.n_layers, &p->host_pool),
        cr_assert(p->host_pool == 0));
}

static void close_parts(struct parts *p)
{
    p->ops->pool_unregister(p->device, p->host_pool);
    p->ops->pool_unregister(p->device, p->device_pool);
    p->ops->host_unregister(p->device, host_bytes);
    p->ops->memory_free(p->device, p->memory);
    p->ops->words_free(p->device, p->more_words);
    p->ops->words_free(p->device, p->words);
    p->ops->event_destroy(p->device, p->event);
    for (int i = 0; i < N_STREAMS; i++) {
        alloc_fault_on();
        weir_cpu_stream_destroy(p->device, &p->streams[i]);
        alloc_fault_off();
    }
    weir_geometry_destroy(&p->geometry);
    cr_assert(weir_device_close(&p->device) == 0);
}

static void device_workload(void)
{
    struct parts p = { 0 };
    open_parts(&p);
    MUST_TELL(weir_cpu_device_fail(p.device, WEIR_CPU_CALL_MEMORY_ALLOC, 9, -EIO), (void)0);
    weir_cpu_device_release(p.device);
    enqueue_all(&p);
    run_all(p.device);
    cr_assert(n_ran == N_STREAMS + 1, "%u of the launches ran", n_ran);
    cr_assert(p.words[0] == 5);
    for (int i = 0; i < N_STREAMS; i++)
        MUST_TELL(weir_cpu_stream_synchronize(p.device, p.streams[i]), (void)0);
    load_and_write_back(&p);
    run_all(p.device);
    for (uint32_t i = 0; i < shape.n_layers; i++)
        cr_assert(p.more_words[i] == 3, "layer %u was not published", i);
    cr_assert(weir_cpu_device_races(p.device) == 0, "a race that is none");
    close_parts(&p);
}

Test(alloc_failures, cpu_device)
{
    sweep("cpu device", device_workload);
}

/* Streams that cannot be had for want of memory, the clocks half grown: those that are
 * there go on. */
static void stunted_workload(void)
{
    weir_device *device = open_device();
    const struct weir_device_ops *ops = device->ops;
    weir_stream *streams[N_STREAMS] = { NULL };
    weir_event *event;
    cr_assert(ops->event_create(device, &event) == 0);
    int n = 0;
    for (bool failed = false; n < N_STREAMS && !failed; n += !failed) {
        int rc;
        COUNTED(rc, failed, weir_cpu_stream_create(device, &streams[n]));
        cr_assert(rc == (failed ? -ENOMEM : 0));
        if (!failed)
            cr_assert(ops->event_record(device, event, streams[n]) == 0);
    }
    alloc_fault_cure();
    for (int i = 0; i < 2 * n; i++) {
        cr_assert(ops->stream_wait_event(device, streams[i % n], event) == 0);
        cr_assert(ops->event_record(device, event, streams[i % n]) == 0);
    }
    run_all(device);
    for (int i = 0; i < n; i++)
        weir_cpu_stream_destroy(device, &streams[i]);
    ops->event_destroy(device, event);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, cpu_device_that_cannot_grow)
{
    sweep("cpu device that cannot grow", stunted_workload);
}

/* ---- Gather ---------------------------------------------------------------- */

static void gather_workload(void)
{
    static uint64_t banks[2][4] = { { 0 }, { 1, 2, 3, 4 } };
    static const int32_t dst_rows[] = { 3, 0 };
    static const int32_t src_rows[] = { 1, 2 };
    const weir_bank bank = {
        .dst = (uintptr_t)banks[0], .src = (uintptr_t)banks[1], .row_bytes = 8, .dst_rows = 4
    };
    weir_device *device = open_device();
    weir_stream *stream = NULL;
    MUST_TELL(weir_cpu_stream_create(device, &stream), is_null(stream));
    weir_gather_params params;
    weir_gather_params_init(&params);
    params.banks = &bank;
    params.n_banks = 1;
    params.max_count = 2;
    weir_gather *gather = NULL;
    MUST_TELL(weir_gather_create(&gather, device, &params), is_null(gather));
    const weir_gather_rows rows = { dst_rows, src_rows, NULL, 2 };
    memset(banks[0], 0, sizeof banks[0]);
    MUST_TELL(weir_gather_launch(gather, &rows, NULL, stream), (void)0);
    run_all(device);
    cr_assert(banks[0][3] == 2 && banks[0][0] == 3 && banks[0][1] == 0);
    weir_gather_destroy(&gather);
    weir_cpu_stream_destroy(device, &stream);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, gather)
{
    sweep("gather", gather_workload);
}

/* ---- Expert cache ---------------------------------------------------------- */

static void expert_cache_workload(void)
{
    static const int32_t ids[] = { 3, 1, 3 };
    int32_t slots[3] = { 9, 9, 9 };
    weir_device *device = open_device();
    weir_stream *stream = NULL;
    MUST_TELL(weir_cpu_stream_create(device, &stream), is_null(stream));
    weir_expert_cache_params params;
    weir_expert_cache_params_init(&params);
    params.n_experts = 4;
    params.n_slots = 2;
    params.max_ids = 3;
    weir_expert_cache *cache = NULL;
    MUST_TELL(weir_expert_cache_create(&cache, device, &params), is_null(cache));
    const weir_expert_ids call = { 0, 3, ids, slots };
    MUST_TELL(weir_expert_cache_ensure(cache, &call, stream), (void)0);
    run_all(device);
    cr_assert(slots[0] == 1 && slots[1] == 0 && slots[2] == 1);
    weir_expert_cache_destroy(&cache);
    weir_cpu_stream_destroy(device, &stream);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, expert_cache)
{
    sweep("expert cache", expert_cache_workload);
}

/* ---- A rank, its cache and a round trip ----------------------------------- */

enum {
    RT = 2, /* page_tokens of the shape */
    ROUND_DEVICE = 6,
    ROUND_HOST = 12,
    ROUND_PAGES = 4, /* of a prompt, beside its tail */
    KERNELS = 256
};

struct kernel {
    const weir_rank *rank;
    int32_t page;
    uint32_t layer;
    unsigned char value;
    bool fill;
    bool ran;
    uint32_t wrong;
};

struct trip {
    weir_device *device;
    weir_rank *rank;
    weir_cache *cache;
    weir_stream *stream;
    struct kernel kernels[KERNELS];
    uint32_t n_kernels;
    bool load_failed;
};

static void run_kernel(void *arg)
{
    struct kernel *k = arg;
    k->ran = true;
    for (uint32_t t = 0; t < shape.n_tensors; t++) {
        uint64_t address =
            weir_rank_device_address(k->rank, t, k->layer, (weir_device_page){ k->page });
        unsigned char *piece = (unsigned char *)(uintptr_t)address;
        for (uint64_t i = 0; piece && i < tensors[t].page_bytes; i++) {
            unsigned char value = (unsigned char)(k->value + 31 * t + 7 * k->layer + i);
            if (k->fill)
                piece[i] = value;
            else
                k->wrong += piece[i] != value;
        }
    }
}

static void launch(struct trip *w, int32_t page, uint32_t layer, unsigned char value, bool fill)
{
    cr_assert(w->n_kernels < KERNELS);
    struct kernel *k = &w->kernels[w->n_kernels++];
    *k = (struct kernel){
        .rank = w->rank, .page = page, .layer = layer, .value = value, .fill = fill
    };
    weir_cpu_access accesses[2];
    size_t n = 0;
    for (uint32_t t = 0; t < shape.n_tensors; t++)
        if (weir_rank_device_address(w->rank, t, layer, (weir_device_page){ page }))
            accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(w->rank),
                                               .page = page,
                                               .tensor = (uint16_t)t,
                                               .layer = (uint16_t)layer,
                                               .write = fill };
    MUST_TELL(weir_cpu_launch(w->device, w->stream, run_kernel, k, accesses, n), (void)0);
}

/* All that can run, then the rank's reports. The cache refuses one that names
 * what is not in flight: so none comes twice. */
static void carry(struct trip *w)
{
    run_all(w->device);
    uint64_t report[64];
    size_t bytes;
    int rc;
    bool failed;
    do {
        COUNTED(rc, failed, weir_rank_report(w->rank, report, sizeof report, &bytes));
        (void)failed; /* nothing that it does needs memory to succeed */
        cr_assert(rc == 0, "report: %s", weir_error_name(rc));
        if (bytes > 0)
            cr_assert(weir_cache_report(w->cache, 0, report, bytes) == 0, "a report is refused");
    } while (bytes > 0);
    weir_cache_event events[8];
    size_t n;
    cr_assert(weir_cache_poll(w->cache, 1, events, 8, &n) == 0);
    for (size_t i = 0; i < n; i++)
        w->load_failed |= events[i].kind == WEIR_EVENT_LOAD_FAILED;
    check_cache(w->cache);
}

/* A step of one sequence, or of none: reads the hit, fills the rest. */
static void trip_step(struct trip *w, const weir_seq *seq, unsigned char letter, size_t hit_pages)
{
    weir_step step;
    cr_assert(weir_step_begin(&step, w->cache) == 0, "the last step is not retired");
    int32_t table[ROUND_DEVICE];
    size_t n_pages = 0;
    if (seq) {
        weir_seq_info info;
        cr_assert(weir_step_add(step, *seq) == 0);
        cr_assert(weir_seq_pages(*seq, 0, RT, table, ROUND_DEVICE, &n_pages) == 0);
        cr_assert(weir_seq_get_info(*seq, &info) == 0);
        cr_assert(weir_seq_commit(*seq, NULL, info.n_tokens - info.n_committed) == 0);
    }
    const void *order;
    size_t bytes;
    uint64_t number;
    cr_assert(weir_step_end(&step, &order, &bytes) == 0);
    MAY_TELL(weir_rank_begin(w->rank, order, bytes, 0, w->stream, &number));
    for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
        MAY_TELL(weir_rank_wait_layer(w->rank, number, layer, w->stream));
        for (size_t i = 0; i < n_pages; i++)
            launch(w, table[i], layer, (unsigned char)(letter + 50 * i), i >= hit_pages);
    }
    int rc;
    bool failed;
    COUNTED(rc, failed, weir_rank_end(w->rank, number, w->stream));
    (void)failed; /* is reported, not returned */
    cr_assert(rc == 0, "end: %s", weir_error_name(rc));
}

static weir_stats trip_stats(const struct trip *w)
{
    weir_stats stats = { .struct_size = sizeof stats };
    cr_assert(weir_cache_get_stats(w->cache, &stats) == 0);
    return stats;
}

/* Until nothing is in flight: a while without memory, then with it. */
static void settle(struct trip *w)
{
    for (int i = 0; i < 12; i++) {
        weir_stats stats = trip_stats(w);
        if (stats.orders_in_flight + stats.write_backs_in_flight == 0)
            return;
        if (i == 4)
            alloc_fault_cure();
        carry(w);
    }
    cr_assert(false, "something never ends");
}

static void settle_writes(struct trip *w)
{
    settle(w);
    for (int i = 0; i < 4; i++) {
        trip_step(w, NULL, 0, 0);
        settle(w);
    }
}

/* Computes a prompt, or what the index does not hold of it. */
static void serve(struct trip *w, int32_t letter, size_t n_pages)
{
    int32_t tokens[(ROUND_DEVICE + 1) * RT];
    for (size_t i = 0; i < n_pages * RT; i++)
        tokens[i] = letter * 1000 + (int32_t)i;
    weir_key key = { .tokens = tokens, .n_tokens = n_pages * RT };
    weir_seq seq;
    cr_assert(weir_seq_open(&seq, w->cache, &key, NULL) == 0);
    weir_request request = request_for(key.n_tokens);
    weir_reserved reserved;
    cr_assert(weir_seq_reserve(seq, &request, &reserved) == 0);
    w->load_failed = false;
    uint32_t first = w->n_kernels;
    trip_step(w, &seq, (unsigned char)letter, reserved.hit.n_tokens / RT);
    settle(w);
    for (uint32_t i = first; i < w->n_kernels; i++) {
        const struct kernel *k = &w->kernels[i];
        cr_assert(k->ran, "kernel %u never ran", i);
        cr_assert(k->wrong == 0 || w->load_failed, "page %d, layer %u: %u wrong bytes", k->page,
                  k->layer, k->wrong);
    }
    cr_assert(weir_seq_close(&seq) == 0);
    settle_writes(w);
}

static bool captured_waits;
static bool with_share; /* and with checksums */

static void trip_open(struct trip *w)
{
    w->device = open_device();
    MUST_TELL(weir_cpu_stream_create(w->device, &w->stream), is_null(w->stream));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.device_pages = ROUND_DEVICE;
    params.host_pages = ROUND_HOST;
    params.max_steps = 2;
    params.max_write_backs = 2;
    params.touch_threads = 1;
    params.captured_waits = captured_waits;
    weir_tensor replicated[2] = { tensors[0], tensors[1] };
    replicated[1].replicated = with_share;
    weir_shape mixed = shape;
    mixed.tensors = replicated;
    params.shape = &mixed;
    params.checksums = with_share;
    if (with_share)
        MUST_TELL(weir_host_share_create(&params.share, 1, NULL), is_null(params.share));
    MAY_TELL(weir_rank_open(&w->rank, w->device, &params));
    weir_host_share_close(&params.share); /* the rank holds on to it */
    weir_cache_params cache;
    weir_cache_params_init(&cache);
    cache.page_tokens = RT;
    cache.device_pages = ROUND_DEVICE;
    cache.host_pages = ROUND_HOST;
    cache.max_steps = 2;
    cache.max_write_backs = 2;
    cache.max_seqs = 2;
    cr_assert(weir_cache_create(&w->cache, &cache) == 0);
}

/* Of the last workload; of all of them. */
static uint64_t pages_loaded, loads_failed, writes_failed;

/* The sweep has met what it is about. */
static void check_met(void)
{
    cr_assert(pages_loaded > 0, "without a failure nothing was loaded");
    cr_assert(loads_failed > 0, "no failure struck a load");
    cr_assert(writes_failed > 0, "no failure struck a write-back");
}

static void rank_workload(void)
{
    static struct trip w;
    w = (struct trip){ 0 };
    trip_open(&w);
    serve(&w, 1, ROUND_PAGES + 1);
    serve(&w, 2, ROUND_DEVICE); /* takes the first one's device pages */
    serve(&w, 1, ROUND_PAGES + 1);
    serve(&w, 1, ROUND_PAGES + 1);
    pages_loaded = trip_stats(&w).loaded_pages;
    loads_failed += trip_stats(&w).load_failed_pages;
    writes_failed += trip_stats(&w).write_failed_pages;
    cr_assert(weir_cpu_device_races(w.device) == 0, "a race that is none");
    cr_assert(weir_cache_destroy(&w.cache) == 0);
    alloc_fault_on();
    weir_rank_close(&w.rank);
    weir_cpu_stream_destroy(w.device, &w.stream);
    alloc_fault_off();
    cr_assert(weir_cpu_from(w.device)->registrations.n == 0);
    cr_assert(weir_device_close(&w.device) == 0);
}

Test(alloc_failures, rank)
{
    sweep("rank", rank_workload);
    check_met();
}

Test(alloc_failures, rank_with_captured_waits)
{
    captured_waits = true;
    sweep("rank, captured waits", rank_workload);
    check_met();
}

Test(alloc_failures, rank_with_a_share_and_checksums)
{
    with_share = true;
    sweep("rank, share and checksums", rank_workload);
    check_met();
}

/* Closed while the step's end, which writes a word of the rank's, has not run. */
static void close_workload(void)
{
    static struct trip w;
    w = (struct trip){ 0 };
    trip_open(&w);
    trip_step(&w, NULL, 0, 0);
    alloc_fault_on();
    weir_rank_close(&w.rank);
    alloc_fault_off();
    alloc_fault_cure();
    run_all(w.device);
    cr_assert(weir_cpu_stream_synchronize(w.device, w.stream) == 0);
    weir_cpu_stream_destroy(w.device, &w.stream);
    cr_assert(weir_device_close(&w.device) == 0);

    uint64_t report[8];
    size_t bytes;
    weir_report_item item = { .number = 1, .kind = WEIR_REPORT_STEP };
    cr_assert(weir_report_encode(&item, 1, report, sizeof report, &bytes, NULL) == 0);
    cr_assert(weir_cache_report(w.cache, 0, report, bytes) == 0);
    cr_assert(weir_cache_destroy(&w.cache) == 0);
}

Test(alloc_failures, rank_closed_at_once)
{
    captured_waits = false;
    sweep("rank, closed at once", close_workload);
}
