/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <errno.h>

int weir_tier_create(weir_cache *cache, enum tier_id id, uint32_t n_pages, uint32_t most,
                     double offered, const weir_evict_policy *policy)
{
    struct tier *tier = &cache->tiers[id];
    *tier = (struct tier){ .id = id };
    if (n_pages == 0)
        return 0;
    tier->n_pages = n_pages;
    tier->most = n_pages < most ? n_pages : most;
    tier->policy = policy;
    tier->policy_hooks = weir_memory_hooks(&cache->memory);
    double window = offered * n_pages;
    tier->window = (uint32_t)window + ((uint32_t)window < window);
    tier->since = weir_memory_take(&cache->memory, (size_t)n_pages + 1, sizeof *tier->since);
    tier->pages = weir_memory_take(&cache->memory, tier->most, sizeof *tier->pages);
    tier->owners = weir_memory_take(&cache->memory, tier->most, sizeof *tier->owners);
    if (!tier->since || !tier->pages || !tier->owners)
        return -ENOMEM;
    /* Only device pages are written by steps. */
    int rc = weir_page_pool_create(&tier->pool, n_pages, id == DEVICE, &cache->memory.allocator);
    if (rc)
        return rc;
    return policy->create_in ? policy->create_in(&tier->policy_state, n_pages, &tier->policy_hooks)
                             : policy->create(&tier->policy_state, n_pages);
}

void weir_tier_destroy(weir_cache *cache, enum tier_id id)
{
    struct tier *tier = &cache->tiers[id];
    if (tier->policy_state)
        tier->policy->destroy(tier->policy_state);
    weir_page_pool_destroy(&tier->pool);
    weir_memory_give(&cache->memory, tier->since, (size_t)tier->n_pages + 1, sizeof *tier->since);
    weir_memory_give(&cache->memory, tier->pages, tier->most, sizeof *tier->pages);
    weir_memory_give(&cache->memory, tier->owners, tier->most, sizeof *tier->owners);
    *tier = (struct tier){ 0 };
}

uint32_t weir_tier_available(const struct tier *tier)
{
    return weir_page_pool_n_free(tier->pool) + weir_page_pool_n_offered(tier->pool);
}

/* ---- Candidates ---------------------------------------------------------- */

bool weir_tier_is_hot(const weir_cache *cache, enum tier_id tier, int32_t ref)
{
    const struct entry *entry = &cache->entries[ref];
    const weir_page_pool *pool = cache->tiers[tier].pool;
    int32_t page = entry->page[tier];
    if (!page || weir_page_pool_owner(pool, page) != ref)
        return false;
    return weir_page_pool_state(pool, page) == WEIR_PAGE_USED &&
           !(tier == DEVICE && (entry->flags & ENTRY_CLEANING));
}

static uint32_t candidate_flag(enum tier_id tier)
{
    return ENTRY_CANDIDATE_DEVICE << tier;
}

static uint32_t policy_entry(int32_t page)
{
    return (uint32_t)page - 1;
}

static weir_evict_entry facts_of(const weir_cache *cache, enum tier_id tier, int32_t ref)
{
    const struct entry *entry = &cache->entries[ref];
    return (weir_evict_entry){
        .entry = policy_entry(entry->page[tier]),
        .hits = entry->hits,
        .depth = entry->depth,
        .last_use = weir_radix_last_use(cache->radix, ref),
        .since = cache->tiers[tier].since[entry->page[tier]],
        .priority = entry->priority,
        .tokens = cache->page_tokens,
        .bytes = cache->page_bytes,
    };
}

bool weir_tier_is_candidate(const weir_cache *cache, enum tier_id tier, int32_t ref)
{
    const struct entry *entry = &cache->entries[ref];
    return weir_tier_is_hot(cache, tier, ref) && entry->kids_hot[tier] == 0 &&
           weir_page_pool_pins(cache->tiers[tier].pool, entry->page[tier]) == 0;
}

void weir_tier_update(weir_cache *cache, enum tier_id id, int32_t ref)
{
    struct tier *tier = &cache->tiers[id];
    struct entry *entry = &cache->entries[ref];
    uint32_t flag = candidate_flag(id);
    bool now = weir_tier_is_candidate(cache, id, ref);
    if (now == ((entry->flags & flag) != 0))
        return;
    entry->flags ^= flag;
    if (now) {
        weir_evict_entry facts = facts_of(cache, id, ref);
        tier->policy->add(tier->policy_state, &facts);
    } else {
        tier->policy->remove(tier->policy_state, policy_entry(entry->page[id]));
    }
    if (id == HOST)
        weir_duplicates_update(cache, ref);
}

/* A copy of `ref` became hot (+1) or ceased to be (-1): its parent counts. */
static void count_hot(weir_cache *cache, enum tier_id tier, int32_t ref, int change)
{
    if (tier == DEVICE)
        weir_duplicates_update(cache, ref);
    int32_t parent = weir_radix_parent(cache->radix, ref);
    if (parent < 0)
        return;
    cache->entries[parent].kids_hot[tier] += (uint32_t)change;
    weir_tier_update(cache, tier, parent);
}

void weir_tier_gain(weir_cache *cache, enum tier_id tier, int32_t ref, int32_t page)
{
    struct entry *entry = &cache->entries[ref];
    entry->page[tier] = page;
    cache->tiers[tier].since[page] = weir_radix_clock(cache->radix);
    weir_page_pool_set_owner(cache->tiers[tier].pool, page, ref);
    weir_run_gain(cache, tier, ref);
    count_hot(cache, tier, ref, +1);
    weir_tier_update(cache, tier, ref);
}

static void end_cleaning(weir_cache *cache, struct entry *entry)
{
    if (entry->flags & ENTRY_CLEANING) {
        entry->flags &= ~(uint32_t)ENTRY_CLEANING;
        cache->n_cleaning--;
    }
}

void weir_tier_lose(weir_cache *cache, enum tier_id id, int32_t ref)
{
    struct tier *tier = &cache->tiers[id];
    struct entry *entry = &cache->entries[ref];
    bool hot = weir_tier_is_hot(cache, id, ref);
    if (id == DEVICE)
        end_cleaning(cache, entry);
    uint32_t number = policy_entry(entry->page[id]);
    if (entry->flags & candidate_flag(id))
        tier->policy->remove(tier->policy_state, number);
    tier->policy->forget(tier->policy_state, number);
    entry->flags &= ~candidate_flag(id);
    if (id == HOST)
        weir_duplicates_update(cache, ref);
    weir_run_lose(cache, id, ref);
    entry->page[id] = 0;
    if (hot)
        count_hot(cache, id, ref, -1);
}

void weir_tier_keep(weir_cache *cache, enum tier_id tier, int32_t ref)
{
    struct entry *entry = &cache->entries[ref];
    if (weir_tier_is_hot(cache, tier, ref))
        return;
    weir_page_pool *pool = cache->tiers[tier].pool;
    if (weir_page_pool_state(pool, entry->page[tier]) == WEIR_PAGE_OFFERED)
        weir_page_pool_take_back(pool, entry->page[tier]);
    if (tier == DEVICE)
        end_cleaning(cache, entry);
    count_hot(cache, tier, ref, +1);
    weir_tier_update(cache, tier, ref);
}

void weir_tier_cleaned(weir_cache *cache, int32_t ref)
{
    struct entry *entry = &cache->entries[ref];
    end_cleaning(cache, entry);
    weir_page_pool_offer(cache->tiers[DEVICE].pool, entry->page[DEVICE]);
}

void weir_tier_use(weir_cache *cache, int32_t ref)
{
    struct entry *entry = &cache->entries[ref];
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        struct tier *tier = &cache->tiers[id];
        if (!entry->page[id])
            continue;
        weir_tier_keep(cache, id, ref);
        weir_evict_entry facts = facts_of(cache, id, ref);
        tier->policy->use(tier->policy_state, &facts);
    }
    weir_duplicates_update(cache, ref);
}

void weir_tier_reconsider(weir_cache *cache, int32_t ref)
{
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        const struct tier *tier = &cache->tiers[id];
        if (!(cache->entries[ref].flags & candidate_flag(id)))
            continue;
        weir_evict_entry facts = facts_of(cache, id, ref);
        tier->policy->remove(tier->policy_state, facts.entry);
        tier->policy->add(tier->policy_state, &facts);
    }
}

/* ---- Room ---------------------------------------------------------------- */

static void offer(weir_cache *cache, enum tier_id tier, int32_t ref)
{
    weir_page_pool_offer(cache->tiers[tier].pool, cache->entries[ref].page[tier]);
    count_hot(cache, tier, ref, -1);
}

static void start_cleaning(weir_cache *cache, int32_t ref)
{
    cache->entries[ref].flags |= ENTRY_CLEANING;
    cache->n_cleaning++;
    count_hot(cache, DEVICE, ref, -1);
}

/* Queues the write-back of victims that the policy gave up, children before
 * parents; those that the host tier cannot take are offered as they are. While
 * it is being cleaned a copy is no longer hot, so that its parent can follow
 * without waiting for it. */
static void clean(weir_cache *cache, int32_t *refs, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        int32_t swap = refs[i];
        refs[i] = refs[n - 1 - i];
        refs[n - 1 - i] = swap;
    }
    uint32_t queued = weir_write_queue(cache, refs, n);
    for (uint32_t i = n; i-- > queued;)
        weir_tier_cleaned(cache, refs[i]);
}

/* Makes a hot device copy that no sequence holds what it was before a request
 * had a look at it: on offer, being written back for that, or on the host only. */
static void cool(weir_cache *cache, int32_t ref)
{
    if (cache->entries[ref].flags & ENTRY_LOADING) {
        weir_entry_abandon_load(cache, ref);
        return;
    }
    if (weir_page_pool_pins(cache->tiers[DEVICE].pool, cache->entries[ref].page[DEVICE]))
        start_cleaning(cache, ref);
    else
        offer(cache, DEVICE, ref);
    weir_tier_update(cache, DEVICE, ref);
}

void weir_tier_cool_below(weir_cache *cache, int32_t ref)
{
    int32_t at = ref;
    while (cache->entries[ref].kids_hot[DEVICE]) {
        if (cache->entries[at].kids_hot[DEVICE] == 0) {
            cool(cache, at);
            at = weir_radix_parent(cache->radix, at);
            continue;
        }
        int32_t child = weir_radix_first_child(cache->radix, at);
        while (!weir_tier_is_hot(cache, DEVICE, child))
            child = weir_radix_next_sibling(cache->radix, child);
        at = child;
    }
}

uint32_t weir_tier_make_room(weir_cache *cache, enum tier_id id, uint32_t n)
{
    struct tier *tier = &cache->tiers[id];
    if (!tier->pool)
        return 0;
    if (cache->draining)
        return weir_tier_available(tier); /* more might take a write-back */
    uint32_t n_dirty = 0;
    while (weir_tier_available(tier) + (id == DEVICE ? cache->n_cleaning : 0) < n) {
        int32_t victim = id == HOST ? weir_duplicates_next(cache) : -1;
        if (victim < 0)
            victim = tier->policy->next(tier->policy_state);
        if (victim < 0)
            break;
        int32_t ref = weir_page_pool_owner(tier->pool, victim + 1);
        struct entry *entry = &cache->entries[ref];
        entry->flags &= ~candidate_flag(id);
        bool dirty = id == DEVICE && cache->tiers[HOST].pool && !entry->page[HOST];
        if (dirty && weir_write_ask(cache, ref, WEIR_WRITE_ON_EVICT) == WEIR_WRITE_NOW) {
            start_cleaning(cache, ref);
            cache->wanted[n_dirty++] = ref;
        } else {
            offer(cache, id, ref);
        }
    }
    if (n_dirty)
        clean(cache, cache->wanted, n_dirty);
    return weir_tier_available(tier);
}

void weir_tier_alloc(weir_cache *cache, enum tier_id id, uint32_t n, int32_t after, uint32_t expect)
{
    struct tier *tier = &cache->tiers[id];
    weir_page_pool_alloc(tier->pool, n, after, expect, tier->pages, tier->owners);
    /* First all copies go, then the entries that are left without any: one may
     * lie below another. */
    for (uint32_t i = 0; i < n; i++) {
        if (id == DEVICE)
            cache->device_pages[tier->pages[i]].tail_step = 0;
        if (tier->owners[i] == WEIR_NO_OWNER)
            continue;
        weir_tier_lose(cache, id, tier->owners[i]);
        tier->evicted++;
    }
    for (uint32_t i = 0; i < n; i++) {
        int32_t ref = tier->owners[i];
        if (ref == WEIR_NO_OWNER)
            continue;
        const struct entry *entry = &cache->entries[ref];
        if ((entry->flags & ENTRY_LIVE) && !entry->page[DEVICE] && !entry->page[HOST])
            weir_entry_drop(cache, ref);
    }
}

/* ---- Pins ---------------------------------------------------------------- */

/* A device page that no sequence holds and a ticket does will be free or
 * evictable when the ticket ends. */
static uint32_t is_pending(const weir_cache *cache, enum tier_id tier, int32_t page)
{
    return tier == DEVICE && cache->device_pages[page].users == 0 &&
           weir_page_pool_pins(cache->tiers[DEVICE].pool, page) > 0;
}

void weir_tier_pin(weir_cache *cache, enum tier_id tier, int32_t page)
{
    weir_page_pool *pool = cache->tiers[tier].pool;
    int32_t ref = weir_page_pool_owner(pool, page);
    uint32_t pending = is_pending(cache, tier, page);
    int pins = weir_page_pool_pin(pool, page);
    cache->n_pending += is_pending(cache, tier, page) - pending;
    if (pins == 1 && ref >= 0)
        weir_tier_update(cache, tier, ref);
}

void weir_tier_unpin(weir_cache *cache, enum tier_id tier, int32_t page)
{
    weir_page_pool *pool = cache->tiers[tier].pool;
    uint32_t pending = is_pending(cache, tier, page);
    int pins = weir_page_pool_unpin(pool, page);
    cache->n_pending += is_pending(cache, tier, page) - pending;
    if (pins > 0)
        return;
    int32_t ref = weir_page_pool_owner(pool, page);
    if (ref >= 0)
        weir_tier_update(cache, tier, ref);
    else
        weir_page_pool_free(pool, page);
}

void weir_device_hold(weir_cache *cache, int32_t page)
{
    struct device_page *device_page = &cache->device_pages[page];
    int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, page);
    if (ref >= 0)
        weir_tier_keep(cache, DEVICE, ref);
    weir_tier_pin(cache, DEVICE, page);
    if (device_page->users++ == 0) {
        cache->n_held++;
        cache->n_pending--; /* as weir_tier_pin has counted it */
        weir_cancel_count_load(cache, page, +1);
    }
}

void weir_device_let_go(weir_cache *cache, int32_t page)
{
    struct device_page *device_page = &cache->device_pages[page];
    if (--device_page->users == 0) {
        cache->n_held--;
        cache->n_pending++; /* until weir_tier_unpin */
        weir_cancel_count_load(cache, page, -1);
    }
    weir_tier_unpin(cache, DEVICE, page);
}

void weir_chain_push(weir_cache *cache, struct page_chain *chain, int32_t page, int32_t partner)
{
    cache->device_pages[page].partner = partner;
    cache->device_pages[page].next = 0;
    if (chain->last)
        cache->device_pages[chain->last].next = page;
    else
        chain->first = page;
    chain->last = page;
    chain->count++;
}
