/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_sweep.h"
#include "device/cpu.h"

#include <weir/host_share.h>
#include <weir/rank.h>

/* Of test_alloc_failures: a rank and its cache, a prompt there and back. */

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
    for (uint32_t t = 0; t < alloc_shape.n_tensors; t++) {
        uint64_t address =
            weir_rank_device_address(k->rank, t, k->layer, (weir_device_page){ k->page });
        unsigned char *piece = (unsigned char *)(uintptr_t)address;
        for (uint64_t i = 0; piece && i < alloc_tensors[t].page_bytes; i++) {
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
    for (uint32_t t = 0; t < alloc_shape.n_tensors; t++)
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
    alloc_run_all(w->device);
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
    alloc_check_cache(w->cache);
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
    for (uint32_t layer = 0; layer < alloc_shape.n_layers; layer++) {
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
    weir_request request = alloc_request(key.n_tokens);
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
    w->device = alloc_open_device();
    MUST_TELL(weir_cpu_stream_create(w->device, &w->stream), is_null(w->stream));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.device_pages = ROUND_DEVICE;
    params.host_pages = ROUND_HOST;
    params.max_steps = 2;
    params.max_write_backs = 2;
    params.touch_threads = 1;
    params.captured_waits = captured_waits;
    weir_tensor replicated[2] = { alloc_tensors[0], alloc_tensors[1] };
    replicated[1].replicated = with_share;
    weir_shape mixed = alloc_shape;
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
    alloc_sweep("rank", rank_workload);
    check_met();
}

Test(alloc_failures, rank_with_captured_waits)
{
    captured_waits = true;
    alloc_sweep("rank, captured waits", rank_workload);
    check_met();
}

Test(alloc_failures, rank_with_a_share_and_checksums)
{
    with_share = true;
    alloc_sweep("rank, share and checksums", rank_workload);
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
    alloc_run_all(w.device);
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
    alloc_sweep("rank, closed at once", close_workload);
}
