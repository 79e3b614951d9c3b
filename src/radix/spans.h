/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_RADIX_SPANS_H
#define WEIR_RADIX_SPANS_H

/* What the pages of a tree know of the spans that overlap them.
 *
 *   prompt    ···│·····████│████████│██······│···     one span, three pages
 *                      ▲ position 5, -4, -12, and everywhere the same length and
 *                        digest
 *   pages     bit a page: it has records       (no bit, no look-up)
 *   buckets   ref ──► record ──► record        hash table over records, linked
 *   held      records set aside, free as yet
 *
 * Invariants: n_used + n_held <= capacity; each used record is in the bucket of
 * its ref, and the bit of its ref is set exactly if there is one; a page's
 * records have different positions, for spans do not overlap. Nothing is
 * allocated for a tree that never saw a span. */

#include "base/bitmap.h"

#include <weir/radix.h>

/* One overlap, in bytes that can be compared and hashed: what is behind the
 * digest is zero. */
struct weir_page_span {
    int32_t position; /* of the span's first token, from the page's first one */
    uint32_t n_tokens;
    uint32_t digest_bytes;
    unsigned char digest[WEIR_MAX_DIGEST_BYTES];
};

struct weir_span_record {
    struct weir_page_span span;
    int32_t ref;
    int32_t next; /* in its bucket, or in the free list; -1: last */
};

struct weir_spans {
    struct weir_memory *memory;
    uint32_t max_pages;
    uint32_t page_tokens;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t n_used;
    uint32_t n_held;
    int32_t first_free;
    struct weir_span_record *records; /* [capacity] */
    int32_t *buckets;                 /* [capacity]; -1: empty */
    struct weir_bitmap pages;
};

/* Makes an empty one, which takes nothing. */
void weir_spans_init(struct weir_spans *spans, uint32_t page_tokens, uint32_t max_pages,
                     struct weir_memory *memory);
void weir_spans_destroy(struct weir_spans *spans);

/* Whether a part keeps to the limits of weir/key.h and weir/radix.h. */
bool weir_spans_part_is_sound(const weir_part *part);

/* Overlaps of the part's whole pages from page `from` on. */
size_t weir_spans_count(const struct weir_spans *spans, const weir_part *part, size_t from);

/* See weir_radix_hold_spans. */
int weir_spans_hold(struct weir_spans *spans, size_t n);
void weir_spans_release(struct weir_spans *spans, size_t n);

/* Makes sure that n records are free beside those held. -ENOMEM, -E2BIG. */
int weir_spans_make_room(struct weir_spans *spans, size_t n);

/* Gives `n` pages from `ref` on the spans of the part's pages from `page` on;
 * there is room. */
void weir_spans_add(struct weir_spans *spans, int32_t ref, uint32_t n, const weir_part *part,
                    size_t page);
void weir_spans_remove(struct weir_spans *spans, int32_t ref);

/* How many of the `n` pages from `ref` on, before the first that differs, have
 * the same spans as the part's pages from `page` on. */
uint32_t weir_spans_equal(const struct weir_spans *spans, int32_t ref, uint32_t n,
                          const weir_part *part, size_t page);

/* Hashes of a page's spans: of one in the tree, of one of a part. The same spans
 * have the same hash; 0 for none. */
uint64_t weir_spans_hash(const struct weir_spans *spans, int32_t ref);
uint64_t weir_spans_hash_part(const struct weir_spans *spans, const weir_part *part, size_t page);

/* 0, or -EIO with *reason (static text). Allocates nothing. */
int weir_spans_check(const struct weir_spans *spans, const char **reason);

#endif
