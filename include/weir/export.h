/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_EXPORT_H
#define WEIR_EXPORT_H

/* Exporters: the block tables of a batch in the forms that attention kernels
 * read, written into the caller's host memory.
 *
 *     weir_export_csr       indptr, indices, last_page_len (FlashInfer)
 *     weir_export_dense     [n][width] page ids, padded
 *     weir_export_offsets   [n][2][width] offsets of K and V (TensorRT-LLM)
 *     weir_export_pointers  an address a page
 *     weir_export_slots     a slot a token (slot_mapping)
 *
 * They read the cache and change nothing in it: not what is reserved,
 * committed or pinned, nor the open step. The pages of a sequence never change,
 * so that what was written stays right until the sequence is closed or cut; a server
 * that keeps its tables exports only what is new, from the token on where it
 * stopped.
 *
 * Kernel pages are those of weir_seq_pages: page_tokens is a multiple of
 * kernel_page_tokens, the ratio r is their quotient, and the kernel pages of
 * page p are p * r .. p * r + r - 1. Page 0 is the dummy page.
 *
 * Errors, of all of them alike. On failure nothing is written, except by
 * -ENOSPC the size that is needed.
 *
 *   -EINVAL  batch or its cache is NULL (these two without a log line); an
 *            argument breaks a limit below, an item is not of this cache, or
 *            the ids, scaled, exceed the type that is written
 *   -ESTALE  a sequence of the batch is closed
 *   -ENOSPC  the result does not fit; *needed says what would be enough
 *
 * Threads: as the cache, one at a time. No allocation, no system call; the time
 * is that of the entries written, padding included. */

#include <weir/base.h>
#include <weir/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A part of a sequence.
 *
 *   seq   of the batch's cache; may be there several times
 *   from  its first token that is wanted; 0: all. In weir_export_slots any, in
 *         the others a multiple of kernel_page_tokens
 *   to    token behind the last one that is wanted, `from` up to the tokens for
 *         which there are pages (n_reserved of weir_seq_info): as a rule the
 *         length that the kernel attends to. WEIR_ALL_TOKENS: all tokens that
 *         have pages; then `from` may lie behind them, and there are none
 *
 * The pages of an item are those that hold a token from..to-1, also in part. */
typedef struct weir_export_item {
    weir_seq seq;
    size_t from;
    size_t to;
} weir_export_item;

/*   cache               required
 *   items               [n]; may be NULL if n is 0
 *   n                   parts of sequences, 0 or more
 *   kernel_page_tokens  tokens of a kernel page, 1..page_tokens, a divisor of
 *                       it; weir_export_slots does not look at it */
typedef struct weir_export_batch {
    const weir_cache *cache;
    const weir_export_item *items;
    size_t n;
    uint32_t kernel_page_tokens;
} weir_export_batch;

/* The batch as a sparse matrix of compressed rows: the pages of item i are
 * indices[indptr[i]] .. indices[indptr[i + 1] - 1].
 *
 *   indptr         [n + 1], indptr[0] is 0; required
 *   last_page_len  [n], tokens of the item in its last page,
 *                  1..kernel_page_tokens; 0: the item has no page. NULL: not
 *                  wanted
 *   indices        [capacity], kernel page ids; may be NULL if capacity is 0
 *   needed         receives the number of indices, by success and -ENOSPC;
 *                  required
 *
 * -EINVAL also: the batch has more pages than an int32 counts. */
WEIR_API int weir_export_csr(const weir_export_batch *batch, int32_t *indptr,
                             int32_t *last_page_len, int32_t *indices, size_t capacity,
                             size_t *needed) WEIR_NOEXCEPT;

/* A row an item: its kernel page ids, then `pad` up to the row's end.
 *
 *   pad     any value; 0 is the dummy page
 *   table   [n][width], dense; may be NULL if width is 0
 *   width   entries of a row
 *   needed  receives the pages of the longest item, by success and -ENOSPC:
 *           the least width; required */
WEIR_API int weir_export_dense(const weir_export_batch *batch, int32_t pad, int32_t *table,
                               size_t width, size_t *needed) WEIR_NOEXCEPT;

/* Two rows an item: where the K and where the V of its pages are, as indices of
 * blocks of equal size in one pool. That of K is id * scale, that of V is
 * id * scale + v_offset; both rows are padded with `pad`.
 *
 *   scale     blocks from one id to the next, 0 or more: 2 where a page is a K
 *             and a V block of one layer; 2 * layers where it holds those of
 *             all layers, layer by layer
 *   v_offset  blocks from K to V, 0 or more: 1 where they are neighbours;
 *             `layers` where a page holds the K of all layers before the V
 *   pad       any value; 0 is the K of the dummy page
 *   offsets   [n][2][width], dense; may be NULL if width is 0
 *   width     entries of a row
 *   needed    as of weir_export_dense
 *
 * -EINVAL also: the offset of the pool's last page exceeds an int32. */
WEIR_API int weir_export_offsets(const weir_export_batch *batch, int32_t scale, int32_t v_offset,
                                 int32_t pad, int32_t *offsets, size_t width,
                                 size_t *needed) WEIR_NOEXCEPT;

/* Addresses: base + id * stride for each kernel page id, item after item
 * without gaps, in the order of weir_export_csr's indices.
 *
 *   base      of kernel page 0, such as a layer's address of a tensor
 *   stride    bytes from one kernel page to the next
 *   pointers  [capacity]; may be NULL if capacity is 0
 *   needed    receives the number of pointers, by success and -ENOSPC; required
 *
 * -EINVAL also: the address of the pool's last page exceeds 64 bits. */
WEIR_API int weir_export_pointers(const weir_export_batch *batch, uint64_t base, uint64_t stride,
                                  uint64_t *pointers, size_t capacity,
                                  size_t *needed) WEIR_NOEXCEPT;

/* Slots: for each token from..to-1 of each item, item after item without gaps,
 * page id * page_tokens + the token's place in its page, which is the token's
 * row in the device pool. Kernel pages of any size give the same number.
 *
 *   slots   [capacity]; may be NULL if capacity is 0
 *   needed  receives the number of tokens, by success and -ENOSPC; required */
WEIR_API int weir_export_slots(const weir_export_batch *batch, int64_t *slots, size_t capacity,
                               size_t *needed) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
