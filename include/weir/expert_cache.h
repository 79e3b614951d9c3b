/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_EXPERT_CACHE_H
#define WEIR_EXPERT_CACHE_H

/* A cache of experts in device memory, kept by the device: which expert lies in
 * which slot, which slots the missing ones take, what has to be copied. For
 * mixture-of-experts models whose experts live in pinned host memory.
 *
 *     router ─► ids ─► ensure ─► slot of each id ─────────► the experts' kernels
 *                        └─► dst_rows, src_rows, count ─► gather ─► the slots
 *
 * All of it stays on the device: a call is a launch of one shape, so a CUDA graph
 * may hold a whole decode step. A cache knows numbers and no bytes: the slots'
 * memory and the copying are those of a gather (weir/gather.h), whose dst rows
 * are slots and whose src rows are the experts of one layer.
 *
 * Once:
 *
 *     weir_expert_cache_params_init(&params);
 *     params.n_layers = 48, params.n_experts = 128;
 *     params.n_slots = 2000, params.max_ids = 64 * 8;
 *     weir_expert_cache_create(&cache, device, &params);
 *
 * In each layer, for the ids that the router has chosen:
 *
 *     weir_expert_ids ids = { layer, 64 * 8, chosen, chosen };
 *     weir_expert_cache_step(cache, &ids, gather, bases_of[layer], stream);
 *
 * Then chosen[i] is the slot of the i-th expert, and the slot holds its bytes for
 * what comes next in the stream. */

#include <weir/device.h>
#include <weir/gather.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_EXPERT_CACHE_MAX_SLOTS (1u << 18)
#define WEIR_EXPERT_CACHE_MAX_EXPERTS (1u << 16)
#define WEIR_EXPERT_CACHE_MAX_IDS (1u << 20)

/*   struct_size  written by weir_expert_cache_params_init
 *   n_layers     layers that share the slots; default 1. n_layers * n_experts is
 *                at most WEIR_EXPERT_CACHE_MAX_IDS
 *   n_experts    of one layer, 1..WEIR_EXPERT_CACHE_MAX_EXPERTS; layers with
 *                fewer do not use the last ones
 *   n_slots      1..WEIR_EXPERT_CACHE_MAX_SLOTS. Where it is at least
 *                min(max_ids, n_experts), no id is ever skipped
 *   max_ids      ids of one call, 1..WEIR_EXPERT_CACHE_MAX_IDS: tokens times
 *                experts a token
 *   log          default: the device's */
typedef struct weir_expert_cache_params {
    uint32_t struct_size;
    uint32_t n_layers;
    uint32_t n_experts;
    uint32_t n_slots;
    uint32_t max_ids;
    weir_log log;
} weir_expert_cache_params;

/* One layer's chosen experts, in device memory, aligned to 4.
 *
 *   layer  0..n_layers-1
 *   n      0..max_ids; the memory may be NULL where it is 0
 *   ids    n experts of the layer, 0..n_experts-1, in any order, with repeats;
 *          -1 for none. Others are treated as -1, and counted
 *   slots  written: the slot of each id, or -1. ids itself, or memory that does
 *          not overlap it */
typedef struct weir_expert_ids {
    uint32_t layer;
    uint32_t n;
    const int32_t *ids;
    int32_t *slots;
} weir_expert_ids;

/* What is in device memory between two calls, at the same addresses until
 * destroy. To be read by work that is in stream order behind a call.
 *
 *   rows        the last call's misses, as a gather takes them: slots, experts
 *               of its layer, and how many
 *   max_misses  the most that they can be: min(max_ids, n_experts, n_slots)
 *   slot_of     [layer * n_experts + expert]: its slot, -1: none
 *   expert_of   [slot]: layer * n_experts + expert, -1: none */
typedef struct weir_expert_tables {
    weir_gather_rows rows;
    uint32_t max_misses;
    const int32_t *slot_of;
    const int32_t *expert_of;
} weir_expert_tables;

/* What calls have found since create or reset, each expert counted once a call.
 *
 *   struct_size  the caller's sizeof
 *   calls        that have run
 *   hits         experts that were there
 *   misses       experts that got a slot
 *   skipped      experts that got none, since all slots were in use by the call
 *   invalid      ids outside -1..n_experts-1, each one
 *   device_bytes, pinned_bytes
 *                memory that the cache takes */
typedef struct weir_expert_cache_stats {
    uint32_t struct_size;
    uint64_t calls;
    uint64_t hits;
    uint64_t misses;
    uint64_t skipped;
    uint64_t invalid;
    uint64_t device_bytes;
    uint64_t pinned_bytes;
} weir_expert_cache_stats;

/* Threads: one at a time an object. Calls on one cache follow one another on the
 * device, in one stream or ordered by events; so does the work that reads the
 * slots: a later call may give them away. The CPU device counts calls that are not
 * ordered as races. */
typedef struct weir_expert_cache weir_expert_cache;

WEIR_API void weir_expert_cache_params_init(weir_expert_cache_params *params) WEIR_NOEXCEPT;

/* Makes an empty cache: 24 to 40 bytes of device memory a slot, 4 an id of all
 * layers. The caller owns *cache and destroys it before the device is closed.
 * -EINVAL: a field breaks a rule above; -ENOTSUP: a GPU or a library without
 * kernels; -ENOMEM; -EIO: the device is lost. Blocks until the memory is set. */
WEIR_API int weir_expert_cache_create(weir_expert_cache **cache, weir_device *device,
                                      const weir_expert_cache_params *params) WEIR_NOEXCEPT;

/* Sets *cache to NULL; a NULL content is allowed. Pre: no call on it is enqueued
 * or in a graph that will run again. */
WEIR_API void weir_expert_cache_destroy(weir_expert_cache **cache) WEIR_NOEXCEPT;

/* Enqueues one update: gives each expert of `ids` that has none a slot, writes the
 * slots and the lists of what has to be copied there. It copies nothing: behind
 * it, in stream order, comes a gather of weir_expert_cache_tables' rows, before
 * anything reads the slots.
 *
 * What it does is a function of the calls before it. The experts that are there
 * are used first, each once, and no slot that this call uses is given away. The
 * others, each once, in ascending order, take the slots that were used longest ago;
 * of those used by the same call, the lowest first; slots never used come first of
 * all. Where there are no more, the rest is skipped: slot -1, counted.
 *
 * `stream` may be one that is being captured. One launch; never waits, allocates
 * nothing on a GPU. -EINVAL, with a log line: an argument is NULL or breaks a rule
 * above; -EIO: the device is lost, or a step has failed (see there); -ENOMEM: of a
 * CPU device, whose full queue also blocks. */
WEIR_API int weir_expert_cache_ensure(weir_expert_cache *cache, const weir_expert_ids *ids,
                                      weir_stream *stream) WEIR_NOEXCEPT;

/* An update and the gather of its misses, two launches.
 *
 *   gather  its lists are int32, its max_count is max_misses or more, its dst_rows
 *           are n_slots or more, or 0; of the cache's device
 *   bases   as for weir_gather_launch: dst is the slots' memory, src the host
 *           banks of this layer. NULL: those of the gather
 *
 * As weir_expert_cache_ensure and weir_gather_launch. Where the gather fails
 * behind an update, the tables name bytes that are not there: that error comes
 * back, and from then on -EIO, until a reset. */
WEIR_API int weir_expert_cache_step(weir_expert_cache *cache, const weir_expert_ids *ids,
                                    weir_gather *gather, const weir_bank_bases *bases,
                                    weir_stream *stream) WEIR_NOEXCEPT;

/* Enqueues the removal of everything, statistics included: for weights that have
 * changed, or slots that were used for something else. -EINVAL: an argument is
 * NULL; else as ensure. */
WEIR_API int weir_expert_cache_reset(weir_expert_cache *cache, weir_stream *stream) WEIR_NOEXCEPT;

/* Where the tables are. -EINVAL: an argument is NULL. Threads: any. */
WEIR_API int weir_expert_cache_tables(const weir_expert_cache *cache,
                                      weir_expert_tables *tables) WEIR_NOEXCEPT;

/* The numbers of the calls that have run; while some run, one number may be a
 * call ahead of another. Reads pinned memory, makes no driver call. -EINVAL: an
 * argument is NULL, or struct_size is wrong. Threads: any. */
WEIR_API int weir_expert_cache_get_stats(const weir_expert_cache *cache,
                                         weir_expert_cache_stats *stats) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
