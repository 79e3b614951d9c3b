/* SPDX-License-Identifier: Apache-2.0 */

/* index: what the cache's decisions take, without any device: the tree by the
 * page, a long prompt beside memcmp, eviction among many, an idle poll, a step of
 * many sequences, and the memory of it all. */

#include "bench.h"
#include "index.h"

#include <weir/base.h>

#include <stdio.h>

json_t *weir_bench_index_row(struct weir_bench_index *bench, const char *what, const char *per,
                             uint32_t pages, uint32_t page_tokens,
                             struct weir_bench_samples *samples)
{
    json_t *row = weir_bench_report_row(&bench->report);
    struct weir_bench_stats stats = weir_bench_stats_of(samples);
    weir_bench_put_text(&bench->report, row, "what", what);
    weir_bench_put_text(&bench->report, row, "per", per);
    weir_bench_put_integer(&bench->report, row, "pages", pages);
    weir_bench_put_integer(&bench->report, row, "page_tokens", page_tokens);
    weir_bench_put_stats(&bench->report, row, "ns", stats);
    weir_bench_put_number(&bench->report, row, "p50_ns", stats.median);
    weir_bench_put_number(&bench->report, row, "p95_ns", stats.p95);
    weir_bench_put_number(&bench->report, row, "p99_ns", stats.p99);
    weir_bench_samples_free(samples);
    return row;
}

static int measure(struct weir_bench_index *bench)
{
    int rc = 0;
    for (uint32_t i = 0; i < bench->page_tokens.n && !rc; i++) {
        uint32_t page_tokens = bench->page_tokens.values[i];
        for (uint32_t k = 0; k < bench->pages.n && !rc; k++)
            rc = weir_bench_index_tree(bench, bench->pages.values[k], page_tokens);
        if (!rc)
            rc = weir_bench_index_long(bench, page_tokens);
        if (!rc)
            rc = weir_bench_index_leaves(bench, page_tokens);
        if (!rc)
            rc = weir_bench_index_decode(bench, page_tokens);
        if (!rc)
            rc =
                weir_bench_index_bytes(bench, bench->pages.values[bench->pages.n - 1], page_tokens);
    }
    return rc;
}

/* ---- Options ---------------------------------------------------------------- */

enum {
    KEY_PAGES = 256,
    KEY_PAGE_TOKENS,
    KEY_LEAVES,
    KEY_SEQS
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "What is measured:", 1 },
    { "pages", KEY_PAGES, "LIST", 0, "Pages of the trees (1000,100000,1000000)", 0 },
    { "page-tokens", KEY_PAGE_TOKENS, "LIST", 0, "Tokens of a page (16,64)", 0 },
    { "leaves", KEY_LEAVES, "N", 0, "Leaves that one is evicted from (1000000)", 0 },
    { "seqs", KEY_SEQS, "N", 0, "Sequences of a step (256)", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct weir_bench_index *bench = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &bench->common;
        break;
    case KEY_PAGES:
        weir_bench_read_list(state, "pages", text, 100, 1u << 26, &bench->pages);
        break;
    case KEY_PAGE_TOKENS:
        weir_bench_read_list(state, "page-tokens", text, 1, 1024, &bench->page_tokens);
        break;
    case KEY_LEAVES:
        weir_bench_read_u32(state, "leaves", text, 1, 1u << 26, &bench->leaves);
        break;
    case KEY_SEQS:
        weir_bench_read_u32(state, "seqs", text, 1, 65536, &bench->seqs);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct weir_bench_column columns[] = {
    { "what", "what", 0 },
    { "per", "a", 0 },
    { "pages", "pages", 0 },
    { "page_tokens", "tokens", 0 },
    { "p50_ns", "p50 ns", 1 },
    { "p95_ns", "p95", 1 },
    { "p99_ns", "p99", 1 },
    { "memcmp_128k_ns", "memcmp ns", 0 },
    { "ratio", "ratio", 2 },
    { "bytes_page", "B a page", 1 },
    { "beside_tokens", "but tokens", 1 },
};

int weir_bench_index(int argc, char **argv)
{
    static const struct argp argp = {
        option_list,
        parse,
        NULL,
        "Measures the cache's decisions. Nothing is copied: the options of devices and links have "
        "no effect.",
        weir_bench_common_children,
        NULL,
        NULL
    };
    struct weir_bench_index bench = { .common = weir_bench_common_defaults(),
                                      .pages = { 3, { 1000, 100000, 1000000 } },
                                      .page_tokens = { 2, { 16, 64 } },
                                      .leaves = 1000000,
                                      .seqs = 256 };
    argp_parse(&argp, argc, argv, 0, NULL, &bench);
    weir_bench_report_begin(&bench.report, "index", &bench.common, NULL);
    int rc = measure(&bench);
    if (rc)
        fprintf(stderr, "%s: %s\n", argv[0], weir_error_name(rc));
    weir_bench_put_integer(&bench.report, bench.report.settings, "wrong_answers", bench.wrong);
    int written = weir_bench_report_finish(&bench.report, &bench.common, columns,
                                           sizeof columns / sizeof columns[0]);
    if (rc || written)
        return WEIR_BENCH_BROKEN;
    return bench.wrong ? WEIR_BENCH_WRONG : 0;
}
