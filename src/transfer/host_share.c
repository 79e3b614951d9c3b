/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/host_share.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t all_ranks(const weir_host_share *share)
{
    return share->n_ranks == 64 ? UINT64_MAX : (UINT64_C(1) << share->n_ranks) - 1;
}

int weir_host_share_create(weir_host_share **share, uint32_t n_ranks, const weir_log *log)
{
    if (!share)
        return weir_invalid(log, "host share: share is NULL");
    if (n_ranks == 0 || n_ranks > WEIR_MAX_SHARE_RANKS)
        return weir_invalid(log, "host share: n_ranks is %u, must be 1..%u", n_ranks,
                            WEIR_MAX_SHARE_RANKS);
    weir_host_share *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    if (pthread_mutex_init(&made->lock, NULL)) {
        free(made);
        return -ENOMEM;
    }
    made->n_ranks = n_ranks;
    made->users = 1;
    *share = made;
    return 0;
}

static void let_go(weir_host_share *share)
{
    bool last = --share->users == 0;
    pthread_mutex_unlock(&share->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&share->lock);
    free(share);
}

void weir_host_share_close(weir_host_share **share)
{
    if (!share || !*share)
        return;
    pthread_mutex_lock(&(*share)->lock);
    let_go(*share);
    *share = NULL;
}

/* ---- Layout --------------------------------------------------------------- */

/* A copy of the replicated tensors' place, which outlives the rank. */
static int keep_layout(weir_host_share *share, const struct weir_share_join *join)
{
    int rc = weir_geometry_view(NULL, &share->layout, join->geometry, true);
    if (rc) {
        weir_log_line(join->log, WEIR_LOG_ERROR, "no memory for the layout of a share");
        return rc;
    }
    share->layout->planes = NULL;
    share->checksums = join->checksums;
    return 0;
}

static bool same_layers(const struct weir_geometry *a, uint32_t a_tensor,
                        const struct weir_geometry *b, uint32_t b_tensor)
{
    return memcmp(&a->layer_index[(size_t)a_tensor * a->n_layers],
                  &b->layer_index[(size_t)b_tensor * b->n_layers],
                  a->n_layers * sizeof *a->layer_index) == 0;
}

static int check_tensors(const struct weir_geometry *layout, const struct weir_geometry *g,
                         const weir_log *log)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct weir_geometry_tensor *t = &g->tensors[i];
        if (!t->shared)
            continue;
        if (n == layout->n_tensors)
            return weir_invalid(log, "share: tensors[%u] is replicated, the other ranks have %u", i,
                                n);
        const struct weir_geometry_tensor *first = &layout->tensors[n];
        if (t->page_bytes != first->page_bytes || t->row_bytes != first->row_bytes ||
            !same_layers(g, i, layout, n))
            return weir_invalid(log,
                                "share: tensors[%u] has %" PRIu64 " bytes a page and %u a row in "
                                "%u layers, must be as in the other ranks: %" PRIu64
                                ", %u, %u, the same layers",
                                i, t->page_bytes, t->row_bytes, t->n_layers, first->page_bytes,
                                first->row_bytes, first->n_layers);
        n++;
    }
    if (n < layout->n_tensors)
        return weir_invalid(log, "share: %u tensors are replicated, must be %u", n,
                            layout->n_tensors);
    return 0;
}

static int check_layout(const weir_host_share *share, const struct weir_share_join *join)
{
    const struct weir_geometry *layout = share->layout;
    const struct weir_geometry *g = join->geometry;
    if (g->page_tokens != layout->page_tokens || g->n_layers != layout->n_layers ||
        g->host_pages != layout->host_pages || g->host_layout != layout->host_layout ||
        g->segment_pages != layout->segment_pages)
        return weir_invalid(join->log,
                            "share: page_tokens, n_layers, host_pages, host_layout and "
                            "segment_pages are %u, %u, %u, %s, %u, must be as in the other ranks: "
                            "%u, %u, %u, %s, %u",
                            g->page_tokens, g->n_layers, g->host_pages,
                            weir_host_layout_name(g->host_layout), g->segment_pages,
                            layout->page_tokens, layout->n_layers, layout->host_pages,
                            weir_host_layout_name(layout->host_layout), layout->segment_pages);
    if (join->checksums != share->checksums)
        return weir_invalid(join->log, "share: checksums is %u, must be as in the other ranks: %u",
                            join->checksums, share->checksums);
    return check_tensors(layout, g, join->log);
}

/* ---- Memory --------------------------------------------------------------- */

static int make_memory(weir_host_share *share, const struct weir_share_join *join)
{
    const struct weir_geometry *layout = share->layout;
    struct weir_host_memory_params params = {
        .bytes = layout->shared.bytes,
        .granule = layout->shared.segment_stride ? layout->shared.segment_stride : 1,
        .bytes_limit = join->bytes_limit,
        .touch_threads = join->touch_threads,
        .skip_memory_check = join->skip_memory_check,
    };
    if (join->checksums) {
        share->sums = calloc(layout->host_pages, sizeof *share->sums);
        if (!share->sums) {
            weir_log_line(join->log, WEIR_LOG_ERROR, "no memory for %u checksums",
                          layout->host_pages);
            return -ENOMEM;
        }
    }
    return weir_host_memory_create(&share->memory, join->device, &params, join->log);
}

static void drop_memory(weir_host_share *share)
{
    weir_host_memory_destroy(&share->memory);
    free(share->sums);
    share->sums = NULL;
    weir_geometry_destroy_view(&share->layout);
}

static struct weir_share_device *find_device(weir_host_share *share, const weir_device *device)
{
    for (uint32_t i = 0; i < share->n_devices; i++)
        if (share->devices[i].device == device)
            return &share->devices[i];
    return NULL;
}

/* Pre: the memory is there, and pinned for the first device. */
static int add_device(weir_host_share *share, const struct weir_share_join *join)
{
    weir_device *device = join->device;
    const struct weir_geometry *layout = share->layout;
    struct weir_share_device added = { .device = device };
    int rc = device->ops->pool_register(device, layout->host_pages, layout->n_tensors,
                                        layout->n_layers, &added.pool);
    if (rc) {
        weir_log_line(join->log, WEIR_LOG_ERROR, "registering the pool of a share failed with %s",
                      weir_error_name(rc));
        return rc;
    }
    if (share->n_devices > 0)
        rc = weir_host_memory_register(share->memory, device, join->log);
    if (rc) {
        device->ops->pool_unregister(device, added.pool);
        return rc;
    }
    share->devices[share->n_devices++] = added;
    atomic_fetch_add(&device->users, 1);
    return 0;
}

static void drop_last_device(weir_host_share *share)
{
    struct weir_share_device *last = &share->devices[--share->n_devices];
    last->device->ops->pool_unregister(last->device, last->pool);
    if (share->n_devices > 0)
        weir_host_memory_unregister(share->memory, last->device);
    else
        drop_memory(share);
    atomic_fetch_sub(&last->device->users, 1);
}

/* ---- Joining -------------------------------------------------------------- */

static int check_limit(const weir_host_share *share, const struct weir_share_join *join)
{
    uint64_t bytes = share->memory->bytes;
    if (join->bytes_limit == 0 || bytes <= join->bytes_limit)
        return 0;
    weir_log_line(join->log, WEIR_LOG_ERROR,
                  "share: host memory of %" PRIu64 " bytes, host_bytes_limit leaves %" PRIu64,
                  bytes, join->bytes_limit);
    return -ENOSPC;
}

static int join_locked(weir_host_share *share, const struct weir_share_join *join)
{
    if (share->open == all_ranks(share))
        return weir_invalid(join->log, "share: it is for %u ranks, which are open", share->n_ranks);
    bool first = share->open == 0;
    int rc = first ? keep_layout(share, join) : check_layout(share, join);
    if (rc == 0)
        rc = first ? make_memory(share, join) : check_limit(share, join);
    if (rc == 0 && !find_device(share, join->device))
        rc = add_device(share, join);
    if (rc && first)
        drop_memory(share);
    return rc;
}

int weir_host_share_join(weir_host_share *share, const struct weir_share_join *join,
                         struct weir_share_place *place)
{
    pthread_mutex_lock(&share->lock);
    int rc = join_locked(share, join);
    if (rc == 0) {
        struct weir_share_device *device = find_device(share, join->device);
        place->index = (uint32_t)__builtin_ctzll(~share->open);
        place->pool = device->pool;
        device->ranks |= UINT64_C(1) << place->index;
        share->open |= UINT64_C(1) << place->index;
        share->users++;
    }
    pthread_mutex_unlock(&share->lock);
    return rc;
}

void weir_host_share_opened(weir_host_share *share, uint32_t index)
{
    pthread_mutex_lock(&share->lock);
    share->opened |= UINT64_C(1) << index;
    atomic_store(&share->complete, share->opened == all_ranks(share));
    pthread_mutex_unlock(&share->lock);
}

void weir_host_share_leave(weir_host_share *share, uint32_t index, bool failed)
{
    pthread_mutex_lock(&share->lock);
    share->open &= ~(UINT64_C(1) << index);
    for (uint32_t i = 0; i < share->n_devices; i++)
        share->devices[i].ranks &= ~(UINT64_C(1) << index);
    while (failed && share->n_devices > 1 && share->devices[share->n_devices - 1].ranks == 0)
        drop_last_device(share);
    if (share->open == 0) {
        while (share->n_devices > 0)
            drop_last_device(share);
        share->opened = 0;
        atomic_store(&share->complete, false);
    }
    let_go(share);
}
