/* SPDX-License-Identifier: Apache-2.0 */

/* Fills pages of a plane with their pattern, or counts the bytes that differ.
 * Pages and rows may begin at any byte. Grid: (pages, parts of a page). */

#include "bench_args.h"

extern "C" __global__ void __launch_bounds__(256)
    weir_bench_pattern(const __grid_constant__ weir_bench_pattern_args args)
{
    uint64_t words = (args.page_bytes + 7) / 8;
    uint64_t step = (uint64_t)gridDim.y * blockDim.x;
    uint32_t wrong = 0;
    for (uint32_t move = blockIdx.x; move < args.n_pages; move += gridDim.x) {
        unsigned char *page =
            (unsigned char *)(args.base + (uint64_t)args.pages[move] * args.page_stride);
        for (uint64_t i = (uint64_t)blockIdx.y * blockDim.x + threadIdx.x; i < words; i += step) {
            uint64_t word = weir_bench_pattern_word(args.key, move, i);
            uint32_t bytes = args.page_bytes - i * 8 < 8 ? (uint32_t)(args.page_bytes - i * 8) : 8;
            for (uint32_t k = 0; k < bytes; k++) {
                unsigned char value = (unsigned char)(word >> (8 * k));
                if (args.check)
                    wrong += page[i * 8 + k] != value;
                else
                    page[i * 8 + k] = value;
            }
        }
    }
    if (wrong)
        atomicAdd(args.wrong, wrong);
}
