/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_REPLAY_H
#define WEIR_TOOLS_REPLAY_H

/* Replays a trace through a cache, with ranks on CPU devices, on a GPU or with
 * none.
 *
 *   trace ─► request ─► cache ──order──► hands ─► ranks, devices, pattern
 *                         ▲                │
 *                         └────reports─────┘
 *
 * One thread does what a server's scheduler and GPU threads do; the devices'
 * streams run beside it, with up to WEIR_REPLAY_STEPS steps in flight. */

#include "trace.h"

#include <weir/shape.h>
#include <weir/transfer.h>

#define WEIR_REPLAY_STEPS 4u /* steps in flight */

/* NONE: each order is answered at once. */
enum weir_replay_device {
    WEIR_REPLAY_NONE,
    WEIR_REPLAY_CPU,
    WEIR_REPLAY_CUDA
};

/* "none", "cpu", "cuda". */
const char *weir_replay_device_name(enum weir_replay_device device);

/*   block_tokens  tokens that one id of the trace stands for
 *   device_pages  0: as many as never need an eviction
 *   host_pages    0: no host tier
 *   offered       share, 0..0.5
 *   drop_duplicates  weir_cache_params.host_drops_duplicates
 *   device        what the ranks run on
 *   engine        what moves the bytes on a GPU
 *   verify        compare all pages that a step uses, and check the cache's
 *                 invariants after each pass
 *   batch         requests that one step prefills
 *   active        requests that decode at a time; 0: a request ends with its
 *                 prefill
 *   n_gpus        the first of the machine, to which the ranks are dealt out; at
 *                 most n_ranks
 *   judge_later   wrong bytes are kept with their requests, not counted: after a
 *                 failed load some are to be expected
 *   link_gbps     of CPU devices, a direction; 0: no limit
 *   passes        times that the trace is replayed, each with ids of its own
 *   progress      called now and then with the requests done so far; may be
 *                 NULL */
struct weir_replay_options {
    uint32_t block_tokens;
    uint32_t page_tokens;
    uint32_t device_pages;
    uint32_t host_pages;
    const char *policy;
    const char *write_back;
    double offered;
    bool drop_duplicates;
    uint32_t n_layers;
    uint32_t n_tensors;
    uint32_t row_bytes;
    weir_host_layout host_layout;
    enum weir_replay_device device;
    weir_transfer_engine engine;
    bool verify;
    uint32_t batch;
    uint32_t active;
    uint32_t n_ranks;
    uint32_t n_gpus;
    bool judge_later;
    double link_gbps;
    uint32_t passes;
    void (*progress)(uint32_t pass, uint32_t passes, size_t done, size_t requests);
};

/* Numbers of the last pass, but for wrong bytes, races and failed transfers,
 * which count in all of them. X(name, text). A hit is a leading page of a
 * request that the index holds. */
#define WEIR_REPLAY_COUNTS(X)                                       \
    X(requests, "requests of the trace")                            \
    X(too_large, "requests that never fit")                         \
    X(cut_short, "answers cut short to make room")                  \
    X(pages, "pages of prompts")                                    \
    X(hit_pages_device, "pages hit in device memory")               \
    X(hit_pages_host, "pages hit in host memory")                   \
    X(decoded_tokens, "tokens decoded")                             \
    X(steps, "steps")                                               \
    X(loaded_pages, "pages loaded")                                 \
    X(written_pages, "pages written back")                          \
    X(evicted_device_pages, "device copies evicted")                \
    X(evicted_host_pages, "host copies evicted")                    \
    X(failed_transfers, "loads, write-backs and steps that failed") \
    X(wrong_bytes, "wrong bytes")                                   \
    X(races, "accesses that no stream, event or word puts in order")

struct weir_replay_result {
#define WEIR_REPLAY_FIELD(name, text) uint64_t name;
    WEIR_REPLAY_COUNTS(WEIR_REPLAY_FIELD)
#undef WEIR_REPLAY_FIELD
    uint32_t device_pages; /* that there were */
    double mean_run_pages; /* of loaded prefixes, weighted by pages */
    double seconds;
    char error[200];     /* what went wrong, if a call failed */
    uint64_t error_line; /* of the trace; 0: not about a line */
};

/* Fails with -EINVAL if the trace or the options break a limit, with the
 * code of the call that failed otherwise; result->error says what it was. */
int weir_replay_run(const struct weir_trace *trace, const struct weir_replay_options *options,
                    struct weir_replay_result *result);

/* Device pages with which no page is ever evicted; -E2BIG: more than 2^30. */
int weir_replay_unlimited(const struct weir_trace *trace, const struct weir_replay_options *options,
                          uint32_t *pages);

#endif
