/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_STATS_H
#define WEIR_BENCH_STATS_H

/* Timed calls and what is told of them.
 *
 *   samples  12.1 11.9 12.0 14.8 …  ─ sort ─►  p5  median  p95  p99
 *                                               └──────────────┘
 *                                               spread = (p95 - p5) / median
 *
 * A median says what a call usually takes, the spread whether to believe it. A
 * quantile between two samples lies on the line between them. */

#include <stddef.h>

struct weir_bench_samples {
    double *values;
    size_t n;
    size_t capacity;
};

struct weir_bench_stats {
    size_t n;
    double median;
    double p5;
    double p95;
    double p99;
    double spread; /* 0 where the median is */
};

/* Accepts zeroed samples. -ENOMEM. */
int weir_bench_samples_add(struct weir_bench_samples *samples, double value);
void weir_bench_samples_free(struct weir_bench_samples *samples);

/* Sorts the samples. All is 0 if there is none. */
struct weir_bench_stats weir_bench_stats_of(struct weir_bench_samples *samples);

/* Statistics of factor / sample: rates from times. */
struct weir_bench_stats weir_bench_stats_of_rates(const struct weir_bench_stats *times,
                                                  double factor);

#endif
