/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BASE_EXTENTS_H
#define WEIR_BASE_EXTENTS_H

/* A set of ids 0..n-1 that knows its maximal runs (extents) by length, so that
 * the smallest one that is long enough is found at once.
 *
 *   ids         0 1 2 3 4 5 6 7 8 9
 *   in the set  . x x x . x . x x x        extents (1,3) (5,1) (7,3)
 *   absent      1 0 0 0 1 0 1 0 0 0        bitmap: finds an extent's ends
 *   lengths     bits 1 and 3               bitmap: finds a length that occurs
 *   heads       3 ─► 7 ◄─► 1               hash table: starts of a length, linked
 *               1 ─► 5
 *
 * The links are the caller's memory: an id that is not in the set has no use for
 * its link, so it may share it with what the caller keeps of such an id. There
 * are few heads, for n ids have at most sqrt(2n) different lengths.
 *
 * Invariants: `absent` is the complement of the set; length L has its bit set
 * exactly if it has a head; each extent is in the list of its length, and no
 * extent touches another. Adding and removing an id is O(1): a few reads of
 * each bitmap. */

#include "base/bitmap.h"

struct weir_extent_link { /* valid at an extent's start */
    int32_t next;
    int32_t previous;
};

struct weir_extent_head {
    uint32_t length; /* 0: empty */
    int32_t start;
};

struct weir_extents {
    uint32_t n;
    uint32_t n_present;
    struct weir_bitmap absent;      /* [n] */
    struct weir_bitmap lengths;     /* [n + 1] */
    struct weir_extent_head *heads; /* [heads_mask + 1]; linear probing */
    uint32_t heads_mask;
    char *links;
    size_t stride;
    struct weir_memory *memory;
};

struct weir_extent {
    uint32_t start;
    uint32_t length;
};

/* All of 0..n-1 are in the set; n 1..2^30 - 1.
 *
 *   links, stride  the link of id i is at links + i * stride; it is the set's
 *                  while i is in it
 *   memory         of all else, must outlive the set; NULL: libc
 *
 * -ENOMEM. destroy accepts a zeroed struct. */
int weir_extents_create(struct weir_extents *extents, uint32_t n, struct weir_extent_link *links,
                        size_t stride, struct weir_memory *memory);
void weir_extents_destroy(struct weir_extents *extents);

static inline bool weir_extents_has(const struct weir_extents *extents, uint32_t id)
{
    return !weir_bitmap_test(&extents->absent, id);
}

/* `id` must not be in the set (add); start..start+length-1 must all be in it
 * (remove). */
void weir_extents_add(struct weir_extents *extents, uint32_t id);
void weir_extents_remove(struct weir_extents *extents, uint32_t start, uint32_t length);

/* The extent around an id of the set. */
struct weir_extent weir_extents_around(const struct weir_extents *extents, uint32_t id);

/* The shortest extent of at least `length`, 1 or more; length 0 if there is
 * none. longest: likewise, length 0 if the set is empty. */
struct weir_extent weir_extents_best_fit(const struct weir_extents *extents, uint32_t length);
struct weir_extent weir_extents_longest(const struct weir_extents *extents);

/* 0, or -EIO with *reason (static text). O(n). */
int weir_extents_check(const struct weir_extents *extents, const char **reason);

#endif
