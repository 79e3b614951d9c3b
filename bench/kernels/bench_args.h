/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_ARGS_H
#define WEIR_BENCH_ARGS_H

/* What the host tells the benchmarks' kernels; read by C and CUDA alike. On the
 * CPU device the same jobs are done by functions of the same arguments. */

#include <stdint.h>

#ifdef __CUDACC__
#define WEIR_BENCH_BOTH __host__ __device__
#else
#define WEIR_BENCH_BOTH
#endif

/* Bytes that tell which move, tensor, layer and place they belong to. Move i of
 * a list moves a page that holds content i, so both tiers agree without knowing
 * each other's page ids. `pages` are page ids of a plane at `base`. */
struct weir_bench_pattern_args {
    uint64_t base;
    uint64_t page_stride;
    uint64_t page_bytes;
    const int32_t *pages; /* [n_pages] */
    uint32_t n_pages;
    uint32_t check;  /* 0: fill */
    uint64_t key;    /* of tensor, layer and fill */
    uint32_t *wrong; /* bytes found wrong are added */
};

/* Eight bytes, those from 8 * index on. */
static inline WEIR_BENCH_BOTH uint64_t weir_bench_pattern_word(uint64_t key, uint32_t move,
                                                               uint64_t index)
{
    uint64_t x = key + move * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xd1342543de82ef95);
    x ^= x >> 31;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 29;
}

/* Rows of up to two buffers, each row_bytes apart on both sides: row
 * from_rows[i] of from[b] to row to_rows[i] of to[b]. */
struct weir_bench_rows_args {
    uint64_t to[2];
    uint64_t from[2];
    const int64_t *to_rows;
    const int64_t *from_rows;
    uint32_t n_rows;
    uint32_t row_bytes; /* a multiple of WEIR_BENCH_ROW_STEP */
    uint32_t n_buffers;
};

#define WEIR_BENCH_ROW_STEP 128u /* bytes that a worker moves in a round */
#define WEIR_BENCH_ROWS_THREADS 1024u

/* Rows of several banks, row_bytes apart on both sides and a multiple of 16: row
 * from_rows[i] of from[b] to row to_rows[i] of to[b], for i below *count. */
#define WEIR_BENCH_GATHER_BANKS 8u
#define WEIR_BENCH_GATHER_THREADS 1024u
#define WEIR_BENCH_GATHER_CTAS 8u /* a bank */

struct weir_bench_gather_args {
    uint64_t to[WEIR_BENCH_GATHER_BANKS];
    uint64_t from[WEIR_BENCH_GATHER_BANKS];
    uint32_t row_bytes[WEIR_BENCH_GATHER_BANKS];
    const int32_t *to_rows;
    const int32_t *from_rows;
    const int64_t *count;
    uint32_t n_banks;
};

/* The tiles of the GEMMs. Rows of all operands follow one another:
 * activations [rows][depth], weights [columns][depth], output [rows][columns]. */
#define WEIR_BENCH_TILE_ROWS 128u
#define WEIR_BENCH_TILE_COLUMNS 256u
#define WEIR_BENCH_TILE_DEPTH 32u
#define WEIR_BENCH_GEMM_STAGES 4u
#define WEIR_BENCH_GEMM_THREADS 256u
#define WEIR_BENCH_GEMM_SHARED                                                   \
    (WEIR_BENCH_GEMM_STAGES * (WEIR_BENCH_TILE_ROWS + WEIR_BENCH_TILE_COLUMNS) * \
     WEIR_BENCH_TILE_DEPTH * 2u)

/* The small GEMM: few rows, kept in shared memory, and weights that stream by. */
#define WEIR_BENCH_SMALL_ROWS 16u
#define WEIR_BENCH_SMALL_COLUMNS 128u /* of a CTA */
#define WEIR_BENCH_SMALL_DEPTH 2048u
#define WEIR_BENCH_SMALL_THREADS 256u
#define WEIR_BENCH_SMALL_PITCH (WEIR_BENCH_SMALL_DEPTH + 32u) /* halves; keeps banks apart */
#define WEIR_BENCH_SMALL_SHARED (WEIR_BENCH_SMALL_ROWS * WEIR_BENCH_SMALL_PITCH * 2u)

/* A grid that is on all SMs at once and meets `rounds` times. */
struct weir_bench_cooperative_args {
    uint32_t *arrivals; /* only ever grows */
    float *sink;        /* [grid] */
    uint32_t start;     /* arrivals before this launch */
    uint32_t rounds;
    uint32_t steps; /* of arithmetic in each round */
};

#endif
