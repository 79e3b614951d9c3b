/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_SUMMARY_H
#define WEIR_TOOLS_SUMMARY_H

#include "replay.h"

/* Prints a table to standard output: JSON's names, values, what they mean. */
void weir_summary_print(const struct weir_replay_result *result);

/* Writes one JSON object to a file, "-" for standard output: all counts, ratios,
 * and an object "parameters". 0 or -errno. */
int weir_summary_write(const char *path, const char *trace,
                       const struct weir_replay_options *options,
                       const struct weir_replay_result *result);

#endif
