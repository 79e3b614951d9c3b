/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu.h"

#include "gather/gather.h"

#include <errno.h>
#include <string.h>

/* The gather as a task of a stream: the definition in weir/gather.h, row by row.
 * The kernels are held against it. */

int weir_cpu_gather_prepare(weir_device *base, const struct weir_gather *gather, void **state)
{
    (void)gather;
    *state = NULL;
    return atomic_load(&weir_cpu_from(base)->lost) ? -EIO : 0;
}

void weir_cpu_gather_release(weir_device *base, void *state)
{
    (void)base;
    (void)state;
}

static int64_t index_at(const void *rows, uint32_t bytes, uint32_t i)
{
    return bytes == 8 ? ((const int64_t *)rows)[i] : ((const int32_t *)rows)[i];
}

static bool has_row(uint64_t rows, int64_t row)
{
    return rows == 0 || (row >= 0 && (uint64_t)row < rows);
}

/* False: the row is skipped. */
static bool copy_row(const weir_bank *bank, const weir_bank_bases *bases, int64_t dst, int64_t src)
{
    if (!has_row(bank->dst_rows, dst) || !has_row(bank->src_rows, src))
        return false;
    uint64_t to = bases->dst + (uint64_t)dst * bank->dst_row_stride;
    uint64_t from = bases->src + (uint64_t)src * bank->src_row_stride;
    for (uint64_t line = 0; line < bank->payload_lines; line++)
        memmove((void *)(uintptr_t)(to + line * bank->dst_pitch),
                (const void *)(uintptr_t)(from + line * bank->src_pitch), bank->payload_bytes);
    return true;
}

static uint32_t row_count(const struct weir_gather_call *call)
{
    int64_t count = call->rows.count ? *call->rows.count : call->rows.n_rows;
    if (count > call->gather->params.max_count)
        return call->gather->params.max_count;
    return count < 0 ? 0 : (uint32_t)count;
}

static void run(void *arg)
{
    const struct weir_gather_call *call = arg;
    const struct weir_gather *gather = call->gather;
    const weir_gather_rows *rows = &call->rows;
    uint32_t n = row_count(call);
    uint32_t skipped = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t dst = index_at(rows->dst_rows, gather->params.index_bytes, i);
        int64_t src = index_at(rows->src_rows, gather->params.index_bytes, i);
        for (uint32_t b = 0; b < gather->params.n_banks; b++)
            skipped += !copy_row(&gather->banks[b], &call->bases[b], dst, src);
    }
    (void)__atomic_fetch_add(gather->skipped, skipped, __ATOMIC_ACQ_REL);
}

/* The slots, where they are those that the pool stands for. */
static void touch(struct weir_cpu_race *race, const struct weir_cpu_accessor *accessor,
                  const void *arg)
{
    const struct weir_gather_call *call = arg;
    const struct weir_gather *gather = call->gather;
    for (uint32_t i = 0; i < row_count(call) && gather->cpu_pool > 0; i++) {
        int64_t dst = index_at(call->rows.dst_rows, gather->params.index_bytes, i);
        int64_t src = index_at(call->rows.src_rows, gather->params.index_bytes, i);
        for (uint32_t b = 0; b < gather->params.n_banks; b++)
            if (call->bases[b].dst == gather->banks[b].dst &&
                has_row(gather->banks[b].dst_rows, dst) && has_row(gather->banks[b].src_rows, src))
                weir_cpu_race_access(race, accessor, gather->cpu_pool, (int32_t)dst + 1, 1, b, 0,
                                     true);
    }
}

int weir_cpu_gather_launch(weir_device *base, weir_stream *stream,
                           const struct weir_gather_call *call)
{
    return weir_cpu_launch_touching(base, stream, run, call, sizeof *call, touch);
}
