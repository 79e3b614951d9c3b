/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CACHE_H
#define WEIR_CACHE_H

/* The cache: the brain. It knows by a radix tree over tokens which prefix is
 * where, owns the page ids of both tiers, decides what is loaded, written back
 * and given up, and says so in orders, one a step. It makes no device call,
 * has no thread and no clock: its state is a function of the sequence of calls.
 *
 * A request's life, on the scheduler thread:
 *
 *     weir_seq_open(&seq, cache, &key, NULL);
 *     weir_request_init(&request);
 *     request.total_tokens = key.n_tokens;
 *     weir_seq_reserve(seq, &request, &reserved);     // -EAGAIN: later
 *     weir_step_begin(&step, cache);
 *     weir_step_add(step, seq);
 *     weir_seq_pages(seq, 0, page_tokens, table, cap, &n);
 *     weir_seq_commit(seq, NULL, n_computed);
 *     weir_step_end(&step, &order, &bytes);           // to each rank
 *     …
 *     weir_cache_report(cache, rank, report, bytes);  // from each rank
 *     weir_cache_poll(cache, now_ns, events, cap, &n);
 *     weir_seq_fork(kids, n, seq, len, users);        // several answers
 *     weir_seq_truncate(seq, good_tokens);            // a failed load, a rollback
 *     weir_seq_close(&seq);
 *
 * Threads: a cache, with its sequences and its step, is used by one thread at
 * a time, which nothing checks; ranks and their threads never call it. No call
 * blocks. After weir_cache_create only weir_seq_open and the
 * calls that lengthen a sequence may allocate host memory: when a sequence
 * grows beyond any that its object has held before, when its namespace has
 * neither pages nor another sequence, and when more pages have spans than ever
 * before. A server whose requests repeat allocates nothing. */

#include <weir/base.h>
#include <weir/key.h>
#include <weir/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_cache weir_cache;

/* Handles of a sequence and of the open step. They are values: a copy names the
 * same object, {0, 0} names none. A handle of an object that is closed is
 * answered with -ESTALE, one of another cache or of none with -EINVAL. Begin with
 * {0, 0}: an open that fails does not write the handle. */
typedef struct weir_seq {
    weir_cache *cache;
    uint64_t id;
} weir_seq;

typedef struct weir_step {
    weir_cache *cache;
    uint64_t id;
} weir_step;

/*   struct_size     written by weir_cache_params_init
 *   page_tokens     tokens of a page, 1..1024; required. That of every rank's shape:
 *                   orders do not carry it, so that a difference is not noticed
 *   device_pages    pages of the device tier, 1 or more; required
 *   host_pages      pages of the host tier; 0: no host tier. Both tiers together:
 *                   at most 2^30 - 1
 *   page_bytes      bytes of a page over all ranks, for policies and
 *                   statistics; 0 (default): unknown
 *   n_ranks         1..64; default 1
 *   max_steps       steps in flight, 1..64; default 16
 *   max_write_backs write-backs in flight, 1..1024; default 64
 *   max_seqs        open sequences, 1..2^24; default 4096. Each takes about 370
 *                   bytes of host memory, and its tokens
 *   offered         share of each tier that is kept free or offered, 0..0.5;
 *                   default 0.05
 *   eviction        policy of the device tier; default "lru"
 *   host_eviction   of the host tier; default: as eviction
 *   write_back      default "write_through"
 *   priorities      sequences may give their pages priorities up to this, 0..15;
 *                   default 0: none, since each page of either tier then takes 8
 *                   bytes a priority and 20 more of host memory
 *   max_pins        pins at a time (weir/pin.h), 0..65535; default 64. With 0
 *                   each page takes 2 bytes less
 *   max_pinned      share of each tier that they may keep, 0..1; default 0.25
 *   host_drops_duplicates  the host tier gives up copies that device memory holds
 *                   too, and is not about to give up, before only copies. Default
 *                   false: such a page is lost when device memory gives it up,
 *                   unless it has been hit again or the write-back policy then
 *                   wants a copy, as "write_back" does
 *   ns_per_token    what a token of a prompt takes to compute, and
 *   link_bytes_per_second  what all ranks load together: see weir_hit; default
 *                   0: unknown. weir_cache_set_rates changes both
 *   eviction_policy       a caller's own policy of the device tier, which wins
 *                   over `eviction`; all its functions must be there, but for
 *                   create_in. The cache keeps the pointer. Default NULL: by name
 *   host_eviction_policy  of the host tier, wins over `host_eviction`; default
 *                   NULL: by name, and without a name as the device tier
 *   write_policy    a caller's own write-back policy, which wins over
 *                   `write_back` if its decide is not NULL
 *   log             default: silent; kept by the cache
 *   allocator       of all that the cache allocates: index, policies (a caller's
 *                   own by its create_in), priorities, pins, sequences, orders;
 *                   default: the C library's */
typedef struct weir_cache_params {
    uint32_t struct_size;
    uint32_t page_tokens;
    uint32_t device_pages;
    uint32_t host_pages;
    uint64_t page_bytes;
    uint32_t n_ranks;
    uint32_t max_steps;
    uint32_t max_write_backs;
    uint32_t max_seqs;
    double offered;
    const char *eviction;
    const char *host_eviction;
    const char *write_back;
    uint32_t priorities;
    uint32_t max_pins;
    double max_pinned;
    bool host_drops_duplicates;
    uint64_t ns_per_token;
    uint64_t link_bytes_per_second;
    const weir_evict_policy *eviction_policy;
    const weir_evict_policy *host_eviction_policy;
    weir_write_policy write_policy;
    weir_log log;
    weir_allocator allocator;
} weir_cache_params;

WEIR_API void weir_cache_params_init(weir_cache_params *params) WEIR_NOEXCEPT;

/* Creates a cache. -EINVAL: a required field is missing, a limit is broken, or
 * a policy's name is unknown or its functions, or the allocator's, are not all
 * there; -ENOMEM. Logs the bytes of host memory that it takes. */
WEIR_API int weir_cache_create(weir_cache **cache, const weir_cache_params *params) WEIR_NOEXCEPT;

/* Frees a cache and sets *cache to NULL; a NULL content is allowed. -EBUSY and
 * no effect: sequences are open, a step is open, orders are in flight, or pins
 * are held. */
WEIR_API int weir_cache_destroy(weir_cache **cache) WEIR_NOEXCEPT;

/* Changes ns_per_token and link_bytes_per_second of weir_cache_params, since
 * both depend on what else the server does: it may tell at any time what it
 * measures. 0: unknown. */
WEIR_API int weir_cache_set_rates(weir_cache *cache, uint64_t ns_per_token,
                                  uint64_t link_bytes_per_second) WEIR_NOEXCEPT;

/* ---- Looking up ---------------------------------------------------------- */

/* Tokens of a prompt's leading pages by where they are. Whole pages only.
 *
 *   n_tokens   leading tokens that the index holds, in either tier
 *   n_device   of them, in device memory
 *   n_host     of them, in host memory only
 *   n_loading  of them, on their way to device memory
 *   load_ns    time to load those of n_host, after the loads that are in flight
 *              already, which count whole; 0: nothing to load, or page_bytes or
 *              link_bytes_per_second is unknown
 *   compute_ns time to compute instead all from the first of n_host on; 0:
 *              nothing to load, or ns_per_token is unknown
 *   n_worth    leading tokens that WEIR_USE_HIT_IF_CHEAPER uses: up to the first
 *              of n_host if load_ns and compute_ns are known and computing takes
 *              less, else all of n_tokens
 *
 * In weir_reserved the last three are about all that the index held, also where
 * less of it was used. */
typedef struct weir_hit {
    size_t n_tokens;
    size_t n_device;
    size_t n_host;
    size_t n_loading;
    uint64_t load_ns;
    uint64_t compute_ns;
    size_t n_worth;
} weir_hit;

/* Looks a key up without pinning or touching anything. */
WEIR_API int weir_cache_peek(const weir_cache *cache, const weir_key *key,
                             weir_hit *hit) WEIR_NOEXCEPT;

/* ---- Sequences ----------------------------------------------------------- */

/*   struct_size       written by weir_seq_params_init
 *   compute_at_least  tokens at the prompt's end that are computed even if the
 *                     index holds them, since a forward pass needs an input;
 *                     default 1
 *   priority          of the pages that it takes from the index by its first
 *                     reserve, and of those that it commits, each from then on;
 *                     0..weir_cache_params.priorities, default 0; a higher one
 *                     is kept longer by the eviction policies that look at it
 *   ttl_ns            how long a page has this priority by the clock of
 *                     weir_cache_poll; default 0: for ever. Then it is not given
 *                     up but has the next lower priority that another sequence
 *                     gave it and that lives, or 0
 *   user              comes back in events; default NULL */
typedef struct weir_seq_params {
    uint32_t struct_size;
    uint32_t compute_at_least;
    uint32_t priority;
    uint64_t ttl_ns;
    void *user;
} weir_seq_params;

WEIR_API void weir_seq_params_init(weir_seq_params *params) WEIR_NOEXCEPT;

/* Opens a sequence on a key, whose tokens and spans are copied. Pins nothing. NULL
 * params: the defaults. -ENOSPC: max_seqs are open; -EINVAL; -ENOMEM. */
WEIR_API int weir_seq_open(weir_seq *seq, weir_cache *cache, const weir_key *key,
                           const weir_seq_params *params) WEIR_NOEXCEPT;

/* Closes a sequence at any time, with steps and loads in flight or not, and
 * sets *seq to {0, 0}, which is itself allowed. What it committed stays in the
 * index; its other pages are free once the steps that use them have ended. A
 * load that no other sequence wants and nothing was computed on is cancelled by
 * the next order.
 * -ESTALE, -EINVAL: *seq is untouched. */
WEIR_API int weir_seq_close(weir_seq *seq) WEIR_NOEXCEPT;

#define WEIR_ALL_TOKENS SIZE_MAX
#define WEIR_USE_HIT_IF_CHEAPER (SIZE_MAX - 1)

/*   struct_size   written by weir_request_init
 *   use_hit       use at most so many leading tokens from the index (rounded
 *                 down to pages); default WEIR_ALL_TOKENS.
 *                 WEIR_USE_HIT_IF_CHEAPER: those up to the first that is in host
 *                 memory only, and the rest if loading takes no longer than
 *                 computing, or it is unknown which does (weir_hit.n_worth). Only
 *                 the first successful reserve of a sequence looks at it
 *   total_tokens  length for which the sequence is to have pages, counted from
 *                 its start, which may be less than the key's (a chunk at a
 *                 time); a smaller value than before changes nothing; required.
 *                 The first reserve takes the whole hit all the same, also where
 *                 it is longer: computing a chunk begins behind it, so who wants
 *                 the hit and a chunk asks weir_cache_peek before, or reserves
 *                 again
 *   expect_tokens length that the sequence is expected to reach, a hint for the
 *                 allocator; 0 (default): unknown
 *   deadline_ns   by when the loads of what the sequence hits must have arrived,
 *                 by poll's clock; 0 (default): none. Each successful reserve
 *                 sets it anew. The first poll at or after it that finds one
 *                 missing tells the sequence WEIR_EVENT_LOAD_FAILED with
 *                 -ETIMEDOUT */
typedef struct weir_request {
    uint32_t struct_size;
    size_t use_hit;
    size_t total_tokens;
    size_t expect_tokens;
    uint64_t deadline_ns;
} weir_request;

WEIR_API void weir_request_init(weir_request *request) WEIR_NOEXCEPT;

/* What a reserve found. On success: the hit it uses (0 on later calls of the
 * same sequence). On -EAGAIN, -ENOSPC and -E2BIG only n_short is written.
 *
 *   hit      what is used of the index; hit.n_tokens is where computing starts
 *   n_short  pages that are missing now */
typedef struct weir_reserved {
    weir_hit hit;
    size_t n_short;
} weir_reserved;

/* Matches again (first time), pins what it uses and allocates the rest, all or
 * nothing. A hit or a touch counts here, once. `reserved` may be NULL. Allowed
 * while a step is open.
 *
 * -EAGAIN  pages will become free by what is in flight or about to be written
 *          back: the sequence now stands in line (a claim), and freed pages
 *          are set aside for it. Run a step, an empty one if there is no other,
 *          carry the reports, poll, and call again; an event says when
 * -ENOSPC  nothing in flight will help: close or preempt another sequence, or
 *          unpin, and call again. Nobody stands in line and no event comes
 * -E2BIG   more than the whole device tier
 * -EIO     a load or a step that the sequence uses has failed, a load is late, or a
 *          rank was lost: truncate or close it
 * -EBUSY   the cache is drained (weir_cache_drain), and this would take a load,
 *          or room that is neither free nor offered; a claim stays as it is
 * -EINVAL  total_tokens is 0
 * -ENOMEM
 * A claim ends with the sequence's next successful reserve, with -ENOSPC or
 * -E2BIG, or with its truncate or close. */
WEIR_API int weir_seq_reserve(weir_seq seq, const weir_request *request,
                              weir_reserved *reserved) WEIR_NOEXCEPT;

/* Lengths of a sequence, in tokens. */
typedef struct weir_seq_info {
    size_t n_tokens;    /* known: the key's and those committed since */
    size_t n_committed; /* whose KV is or will be written by steps so far */
    size_t n_hit;       /* taken from the index by the first reserve */
    size_t n_reserved;  /* for which there are pages */
    void *user;
} weir_seq_info;

WEIR_API int weir_seq_get_info(weir_seq seq, weir_seq_info *info) WEIR_NOEXCEPT;

/* Writes the block table: the device page ids of the sequence's reserved pages
 * from its token `from` on, as a dense int32 array, in units of kernel pages.
 * page_tokens is a multiple of kernel_page_tokens, the ratio r is their quotient,
 * and the kernel pages of page p are p * r .. p * r + r - 1. Whole batches:
 * weir/export.h.
 *
 *   from   in tokens, a multiple of kernel_page_tokens
 *   table  of `capacity` entries; may be NULL if capacity is 0
 *   n      receives the number of entries there are
 *
 * -ENOSPC: they do not fit; *n is written then too, nothing else. The pages
 * of a sequence never change, but for weir_seq_truncate; more are added by
 * reserve. Without a reserve there are none, which is no error. */
WEIR_API int weir_seq_pages(weir_seq seq, size_t from, uint32_t kernel_page_tokens, int32_t *table,
                            size_t capacity, size_t *n) WEIR_NOEXCEPT;

/* Says that n more tokens of the sequence are computed: the steps up to now
 * (the open step, if the sequence was added to it) write their KV in all
 * tensors of all layers. Pages that become full enter the index.
 *
 *   tokens  the tokens; NULL: the next n of the key. Tokens that the key
 *           already tells must be equal. What they stand for is told by the
 *           key's spans alone
 *
 * A token is committed by the step that has it as input: of a prompt all that a
 * step computes, then the token that was sampled last, in the step after. Whether a
 * step has computed them is for the server to know; the cache only sees that there
 * was one.
 *
 * In an open step the commit takes effect with weir_step_end. -EINVAL: the
 * sequence was in no step, the tokens differ from the key's, or there are no
 * pages for them; -EIO: as for weir_seq_reserve; -ENOMEM. */
WEIR_API int weir_seq_commit(weir_seq seq, const int32_t *tokens, size_t n) WEIR_NOEXCEPT;

/* ---- Forking and cutting ------------------------------------------------- */

/* Makes n sequences that begin as the first `len` tokens of `seq`: several answers
 * to a prompt, beams. Full pages are shared; of the page that len ends in, each kid
 * gets a copy of its own, which the next step that it is added to makes before its
 * forward pass.
 *
 *   kids   receives n handles
 *   n      1 or more
 *   len    1 to the tokens that `seq` has committed, in the open step too; it is
 *          the kids' key
 *   users  n pointers that come back in the kids' events; NULL: all NULL
 *
 * A kid is a sequence like another, with pages for its len tokens: reserve more,
 * add, commit, fork, truncate and close, in any order; `seq` may go on or be closed
 * at any time. `seq` goes on in place: what it writes lies behind what the kids have
 * of it. A kid matches nothing in the index; what it commits enters it.
 *
 * Of tokens that the open step computes: the kids cannot be added to that step
 * (-EBUSY). If it is aborted, they stay and go back to the whole pages that were
 * committed before, without the rest of their pages; their key stays len tokens.
 *
 * All or nothing. -EAGAIN: pages for the copies will become free, after those that
 * are claimed, by what is in flight; call again, nobody stands in line. -ENOSPC:
 * nothing in flight will help, or max_seqs are open. -EIO: a load or a step that
 * `seq` uses has failed, or a load is late. -EBUSY: the cache is drained, and
 * there is no room that is free or offered. -EINVAL; -ENOMEM. */
WEIR_API int weir_seq_fork(weir_seq *kids, size_t n, weir_seq seq, size_t len,
                           void *const *users) WEIR_NOEXCEPT;

/* Cuts a sequence down to its first n_tokens: what was committed and is not wanted
 * after all, or is wrong after WEIR_EVENT_LOAD_FAILED, whose good_tokens or less make
 * it usable again. An event of that kind that was not polled yet is dropped, and a
 * claim ends.
 *
 *   n_tokens  0 to the tokens that are committed
 *
 * The reservation shrinks with it, to the pages that hold n_tokens. If the last of
 * them is in the index, or others have it too, it is not written to: the sequence
 * keeps the full pages before it, and the next reserve gives it a page of its own,
 * into which the next step copies the rest. So n_reserved may be below n_committed
 * until then, and truncate itself never waits for a page. What is cut off stays in
 * the index. A load that only pages beyond the cut were for is cancelled; a deadline
 * goes on for the others.
 *
 * Tokens of the key stay known and are committed again as they were; those beyond
 * are forgotten. What comes next needs a step: nothing is left to be committed of
 * the steps before. Nor does the sequence match again: who is cut to little or
 * nothing, while the index has it, hits it by closing and opening anew.
 *
 * Rows that were never committed need no truncate: the next step writes over them.
 * -EBUSY: the sequence is in the open step; -EIO: more than good_tokens; -EINVAL;
 * -ENOMEM, only of a key with spans. */
WEIR_API int weir_seq_truncate(weir_seq seq, size_t n_tokens) WEIR_NOEXCEPT;

/* ---- Steps --------------------------------------------------------------- */

/* Opens the next step; one is open at a time. -EAGAIN: the step max_steps before
 * it is not retired; -EBUSY: a step is open, or the cache is drained
 * (weir_cache_drain). */
WEIR_API int weir_step_begin(weir_step *step, weir_cache *cache) WEIR_NOEXCEPT;

/* Adds a sequence: the step starts the loads that it needs, or joins those in
 * flight, and guards its pages. Once a step and sequence; again is no error.
 * -EBUSY: it was forked off what this step computes; -EIO: as for
 * weir_seq_reserve; -EINVAL: it has no pages reserved, or fewer than for what it
 * has committed. */
WEIR_API int weir_step_add(weir_step step, weir_seq seq) WEIR_NOEXCEPT;

/* Ends the step and gives its order, to be carried to every rank, in the order of
 * the steps, also if it holds nothing for that rank to compute. *order belongs to
 * the cache, is 8-byte aligned, and is valid until the step is retired: until
 * reports of all ranks for all of it have come, or weir_cache_rank_lost has stood
 * in for them. Until then any thread may read it. *step becomes {0, 0}. A step may
 * hold no sequence: an idle server still writes back. */
WEIR_API int weir_step_end(weir_step *step, const void **order, size_t *bytes) WEIR_NOEXCEPT;

/* Bytes that no order of this cache exceeds: what a message or a channel
 * (weir_channel_bytes) must hold. Never changes; threads: any. 0 for NULL. */
WEIR_API size_t weir_cache_max_order_bytes(const weir_cache *cache) WEIR_NOEXCEPT;

/* Undoes the open step as if it had never begun, its commits included. */
WEIR_API int weir_step_abort(weir_step *step) WEIR_NOEXCEPT;

/* ---- Reports and events -------------------------------------------------- */

/* Takes a report of rank `rank_index` (0..n_ranks-1), which is to come in the
 * order in which that rank made them; reports of different ranks may weave.
 * `report` is 8-byte aligned and not used after the call. -EINVAL and no effect:
 * corrupted, or about something that is not in flight on this rank. */
WEIR_API int weir_cache_report(weir_cache *cache, uint32_t rank_index, const void *report,
                               size_t bytes) WEIR_NOEXCEPT;

typedef enum weir_event_kind {
    WEIR_EVENT_RESERVE_READY = 1, /* a claim can be served: call reserve again, before others */
    WEIR_EVENT_LOAD_FAILED = 2,   /* good_tokens of the sequence are right; rc is -EIO: a load
                                     or a step has failed, or -ETIMEDOUT: a load is late */
    WEIR_EVENT_WRITE_WAITING = 3  /* write-backs wait for a step: end one, it may be empty */
} weir_event_kind;

/* What a poll tells, each once. A sequence that is closed is told nothing more.
 *
 *   rc           0, but for LOAD_FAILED
 *   seq, user    whom it concerns, and what it was opened with; {0, 0} and NULL
 *                for WRITE_WAITING
 *   good_tokens  of LOAD_FAILED: its leading tokens that are right; what was
 *                computed of it behind them is wrong, also by steps that still run.
 *                Truncate it to so many or fewer, or close it
 *
 * What a step has computed of a sequence is to be used when all ranks have reported
 * the step, and a poll after that, all its events taken, tells of no failure: a rank
 * reports a load that has failed before the steps that waited for it. Only a page
 * that was damaged in host memory, which ranks with checksums find, may be told of
 * later. */
typedef struct weir_cache_event {
    weir_event_kind kind;
    int rc;
    weir_seq seq;
    void *user;
    size_t good_tokens;
} weir_cache_event;

/* Does what is due: ends priorities whose time is over (at most 256 pages a call,
 * those that ended first), fills the offered windows, gathers pages to write back,
 * serves claims, and gives up to `capacity` events, *n of them; if *n is `capacity`,
 * there may be more, for the next call. `events` may be NULL if capacity is 0.
 *
 *   now_ns  the caller's clock in ns, from any beginning, never going back, that of
 *           deadlines, times to live and pins; who uses none of them may give 0
 *
 * -EINVAL: the clock goes back. Never blocks; well under a microsecond when there
 * is nothing to do. */
WEIR_API int weir_cache_poll(weir_cache *cache, uint64_t now_ns, weir_cache_event *events,
                             size_t capacity, size_t *n) WEIR_NOEXCEPT;

/* Pages of the device tier, O(1).
 *
 *   free     hold nothing
 *   offered  hold something cold that any reserve may take
 *   pending  will become free or offered by what is in flight
 *   claimed  of all these, set aside for sequences in line */
typedef struct weir_available {
    size_t free;
    size_t offered;
    size_t pending;
    size_t claimed;
} weir_available;

WEIR_API int weir_cache_available(const weir_cache *cache, weir_available *available) WEIR_NOEXCEPT;

/* ---- Looking inside ------------------------------------------------------ */

/* Counters since creation and sizes now. X(type, kind, name, text); kind is
 * COUNTER, which only grows, or GAUGE. */
#define WEIR_CACHE_STATS(X)                                                                       \
    X(uint64_t, COUNTER, requests, "first reserves that succeeded")                               \
    X(uint64_t, COUNTER, reserve_again, "reserves answered with -EAGAIN")                         \
    X(uint64_t, COUNTER, reserve_nospace, "reserves answered with -ENOSPC")                       \
    X(uint64_t, COUNTER, hit_pages_device, "pages that requests found in device memory")          \
    X(uint64_t, COUNTER, hit_pages_host, "pages that requests found in host memory only")         \
    X(uint64_t, COUNTER, hit_pages_loading,                                                       \
      "pages that requests found on their way to the device")                                     \
    X(uint64_t, COUNTER, forks, "sequences that began as another's")                              \
    X(uint64_t, COUNTER, copied_pages, "pages copied on the device, to go on inside")             \
    X(uint64_t, COUNTER, new_pages, "pages allocated to be computed")                             \
    X(uint64_t, COUNTER, committed_pages, "pages that became full")                               \
    X(uint64_t, COUNTER, duplicate_pages, "committed pages that the index already held")          \
    X(uint64_t, COUNTER, loaded_pages, "pages loaded")                                            \
    X(uint64_t, COUNTER, load_failed_pages, "pages whose load failed")                            \
    X(uint64_t, COUNTER, damaged_pages, "of them, pages whose host copy had changed")             \
    X(uint64_t, COUNTER, load_cancelled_pages, "pages whose load was cancelled")                  \
    X(uint64_t, COUNTER, late_loads, "sequences whose load was not there by its deadline")        \
    X(uint64_t, COUNTER, written_pages, "pages written back")                                     \
    X(uint64_t, COUNTER, write_failed_pages, "pages whose write-back failed")                     \
    X(uint64_t, COUNTER, write_cancelled_pages,                                                   \
      "pages that left the index before they were written")                                       \
    X(uint64_t, COUNTER, write_skipped_pages, "pages not written because the host tier was full") \
    X(uint64_t, COUNTER, evicted_device_pages, "device copies whose room was taken")              \
    X(uint64_t, COUNTER, evicted_host_pages, "host copies whose room was taken")                  \
    X(uint64_t, COUNTER, dropped_pages, "pages that left the index with their prefix")            \
    X(uint64_t, COUNTER, load_runs, "runs in loads, consecutive on both sides, cut at 32 pages")  \
    X(uint64_t, COUNTER, load_run_squares,                                                        \
      "sum of their squared lengths, for a page-weighted mean")                                   \
    X(uint64_t, COUNTER, loaded_bytes, "bytes loaded, if page_bytes is known")                    \
    X(uint64_t, COUNTER, write_runs, "runs in write-backs, likewise")                             \
    X(uint64_t, COUNTER, write_run_squares, "sum of their squared lengths")                       \
    X(uint64_t, COUNTER, written_bytes, "bytes written back, if page_bytes is known")             \
    X(uint64_t, COUNTER, demoted_pages, "times that a page's priority ended")                     \
    X(uint64_t, COUNTER, steps, "steps ended")                                                    \
    X(uint64_t, GAUGE, orders_in_flight, "steps not retired")                                     \
    X(uint64_t, GAUGE, write_backs_in_flight, "write-backs not retired")                          \
    X(uint64_t, GAUGE, seqs_open, "sequences open")                                               \
    X(uint64_t, GAUGE, index_pages, "pages in the index")                                         \
    X(uint64_t, GAUGE, index_bytes, "host memory of the cache in bytes")                          \
    X(uint64_t, GAUGE, device_free, "device pages free")                                          \
    X(uint64_t, GAUGE, device_offered, "device pages offered")                                    \
    X(uint64_t, GAUGE, host_free, "host pages free")                                              \
    X(uint64_t, GAUGE, host_offered, "host pages offered")                                        \
    X(uint64_t, GAUGE, device_copies, "pages of the index in device memory")                      \
    X(uint64_t, GAUGE, device_runs, "runs that they form: a page right behind its parent's")      \
    X(uint64_t, GAUGE, host_copies, "pages of the index in host memory")                          \
    X(uint64_t, GAUGE, host_runs, "runs that they form")                                          \
    X(uint64_t, GAUGE, pins, "pins held")                                                         \
    X(uint64_t, GAUGE, pinned_device_pages, "device pages that pins keep")                        \
    X(uint64_t, GAUGE, pinned_host_pages, "host pages that pins keep")                            \
    X(uint64_t, GAUGE, oldest_pin_ns, "age of the oldest pin by the clock of the polls, 0: none")

/* struct_size must be set to sizeof(weir_stats) before the call. */
typedef struct weir_stats {
    uint32_t struct_size;
#define WEIR_STATS_FIELD(type, kind, name, text) type name;
    WEIR_CACHE_STATS(WEIR_STATS_FIELD)
#undef WEIR_STATS_FIELD
} weir_stats;

/* O(1). -EINVAL: struct_size is not one this library knows. */
WEIR_API int weir_cache_get_stats(const weir_cache *cache, weir_stats *stats) WEIR_NOEXCEPT;

/*   TEXT        a line a field: its name, a space, its value
 *   JSON        one object, a member a field; values are integers, up to
 *               2^64 - 1
 *   PROMETHEUS  the text exposition format: # HELP, # TYPE and the sample of
 *               each field, named weir_<field>_total for a counter and
 *               weir_<field> for a gauge, without labels and timestamps
 *
 * All end with a newline and hold the fields in the order of WEIR_CACHE_STATS. */
typedef enum weir_stats_format {
    WEIR_STATS_TEXT = 0,
    WEIR_STATS_JSON = 1,
    WEIR_STATS_PROMETHEUS = 2
} weir_stats_format;

/* Writes statistics as text.
 *
 *   buffer  of `capacity` bytes, receives the text with a NUL behind it; may be
 *           NULL if capacity is 0
 *   needed  receives the bytes that the text takes, the NUL counted; NULL: not
 *           wanted
 *
 * -ENOSPC: it does not fit; *needed is written then too, and the buffer, if it
 * has any byte, holds the beginning of the text and a NUL. -EINVAL: stats is
 * NULL, its struct_size is not one this library knows, the format is none of
 * the above, or buffer is NULL and capacity is not 0; without a log line, for
 * there is no log. Threads: any. Allocates nothing. */
WEIR_API int weir_stats_write(const weir_stats *stats, weir_stats_format format, char *buffer,
                              size_t capacity, size_t *needed) WEIR_NOEXCEPT;

/* Recomputes every invariant from scratch: links, sizes, pins, the evictable
 * sets. 0, or -EIO with *reason (static text; may be NULL) on the first that
 * does not hold. O(pages); for tests, fuzzers and debug builds. Allocates. */
WEIR_API int weir_cache_check(const weir_cache *cache, const char **reason) WEIR_NOEXCEPT;

/* A digest of the whole state. Two caches that were given the same calls and
 * reports have the same digest. O(pages). */
WEIR_API uint64_t weir_cache_digest(const weir_cache *cache) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
