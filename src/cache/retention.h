/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CACHE_RETENTION_H
#define WEIR_CACHE_RETENTION_H

/* What keeps a page longer than its last use: priorities, which the policies
 * weigh, and pins, which nothing overrules.
 *
 *   entry ──► until[1..n]   when the grant of each priority ends
 *               │ the highest that lives is entry.priority
 *               ▼
 *             ends ──poll──► the next lower that lives, or 0
 *
 *   pin ──► tip ──parent──► … ──► first page     pin ◄──► pin, oldest first
 *                counts[], KEPT_DEVICE or KEPT_HOST
 *
 * A pin names the deepest entry that it keeps and keeps all above it. So a page
 * that leaves the index, which is always a leaf then, is the tip of each pin
 * that keeps it, and these pins draw back to its parent.
 *
 * An entry that is kept is so in one tier: on the device if its copy there has
 * arrived and those of all above it have, else on the host. A later pin may move
 * it from the host to the device, never the other way. Its page there is pinned
 * once, however many pins keep it; a device page is held as by a sequence.
 *
 * Invariants (weir_cache_check):
 *   - until[p] of a page without entry is 0; entry.priority = p means that
 *     until[p] is not 0 and until[q] for every higher q is over
 *   - ends holds exactly the entries whose priority ends, by when
 *   - counts[entry] = pins whose path it is on; KEPT_DEVICE or KEPT_HOST exactly
 *     if that is not 0, and the copy it names is there
 *   - above a KEPT_DEVICE entry all are
 *   - n_pages[t] = entries kept in tier t, at most limit[t] */

#include <stdbool.h>
#include <stdint.h>

struct weir_heap;
struct weir_cache;

/* ---- priority.c ---------------------------------------------------------- */

struct priorities {
    uint32_t n;             /* priorities above 0 */
    uint64_t *until;        /* [n_entries][n] in ns, 0: not given */
    struct weir_heap *ends; /* NULL: n is 0 */
};

int weir_priority_create(struct weir_cache *cache, uint32_t n);
void weir_priority_destroy(struct weir_cache *cache);

/* Gives an entry a priority, 0..n, for ttl_ns from now; 0: for ever. The
 * policies are to be told by a use or a gain that follows. */
void weir_priority_grant(struct weir_cache *cache, int32_t ref, uint32_t priority, uint64_t ttl_ns);

/* The entry leaves the index. */
void weir_priority_forget(struct weir_cache *cache, int32_t ref);

/* Ends the priorities that are over now, the first few hundred of them. */
void weir_priority_expire(struct weir_cache *cache);

/* NULL, or the invariant that does not hold. */
const char *weir_priority_fault(const struct weir_cache *cache);

/* ---- pin.c --------------------------------------------------------------- */

struct pin {
    uint64_t id; /* 0: the slot is free */
    uint32_t generation;
    uint32_t n_pages; /* kept now */
    int32_t tip;      /* WEIR_RADIX_NONE: nothing is kept */
    int32_t older, newer;
    int32_t free_next;
    uint64_t since_ns;
    void *user;
};

#define MAX_PINS UINT16_MAX

struct pins {
    struct pin *slots; /* [max]; NULL: max is 0 */
    uint16_t *counts;  /* [n_entries] pins that keep each; likewise */
    uint32_t max;
    uint32_t n;
    int32_t free;
    int32_t oldest, newest;
    uint32_t limit[2]; /* [tier] */
    uint32_t n_pages[2];
};

int weir_pin_create(struct weir_cache *cache, uint32_t max_pins, double max_pinned);
void weir_pin_destroy(struct weir_cache *cache);

/* Pins that keep an entry. */
uint32_t weir_pin_count(const struct weir_cache *cache, int32_t ref);

/* An entry that is kept leaves the index. */
void weir_pin_forget(struct weir_cache *cache, int32_t ref);

/* NULL, or the invariant that does not hold; scratch: n_entries zeros. */
const char *weir_pin_fault(const struct weir_cache *cache, uint32_t *scratch);

#endif
