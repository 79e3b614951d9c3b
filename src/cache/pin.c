/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <weir/pin.h>

#include <errno.h>

#define NO_PIN (-1)

int weir_pin_create(weir_cache *cache, uint32_t max_pins, double max_pinned)
{
    struct pins *pins = &cache->pins;
    pins->max = max_pins;
    pins->free = max_pins ? 0 : NO_PIN;
    pins->oldest = pins->newest = NO_PIN;
    for (enum tier_id id = DEVICE; id < N_TIERS; id++)
        pins->limit[id] = (uint32_t)(max_pinned * weir_page_pool_size(cache->tiers[id].pool));
    if (max_pins == 0)
        return 0;
    pins->slots = weir_memory_take(&cache->memory, max_pins, sizeof *pins->slots);
    pins->counts = weir_memory_take(&cache->memory, cache->n_entries, sizeof *pins->counts);
    if (!pins->slots || !pins->counts)
        return -ENOMEM;
    for (uint32_t i = 0; i < max_pins; i++)
        pins->slots[i].free_next = i + 1 < max_pins ? (int32_t)i + 1 : NO_PIN;
    return 0;
}

void weir_pin_destroy(weir_cache *cache)
{
    struct pins *pins = &cache->pins;
    weir_memory_give(&cache->memory, pins->slots, pins->max, sizeof *pins->slots);
    weir_memory_give(&cache->memory, pins->counts, cache->n_entries, sizeof *pins->counts);
}

uint32_t weir_pin_count(const weir_cache *cache, int32_t ref)
{
    return cache->pins.counts ? cache->pins.counts[ref] : 0;
}

/* ---- Keeping an entry ---------------------------------------------------- */

/* The tier in which an entry is to be kept; N_TIERS: it cannot be. leading: all
 * entries above it are kept on the device. */
static enum tier_id tier_for(const struct entry *entry, bool leading)
{
    if (leading && entry->page[DEVICE] && !(entry->flags & ENTRY_LOADING))
        return DEVICE;
    return entry_on_host(entry) ? HOST : N_TIERS;
}

static void keep_in(weir_cache *cache, int32_t ref, enum tier_id tier)
{
    struct entry *entry = &cache->entries[ref];
    cache->pins.n_pages[tier]++;
    if (tier == DEVICE) {
        entry->flags |= ENTRY_KEPT_DEVICE;
        weir_device_hold(cache, entry->page[DEVICE]);
    } else {
        entry->flags |= ENTRY_KEPT_HOST;
        weir_tier_keep(cache, HOST, ref);
        weir_tier_pin(cache, HOST, entry->page[HOST]);
    }
}

static void release(weir_cache *cache, int32_t ref)
{
    struct entry *entry = &cache->entries[ref];
    bool device = (entry->flags & ENTRY_KEPT_DEVICE) != 0;
    entry->flags &= ~(uint32_t)(ENTRY_KEPT_DEVICE | ENTRY_KEPT_HOST);
    cache->pins.n_pages[device ? DEVICE : HOST]--;
    if (device)
        weir_device_let_go(cache, entry->page[DEVICE]);
    else
        weir_tier_unpin(cache, HOST, entry->page[HOST]);
}

static bool is_kept_in(const struct entry *entry, enum tier_id tier)
{
    uint32_t enough =
        tier == DEVICE ? ENTRY_KEPT_DEVICE : (uint32_t)(ENTRY_KEPT_DEVICE | ENTRY_KEPT_HOST);
    return (entry->flags & enough) != 0;
}

/* What it takes to keep a path. */
struct demand {
    int64_t more[N_TIERS]; /* pages that no pin keeps there */
    uint32_t not_held;     /* device pages that nothing holds */
};

/* How many of a path's leading entries can be kept, and what that takes. */
static uint32_t measure(const weir_cache *cache, const int32_t *path, uint32_t n,
                        struct demand *demand)
{
    bool leading = true;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *entry = &cache->entries[path[i]];
        enum tier_id tier = tier_for(entry, leading);
        if (tier == N_TIERS)
            return i;
        leading = tier == DEVICE;
        if (is_kept_in(entry, tier))
            continue;
        demand->more[tier]++;
        demand->more[HOST] -= (entry->flags & ENTRY_KEPT_HOST) != 0;
        demand->not_held += tier == DEVICE && cache->device_pages[entry->page[DEVICE]].users == 0;
    }
    return n;
}

static void keep_path(weir_cache *cache, const int32_t *path, uint32_t n)
{
    bool leading = true;
    for (uint32_t i = 0; i < n; i++) {
        struct entry *entry = &cache->entries[path[i]];
        enum tier_id tier = tier_for(entry, leading);
        leading = tier == DEVICE;
        cache->pins.counts[path[i]]++;
        if (is_kept_in(entry, tier))
            continue;
        if (entry->flags & ENTRY_KEPT_HOST)
            release(cache, path[i]);
        keep_in(cache, path[i], tier);
    }
}

static void leave(weir_cache *cache, int32_t ref)
{
    if (--cache->pins.counts[ref] == 0)
        release(cache, ref);
}

void weir_pin_forget(weir_cache *cache, int32_t ref)
{
    int32_t parent = weir_radix_parent(cache->radix, ref);
    for (int32_t i = cache->pins.oldest; i >= 0; i = cache->pins.slots[i].newer) {
        struct pin *pin = &cache->pins.slots[i];
        if (pin->tip != ref)
            continue;
        pin->tip = parent >= 0 ? parent : WEIR_RADIX_NONE;
        pin->n_pages--;
        leave(cache, ref);
    }
}

/* ---- The calls ----------------------------------------------------------- */

void weir_pin_params_init(weir_pin_params *params)
{
    if (params)
        *params = (weir_pin_params){ .struct_size = sizeof *params, .n_tokens = WEIR_ALL_TOKENS };
}

/* An id is generation << 32 | slot + 1. */
static struct pin *find(weir_pin handle, int *rc)
{
    *rc = -EINVAL;
    if (!handle.cache)
        return NULL;
    uint64_t slot = (handle.id & UINT32_MAX) - 1;
    if (slot >= handle.cache->pins.max) {
        weir_log_line(&handle.cache->log, WEIR_LOG_ERROR, "pin: not a handle of this cache");
        return NULL;
    }
    struct pin *pin = &handle.cache->pins.slots[slot];
    *rc = pin->id == handle.id ? 0 : -ESTALE;
    return pin->id == handle.id ? pin : NULL;
}

static struct pin *add_pin(weir_cache *cache)
{
    struct pins *pins = &cache->pins;
    int32_t slot = pins->free;
    struct pin *pin = &pins->slots[slot];
    pins->free = pin->free_next;
    *pin = (struct pin){
        .generation = pin->generation + 1,
        .id = (uint64_t)(pin->generation + 1) << 32 | (uint64_t)(slot + 1),
        .older = pins->newest,
        .newer = NO_PIN,
        .since_ns = cache->now_ns,
    };
    if (pins->newest >= 0)
        pins->slots[pins->newest].newer = slot;
    else
        pins->oldest = slot;
    pins->newest = slot;
    pins->n++;
    return pin;
}

static void remove_pin(weir_cache *cache, struct pin *pin)
{
    struct pins *pins = &cache->pins;
    if (pin->older >= 0)
        pins->slots[pin->older].newer = pin->newer;
    else
        pins->oldest = pin->newer;
    if (pin->newer >= 0)
        pins->slots[pin->newer].older = pin->older;
    else
        pins->newest = pin->older;
    pin->id = 0;
    pin->free_next = pins->free;
    pins->free = (int32_t)(pin - pins->slots);
    pins->n--;
}

int weir_cache_pin(weir_pin *handle, weir_cache *cache, const weir_key *key,
                   const weir_pin_params *params)
{
    weir_pin_params defaults;
    weir_pin_params_init(&defaults);
    if (!params)
        params = &defaults;
    if (!cache)
        return -EINVAL;
    if (!handle || !key || (key->n_tokens && !key->tokens))
        return weir_invalid(&cache->log, "cache_pin: pin, key or its tokens is NULL");
    if (params->struct_size != sizeof *params)
        return weir_invalid(
            &cache->log, "cache_pin: params.struct_size is %u, not %zu: use weir_pin_params_init",
            params->struct_size, sizeof *params);
    int32_t root;
    int rc = weir_key_find_root(cache, key, "cache_pin", &root);
    if (rc)
        return rc;
    size_t n_tokens = key->n_tokens < params->n_tokens ? key->n_tokens : params->n_tokens;
    weir_part part = { key->tokens, n_tokens, 0, key->spans, key->n_spans };
    uint32_t n = weir_radix_peek(cache->radix, root, &part, cache->path, cache->n_device);
    struct demand demand = { 0 };
    n = measure(cache, cache->path, n, &demand);
    if (n == 0)
        return -ENOENT;
    if (cache->pins.free == NO_PIN)
        return -ENOSPC;
    for (enum tier_id id = DEVICE; id < N_TIERS; id++)
        if (cache->pins.n_pages[id] + demand.more[id] > cache->pins.limit[id])
            return -ENOSPC;
    /* Who stands in line was promised that what is not held will do. */
    uint32_t size = weir_page_pool_size(cache->tiers[DEVICE].pool);
    if (demand.not_held && (uint64_t)cache->n_held + demand.not_held + cache->n_claimed > size)
        return -EAGAIN;

    struct pin *pin = add_pin(cache);
    pin->user = params->user;
    pin->tip = cache->path[n - 1];
    pin->n_pages = n;
    keep_path(cache, cache->path, n);
    *handle = (weir_pin){ cache, pin->id };
    return 0;
}

int weir_cache_unpin(weir_pin *handle)
{
    if (!handle)
        return -EINVAL;
    if (!handle->cache && handle->id == 0)
        return 0;
    int rc;
    struct pin *pin = find(*handle, &rc);
    if (!pin)
        return rc;
    weir_cache *cache = handle->cache;
    /* The last page first: leaves become candidates before their parents. */
    int32_t ref = pin->tip;
    for (uint32_t i = 0; i < pin->n_pages; i++) {
        int32_t parent = weir_radix_parent(cache->radix, ref);
        leave(cache, ref);
        ref = parent;
    }
    remove_pin(cache, pin);
    *handle = (weir_pin){ 0 };
    return 0;
}

int weir_cache_get_pin(weir_pin handle, weir_pin_info *info)
{
    int rc;
    const struct pin *pin = find(handle, &rc);
    if (!pin)
        return rc;
    const weir_cache *cache = handle.cache;
    if (!info)
        return weir_invalid(&cache->log, "cache_get_pin: info is NULL");
    size_t n_device = 0;
    int32_t ref = pin->tip;
    for (uint32_t i = 0; i < pin->n_pages; i++) {
        n_device += (cache->entries[ref].flags & ENTRY_KEPT_DEVICE) != 0;
        ref = weir_radix_parent(cache->radix, ref);
    }
    *info = (weir_pin_info){
        .n_tokens = (size_t)pin->n_pages * cache->page_tokens,
        .n_device = n_device * cache->page_tokens,
        .since_ns = pin->since_ns,
        .user = pin->user,
    };
    return 0;
}

/* ---- Checking ------------------------------------------------------------ */

/* Takes each pin's path from `left`, which holds the entries' counts. */
static const char *path_fault(const weir_cache *cache, uint32_t *left)
{
    uint32_t n = 0;
    int32_t older = NO_PIN;
    for (int32_t i = cache->pins.oldest; i >= 0; i = cache->pins.slots[i].newer) {
        const struct pin *pin = &cache->pins.slots[i];
        if (pin->id == 0 || pin->older != older || n++ == cache->pins.max)
            return "cache: the line of pins is broken";
        older = i;
        int32_t ref = pin->tip;
        for (uint32_t k = 0; k < pin->n_pages; k++) {
            if (ref < 0 || !(cache->entries[ref].flags & ENTRY_LIVE) || left[ref]-- == 0)
                return "cache: a pin keeps an entry that is not kept";
            ref = weir_radix_parent(cache->radix, ref);
        }
        if (ref >= 0)
            return "cache: a pin ends before the first page";
    }
    return n == cache->pins.n ? NULL : "cache: the count of pins is wrong";
}

static const char *kept_fault(const weir_cache *cache, int32_t ref, uint32_t *n_kept)
{
    const struct entry *entry = &cache->entries[ref];
    bool device = (entry->flags & ENTRY_KEPT_DEVICE) != 0;
    bool host = (entry->flags & ENTRY_KEPT_HOST) != 0;
    int32_t parent = weir_radix_parent(cache->radix, ref);
    n_kept[DEVICE] += device;
    n_kept[HOST] += host;
    if ((device && host) || (device || host) != (weir_pin_count(cache, ref) > 0))
        return "cache: a pinned entry is not kept in one tier";
    if (device && (!entry->page[DEVICE] || (entry->flags & ENTRY_LOADING)))
        return "cache: a pinned entry has lost its device copy";
    if (host && !entry_on_host(entry))
        return "cache: a pinned entry has lost its host copy";
    if (device && parent >= 0 && !(cache->entries[parent].flags & ENTRY_KEPT_DEVICE))
        return "cache: an entry pinned on the device lies below one that is not";
    return NULL;
}

const char *weir_pin_fault(const weir_cache *cache, uint32_t *left)
{
    const char *fault = NULL;
    uint32_t n_kept[N_TIERS] = { 0 };
    for (uint32_t ref = 0; ref < cache->n_entries && !fault; ref++) {
        if (!(cache->entries[ref].flags & ENTRY_LIVE))
            continue;
        left[ref] = weir_pin_count(cache, (int32_t)ref);
        fault = kept_fault(cache, (int32_t)ref, n_kept);
    }
    if (!fault)
        fault = path_fault(cache, left);
    for (uint32_t ref = 0; ref < cache->n_entries && !fault; ref++)
        if (left[ref])
            fault = "cache: an entry is kept by no pin";
    for (enum tier_id id = DEVICE; id < N_TIERS && !fault; id++)
        if (n_kept[id] != cache->pins.n_pages[id] || n_kept[id] > cache->pins.limit[id])
            fault = "cache: the count of pinned pages is wrong or above its limit";
    return fault;
}
