/* SPDX-License-Identifier: Apache-2.0 */

/* Fills rows with their pattern, or counts the bytes that differ.
 * Grid: (entries, tensors of the layer, parts of a piece).
 *
 * A check reads by ordinary loads, through L1, as a forward pass may: a copy of
 * a later layer can still be running, but nothing writes these pages. */

#include "pattern.cuh"

#define THREADS 256u

template <class Word>
PATTERN_DEVICE void fill(const Piece &piece, uint32_t thread, uint32_t threads)
{
    each_word<Word>(piece, thread, threads,
                    [](Word *word, uint64_t seed, uint32_t index, uint32_t) {
                        *word = pattern_of<Word>(seed, index);
                    });
}

template <class Word>
PATTERN_DEVICE uint32_t check(const Piece &piece, uint32_t thread, uint32_t threads,
                              uint32_t *wrong_row)
{
    uint32_t wrong = 0;
    each_word<Word>(piece, thread, threads,
                    [&](const Word *word, uint64_t seed, uint32_t index, uint32_t row) {
                        uint32_t bytes = different_bytes(*word, pattern_of<Word>(seed, index));
                        if (bytes)
                            *wrong_row = row;
                        wrong += bytes;
                    });
    return wrong;
}

/* 16, 8, 4 or 1. */
PATTERN_DEVICE uint32_t word_bytes(const Piece &piece)
{
    uint64_t bits = piece.address | piece.row_bytes;
    return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weir_pattern_fill(const __grid_constant__ weir_pattern_args args)
{
    Piece piece = piece_of(args, blockIdx.x, blockIdx.y);
    uint32_t thread = blockIdx.z * THREADS + threadIdx.x;
    uint32_t threads = gridDim.z * THREADS;
    switch (word_bytes(piece)) {
    case 16:
        fill<ulonglong2>(piece, thread, threads);
        break;
    case 8:
        fill<uint64_t>(piece, thread, threads);
        break;
    case 4:
        fill<uint32_t>(piece, thread, threads);
        break;
    default:
        fill<uint8_t>(piece, thread, threads);
        break;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weir_pattern_check(const __grid_constant__ weir_pattern_args args)
{
    Piece piece = piece_of(args, blockIdx.x, blockIdx.y);
    uint32_t thread = blockIdx.z * THREADS + threadIdx.x;
    uint32_t threads = gridDim.z * THREADS;
    uint32_t row = 0;
    uint32_t wrong = 0;
    switch (word_bytes(piece)) {
    case 16:
        wrong = check<ulonglong2>(piece, thread, threads, &row);
        break;
    case 8:
        wrong = check<uint64_t>(piece, thread, threads, &row);
        break;
    case 4:
        wrong = check<uint32_t>(piece, thread, threads, &row);
        break;
    default:
        wrong = check<uint8_t>(piece, thread, threads, &row);
        break;
    }
    tell_wrong(args, wrong, blockIdx.x, blockIdx.y, row);
}
