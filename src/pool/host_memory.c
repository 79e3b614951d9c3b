/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/host_memory.h"

#include "base/log.h"
#include "pool/memory_room.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE_BYTES (UINT64_C(2) << 20)
#define DEFAULT_CHUNK_LIMIT (UINT64_C(256) << 30)
#define MAX_BYTES (UINT64_C(1) << 62)
#define DEFAULT_MAX_THREADS 16
#define MAX_THREADS 64
#define MAX_NODES 1024
#define MPOL_PREFERRED 1

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* ---- Mapping -------------------------------------------------------------- */

static unsigned char *map_bytes(uint64_t bytes)
{
    uint64_t spare = bytes >= HUGE_BYTES ? HUGE_BYTES : 0;
    void *mapped =
        mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    if (!spare)
        return mapped;

    /* The budget counts every byte, so the ends that alignment needed go back. */
    uintptr_t start = (uintptr_t)mapped;
    uint64_t head = round_up(start, HUGE_BYTES) - start;
    unsigned char *base = (unsigned char *)mapped + head;
    if (head)
        munmap(mapped, head);
    if (spare > head)
        munmap(base + bytes, spare - head);
    /* Refused where huge pages are off: small pages do as well. */
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    return base;
}

/* Pages come from the device's side of the machine, where it has any left. A
 * pinned page cannot move there later, and most machines have one side only, so
 * a refusal is no failure. */
static void prefer_node(unsigned char *base, uint64_t bytes, int node)
{
    unsigned long nodes[MAX_NODES / (8 * sizeof(long))] = { 0 };
    if (node < 0 || node >= MAX_NODES)
        return;
    nodes[(size_t)node / (8 * sizeof *nodes)] = 1ul << (size_t)node % (8 * sizeof *nodes);
    (void)syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, (unsigned long)MAX_NODES, 0u);
}

struct touch_part {
    unsigned char *begin;
    unsigned char *end;
    size_t page;
};

static void *touch(void *argument)
{
    const struct touch_part *part = argument;
    for (volatile unsigned char *p = part->begin; p < part->end; p += part->page)
        *p = 0;
    return NULL;
}

static uint32_t default_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1)
        return 1;
    return n > DEFAULT_MAX_THREADS ? DEFAULT_MAX_THREADS : (uint32_t)n;
}

/* Pinning pages that are not there yet would make the driver fault them in one
 * after the other. */
static void touch_all(unsigned char *base, uint64_t bytes, uint32_t n_threads, size_t page)
{
    uint64_t blocks = (bytes + HUGE_BYTES - 1) / HUGE_BYTES;
    if (n_threads == 0)
        n_threads = default_threads();
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    if (n_threads > blocks)
        n_threads = (uint32_t)blocks;

    struct touch_part parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS];
    for (uint32_t i = 0; i < n_threads; i++) {
        uint64_t begin = blocks * i / n_threads * HUGE_BYTES;
        uint64_t end = blocks * (i + 1) / n_threads * HUGE_BYTES;
        parts[i] = (struct touch_part){ base + begin, base + (end < bytes ? end : bytes), page };
        started[i] = i > 0 && pthread_create(&threads[i], NULL, touch, &parts[i]) == 0;
    }
    for (uint32_t i = 0; i < n_threads; i++)
        if (!started[i])
            touch(&parts[i]);
    for (uint32_t i = 0; i < n_threads; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
}

/* ---- Pinning -------------------------------------------------------------- */

/* Unpins the chunks that start below `end`, the last one first. */
static void unpin(const struct weir_host_memory *memory, weir_device *device, uint64_t end)
{
    uint64_t chunk = memory->chunk_bytes;
    for (uint64_t n = (end + chunk - 1) / chunk; n > 0; n--)
        device->ops->host_unregister(device, memory->base + (n - 1) * chunk);
}

/* All chunks or none; *failed receives where the first one that failed is. */
static int pin(const struct weir_host_memory *memory, weir_device *device, uint64_t *failed)
{
    uint64_t chunk = memory->chunk_bytes;
    for (uint64_t at = 0; at < memory->bytes; at += chunk) {
        uint64_t left = memory->bytes - at;
        int rc = device->ops->host_register(device, memory->base + at, left < chunk ? left : chunk);
        if (rc) {
            unpin(memory, device, at);
            *failed = at;
            return rc;
        }
        if (left <= chunk)
            break;
    }
    return 0;
}

/* Least common multiple of the granule and a power of two; at most MAX_BYTES,
 * which is more than any pool has. */
static uint64_t chunk_unit(uint64_t granule, uint64_t page)
{
    while (granule % page) {
        if (granule > MAX_BYTES / 2)
            return MAX_BYTES;
        granule *= 2;
    }
    return granule;
}

static uint64_t whole_units(uint64_t bytes, uint64_t unit)
{
    return bytes < unit ? unit : bytes / unit * unit;
}

/* The operator sees an error of the driver's, which does not say whose limit it
 * was: so all that it may have been. */
static void log_refusal(const struct weir_host_memory *memory,
                        const struct weir_host_memory_params *params, uint64_t at, int rc,
                        const weir_log *log)
{
    struct rlimit lock;
    char locked[32] = "unlimited";
    if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY)
        snprintf(locked, sizeof locked, "%" PRIu64, (uint64_t)lock.rlim_cur);
    struct weir_memory_room room;
    weir_memory_room(params->root ? params->root : "", &room);
    weir_log_line(log, WEIR_LOG_ERROR,
                  "host pool of %" PRIu64 " bytes: pinning in chunks of %" PRIu64
                  " bytes failed at offset %" PRIu64 " with %s; ulimit -l is %s, room beside the "
                  "pool is %" PRIu64 " bytes by %s",
                  memory->bytes, memory->chunk_bytes, at, weir_error_name(rc), locked, room.bytes,
                  room.limit[0] ? room.limit : "nothing known");
}

static int pin_by_halves(struct weir_host_memory *memory, uint64_t unit,
                         const struct weir_host_memory_params *params, const weir_log *log)
{
    uint64_t limit = params->chunk_limit ? params->chunk_limit : DEFAULT_CHUNK_LIMIT;
    memory->chunk_bytes =
        memory->bytes <= limit ? round_up(memory->bytes, unit) : whole_units(limit, unit);
    for (;;) {
        uint64_t at;
        int rc = pin(memory, memory->device, &at);
        if (rc == 0)
            return 0;
        uint64_t chunk = memory->chunk_bytes;
        if (chunk == unit || memory->device->ops->status(memory->device) != 0) {
            log_refusal(memory, params, at, rc, log);
            return rc;
        }
        weir_log_line(log, WEIR_LOG_WARN,
                      "host pool of %" PRIu64 " bytes: pinning in chunks of %" PRIu64
                      " bytes failed at offset %" PRIu64 " with %s; trying half of that",
                      memory->bytes, chunk, at, weir_error_name(rc));
        memory->chunk_bytes = whole_units(chunk / 2, unit);
    }
}

/* ---- The object ----------------------------------------------------------- */

static uint64_t pool_bytes(const struct weir_host_memory_params *params)
{
    return round_up(params->bytes, (uint64_t)sysconf(_SC_PAGESIZE));
}

int weir_host_memory_check(const struct weir_host_memory_params *params, const weir_log *log)
{
    if (params->bytes == 0 || params->bytes > MAX_BYTES)
        return weir_invalid(log, "host pool of %" PRIu64 " bytes: must be 1..2^62", params->bytes);
    if (params->granule == 0 || params->granule > MAX_BYTES)
        return weir_invalid(log, "host pool's granule is %" PRIu64 " bytes: must be 1..2^62",
                            params->granule);
    uint64_t bytes = pool_bytes(params);
    if (params->bytes_limit && bytes > params->bytes_limit) {
        weir_log_line(log, WEIR_LOG_ERROR,
                      "host pool needs %" PRIu64 " bytes, host_bytes_limit is %" PRIu64, bytes,
                      params->bytes_limit);
        return -ENOSPC;
    }
    if (params->skip_memory_check)
        return 0;
    struct weir_memory_room room;
    weir_memory_room(params->root ? params->root : "", &room);
    if (bytes <= room.bytes)
        return 0;
    weir_log_line(log, WEIR_LOG_ERROR,
                  "host pool needs %" PRIu64 " bytes, there is room for %" PRIu64 " by %s (%" PRIu64
                  " bytes of huge pages set aside do not count); "
                  "skip_memory_check tries all the same",
                  bytes, room.bytes, room.limit, room.huge_bytes);
    return -ENOMEM;
}

int weir_host_memory_create(struct weir_host_memory **memory, weir_device *device,
                            const struct weir_host_memory_params *params, const weir_log *log)
{
    int rc = weir_host_memory_check(params, log);
    if (rc)
        return rc;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = pool_bytes(params);
    struct weir_host_memory *made = weir_memory_take(params->memory, 1, sizeof *made);
    unsigned char *base = made ? map_bytes(bytes) : NULL;
    if (!base) {
        weir_log_line(log, WEIR_LOG_ERROR, "host pool: mapping %" PRIu64 " bytes failed", bytes);
        weir_memory_give(params->memory, made, 1, sizeof *made);
        return -ENOMEM;
    }
    *made = (struct weir_host_memory){
        .base = base,
        .bytes = bytes,
        .device = device,
        .memory = params->memory,
    };
    prefer_node(base, bytes, device->numa_node);
    touch_all(base, bytes, params->touch_threads, page);

    rc = pin_by_halves(made, chunk_unit(params->granule, page), params, log);
    if (rc) {
        munmap(base, bytes);
        weir_memory_give(params->memory, made, 1, sizeof *made);
        return rc;
    }
    *memory = made;
    return 0;
}

int weir_host_memory_register(const struct weir_host_memory *memory, weir_device *device,
                              const weir_log *log)
{
    uint64_t at;
    int rc = pin(memory, device, &at);
    if (rc)
        weir_log_line(log, WEIR_LOG_ERROR,
                      "host pool of %" PRIu64 " bytes: pinning it for another device in chunks of "
                      "%" PRIu64 " bytes failed at offset %" PRIu64 " with %s",
                      memory->bytes, memory->chunk_bytes, at, weir_error_name(rc));
    return rc;
}

void weir_host_memory_unregister(const struct weir_host_memory *memory, weir_device *device)
{
    unpin(memory, device, memory->bytes);
}

void weir_host_memory_destroy(struct weir_host_memory **memory)
{
    if (!*memory)
        return;
    unpin(*memory, (*memory)->device, (*memory)->bytes);
    munmap((*memory)->base, (*memory)->bytes);
    weir_memory_give((*memory)->memory, *memory, 1, sizeof **memory);
    *memory = NULL;
}
