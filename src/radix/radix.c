/* SPDX-License-Identifier: Apache-2.0 */
#include "radix/tree.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int weir_radix_create(weir_radix **out, uint32_t page_tokens, uint32_t max_pages,
                      const weir_allocator *allocator)
{
    if (!out || page_tokens == 0 || page_tokens > 1024 || max_pages == 0 || max_pages >= 1u << 30)
        return -EINVAL;
    void *made;
    int rc = weir_memory_begin(&made, sizeof(weir_radix), allocator);
    if (rc)
        return rc;
    weir_radix *radix = made;
    radix->page_tokens = page_tokens;
    radix->max_pages = max_pages;
    radix->page_bytes = page_tokens * sizeof(int32_t);

    /* Two nodes a bucket at worst, if no node is longer than a page. */
    radix->n_buckets = 16;
    while (radix->n_buckets <= max_pages / 2)
        radix->n_buckets *= 2;
    struct weir_memory *m = &radix->memory;
    weir_spans_init(&radix->spans, page_tokens, max_pages, m);
    radix->buckets = weir_memory_take(m, radix->n_buckets, sizeof *radix->buckets);
    radix->slots = weir_memory_take(m, max_pages, sizeof *radix->slots);
    radix->last_use = weir_memory_take(m, max_pages, sizeof *radix->last_use);
    radix->tokens = weir_memory_take(m, max_pages, radix->page_bytes);
    if (!radix->buckets || !radix->slots || !radix->last_use || !radix->tokens ||
        weir_roots_create(&radix->roots, m) ||
        weir_extents_create(&radix->free_slots, max_pages, &radix->slots[0].free,
                            sizeof *radix->slots, m) ||
        weir_bitmap_create(&radix->node_start, max_pages, m)) {
        weir_radix_destroy(&radix);
        return -ENOMEM;
    }
    memset(radix->buckets, 0xff, radix->n_buckets * sizeof *radix->buckets);
    *out = radix;
    return 0;
}

void weir_radix_destroy(weir_radix **out)
{
    if (!out || !*out)
        return;
    weir_radix *radix = *out;
    struct weir_memory *m = &radix->memory;
    weir_roots_destroy(&radix->roots);
    weir_spans_destroy(&radix->spans);
    weir_extents_destroy(&radix->free_slots);
    weir_bitmap_destroy(&radix->node_start);
    weir_memory_give(m, radix->slots, radix->max_pages, sizeof *radix->slots);
    weir_memory_give(m, radix->last_use, radix->max_pages, sizeof *radix->last_use);
    weir_memory_give(m, radix->tokens, radix->max_pages, radix->page_bytes);
    weir_memory_give(m, radix->buckets, radix->n_buckets, sizeof *radix->buckets);
    weir_memory_end(radix, sizeof *radix);
    *out = NULL;
}

/* ---- Slots and nodes ----------------------------------------------------- */

int32_t *weir_radix_children_of(const weir_radix *radix, int32_t place)
{
    if (place < 0)
        return weir_roots_first_child(radix->roots, place);
    uint32_t node = node_of(radix, place);
    return last_page(radix, node) == (uint32_t)place ? &node_at(radix, node)->first_child : NULL;
}

/* ---- The table of nodes -------------------------------------------------- */

/* Of the node below `parent` that begins with this page. */
static int32_t *bucket_of(const weir_radix *radix, int32_t parent, const int32_t *tokens,
                          uint64_t spans_hash)
{
    uint64_t seed = (uint32_t)parent + spans_hash;
    uint64_t hash = XXH3_64bits_withSeed(tokens, radix->page_bytes, seed);
    return &radix->buckets[hash & (radix->n_buckets - 1)];
}

int32_t *weir_radix_bucket_of_node(const weir_radix *radix, uint32_t node)
{
    return bucket_of(radix, node_at(radix, node)->parent, page_tokens_of(radix, (int32_t)node),
                     weir_spans_hash(&radix->spans, (int32_t)node));
}

static void table_add(weir_radix *radix, uint32_t node)
{
    int32_t *bucket = weir_radix_bucket_of_node(radix, node);
    node_at(radix, node)->next_in_bucket = *bucket;
    *bucket = (int32_t)node;
}

static void table_remove(weir_radix *radix, uint32_t node)
{
    int32_t *link = weir_radix_bucket_of_node(radix, node);
    while (*link != (int32_t)node)
        link = &node_at(radix, (uint32_t)*link)->next_in_bucket;
    *link = node_at(radix, node)->next_in_bucket;
}

/* Enters a new node into the table and its parent's list. Its tokens and spans are set. */
static void link_node(weir_radix *radix, uint32_t node, int32_t parent, uint32_t n_pages)
{
    int32_t *head = weir_radix_children_of(radix, parent);
    *node_at(radix, node) = (struct node){
        .parent = parent,
        .n_pages = n_pages,
        .first_child = -1,
        .next = *head,
        .previous = -1,
    };
    if (*head >= 0)
        node_at(radix, (uint32_t)*head)->previous = (int32_t)node;
    *head = (int32_t)node;
    weir_bitmap_set(&radix->node_start, node);
    table_add(radix, node);
}

static void unlink_node(weir_radix *radix, uint32_t node)
{
    struct node *n = node_at(radix, node);
    table_remove(radix, node);
    if (n->next >= 0)
        node_at(radix, (uint32_t)n->next)->previous = n->previous;
    if (n->previous >= 0)
        node_at(radix, (uint32_t)n->previous)->next = n->next;
    else
        *weir_radix_children_of(radix, n->parent) = n->next;
    weir_bitmap_clear(&radix->node_start, node);
    if (n->parent < 0)
        weir_roots_free_if_unused(radix->roots, n->parent);
}

/* Makes `ref` the last page of its node; what follows becomes a node below it
 * and keeps the children. */
static void split_after(weir_radix *radix, int32_t ref)
{
    uint32_t upper = node_of(radix, ref);
    uint32_t lower = (uint32_t)ref + 1;
    uint32_t n_lower = last_page(radix, upper) - (uint32_t)ref;
    int32_t children = node_at(radix, upper)->first_child;
    node_at(radix, upper)->n_pages -= n_lower;
    node_at(radix, upper)->first_child = -1;
    link_node(radix, lower, ref, n_lower);
    node_at(radix, lower)->first_child = children;
}

/* ---- Roots --------------------------------------------------------------- */

int weir_radix_find_root(const weir_radix *radix, const weir_field *fields, size_t n_fields,
                         int32_t *root)
{
    if (!radix || !root)
        return -EINVAL;
    return weir_roots_find(radix->roots, fields, n_fields, root);
}

int weir_radix_hold_root(weir_radix *radix, const weir_field *fields, size_t n_fields,
                         int32_t *root)
{
    if (!radix || !root)
        return -EINVAL;
    int32_t place;
    int rc = weir_roots_find(radix->roots, fields, n_fields, &place);
    if (rc == -ENOENT)
        rc = weir_roots_add(radix->roots, fields, n_fields, &place);
    if (rc)
        return rc;
    weir_roots_hold(radix->roots, place);
    *root = place;
    return 0;
}

void weir_radix_keep_root(weir_radix *radix, int32_t root)
{
    if (radix && weir_roots_has(radix->roots, root))
        weir_roots_hold(radix->roots, root);
}

void weir_radix_release_root(weir_radix *radix, int32_t root)
{
    if (radix)
        weir_roots_release(radix->roots, root);
}

/* ---- Matching ------------------------------------------------------------ */

/* A place in a part: its pages from `page` on. */
static const int32_t *tokens_at(const weir_radix *radix, const weir_part *part, size_t page)
{
    return part->tokens + page * radix->page_tokens;
}

/* How many leading pages of the part's from `page` on, at most n, equal the pages
 * from `ref` on. */
static uint32_t equal_pages(const weir_radix *radix, int32_t ref, const weir_part *part,
                            size_t page, uint32_t n)
{
    const int32_t *mine = page_tokens_of(radix, ref);
    const int32_t *yours = tokens_at(radix, part, page);
    uint32_t equal = n;
    if (memcmp(mine, yours, n * radix->page_bytes) != 0) {
        equal = 0;
        while (memcmp(mine + (size_t)equal * radix->page_tokens,
                      yours + (size_t)equal * radix->page_tokens, radix->page_bytes) == 0)
            equal++;
    }
    if (part->n_spans == 0 && radix->spans.n_used == 0)
        return equal;
    return weir_spans_equal(&radix->spans, ref, equal, part, page);
}

/* The pages that continue `place` and equal the part's from `page` on: *first and
 * their number, at most n, all of one node. */
static uint32_t step_down(const weir_radix *radix, int32_t place, const weir_part *part,
                          size_t page, uint32_t n, int32_t *first)
{
    if (place >= 0) {
        uint32_t last = last_page(radix, node_of(radix, place));
        uint32_t rest = last - (uint32_t)place;
        if (rest) {
            *first = place + 1;
            return equal_pages(radix, place + 1, part, page, rest < n ? rest : n);
        }
    }
    int32_t at = *bucket_of(radix, place, tokens_at(radix, part, page),
                            weir_spans_hash_part(&radix->spans, part, page));
    for (; at >= 0; at = node_at(radix, (uint32_t)at)->next_in_bucket) {
        const struct node *node = node_at(radix, (uint32_t)at);
        if (node->parent != place)
            continue;
        uint32_t equal = equal_pages(radix, at, part, page, node->n_pages < n ? node->n_pages : n);
        *first = at;
        if (equal)
            return equal;
    }
    return 0;
}

/* Of a part that is sound and a place that exists. */
static uint32_t find(const weir_radix *radix, int32_t place, const weir_part *part, int32_t *refs,
                     uint32_t capacity)
{
    size_t whole = part->n_tokens / radix->page_tokens;
    uint32_t n = whole < capacity ? (uint32_t)whole : capacity;
    uint32_t found = 0;
    while (found < n) {
        int32_t first;
        uint32_t equal = step_down(radix, place, part, found, n - found, &first);
        if (equal == 0)
            break;
        if (refs)
            for (uint32_t i = 0; i < equal; i++)
                refs[found + i] = first + (int32_t)i;
        found += equal;
        place = first + (int32_t)equal - 1;
    }
    return found;
}

uint32_t weir_radix_peek(const weir_radix *radix, int32_t place, const weir_part *part,
                         int32_t *refs, uint32_t capacity)
{
    if (!radix || !part || !is_place(radix, place) || !weir_spans_part_is_sound(part))
        return 0;
    return find(radix, place, part, refs, capacity);
}

uint32_t weir_radix_match(weir_radix *radix, int32_t place, const weir_part *part, int32_t *refs,
                          uint32_t capacity)
{
    uint32_t found = weir_radix_peek(radix, place, part, refs, capacity);
    if (refs)
        weir_radix_touch(radix, refs, found);
    return found;
}

void weir_radix_touch(weir_radix *radix, const int32_t *refs, uint32_t n)
{
    if (!radix || !refs)
        return;
    radix->clock++;
    for (uint32_t i = 0; i < n; i++)
        if (is_page(radix, refs[i]))
            radix->last_use[refs[i]] = radix->clock;
}

/* ---- Changing ------------------------------------------------------------ */

/* Writes what n pages from `ref` on are: the part's from `page` on. */
static void fill(weir_radix *radix, int32_t ref, const weir_part *part, size_t page, uint32_t n)
{
    memcpy(page_tokens_of(radix, ref), tokens_at(radix, part, page), n * radix->page_bytes);
    if (part->n_spans)
        weir_spans_add(&radix->spans, ref, n, part, page);
}

/* Puts up to n pages behind the last page of a leaf, into the slots that
 * follow it, and returns how many. */
static uint32_t append(weir_radix *radix, int32_t place, const weir_part *part, size_t page,
                       uint32_t n)
{
    uint32_t slot = (uint32_t)place + 1;
    if (place < 0 || slot >= radix->max_pages || !weir_extents_has(&radix->free_slots, slot))
        return 0;
    struct node *node = node_at(radix, node_of(radix, place));
    if (node->first_child >= 0)
        return 0;
    struct weir_extent extent = weir_extents_around(&radix->free_slots, slot);
    uint32_t length = extent.length < n ? extent.length : n;
    weir_extents_remove(&radix->free_slots, slot, length);
    fill(radix, (int32_t)slot, part, page, length);
    node->n_pages += length;
    return length;
}

/* Puts up to n pages into a node of their own below `place`. */
static uint32_t branch(weir_radix *radix, int32_t place, const weir_part *part, size_t page,
                       uint32_t n, int32_t *first)
{
    struct weir_extent extent = weir_extents_best_fit(&radix->free_slots, n);
    if (extent.length == 0)
        extent = weir_extents_longest(&radix->free_slots);
    uint32_t length = extent.length < n ? extent.length : n;
    weir_extents_remove(&radix->free_slots, extent.start, length);
    *first = (int32_t)extent.start;
    fill(radix, *first, part, page, length);
    link_node(radix, extent.start, place, length);
    return length;
}

int weir_radix_insert(weir_radix *radix, int32_t place, const weir_part *part, int32_t *refs,
                      uint32_t *n_there)
{
    if (!radix || !n_there || !part || !is_place(radix, place) || !weir_spans_part_is_sound(part))
        return -EINVAL;
    size_t whole = part->n_tokens / radix->page_tokens;
    if (whole && !refs)
        return -EINVAL;
    if (whole > radix->max_pages)
        return -ENOSPC;
    uint32_t n_pages = (uint32_t)whole;
    uint32_t found = find(radix, place, part, refs, n_pages);
    if (n_pages - found > radix->free_slots.n_present)
        return -ENOSPC;
    if (part->n_spans) {
        int rc = weir_spans_make_room(&radix->spans, weir_spans_count(&radix->spans, part, found));
        if (rc)
            return -ENOMEM;
    }
    if (found)
        place = refs[found - 1];

    uint32_t done = found;
    if (done < n_pages && place >= 0 && last_page(radix, node_of(radix, place)) != (uint32_t)place)
        split_after(radix, place);
    while (done < n_pages) {
        int32_t first = place + 1;
        uint32_t length = append(radix, place, part, done, n_pages - done);
        if (length == 0)
            length = branch(radix, place, part, done, n_pages - done, &first);
        for (uint32_t i = 0; i < length; i++)
            refs[done + i] = first + (int32_t)i;
        done += length;
        place = first + (int32_t)length - 1;
    }
    *n_there = found;
    weir_radix_touch(radix, refs, n_pages);
    return 0;
}

int weir_radix_remove(weir_radix *radix, int32_t ref)
{
    if (!radix || !is_page(radix, ref))
        return -EINVAL;
    uint32_t node = node_of(radix, ref);
    if (last_page(radix, node) != (uint32_t)ref || node_at(radix, node)->first_child >= 0)
        return -EBUSY;
    if (--node_at(radix, node)->n_pages == 0)
        unlink_node(radix, node);
    weir_spans_remove(&radix->spans, ref);
    weir_extents_add(&radix->free_slots, (uint32_t)ref);
    return 0;
}

/* ---- Walking ------------------------------------------------------------- */

int32_t weir_radix_parent(const weir_radix *radix, int32_t ref)
{
    if (!radix || !is_page(radix, ref))
        return WEIR_RADIX_NONE;
    return weir_bitmap_test(&radix->node_start, (uint32_t)ref)
               ? node_at(radix, (uint32_t)ref)->parent
               : ref - 1;
}

int32_t weir_radix_first_child(const weir_radix *radix, int32_t place)
{
    if (!radix || !is_place(radix, place))
        return WEIR_RADIX_NONE;
    const int32_t *head = weir_radix_children_of(radix, place);
    return head ? *head : place + 1;
}

int32_t weir_radix_next_sibling(const weir_radix *radix, int32_t ref)
{
    if (!radix || !is_page(radix, ref) || !weir_bitmap_test(&radix->node_start, (uint32_t)ref))
        return WEIR_RADIX_NONE;
    return node_at(radix, (uint32_t)ref)->next;
}

const int32_t *weir_radix_tokens(const weir_radix *radix, int32_t ref)
{
    return radix && is_page(radix, ref) ? page_tokens_of(radix, ref) : NULL;
}

uint64_t weir_radix_last_use(const weir_radix *radix, int32_t ref)
{
    return radix && is_page(radix, ref) ? radix->last_use[ref] : 0;
}

uint64_t weir_radix_clock(const weir_radix *radix)
{
    return radix ? radix->clock : 0;
}

uint32_t weir_radix_pages(const weir_radix *radix)
{
    return radix ? radix->max_pages - radix->free_slots.n_present : 0;
}

size_t weir_radix_bytes(const weir_radix *radix)
{
    return radix ? radix->memory.bytes : 0;
}

uint64_t weir_radix_hash(const weir_radix *radix, int32_t ref)
{
    if (!radix || !is_page(radix, ref))
        return 0;
    return XXH3_64bits_withSeed(page_tokens_of(radix, ref), radix->page_bytes,
                                weir_spans_hash(&radix->spans, ref));
}

/* ---- Room for spans ------------------------------------------------------ */

size_t weir_radix_count_spans(const weir_radix *radix, const weir_part *part)
{
    if (!radix || !part || !weir_spans_part_is_sound(part))
        return 0;
    return weir_spans_count(&radix->spans, part, 0);
}

int weir_radix_hold_spans(weir_radix *radix, size_t n)
{
    return radix ? weir_spans_hold(&radix->spans, n) : -EINVAL;
}

void weir_radix_release_spans(weir_radix *radix, size_t n)
{
    if (radix)
        weir_spans_release(&radix->spans, n);
}

size_t weir_radix_spans_held(const weir_radix *radix)
{
    return radix ? radix->spans.n_held : 0;
}
