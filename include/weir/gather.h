/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_GATHER_H
#define WEIR_GATHER_H

/* Copies rows between banks, by lists that are made on the device: the experts
 * that a decode step misses, from pinned host memory into the slots of a cache.
 *
 *     for i in 0 .. min(count, max_count) - 1, for each bank:
 *         row dst_rows[i] of bank.dst becomes row src_rows[i] of bank.src
 *
 * A bank is one tensor of an expert, say its packed weights; the rows of one
 * expert have one number in all banks of a side. Neither the lists nor their
 * length ever come to the host: a launch has the same shape for any count, so a
 * CUDA graph may hold it and run it with other lists each time. */

#include <weir/copy.h>
#include <weir/device.h>
#include <weir/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_GATHER_MAX_BANKS 64u
#define WEIR_GATHER_MAX_COUNT (1u << 19)
#define WEIR_GATHER_MAX_CTAS 256u

/* One bank. Addresses are the device's; host memory is pinned, and has the same
 * address on the device. Any value is fine for addresses, lengths and strides,
 * multiples of 16 are fastest.
 *
 *   dst, src        row 0 of each side; 0: every launch brings its own bases
 *   row_bytes       bytes of a row, 1 to 4 GiB - 1, copied whole unless there is
 *                   a payload
 *   dst_row_stride, src_row_stride
 *                   bytes from one row to the next; 0: row_bytes
 *   dst_rows, src_rows
 *                   how many rows a side has, below 2^31. An index outside is
 *                   skipped in this bank and counted; 0: not checked, whatever
 *                   the index
 *   payload_bytes, payload_lines
 *                   0: none. Else a row is so many lines, of which the first
 *                   payload_bytes are copied; what lies between keeps its
 *                   content. payload_bytes * payload_lines is below 4 GiB
 *   dst_pitch, src_pitch
 *                   bytes from one line to the next, payload_bytes to
 *                   4 GiB - 1, where there is a payload */
typedef struct weir_bank {
    uint64_t dst;
    uint64_t src;
    uint64_t row_bytes;
    uint64_t dst_row_stride;
    uint64_t src_row_stride;
    uint64_t dst_rows;
    uint64_t src_rows;
    uint64_t payload_bytes;
    uint64_t payload_lines;
    uint64_t dst_pitch;
    uint64_t src_pitch;
} weir_bank;

/* Other addresses of row 0 of a bank, for one launch: those of another layer. */
typedef struct weir_bank_bases {
    uint64_t dst;
    uint64_t src;
} weir_bank_bases;

/*   struct_size  written by weir_gather_params_init
 *   banks        n_banks of them, 1..WEIR_GATHER_MAX_BANKS; copied
 *   direction    default HOST_TO_DEVICE. It decides the defaults below, not
 *                what may be copied
 *   max_count    entries of the lists, 1..WEIR_GATHER_MAX_COUNT
 *   index_bytes  4 (int32, default) or 8 (int64), both lists
 *   engine       AUTO (default), TMA or VECTOR. AUTO takes TMA where the GPU has
 *                it. TMA copies by registers those banks that are not multiples
 *                of 16. The CPU device takes any
 *   ctas         thread blocks, up to WEIR_GATHER_MAX_CTAS
 *   threads      of a VECTOR block, a multiple of 32 up to 512
 *   stages, stage_bytes
 *                of a TMA block's ring, 2..16 and a multiple of 128 from 1024 to
 *                131072. ctas, threads, stages and stage_bytes of 0 (default): as
 *                fits the device and its link
 *   log          default: the device's */
typedef struct weir_gather_params {
    uint32_t struct_size;
    uint32_t n_banks;
    const weir_bank *banks;
    weir_copy_direction direction;
    weir_transfer_engine engine;
    uint32_t max_count;
    uint32_t index_bytes;
    uint32_t ctas;
    uint32_t threads;
    uint32_t stages;
    uint32_t stage_bytes;
    weir_log log;
} weir_gather_params;

/* The lists of one launch, all in memory that the device reaches. They are read
 * when the launch runs, in stream order: what an earlier kernel of the stream has
 * written is seen.
 *
 *   dst_rows, src_rows
 *             index_bytes each, max_count entries, of which the first `count`
 *             are used; aligned to index_bytes
 *   count     one int64, aligned to 8; NULL: n_rows counts. Below 1: nothing is
 *             copied; above max_count: max_count
 *   n_rows    as count, from the host; ignored where there is a count
 *
 * A row that stands twice in dst_rows ends up as either source, or as a mix of
 * both; where the sources are the same bytes, it is right. A row that is both in
 * dst_rows and in src_rows of the same memory may be read before or after. */
typedef struct weir_gather_rows {
    const void *dst_rows;
    const void *src_rows;
    const int64_t *count;
    int64_t n_rows;
} weir_gather_rows;

/* Threads: one at a time an object. Launches in different streams may overlap on
 * the device. */
typedef struct weir_gather weir_gather;

WEIR_API void weir_gather_params_init(weir_gather_params *params) WEIR_NOEXCEPT;

/* Makes a gather over `banks`. The caller owns *gather, destroys it before the
 * device is closed, and keeps the banks' memory until its launches have run.
 * Takes a few KiB of device memory and of pinned memory; logs the engine and its
 * shape. -EINVAL: a field breaks a rule above; -ENOTSUP: a GPU or a library
 * without this kernel; -ENOMEM; -EIO: the device is lost. May block. */
WEIR_API int weir_gather_create(weir_gather **gather, weir_device *device,
                                const weir_gather_params *params) WEIR_NOEXCEPT;

/* Sets *gather to NULL; a NULL content is allowed. Pre: no launch of it is
 * enqueued or in a graph that will run again. */
WEIR_API void weir_gather_destroy(weir_gather **gather) WEIR_NOEXCEPT;

/* Enqueues one gather in `stream`, which may be one that is being captured. One
 * kernel launch; never waits, allocates nothing on a GPU, reads none of the
 * lists on the host.
 *
 *   bases   n_banks of them in the order of the banks, or NULL: those of create.
 *           Read before the call returns; a captured launch keeps them
 *
 * -EINVAL, with a log line: an argument is NULL, or a list or a base has an
 * address that it cannot have; -EIO: the device is lost; -ENOMEM: of a CPU
 * device, whose full queue also blocks. */
WEIR_API int weir_gather_launch(weir_gather *gather, const weir_gather_rows *rows,
                                const weir_bank_bases *bases, weir_stream *stream) WEIR_NOEXCEPT;

/* How many rows have been skipped since create because an index was outside its
 * bank, a row counting once a bank, modulo 2^32. Makes no driver call. It counts
 * all of a launch once the caller knows that the launch has run. -EINVAL: an
 * argument is NULL. Threads: any. */
WEIR_API int weir_gather_errors(weir_gather *gather, uint32_t *n) WEIR_NOEXCEPT;

/* The id of the target rows in weir_cpu_access, on a CPU device: row r of bank b is
 * page r + 1 of tensor b in layer 0. Launches with the bases of create write it.
 * 0 on other devices, where a bank's dst_rows is 0, and above 2^20 rows of all
 * banks: nothing is checked then. Each gather has its own. */
WEIR_API uint32_t weir_gather_cpu_pool(const weir_gather *gather) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
