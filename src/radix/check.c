/* SPDX-License-Identifier: Apache-2.0 */
#include "radix/tree.h"

#include <errno.h>

static bool in_table(const weir_radix *radix, uint32_t node)
{
    int32_t at = *weir_radix_bucket_of_node(radix, node);
    while (at >= 0 && at != (int32_t)node)
        at = node_at(radix, (uint32_t)at)->next_in_bucket;
    return at >= 0;
}

static const char *node_fault(const weir_radix *radix, uint32_t node)
{
    const struct node *n = node_at(radix, node);
    if (n->n_pages == 0 || last_page(radix, node) >= radix->max_pages)
        return "radix: a node's length is wrong";
    for (uint32_t slot = node; slot <= last_page(radix, node); slot++) {
        if (!is_page(radix, (int32_t)slot))
            return "radix: a node covers a free slot";
        if (slot > node && weir_bitmap_test(&radix->node_start, slot))
            return "radix: two nodes overlap";
    }
    if (!is_place(radix, n->parent))
        return "radix: a node's parent does not exist";
    if (!weir_radix_children_of(radix, n->parent))
        return "radix: a node's parent is not the last page of its node";
    if (!in_table(radix, node))
        return "radix: a node is not in the bucket of its first page";
    for (int32_t child = n->first_child; child >= 0; child = node_at(radix, (uint32_t)child)->next)
        if (node_at(radix, (uint32_t)child)->parent != (int32_t)last_page(radix, node))
            return "radix: a child does not know its parent";
    int32_t *before = n->previous >= 0 ? &node_at(radix, (uint32_t)n->previous)->next
                                       : weir_radix_children_of(radix, n->parent);
    if (*before != (int32_t)node)
        return "radix: a node is not in its parent's list";
    return NULL;
}

static const char *find_fault(const weir_radix *radix)
{
    uint32_t n_pages = 0, n_nodes = 0, n_entries = 0;
    for (uint32_t node = weir_bitmap_next(&radix->node_start, 0); node != WEIR_BITMAP_NONE;
         node = weir_bitmap_next(&radix->node_start, node + 1)) {
        const char *fault = node_fault(radix, node);
        if (fault)
            return fault;
        n_pages += node_at(radix, node)->n_pages;
        n_nodes++;
    }
    for (uint32_t i = 0; i < radix->n_buckets; i++)
        for (int32_t at = radix->buckets[i]; at >= 0 && n_entries <= n_nodes;
             at = node_at(radix, (uint32_t)at)->next_in_bucket)
            n_entries++;
    if (radix->spans.capacity)
        for (uint32_t ref = weir_bitmap_next(&radix->spans.pages, 0); ref != WEIR_BITMAP_NONE;
             ref = weir_bitmap_next(&radix->spans.pages, ref + 1))
            if (!is_page(radix, (int32_t)ref))
                return "radix: a page that is not there has spans";
    if (n_pages != weir_radix_pages(radix))
        return "radix: used slots belong to no node";
    if (n_entries != n_nodes)
        return "radix: the table holds a node that does not exist";
    return NULL;
}

int weir_radix_check(const weir_radix *radix, const char **reason)
{
    if (!radix)
        return -EINVAL;
    const char *text = NULL;
    int rc = weir_extents_check(&radix->free_slots, &text);
    if (!rc)
        rc = weir_spans_check(&radix->spans, &text);
    if (!rc && (text = find_fault(radix)))
        rc = -EIO;
    if (rc && reason)
        *reason = text;
    return rc;
}
