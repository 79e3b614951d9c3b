/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

#include <errno.h>

/* Reserving: match, pin, make room, allocate, as one act. What is used of the
 * index is pinned before anything may be evicted, and all pins are undone if
 * the room is not there. */

struct plan {
    uint32_t n_hit;  /* pages taken from the index, in cache->path */
    uint32_t n_load; /* of them, without a device copy; set by pin_path */
    uint32_t n_new;  /* pages to compute; only if n_total fits the device tier */
    size_t n_total;  /* pages of the sequence */
    weir_hit price;  /* load_ns, compute_ns and n_worth of what a first reserve found */
};

/* ---- Claims -------------------------------------------------------------- */

void weir_seq_drop_claim(weir_cache *cache, struct seq *seq)
{
    if (seq->n_claimed == 0)
        return;
    if (seq->claim_previous >= 0)
        cache->seqs[seq->claim_previous].claim_next = seq->claim_next;
    else
        cache->claim_first = seq->claim_next;
    if (seq->claim_next >= 0)
        cache->seqs[seq->claim_next].claim_previous = seq->claim_previous;
    else
        cache->claim_last = seq->claim_previous;
    cache->n_claimed -= seq->n_claimed;
    seq->n_claimed = 0;
    seq->claim_next = seq->claim_previous = -1;
    seq->claim_told = seq->tell_ready = false;
}

static void put_in_line(weir_cache *cache, struct seq *seq, uint32_t n)
{
    if (seq->n_claimed == 0) {
        seq->claim_previous = cache->claim_last;
        if (cache->claim_last >= 0)
            cache->seqs[cache->claim_last].claim_next = seq_index(cache, seq);
        else
            cache->claim_first = seq_index(cache, seq);
        cache->claim_last = seq_index(cache, seq);
    }
    cache->n_claimed += n - seq->n_claimed;
    seq->n_claimed = n;
    seq->claim_told = seq->tell_ready = false;
}

/* Pages set aside for sequences that came before this one. */
static uint32_t claimed_ahead(const weir_cache *cache, const struct seq *seq)
{
    if (seq->n_claimed == 0)
        return cache->n_claimed;
    uint32_t ahead = 0;
    for (int32_t i = seq->claim_previous; i >= 0; i = cache->seqs[i].claim_previous)
        ahead += cache->seqs[i].n_claimed;
    return ahead;
}

/* ---- Reserving ----------------------------------------------------------- */

static size_t pages_for(const weir_cache *cache, size_t tokens)
{
    return tokens / cache->page_tokens + (tokens % cache->page_tokens != 0);
}

/* Fills cache->path with the pages that a first reserve uses. */
static uint32_t match(weir_cache *cache, const struct seq *seq, size_t use_hit, weir_hit *price)
{
    if (seq->detached)
        return 0; /* its namespace was forgotten before it reserved */
    size_t usable = seq->n_key > seq->compute_at_least ? seq->n_key - seq->compute_at_least : 0;
    if (usable > use_hit)
        usable = use_hit;
    weir_part part = weir_seq_part(cache, seq, 0, usable / cache->page_tokens);
    uint32_t n = weir_radix_peek(cache->radix, seq->root, &part, cache->path, cache->n_device);
    uint32_t worth = weir_hit_price(cache, cache->path, n, price);
    return use_hit == WEIR_USE_HIT_IF_CHEAPER ? worth : n;
}

static struct plan make_plan(weir_cache *cache, const struct seq *seq, size_t use_hit,
                             size_t total_tokens)
{
    struct plan plan = { 0 };
    if (!seq->reserved)
        plan.n_hit = match(cache, seq, use_hit, &plan.price);
    size_t committed = seq->n_committed + seq->n_pending; /* a cut may have left less */
    size_t wanted = pages_for(cache, total_tokens > committed ? total_tokens : committed);
    size_t have = (size_t)seq->n_pages + plan.n_hit;
    plan.n_total = wanted > have ? wanted : have;
    plan.n_new = (uint32_t)(plan.n_total - have);
    return plan;
}

static void pin_path(weir_cache *cache, struct plan *plan)
{
    for (uint32_t i = 0; i < plan->n_hit; i++) {
        int32_t ref = cache->path[i];
        const struct entry *entry = &cache->entries[ref];
        if (entry->page[DEVICE]) {
            weir_device_hold(cache, entry->page[DEVICE]);
        } else {
            weir_tier_keep(cache, HOST, ref);
            weir_tier_pin(cache, HOST, entry->page[HOST]);
            plan->n_load++;
        }
    }
}

static void unpin_path(weir_cache *cache, const struct plan *plan)
{
    for (uint32_t i = plan->n_hit; i-- > 0;) {
        const struct entry *entry = &cache->entries[cache->path[i]];
        if (entry->page[DEVICE]) {
            weir_device_let_go(cache, entry->page[DEVICE]);
        } else {
            weir_tier_unpin(cache, HOST, entry->page[HOST]);
            weir_tier_cool_below(cache, cache->path[i]);
        }
    }
}

/* Pages that the plan wants and no sequence holds: those that are to be
 * allocated, and those of the path that may be lost until then. */
static uint32_t demand_of(const weir_cache *cache, const struct plan *plan)
{
    uint32_t demand = plan->n_new;
    for (uint32_t i = 0; i < plan->n_hit; i++) {
        int32_t page = cache->entries[cache->path[i]].page[DEVICE];
        demand += !page || cache->device_pages[page].users == 0;
    }
    return demand;
}

void weir_seq_recount_claim(weir_cache *cache, struct seq *seq)
{
    struct plan plan = make_plan(cache, seq, seq->claim_use_hit, seq->claim_tokens);
    uint32_t demand = demand_of(cache, &plan);
    if (demand == 0)
        demand = 1; /* still in line: others bring all that it needs */
    cache->n_claimed += demand - seq->n_claimed;
    seq->n_claimed = demand;
}

static void wait_in_line(weir_cache *cache, struct seq *seq, const struct plan *plan,
                         const weir_request *request)
{
    unpin_path(cache, plan);
    seq->claim_use_hit = request->use_hit;
    seq->claim_tokens = request->total_tokens;
    put_in_line(cache, seq, demand_of(cache, plan));
    cache->stats.reserve_again++;
}

static void give_up(weir_cache *cache, struct seq *seq, const struct plan *plan)
{
    unpin_path(cache, plan);
    weir_seq_drop_claim(cache, seq);
    cache->stats.reserve_nospace++;
}

/* Where the allocation is to continue: behind the last device page before the
 * first that is needed. */
static int32_t last_page_before(const weir_cache *cache, const struct seq *seq,
                                const struct plan *plan)
{
    if (seq->n_pages)
        return seq->pages[seq->n_pages - 1].page;
    int32_t page = 0;
    for (uint32_t i = 0; i < plan->n_hit; i++) {
        const struct entry *entry = &cache->entries[cache->path[i]];
        if (!entry->page[DEVICE])
            break;
        page = entry->page[DEVICE];
    }
    return page;
}

/* Puts the path and the allocated pages (tiers[DEVICE].pages) into the table. */
static void fill_table(weir_cache *cache, struct seq *seq, const struct plan *plan, weir_hit *hit)
{
    struct tier *device = &cache->tiers[DEVICE];
    uint32_t taken = 0;
    for (uint32_t i = 0; i < plan->n_hit; i++) {
        int32_t ref = cache->path[i];
        struct entry *entry = &cache->entries[ref];
        if (!entry->page[DEVICE]) {
            int32_t page = device->pages[taken++];
            weir_entry_start_load(cache, ref, page);
            weir_tier_unpin(cache, HOST, entry->page[HOST]); /* the load has its own pin */
            weir_device_hold(cache, page);
            hit->n_host++;
        } else if (entry->flags & ENTRY_LOADING) {
            hit->n_loading++;
        } else {
            hit->n_device++;
        }
        if (step_is_running(cache, entry->writer))
            seq->fences = weir_step_set_add(seq->fences, entry->writer);
        seq->pages[seq->n_pages++] = (struct seq_page){ .page = entry->page[DEVICE], .ref = ref };
    }
    if (hit->n_host + hit->n_loading)
        seq->n_load_scan = plan->n_hit;
    for (uint32_t i = 0; i < plan->n_new; i++) {
        int32_t page = device->pages[taken++];
        weir_device_hold(cache, page);
        seq->fences = weir_step_set_merge(seq->fences, weir_page_pool_steps(device->pool, page));
        seq->pages[seq->n_pages++] = (struct seq_page){ .page = page, .ref = WEIR_RADIX_NONE };
    }
}

/* Counts the request and moves what it uses to the warm end. */
static void count_use(weir_cache *cache, const struct seq *seq, const struct plan *plan)
{
    uint32_t n_wanted = 0;
    for (uint32_t i = 0; i < plan->n_hit; i++) {
        int32_t ref = cache->path[i];
        struct entry *entry = &cache->entries[ref];
        entry->hits += entry->hits < MAX_HITS;
        weir_priority_grant(cache, ref, seq->priority, seq->ttl_ns);
        weir_tier_use(cache, ref);
        if (cache->tiers[HOST].pool && !entry->page[HOST] &&
            weir_write_ask(cache, ref, WEIR_WRITE_ON_HIT) == WEIR_WRITE_NOW)
            cache->wanted[n_wanted++] = ref;
    }
    if (n_wanted)
        weir_write_queue(cache, cache->wanted, n_wanted);
}

static void count_hit(weir_cache *cache, struct seq *seq, const struct plan *plan, weir_hit *hit)
{
    cache->stats.requests++;
    cache->stats.hit_pages_device += hit->n_device;
    cache->stats.hit_pages_host += hit->n_host;
    cache->recent_host_hits += hit->n_host;
    cache->stats.hit_pages_loading += hit->n_loading;
    hit->n_tokens = (size_t)plan->n_hit * cache->page_tokens;
    hit->n_device *= cache->page_tokens;
    hit->n_host *= cache->page_tokens;
    hit->n_loading *= cache->page_tokens;
    seq->n_hit = seq->n_committed = hit->n_tokens;
    seq->n_indexed = plan->n_hit;
}

static int check_request(const weir_cache *cache, const weir_request *request)
{
    if (!request)
        return weir_invalid(&cache->log, "seq_reserve: request is NULL");
    if (request->struct_size != sizeof *request)
        return weir_invalid(&cache->log,
                            "seq_reserve: request.struct_size is %u, not %zu: use "
                            "weir_request_init",
                            request->struct_size, sizeof *request);
    if (request->total_tokens == 0)
        return weir_invalid(&cache->log, "seq_reserve: total_tokens is 0, must be 1 or more");
    return 0;
}

int weir_seq_reserve(weir_seq handle, const weir_request *request, weir_reserved *reserved)
{
    int rc;
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    weir_cache *cache = handle.cache;
    rc = check_request(cache, request);
    if (rc)
        return rc;
    if (seq->failed)
        return -EIO;

    struct tier *device = &cache->tiers[DEVICE];
    struct plan plan = make_plan(cache, seq, request->use_hit, request->total_tokens);
    size_t size = weir_page_pool_size(device->pool);
    if (plan.n_total > size) {
        if (reserved)
            reserved->n_short = plan.n_total - size;
        weir_seq_drop_claim(cache, seq);
        return -E2BIG;
    }
    rc = weir_seq_grow_pages(cache, seq, (uint32_t)plan.n_total);
    if (rc)
        return rc;

    /* What no sequence holds will be free once all that is in flight has ended:
     * if that is not enough for those in line and this one, nothing helps. */
    pin_path(cache, &plan);
    uint32_t need = plan.n_load + plan.n_new;
    uint32_t wish = need ? need + claimed_ahead(cache, seq) : 0;
    if (cache->draining && (plan.n_load || wish > weir_tier_available(device))) {
        unpin_path(cache, &plan);
        return -EBUSY;
    }
    uint32_t not_held = (uint32_t)size - cache->n_held;
    if (wish > not_held) {
        give_up(cache, seq, &plan);
        if (reserved)
            reserved->n_short = wish - not_held;
        return -ENOSPC;
    }
    uint32_t room = weir_tier_make_room(cache, DEVICE, wish);
    if (room < wish) {
        wait_in_line(cache, seq, &plan, request);
        if (reserved)
            reserved->n_short = wish - room;
        return -EAGAIN;
    }
    size_t expected = pages_for(cache, request->expect_tokens);
    uint32_t expect =
        expected > plan.n_total && expected <= size ? (uint32_t)(expected - plan.n_total) : 0;
    weir_tier_alloc(cache, DEVICE, need, last_page_before(cache, seq, &plan), expect);
    weir_seq_drop_claim(cache, seq);

    weir_hit hit = plan.price;
    bool first = !seq->reserved;
    if (first)
        weir_radix_touch(cache->radix, cache->path, plan.n_hit);
    fill_table(cache, seq, &plan, &hit);
    cache->stats.new_pages += plan.n_new;
    weir_deadline_set(cache, seq, request->deadline_ns);
    if (first) {
        seq->reserved = true;
        count_hit(cache, seq, &plan, &hit);
        count_use(cache, seq, &plan);
    }
    if (reserved)
        *reserved = (weir_reserved){ .hit = hit };
    return 0;
}
