/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_PAGE_POOL_H
#define WEIR_PAGE_POOL_H

/* The page ids of one tier, by itself, for servers that bring their own index.
 * The cache has one for each tier.
 *
 * Pages are given out in runs: the free and the offered pages together form
 * extents, and an allocation continues where it is told to, then takes the
 * smallest extent that fits (the largest, again and again, if none does).
 *
 *            alloc                 set_owner
 *     FREE ────────► USED ◄────────────────── an entry of the caller's index
 *      ▲  ▲           │ ▲
 *      │  └───────────┘ │ take_back
 *      │     free     offer
 *      │               │ │
 *      └─── free ─── OFFERED ──── alloc: the owner is told by out-parameter
 *
 * Ids are 1..n_pages. Threads: one at a time. Nothing is allocated after
 * create. Every call is O(1) but for alloc and free of n pages, O(n). */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_page_pool weir_page_pool;

typedef enum weir_page_state {
    WEIR_PAGE_FREE = 0,
    WEIR_PAGE_USED = 1,
    WEIR_PAGE_OFFERED = 2
} weir_page_state;

#define WEIR_NO_OWNER (-1)

/*   n_pages      1..2^30 - 1
 *   keeps_steps  remember the steps that use a page, which takes 16 bytes a page
 *   allocator    copied; NULL: the C library's
 *
 * -EINVAL, -ENOMEM. */
WEIR_API int weir_page_pool_create(weir_page_pool **pool, uint32_t n_pages, bool keeps_steps,
                                   const weir_allocator *allocator) WEIR_NOEXCEPT;
WEIR_API void weir_page_pool_destroy(weir_page_pool **pool) WEIR_NOEXCEPT;

/* Takes n pages out of the free and offered ones, all or nothing.
 *
 *   after   continue after this page if the pages there can be had; 0: no wish
 *   expect  pages that will be wanted after these; a hint, 0: unknown
 *   pages   receives n ids
 *   owners  receives, for each, the owner of the offered page that it was, or
 *           WEIR_NO_OWNER
 *
 * The pages are then USED, without owner, pins 0. -ENOSPC. */
WEIR_API int weir_page_pool_alloc(weir_page_pool *pool, uint32_t n, int32_t after, uint32_t expect,
                                  int32_t *pages, int32_t *owners) WEIR_NOEXCEPT;

/* Returns a USED or OFFERED page. -EBUSY: it is pinned; -EINVAL: no such page,
 * or it is free. */
WEIR_API int weir_page_pool_free(weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;

/* USED to OFFERED and back. -EBUSY: pinned; -EINVAL: not in that state. */
WEIR_API int weir_page_pool_offer(weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;
WEIR_API int weir_page_pool_take_back(weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;

/* The caller's entry that a page belongs to. */
WEIR_API int weir_page_pool_set_owner(weir_page_pool *pool, int32_t page,
                                      int32_t owner) WEIR_NOEXCEPT;
WEIR_API int32_t weir_page_pool_owner(const weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;

/* A pin keeps a page from being freed or offered. They are counted. unpin
 * returns the pins that are left, -EINVAL if there was none. pin returns the
 * pins there are now, -EINVAL for a page that is not USED, -EBUSY at 2^30 - 1. */
WEIR_API int weir_page_pool_pin(weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;
WEIR_API int weir_page_pool_unpin(weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;
WEIR_API uint32_t weir_page_pool_pins(const weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;

WEIR_API weir_page_state weir_page_pool_state(const weir_page_pool *pool,
                                              int32_t page) WEIR_NOEXCEPT;

/* Grows by one each time the page is given out: tells a page from what it was. */
WEIR_API uint32_t weir_page_pool_generation(const weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;

/* The steps that use a page: a set of step numbers, of which the newest and
 * the 64 before it are told apart. It outlives alloc and free, because who
 * takes the page next must come behind them. add merges a set; -ENOTSUP: the
 * pool does not keep them, and steps gives the empty set. */
typedef struct weir_step_set {
    uint64_t newest; /* 0: empty */
    uint64_t before; /* bit i: step newest - 1 - i */
} weir_step_set;

WEIR_API int weir_page_pool_add_steps(weir_page_pool *pool, int32_t page,
                                      const weir_step_set *steps) WEIR_NOEXCEPT;
WEIR_API weir_step_set weir_page_pool_steps(const weir_page_pool *pool, int32_t page) WEIR_NOEXCEPT;

WEIR_API uint32_t weir_page_pool_size(const weir_page_pool *pool) WEIR_NOEXCEPT;
WEIR_API uint32_t weir_page_pool_n_free(const weir_page_pool *pool) WEIR_NOEXCEPT;
WEIR_API uint32_t weir_page_pool_n_offered(const weir_page_pool *pool) WEIR_NOEXCEPT;

/* Bytes of host memory that the pool takes. */
WEIR_API size_t weir_page_pool_bytes(const weir_page_pool *pool) WEIR_NOEXCEPT;

/* 0, or -EIO with *reason (static text; may be NULL). O(pages). */
WEIR_API int weir_page_pool_check(const weir_page_pool *pool, const char **reason) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
