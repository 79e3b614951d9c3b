/* SPDX-License-Identifier: Apache-2.0 */
#include "base/extents.h"
#include "random.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>

static struct weir_extent_link links[1u << 19];

static int create(struct weir_extents *x, uint32_t n)
{
    return weir_extents_create(x, n, links, sizeof *links, NULL);
}

static const uint32_t sizes[] = { 1, 2, 63, 64, 65, 300, 4095, 4096, 4097 };
#define N_SIZES (sizeof sizes / sizeof *sizes)

/* In loops of many thousand steps: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

static void expect_sound(const struct weir_extents *x)
{
    const char *reason = "";
    must(weir_extents_check(x, &reason) == 0, "%u ids: %s", x->n, reason);
}

static struct weir_extent naive_around(const bool *set, uint32_t n, uint32_t id)
{
    uint32_t start = id, end = id + 1;
    while (start > 0 && set[start - 1])
        start--;
    while (end < n && set[end])
        end++;
    return (struct weir_extent){ start, end - start };
}

/* The length that best_fit and longest ought to find; 0: none. */
static void naive_lengths(const bool *set, uint32_t n, uint32_t least, uint32_t *best,
                          uint32_t *longest)
{
    *best = *longest = 0;
    for (uint32_t id = 0; id < n; id++) {
        if (!set[id])
            continue;
        struct weir_extent x = naive_around(set, n, id);
        if (x.length >= least && (*best == 0 || x.length < *best))
            *best = x.length;
        if (x.length > *longest)
            *longest = x.length;
        id = x.start + x.length;
    }
}

static void expect_extent(const bool *set, uint32_t n, struct weir_extent x, uint32_t length)
{
    must(x.length == length, "%u ids: an extent of %u, not %u", n, x.length, length);
    if (length == 0)
        return;
    must(x.start + length <= n && set[x.start], "%u ids: %u is not in the set", n, x.start);
    struct weir_extent whole = naive_around(set, n, x.start);
    must(whole.start == x.start && whole.length == length, "%u ids: no whole extent", n);
}

static void compare(const struct weir_extents *x, const bool *set, struct random *random)
{
    uint32_t best, longest, n_present = 0, n = x->n;
    uint32_t least = 1 + random_below(random, random_percent(random, 50) ? 8 : n);
    naive_lengths(set, n, least, &best, &longest);
    expect_extent(set, n, weir_extents_best_fit(x, least), best);
    expect_extent(set, n, weir_extents_longest(x), longest);
    for (uint32_t id = 0; id < n; id++) {
        must(weir_extents_has(x, id) == set[id], "%u ids: %u", n, id);
        n_present += set[id];
    }
    must(x->n_present == n_present, "%u ids: %u present, not %u", n, x->n_present, n_present);
    uint32_t id = random_below(random, n);
    if (set[id]) {
        struct weir_extent got = weir_extents_around(x, id), want = naive_around(set, n, id);
        must(got.start == want.start && got.length == want.length, "%u ids: around %u", n, id);
    }
}

Test(extents, a_new_set_is_one_extent)
{
    for (size_t s = 0; s <= N_SIZES; s++) {
        struct weir_extents x;
        uint32_t n = s < N_SIZES ? sizes[s] : 262145;
        cr_assert(zero(int, create(&x, n)));
        cr_assert(eq(u32, x.n_present, n));
        struct weir_extent all = weir_extents_longest(&x);
        cr_assert(all.start == 0 && all.length == n);
        all = weir_extents_best_fit(&x, n);
        cr_assert(all.start == 0 && all.length == n);
        expect_sound(&x);
        weir_extents_remove(&x, 0, n);
        cr_assert(zero(u32, x.n_present + weir_extents_longest(&x).length));
        cr_assert(zero(u32, weir_extents_best_fit(&x, 1).length));
        expect_sound(&x);
        weir_extents_add(&x, n - 1);
        all = weir_extents_best_fit(&x, 1);
        cr_assert(all.start == n - 1 && all.length == 1);
        expect_sound(&x);
        weir_extents_destroy(&x);
        weir_extents_destroy(&x); /* a zeroed one */
    }
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

/* The middle, the left end, the right end and all of an extent. */
Test(extents, what_is_left_when_a_part_is_taken)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        uint32_t n = sizes[s];
        for (uint32_t start = 0; start < n; start += 1 + n / 9)
            for (uint32_t length = 1; start + length <= n; length += 1 + n / 9) {
                struct weir_extents x;
                cr_assert(zero(int, create(&x, n)));
                weir_extents_remove(&x, start, length);
                expect_sound(&x);
                uint32_t left = start, right = n - start - length;
                cr_assert(eq(u32, x.n_present, left + right));
                cr_assert(eq(u32, weir_extents_longest(&x).length, left > right ? left : right));
                if (right) {
                    struct weir_extent found = weir_extents_around(&x, n - 1);
                    cr_assert(found.start == start + length && found.length == right);
                }
                for (uint32_t id = start; id < start + length; id++)
                    weir_extents_add(&x, id);
                cr_assert(eq(u32, weir_extents_longest(&x).length, n), "all is one again");
                expect_sound(&x);
                weir_extents_destroy(&x);
            }
    }
}

Test(extents, random_operations_equal_an_array)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        uint32_t n = sizes[s];
        struct random random = { n };
        struct weir_extents x;
        bool *set = malloc(n * sizeof *set);
        cr_assert(ne(ptr, set, NULL));
        cr_assert(zero(int, create(&x, n)));
        for (uint32_t id = 0; id < n; id++)
            set[id] = true;
        uint32_t steps = n > 1000 ? 600 : 3000;
        for (uint32_t i = 0; i < steps; i++) {
            uint32_t id = random_below(&random, n);
            if (set[id]) {
                struct weir_extent whole = naive_around(set, n, id);
                uint32_t most = whole.start + whole.length - id;
                uint32_t length = 1 + random_below(&random, most < 12 ? most : 12);
                weir_extents_remove(&x, id, length);
                for (uint32_t k = 0; k < length; k++)
                    set[id + k] = false;
            }
            for (uint32_t k = random_below(&random, 8); k > 0; k--) {
                id = random_below(&random, n);
                if (!set[id])
                    weir_extents_add(&x, id);
                set[id] = true;
            }
            compare(&x, set, &random);
            expect_sound(&x);
        }
        weir_extents_destroy(&x);
        free(set);
    }
}

/* Each invariant, broken by hand. */
Test(extents, check_finds_what_is_broken)
{
    for (int what = 0; what < 6; what++) {
        struct weir_extents x;
        const char *reason = NULL;
        cr_assert(zero(int, create(&x, 100)));
        weir_extents_remove(&x, 10, 1);
        weir_extents_remove(&x, 21, 1); /* (0,10) (11,10) (22,78) */
        expect_sound(&x);
        if (what == 0)
            x.n_present++;
        else if (what == 1)
            weir_bitmap_set(&x.lengths, 5);
        else if (what == 2)
            weir_bitmap_set(&x.absent, 50);
        else if (what == 3)
            links[22].previous = 0;
        else if (what == 4)
            links[links[11].next].previous = 22;
        else {
            links[links[11].next].next = 50;
            links[50].next = -1;
        }
        cr_expect(eq(int, weir_extents_check(&x, &reason), -EIO), "%d", what);
        cr_expect(ne(ptr, (void *)reason, NULL), "%d", what);
        weir_extents_destroy(&x);
    }
}
