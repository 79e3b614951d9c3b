/* SPDX-License-Identifier: Apache-2.0 */

/* A cache driven by untrusted bytes: each names a call and what it is given,
 * sense or nonsense. Every call is made to two caches, which must answer alike
 * and have the same digest; weir_cache_check holds after each; a refusal that
 * names a mistake (-EINVAL, -ESTALE) has changed nothing; what is in flight is
 * known from the orders, so it is known which reports are taken. At the end all
 * comes home: no page is held, no step is in flight. */

#include "input.h"

#include <weir/cache.h>
#include <weir/export.h>
#include <weir/lifecycle.h>
#include <weir/order.h>
#include <weir/pin.h>

#include <errno.h>

enum {
    MAX_PAGES = 16, /* of a tier */
    MAX_SEQS = 5,
    MAX_STEPS = 4,
    MAX_WRITES = 3,
    MAX_RANKS = 3,
    MAX_PINS = 3,
    MAX_PRIORITIES = 3,
    MAX_TOKENS = MAX_PAGES * 4 + 8,
    MAX_CALLS = 200 /* so that an input does not take long */
};

/* What ranks have to report of a step or a write-back, a bit a rank. */
struct due {
    uint64_t step;
    uint64_t ticket;
    uint64_t ranks[WEIR_REPORT_WRITE_BACK + 1];
};

struct world {
    struct input in;
    weir_cache *caches[2];
    weir_seq seqs[MAX_SEQS][2]; /* closed ones too, so that stale handles are used */
    weir_pin pins[MAX_PINS][2];
    weir_step steps[2];
    bool step_open, draining;
    uint32_t page_tokens, device_pages, host_pages, n_ranks, max_steps;
    uint64_t next_step, now_ns;
    uint32_t n_due;
    struct due due[MAX_STEPS + MAX_WRITES];
    int32_t tokens[MAX_TOKENS];
    weir_span spans[2];
};

static const weir_field fields[] = { { .tag = 1, .bytes = 2, .data = "ab" },
                                     { .tag = 2, .bytes = 1, .data = "c" } };

/* The same call to both caches, `i` being the cache; yields what they return. */
#define both(call)                   \
    __extension__({                  \
        int rcs_[2];                 \
        for (int i = 0; i < 2; i++)  \
            rcs_[i] = (call);        \
        require(rcs_[0] == rcs_[1]); \
        rcs_[0];                     \
    })

static uint32_t below(struct world *w, uint32_t limit)
{
    return take_below(&w->in, limit);
}

static weir_stats stats_of(const struct world *w)
{
    weir_stats stats = { .struct_size = sizeof stats };
    require(weir_cache_get_stats(w->caches[0], &stats) == 0);
    return stats;
}

/* ---- Setting up ---------------------------------------------------------- */

static void world_open(struct world *w)
{
    static const char *const write_backs[] = { "write_through", "write_through_selective(2)",
                                               "write_back", "never", "adaptive" };
    static const double offered[] = { 0, 0.05, 0.3, 0.5 };
    weir_cache_params params;
    weir_cache_params_init(&params);
    w->page_tokens = params.page_tokens = 1 + below(w, 4);
    w->device_pages = params.device_pages = 1 + below(w, MAX_PAGES);
    w->host_pages = params.host_pages = below(w, MAX_PAGES + 1);
    w->n_ranks = params.n_ranks = 1 + below(w, MAX_RANKS);
    w->max_steps = params.max_steps = 1 + below(w, MAX_STEPS);
    params.max_write_backs = 1 + below(w, MAX_WRITES);
    params.max_seqs = 1 + below(w, MAX_SEQS);
    params.offered = offered[below(w, 4)];
    params.write_back = write_backs[below(w, 5)];
    size_t n_policies = 0;
    while (weir_evict_policy_at(n_policies))
        n_policies++;
    params.eviction = weir_evict_policy_at(below(w, (uint32_t)n_policies))->name;
    params.host_eviction = weir_evict_policy_at(below(w, (uint32_t)n_policies))->name;
    params.page_bytes = 1 << below(w, 16);
    params.priorities = below(w, MAX_PRIORITIES + 1);
    params.max_pins = below(w, MAX_PINS + 1);
    params.max_pinned = offered[below(w, 4)];
    params.host_drops_duplicates = below(w, 2);
    require(both(weir_cache_create(&w->caches[i], &params)) == 0);
    w->next_step = 1;
}

/* A prompt of few letters, a letter a page, so that prompts share prefixes. */
static weir_key take_key(struct world *w)
{
    static const uint32_t documents[] = { 0x00, 0x04, 0x80, 0xff };
    size_t n = below(w, w->device_pages * w->page_tokens + 4);
    uint32_t letters = documents[below(w, 4)];
    for (size_t i = 0; i < n; i++)
        w->tokens[i] = (int32_t)(letters >> i / w->page_tokens % 8 & 1);
    weir_key key = { .tokens = w->tokens, .n_tokens = n, .fields = fields, .spans = w->spans };
    uint32_t kind = below(w, 16);
    key.n_fields = kind < 12 ? kind / 6 : kind % 3;
    key.n_spans = kind < 12 ? 0 : 1 + kind % 2;
    for (size_t i = 0; i < key.n_spans; i++) {
        weir_span *span = &w->spans[i];
        *span = (weir_span){ .digest_bytes = WEIR_MIN_DIGEST_BYTES };
        span->first = below(w, (uint32_t)n + 1);
        span->n_tokens = below(w, 8);
        span->digest[0] = (unsigned char)below(w, 2);
    }
    return key;
}

/* ---- What is in flight --------------------------------------------------- */

static struct due *find_due(struct world *w, uint32_t kind, uint64_t number)
{
    for (uint32_t i = 0; i < w->n_due; i++)
        if (number &&
            number == (kind == WEIR_REPORT_WRITE_BACK ? w->due[i].ticket : w->due[i].step))
            return &w->due[i];
    return NULL;
}

static void retire(struct world *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_due; i++) {
        const uint64_t *ranks = w->due[i].ranks;
        if (ranks[WEIR_REPORT_STEP] | ranks[WEIR_REPORT_LOAD] | ranks[WEIR_REPORT_WRITE_BACK])
            w->due[n++] = w->due[i];
    }
    w->n_due = n;
}

static bool step_in_flight(struct world *w, uint64_t step)
{
    const struct due *due = find_due(w, WEIR_REPORT_STEP, step);
    return due && (due->ranks[WEIR_REPORT_STEP] | due->ranks[WEIR_REPORT_LOAD]);
}

static void take_order(struct world *w, const void *bytes, size_t n)
{
    weir_order order;
    require(weir_order_decode(&order, bytes, n, NULL) == 0);
    require(order.step == w->next_step++ && w->n_due < MAX_STEPS + MAX_WRITES);
    require(order.device_pages == w->device_pages && order.host_pages == w->host_pages);
    uint64_t all = (UINT64_C(1) << w->n_ranks) - 1;
    struct due *due = &w->due[w->n_due++];
    *due = (struct due){ .step = order.step, .ticket = order.n_writes ? order.write_ticket : 0 };
    due->ranks[WEIR_REPORT_STEP] = all;
    due->ranks[WEIR_REPORT_LOAD] = order.n_loads ? all : 0;
    due->ranks[WEIR_REPORT_WRITE_BACK] = order.n_writes ? all : 0;
    for (uint32_t i = 0; i < order.n_cancels; i++) {
        const weir_cancel *cancel = &order.cancels[i];
        const struct due *of = find_due(w, cancel->kind, cancel->number);
        require(of && of->ranks[cancel->kind]);
    }
}

/* Sends a report; it is taken if all of it is due, and nothing twice. */
static void send(struct world *w, uint32_t rank, const weir_report_item *items, size_t n)
{
    _Alignas(8) unsigned char report[1024];
    size_t bytes;
    if (weir_report_encode(items, n, report, sizeof report, &bytes, NULL) != 0)
        return;
    struct world after = *w;
    bool taken = true;
    for (size_t k = 0; k < n; k++) {
        struct due *due = find_due(&after, items[k].kind, items[k].number);
        uint64_t bit = UINT64_C(1) << rank;
        taken = taken && due && (due->ranks[items[k].kind] & bit);
        if (taken)
            due->ranks[items[k].kind] &= ~bit;
    }
    int rc = both(weir_cache_report(w->caches[i], rank, report, bytes));
    require(rc == (taken ? 0 : -EINVAL));
    if (!taken)
        return;
    memcpy(w->due, after.due, sizeof w->due);
    retire(w);
}

/* ---- Calls --------------------------------------------------------------- */

static void do_peek(struct world *w)
{
    weir_key key = take_key(w);
    weir_hit hits[2] = { 0 };
    uint64_t digest = weir_cache_digest(w->caches[0]);
    if (both(weir_cache_peek(w->caches[i], &key, &hits[i])) == 0)
        require(hits[0].n_tokens <= key.n_tokens && hits[0].n_tokens % w->page_tokens == 0 &&
                hits[0].n_device + hits[0].n_host + hits[0].n_loading == hits[0].n_tokens);
    require(memcmp(&hits[0], &hits[1], sizeof hits[0]) == 0);
    require(weir_cache_digest(w->caches[0]) == digest);
}

static void do_open(struct world *w)
{
    weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    weir_key key = take_key(w);
    weir_seq_params params;
    weir_seq_params_init(&params);
    uint32_t kind = below(w, 64);
    params.compute_at_least = kind % 4;
    params.priority = kind / 4 % 4;
    params.ttl_ns = kind < 32 ? 0 : below(w, 256);
    weir_seq opened[2];
    int rc = both(weir_seq_open(&opened[i], w->caches[i], &key, &params));
    require(rc == 0 || rc == -EINVAL || rc == -ENOSPC);
    /* Of one that is open the handle is not lost: it would stay open for ever. */
    weir_seq_info info;
    if (rc == 0 && weir_seq_get_info(seq[0], &info) == 0)
        require(both(weir_seq_close(&seq[i])) == 0);
    if (rc == 0)
        memcpy(seq, opened, sizeof opened);
}

static void do_close(struct world *w)
{
    weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    weir_seq old[2] = { seq[0], seq[1] };
    int rc = both(weir_seq_close(&seq[i]));
    require(rc == 0 || rc == -ESTALE);
    if (rc == 0) {
        require(!seq[0].cache && !seq[0].id);
        memcpy(seq, old, sizeof old);
    }
}

static void do_reserve(struct world *w)
{
    const weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    weir_request request;
    weir_request_init(&request);
    weir_seq_info info = { 0 };
    uint32_t more = below(w, 64);
    if (more >= 8)
        (void)weir_seq_get_info(seq[0], &info);
    request.total_tokens = info.n_tokens + below(w, more < 8 ? MAX_TOKENS : 5);
    if (more & 1)
        request.use_hit = more & 4 ? WEIR_USE_HIT_IF_CHEAPER : below(w, MAX_TOKENS);
    if (more & 2)
        request.expect_tokens = below(w, 2 * MAX_TOKENS);
    if (more >= 56)
        request.deadline_ns = w->now_ns + below(w, 256);
    weir_reserved reserved[2] = { 0 };
    int rc = both(weir_seq_reserve(seq[i], &request, &reserved[i]));
    require(memcmp(&reserved[0], &reserved[1], sizeof reserved[0]) == 0);
    if (rc == 0) {
        require(weir_seq_get_info(seq[0], &info) == 0);
        require(info.n_reserved >= request.total_tokens && info.n_reserved >= info.n_committed);
    }
    require(rc != -EBUSY || w->draining);
}

static void do_start(struct world *w)
{
    do_open(w);
    do_reserve(w);
}

static void do_commit(struct world *w)
{
    const weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    size_t n = below(w, MAX_TOKENS);
    uint32_t letter = below(w, 4);
    for (size_t i = 0; i < n; i++)
        w->tokens[i] = (int32_t)(letter & 1);
    const int32_t *tokens = letter < 2 ? NULL : w->tokens;
    weir_seq_info before = { 0 }, after = { 0 };
    bool open = weir_seq_get_info(seq[0], &before) == 0;
    int rc = both(weir_seq_commit(seq[i], tokens, n));
    require(open || rc == -ESTALE || rc == -EINVAL);
    if (rc == 0) {
        require(weir_seq_get_info(seq[0], &after) == 0);
        require(after.n_committed == before.n_committed + n && after.n_committed <= after.n_tokens);
    }
}

/* Block tables in all forms; the two caches give the same, and nothing changes. */
static void do_tables(struct world *w)
{
    enum {
        CAPACITY = 2 * MAX_TOKENS
    };
    uint64_t digest = weir_cache_digest(w->caches[0]);
    uint32_t unit = 1 + below(w, w->page_tokens), capacity = below(w, CAPACITY);
    weir_export_item items[2][2];
    for (int k = 0; k < 2; k++) {
        const weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
        size_t from = below(w, MAX_TOKENS);
        size_t to = below(w, 2) ? WEIR_ALL_TOKENS : below(w, MAX_TOKENS);
        for (int i = 0; i < 2; i++)
            items[i][k] = (weir_export_item){ .seq = seq[i], .from = from, .to = to };
    }
    weir_export_batch batches[2];
    for (int i = 0; i < 2; i++)
        batches[i] = (weir_export_batch){ w->caches[i], items[i], 2, unit };
    static int32_t indptr[2][3], last[2][2], table[2][CAPACITY];
    static int64_t slots[2][CAPACITY];
    static uint64_t pointers[2][CAPACITY];
    memset(table, 0, sizeof table);
    size_t n[2] = { 0 };
    switch (below(w, 6)) {
    case 0:
        both(weir_seq_pages(items[i][0].seq, items[i][0].from, unit, table[i], capacity, &n[i]));
        break;
    case 1:
        both(weir_export_csr(&batches[i], indptr[i], last[i], table[i], capacity, &n[i]));
        break;
    case 2:
        both(weir_export_dense(&batches[i], -1, table[i], capacity / 2, &n[i]));
        break;
    case 3:
        both(weir_export_offsets(&batches[i], 2, 1, 0, table[i], capacity / 4, &n[i]));
        break;
    case 4:
        both(weir_export_pointers(&batches[i], 4096, 64, pointers[i], capacity, &n[i]));
        break;
    default:
        both(weir_export_slots(&batches[i], slots[i], capacity, &n[i]));
        break;
    }
    require(n[0] == n[1] && memcmp(table[0], table[1], sizeof table[0]) == 0);
    require(memcmp(pointers[0], pointers[1], sizeof pointers[0]) == 0);
    require(memcmp(slots[0], slots[1], sizeof slots[0]) == 0);
    require(weir_cache_digest(w->caches[0]) == digest);
}

static void do_begin(struct world *w)
{
    int rc = both(weir_step_begin(&w->steps[i], w->caches[i]));
    bool full = w->next_step > w->max_steps && step_in_flight(w, w->next_step - w->max_steps);
    require(rc == (w->step_open || w->draining ? -EBUSY : full ? -EAGAIN : 0));
    w->step_open |= rc == 0;
}

static void do_add(struct world *w)
{
    const weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    int rc = both(weir_step_add(w->steps[i], seq[i]));
    require(w->step_open ? rc != -EAGAIN : rc == -ESTALE || rc == -EINVAL);
}

static void do_end(struct world *w)
{
    const void *orders[2] = { 0 };
    size_t bytes[2] = { 0 };
    weir_step old[2] = { w->steps[0], w->steps[1] };
    int rc = both(weir_step_end(&w->steps[i], &orders[i], &bytes[i]));
    require(w->step_open ? rc == 0 : rc == -ESTALE || rc == -EINVAL);
    if (rc)
        return;
    require(bytes[0] == bytes[1] && memcmp(orders[0], orders[1], bytes[0]) == 0);
    take_order(w, orders[0], bytes[0]);
    w->step_open = false;
    memcpy(w->steps, old, sizeof old);
}

static void do_abort(struct world *w)
{
    weir_step old[2] = { w->steps[0], w->steps[1] };
    int rc = both(weir_step_abort(&w->steps[i]));
    require(w->step_open ? rc == 0 : rc == -ESTALE || rc == -EINVAL);
    if (rc)
        return;
    w->step_open = false;
    memcpy(w->steps, old, sizeof old);
}

/* What a rank could have to say, with any result, and things that it could not. */
static void do_report(struct world *w)
{
    static const int32_t results[] = { 0, 0, 0, 0, 0, -EIO, -ECANCELED, -EINVAL };
    weir_report_item items[4];
    uint32_t rank = below(w, w->n_ranks), n = below(w, 5);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t kind = WEIR_REPORT_STEP + below(w, 3), which = below(w, MAX_STEPS + MAX_WRITES);
        const struct due *due = &w->due[which];
        items[k] = (weir_report_item){ .kind = kind, .rc = results[below(w, 8)] };
        if (which < w->n_due)
            items[k].number = kind == WEIR_REPORT_WRITE_BACK ? due->ticket : due->step;
        else
            items[k].number = below(w, 256);
    }
    send(w, rank, items, n);
}

/* A forward pass as a server makes it: all that can be in it are, and commit what
 * they have room for. */
static void do_forward(struct world *w)
{
    do_begin(w);
    if (!w->step_open)
        return;
    for (int k = 0; k < MAX_SEQS; k++) {
        const weir_seq *seq = w->seqs[k];
        weir_seq_info info;
        if (both(weir_step_add(w->steps[i], seq[i])) != 0)
            continue;
        require(weir_seq_get_info(seq[0], &info) == 0);
        size_t end = info.n_tokens < info.n_reserved ? info.n_tokens : info.n_reserved;
        size_t n = end > info.n_committed ? end - info.n_committed : 0;
        require(both(weir_seq_commit(seq[i], NULL, n)) == 0);
    }
    do_end(w);
}

/* All that a rank has to report, and well. */
static void report_all(struct world *w, uint32_t rank)
{
    weir_report_item items[3 * (MAX_STEPS + MAX_WRITES)];
    size_t n = 0;
    for (uint32_t k = 0; k < w->n_due; k++)
        for (uint32_t kind = WEIR_REPORT_STEP; kind <= WEIR_REPORT_WRITE_BACK; kind++)
            if (w->due[k].ranks[kind] >> rank & 1)
                items[n++] =
                    (weir_report_item){ .number = kind == WEIR_REPORT_WRITE_BACK ? w->due[k].ticket
                                                                                 : w->due[k].step,
                                        .kind = kind };
    send(w, rank, items, n);
}

static void do_report_all(struct world *w)
{
    report_all(w, below(w, w->n_ranks));
}

static void do_report_bytes(struct world *w)
{
    _Alignas(8) unsigned char bytes[64];
    size_t n = below(w, sizeof bytes + 1);
    take(&w->in, bytes, n);
    uint32_t rank = below(w, MAX_RANKS + 1);
    const weir_report_item *items;
    size_t n_items;
    if (weir_report_decode(&items, &n_items, bytes, n, NULL) != 0)
        require(both(weir_cache_report(w->caches[i], rank, bytes, n)) == -EINVAL);
}

static void poll_cache(struct world *w, size_t capacity)
{
    weir_cache_event events[2][8];
    size_t n[2] = { 0 };
    require(both(weir_cache_poll(w->caches[i], w->now_ns, events[i], capacity, &n[i])) == 0);
    require(n[0] == n[1] && n[0] <= capacity);
    for (size_t k = 0; k < n[0]; k++) {
        const weir_cache_event *a = &events[0][k], *b = &events[1][k];
        require(a->kind == b->kind && a->rc == b->rc && a->seq.id == b->seq.id &&
                a->good_tokens == b->good_tokens);
        weir_seq_info info;
        require((a->kind == WEIR_EVENT_WRITE_WAITING) == !a->seq.cache);
        if (a->seq.cache)
            require(weir_seq_get_info(a->seq, &info) == 0 && a->good_tokens <= info.n_reserved);
    }
}

static void do_poll(struct world *w)
{
    w->now_ns += below(w, 256);
    poll_cache(w, below(w, 9));
}

static void do_look(struct world *w)
{
    char text[2][64];
    size_t needed[2];
    weir_stats stats[2] = { { .struct_size = sizeof *stats }, { .struct_size = sizeof *stats } };
    require(both(weir_cache_get_stats(w->caches[i], &stats[i])) == 0);
    require(memcmp(&stats[0], &stats[1], sizeof stats[0]) == 0);
    uint32_t format = below(w, 4);
    size_t capacity = below(w, sizeof text[0] + 1);
    both(weir_stats_write(&stats[i], (weir_stats_format)format, text[i], capacity, &needed[i]));
    weir_available available;
    require(weir_cache_available(w->caches[0], &available) == 0);
    require(available.free == stats[0].device_free && available.offered == stats[0].device_offered);
    require(available.free + available.offered + available.pending <= w->device_pages);
    require(stats[0].index_pages <= w->device_pages + w->host_pages);
}

static void do_forget(struct world *w)
{
    uint32_t n = below(w, 4);
    if (n == 3)
        require(both(weir_cache_forget_all(w->caches[i])) == 0);
    else
        require(both(weir_cache_forget(w->caches[i], fields, n)) == 0);
}

static void do_drain(struct world *w)
{
    int rc = both(weir_cache_drain(w->caches[i]));
    require(rc == (w->step_open || w->n_due ? -EAGAIN : 0));
    w->draining = true;
}

static void do_resume(struct world *w)
{
    require(both(weir_cache_resume(w->caches[i])) == 0);
    w->draining = false;
}

static void do_reset(struct world *w)
{
    int rc = both(weir_cache_reset(w->caches[i]));
    require(rc == (w->step_open ? -EBUSY : 0));
    if (rc == 0)
        require(stats_of(w).seqs_open == 0 && stats_of(w).index_pages == 0);
}

static void do_rank_lost(struct world *w)
{
    uint32_t rank = below(w, MAX_RANKS + 1);
    uint64_t first[2];
    int rc = both(weir_cache_rank_lost(w->caches[i], rank, &first[i]));
    require(rc == (rank < w->n_ranks ? 0 : -EINVAL));
    if (rc)
        return;
    require(first[0] == w->next_step && first[1] == first[0]);
    require(stats_of(w).index_pages == 0);
    for (uint32_t k = 0; k < w->n_due; k++)
        for (uint32_t kind = WEIR_REPORT_STEP; kind <= WEIR_REPORT_WRITE_BACK; kind++)
            w->due[k].ranks[kind] &= ~(UINT64_C(1) << rank);
    retire(w);
}

static void do_destroy(struct world *w)
{
    weir_stats stats = stats_of(w);
    if (!w->step_open && stats.seqs_open == 0 && stats.orders_in_flight == 0)
        return;
    weir_cache *caches[2] = { w->caches[0], w->caches[1] };
    require(both(weir_cache_destroy(&caches[i])) == -EBUSY && caches[0] == w->caches[0]);
}

static void do_finish(struct world *w)
{
    for (uint32_t rank = 0; rank < w->n_ranks; rank++)
        report_all(w, rank);
    require(w->n_due == 0);
    do_poll(w);
}

static void do_pin(struct world *w)
{
    weir_pin *pin = w->pins[below(w, MAX_PINS)];
    weir_key key = take_key(w);
    weir_pin_params params;
    weir_pin_params_init(&params);
    if (below(w, 2))
        params.n_tokens = below(w, MAX_TOKENS);
    weir_pin made[2];
    weir_pin_info info;
    uint64_t digest = weir_cache_digest(w->caches[0]);
    int rc = both(weir_cache_pin(&made[i], w->caches[i], &key, &params));
    if (rc) {
        require(weir_cache_digest(w->caches[0]) == digest);
        return;
    }
    require(weir_cache_get_pin(made[0], &info) == 0 && info.n_device <= info.n_tokens &&
            info.n_tokens > 0 && info.n_tokens <= key.n_tokens);
    /* Of one that is there the handle is not lost. */
    if (weir_cache_get_pin(pin[0], &info) == 0)
        require(both(weir_cache_unpin(&pin[i])) == 0);
    memcpy(pin, made, sizeof made);
}

static void do_unpin(struct world *w)
{
    weir_pin *pin = w->pins[below(w, MAX_PINS)];
    weir_pin old[2] = { pin[0], pin[1] };
    int rc = both(weir_cache_unpin(&pin[i]));
    require(rc == 0 || rc == -ESTALE);
    memcpy(pin, old, sizeof old);
}

static void do_rates(struct world *w)
{
    uint64_t ns = below(w, 256), rate = below(w, 256) * UINT64_C(1000);
    require(both(weir_cache_set_rates(w->caches[i], ns, rate)) == 0);
}

/* A page that has changed while it was loaded, or was not. */
static void do_report_page(struct world *w)
{
    _Alignas(8) unsigned char report[64];
    size_t bytes;
    weir_report_item item = { .kind = WEIR_REPORT_PAGE, .rc = -EIO };
    item.number = below(w, MAX_PAGES + 2);
    uint32_t rank = below(w, w->n_ranks);
    if (weir_report_encode(&item, 1, report, sizeof report, &bytes, NULL) != 0)
        return;
    int rc = both(weir_cache_report(w->caches[i], rank, report, bytes));
    require(rc == 0 || rc == -EINVAL);
}

/* Those that make a request's life are there several times. New ones are added at
 * the end, so that inputs keep their meaning. */
enum {
    N_CALLS = 64 /* numbers past the table's end are do_finish */
};

static void (*const calls[])(struct world *) = {
    do_start,     do_forward, do_close,  do_open,    do_reserve,     do_begin,        do_add,
    do_commit,    do_end,     do_abort,  do_report,  do_report_all,  do_report_bytes, do_poll,
    do_peek,      do_tables,  do_look,   do_forget,  do_drain,       do_resume,       do_reset,
    do_rank_lost, do_destroy, do_start,  do_forward, do_close,       do_start,        do_forward,
    do_close,     do_reserve, do_resume, do_commit,  do_add,         do_end,          do_report,
    do_report,    do_pin,     do_unpin,  do_rates,   do_report_page,
};

/* ---- An input ------------------------------------------------------------ */

static void expect_sound(const struct world *w)
{
    require(weir_cache_check(w->caches[0], NULL) == 0);
    require(weir_cache_digest(w->caches[0]) == weir_cache_digest(w->caches[1]));
}

/* Everything comes to its end, and no page is left over. */
static void world_close(struct world *w)
{
    do_resume(w);
    if (w->step_open)
        do_end(w);
    for (int k = 0; k < MAX_SEQS; k++) {
        int rc = both(weir_seq_close(&w->seqs[k][i]));
        require(rc == 0 || rc == -ESTALE || rc == -EINVAL);
    }
    for (int k = 0; k < MAX_PINS; k++) {
        int rc = both(weir_cache_unpin(&w->pins[k][i]));
        require(rc == 0 || rc == -ESTALE);
    }
    require(stats_of(w).seqs_open == 0);
    require(both(weir_cache_forget_all(w->caches[i])) == 0);
    for (int round = 0; round < 2; round++) {
        do_finish(w);
        do_begin(w);
        do_end(w);
        expect_sound(w);
    }
    do_finish(w);
    weir_stats stats = stats_of(w);
    require(stats.index_pages == 0 && stats.orders_in_flight == 0);
    require(stats.write_backs_in_flight == 0 && stats.device_offered + stats.host_offered == 0);
    require(stats.device_free == w->device_pages && stats.host_free == w->host_pages);
    require(both(weir_cache_destroy(&w->caches[i])) == 0 && !w->caches[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w = { .in = { data, size } };
    world_open(&w);
    for (int k = 0; k < MAX_CALLS && w.in.size > 0; k++) {
        uint32_t call = below(&w, N_CALLS);
        (call < sizeof calls / sizeof *calls ? calls[call] : do_finish)(&w);
        expect_sound(&w);
    }
    world_close(&w);
    return 0;
}
