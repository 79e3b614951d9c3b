/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_BASELINE_H
#define WEIR_BENCH_BASELINE_H

/* What weir is compared with: the moves of a rig as rows by index, copied through
 * registers, a launch a layer. No plan, no runs: every token is a row.
 *
 *   rows, host     index of a row's address, counted in rows from page 1
 *   rows, device   page * page_tokens + token
 *
 * The same indices serve every tensor and layer, whose pieces lie alike. On the
 * CPU device a launched function copies the rows. */

#include "rig.h"

struct weir_bench_baseline;

/* The rig must outlive it. -ENOTSUP: rows that are no multiple of
 * WEIR_BENCH_ROW_STEP, or that do not lie whole rows apart. */
int weir_bench_baseline_open(struct weir_bench_baseline **baseline, struct weir_bench_rig *rig,
                             uint32_t ctas);
void weir_bench_baseline_close(struct weir_bench_baseline **baseline);

/* Enqueues the copy of one layer. */
int weir_bench_baseline_copy(struct weir_bench_baseline *baseline, enum weir_direction direction,
                             uint32_t layer, weir_stream *stream);

/* All layers alone, n times in a row, in the device's side stream, until they have
 * ended; how long one time took. */
int weir_bench_baseline_time(struct weir_bench_baseline *baseline, enum weir_direction direction,
                             uint32_t n, double *seconds);

#endif
