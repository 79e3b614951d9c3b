/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_sweep.h"
#include "device/cpu.h"
#include "pool/host_memory.h"
#include "transfer/geometry.h"

#include <weir/expert_cache.h>
#include <weir/gather.h>
#include <weir/page_pool.h>
#include <weir/policy.h>
#include <weir/radix.h>

#include <string.h>

/* ---- The index ------------------------------------------------------------ */

enum {
    N_ROOTS = 400 /* several growths of the table, and of the hash table's buckets */
};

/* The first has a name that is too long for the stack. */
static weir_field name_of(const uint32_t *i)
{
    if (*i == 0)
        return (weir_field){ .tag = 7, .bytes = ALLOC_LONG_NAME, .data = alloc_long_name };
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
    alloc_sweep("radix", radix_workload);
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
    alloc_sweep("page pool", pool_workload);
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
    alloc_sweep("policies", policies_workload);
}

/* ---- Geometry and host memory --------------------------------------------- */

static void geometry_workload(void)
{
    weir_device_plane planes[6];
    for (uint64_t i = 0; i < 6; i++)
        planes[i] = (weir_device_plane){ .base = 4096 * (i + 1), .page_stride = 16 };
    for (int own = 0; own < 2; own++) {
        struct weir_geometry *geometry = NULL;
        MUST_TELL(weir_geometry_create(&geometry, &alloc_shape, own ? NULL : planes, 7,
                                       WEIR_HOST_SEGMENTED, 6, 4, NULL),
                  is_null(geometry));
        weir_geometry_destroy(&geometry);
    }
}

Test(alloc_failures, geometry)
{
    alloc_sweep("geometry", geometry_workload);
}

static void host_memory_workload(void)
{
    weir_device *device = alloc_open_device();
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
    alloc_sweep("host memory", host_memory_workload);
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
    weir_device *device = alloc_open_device();
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
    alloc_run_all(device);
    cr_assert(banks[0][3] == 2 && banks[0][0] == 3 && banks[0][1] == 0);
    weir_gather_destroy(&gather);
    weir_cpu_stream_destroy(device, &stream);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, gather)
{
    alloc_sweep("gather", gather_workload);
}

/* ---- Expert cache ---------------------------------------------------------- */

static void expert_cache_workload(void)
{
    static const int32_t ids[] = { 3, 1, 3 };
    int32_t slots[3] = { 9, 9, 9 };
    weir_device *device = alloc_open_device();
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
    alloc_run_all(device);
    cr_assert(slots[0] == 1 && slots[1] == 0 && slots[2] == 1);
    weir_expert_cache_destroy(&cache);
    weir_cpu_stream_destroy(device, &stream);
    cr_assert(weir_device_close(&device) == 0);
}

Test(alloc_failures, expert_cache)
{
    alloc_sweep("expert cache", expert_cache_workload);
}
