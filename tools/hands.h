/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_HANDS_H
#define WEIR_TOOLS_HANDS_H

/* The ranks of a replay, on CPU devices or on a GPU, each with the stream that
 * it computes on; or none at all, and every order is answered at once.
 *
 *   step s ─► works[s % WEIR_REPLAY_STEPS] ─ parts: which request, from token
 *                │                            `begin` to `end` is computed
 *                └─ layer after layer ─────► stream of each rank
 *
 * A work item is used again when all ranks have reported the end of its step;
 * until then it keeps its requests. */

#include "replay.h"
#include "request.h"

#include <weir/device.h>

struct weir_hands;

/* One sequence's share of a step: tokens [0, begin) are read, [begin, end)
 * computed. */
struct weir_step_part {
    struct weir_replay_request *request;
    size_t begin;
    size_t end;
};

/* `options` and `pool` must outlive the hands; requests go back to the pool. */
int weir_hands_open(struct weir_hands **hands, const struct weir_replay_options *options,
                    const weir_shape *shape, uint32_t device_pages, struct weir_request_pool *pool);

/* Waits for all work and frees all. A NULL content is allowed. */
void weir_hands_close(struct weir_hands **hands);

/* Whether the next step can be given to them. */
bool weir_hands_ready(const struct weir_hands *hands);

/* Carries out an order: loads, the forward pass of n parts, write-backs. */
int weir_hands_step(struct weir_hands *hands, weir_cache *cache, const void *order, size_t bytes,
                    const struct weir_step_part *parts, size_t n);

/* Carries what has ended to the cache; *any tells whether there was anything. */
int weir_hands_collect(struct weir_hands *hands, weir_cache *cache, bool *any);

/* The two halves of it: takes what one rank has reported; frees the work items of
 * which all ranks have reported the end. */
int weir_hands_collect_rank(struct weir_hands *hands, weir_cache *cache, uint32_t rank, bool *any);
void weir_hands_retire(struct weir_hands *hands);

/* From now on each rank has a thread of its own, until quiesce, which waits for
 * what was given to them. */
int weir_hands_start(struct weir_hands *hands);
void weir_hands_quiesce(struct weir_hands *hands);

/* The device of a rank, for faults; NULL without devices. */
weir_device *weir_hands_device(const struct weir_hands *hands, uint32_t rank);

/* Blocks until the oldest step at least has ended, or if none is in flight all
 * copies. */
int weir_hands_wait(struct weir_hands *hands);

/* In all of the replay: bytes that differ, races, report items that tell of a
 * failure. */
uint64_t weir_hands_wrong_bytes(const struct weir_hands *hands);
uint64_t weir_hands_races(const struct weir_hands *hands);
uint64_t weir_hands_failures(const struct weir_hands *hands);

#endif
