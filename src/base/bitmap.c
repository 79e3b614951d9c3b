/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bitmap.h"

#include <errno.h>

int weir_bitmap_create(struct weir_bitmap *bitmap, uint32_t n_bits, struct weir_memory *memory)
{
    struct weir_bitmap made = { .n_bits = n_bits, .memory = memory };
    uint32_t n = n_bits;
    do {
        n = (n + 63) / 64;
        made.n_words[made.n_levels++] = n;
        made.bytes += (size_t)n * sizeof(uint64_t);
    } while (n > 1 && made.n_levels < WEIR_BITMAP_LEVELS);

    uint64_t *words = weir_memory_take(memory, made.bytes, 1);
    if (!words)
        return -ENOMEM;
    for (uint32_t k = 0; k < made.n_levels; k++) {
        made.level[k] = words;
        words += made.n_words[k];
    }
    *bitmap = made;
    return 0;
}

void weir_bitmap_destroy(struct weir_bitmap *bitmap)
{
    weir_memory_give(bitmap->memory, bitmap->level[0], bitmap->bytes, 1);
    *bitmap = (struct weir_bitmap){ 0 };
}

void weir_bitmap_set(struct weir_bitmap *bitmap, uint32_t bit)
{
    for (uint32_t k = 0; k < bitmap->n_levels; k++, bit /= 64) {
        uint64_t *word = &bitmap->level[k][bit / 64];
        uint64_t before = *word;
        *word = before | UINT64_C(1) << (bit % 64);
        if (before)
            return;
    }
}

void weir_bitmap_clear(struct weir_bitmap *bitmap, uint32_t bit)
{
    for (uint32_t k = 0; k < bitmap->n_levels; k++, bit /= 64) {
        uint64_t *word = &bitmap->level[k][bit / 64];
        *word &= ~(UINT64_C(1) << (bit % 64));
        if (*word)
            return;
    }
}

uint32_t weir_bitmap_next(const struct weir_bitmap *bitmap, uint32_t from)
{
    if (from >= bitmap->n_bits)
        return WEIR_BITMAP_NONE;
    /* Up, until a word has a bit at or above the place, then down to it. */
    for (uint32_t k = 0; k < bitmap->n_levels; k++) {
        uint64_t word = bitmap->level[k][from / 64] & (UINT64_MAX << (from % 64));
        if (word) {
            uint32_t bit = from / 64 * 64 + (uint32_t)__builtin_ctzll(word);
            while (k-- > 0)
                bit = bit * 64 + (uint32_t)__builtin_ctzll(bitmap->level[k][bit]);
            return bit;
        }
        from = from / 64 + 1;
        if (from >= bitmap->n_words[k])
            return WEIR_BITMAP_NONE;
    }
    return WEIR_BITMAP_NONE;
}

uint32_t weir_bitmap_previous(const struct weir_bitmap *bitmap, uint32_t from)
{
    if (from >= bitmap->n_bits)
        from = bitmap->n_bits - 1;
    for (uint32_t k = 0; k < bitmap->n_levels; k++) {
        uint64_t word = bitmap->level[k][from / 64] & (UINT64_MAX >> (63 - from % 64));
        if (word) {
            uint32_t bit = from / 64 * 64 + 63 - (uint32_t)__builtin_clzll(word);
            while (k-- > 0)
                bit = bit * 64 + 63 - (uint32_t)__builtin_clzll(bitmap->level[k][bit]);
            return bit;
        }
        if (from / 64 == 0)
            return WEIR_BITMAP_NONE;
        from = from / 64 - 1;
    }
    return WEIR_BITMAP_NONE;
}
