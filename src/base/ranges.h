/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BASE_RANGES_H
#define WEIR_BASE_RANGES_H

/* Disjoint ranges of addresses, each with something attached: which
 * registration, or which block of words, does an address belong to?
 *
 *     items   [begin,end) < [begin,end) < [begin,end)     sorted
 *                │             │             │
 *             attached      attached      attached
 *
 * Invariant: items[i].end <= items[i + 1].begin. */

#include <stddef.h>
#include <stdint.h>

struct weir_range {
    uintptr_t begin;
    uintptr_t end;
    void *attached;
};

struct weir_ranges {
    struct weir_range *items;
    size_t n;
    size_t capacity;
};

/* -EEXIST: it overlaps another; -ENOMEM. */
int weir_ranges_add(struct weir_ranges *ranges, const void *begin, uint64_t bytes, void *attached);

/* The range that holds all of [address, address + bytes), or NULL. O(log n).
 * The result is valid until the next add or remove. */
const struct weir_range *weir_ranges_find(const struct weir_ranges *ranges, uintptr_t address,
                                          uint64_t bytes);

/* Removes the range that begins here. -ENOENT. */
int weir_ranges_remove(struct weir_ranges *ranges, const void *begin);

#endif
