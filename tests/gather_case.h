/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_GATHER_CASE_H
#define WEIR_TESTS_GATHER_CASE_H

/* Random gathers and what they should do, said byte by byte.
 *
 *   an arena a side   bank 0: rows │ bank 1: rows │ …   at any address; banks
 *                                                       name it by `base`
 *
 * Everything is drawn from one seed. */

#include "random.h"

#include <weir/gather.h>

#include <stdlib.h>
#include <string.h>

#define GATHER_CASE_MAX_ROWS 700u

struct gather_case {
    uint32_t n_banks;
    weir_bank banks[WEIR_GATHER_MAX_BANKS]; /* dst, src: offsets in the arenas */
    uint64_t bytes[2];                      /* of the arenas: 0 dst, 1 src */
    uint32_t n_rows[2];
    uint32_t index_bytes;
    uint32_t max_count;
    int64_t rows[2][GATHER_CASE_MAX_ROWS];
};

static const uint64_t gather_case_experts[] = { 1048576, 131072, 4096, 524288, 65536, 8192 };
static const uint64_t gather_case_small[] = { 8192, 512, 256, 4096, 512, 256 };
static const uint64_t gather_case_odd[] = { 200, 24, 132, 1 };

static inline uint64_t gather_case_place(uint64_t *bytes, uint64_t length, uint32_t align)
{
    *bytes = (*bytes + align - 1) / align * align;
    uint64_t at = *bytes;
    *bytes += length;
    return at;
}

/* Banks of these row bytes, dense and checked. */
static inline void gather_case_banks(struct gather_case *c, const uint64_t *row_bytes, uint32_t n,
                                     uint32_t dst_rows, uint32_t src_rows)
{
    memset(c, 0, sizeof *c);
    c->n_banks = n;
    c->n_rows[0] = dst_rows;
    c->n_rows[1] = src_rows;
    c->index_bytes = 4;
    for (uint32_t i = 0; i < n; i++) {
        weir_bank *b = &c->banks[i];
        b->row_bytes = row_bytes[i];
        b->dst_rows = dst_rows;
        b->src_rows = src_rows;
        b->dst = gather_case_place(&c->bytes[0], dst_rows * b->row_bytes, 256);
        b->src = gather_case_place(&c->bytes[1], src_rows * b->row_bytes, 256);
    }
}

/* Any banks: odd lengths and addresses, strides, payloads, rows of which some
 * banks have fewer. `unit`: all of it is a multiple. */
static inline void gather_case_random_banks(struct gather_case *c, struct random *random,
                                            uint32_t unit, uint32_t max_bytes)
{
    uint32_t n =
        random_percent(random, 20) ? 1 + random_below(random, 64) : 1 + random_below(random, 8);
    memset(c, 0, sizeof *c);
    c->n_banks = n;
    for (uint32_t side = 0; side < 2; side++)
        c->n_rows[side] = 4 + random_below(random, random_percent(random, 20) ? 100 : 30);
    c->index_bytes = random_percent(random, 50) ? 4 : 8;
    bool checked = random_percent(random, 70);
    for (uint32_t i = 0; i < n; i++) {
        weir_bank *b = &c->banks[i];
        uint32_t bytes = random_percent(random, 40) ? max_bytes : 300;
        b->row_bytes = (1 + random_below(random, bytes / unit)) * (uint64_t)unit;
        uint64_t extent[2] = { b->row_bytes, b->row_bytes };
        if (random_percent(random, 25)) {
            b->payload_lines = 1 + random_below(random, 9);
            b->payload_bytes = b->row_bytes / b->payload_lines / unit * unit;
            if (b->payload_bytes == 0)
                b->payload_bytes = unit;
            b->dst_pitch = b->payload_bytes + random_below(random, 4) * unit;
            b->src_pitch = b->payload_bytes + random_below(random, 4) * unit;
            extent[0] = b->dst_pitch * b->payload_lines;
            extent[1] = b->src_pitch * b->payload_lines;
        }
        uint64_t *strides[2] = { &b->dst_row_stride, &b->src_row_stride };
        uint64_t *rows[2] = { &b->dst_rows, &b->src_rows };
        uint64_t *bases[2] = { &b->dst, &b->src };
        for (uint32_t side = 0; side < 2; side++) {
            uint64_t stride = extent[side] + random_below(random, 5) * (uint64_t)unit;
            bool dense = random_percent(random, 60) && extent[side] <= b->row_bytes;
            *strides[side] = dense ? 0 : stride;
            if (dense)
                stride = b->row_bytes;
            *rows[side] = checked ? c->n_rows[side] - random_below(random, 3) : 0;
            *bases[side] = gather_case_place(&c->bytes[side], stride * c->n_rows[side], unit) +
                           (unit == 1 ? random_below(random, 16) : 0);
            c->bytes[side] = *bases[side] + stride * c->n_rows[side];
        }
    }
}

/* Lists of `count` rows: targets distinct, sources any; with `wild` per cent of
 * the indices outside, which needs banks that are checked. */
static inline void gather_case_lists(struct gather_case *c, struct random *random, uint32_t count,
                                     uint32_t wild)
{
    uint32_t order[GATHER_CASE_MAX_ROWS];
    for (uint32_t i = 0; i < c->n_rows[0]; i++)
        order[i] = i;
    static const int64_t outside[] = { -1, INT32_MIN, INT32_MAX, 1000000 };
    bool checked = c->banks[0].dst_rows > 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = i + random_below(random, c->n_rows[0] - i);
        uint32_t taken = order[other];
        order[other] = order[i];
        c->rows[0][i] = taken;
        c->rows[1][i] = random_below(random, c->n_rows[1]);
        if (checked && random_percent(random, wild))
            c->rows[random_below(random, 2)][i] = outside[random_below(random, 4)];
    }
}

static inline bool gather_case_has(uint64_t rows, int64_t row)
{
    return rows == 0 || (row >= 0 && (uint64_t)row < rows);
}

/* Does to the arenas what the gather should; how many rows it skips. */
static inline uint32_t gather_case_expect(const struct gather_case *c, uint8_t *to,
                                          const uint8_t *from, int64_t count)
{
    uint32_t skipped = 0;
    for (uint32_t bank = 0; bank < c->n_banks; bank++) {
        const weir_bank *b = &c->banks[bank];
        uint64_t dst_stride = b->dst_row_stride ? b->dst_row_stride : b->row_bytes;
        uint64_t src_stride = b->src_row_stride ? b->src_row_stride : b->row_bytes;
        uint64_t lines = b->payload_bytes ? b->payload_lines : 1;
        uint64_t length = b->payload_bytes ? b->payload_bytes : b->row_bytes;
        for (int64_t i = 0; i < count && i < c->max_count; i++) {
            if (!gather_case_has(b->dst_rows, c->rows[0][i]) ||
                !gather_case_has(b->src_rows, c->rows[1][i])) {
                skipped++;
                continue;
            }
            uint8_t *t = to + b->dst + (uint64_t)c->rows[0][i] * dst_stride;
            const uint8_t *f = from + b->src + (uint64_t)c->rows[1][i] * src_stride;
            for (uint64_t line = 0; line < lines; line++)
                memcpy(t + line * b->dst_pitch, f + line * b->src_pitch, length);
        }
    }
    return skipped;
}

/* The list of one side as the gather wants it, into room for max_count. */
static inline void gather_case_pack(const struct gather_case *c, uint32_t side, void *out)
{
    for (uint32_t i = 0; i < c->max_count; i++) {
        int32_t narrow = (int32_t)c->rows[side][i];
        if (c->index_bytes == 4)
            memcpy((uint8_t *)out + i * 4ull, &narrow, 4);
        else
            memcpy((uint8_t *)out + i * 8ull, &c->rows[side][i], 8);
    }
}

/* Params whose banks, in `banks`, lie in arenas at these addresses. */
static inline weir_gather_params gather_case_params(const struct gather_case *c, uint64_t to,
                                                    uint64_t from, weir_bank *banks)
{
    weir_gather_params p;
    weir_gather_params_init(&p);
    for (uint32_t i = 0; i < c->n_banks; i++) {
        banks[i] = c->banks[i];
        banks[i].dst += to;
        banks[i].src += from;
    }
    p.banks = banks;
    p.n_banks = c->n_banks;
    p.max_count = c->max_count;
    p.index_bytes = c->index_bytes;
    return p;
}

static inline void gather_case_fill(uint8_t *bytes, uint64_t n, struct random *random)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word = random_next(random);
        for (uint64_t k = 0; k < 8 && i + k < n; k++)
            bytes[i + k] = (uint8_t)(word >> 8 * k);
        i += 7;
    }
}

#endif
