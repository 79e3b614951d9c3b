/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/heap.h"

#include <errno.h>

#define CHILDREN 4u

int weir_heap_create(struct weir_heap **heap, uint32_t capacity, const weir_allocator *allocator)
{
    void *made;
    int rc = weir_memory_begin(&made, sizeof(struct weir_heap), allocator);
    if (rc)
        return rc;
    struct weir_heap *h = made;
    h->capacity = capacity;
    h->slots = weir_memory_take(&h->memory, capacity, sizeof *h->slots);
    h->position = weir_memory_take(&h->memory, capacity, sizeof *h->position);
    if (!h->slots || !h->position) {
        weir_heap_destroy(&h);
        return -ENOMEM;
    }
    *heap = h;
    return 0;
}

void weir_heap_destroy(struct weir_heap **heap)
{
    struct weir_heap *h = *heap;
    if (!h)
        return;
    weir_memory_give(&h->memory, h->slots, h->capacity, sizeof *h->slots);
    weir_memory_give(&h->memory, h->position, h->capacity, sizeof *h->position);
    weir_memory_end(h, sizeof *h);
    *heap = NULL;
}

static bool before(const struct weir_heap_slot *a, const struct weir_heap_slot *b)
{
    if (a->key != b->key)
        return a->key < b->key;
    if (a->depth != b->depth)
        return a->depth > b->depth;
    return a->entry < b->entry;
}

static void place(struct weir_heap *heap, uint32_t i, struct weir_heap_slot slot)
{
    heap->slots[i] = slot;
    heap->position[slot.entry] = i + 1;
}

/* Both move the hole at i to where `slot` belongs and fill it. */
static void sift_up(struct weir_heap *heap, uint32_t i, struct weir_heap_slot slot)
{
    while (i > 0) {
        uint32_t parent = (i - 1) / CHILDREN;
        if (!before(&slot, &heap->slots[parent]))
            break;
        place(heap, i, heap->slots[parent]);
        i = parent;
    }
    place(heap, i, slot);
}

static void sift_down(struct weir_heap *heap, uint32_t i, struct weir_heap_slot slot)
{
    for (;;) {
        uint64_t first = (uint64_t)i * CHILDREN + 1;
        if (first >= heap->n)
            break;
        uint32_t end = heap->n - first < CHILDREN ? heap->n : (uint32_t)first + CHILDREN;
        uint32_t least = (uint32_t)first;
        for (uint32_t child = least + 1; child < end; child++)
            if (before(&heap->slots[child], &heap->slots[least]))
                least = child;
        if (!before(&heap->slots[least], &slot))
            break;
        place(heap, i, heap->slots[least]);
        i = least;
    }
    place(heap, i, slot);
}

static void settle(struct weir_heap *heap, uint32_t i, struct weir_heap_slot slot)
{
    if (i > 0 && before(&slot, &heap->slots[(i - 1) / CHILDREN]))
        sift_up(heap, i, slot);
    else
        sift_down(heap, i, slot);
}

void weir_heap_set(struct weir_heap *heap, uint64_t key, uint32_t depth, uint32_t entry)
{
    struct weir_heap_slot slot = { .key = key, .depth = depth, .entry = entry };
    if (heap->position[entry])
        settle(heap, heap->position[entry] - 1, slot);
    else
        sift_up(heap, heap->n++, slot);
}

static void take_out(struct weir_heap *heap, uint32_t i)
{
    heap->position[heap->slots[i].entry] = 0;
    heap->n--;
    if (i < heap->n)
        settle(heap, i, heap->slots[heap->n]);
}

void weir_heap_remove(struct weir_heap *heap, uint32_t entry)
{
    if (heap->position[entry])
        take_out(heap, heap->position[entry] - 1);
}

bool weir_heap_pop(struct weir_heap *heap, struct weir_heap_slot *slot)
{
    if (heap->n == 0)
        return false;
    *slot = heap->slots[0];
    take_out(heap, 0);
    return true;
}
