/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_FUZZ_CACHE_WORLD_H
#define WEIR_TESTS_FUZZ_CACHE_WORLD_H

/* Two caches that are given the same calls, and what must be true of them.
 *
 *   input ─► a call, twice ─► the same answer, the same digest
 *                │
 *                ├─ refused as a mistake: nothing has changed
 *                └─ an order: what ranks have to report of it is due until they do
 *
 * fuzz_cache.c draws the calls and looks at what each gives; here is what lasts
 * from call to call. */

#include "input.h"

#include <weir/cache.h>
#include <weir/lifecycle.h>
#include <weir/order.h>
#include <weir/pin.h>

#include <errno.h>

enum {
    MAX_PAGES = 16, /* of a tier */
    MAX_SEQS = 5,
    MAX_STEPS = 4,
    MAX_WRITES = 3,
    MAX_RANKS = 3,
    MAX_PINS = 3,
    MAX_PRIORITIES = 3,
    MAX_KIDS = 3, /* of a fork */
    MAX_TOKENS = MAX_PAGES * 4 + 8,
    MAX_CALLS = 200 /* so that an input does not take long */
};

/* What ranks have to report of a step or a write-back, a bit a rank. */
struct due {
    uint64_t step;
    uint64_t ticket;
    uint64_t ranks[WEIR_REPORT_WRITE_BACK + 1];
    bool cancelled[WEIR_REPORT_WRITE_BACK + 1];
    bool copied; /* pages of the load, on the device */
};

struct world {
    struct input in;
    weir_cache *caches[2];
    weir_seq seqs[MAX_SEQS][2]; /* closed ones too, so that stale handles are used */
    weir_pin pins[MAX_PINS][2];
    weir_step steps[2];
    bool step_open, draining;
    uint32_t page_tokens, device_pages, host_pages, n_ranks, max_steps;
    uint64_t next_step, now_ns, n_copies;
    uint32_t n_due;
    struct due due[MAX_STEPS + MAX_WRITES];
    int32_t tokens[MAX_TOKENS];
    weir_span spans[2];
};

extern const weir_field world_fields[2];

/* The same call to both caches of w, `i` being the cache; yields what they return. A
 * mistake of the caller's (-EINVAL, -ESTALE) changes nothing. */
#define both(call)                                    \
    __extension__({                                   \
        int rcs_[2];                                  \
        uint64_t digest_ = world_digest(w);           \
        for (int i = 0; i < 2; i++)                   \
            rcs_[i] = (call);                         \
        require(rcs_[0] == rcs_[1]);                  \
        if (rcs_[0] == -EINVAL || rcs_[0] == -ESTALE) \
            require(world_digest(w) == digest_);      \
        rcs_[0];                                      \
    })

static inline uint32_t below(struct world *w, uint32_t limit)
{
    return take_below(&w->in, limit);
}

static inline uint64_t world_digest(const struct world *w)
{
    return w->caches[0] ? weir_cache_digest(w->caches[0]) : 0;
}

/* Caches of any kind, by the input's first bytes. */
void world_open(struct world *w);

/* A prompt of few letters, a letter a page, so that prompts share prefixes. */
weir_key world_key(struct world *w);

weir_stats world_stats(const struct world *w);
void world_expect_sound(const struct world *w);

/* What is due of a step, its load or a write-back; NULL: nothing ever was, or all is
 * reported. */
struct due *world_due(struct world *w, uint32_t kind, uint64_t number);
bool world_step_in_flight(struct world *w, uint64_t step);

/* Forgets what nothing is due of any more. */
void world_retire(struct world *w);

/* Takes the order of the step that has ended, and looks whether it makes sense. */
void world_take_order(struct world *w, const void *bytes, size_t n);

/* Sends a report; it is taken if all of it is due, and nothing twice. */
void world_send(struct world *w, uint32_t rank, const weir_report_item *items, size_t n);

/* All that a rank has to report, and well. */
void world_report_all(struct world *w, uint32_t rank);

#endif
