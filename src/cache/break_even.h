/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CACHE_BREAK_EVEN_H
#define WEIR_CACHE_BREAK_EVEN_H

/* Whether the part of a hit that is in host memory only is worth its load.
 *
 *   hit    D  D  D  H  H  D  H        D: on the device or on its way there
 *                   ├──────────┤      computing begins at the first H and does
 *                   ▲                 not leave out the D behind it
 *                   first
 *   load   = (loads ahead + 3 H) * page_bytes / bytes_per_second
 *   compute = 4 pages * page_tokens * ns_per_token
 *
 * Pure: functions of their arguments. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a server tells; 0: unknown. */
struct rates {
    uint64_t ns_per_token;
    uint64_t bytes_per_second;
};

struct break_even {
    uint64_t load_ns;    /* 0: unknown */
    uint64_t compute_ns; /* 0: unknown */
    bool load;           /* loading costs no more, or one of them is unknown */
};

/*   n_load     pages to load
 *   n_ahead    pages whose load comes before theirs
 *   n_compute  pages to compute instead */
struct break_even weir_break_even(const struct rates *rates, uint64_t page_bytes,
                                  uint32_t page_tokens, uint64_t n_load, uint64_t n_ahead,
                                  uint64_t n_compute);

#endif
