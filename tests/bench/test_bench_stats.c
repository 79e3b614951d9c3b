/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

static struct weir_bench_samples samples_of(const double *values, size_t n)
{
    struct weir_bench_samples samples = { 0 };
    for (size_t i = 0; i < n; i++)
        cr_assert(eq(int, weir_bench_samples_add(&samples, values[i]), 0));
    return samples;
}

Test(bench_stats, nothing_was_measured)
{
    struct weir_bench_samples samples = { 0 };
    struct weir_bench_stats stats = weir_bench_stats_of(&samples);
    cr_assert(eq(sz, stats.n, 0));
    cr_assert(epsilon_eq(dbl, stats.median, 0, 0));
    cr_assert(epsilon_eq(dbl, stats.spread, 0, 0));
    weir_bench_samples_free(&samples);
}

Test(bench_stats, one_sample_is_every_quantile)
{
    const double values[] = { 3.5 };
    struct weir_bench_samples samples = samples_of(values, 1);
    struct weir_bench_stats stats = weir_bench_stats_of(&samples);
    cr_assert(eq(sz, stats.n, 1));
    cr_assert(epsilon_eq(dbl, stats.median, 3.5, 1e-12));
    cr_assert(epsilon_eq(dbl, stats.p5, 3.5, 1e-12));
    cr_assert(epsilon_eq(dbl, stats.p99, 3.5, 1e-12));
    cr_assert(epsilon_eq(dbl, stats.spread, 0, 1e-12));
    weir_bench_samples_free(&samples);
}

Test(bench_stats, quantiles_do_not_depend_on_the_order)
{
    struct weir_bench_samples samples = { 0 };
    for (int i = 0; i <= 100; i++)
        cr_assert(eq(int, weir_bench_samples_add(&samples, (i * 37) % 101), 0));
    struct weir_bench_stats stats = weir_bench_stats_of(&samples);
    cr_assert(eq(sz, stats.n, 101));
    cr_assert(epsilon_eq(dbl, stats.median, 50, 1e-9));
    cr_assert(epsilon_eq(dbl, stats.p5, 5, 1e-9));
    cr_assert(epsilon_eq(dbl, stats.p95, 95, 1e-9));
    cr_assert(epsilon_eq(dbl, stats.p99, 99, 1e-9));
    cr_assert(epsilon_eq(dbl, stats.spread, 1.8, 1e-9));
    weir_bench_samples_free(&samples);
}

Test(bench_stats, a_quantile_between_two_samples_lies_between_them)
{
    const double values[] = { 4, 1, 2, 3 };
    struct weir_bench_samples samples = samples_of(values, 4);
    struct weir_bench_stats stats = weir_bench_stats_of(&samples);
    cr_assert(epsilon_eq(dbl, stats.median, 2.5, 1e-12));
    cr_assert(epsilon_eq(dbl, stats.p95, 3.85, 1e-12));
    weir_bench_samples_free(&samples);
}

Test(bench_stats, rates_turn_the_quantiles_round)
{
    const double values[] = { 2, 1, 4 };
    struct weir_bench_samples samples = samples_of(values, 3);
    struct weir_bench_stats times = weir_bench_stats_of(&samples);
    struct weir_bench_stats rates = weir_bench_stats_of_rates(&times, 8);
    cr_assert(epsilon_eq(dbl, rates.median, 4, 1e-12));
    cr_assert(epsilon_eq(dbl, rates.p5, 8 / times.p95, 1e-12));
    cr_assert(epsilon_eq(dbl, rates.p95, 8 / times.p5, 1e-12));
    cr_assert(epsilon_eq(dbl, rates.p99, 8 / times.p99, 1e-12));
    cr_assert(lt(dbl, rates.p5, rates.median));
    cr_assert(lt(dbl, rates.median, rates.p95));
    weir_bench_samples_free(&samples);
}
