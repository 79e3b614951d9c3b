/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_RADIX_H
#define WEIR_RADIX_H

/* A radix tree over tokens, in pages: the index by itself, for servers that
 * bring their own pools. The cache uses it through this header.
 *
 * A page in the tree is named by a ref, 0..max_pages-1, that stays the same
 * until the page is removed, whatever is split around it. The caller keeps what
 * it knows of a page in arrays indexed by ref. A page's parent is a ref, or the
 * root of its namespace. Tokens and spans are compared, never only their hashes.
 *
 * Threads: one at a time. Nothing is allocated after create, except by
 * weir_radix_hold_root for a new namespace, and by weir_radix_insert and
 * weir_radix_hold_spans where more pages have spans than ever before. A page
 * without spans costs nothing for them. */

#include <weir/key.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_radix weir_radix;

/* A place in the tree: a ref (0 or more), or a root (below -1). */
#define WEIR_RADIX_NONE (-1)

/* A part of a prompt, such as all of it.
 *
 *   tokens, n_tokens  the part's; only its whole pages are looked at
 *   first             its first token's place in the prompt, by which the spans
 *                     are found; first + n_tokens at most 2^31 - 1
 *   spans, n_spans    the prompt's, as in weir_key; those that do not overlap the
 *                     part may be there too */
typedef struct weir_part {
    const int32_t *tokens;
    size_t n_tokens;
    size_t first;
    const weir_span *spans;
    size_t n_spans;
} weir_part;

/* page_tokens 1..1024; max_pages 1..2^30 - 1; allocator: copied, NULL: the C
 * library's. -EINVAL, -ENOMEM. */
WEIR_API int weir_radix_create(weir_radix **radix, uint32_t page_tokens, uint32_t max_pages,
                               const weir_allocator *allocator) WEIR_NOEXCEPT;
WEIR_API void weir_radix_destroy(weir_radix **radix) WEIR_NOEXCEPT;

/* The root of a namespace. find: -ENOENT if nothing was ever put there. root:
 * makes it. A root without pages that nobody holds is freed; hold and release
 * count. -EINVAL: too many or too long fields; -ENOMEM. */
WEIR_API int weir_radix_find_root(const weir_radix *radix, const weir_field *fields,
                                  size_t n_fields, int32_t *root) WEIR_NOEXCEPT;
WEIR_API int weir_radix_hold_root(weir_radix *radix, const weir_field *fields, size_t n_fields,
                                  int32_t *root) WEIR_NOEXCEPT;
WEIR_API void weir_radix_release_root(weir_radix *radix, int32_t root) WEIR_NOEXCEPT;

/* One hold more on a root that is held. Does nothing if it is no root. */
WEIR_API void weir_radix_keep_root(weir_radix *radix, int32_t root) WEIR_NOEXCEPT;

/* Finds the longest prefix of whole pages that the tree holds below `place`.
 *
 *   refs  receives the pages in order, at most `capacity` (the search ends
 *         there); NULL: they are only counted
 *
 * Returns their number; 0 for a part that breaks a limit. One comparison a node,
 * one hash a node. peek leaves the tree as it is; match also marks the pages as
 * used now (weir_radix_last_use). */
WEIR_API uint32_t weir_radix_peek(const weir_radix *radix, int32_t place, const weir_part *part,
                                  int32_t *refs, uint32_t capacity) WEIR_NOEXCEPT;
WEIR_API uint32_t weir_radix_match(weir_radix *radix, int32_t place, const weir_part *part,
                                   int32_t *refs, uint32_t capacity) WEIR_NOEXCEPT;

/* Inserts the whole pages of a part below `place`.
 *
 *   refs     receives the refs of all of them, those that were there already and
 *            the new ones after them
 *   n_there  receives how many were there already
 *
 * -EINVAL: an argument is NULL, no such place, or the part breaks a limit;
 * -ENOSPC: max_pages; -ENOMEM: no memory for the pages' spans, not if
 * weir_radix_hold_spans has set it aside. No effect then. */
WEIR_API int weir_radix_insert(weir_radix *radix, int32_t place, const weir_part *part,
                               int32_t *refs, uint32_t *n_there) WEIR_NOEXCEPT;

/* How often a page of the part is overlapped by a span: what its spans take. 0
 * for a part that breaks a limit. */
WEIR_API size_t weir_radix_count_spans(const weir_radix *radix,
                                       const weir_part *part) WEIR_NOEXCEPT;

/* Sets memory aside for so many overlaps, so that an insert which follows their
 * release needs none. They are counted. -ENOMEM, -E2BIG: 2^30 and more. */
WEIR_API int weir_radix_hold_spans(weir_radix *radix, size_t n) WEIR_NOEXCEPT;
WEIR_API void weir_radix_release_spans(weir_radix *radix, size_t n) WEIR_NOEXCEPT;
WEIR_API size_t weir_radix_spans_held(const weir_radix *radix) WEIR_NOEXCEPT;

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

/* A hash of the page's tokens and spans, the same for the same in any tree; 0 if
 * `ref` is no page. */
WEIR_API uint64_t weir_radix_hash(const weir_radix *radix, int32_t ref) WEIR_NOEXCEPT;

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
