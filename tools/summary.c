/* SPDX-License-Identifier: Apache-2.0 */
#include "summary.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0.0;
}

/* What follows from the counts. X(name, value, text). */
#define DERIVED(X)                                                                          \
    X(hit_ratio, ratio(r->hit_pages_device + r->hit_pages_host, r->pages), "pages hit")     \
    X(hit_ratio_device, ratio(r->hit_pages_device, r->pages), "pages hit in device memory") \
    X(hit_ratio_host, ratio(r->hit_pages_host, r->pages), "pages hit in host memory")       \
    X(mean_run_pages, r->mean_run_pages, "run of a loaded page, consecutive on both sides") \
    X(seconds, r->seconds, "time of the last pass")

void weir_summary_print(const struct weir_replay_result *r)
{
#define COUNT(name, text) printf("%-22s %12" PRIu64 "  %s\n", #name, r->name, text);
    WEIR_REPLAY_COUNTS(COUNT)
#undef COUNT
#define VALUE(name, value, text) printf("%-22s %12.4f  %s\n", #name, value, text);
    DERIVED(VALUE)
#undef VALUE
}

/* Write-backs are the longest names: "write_through_selective". */
void weir_summary_compare(const struct weir_summary_run *runs, size_t n_runs)
{
    printf("%-8s %-23s %9s %9s %9s %10s %10s %10s %10s\n", "policy", "write_back", "hit_ratio",
           "of_device", "of_host", "loaded", "written", "evicted", "evicted_h");
    for (size_t i = 0; i < n_runs; i++) {
        const struct weir_replay_result *r = &runs[i].result;
        printf("%-8s %-23s %9.4f %9.4f %9.4f %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64
               "\n",
               runs[i].options.policy, runs[i].options.write_back,
               ratio(r->hit_pages_device + r->hit_pages_host, r->pages),
               ratio(r->hit_pages_device, r->pages), ratio(r->hit_pages_host, r->pages),
               r->loaded_pages, r->written_pages, r->evicted_device_pages, r->evicted_host_pages);
    }
}

static json_t *parameters(const char *trace, const struct weir_replay_options *options,
                          uint32_t device_pages)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:f, s:b, s:[III], s:s, s:s, s:s, s:b, "
                     "s:I, s:I, s:I, s:I}",
                     "trace", trace, "block_tokens", (json_int_t)options->block_tokens,
                     "page_tokens", (json_int_t)options->page_tokens, "device_pages",
                     (json_int_t)device_pages, "host_pages", (json_int_t)options->host_pages,
                     "policy", options->policy, "write_back", options->write_back, "offered",
                     options->offered * 100, "drop_duplicates", (int)options->drop_duplicates,
                     "shape", (json_int_t)options->n_layers, (json_int_t)options->n_tensors,
                     (json_int_t)options->row_bytes, "host_layout",
                     weir_host_layout_name(options->host_layout), "device",
                     weir_replay_device_name(options->device), "engine",
                     weir_transfer_engine_name(options->engine), "verify", (int)options->verify,
                     "batch", (json_int_t)options->batch, "ranks", (json_int_t)options->n_ranks,
                     "active", (json_int_t)options->active, "passes", (json_int_t)options->passes);
}

static json_t *object_of(const char *trace, const struct weir_replay_options *options,
                         const struct weir_replay_result *r)
{
    json_t *object = json_object();
    int rc = 0;
#define COUNT(name, text) \
    rc |= json_object_set_new(object, #name, json_integer((json_int_t)r->name));
    WEIR_REPLAY_COUNTS(COUNT)
#undef COUNT
#define VALUE(name, value, text) rc |= json_object_set_new(object, #name, json_real(value));
    DERIVED(VALUE)
#undef VALUE
    rc |= json_object_set_new(object, "parameters", parameters(trace, options, r->device_pages));
    if (!rc)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *array_of(const char *trace, const struct weir_summary_run *runs, size_t n_runs)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n_runs; i++) {
        if (json_array_append_new(array, object_of(trace, &runs[i].options, &runs[i].result))) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

int weir_summary_write(const char *path, const char *trace, const struct weir_summary_run *runs,
                       size_t n_runs, bool as_array)
{
    json_t *root = as_array ? array_of(trace, runs, n_runs)
                            : object_of(trace, &runs[0].options, &runs[0].result);
    if (!root)
        return -ENOMEM;
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "w");
    int rc = file ? 0 : -errno;
    if (file && (json_dumpf(root, file, JSON_INDENT(2)) || fputc('\n', file) == EOF))
        rc = -EIO;
    if (file && (to_stdout ? fflush(file) : fclose(file)) && !rc)
        rc = -errno;
    json_decref(root);
    return rc;
}
