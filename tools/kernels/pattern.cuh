/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_KERNELS_PATTERN_CUH
#define WEIR_TOOLS_KERNELS_PATTERN_CUH

/* The rows of one piece as words of 16, 8, 4 or 1 bytes, whichever is the
 * widest that all rows of the plane allow, so that no word is in two rows and
 * none is in two words of the pattern. */

#include "../pattern_word.h"
#include "pattern_args.h"

#define PATTERN_DEVICE static __device__ __forceinline__

/* ---- Words --------------------------------------------------------------- */

/* The word at that index of a row. */
template <class Word> PATTERN_DEVICE Word pattern_of(uint64_t seed, uint32_t index)
{
    uint32_t offset = index * static_cast<uint32_t>(sizeof(Word));
    return static_cast<Word>(weir_pattern_word(seed, offset / 8) >> (offset % 8 * 8));
}

template <> __device__ __forceinline__ ulonglong2 pattern_of(uint64_t seed, uint32_t index)
{
    return make_ulonglong2(weir_pattern_word(seed, 2 * static_cast<uint64_t>(index)),
                           weir_pattern_word(seed, 2 * static_cast<uint64_t>(index) + 1));
}

PATTERN_DEVICE uint32_t different_bytes(uint64_t a, uint64_t b)
{
    uint64_t x = a ^ b;
    x |= x >> 4;
    x |= x >> 2;
    x |= x >> 1;
    return static_cast<uint32_t>(__popcll(x & 0x0101010101010101ull));
}

PATTERN_DEVICE uint32_t different_bytes(ulonglong2 a, ulonglong2 b)
{
    return different_bytes(static_cast<uint64_t>(a.x), static_cast<uint64_t>(b.x)) +
           different_bytes(static_cast<uint64_t>(a.y), static_cast<uint64_t>(b.y));
}

/* ---- Pieces -------------------------------------------------------------- */

struct Piece {
    uint64_t address; /* of its row 0 */
    uint64_t place;
    const uint64_t *fingerprints; /* of its row 0 */
    uint32_t row_bytes;
    uint32_t begin; /* rows */
    uint32_t end;
};

PATTERN_DEVICE Piece piece_of(const weir_pattern_args &args, uint32_t entry_index, uint32_t tensor)
{
    weir_pattern_plane plane = args.planes[tensor];
    weir_pattern_entry entry = args.entries[entry_index];
    Piece piece;
    piece.address = plane.base + static_cast<uint64_t>(entry.page) * plane.stride;
    piece.place = plane.place;
    piece.fingerprints = args.fingerprints + entry.first;
    piece.row_bytes = plane.row_bytes;
    piece.begin = entry.begin < plane.rows ? entry.begin : plane.rows;
    piece.end = entry.end < plane.rows ? entry.end : plane.rows;
    return piece;
}

/* Calls work(word's address, seed, index in the row, row) for the words of the
 * piece that are this thread's, of `threads` that share them. */
template <class Word, class Work>
PATTERN_DEVICE void each_word(const Piece &piece, uint32_t thread, uint32_t threads, Work work)
{
    uint32_t per_row = piece.row_bytes / static_cast<uint32_t>(sizeof(Word));
    uint32_t words = (piece.end - piece.begin) * per_row;
    for (uint32_t w = thread; w < words; w += threads) {
        uint32_t row = piece.begin + w / per_row;
        uint32_t index = w % per_row;
        uint64_t address = piece.address + static_cast<uint64_t>(row) * piece.row_bytes +
                           index * static_cast<uint32_t>(sizeof(Word));
        uint64_t seed = weir_pattern_mix(piece.place, piece.fingerprints[row]);
        work(reinterpret_cast<Word *>(address), seed, index, row);
    }
}

/* ---- Wrong bytes --------------------------------------------------------- */

PATTERN_DEVICE void tell_wrong(const weir_pattern_args &args, uint32_t bytes, uint32_t entry,
                               uint32_t tensor, uint32_t row)
{
    if (bytes == 0)
        return;
    atomicAdd(reinterpret_cast<unsigned long long *>(&args.wrong->bytes),
              static_cast<unsigned long long>(bytes));
    if (atomicCAS(&args.wrong->told, 0, 1) != 0)
        return;
    args.wrong->layer = args.layer;
    args.wrong->tensor = tensor;
    args.wrong->entry = entry;
    args.wrong->row = row;
}

#endif
