/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BASE_BITMAP_H
#define WEIR_BASE_BITMAP_H

/* A bitmap with summaries, to find the next or the previous set bit among
 * millions in a handful of word reads.
 *
 *   level 0   bits    0110 0000 0000 0001 …      64 bits a word
 *   level 1   words    1    0    0    1   …      bit w: word w of the level
 *   level 2                 …                    below is not zero
 *
 * Invariant: a bit of level k + 1 is set exactly if its word of level k is
 * not zero. Five levels hold 2^30 bits. */

#include "base/memory.h"

#define WEIR_BITMAP_LEVELS 5
#define WEIR_BITMAP_NONE UINT32_MAX

struct weir_bitmap {
    uint32_t n_bits;
    uint32_t n_levels;
    size_t bytes;
    uint32_t n_words[WEIR_BITMAP_LEVELS];
    uint64_t *level[WEIR_BITMAP_LEVELS]; /* one allocation, at level[0] */
    struct weir_memory *memory;
};

/* n_bits 1..2^30, all clear; from `memory`, which must outlive it, or libc if
 * that is NULL. -ENOMEM. destroy accepts a zeroed bitmap. */
int weir_bitmap_create(struct weir_bitmap *bitmap, uint32_t n_bits, struct weir_memory *memory);
void weir_bitmap_destroy(struct weir_bitmap *bitmap);

/* bit < n_bits. Setting a set bit or clearing a clear one changes nothing. */
void weir_bitmap_set(struct weir_bitmap *bitmap, uint32_t bit);
void weir_bitmap_clear(struct weir_bitmap *bitmap, uint32_t bit);

static inline bool weir_bitmap_test(const struct weir_bitmap *bitmap, uint32_t bit)
{
    return (bitmap->level[0][bit / 64] >> (bit % 64)) & 1;
}

/* The first set bit at or above `from`, the last at or below it;
 * WEIR_BITMAP_NONE if there is none. `from` may be n_bits or more for next. */
uint32_t weir_bitmap_next(const struct weir_bitmap *bitmap, uint32_t from);
uint32_t weir_bitmap_previous(const struct weir_bitmap *bitmap, uint32_t from);

#endif
