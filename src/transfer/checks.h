/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_CHECKS_H
#define WEIR_TRANSFER_CHECKS_H

/* Checksums of host pages: taken when a write-back has arrived, compared when the
 * page is loaded.
 *
 *   write-back   ─ copy ─ arrived ─ hash ─────────► sums[page], then its report
 *   load         ─ copy ────────────── arrived ──┐
 *                └ hash, compare with sums[page] ┴► its report
 *
 * Hashing is done by weir_rank_report, some bytes a call, so that no call takes
 * long: a page may take several, and a transfer is reported when its pages are
 * done. A load's are begun at once: nobody writes to the page meanwhile.
 *
 *   queues[direction]   pages of transfers, in the order of their lane
 *
 *        head                                 tail
 *         │ page │ page │ page │ page │ page │
 *           ▲ half hashed     ▲ a transfer's end
 *
 * With a share a page has two sums, of the rank's own tensors and of the replicated
 * ones, which the rank that writes the latter keeps in the share for all.
 *
 * Invariants: 0 <= tail - head <= capacity; a sum of 0 is none; the sum of a page is 0
 * from the start of its write-back until it has been hashed. */

#include "base/memory.h"
#include "transfer/geometry.h"

#include <weir/order.h>

struct weir_check_item {
    int32_t host;
    uint32_t parts; /* bit i: parts[i] */
};

/* How far the page at the head is. */
struct weir_check_cursor {
    bool begun; /* the state is that of this part */
    uint32_t part;
    uint32_t tensor;
    uint32_t layer;
    uint32_t unit;
    uint64_t done; /* bytes of the unit */
};

struct weir_check_queue {
    struct weir_check_item *items; /* [capacity], a ring */
    uint64_t head;
    uint64_t tail;
    unsigned char *block; /* holds the state */
    void *state;          /* XXH3's, aligned as it wants to be */
    struct weir_check_cursor cursor;
};

/* The tensors that a sum covers; geometry NULL: there are none. */
struct weir_check_part {
    const struct weir_geometry *geometry;
    uint64_t *sums; /* [host_pages] */
};

struct weir_checks {
    struct weir_memory *memory;
    uint32_t every; /* hash one in so many pages written; 0: none at all */
    uint32_t bytes; /* to hash in a call */
    uint32_t capacity;
    uint32_t host_pages;
    uint64_t n_written; /* pages */
    struct weir_check_part parts[2];
    uint64_t *own_sums;
    struct weir_check_queue queues[2]; /* by weir_direction */
};

/* parts[].geometry, and the sums of the second, are the caller's. -ENOMEM; accepts `every`
 * 0, and leaves what destroy takes. */
int weir_checks_create(struct weir_checks *checks, struct weir_memory *memory, uint32_t every,
                       uint32_t bytes, uint32_t host_pages, uint32_t capacity,
                       const struct weir_geometry *own, const struct weir_geometry *shared,
                       uint64_t *shared_sums);
void weir_checks_destroy(struct weir_checks *checks);

/* Queue a transfer's pages; return the position of its end. A page that was written
 * without a checksum is not queued when it is loaded, nor one for which there is no
 * room, which happens only if transfers in flight share pages. Of a write-back, moves
 * begin..end-1 are those whose replicated tensors this rank writes; `failed`: nothing
 * arrives. */
uint64_t weir_checks_load(struct weir_checks *checks, const weir_move *moves, uint32_t n);
uint64_t weir_checks_write(struct weir_checks *checks, const weir_move *moves, uint32_t n,
                           uint32_t begin, uint32_t end, bool failed);

/* Hashes on, up to a transfer's end, and takes what that was off *bytes. DONE: the end is
 * reached; LATER: there were not enough bytes; BAD: the page at the head of the loads,
 * *host, is not what was written; the next call goes on behind it. */
enum weir_check_result {
    WEIR_CHECK_DONE,
    WEIR_CHECK_LATER,
    WEIR_CHECK_BAD
};
enum weir_check_result weir_checks_load_on(struct weir_checks *checks, uint64_t end,
                                           uint64_t *bytes, int32_t *host);
enum weir_check_result weir_checks_write_on(struct weir_checks *checks, uint64_t end,
                                            uint64_t *bytes);

/* The write-back that ends there has failed: its pages are not hashed. Loads are, since
 * they are not reported in the order of their lane. */
void weir_checks_skip_writes(struct weir_checks *checks, uint64_t end);

#endif
