/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

void weir_entry_make(weir_cache *cache, int32_t ref, uint32_t depth)
{
    cache->entries[ref] = (struct entry){ .hits = 1, .depth = depth, .flags = ENTRY_LIVE };
}

void weir_entry_start_load(weir_cache *cache, int32_t ref, int32_t page)
{
    struct entry *entry = &cache->entries[ref];
    entry->flags |= ENTRY_LOADING;
    weir_tier_gain(cache, DEVICE, ref, page);
    weir_tier_pin(cache, DEVICE, page);
    weir_tier_pin(cache, HOST, entry->page[HOST]);
    cache->device_pages[page].partner = entry->page[HOST];
    cache->device_pages[page].mover = MOVER_WAITING;
}

/* The entry has no device copy any more; its page is left to who pins it. */
static void lose_load(weir_cache *cache, int32_t ref)
{
    struct entry *entry = &cache->entries[ref];
    int32_t page = entry->page[DEVICE];
    entry->flags &= ~(uint32_t)ENTRY_LOADING;
    weir_tier_lose(cache, DEVICE, ref);
    weir_page_pool_set_owner(cache->tiers[DEVICE].pool, page, WEIR_NO_OWNER);
}

void weir_entry_cancel_load(weir_cache *cache, int32_t page)
{
    int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, page);
    if (ref >= 0)
        lose_load(cache, ref);
    cache->device_pages[page].mover = MOVER_NONE;
    weir_tier_unpin(cache, DEVICE, page);
    weir_tier_unpin(cache, HOST, cache->device_pages[page].partner);
    if (ref >= 0)
        weir_tier_cool_below(cache, ref);
}

void weir_entry_abandon_load(weir_cache *cache, int32_t ref)
{
    lose_load(cache, ref);
    weir_tier_cool_below(cache, ref);
}

void weir_entry_order_load(weir_cache *cache, int32_t page, struct flight *flight)
{
    struct device_page *device_page = &cache->device_pages[page];
    device_page->mover = (int16_t)(flight - cache->flights + 1);
    weir_chain_push(cache, &flight->loads, page, device_page->partner);
    flight->n_wanted++;
}

/* Removes an entry that has nothing below it. A load that waits goes on waiting
 * if a sequence holds its page. */
static void remove_leaf(weir_cache *cache, int32_t ref)
{
    struct entry *entry = &cache->entries[ref];
    const struct device_page *device_page = &cache->device_pages[entry->page[DEVICE]];
    if (entry->page[DEVICE] && device_page->mover == MOVER_WAITING && device_page->users == 0)
        weir_entry_cancel_load(cache, entry->page[DEVICE]);
    else if (entry->page[DEVICE] && device_page->mover < 0)
        weir_cancel_count_write(cache, entry->page[DEVICE]);
    if (entry->flags & (ENTRY_KEPT_DEVICE | ENTRY_KEPT_HOST))
        weir_pin_forget(cache, ref);
    weir_priority_forget(cache, ref);
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        int32_t page = entry->page[id];
        if (!page)
            continue;
        weir_page_pool *pool = cache->tiers[id].pool;
        weir_tier_lose(cache, id, ref);
        weir_page_pool_set_owner(pool, page, WEIR_NO_OWNER);
        if (weir_page_pool_pins(pool, page) == 0)
            weir_page_pool_free(pool, page);
    }
    entry->flags = 0;
    weir_radix_remove(cache->radix, ref);
    cache->stats.dropped_pages++;
}

void weir_entry_drop(weir_cache *cache, int32_t ref)
{
    int32_t at = ref;
    for (;;) {
        int32_t child = weir_radix_first_child(cache->radix, at);
        if (child >= 0) {
            at = child;
            continue;
        }
        int32_t parent = weir_radix_parent(cache->radix, at);
        remove_leaf(cache, at);
        if (at == ref)
            return;
        at = parent;
    }
}
