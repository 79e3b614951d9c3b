/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu_link.h"

#include <time.h>

/* Eleven days: so slow a link is as good as none, and nothing overflows. */
#define LONGEST_NS UINT64_C(1000000000000000)

uint64_t weir_cpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t weir_cpu_link_take(struct weir_cpu_link *link, uint64_t bytes)
{
    if (bytes == 0 || (link->ns_per_byte == 0 && link->latency_ns == 0))
        return 0;
    uint64_t begin = weir_cpu_now();
    if (begin < link->free_ns)
        begin = link->free_ns;
    double ns = (double)bytes * link->ns_per_byte;
    link->free_ns = begin + (ns < LONGEST_NS ? (uint64_t)ns : LONGEST_NS);
    return link->free_ns + link->latency_ns;
}
