/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/cache.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The field list once more, as a table. */
static const struct {
    const char *name;
    const char *kind;
    const char *help;
    size_t offset;
} fields[] = {
#define FIELD(type, kind, name, help) { #name, #kind, help, offsetof(weir_stats, name) },
    WEIR_CACHE_STATS(FIELD)
#undef FIELD
};
#define N_FIELDS (sizeof fields / sizeof *fields)

static const weir_stats_format formats[] = { WEIR_STATS_TEXT, WEIR_STATS_JSON,
                                             WEIR_STATS_PROMETHEUS };

static uint64_t value_of(const weir_stats *stats, size_t i)
{
    uint64_t value;
    memcpy(&value, (const char *)stats + fields[i].offset, sizeof value);
    return value;
}

/* A value of its own in each field, of one digit and of many. */
static weir_stats make_stats(void)
{
    weir_stats stats = { .struct_size = sizeof stats };
    for (size_t i = 0; i < N_FIELDS; i++) {
        uint64_t value = i % 2 ? (uint64_t)INT64_MAX - i : i;
        memcpy((char *)&stats + fields[i].offset, &value, sizeof value);
    }
    return stats;
}

/* To be freed. The buffer has no byte to spare, for AddressSanitizer. */
static char *write_all(const weir_stats *stats, weir_stats_format format)
{
    size_t needed = 0, again = 0;
    cr_assert(eq(int, weir_stats_write(stats, format, NULL, 0, &needed), -ENOSPC));
    char *text = malloc(needed);
    cr_assert(ne(ptr, text, NULL));
    cr_assert(zero(int, weir_stats_write(stats, format, text, needed, &again)));
    cr_assert(eq(sz, again, needed));
    cr_assert(eq(sz, strlen(text) + 1, needed));
    return text;
}

/* Takes `line`, with its newline, off the text. */
static void take(const char **text, const char *line)
{
    size_t n = strlen(line);
    cr_assert(strncmp(*text, line, n) == 0, "not \"%s\" but \"%.80s\"", line, *text);
    *text += n;
}

Test(stats, text)
{
    weir_stats stats = make_stats();
    char *text = write_all(&stats, WEIR_STATS_TEXT), line[256];
    const char *rest = text;
    for (size_t i = 0; i < N_FIELDS; i++) {
        snprintf(line, sizeof line, "%s %" PRIu64 "\n", fields[i].name, value_of(&stats, i));
        take(&rest, line);
    }
    cr_assert(eq(chr, *rest, '\0'));
    free(text);
}

Test(stats, json)
{
    weir_stats stats = make_stats();
    char *text = write_all(&stats, WEIR_STATS_JSON);
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    bool object = json_is_object(json);
    cr_assert(object, "%d: %s", error.line, error.text);
    cr_assert(eq(sz, json_object_size(json), N_FIELDS));
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(json, fields[i].name);
        bool integer = json_is_integer(value);
        cr_assert(integer, "%s", fields[i].name);
        cr_assert(eq(u64, (uint64_t)json_integer_value(value), value_of(&stats, i)), "%s",
                  fields[i].name);
    }
    cr_assert(eq(chr, text[strlen(text) - 1], '\n'));
    json_decref(json);
    free(text);
}

Test(stats, prometheus)
{
    weir_stats stats = make_stats();
    char *text = write_all(&stats, WEIR_STATS_PROMETHEUS), line[512];
    const char *rest = text;
    for (size_t i = 0; i < N_FIELDS; i++) {
        bool counter = strcmp(fields[i].kind, "COUNTER") == 0;
        char name[128];
        snprintf(name, sizeof name, "weir_%s%s", fields[i].name, counter ? "_total" : "");
        snprintf(line, sizeof line, "# HELP %s %s\n", name, fields[i].help);
        take(&rest, line);
        snprintf(line, sizeof line, "# TYPE %s %s\n", name, counter ? "counter" : "gauge");
        take(&rest, line);
        snprintf(line, sizeof line, "%s %" PRIu64 "\n", name, value_of(&stats, i));
        take(&rest, line);
    }
    cr_assert(eq(chr, *rest, '\0'));
    free(text);
}

/* The list itself: what goes down is a gauge, and no help text needs an escape. */
Test(stats, kinds_and_help)
{
    static const char *const gauges[] = {
        "orders_in_flight", "write_backs_in_flight", "seqs_open", "index_pages", "index_bytes",
        "device_free",      "device_offered",        "host_free", "host_offered"
    };
    for (size_t k = 0; k < sizeof gauges / sizeof *gauges; k++) {
        size_t found = 0;
        for (size_t i = 0; i < N_FIELDS; i++)
            found += strcmp(fields[i].name, gauges[k]) == 0 && strcmp(fields[i].kind, "GAUGE") == 0;
        cr_assert(eq(sz, found, 1), "%s", gauges[k]);
    }
    for (size_t i = 0; i < N_FIELDS; i++) {
        cr_assert(strcmp(fields[i].kind, "GAUGE") == 0 || strcmp(fields[i].kind, "COUNTER") == 0);
        cr_assert(zero(ptr, strpbrk(fields[i].help, "\\\n\"")), "%s", fields[i].name);
    }
}

Test(stats, largest_values)
{
    weir_stats stats;
    memset(&stats, 0xff, sizeof stats);
    stats.struct_size = sizeof stats;
    for (size_t f = 0; f < 3; f++) {
        char *text = write_all(&stats, formats[f]);
        size_t found = 0;
        for (const char *at = text; (at = strstr(at, "18446744073709551615")); at++)
            found++;
        cr_assert(eq(sz, found, N_FIELDS));
        free(text);
    }
}

Test(stats, every_capacity)
{
    weir_stats stats = make_stats();
    for (size_t f = 0; f < 3; f++) {
        char *text = write_all(&stats, formats[f]);
        size_t all = strlen(text) + 1;
        for (size_t capacity = 0; capacity <= all + 1; capacity++) {
            char *buffer = malloc(capacity + 1);
            cr_assert(ne(ptr, buffer, NULL));
            memset(buffer, 0x5a, capacity + 1);
            size_t needed = 0;
            int rc = weir_stats_write(&stats, formats[f], buffer, capacity, &needed);
            cr_assert(eq(int, rc, capacity < all ? -ENOSPC : 0), "%zu", capacity);
            cr_assert(eq(sz, needed, all), "%zu", capacity);
            size_t kept = capacity < all ? capacity : all;
            if (kept) {
                cr_assert(eq(chr, buffer[kept - 1], '\0'), "%zu", capacity);
                cr_assert(memcmp(buffer, text, kept - 1) == 0, "%zu", capacity);
            }
            for (size_t i = kept; i <= capacity; i++)
                cr_assert(eq(chr, buffer[i], 0x5a), "%zu", capacity);
            free(buffer);
        }
        cr_assert(zero(int, weir_stats_write(&stats, formats[f], text, all, NULL)));
        free(text);
    }
}

Test(stats, refusals)
{
    weir_stats stats = make_stats();
    char buffer[8] = "before";
    size_t needed = 77;
    cr_assert(eq(int, weir_stats_write(NULL, WEIR_STATS_TEXT, buffer, 8, &needed), -EINVAL));
    cr_assert(eq(int, weir_stats_write(&stats, WEIR_STATS_TEXT, NULL, 8, &needed), -EINVAL));
    cr_assert(eq(int, weir_stats_write(&stats, (weir_stats_format)3, buffer, 8, &needed), -EINVAL));
    static const uint32_t sizes[] = { 0, sizeof stats - 8, sizeof stats + 8, UINT32_MAX };
    for (size_t i = 0; i < 4; i++) {
        stats.struct_size = sizes[i];
        cr_assert(eq(int, weir_stats_write(&stats, WEIR_STATS_JSON, buffer, 8, &needed), -EINVAL));
    }
    cr_assert(zero(int, strcmp(buffer, "before")));
    cr_assert(eq(sz, needed, 77));
}
