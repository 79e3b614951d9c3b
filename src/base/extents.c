/* SPDX-License-Identifier: Apache-2.0 */
#include "base/extents.h"

#include <errno.h>
#include <stdlib.h>

static void link_extent(struct weir_extents *x, uint32_t start, uint32_t length)
{
    int32_t first = x->head[length];
    x->next[start] = first;
    x->previous[start] = -1;
    if (first >= 0)
        x->previous[first] = (int32_t)start;
    else
        weir_bitmap_set(&x->lengths, length);
    x->head[length] = (int32_t)start;
}

static void unlink_extent(struct weir_extents *x, uint32_t start, uint32_t length)
{
    int32_t next = x->next[start];
    int32_t previous = x->previous[start];
    if (next >= 0)
        x->previous[next] = previous;
    if (previous >= 0)
        x->next[previous] = next;
    else
        x->head[length] = next;
    if (x->head[length] < 0)
        weir_bitmap_clear(&x->lengths, length);
}

int weir_extents_create(struct weir_extents *x, uint32_t n)
{
    *x = (struct weir_extents){ .n = n, .n_present = n };
    x->head = malloc(((size_t)n + 1) * sizeof *x->head);
    x->next = malloc((size_t)n * sizeof *x->next);
    x->previous = malloc((size_t)n * sizeof *x->previous);
    if (!x->head || !x->next || !x->previous || weir_bitmap_create(&x->absent, n) ||
        weir_bitmap_create(&x->lengths, n + 1)) {
        weir_extents_destroy(x);
        return -ENOMEM;
    }
    for (uint32_t length = 0; length <= n; length++)
        x->head[length] = -1;
    link_extent(x, 0, n);
    return 0;
}

void weir_extents_destroy(struct weir_extents *x)
{
    free(x->head);
    free(x->next);
    free(x->previous);
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
    return (struct weir_extent){ (uint32_t)x->head[length], length };
}

struct weir_extent weir_extents_best_fit(const struct weir_extents *x, uint32_t length)
{
    return of_length(x, weir_bitmap_next(&x->lengths, length));
}

struct weir_extent weir_extents_longest(const struct weir_extents *x)
{
    return of_length(x, weir_bitmap_previous(&x->lengths, x->n));
}

size_t weir_extents_bytes(const struct weir_extents *x)
{
    return x->absent.bytes + x->lengths.bytes + ((size_t)x->n * 3 + 1) * sizeof(int32_t);
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
        int32_t previous = x->previous[id];
        bool linked =
            previous >= 0 ? x->next[previous] == (int32_t)id : x->head[end - id] == (int32_t)id;
        if (!linked) {
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
    for (uint32_t length = 0; length <= x->n; length++) {
        if ((x->head[length] >= 0) != weir_bitmap_test(&x->lengths, length)) {
            *reason = "extents: the bitmap of lengths differs from the lists";
            return -EIO;
        }
        for (int32_t start = x->head[length]; start >= 0; start = x->next[start])
            n_extents--;
    }
    if (n_extents != 0) {
        *reason = "extents: the lists hold more than the runs";
        return -EIO;
    }
    return 0;
}
