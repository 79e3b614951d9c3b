/* SPDX-License-Identifier: Apache-2.0 */
#include "gather_rig.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POISON 0x5a
#define ALIGN UINT64_C(4096)

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Where a bank begins among `rows` rows of all banks. */
static uint64_t bank_at(const struct weir_bench_gather_rig *rig, uint32_t bank, uint32_t rows)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < bank; i++)
        at += aligned((uint64_t)rig->row_bytes[i] * rows);
    return at;
}

static uint64_t key_of(uint32_t bank)
{
    return (uint64_t)(bank + 1) << 40;
}

/* ---- Lists ------------------------------------------------------------------ */

/* The counts are 64-bit and come first. */
static uint64_t list_at(const struct weir_bench_gather_rig *rig, uint32_t set, uint32_t side)
{
    return rig->n_sizes * sizeof(int64_t) +
           ((uint64_t)set * 2 + side) * rig->most * sizeof(int32_t);
}

static int32_t *host_list(const struct weir_bench_gather_rig *rig, uint32_t set, uint32_t side)
{
    return (int32_t *)((unsigned char *)rig->host_lists + list_at(rig, set, side));
}

/* Steps of a length that shares no divisor with the number of rows. */
static void make_lists(struct weir_bench_gather_rig *rig)
{
    int64_t *counts = (int64_t *)rig->host_lists;
    for (uint32_t i = 0; i < rig->n_sizes; i++)
        counts[i] = rig->sizes[i];
    for (uint32_t set = 0; set < WEIR_BENCH_GATHER_SETS; set++)
        for (uint32_t i = 0; i < rig->most; i++) {
            uint32_t step = set * rig->most + i;
            host_list(rig, set, 0)[i] = (int32_t)(step * UINT64_C(7919) % rig->n_slots);
            host_list(rig, set, 1)[i] = (int32_t)(step * UINT64_C(104729) % rig->n_experts);
        }
}

/* ---- Opening and closing ------------------------------------------------------ */

/* Between the host's memory and the device's; returns once it is done. */
static int move(struct weir_bench_gather_rig *rig, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct weir_bench_device *device = rig->device;
    if (!device->gpu) {
        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
        return 0;
    }
    int rc = weir_bench_gpu_copy(device->gpu, device->side, to, from, bytes);
    return rc ? rc : device->ops->stream_synchronize(device->device, device->side);
}

static int pin(struct weir_bench_gather_rig *rig, uint64_t bytes)
{
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return -ENOMEM;
    (void)madvise(made, bytes, MADV_HUGEPAGE);
    int rc = rig->device->ops->host_register(rig->device->device, made, bytes);
    if (rc) {
        munmap(made, bytes);
        return rc;
    }
    rig->pinned = made;
    rig->pinned_bytes = bytes;
    return 0;
}

static int open_memory(struct weir_bench_gather_rig *rig)
{
    const struct weir_device_ops *ops = rig->device->ops;
    uint64_t experts = bank_at(rig, rig->n_banks, rig->n_experts);
    rig->slots_bytes = bank_at(rig, rig->n_banks, rig->n_slots);
    rig->lists_bytes = list_at(rig, WEIR_BENCH_GATHER_SETS, 0);
    int rc = pin(rig, experts + rig->slots_bytes + aligned(rig->lists_bytes));
    if (rc)
        return rc;
    rig->staging = rig->pinned + experts;
    rig->host_lists = (int32_t *)(void *)(rig->staging + rig->slots_bytes);
    rc = ops->memory_alloc(rig->device->device, rig->slots_bytes, &rig->slots);
    if (!rc)
        rc = ops->memory_alloc(rig->device->device, rig->lists_bytes, &rig->lists);
    if (rc)
        return rc;
    for (uint32_t bank = 0; bank < rig->n_banks; bank++)
        for (uint32_t row = 0; row < rig->n_experts; row++)
            (void)weir_bench_pattern_bytes(rig->pinned + bank_at(rig, bank, rig->n_experts) +
                                               (uint64_t)row * rig->row_bytes[bank],
                                           rig->row_bytes[bank], 0, key_of(bank), row, false);
    make_lists(rig);
    return move(rig, rig->lists, (uintptr_t)rig->host_lists, rig->lists_bytes);
}

int weir_bench_gather_rig_open(struct weir_bench_gather_rig **rig, struct weir_bench_device *device,
                               const struct weir_bench_list *row_bytes,
                               const struct weir_bench_list *sizes)
{
    struct weir_bench_gather_rig *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->device = device;
    made->n_banks = row_bytes->n;
    for (uint32_t i = 0; i < row_bytes->n; i++) {
        made->row_bytes[i] = row_bytes->values[i];
        made->expert_bytes += row_bytes->values[i];
    }
    made->sizes = sizes->values;
    made->n_sizes = sizes->n;
    for (uint32_t i = 0; i < sizes->n; i++)
        if (sizes->values[i] > made->most)
            made->most = sizes->values[i];
    /* Powers of two and odd steps: `most` consecutive ones are distinct. */
    for (made->n_slots = 1; made->n_slots < 2 * made->most;)
        made->n_slots *= 2;
    made->n_experts = 2 * made->n_slots;
    int rc = open_memory(made);
    if (rc)
        weir_bench_gather_rig_close(&made);
    else
        *rig = made;
    return rc;
}

void weir_bench_gather_rig_close(struct weir_bench_gather_rig **rig)
{
    struct weir_bench_gather_rig *closed = *rig;
    if (!closed)
        return;
    struct weir_bench_device *device = closed->device;
    if (closed->lists)
        device->ops->memory_free(device->device, closed->lists);
    if (closed->slots)
        device->ops->memory_free(device->device, closed->slots);
    if (closed->pinned) {
        device->ops->host_unregister(device->device, closed->pinned);
        munmap(closed->pinned, closed->pinned_bytes);
    }
    free(closed);
    *rig = NULL;
}

/* ---- Calls -------------------------------------------------------------------- */

int weir_bench_gather_rig_make(struct weir_bench_gather_rig *rig, const weir_gather_params *params,
                               weir_gather **gather)
{
    weir_bank banks[WEIR_BENCH_GATHER_BANKS] = { 0 };
    weir_gather_params p = *params;
    for (uint32_t i = 0; i < rig->n_banks; i++)
        banks[i] = (weir_bank){ .dst = rig->slots + bank_at(rig, i, rig->n_slots),
                                .src = (uintptr_t)rig->pinned + bank_at(rig, i, rig->n_experts),
                                .row_bytes = rig->row_bytes[i],
                                .dst_rows = rig->n_slots,
                                .src_rows = rig->n_experts };
    p.banks = banks;
    p.n_banks = rig->n_banks;
    p.max_count = rig->most;
    p.log = weir_bench_log(rig->device);
    return weir_gather_create(gather, rig->device->device, &p);
}

int weir_bench_gather_rig_can(struct weir_bench_gather_rig *rig, enum weir_bench_gather_kind kind)
{
    struct weir_bench_device *device = rig->device;
    if (kind == WEIR_BENCH_GATHER_COPY)
        return weir_bench_has_engine(device, WEIR_ENGINE_COPY);
    for (uint32_t i = 0; i < rig->n_banks && kind == WEIR_BENCH_GATHER_PLAIN; i++)
        if (rig->row_bytes[i] % 16) {
            snprintf(device->reason, sizeof device->reason, "rows must be multiples of 16 bytes");
            return -ENOTSUP;
        }
    return 0;
}

static int copy_each(struct weir_bench_gather_rig *rig, uint32_t size, uint32_t set)
{
    struct weir_cuda_device *cuda = rig->device->gpu->device;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(cuda, &mode);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < rig->sizes[size] && !rc; i++) {
        uint64_t slot = (uint32_t)host_list(rig, set, 0)[i];
        uint64_t expert = (uint32_t)host_list(rig, set, 1)[i];
        for (uint32_t bank = 0; bank < rig->n_banks && !rc; bank++) {
            uint64_t bytes = rig->row_bytes[bank];
            rc = weir_cuda_result(
                cuda, "cuMemcpyAsync",
                cuda->driver->cuMemcpyAsync(
                    rig->slots + bank_at(rig, bank, rig->n_slots) + slot * bytes,
                    (uintptr_t)rig->pinned + bank_at(rig, bank, rig->n_experts) + expert * bytes,
                    bytes, (CUstream)rig->device->side));
        }
    }
    weir_cuda_leave(cuda, mode);
    return rc;
}

/* Frees its argument. */
static void plain_on_cpu(void *arg)
{
    const struct weir_bench_gather_args *args = arg;
    for (uint32_t bank = 0; bank < args->n_banks; bank++) {
        uint64_t bytes = args->row_bytes[bank];
        for (int64_t i = 0; i < *args->count; i++)
            memcpy(
                (void *)(uintptr_t)(args->to[bank] + (uint32_t)args->to_rows[i] * bytes),
                (const void *)(uintptr_t)(args->from[bank] + (uint32_t)args->from_rows[i] * bytes),
                bytes);
    }
    free(arg);
}

static struct weir_bench_gather_args plain_args(const struct weir_bench_gather_rig *rig,
                                                uint32_t size, uint32_t set)
{
    struct weir_bench_gather_args args = {
        .to_rows = (const int32_t *)(uintptr_t)(rig->lists + list_at(rig, set, 0)),
        .from_rows = (const int32_t *)(uintptr_t)(rig->lists + list_at(rig, set, 1)),
        .count = (const int64_t *)(uintptr_t)rig->lists + size,
        .n_banks = rig->n_banks,
    };
    for (uint32_t i = 0; i < rig->n_banks; i++) {
        args.to[i] = rig->slots + bank_at(rig, i, rig->n_slots);
        args.from[i] = (uintptr_t)rig->pinned + bank_at(rig, i, rig->n_experts);
        args.row_bytes[i] = rig->row_bytes[i];
    }
    return args;
}

static int plain(struct weir_bench_gather_rig *rig, uint32_t size, uint32_t set)
{
    struct weir_bench_device *device = rig->device;
    struct weir_bench_gather_args args = plain_args(rig, size, set);
    if (device->gpu) {
        void *parameters[] = { &args };
        return weir_bench_gpu_run(device->gpu, device->side, WEIR_BENCH_GATHER_BASELINE,
                                  WEIR_BENCH_GATHER_CTAS * rig->n_banks, 1,
                                  WEIR_BENCH_GATHER_THREADS, 0, parameters);
    }
    struct weir_bench_gather_args *own = malloc(sizeof *own);
    if (!own)
        return -ENOMEM;
    *own = args;
    int rc = weir_cpu_launch(device->device, device->side, plain_on_cpu, own, NULL, 0);
    if (rc)
        free(own);
    return rc;
}

int weir_bench_gather_rig_call(struct weir_bench_gather_rig *rig, enum weir_bench_gather_kind kind,
                               weir_gather *gather, uint32_t size, uint32_t set)
{
    set %= WEIR_BENCH_GATHER_SETS;
    if (kind == WEIR_BENCH_GATHER_PLAIN)
        return plain(rig, size, set);
    if (kind == WEIR_BENCH_GATHER_COPY)
        return copy_each(rig, size, set);
    const unsigned char *lists = (const unsigned char *)(uintptr_t)rig->lists;
    const weir_gather_rows rows = { lists + list_at(rig, set, 0), lists + list_at(rig, set, 1),
                                    (const int64_t *)(const void *)lists + size, 0 };
    return weir_gather_launch(gather, &rows, NULL, rig->device->side);
}

/* ---- A verified call ------------------------------------------------------------ */

static uint64_t wrong_in_slot(const struct weir_bench_gather_rig *rig, uint32_t slot,
                              int32_t expert)
{
    uint64_t wrong = 0;
    for (uint32_t bank = 0; bank < rig->n_banks; bank++) {
        uint64_t bytes = rig->row_bytes[bank];
        unsigned char *row = rig->staging + bank_at(rig, bank, rig->n_slots) + slot * bytes;
        if (expert >= 0)
            wrong += weir_bench_pattern_bytes(row, bytes, 0, key_of(bank), (uint32_t)expert, true);
        for (uint64_t i = 0; i < bytes && expert < 0; i++)
            wrong += row[i] != POISON;
    }
    return wrong;
}

int weir_bench_gather_rig_verify(struct weir_bench_gather_rig *rig,
                                 enum weir_bench_gather_kind kind, weir_gather *gather,
                                 uint32_t size, bool plant, uint64_t *n_wrong)
{
    struct weir_bench_device *device = rig->device;
    uint64_t wrong = 0;
    memset(rig->staging, POISON, rig->slots_bytes);
    int rc = move(rig, rig->slots, (uintptr_t)rig->staging, rig->slots_bytes);
    if (!rc)
        rc = weir_bench_gather_rig_call(rig, kind, gather, size, size);
    int waited = device->ops->stream_synchronize(device->device, device->side);
    if (!rc)
        rc = waited;
    if (!rc)
        rc = move(rig, (uintptr_t)rig->staging, rig->slots, rig->slots_bytes);
    if (rc)
        return rc;
    if (plant)
        rig->staging[0] ^= 0xff;
    const int32_t *slots = host_list(rig, size % WEIR_BENCH_GATHER_SETS, 0);
    const int32_t *experts = host_list(rig, size % WEIR_BENCH_GATHER_SETS, 1);
    for (uint32_t slot = 0; slot < rig->n_slots; slot++) {
        int32_t expert = -1;
        for (uint32_t i = 0; i < rig->sizes[size]; i++)
            if (slots[i] == (int32_t)slot)
                expert = experts[i];
        wrong += wrong_in_slot(rig, slot, expert);
    }
    *n_wrong = wrong;
    return 0;
}

uint64_t weir_bench_free_memory(struct weir_bench_device *device)
{
    CUresult (*info)(size_t *, size_t *);
    size_t available = 0;
    size_t total;
    void *function;
    CUstreamCaptureMode mode;
    if (!device->gpu || weir_cuda_driver_find("cuMemGetInfo", 3020, &function) ||
        weir_cuda_enter(device->gpu->device, &mode))
        return 0;
    memcpy(&info, &function, sizeof info);
    (void)weir_cuda_result(device->gpu->device, "cuMemGetInfo", info(&available, &total));
    weir_cuda_leave(device->gpu->device, mode);
    return available;
}
