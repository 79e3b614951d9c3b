/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_SUMMARY_H
#define WEIR_TOOLS_SUMMARY_H

#include "replay.h"

/* A replay and how it was made. */
struct weir_summary_run {
    struct weir_replay_options options;
    struct weir_replay_result result;
};

/* Prints a table to standard output: JSON's names, values, what they mean. */
void weir_summary_print(const struct weir_replay_result *result);

/* Prints a table of several runs, a line each: what tells policies apart. */
void weir_summary_compare(const struct weir_summary_run *runs, size_t n_runs);

/* Writes a JSON object a run to a file, "-" for standard output: all counts,
 * ratios, and an object "parameters". As an array, or alone, which is for one
 * run only. 0 or -errno. */
int weir_summary_write(const char *path, const char *trace, const struct weir_summary_run *runs,
                       size_t n_runs, bool as_array);

#endif
