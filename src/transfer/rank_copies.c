/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/rank.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>

/* ---- What an order may ask for -------------------------------------------- */

static void mark_targets(struct weir_rank *rank, const weir_page_copy *copies, uint32_t n, bool set)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = (uint32_t)copies[i].to.id - 1;
        if (set)
            weir_bitmap_set(&rank->device_seen, page);
        else
            weir_bitmap_clear(&rank->device_seen, page);
    }
}

/* How many copies have no target before them as their own. */
static uint32_t count_targets(struct weir_rank *rank, const weir_order *order)
{
    uint32_t n = 0;
    while (n < order->n_copies &&
           !weir_bitmap_test(&rank->device_seen, (uint32_t)order->copies[n].to.id - 1))
        mark_targets(rank, &order->copies[n++], 1, true);
    return n;
}

/* With all targets marked: none of them is loaded or copied from. */
static int check_targets(const struct weir_rank *rank, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_loads; i++)
        if (weir_bitmap_test(&rank->device_seen, (uint32_t)order->loads[i].device.id - 1))
            return weir_invalid(&rank->log, "order: device page %d is loaded and copied to",
                                order->loads[i].device.id);
    for (uint32_t i = 0; i < order->n_copies; i++)
        if (weir_bitmap_test(&rank->device_seen, (uint32_t)order->copies[i].from.id - 1))
            return weir_invalid(&rank->log, "order: device page %d is copied from and to",
                                order->copies[i].from.id);
    return 0;
}

/* A copy names the step's own load exactly if that brings its source. */
static int check_sources(struct weir_rank *rank, const weir_order *order)
{
    int rc = 0;
    for (uint32_t i = 0; i < order->n_loads; i++)
        weir_bitmap_set(&rank->device_seen, (uint32_t)order->loads[i].device.id - 1);
    for (uint32_t i = 0; i < order->n_copies && !rc; i++) {
        uint32_t from = (uint32_t)order->copies[i].from.id - 1;
        if (weir_bitmap_test(&rank->device_seen, from) != (order->copies[i].load == order->step))
            rc = weir_invalid(&rank->log,
                              "order: copies[%u].load is %" PRIu64 ", must be %" PRIu64
                              " exactly if that step loads device page %d",
                              i, order->copies[i].load, order->step, order->copies[i].from.id);
    }
    for (uint32_t i = 0; i < order->n_loads; i++)
        weir_bitmap_clear(&rank->device_seen, (uint32_t)order->loads[i].device.id - 1);
    return rc;
}

int weir_rank_check_copies(struct weir_rank *rank, const weir_order *order)
{
    if (order->n_copies == 0)
        return 0;
    uint32_t n = count_targets(rank, order);
    int rc = 0;
    if (n < order->n_copies)
        rc = weir_invalid(&rank->log, "order: copies[%u] is the second to device page %d", n,
                          order->copies[n].to.id);
    if (rc == 0)
        rc = check_targets(rank, order);
    mark_targets(rank, order->copies, n, false);
    return rc ? rc : check_sources(rank, order);
}

/* ---- Making them ---------------------------------------------------------- */

/* Whether a load may still be on its way. The records of the steps before are there
 * still, but for the one that this step has taken the place of. */
static bool is_recent(const struct weir_rank *rank, uint64_t step, uint64_t load)
{
    return load == step || (step - load < rank->fences.n && weir_rank_has_record(rank, load));
}

/* Makes `stream` wait for the loads that bring what is copied. One that has been
 * dropped brings nothing. */
static int wait_for_sources(struct weir_rank *rank, const weir_order *order, weir_stream *stream)
{
    uint32_t last_layer = rank->geometry->n_layers - 1;
    uint64_t waited = 0; /* bit i: step - i */
    int rc = 0;
    for (uint32_t i = 0; i < order->n_copies && !rc; i++) {
        uint64_t load = order->copies[i].load;
        if (load == 0 || !is_recent(rank, order->step, load) || waited >> (order->step - load) & 1)
            continue;
        waited |= UINT64_C(1) << (order->step - load);
        weir_rank_need_load(rank, load);
        const struct weir_rank_step *record = weir_rank_record(rank, load);
        rc = record->load_state == WEIR_LOAD_ENTERED
                 ? weir_engine_wait_layer(&rank->engine, &record->load, last_layer, stream)
                 : -ECANCELED;
    }
    return rc;
}

void weir_rank_start_copies(struct weir_rank *rank, const weir_order *order, weir_stream *stream)
{
    struct weir_page_copies copies = {
        .geometry = rank->geometry,
        .copies = order->copies,
        .n = order->n_copies,
        .device_pool = rank->engine.device_pool,
        .state = rank->engine.transfer_state,
    };
    int rc = wait_for_sources(rank, order, stream);
    if (rc == 0)
        rc = rank->device->ops->copy_pages(rank->device, stream, &copies);
    weir_rank_record(rank, order->step)->copies_failed = rc != 0;
    if (rc)
        weir_log_line(&rank->log, WEIR_LOG_ERROR,
                      "step %" PRIu64 " fails: %u copies of pages could not be enqueued, %s",
                      order->step, order->n_copies, weir_error_name(rc));
}
