/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/cache.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* Text that goes on being counted when the buffer is full. */
struct text {
    char *buffer;
    size_t capacity;
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *text, const char *format, ...)
{
    bool room = text->n < text->capacity;
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(room ? text->buffer + text->n : NULL, room ? text->capacity - text->n : 0,
                      format, arguments);
    va_end(arguments);
    if (n > 0)
        text->n += (size_t)n;
}

enum kind {
    COUNTER,
    GAUGE
};

static void put_field(struct text *text, weir_stats_format format, enum kind kind, const char *name,
                      const char *help, uint64_t value)
{
    const char *suffix = kind == COUNTER ? "_total" : "";
    switch (format) {
    case WEIR_STATS_TEXT:
        put(text, "%s %" PRIu64 "\n", name, value);
        break;
    case WEIR_STATS_JSON:
        put(text, "%s\n  \"%s\": %" PRIu64, text->n > 1 ? "," : "", name, value);
        break;
    case WEIR_STATS_PROMETHEUS:
        put(text, "# HELP weir_%s%s %s\n", name, suffix, help);
        put(text, "# TYPE weir_%s%s %s\n", name, suffix, kind == COUNTER ? "counter" : "gauge");
        put(text, "weir_%s%s %" PRIu64 "\n", name, suffix, value);
        break;
    }
}

int weir_stats_write(const weir_stats *stats, weir_stats_format format, char *buffer,
                     size_t capacity, size_t *needed)
{
    if (!stats || stats->struct_size != sizeof *stats || (!buffer && capacity) ||
        (format != WEIR_STATS_TEXT && format != WEIR_STATS_JSON && format != WEIR_STATS_PROMETHEUS))
        return -EINVAL;
    struct text text = { buffer, capacity, 0 };
    if (format == WEIR_STATS_JSON)
        put(&text, "{");
        /* A field of another type does not compile, instead of being cut. */
#define PUT_FIELD(type, kind, name, help) \
    put_field(&text, format, kind, #name, help, _Generic(stats->name, uint64_t : stats->name));
    WEIR_CACHE_STATS(PUT_FIELD)
#undef PUT_FIELD
    if (format == WEIR_STATS_JSON)
        put(&text, "\n}\n");
    if (needed)
        *needed = text.n + 1;
    return text.n < capacity ? 0 : -ENOSPC;
}
