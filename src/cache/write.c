/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <errno.h>

weir_write_answer weir_write_ask(weir_cache *cache, int32_t ref, weir_write_event event)
{
    const struct entry *entry = &cache->entries[ref];
    const struct tier *host = &cache->tiers[HOST];
    weir_write_facts facts = {
        .event = event,
        .hits = entry->hits,
        .depth = entry->depth,
        .bytes = cache->page_bytes,
        .host_pages = weir_page_pool_size(host->pool),
        .host_room = weir_tier_available(host),
        .host_window = host->window,
        .host_hits = cache->recent_host_hits,
        .host_written = cache->recent_written,
        .priority = entry->priority,
    };
    return cache->write_policy.decide(&facts, cache->write_policy.parameter);
}

/* Length of the chain of parents and children that begins at refs[0]: their
 * host pages are to lie one after another. */
static uint32_t family(const weir_cache *cache, const int32_t *refs, uint32_t n)
{
    uint32_t length = 1;
    while (length < n && weir_radix_parent(cache->radix, refs[length]) == refs[length - 1])
        length++;
    return length;
}

uint32_t weir_write_queue(weir_cache *cache, const int32_t *refs, uint32_t n)
{
    struct tier *host = &cache->tiers[HOST];
    uint32_t room = cache->draining ? 0 : weir_tier_make_room(cache, HOST, n);
    uint32_t queued = room < n ? room : n;
    cache->stats.write_skipped_pages += n - queued;

    for (uint32_t done = 0; done < queued;) {
        uint32_t length = family(cache, refs + done, queued - done);
        int32_t parent = weir_radix_parent(cache->radix, refs[done]);
        int32_t after = parent >= 0 ? cache->entries[parent].page[HOST] : 0;
        weir_tier_alloc(cache, HOST, length, after, 0);
        for (uint32_t i = 0; i < length; i++) {
            int32_t ref = refs[done + i];
            struct entry *entry = &cache->entries[ref];
            entry->flags |= ENTRY_WRITING;
            weir_tier_gain(cache, HOST, ref, host->pages[i]);
            weir_tier_pin(cache, HOST, entry->page[HOST]);
            weir_tier_pin(cache, DEVICE, entry->page[DEVICE]);
            weir_chain_push(cache, &cache->write_queue, entry->page[DEVICE], entry->page[HOST]);
        }
        done += length;
    }
    return queued;
}

/* What was long ago does not tell how the tier fares now: whenever the whole of
 * it has been written once more, all before counts half. */
static void count_written(weir_cache *cache, uint32_t n)
{
    cache->stats.written_pages += n;
    cache->recent_written += n;
    cache->written_since += n;
    if (cache->written_since < weir_page_pool_size(cache->tiers[HOST].pool))
        return;
    cache->recent_written /= 2;
    cache->recent_host_hits /= 2;
    cache->written_since = 0;
}

void weir_write_finish(weir_cache *cache, struct page_chain *pages, int rc)
{
    if (rc == 0)
        count_written(cache, pages->count);
    else if (rc == -ECANCELED)
        cache->stats.write_cancelled_pages += pages->count;
    else
        cache->stats.write_failed_pages += pages->count;
    int32_t next;
    for (int32_t page = pages->first; page; page = next) {
        next = cache->device_pages[page].next;
        int32_t host_page = cache->device_pages[page].partner;
        cache->device_pages[page].mover = MOVER_NONE;
        int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, page);
        struct entry *entry = ref >= 0 ? &cache->entries[ref] : NULL;
        bool cleaning = entry && (entry->flags & ENTRY_CLEANING);
        if (entry) {
            entry->flags &= ~(uint32_t)ENTRY_WRITING;
            if (rc) {
                weir_tier_lose(cache, HOST, ref);
                weir_page_pool_set_owner(cache->tiers[HOST].pool, host_page, WEIR_NO_OWNER);
            }
        }
        weir_tier_unpin(cache, HOST, host_page);
        weir_tier_unpin(cache, DEVICE, page);
        if (cleaning)
            weir_tier_cleaned(cache, ref);
    }
    *pages = (struct page_chain){ 0 };
}
