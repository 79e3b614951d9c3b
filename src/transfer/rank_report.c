/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/rank.h"

#include "base/log.h"

#include <errno.h>

/* What of a rank has ended, as long as it fits. Taking an item and clearing
 * what was due are one act, so that nothing is reported twice or never. */
struct gathering {
    struct weir_rank *rank;
    size_t capacity; /* bytes */
    size_t n;
    uint64_t bytes; /* that may still be hashed */
    bool full;      /* something was left for the next call */
    bool lost;      /* the device: nothing more will end */
};

static bool has_item_room(const struct gathering *gathering)
{
    return weir_report_bytes(gathering->n + 1) <= gathering->capacity &&
           gathering->n < gathering->rank->n_items;
}

static bool take(struct gathering *gathering, weir_report_kind kind, uint64_t number, int rc)
{
    if (!has_item_room(gathering)) {
        gathering->full = true;
        return false;
    }
    gathering->rank->items[gathering->n++] =
        (weir_report_item){ .number = number, .rc = rc, .kind = kind };
    return true;
}

static bool load_failed(struct weir_rank *rank, uint64_t step)
{
    if (!weir_rank_has_record(rank, step))
        return false;
    const struct weir_rank_step *record = weir_rank_record(rank, step);
    return record->load_due && record->load_state == WEIR_LOAD_ENTERED && record->load.rc != 0;
}

/* Whether a load that the step reads has failed and is still to be reported. The
 * waits for such a load pass before it has ended, so that the step may have ended
 * too: who is told so uses what it computed, and must know of the failure. So the
 * step comes with the report after that of the load. */
static bool failure_untold(struct weir_rank *rank, uint64_t step)
{
    if (load_failed(rank, step))
        return true;
    for (uint64_t bits = weir_rank_record(rank, step)->joins; bits; bits &= bits - 1)
        if (load_failed(rank, step - 1 - (uint64_t)__builtin_ctzll(bits)))
            return true;
    return false;
}

static void gather_steps(struct gathering *gathering)
{
    struct weir_rank *rank = gathering->rank;
    for (uint64_t step = weir_rank_oldest(rank); step <= rank->fences.newest; step++) {
        struct weir_rank_step *record = weir_rank_record(rank, step);
        if (!record->step_due || weir_fences_open(&rank->fences, step))
            continue;
        bool passed = weir_fences_passed(&rank->fences, step);
        if (!passed && !gathering->lost)
            continue;
        if (failure_untold(rank, step))
            continue;
        if (!take(gathering, WEIR_REPORT_STEP, step, passed && !record->copies_failed ? 0 : -EIO))
            return;
        record->step_due = false;
    }
}

static bool ticket_over(struct gathering *gathering, enum weir_direction direction,
                        const struct weir_ticket *ticket, int *rc)
{
    bool ended = weir_engine_ended(&gathering->rank->engine, direction, ticket);
    *rc = ended ? ticket->rc : -EIO;
    return ended || gathering->lost;
}

/* Whether all pages of a load have been held against their checksums. Those that
 * have changed are reported on the way, before the load. */
static bool checked(struct gathering *gathering, const struct weir_rank_step *record)
{
    struct weir_checks *checks = &gathering->rank->checks;
    for (;;) {
        if (!has_item_room(gathering)) {
            gathering->full = true;
            return false;
        }
        int32_t host;
        enum weir_check_result result =
            weir_checks_load_on(checks, record->check_end, &gathering->bytes, &host);
        if (result != WEIR_CHECK_BAD)
            return result == WEIR_CHECK_DONE;
        take(gathering, WEIR_REPORT_PAGE, (uint64_t)host, -EIO);
    }
}

static void gather_loads(struct gathering *gathering)
{
    struct weir_rank *rank = gathering->rank;
    for (uint64_t step = weir_rank_oldest(rank); step <= rank->fences.newest; step++) {
        struct weir_rank_step *record = weir_rank_record(rank, step);
        if (!record->load_due)
            continue;
        int rc = -ECANCELED;
        if (record->load_state != WEIR_LOAD_DROPPED) {
            if (record->load_state == WEIR_LOAD_HELD)
                continue;
            bool over = ticket_over(gathering, WEIR_LOAD, &record->load, &rc);
            if (!checked(gathering, record) || !over)
                continue;
        }
        if (!take(gathering, WEIR_REPORT_LOAD, step, rc))
            return;
        record->load_due = false;
    }
}

static void gather_dropped_writes(struct gathering *gathering)
{
    struct weir_rank *rank = gathering->rank;
    if (rank->n_write_due == 0)
        return;
    for (uint64_t step = weir_rank_oldest(rank); step <= rank->fences.newest; step++) {
        struct weir_rank_step *record = weir_rank_record(rank, step);
        if (!record->write_due || !record->write_dropped)
            continue;
        if (!take(gathering, WEIR_REPORT_WRITE_BACK, record->write_number, -ECANCELED))
            return;
        record->write_due = false;
        rank->n_write_due--;
    }
}

/* Tickets end in the order of their lane. */
static void gather_writes(struct gathering *gathering)
{
    struct weir_rank *rank = gathering->rank;
    while (rank->n_writes > 0) {
        const struct weir_rank_write *write = &rank->writes[rank->first_write];
        int rc;
        if (!ticket_over(gathering, WEIR_WRITE_BACK, &write->ticket, &rc))
            return;
        if (rc)
            weir_checks_skip_writes(&rank->checks, write->check_end);
        else if (weir_checks_write_on(&rank->checks, write->check_end, &gathering->bytes) !=
                 WEIR_CHECK_DONE)
            return;
        if (!take(gathering, WEIR_REPORT_WRITE_BACK, write->number, rc))
            return;
        rank->first_write = (rank->first_write + 1) % rank->max_writes;
        rank->n_writes--;
    }
}

int weir_rank_report(weir_rank *rank, void *report, size_t capacity, size_t *bytes)
{
    if (!rank)
        return -EINVAL;
    if (!report || !bytes)
        return weir_invalid(&rank->log, "rank_report: %s must not be NULL",
                            report ? "bytes" : "report");
    if ((uintptr_t)report % 8)
        return weir_invalid(&rank->log, "rank_report: report must be 8-byte aligned");
    weir_rank_catch_up(rank);
    struct gathering gathering = {
        .rank = rank,
        .capacity = capacity,
        .bytes = rank->checks.bytes,
        .lost = rank->device->ops->status(rank->device) != 0,
    };
    gather_steps(&gathering);
    gather_loads(&gathering);
    gather_dropped_writes(&gathering);
    gather_writes(&gathering);
    if (gathering.n == 0) {
        if (gathering.full)
            return -ENOSPC;
        *bytes = 0;
        return 0;
    }
    return weir_report_encode(rank->items, gathering.n, report, capacity, bytes, &rank->log);
}
