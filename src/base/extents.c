/* SPDX-License-Identifier: Apache-2.0 */
#include "base/extents.h"

#include <errno.h>

static struct weir_extent_link *link_of(const struct weir_extents *x, uint32_t start)
{
    return (struct weir_extent_link *)(void *)(x->links + start * x->stride);
}

/* ---- Heads --------------------------------------------------------------- */

static uint32_t home_of(const struct weir_extents *x, uint32_t length)
{
    return (length * 0x9e3779b1u >> 8) & x->heads_mask;
}

/* The length's place in the table, or the empty one where it belongs. */
static uint32_t place_of(const struct weir_extents *x, uint32_t length)
{
    uint32_t i = home_of(x, length);
    while (x->heads[i].length && x->heads[i].length != length)
        i = (i + 1) & x->heads_mask;
    return i;
}

static void remove_head(struct weir_extents *x, uint32_t hole)
{
    uint32_t mask = x->heads_mask;
    /* Move back what a search would no longer reach across the hole. */
    for (uint32_t i = (hole + 1) & mask; x->heads[i].length; i = (i + 1) & mask) {
        uint32_t home = home_of(x, x->heads[i].length);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            x->heads[hole] = x->heads[i];
            hole = i;
        }
    }
    x->heads[hole].length = 0;
}

static void link_extent(struct weir_extents *x, uint32_t start, uint32_t length)
{
    struct weir_extent_head *head = &x->heads[place_of(x, length)];
    struct weir_extent_link *link = link_of(x, start);
    *link = (struct weir_extent_link){ .next = -1, .previous = -1 };
    if (head->length) {
        link->next = head->start;
        link_of(x, (uint32_t)head->start)->previous = (int32_t)start;
    } else {
        weir_bitmap_set(&x->lengths, length);
    }
    *head = (struct weir_extent_head){ length, (int32_t)start };
}

static void unlink_extent(struct weir_extents *x, uint32_t start, uint32_t length)
{
    struct weir_extent_link link = *link_of(x, start);
    if (link.next >= 0)
        link_of(x, (uint32_t)link.next)->previous = link.previous;
    if (link.previous >= 0) {
        link_of(x, (uint32_t)link.previous)->next = link.next;
        return;
    }
    uint32_t place = place_of(x, length);
    if (link.next >= 0) {
        x->heads[place].start = link.next;
    } else {
        remove_head(x, place);
        weir_bitmap_clear(&x->lengths, length);
    }
}

/* ---- The set ------------------------------------------------------------- */

int weir_extents_create(struct weir_extents *x, uint32_t n, struct weir_extent_link *links,
                        size_t stride, struct weir_memory *memory)
{
    *x = (struct weir_extents){
        .n = n, .n_present = n, .links = (char *)links, .stride = stride, .memory = memory
    };
    /* Twice the lengths that can occur: L different ones need L (L + 1) / 2 ids
     * and the gaps between them. */
    uint32_t size = 8;
    while ((uint64_t)size * size < 8 * (uint64_t)n)
        size *= 2;
    x->heads_mask = size - 1;
    x->heads = weir_memory_take(memory, size, sizeof *x->heads);
    if (!x->heads || weir_bitmap_create(&x->absent, n, memory) ||
        weir_bitmap_create(&x->lengths, n + 1, memory)) {
        weir_extents_destroy(x);
        return -ENOMEM;
    }
    link_extent(x, 0, n);
    return 0;
}

void weir_extents_destroy(struct weir_extents *x)
{
    weir_memory_give(x->memory, x->heads, (size_t)x->heads_mask + 1, sizeof *x->heads);
    weir_bitmap_destroy(&x->absent);
    weir_bitmap_destroy(&x->lengths);
    *x = (struct weir_extents){ 0 };
}

struct weir_extent weir_extents_around(const struct weir_extents *x, uint32_t id)
{
    uint32_t before = weir_bitmap_previous(&x->absent, id);
    uint32_t after = weir_bitmap_next(&x->absent, id);
    uint32_t start = before == WEIR_BITMAP_NONE ? 0 : before + 1;
    uint32_t end = after == WEIR_BITMAP_NONE ? x->n : after;
    return (struct weir_extent){ start, end - start };
}

void weir_extents_add(struct weir_extents *x, uint32_t id)
{
    struct weir_extent merged = { id, 1 };
    if (id > 0 && weir_extents_has(x, id - 1)) {
        struct weir_extent left = weir_extents_around(x, id - 1);
        unlink_extent(x, left.start, left.length);
        merged.start = left.start;
        merged.length += left.length;
    }
    if (id + 1 < x->n && weir_extents_has(x, id + 1)) {
        struct weir_extent right = weir_extents_around(x, id + 1);
        unlink_extent(x, right.start, right.length);
        merged.length += right.length;
    }
    weir_bitmap_clear(&x->absent, id);
    link_extent(x, merged.start, merged.length);
    x->n_present++;
}

void weir_extents_remove(struct weir_extents *x, uint32_t start, uint32_t length)
{
    struct weir_extent whole = weir_extents_around(x, start);
    unlink_extent(x, whole.start, whole.length);
    for (uint32_t id = start; id < start + length; id++)
        weir_bitmap_set(&x->absent, id);
    if (start > whole.start)
        link_extent(x, whole.start, start - whole.start);
    uint32_t whole_end = whole.start + whole.length;
    if (start + length < whole_end)
        link_extent(x, start + length, whole_end - (start + length));
    x->n_present -= length;
}

static struct weir_extent of_length(const struct weir_extents *x, uint32_t length)
{
    if (length == WEIR_BITMAP_NONE)
        return (struct weir_extent){ 0, 0 };
    return (struct weir_extent){ (uint32_t)x->heads[place_of(x, length)].start, length };
}

struct weir_extent weir_extents_best_fit(const struct weir_extents *x, uint32_t length)
{
    return of_length(x, weir_bitmap_next(&x->lengths, length));
}

struct weir_extent weir_extents_longest(const struct weir_extents *x)
{
    return of_length(x, weir_bitmap_previous(&x->lengths, x->n));
}

/* Whether a run is in the list of its length. */
static bool is_listed(const struct weir_extents *x, uint32_t start, uint32_t length)
{
    int32_t previous = link_of(x, start)->previous;
    const struct weir_extent_head *head = &x->heads[place_of(x, length)];
    if (previous >= 0)
        return (uint32_t)previous < x->n && link_of(x, (uint32_t)previous)->next == (int32_t)start;
    return head->length == length && head->start == (int32_t)start;
}

int weir_extents_check(const struct weir_extents *x, const char **reason)
{
    uint32_t present = 0, n_extents = 0;
    for (uint32_t id = 0; id < x->n;) {
        if (!weir_extents_has(x, id)) {
            id++;
            continue;
        }
        uint32_t end = id;
        while (end < x->n && weir_extents_has(x, end))
            end++;
        if (!is_listed(x, id, end - id)) {
            *reason = "extents: a run is not in the list of its length";
            return -EIO;
        }
        present += end - id;
        n_extents++;
        id = end;
    }
    if (present != x->n_present) {
        *reason = "extents: the count differs from the set";
        return -EIO;
    }
    for (uint32_t length = 1; length <= x->n; length++) {
        const struct weir_extent_head *head = &x->heads[place_of(x, length)];
        if ((head->length == length) != weir_bitmap_test(&x->lengths, length)) {
            *reason = "extents: the bitmap of lengths differs from the lists";
            return -EIO;
        }
        int32_t start = head->length == length ? head->start : -1;
        for (; start >= 0 && n_extents > 0; start = link_of(x, (uint32_t)start)->next)
            n_extents--;
        if (start >= 0) {
            *reason = "extents: the lists hold more than the runs";
            return -EIO;
        }
    }
    if (n_extents != 0) {
        *reason = "extents: the lists hold less than the runs";
        return -EIO;
    }
    return 0;
}
