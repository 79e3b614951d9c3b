/* SPDX-License-Identifier: Apache-2.0 */

/* pin: how fast a host pool becomes ready, from nothing to pinned: weir's own
 * way by size, threads and huge pages, and on a GPU the driver's allocator. All
 * ways of a size take turns. */

#include "bench.h"
#include "device.h"
#include "report.h"

#include "pool/host_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

struct options {
    struct weir_bench_common common;
    struct weir_bench_list mebibytes;
    struct weir_bench_list threads;
};

/* One way to get memory. */
struct way {
    uint32_t threads; /* 0: the driver's allocator */
    bool huge;
    struct weir_bench_samples times;
    uint64_t wrong;
    int rc;
    char reason[WEIR_BENCH_REASON];
};

#define MAX_WAYS (2 * WEIR_BENCH_LIST + 1)

/* The last byte of every page, written and read again: all of it is there. */
static uint64_t count_wrong(unsigned char *base, uint64_t bytes, bool plant)
{
    uint64_t wrong = 0;
    for (uint64_t at = 4095; at < bytes; at += 4096)
        base[at] = (unsigned char)(at >> 12);
    if (plant)
        base[4095] ^= 1;
    for (uint64_t at = 4095; at < bytes; at += 4096)
        wrong += base[at] != (unsigned char)(at >> 12);
    return wrong;
}

static int pin_by_weir(struct weir_bench_device *device, const struct options *options,
                       const struct way *way, uint64_t bytes, double *seconds, uint64_t *wrong)
{
    struct weir_host_memory_params params = { .bytes = bytes,
                                              .granule = 1,
                                              .touch_threads = way->threads };
    struct weir_host_memory *memory;
    weir_log log = weir_bench_log(device);
    /* Of this process only, and for what it maps from now on. */
    if (prctl(PR_SET_THP_DISABLE, !way->huge, 0, 0, 0) != 0)
        return -ENOTSUP;
    double start = weir_bench_now();
    int rc = weir_host_memory_create(&memory, device->device, &params, &log);
    *seconds = weir_bench_now() - start;
    (void)prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    if (rc)
        return rc;
    if (options->common.verify)
        *wrong = count_wrong(memory->base, bytes, options->common.plant_error);
    weir_host_memory_destroy(&memory);
    return 0;
}

static int pin_by_driver(struct weir_bench_device *device, const struct options *options,
                         uint64_t bytes, double *seconds, uint64_t *wrong)
{
    struct weir_cuda_device *cuda = device->gpu->device;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(cuda, &mode);
    if (rc)
        return rc;
    void *memory;
    double start = weir_bench_now();
    rc =
        weir_cuda_result(cuda, "cuMemHostAlloc",
                         cuda->driver->cuMemHostAlloc(
                             &memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    *seconds = weir_bench_now() - start;
    if (!rc) {
        if (options->common.verify)
            *wrong = count_wrong(memory, bytes, options->common.plant_error);
        rc = weir_cuda_result(cuda, "cuMemFreeHost", cuda->driver->cuMemFreeHost(memory));
    }
    weir_cuda_leave(cuda, mode);
    return rc;
}

static void call(struct weir_bench_device *device, const struct options *options, struct way *way,
                 uint64_t bytes, bool timed)
{
    if (way->rc)
        return;
    double seconds = 0;
    uint64_t wrong = 0;
    device->reason[0] = 0;
    int rc = way->threads ? pin_by_weir(device, options, way, bytes, &seconds, &wrong)
                          : pin_by_driver(device, options, bytes, &seconds, &wrong);
    way->wrong += wrong;
    if (!rc && timed)
        rc = weir_bench_samples_add(&way->times, seconds);
    way->rc = rc;
    if (rc)
        snprintf(way->reason, sizeof way->reason, "%s", weir_bench_reason(device, rc));
}

static uint32_t list_ways(const struct options *options, bool gpu, struct way *ways)
{
    uint32_t n = 0;
    memset(ways, 0, MAX_WAYS * sizeof *ways);
    for (uint32_t i = 0; i < options->threads.n; i++)
        for (int huge = 1; huge >= 0; huge--)
            ways[n++] = (struct way){ .threads = options->threads.values[i], .huge = huge != 0 };
    if (gpu)
        n++;
    return n;
}

static void put_way(struct weir_bench_report *report, struct way *way, uint64_t bytes)
{
    json_t *row = weir_bench_report_row(report);
    weir_bench_put_text(report, row, "way", way->threads ? "weir" : "cuMemHostAlloc");
    weir_bench_put_integer(report, row, "bytes", bytes);
    weir_bench_put_number(report, row, "gib", (double)bytes / (1 << 30));
    if (way->threads) {
        weir_bench_put_integer(report, row, "threads", way->threads);
        weir_bench_put_text(report, row, "huge_pages", way->huge ? "yes" : "no");
    }
    if (way->rc) {
        weir_bench_put_text(report, row, "skipped", way->reason);
        return;
    }
    struct weir_bench_stats times = weir_bench_stats_of(&way->times);
    struct weir_bench_stats rates = weir_bench_stats_of_rates(&times, (double)bytes * 1e-9);
    weir_bench_put_stats(report, row, "gbps", rates);
    weir_bench_put_number(report, row, "spread_percent", rates.spread * 100);
    weir_bench_put_integer(report, row, "wrong_bytes", way->wrong);
}

static uint64_t measure(struct weir_bench_device *device, const struct options *options,
                        struct weir_bench_report *report)
{
    uint64_t wrong = 0;
    struct way ways[MAX_WAYS];
    for (uint32_t s = 0; s < options->mebibytes.n; s++) {
        uint64_t bytes = (uint64_t)options->mebibytes.values[s] << 20;
        uint32_t n = list_ways(options, device->gpu != NULL, ways);
        uint32_t calls = options->common.warm_up + options->common.repeats;
        for (uint32_t c = 0; c < calls; c++)
            for (uint32_t i = 0; i < n; i++)
                call(device, options, &ways[i], bytes, c >= options->common.warm_up);
        for (uint32_t i = 0; i < n; i++) {
            put_way(report, &ways[i], bytes);
            wrong += ways[i].wrong;
            weir_bench_samples_free(&ways[i].times);
        }
    }
    return wrong;
}

/* ---- Options ---------------------------------------------------------------- */

enum {
    KEY_MEBIBYTES = 256,
    KEY_THREADS
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "What is measured:", 1 },
    { "mib", KEY_MEBIBYTES, "LIST", 0, "Sizes in MiB (1024,4096)", 0 },
    { "threads", KEY_THREADS, "LIST", 0, "Threads that touch the memory first (1,4,16)", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->common;
        break;
    case KEY_MEBIBYTES:
        weir_bench_read_list(state, "mib", text, 1, 1u << 20, &options->mebibytes);
        break;
    case KEY_THREADS:
        weir_bench_read_list(state, "threads", text, 1, 64, &options->threads);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct weir_bench_column columns[] = {
    { "way", "way", 0 },         { "gib", "GiB", 3 },
    { "threads", "threads", 0 }, { "huge_pages", "huge pages", 0 },
    { "gbps", "GB/s", 2 },       { "spread_percent", "spread %", 1 },
};

int weir_bench_pin(int argc, char **argv)
{
    static const struct argp argp = {
        option_list, parse, NULL, "Makes host memory ready for copies.", weir_bench_common_children,
        NULL,        NULL
    };
    struct options options = { .common = weir_bench_common_defaults(),
                               .mebibytes = { 2, { 1024, 4096 } },
                               .threads = { 3, { 1, 4, 16 } } };
    options.common.repeats = 5;
    options.common.warm_up = 1;
    argp_parse(&argp, argc, argv, 0, NULL, &options);

    struct weir_bench_device *device;
    if (weir_bench_device_open(&device, &options.common))
        return WEIR_BENCH_BROKEN;
    struct weir_bench_report report;
    weir_bench_report_begin(&report, "pin", &options.common, device);
    uint64_t wrong = measure(device, &options, &report);
    int rc = weir_bench_report_finish(&report, &options.common, columns,
                                      sizeof columns / sizeof columns[0]);
    weir_bench_device_close(&device);
    if (rc)
        return WEIR_BENCH_BROKEN;
    return wrong ? WEIR_BENCH_WRONG : 0;
}
