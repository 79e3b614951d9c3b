/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_REPORT_H
#define WEIR_BENCH_REPORT_H

/* What a benchmark found, as JSON; the text table is printed from it, so that
 * the two cannot differ.
 *
 *   { "benchmark": "copy", "weir": "0.1.0", "date": "…",
 *     "machine": { … }, "settings": { … },
 *     "results": [ { row }, { row }, … ] }
 *
 * A row is a flat object; a measured quantity in it is an object with median,
 * p5, p95, p99, spread and n. A row that could not be measured has "skipped"
 * with the reason instead.
 *
 * Invariant: after a failing call `rc` says so, all later calls do nothing, and
 * weir_bench_report_finish returns it. */

#include "options.h"
#include "stats.h"

#include <jansson.h>

struct weir_bench_device;

struct weir_bench_report {
    json_t *root;
    json_t *settings;
    json_t *results;
    int rc;
};

/* A column: the key of a row's number, text or measured quantity. */
struct weir_bench_column {
    const char *key;
    const char *title;
    int decimals;
};

/* device NULL: nothing is measured on one. */
void weir_bench_report_begin(struct weir_bench_report *report, const char *benchmark,
                             const struct weir_bench_common *common,
                             const struct weir_bench_device *device);

/* Appends a row; it belongs to the report. */
json_t *weir_bench_report_row(struct weir_bench_report *report);

/* `object`: a row, or report->settings. */
void weir_bench_put_text(struct weir_bench_report *report, json_t *object, const char *key,
                         const char *text);
void weir_bench_put_integer(struct weir_bench_report *report, json_t *object, const char *key,
                            uint64_t value);
void weir_bench_put_number(struct weir_bench_report *report, json_t *object, const char *key,
                           double value);
void weir_bench_put_stats(struct weir_bench_report *report, json_t *object, const char *key,
                          struct weir_bench_stats stats);

/* Prints the table and writes the JSON as the options say; frees the report.
 * -ENOMEM, or the error of writing. */
int weir_bench_report_finish(struct weir_bench_report *report,
                             const struct weir_bench_common *common,
                             const struct weir_bench_column *columns, size_t n_columns);

#endif
