/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct weir_trace *trace;
    size_t requests_capacity;
    size_t ids_capacity;
    uint64_t line;
    struct weir_trace_error *error;
};

__attribute__((format(printf, 4, 5))) static int refuse(struct weir_trace_error *error, int rc,
                                                        uint64_t line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    error->line = line;
    return rc;
}

/* Makes room for one more element of `size` bytes behind *n. */
static int grow(void *array, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity)
        return 0;
    size_t larger = *capacity ? *capacity * 2 : 1024;
    void *moved = reallocarray(*(void **)array, larger, size);
    if (!moved)
        return -ENOMEM;
    *(void **)array = moved;
    *capacity = larger;
    return 0;
}

static int read_length(struct reader *reader, const json_t *object, const char *name,
                       uint64_t *length)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > INT32_MAX)
        return refuse(reader->error, -EINVAL, reader->line,
                      "\"%s\" must be an integer from 0 to %d", name, INT32_MAX);
    *length = (uint64_t)json_integer_value(value);
    return 0;
}

static int read_ids(struct reader *reader, const json_t *object)
{
    struct weir_trace *trace = reader->trace;
    const json_t *ids = json_object_get(object, "hash_ids");
    if (!json_is_array(ids) || json_array_size(ids) == 0)
        return refuse(reader->error, -EINVAL, reader->line,
                      "\"hash_ids\" must be an array of at least one integer");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id))
            return refuse(reader->error, -EINVAL, reader->line, "hash_ids[%zu] is not an integer",
                          i);
        if (grow(&trace->ids, trace->n_ids, &reader->ids_capacity, sizeof *trace->ids))
            return refuse(reader->error, -ENOMEM, reader->line, "out of memory");
        trace->ids[trace->n_ids++] = json_integer_value(id);
    }
    return 0;
}

static int read_request(struct reader *reader, const json_t *object)
{
    struct weir_trace *trace = reader->trace;
    struct weir_trace_request request = { .line = reader->line, .first_id = trace->n_ids };
    if (!json_is_object(object))
        return refuse(reader->error, -EINVAL, reader->line, "not a JSON object");
    if (!json_is_number(json_object_get(object, "timestamp")))
        return refuse(reader->error, -EINVAL, reader->line, "\"timestamp\" must be a number");
    int rc = read_length(reader, object, "input_length", &request.input_length);
    if (!rc)
        rc = read_length(reader, object, "output_length", &request.output_length);
    if (!rc)
        rc = read_ids(reader, object);
    if (rc)
        return rc;
    request.n_ids = trace->n_ids - request.first_id;
    if (grow(&trace->requests, trace->n_requests, &reader->requests_capacity,
             sizeof *trace->requests))
        return refuse(reader->error, -ENOMEM, reader->line, "out of memory");
    trace->requests[trace->n_requests++] = request;
    return 0;
}

static int read_lines(struct reader *reader, FILE *file)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    int rc = 0;
    errno = 0;
    while (!rc && (length = getline(&text, &capacity, file)) >= 0) {
        reader->line++;
        size_t blank = strspn(text, " \t\r\n");
        if (blank == (size_t)length)
            continue;
        json_error_t json_error;
        json_t *object =
            json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &json_error);
        if (object)
            rc = read_request(reader, object);
        else
            rc = refuse(reader->error, -EINVAL, reader->line, "%s (column %d)", json_error.text,
                        json_error.column);
        json_decref(object);
        errno = 0;
    }
    if (!rc && !feof(file))
        rc = refuse(reader->error, errno ? -errno : -EIO, 0, "%s", strerror(errno ? errno : EIO));
    free(text);
    if (!rc && reader->trace->n_requests == 0)
        rc = refuse(reader->error, -EINVAL, 0, "holds no request");
    return rc;
}

int weir_trace_read(struct weir_trace **trace, const char *path, struct weir_trace_error *error)
{
    struct reader reader = { .error = error };
    FILE *file = fopen(path, "r");
    if (!file) {
        int rc = -errno;
        return refuse(error, rc, 0, "%s", strerror(-rc));
    }
    int rc = -ENOMEM;
    reader.trace = calloc(1, sizeof *reader.trace);
    if (reader.trace)
        rc = read_lines(&reader, file);
    else
        refuse(error, rc, 0, "out of memory");
    fclose(file);
    if (rc)
        weir_trace_destroy(&reader.trace);
    else
        *trace = reader.trace;
    return rc;
}

void weir_trace_destroy(struct weir_trace **trace)
{
    if (!*trace)
        return;
    free((*trace)->requests);
    free((*trace)->ids);
    free(*trace);
    *trace = NULL;
}
