/* SPDX-License-Identifier: Apache-2.0 */

/* The trace reader on untrusted files: it must refuse an input and say where, or
 * give a trace that keeps what trace.h promises and that, written down and read
 * again, is the same. */

#include "input.h"

#include "trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static int read_bytes(struct weir_trace **trace, const void *data, size_t size,
                      struct weir_trace_error *error)
{
    int fd = memfd_create("trace", MFD_CLOEXEC);
    require(fd >= 0);
    require(write(fd, data, size) == (ssize_t)size);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = weir_trace_read(trace, path, error);
    close(fd);
    return rc;
}

static uint64_t count_lines(const uint8_t *data, size_t size)
{
    uint64_t n = 1;
    for (size_t i = 0; i < size; i++)
        n += data[i] == '\n';
    return n;
}

static void expect_sound(const struct weir_trace *trace, uint64_t n_lines)
{
    require(trace->n_requests > 0);
    size_t n_ids = 0;
    uint64_t line = 0;
    for (size_t i = 0; i < trace->n_requests; i++) {
        const struct weir_trace_request *request = &trace->requests[i];
        require(request->line > line && request->line <= n_lines);
        require(request->first_id == n_ids && request->n_ids > 0);
        require(request->input_length <= INT32_MAX && request->output_length <= INT32_MAX);
        line = request->line;
        n_ids += request->n_ids;
    }
    require(n_ids == trace->n_ids);
}

/* Each request on the line where it was found. */
static char *write_down(const struct weir_trace *trace, size_t *size)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, size);
    require(file != NULL);
    uint64_t line = 1;
    for (size_t i = 0; i < trace->n_requests; i++) {
        const struct weir_trace_request *request = &trace->requests[i];
        for (; line < request->line; line++)
            fputc('\n', file);
        fprintf(file, "{\"timestamp\":0,\"input_length\":%" PRIu64 ",\"output_length\":%" PRIu64,
                request->input_length, request->output_length);
        for (size_t k = 0; k < request->n_ids; k++)
            fprintf(file, "%s%" PRId64, k ? "," : ",\"hash_ids\":[",
                    trace->ids[request->first_id + k]);
        fputs("]}", file);
    }
    require(fclose(file) == 0);
    return text;
}

static void expect_same(const struct weir_trace *a, const struct weir_trace *b)
{
    require(a->n_requests == b->n_requests && a->n_ids == b->n_ids);
    require(memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) == 0);
    require(memcmp(a->requests, b->requests, a->n_requests * sizeof *a->requests) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct weir_trace *trace = NULL, *again = NULL;
    struct weir_trace_error error;
    memset(&error, 'x', sizeof error);
    int rc = read_bytes(&trace, data, size, &error);
    if (rc != 0) {
        require(rc == -EINVAL && !trace && error.line <= count_lines(data, size));
        require(error.text[0] && memchr(error.text, 0, sizeof error.text));
        return 0;
    }
    expect_sound(trace, count_lines(data, size));
    size_t n;
    char *text = write_down(trace, &n);
    require(read_bytes(&again, text, n, &error) == 0);
    expect_same(trace, again);
    free(text);
    weir_trace_destroy(&trace);
    weir_trace_destroy(&again);
    return 0;
}
