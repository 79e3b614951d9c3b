/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POOL_HOST_MEMORY_H
#define WEIR_POOL_HOST_MEMORY_H

/* The bytes of a host pool: anonymous memory, touched by several threads, then
 * pinned in chunks.
 *
 *     base                                                    base + bytes
 *     ┌───────────────┬───────────────┬───────────────┬─────────┐
 *     │  chunk_bytes  │  chunk_bytes  │  chunk_bytes  │ the rest│
 *     └───────────────┴───────────────┴───────────────┴─────────┘
 *       registered      registered      registered      registered
 *
 * Invariants: base is a multiple of the host's page, of 2 MiB if bytes >= 2 MiB;
 * bytes is a multiple of the host's page; chunk_bytes is a multiple of the
 * granule and of the host's page, or more than bytes; every byte belongs to
 * exactly one registration of the device. Constant after create. */

#include "base/memory.h"
#include "device/device.h"

struct weir_host_memory {
    unsigned char *base;
    uint64_t bytes;
    uint64_t chunk_bytes; /* may exceed bytes: then there is one chunk */
    weir_device *device;
    struct weir_memory *memory;
};

/*   bytes          wanted, 1 or more; rounded up to the host's page
 *   granule        bytes that one registration must hold together, from any
 *                  multiple of it on; 1 or more
 *   bytes_limit    the most bytes that may be taken; 0: no limit
 *   chunk_limit    the largest chunk to try; 0: 256 GiB, below what drivers
 *                  are known to refuse
 *   touch_threads  0: one a processor, at most 16; more than 64 count as 64
 *   skip_memory_check
 *                  maps without asking how much memory there is
 *   root           where /proc and /sys are looked for; NULL: the machine's own
 *   memory         of what is kept beside the bytes themselves, must outlive
 *                  them; NULL: libc */
struct weir_host_memory_params {
    uint64_t bytes;
    uint64_t granule;
    uint64_t bytes_limit;
    uint64_t chunk_limit;
    uint32_t touch_threads;
    bool skip_memory_check;
    const char *root;
    struct weir_memory *memory;
};

/* Whether the pool may be had, before anything is taken: its arguments, its limit,
 * and what the machine and this process's control groups have room for (see
 * pool/memory_room.h). One line says what forbids it. -EINVAL; -ENOSPC:
 * bytes_limit; -ENOMEM: no room. */
int weir_host_memory_check(const struct weir_host_memory_params *params, const weir_log *log);

/* Checks, maps, on the device's NUMA node if the host has a choice, touches and pins. A
 * chunk that cannot be pinned is tried again at half the size, with all chunks,
 * down to the granule; nothing stays registered or mapped on failure. Blocks
 * while memory is touched.
 * As weir_host_memory_check; -ENOMEM: nothing to map; else the device's error. */
int weir_host_memory_create(struct weir_host_memory **memory, weir_device *device,
                            const struct weir_host_memory_params *params, const weir_log *log);

/* Pins the memory for another device too, in the same chunks, all or none.
 * The device's error, with a log line. */
int weir_host_memory_register(const struct weir_host_memory *memory, weir_device *device,
                              const weir_log *log);
void weir_host_memory_unregister(const struct weir_host_memory *memory, weir_device *device);

/* Unpins in reverse order and unmaps. Pre: other devices have unregistered it. Pre: no enqueued
 * work uses the memory. */
void weir_host_memory_destroy(struct weir_host_memory **memory);

#endif
