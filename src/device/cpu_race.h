/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CPU_RACE_H
#define WEIR_DEVICE_CPU_RACE_H

/* The race check: who touched a piece last, and is the next one ordered after?
 *
 *   pool   records [tensor][layer][page]       so that a run's are adjacent
 *             writer │ readers
 *               │        ├─ 0: none since the last write
 *               │        ├─ an epoch: one reader
 *               │        └─ SPILLED | node ─► node ─► node    several readers,
 *               ▼                                             none ordered after
 *             epoch = component of the stream, its time       another
 *
 * An access of a stream with clock C is ordered after an epoch (c, t) exactly
 * if t <= C[c], whatever the real time was. A write must be ordered after the
 * last writer and after all readers since; a read after the last writer. A
 * reader that is ordered after another replaces it, so a list is never longer
 * than there are streams.
 *
 * All under the device's lock. When memory runs out the check loses precision
 * (it may miss a race), never more. */

#include "base/log.h"
#include "device/cpu_clock.h"

#define WEIR_CPU_RACE_REPORTS 20u

struct weir_cpu_race_record {
    uint64_t writer;
    uint64_t readers;
};

struct weir_cpu_race_pool {
    uint32_t n_pages;
    uint32_t n_tensors;
    uint32_t n_layers;
    struct weir_cpu_race_record records[];
};

struct weir_cpu_race_reader {
    uint64_t epoch;
    uint32_t next; /* index + 1; 0: the last */
};

enum weir_cpu_race_kind {
    WEIR_CPU_RACE_UNORDERED,
    WEIR_CPU_RACE_NO_PIECE, /* outside the pool */
    WEIR_CPU_RACE_UNPINNED  /* a copy touches host memory of no one registration */
};

struct weir_cpu_race_report {
    enum weir_cpu_race_kind kind;
    uint32_t stream; /* components */
    uint32_t other;
    bool write;
    bool other_write;
    uint32_t pool;
    int64_t page;
    uint32_t tensor;
    uint32_t layer;
    uint64_t address;
};

struct weir_cpu_race {
    bool enabled;
    bool out_of_memory; /* a line is due that says so */
    uint64_t n_races;
    uint32_t n_reports; /* kept until a host thread logs them */
    uint32_t n_logged;
    struct weir_cpu_race_report reports[WEIR_CPU_RACE_REPORTS];
    struct weir_cpu_race_pool **pools; /* by id - 1; NULL: unused */
    uint32_t n_pools;
    struct weir_cpu_race_reader *readers;
    uint32_t n_readers;
    uint32_t capacity;
    uint32_t free_readers; /* index + 1 */
};

/* The op that makes an access: its stream's clock, its own time included. */
struct weir_cpu_accessor {
    const struct weir_cpu_point *clock;
    uint32_t component;
};

/* -ENOMEM. */
int weir_cpu_race_add_pool(struct weir_cpu_race *race, uint32_t n_pages, uint32_t n_tensors,
                           uint32_t n_layers, uint32_t *pool);
/* -EINVAL: no such pool. O(records). */
int weir_cpu_race_remove_pool(struct weir_cpu_race *race, uint32_t pool);
void weir_cpu_race_free(struct weir_cpu_race *race);

/* Checks and records an access to a piece of `count` pages from `page` on.
 * Pool 0 is not checked, nor is page 0, whose content means nothing. */
void weir_cpu_race_access(struct weir_cpu_race *race, const struct weir_cpu_accessor *accessor,
                          uint32_t pool, int32_t page, int32_t count, uint32_t tensor,
                          uint32_t layer, bool write);

/* Counts and keeps what is found; the first WEIR_CPU_RACE_REPORTS are kept. */
void weir_cpu_race_report(struct weir_cpu_race *race, const struct weir_cpu_race_report *report);

/* Gives up for good: no memory for a clock. */
void weir_cpu_race_give_up(struct weir_cpu_race *race);

void weir_cpu_race_log(const struct weir_cpu_race_report *report, const weir_log *log);

#endif
