/* SPDX-License-Identifier: Apache-2.0 */

/* The baseline: rows copied through registers, the way that caches do by
 * default today. A worker of 8, 16 or 32 lanes takes a row, reads 64 bytes a
 * lane of it, and then writes them; what is in flight is 64 KiB a CTA of 1024
 * threads, however the rows lie. */

#include "bench_args.h"

static __device__ __forceinline__ void load(uint32_t &value, const void *from)
{
    asm volatile("ld.global.L1::no_allocate.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
}

static __device__ __forceinline__ void load(uint2 &value, const void *from)
{
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(from)
                 : "memory");
}

static __device__ __forceinline__ void load(uint4 &value, const void *from)
{
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
}

template <typename Unit>
static __device__ void copy_row(char *to, const char *from, uint32_t rounds)
{
    constexpr uint32_t kRounds = 64 / sizeof(Unit);
    for (uint32_t begin = 0; begin < rounds; begin += kRounds) {
        Unit units[kRounds];
#pragma unroll
        for (uint32_t i = 0; i < kRounds; i++)
            if (begin + i < rounds)
                load(units[i], from + (begin + i) * WEIR_BENCH_ROW_STEP);
#pragma unroll
        for (uint32_t i = 0; i < kRounds; i++)
            if (begin + i < rounds)
                *(Unit *)(to + (begin + i) * WEIR_BENCH_ROW_STEP) = units[i];
    }
}

template <typename Unit> static __device__ void copy_rows(const weir_bench_rows_args &args)
{
    constexpr uint32_t kLanes = WEIR_BENCH_ROW_STEP / sizeof(Unit);
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t workers = gridDim.x * blockDim.x / kLanes;
    uint32_t offset = thread % kLanes * sizeof(Unit);
    for (uint32_t i = thread / kLanes; i < args.n_rows; i += workers) {
        int64_t to = args.to_rows[i] * args.row_bytes + offset;
        int64_t from = args.from_rows[i] * args.row_bytes + offset;
        for (uint32_t b = 0; b < args.n_buffers; b++)
            copy_row<Unit>((char *)args.to[b] + to, (const char *)args.from[b] + from,
                           args.row_bytes / WEIR_BENCH_ROW_STEP);
    }
}

extern "C" __global__ void __launch_bounds__(WEIR_BENCH_ROWS_THREADS, 1)
    weir_bench_register_copy(const __grid_constant__ weir_bench_rows_args args)
{
    if (args.row_bytes <= 512)
        copy_rows<uint4>(args);
    else if (args.row_bytes <= 1024)
        copy_rows<uint2>(args);
    else
        copy_rows<uint32_t>(args);
}
