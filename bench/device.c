/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WORD_MARKS,
    WORD_WRONG = WORD_MARKS + 2,
    WORD_VICTIM = 1024, /* 4 KiB on, away from what is polled */
    WORDS = WORD_VICTIM + WEIR_BENCH_VICTIM_BYTES / 4
};

double weir_bench_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void weir_bench_relax(const struct weir_bench_device *device)
{
    if (!device->gpu)
        sched_yield();
}

/* ---- Opening and closing -------------------------------------------------- */

static void keep_line(void *user, weir_log_level level, const char *text)
{
    struct weir_bench_device *device = user;
    (void)level;
    snprintf(device->reason, sizeof device->reason, "%s", text);
}

weir_log weir_bench_log(struct weir_bench_device *device)
{
    return (weir_log){ .write = keep_line, .user = device, .level = WEIR_LOG_WARN };
}

const char *weir_bench_reason(const struct weir_bench_device *device, int rc)
{
    return device->reason[0] ? device->reason : weir_error_name(rc);
}

int weir_bench_has_engine(struct weir_bench_device *device, uint32_t engine)
{
    if (device->gpu || engine == WEIR_ENGINE_AUTO || engine == WEIR_BENCH_REGISTER)
        return 0;
    snprintf(device->reason, sizeof device->reason, "the cpu device has no engines");
    return -ENOTSUP;
}

static int open_cpu(struct weir_bench_device *device, const struct weir_bench_common *common)
{
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.load_gbps = common->link_gbps;
    params.write_back_gbps = common->link_gbps;
    /* The kernels here do not say which pages they touch. */
    params.check_races = false;
    params.log = weir_bench_log(device);
    return weir_cpu_device_open(&device->device, &params);
}

static int open_cuda(struct weir_bench_device *device, const struct weir_bench_common *common)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.ordinal = common->ordinal;
    params.log = weir_bench_log(device);
    int rc = weir_device_open(&device->device, &params);
    if (rc)
        return rc;
    rc = weir_bench_gpu_open(&device->gpu, device->device);
    if (rc == -ENOTSUP)
        snprintf(device->reason, sizeof device->reason,
                 "built without nvcc, or for other GPUs and drivers than this");
    return rc;
}

static int open_kind(struct weir_bench_device *device, const struct weir_bench_common *common)
{
    const char *reason;
    int n_gpus;
    bool cuda = common->kind == WEIR_DEVICE_CUDA ||
                (common->kind == WEIR_DEVICE_AUTO && weir_cuda_count_gpus(&n_gpus, &reason) == 0);
    return cuda ? open_cuda(device, common) : open_cpu(device, common);
}

static int open_streams(struct weir_bench_device *device)
{
    weir_stream **streams[] = { &device->stream, &device->side, &device->victim };
    int rc = 0;
    for (size_t i = 0; i < sizeof streams / sizeof streams[0] && !rc; i++)
        rc = device->ops->stream_create(device->device, 0, streams[i]);
    if (!rc)
        rc = device->ops->words_alloc(device->device, WORDS, &device->words);
    if (!rc)
        rc = device->ops->memory_alloc(device->device, WEIR_BENCH_VICTIM_BYTES,
                                       &device->victim_target);
    return rc;
}

int weir_bench_device_open(struct weir_bench_device **device,
                           const struct weir_bench_common *common)
{
    struct weir_bench_device *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    int rc = open_kind(made, common);
    if (!rc) {
        made->ops = made->device->ops;
        rc = open_streams(made);
    }
    if (rc) {
        fprintf(stderr, "weir-bench: no device: %s\n", weir_bench_reason(made, rc));
        weir_bench_device_close(&made);
    } else {
        *device = made;
    }
    return rc;
}

void weir_bench_device_close(struct weir_bench_device **device)
{
    struct weir_bench_device *closed = *device;
    if (!closed)
        return;
    weir_stream *streams[] = { closed->stream, closed->side, closed->victim };
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        if (streams[i])
            closed->ops->stream_destroy(closed->device, streams[i]);
    if (closed->words)
        closed->ops->words_free(closed->device, closed->words);
    if (closed->victim_target)
        closed->ops->memory_free(closed->device, closed->victim_target);
    weir_bench_gpu_close(&closed->gpu);
    weir_device_close(&closed->device);
    free(closed);
    *device = NULL;
}

/* ---- Marks ---------------------------------------------------------------- */

int weir_bench_mark(struct weir_bench_device *device, weir_stream *stream)
{
    uint32_t side = stream == device->side;
    int rc = device->ops->stream_write_word(
        device->device, stream, &device->words[WORD_MARKS + side], device->marks[side] + 1);
    device->marks[side] += rc == 0;
    return rc;
}

bool weir_bench_passed(const struct weir_bench_device *device, const weir_stream *stream)
{
    uint32_t side = stream == device->side;
    uint32_t word = device->ops->word_load(device->device, &device->words[WORD_MARKS + side]);
    return (int32_t)(word - device->marks[side]) >= 0;
}

int weir_bench_wait(const struct weir_bench_device *device, const weir_stream *stream)
{
    while (!weir_bench_passed(device, stream)) {
        if (device->ops->status(device->device))
            return -EIO;
        weir_bench_relax(device);
    }
    return 0;
}

/* ---- Patterns ------------------------------------------------------------- */

uint64_t weir_bench_pattern_bytes(unsigned char *bytes, uint64_t n, uint64_t offset, uint64_t key,
                                  uint32_t move, bool check)
{
    uint64_t wrong = 0;
    while (n > 0) {
        uint64_t word = weir_bench_pattern_word(key, move, offset / 8);
        uint64_t skipped = offset % 8;
        uint64_t part = 8 - skipped < n ? 8 - skipped : n;
        const unsigned char *expected = (const unsigned char *)&word + skipped;
        if (!check)
            memcpy(bytes, expected, part);
        else if (memcmp(bytes, expected, part) != 0)
            for (uint64_t i = 0; i < part; i++)
                wrong += bytes[i] != expected[i];
        bytes += part;
        offset += part;
        n -= part;
    }
    return wrong;
}

static void pattern_on_cpu(void *arg)
{
    const struct weir_bench_pattern_args *args = arg;
    uint64_t wrong = 0;
    for (uint32_t move = 0; move < args->n_pages; move++) {
        uint64_t page = args->base + (uint64_t)args->pages[move] * args->page_stride;
        wrong += weir_bench_pattern_bytes((unsigned char *)(uintptr_t)page, args->page_bytes, 0,
                                          args->key, move, args->check != 0);
    }
    *args->wrong += (uint32_t)wrong;
}

static int pattern_on_gpu(struct weir_bench_device *device, struct weir_bench_pattern_args args,
                          const uint32_t *wrong)
{
    struct weir_bench_gpu *gpu = device->gpu;
    CUdeviceptr counter = gpu->scratch;
    uint32_t parts = (uint32_t)(args.page_bytes / 65536 + 1);
    args.wrong = (uint32_t *)(uintptr_t)counter;
    void *parameters[] = { &args };
    int rc = weir_bench_gpu_copy(gpu, device->stream, counter, (uintptr_t)wrong, sizeof *wrong);
    if (!rc)
        rc = weir_bench_gpu_run(gpu, device->stream, WEIR_BENCH_PATTERN,
                                args.n_pages < 65536 ? args.n_pages : 65536, parts, 256, 0,
                                parameters);
    if (!rc)
        rc = weir_bench_gpu_copy(gpu, device->stream, (uintptr_t)wrong, counter, sizeof *wrong);
    return rc;
}

int weir_bench_pattern(struct weir_bench_device *device, struct weir_bench_pattern_args args,
                       uint64_t *n_wrong)
{
    uint32_t *wrong = &device->words[WORD_WRONG];
    *wrong = 0;
    args.wrong = wrong;
    int rc = device->gpu
                 ? pattern_on_gpu(device, args, wrong)
                 : weir_cpu_launch(device->device, device->stream, pattern_on_cpu, &args, NULL, 0);
    int waited = device->ops->stream_synchronize(device->device, device->stream);
    if (!rc)
        rc = waited;
    if (!rc)
        *n_wrong = *wrong;
    return rc;
}

/* ---- The victim ----------------------------------------------------------- */

static void victim_on_cpu(void *arg)
{
    const struct weir_bench_device *device = arg;
    memcpy((void *)(uintptr_t)device->victim_target, &device->words[WORD_VICTIM],
           WEIR_BENCH_VICTIM_BYTES);
}

int weir_bench_victim(struct weir_bench_device *device, double *seconds)
{
    double begin = weir_bench_now();
    int rc =
        device->gpu
            ? weir_bench_gpu_copy(device->gpu, device->victim, device->victim_target,
                                  (uintptr_t)&device->words[WORD_VICTIM], WEIR_BENCH_VICTIM_BYTES)
            : weir_cpu_launch(device->device, device->victim, victim_on_cpu, device, NULL, 0);
    if (!rc)
        rc = device->ops->stream_synchronize(device->device, device->victim);
    *seconds = weir_bench_now() - begin;
    return rc;
}
