/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CACHE_RANDOM_H
#define WEIR_TESTS_CACHE_RANDOM_H

/* Random calls to a cache, each checked against the model, and each made to a
 * second cache too, which must then be in the same state.
 *
 *   seed ─► operation ─┬─► cache 0 ─┐ equal answers, orders, digests
 *                      ├─► cache 1 ─┘
 *                      └─► model (cache_model.h): may it answer that?
 *
 * The operations, a file a kind:
 *
 *   cache_random_seq.c   open, reserve, look, close
 *   cache_random_fork.c  forks and cuts
 *   cache_random_pin.c   pins, rates
 *   cache_random_step.c  steps, commits, reports, events
 *   cache_random_life.c  what happens to the cache as a whole
 *
 * Invariants, after each of them:
 *   - users[i] is the user of m.seqs[i], while that is open
 *   - the model's chains are those of the user's prompt and epoch
 *   - what is counted here is what the cache's statistics tell
 *
 *   WEIR_RANDOM_STEPS  operations over all configurations, 100000 by default
 *   WEIR_RANDOM_SEED   another number, another sequence of calls; 0 by default
 *   WEIR_RANDOM_CONFIG run only this configuration
 *   WEIR_RANDOM_TRACE  if set, one line a call on standard error
 *
 * A failure names its configuration and seed. */

#include "cache_model.h"
#include "random.h"

#include <weir/pin.h>

#define WORLD_CONFIGS 40u /* every eviction policy with every write-back policy */
#define WORLD_PINS 4u
#define WORLD_DOCUMENTS 3u

/* A prompt is one letter a page; every token tells its page's letter. Letters from
 * WORLD_IMAGE on are images, which all have the same tokens: a span tells which. Only
 * pages that are whole in the key are such. */
#define WORLD_IMAGE 4

struct prompt {
    uint32_t name_space;
    uint64_t epoch; /* of the namespace: how often it was forgotten */
    size_t n_key;
    char letters[MODEL_PAGES];
};

struct user {
    weir_seq handles[2];
    struct prompt prompt;
    uint32_t compute_at_least;
    weir_request request; /* the last one */
    bool no_deadline;     /* the model cannot tell when its loads are there */
    uint64_t epoch_after; /* of the prompt, when it has been cut after a lost rank; 0: none */
};

struct pinned {
    weir_pin handles[2]; /* {0, 0}: none */
    struct prompt prompt;
    size_t n_tokens; /* kept when it was last looked at */
};

/* What reserves should have counted. */
struct counted {
    uint64_t requests, again, nospace;
    uint64_t device, host, loading, new; /* pages */
};

struct world {
    struct model m;
    struct random random;
    weir_cache *caches[2];
    weir_step steps[2];
    bool step_open;
    bool events_left; /* by the last poll, for want of room */
    bool draining;
    uint64_t epochs[2]; /* of the namespaces */
    uint64_t now_ns;
    uint32_t load_failures; /* percent */
    uint32_t max_steps;
    uint32_t n_priorities;
    bool trace;
    char name[160];
    char documents[WORLD_DOCUMENTS][MODEL_PAGES];
    struct user users[MODEL_SEQS]; /* beside m.seqs */
    struct pinned pins[WORLD_PINS];
    uint32_t max_pinned[2]; /* device, host */
    uint64_t load_runs, load_run_squares, write_runs, write_run_squares;
    struct counted counted;
    weir_span spans[MODEL_PAGES]; /* of the last key */
    int32_t tokens[MODEL_PAGES * 16 + 16];
};

#define must(w, condition, ...) model_must(&(w)->m, condition, __VA_ARGS__)

/* The same call to both caches, `i` being the cache; yields what they return. */
#define both(w, call)                                                                 \
    __extension__({                                                                   \
        int rcs_[2];                                                                  \
        for (int i = 0; i < 2; i++)                                                   \
            rcs_[i] = (call);                                                         \
        must((w), rcs_[0] == rcs_[1], "%d and %d from two caches", rcs_[0], rcs_[1]); \
        rcs_[0];                                                                      \
    })

/* ---- The world (cache_random_world.c) ------------------------------------- */

/* A number in the environment. */
uint64_t world_environment(const char *name, uint64_t otherwise);

/* `config` is less than WORLD_CONFIGS. Close ends everything, and holds what was
 * counted against the cache's statistics. */
void world_open(struct world *w, uint32_t config);
void world_close(struct world *w);

/* The cache is sound, and the two caches are equal. */
void world_check(struct world *w);

/* The namespaces are key fields 0..n of it, n being 0 or 1. */
extern const weir_field world_fields[1];

struct prompt world_prompt(struct world *w);
void prompt_chains(const struct prompt *p, uint64_t *chains);

/* Tokens from..from+n-1 of a prompt, and its first n as a key; valid until the next
 * call. */
const int32_t *world_tokens(struct world *w, const struct prompt *p, size_t from, size_t n);
weir_key world_key(struct world *w, const struct prompt *p, size_t n);

/* What the index holds of a prompt's first n tokens, checked. */
weir_hit world_peek(struct world *w, const struct prompt *p, size_t n);

/* A random open sequence; MODEL_SEQS if there is none. */
uint32_t world_pick(struct world *w);

/* Whether its namespace was forgotten since its prompt was made. */
bool world_is_forgotten(const struct world *w, uint32_t slot);

/* Whether sequences other than this one stand in line. */
bool world_others_wait(const struct world *w, uint32_t slot);

/* Reads the block table, now and then in units of kernel pages; returns the number
 * of its pages. */
size_t world_table(struct world *w, uint32_t slot, int32_t *table);

/* ---- What operations share ------------------------------------------------ */

/* Calls reserve with the sequence's request. */
int world_reserve(struct world *w, uint32_t slot);

/* A pin keeps what it kept, unless something has failed, and on the device what
 * it says. */
void world_check_pin(struct world *w, struct pinned *pin);
void world_unpin(struct world *w, struct pinned *pin);

/* `step_open` tells whether it has begun. */
void world_begin_step(struct world *w);
void world_end_step(struct world *w);

/* Reports up to `limit` of what one rank could report; whether there was any. */
bool world_report(struct world *w, uint32_t rank, size_t limit);

/* `at_once`: the first event that promises a reserve is answered with it. */
void world_poll(struct world *w, size_t capacity, bool at_once);

/* ---- Operations ----------------------------------------------------------- */

void op_open(struct world *w);
void op_close(struct world *w, uint32_t slot);
void op_reserve(struct world *w);
void op_peek(struct world *w);
void op_look(struct world *w);

void op_fork(struct world *w);
void op_truncate(struct world *w);

void op_pin(struct world *w); /* or unpin */
void op_rates(struct world *w);

void op_step(struct world *w); /* begins, fills, ends or aborts one */
void op_late_commit(struct world *w);
void op_report(struct world *w);
void op_poll(struct world *w);

void op_forget(struct world *w);
void op_reset(struct world *w);
void op_rank_lost(struct world *w);
void op_quiesce(struct world *w);
void op_nonsense(struct world *w);

/* Runs empty steps, carries all reports and polls until nothing is in flight;
 * then whoever waits is served or told -ENOSPC. */
void op_drain(struct world *w);

/* ---- WEIR_RANDOM_TRACE (cache_random_trace.c) ----------------------------- */

void trace_call(const struct world *w, const char *what, uint32_t slot, int rc);
void trace_table(const struct world *w, uint32_t slot);
void trace_order(const struct world *w, const void *bytes, size_t n);

#endif
