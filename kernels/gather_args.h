/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_GATHER_ARGS_H
#define WEIR_KERNELS_GATHER_ARGS_H

/* What the host tells a gather kernel; read by C and CUDA alike. All of it
 * travels with the launch, so that a captured launch keeps its own.
 *
 *   head ──► lists and their length (device memory)
 *     │
 *     ├──► parts [0]  banks for bulk copies     banks [begin … end)
 *     └──► parts [1]  banks for registers       banks [begin … end)
 *
 * Invariants: a part's bytes are those of one row in all its banks, and
 * bytes == share * workers + rest with rest < workers; max_count * workers is
 * below 2^32; banks of parts[0] are multiples of 16 in every respect. */

#include "args.h"

#define WEIR_GATHER_BANKS 64u
#define WEIR_GATHER_FEW_BANKS 8u      /* few arguments reach the GPU sooner */
#define WEIR_GATHER_REGISTER_WARPS 8u /* of a TMA CTA, if it has such banks */
#define WEIR_GATHER_MAX_THREADS (32u * (WEIR_TMA_MAX_STAGES + WEIR_GATHER_REGISTER_WARPS))
#define WEIR_GATHER_PIECES 32u /* of a stage: one a lane */
#define WEIR_GATHER_CUT 128u   /* a row is cut at multiples of it */

/* A row is `lines` lines of line_bytes, a pitch from one to the next. */
struct weir_gather_bank {
    uint64_t to;
    uint64_t from;
    uint64_t to_stride;
    uint64_t from_stride;
    uint32_t line_bytes;
    uint32_t lines;
    uint32_t to_pitch;
    uint32_t from_pitch;
    uint32_t to_rows; /* 0: not checked */
    uint32_t from_rows;
};

struct weir_gather_part {
    uint32_t begin;
    uint32_t end;
    uint32_t workers; /* warps */
    uint32_t rest;
    uint64_t share;
    uint64_t workers_magic;
};

struct weir_gather_head {
    const void *to_rows;
    const void *from_rows;
    const int64_t *count; /* NULL: n_rows */
    int64_t n_rows;
    uint32_t *skipped;      /* in device memory */
    uint32_t *skipped_word; /* pinned: shows `skipped` to the host */
    uint32_t max_count;
    uint32_t wide;        /* indices are 64-bit */
    uint32_t stage_bytes; /* of bulk copies: a stage for each of bulk_warps */
    uint32_t bulk_warps;  /* of a CTA; the others copy through registers */
    struct weir_gather_part parts[2];
};

struct weir_gather_args {
    struct weir_gather_head head;
    struct weir_gather_bank banks[WEIR_GATHER_BANKS];
};

/* The beginning of the above. */
struct weir_gather_few_args {
    struct weir_gather_head head;
    struct weir_gather_bank banks[WEIR_GATHER_FEW_BANKS];
};

#endif
