/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_CHAT_H
#define TRANSFORMER_CHAT_H

/* A chat as the scheduler sees it. See scheduler.h for the lengths. */

#include "script.h"

#include <weir/weir.h>

enum chat_state {
    CHAT_TO_COME, /* its scene has not begun, or it is a sample yet to be split off */
    CHAT_QUEUED,
    CHAT_RUNNING,
    CHAT_DONE
};

struct chat {
    const struct prompt *prompt;
    struct outcome *outcome;
    const struct outcome *right;
    uint32_t index; /* in the script */
    enum chat_state state;
    uint32_t life; /* how often it has begun: rows of an earlier life are not its own */
    weir_seq seq;
    weir_hit hit; /* of this life */
    uint32_t n_prompt, n_target;
    uint32_t n_known, n_sent, n_committed;
    uint64_t stands; /* until this step has been answered; 0: it does not */
    int32_t tokens[MAX_CONTEXT];
};

void chat_init(struct chat *chat, uint32_t index, const struct chat_script *script,
               const struct outcome *right, struct outcome *outcome);

/* Opens its sequence on the tokens that it has so far. -ENOSPC, -ENOMEM. */
int chat_open(struct chat *chat, weir_cache *cache);

/* Ends its life, if it has begun, with steps in flight or not. */
void chat_close(struct chat *chat);

/* Whether there is a token to compute now. */
bool chat_can_go_on(const struct chat *chat);

/* Whether its next row decodes, and is not one of several that prefill. */
bool chat_decodes(const struct chat *chat);

/* Rows for its next step, at most `room`: known tokens, or the one that is yet to
 * be chosen, or a known one and a draft behind it. */
uint32_t chat_next_rows(const struct chat *chat, uint32_t room);
int32_t chat_row_token(const struct chat *chat, uint32_t position);

/* Whether the row at a position brings a token that is not yet known. */
bool chat_wants(const struct chat *chat, uint32_t position);

/* They go into the open step. */
void chat_sent(struct chat *chat, uint64_t step, uint32_t n_rows);

/* What the row at `position`, computed from `token`, has come to. False: it
 * follows a token that was guessed wrong, or comes too late. */
bool chat_take(struct chat *chat, uint32_t position, int32_t token,
               const struct model_answer *answer);

/* All its answers of a step have been taken: it goes on behind the last token that
 * is right. Pages of rows that were guessed wrong are simply written again. */
void chat_settle(struct chat *chat, uint64_t step);

/* Tells the cache what it may know by now. */
void chat_commit(struct chat *chat);

#endif
