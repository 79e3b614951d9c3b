/* SPDX-License-Identifier: Apache-2.0 */

/* weir-replay: the command line. Exit status: 0; 1 a wrong byte, a race or a
 * failed transfer; 2 bad input; 3 anything else that failed. */

#include "chaos.h"
#include "numbers.h"
#include "replay.h"
#include "summary.h"

#include <weir/policy.h>
#include <weir/version.h>

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum exit_status {
    EXIT_WRONG = 1,
    EXIT_BAD_INPUT = 2,
    EXIT_BROKEN = 3
};

struct command {
    struct weir_replay_options options;
    bool device_given;
    bool all_policies;
    bool all_write_backs;
    bool chaos;
    uint64_t seed;
    uint32_t seconds;
    const char *trace;
    const char *json;
};

enum option_key {
    KEY_BLOCK_TOKENS = 256,
    KEY_PAGE_TOKENS,
    KEY_DEVICE_PAGES,
    KEY_HOST_PAGES,
    KEY_POLICY,
    KEY_WRITE_BACK,
    KEY_OFFERED,
    KEY_DROP_DUPLICATES,
    KEY_SHAPE,
    KEY_HOST_LAYOUT,
    KEY_DEVICE,
    KEY_ENGINE,
    KEY_BATCH,
    KEY_RANKS,
    KEY_GPUS,
    KEY_ACTIVE,
    KEY_PASSES,
    KEY_VERIFY,
    KEY_CHAOS,
    KEY_SECONDS,
    KEY_JSON
};

static const struct argp_option option_list[] = {
    { 0, 0, 0, 0, "The trace:", 1 },
    { "block-tokens", KEY_BLOCK_TOKENS, "N", 0, "Tokens that one id stands for (512)", 0 },
    { "passes", KEY_PASSES, "N", 0, "Replay it N times with fresh ids, report the last (1)", 0 },
    { 0, 0, 0, 0, "The cache:", 2 },
    { "page-tokens", KEY_PAGE_TOKENS, "N", 0, "Tokens of a page (as --block-tokens)", 0 },
    { "device-pages", KEY_DEVICE_PAGES, "N", 0, "Pages of device memory; 0: no limit (0)", 0 },
    { "host-pages", KEY_HOST_PAGES, "N", 0, "Pages of host memory; 0: no host tier (0)", 0 },
    { "policy", KEY_POLICY, "NAME", 0, "Eviction policy (lru); all: each in turn", 0 },
    { "write-back", KEY_WRITE_BACK, "NAME", 0,
      "Write-back policy (write_through); all: each in turn", 0 },
    { "offered", KEY_OFFERED, "PERCENT", 0, "Share of a tier that is kept free or offered (5)", 0 },
    { "drop-duplicates", KEY_DROP_DUPLICATES, 0, 0,
      "Host memory gives up what device memory also holds first", 0 },
    { 0, 0, 0, 0, "The server:", 3 },
    { "batch", KEY_BATCH, "N", 0, "Requests that one step prefills (1)", 0 },
    { "active", KEY_ACTIVE, "N", 0,
      "Requests that decode at a time; 0: a request ends with its prefill (0)", 0 },
    { 0, 0, 0, 0, "The ranks:", 4 },
    { "device", KEY_DEVICE, "cpu|cuda|none", 0,
      "Where the bytes are; none: only the cache runs (none; cpu with --verify)", 0 },
    { "engine", KEY_ENGINE, "NAME", 0,
      "What moves them with --device cuda: auto, tma, vector or copy (auto)", 0 },
    { "ranks", KEY_RANKS, "N", 0, "Number of ranks (1)", 0 },
    { "gpus", KEY_GPUS, "N", 0, "GPUs that --device cuda deals them out to (1)", 0 },
    { "shape", KEY_SHAPE, "LAYERS,TENSORS,ROW_BYTES", 0, "What a page holds (2,2,16)", 0 },
    { "host-layout", KEY_HOST_LAYOUT, "NAME", 0, "Order of bytes in host memory (segmented)", 0 },
    { "verify", KEY_VERIFY, 0, 0, "Compare all pages that a step uses with their pattern", 0 },
    { 0, 0, 0, 0, "Bad days:", 5 },
    { "chaos", KEY_CHAOS, "SEED", 0,
      "Instead: serve the trace with failing calls, stalling copies, late reports and abandoned "
      "requests, a thread a rank, and compare all that is read",
      0 },
    { "seconds", KEY_SECONDS, "N", 0, "How long (10)", 0 },
    { 0, 0, 0, 0, "The result:", 6 },
    { "json", KEY_JSON, "FILE", 0,
      "Write it as JSON; -: to standard output, without a table. With --policy all or "
      "--write-back all: an array",
      0 },
    { 0, 0, 0, 0, 0, 0 }
};

/* ---- Reading options ----------------------------------------------------- */

static void read_u32(struct argp_state *state, const char *name, const char *text, uint32_t least,
                     uint32_t most, uint32_t *value)
{
    uint64_t number = least;
    if (!weir_read_number(&text, 0, least, most, &number))
        argp_error(state, "--%s must be an integer from %u to %u", name, least, most);
    *value = (uint32_t)number;
}

static void read_seed(struct argp_state *state, const char *text, uint64_t *seed)
{
    if (!weir_read_number(&text, 0, 0, UINT64_MAX, seed))
        argp_error(state, "--chaos must be an integer");
}

static void read_offered(struct argp_state *state, const char *text, double *offered)
{
    char *rest;
    double percent = strtod(text, &rest);
    if (rest == text || *rest || !(percent >= 0 && percent <= 50))
        argp_error(state, "--offered must be a number from 0 to 50");
    *offered = percent / 100;
}

static void read_shape(struct argp_state *state, const char *text,
                       struct weir_replay_options *options)
{
    uint64_t layers = 1;
    uint64_t tensors = 1;
    uint64_t row_bytes = 1;
    if (!weir_read_number(&text, ',', 1, WEIR_MAX_LAYERS, &layers) ||
        !weir_read_number(&text, ',', 1, WEIR_MAX_TENSORS, &tensors) ||
        !weir_read_number(&text, 0, 1, WEIR_MAX_ROW_BYTES, &row_bytes))
        argp_error(state, "--shape must be LAYERS,TENSORS,ROW_BYTES of at most %u,%u,%u",
                   WEIR_MAX_LAYERS, WEIR_MAX_TENSORS, WEIR_MAX_ROW_BYTES);
    options->n_layers = (uint32_t)layers;
    options->n_tensors = (uint32_t)tensors;
    options->row_bytes = (uint32_t)row_bytes;
}

/* A list of names for a message: "a, b, c". */
static void append_name(char *list, size_t capacity, const char *name)
{
    size_t length = strlen(list);
    snprintf(list + length, capacity - length, "%s%s", length ? ", " : "", name);
}

static void read_policy(struct argp_state *state, const char *text, const char **policy)
{
    char list[256] = "";
    *policy = text;
    if (weir_evict_policy_find(text))
        return;
    for (size_t i = 0; weir_evict_policy_at(i); i++)
        append_name(list, sizeof list, weir_evict_policy_at(i)->name);
    argp_error(state, "--policy %s is unknown; there are: %s, or all", text, list);
}

static void read_write_back(struct argp_state *state, const char *text, const char **write_back)
{
    char list[256] = "";
    weir_write_policy policy;
    *write_back = text;
    if (weir_write_policy_parse(text, &policy) == 0)
        return;
    for (size_t i = 0; weir_write_policy_name_at(i); i++)
        append_name(list, sizeof list, weir_write_policy_name_at(i));
    argp_error(state, "--write-back %s is unknown or out of range; there are: %s, or all", text,
               list);
}

static void read_layout(struct argp_state *state, const char *text, weir_host_layout *layout)
{
    char list[256] = "";
    if (weir_host_layout_parse(text, layout) == 0)
        return;
    for (int i = 0; weir_host_layout_name((weir_host_layout)i); i++)
        append_name(list, sizeof list, weir_host_layout_name((weir_host_layout)i));
    argp_error(state, "--host-layout %s is unknown; there are: %s", text, list);
}

static void read_device(struct argp_state *state, const char *text, struct command *command)
{
    static const enum weir_replay_device devices[] = { WEIR_REPLAY_CPU, WEIR_REPLAY_CUDA,
                                                       WEIR_REPLAY_NONE };
    char list[64] = "";
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        const char *name = weir_replay_device_name(devices[i]);
        append_name(list, sizeof list, name);
        if (strcmp(text, name) != 0)
            continue;
        command->options.device = devices[i];
        command->device_given = true;
        return;
    }
    argp_error(state, "--device %s is unknown; there are: %s", text, list);
}

static void read_engine(struct argp_state *state, const char *text, weir_transfer_engine *engine)
{
    char list[64] = "";
    for (int i = 0; weir_transfer_engine_name((weir_transfer_engine)i); i++) {
        const char *name = weir_transfer_engine_name((weir_transfer_engine)i);
        append_name(list, sizeof list, name);
        if (strcmp(text, name) != 0)
            continue;
        *engine = (weir_transfer_engine)i;
        return;
    }
    argp_error(state, "--engine %s is unknown; there are: %s", text, list);
}

static void finish(struct argp_state *state, struct command *command)
{
    struct weir_replay_options *options = &command->options;
    if (!command->trace)
        argp_error(state, "no trace given");
    if ((options->verify || command->chaos) && !command->device_given)
        options->device = WEIR_REPLAY_CPU;
    if (command->chaos && (options->device == WEIR_REPLAY_NONE || !options->device_pages))
        argp_error(state, "--chaos needs devices with some pages: --device-pages");
    if (command->chaos && (command->all_policies || command->all_write_backs || command->json))
        argp_error(state, "--chaos is one run and prints a table");
    if (options->verify && options->device == WEIR_REPLAY_NONE)
        argp_error(state, "--verify needs bytes to look at: --device cpu or cuda");
    if (options->engine != WEIR_ENGINE_AUTO && options->device != WEIR_REPLAY_CUDA)
        argp_error(state, "--engine needs --device cuda");
    if (options->n_gpus > 1 && options->device != WEIR_REPLAY_CUDA)
        argp_error(state, "--gpus needs --device cuda");
    if (options->n_gpus > options->n_ranks)
        argp_error(state, "--gpus %u needs as many --ranks", options->n_gpus);
    if (!options->page_tokens) {
        if (options->block_tokens > WEIR_MAX_PAGE_TOKENS)
            argp_error(state, "--page-tokens is needed where --block-tokens is above %u",
                       WEIR_MAX_PAGE_TOKENS);
        options->page_tokens = options->block_tokens;
    }
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct command *command = state->input;
    struct weir_replay_options *options = &command->options;
    switch (key) {
    case KEY_BLOCK_TOKENS:
        read_u32(state, "block-tokens", text, 1, 1u << 20, &options->block_tokens);
        break;
    case KEY_PAGE_TOKENS:
        read_u32(state, "page-tokens", text, 1, WEIR_MAX_PAGE_TOKENS, &options->page_tokens);
        break;
    case KEY_DEVICE_PAGES:
        read_u32(state, "device-pages", text, 0, 1u << 30, &options->device_pages);
        break;
    case KEY_HOST_PAGES:
        read_u32(state, "host-pages", text, 0, 1u << 30, &options->host_pages);
        break;
    case KEY_POLICY:
        command->all_policies = strcmp(text, "all") == 0;
        if (!command->all_policies)
            read_policy(state, text, &options->policy);
        break;
    case KEY_WRITE_BACK:
        command->all_write_backs = strcmp(text, "all") == 0;
        if (!command->all_write_backs)
            read_write_back(state, text, &options->write_back);
        break;
    case KEY_OFFERED:
        read_offered(state, text, &options->offered);
        break;
    case KEY_DROP_DUPLICATES:
        options->drop_duplicates = true;
        break;
    case KEY_SHAPE:
        read_shape(state, text, options);
        break;
    case KEY_HOST_LAYOUT:
        read_layout(state, text, &options->host_layout);
        break;
    case KEY_DEVICE:
        read_device(state, text, command);
        break;
    case KEY_ENGINE:
        read_engine(state, text, &options->engine);
        break;
    case KEY_BATCH:
        read_u32(state, "batch", text, 1, 4096, &options->batch);
        break;
    case KEY_RANKS:
        read_u32(state, "ranks", text, 1, 64, &options->n_ranks);
        break;
    case KEY_GPUS:
        read_u32(state, "gpus", text, 1, 64, &options->n_gpus);
        break;
    case KEY_ACTIVE:
        read_u32(state, "active", text, 0, 1u << 16, &options->active);
        break;
    case KEY_PASSES:
        read_u32(state, "passes", text, 1, 1000, &options->passes);
        break;
    case KEY_VERIFY:
        options->verify = true;
        break;
    case KEY_CHAOS:
        command->chaos = true;
        read_seed(state, text, &command->seed);
        break;
    case KEY_SECONDS:
        read_u32(state, "seconds", text, 1, 1u << 20, &command->seconds);
        break;
    case KEY_JSON:
        command->json = text;
        break;
    case ARGP_KEY_ARG:
        if (command->trace)
            argp_error(state, "more than one trace given");
        command->trace = text;
        break;
    case ARGP_KEY_END:
        finish(state, command);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- The run ------------------------------------------------------------- */

static void show_progress(uint32_t pass, uint32_t passes, size_t done, size_t requests)
{
    fprintf(stderr, "\rpass %u of %u: %zu of %zu requests\033[K", pass, passes, done, requests);
}

static void complain(const char *path, uint64_t line, const char *text)
{
    if (line)
        fprintf(stderr, "weir-replay: %s:%llu: %s\n", path, (unsigned long long)line, text);
    else
        fprintf(stderr, "weir-replay: %s: %s\n", path, text);
}

/* A trace made for another block size replays all the same, but its numbers
 * mean little. */
static void warn_of_lengths(const struct command *command, const struct weir_trace *trace)
{
    uint64_t block = command->options.block_tokens;
    for (size_t i = 0; i < trace->n_requests; i++) {
        const struct weir_trace_request *request = &trace->requests[i];
        if ((request->input_length + block - 1) / block == request->n_ids)
            continue;
        complain(command->trace, request->line,
                 "warning: input_length does not match so many ids of --block-tokens tokens");
        return;
    }
}

static int replay(const struct command *command, const struct weir_trace *trace,
                  struct weir_summary_run *run)
{
    int rc = weir_replay_run(trace, &run->options, &run->result);
    if (run->options.progress)
        fputs("\r\033[K", stderr);
    if (rc) {
        complain(command->trace, run->result.error_line, run->result.error);
        return rc == -EINVAL || rc == -E2BIG ? EXIT_BAD_INPUT : EXIT_BROKEN;
    }
    const struct weir_replay_result *result = &run->result;
    return result->wrong_bytes || result->races || result->failed_transfers ? EXIT_WRONG : 0;
}

/* The runs that the command asks for: one, or each policy with each
 * write-back. NULL: no memory. */
static struct weir_summary_run *plan_runs(const struct command *command, size_t *n_runs)
{
    size_t n_policies = 0;
    size_t n_writes = 0;
    while (weir_evict_policy_at(n_policies))
        n_policies++;
    while (weir_write_policy_name_at(n_writes))
        n_writes++;
    n_policies = command->all_policies ? n_policies : 1;
    n_writes = command->all_write_backs ? n_writes : 1;
    struct weir_summary_run *runs = calloc(n_policies * n_writes, sizeof *runs);
    if (!runs)
        return NULL;
    for (size_t i = 0; i < n_policies * n_writes; i++) {
        struct weir_replay_options *options = &runs[i].options;
        *options = command->options;
        if (command->all_policies)
            options->policy = weir_evict_policy_at(i / n_writes)->name;
        if (command->all_write_backs)
            options->write_back = weir_write_policy_name_at(i % n_writes);
    }
    *n_runs = n_policies * n_writes;
    return runs;
}

/* A run that cannot be made ends the command; a wrong byte in one does not keep
 * the others from being told. */
static int run_all(const struct command *command, const struct weir_trace *trace,
                   struct weir_summary_run *runs, size_t n_runs)
{
    bool several = command->all_policies || command->all_write_backs;
    int status = 0;
    for (size_t i = 0; i < n_runs; i++) {
        int got = replay(command, trace, &runs[i]);
        if (got && got != EXIT_WRONG)
            return got;
        status = got ? got : status;
    }
    bool json_only = command->json && strcmp(command->json, "-") == 0;
    if (!json_only && several)
        weir_summary_compare(runs, n_runs);
    else if (!json_only)
        weir_summary_print(&runs[0].result);
    int rc = command->json
                 ? weir_summary_write(command->json, command->trace, runs, n_runs, several)
                 : 0;
    if (rc) {
        complain(command->json, 0, strerror(-rc));
        return EXIT_BAD_INPUT;
    }
    return status;
}

static int run_chaos(const struct command *command, const struct weir_trace *trace)
{
    struct weir_chaos_result result;
    int rc = weir_chaos_run(trace, &command->options, command->seed, command->seconds, &result);
    weir_chaos_print(&result);
    if (rc) {
        complain(command->trace, 0, result.error);
        return EXIT_BROKEN;
    }
    return result.wrong_bytes || result.races ? EXIT_WRONG : 0;
}

static int run(const struct command *command, const struct weir_trace *trace)
{
    if (command->chaos)
        return run_chaos(command, trace);
    size_t n_runs = 0;
    struct weir_summary_run *runs = plan_runs(command, &n_runs);
    if (!runs) {
        complain(command->trace, 0, strerror(ENOMEM));
        return EXIT_BROKEN;
    }
    int status = run_all(command, trace, runs, n_runs);
    free(runs);
    return status;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        option_list,
        parse,
        "TRACE",
        "Replays a trace of requests through a weir cache and tells what was found where. TRACE "
        "is in Mooncake's format: a JSON object a line, with timestamp, input_length, "
        "output_length and hash_ids.\vThe exit status is 1 after a wrong byte, a race or a failed "
        "transfer, 2 after bad input, 3 if anything else failed.",
        NULL,
        NULL,
        NULL
    };
    struct command command = {
        .options = { .block_tokens = 512,
                     .policy = "lru",
                     .write_back = "write_through",
                     .offered = 0.05,
                     .n_layers = 2,
                     .n_tensors = 2,
                     .row_bytes = 16,
                     .host_layout = WEIR_HOST_SEGMENTED,
                     .batch = 1,
                     .n_ranks = 1,
                     .n_gpus = 1,
                     .passes = 1 },
        .seconds = 10,
    };
    argp_err_exit_status = EXIT_BAD_INPUT;
    argp_program_version = weir_version();
    argp_parse(&argp, argc, argv, 0, NULL, &command);
    if (isatty(STDERR_FILENO))
        command.options.progress = show_progress;

    struct weir_trace *trace = NULL;
    struct weir_trace_error error;
    if (weir_trace_read(&trace, command.trace, &error)) {
        complain(command.trace, error.line, error.text);
        return EXIT_BAD_INPUT;
    }
    warn_of_lengths(&command, trace);
    int status = run(&command, trace);
    weir_trace_destroy(&trace);
    return status;
}
