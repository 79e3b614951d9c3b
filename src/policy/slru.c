/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"
#include "policy/heap.h"

#include <errno.h>

/* Segmented LRU (Karedla, Love, Wherry, "Caching strategies to improve disk
 * system performance", 1994).
 *
 *   enters ──► PROBATION ── used again ──► PROTECTED
 *                  ▲                           │ more than 80 % of what is
 *                  └──── oldest, demoted ──────┘ known are protected
 *
 * Victims come from probation while it has any, so a burst of prompts that
 * nobody asks for twice cannot wash out those that are shared. Within a
 * segment the least recently used goes first; a demoted entry counts as used
 * at the moment of its demotion. An entry is used again when a request uses it
 * after the one that brought it into the tier.
 *
 * The segment of an entry is known from its first `add` or `use` to `forget`,
 * whether it may be evicted or not. */

#define PROTECTED_PERCENT 80u

/* Above every request counter: probation before protected in one heap. */
#define PROTECTED_BIT (UINT64_C(1) << 63)

struct entry {
    uint64_t used;
    uint32_t depth;
    bool known;
};

struct slru {
    struct weir_memory memory;
    uint32_t capacity;
    struct weir_heap *evictable; /* key: used, plus PROTECTED_BIT */
    struct weir_heap *guarded;   /* the protected entries, by used */
    struct entry *entries;       /* [capacity] */
    uint64_t now;                /* newest request counter seen */
    uint32_t known;              /* entries that are known */
};

static void destroy(void *state)
{
    struct slru *slru = state;
    weir_heap_destroy(&slru->evictable);
    weir_heap_destroy(&slru->guarded);
    weir_memory_give(&slru->memory, slru->entries, slru->capacity, sizeof *slru->entries);
    weir_memory_end(slru, sizeof *slru);
}

static int create_in(void **state, uint32_t capacity, const weir_allocator *allocator)
{
    void *made;
    int rc = weir_memory_begin(&made, sizeof(struct slru), allocator);
    if (rc)
        return rc;
    struct slru *slru = made;
    slru->capacity = capacity;
    slru->entries = weir_memory_take(&slru->memory, capacity, sizeof *slru->entries);
    if (!slru->entries || weir_heap_create(&slru->evictable, capacity, allocator) ||
        weir_heap_create(&slru->guarded, capacity, allocator)) {
        destroy(slru);
        return -ENOMEM;
    }
    *state = slru;
    return 0;
}

static int create(void **state, uint32_t capacity)
{
    return create_in(state, capacity, NULL);
}

static void make_evictable(struct slru *slru, uint32_t entry)
{
    const struct entry *e = &slru->entries[entry];
    uint64_t segment = weir_heap_has(slru->guarded, entry) ? PROTECTED_BIT : 0;
    weir_heap_set(slru->evictable, e->used | segment, e->depth, entry);
}

static void learn(struct slru *slru, const weir_evict_entry *entry)
{
    struct entry *e = &slru->entries[entry->entry];
    if (entry->last_use > slru->now)
        slru->now = entry->last_use;
    if (!e->known) {
        *e = (struct entry){ .used = entry->last_use, .depth = entry->depth, .known = true };
        slru->known++;
    }
}

static void demote_overflow(struct slru *slru)
{
    uint64_t limit = (uint64_t)slru->known * PROTECTED_PERCENT / 100;
    struct weir_heap_slot oldest;
    while (slru->guarded->n > limit && weir_heap_pop(slru->guarded, &oldest)) {
        slru->entries[oldest.entry].used = slru->now;
        if (weir_heap_has(slru->evictable, oldest.entry))
            make_evictable(slru, oldest.entry);
    }
}

static void add(void *state, const weir_evict_entry *entry)
{
    struct slru *slru = state;
    learn(slru, entry);
    make_evictable(slru, entry->entry);
}

static void use(void *state, const weir_evict_entry *entry)
{
    struct slru *slru = state;
    struct entry *e = &slru->entries[entry->entry];
    learn(slru, entry);
    e->used = entry->last_use;
    if (entry->last_use > entry->since)
        weir_heap_set(slru->guarded, e->used, e->depth, entry->entry);
    if (weir_heap_has(slru->evictable, entry->entry))
        make_evictable(slru, entry->entry);
    demote_overflow(slru);
}

static void drop(void *state, uint32_t entry)
{
    struct slru *slru = state;
    weir_heap_remove(slru->evictable, entry);
}

static void forget(void *state, uint32_t entry)
{
    struct slru *slru = state;
    weir_heap_remove(slru->evictable, entry);
    weir_heap_remove(slru->guarded, entry);
    if (slru->entries[entry].known) {
        slru->entries[entry].known = false;
        slru->known--;
    }
    demote_overflow(slru);
}

static int32_t next(void *state)
{
    struct slru *slru = state;
    struct weir_heap_slot slot;
    return weir_heap_pop(slru->evictable, &slot) ? (int32_t)slot.entry : -1;
}

const weir_evict_policy weir_evict_slru = {
    .name = "slru",
    .create = create,
    .create_in = create_in,
    .destroy = destroy,
    .add = add,
    .use = use,
    .remove = drop,
    .forget = forget,
    .next = next,
};
