/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POOL_MEMORY_ROOM_H
#define WEIR_POOL_MEMORY_ROOM_H

/* How much memory a host pool may take and pin, by what the kernel says of the
 * machine and of the control groups that this process is in. The smallest counts:
 *
 *   /proc/meminfo        MemAvailable
 *   /proc/self/cgroup ─► version 2: memory.max, memory.high      ─┐ of the group
 *                    └─► version 1: memory.limit_in_bytes        ─┤ and of each
 *                        less what is used, plus the file cache ◄─┘ group above it
 *
 * The file cache counts as room, as it does in MemAvailable: it goes when memory
 * is asked for, and a server that has just read its weights has all of it full.
 * Huge pages that were set aside do not: a pool's memory is ordinary memory, and
 * transparent huge pages come out of that. What cannot be read limits nothing.
 *
 * Invariant: nothing is allocated, so that asking works when memory is short. */

#include <stdint.h>

#define WEIR_MEMORY_ROOM_LIMIT 512

/*   bytes       that may be taken; UINT64_MAX: nothing is known to limit it
 *   huge_bytes  set aside as huge pages and free
 *   limit       the file, or the line of a file, that `bytes` follows from; "" if
 *               nothing limits */
struct weir_memory_room {
    uint64_t bytes;
    uint64_t huge_bytes;
    char limit[WEIR_MEMORY_ROOM_LIMIT];
};

/* Looks. `root` stands before every path: "" on a machine, a folder in tests. */
void weir_memory_room(const char *root, struct weir_memory_room *room);

#endif
