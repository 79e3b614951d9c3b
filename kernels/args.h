/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_ARGS_H
#define WEIR_KERNELS_ARGS_H

/* What the host tells a copy kernel; read by C and CUDA alike.
 *
 *   weir_pages_args ──► plane_begin [layer]  ──► planes [plane] ──► maps
 *        │                                        (tensor, layer), sorted by layer
 *        ├──► pages: a ring of (device page, host page); this copy's are
 *        │           entries first, first + 1, … first + n_pages - 1, cyclic
 *        ├──► arrivals [layer]: how many warps have stored their part
 *        └──► words [layer]: pinned; the generation once all have
 *
 *   weir_rows_args  ──► buffers or tables of buffers, index arrays
 *
 * Invariants: pointers are device addresses, or addresses of pinned host memory
 * that are the same on both sides; arrivals are zero between two launches. */

#include <stdint.h>

#ifdef __cplusplus
#define WEIR_ARGS_ALIGN(n) alignas(n)
#else
#define WEIR_ARGS_ALIGN(n) _Alignas(n)
#endif

#define WEIR_TMA_LANE_ITEMS 4u /* items of a chunk that one lane looks after */
#define WEIR_TMA_CHUNK_ITEMS (32u * WEIR_TMA_LANE_ITEMS)
#define WEIR_TMA_MIN_STAGES 2u
#define WEIR_TMA_MAX_STAGES 16u
#define WEIR_TMA_STAGE_ALIGN 128u
#define WEIR_TMA_MIN_STAGE_BYTES 1024u
#define WEIR_TMA_MAX_STAGE_BYTES (128u << 10) /* a barrier counts below 1 MiB */
#define WEIR_TMA_BOX_ROWS 32u                 /* the most rows of a box: one warp's worth */
#define WEIR_TMA_BOX_BYTES (16u << 10)
#define WEIR_TMA_BOX_ROW_BYTES 2048u /* 256 elements of 8 bytes: the widest box */
#define WEIR_VECTOR_CHUNK_BYTES 8192u
#define WEIR_VECTOR_CHUNK_ITEMS 32u
#define WEIR_VECTOR_MAX_THREADS 512u

/* What a stage needs beside its bytes: its barrier. */
#define WEIR_TMA_STAGE_OVERHEAD 8u

/* A driver's tensor map, opaque. */
struct weir_tensor_map {
    WEIR_ARGS_ALIGN(128) uint64_t opaque[16];
};

/* A divisor as a factor: n / d is the high half of n * WEIR_MAGIC(d), exactly, for
 * all 32-bit n and d (Lemire, Kaser, Kurz, "Faster remainder by direct
 * computation", 2019). A division takes a warp a hundred cycles, and a chunk asks
 * for several. 0 stands for 1, whose factor has no 64 bits. */
#define WEIR_MAGIC(d) ((d) > 1 ? UINT64_MAX / (d) + 1 : 0)

/* One layer of one tensor. A page is `units` units of unit_bytes: contiguous on
 * both sides, one after another on the device, unit_stride apart on the host. */
struct weir_copy_plane {
    uint64_t device_base; /* of page 0 */
    uint64_t device_stride;
    uint64_t host_base; /* of page index 0, that is page 1 */
    uint64_t segment_stride;
    uint64_t host_stride;
    uint64_t unit_stride;
    uint64_t unit_bytes;
    uint64_t units_magic;
    uint32_t units;
    uint32_t box_rows;  /* rows of the map's box; 0: no map */
    uint32_t map;       /* of maps[] */
    uint32_t map_layer; /* the layer's coordinate in the map */
};

struct weir_page_pair {
    int32_t device;
    int32_t host;
};

struct weir_pages_args {
    const struct weir_copy_plane *planes;
    const uint32_t *plane_begin; /* [layer], one more than there are layers */
    const struct weir_tensor_map *maps;
    const struct weir_page_pair *pages;
    uint32_t *arrivals;
    uint32_t *words; /* NULL: none */
    uint32_t generation;
    uint32_t first;
    uint32_t mask; /* length of the ring of pages - 1 */
    uint32_t n_pages;
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t segment_pages;
    uint64_t segment_magic;
    uint32_t page_tokens;
    uint32_t n_maps;
    uint32_t load;        /* 1: host to device */
    uint32_t stage_bytes; /* the TMA kernel has a stage a warp */
};

/* Rows of n_buffers buffers (K and V) in n_layers layers: row from[i] of each
 * source to row to[i] of its target. */
struct weir_rows_args {
    struct weir_tensor_map maps[2]; /* one a source buffer, if box_rows > 0 */
    uint64_t to[2];                 /* a buffer, or with `tables` an array of them [layer] */
    uint64_t from[2];
    uint64_t to_stride;
    uint64_t from_stride;
    const void *to_rows;
    const void *from_rows;
    uint32_t row_bytes;
    uint32_t n_rows;
    uint32_t n_buffers;
    uint32_t n_layers;
    uint32_t box_rows;
    uint32_t tables;
    uint32_t wide;        /* indices are 64-bit */
    uint32_t stage_bytes; /* the TMA kernel has a stage a warp */
};

#endif
