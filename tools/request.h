/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_REQUEST_H
#define WEIR_TOOLS_REQUEST_H

/* One request while it is replayed.
 *
 *   tokens        ┌ prompt ────────────────┬ answer ───────┐  whole from the start
 *   fingerprints  └────────────────────────┴───────────────┘  one a token
 *                                     n_done ┘ computed, in steps so far
 *   pages         ┌ p0 ┬ p1 ┬ p2 ┬ ─ ─       device page ids, appended only
 *
 * The arrays have their final size from the start and what is written is not
 * written again, so that a device may read them while the sequence grows. An
 * object goes back to its pool when it is closed and no step in flight reads
 * it; its arrays are kept for the next request. */

#include "trace.h"

#include <weir/cache.h>

#include <stdatomic.h>

struct weir_replay_request {
    struct weir_replay_request *next_free;
    struct weir_replay_request *next_all;
    const struct weir_trace_request *trace;
    weir_seq seq;
    bool open;
    uint32_t n_steps; /* in flight that read this object */
    size_t n_prompt;
    size_t n_tokens; /* of the prompt and what will be decoded */
    size_t n_done;
    size_t n_pages;
    size_t good_tokens;       /* right whatever has failed since it was opened */
    atomic_size_t wrong_from; /* the first token that was found wrong */
    atomic_size_t wrong_bytes;
    size_t tokens_capacity;
    size_t pages_capacity;
    int32_t *tokens;
    uint64_t *fingerprints;
    int32_t *pages;
};

struct weir_request_pool {
    struct weir_replay_request *free;
    struct weir_replay_request *all;
};

/* Gives an object with room for so many tokens and pages. -ENOMEM. */
int weir_request_get(struct weir_request_pool *pool, size_t n_tokens, size_t n_pages,
                     struct weir_replay_request **request);

/* Notes that a token's bytes are wrong. Threads: any. */
void weir_request_add_wrong(struct weir_replay_request *request, size_t token, uint64_t bytes);

/* Takes an object back if nobody needs it any more. */
void weir_request_put(struct weir_request_pool *pool, struct weir_replay_request *request);

/* Frees all objects, wherever they are. */
void weir_request_pool_free(struct weir_request_pool *pool);

#endif
