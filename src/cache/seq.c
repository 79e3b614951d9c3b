/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"
#include "cache/table.h"

#include "pool/step_set.h"

#include <errno.h>
#include <string.h>

#define NO_SEQ (-1)

/* ---- Handles ------------------------------------------------------------- */

/* An id is generation << 32 | slot + 1. */
weir_seq weir_seq_handle(weir_cache *cache, const struct seq *seq)
{
    return (weir_seq){ cache, seq->id };
}

struct seq *weir_seq_find(weir_seq handle, int *rc)
{
    *rc = -EINVAL;
    if (!handle.cache)
        return NULL;
    uint64_t slot = (handle.id & UINT32_MAX) - 1;
    if (slot >= handle.cache->max_seqs) {
        weir_log_line(&handle.cache->log, WEIR_LOG_ERROR, "seq: not a handle of this cache");
        return NULL;
    }
    struct seq *seq = &handle.cache->seqs[slot];
    *rc = -ESTALE;
    if (seq->id != handle.id || seq->closing)
        return NULL;
    *rc = 0;
    return seq;
}

void weir_seq_free(weir_cache *cache, struct seq *seq)
{
    struct weir_memory *m = &cache->memory;
    weir_memory_give(m, seq->tokens, seq->tokens_capacity, sizeof *seq->tokens);
    weir_memory_give(m, seq->spans, seq->spans_capacity, sizeof *seq->spans);
    weir_memory_give(m, seq->pages, seq->pages_capacity, sizeof *seq->pages);
}

/* ---- Open and close ------------------------------------------------------ */

void weir_seq_params_init(weir_seq_params *params)
{
    if (params)
        *params = (weir_seq_params){ .struct_size = sizeof *params, .compute_at_least = 1 };
}

void weir_request_init(weir_request *request)
{
    if (request)
        *request = (weir_request){ .struct_size = sizeof *request, .use_hit = WEIR_ALL_TOKENS };
}

int weir_seq_grow_tokens(weir_cache *cache, struct seq *seq, size_t n)
{
    if (n <= seq->tokens_capacity)
        return 0;
    size_t capacity = seq->tokens_capacity ? seq->tokens_capacity : 256;
    while (capacity < n)
        capacity *= 2;
    int32_t *grown = weir_memory_grow(&cache->memory, seq->tokens, seq->tokens_capacity, capacity,
                                      sizeof *grown);
    if (!grown)
        return -ENOMEM;
    seq->tokens = grown;
    seq->tokens_capacity = capacity;
    return 0;
}

int weir_seq_grow_pages(weir_cache *cache, struct seq *seq, uint32_t n)
{
    if (n <= seq->pages_capacity)
        return 0;
    uint32_t capacity = seq->pages_capacity ? seq->pages_capacity : 16;
    while (capacity < n)
        capacity *= 2;
    struct seq_page *grown =
        weir_memory_grow(&cache->memory, seq->pages, seq->pages_capacity, capacity, sizeof *grown);
    if (!grown)
        return -ENOMEM;
    seq->pages = grown;
    seq->pages_capacity = capacity;
    return 0;
}

struct seq *weir_seq_make(weir_cache *cache, int32_t root, void *user)
{
    int32_t slot = cache->free_seq;
    struct seq *seq = &cache->seqs[slot];
    cache->free_seq = seq->free_next;
    uint32_t generation = seq->generation + 1;
    *seq = (struct seq){
        .id = (uint64_t)generation << 32 | (uint64_t)(slot + 1),
        .generation = generation,
        .user = user,
        .root = root,
        .tokens = seq->tokens,
        .tokens_capacity = seq->tokens_capacity,
        .spans = seq->spans,
        .spans_capacity = seq->spans_capacity,
        .n_spans = seq->n_spans,
        .n_spans_held = seq->n_spans_held,
        .good_tokens = SIZE_MAX,
        .pages = seq->pages,
        .pages_capacity = seq->pages_capacity,
        .source = { .ref = WEIR_RADIX_NONE },
        .first_step = 1,
        .born_of = NO_SEQ,
        .claim_next = NO_SEQ,
        .claim_previous = NO_SEQ,
        .event_next = NO_SEQ,
        .step_next = NO_SEQ,
        .free_next = NO_SEQ,
    };
    cache->n_seqs++;
    return seq;
}

int weir_seq_open(weir_seq *handle, weir_cache *cache, const weir_key *key,
                  const weir_seq_params *params)
{
    weir_seq_params defaults;
    weir_seq_params_init(&defaults);
    if (!params)
        params = &defaults;
    if (!cache)
        return -EINVAL;
    if (!handle)
        return weir_invalid(&cache->log, "seq_open: seq is NULL");
    if (params->struct_size != sizeof *params)
        return weir_invalid(&cache->log,
                            "seq_open: params.struct_size is %u, not %zu: use weir_seq_params_init",
                            params->struct_size, sizeof *params);
    if (params->priority > cache->priorities.n)
        return weir_invalid(&cache->log,
                            "seq_open: priority is %u, must be 0 to %u, the cache's priorities",
                            params->priority, cache->priorities.n);
    int rc = weir_key_check(cache, key);
    if (rc)
        return rc;
    if (cache->free_seq == NO_SEQ)
        return -ENOSPC;

    struct seq *seq = &cache->seqs[cache->free_seq];
    rc = weir_seq_grow_tokens(cache, seq, key->n_tokens);
    if (rc == 0)
        rc = weir_seq_set_spans(cache, seq, key);
    if (rc)
        return rc;
    int32_t root;
    rc = weir_radix_hold_root(cache->radix, key->fields, key->n_fields, &root);
    if (rc) {
        weir_seq_clear_spans(cache, seq);
        return weir_key_root_result(cache, rc, "key");
    }

    seq = weir_seq_make(cache, root, params->user);
    memcpy(seq->tokens, key->tokens, key->n_tokens * sizeof *seq->tokens);
    seq->n_key = seq->n_tokens = key->n_tokens;
    seq->compute_at_least = params->compute_at_least;
    seq->priority = params->priority;
    seq->ttl_ns = params->ttl_ns;
    *handle = weir_seq_handle(cache, seq);
    return 0;
}

static void unqueue_event(weir_cache *cache, struct seq *seq)
{
    if (!seq->event_queued)
        return;
    int32_t index = seq_index(cache, seq);
    int32_t before = NO_SEQ;
    for (int32_t i = cache->event_first; i != index; i = cache->seqs[i].event_next)
        before = i;
    if (before == NO_SEQ)
        cache->event_first = seq->event_next;
    else
        cache->seqs[before].event_next = seq->event_next;
    if (cache->event_last == index)
        cache->event_last = before;
    seq->event_queued = false;
}

void weir_seq_queue_event(weir_cache *cache, struct seq *seq)
{
    if (seq->event_queued || seq->closing)
        return;
    int32_t index = seq_index(cache, seq);
    seq->event_queued = true;
    seq->event_next = NO_SEQ;
    if (cache->event_last == NO_SEQ)
        cache->event_first = index;
    else
        cache->seqs[cache->event_last].event_next = index;
    cache->event_last = index;
}

void weir_seq_let_page_go(weir_cache *cache, int32_t page)
{
    const struct device_page *device_page = &cache->device_pages[page];
    weir_device_let_go(cache, page);
    if (device_page->users == 0 && device_page->mover == MOVER_WAITING)
        weir_entry_cancel_load(cache, page);
}

void weir_seq_let_go(weir_cache *cache, const struct seq *seq, const struct seq_page *sp)
{
    weir_page_pool_add_steps(cache->tiers[DEVICE].pool, sp->page, &seq->steps);
    weir_seq_let_page_go(cache, sp->page);
    if (sp->guard)
        weir_seq_let_page_go(cache, sp->guard);
}

/* The last page first: leaves become candidates before their parents. */
void weir_seq_keep_pages(weir_cache *cache, struct seq *seq, uint32_t n)
{
    while (seq->n_pages > n)
        weir_seq_let_go(cache, seq, &seq->pages[--seq->n_pages]);
}

void weir_seq_release(weir_cache *cache, struct seq *seq)
{
    weir_seq_drop_claim(cache, seq);
    weir_deadline_set(cache, seq, 0);
    unqueue_event(cache, seq);
    weir_tail_forget(cache, seq);
    weir_seq_keep_pages(cache, seq, 0);
    weir_seq_clear_spans(cache, seq);
    weir_radix_release_root(cache->radix, seq->root);
    seq->id = 0;
    seq->closing = false;
    seq->free_next = cache->free_seq;
    cache->free_seq = seq_index(cache, seq);
    cache->n_seqs--;
}

int weir_seq_close(weir_seq *handle)
{
    if (!handle)
        return -EINVAL;
    if (!handle->cache && handle->id == 0)
        return 0;
    int rc;
    struct seq *seq = weir_seq_find(*handle, &rc);
    if (!seq)
        return rc;
    if (seq->in_step) {
        weir_seq_drop_claim(handle->cache, seq);
        unqueue_event(handle->cache, seq);
        seq->closing = true;
    } else {
        weir_seq_release(handle->cache, seq);
    }
    *handle = (weir_seq){ 0 };
    return 0;
}

/* ---- Committing ---------------------------------------------------------- */

void weir_seq_note_writer(const weir_cache *cache, struct seq *seq, uint32_t i, uint64_t writer)
{
    if (!step_is_running(cache, writer))
        return;
    if (!step_is_running(cache, seq->lost_writer) || i < seq->lost_from)
        seq->lost_from = i;
    if (writer > seq->lost_writer)
        seq->lost_writer = writer;
}

/* A page that the index holds already. Its device copy is guarded, so that the
 * path below it stays whole; ours goes on serving this sequence alone. If it is
 * on the host only, our page becomes its device copy. It may be ours already, by a
 * commit of the sequence that this one was forked off. */
static void commit_onto(weir_cache *cache, struct seq *seq, uint32_t i, int32_t ref,
                        uint64_t writer)
{
    struct entry *entry = &cache->entries[ref];
    struct seq_page *sp = &seq->pages[i];
    sp->ref = ref;
    cache->stats.committed_pages += entry->page[DEVICE] != sp->page;
    if (entry->page[DEVICE] == sp->page)
        return;
    if (entry->page[DEVICE]) {
        sp->guard = entry->page[DEVICE];
        weir_device_hold(cache, sp->guard);
        weir_seq_note_writer(cache, seq, i, writer);
        cache->stats.duplicate_pages++;
    } else {
        entry->writer = writer;
        weir_tier_gain(cache, DEVICE, ref, sp->page);
    }
    weir_tier_use(cache, ref);
}

/* How many leading pages may be in the index now. What was copied out of a load waits
 * for its end. So does a page that another sequence had put there and that left with a
 * failed step of that one's: while it is written back for its old entry, it can have no
 * new one. */
static uint32_t count_indexable(const weir_cache *cache, const struct seq *seq)
{
    uint32_t full = (uint32_t)(seq->n_committed / cache->page_tokens);
    if (load_is_running(cache, seq->tail_load) && full > seq->tail_index)
        full = seq->tail_index;
    const weir_page_pool *pool = cache->tiers[DEVICE].pool;
    for (uint32_t i = seq->n_indexed; i < full; i++) {
        int32_t page = seq->pages[i].page;
        if (weir_page_pool_owner(pool, page) == WEIR_NO_OWNER &&
            weir_page_pool_pins(pool, page) > cache->device_pages[page].users)
            return i;
    }
    return full;
}

void weir_seq_apply_commit(weir_cache *cache, struct seq *seq, uint64_t writer)
{
    seq->n_committed += seq->n_pending;
    seq->n_pending = 0;
    uint32_t full = seq->detached ? 0 : count_indexable(cache, seq);
    if (full <= seq->n_indexed)
        return;

    uint32_t first = seq->n_indexed, n = full - first, n_there = 0, n_wanted = 0;
    int32_t place = first ? seq->pages[first - 1].ref : seq->root;
    weir_part part = weir_seq_part(cache, seq, first, full);
    weir_seq_use_spans(cache, seq, &part);
    int rc = weir_radix_insert(cache->radix, place, &part, cache->path, &n_there);
    if (rc) {
        /* Each entry has a page of its own and there are slots for all pages, and
         * what spans take was set aside. */
        weir_log_line(&cache->log, WEIR_LOG_ERROR, "commit: the index is full");
        seq->detached = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct seq_page *sp = &seq->pages[first + i];
        int32_t ref = cache->path[i];
        if (i < n_there) {
            weir_priority_grant(cache, ref, seq->priority, seq->ttl_ns);
            commit_onto(cache, seq, first + i, ref, writer);
            continue;
        }
        cache->stats.committed_pages++;
        weir_entry_make(cache, ref, first + i);
        weir_priority_grant(cache, ref, seq->priority, seq->ttl_ns);
        cache->entries[ref].writer = writer;
        sp->ref = ref;
        weir_tier_gain(cache, DEVICE, ref, sp->page);
        if (cache->tiers[HOST].pool &&
            weir_write_ask(cache, ref, WEIR_WRITE_ON_COMMIT) == WEIR_WRITE_NOW)
            cache->wanted[n_wanted++] = ref;
    }
    weir_cancel_build_on(cache, &seq->joins);
    seq->n_indexed = full;
    if (n_wanted)
        weir_write_queue(cache, cache->wanted, n_wanted);
}

int weir_seq_commit(weir_seq handle, const int32_t *tokens, size_t n)
{
    int rc;
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    weir_cache *cache = handle.cache;
    if (seq->failed)
        return -EIO;
    size_t from = seq->n_committed + seq->n_pending;
    size_t reserved = (size_t)seq->n_pages * cache->page_tokens;
    size_t room = reserved > from ? reserved - from : 0;
    if (n > room)
        return weir_invalid(&cache->log, "seq_commit: n is %zu, pages are reserved for %zu more", n,
                            room);
    if (seq->born_of >= 0 || (!seq->in_step && seq->steps.newest < seq->first_step))
        return weir_invalid(&cache->log, "seq_commit: the sequence was in no step");
    size_t of_key = from < seq->n_key ? seq->n_key - from : 0;
    of_key = of_key < n ? of_key : n;
    if (!tokens && of_key < n)
        return weir_invalid(&cache->log,
                            "seq_commit: tokens is NULL and the key has %zu more, not "
                            "%zu",
                            of_key, n);
    if (tokens && memcmp(tokens, seq->tokens + from, of_key * sizeof *tokens) != 0)
        return weir_invalid(&cache->log, "seq_commit: tokens differ from the key's from %zu on",
                            from);
    rc = weir_seq_grow_tokens(cache, seq, from + n);
    if (rc)
        return rc;
    if (n > of_key)
        memcpy(seq->tokens + from + of_key, tokens + of_key, (n - of_key) * sizeof *tokens);
    if (seq->n_tokens < from + n)
        seq->n_tokens = from + n;
    seq->n_pending += n;
    if (!seq->in_step)
        weir_seq_apply_commit(cache, seq, seq->steps.newest);
    return 0;
}

/* ---- Looking ------------------------------------------------------------- */

int weir_seq_get_info(weir_seq handle, weir_seq_info *info)
{
    int rc;
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    if (!info)
        return weir_invalid(&handle.cache->log, "seq_get_info: info is NULL");
    *info = (weir_seq_info){
        .n_tokens = seq->n_tokens,
        .n_committed = seq->n_committed + seq->n_pending,
        .n_hit = seq->n_hit,
        .n_reserved = (size_t)seq->n_pages * handle.cache->page_tokens,
        .user = seq->user,
    };
    return 0;
}

int weir_table_ratio(const weir_cache *cache, const char *call, uint32_t kernel_page_tokens,
                     uint32_t *ratio)
{
    if (kernel_page_tokens == 0 || cache->page_tokens % kernel_page_tokens)
        return weir_invalid(&cache->log, "%s: kernel_page_tokens is %u, must divide %u", call,
                            kernel_page_tokens, cache->page_tokens);
    uint32_t quotient = cache->page_tokens / kernel_page_tokens;
    uint32_t size = weir_page_pool_size(cache->tiers[DEVICE].pool);
    if (size >= INT32_MAX / quotient)
        return weir_invalid(&cache->log,
                            "%s: kernel_page_tokens is %u, with %u device pages of %u tokens the "
                            "ids exceed an int32",
                            call, kernel_page_tokens, size, cache->page_tokens);
    *ratio = quotient;
    return 0;
}

int weir_seq_pages(weir_seq handle, size_t from, uint32_t kernel_page_tokens, int32_t *table,
                   size_t capacity, size_t *n)
{
    int rc;
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    weir_cache *cache = handle.cache;
    if (!n || (!table && capacity))
        return weir_invalid(&cache->log,
                            "seq_pages: n is NULL, or table is NULL and capacity is "
                            "%zu",
                            capacity);
    uint32_t ratio;
    rc = weir_table_ratio(cache, "seq_pages", kernel_page_tokens, &ratio);
    if (rc)
        return rc;
    if (from % kernel_page_tokens)
        return weir_invalid(&cache->log, "seq_pages: from is %zu, not a multiple of %u", from,
                            kernel_page_tokens);
    size_t all = (size_t)seq->n_pages * ratio;
    size_t first = from / kernel_page_tokens;
    *n = first < all ? all - first : 0;
    if (*n > capacity)
        return -ENOSPC;
    table_write(seq, ratio, first, *n, table);
    return 0;
}
