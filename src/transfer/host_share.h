/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_HOST_SHARE_H
#define WEIR_TRANSFER_HOST_SHARE_H

/* The inside of a share: its memory, who has pinned it, and which ranks are open.
 *
 *   join   layout ── memory ── devices[0] ── devices[1] …     grows by join
 *           of the   pinned for   each with its own id of the
 *           first    devices[0]   pool, for the race check
 *   leave  the last rank to leave undoes all of it in reverse order
 *
 * Invariants (under `lock`): users = 1 for the creator while it holds on + ranks
 * that are open; layout, memory and n_devices are there exactly while a rank is
 * open; each of devices[] counts one use of its device; `open` has the bits of
 * ranks that have joined, `opened` of those that were opened whole since the share
 * was last empty, also if they have closed; complete tells that `opened` has all
 * n_ranks bits. sums[] is written by the rank that writes the page back and read by
 * those that load it, which a report, the cache and an order lie between. */

#include "pool/host_memory.h"
#include "transfer/geometry.h"

#include <weir/host_share.h>

#include <pthread.h>

struct weir_share_device {
    weir_device *device;
    uint64_t ranks; /* bit i: rank i is open on it */
    uint32_t pool;
};

struct weir_host_share {
    pthread_mutex_t lock;
    uint32_t n_ranks;
    uint32_t users;
    uint64_t open; /* bit i: rank i */
    uint64_t opened;
    atomic_bool complete;
    struct weir_geometry *layout; /* a view of the first rank's tensors, without planes */
    struct weir_host_memory *memory;
    uint32_t checksums; /* of the first rank's params */
    uint64_t *sums;     /* [host_pages], NULL without checksums */
    uint32_t n_devices;
    struct weir_share_device devices[WEIR_MAX_SHARE_RANKS];
};

struct weir_share_join {
    weir_device *device;
    const struct weir_geometry *geometry; /* weir_geometry_share is done */
    uint64_t bytes_limit;                 /* 0: no limit */
    uint32_t touch_threads;
    bool skip_memory_check;
    uint32_t checksums;
    const weir_log *log;
};

/* What a rank gets: its number, and its device's id of the pool. */
struct weir_share_place {
    uint32_t index;
    uint32_t pool;
};

/* -EINVAL: the rank's tensors lie otherwise than the others', or n_ranks are open;
 * -ENOSPC: bytes_limit; -ENOMEM; else the device's error. Each with a log line. */
int weir_host_share_join(weir_host_share *share, const struct weir_share_join *join,
                         struct weir_share_place *place);

/* The rank that has joined is open: nothing of it can fail any more. */
void weir_host_share_opened(weir_host_share *share, uint32_t index);

/* Pre: no enqueued work of the rank uses the memory. `failed`: the rank could not be
 * opened, so its device is let go of if nobody else is on it; only where another device
 * came after it, it stays until the last rank leaves. */
void weir_host_share_leave(weir_host_share *share, uint32_t index, bool failed);

#endif
