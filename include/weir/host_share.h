/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_HOST_SHARE_H
#define WEIR_HOST_SHARE_H

/* One host copy of replicated tensors for all ranks of a process.
 *
 *     device pools    rank 0        rank 1        rank 2
 *                     K V latent    K V latent    K V latent
 *                     │ │   │       │ │   │       │ │   │
 *     host pools      K V   └──┐    K V   │       K V   │
 *                              └───── latent ───────────┘
 *                                    the share
 *
 * Under tensor parallelism an MLA latent is the same on every rank. The ranks
 * that are given one share keep it once in host memory and share the writing:
 * of a write-back's pages, in the order of their device pages, each rank writes a
 * block of its own, so that runs stay long, and the blocks go around from one
 * write-back to the next. Each rank loads all of it. That is right because the
 * cache uses a host copy only after every rank has reported its write-back: a
 * rank's report says that its block has arrived.
 *
 * The memory is allocated by the first rank that opens, pinned for the device of
 * each that follows, and lives until the last one has closed. Ranks and the
 * share itself close in any order. A device of a closed rank stays in use until
 * then: weir_device_close gives -EBUSY.
 *
 * Threads: safe; ranks of a share may be opened, used and closed on threads of
 * their own. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_MAX_SHARE_RANKS 64u

/* Given to weir_rank_open in weir_rank_params. */
typedef struct weir_host_share weir_host_share;

/* Makes a share for n_ranks ranks (1..WEIR_MAX_SHARE_RANKS), which takes no memory
 * yet: all the ranks of this process that get the cache's orders and hold the same
 * replicated tensors. A rank begins no step before all n_ranks have been opened.
 * The caller owns *share. `log` receives one line on -EINVAL; NULL is silent.
 * -EINVAL, -ENOMEM. */
WEIR_API int weir_host_share_create(weir_host_share **share, uint32_t n_ranks,
                                    const weir_log *log) WEIR_NOEXCEPT;

/* Lets go of a share and sets *share to NULL; a NULL content is allowed. What
 * open ranks use of it stays until they are closed. */
WEIR_API void weir_host_share_close(weir_host_share **share) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
