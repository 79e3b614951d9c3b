/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POLICY_H
#define WEIR_POLICY_H

/* What is given up first, and what is written back when.
 *
 * Eviction policies, by name: "lru", "slru", "lfu", "fifo".
 * Write-back policies: "write_through" writes a page when it is committed (or
 * hit, if it has lost its host copy); "write_through_selective(n)" once it has
 * been used n times, n 1..1000, "write_through_selective" alone meaning 2;
 * "write_back" when it is about to be evicted; "never". */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an eviction policy knows of an entry (one page in one tier).
 *
 *   entry     small number that names it, below the policy's capacity
 *   hits      requests that have used it, the one that computed it included
 *   depth     its place in its prefix, 0 for the first page
 *   last_use  when it was last used, by the index's clock, which each use and
 *             each commit moves on
 *   since     when it entered this tier, by the same clock */
typedef struct weir_evict_entry {
    uint32_t entry;
    uint32_t hits;
    uint32_t depth;
    uint64_t last_use;
    uint64_t since;
} weir_evict_entry;

/* An eviction policy: keeps the entries that may be evicted now in the order
 * in which it would give them up. All calls come from the cache's thread and
 * none may call back. Each call is to be O(log n) or better.
 *
 *   name     as in weir_cache_params
 *   create   makes the state for entries 0..capacity-1; 0 or -ENOMEM
 *   destroy  frees it
 *   add      the entry may now be evicted
 *   use      the entry was used by a request; called whether it may be evicted
 *            now or not, with last_use and hits already advanced
 *   remove   the entry may not be evicted for now (no-op if it was not added)
 *   forget   the entry has left the tier; what was learnt of it is dropped
 *   next     takes out and returns the entry to give up, -1 if none was added */
typedef struct weir_evict_policy {
    const char *name;
    int (*create)(void **state, uint32_t capacity);
    void (*destroy)(void *state);
    void (*add)(void *state, const weir_evict_entry *entry);
    void (*use)(void *state, const weir_evict_entry *entry);
    void (*remove)(void *state, uint32_t entry);
    void (*forget)(void *state, uint32_t entry);
    int32_t (*next)(void *state);
} weir_evict_policy;

/* The built-in eviction policy of this name; NULL: none. */
WEIR_API const weir_evict_policy *weir_evict_policy_find(const char *name) WEIR_NOEXCEPT;

/* The i-th built-in eviction policy, NULL past the last: for listing. */
WEIR_API const weir_evict_policy *weir_evict_policy_at(size_t i) WEIR_NOEXCEPT;

typedef enum weir_write_event {
    WEIR_WRITE_ON_COMMIT = 0, /* the page has just been computed */
    WEIR_WRITE_ON_HIT = 1,    /* a request uses a page without a host copy */
    WEIR_WRITE_ON_EVICT = 2   /* the page's device copy is to be given up */
} weir_write_event;

typedef enum weir_write_answer {
    WEIR_WRITE_LATER = 0, /* not now; ask again. On EVICT: the same as DROP */
    WEIR_WRITE_NOW = 1,
    WEIR_WRITE_DROP = 2 /* on EVICT: give it up without a copy */
} weir_write_answer;

/*   event  why the policy is asked
 *   hits, depth  as in weir_evict_entry
 *   bytes  of the page */
typedef struct weir_write_facts {
    weir_write_event event;
    uint32_t hits;
    uint32_t depth;
    uint64_t bytes;
} weir_write_facts;

/* A write-back policy: pure, called on the cache's thread. */
typedef struct weir_write_policy {
    const char *name;
    weir_write_answer (*decide)(const weir_write_facts *facts, uint32_t parameter);
    uint32_t parameter;
} weir_write_policy;

/* Parses a write-back policy's name. -EINVAL: unknown, or its parameter is out
 * of range. The policy's name points to static text. */
WEIR_API int weir_write_policy_parse(const char *text, weir_write_policy *policy) WEIR_NOEXCEPT;

/* The i-th built-in write-back policy's name, NULL past the last. */
WEIR_API const char *weir_write_policy_name_at(size_t i) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
