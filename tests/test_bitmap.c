/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bitmap.h"
#include "random.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>

/* Around the words of each level, and four levels deep. */
static const uint32_t sizes[] = { 1, 2, 63, 64, 65, 4095, 4096, 4097, 262143, 262144, 262145 };
#define N_SIZES (sizeof sizes / sizeof *sizes)

/* In loops of many thousand steps: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

static void expect_summaries(const struct weir_bitmap *b)
{
    for (uint32_t k = 0; k + 1 < b->n_levels; k++)
        for (uint32_t word = 0; word < b->n_words[k]; word++)
            must((b->level[k][word] != 0) == (b->level[k + 1][word / 64] >> (word % 64) & 1),
                 "%u bits: level %u, word %u", b->n_bits, k, word);
    must(b->n_words[b->n_levels - 1] == 1, "%u bits: the top has one word", b->n_bits);
}

static uint32_t naive_next(const bool *set, uint32_t n, uint32_t from)
{
    for (uint32_t i = from; i < n; i++)
        if (set[i])
            return i;
    return WEIR_BITMAP_NONE;
}

static uint32_t naive_previous(const bool *set, uint32_t n, uint32_t from)
{
    for (uint32_t i = from < n ? from + 1 : n; i-- > 0;)
        if (set[i])
            return i;
    return WEIR_BITMAP_NONE;
}

static void compare(const struct weir_bitmap *b, const bool *set, uint32_t from)
{
    uint32_t n = b->n_bits;
    uint32_t next = weir_bitmap_next(b, from), previous = weir_bitmap_previous(b, from);
    must(next == naive_next(set, n, from), "%u bits: next of %u is %u", n, from, next);
    must(previous == naive_previous(set, n, from), "%u bits: previous of %u is %u", n, from,
         previous);
    if (from < n)
        must(weir_bitmap_test(b, from) == set[from], "%u bits: bit %u", n, from);
}

Test(bitmap, one_bit_at_a_time)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        struct weir_bitmap b;
        uint32_t n = sizes[s];
        cr_assert(zero(int, weir_bitmap_create(&b, n, NULL)));
        cr_assert(eq(u32, weir_bitmap_next(&b, 0), WEIR_BITMAP_NONE));
        cr_assert(eq(u32, weir_bitmap_previous(&b, n - 1), WEIR_BITMAP_NONE));
        uint32_t stride = n > 5000 ? 61 : 1;
        for (uint32_t bit = 0; bit < n; bit += stride) {
            weir_bitmap_set(&b, bit);
            weir_bitmap_set(&b, bit);
            must(weir_bitmap_test(&b, bit), "%u of %u", bit, n);
            must(weir_bitmap_next(&b, 0) == bit, "%u of %u", bit, n);
            must(weir_bitmap_next(&b, bit) == bit, "%u of %u", bit, n);
            must(weir_bitmap_next(&b, bit + 1) == WEIR_BITMAP_NONE, "%u of %u", bit, n);
            must(weir_bitmap_previous(&b, UINT32_MAX) == bit, "%u of %u", bit, n);
            must(weir_bitmap_previous(&b, bit) == bit, "%u of %u", bit, n);
            must(bit == 0 || weir_bitmap_previous(&b, bit - 1) == WEIR_BITMAP_NONE, "%u of %u", bit,
                 n);
            weir_bitmap_clear(&b, bit);
            weir_bitmap_clear(&b, bit);
            must(weir_bitmap_next(&b, 0) == WEIR_BITMAP_NONE, "%u of %u", bit, n);
        }
        expect_summaries(&b);
        cr_assert(eq(u32, weir_bitmap_next(&b, n), WEIR_BITMAP_NONE));
        cr_assert(eq(u32, weir_bitmap_next(&b, UINT32_MAX), WEIR_BITMAP_NONE));
        weir_bitmap_destroy(&b);
        weir_bitmap_destroy(&b); /* a zeroed one */
    }
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

Test(bitmap, bytes_are_those_of_the_levels)
{
    static const struct {
        uint32_t n_bits, n_levels, words;
    } rows[] = {
        { 1, 1, 1 },
        { 64, 1, 1 },
        { 65, 2, 3 },
        { 4096, 2, 65 },
        { 4097, 3, 68 },
        { 262144, 3, 4096 + 64 + 1 },
        { 262145, 4, 4097 + 65 + 2 + 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct weir_bitmap b;
        cr_assert(zero(int, weir_bitmap_create(&b, rows[i].n_bits, NULL)));
        cr_expect(eq(u32, b.n_levels, rows[i].n_levels), "%u bits", rows[i].n_bits);
        cr_expect(eq(sz, b.bytes, 8 * (size_t)rows[i].words), "%u bits", rows[i].n_bits);
        weir_bitmap_destroy(&b);
    }
}

/* Sparse for a while, then dense, so that the summaries empty and fill. */
Test(bitmap, random_operations_equal_an_array)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        uint32_t n = sizes[s];
        struct random random = { n };
        struct weir_bitmap b;
        bool *set = calloc(n, sizeof *set);
        cr_assert(ne(ptr, set, NULL));
        cr_assert(zero(int, weir_bitmap_create(&b, n, NULL)));
        uint32_t steps = n > 5000 ? 2000 : 20000;
        for (uint32_t i = 0; i < steps; i++) {
            uint32_t bit = random_below(&random, n);
            uint32_t length = random_percent(&random, 10) ? random_below(&random, 200) : 1;
            bool to = random_percent(&random, i / 500 % 2 ? 70 : 30);
            for (uint32_t k = bit; k < n && k < bit + length; k++) {
                set[k] = to;
                if (to)
                    weir_bitmap_set(&b, k);
                else
                    weir_bitmap_clear(&b, k);
            }
            compare(&b, set, random_below(&random, n + 2));
            compare(&b, set, bit);
        }
        expect_summaries(&b);
        weir_bitmap_destroy(&b);
        free(set);
    }
}
