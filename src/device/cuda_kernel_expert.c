/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_kernels.h"

#include "base/log.h"
#include "kernels/expert_args.h"

#include <errno.h>

/* An expert cache's calls: one block, all that it needs travels with the launch. */

#define MIN_THREADS 256u

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A thread an id, and enough of them that a scan of the order takes few turns; no
 * more, since they meet a dozen times. */
static uint32_t threads_of(const struct weir_expert_args *args)
{
    uint32_t threads = larger(larger(args->n, args->n_slots / 8), MIN_THREADS);
    threads = (threads + 31) / 32 * 32;
    return threads < WEIR_EXPERT_MAX_THREADS ? threads : WEIR_EXPERT_MAX_THREADS;
}

int weir_cuda_kernels_expert(struct weir_cuda_kernels *kernels, CUstream stream,
                             const struct weir_expert_args *args, enum weir_expert_work work)
{
    bool reset = work == WEIR_EXPERT_RESET;
    struct weir_cuda_grid grid = {
        .function =
            kernels->functions[reset ? WEIR_KERNEL_EXPERT_RESET : WEIR_KERNEL_EXPERT_ENSURE],
        .ctas = 1,
        .threads = reset ? WEIR_EXPERT_MAX_THREADS : threads_of(args),
        .shared_bytes = reset ? 0 : WEIR_EXPERT_SHARED_BYTES(args->n_slots, args->n_experts),
    };
    if (!grid.function) {
        weir_log_line(&kernels->device->base.log, WEIR_LOG_ERROR,
                      "expert cache: no kernel for this gpu");
        return -ENOTSUP;
    }
    struct weir_expert_args copy = *args;
    return weir_cuda_kernels_launch(kernels, &grid, stream, &copy);
}

int weir_cuda_expert_launch(weir_device *base, weir_stream *stream,
                            const struct weir_expert_args *args, enum weir_expert_work work)
{
    int rc = weir_cuda_check_stream(base, stream, "expert cache");
    if (rc)
        return rc;
    struct weir_cuda_device *device = weir_cuda_from(base);
    CUstreamCaptureMode mode;
    rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_kernels_expert(device->kernels, (CUstream)stream, args, work);
    weir_cuda_leave(device, mode);
    return rc;
}
