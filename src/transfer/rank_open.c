/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/rank.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>

#define DEFAULT_STEPS 16u
#define DEFAULT_WRITE_BACKS 64u
#define DEFAULT_ENQUEUE_US 200u
#define DEFAULT_CHECKSUM_BYTES (8u << 20)
#define DAMAGED_ITEMS 16u
#define MAX_PAGES (1u << 30)

void weir_rank_params_init(weir_rank_params *params)
{
    if (params)
        *params = (weir_rank_params){ .struct_size = sizeof *params };
}

static int check_limit(const weir_log *log, const char *name, uint32_t value, uint32_t limit)
{
    if (value > limit)
        return weir_invalid(log, "rank_open: params.%s is %u, must be at most %u", name, value,
                            limit);
    return 0;
}

/* What no device could mean; whether a ring fits is for the device to say. */
static int check_tuning(const weir_log *log, const char *name, const weir_transfer_tuning *tuning)
{
    if (!weir_transfer_engine_name(tuning->engine) || tuning->launch > WEIR_LAUNCH_PER_LAYER)
        return weir_invalid(
            log, "rank_open: params.%s: engine is %d and launch is %d, must be of their enums",
            name, (int)tuning->engine, (int)tuning->launch);
    if (tuning->ctas > 1024)
        return weir_invalid(log, "rank_open: params.%s.ctas is %u, must be at most 1024", name,
                            tuning->ctas);
    return 0;
}

/* What geometry and host memory do not check. */
static int check_params(const weir_rank_params *params)
{
    const weir_log *log = &params->log;
    if (!params->shape)
        return weir_invalid(log, "rank_open: params.shape must not be NULL");
    if (params->device_pages == 0)
        return weir_invalid(log, "rank_open: params.device_pages is 0, must be at least 1");
    int rc = check_limit(log, "device_pages", params->device_pages, MAX_PAGES);
    if (rc == 0)
        rc = check_limit(log, "host_pages", params->host_pages, MAX_PAGES);
    if (rc == 0)
        rc = check_limit(log, "max_steps", params->max_steps, WEIR_MAX_STEPS);
    if (rc == 0)
        rc = check_limit(log, "n_slots", params->n_slots, WEIR_MAX_SLOTS);
    if (rc == 0)
        rc = check_tuning(log, "load", &params->load);
    if (rc == 0)
        rc = check_tuning(log, "write_back", &params->write_back);
    if (rc == 0)
        rc = check_limit(log, "max_write_backs", params->max_write_backs, WEIR_MAX_WRITE_BACKS);
    return rc;
}

/* ---- Parts ---------------------------------------------------------------- */

/* Of the limit, what another pool leaves; 0 stays: no limit. */
static uint64_t limit_left(uint64_t limit, uint64_t taken)
{
    return limit > taken ? limit - taken : limit ? 1 : 0;
}

static struct weir_host_memory_params host_pool(struct weir_rank *rank,
                                                const weir_rank_params *params)
{
    const struct weir_geometry *geometry = rank->geometry;
    return (struct weir_host_memory_params){
        .bytes = geometry->host_bytes,
        .granule = geometry->segment_stride ? geometry->segment_stride : 1,
        .bytes_limit = params->host_bytes_limit,
        .touch_threads = params->touch_threads,
        .skip_memory_check = params->skip_memory_check,
        .memory = &rank->heap,
    };
}

static int open_host_pool(struct weir_rank *rank, const weir_rank_params *params)
{
    if (rank->geometry->host_bytes == 0)
        return 0;
    struct weir_host_memory_params host = host_pool(rank, params);
    int rc = weir_host_memory_create(&rank->host, rank->device, &host, &rank->log);
    if (rc == 0)
        rank->memory.host_pool_bytes = rank->host->bytes;
    return rc;
}

static int join_share(struct weir_rank *rank, const weir_rank_params *params)
{
    struct weir_geometry *geometry = rank->geometry;
    struct weir_share_join join = {
        .device = rank->device,
        .geometry = geometry,
        .bytes_limit = limit_left(params->host_bytes_limit, rank->memory.host_pool_bytes),
        .touch_threads = params->touch_threads,
        .skip_memory_check = params->skip_memory_check,
        .checksums = params->checksums,
        .log = &rank->log,
    };
    int rc = weir_host_share_join(params->share, &join, &rank->share_place);
    if (rc)
        return rc;
    rank->share = params->share;
    rank->memory.shared_host_bytes = rank->share->memory->bytes;
    weir_geometry_bind_shared(geometry, (uintptr_t)rank->share->memory->base,
                              rank->share->memory->chunk_bytes);
    return 0;
}

static int open_share(struct weir_rank *rank, const weir_rank_params *params)
{
    struct weir_geometry *geometry = rank->geometry;
    uint32_t n_replicated = 0;
    for (uint32_t i = 0; i < geometry->n_tensors; i++)
        n_replicated += geometry->tensors[i].replicated;
    if (n_replicated == 0 || geometry->host_pages == 0)
        return weir_invalid(
            &rank->log,
            "rank_open: params.share is for replicated tensors in a host tier: there are %u "
            "tensors and %u host pages",
            n_replicated, geometry->host_pages);
    weir_geometry_share(geometry, params->segment_pages);
    return 0;
}

static int open_device_pool(struct weir_rank *rank)
{
    uint64_t bytes = weir_geometry_device_bytes(rank->geometry);
    int rc = rank->device->ops->memory_alloc(rank->device, bytes, &rank->device_base);
    if (rc) {
        weir_log_line(&rank->log, WEIR_LOG_ERROR,
                      "device pool: allocating %" PRIu64 " bytes failed with %s", bytes,
                      weir_error_name(rc));
        return rc;
    }
    rank->memory.device_pool_bytes = bytes;
    return 0;
}

/* The host pool's size is checked first: it is the one that operators get wrong,
 * and touching it takes the longest. */
static int open_pools(struct weir_rank *rank, const weir_rank_params *params)
{
    struct weir_geometry *geometry = rank->geometry;
    struct weir_host_memory_params host = host_pool(rank, params);
    int rc = host.bytes > 0 ? weir_host_memory_check(&host, &rank->log) : 0;
    if (rc == 0 && !params->planes)
        rc = open_device_pool(rank);
    if (rc == 0)
        rc = open_host_pool(rank, params);
    if (rc == 0 && params->share)
        rc = join_share(rank, params);
    if (rc)
        return rc;
    weir_geometry_bind(geometry, rank->device_base, rank->host ? (uintptr_t)rank->host->base : 0,
                       rank->host ? rank->host->chunk_bytes : 0);
    return 0;
}

static int register_pools(struct weir_rank *rank)
{
    weir_device *device = rank->device;
    const struct weir_geometry *geometry = rank->geometry;
    int rc = device->ops->pool_register(device, geometry->device_pages, geometry->n_tensors,
                                        geometry->n_layers, &rank->engine.device_pool);
    if (rc == 0 && geometry->host_pages > 0)
        rc = device->ops->pool_register(device, geometry->host_pages, geometry->n_tensors,
                                        geometry->n_layers, &rank->engine.host_pool);
    rank->engine.shared_pool = rank->share_place.pool;
    if (rc)
        weir_log_line(&rank->log, WEIR_LOG_ERROR, "registering the pools failed with %s",
                      weir_error_name(rc));
    return rc;
}

static int open_queues(struct weir_rank *rank)
{
    uint32_t n_held = rank->engine.max_moves;
    rank->n_items = 2 * rank->fences.n + rank->max_writes + DAMAGED_ITEMS;
    rank->writes = weir_memory_take(&rank->heap, rank->max_writes, sizeof *rank->writes);
    rank->items = weir_memory_take(&rank->heap, rank->n_items, sizeof *rank->items);
    if (n_held > 0)
        rank->held = weir_memory_take(&rank->heap, n_held, sizeof *rank->held);
    int rc = rank->writes && rank->items && (rank->held || n_held == 0) ? 0 : -ENOMEM;
    if (rc == 0)
        rc = weir_bitmap_create(&rank->device_seen, rank->geometry->device_pages, &rank->heap);
    if (rc == 0 && n_held > 0)
        rc = weir_bitmap_create(&rank->host_seen, rank->geometry->host_pages, &rank->heap);
    if (rc) {
        weir_log_line(&rank->log, WEIR_LOG_ERROR,
                      "no memory for %u write-backs and %u moves in flight", rank->max_writes,
                      n_held);
        return rc;
    }
    for (uint32_t i = 0; i < n_held; i++)
        rank->held[i].next = i + 1;
    rank->n_free_held = n_held;
    return 0;
}

static void sum_memory(struct weir_rank *rank)
{
    rank->memory.device_other_bytes = weir_engine_device_bytes(&rank->engine);
    rank->memory.pinned_bytes =
        weir_engine_pinned_bytes(&rank->engine) + rank->fences.n * sizeof *rank->fences.words;
    rank->memory.other_bytes = rank->heap.bytes;
}

static int open_engine(struct weir_rank *rank, const weir_rank_params *params, uint32_t n_slots)
{
    struct weir_engine_params engine = {
        .n_slots = n_slots,
        .load = params->load,
        .write_back = params->write_back,
        .max_enqueue_us = params->max_enqueue_us ? params->max_enqueue_us : DEFAULT_ENQUEUE_US,
        .exclusive_sms = params->exclusive_sms,
        .captured_waits = params->captured_waits,
        .memory = &rank->heap,
        .share_ranks = rank->share ? rank->share->n_ranks : 0,
        .share_index = rank->share_place.index,
    };
    return weir_engine_create(&rank->engine, rank->device, rank->geometry, &engine, &rank->log);
}

static int open_checks(struct weir_rank *rank, const weir_rank_params *params)
{
    const struct weir_geometry *own = rank->geometry;
    const struct weir_geometry *shared = NULL;
    if (rank->share) {
        own = rank->engine.own.view;
        shared = rank->engine.other.view;
    }
    int rc =
        weir_checks_create(&rank->checks, &rank->heap, params->checksums,
                           params->checksum_bytes ? params->checksum_bytes : DEFAULT_CHECKSUM_BYTES,
                           rank->geometry->host_pages, rank->engine.max_moves, own, shared,
                           rank->share ? rank->share->sums : NULL);
    if (rc)
        weir_log_line(&rank->log, WEIR_LOG_ERROR, "no memory for checksums of %u pages",
                      rank->geometry->host_pages);
    return rc;
}

static int open_parts(struct weir_rank *rank, const weir_rank_params *params)
{
    uint32_t max_steps = params->max_steps ? params->max_steps : DEFAULT_STEPS;
    uint32_t n_slots = params->n_slots ? params->n_slots : max_steps;
    rank->max_writes = params->max_write_backs ? params->max_write_backs : DEFAULT_WRITE_BACKS;
    int rc = weir_geometry_create_in(&rank->heap, &rank->geometry, params->shape, params->planes,
                                     params->device_pages, params->host_layout, params->host_pages,
                                     params->segment_pages, &rank->log);
    if (rc == 0 && params->share)
        rc = open_share(rank, params);
    if (rc == 0)
        rc = open_pools(rank, params);
    if (rc == 0)
        rc = open_engine(rank, params, n_slots);
    if (rc == 0)
        rc = register_pools(rank);
    if (rc == 0)
        rc = weir_fences_create(&rank->fences, rank->device, max_steps,
                                params->first_step ? params->first_step : 1, &rank->log);
    if (rc == 0)
        rc = open_queues(rank);
    if (rc == 0)
        rc = open_checks(rank, params);
    return rc;
}

static void close_parts(struct weir_rank *rank, bool failed)
{
    weir_device *device = rank->device;
    uint32_t pools[] = { rank->engine.device_pool, rank->engine.host_pool };
    uint32_t n_held = rank->engine.max_moves;
    weir_engine_destroy(&rank->engine);
    for (size_t i = 0; i < sizeof pools / sizeof pools[0]; i++)
        if (pools[i])
            device->ops->pool_unregister(device, pools[i]);
    weir_fences_destroy(&rank->fences);
    weir_host_memory_destroy(&rank->host);
    if (rank->share)
        weir_host_share_leave(rank->share, rank->share_place.index, failed);
    if (rank->device_base)
        device->ops->memory_free(device, rank->device_base);
    weir_geometry_destroy(&rank->geometry);
    weir_bitmap_destroy(&rank->device_seen);
    weir_bitmap_destroy(&rank->host_seen);
    weir_checks_destroy(&rank->checks);
    weir_memory_give(&rank->heap, rank->writes, rank->max_writes, sizeof *rank->writes);
    weir_memory_give(&rank->heap, rank->items, rank->n_items, sizeof *rank->items);
    weir_memory_give(&rank->heap, rank->held, n_held, sizeof *rank->held);
    struct weir_memory heap = rank->heap;
    weir_memory_give(&heap, rank, 1, sizeof *rank);
}

/* ---- The object ----------------------------------------------------------- */

int weir_rank_open(weir_rank **rank, weir_device *device, const weir_rank_params *params)
{
    if (!params)
        return weir_invalid(device ? &device->log : NULL, "rank_open: params must not be NULL");
    if (params->struct_size != sizeof *params)
        return weir_invalid(
            device ? &device->log : NULL,
            "rank_open: params.struct_size is %u, must be %zu: use weir_rank_params_init",
            params->struct_size, sizeof *params);
    if (!rank || !device)
        return weir_invalid(&params->log, "rank_open: %s must not be NULL",
                            rank ? "device" : "rank");
    int rc = check_params(params);
    if (rc)
        return rc;

    struct weir_memory heap;
    if (weir_memory_init(&heap, &params->allocator))
        return weir_invalid(&params->log,
                            "rank_open: params.allocator: alloc and free must both be there, "
                            "or none");
    struct weir_rank *made = weir_memory_take(&heap, 1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->heap = heap;
    made->device = device;
    made->log = params->log;
    rc = open_parts(made, params);
    if (rc) {
        close_parts(made, true);
        return rc;
    }
    if (made->share)
        weir_host_share_opened(made->share, made->share_place.index);
    sum_memory(made);
    atomic_fetch_add(&device->users, 1);
    weir_log_line(&made->log, WEIR_LOG_INFO,
                  "rank opened: device pool %" PRIu64 " bytes, host pool %" PRIu64
                  " bytes, of a share %" PRIu64 " bytes, copy tables %" PRIu64
                  " bytes, pinned words and tables %" PRIu64 " bytes, all else %" PRIu64 " bytes",
                  made->memory.device_pool_bytes, made->memory.host_pool_bytes,
                  made->memory.shared_host_bytes, made->memory.device_other_bytes,
                  made->memory.pinned_bytes, made->memory.other_bytes);
    *rank = made;
    return 0;
}

void weir_rank_close(weir_rank **rank)
{
    if (!rank || !*rank)
        return;
    struct weir_rank *closed = *rank;
    weir_device *device = closed->device;
    weir_log log = closed->log;
    /* The words of steps that have ended are still to be written by the
     * server's streams. The lane carries the wait into its destruction. */
    weir_fences_wait_all(&closed->fences, closed->engine.lanes[WEIR_WRITE_BACK].stream);
    close_parts(closed, false);
    *rank = NULL;
    atomic_fetch_sub(&device->users, 1);
    weir_log_line(&log, WEIR_LOG_INFO, "rank closed");
}

int weir_rank_synchronize(weir_rank *rank)
{
    if (!rank)
        return -EINVAL;
    weir_rank_catch_up(rank);
    int result = 0;
    for (int i = 0; i < 2; i++) {
        int rc = rank->device->ops->stream_synchronize(rank->device, rank->engine.lanes[i].stream);
        if (rc && !result)
            result = rc;
    }
    return result;
}

/* ---- Looking inside ------------------------------------------------------- */

uint64_t weir_rank_device_address(const weir_rank *rank, uint32_t tensor, uint32_t layer,
                                  weir_device_page page)
{
    if (!rank)
        return 0;
    const struct weir_geometry *geometry = rank->geometry;
    if (tensor >= geometry->n_tensors || layer >= geometry->n_layers || page.id < 0 ||
        (uint32_t)page.id > geometry->device_pages ||
        geometry->layer_index[(size_t)tensor * geometry->n_layers + layer] < 0)
        return 0;
    return weir_geometry_device(geometry, tensor, layer, page);
}

uint32_t weir_rank_cpu_pool(const weir_rank *rank)
{
    return rank ? rank->engine.device_pool : 0;
}

void weir_rank_get_memory(const weir_rank *rank, weir_rank_memory *memory)
{
    if (rank && memory)
        *memory = rank->memory;
}
