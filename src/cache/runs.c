/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

/* The runs of a tier: a copy that lies right behind its parent's continues that
 * one's run. Which do is kept in their flags, and how many there are, so that
 * copies less these is the number of runs. A weighted mean would need to know
 * each run's length; only loads and write-backs have that at hand. */

static uint32_t run_flag(enum tier_id tier)
{
    return (uint32_t)ENTRY_RUN_DEVICE << tier;
}

bool weir_run_goes_on(const weir_cache *cache, enum tier_id tier, int32_t ref)
{
    int32_t page = cache->entries[ref].page[tier];
    int32_t parent = weir_radix_parent(cache->radix, ref);
    return page > 1 && parent >= 0 && cache->entries[parent].page[tier] == page - 1;
}

/* The child whose copy lies right behind this entry's, -1: none. */
static int32_t follower(const weir_cache *cache, enum tier_id tier, int32_t ref)
{
    int32_t next =
        weir_page_pool_owner(cache->tiers[tier].pool, cache->entries[ref].page[tier] + 1);
    return next >= 0 && weir_radix_parent(cache->radix, next) == ref ? next : -1;
}

static void join(weir_cache *cache, enum tier_id tier, int32_t ref)
{
    cache->entries[ref].flags |= run_flag(tier);
    cache->tiers[tier].n_joined++;
}

static void part(weir_cache *cache, enum tier_id tier, int32_t ref)
{
    if (!(cache->entries[ref].flags & run_flag(tier)))
        return;
    cache->entries[ref].flags &= ~run_flag(tier);
    cache->tiers[tier].n_joined--;
}

void weir_run_gain(weir_cache *cache, enum tier_id tier, int32_t ref)
{
    cache->tiers[tier].n_copies++;
    if (weir_run_goes_on(cache, tier, ref))
        join(cache, tier, ref);
    int32_t next = follower(cache, tier, ref);
    if (next >= 0)
        join(cache, tier, next);
}

/* Where an allocation takes the pages of both, the follower has no page to be
 * found by any more, and parts when its own turn comes. */
void weir_run_lose(weir_cache *cache, enum tier_id tier, int32_t ref)
{
    cache->tiers[tier].n_copies--;
    part(cache, tier, ref);
    int32_t next = follower(cache, tier, ref);
    if (next >= 0)
        part(cache, tier, next);
}

void weir_run_count(const weir_cache *cache, const struct page_chain *chain, uint64_t *runs,
                    uint64_t *squares)
{
    const int32_t cut = 32;
    uint64_t run = 0;
    int32_t before = 0, host_before = 0;
    for (int32_t page = chain->first; page; page = cache->device_pages[page].next) {
        int32_t host = cache->device_pages[page].partner;
        bool continues =
            run && page == before + 1 && host == host_before + 1 && (host - 1) % cut != 0;
        if (!continues) {
            *squares += run * run;
            ++*runs;
            run = 0;
        }
        run++;
        before = page;
        host_before = host;
    }
    *squares += run * run;
}
