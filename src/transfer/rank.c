/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/rank.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>

/* Words and marks mean nothing in a graph: they would be those of its capture. A
 * stream that does not say counts as one that nothing could be enqueued in. */
static int refuse_capture(struct weir_rank *rank, weir_stream *stream)
{
    bool capturing;
    if (rank->device->ops->stream_is_capturing(rank->device, stream, &capturing))
        return -EIO;
    return capturing ? -ENOTSUP : 0;
}

/* ---- Write-backs ---------------------------------------------------------- */

static void hold_writes(struct weir_rank *rank, struct weir_rank_step *record,
                        const weir_order *order)
{
    record->write_due = order->n_writes > 0;
    if (!record->write_due)
        return;
    rank->n_write_due++;
    record->write_number = order->write_ticket;
    record->write_failed =
        !weir_rank_hold(rank, &record->held_write, order->writes, order->n_writes);
    if (record->write_failed)
        weir_log_line(&rank->log, WEIR_LOG_ERROR,
                      "write-back %" PRIu64 " of %u pages fails: there is room for %u, because "
                      "write-backs of open steps share pages",
                      order->write_ticket, order->n_writes, rank->n_free_held);
}

static bool write_can_start(struct weir_rank *rank, uint64_t step)
{
    if (!weir_fences_ready(&rank->fences, step))
        return false;
    for (uint64_t bits = weir_rank_record(rank, step)->write_fences; bits; bits &= bits - 1)
        if (!weir_fences_ready(&rank->fences, step - 1 - (uint64_t)__builtin_ctzll(bits)))
            return false;
    return true;
}

/* The pages of the write-back that was just enqueued are to be hashed. */
static uint64_t check_write(struct weir_rank *rank, uint32_t n, uint64_t number, bool failed)
{
    uint32_t begin = 0;
    uint32_t end = 0;
    if (rank->share)
        weir_engine_my_block(&rank->engine, n, number, &begin, &end);
    return weir_checks_write(&rank->checks, rank->engine.moves, n, begin, end, failed);
}

static void start_write(struct weir_rank *rank, uint64_t step, bool failed)
{
    struct weir_rank_step *record = weir_rank_record(rank, step);
    weir_stream *stream = rank->engine.lanes[WEIR_WRITE_BACK].stream;
    if (!failed)
        failed = weir_fences_wait(&rank->fences, step, stream) != 0;
    for (uint64_t bits = record->write_fences; bits && !failed; bits &= bits - 1)
        failed = weir_fences_wait(&rank->fences, step - 1 - (uint64_t)__builtin_ctzll(bits),
                                  stream) != 0;

    uint32_t end = (rank->first_write + rank->n_writes++) % rank->max_writes;
    rank->writes[end].number = record->write_number;
    struct weir_ticket *ticket = &rank->writes[end].ticket;
    uint32_t n = weir_rank_take_held(rank, &record->held_write);
    weir_engine_write_back(&rank->engine, n, record->write_number, failed, ticket);
    rank->writes[end].check_end = check_write(rank, n, record->write_number, ticket->rc != 0);
    record->write_due = false;
    rank->n_write_due--;
}

static void start_writes(struct weir_rank *rank)
{
    if (rank->n_write_due == 0)
        return;
    bool lost = rank->device->ops->status(rank->device) != 0;
    for (uint64_t step = weir_rank_oldest(rank); step <= rank->fences.newest; step++) {
        const struct weir_rank_step *record = weir_rank_record(rank, step);
        if (!record->write_due || record->write_dropped || weir_fences_open(&rank->fences, step))
            continue;
        if (lost || record->write_failed)
            start_write(rank, step, true);
        else if (write_can_start(rank, step))
            start_write(rank, step, false);
    }
}

void weir_rank_catch_up(struct weir_rank *rank)
{
    weir_fences_repair(&rank->fences);
    weir_engine_repair(&rank->engine);
    weir_rank_start_loads(rank);
    start_writes(rank);
}

/* ---- Begin ---------------------------------------------------------------- */

static uint32_t mark_moves(struct weir_rank *rank, const weir_move *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t device = (uint32_t)moves[i].device.id - 1;
        uint32_t host = (uint32_t)moves[i].host.id - 1;
        if (weir_bitmap_test(&rank->device_seen, device) ||
            weir_bitmap_test(&rank->host_seen, host))
            return i;
        weir_bitmap_set(&rank->device_seen, device);
        weir_bitmap_set(&rank->host_seen, host);
    }
    return n;
}

static int check_moves(struct weir_rank *rank, const char *name, const weir_move *moves, uint32_t n)
{
    uint32_t n_marked = mark_moves(rank, moves, n);
    for (uint32_t i = 0; i < n_marked; i++) {
        weir_bitmap_clear(&rank->device_seen, (uint32_t)moves[i].device.id - 1);
        weir_bitmap_clear(&rank->host_seen, (uint32_t)moves[i].host.id - 1);
    }
    if (n_marked < n)
        return weir_invalid(&rank->log,
                            "order: %s[%u] moves device page %d and host page %d, each at most "
                            "once",
                            name, n_marked, moves[n_marked].device.id, moves[n_marked].host.id);
    return 0;
}

static int check_fences(struct weir_rank *rank, uint64_t step, const uint64_t *fences, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (weir_fences_open(&rank->fences, fences[i]))
            return weir_invalid(
                &rank->log, "rank_begin: step %" PRIu64 " must end before step %" PRIu64 " begins",
                fences[i], step);
    return 0;
}

static int check_order(struct weir_rank *rank, const weir_order *order)
{
    const struct weir_geometry *geometry = rank->geometry;
    if (order->step != rank->fences.newest + 1)
        return weir_invalid(
            &rank->log, "order: step is %" PRIu64 ", must be %" PRIu64 ", the next of this rank",
            order->step, rank->fences.newest + 1);
    if (order->device_pages != geometry->device_pages || order->host_pages != geometry->host_pages)
        return weir_invalid(&rank->log,
                            "order: pools of %u and %u pages, the rank has %u and %u: device_pages "
                            "and host_pages must be the cache's",
                            order->device_pages, order->host_pages, geometry->device_pages,
                            geometry->host_pages);
    if (rank->share && !atomic_load(&rank->share->complete))
        return weir_invalid(
            &rank->log,
            "rank_begin: the share is for %u ranks: all must be open before a step begins",
            rank->share->n_ranks);
    for (uint32_t i = 0; i < order->n_joins; i++)
        if (weir_rank_has_record(rank, order->joins[i]) &&
            !weir_rank_record(rank, order->joins[i])->load_state)
            return weir_invalid(&rank->log,
                                "order: joins[%u] is step %" PRIu64 ", must have a load", i,
                                order->joins[i]);
    int rc = check_moves(rank, "loads", order->loads, order->n_loads);
    if (rc == 0)
        rc = check_moves(rank, "writes", order->writes, order->n_writes);
    if (rc == 0)
        rc = weir_rank_check_copies(rank, order);
    if (rc == 0)
        rc = check_fences(rank, order->step, order->fences, order->n_fences);
    if (rc == 0 && order->n_loads > 0)
        rc = check_fences(rank, order->step, order->load_fences, order->n_load_fences);
    return rc;
}

static int check_room(struct weir_rank *rank, const weir_order *order, uint32_t slot)
{
    const struct weir_rank_step *record = weir_rank_record(rank, order->step);
    if (record->step_due || record->load_due || record->write_due)
        return -EAGAIN;
    if (order->n_writes > 0 && rank->n_write_due + rank->n_writes == rank->max_writes)
        return -EAGAIN;
    uint64_t user = rank->slot_steps[slot];
    if (user && weir_rank_has_record(rank, user)) {
        record = weir_rank_record(rank, user);
        if (record->step_due || record->load_due)
            return -EBUSY;
    }
    return 0;
}

/* The steps of a list that may not be over yet, as a set relative to `step`. */
static uint64_t recent(const struct weir_rank *rank, uint64_t step, const uint64_t *list,
                       uint32_t n)
{
    uint64_t set = 0;
    for (uint32_t i = 0; i < n; i++)
        if (list[i] < step && step - list[i] < rank->fences.n)
            set |= UINT64_C(1) << (step - list[i] - 1);
    return set;
}

/* A graph waits for what is enqueued when it is launched. */
static void need_joined(struct weir_rank *rank, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_joins; i++)
        if (weir_rank_has_record(rank, order->joins[i]))
            weir_rank_need_load(rank, order->joins[i]);
}

/* The same for a step that has begun on a slot which had no captures then. */
static void need_begun(struct weir_rank *rank, uint32_t slot)
{
    uint64_t step = rank->slot_steps[slot];
    if (!step || !weir_rank_has_record(rank, step))
        return;
    for (uint64_t bits = weir_rank_record(rank, step)->joins; bits; bits &= bits - 1) {
        uint64_t other = step - 1 - (uint64_t)__builtin_ctzll(bits);
        if (weir_rank_has_record(rank, other))
            weir_rank_need_load(rank, other);
    }
    weir_rank_need_load(rank, step);
}

int weir_rank_begin(weir_rank *rank, const void *order_bytes, size_t bytes, uint32_t slot,
                    weir_stream *stream, uint64_t *step)
{
    if (!rank)
        return -EINVAL;
    if (!stream || !step)
        return weir_invalid(&rank->log, "rank_begin: %s must not be NULL",
                            stream ? "step" : "stream");
    if (slot >= rank->engine.n_slots)
        return weir_invalid(&rank->log, "rank_begin: slot is %u, must be below %u", slot,
                            rank->engine.n_slots);
    weir_order order;
    int rc = weir_order_decode(&order, order_bytes, bytes, &rank->log);
    if (rc == 0)
        rc = check_order(rank, &order);
    if (rc)
        return rc;
    rc = refuse_capture(rank, stream);
    if (rc)
        return rc;
    weir_rank_catch_up(rank);
    rc = check_room(rank, &order, slot);
    if (rc)
        return rc;

    /* The last thing that can refuse the step: a wait too many does no harm if
     * the server tries again. */
    for (uint32_t i = 0; i < order.n_fences; i++)
        if (weir_fences_wait(&rank->fences, order.fences[i], stream))
            return -EIO;
    bool captured = weir_engine_is_captured(&rank->engine, slot);
    if (captured)
        need_joined(rank, &order);
    /* Also before a load of its own, which may fail and then records nothing. */
    if (order.n_joins > 0 && weir_engine_join_slot(&rank->engine, slot))
        return -EIO;

    struct weir_rank_step *record = weir_rank_record(rank, order.step);
    *record = (struct weir_rank_step){
        .step_due = true,
        .slot = slot,
        .joins = recent(rank, order.step, order.joins, order.n_joins),
        .load_fences = recent(rank, order.step, order.load_fences, order.n_load_fences),
        .write_fences = recent(rank, order.step, order.write_fences, order.n_write_fences),
    };
    weir_rank_cancel(rank, &order);
    hold_writes(rank, record, &order);
    if (order.n_loads > 0)
        weir_rank_start_load(rank, order.step, &order, captured);
    if (order.n_copies > 0)
        weir_rank_start_copies(rank, &order, stream);
    rank->slot_steps[slot] = order.step;
    weir_fences_begin(&rank->fences);
    *step = order.step;
    return 0;
}

/* ---- Wait and end --------------------------------------------------------- */

static int check_open(const struct weir_rank *rank, uint64_t step, const weir_stream *stream)
{
    if (!stream)
        return weir_invalid(&rank->log, "rank: stream must not be NULL");
    if (step == 0 || step > rank->fences.newest || !weir_fences_open(&rank->fences, step))
        return weir_invalid(&rank->log,
                            "rank: step %" PRIu64
                            " must have begun and not ended; the last one begun "
                            "is %" PRIu64,
                            step, rank->fences.newest);
    return 0;
}

/* Passes at once if the step's load was dropped: nothing wants its pages. */
static int wait_load(struct weir_rank *rank, uint64_t step, uint32_t layer, weir_stream *stream)
{
    const struct weir_rank_step *record = weir_rank_record(rank, step);
    weir_rank_need_load(rank, step);
    if (record->load_state != WEIR_LOAD_ENTERED)
        return 0;
    return weir_engine_wait_layer(&rank->engine, &record->load, layer, stream) ? -EIO : 0;
}

int weir_rank_wait_layer(weir_rank *rank, uint64_t step, uint32_t layer, weir_stream *stream)
{
    if (!rank)
        return -EINVAL;
    if (layer >= rank->geometry->n_layers)
        return weir_invalid(&rank->log, "rank_wait_layer: layer is %u, must be below %u", layer,
                            rank->geometry->n_layers);
    int rc = check_open(rank, step, stream);
    if (rc)
        return rc;
    rc = refuse_capture(rank, stream);
    if (rc)
        return rc;

    rc = wait_load(rank, step, layer, stream);
    for (uint64_t bits = weir_rank_record(rank, step)->joins; bits && !rc; bits &= bits - 1) {
        uint64_t other = step - 1 - (uint64_t)__builtin_ctzll(bits);
        if (weir_rank_has_record(rank, other))
            rc = wait_load(rank, other, layer, stream);
    }
    return rc;
}

int weir_rank_capture_wait(weir_rank *rank, uint32_t slot, uint32_t layer, weir_stream *stream)
{
    if (!rank)
        return -EINVAL;
    if (!stream || slot >= rank->engine.n_slots || layer >= rank->geometry->n_layers)
        return weir_invalid(
            &rank->log,
            "rank_capture_wait: stream is NULL, slot %u is not below %u or layer %u is "
            "not below %u",
            slot, rank->engine.n_slots, layer, rank->geometry->n_layers);
    if (!rank->engine.events)
        return weir_invalid(&rank->log,
                            "rank_capture_wait: the rank was opened without captured_waits");
    int rc = refuse_capture(rank, stream);
    if (rc == 0)
        return weir_invalid(&rank->log, "rank_capture_wait: the stream is not being captured");
    if (rc != -ENOTSUP)
        return rc;
    if (!weir_engine_is_captured(&rank->engine, slot))
        need_begun(rank, slot);
    rc = weir_engine_capture_wait(&rank->engine, slot, layer, stream);
    return rc == -ENOTSUP ? -EIO : rc; /* the capture was broken already */
}

int weir_rank_end(weir_rank *rank, uint64_t step, weir_stream *stream)
{
    if (!rank)
        return -EINVAL;
    int rc = check_open(rank, step, stream);
    if (rc)
        return rc;
    rc = refuse_capture(rank, stream);
    if (rc == -ENOTSUP)
        return rc;
    weir_fences_end(&rank->fences, step, stream, rc == 0);
    weir_rank_catch_up(rank);
    return 0;
}
