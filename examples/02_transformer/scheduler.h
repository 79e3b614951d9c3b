/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_SCHEDULER_H
#define TRANSFORMER_SCHEDULER_H

/* The server's scheduler: it serves the script's chats over a cluster.
 *
 *   queue ──admit──► running ──answered──► done
 *     ▲                │ │
 *     └────preempt─────┘ └─ each step: one token of each chat that decodes, then
 *                           chunks of prompts, MAX_ROWS tokens together
 *
 * It runs up to `ahead` steps ahead of the ranks and never waits for one as long
 * as it can plan another. What a step computes is therefore known later than it
 * is planned:
 *
 *     positions   0 ······ n_committed ······ n_known ······ n_sent
 *                 in the index  │   tokens known  │  in flight │
 *
 * n_sent grows when a step is planned, n_known when its answers come, and
 * n_committed follows the lesser of both: only then can the cache be told which
 * tokens the pages hold. While a draft is in flight a chat stands still. */

#include "cluster.h"

struct scheduler_params {
    const struct script *script;
    const struct outcome *right; /* of plain_run, for the draft model */
    struct cluster *cluster;
    uint32_t device_pages, host_pages;
    uint32_t ahead; /* 1..MAX_STEPS */
};

/* What happened, beside the answers. */
struct summary {
    uint64_t rows; /* tokens that went through the model */
    uint64_t steps;
    uint64_t hit_device, hit_host, hit_loading; /* pages */
    uint64_t duplicates;                        /* pages computed twice at once */
    uint64_t copied;                            /* pages, for samples that go on inside one */
    uint64_t preempted;
    uint64_t aborted_in_load;
    uint64_t recomputed;                      /* chats whose load has failed */
    uint64_t drafts_accepted, drafts_refused; /* tokens */
};

void scheduler_run(const struct scheduler_params *params, struct outcome outcomes[MAX_CHATS],
                   struct summary *summary);

#endif
