/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/expert_cache.h>

#include "base/log.h"
#include "device/device.h"
#include "gather/expert_cache.h"
#include "gather/gather.h"

#include <errno.h>
#include <stdlib.h>

#define ALIGNMENT 256u
#define MIN_ORDER 4096u

_Static_assert(WEIR_EXPERT_CACHE_MAX_SLOTS == WEIR_EXPERT_MAX_SLOTS &&
                   WEIR_EXPERT_CACHE_MAX_EXPERTS == WEIR_EXPERT_MAX_EXPERTS &&
                   WEIR_EXPERT_CACHE_MAX_IDS == WEIR_EXPERT_MAX_IDS,
               "the kernel's limits are the caller's");

void weir_expert_cache_params_init(weir_expert_cache_params *params)
{
    if (params)
        *params = (weir_expert_cache_params){ .struct_size = sizeof *params, .n_layers = 1 };
}

/* ---- Creating -------------------------------------------------------------- */

static int check_range(const weir_log *log, const char *name, uint32_t value, uint32_t limit)
{
    if (value < 1 || value > limit)
        return weir_invalid(log, "expert cache: params.%s is %u, must be 1..%u", name, value,
                            limit);
    return 0;
}

static int check_params(const weir_expert_cache_params *p, const weir_log *log)
{
    int rc = check_range(log, "n_experts", p->n_experts, WEIR_EXPERT_CACHE_MAX_EXPERTS);
    if (!rc)
        rc = check_range(log, "n_layers", p->n_layers, WEIR_EXPERT_CACHE_MAX_IDS / p->n_experts);
    if (!rc)
        rc = check_range(log, "n_slots", p->n_slots, WEIR_EXPERT_CACHE_MAX_SLOTS);
    if (!rc)
        rc = check_range(log, "max_ids", p->max_ids, WEIR_EXPERT_CACHE_MAX_IDS);
    return rc;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* So long that it is squeezed once in at least three uses a slot. */
static uint32_t order_length(uint32_t n_slots)
{
    uint32_t length = MIN_ORDER;
    while (length < 4 * n_slots)
        length *= 2;
    return length;
}

/* The next part of the cache's memory: its offset, behind which the end moves. */
static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t offset = *end;
    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return offset;
}

/* Points the args into the cache's memory from `base` on; how long that is. */
static uint64_t lay_out(weir_expert_cache *cache, uint64_t base)
{
    struct weir_expert_args *args = &cache->args;
    uint64_t end = base;
    args->slot_of = (int32_t *)(uintptr_t)take(&end, sizeof(int32_t) * (uint64_t)args->n_ids);
    args->id_of = (int32_t *)(uintptr_t)take(&end, sizeof(int32_t) * (uint64_t)args->n_slots);
    args->place = (uint32_t *)(uintptr_t)take(&end, sizeof(uint32_t) * (uint64_t)args->n_slots);
    args->order =
        (int32_t *)(uintptr_t)take(&end, sizeof(int32_t) * ((uint64_t)args->order_mask + 1));
    args->dst_rows =
        (int32_t *)(uintptr_t)take(&end, sizeof(int32_t) * (uint64_t)cache->max_misses);
    args->src_rows =
        (int32_t *)(uintptr_t)take(&end, sizeof(int32_t) * (uint64_t)cache->max_misses);
    args->totals = (uint64_t *)(uintptr_t)take(&end, sizeof(uint64_t) * WEIR_EXPERT_TOTALS);
    args->count = (int64_t *)(uintptr_t)take(&end, sizeof(int64_t));
    args->ends = (uint32_t *)(uintptr_t)take(&end, 2 * sizeof(uint32_t));
    return end - base;
}

/* Sets the memory, before any stream of the caller's can get there. */
static int set_memory(weir_expert_cache *cache)
{
    const struct weir_device_ops *ops = cache->device->ops;
    weir_stream *stream;
    int rc = ops->stream_create(cache->device, 0, &stream);
    if (rc)
        return rc;
    rc = ops->expert_launch(cache->device, stream, &cache->args, WEIR_EXPERT_RESET);
    if (!rc)
        rc = ops->stream_synchronize(cache->device, stream);
    ops->stream_destroy(cache->device, stream);
    return rc;
}

static void free_memory(weir_expert_cache *cache)
{
    cache->device->ops->pool_unregister(cache->device, cache->args.race_pool);
    if (cache->memory)
        cache->device->ops->memory_free(cache->device, cache->memory);
    if (cache->words)
        cache->device->ops->words_free(cache->device, cache->words);
    free(cache);
}

static int take_memory(weir_expert_cache *cache)
{
    weir_device *device = cache->device;
    cache->device_bytes = lay_out(cache, 0);
    int rc = device->ops->memory_alloc(device, cache->device_bytes, &cache->memory);
    if (!rc)
        rc = device->ops->words_alloc(device, 2 * WEIR_EXPERT_TOTALS, &cache->words);
    if (!rc)
        rc = device->ops->pool_register(device, 1, 1, 1, &cache->args.race_pool);
    if (rc)
        return rc;
    lay_out(cache, cache->memory);
    cache->args.published = (uint64_t *)(void *)cache->words; /* words are aligned to 64 */
    return set_memory(cache);
}

int weir_expert_cache_create(weir_expert_cache **cache, weir_device *device,
                             const weir_expert_cache_params *params)
{
    if (!device)
        return -EINVAL;
    if (!cache || !params)
        return weir_invalid(&device->log, "expert cache: %s is NULL", params ? "cache" : "params");
    /* Of a struct of another size not even the log can be trusted. */
    if (params->struct_size != sizeof *params)
        return weir_invalid(
            &device->log,
            "expert cache: params.struct_size is %u, not %zu: use weir_expert_cache_params_init",
            params->struct_size, sizeof *params);
    const weir_log *log = params->log.write ? &params->log : &device->log;
    int rc = check_params(params, log);
    if (rc)
        return rc;
    if (!device->ops->expert_launch)
        return -ENOTSUP;
    weir_expert_cache *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->device = device;
    made->log = *log;
    made->n_layers = params->n_layers;
    made->max_ids = params->max_ids;
    made->max_misses = smaller(smaller(params->max_ids, params->n_experts), params->n_slots);
    made->args.n_slots = params->n_slots;
    made->args.n_experts = params->n_experts;
    made->args.n_ids = params->n_layers * params->n_experts;
    made->args.order_mask = order_length(params->n_slots) - 1;
    rc = take_memory(made);
    if (rc) {
        free_memory(made);
        return rc;
    }
    atomic_fetch_add(&device->users, 1);
    weir_log_line(log, WEIR_LOG_INFO,
                  "expert cache: %u slots for %u layers of %u experts, %llu bytes on the device",
                  params->n_slots, params->n_layers, params->n_experts,
                  (unsigned long long)made->device_bytes);
    *cache = made;
    return 0;
}

void weir_expert_cache_destroy(weir_expert_cache **cache)
{
    if (!cache || !*cache)
        return;
    weir_device *device = (*cache)->device;
    free_memory(*cache);
    *cache = NULL;
    atomic_fetch_sub(&device->users, 1);
}

/* ---- Calls ----------------------------------------------------------------- */

static bool overlap_partly(const weir_expert_ids *ids)
{
    uint64_t a = (uintptr_t)ids->ids;
    uint64_t b = (uintptr_t)ids->slots;
    uint64_t apart = a < b ? b - a : a - b;
    return apart > 0 && apart < sizeof(int32_t) * (uint64_t)ids->n;
}

static int check_ids(const weir_expert_cache *cache, const weir_expert_ids *ids)
{
    const weir_log *log = &cache->log;
    if (!ids)
        return weir_invalid(log, "expert cache: ids is NULL");
    if (ids->layer >= cache->n_layers)
        return weir_invalid(log, "expert cache: layer is %u, must be below %u", ids->layer,
                            cache->n_layers);
    if (ids->n > cache->max_ids)
        return weir_invalid(log, "expert cache: n is %u, must be at most %u", ids->n,
                            cache->max_ids);
    if (ids->n > 0 && (!ids->ids || (uintptr_t)ids->ids % sizeof(int32_t) != 0))
        return weir_invalid(log, "expert cache: ids.ids is %p, must be aligned to 4 and not NULL",
                            (const void *)ids->ids);
    if (ids->n > 0 && (!ids->slots || (uintptr_t)ids->slots % sizeof(int32_t) != 0))
        return weir_invalid(log, "expert cache: ids.slots is %p, must be aligned to 4 and not NULL",
                            (void *)ids->slots);
    if (overlap_partly(ids))
        return weir_invalid(log, "expert cache: slots overlaps ids, must be the same or apart");
    return 0;
}

static int launch(weir_expert_cache *cache, const weir_expert_ids *ids, weir_stream *stream)
{
    if (cache->broken)
        return -EIO;
    struct weir_expert_args args = cache->args;
    args.ids = ids->ids;
    args.slots = ids->slots;
    args.n = ids->n;
    args.id_base = ids->layer * args.n_experts;
    return cache->device->ops->expert_launch(cache->device, stream, &args, WEIR_EXPERT_ENSURE);
}

int weir_expert_cache_ensure(weir_expert_cache *cache, const weir_expert_ids *ids,
                             weir_stream *stream)
{
    if (!cache)
        return -EINVAL;
    int rc = check_ids(cache, ids);
    return rc ? rc : launch(cache, ids, stream);
}

static int check_gather(const weir_expert_cache *cache, const weir_gather *gather)
{
    const weir_log *log = &cache->log;
    if (!gather)
        return weir_invalid(log, "expert cache: gather is NULL");
    if (gather->device != cache->device)
        return weir_invalid(log, "expert cache: gather is another device's");
    if (gather->params.index_bytes != sizeof(int32_t))
        return weir_invalid(log, "expert cache: gather's index_bytes is %u, must be 4",
                            gather->params.index_bytes);
    if (gather->params.max_count < cache->max_misses)
        return weir_invalid(log, "expert cache: gather's max_count is %u, must be %u or more",
                            gather->params.max_count, cache->max_misses);
    for (uint32_t i = 0; i < gather->params.n_banks; i++)
        if (gather->banks[i].dst_rows > 0 && gather->banks[i].dst_rows < cache->args.n_slots)
            return weir_invalid(log, "expert cache: gather's bank %u has %llu dst_rows, not %u", i,
                                (unsigned long long)gather->banks[i].dst_rows, cache->args.n_slots);
    return 0;
}

int weir_expert_cache_step(weir_expert_cache *cache, const weir_expert_ids *ids,
                           weir_gather *gather, const weir_bank_bases *bases, weir_stream *stream)
{
    if (!cache)
        return -EINVAL;
    int rc = check_ids(cache, ids);
    if (!rc)
        rc = check_gather(cache, gather);
    if (!rc)
        rc = launch(cache, ids, stream);
    if (rc)
        return rc;
    weir_expert_tables tables;
    (void)weir_expert_cache_tables(cache, &tables);
    rc = weir_gather_launch(gather, &tables.rows, bases, stream);
    cache->broken = rc != 0;
    return rc;
}

int weir_expert_cache_reset(weir_expert_cache *cache, weir_stream *stream)
{
    if (!cache)
        return -EINVAL;
    int rc =
        cache->device->ops->expert_launch(cache->device, stream, &cache->args, WEIR_EXPERT_RESET);
    if (!rc)
        cache->broken = false;
    return rc;
}

/* ---- Looking --------------------------------------------------------------- */

int weir_expert_cache_tables(const weir_expert_cache *cache, weir_expert_tables *tables)
{
    if (!cache)
        return -EINVAL;
    if (!tables)
        return weir_invalid(&cache->log, "expert cache: tables is NULL");
    const struct weir_expert_args *args = &cache->args;
    *tables = (weir_expert_tables){
        .rows = { .dst_rows = args->dst_rows, .src_rows = args->src_rows, .count = args->count },
        .max_misses = cache->max_misses,
        .slot_of = args->slot_of,
        .expert_of = args->id_of
    };
    return 0;
}

static uint64_t total(const weir_expert_cache *cache, enum weir_expert_total which)
{
    return __atomic_load_n(&cache->args.published[which], __ATOMIC_RELAXED);
}

int weir_expert_cache_get_stats(const weir_expert_cache *cache, weir_expert_cache_stats *stats)
{
    if (!cache)
        return -EINVAL;
    if (!stats)
        return weir_invalid(&cache->log, "expert cache: stats is NULL");
    if (stats->struct_size != sizeof *stats)
        return weir_invalid(&cache->log, "expert cache: stats.struct_size is %u, not %zu",
                            stats->struct_size, sizeof *stats);
    *stats = (weir_expert_cache_stats){ .struct_size = sizeof *stats,
                                        .calls = total(cache, WEIR_EXPERT_CALLS),
                                        .hits = total(cache, WEIR_EXPERT_HITS),
                                        .misses = total(cache, WEIR_EXPERT_MISSES),
                                        .skipped = total(cache, WEIR_EXPERT_SKIPPED),
                                        .invalid = total(cache, WEIR_EXPERT_INVALID),
                                        .device_bytes = cache->device_bytes,
                                        .pinned_bytes = sizeof(uint64_t) * WEIR_EXPERT_TOTALS };
    return 0;
}
