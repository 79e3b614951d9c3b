/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern.h"

#include <string.h>

/* The same constants in 32 bits; odd, so that multiplying is a permutation. */
#define STRIDE 0xbb67ae85u
#define FACTOR 0x6a09e667u

void weir_pattern_tokens(int32_t *tokens, size_t n, enum weir_pattern_source source, uint64_t id,
                         uint32_t pass)
{
    /* 32-bit arithmetic, so that the compiler can vectorise it; both halves of
     * the seed, because 32 bits would collide within a trace's many ids. */
    uint64_t seed = weir_pattern_mix(weir_pattern_mix(source, pass), id);
    uint32_t low = (uint32_t)seed;
    uint32_t high = (uint32_t)(seed >> 32);
    for (size_t i = 0; i < n; i++) {
        uint32_t x = low + (uint32_t)i * STRIDE;
        x ^= x >> 15;
        x *= FACTOR;
        x ^= high ^ x >> 13;
        x *= STRIDE;
        tokens[i] = (int32_t)((x ^ x >> 16) & INT32_MAX);
    }
}

void weir_pattern_fingerprints(uint64_t *fingerprints, const int32_t *tokens, size_t n,
                               uint64_t before)
{
    for (size_t i = 0; i < n; i++) {
        before = weir_pattern_mix(before, (uint32_t)tokens[i]);
        fingerprints[i] = before;
    }
}

uint64_t weir_pattern_place(uint32_t rank, uint32_t layer, uint32_t tensor)
{
    return weir_pattern_mix(weir_pattern_mix(rank, layer), tensor);
}

void weir_pattern_fill(void *row, size_t bytes, uint64_t place, uint64_t fingerprint)
{
    uint64_t seed = weir_pattern_mix(place, fingerprint);
    unsigned char *out = row;
    size_t i = 0;
    for (; (i + 1) * 8 <= bytes; i++) {
        uint64_t value = weir_pattern_word(seed, i);
        memcpy(out + i * 8, &value, 8);
    }
    uint64_t value = weir_pattern_word(seed, i);
    memcpy(out + i * 8, &value, bytes - i * 8);
}

static size_t different_bytes(const void *bytes, uint64_t expected, size_t n)
{
    uint64_t got = expected;
    memcpy(&got, bytes, n);
    got ^= expected;
    size_t different = 0;
    for (; got; got >>= 8)
        different += (got & 0xff) != 0;
    return different;
}

size_t weir_pattern_compare(const void *row, size_t bytes, uint64_t place, uint64_t fingerprint)
{
    uint64_t seed = weir_pattern_mix(place, fingerprint);
    const unsigned char *in = row;
    size_t wrong = 0;
    size_t i = 0;
    for (; (i + 1) * 8 <= bytes; i++)
        wrong += different_bytes(in + i * 8, weir_pattern_word(seed, i), 8);
    return wrong + different_bytes(in + i * 8, weir_pattern_word(seed, i), bytes - i * 8);
}
