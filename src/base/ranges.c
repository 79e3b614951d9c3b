/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How many ranges begin at or before the address. */
static size_t rank_of(const struct weir_ranges *ranges, uintptr_t address)
{
    size_t low = 0;
    size_t high = ranges->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->items[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int weir_ranges_add(struct weir_ranges *ranges, const void *begin, uint64_t bytes, void *attached)
{
    uintptr_t address = (uintptr_t)begin;
    size_t at = rank_of(ranges, address);
    if (at > 0 && ranges->items[at - 1].end > address)
        return -EEXIST;
    if (at < ranges->n && ranges->items[at].begin - address < bytes)
        return -EEXIST;
    if (ranges->n == ranges->capacity) {
        size_t capacity = ranges->capacity ? 2 * ranges->capacity : 8;
        struct weir_range *items = realloc(ranges->items, capacity * sizeof *items);
        if (!items)
            return -ENOMEM;
        ranges->items = items;
        ranges->capacity = capacity;
    }
    memmove(ranges->items + at + 1, ranges->items + at, (ranges->n - at) * sizeof *ranges->items);
    ranges->items[at] = (struct weir_range){ address, address + bytes, attached };
    ranges->n++;
    return 0;
}

const struct weir_range *weir_ranges_find(const struct weir_ranges *ranges, uintptr_t address,
                                          uint64_t bytes)
{
    size_t at = rank_of(ranges, address);
    if (at == 0)
        return NULL;
    const struct weir_range *range = &ranges->items[at - 1];
    return address < range->end && range->end - address >= bytes ? range : NULL;
}

int weir_ranges_remove(struct weir_ranges *ranges, const void *begin)
{
    size_t at = rank_of(ranges, (uintptr_t)begin);
    if (at == 0 || ranges->items[at - 1].begin != (uintptr_t)begin)
        return -ENOENT;
    memmove(ranges->items + at - 1, ranges->items + at, (ranges->n - at) * sizeof *ranges->items);
    ranges->n--;
    return 0;
}
