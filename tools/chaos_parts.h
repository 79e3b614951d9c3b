/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_CHAOS_PARTS_H
#define WEIR_TOOLS_CHAOS_PARTS_H

/* What the parts of --chaos share; who runs it includes chaos.h alone.
 *
 *   chaos.c   ─┬─► chaos_steps.c   reports, events, the next step
 *   each turn  ├─► chaos_acts.c    what befalls the cache or a request, by chance
 *              └─► chaos_lives.c   requests begin, end, are forked and cut back
 *
 * A request that is cut goes on as another object; the old one is judged when no
 * step in flight reads it:
 *
 *   life ─► request  0 ─ 1 ─ 2 ┄ other tokens ─►
 *     └───► before   0 ─ 1 ─ 2 ─ 3 ─ 4             until its last step is settled
 *
 * Invariants, between two turns:
 *   - lives[0, n_lives) have an open sequence each
 *   - a life is judged once all of its steps, and the loads that they joined, have
 *     been reported
 *   - all that is random comes from one generator, so that a seed gives the same
 *     draws for the same answers of the cache */

#include "chaos.h"
#include "faults.h"
#include "hands.h"

#include <pthread.h>
#include <stdatomic.h>

#define WEIR_CHAOS_NAMESPACES 3u
#define WEIR_CHAOS_POLL_NS 100000u /* of the cache's clock between two polls */
#define WEIR_CHAOS_DRAIN_TRIES 100000u

/* A request that is being served. */
struct weir_life {
    struct weir_replay_request *request;
    size_t index; /* of the trace */
    uint32_t tries;
    uint64_t last_step;
    struct weir_replay_request *before; /* what it was until it was cut; NULL: judged */
    uint64_t before_step;               /* the last that read it */
    bool failed;
    bool finished;
};

struct weir_chaos {
    const struct weir_trace *trace;
    struct weir_replay_options options;
    struct weir_chaos_result *result;
    weir_cache *cache;
    struct weir_hands *hands;
    struct weir_request_pool pool;
    struct weir_faults **faults; /* [n_ranks], one device may serve all */
    struct weir_life *lives;     /* [options.active] */
    size_t n_lives;
    struct weir_step_part *parts;
    struct weir_life **part_lives;
    size_t n_parts;
    size_t next; /* request of the trace */
    uint32_t pass;
    uint64_t step; /* the last that was given out */
    uint64_t random;
    uint64_t seed;
    uint64_t now_ns;
    uint32_t adapter;
    uint64_t n_turns; /* requests that went on in another way, a number for each */
    pthread_t releaser;
    bool has_releaser;
    atomic_bool stop;
};

/* All that return int: 0, or a negative errno of a call that must not fail, which
 * result->error then names. */

/* ---- The run (chaos.c) ---------------------------------------------------- */

/* Keeps the first thing that has failed; returns rc. */
int weir_chaos_fail(struct weir_chaos *chaos, int rc, const char *what);

/* A random number below n; n times in a thousand. */
uint32_t weir_chaos_below(struct weir_chaos *chaos, uint32_t n);
bool weir_chaos_happens(struct weir_chaos *chaos, uint32_t n);

/* ---- Lives (chaos_lives.c) ------------------------------------------------ */

/* The namespace of a request, an adapter, say. The field's data is the chaos's: it is
 * good until the next call. */
weir_field weir_chaos_namespace(struct weir_chaos *chaos, size_t index);

/* Closes its sequence, and moves the last life to its place. */
int weir_life_close(struct weir_chaos *chaos, struct weir_life *life);

/* Gives back a life whose sequence is closed already; it stays in the array. */
void weir_life_put(struct weir_chaos *chaos, struct weir_life *life);

/* A random one is forked, or cut back though it is well; if the one drawn can be. */
int weir_life_fork(struct weir_chaos *chaos);
int weir_life_cut(struct weir_chaos *chaos);

/* Ends what is finished or has failed, and begins new ones. */
int weir_lives_turn_over(struct weir_chaos *chaos);

/* ---- Steps (chaos_steps.c) ------------------------------------------------ */

/* Takes reports, from all ranks or from some of them, and what the cache tells. */
int weir_chaos_carry(struct weir_chaos *chaos, bool all);

/* The next step, if the cache and the ranks take one; else waits. */
int weir_chaos_step(struct weir_chaos *chaos);

/* ---- Acts (chaos_acts.c) -------------------------------------------------- */

/* Each of them seldom, and in most turns none. */
int weir_chaos_act(struct weir_chaos *chaos);

/* Recomputes the cache's invariants. */
int weir_chaos_check(struct weir_chaos *chaos);

#endif
