/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_RANK_H
#define WEIR_TRANSFER_RANK_H

/* The inside of a rank: one record a step in flight, and what its load and its
 * write-back have come to.
 *
 *            begin                end                     report
 *   step     ──── step_due ────────┬──── word seen ──────► STEP
 *   load     ─ held ── entered ── lane ┼─ mark seen ─────► LOAD
 *                └──── dropped ────────┼─────────────────► LOAD, -ECANCELED
 *   write    ──── write_due        └─► writes[] ── mark seen ► WRITE_BACK
 *                 moves in held[]       (a queue, in the order of its lane)
 *                   └─ dropped ──────────────────────────► WRITE_BACK, -ECANCELED
 *
 * Copies within the device are made in the server's stream, between the fences and
 * the forward pass, whole: what a graph replays comes behind them too. One whose
 * source is being loaded waits for all of that load. If they cannot be enqueued, the
 * step is reported as failed.
 *
 * A write-back is enqueued once its own step and all its producers have ended,
 * so that nothing waits for what is not submitted. A load is enqueued at once if
 * all that must come before it has run, else when it has, or when something is
 * about to wait for it: until then it holds up no other load, and can be
 * cancelled. Moves of what is not enqueued are kept in a list of held[].
 *
 * Invariants: a record serves its next step only when nothing of it is due;
 * a slot belongs to one step at a time, until that step and its load are
 * reported; n_write_due counts the records with write_due, and n_write_due +
 * n_writes <= max_writes; held[] is either in the free list or in exactly one
 * record's list; each due flag falls, and each write leaves the queue, with
 * exactly one report item. Nothing is allocated after open. */

#include "base/bitmap.h"
#include "pool/host_memory.h"
#include "transfer/checks.h"
#include "transfer/engine.h"
#include "transfer/fences.h"
#include "transfer/host_share.h"

#include <weir/rank.h>

#define WEIR_MAX_SLOTS 64u
#define WEIR_MAX_WRITE_BACKS 1024u

enum weir_load_state {
    WEIR_LOAD_NONE = 0,
    WEIR_LOAD_HELD,
    WEIR_LOAD_ENTERED,
    WEIR_LOAD_DROPPED
};

/* Moves in held[]. */
struct weir_held_list {
    uint32_t first;
    uint32_t n;
};

struct weir_rank_step {
    bool step_due;
    bool load_due;
    bool write_due;
    bool copies_failed; /* the step has read what is not there */
    bool write_failed;  /* its moves did not fit in held[] */
    bool write_dropped; /* cancelled before it was enqueued */
    enum weir_load_state load_state;
    uint32_t slot;
    struct weir_ticket load;
    uint64_t check_end;    /* of the load's pages in the queue of checks */
    uint64_t joins;        /* bit i: step - 1 - i */
    uint64_t load_fences;  /* likewise */
    uint64_t write_fences; /* likewise; the step itself goes without saying */
    uint64_t write_number;
    struct weir_held_list held_load;
    struct weir_held_list held_write;
};

struct weir_held_move {
    weir_move move;
    uint32_t next;
};

struct weir_rank_write {
    uint64_t number;
    uint64_t check_end;
    struct weir_ticket ticket;
};

struct weir_rank {
    struct weir_memory heap; /* counts the rank itself, too */
    weir_device *device;
    weir_log log;
    struct weir_geometry *geometry;
    struct weir_host_memory *host; /* NULL: all tensors lie in the share, or no host tier */
    weir_host_share *share;        /* NULL: none */
    struct weir_share_place share_place;
    uint64_t device_base; /* of planes of the rank's own; 0: none */
    struct weir_engine engine;
    struct weir_fences fences;
    struct weir_rank_step steps[WEIR_MAX_STEPS]; /* by step % fences.n */
    uint64_t slot_steps[WEIR_MAX_SLOTS];         /* last step of each; 0: none */
    struct weir_rank_write *writes;              /* [max_writes], a ring */
    uint32_t max_writes;
    uint32_t first_write;
    uint32_t n_writes;
    uint32_t n_write_due;
    uint32_t n_load_held;
    struct weir_held_move *held; /* [engine.max_moves] */
    uint32_t free_held;
    uint32_t n_free_held;
    struct weir_bitmap device_seen; /* all clear between calls */
    struct weir_bitmap host_seen;
    uint32_t n_items;        /* 2 * fences.n + max_writes, and some for damaged pages */
    weir_report_item *items; /* [n_items] */
    struct weir_checks checks;
    weir_rank_memory memory;
};

static inline struct weir_rank_step *weir_rank_record(struct weir_rank *rank, uint64_t step)
{
    return &rank->steps[step % rank->fences.n];
}

/* The oldest step that has a record; newest + 1 if none has. */
static inline uint64_t weir_rank_oldest(const struct weir_rank *rank)
{
    uint64_t newest = rank->fences.newest, first = rank->fences.first;
    uint64_t oldest = newest < rank->fences.n ? 1 : newest - rank->fences.n + 1;
    return oldest < first ? first : oldest;
}

static inline bool weir_rank_has_record(const struct weir_rank *rank, uint64_t step)
{
    return step >= weir_rank_oldest(rank) && step <= rank->fences.newest;
}

/* Makes up for device calls that failed, and enqueues the loads and write-backs
 * that can now start. */
void weir_rank_catch_up(struct weir_rank *rank);

/* ---- rank_held.c --------------------------------------------------------- */

/* Puts moves aside; false, with no effect: there is no room. */
bool weir_rank_hold(struct weir_rank *rank, struct weir_held_list *list, const weir_move *moves,
                    uint32_t n);

/* Moves what was put aside to where the engine takes it from; returns how many. */
uint32_t weir_rank_take_held(struct weir_rank *rank, struct weir_held_list *list);

/* Sets the record's load to work, or holds it; `at_once`: no later wait can. */
void weir_rank_start_load(struct weir_rank *rank, uint64_t step, const weir_order *order,
                          bool at_once);

/* Enqueues the load of a step that has one, if it is held: something is about to
 * wait for it. */
void weir_rank_need_load(struct weir_rank *rank, uint64_t step);

/* Enqueues held loads behind whose fences nothing is left, or all if the device
 * is lost. */
void weir_rank_start_loads(struct weir_rank *rank);

/* Drops what an order cancels and this rank has not enqueued. */
void weir_rank_cancel(struct weir_rank *rank, const weir_order *order);

/* ---- rank_copies.c -------------------------------------------------------- */

/* The rules of an order's copies that need a map of the pages; -EINVAL. */
int weir_rank_check_copies(struct weir_rank *rank, const weir_order *order);

/* Makes the copies of an order whose load has been started. A failure is the
 * step's. */
void weir_rank_start_copies(struct weir_rank *rank, const weir_order *order, weir_stream *stream);

#endif
