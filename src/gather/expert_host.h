/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_GATHER_EXPERT_HOST_H
#define WEIR_GATHER_EXPERT_HOST_H

/* The expert cache's update on the CPU, the reference of the kernel: what the CPU
 * device runs, and what tests hold the kernel against.
 *
 *   weir_expert_args ──► weir_expert_host_ensure ──► the same bytes in all arrays
 *                   └──► weir_expert_ensure (GPU) ─┘
 *
 * Invariant: after either, every array of the args is the same, the stale part of
 * `order` included. */

#include "kernels/expert_args.h"

/* One call. Pre: the addresses in `args` are the host's too; n_slots, n_experts
 * and n are within the limits of expert_args.h. Allocates nothing; 40 KiB of
 * stack. Threads: one at a time a state; `published` may be read meanwhile. */
void weir_expert_host_ensure(const struct weir_expert_args *args);

/* All slots empty, totals at zero. */
void weir_expert_host_reset(const struct weir_expert_args *args);

#endif
