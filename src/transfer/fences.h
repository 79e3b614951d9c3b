/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_FENCES_H
#define WEIR_TRANSFER_FENCES_H

/* Steps as fences: a ring of the last n steps, and how a stream comes behind
 * the end of one.
 *
 *   server's stream   ─ forward ─ write word ─ record event ─ …
 *                                    │              │
 *   host: has it ended?  ◄───────────┘              │
 *   another stream: wait  ◄─────────────────────────┘
 *
 *   ring[step % n]     OPEN ── end ──► MARKED ── word seen ──► passed
 *                        └──── end, the device refused ──► UNMARKED ─ repair ─► MARKED
 *
 * The event lies behind the word, so that who waits for the event also knows
 * that nothing of weir's is left before it in that stream.
 *
 * Invariants: the ring holds steps newest-n+1..newest; a place is taken again
 * only after its step has passed; words[i] never goes back, and holds the low
 * bits of the last step of its place that has passed. Steps older than the ring,
 * and those before the first, have passed. No wait is ever enqueued on a step that is not
 * marked. No mark goes into a graph: replays would set the word back.
 */

#include "device/device.h"

#define WEIR_MAX_STEPS 64u

struct weir_fence {
    uint64_t step; /* 0: none yet */
    weir_event *event;
    weir_stream *stream; /* where it ended; NULL: it has not */
    bool written;        /* the word is enqueued */
    bool marked;         /* the event too */
};

struct weir_fences {
    weir_device *device;
    uint32_t n;      /* 1..WEIR_MAX_STEPS */
    uint64_t first;  /* step that is to begin first, 1 or more */
    uint64_t newest; /* first - 1: none yet */
    bool unmarked;   /* of the steps that ended, some may not be marked */
    uint32_t *words; /* [n] */
    struct weir_fence ring[WEIR_MAX_STEPS];
};

/* The device's error, with a log line; nothing is left behind. */
int weir_fences_create(struct weir_fences *fences, weir_device *device, uint32_t n, uint64_t first,
                       const weir_log *log);

/* Accepts a zeroed object. */
void weir_fences_destroy(struct weir_fences *fences);

/* The next step begins. Pre: the step n before it has passed. */
void weir_fences_begin(struct weir_fences *fences);

/* A step ends at the present point of `stream`, which must live until the step
 * has passed. Pre: it is open. `now`: the stream is known not to be captured; else the
 * mark is left for later. */
void weir_fences_end(struct weir_fences *fences, uint64_t step, weir_stream *stream, bool now);

/* For steps up to newest: has not ended; ended so that a wait for it can be
 * enqueued now, which this may try to bring about; has ended and run (the
 * calling thread is then ordered after it). */
bool weir_fences_open(const struct weir_fences *fences, uint64_t step);
bool weir_fences_ready(struct weir_fences *fences, uint64_t step);
bool weir_fences_passed(const struct weir_fences *fences, uint64_t step);

/* Makes `stream` come behind the end of a step that is not open. Enqueues
 * nothing if that is so already. */
int weir_fences_wait(struct weir_fences *fences, uint64_t step, weir_stream *stream);

/* Marks what could not be marked before. Cheap if there is nothing. */
void weir_fences_repair(struct weir_fences *fences);

/* Makes `stream` come behind every step that has ended; one for which that fails is
 * waited for here. For closing. */
void weir_fences_wait_all(struct weir_fences *fences, weir_stream *stream);

#endif
