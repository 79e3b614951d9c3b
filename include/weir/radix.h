/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_RADIX_H
#define WEIR_RADIX_H

/* A radix tree over tokens, in pages: the index by itself, for servers that
 * bring their own pools. The cache uses it through this header.
 *
 * A page in the tree is named by a ref, 0..max_pages-1, that stays the same
 * until the page is removed, whatever is split around it. The caller keeps what
 * it knows of a page in arrays indexed by ref. A page's parent is a ref, or the
 * root of its namespace. Tokens are compared, never only their hashes.
 *
 * Threads: one at a time. Nothing is allocated after create, except by
 * weir_radix_root for a new namespace. */

#include <weir/key.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_radix weir_radix;

/* A place in the tree: a ref (0 or more), or a root (below -1). */
#define WEIR_RADIX_NONE (-1)

/* page_tokens 1..1024; max_pages 1..2^30 - 1. -EINVAL, -ENOMEM. */
WEIR_API int weir_radix_create(weir_radix **radix, uint32_t page_tokens,
                               uint32_t max_pages) WEIR_NOEXCEPT;
WEIR_API void weir_radix_destroy(weir_radix **radix) WEIR_NOEXCEPT;

/* The root of a namespace. find: -ENOENT if nothing was ever put there. root:
 * makes it. A root without pages that nobody holds is freed; hold and release
 * count. -EINVAL: too many or too long fields; -ENOMEM. */
WEIR_API int weir_radix_find_root(const weir_radix *radix, const weir_field *fields,
                                  size_t n_fields, int32_t *root) WEIR_NOEXCEPT;
WEIR_API int weir_radix_hold_root(weir_radix *radix, const weir_field *fields, size_t n_fields,
                                  int32_t *root) WEIR_NOEXCEPT;
WEIR_API void weir_radix_release_root(weir_radix *radix, int32_t root) WEIR_NOEXCEPT;

/* Finds the longest prefix of whole pages that the tree holds below `place`.
 *
 *   refs  receives the pages in order, at most `capacity` (the search ends
 *         there); NULL: they are only counted
 *
 * Returns their number. One comparison a node, one hash a node.
 * peek leaves the tree as it is; match also marks the pages as used now
 * (weir_radix_last_use). */
WEIR_API uint32_t weir_radix_peek(const weir_radix *radix, int32_t place, const int32_t *tokens,
                                  size_t n_tokens, int32_t *refs, uint32_t capacity) WEIR_NOEXCEPT;
WEIR_API uint32_t weir_radix_match(weir_radix *radix, int32_t place, const int32_t *tokens,
                                   size_t n_tokens, int32_t *refs, uint32_t capacity) WEIR_NOEXCEPT;

/* Inserts n_pages pages of tokens below `place`.
 *
 *   refs     receives all n_pages refs, those that were there already and the
 *            new ones after them
 *   n_there  receives how many were there already
 *
 * -ENOSPC and no effect: max_pages. */
WEIR_API int weir_radix_insert(weir_radix *radix, int32_t place, const int32_t *tokens,
                               uint32_t n_pages, int32_t *refs, uint32_t *n_there) WEIR_NOEXCEPT;

/* Removes a page. -EBUSY: it has children; -EINVAL: no such page. */
WEIR_API int weir_radix_remove(weir_radix *radix, int32_t ref) WEIR_NOEXCEPT;

/* The page before this one, or its root; WEIR_RADIX_NONE if `ref` is no page. */
WEIR_API int32_t weir_radix_parent(const weir_radix *radix, int32_t ref) WEIR_NOEXCEPT;

/* Children of a place, in no particular order: the first one, and the one
 * after `ref`; WEIR_RADIX_NONE past the last. */
WEIR_API int32_t weir_radix_first_child(const weir_radix *radix, int32_t place) WEIR_NOEXCEPT;
WEIR_API int32_t weir_radix_next_sibling(const weir_radix *radix, int32_t ref) WEIR_NOEXCEPT;

/* The tokens of a page, valid until it is removed; NULL if `ref` is no page. */
WEIR_API const int32_t *weir_radix_tokens(const weir_radix *radix, int32_t ref) WEIR_NOEXCEPT;

/* When the page was last inserted, matched or touched, counted in calls that
 * did any of these; clock: the count now. */
WEIR_API uint64_t weir_radix_last_use(const weir_radix *radix, int32_t ref) WEIR_NOEXCEPT;
WEIR_API uint64_t weir_radix_clock(const weir_radix *radix) WEIR_NOEXCEPT;

/* Marks pages as used now. */
WEIR_API void weir_radix_touch(weir_radix *radix, const int32_t *refs, uint32_t n) WEIR_NOEXCEPT;

/* Pages in the tree; bytes of host memory that it takes. */
WEIR_API uint32_t weir_radix_pages(const weir_radix *radix) WEIR_NOEXCEPT;
WEIR_API size_t weir_radix_bytes(const weir_radix *radix) WEIR_NOEXCEPT;

/* 0, or -EIO with *reason (static text; may be NULL). O(pages). Allocates. */
WEIR_API int weir_radix_check(const weir_radix *radix, const char **reason) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
