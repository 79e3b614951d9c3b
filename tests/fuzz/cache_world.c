/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_world.h"

const weir_field world_fields[] = { { .tag = 1, .bytes = 2, .data = "ab" },
                                    { .tag = 2, .bytes = 1, .data = "c" } };

weir_stats world_stats(const struct world *w)
{
    weir_stats stats = { .struct_size = sizeof stats };
    require(weir_cache_get_stats(w->caches[0], &stats) == 0);
    return stats;
}

/* ---- Setting up ---------------------------------------------------------- */

void world_open(struct world *w)
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

weir_key world_key(struct world *w)
{
    static const uint32_t documents[] = { 0x00, 0x04, 0x80, 0xff };
    size_t n = below(w, w->device_pages * w->page_tokens + 4);
    uint32_t letters = documents[below(w, 4)];
    for (size_t i = 0; i < n; i++)
        w->tokens[i] = (int32_t)(letters >> i / w->page_tokens % 8 & 1);
    weir_key key = {
        .tokens = w->tokens, .n_tokens = n, .fields = world_fields, .spans = w->spans
    };
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

struct due *world_due(struct world *w, uint32_t kind, uint64_t number)
{
    for (uint32_t i = 0; i < w->n_due; i++)
        if (number &&
            number == (kind == WEIR_REPORT_WRITE_BACK ? w->due[i].ticket : w->due[i].step))
            return &w->due[i];
    return NULL;
}

void world_retire(struct world *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_due; i++) {
        const uint64_t *ranks = w->due[i].ranks;
        if (ranks[WEIR_REPORT_STEP] | ranks[WEIR_REPORT_LOAD] | ranks[WEIR_REPORT_WRITE_BACK])
            w->due[n++] = w->due[i];
    }
    w->n_due = n;
}

bool world_step_in_flight(struct world *w, uint64_t step)
{
    const struct due *due = world_due(w, WEIR_REPORT_STEP, step);
    return due && (due->ranks[WEIR_REPORT_STEP] | due->ranks[WEIR_REPORT_LOAD]);
}

/* What is copied out of a load comes behind it, so that load must not be dropped. */
static void take_copies(struct world *w, const weir_order *order)
{
    w->n_copies += order->n_copies;
    for (uint32_t i = 0; i < order->n_copies; i++) {
        if (order->copies[i].load == 0)
            continue;
        struct due *of = world_due(w, WEIR_REPORT_LOAD, order->copies[i].load);
        require(of && of->ranks[WEIR_REPORT_LOAD] && !of->cancelled[WEIR_REPORT_LOAD]);
        of->copied = true;
    }
}

/* Each transfer at most once, and only while it is in flight. */
static void take_cancels(struct world *w, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_cancels; i++) {
        uint32_t kind = order->cancels[i].kind;
        struct due *of = world_due(w, kind, order->cancels[i].number);
        require(of && of->ranks[kind] && !of->cancelled[kind]);
        require(kind != WEIR_REPORT_LOAD || !of->copied);
        of->cancelled[kind] = true;
    }
}

void world_take_order(struct world *w, const void *bytes, size_t n)
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
    take_copies(w, &order);
    take_cancels(w, &order);
}

void world_send(struct world *w, uint32_t rank, const weir_report_item *items, size_t n)
{
    _Alignas(8) unsigned char report[1024];
    size_t bytes;
    if (weir_report_encode(items, n, report, sizeof report, &bytes, NULL) != 0)
        return;
    struct world after = *w;
    bool taken = true;
    for (size_t k = 0; k < n; k++) {
        struct due *due = world_due(&after, items[k].kind, items[k].number);
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
    world_retire(w);
}

void world_report_all(struct world *w, uint32_t rank)
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
    world_send(w, rank, items, n);
}

void world_expect_sound(const struct world *w)
{
    require(weir_cache_check(w->caches[0], NULL) == 0);
    require(weir_cache_digest(w->caches[0]) == weir_cache_digest(w->caches[1]));
}
