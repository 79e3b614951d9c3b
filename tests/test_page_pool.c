/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"

#include <weir/page_pool.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* In loops of many thousand steps: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

/* Only there under AddressSanitizer. Criterion alone does not fail on a leak. */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

static weir_page_pool *pool_of(uint32_t n_pages)
{
    weir_page_pool *pool = NULL;
    cr_assert(eq(int, weir_page_pool_create(&pool, n_pages, true, NULL), 0));
    return pool;
}

static void expect_sound(const weir_page_pool *pool)
{
    const char *reason = "";
    must(weir_page_pool_check(pool, &reason) == 0, "%s", reason);
}

/* One page, wherever the pool takes it. */
static int32_t one(weir_page_pool *pool)
{
    int32_t page = 0, owner = 0;
    cr_assert(eq(int, weir_page_pool_alloc(pool, 1, 0, 0, &page, &owner), 0));
    return page;
}

/* Takes the whole pool; page p is then pages[p - 1]. */
static void take_all(weir_page_pool *pool)
{
    uint32_t n = weir_page_pool_size(pool);
    int32_t *pages = calloc(n, sizeof *pages);
    int32_t *owners = calloc(n, sizeof *owners);
    cr_assert(pages && owners);
    cr_assert(eq(int, weir_page_pool_alloc(pool, n, 0, 0, pages, owners), 0));
    for (uint32_t i = 0; i < n; i++) {
        cr_assert(eq(i32, pages[i], (int32_t)i + 1), "a fresh pool is one run");
        cr_assert(eq(i32, owners[i], WEIR_NO_OWNER));
    }
    free(pages);
    free(owners);
}

static void free_range(weir_page_pool *pool, int32_t first, int32_t last)
{
    for (int32_t p = first; p <= last; p++)
        cr_assert(eq(int, weir_page_pool_free(pool, p), 0));
}

Test(page_pool, limits_of_create)
{
    weir_page_pool *untouched = (weir_page_pool *)&untouched;
    weir_page_pool *pool = untouched;
    cr_expect(eq(int, weir_page_pool_create(&pool, 0, true, NULL), -EINVAL));
    cr_expect(eq(int, weir_page_pool_create(&pool, 1u << 30, true, NULL), -EINVAL));
    cr_expect(eq(int, weir_page_pool_create(&pool, UINT32_MAX, true, NULL), -EINVAL));
    cr_expect(eq(int, weir_page_pool_create(NULL, 1, true, NULL), -EINVAL));
    cr_expect(eq(ptr, pool, untouched));
    pool = pool_of(1);
    cr_expect(eq(u32, weir_page_pool_size(pool), 1));
    cr_expect(lt(sz, 0, weir_page_pool_bytes(pool)));
    weir_page_pool_destroy(&pool);
    cr_expect(zero(ptr, pool));
    weir_page_pool_destroy(&pool);
    weir_page_pool_destroy(NULL);
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

Test(page_pool, pages_outside_the_pool)
{
    weir_page_pool *pool = pool_of(8);
    static const int32_t outside[] = { 0, -1, INT32_MIN, 9, INT32_MAX };
    weir_step_set steps = { .newest = 1, .before = 0 };
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        int32_t page = outside[i];
        cr_expect(eq(int, weir_page_pool_free(pool, page), -EINVAL));
        cr_expect(eq(int, weir_page_pool_offer(pool, page), -EINVAL));
        cr_expect(eq(int, weir_page_pool_take_back(pool, page), -EINVAL));
        cr_expect(eq(int, weir_page_pool_set_owner(pool, page, 3), -EINVAL));
        cr_expect(eq(int, weir_page_pool_pin(pool, page), -EINVAL));
        cr_expect(eq(int, weir_page_pool_unpin(pool, page), -EINVAL));
        cr_expect(eq(int, weir_page_pool_add_steps(pool, page, &steps), -EINVAL));
        cr_expect(eq(i32, weir_page_pool_owner(pool, page), WEIR_NO_OWNER));
        cr_expect(zero(u32, weir_page_pool_pins(pool, page)));
        cr_expect(zero(u64, weir_page_pool_steps(pool, page).newest));
    }
    cr_expect(eq(u32, weir_page_pool_n_free(pool), 8));
    expect_sound(pool);
    weir_page_pool_destroy(&pool);
}

Test(page_pool, states_and_what_is_refused)
{
    weir_page_pool *pool = pool_of(4);
    int32_t page = one(pool);

    cr_expect(eq(int, weir_page_pool_take_back(pool, page), -EINVAL));
    cr_expect(eq(int, weir_page_pool_set_owner(pool, page, 5), 0));
    cr_expect(eq(int, weir_page_pool_pin(pool, page), 1));
    cr_expect(eq(int, weir_page_pool_pin(pool, page), 2));
    cr_expect(eq(int, weir_page_pool_free(pool, page), -EBUSY));
    cr_expect(eq(int, weir_page_pool_offer(pool, page), -EBUSY));
    cr_expect(eq(int, weir_page_pool_unpin(pool, page), 1));
    cr_expect(eq(int, weir_page_pool_offer(pool, page), -EBUSY));
    cr_expect(eq(int, weir_page_pool_unpin(pool, page), 0));
    cr_expect(eq(int, weir_page_pool_unpin(pool, page), -EINVAL));

    cr_expect(eq(int, weir_page_pool_offer(pool, page), 0));
    cr_expect(eq(int, weir_page_pool_state(pool, page), WEIR_PAGE_OFFERED));
    cr_expect(eq(u32, weir_page_pool_n_offered(pool), 1));
    cr_expect(eq(u32, weir_page_pool_n_free(pool), 3));
    cr_expect(eq(i32, weir_page_pool_owner(pool, page), 5), "an offered page keeps its owner");
    cr_expect(eq(int, weir_page_pool_offer(pool, page), -EINVAL));
    cr_expect(eq(int, weir_page_pool_pin(pool, page), -EINVAL));
    cr_expect(eq(int, weir_page_pool_take_back(pool, page), 0));
    cr_expect(eq(int, weir_page_pool_state(pool, page), WEIR_PAGE_USED));
    cr_expect(eq(i32, weir_page_pool_owner(pool, page), 5));

    cr_expect(eq(int, weir_page_pool_free(pool, page), 0));
    cr_expect(eq(int, weir_page_pool_state(pool, page), WEIR_PAGE_FREE));
    cr_expect(eq(i32, weir_page_pool_owner(pool, page), WEIR_NO_OWNER));
    cr_expect(eq(int, weir_page_pool_free(pool, page), -EINVAL));
    cr_expect(eq(int, weir_page_pool_offer(pool, page), -EINVAL));
    cr_expect(eq(int, weir_page_pool_pin(pool, page), -EINVAL));
    expect_sound(pool);
    weir_page_pool_destroy(&pool);
}

Test(page_pool, alloc_is_all_or_nothing)
{
    weir_page_pool *pool = pool_of(4);
    int32_t page = one(pool);
    int32_t pages[5] = { -7, -7, -7, -7, -7 }, owners[5] = { -7, -7, -7, -7, -7 };
    cr_expect(eq(int, weir_page_pool_alloc(pool, 4, page, 0, pages, owners), -ENOSPC));
    cr_expect(eq(int, weir_page_pool_alloc(pool, UINT32_MAX, 0, 0, pages, owners), -ENOSPC));
    for (int i = 0; i < 5; i++)
        cr_expect(pages[i] == -7 && owners[i] == -7);
    cr_expect(eq(u32, weir_page_pool_n_free(pool), 3));
    cr_expect(eq(int, weir_page_pool_alloc(pool, 0, 0, 0, NULL, NULL), 0));
    cr_expect(eq(int, weir_page_pool_alloc(pool, 3, 0, UINT32_MAX, pages, owners), 0));
    cr_expect(zero(u32, weir_page_pool_n_free(pool)));
    expect_sound(pool);
    weir_page_pool_destroy(&pool);
}

Test(page_pool, an_offered_page_names_its_owner_when_taken)
{
    weir_page_pool *pool = pool_of(3);
    take_all(pool);
    for (int32_t p = 1; p <= 3; p++) {
        cr_assert(eq(int, weir_page_pool_set_owner(pool, p, 10 * p), 0));
        cr_assert(eq(int, weir_page_pool_offer(pool, p), 0));
    }
    cr_assert(eq(int, weir_page_pool_free(pool, 2), 0)); /* offered to free: forgotten */
    uint32_t generation = weir_page_pool_generation(pool, 1);
    int32_t pages[3], owners[3];
    cr_assert(eq(int, weir_page_pool_alloc(pool, 3, 0, 0, pages, owners), 0));
    for (int i = 0; i < 3; i++)
        cr_expect(eq(i32, owners[i], pages[i] == 2 ? WEIR_NO_OWNER : 10 * pages[i]));
    cr_expect(eq(i32, weir_page_pool_owner(pool, 1), WEIR_NO_OWNER));
    cr_expect(eq(u32, weir_page_pool_generation(pool, 1), generation + 1));
    cr_expect(zero(u32, weir_page_pool_n_offered(pool)));
    expect_sound(pool);
    weir_page_pool_destroy(&pool);
}

Test(page_pool, smallest_extent_that_fits_else_the_largest)
{
    weir_page_pool *pool = pool_of(40);
    take_all(pool);
    free_range(pool, 3, 4);   /* 2 */
    free_range(pool, 10, 14); /* 5 */
    free_range(pool, 20, 22); /* 3 */
    free_range(pool, 30, 37); /* 8 */
    int32_t pages[16], owners[16];

    cr_assert(eq(int, weir_page_pool_alloc(pool, 3, 0, 0, pages, owners), 0));
    cr_expect(eq(i32, pages[0], 20));
    cr_assert(eq(int, weir_page_pool_alloc(pool, 4, 0, 0, pages, owners), 0));
    cr_expect(eq(i32, pages[0], 10));
    /* Left: 3..4, 14, 30..37. Nothing holds ten: the largest, then the rest. */
    cr_assert(eq(int, weir_page_pool_alloc(pool, 10, 0, 0, pages, owners), 0));
    cr_expect(eq(i32, pages[0], 30));
    cr_expect(eq(i32, pages[7], 37));
    cr_expect(eq(i32, pages[8], 3));
    cr_expect(eq(i32, weir_page_pool_state(pool, 14), WEIR_PAGE_FREE));
    expect_sound(pool);
    weir_page_pool_destroy(&pool);
}

Test(page_pool, continues_where_it_is_told)
{
    weir_page_pool *pool = pool_of(20);
    take_all(pool);
    free_range(pool, 2, 3);
    free_range(pool, 7, 15);
    int32_t pages[8], owners[8];
    cr_assert(eq(int, weir_page_pool_alloc(pool, 3, 9, 0, pages, owners), 0));
    for (int i = 0; i < 3; i++)
        cr_expect(eq(i32, pages[i], 10 + i)); /* from the middle of an extent on */
    cr_assert(eq(int, weir_page_pool_alloc(pool, 2, 19, 0, pages, owners), 0));
    cr_expect(eq(i32, pages[0], 2), "page 20 is not free: best fit");
    cr_assert(eq(int, weir_page_pool_alloc(pool, 4, 14, 0, pages, owners), 0));
    static const int32_t expected[] = { 15, 7, 8, 9 }; /* what there is, then best fit */
    for (int i = 0; i < 4; i++)
        cr_expect(eq(i32, pages[i], expected[i]));
    cr_assert(eq(int, weir_page_pool_alloc(pool, 1, 20, 0, pages, owners), 0),
              "there is no page behind the last one");
    expect_sound(pool);
    weir_page_pool_destroy(&pool);
}

Test(page_pool, offered_and_free_pages_form_one_extent)
{
    weir_page_pool *pool = pool_of(12);
    take_all(pool);
    free_range(pool, 3, 4);
    cr_assert(eq(int, weir_page_pool_offer(pool, 5), 0));
    free_range(pool, 6, 6);
    free_range(pool, 9, 11);
    int32_t pages[4], owners[4];
    cr_assert(eq(int, weir_page_pool_alloc(pool, 4, 0, 0, pages, owners), 0));
    for (int i = 0; i < 4; i++)
        cr_expect(eq(i32, pages[i], 3 + i));
    weir_page_pool_destroy(&pool);
}

Test(page_pool, merged_step_sets)
{
    for (uint64_t distance = 0; distance <= 130; distance++) {
        for (int newer_first = 0; newer_first < 2; newer_first++) {
            weir_page_pool *pool = pool_of(1);
            uint64_t old = 1000, new = old + distance;
            weir_step_set sets[2] = { { .newest = old, .before = 5 },
                                      { .newest = new, .before = 2 } };
            weir_page_pool_add_steps(pool, 1, &sets[newer_first]);
            weir_page_pool_add_steps(pool, 1, &sets[!newer_first]);
            weir_step_set got = weir_page_pool_steps(pool, 1);
            must(got.newest == new, "distance %d: newest", (int)distance);
            uint64_t members[] = { old, old - 1, old - 3, new - 2 };
            uint64_t before = 0;
            for (size_t i = 0; i < 4; i++)
                if (members[i] != new &&new - members[i] <= 64)
                    before |= UINT64_C(1) << (new - members[i] - 1);
            must(got.before == before, "distance %d: before", (int)distance);
            weir_page_pool_destroy(&pool);
        }
    }
}

Test(page_pool, steps_outlive_alloc_and_free)
{
    weir_page_pool *pool = pool_of(1);
    int32_t page = one(pool);
    weir_step_set set = { .newest = 9, .before = 1 };
    cr_assert(eq(int, weir_page_pool_add_steps(pool, page, &set), 0));
    cr_assert(eq(int, weir_page_pool_free(pool, page), 0));
    cr_assert(eq(i32, one(pool), page));
    cr_expect(eq(u64, weir_page_pool_steps(pool, page).newest, 9));
    cr_expect(eq(u64, weir_page_pool_steps(pool, page).before, 1));
    weir_step_set empty = { 0, 0 };
    cr_expect(eq(int, weir_page_pool_add_steps(pool, page, &empty), 0));
    cr_expect(eq(u64, weir_page_pool_steps(pool, page).newest, 9));
    cr_expect(eq(int, weir_page_pool_add_steps(pool, page, NULL), -EINVAL));
    weir_page_pool_destroy(&pool);
}

/* ---- Against a naive model ------------------------------------------------
 * The model is arrays of states. What it asks of an allocation is not which
 * pages come, but that each run of them was a legal choice. */

#define STEP_LIMIT 400u

struct model_page {
    weir_page_state state;
    int32_t owner;
    uint32_t pins;
    uint32_t generation;
    bool steps[STEP_LIMIT];
};

struct model {
    weir_page_pool *pool;
    uint32_t n;
    struct model_page *pages; /* [n + 2]: 0 and n + 1 are USED, so that extents end */
    uint64_t step;
    int32_t *ids; /* [n] */
    int32_t *owners;
};

static bool available(const struct model *m, int32_t page)
{
    return m->pages[page].state != WEIR_PAGE_USED;
}

/* Length of the extent that starts at `page`, 0 if none does. */
static uint32_t extent_at(const struct model *m, int32_t page)
{
    uint32_t length = 0;
    if (available(m, page - 1))
        return 0;
    while (available(m, page + (int32_t)length))
        length++;
    return length;
}

/* The smallest extent of `want` pages or more; 0: none. */
static uint32_t best_fit_length(const struct model *m, uint64_t want)
{
    uint32_t best = 0;
    for (int32_t p = 1; p <= (int32_t)m->n; p++) {
        uint32_t length = extent_at(m, p);
        if (length && length >= want && (best == 0 || length < best))
            best = length;
    }
    return best;
}

static uint32_t longest_length(const struct model *m)
{
    uint32_t longest = 0;
    for (int32_t p = 1; p <= (int32_t)m->n; p++) {
        uint32_t length = extent_at(m, p);
        longest = length > longest ? length : longest;
    }
    return longest;
}

static void model_take(struct model *m, uint32_t k)
{
    struct model_page *page = &m->pages[m->ids[k]];
    int32_t owner = page->state == WEIR_PAGE_OFFERED ? page->owner : WEIR_NO_OWNER;
    must(page->state != WEIR_PAGE_USED, "page %d was given out twice", m->ids[k]);
    must(m->owners[k] == owner, "page %d: owner %d, not %d", m->ids[k], m->owners[k], owner);
    page->state = WEIR_PAGE_USED;
    page->owner = WEIR_NO_OWNER;
    page->generation++;
}

/* ids[from .. from + length) are consecutive and begin an extent of the model. */
static void expect_run(const struct model *m, uint32_t from, uint32_t length, int32_t first)
{
    for (uint32_t i = 0; i < length; i++)
        must(m->ids[from + i] == first + (int32_t)i, "page %u of a run of %u is %d, not %d", i,
             length, m->ids[from + i], first + (int32_t)i);
}

static void model_alloc(struct model *m, uint32_t n, int32_t after, uint32_t expect)
{
    uint32_t n_available = 0, done = 0;
    for (int32_t p = 1; p <= (int32_t)m->n; p++)
        n_available += available(m, p);
    int rc = weir_page_pool_alloc(m->pool, n, after, expect, m->ids, m->owners);
    if (n > n_available) {
        must(rc == -ENOSPC, "%u pages of %u: rc %d", n, n_available, rc);
        return;
    }
    must(rc == 0, "%u pages of %u: rc %d", n, n_available, rc);
    if (after) {
        uint32_t length = 0;
        while (length < n && available(m, after + 1 + (int32_t)length))
            length++;
        expect_run(m, 0, length, after + 1);
        for (; done < length; done++)
            model_take(m, done);
    }
    while (done < n) {
        uint32_t rest = n - done;
        int32_t first = m->ids[done];
        must(first >= 1 && (uint32_t)first <= m->n, "page %d", first);
        uint32_t extent = extent_at(m, first);
        uint32_t fit = best_fit_length(m, rest);
        uint32_t hinted = best_fit_length(m, (uint64_t)rest + expect);
        must(extent != 0, "page %d is in the middle of an extent, or not to be had", first);
        if (fit)
            must(extent == fit || (hinted && extent == hinted),
                 "%u pages from an extent of %u, not %u", rest, extent, fit);
        else
            must(extent == longest_length(m), "%u pages, none fits: %u is not the longest", rest,
                 extent);
        uint32_t length = rest < extent ? rest : extent;
        expect_run(m, done, length, first);
        for (uint32_t i = 0; i < length; i++)
            model_take(m, done++);
    }
}

static void model_steps(struct model *m, struct random *random, int32_t page)
{
    if (m->step + 1 < STEP_LIMIT)
        m->step += random_percent(random, 10);
    uint64_t newest = 1 + random_next(random) % m->step;
    weir_step_set set = { .newest = newest, .before = 0 };
    m->pages[page].steps[newest] = true;
    for (uint64_t i = 0; i < 64 && i + 1 < newest; i++) {
        if (!random_percent(random, 5))
            continue;
        set.before |= UINT64_C(1) << i;
        m->pages[page].steps[newest - 1 - i] = true;
    }
    must(weir_page_pool_add_steps(m->pool, page, &set) == 0, "add_steps");
}

static void expect_equal(const struct model *m, int32_t page)
{
    const struct model_page *p = &m->pages[page];
    must(weir_page_pool_state(m->pool, page) == p->state, "state of %d", page);
    must(weir_page_pool_owner(m->pool, page) == p->owner, "owner of %d", page);
    must(weir_page_pool_pins(m->pool, page) == p->pins, "pins of %d", page);
    must(weir_page_pool_generation(m->pool, page) == p->generation, "generation of %d", page);
    weir_step_set expected = { 0, 0 };
    for (uint64_t s = STEP_LIMIT - 1; s >= 1; s--) {
        if (!p->steps[s])
            continue;
        if (!expected.newest)
            expected.newest = s;
        else if (expected.newest - s <= 64)
            expected.before |= UINT64_C(1) << (expected.newest - s - 1);
    }
    weir_step_set got = weir_page_pool_steps(m->pool, page);
    must(got.newest == expected.newest && got.before == expected.before, "steps of %d", page);
}

static void model_operate(struct model *m, struct random *random)
{
    int32_t page = 1 + (int32_t)random_below(random, m->n);
    struct model_page *p = &m->pages[page];
    int rc, expected;
    switch (random_below(random, 12)) {
    case 0:
    case 1: {
        uint32_t n = 1 + random_below(random, 1 + m->n / 6);
        if (random_percent(random, 2))
            n = m->n;
        uint32_t expect = random_percent(random, 50) ? 0 : random_below(random, m->n);
        model_alloc(m, n, random_percent(random, 50) ? 0 : page, expect);
        break;
    }
    case 2:
    case 3:
    case 4:
        rc = weir_page_pool_free(m->pool, page);
        expected = p->state == WEIR_PAGE_FREE ? -EINVAL : p->pins ? -EBUSY : 0;
        must(rc == expected, "free: %d, not %d", rc, expected);
        if (rc == 0) {
            p->state = WEIR_PAGE_FREE;
            p->owner = WEIR_NO_OWNER;
        }
        break;
    case 5:
    case 6:
        rc = weir_page_pool_offer(m->pool, page);
        expected = p->state != WEIR_PAGE_USED ? -EINVAL : p->pins ? -EBUSY : 0;
        must(rc == expected, "offer: %d, not %d", rc, expected);
        if (rc == 0)
            p->state = WEIR_PAGE_OFFERED;
        break;
    case 7:
        rc = weir_page_pool_take_back(m->pool, page);
        expected = p->state == WEIR_PAGE_OFFERED ? 0 : -EINVAL;
        must(rc == expected, "take_back: %d, not %d", rc, expected);
        if (rc == 0)
            p->state = WEIR_PAGE_USED;
        break;
    case 8: {
        int32_t owner = (int32_t)random_below(random, 1000);
        if (p->state == WEIR_PAGE_FREE)
            break;
        must(weir_page_pool_set_owner(m->pool, page, owner) == 0, "set_owner");
        p->owner = owner;
        break;
    }
    case 9:
        rc = weir_page_pool_pin(m->pool, page);
        expected = p->state == WEIR_PAGE_USED ? (int)p->pins + 1 : -EINVAL;
        must(rc == expected, "pin: %d, not %d", rc, expected);
        p->pins += rc > 0;
        break;
    case 10:
        rc = weir_page_pool_unpin(m->pool, page);
        expected = p->pins ? (int)p->pins - 1 : -EINVAL;
        must(rc == expected, "unpin: %d, not %d", rc, expected);
        p->pins -= rc >= 0;
        break;
    default:
        model_steps(m, random, page);
        break;
    }
}

static void random_pool(uint32_t n_pages, uint64_t seed, int operations, int check_every)
{
    struct random random = { seed };
    struct model m = { .pool = pool_of(n_pages), .n = n_pages, .step = 1 };
    m.pages = calloc(n_pages + 2, sizeof *m.pages);
    m.ids = calloc(n_pages, sizeof *m.ids);
    m.owners = calloc(n_pages, sizeof *m.owners);
    cr_assert(m.pages && m.ids && m.owners);
    for (uint32_t p = 0; p < n_pages + 2; p++)
        m.pages[p].owner = WEIR_NO_OWNER;
    m.pages[0].state = m.pages[n_pages + 1].state = WEIR_PAGE_USED;

    for (int i = 0; i < operations; i++) {
        model_operate(&m, &random);
        if (i % check_every)
            continue;
        expect_sound(m.pool);
        uint32_t n_free = 0, n_offered = 0;
        for (int32_t p = 1; p <= (int32_t)n_pages; p++) {
            n_free += m.pages[p].state == WEIR_PAGE_FREE;
            n_offered += m.pages[p].state == WEIR_PAGE_OFFERED;
        }
        must(weir_page_pool_n_free(m.pool) == n_free, "free pages");
        must(weir_page_pool_n_offered(m.pool) == n_offered, "offered pages");
        expect_equal(&m, 1 + (int32_t)random_below(&random, n_pages));
    }
    for (int32_t p = 1; p <= (int32_t)n_pages; p++)
        expect_equal(&m, p);

    weir_page_pool_destroy(&m.pool);
    free(m.pages);
    free(m.ids);
    free(m.owners);
}

Test(page_pool, random_operations_equal_a_naive_model)
{
    random_pool(1, 1, 5000, 1);
    random_pool(2, 2, 5000, 1);
    random_pool(7, 3, 20000, 1);
    for (uint64_t seed = 4; seed < 8; seed++)
        random_pool(64, seed, 10000, 1);
    random_pool(200, 8, 20000, 5);
    random_pool(1000, 9, 10000, 20);
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}
