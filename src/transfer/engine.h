/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_ENGINE_H
#define WEIR_TRANSFER_ENGINE_H

/* Moves pages on two side streams, one a direction, and says when each
 * transfer has ended.
 *
 *   lane (WEIR_LOAD)        copy 1 ─ mark 1 ─ copy 2 ─ mark 2 ─ …
 *                             │        └──► word: the last mark that passed
 *                             ▼
 *   slot words              [layer 0][layer 1] … : generation of the slot's load
 *                             ▲
 *   server's stream  ─ wait_layer ─ forward ─ wait_layer ─ forward …
 *
 *   lane (WEIR_WRITE_BACK)  copy 1 ─ mark 1 ─ …
 *
 * A ticket names a mark and ends when its lane's word has come to it. A mark
 * that could not be enqueued is made up for by the next one: tickets in between
 * share a sequence number, so none is lost and none ends before its copy.
 *
 * Invariants of a lane: done <= issued; issued - done < 2^31; a ticket's
 * sequence is at most issued, or issued + 1 while `unmarked`. Words never go
 * back: those of a slot are written by its loads only, and a slot has one load
 * at a time. A failed load publishes all its words, so that no wait hangs.
 *
 * With a share a write-back is two copies, of two views of the geometry: all pages
 * of the rank's own tensors, and of the replicated ones the block that is this
 * rank's in this write-back.
 *
 *   pages, sorted     1 2 3 4 5 6 7 8 9       of 3 ranks; the next write-back
 *   whose block       └─0─┘ └─1─┘ └─2─┘       begins with another
 *
 * Once a wait was captured on a slot, its loads also record the slot's events,
 * one a layer, because words never serve a graph: the generation that a graph
 * waits for would be that of its capture.
 *
 * A failed load's pages are garbage, and what waited for it may read them
 * before their former users have ended; nothing that was read counts. */

#include "base/memory.h"
#include "device/device.h"

struct weir_lane {
    weir_stream *stream;
    uint32_t *word;
    uint64_t issued; /* marks enqueued */
    uint64_t done;   /* marks seen */
    bool unmarked;   /* accepted work has no mark behind it */
};

/* A transfer. rc is final once the ticket has ended. */
struct weir_ticket {
    uint64_t sequence;
    int rc;
    uint32_t slot; /* of a load */
    uint32_t generation;
};

/* A view and the device's state for it; NULL: there is no such tensor. */
struct weir_write_part {
    struct weir_geometry *view;
    void *state;
};

struct weir_engine {
    weir_device *device;
    const struct weir_geometry *geometry;
    uint32_t device_pool; /* ids for the race check */
    uint32_t host_pool;
    uint32_t shared_pool;
    uint32_t share_ranks;         /* 0: no share */
    uint32_t share_index;         /* which of them this rank is */
    struct weir_write_part own;   /* with a share */
    struct weir_write_part other; /* its replicated tensors */
    void *transfer_state;         /* the device's, for this geometry */
    struct weir_lane lanes[2];    /* by weir_direction */
    uint32_t *words;              /* [n_slots][n_layers], then one a lane */
    uint32_t *generations;        /* [n_slots] */
    weir_move *moves;             /* what the next transfer moves; sorted by it */
    struct weir_run *runs;
    uint32_t n_slots;
    uint32_t max_moves;             /* length of moves and runs */
    weir_transfer_tuning tuning[2]; /* by weir_direction */
    uint32_t max_enqueue_us;
    bool exclusive_sms;
    weir_event **events; /* [n_slots][n_layers], NULL: no captured waits */
    bool *captured;      /* [n_slots] */
    struct weir_memory *memory;
};

struct weir_engine_params {
    uint32_t n_slots;
    weir_transfer_tuning load;
    weir_transfer_tuning write_back;
    uint32_t max_enqueue_us;
    bool exclusive_sms;
    bool captured_waits;
    uint32_t share_ranks;
    uint32_t share_index;
    struct weir_memory *memory; /* must outlive the engine; NULL: libc */
};

/* Transfers of one direction hold at most min(device_pages, host_pages) moves.
 * Pre: the geometry is bound.
 * -ENOMEM, or the device's error, with a log line; nothing is left behind. The
 * geometry must outlive the engine. */
int weir_engine_create(struct weir_engine *engine, weir_device *device,
                       const struct weir_geometry *geometry,
                       const struct weir_engine_params *params, const weir_log *log);

/* Waits for both lanes. Accepts a zeroed engine. */
void weir_engine_destroy(struct weir_engine *engine);

/* Bytes taken on the device, and pinned: the words, and as much as on the device. */
uint64_t weir_engine_device_bytes(const struct weir_engine *engine);
uint64_t weir_engine_pinned_bytes(const struct weir_engine *engine);

/* Enqueues a transfer of engine->moves[0..n), which it sorts. `failed`: what had to come before
 * it could not be enqueued, so nothing is copied. Never fails itself: the
 * ticket carries the failure, and ends when the accepted part has passed. */
void weir_engine_load(struct weir_engine *engine, uint32_t slot, uint32_t n, bool failed,
                      struct weir_ticket *ticket);
void weir_engine_write_back(struct weir_engine *engine, uint32_t n, uint64_t number, bool failed,
                            struct weir_ticket *ticket);

/* With a share: which of a write-back's n pages, as they lie sorted in
 * engine->moves once it is enqueued, are this rank's to write of the replicated
 * tensors: *begin to *end - 1. `number` is the write-back's. */
void weir_engine_my_block(const struct weir_engine *engine, uint32_t n, uint64_t number,
                          uint32_t *begin, uint32_t *end);

/* Whether a transfer has ended; the calling thread is then ordered after it. */
bool weir_engine_ended(struct weir_engine *engine, enum weir_direction direction,
                       const struct weir_ticket *ticket);

/* Makes `stream` wait until a load has brought `layer`. */
int weir_engine_wait_layer(struct weir_engine *engine, const struct weir_ticket *load,
                           uint32_t layer, weir_stream *stream);

/* Captures a wait for the slot's event of a layer. The first on a slot makes all its
 * events wait for all loads so far. -EINVAL without events. */
int weir_engine_capture_wait(struct weir_engine *engine, uint32_t slot, uint32_t layer,
                             weir_stream *stream);

/* Whether waits were captured on a slot. */
bool weir_engine_is_captured(const struct weir_engine *engine, uint32_t slot);

/* For a step that joins the loads of others: makes the slot's captured waits wait for
 * all loads so far. Does nothing without captures. */
int weir_engine_join_slot(struct weir_engine *engine, uint32_t slot);

/* Enqueues marks that failed before. Cheap if there is none. */
void weir_engine_repair(struct weir_engine *engine);

/* For tests of cyclic comparison: all generations and sequences start here.
 * Pre: nothing was ever enqueued. */
void weir_engine_start_at(struct weir_engine *engine, uint32_t value);

#endif
