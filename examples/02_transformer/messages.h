/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_MESSAGES_H
#define TRANSFORMER_MESSAGES_H

/* What the scheduler and the ranks say to each other: flat bytes, since weir's
 * orders and reports are, so that a rank may as well be another process.
 *
 *   scheduler ── plan: the batch, its block tables, weir's order ──► each rank
 *   scheduler ◄── report: weir's report ──────────────────────────── each rank
 *   scheduler ◄── answers: what the batch's rows came to ─────────── each rank
 *
 * Everything in a plan is known when the step is planned, which may be several
 * steps before it runs. Only the token that an earlier step of the pipeline has
 * yet to choose is not: for it the plan says NEXT_TOKEN, and the rank takes what
 * its own last row of this chat came to. */

#include "script.h"

#include <sys/types.h>

#define PAGE_TOKENS 16
#define MAX_STEPS 6 /* in flight */
#define MAX_ROWS 48 /* tokens of a step */
#define MAX_BATCH 8 /* chats of a step */
#define MAX_CHAT_PAGES (MAX_CONTEXT / PAGE_TOKENS)
#define MAX_WRITE_BACKS 16

#define NEXT_TOKEN (-1)

enum plan_kind {
    PLAN_STEP,
    PLAN_STOP
};

/* One token of the batch. */
struct plan_row {
    struct model_input input; /* token: NEXT_TOKEN is allowed */
    uint32_t part;
    bool wanted; /* its logits are */
};

/* One chat of the batch: its rows, in the order of their positions, and its
 * block table. */
struct plan_part {
    uint32_t chat;
    uint32_t first_row, n_rows;
    uint32_t n_pages; /* those up to the last row */
    int32_t pages[MAX_CHAT_PAGES];
};

/* Sent as far as the order reaches. */
struct plan {
    enum plan_kind kind;
    bool load_fails; /* on the last rank: the script wants it */
    uint32_t n_rows, n_parts;
    struct plan_row rows[MAX_ROWS];
    struct plan_part parts[MAX_BATCH];
    size_t order_bytes;
    uint64_t order[2048];
};

enum note_kind {
    NOTE_REPORT,
    NOTE_ANSWERS
};

struct note {
    enum note_kind kind;
    uint64_t step;                         /* of the answers */
    struct model_answer answers[MAX_ROWS]; /* of its rows; what was not wanted is 0 */
    size_t report_bytes;
    uint64_t report[256];
};

/* ---- The way --------------------------------------------------------------- */

/* A pair of sockets that keep messages whole. Either end serves in a thread or
 * in another process. */
void way_open(int ends[2]);

/* Blocks while the way is full. It is wide enough for all plans that can be in
 * flight, so that two ends never block each other. */
void way_send(int end, const void *message, size_t bytes);

/* Returns the message's bytes, 0 if none came within `wait_ms` (-1: for ever).
 * The other end's death is the end of this one. */
size_t way_receive(int end, void *message, size_t capacity, int wait_ms);

/* The index of an end at which a message waits, -1 if none came within `wait_ms`. */
int way_wait(const int *ends, uint32_t n, int wait_ms);

void plan_send(int end, const struct plan *plan);
bool plan_receive(int end, struct plan *plan, int wait_ms);

#endif
