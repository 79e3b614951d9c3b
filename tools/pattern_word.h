/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_PATTERN_WORD_H
#define WEIR_TOOLS_PATTERN_WORD_H

/* The arithmetic of the pattern (pattern.h), for C and CUDA alike, so that both
 * sides mean the same bytes. Little-endian. */

#include <stdint.h>

#ifdef __CUDACC__
#define WEIR_PATTERN_INLINE static __host__ __device__ __forceinline__
#else
#define WEIR_PATTERN_INLINE static inline
#endif

/* Mixes a value into a running 64-bit hash; in no symmetric way, so that a
 * value that equals the hash is nothing special. */
WEIR_PATTERN_INLINE uint64_t weir_pattern_mix(uint64_t hash, uint64_t value)
{
    /* fractional parts of the golden ratio and the square roots of 3 and 2 */
    uint64_t x = (hash + UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbb67ae8584caa73b) ^ value;
    x ^= x >> 32;
    x *= UINT64_C(0x6a09e667f3bcc909);
    return x ^ x >> 29;
}

/* Bytes 8 * index … of a row; seed: the row's place mixed with its fingerprint. */
WEIR_PATTERN_INLINE uint64_t weir_pattern_word(uint64_t seed, uint64_t index)
{
    uint64_t x = (seed + index * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbb67ae8584caa73b);
    return x ^ x >> 32;
}

#endif
