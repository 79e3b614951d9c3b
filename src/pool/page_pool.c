/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/page_pool.h>

#include "base/extents.h"
#include "pool/step_set.h"

#include <errno.h>

/* The extents hold the free and the offered pages; page p is id p - 1 there.
 *
 *   state    in extents  pins  owner
 *   FREE     yes         0     none
 *   USED     no          0…    none (private) or an entry
 *   OFFERED  yes         0     an entry */

#define MAX_PINS ((1u << 30) - 1)

struct page {
    int32_t owner;
    uint32_t generation;
    uint32_t state : 2;
    uint32_t pins : 30;
    struct weir_extent_link link;
};

struct weir_page_pool {
    struct weir_memory memory; /* counts itself, too */
    uint32_t n;
    uint32_t n_offered;
    struct weir_extents available;
    struct page *pages;   /* [n + 1]; 0 is the dummy page, never touched */
    weir_step_set *steps; /* [n + 1]; NULL: not kept */
};

int weir_page_pool_create(weir_page_pool **out, uint32_t n_pages, bool keeps_steps,
                          const weir_allocator *allocator)
{
    if (!out || n_pages == 0 || n_pages >= 1u << 30)
        return -EINVAL;
    void *made;
    int rc = weir_memory_begin(&made, sizeof(weir_page_pool), allocator);
    if (rc)
        return rc;
    weir_page_pool *pool = made;
    pool->n = n_pages;
    size_t n = (size_t)n_pages + 1;
    pool->pages = weir_memory_take(&pool->memory, n, sizeof *pool->pages);
    if (keeps_steps)
        pool->steps = weir_memory_take(&pool->memory, n, sizeof *pool->steps);
    if (!pool->pages || (keeps_steps && !pool->steps) ||
        weir_extents_create(&pool->available, n_pages, &pool->pages[1].link, sizeof *pool->pages,
                            &pool->memory)) {
        weir_page_pool_destroy(&pool);
        return -ENOMEM;
    }
    for (uint32_t p = 0; p <= n_pages; p++)
        pool->pages[p].owner = WEIR_NO_OWNER;
    *out = pool;
    return 0;
}

void weir_page_pool_destroy(weir_page_pool **out)
{
    if (!out || !*out)
        return;
    weir_page_pool *pool = *out;
    weir_extents_destroy(&pool->available);
    weir_memory_give(&pool->memory, pool->pages, (size_t)pool->n + 1, sizeof *pool->pages);
    weir_memory_give(&pool->memory, pool->steps, (size_t)pool->n + 1, sizeof *pool->steps);
    weir_memory_end(pool, sizeof *pool);
    *out = NULL;
}

static struct page *page_of(const weir_page_pool *pool, int32_t page)
{
    if (!pool || page < 1 || (uint32_t)page > pool->n)
        return NULL;
    return &pool->pages[page];
}

/* Takes `length` pages from `start` (an extents id) on. */
static void take(weir_page_pool *pool, uint32_t start, uint32_t length, int32_t *pages,
                 int32_t *owners)
{
    weir_extents_remove(&pool->available, start, length);
    for (uint32_t i = 0; i < length; i++) {
        struct page *page = &pool->pages[start + i + 1];
        pages[i] = (int32_t)(start + i + 1);
        owners[i] = page->owner;
        if (page->state == WEIR_PAGE_OFFERED)
            pool->n_offered--;
        page->state = WEIR_PAGE_USED;
        page->owner = WEIR_NO_OWNER;
        page->generation++;
    }
}

int weir_page_pool_alloc(weir_page_pool *pool, uint32_t n, int32_t after, uint32_t expect,
                         int32_t *pages, int32_t *owners)
{
    if (!pool || (n && (!pages || !owners)) || after < 0)
        return -EINVAL;
    if (n > pool->available.n_present)
        return -ENOSPC;

    uint32_t done = 0;
    /* The page behind `after` has extents id `after`. */
    if (n && after > 0 && (uint32_t)after < pool->n &&
        weir_extents_has(&pool->available, (uint32_t)after)) {
        struct weir_extent extent = weir_extents_around(&pool->available, (uint32_t)after);
        uint32_t length = extent.start + extent.length - (uint32_t)after;
        length = length < n ? length : n;
        take(pool, (uint32_t)after, length, pages, owners);
        done = length;
    }
    while (done < n) {
        uint32_t rest = n - done;
        struct weir_extent extent = { 0, 0 };
        if (expect <= pool->n - rest)
            extent = weir_extents_best_fit(&pool->available, rest + expect);
        if (extent.length == 0)
            extent = weir_extents_best_fit(&pool->available, rest);
        if (extent.length == 0)
            extent = weir_extents_longest(&pool->available);
        uint32_t length = extent.length < rest ? extent.length : rest;
        take(pool, extent.start, length, pages + done, owners + done);
        done += length;
    }
    return 0;
}

int weir_page_pool_free(weir_page_pool *pool, int32_t id)
{
    struct page *page = page_of(pool, id);
    if (!page || page->state == WEIR_PAGE_FREE)
        return -EINVAL;
    if (page->pins)
        return -EBUSY;
    if (page->state == WEIR_PAGE_OFFERED)
        pool->n_offered--;
    else
        weir_extents_add(&pool->available, (uint32_t)id - 1);
    page->state = WEIR_PAGE_FREE;
    page->owner = WEIR_NO_OWNER;
    return 0;
}

int weir_page_pool_offer(weir_page_pool *pool, int32_t id)
{
    struct page *page = page_of(pool, id);
    if (!page || page->state != WEIR_PAGE_USED)
        return -EINVAL;
    if (page->pins)
        return -EBUSY;
    page->state = WEIR_PAGE_OFFERED;
    pool->n_offered++;
    weir_extents_add(&pool->available, (uint32_t)id - 1);
    return 0;
}

int weir_page_pool_take_back(weir_page_pool *pool, int32_t id)
{
    struct page *page = page_of(pool, id);
    if (!page || page->state != WEIR_PAGE_OFFERED)
        return -EINVAL;
    page->state = WEIR_PAGE_USED;
    pool->n_offered--;
    weir_extents_remove(&pool->available, (uint32_t)id - 1, 1);
    return 0;
}

int weir_page_pool_set_owner(weir_page_pool *pool, int32_t id, int32_t owner)
{
    struct page *page = page_of(pool, id);
    if (!page || page->state == WEIR_PAGE_FREE || owner < WEIR_NO_OWNER)
        return -EINVAL;
    page->owner = owner;
    return 0;
}

int32_t weir_page_pool_owner(const weir_page_pool *pool, int32_t id)
{
    const struct page *page = page_of(pool, id);
    return page ? page->owner : WEIR_NO_OWNER;
}

int weir_page_pool_pin(weir_page_pool *pool, int32_t id)
{
    struct page *page = page_of(pool, id);
    if (!page || page->state != WEIR_PAGE_USED)
        return -EINVAL;
    if (page->pins == MAX_PINS)
        return -EBUSY;
    return (int)++page->pins;
}

int weir_page_pool_unpin(weir_page_pool *pool, int32_t id)
{
    struct page *page = page_of(pool, id);
    if (!page || page->pins == 0)
        return -EINVAL;
    return (int)--page->pins;
}

uint32_t weir_page_pool_pins(const weir_page_pool *pool, int32_t id)
{
    const struct page *page = page_of(pool, id);
    return page ? page->pins : 0;
}

weir_page_state weir_page_pool_state(const weir_page_pool *pool, int32_t id)
{
    const struct page *page = page_of(pool, id);
    return page ? (weir_page_state)page->state : WEIR_PAGE_FREE;
}

uint32_t weir_page_pool_generation(const weir_page_pool *pool, int32_t id)
{
    const struct page *page = page_of(pool, id);
    return page ? page->generation : 0;
}

int weir_page_pool_add_steps(weir_page_pool *pool, int32_t id, const weir_step_set *steps)
{
    struct page *page = page_of(pool, id);
    if (!page || !steps)
        return -EINVAL;
    if (!pool->steps)
        return -ENOTSUP;
    pool->steps[id] = weir_step_set_merge(pool->steps[id], *steps);
    return 0;
}

weir_step_set weir_page_pool_steps(const weir_page_pool *pool, int32_t id)
{
    return page_of(pool, id) && pool->steps ? pool->steps[id] : (weir_step_set){ 0, 0 };
}

uint32_t weir_page_pool_size(const weir_page_pool *pool)
{
    return pool ? pool->n : 0;
}

uint32_t weir_page_pool_n_free(const weir_page_pool *pool)
{
    return pool ? pool->available.n_present - pool->n_offered : 0;
}

uint32_t weir_page_pool_n_offered(const weir_page_pool *pool)
{
    return pool ? pool->n_offered : 0;
}

size_t weir_page_pool_bytes(const weir_page_pool *pool)
{
    return pool ? pool->memory.bytes : 0;
}

static const char *find_fault(const weir_page_pool *pool)
{
    uint32_t n_offered = 0;
    for (uint32_t p = 1; p <= pool->n; p++) {
        const struct page *page = &pool->pages[p];
        bool available = weir_extents_has(&pool->available, p - 1);
        if (available == (page->state == WEIR_PAGE_USED))
            return "page pool: a used page is available, or another is not";
        if (page->state != WEIR_PAGE_USED && page->pins)
            return "page pool: a page is pinned and not in use";
        if (page->state == WEIR_PAGE_FREE && page->owner != WEIR_NO_OWNER)
            return "page pool: a free page has an owner";
        n_offered += page->state == WEIR_PAGE_OFFERED;
    }
    return n_offered == pool->n_offered ? NULL : "page pool: the count of offered pages is wrong";
}

int weir_page_pool_check(const weir_page_pool *pool, const char **reason)
{
    if (!pool)
        return -EINVAL;
    const char *text = NULL;
    int rc = weir_extents_check(&pool->available, &text);
    if (!rc && (text = find_fault(pool)))
        rc = -EIO;
    if (rc && reason)
        *reason = text;
    return rc;
}
