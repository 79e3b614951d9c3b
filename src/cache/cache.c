/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "policy/heap.h"

#include <errno.h>

/* ---- Creating ------------------------------------------------------------ */

void weir_cache_params_init(weir_cache_params *params)
{
    if (!params)
        return;
    *params = (weir_cache_params){
        .struct_size = sizeof *params,
        .n_ranks = 1,
        .max_steps = 16,
        .max_write_backs = 64,
        .max_seqs = 4096,
        .offered = 0.05,
        .max_pins = 64,
        .max_pinned = 0.25,
        .eviction = "lru",
        .write_back = "write_through",
    };
}

#define MAX_PAGES ((1u << 30) - 1)

static int check_params(const weir_cache_params *p)
{
    const weir_log *log = &p->log;
    /* Of a struct of another size not even the log can be trusted. */
    if (p->struct_size != sizeof *p)
        return -EINVAL;
    if (p->page_tokens < 1 || p->page_tokens > 1024)
        return weir_invalid(log, "cache_create: page_tokens is %u, must be 1 to 1024",
                            p->page_tokens);
    if (p->device_pages < 1 || p->device_pages > MAX_PAGES)
        return weir_invalid(log, "cache_create: device_pages is %u, must be 1 to %u",
                            p->device_pages, MAX_PAGES);
    if (p->host_pages > MAX_PAGES - p->device_pages)
        return weir_invalid(
            log, "cache_create: host_pages is %u, must be at most %u with %u device pages",
            p->host_pages, MAX_PAGES - p->device_pages, p->device_pages);
    if (p->n_ranks < 1 || p->n_ranks > 64)
        return weir_invalid(log, "cache_create: n_ranks is %u, must be 1 to 64", p->n_ranks);
    if (p->max_steps < 1 || p->max_steps > 64)
        return weir_invalid(log, "cache_create: max_steps is %u, must be 1 to 64", p->max_steps);
    if (p->max_write_backs < 1 || p->max_write_backs > 1024)
        return weir_invalid(log, "cache_create: max_write_backs is %u, must be 1 to 1024",
                            p->max_write_backs);
    if (p->max_seqs < 1 || p->max_seqs > 1u << 24)
        return weir_invalid(log, "cache_create: max_seqs is %u, must be 1 to %u", p->max_seqs,
                            1u << 24);
    if (!(p->offered >= 0 && p->offered <= 0.5))
        return weir_invalid(log, "cache_create: offered is %g, must be 0 to 0.5", p->offered);
    if (p->priorities > MAX_PRIORITY)
        return weir_invalid(log, "cache_create: priorities is %u, must be 0 to %u", p->priorities,
                            MAX_PRIORITY);
    if (p->max_pins > MAX_PINS)
        return weir_invalid(log, "cache_create: max_pins is %u, must be 0 to %u", p->max_pins,
                            MAX_PINS);
    if (!(p->max_pinned >= 0 && p->max_pinned <= 1))
        return weir_invalid(log, "cache_create: max_pinned is %g, must be 0 to 1", p->max_pinned);
    return 0;
}

/* The caller's own policy if there is one, else the one of this name. */
static int find_eviction(const weir_log *log, const char *field, const weir_evict_policy *own,
                         const char *name, const weir_evict_policy **policy)
{
    const weir_evict_policy *found = own ? own : weir_evict_policy_find(name);
    if (!found)
        return weir_invalid(log, "cache_create: %s \"%s\" is not a policy", field, name);
    if (!found->create || !found->destroy || !found->add || !found->use || !found->remove ||
        !found->forget || !found->next)
        return weir_invalid(
            log, "cache_create: %s_policy lacks a function: all but create_in must be there",
            field);
    *policy = found;
    return 0;
}

static int find_policies(const weir_cache_params *p, const weir_evict_policy **device,
                         const weir_evict_policy **host, weir_write_policy *write)
{
    const char *device_name = p->eviction ? p->eviction : "lru";
    const char *host_name = p->host_eviction ? p->host_eviction : device_name;
    const char *write_name = p->write_back ? p->write_back : "write_through";
    const weir_evict_policy *host_own = p->host_eviction_policy;
    if (!host_own && !p->host_eviction)
        host_own = p->eviction_policy;
    int rc = find_eviction(&p->log, "eviction", p->eviction_policy, device_name, device);
    if (rc == 0)
        rc = find_eviction(&p->log, "host_eviction", host_own, host_name, host);
    if (rc)
        return rc;
    if (p->write_policy.decide)
        *write = p->write_policy;
    else if (weir_write_policy_parse(write_name, write))
        return weir_invalid(&p->log, "cache_create: write_back \"%s\" is not a policy", write_name);
    return 0;
}

static void give_table(weir_cache *cache, void *table, size_t n, size_t size)
{
    weir_memory_give(&cache->memory, table, n, size);
}

static void free_cache(weir_cache *cache)
{
    weir_radix_destroy(&cache->radix);
    weir_priority_destroy(cache);
    weir_pin_destroy(cache);
    weir_heap_destroy(&cache->duplicates);
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        weir_tier_destroy(cache, id);
        give_table(cache, cache->moves[id], cache->n_moves, sizeof *cache->moves[id]);
    }
    weir_heap_destroy(&cache->deadlines);
    for (uint32_t i = 0; cache->seqs && i < cache->max_seqs; i++)
        weir_seq_free(cache, &cache->seqs[i]);
    for (uint32_t i = 0; cache->flights && i < cache->max_steps; i++)
        give_table(cache, cache->flights[i].order, 1, cache->order_capacity);
    give_table(cache, cache->entries, cache->n_entries, sizeof *cache->entries);
    give_table(cache, cache->device_pages, (size_t)cache->n_device + 1,
               sizeof *cache->device_pages);
    give_table(cache, cache->seqs, cache->max_seqs, sizeof *cache->seqs);
    give_table(cache, cache->flights, cache->max_steps, sizeof *cache->flights);
    give_table(cache, cache->writes, cache->max_write_backs, sizeof *cache->writes);
    give_table(cache, cache->path, cache->n_device, sizeof *cache->path);
    give_table(cache, cache->wanted, cache->n_device, sizeof *cache->wanted);
    give_table(cache, cache->cancels, cache->max_steps + cache->max_write_backs,
               sizeof *cache->cancels);
    give_table(cache, cache->copies, cache->max_copies, sizeof *cache->copies);
    struct weir_memory memory = cache->memory;
    weir_memory_give(&memory, cache, 1, sizeof *cache);
}

static void *take(weir_cache *cache, size_t n, size_t size)
{
    return weir_memory_take(&cache->memory, n, size);
}

static int allocate(weir_cache *cache, const weir_cache_params *p)
{
    cache->entries = take(cache, cache->n_entries, sizeof *cache->entries);
    cache->device_pages = take(cache, (size_t)p->device_pages + 1, sizeof *cache->device_pages);
    cache->seqs = take(cache, p->max_seqs, sizeof *cache->seqs);
    cache->flights = take(cache, p->max_steps, sizeof *cache->flights);
    cache->writes = take(cache, p->max_write_backs, sizeof *cache->writes);
    cache->path = take(cache, cache->n_device, sizeof *cache->path);
    cache->wanted = take(cache, cache->n_device, sizeof *cache->wanted);
    cache->moves[DEVICE] = take(cache, cache->n_moves, sizeof *cache->moves[DEVICE]);
    cache->moves[HOST] = take(cache, cache->n_moves, sizeof *cache->moves[HOST]);
    uint32_t n_cancels = p->max_steps + p->max_write_backs;
    cache->cancels = take(cache, n_cancels, sizeof *cache->cancels);
    cache->max_copies = p->max_seqs < p->device_pages ? p->max_seqs : p->device_pages;
    cache->copies = take(cache, cache->max_copies, sizeof *cache->copies);
    if (!cache->cancels || !cache->copies || !cache->entries || !cache->device_pages ||
        !cache->seqs || !cache->flights || !cache->writes || !cache->path || !cache->wanted ||
        !cache->moves[DEVICE] || !cache->moves[HOST])
        return -ENOMEM;

    /* The largest order: a page of either tier is in one move at a time. */
    weir_order largest = { .n_fences = 64,
                           .n_load_fences = 64,
                           .n_write_fences = 65,
                           .n_joins = 64,
                           .n_loads = cache->n_moves,
                           .n_cancels = n_cancels,
                           .n_copies = cache->max_copies };
    cache->order_capacity = weir_order_bytes(&largest);
    for (uint32_t i = 0; i < p->max_steps; i++) {
        cache->flights[i].order = take(cache, 1, cache->order_capacity);
        if (!cache->flights[i].order)
            return -ENOMEM;
    }
    cache->hooks = weir_memory_hooks(&cache->memory);
    return weir_heap_create(&cache->deadlines, p->max_seqs, &cache->hooks);
}

static int build(weir_cache *cache, const weir_cache_params *p)
{
    const weir_evict_policy *device, *host;
    int rc = find_policies(p, &device, &host, &cache->write_policy);
    if (rc)
        return rc;
    rc = allocate(cache, p);
    if (rc)
        return rc;
    rc = weir_tier_create(cache, DEVICE, p->device_pages, p->device_pages, p->offered, device);
    if (rc)
        return rc;
    rc = weir_tier_create(cache, HOST, p->host_pages, p->device_pages, p->offered, host);
    if (rc)
        return rc;
    rc = weir_priority_create(cache, p->priorities);
    if (rc)
        return rc;
    rc = weir_pin_create(cache, p->max_pins, p->max_pinned);
    if (rc)
        return rc;
    if (p->host_pages && p->host_drops_duplicates) {
        rc = weir_duplicates_create(cache);
        if (rc)
            return rc;
    }
    return weir_radix_create(&cache->radix, p->page_tokens, cache->n_entries, &p->allocator);
}

int weir_cache_create(weir_cache **out, const weir_cache_params *params)
{
    if (!params)
        return -EINVAL;
    int rc = check_params(params);
    if (rc)
        return rc;
    if (!out)
        return weir_invalid(&params->log, "cache_create: cache is NULL");
    struct weir_memory memory;
    if (weir_memory_init(&memory, &params->allocator))
        return weir_invalid(&params->log,
                            "cache_create: allocator: alloc and free must both be there, or none");
    weir_cache *cache = weir_memory_take(&memory, 1, sizeof *cache);
    if (!cache)
        return -ENOMEM;
    *cache = (weir_cache){
        .page_tokens = params->page_tokens,
        .n_ranks = params->n_ranks,
        .max_steps = params->max_steps,
        .max_write_backs = params->max_write_backs,
        .page_bytes = params->page_bytes,
        .all_ranks = UINT64_MAX >> (64 - params->n_ranks),
        .log = params->log,
        .rates = { params->ns_per_token, params->link_bytes_per_second },
        .n_entries = params->device_pages + params->host_pages,
        .max_seqs = params->max_seqs,
        .claim_first = -1,
        .claim_last = -1,
        .event_first = -1,
        .event_last = -1,
        .next_step = 1,
        .next_write = 1,
        .n_device = params->device_pages,
        .n_moves =
            params->device_pages < params->host_pages ? params->device_pages : params->host_pages,
        .memory = memory,
    };
    rc = build(cache, params);
    if (rc) {
        if (rc == -ENOMEM)
            weir_log_line(&params->log, WEIR_LOG_ERROR,
                          "cache: no memory for %u pages of %u tokens", cache->n_entries,
                          cache->page_tokens);
        free_cache(cache);
        return rc;
    }
    for (uint32_t i = 0; i < cache->max_seqs; i++)
        cache->seqs[i].free_next = i + 1 < cache->max_seqs ? (int32_t)i + 1 : -1;
    weir_stats stats = { .struct_size = sizeof stats };
    weir_cache_get_stats(cache, &stats);
    weir_log_line(&cache->log, WEIR_LOG_INFO,
                  "cache: %u device and %u host pages of %u tokens, %llu bytes of host memory",
                  params->device_pages, params->host_pages, params->page_tokens,
                  (unsigned long long)stats.index_bytes);
    *out = cache;
    return 0;
}

int weir_cache_destroy(weir_cache **out)
{
    if (!out || !*out)
        return 0;
    const weir_cache *cache = *out;
    if (cache->n_seqs || cache->step_open || cache->n_flights || cache->n_writes || cache->pins.n) {
        weir_log_line(&cache->log, WEIR_LOG_ERROR,
                      "cache: busy, %u sequences open, %u steps and %u write-backs in flight, %u "
                      "pins held",
                      cache->n_seqs, cache->n_flights + cache->step_open, cache->n_writes,
                      cache->pins.n);
        return -EBUSY;
    }
    free_cache(*out);
    *out = NULL;
    return 0;
}

/* ---- Looking ------------------------------------------------------------- */

int weir_cache_peek(const weir_cache *cache, const weir_key *key, weir_hit *hit)
{
    if (!cache)
        return -EINVAL;
    if (!key || !hit || (key->n_tokens && !key->tokens))
        return weir_invalid(&cache->log, "peek: key, its tokens or hit is NULL");
    int32_t root;
    int rc = weir_key_find_root(cache, key, "peek", &root);
    if (rc && rc != -ENOENT)
        return rc;
    weir_part part = { key->tokens, key->n_tokens, 0, key->spans, key->n_spans };
    uint32_t n = rc ? 0 : weir_radix_peek(cache->radix, root, &part, cache->path, cache->n_device);
    weir_hit_measure(cache, cache->path, n, hit);
    return 0;
}

int weir_cache_available(const weir_cache *cache, weir_available *available)
{
    if (!cache || !available)
        return -EINVAL;
    const weir_page_pool *pool = cache->tiers[DEVICE].pool;
    *available = (weir_available){
        .free = weir_page_pool_n_free(pool),
        .offered = weir_page_pool_n_offered(pool),
        .pending = cache->n_pending,
        .claimed = cache->n_claimed,
    };
    return 0;
}

int weir_cache_get_stats(const weir_cache *cache, weir_stats *stats)
{
    if (!cache || !stats)
        return -EINVAL;
    if (stats->struct_size != sizeof *stats)
        return weir_invalid(&cache->log, "get_stats: struct_size is %u, not %zu",
                            stats->struct_size, sizeof *stats);
    const weir_page_pool *device = cache->tiers[DEVICE].pool;
    const weir_page_pool *host = cache->tiers[HOST].pool;
    *stats = cache->stats;
    stats->struct_size = sizeof *stats;
    stats->evicted_device_pages = cache->tiers[DEVICE].evicted;
    stats->evicted_host_pages = cache->tiers[HOST].evicted;
    stats->orders_in_flight = cache->n_flights;
    stats->write_backs_in_flight = cache->n_writes;
    stats->seqs_open = cache->n_seqs;
    stats->index_pages = weir_radix_pages(cache->radix);
    stats->index_bytes = cache->memory.bytes + weir_radix_bytes(cache->radix) +
                         weir_page_pool_bytes(device) + weir_page_pool_bytes(host);
    stats->device_free = weir_page_pool_n_free(device);
    stats->device_offered = weir_page_pool_n_offered(device);
    stats->host_free = weir_page_pool_n_free(host);
    stats->host_offered = weir_page_pool_n_offered(host);
    stats->loaded_bytes = stats->loaded_pages * cache->page_bytes;
    stats->written_bytes = stats->written_pages * cache->page_bytes;
    stats->device_copies = cache->tiers[DEVICE].n_copies;
    stats->device_runs = cache->tiers[DEVICE].n_copies - cache->tiers[DEVICE].n_joined;
    stats->host_copies = cache->tiers[HOST].n_copies;
    stats->host_runs = cache->tiers[HOST].n_copies - cache->tiers[HOST].n_joined;
    stats->pins = cache->pins.n;
    stats->pinned_device_pages = cache->pins.n_pages[DEVICE];
    stats->pinned_host_pages = cache->pins.n_pages[HOST];
    stats->oldest_pin_ns =
        cache->pins.n ? cache->now_ns - cache->pins.slots[cache->pins.oldest].since_ns : 0;
    return 0;
}
