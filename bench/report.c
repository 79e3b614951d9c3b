/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "device.h"

#include <weir/version.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* ---- JSON ----------------------------------------------------------------- */

static void put(struct weir_bench_report *report, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0 && !report->rc)
        report->rc = -ENOMEM;
}

void weir_bench_put_text(struct weir_bench_report *report, json_t *object, const char *key,
                         const char *text)
{
    put(report, object, key, json_string(text));
}

void weir_bench_put_integer(struct weir_bench_report *report, json_t *object, const char *key,
                            uint64_t value)
{
    put(report, object, key, json_integer((json_int_t)value));
}

void weir_bench_put_number(struct weir_bench_report *report, json_t *object, const char *key,
                           double value)
{
    put(report, object, key, json_real(value));
}

void weir_bench_put_stats(struct weir_bench_report *report, json_t *object, const char *key,
                          struct weir_bench_stats stats)
{
    json_t *quantity = json_object();
    weir_bench_put_number(report, quantity, "median", stats.median);
    weir_bench_put_number(report, quantity, "p5", stats.p5);
    weir_bench_put_number(report, quantity, "p95", stats.p95);
    weir_bench_put_number(report, quantity, "p99", stats.p99);
    weir_bench_put_number(report, quantity, "spread", stats.spread);
    weir_bench_put_integer(report, quantity, "n", stats.n);
    put(report, object, key, quantity);
}

json_t *weir_bench_report_row(struct weir_bench_report *report)
{
    json_t *row = json_object();
    if (json_array_append_new(report->results, row) != 0) {
        report->rc = -ENOMEM;
        return NULL;
    }
    return row;
}

/* ---- The machine ---------------------------------------------------------- */

/* The rest of the first line of a file that starts with `prefix`, behind the
 * separators; "" if there is none. */
static void find_line(const char *path, const char *prefix, char *text, size_t capacity)
{
    char line[512];
    text[0] = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, prefix, strlen(prefix)) != 0)
            continue;
        const char *rest = line + strlen(prefix);
        rest += strspn(rest, " \t:");
        snprintf(text, capacity, "%.*s", (int)strcspn(rest, "\n"), rest);
        break;
    }
    if (file)
        fclose(file);
}

static void put_environment(struct weir_bench_report *report, json_t *machine, const char *name)
{
    const char *value = getenv(name);
    if (value)
        weir_bench_put_text(report, machine, name, value);
}

static void put_machine(struct weir_bench_report *report, const struct weir_bench_device *device)
{
    char text[256];
    struct utsname names;
    json_t *machine = json_object();
    find_line("/proc/cpuinfo", "model name", text, sizeof text);
    weir_bench_put_text(report, machine, "cpu", text);
    weir_bench_put_integer(report, machine, "cpus", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    find_line("/proc/meminfo", "MemTotal", text, sizeof text);
    weir_bench_put_text(report, machine, "memory", text);
    if (uname(&names) == 0)
        weir_bench_put_text(report, machine, "kernel", names.release);
    find_line("/sys/kernel/mm/transparent_hugepage/enabled", "", text, sizeof text);
    weir_bench_put_text(report, machine, "huge_pages", text);
    weir_bench_put_text(report, machine, "device",
                        device ? weir_device_name(device->device) : "none");
    if (device && device->gpu) {
        weir_bench_put_text(report, machine, "gpu", device->gpu->name);
        weir_bench_put_integer(report, machine, "sms", device->gpu->n_sms);
        weir_bench_put_integer(report, machine, "compute", device->gpu->compute);
        weir_bench_put_integer(report, machine, "cuda", device->gpu->cuda_version);
        find_line("/proc/driver/nvidia/version", "NVRM version", text, sizeof text);
        weir_bench_put_text(report, machine, "driver", text);
    }
    put_environment(report, machine, "CUDA_DEVICE_MAX_CONNECTIONS");
    put_environment(report, machine, "CUDA_LAUNCH_BLOCKING");
    put(report, report->root, "machine", machine);
}

void weir_bench_report_begin(struct weir_bench_report *report, const char *benchmark,
                             const struct weir_bench_common *common,
                             const struct weir_bench_device *device)
{
    *report = (struct weir_bench_report){ .root = json_object(),
                                          .settings = json_object(),
                                          .results = json_array() };
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    weir_bench_put_text(report, report->root, "benchmark", benchmark);
    weir_bench_put_text(report, report->root, "weir", weir_version());
    weir_bench_put_text(report, report->root, "date", date);
    put_machine(report, device);
    put(report, report->root, "settings", report->settings);
    put(report, report->root, "results", report->results);
    weir_bench_put_integer(report, report->settings, "repeats", common->repeats);
    weir_bench_put_integer(report, report->settings, "warm_up", common->warm_up);
    put(report, report->settings, "verified", json_boolean(common->verify));
    if (device && !device->gpu)
        weir_bench_put_number(report, report->settings, "link_gbps", common->link_gbps);
}

/* ---- The table ------------------------------------------------------------ */

static bool is_text(const json_t *row, const char *key)
{
    return json_is_string(json_object_get(row, key));
}

static void format_cell(const json_t *row, const struct weir_bench_column *column, char *text,
                        size_t capacity)
{
    const json_t *value = json_object_get(row, column->key);
    if (json_is_object(value))
        value = json_object_get(value, "median");
    if (json_is_string(value))
        snprintf(text, capacity, "%s", json_string_value(value));
    else if (json_is_number(value))
        snprintf(text, capacity, "%.*f", column->decimals, json_number_value(value));
    else
        snprintf(text, capacity, "-");
}

/* Columns that no row has are left out. */
static size_t width_of(const json_t *results, const struct weir_bench_column *column, bool *texts)
{
    size_t width = strlen(column->title);
    bool used = false;
    *texts = false;
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *row = json_array_get(results, i);
        if (!json_object_get(row, column->key))
            continue;
        char text[128];
        format_cell(row, column, text, sizeof text);
        if (strlen(text) > width)
            width = strlen(text);
        used = true;
        *texts |= is_text(row, column->key);
    }
    return used ? width : 0;
}

static void print_table(const json_t *results, const struct weir_bench_column *columns,
                        size_t n_columns)
{
    for (size_t i = 0; i <= json_array_size(results); i++) {
        const json_t *row = i > 0 ? json_array_get(results, i - 1) : NULL;
        for (size_t k = 0; k < n_columns; k++) {
            bool texts;
            int width = (int)width_of(results, &columns[k], &texts);
            if (width == 0)
                continue;
            char text[128];
            format_cell(row, &columns[k], text, sizeof text);
            printf(texts ? "%-*s  " : "%*s  ", width, row ? text : columns[k].title);
        }
        const json_t *reason = json_object_get(row, "skipped");
        puts(reason ? json_string_value(reason) : "");
    }
}

static void print_machine(const json_t *root)
{
    const json_t *machine = json_object_get(root, "machine");
    const char *gpu = json_string_value(json_object_get(machine, "gpu"));
    const char *driver = json_string_value(json_object_get(machine, "driver"));
    printf("weir-bench %s, weir %s, %s, %s, %s\n",
           json_string_value(json_object_get(root, "benchmark")),
           json_string_value(json_object_get(root, "weir")),
           json_string_value(json_object_get(root, "date")),
           json_string_value(json_object_get(machine, "cpu")),
           gpu ? gpu : json_string_value(json_object_get(machine, "device")));
    if (driver && driver[0])
        printf("%s\n", driver);
}

static int write_json(const json_t *root, const char *path)
{
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "w");
    if (!file)
        return -errno;
    int rc = json_dumpf(root, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    if (fputc('\n', file) == EOF)
        rc = -1;
    if (to_stdout ? fflush(file) : fclose(file))
        rc = -1;
    return rc ? -EIO : 0;
}

int weir_bench_report_finish(struct weir_bench_report *report,
                             const struct weir_bench_common *common,
                             const struct weir_bench_column *columns, size_t n_columns)
{
    int rc = report->rc;
    if (!rc && !(common->json && strcmp(common->json, "-") == 0)) {
        print_machine(report->root);
        print_table(report->results, columns, n_columns);
    }
    if (!rc && common->json)
        rc = write_json(report->root, common->json);
    json_decref(report->root);
    *report = (struct weir_bench_report){ 0 };
    return rc;
}
