/* SPDX-License-Identifier: Apache-2.0 */

/* A cache driven by untrusted bytes: each names a call and what it is given,
 * sense or nonsense. Every call is made to two caches, which must answer alike
 * and have the same digest; weir_cache_check holds after each; a refusal that
 * names a mistake (-EINVAL, -ESTALE) has changed nothing; what is in flight is
 * known from the orders, so it is known which reports are taken. At the end all
 * comes home: no page is held, no step is in flight. */

#include "cache_world.h"

#include <weir/export.h>

/* ---- Calls --------------------------------------------------------------- */

static void do_peek(struct world *w)
{
    weir_key key = world_key(w);
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
    weir_key key = world_key(w);
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
    bool full = w->next_step > w->max_steps && world_step_in_flight(w, w->next_step - w->max_steps);
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
    world_take_order(w, orders[0], bytes[0]);
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
    world_send(w, rank, items, n);
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

/* A step in which sequences go on beyond their keys, each with words of its own. */
static void do_write(struct world *w)
{
    do_begin(w);
    if (!w->step_open)
        return;
    for (int k = 0; k < MAX_SEQS; k++) {
        const weir_seq *seq = w->seqs[k];
        int32_t tokens[4], letter = (int32_t)below(w, 3);
        weir_seq_info info;
        if (both(weir_step_add(w->steps[i], seq[i])) != 0)
            continue;
        require(weir_seq_get_info(seq[0], &info) == 0);
        size_t n = info.n_reserved - info.n_committed;
        n = n < 4 ? n : 4;
        for (size_t t = 0; t < n; t++)
            tokens[t] = letter;
        int rc = both(weir_seq_commit(seq[i], tokens, n));
        require(rc == 0 || (rc == -EINVAL && info.n_committed < info.n_tokens));
    }
    do_end(w);
}

static void do_report_all(struct world *w)
{
    world_report_all(w, below(w, w->n_ranks));
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
            require(weir_seq_get_info(a->seq, &info) == 0 && a->good_tokens <= info.n_committed);
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
    require(stats[0].copied_pages == w->n_copies);
}

static void do_forget(struct world *w)
{
    uint32_t n = below(w, 4);
    if (n == 3)
        require(both(weir_cache_forget_all(w->caches[i])) == 0);
    else
        require(both(weir_cache_forget(w->caches[i], world_fields, n)) == 0);
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
        require(world_stats(w).seqs_open == 0 && world_stats(w).index_pages == 0);
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
    require(world_stats(w).index_pages == 0);
    for (uint32_t k = 0; k < w->n_due; k++)
        for (uint32_t kind = WEIR_REPORT_STEP; kind <= WEIR_REPORT_WRITE_BACK; kind++)
            w->due[k].ranks[kind] &= ~(UINT64_C(1) << rank);
    world_retire(w);
}

static void do_destroy(struct world *w)
{
    weir_stats stats = world_stats(w);
    if (!w->step_open && stats.seqs_open == 0 && stats.orders_in_flight == 0)
        return;
    weir_cache *caches[2] = { w->caches[0], w->caches[1] };
    require(both(weir_cache_destroy(&caches[i])) == -EBUSY && caches[0] == w->caches[0]);
}

static void do_finish(struct world *w)
{
    for (uint32_t rank = 0; rank < w->n_ranks; rank++)
        world_report_all(w, rank);
    require(w->n_due == 0);
    do_poll(w);
}

static void do_pin(struct world *w)
{
    weir_pin *pin = w->pins[below(w, MAX_PINS)];
    weir_key key = world_key(w);
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

static size_t whole_pages(const struct world *w, size_t n_tokens)
{
    return (n_tokens + w->page_tokens - 1) / w->page_tokens;
}

/* Its full pages are the other's; the one that len ends in is its own. */
static void expect_kid(struct world *w, weir_seq kid, size_t len, const int32_t *parent,
                       size_t n_parent)
{
    weir_seq_info info;
    int32_t table[MAX_PAGES];
    size_t n, full = len / w->page_tokens;
    require(weir_seq_get_info(kid, &info) == 0);
    require(info.n_tokens == len && info.n_committed == len && info.n_hit <= len);
    require(info.n_reserved == whole_pages(w, len) * w->page_tokens && info.user == w);
    require(weir_seq_pages(kid, 0, w->page_tokens, table, MAX_PAGES, &n) == 0);
    require(n == whole_pages(w, len) && full <= n_parent);
    require(memcmp(table, parent, full * sizeof *table) == 0);
    for (size_t i = 0; n > full && i < n_parent; i++)
        require(table[full] != parent[i]);
}

/* Kids take the places of others, also of the one that they were forked off. */
static void take_places(struct world *w, weir_seq kids[2][MAX_KIDS], uint32_t n, uint32_t first)
{
    for (uint32_t k = 0; k < n; k++) {
        weir_seq *seq = w->seqs[(first + k) % MAX_SEQS];
        weir_seq_info info;
        if (weir_seq_get_info(seq[0], &info) == 0)
            require(both(weir_seq_close(&seq[i])) == 0);
        for (int c = 0; c < 2; c++)
            seq[c] = kids[c][k];
    }
}

static void do_fork(struct world *w)
{
    const weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    uint32_t n = below(w, MAX_KIDS + 1), first = below(w, MAX_SEQS);
    void *users[MAX_KIDS] = { w, w, w };
    weir_seq kids[2][MAX_KIDS];
    int32_t parent[MAX_PAGES];
    size_t n_parent;
    weir_seq_info info = { 0 };
    bool open = weir_seq_get_info(seq[0], &info) == 0;
    size_t len = below(w, (uint32_t)info.n_committed + 2);
    if (open)
        require(weir_seq_pages(seq[0], 0, w->page_tokens, parent, MAX_PAGES, &n_parent) == 0);
    uint64_t n_open = world_stats(w).seqs_open;
    int rc = both(weir_seq_fork(kids[i], n, seq[i], len, users));
    bool right = n > 0 && len > 0 && len <= info.n_committed;
    require(open ? right == (rc != -EINVAL) : rc == -ESTALE || rc == -EINVAL);
    require(rc != -EBUSY || w->draining);
    require(world_stats(w).seqs_open == n_open + (rc == 0 ? n : 0));
    if (rc)
        return;
    for (uint32_t k = 0; k < n; k++)
        expect_kid(w, kids[0][k], len, parent, n_parent);
    take_places(w, kids, n, first);
}

static void do_truncate(struct world *w)
{
    const weir_seq *seq = w->seqs[below(w, MAX_SEQS)];
    weir_seq_info before = { 0 }, info;
    bool open = weir_seq_get_info(seq[0], &before) == 0;
    size_t n = below(w, (uint32_t)before.n_committed + 2);
    int rc = both(weir_seq_truncate(seq[i], n));
    require(open ? (n > before.n_committed) == (rc == -EINVAL) : rc == -ESTALE || rc == -EINVAL);
    require(rc != -EBUSY || w->step_open);
    if (rc)
        return;
    require(weir_seq_get_info(seq[0], &info) == 0);
    require(info.n_committed == n && info.n_tokens >= n && info.n_tokens <= before.n_tokens);
    require(info.n_reserved <= before.n_reserved);
    require(info.n_reserved / w->page_tokens <= whole_pages(w, n) &&
            info.n_reserved / w->page_tokens >= n / w->page_tokens);
    uint64_t digest = world_digest(w);
    require(both(weir_seq_truncate(seq[i], n)) == 0 && world_digest(w) == digest);
}

/* Several answers to a prompt, each of which goes on by itself. */
static void do_branch(struct world *w)
{
    do_fork(w);
    for (int k = 0; k < MAX_SEQS; k++) {
        const weir_seq *seq = w->seqs[k];
        weir_request request;
        weir_seq_info info;
        weir_request_init(&request);
        if (weir_seq_get_info(seq[0], &info) != 0)
            continue;
        request.total_tokens = info.n_committed + below(w, 4);
        both(weir_seq_reserve(seq[i], &request, NULL));
    }
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
    do_report,    do_pin,     do_unpin,  do_rates,   do_report_page, do_fork,         do_truncate,
    do_branch,    do_write,
};

/* ---- An input ------------------------------------------------------------ */

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
    require(world_stats(w).seqs_open == 0);
    require(both(weir_cache_forget_all(w->caches[i])) == 0);
    for (int round = 0; round < 2; round++) {
        do_finish(w);
        do_begin(w);
        do_end(w);
        world_expect_sound(w);
    }
    do_finish(w);
    weir_stats stats = world_stats(w);
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
        world_expect_sound(&w);
    }
    world_close(&w);
    return 0;
}
