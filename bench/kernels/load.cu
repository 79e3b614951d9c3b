/* SPDX-License-Identifier: Apache-2.0 */

/* Other loads on a GPU: a grid that needs every SM at once, and the short
 * kernels of a decode pass. */

#include "bench_args.h"

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/* Launched cooperatively: all CTAs are resident, so the meeting ends. */
extern "C" __global__ void __launch_bounds__(256, 1)
    weir_bench_cooperative(const __grid_constant__ weir_bench_cooperative_args args)
{
    float x = (float)threadIdx.x;
    float y = 1.0f;
    for (uint32_t round = 0; round < args.rounds; round++) {
        for (uint32_t i = 0; i < args.steps; i++) {
            x = fmaf(x, 0.999f, y);
            y = fmaf(y, 0.998f, x);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(args.arrivals, 1u);
            uint32_t all = args.start + (round + 1) * gridDim.x;
            while ((int32_t)(load_acquire(args.arrivals) - all) < 0)
                continue;
        }
        __syncthreads();
    }
    if (x + y == 12345.0f)
        args.sink[blockIdx.x] = x;
}

/* Reads n units and keeps nothing. */
extern "C" __global__ void __launch_bounds__(512)
    weir_bench_decode(const uint4 *units, uint64_t n, uint32_t *sink)
{
    uint32_t sum = 0;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
#pragma unroll 4
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint4 unit = __ldcs(units + i);
        sum += unit.x ^ unit.y ^ unit.z ^ unit.w;
    }
    if (sum == 0x12345678u)
        *sink = sum;
}
