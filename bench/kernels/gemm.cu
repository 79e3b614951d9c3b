/* SPDX-License-Identifier: Apache-2.0 */

/* The forward pass: matrix products in fp16 with fp32 sums.
 *
 *   gemm         a tile of 128 × 256 a CTA; operands come through a ring of
 *                shared memory by cp.async, 8 warps of 64 × 64 multiply
 *
 *     warp    0 1 2 3      columns 0..63 64..127 128..191 192..255
 *             4 5 6 7      rows 0..63 above, 64..127 below
 *
 *   small_gemm   16 rows, held in shared memory; each weight is read once, so
 *                memory sets the pace
 *
 * Both take the depth in an order of their own, the same for both operands,
 * which a sum does not mind. */

#include "bench_args.h"

#include <cuda_fp16.h>

/* c += a × b on tensor cores: 16 × 8, depth 16. */
static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

static __device__ __forceinline__ void copy_async(uint32_t shared, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

static constexpr uint32_t kRowBytes = WEIR_BENCH_TILE_DEPTH * 2;
static constexpr uint32_t kRowChunks = kRowBytes / 16;
static constexpr uint32_t kTileRows = WEIR_BENCH_TILE_ROWS + WEIR_BENCH_TILE_COLUMNS;
static constexpr uint32_t kStageBytes = kTileRows * kRowBytes;

/* Where a 16-byte chunk of a row lies in a stage: turned by the row, so that
 * eight rows of one column of chunks lie in different banks. */
static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
{
    return row * kRowBytes + (chunk ^ (row >> 1 & (kRowChunks - 1))) * 16;
}

/* Rows 0..127 of a stage are activations, the others weights. */
static __device__ __forceinline__ void fill_stage(uint32_t stage, const half *activations,
                                                  const half *weights, uint32_t depth, uint32_t at)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < kTileRows * kRowChunks; i += WEIR_BENCH_GEMM_THREADS) {
        uint32_t row = i / kRowChunks;
        uint32_t chunk = i % kRowChunks;
        const half *from = row < WEIR_BENCH_TILE_ROWS
                               ? activations + (size_t)row * depth
                               : weights + (size_t)(row - WEIR_BENCH_TILE_ROWS) * depth;
        copy_async(stage + place(row, chunk), from + at + chunk * 8);
    }
}

static __device__ __forceinline__ void multiply_stage(float (&sums)[4][8][4], uint32_t stage,
                                                      uint32_t warp_row, uint32_t warp_column)
{
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t k = 0; k < kRowChunks; k += 2) {
        uint32_t a[4][4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            load_matrices(a[i], stage + place(warp_row + i * 16 + lane % 16, k + lane / 16));
#pragma unroll
        for (uint32_t j = 0; j < 8; j += 2) {
            uint32_t b[4];
            uint32_t row = WEIR_BENCH_TILE_ROWS + warp_column + j * 8 + lane % 8 + lane / 16 * 8;
            load_matrices(b, stage + place(row, k + lane / 8 % 2));
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                multiply(sums[i][j], a[i], b[0], b[1]);
                multiply(sums[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Grid: (columns / 256, rows / 128); depth is a multiple of 32, at least 128. */
extern "C" __global__ void __launch_bounds__(WEIR_BENCH_GEMM_THREADS, 1)
    weir_bench_gemm(half *output, const half *activations, const half *weights, uint32_t columns,
                    uint32_t depth)
{
    extern __shared__ __align__(128) unsigned char ring[];
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(ring);
    const half *a = activations + (size_t)blockIdx.y * WEIR_BENCH_TILE_ROWS * depth;
    const half *b = weights + (size_t)blockIdx.x * WEIR_BENCH_TILE_COLUMNS * depth;
    uint32_t warp_row = threadIdx.x / 128 * 64;
    uint32_t warp_column = threadIdx.x / 32 % 4 * 64;
    uint32_t steps = depth / WEIR_BENCH_TILE_DEPTH;
    float sums[4][8][4] = {};

    for (uint32_t i = 0; i < WEIR_BENCH_GEMM_STAGES - 1; i++) {
        fill_stage(shared + i * kStageBytes, a, b, depth, i * WEIR_BENCH_TILE_DEPTH);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (uint32_t i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(WEIR_BENCH_GEMM_STAGES - 2) : "memory");
        __syncthreads();
        uint32_t next = i + WEIR_BENCH_GEMM_STAGES - 1;
        if (next < steps)
            fill_stage(shared + next % WEIR_BENCH_GEMM_STAGES * kStageBytes, a, b, depth,
                       next * WEIR_BENCH_TILE_DEPTH);
        asm volatile("cp.async.commit_group;" ::: "memory");
        multiply_stage(sums, shared + i % WEIR_BENCH_GEMM_STAGES * kStageBytes, warp_row,
                       warp_column);
    }

    uint32_t lane = threadIdx.x % 32;
    half *tile = output +
                 ((size_t)blockIdx.y * WEIR_BENCH_TILE_ROWS + warp_row + lane / 4) * columns +
                 blockIdx.x * WEIR_BENCH_TILE_COLUMNS + warp_column + lane % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            half *at = tile + (size_t)i * 16 * columns + j * 8;
            *(half2 *)at = __floats2half2_rn(sums[i][j][0], sums[i][j][1]);
            *(half2 *)(at + (size_t)8 * columns) = __floats2half2_rn(sums[i][j][2], sums[i][j][3]);
        }
}

/* Grid: columns / 128. A warp has 16 columns, in two groups of 8. */
extern "C" __global__ void __launch_bounds__(WEIR_BENCH_SMALL_THREADS, 2)
    weir_bench_small_gemm(half *output, const half *activations, const half *weights,
                          uint32_t columns)
{
    extern __shared__ __align__(128) unsigned char ring[];
    half *rows = (half *)ring;
    constexpr uint32_t kChunks = WEIR_BENCH_SMALL_DEPTH / 8;
    for (uint32_t i = threadIdx.x; i < WEIR_BENCH_SMALL_ROWS * kChunks;
         i += WEIR_BENCH_SMALL_THREADS)
        *(uint4 *)(rows + i / kChunks * WEIR_BENCH_SMALL_PITCH + i % kChunks * 8) =
            ((const uint4 *)activations)[i];
    __syncthreads();

    uint32_t lane = threadIdx.x % 32;
    uint32_t column = blockIdx.x * WEIR_BENCH_SMALL_COLUMNS + threadIdx.x / 32 * 16;
    const half *above = rows + lane / 4 * WEIR_BENCH_SMALL_PITCH + lane % 4 * 8;
    const half *below = above + 8 * WEIR_BENCH_SMALL_PITCH;
    const half *weight =
        weights + (size_t)(column + lane / 4) * WEIR_BENCH_SMALL_DEPTH + lane % 4 * 8;
    float sums[2][4] = {};
#pragma unroll 4
    for (uint32_t k = 0; k < WEIR_BENCH_SMALL_DEPTH; k += 32) {
        uint4 high = *(const uint4 *)(above + k);
        uint4 low = *(const uint4 *)(below + k);
        const uint32_t first[4] = { high.x, low.x, high.y, low.y };
        const uint32_t second[4] = { high.z, low.z, high.w, low.w };
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            uint4 b = __ldcs((const uint4 *)(weight + (size_t)j * 8 * WEIR_BENCH_SMALL_DEPTH + k));
            multiply(sums[j], first, b.x, b.y);
            multiply(sums[j], second, b.z, b.w);
        }
    }
    half *at = output + (size_t)(lane / 4) * columns + column + lane % 4 * 2;
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        *(half2 *)(at + j * 8) = __floats2half2_rn(sums[j][0], sums[j][1]);
        *(half2 *)(at + j * 8 + (size_t)8 * columns) = __floats2half2_rn(sums[j][2], sums[j][3]);
    }
}

/* Small values of both signs, all different: zeros would draw less power than
 * a real pass. */
extern "C" __global__ void __launch_bounds__(256) weir_bench_fill_half(half *values, uint64_t n)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        values[i] =
            __float2half((float)(int8_t)weir_bench_pattern_word(0, 0, i) * (1.0f / 1024.0f));
}
