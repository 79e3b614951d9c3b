/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_RANDOM_H
#define WEIR_TESTS_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

/* splitmix64 over a counter: any seed, 0 included, starts a good sequence, and
 * the same seed gives the same test on every machine. */
struct random {
    uint64_t state;
};

static inline uint64_t random_next(struct random *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* 0..n-1; n is 1 or more. */
static inline uint32_t random_below(struct random *random, uint32_t n)
{
    return (uint32_t)(random_next(random) % n);
}

static inline bool random_percent(struct random *random, uint32_t percent)
{
    return random_below(random, 100) < percent;
}

#endif
