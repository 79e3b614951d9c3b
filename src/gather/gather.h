/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_GATHER_GATHER_H
#define WEIR_GATHER_GATHER_H

/* A gather as devices see it.
 *
 *   weir_gather_create ──► check ──► gather ──► ops->gather_prepare ──► state
 *   weir_gather_launch ──► check ──► call ────► ops->gather_launch
 *                                     │
 *                                     ├─ the lists, where the device finds them
 *                                     └─ each bank's bases for this launch
 *
 * Invariants: banks are checked and complete: no field but an address is 0 that
 * stands for a default, and every bank is made of lines; a device sees calls
 * whose bases are all set. */

#include "device/device.h"

#include <weir/gather.h>

struct weir_gather {
    weir_device *device;
    weir_log log;
    weir_gather_params params; /* but for banks */
    weir_bank banks[WEIR_GATHER_MAX_BANKS];
    uint32_t *skipped; /* a word of the device */
    uint32_t cpu_pool; /* of the target rows as pages, a tensor a bank; 0: none */
    void *state;       /* the device's */
};

/* Larger targets are not worth the race check's memory. */
#define WEIR_GATHER_RACE_ROWS (1u << 20)

struct weir_gather_call {
    const struct weir_gather *gather;
    weir_gather_rows rows;
    weir_bank_bases bases[WEIR_GATHER_MAX_BANKS];
};

/* Bytes from a row's first to behind its last. */
static inline uint64_t weir_bank_extent(const weir_bank *bank, uint64_t pitch)
{
    return (bank->payload_lines - 1) * pitch + bank->payload_bytes;
}

/* Checks params whose struct_size is right and completes their banks into
 * `banks`. -EINVAL with a log line. */
int weir_gather_check(const weir_gather_params *params, const weir_log *log, weir_bank *banks);

#endif
