/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_kernels.h"

#include "base/log.h"
#include "gather/gather.h"
#include "kernels/gather_args.h"

#include <errno.h>
#include <stdlib.h>

/* The gather by kernel. All that a launch needs travels with it as arguments, but
 * for the lists and the counter of skipped rows:
 *
 *   counter   device memory, added to by kernels
 *   word      pinned, a copy of it for weir_gather_errors */

struct weir_cuda_gather {
    CUdeviceptr counter;
    struct weir_cuda_grid tma; /* function NULL: not to be used */
    struct weir_cuda_grid vector;
};

/* ---- Shape --------------------------------------------------------------- */

/* By measurement on an H200 over PCIe 5, where bytes in flight are what counts:
 * 256 KiB fill the link towards the device, half of it the way back, and more
 * only takes from those who compute. A coherent link and the GPU's own memory
 * take several times as much. */
static const struct {
    uint32_t tma_ctas;
    uint32_t vector_ctas;
} shapes[2][3] = {
    { [WEIR_COPY_HOST_TO_DEVICE] = { 4, 6 },
      [WEIR_COPY_DEVICE_TO_HOST] = { 2, 4 },
      [WEIR_COPY_DEVICE_TO_DEVICE] = { 16, 32 } },
    { [WEIR_COPY_HOST_TO_DEVICE] = { 16, 32 },
      [WEIR_COPY_DEVICE_TO_HOST] = { 16, 32 },
      [WEIR_COPY_DEVICE_TO_DEVICE] = { 16, 32 } },
};

#define DEFAULT_STAGES 4u
#define DEFAULT_STAGE_BYTES 16384u

static int make_grid(const struct weir_cuda_kernels *kernels, const weir_gather_params *p,
                     weir_transfer_engine engine, struct weir_cuda_grid *grid)
{
    bool coherent = kernels->device->coherent_link;
    bool few = p->n_banks <= WEIR_GATHER_FEW_BANKS;
    uint32_t ctas = engine == WEIR_ENGINE_TMA ? shapes[coherent][p->direction].tma_ctas
                                              : shapes[coherent][p->direction].vector_ctas;
    const struct weir_launch launch = {
        .engine = engine,
        .ctas = p->ctas ? p->ctas : ctas,
        .threads = p->threads,
        .stages = p->stages ? p->stages : DEFAULT_STAGES,
        .stage_bytes = p->stage_bytes ? p->stage_bytes : DEFAULT_STAGE_BYTES,
    };
    return weir_cuda_kernels_grid(
        kernels, few ? WEIR_KERNEL_GATHER_FEW_TMA : WEIR_KERNEL_GATHER_TMA,
        few ? WEIR_KERNEL_GATHER_FEW_VECTOR : WEIR_KERNEL_GATHER_VECTOR, &launch, "gather", grid);
}

static int make_grids(const struct weir_cuda_kernels *kernels, const struct weir_gather *gather,
                      struct weir_cuda_gather *made)
{
    const weir_gather_params *p = &gather->params;
    int rc = 0;
    bool tma = p->engine == WEIR_ENGINE_TMA ||
               (p->engine == WEIR_ENGINE_AUTO && kernels->functions[WEIR_KERNEL_GATHER_TMA]);
    if (tma)
        rc = make_grid(kernels, p, WEIR_ENGINE_TMA, &made->tma);
    if (!rc && p->engine != WEIR_ENGINE_TMA)
        rc = make_grid(kernels, p, WEIR_ENGINE_VECTOR, &made->vector);
    return rc;
}

static void log_shape(const struct weir_gather *gather, const struct weir_cuda_gather *made)
{
    const struct weir_cuda_grid *tma = &made->tma;
    if (tma->function)
        weir_log_line(&gather->log, WEIR_LOG_INFO,
                      "gather: %u banks, tma, %u ctas, %u stages of %u bytes",
                      gather->params.n_banks, tma->ctas, tma->threads / 32, tma->stage_bytes);
    else
        weir_log_line(&gather->log, WEIR_LOG_INFO,
                      "gather: %u banks, vector, %u ctas of %u threads", gather->params.n_banks,
                      made->vector.ctas, made->vector.threads);
}

/* ---- Life ---------------------------------------------------------------- */

int weir_cuda_gather_make(const struct weir_cuda_kernels *kernels, const struct weir_gather *gather,
                          struct weir_cuda_gather **gather_of_gpu)
{
    struct weir_cuda_device *device = kernels->device;
    struct weir_cuda_gather *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    int rc = make_grids(kernels, gather, made);
    if (!rc)
        rc = weir_cuda_result(device, "cuMemAlloc",
                              device->driver->cuMemAlloc(&made->counter, sizeof *gather->skipped));
    /* The word is zero: so becomes the counter. */
    if (!rc)
        rc = weir_cuda_kernels_upload(kernels, made->counter, gather->skipped,
                                      sizeof *gather->skipped);
    if (rc) {
        weir_cuda_gather_free(kernels, made);
        return rc;
    }
    log_shape(gather, made);
    *gather_of_gpu = made;
    return 0;
}

void weir_cuda_gather_free(const struct weir_cuda_kernels *kernels, struct weir_cuda_gather *made)
{
    if (made && made->counter)
        (void)kernels->device->driver->cuMemFree(made->counter);
    free(made);
}

int weir_cuda_gather_prepare(weir_device *base, const struct weir_gather *gather, void **state)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    struct weir_cuda_gather *made;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_gather_make(device->kernels, gather, &made);
    weir_cuda_leave(device, mode);
    if (rc == 0)
        *state = made;
    return rc;
}

void weir_cuda_gather_release(weir_device *base, void *state)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    bool entered = weir_cuda_enter_to_free(device, &mode) == 0;
    weir_cuda_gather_free(device->kernels, state);
    if (entered)
        weir_cuda_leave(device, mode);
}

/* ---- Launching ----------------------------------------------------------- */

static struct weir_gather_bank bank_of(const weir_bank *bank, const weir_bank_bases *bases)
{
    return (struct weir_gather_bank){
        .to = bases->dst,
        .from = bases->src,
        .to_stride = bank->dst_row_stride,
        .from_stride = bank->src_row_stride,
        .line_bytes = (uint32_t)bank->payload_bytes,
        .lines = (uint32_t)bank->payload_lines,
        .to_pitch = (uint32_t)bank->dst_pitch,
        .from_pitch = (uint32_t)bank->src_pitch,
        .to_rows = (uint32_t)bank->dst_rows,
        .from_rows = (uint32_t)bank->src_rows,
    };
}

static bool is_aligned(const struct weir_gather_bank *bank)
{
    uint64_t bits = bank->to | bank->from | bank->to_stride | bank->from_stride | bank->line_bytes;
    if (bank->lines > 1)
        bits |= bank->to_pitch | bank->from_pitch;
    return bits % 16 == 0;
}

/* The banks for bulk copies from the front, the others behind them. How many of
 * the former. */
static uint32_t deal_banks(const struct weir_gather_call *call, bool tma,
                           struct weir_gather_bank *banks)
{
    const struct weir_gather *gather = call->gather;
    uint32_t front = 0;
    uint32_t back = gather->params.n_banks;
    for (uint32_t i = 0; i < gather->params.n_banks; i++) {
        struct weir_gather_bank bank = bank_of(&gather->banks[i], &call->bases[i]);
        banks[tma && is_aligned(&bank) ? front++ : --back] = bank;
    }
    return front;
}

static void set_part(struct weir_gather_args *args, uint32_t part, uint32_t begin, uint32_t end,
                     uint32_t workers)
{
    uint64_t bytes = 0;
    for (uint32_t i = begin; i < end; i++)
        bytes += (uint64_t)args->banks[i].lines * args->banks[i].line_bytes;
    args->head.parts[part] = (struct weir_gather_part){
        .begin = begin,
        .end = end,
        .workers = workers,
        .rest = workers ? (uint32_t)(bytes % workers) : 0,
        .share = workers ? bytes / workers : 0,
        .workers_magic = WEIR_MAGIC(workers),
    };
}

int weir_cuda_gather_enqueue(const struct weir_cuda_kernels *kernels,
                             const struct weir_cuda_gather *made, CUstream stream,
                             const struct weir_gather_call *call)
{
    const struct weir_gather *gather = call->gather;
    uint32_t n = gather->params.n_banks;
    struct weir_gather_args args;
    uint32_t n_bulk = deal_banks(call, made->tma.function != NULL, args.banks);
    bool vector = n_bulk == 0 && made->vector.function;
    struct weir_cuda_grid grid = vector ? made->vector : made->tma;
    uint32_t bulk_warps = vector ? 0 : grid.threads / 32;
    if (!vector && n_bulk < n)
        grid.threads += 32 * WEIR_GATHER_REGISTER_WARPS;
    args.head = (struct weir_gather_head){
        .to_rows = call->rows.dst_rows,
        .from_rows = call->rows.src_rows,
        .count = call->rows.count,
        .n_rows = call->rows.n_rows,
        .skipped = (uint32_t *)(uintptr_t)made->counter,
        .skipped_word = gather->skipped,
        .max_count = gather->params.max_count,
        .wide = gather->params.index_bytes == 8,
        .stage_bytes = grid.stage_bytes,
        .bulk_warps = bulk_warps,
    };
    set_part(&args, 0, 0, n_bulk, grid.ctas * bulk_warps);
    set_part(&args, 1, n_bulk, n, grid.ctas * (grid.threads / 32 - bulk_warps));
    return weir_cuda_kernels_launch(kernels, &grid, stream, &args);
}

int weir_cuda_gather_launch(weir_device *base, weir_stream *stream,
                            const struct weir_gather_call *call)
{
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_gather_enqueue(device->kernels, call->gather->state, (CUstream)stream, call);
    weir_cuda_leave(device, mode);
    return rc;
}
