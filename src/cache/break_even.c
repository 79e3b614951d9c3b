/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/break_even.h"

#include "cache/brain.h"

#include <errno.h>

#define NS_PER_SECOND UINT64_C(1000000000)

__extension__ typedef unsigned __int128 wide;

static uint64_t saturate(wide value)
{
    return value > UINT64_MAX ? UINT64_MAX : (uint64_t)value;
}

struct break_even weir_break_even(const struct rates *rates, uint64_t page_bytes,
                                  uint32_t page_tokens, uint64_t n_load, uint64_t n_ahead,
                                  uint64_t n_compute)
{
    struct break_even result = { .load = true };
    if (n_load == 0)
        return result;
    /* Saturated before it is scaled, so that three factors cannot wrap. */
    uint64_t bytes = saturate((wide)(n_load + n_ahead) * page_bytes);
    if (rates->bytes_per_second)
        result.load_ns = saturate((wide)bytes * NS_PER_SECOND / rates->bytes_per_second);
    uint64_t tokens = n_compute * page_tokens;
    result.compute_ns = saturate((wide)tokens * rates->ns_per_token);
    if (result.load_ns && result.compute_ns)
        result.load = result.load_ns <= result.compute_ns;
    return result;
}

/* Pages of loads that have begun or will with the next step. What has arrived of
 * a load in flight is not known here. */
static uint64_t loads_ahead(const weir_cache *cache)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < cache->max_steps; i++)
        n += cache->flights[i].loads.count;
    return n;
}

uint32_t weir_hit_measure(const weir_cache *cache, const int32_t *path, uint32_t n, weir_hit *hit)
{
    uint32_t n_host = 0, n_loading = 0, first = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *entry = &cache->entries[path[i]];
        n_loading += (entry->flags & ENTRY_LOADING) != 0;
        if (!entry->page[DEVICE] && n_host++ == 0)
            first = i;
    }
    struct break_even price = weir_break_even(&cache->rates, cache->page_bytes, cache->page_tokens,
                                              n_host, n_host ? loads_ahead(cache) : 0, n - first);
    uint32_t worth = price.load ? n : first;
    size_t page_tokens = cache->page_tokens;
    *hit = (weir_hit){
        .n_tokens = n * page_tokens,
        .n_device = (n - n_host - n_loading) * page_tokens,
        .n_host = n_host * page_tokens,
        .n_loading = n_loading * page_tokens,
        .load_ns = price.load_ns,
        .compute_ns = price.compute_ns,
        .n_worth = worth * page_tokens,
    };
    return worth;
}

uint32_t weir_hit_price(const weir_cache *cache, const int32_t *path, uint32_t n, weir_hit *price)
{
    weir_hit hit = { .n_worth = (size_t)n * cache->page_tokens };
    uint32_t worth = n;
    if (cache->rates.ns_per_token || cache->rates.bytes_per_second)
        worth = weir_hit_measure(cache, path, n, &hit);
    *price =
        (weir_hit){ .load_ns = hit.load_ns, .compute_ns = hit.compute_ns, .n_worth = hit.n_worth };
    return worth;
}

int weir_cache_set_rates(weir_cache *cache, uint64_t ns_per_token, uint64_t bytes_per_second)
{
    if (!cache)
        return -EINVAL;
    cache->rates = (struct rates){ ns_per_token, bytes_per_second };
    return 0;
}
