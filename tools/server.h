/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_SERVER_H
#define WEIR_TOOLS_SERVER_H

/* What a trace is served with, whether on good days (replay.c) or on bad ones
 * (chaos.c), and what both do with a request.
 *
 *   options ─► cache, hands
 *   trace   ─► request ─► step */

#include "hands.h"

/* *call names what has failed; what was made before it stays. */
int weir_server_open(const struct weir_replay_options *options, uint32_t device_pages,
                     uint32_t max_seqs, struct weir_request_pool *pool, weir_cache **cache,
                     struct weir_hands **hands, const char **call);

/* A request of the trace, closed as yet: its tokens in this pass, with an answer of
 * so many, and their fingerprints if there are devices. -ENOMEM. */
int weir_server_request(struct weir_request_pool *pool, const struct weir_replay_options *options,
                        const struct weir_trace *trace, size_t index, size_t n_answer,
                        uint32_t pass, struct weir_replay_request **request);

/* Puts a part into a step: adds, reads the block table, commits. *call as above. */
int weir_server_add(weir_step step, const struct weir_step_part *part, uint32_t page_tokens,
                    const char **call);

/* Of a monotonic clock. */
double weir_server_seconds(void);

#endif
