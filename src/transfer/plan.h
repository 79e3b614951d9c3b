/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_PLAN_H
#define WEIR_TRANSFER_PLAN_H

/* From moves to copies, in two steps, both pure:
 *
 *   moves (device, host)      (7,3) (4,9) (5,10) (6,11) (8,4)
 *       sort, merge
 *   runs (device, host, n)    (4,9,3) (7,3,2)
 *       per (tensor, layer)
 *   copies (2-D)              rows × row_bytes with a stride on either side
 *
 * Runs are sorted by device page, are consecutive on both sides, and never
 * cross a host segment. A copy never crosses a registration. Together the
 * copies of a run cover each byte of its pieces exactly once. */

#include "transfer/geometry.h"

#include <weir/order.h>

struct weir_run {
    int32_t device; /* first device page */
    int32_t host;   /* first host page */
    int32_t count;
};

/* Writes the runs of n moves to `runs` (capacity n, all of which may be
 * overwritten; must not overlap `moves`) and returns how many there are. Sorts
 * `moves` in place by device page. Allocates nothing; O(n log k) for moves that
 * come as k ascending sequences, O(n) if sorted. */
uint32_t weir_plan_runs(const struct weir_geometry *geometry, weir_move *moves, uint32_t n,
                        struct weir_run *runs);

/* `rows` rows of row_bytes each; row r lies at device + r*device_stride and at
 * host + r*host_stride. Strides are at least row_bytes. What is contiguous on
 * both sides is one row. */
struct weir_copy {
    uint64_t device;
    uint64_t host;
    uint64_t row_bytes;
    uint64_t rows;
    uint64_t device_stride;
    uint64_t host_stride;
};

/* Walks the copies of one run in one (tensor, layer):
 *
 *     weir_copies_begin(&it, geometry, tensor, layer, run);
 *     while (weir_copies_next(&it, &copy))
 *         …
 *
 * A tensor without that layer has no copies. The run becomes `blocks` equal
 * blocks, one a page or one for all; each is given out whole, or in parts where
 * it meets the end of a registration.
 *
 *     row  ├──────┤  ├──────┤  ├──────┤  ├──────┤      a block of 4 rows
 *                        ╎ registration ends here
 *     out  ├──────┤  ├───┤├─┤  ├──────┤  ├──────┤      4 copies: 1, part, part, 2
 *
 * `rest` holds what is left of the present block; of its first row, row_done
 * bytes are given out. */
struct weir_copies {
    struct weir_host_place place; /* of the tensor */
    struct weir_copy block;
    struct weir_copy rest;
    uint64_t row_done;
    uint64_t block_device_stride;
    uint64_t block_host_stride;
    uint32_t blocks; /* that follow the present one */
};

void weir_copies_begin(struct weir_copies *it, const struct weir_geometry *geometry,
                       uint32_t tensor, uint32_t layer, struct weir_run run);
bool weir_copies_next(struct weir_copies *it, struct weir_copy *copy);

#endif
