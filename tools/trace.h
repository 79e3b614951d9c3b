/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_TRACE_H
#define WEIR_TOOLS_TRACE_H

/* A trace of requests, as published with Mooncake: JSON, one request a line.
 *
 *   {"timestamp": 27, "input_length": 33, "output_length": 9, "hash_ids": [0, 7, 8]}
 *
 *   requests  ┌ first 0, n 3 ┬ first 3, n 2 ┬ ─ ─        one entry a line
 *             └──────│───────┴──────│───────┴ ─ ─
 *   ids         0 7 8               0 9                   all lines' ids in a row
 *
 * An id stands for a block of the prompt's tokens; requests that begin with the
 * same ids begin with the same tokens. Invariants: every request has an id; the
 * ids of a request are ids[first_id .. first_id + n_ids - 1]. */

#include <stddef.h>
#include <stdint.h>

struct weir_trace_request {
    uint64_t line;          /* in the file, from 1 */
    uint64_t input_length;  /* tokens of the prompt */
    uint64_t output_length; /* tokens of the answer */
    size_t first_id;
    size_t n_ids;
};

struct weir_trace {
    struct weir_trace_request *requests;
    size_t n_requests;
    int64_t *ids;
    size_t n_ids;
};

/* What is wrong with a file. line is 0 if it is about the whole file. */
struct weir_trace_error {
    uint64_t line;
    char text[200];
};

/* Reads a file; blank lines are skipped. -ENOENT and the like: it cannot be
 * read; -EINVAL: a line is not a request, or there is none; -ENOMEM. *error is
 * written on every failure. */
int weir_trace_read(struct weir_trace **trace, const char *path, struct weir_trace_error *error);

/* Frees a trace and sets *trace to NULL; a NULL content is allowed. */
void weir_trace_destroy(struct weir_trace **trace);

#endif
