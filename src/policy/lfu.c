/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap.h"

#include <errno.h>

/* Least frequently used first, with dynamic ageing (LFU-DA, Arlitt and others,
 * "Evaluating content management techniques for Web proxy caches", 2000).
 *
 * Counts alone never let go of what was popular once. So an entry's key is its
 * hits plus the cache's age at its last use, and the age is the key of the
 * last victim: what is no longer used stays where it is while all that is used
 * climbs past it, without any sweep over the counts. */

struct lfu {
    struct weir_memory memory;
    uint32_t capacity;
    struct weir_heap *heap;
    uint64_t *keys; /* [capacity]: of the last use; 0: nothing is known */
    uint64_t age;   /* never falls */
};

static void destroy(void *state)
{
    struct lfu *lfu = state;
    weir_heap_destroy(&lfu->heap);
    weir_memory_give(&lfu->memory, lfu->keys, lfu->capacity, sizeof *lfu->keys);
    weir_memory_end(lfu, sizeof *lfu);
}

static int create_in(void **state, uint32_t capacity, const weir_allocator *allocator)
{
    void *made;
    int rc = weir_memory_begin(&made, sizeof(struct lfu), allocator);
    if (rc)
        return rc;
    struct lfu *lfu = made;
    lfu->capacity = capacity;
    lfu->keys = weir_memory_take(&lfu->memory, capacity, sizeof *lfu->keys);
    if (!lfu->keys || weir_heap_create(&lfu->heap, capacity, allocator)) {
        destroy(lfu);
        return -ENOMEM;
    }
    *state = lfu;
    return 0;
}

static int create(void **state, uint32_t capacity)
{
    return create_in(state, capacity, NULL);
}

static void learn(struct lfu *lfu, const weir_evict_entry *entry)
{
    lfu->keys[entry->entry] = lfu->age + (entry->hits ? entry->hits : 1);
}

static void add(void *state, const weir_evict_entry *entry)
{
    struct lfu *lfu = state;
    if (!lfu->keys[entry->entry])
        learn(lfu, entry);
    weir_heap_set(lfu->heap, lfu->keys[entry->entry], entry->depth, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    struct lfu *lfu = state;
    learn(lfu, entry);
    if (weir_heap_has(lfu->heap, entry->entry))
        add(lfu, entry);
}

static void drop(void *state, uint32_t entry)
{
    struct lfu *lfu = state;
    weir_heap_remove(lfu->heap, entry);
}

static void forget(void *state, uint32_t entry)
{
    struct lfu *lfu = state;
    weir_heap_remove(lfu->heap, entry);
    lfu->keys[entry] = 0;
}

static int32_t next(void *state)
{
    struct lfu *lfu = state;
    struct weir_heap_slot slot;
    if (!weir_heap_pop(lfu->heap, &slot))
        return -1;
    if (slot.key > lfu->age)
        lfu->age = slot.key;
    return (int32_t)slot.entry;
}

const weir_evict_policy weir_evict_lfu = {
    .name = "lfu",
    .create = create,
    .create_in = create_in,
    .destroy = destroy,
    .add = add,
    .use = use,
    .remove = drop,
    .forget = forget,
    .next = next,
};
