/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CPU_LINK_H
#define WEIR_DEVICE_CPU_LINK_H

/* One direction of the link, shared by all streams.
 *
 *        now         free_ns
 *         │  others'    │ bytes / rate │  latency  │
 *     ────┴─────────────┴──────────────┴───────────┴──►
 *                                  new free_ns    the copy ends
 *
 * The latency does not occupy the link: another stream's copy may follow. */

#include <stdint.h>

struct weir_cpu_link {
    double ns_per_byte; /* 0: unlimited */
    uint64_t latency_ns;
    uint64_t free_ns;
};

/* Now, on the clock of end times. */
uint64_t weir_cpu_now(void);

/* Books a copy and returns when it ends at the earliest; 0: at once. */
uint64_t weir_cpu_link_take(struct weir_cpu_link *link, uint64_t bytes);

#endif
