/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <errno.h>
#include <stdlib.h>

int weir_bench_samples_add(struct weir_bench_samples *samples, double value)
{
    if (samples->n == samples->capacity) {
        size_t capacity = samples->capacity ? 2 * samples->capacity : 16;
        double *values = reallocarray(samples->values, capacity, sizeof *values);
        if (!values)
            return -ENOMEM;
        samples->values = values;
        samples->capacity = capacity;
    }
    samples->values[samples->n++] = value;
    return 0;
}

void weir_bench_samples_free(struct weir_bench_samples *samples)
{
    free(samples->values);
    *samples = (struct weir_bench_samples){ 0 };
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const struct weir_bench_samples *sorted, double q)
{
    double place = q * (double)(sorted->n - 1);
    size_t below = (size_t)place;
    size_t above = below + 1 < sorted->n ? below + 1 : below;
    double share = place - (double)below;
    return sorted->values[below] * (1 - share) + sorted->values[above] * share;
}

static double spread_of(const struct weir_bench_stats *stats)
{
    return stats->median > 0 ? (stats->p95 - stats->p5) / stats->median : 0;
}

struct weir_bench_stats weir_bench_stats_of(struct weir_bench_samples *samples)
{
    struct weir_bench_stats stats = { .n = samples->n };
    if (samples->n == 0)
        return stats;
    qsort(samples->values, samples->n, sizeof *samples->values, compare);
    stats.median = quantile(samples, 0.5);
    stats.p5 = quantile(samples, 0.05);
    stats.p95 = quantile(samples, 0.95);
    stats.p99 = quantile(samples, 0.99);
    stats.spread = spread_of(&stats);
    return stats;
}

static double rate_of(double factor, double time)
{
    return time > 0 ? factor / time : 0;
}

/* The slowest rate is that of the longest time, so p5 and p95 change places;
 * p99 is then the rate that 99 of 100 calls reach. */
struct weir_bench_stats weir_bench_stats_of_rates(const struct weir_bench_stats *times,
                                                  double factor)
{
    struct weir_bench_stats rates = {
        .n = times->n,
        .median = rate_of(factor, times->median),
        .p5 = rate_of(factor, times->p95),
        .p95 = rate_of(factor, times->p5),
        .p99 = rate_of(factor, times->p99),
    };
    rates.spread = spread_of(&rates);
    return rates;
}
