/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_GPU_TIER_H
#define WEIR_TESTS_GPU_TIER_H

/* What the programs that compare copies on a GPU share: the device, memory of
 * either kind with what it should hold, and a table with a line a group. */

#include "device/cuda_device.h"
#include "gpu_graphs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static weir_device *device;
static const struct weir_device_ops *ops;
static weir_stream *stream;
static unsigned n_failed;

static inline void __attribute__((noreturn)) stop(const char *what, int rc)
{
    printf("%s: %s\n", what, weir_error_name(rc));
    exit(1);
}

static inline void ok(int rc, const char *what)
{
    if (rc)
        stop(what, rc);
}

/* Between enter and leave. */
static inline void driver_ok(CUresult result, const char *what)
{
    ok(weir_cuda_result(weir_cuda_from(device), what, result), what);
}

static inline void find_graphs(struct gpu_graphs *calls)
{
    const char *name = NULL;
    int rc = gpu_graphs_find(calls, &name);
    ok(rc, name);
}

/* ---- Memory ---------------------------------------------------------------- */

/* A tier: memory that a kernel sees, and what it should hold. */
struct tier {
    bool on_device;
    uint64_t bytes;
    uint64_t address;
    uint8_t *staging; /* of a device tier: pinned */
    uint8_t *expected;
};

static inline uint8_t *pin(uint64_t bytes)
{
    uint64_t whole = (bytes + 4095) / 4096 * 4096;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        stop("mmap", -ENOMEM);
    (void)madvise(p, whole, MADV_HUGEPAGE);
    ok(ops->host_register(device, p, whole), "host_register");
    return p;
}

static inline void unpin(uint8_t *p, uint64_t bytes)
{
    ops->host_unregister(device, p);
    munmap(p, (bytes + 4095) / 4096 * 4096);
}

static inline void transfer_bytes(uint64_t to, uint64_t from, uint64_t bytes)
{
    struct weir_cuda_device *cuda = weir_cuda_from(device);
    CUstreamCaptureMode mode;
    ok(weir_cuda_enter(cuda, &mode), "enter");
    int rc = weir_cuda_result(cuda, "cuMemcpyAsync",
                              cuda->driver->cuMemcpyAsync(to, from, bytes, (CUstream)stream));
    weir_cuda_leave(cuda, mode);
    ok(rc, "cuMemcpyAsync");
}

static inline void tier_open(struct tier *t, bool on_device, uint64_t bytes)
{
    *t = (struct tier){ .on_device = on_device, .bytes = bytes };
    uint8_t *host = pin(bytes);
    t->address = (uintptr_t)host;
    if (on_device) {
        t->staging = host;
        ok(ops->memory_alloc(device, bytes, &t->address), "memory_alloc");
    }
    t->expected = malloc(bytes);
    if (!t->expected)
        stop("malloc", -ENOMEM);
}

static inline void tier_close(struct tier *t)
{
    if (t->on_device)
        ops->memory_free(device, t->address);
    unpin(t->on_device ? t->staging : (uint8_t *)(uintptr_t)t->address, t->bytes);
    free(t->expected);
}

static inline uint8_t *tier_host(const struct tier *t)
{
    return t->on_device ? t->staging : (uint8_t *)(uintptr_t)t->address;
}

/* No two neighbouring words alike, no two fills alike. */
static inline void fill(struct tier *t, uint64_t seed)
{
    uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t i = 0; i < t->bytes; i += 8) {
        z += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t word = z ^ z >> 29;
        memcpy(t->expected + i, &word, t->bytes - i < 8 ? t->bytes - i : 8);
    }
    memcpy(tier_host(t), t->expected, t->bytes);
    if (t->on_device)
        transfer_bytes(t->address, (uintptr_t)t->staging, t->bytes);
}

static inline bool holds(const struct tier *t)
{
    if (t->on_device)
        transfer_bytes((uintptr_t)t->staging, t->address, t->bytes);
    ok(ops->stream_synchronize(device, stream), "synchronize");
    return memcmp(tier_host(t), t->expected, t->bytes) == 0;
}

/* ---- The table ------------------------------------------------------------- */

static unsigned group_checks, group_failed;
static uint64_t group_bytes;

static inline void group_end(const char *name)
{
    printf("%-44s %5u copies %8.1f MB  %s\n", name, group_checks, (double)group_bytes / 1e6,
           group_failed ? "WRONG" : "ok");
    fflush(stdout);
    n_failed += group_failed;
    group_checks = group_failed = 0;
    group_bytes = 0;
}

static inline void verdict(bool right, const char *what)
{
    group_checks++;
    if (right || group_failed++ >= 5)
        return;
    printf("  wrong: %s\n", what);
}

/* Exits with 77 where there is no GPU. */
static inline void tier_open_device(int argc, char **argv)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.ordinal = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    params.log = weir_log_stderr(WEIR_LOG_INFO);
    int rc = weir_device_open(&device, &params);
    if (rc == -ENODEV || rc == -ENOTSUP) {
        printf("skipped: no GPU\n");
        exit(77);
    }
    ok(rc, "open");
    device->log.level = WEIR_LOG_ERROR; /* a line a geometry would bury the table */
    ops = device->ops;
    ok(ops->stream_create(device, 0, &stream), "stream");
}

/* The program's exit status. */
static inline int tier_close_device(void)
{
    ops->stream_destroy(device, stream);
    ok(weir_device_close(&device), "close");
    printf("%u wrong\n", n_failed);
    return n_failed > 0;
}

#endif
