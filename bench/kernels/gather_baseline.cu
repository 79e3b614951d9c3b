/* SPDX-License-Identifier: Apache-2.0 */

/* The gather's baseline: plain loads and stores of 16 bytes, a few CTAs of 1024
 * threads a bank, however large the bank is. */

#include "bench_args.h"

extern "C" __global__ void __launch_bounds__(WEIR_BENCH_GATHER_THREADS, 1)
    weir_bench_gather_baseline(const __grid_constant__ weir_bench_gather_args args)
{
    uint32_t bank = blockIdx.x / WEIR_BENCH_GATHER_CTAS;
    uint32_t part = blockIdx.x % WEIR_BENCH_GATHER_CTAS;
    uint32_t a_row = args.row_bytes[bank] / 16;
    uint32_t units = static_cast<uint32_t>(*args.count) * a_row;
    for (uint32_t u = part * WEIR_BENCH_GATHER_THREADS + threadIdx.x; u < units;
         u += WEIR_BENCH_GATHER_CTAS * WEIR_BENCH_GATHER_THREADS) {
        uint32_t i = u / a_row;
        uint64_t offset = (u - i * a_row) * 16ull;
        uint64_t to = args.to[bank] + static_cast<uint64_t>(args.to_rows[i]) * args.row_bytes[bank];
        uint64_t from =
            args.from[bank] + static_cast<uint64_t>(args.from_rows[i]) * args.row_bytes[bank];
        *reinterpret_cast<uint4 *>(to + offset) = *reinterpret_cast<const uint4 *>(from + offset);
    }
}
