/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_GATHER_CUH
#define WEIR_KERNELS_GATHER_CUH

/* Who copies what of a gather.
 *
 *   row i     bank 0            bank 1  bank 2     the bytes of a row in all banks
 *             ├─────────────────┼───────┼──┤       of a part, one after another
 *
 *   rows      r0 ───── r1 ───── r2 ───── r3 ─────  n of them, one after another
 *             │ worker 0 │ worker 1 │ worker 2 │   equal shares of all bytes
 *
 * A share is a range of this sequence, so no worker has more bytes than another,
 * whatever the banks' sizes. Where it begins is arithmetic; a worker walks it
 * and needs the index of one row at a time. A cut within a line lies at a
 * multiple of WEIR_GATHER_CUT from the line's beginning.
 *
 * The first indices are asked for together with the length of the lists, not
 * after it: each is a journey to memory, and a short gather has time for one.
 *
 * Invariants: all that is not said to be a lane's own is the same in all lanes
 * of a warp; each byte belongs to exactly one worker, and of a row in a bank
 * the one that has its first byte counts it if it is skipped. */

#include "count.cuh"
#include "gather_args.h"
#include "walk.cuh"

struct GatherPiece {
    uint64_t to;
    uint64_t from;
    uint32_t bytes; /* 0: its row is skipped */
};

template <class Args> class GatherWalk
{
  public:
    WEIR_MEMBER GatherWalk(const Args &a, uint32_t part_index)
        : args(a), part(a.head.parts[part_index]), window(0), skipped_(0)
    {
        fetch();
        count = args.head.count ? *args.head.count : args.head.n_rows;
    }

    /* Waits for the length. */
    WEIR_MEMBER void start(uint32_t worker)
    {
        uint32_t n = count < 0 ? 0 : static_cast<uint32_t>(args.head.max_count);
        if (count >= 0 && count < n)
            n = static_cast<uint32_t>(count);
        at = place(n, worker);
        end = place(n, worker + 1);
        if (more())
            open_row();
    }

    WEIR_MEMBER bool more() const
    {
        return at.offset != end.offset || at.row != end.row || at.bank != end.bank ||
               at.line != end.line;
    }

    /* The next piece, of at most `room` bytes, a multiple of WEIR_GATHER_CUT.
     * Pre: more. */
    WEIR_MEMBER GatherPiece take(uint32_t room)
    {
        const weir_gather_bank &bank = args.banks[at.bank];
        bool last = at.line == end.line && at.bank == end.bank && at.row == end.row;
        uint32_t bytes = (last ? end.offset : bank.line_bytes) - at.offset;
        GatherPiece piece = { 0, 0, 0 };
        if (has_row(bank.to_rows, to_row) && has_row(bank.from_rows, from_row)) {
            bytes = bytes < room ? bytes : room;
            piece.to = bank.to + to_row * bank.to_stride +
                       static_cast<uint64_t>(at.line) * bank.to_pitch + at.offset;
            piece.from = bank.from + from_row * bank.from_stride +
                         static_cast<uint64_t>(at.line) * bank.from_pitch + at.offset;
            piece.bytes = bytes;
        } else if (at.line == 0 && at.offset == 0) {
            skipped_++;
        }
        step(bank, bytes);
        return piece;
    }

    /* To be called once, at the end. */
    WEIR_MEMBER void report() const
    {
        if (skipped_ > 0 && lane_id() == 0)
            show_count(args.head.skipped, args.head.skipped_word, skipped_);
    }

  private:
    struct Place {
        uint32_t row;
        uint32_t bank;
        uint32_t line;
        uint32_t offset;
    };

    /* Where the share of worker k begins, and that of k - 1 ends. */
    WEIR_MEMBER Place place(uint32_t n, uint32_t k) const
    {
        uint32_t product = n * k;
        Place p = { quotient(product, part.workers_magic), part.begin, 0, 0 };
        uint32_t over = product - p.row * part.workers;
        uint64_t left = over * part.share + quotient(over * part.rest, part.workers_magic);
        for (; p.bank + 1 < part.end; p.bank++) {
            uint64_t size =
                static_cast<uint64_t>(args.banks[p.bank].lines) * args.banks[p.bank].line_bytes;
            if (left < size)
                break;
            left -= size;
        }
        p.offset = static_cast<uint32_t>(left);
        if (args.banks[p.bank].lines > 1) {
            p.line = p.offset / args.banks[p.bank].line_bytes;
            p.offset -= p.line * args.banks[p.bank].line_bytes;
        }
        p.offset -= p.offset % WEIR_GATHER_CUT;
        return p;
    }

    WEIR_MEMBER void step(const weir_gather_bank &bank, uint32_t bytes)
    {
        at.offset += bytes;
        if (at.offset < bank.line_bytes)
            return;
        at.offset = 0;
        if (++at.line < bank.lines)
            return;
        at.line = 0;
        if (++at.bank < part.end)
            return;
        at.bank = part.begin;
        at.row++;
        if (more())
            open_row();
    }

    WEIR_MEMBER void open_row()
    {
        if (at.row - window >= 32) {
            window = at.row;
            fetch();
        }
        to_row = warp_get(lane_to_row, at.row - window);
        from_row = warp_get(lane_from_row, at.row - window);
    }

    /* The indices of the window, one a lane. */
    WEIR_MEMBER void fetch()
    {
        uint32_t row = window + lane_id();
        lane_to_row = 0;
        lane_from_row = 0;
        if (row < args.head.max_count) {
            lane_to_row = index(args.head.to_rows, row);
            lane_from_row = index(args.head.from_rows, row);
        }
    }
    WEIR_MEMBER uint64_t index(const void *rows, uint32_t row) const
    {
        return static_cast<uint64_t>(args.head.wide ? static_cast<const int64_t *>(rows)[row]
                                                    : static_cast<const int32_t *>(rows)[row]);
    }
    WEIR_MEMBER static bool has_row(uint32_t rows, uint64_t row)
    {
        return rows == 0 || row < rows;
    }

    const Args &args;
    const weir_gather_part &part;
    int64_t count;
    Place at;
    Place end;
    uint32_t window; /* its first row */
    uint32_t skipped_;
    uint64_t to_row; /* indices of the row at hand */
    uint64_t from_row;
    uint64_t lane_to_row; /* a lane's own */
    uint64_t lane_from_row;
};

/* ---- Through registers ----------------------------------------------------- */

/* Both addresses are equally far from a multiple of a Word. What lies before the
 * first whole word and behind the last is a byte a lane, fewer than 32. */
template <class Word, uint32_t BATCH>
WEIR_DEVICE void copy_words(uint64_t to, uint64_t from, uint32_t bytes)
{
    constexpr uint32_t SIZE = sizeof(Word);
    uint32_t head = static_cast<uint32_t>(0 - to) % SIZE;
    head = head < bytes ? head : bytes;
    uint32_t words = (bytes - head) / SIZE;
    uint32_t edge = bytes - words * SIZE;
    uint32_t edge_at = lane_id() < head ? lane_id() : lane_id() + words * SIZE;
    uint8_t edge_byte = 0;
    if (lane_id() < edge)
        edge_byte = stream_load(reinterpret_cast<const uint8_t *>(from + edge_at));
    Word *word_to = reinterpret_cast<Word *>(to + head);
    const Word *word_from = reinterpret_cast<const Word *>(from + head);
#pragma unroll 1
    for (uint32_t w = lane_id(); w < words; w += 32 * BATCH) {
        Word batch[BATCH] = {};
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (w + 32 * k < words)
                batch[k] = stream_load(word_from + w + 32 * k);
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (w + 32 * k < words)
                stream_store(word_to + w + 32 * k, batch[k]);
    }
    if (lane_id() < edge)
        stream_store(reinterpret_cast<uint8_t *>(to + edge_at), edge_byte);
}

WEIR_DEVICE void copy_piece(const GatherPiece &piece)
{
    uint32_t apart = static_cast<uint32_t>(piece.to ^ piece.from);
    if (apart % 16 == 0)
        copy_words<uint4, 8>(piece.to, piece.from, piece.bytes);
    else if (apart % 8 == 0)
        copy_words<uint2, 8>(piece.to, piece.from, piece.bytes);
    else if (apart % 4 == 0)
        copy_words<uint32_t, 8>(piece.to, piece.from, piece.bytes);
    else
        copy_words<uint8_t, 8>(piece.to, piece.from, piece.bytes);
}

/* One worker's share of the banks for registers. */
template <class Args> WEIR_DEVICE void gather_through_registers(const Args &args, uint32_t worker)
{
    if (args.head.parts[1].begin == args.head.parts[1].end)
        return;
    GatherWalk<Args> walk(args, 1);
    walk.start(worker);
    while (walk.more())
        copy_piece(walk.take(WEIR_VECTOR_CHUNK_BYTES));
    walk.report();
}

#endif
