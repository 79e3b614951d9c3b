/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_FORWARD_CUDA_H
#define TRANSFORMER_FORWARD_CUDA_H

/* The forward pass by kernels.cu.
 *
 *   pinned, a slot      plan ──copy──┐       ┌─► answers
 *   device, a slot                   └► plan │
 *   device, one for all     x, queries, partials, next_token, weights, KV
 *
 * A batch of at most MAX_BATCH rows, which is what decoding makes, goes by its
 * slot's graph. That was captured once, when the rank was attached, with the
 * slot's layer waits in it: whatever a later step loads is waited for, and a step
 * that loads nothing passes at once. One rank has all groups; two would need a
 * collective between GPUs. */

#include "forward.h"

extern const struct forward_ops forward_cuda;

/* Blocks until all that was enqueued has run. */
int forward_cuda_synchronize(struct forward *forward);

#endif
