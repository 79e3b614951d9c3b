/* SPDX-License-Identifier: Apache-2.0 */

/* weir-trace-gen: the command line. Exit status: 0, 2 bad input, 3 a failed
 * write. */

#include "chat.h"
#include "numbers.h"

#include <weir/version.h>

#include <argp.h>
#include <stdio.h>
#include <string.h>

enum option_key {
    KEY_REQUESTS = 256,
    KEY_SEED,
    KEY_BLOCK_TOKENS,
    KEY_SYSTEMS,
    KEY_TURNS
};

static const struct argp_option option_list[] = {
    { "requests", KEY_REQUESTS, "N", 0, "Requests to write (300)", 0 },
    { "seed", KEY_SEED, "N", 0, "Another seed gives another trace (1)", 0 },
    { "block-tokens", KEY_BLOCK_TOKENS, "N", 0, "Tokens that one id stands for (16)", 0 },
    { "systems", KEY_SYSTEMS, "N", 0, "System prompts that chats share (4)", 0 },
    { "turns", KEY_TURNS, "N", 0, "The most questions of a chat (8)", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

static void read_u32(struct argp_state *state, const char *name, const char *text, uint32_t most,
                     uint32_t *value)
{
    uint64_t number = 1;
    if (!weir_read_number(&text, 0, 1, most, &number))
        argp_error(state, "--%s must be an integer from 1 to %u", name, most);
    *value = (uint32_t)number;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct weir_chat_options *options = state->input;
    switch (key) {
    case KEY_REQUESTS:
        read_u32(state, "requests", text, 10000000, &options->requests);
        break;
    case KEY_SEED: {
        const char *seed = text;
        if (!weir_read_number(&seed, 0, 0, UINT64_MAX, &options->seed))
            argp_error(state, "--seed must be an integer below 2^64");
        break;
    }
    case KEY_BLOCK_TOKENS:
        read_u32(state, "block-tokens", text, 1u << 20, &options->block_tokens);
        break;
    case KEY_SYSTEMS:
        read_u32(state, "systems", text, 1000, &options->systems);
        break;
    case KEY_TURNS:
        read_u32(state, "turns", text, 1000, &options->turns);
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", text);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        option_list,
        parse,
        NULL,
        "Writes a trace of chats with shared system prompts to standard output, in the format "
        "that weir-replay reads. The same options give the same trace.",
        NULL,
        NULL,
        NULL
    };
    struct weir_chat_options options = {
        .requests = 300, .seed = 1, .block_tokens = 16, .systems = 4, .turns = 8
    };
    argp_err_exit_status = 2;
    argp_program_version = weir_version();
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    int rc = weir_chat_write(stdout, &options);
    if (!rc && fflush(stdout))
        rc = -errno;
    if (!rc)
        return 0;
    fprintf(stderr, "weir-trace-gen: %s\n", strerror(-rc));
    return 3;
}
