/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu_race.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define TIME_BITS 48
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)
#define SPILLED (UINT64_C(1) << 63)
#define MAX_READERS (UINT32_C(1) << 22)

/* ---- Pools --------------------------------------------------------------- */

int weir_cpu_race_add_pool(struct weir_cpu_race *race, uint32_t n_pages, uint32_t n_tensors,
                           uint32_t n_layers, uint32_t *pool)
{
    uint32_t slot = 0;
    while (slot < race->n_pools && race->pools[slot])
        slot++;
    if (slot == race->n_pools) {
        size_t size = ((size_t)slot + 1) * sizeof *race->pools;
        struct weir_cpu_race_pool **pools = realloc(race->pools, size);
        if (!pools)
            return -ENOMEM;
        pools[slot] = NULL;
        race->pools = pools;
        race->n_pools++;
    }

    size_t records;
    if (__builtin_mul_overflow((size_t)n_tensors * n_layers, n_pages, &records) ||
        records >
            (SIZE_MAX - sizeof(struct weir_cpu_race_pool)) / sizeof(struct weir_cpu_race_record))
        return -ENOMEM;
    struct weir_cpu_race_pool *made =
        calloc(1, sizeof *made + records * sizeof(struct weir_cpu_race_record));
    if (!made)
        return -ENOMEM;
    made->n_pages = n_pages;
    made->n_tensors = n_tensors;
    made->n_layers = n_layers;
    race->pools[slot] = made;
    *pool = slot + 1;
    return 0;
}

static void free_readers(struct weir_cpu_race *race, struct weir_cpu_race_record *record)
{
    if (record->readers & SPILLED) {
        uint32_t first = (uint32_t)record->readers;
        uint32_t last = first;
        while (race->readers[last - 1].next)
            last = race->readers[last - 1].next;
        race->readers[last - 1].next = race->free_readers;
        race->free_readers = first;
    }
    record->readers = 0;
}

int weir_cpu_race_remove_pool(struct weir_cpu_race *race, uint32_t pool)
{
    if (pool == 0 || pool > race->n_pools || !race->pools[pool - 1])
        return -EINVAL;
    struct weir_cpu_race_pool *p = race->pools[pool - 1];
    size_t records = (size_t)p->n_tensors * p->n_layers * p->n_pages;
    for (size_t i = 0; i < records; i++)
        free_readers(race, &p->records[i]);
    free(p);
    race->pools[pool - 1] = NULL;
    return 0;
}

void weir_cpu_race_free(struct weir_cpu_race *race)
{
    for (uint32_t i = 0; i < race->n_pools; i++)
        free(race->pools[i]);
    free(race->pools);
    free(race->readers);
}

/* ---- Reports ------------------------------------------------------------- */

void weir_cpu_race_report(struct weir_cpu_race *race, const struct weir_cpu_race_report *report)
{
    race->n_races++;
    if (race->n_reports < WEIR_CPU_RACE_REPORTS)
        race->reports[race->n_reports++] = *report;
}

void weir_cpu_race_give_up(struct weir_cpu_race *race)
{
    race->enabled = false;
    race->out_of_memory = true;
}

void weir_cpu_race_log(const struct weir_cpu_race_report *report, const weir_log *log)
{
    const char *access = report->write ? "write" : "read";
    switch (report->kind) {
    case WEIR_CPU_RACE_UNORDERED:
        weir_log_line(log, WEIR_LOG_ERROR,
                      "race: %s by stream %u is not ordered after %s by stream %u: "
                      "pool %u page %" PRId64 " tensor %u layer %u",
                      access, report->stream, report->other_write ? "write" : "read", report->other,
                      report->pool, report->page, report->tensor, report->layer);
        break;
    case WEIR_CPU_RACE_NO_PIECE:
        weir_log_line(log, WEIR_LOG_ERROR,
                      "race: %s by stream %u outside the pool: "
                      "pool %u page %" PRId64 " tensor %u layer %u",
                      access, report->stream, report->pool, report->page, report->tensor,
                      report->layer);
        break;
    case WEIR_CPU_RACE_UNPINNED:
        weir_log_line(log, WEIR_LOG_ERROR,
                      "race: %s by stream %u of host memory at 0x%" PRIx64
                      " that is not inside one registration",
                      access, report->stream, report->address);
        break;
    }
}

/* ---- Accesses ------------------------------------------------------------ */

static uint64_t pack(uint32_t component, uint64_t time)
{
    return (uint64_t)component << TIME_BITS | (time & TIME_MASK);
}

static uint32_t component_of(uint64_t epoch)
{
    return (uint32_t)(epoch >> TIME_BITS);
}

static bool is_before(uint64_t epoch, const struct weir_cpu_point *clock)
{
    return (epoch & TIME_MASK) <= clock->time[component_of(epoch)];
}

/* Index + 1 of a reader that is in no list, or 0. */
static uint32_t new_reader(struct weir_cpu_race *race)
{
    if (race->free_readers) {
        uint32_t reader = race->free_readers;
        race->free_readers = race->readers[reader - 1].next;
        return reader;
    }
    if (race->n_readers == race->capacity) {
        uint32_t capacity = race->capacity ? 2 * race->capacity : 256;
        if (capacity > MAX_READERS)
            return 0;
        struct weir_cpu_race_reader *readers =
            realloc(race->readers, capacity * sizeof *race->readers);
        if (!readers)
            return 0;
        race->readers = readers;
        race->capacity = capacity;
    }
    return ++race->n_readers;
}

/* Puts a reader in front of the record's list. */
static bool push_reader(struct weir_cpu_race *race, struct weir_cpu_race_record *record,
                        uint64_t epoch)
{
    uint32_t reader = new_reader(race);
    if (!reader)
        return false;
    uint32_t next = record->readers & SPILLED ? (uint32_t)record->readers : 0;
    race->readers[reader - 1] = (struct weir_cpu_race_reader){ epoch, next };
    record->readers = SPILLED | reader;
    return true;
}

/* Takes out of the record's list those that the clock is ordered after. */
static void drop_earlier_readers(struct weir_cpu_race *race, struct weir_cpu_race_record *record,
                                 const struct weir_cpu_point *clock)
{
    uint32_t kept = 0;
    for (uint32_t at = (uint32_t)record->readers; at;) {
        struct weir_cpu_race_reader *reader = &race->readers[at - 1];
        uint32_t next = reader->next;
        if (is_before(reader->epoch, clock)) {
            reader->next = race->free_readers;
            race->free_readers = at;
        } else {
            reader->next = kept;
            kept = at;
        }
        at = next;
    }
    record->readers = kept ? SPILLED | kept : 0;
}

static void add_reader(struct weir_cpu_race *race, struct weir_cpu_race_record *record,
                       uint64_t epoch, const struct weir_cpu_point *clock)
{
    uint64_t single = record->readers;
    if (single & SPILLED) {
        drop_earlier_readers(race, record, clock);
    } else {
        record->readers = 0;
        if (single && !is_before(single, clock))
            push_reader(race, record, single);
    }
    if (record->readers && push_reader(race, record, epoch))
        return;
    free_readers(race, record);
    record->readers = epoch;
}

/* The epoch of a reader that the clock is not ordered after, or 0. */
static uint64_t unordered_reader(const struct weir_cpu_race *race,
                                 const struct weir_cpu_race_record *record,
                                 const struct weir_cpu_point *clock)
{
    if (!(record->readers & SPILLED))
        return record->readers && !is_before(record->readers, clock) ? record->readers : 0;
    for (uint32_t at = (uint32_t)record->readers; at; at = race->readers[at - 1].next)
        if (!is_before(race->readers[at - 1].epoch, clock))
            return race->readers[at - 1].epoch;
    return 0;
}

/* An earlier access that conflicts, or 0. */
static uint64_t conflict(const struct weir_cpu_race *race,
                         const struct weir_cpu_race_record *record,
                         const struct weir_cpu_point *clock, bool write, bool *other_write)
{
    *other_write = record->writer && !is_before(record->writer, clock);
    if (*other_write)
        return record->writer;
    return write ? unordered_reader(race, record, clock) : 0;
}

void weir_cpu_race_access(struct weir_cpu_race *race, const struct weir_cpu_accessor *accessor,
                          uint32_t pool, int32_t page, int32_t count, uint32_t tensor,
                          uint32_t layer, bool write)
{
    if (pool == 0 || (page == 0 && count == 1))
        return;
    struct weir_cpu_race_report report = { .stream = accessor->component,
                                           .write = write,
                                           .pool = pool,
                                           .page = page,
                                           .tensor = tensor,
                                           .layer = layer };
    struct weir_cpu_race_pool *p = pool <= race->n_pools ? race->pools[pool - 1] : NULL;
    if (!p || page < 1 || (int64_t)page + count - 1 > p->n_pages || tensor >= p->n_tensors ||
        layer >= p->n_layers) {
        report.kind = WEIR_CPU_RACE_NO_PIECE;
        weir_cpu_race_report(race, &report);
        return;
    }

    const struct weir_cpu_point *clock = accessor->clock;
    uint64_t epoch = pack(accessor->component, clock->time[accessor->component]);
    struct weir_cpu_race_record *record =
        &p->records[((size_t)tensor * p->n_layers + layer) * p->n_pages + (uint32_t)page - 1];
    for (int32_t i = 0; i < count; i++, record++) {
        uint64_t other = conflict(race, record, clock, write, &report.other_write);
        if (other) {
            report.kind = WEIR_CPU_RACE_UNORDERED;
            report.other = component_of(other);
            report.page = (int64_t)page + i;
            weir_cpu_race_report(race, &report);
        }
        if (write) {
            free_readers(race, record);
            record->writer = epoch;
        } else {
            add_reader(race, record, epoch, clock);
        }
    }
}
