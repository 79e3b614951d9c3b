/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CPU_RANDOM_H
#define WEIR_DEVICE_CPU_RANDOM_H

#include <stdint.h>

#define WEIR_CPU_ODD_STEP UINT64_C(0x9E3779B97F4A7C15)

/* The next number of the sequence that `state` stands in: a Weyl sequence with
 * mixed bits. Any start is as good as another. */
static inline uint64_t weir_cpu_random(uint64_t *state)
{
    uint64_t x = *state += WEIR_CPU_ODD_STEP;
    x = (x ^ (x >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
    x = (x ^ (x >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
    return x ^ (x >> 32);
}

#endif
