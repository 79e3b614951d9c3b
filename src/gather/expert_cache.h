/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_GATHER_EXPERT_CACHE_H
#define WEIR_GATHER_EXPERT_CACHE_H

/* The host's side of an expert cache: addresses, and nothing that changes.
 *
 *   weir_expert_cache_ensure ──► args of create + ids of the call
 *                                      │  ops->expert_launch
 *            CPU device ◄──────────────┴──────────────► CUDA device
 *      weir_expert_host_ensure                      weir_expert_ensure
 *
 * Invariants: args holds no call (ids, slots, n and id_base are 0); what the
 * tables hold is known on the device only. */

#include "kernels/expert_args.h"

#include <weir/expert_cache.h>

struct weir_expert_cache {
    weir_device *device;
    weir_log log;
    struct weir_expert_args args;
    uint32_t n_layers;
    uint32_t max_ids;
    uint32_t max_misses;
    bool broken;     /* a gather has failed behind its update */
    uint64_t memory; /* 0: none yet */
    uint64_t device_bytes;
    uint32_t *words;
};

#endif
