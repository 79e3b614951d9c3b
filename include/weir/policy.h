/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POLICY_H
#define WEIR_POLICY_H

/* What is given up first, and what is written back when.
 *
 * Eviction policies, by name: "lru", "slru", "lfu", "fifo", "mru", "filo";
 * "priority": the lowest priority first, the least recently used of equal ones;
 * "cost": by what it is expected to cost to compute the page again, the least
 *
 *     last_use + span * chance * (1 + priority) * dearness
 *
 * first, where dearness = (1 + first / 32768) * tokens / bytes, that of a first
 * page being 1; `first` is the place of the page's first token, since attention
 * costs as much as all else at about 32,768 tokens of context; chance is 1 for a
 * page that was asked for again and 1/8 for others; span is the time that a page
 * of no weight lives without being used. Only these two look at priorities.
 *
 * Write-back policies: "write_through" writes a page when it is committed (or
 * hit, if it has lost its host copy); "write_through_selective(n)" once it has
 * been used n times, n 1..1000, "write_through_selective" alone meaning 2;
 * "write_back" when it is about to be evicted; "never"; "adaptive" as
 * write_through, but as write_through_selective(2) while the host tier is under
 * pressure, which is while both hold:
 *   - at most a 16th of it is free or offered beyond the share that it keeps so
 *     anyway, so that a page costs another one its place
 *   - fewer than one page was hit there for four that were written lately
 * The second tells a full tier that is large enough from one that is too small:
 * by replay of public traces the first alone halves the hits of a large tier,
 * and with both a large one hits what write_through does, while one that is too
 * small is written 1.3 to 12 times less often and hits more.
 *
 * A server may pass its own of either kind: weir_cache_params. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an eviction policy knows of an entry (one page in one tier).
 *
 *   entry     small number that names it, below the policy's capacity: it is
 *             that of the entry's page, and the next one's there after `forget`
 *   hits      requests that have used it, the one that computed it included
 *   depth     its place in its prefix, 0 for the first page
 *   last_use  when it was last used, by the index's clock, which each use and
 *             each commit moves on
 *   since     when it entered this tier, by the same clock
 *   priority  the highest that was given to it and has not ended; 0: none
 *   tokens    of a page, so that depth * tokens is its first token's place
 *   bytes     of a page over all ranks; 0: unknown */
typedef struct weir_evict_entry {
    uint32_t entry;
    uint32_t hits;
    uint32_t depth;
    uint64_t last_use;
    uint64_t since;
    uint32_t priority;
    uint32_t tokens;
    uint64_t bytes;
} weir_evict_entry;

/* An eviction policy: keeps the entries that may be evicted now in the order
 * in which it would give them up. All calls come from the cache's thread and
 * none may call back. Each call is to be O(log n) or better.
 *
 *   name     as in weir_cache_params; of a caller's own: not looked at
 *   create   makes the state, not NULL, for entries 0..capacity-1, as many as
 *            the tier has pages; 0 or a negative errno, which becomes
 *            weir_cache_create's; called for each tier
 *   destroy  frees it
 *   add      the entry may now be evicted
 *   use      the entry was used by a request; called whether it may be evicted
 *            now or not, with last_use and hits already advanced
 *   remove   the entry may not be evicted for now (no-op if it was not added).
 *            When its priority ends while it is there, it is removed and added
 *   forget   the entry has left the tier; what was learnt of it is dropped
 *   next     takes out and returns the entry to give up, one that was added and
 *            not removed, forgotten or given up since; -1 if there is none. It
 *            must not keep back any that was added
 *   create_in  as create, with the cache's allocator, which is valid until
 *            destroy and through which the state is counted in
 *            weir_stats.index_bytes; may be NULL, as `name`: create is called
 *            then. The built-in policies have both */
typedef struct weir_evict_policy {
    const char *name;
    int (*create)(void **state, uint32_t capacity);
    void (*destroy)(void *state);
    void (*add)(void *state, const weir_evict_entry *entry);
    void (*use)(void *state, const weir_evict_entry *entry);
    void (*remove)(void *state, uint32_t entry);
    void (*forget)(void *state, uint32_t entry);
    int32_t (*next)(void *state);
    int (*create_in)(void **state, uint32_t capacity, const weir_allocator *allocator);
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
 *   hits, depth, priority  as in weir_evict_entry
 *   bytes  of the page
 *   host_pages   of the host tier
 *   host_room    of them, free or offered
 *   host_window  of them, to be kept free or offered: a full tier's host_room
 *                is about this
 *   host_hits    pages that requests have lately found in host memory only
 *   host_written pages that have lately been written back. Lately: both are
 *                halved when as many have been written as the tier has pages
 * Pages committed or hit together are asked about before any of them is given
 * a host page. */
typedef struct weir_write_facts {
    weir_write_event event;
    uint32_t hits;
    uint32_t depth;
    uint64_t bytes;
    uint32_t host_pages;
    uint32_t host_room;
    uint32_t host_window;
    uint64_t host_hits;
    uint64_t host_written;
    uint32_t priority;
} weir_write_facts;

/* A write-back policy: pure, called on the cache's thread.
 *
 *   name       of a built-in one; of a caller's own: not looked at
 *   decide     the answer to these facts; may not call back
 *   parameter  handed to decide */
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
