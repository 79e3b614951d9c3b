/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_GATHER_RIG_H
#define WEIR_BENCH_GATHER_RIG_H

/* Experts in pinned memory, slots on the device, and lists of misses.
 *
 *   experts   bank 0: rows │ bank 1: rows │ …      pinned, a pattern
 *   slots     bank 0: rows │ bank 1: rows │ …      device
 *   lists     [set] slot rows, expert rows; counts [size]      device
 *
 * Consecutive calls take the next set, so that no call finds its bytes in a
 * cache. Within a set slots are distinct. */

#include "device.h"

#include <weir/gather.h>

#define WEIR_BENCH_GATHER_SETS 8u

struct weir_bench_gather_rig {
    struct weir_bench_device *device;
    uint32_t n_banks;
    uint32_t row_bytes[WEIR_BENCH_GATHER_BANKS];
    uint32_t n_sizes;
    const uint32_t *sizes; /* how many experts a call may miss */
    uint32_t most;         /* the largest of them */
    uint32_t n_slots;
    uint32_t n_experts;
    uint64_t expert_bytes; /* one, in all banks */
    unsigned char *pinned; /* experts, then staging for the slots and the lists */
    uint64_t pinned_bytes;
    unsigned char *staging;
    uint64_t slots;
    uint64_t slots_bytes;
    int32_t *host_lists; /* in the staging: as in `lists` */
    uint64_t lists;
    uint64_t lists_bytes;
};

/* A way to gather. */
enum weir_bench_gather_kind {
    WEIR_BENCH_GATHER_WEIR,
    WEIR_BENCH_GATHER_PLAIN, /* the baseline */
    WEIR_BENCH_GATHER_COPY   /* a loop over the copy engine, with lists on the host */
};

/* `row_bytes` and `sizes` are lists of the options; sizes must outlive the rig.
 * -ENOMEM, -EIO. */
int weir_bench_gather_rig_open(struct weir_bench_gather_rig **rig, struct weir_bench_device *device,
                               const struct weir_bench_list *row_bytes,
                               const struct weir_bench_list *sizes);
void weir_bench_gather_rig_close(struct weir_bench_gather_rig **rig);

/* weir's gather over the rig's banks; `params`: its engine and shape. */
int weir_bench_gather_rig_make(struct weir_bench_gather_rig *rig, const weir_gather_params *params,
                               weir_gather **gather);

/* Whether the rig can be gathered this way; -ENOTSUP, and the reason. */
int weir_bench_gather_rig_can(struct weir_bench_gather_rig *rig, enum weir_bench_gather_kind kind);

/* Enqueues a gather of sizes[size] experts of a set in the device's side stream.
 * `gather`: of kind WEIR. */
int weir_bench_gather_rig_call(struct weir_bench_gather_rig *rig, enum weir_bench_gather_kind kind,
                               weir_gather *gather, uint32_t size, uint32_t set);

/* Overwrites the slots, makes one call, waits, and counts the bytes that are not
 * what they should be, in all slots. `plant`: damages them before. */
int weir_bench_gather_rig_verify(struct weir_bench_gather_rig *rig,
                                 enum weir_bench_gather_kind kind, weir_gather *gather,
                                 uint32_t size, bool plant, uint64_t *n_wrong);

/* Free device memory; 0 on the CPU device. */
uint64_t weir_bench_free_memory(struct weir_bench_device *device);

#endif
