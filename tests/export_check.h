/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_EXPORT_CHECK_H
#define WEIR_TESTS_EXPORT_CHECK_H

/* The exporters of one sequence against its block table. */

#include <weir/export.h>

#define EXPORT_PAGES 64u
#define EXPORT_TOKENS 16u /* of a page, at most */

/* What is wrong, or NULL. `table` holds all n pages of the sequence. */
static inline const char *export_fault(const weir_cache *cache, weir_seq seq, uint32_t page_tokens,
                                       const int32_t *table, size_t n)
{
    static int32_t indices[EXPORT_PAGES], dense[EXPORT_PAGES], offsets[2 * EXPORT_PAGES];
    static uint64_t pointers[EXPORT_PAGES];
    static int64_t slots[EXPORT_PAGES * EXPORT_TOKENS];
    weir_export_item item = { .seq = seq, .to = WEIR_ALL_TOKENS };
    weir_export_batch batch = { cache, &item, 1, page_tokens };
    int32_t indptr[2], last;
    size_t n_csr, n_dense, n_offsets, n_pointers, n_slots;
    if (weir_export_csr(&batch, indptr, &last, indices, EXPORT_PAGES, &n_csr) ||
        weir_export_dense(&batch, -7, dense, EXPORT_PAGES, &n_dense) ||
        weir_export_offsets(&batch, 2, 1, -7, offsets, EXPORT_PAGES, &n_offsets) ||
        weir_export_pointers(&batch, 4096, 48, pointers, EXPORT_PAGES, &n_pointers) ||
        weir_export_slots(&batch, slots, EXPORT_PAGES * EXPORT_TOKENS, &n_slots))
        return "an exporter refuses";
    if (n_csr != n || n_dense != n || n_offsets != n || n_pointers != n ||
        n_slots != n * page_tokens || indptr[0] != 0 || (size_t)indptr[1] != n ||
        last != (n ? (int32_t)page_tokens : 0))
        return "an exporter finds another number of pages";
    for (size_t i = 0; i < EXPORT_PAGES; i++) {
        int32_t page = i < n ? table[i] : -7;
        if (dense[i] != page || offsets[i] != (i < n ? 2 * page : -7) ||
            offsets[EXPORT_PAGES + i] != (i < n ? 2 * page + 1 : -7))
            return "a padded row is not the block table";
        if (i < n && (indices[i] != page || pointers[i] != 4096 + 48 * (uint64_t)page))
            return "a row is not the block table";
    }
    for (size_t i = 0; i < n * page_tokens; i++)
        if (slots[i] != (int64_t)table[i / page_tokens] * page_tokens + (int64_t)(i % page_tokens))
            return "a slot is not in the block table";
    return 0;
}

#endif
