/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_RADIX_TREE_H
#define WEIR_RADIX_TREE_H

/* The tree lives in an array of slots, one a page; a page's ref is its slot,
 * and its tokens lie at tokens[slot * page_tokens]. A node is a run of slots:
 *
 *   slot      4    5    6    7    8    9
 *            ┌──────────────┐┌─────────┐
 *   node     │ A0   A1   A2 ││ B0   B1 │      node_start: bits 4 and 7
 *            └──────────────┘└─────────┘
 *   parent    root           6 (A2)
 *
 * so a node's tokens are contiguous and one memcmp compares it with a key. The
 * node of a page is the last node start at or before it, and a split
 *
 *            ┌────┐┌────────┐┌─────────┐
 *            │ A0 ││ A1  A2 ││ B0   B1 │      node_start: 4, 5 and 7
 *            └────┘└────────┘└─────────┘
 *
 * sets one bit and moves nothing: refs stay. Children of a node hang below its
 * last page, in a sibling list; a child is found by a hash table over all
 * nodes, keyed by the parent page and XXH3 of the child's first page, spans
 * included. The hash is not kept: it is needed again only when the node goes.
 *
 * Invariants: free slots are those of the extents; a node lies within used
 * slots and ends where the next node starts or a free slot begins; its parent
 * is a root or the last page of another node; every node is in the bucket of its
 * hash and in its parent's list. */

#include "base/extents.h"
#include "radix/roots.h"
#include "radix/spans.h"

struct node { /* valid at a node's first slot */
    int32_t parent;
    uint32_t n_pages;
    int32_t first_child;
    int32_t next;
    int32_t previous;
    int32_t next_in_bucket;
};

union slot {
    struct node node;
    struct weir_extent_link free; /* valid at the first slot of a free extent */
};

struct weir_radix {
    struct weir_memory memory; /* counts itself, too */
    uint32_t page_tokens;
    uint32_t max_pages;
    size_t page_bytes; /* of tokens */
    uint64_t clock;
    struct weir_roots *roots;
    struct weir_extents free_slots;
    struct weir_bitmap node_start;
    struct weir_spans spans;
    union slot *slots;  /* [max_pages] */
    uint64_t *last_use; /* [max_pages] */
    int32_t *tokens;    /* [max_pages * page_tokens] */
    int32_t *buckets;   /* [n_buckets], a power of two: first slots of nodes, -1: none */
    uint32_t n_buckets;
};

static inline bool is_page(const weir_radix *radix, int32_t ref)
{
    return ref >= 0 && (uint32_t)ref < radix->max_pages &&
           !weir_extents_has(&radix->free_slots, (uint32_t)ref);
}

static inline bool is_place(const weir_radix *radix, int32_t place)
{
    return place >= 0 ? is_page(radix, place) : weir_roots_has(radix->roots, place);
}

static inline uint32_t node_of(const weir_radix *radix, int32_t ref)
{
    return weir_bitmap_previous(&radix->node_start, (uint32_t)ref);
}

static inline int32_t *page_tokens_of(const weir_radix *radix, int32_t ref)
{
    return radix->tokens + (size_t)ref * radix->page_tokens;
}

static inline struct node *node_at(const weir_radix *radix, uint32_t slot)
{
    return &radix->slots[slot].node;
}

static inline uint32_t last_page(const weir_radix *radix, uint32_t node)
{
    return node + node_at(radix, node)->n_pages - 1;
}

/* The head of the list of nodes below a place; NULL below a page that is not
 * the last of its node, whose only child is the page after it. */
int32_t *weir_radix_children_of(const weir_radix *radix, int32_t place);

/* The bucket that a node, whose tokens and spans are set, belongs in. */
int32_t *weir_radix_bucket_of_node(const weir_radix *radix, uint32_t node);

#endif
