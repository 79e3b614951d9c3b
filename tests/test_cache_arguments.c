/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <math.h>

/* Bad input: the exact error, one line where there is a log, no effect. */

static struct rig rig;

struct before {
    uint64_t digest;
    unsigned lines;
};

static struct before look(const struct rig *r)
{
    return (struct before){ weir_cache_digest(r->cache), r->log.lines };
}

static void expect_no_effect(struct rig *r, struct before before, unsigned lines, const char *call)
{
    cr_assert(eq(u64, weir_cache_digest(r->cache), before.digest), "%s", call);
    cr_assert(eq(u32, r->log.lines, before.lines + lines), "%s: last line: %s", call, r->log.last);
}

static bool says(const struct log_capture *log, const char *word)
{
    return strstr(log->last, word) != NULL;
}

/* -EINVAL with one line that has `word` in it. */
#define refused(r, call, word)                                                \
    do {                                                                      \
        struct before before_ = look(r);                                      \
        gives(r, call, -EINVAL);                                              \
        expect_no_effect(r, before_, 1, #call);                               \
        cr_assert(says(&(r)->log, word), "%s: \"%s\"", #call, (r)->log.last); \
    } while (0)

/* Another error, or one without an object that has a log. */
#define silent(r, call, want)                   \
    do {                                        \
        struct before before_ = look(r);        \
        gives(r, call, want);                   \
        expect_no_effect(r, before_, 0, #call); \
    } while (0)

static void open_rig(void)
{
    rig_open(&rig, rig_params(16, 8, 8));
}

/* ---- Creating ------------------------------------------------------------ */

Test(cache_arguments, create)
{
    static const struct {
        const char *word; /* of the line */
        size_t offset;
        uint32_t value;
    } bad[] = {
#define FIELD(name, value) { #name, offsetof(weir_cache_params, name), value }
        FIELD(page_tokens, 0),
        FIELD(page_tokens, 1025),
        FIELD(page_tokens, UINT32_MAX),
        FIELD(device_pages, 0),
        FIELD(device_pages, 1u << 30),
        FIELD(device_pages, UINT32_MAX),
        FIELD(host_pages, (1u << 30) - 8),
        FIELD(host_pages, UINT32_MAX),
        FIELD(n_ranks, 0),
        FIELD(n_ranks, 65),
        FIELD(max_steps, 0),
        FIELD(max_steps, 65),
        FIELD(max_write_backs, 0),
        FIELD(max_write_backs, 1025),
        FIELD(max_seqs, 0),
        FIELD(max_seqs, UINT32_MAX),
        FIELD(priorities, 16),
        FIELD(priorities, UINT32_MAX),
        FIELD(max_pins, 1u << 16),
        FIELD(max_pins, UINT32_MAX),
#undef FIELD
    };
    struct log_capture log = { 0 };
    weir_cache *untouched = (weir_cache *)&untouched, *cache = untouched;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weir_cache_params params = rig_params(16, 8, 8);
        params.log = log_capture_log(&log);
        memcpy((char *)&params + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        unsigned lines = log.lines;
        cr_expect(eq(int, weir_cache_create(&cache, &params), -EINVAL), "%s", bad[i].word);
        cr_expect(eq(u32, log.lines, lines + 1), "%s", bad[i].word);
        cr_expect(says(&log, bad[i].word), "%s: \"%s\"", bad[i].word, log.last);
        cr_expect(eq(ptr, cache, untouched));
    }
    static const double shares[] = { -0.01, 0.501, 1, NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        weir_cache_params params = rig_params(16, 8, 8);
        params.log = log_capture_log(&log);
        params.offered = shares[i];
        cr_expect(eq(int, weir_cache_create(&cache, &params), -EINVAL), "%g", shares[i]);
        cr_expect(says(&log, "offered"), "\"%s\"", log.last);
    }
    static const double pinned[] = { -0.01, 1.001, NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) {
        weir_cache_params params = rig_params(16, 8, 8);
        params.log = log_capture_log(&log);
        params.max_pinned = pinned[i];
        cr_expect(eq(int, weir_cache_create(&cache, &params), -EINVAL), "%g", pinned[i]);
        cr_expect(says(&log, "max_pinned"), "\"%s\"", log.last);
    }
    weir_cache_params params = rig_params(16, 8, 8);
    params.log = log_capture_log(&log);
    unsigned lines = log.lines;
    cr_expect(eq(int, weir_cache_create(NULL, &params), -EINVAL));
    cr_expect(eq(u32, log.lines, lines + 1));
    cr_expect(eq(int, weir_cache_create(&cache, NULL), -EINVAL));
    cr_expect(eq(int, weir_cache_create(NULL, NULL), -EINVAL));
    /* Where the log lies in such a struct is not known. */
    static const uint32_t sizes[] = { 0, 1, sizeof params - 8, sizeof params + 8, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        params.struct_size = sizes[i];
        cr_expect(eq(int, weir_cache_create(&cache, &params), -EINVAL), "%u", sizes[i]);
    }
    cr_expect(eq(u32, log.lines, lines + 1));
    cr_expect(eq(ptr, cache, untouched));
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

Test(cache_arguments, policies_of_create)
{
    static const char *const bad[] = { "", "LRU", "lru ", "rru", "write_through", "lru,lru" };
    static const char *const bad_writes[] = {
        "",        "lru",
        "always",  "write_through(2)",
        "never ",  "write_through_selective(0)",
        "Never",   "write_through_selective(1001)",
        "never()", "write_through_selective(2",
    };
    struct log_capture log = { 0 };
    weir_cache *cache = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int host = 0; host < 2; host++) {
            weir_cache_params params = rig_params(16, 8, 8);
            params.log = log_capture_log(&log);
            *(host ? &params.host_eviction : &params.eviction) = bad[i];
            unsigned lines = log.lines;
            cr_expect(eq(int, weir_cache_create(&cache, &params), -EINVAL), "\"%s\"", bad[i]);
            cr_expect(eq(u32, log.lines, lines + 1));
            cr_expect(says(&log, host ? "host_eviction" : "eviction"), "\"%s\"", log.last);
        }
    for (size_t i = 0; i < sizeof bad_writes / sizeof *bad_writes; i++) {
        weir_cache_params params = rig_params(16, 8, 8);
        params.log = log_capture_log(&log);
        params.write_back = bad_writes[i];
        unsigned lines = log.lines;
        cr_expect(eq(int, weir_cache_create(&cache, &params), -EINVAL), "\"%s\"", bad_writes[i]);
        cr_expect(eq(u32, log.lines, lines + 1));
        cr_expect(says(&log, "write_back"), "\"%s\"", log.last);
    }
    cr_expect(zero(ptr, cache));
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

Test(cache_arguments, limits_that_create_accepts)
{
    weir_cache_params params;
    weir_cache_params_init(NULL);
    weir_cache_params_init(&params);
    cr_expect(eq(u32, params.struct_size, sizeof params));
    cr_expect(params.n_ranks == 1 && params.max_steps == 16 && params.max_write_backs == 64);
    cr_expect(params.priorities == 0 && params.max_pins == 64 && params.max_pinned == 0.25);
    cr_expect(params.ns_per_token == 0 && !params.host_drops_duplicates);
    cr_expect(params.link_bytes_per_second == 0);
    cr_expect(params.max_seqs == 4096 && params.offered == 0.05 && params.host_pages == 0);
    cr_expect(eq(str, (char *)params.eviction, (char *)"lru"));
    cr_expect(eq(str, (char *)params.write_back, (char *)"write_through"));

    params = rig_params(1024, 1, 0);
    params.n_ranks = params.max_steps = 64;
    params.max_write_backs = 1024;
    params.max_seqs = 1;
    params.offered = 0.5;
    params.page_bytes = UINT64_MAX;
    params.priorities = 15;
    params.max_pins = (1u << 16) - 1;
    params.max_pinned = 1;
    params.host_drops_duplicates = true; /* without a host tier */
    params.eviction = params.host_eviction = params.write_back = NULL;
    rig_open(&rig, params);
    cr_expect(eq(u32, rig.log.lines, 1), "the bytes of the index");
    rig_compute(&rig, "");
    rig_close(&rig);

    params.priorities = params.max_pins = 0;
    params.max_pinned = 0;
    rig_open(&rig, params);
    rig_compute(&rig, "");
    rig_close(&rig);
}

/* ---- Looking ------------------------------------------------------------- */

/* Calls peek and seq_open with a key that neither takes. */
static void key_is_refused(struct rig *r, const weir_key *key)
{
    weir_hit hit = { .n_tokens = 77 };
    weir_seq seq = { .id = 77 };
    refused(r, weir_cache_peek(r->cache, key, &hit), "peek");
    refused(r, weir_seq_open(&seq, r->cache, key, NULL), "key");
    cr_assert(hit.n_tokens == 77 && seq.id == 77 && !seq.cache);
}

Test(cache_arguments, keys)
{
    open_rig();
    struct rig *r = &rig;
    static char data[WEIR_MAX_FIELD_BYTES + 1];
    weir_field fields[WEIR_MAX_FIELDS + 1];
    for (size_t i = 0; i <= WEIR_MAX_FIELDS; i++)
        fields[i] = (weir_field){ .tag = 1, .bytes = WEIR_MAX_FIELD_BYTES, .data = data };
    const weir_key good = rig_key(r, "AB", 0);
    weir_key key = good;
    key_is_refused(r, NULL);
    key.tokens = NULL;
    key_is_refused(r, &key);
    key = good;
    key.n_fields = 1;
    key_is_refused(r, &key);
    key.fields = fields;
    key.n_fields = WEIR_MAX_FIELDS + 1;
    key_is_refused(r, &key);
    key.n_fields = SIZE_MAX;
    key_is_refused(r, &key);
    key.n_fields = 2;
    fields[1].bytes = WEIR_MAX_FIELD_BYTES + 1;
    key_is_refused(r, &key);
    fields[1] = (weir_field){ .tag = 1, .bytes = 1, .data = NULL };
    key_is_refused(r, &key);
    fields[1] = (weir_field){ .tag = 1, .bytes = WEIR_MAX_FIELD_BYTES, .data = data };
    key.n_fields = WEIR_MAX_FIELDS;
    weir_hit hit;
    weir_seq seq = { 0 };
    silent(r, weir_cache_peek(r->cache, &key, &hit), 0);

    static const size_t lengths[] = { 0, (size_t)INT32_MAX + 1, SIZE_MAX };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        key = good;
        key.n_tokens = lengths[i];
        refused(r, weir_seq_open(&seq, r->cache, &key, NULL), "tokens");
    }
    key.n_tokens = 0;
    silent(r, weir_cache_peek(r->cache, &key, &hit), 0);
    cr_expect(zero(sz, hit.n_tokens));
    refused(r, weir_cache_peek(r->cache, &good, NULL), "hit");
    silent(r, weir_cache_peek(NULL, &good, &hit), -EINVAL);
    refused(r, weir_seq_open(NULL, r->cache, &good, NULL), "seq");
    silent(r, weir_seq_open(&seq, NULL, &good, NULL), -EINVAL);
    weir_seq_params params;
    weir_seq_params_init(NULL);
    weir_seq_params_init(&params);
    static const uint32_t sizes[] = { 0, sizeof params - 4, sizeof params + 4, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        params.struct_size = sizes[i];
        refused(r, weir_seq_open(&seq, r->cache, &good, &params), "weir_seq_params_init");
    }
    cr_expect(zero(u64, seq.id));
    rig_close(r);
}

Test(cache_arguments, looking_inside)
{
    open_rig();
    struct rig *r = &rig;
    weir_stats stats = { .struct_size = sizeof stats };
    weir_available available;
    silent(r, weir_cache_get_stats(NULL, &stats), -EINVAL);
    silent(r, weir_cache_get_stats(r->cache, NULL), -EINVAL);
    static const uint32_t sizes[] = { 0, 4, sizeof stats - 8, sizeof stats + 8, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        stats = (weir_stats){ .struct_size = sizes[i], .requests = 77 };
        refused(r, weir_cache_get_stats(r->cache, &stats), "struct_size");
        cr_assert(stats.requests == 77 && stats.struct_size == sizes[i]);
    }
    silent(r, weir_cache_available(NULL, &available), -EINVAL);
    silent(r, weir_cache_available(r->cache, NULL), -EINVAL);
    silent(r, weir_cache_check(NULL, NULL), -EINVAL);
    silent(r, weir_cache_check(r->cache, NULL), 0);
    cr_expect(zero(u64, weir_cache_digest(NULL)));

    weir_cache_event event;
    size_t n = 77;
    silent(r, weir_cache_poll(NULL, 0, &event, 1, &n), -EINVAL);
    refused(r, weir_cache_poll(r->cache, 0, &event, 1, NULL), "n is NULL");
    refused(r, weir_cache_poll(r->cache, 0, NULL, 1, &n), "events");
    silent(r, weir_cache_poll(r->cache, 10, NULL, 0, &n), 0);
    n = 77;
    refused(r, weir_cache_poll(r->cache, 9, &event, 1, &n), "now_ns");
    cr_expect(eq(sz, n, 77));
    silent(r, weir_cache_poll(r->cache, 10, &event, 1, &n), 0);

    weir_cache *none = NULL;
    cr_expect(eq(int, weir_cache_destroy(NULL), 0));
    cr_expect(eq(int, weir_cache_destroy(&none), 0));
    rig_close(r);
}

/* ---- Handles ------------------------------------------------------------- */

/* What every call with a sequence says to such a handle. */
static void handle_gives(struct rig *r, weir_seq seq, int want, unsigned lines)
{
    weir_request request;
    weir_request_init(NULL);
    weir_request_init(&request);
    request.total_tokens = 1;
    weir_seq_info info;
    int32_t table[4];
    size_t n = 77;
    weir_seq copy = seq;
    weir_reserved reserved = { .n_short = 77 };
#define one(call)                                   \
    do {                                            \
        struct before before_ = look(r);            \
        gives(r, call, want);                       \
        expect_no_effect(r, before_, lines, #call); \
    } while (0)
    one(weir_seq_reserve(seq, &request, &reserved));
    one(weir_seq_get_info(seq, &info));
    one(weir_seq_pages(seq, 0, 16, table, 4, &n));
    one(weir_seq_commit(seq, NULL, 0));
    if (seq.cache || seq.id)
        one(weir_seq_close(&copy));
#undef one
    cr_assert(copy.cache == seq.cache && copy.id == seq.id && n == 77 && reserved.n_short == 77);
}

Test(cache_arguments, handles_of_sequences)
{
    static struct rig other;
    open_rig();
    rig_open(&other, rig_params(16, 8, 8));
    struct rig *r = &rig;
    weir_seq seq = rig_start(r, "A", 1), foreign = rig_start(&other, "A", 1);
    handle_gives(r, (weir_seq){ NULL, 0 }, -EINVAL, 0);
    handle_gives(r, (weir_seq){ NULL, seq.id }, -EINVAL, 0);
    handle_gives(r, (weir_seq){ r->cache, 0 }, -EINVAL, 1);
    handle_gives(r, (weir_seq){ r->cache, UINT64_MAX }, -EINVAL, 1);
    handle_gives(r, (weir_seq){ r->cache, seq.id + 32 }, -EINVAL, 1); /* of max_seqs */
    handle_gives(r, (weir_seq){ r->cache, seq.id + 1 }, -ESTALE, 0);
    handle_gives(r, (weir_seq){ r->cache, seq.id + (UINT64_C(1) << 32) }, -ESTALE, 0);
    silent(r, weir_seq_close(NULL), -EINVAL);

    rig_begin(r);
    refused(r, weir_step_add(r->step, foreign), "another cache");
    refused(r, weir_step_add(r->step, (weir_seq){ 0 }), "another cache");
    refused(r, weir_step_add(r->step, (weir_seq){ r->cache, 0 }), "handle");
    silent(r, weir_step_add(r->step, (weir_seq){ r->cache, seq.id + 1 }), -ESTALE);
    weir_seq bare = rig_seq(r, "B", 0);
    refused(r, weir_step_add(r->step, bare), "reserve");
    gives(r, weir_step_abort(&r->step), 0);

    weir_seq closed = seq;
    rig_done(r, &seq);
    handle_gives(r, closed, -ESTALE, 0);
    seq = rig_start(r, "A", 1); /* has the same slot */
    handle_gives(r, closed, -ESTALE, 0);
    rig_done(r, &seq);
    rig_done(r, &bare);
    rig_done(&other, &foreign);
    rig_close(&other);
    rig_close(r);
}

Test(cache_arguments, handles_of_steps)
{
    static struct rig other;
    open_rig();
    rig_open(&other, rig_params(16, 8, 8));
    struct rig *r = &rig;
    weir_seq seq = rig_start(r, "A", 1);
    weir_step step = { 0 }, stale;
    const void *order = NULL;
    size_t bytes = 77;
    refused(r, weir_step_begin(NULL, r->cache), "step");
    silent(r, weir_step_begin(&step, NULL), -EINVAL);
    silent(r, weir_step_end(NULL, &order, &bytes), -EINVAL);
    silent(r, weir_step_abort(NULL), -EINVAL);
    silent(r, weir_step_add(step, seq), -EINVAL);
    silent(r, weir_step_end(&step, &order, &bytes), -EINVAL);
    silent(r, weir_step_abort(&step), -EINVAL);
    stale = (weir_step){ r->cache, 1 }; /* not begun */
    silent(r, weir_step_add(stale, seq), -ESTALE);
    silent(r, weir_step_end(&stale, &order, &bytes), -ESTALE);
    silent(r, weir_step_abort(&stale), -ESTALE);

    rig_begin(r);
    rig_begin(&other);
    refused(r, weir_step_end(&r->step, NULL, &bytes), "order");
    refused(r, weir_step_end(&r->step, &order, NULL), "bytes");
    refused(&other, weir_step_add(other.step, seq), "another cache");
    silent(r, weir_step_begin(&step, r->cache), -EBUSY);
    cr_assert(order == NULL && bytes == 77 && step.id == 0 && r->step.id == 1);
    stale = r->step;
    rig_ack(r, rig_end(r)->step);
    gives(&other, weir_step_abort(&other.step), 0);
    rig_begin(r);
    silent(r, weir_step_add(stale, seq), -ESTALE);
    silent(r, weir_step_end(&stale, &order, &bytes), -ESTALE);
    silent(r, weir_step_abort(&stale), -ESTALE);
    cr_assert(stale.cache == r->cache && stale.id == 1);
    gives(r, weir_step_abort(&r->step), 0);
    rig_done(r, &seq);
    rig_close(&other);
    rig_close(r);
}

/* ---- Sequences ----------------------------------------------------------- */

Test(cache_arguments, reserve_pages_and_commit)
{
    open_rig();
    struct rig *r = &rig;
    weir_seq seq = rig_seq(r, "AB", 1);
    weir_request request;
    weir_request_init(&request);
    weir_reserved reserved = { .n_short = 77 };
    refused(r, weir_seq_reserve(seq, NULL, &reserved), "request is NULL");
    refused(r, weir_seq_reserve(seq, &request, &reserved), "total_tokens is 0");
    request.total_tokens = 1;
    static const uint32_t sizes[] = { 0, sizeof request - 8, sizeof request + 8, UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        request.struct_size = sizes[i];
        refused(r, weir_seq_reserve(seq, &request, NULL), "weir_request_init");
    }
    cr_assert(eq(sz, reserved.n_short, 77));
    request.struct_size = sizeof request;
    static const size_t lengths[] = { 8 * 16 + 1, (size_t)INT32_MAX + 1, SIZE_MAX - 15, SIZE_MAX };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        request.total_tokens = lengths[i];
        silent(r, weir_seq_reserve(seq, &request, &reserved), -E2BIG);
        cr_assert(eq(sz, reserved.n_short, lengths[i] / 16 + (lengths[i] % 16 != 0) - 8));
    }
    request.total_tokens = 2 * 16 + 1;
    request.expect_tokens = SIZE_MAX; /* only a hint */
    gives(r, weir_seq_reserve(seq, &request, NULL), 0);

    int32_t table[16];
    size_t n = 77;
    refused(r, weir_seq_pages(seq, 0, 16, table, 16, NULL), "n is NULL");
    refused(r, weir_seq_pages(seq, 0, 16, NULL, 16, &n), "table");
    static const uint32_t kernel_pages[] = { 0, 3, 5, 15, 17, 32, UINT32_MAX };
    for (size_t i = 0; i < sizeof kernel_pages / sizeof *kernel_pages; i++)
        refused(r, weir_seq_pages(seq, 0, kernel_pages[i], table, 16, &n), "kernel_page_tokens");
    static const size_t froms[] = { 1, 7, 9, 15, SIZE_MAX };
    for (size_t i = 0; i < sizeof froms / sizeof *froms; i++)
        refused(r, weir_seq_pages(seq, froms[i], 8, table, 16, &n), "from");
    cr_assert(eq(sz, n, 77));
    silent(r, weir_seq_pages(seq, SIZE_MAX - 15, 16, table, 16, &n), 0);
    cr_assert(zero(sz, n));

    refused(r, weir_seq_get_info(seq, NULL), "info");
    refused(r, weir_seq_commit(seq, NULL, 1), "no step");
    refused(r, weir_seq_commit(seq, NULL, 3 * 16 + 1), "n is");
    refused(r, weir_seq_commit(seq, NULL, SIZE_MAX), "n is");
    rig_begin(r);
    rig_add(r, seq);
    refused(r, weir_seq_commit(seq, NULL, 2 * 16 + 2), "tokens is NULL");
    refused(r, weir_seq_commit(seq, table, 1), "differ");
    refused(r, weir_seq_commit(seq, NULL, 3 * 16 + 1), "n is");
    gives(r, weir_step_abort(&r->step), 0);
    rig_done(r, &seq);
    rig_close(r);
}

/* ---- Reports ------------------------------------------------------------- */

static void report_refused(struct rig *r, uint32_t rank, const weir_report_item *items, size_t n)
{
    uint64_t report[32];
    size_t bytes;
    cr_assert(zero(int, weir_report_encode(items, n, report, sizeof report, &bytes, NULL)));
    refused(r, weir_cache_report(r->cache, rank, report, bytes), "in flight");
}

Test(cache_arguments, reports)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(16, 8, 8);
    params.n_ranks = 2;
    rig_open(r, params);
    rig_compute(r, "A");
    rig_push_out(r);
    weir_seq seq = rig_start(r, "AB", 1);
    weir_order order = *rig_run(r, seq, 2);
    uint64_t empty = (rig_begin(r), rig_end(r)->step);
    const weir_report_item step = { order.step, 0, WEIR_REPORT_STEP };
    const weir_report_item load = { order.step, 0, WEIR_REPORT_LOAD };
    const weir_report_item write = { order.write_ticket, 0, WEIR_REPORT_WRITE_BACK };

    const weir_report_item wrong[] = {
        { empty, 0, WEIR_REPORT_LOAD }, /* it has none */
        { empty + 1, 0, WEIR_REPORT_STEP },
        { order.step + 16, 0, WEIR_REPORT_STEP }, /* the same place in the ring */
        { order.write_ticket + 1, 0, WEIR_REPORT_WRITE_BACK },
        { order.write_ticket + 64, 0, WEIR_REPORT_WRITE_BACK },
        { 1, 0, WEIR_REPORT_STEP }, /* retired */
        { 1, 0, WEIR_REPORT_WRITE_BACK },
        { UINT64_MAX, 0, WEIR_REPORT_STEP },
        { UINT64_MAX, -EIO, WEIR_REPORT_WRITE_BACK },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        report_refused(r, 0, &wrong[i], 1);
        /* Whole or not at all, wherever the wrong item stands. */
        for (size_t at = 0; at < 4; at++) {
            weir_report_item items[4] = { step, load, write, write };
            items[3] = items[at];
            items[at] = wrong[i];
            report_refused(r, 1, items, 4);
        }
    }
    const weir_report_item twice[] = { load, step, load };
    report_refused(r, 0, twice, 3);

    const weir_report_item all[] = { step, load, write };
    uint64_t report[32], copy[32], shifted[33];
    size_t bytes;
    cr_assert(zero(int, weir_report_encode(all, 3, report, sizeof report, &bytes, NULL)));
    refused(r, weir_cache_report(r->cache, 2, report, bytes), "rank_index");
    refused(r, weir_cache_report(r->cache, UINT32_MAX, report, bytes), "rank_index");
    silent(r, weir_cache_report(NULL, 0, report, bytes), -EINVAL);
    refused(r, weir_cache_report(r->cache, 0, NULL, bytes), "report");
    for (size_t n = 0; n < bytes; n++)
        refused(r, weir_cache_report(r->cache, 0, report, n), "report");
    refused(r, weir_cache_report(r->cache, 0, report, bytes + 8), "report");
    for (size_t i = 0; i < bytes * 8; i++) {
        memcpy(copy, report, bytes);
        ((unsigned char *)copy)[i / 8] ^= (unsigned char)(1u << i % 8);
        refused(r, weir_cache_report(r->cache, 0, copy, bytes), "report");
    }
    for (size_t shift = 1; shift < 8; shift++) {
        memcpy((char *)shifted + shift, report, bytes);
        refused(r, weir_cache_report(r->cache, 0, (char *)shifted + shift, bytes), "report");
    }
    refused(r, weir_cache_report(r->cache, 0, r->orders[order.step].bytes, r->orders[order.step].n),
            "report");

    gives(r, weir_cache_report(r->cache, 0, report, bytes), 0);
    report_refused(r, 0, all, 3);
    gives(r, weir_cache_report(r->cache, 1, report, bytes), 0);
    rig_ack(r, empty);
    /* A report without items is one. */
    cr_assert(zero(int, weir_report_encode(NULL, 0, report, sizeof report, &bytes, NULL)));
    silent(r, weir_cache_report(r->cache, 0, report, bytes), 0);
    rig_done(r, &seq);
    rig_close(r);
}
