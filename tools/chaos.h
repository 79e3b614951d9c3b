/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_CHAOS_H
#define WEIR_TOOLS_CHAOS_H

/* A server's bad days, drawn from a seed: a trace is served while device calls
 * fail, copies stall, reports come late and in any order, loads miss their
 * deadlines, requests are abandoned, preempted, tried again, forked and cut back,
 * and the cache forgets, is drained and begins anew.
 *
 *   scheduler ──orders──► rank 0's thread ─┐ calls fail, copies stall
 *       ▲      └────────► rank 1's thread ─┤
 *       └──────reports─────────────────────┘
 *   releaser: ends the stalls after a while
 *
 * What a request reads is compared all the same. Wrong bytes are excused only
 * beyond the length that a failure's event called good; so a request is judged
 * when all that its steps brought has been reported. */

#include "replay.h"

/* X(name, text). */
#define WEIR_CHAOS_COUNTS(X)                                                    \
    X(steps, "steps")                                                           \
    X(completed, "requests served to their end")                                \
    X(abandoned, "requests closed in the middle")                               \
    X(preempted, "requests closed to make room for others")                     \
    X(failed, "requests that an event told of a failure")                       \
    X(mended, "requests cut to what was good of them, which went on")           \
    X(cuts, "requests cut back that were well")                                 \
    X(forks, "requests forked off others")                                      \
    X(too_large, "requests that never fit")                                     \
    X(aborted_steps, "steps aborted")                                           \
    X(forgets, "times that a namespace, or all, was forgotten")                 \
    X(resets, "times that the cache began anew")                                \
    X(drains, "times that it was drained")                                      \
    X(failed_calls, "device calls that failed")                                 \
    X(stalled_copies, "copies that stalled")                                    \
    X(failed_transfers, "loads, write-backs and steps that failed")             \
    X(loaded_pages, "pages loaded")                                             \
    X(written_pages, "pages written back")                                      \
    X(checks, "times that all of the cache's invariants were recomputed")       \
    X(wrong_bytes, "wrong bytes that no event excuses")                         \
    X(excused_bytes, "wrong bytes beyond the length that an event called good") \
    X(races, "accesses that no stream, event or word puts in order")

struct weir_chaos_result {
#define WEIR_CHAOS_FIELD(name, text) uint64_t name;
    WEIR_CHAOS_COUNTS(WEIR_CHAOS_FIELD)
#undef WEIR_CHAOS_FIELD
    double seconds;
    char error[200]; /* what went wrong, if a call failed that must not */
};

/* Serves the trace again and again until `seconds` are over. The options'
 * verify and judge_later are set here. */
int weir_chaos_run(const struct weir_trace *trace, const struct weir_replay_options *options,
                   uint64_t seed, double seconds, struct weir_chaos_result *result);

/* Prints a table to standard output. */
void weir_chaos_print(const struct weir_chaos_result *result);

#endif
