/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_INDEX_H
#define WEIR_BENCH_INDEX_H

/* What `weir-bench index` measures, in two files: the tree by itself, and what a
 * scheduler feels of the cache. Nothing is copied, so there is no device.
 *
 *   index_tree.c    system prompts ─┬─ prompts of 64 pages, the first 16 shared
 *                                   └─ …          match, insert, evict by page
 *   index_cache.c   a long prompt; leaves by the million; 256 that decode
 *
 * Prompts are made from their number, so that any can be asked for again. */

#include "report.h"

#define WEIR_BENCH_LONG_TOKENS 131072u

struct weir_bench_index {
    struct weir_bench_common common;
    struct weir_bench_list pages;
    struct weir_bench_list page_tokens;
    uint32_t leaves;
    uint32_t seqs;
    struct weir_bench_report report;
    uint64_t wrong; /* answers that were not what had been put in */
};

/* Appends a row: what was done how often, in ns each; frees the samples. */
json_t *weir_bench_index_row(struct weir_bench_index *bench, const char *what, const char *per,
                             uint32_t pages, uint32_t page_tokens,
                             struct weir_bench_samples *samples);

/* Each 0 or -errno. */
int weir_bench_index_tree(struct weir_bench_index *bench, uint32_t pages, uint32_t page_tokens);
int weir_bench_index_long(struct weir_bench_index *bench, uint32_t page_tokens);
int weir_bench_index_leaves(struct weir_bench_index *bench, uint32_t page_tokens);
int weir_bench_index_decode(struct weir_bench_index *bench, uint32_t page_tokens);
int weir_bench_index_bytes(struct weir_bench_index *bench, uint32_t pages, uint32_t page_tokens);

#endif
