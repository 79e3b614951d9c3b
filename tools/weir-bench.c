/* SPDX-License-Identifier: Apache-2.0 */

/* weir-bench: the command line. Exit status: 0; 1 a wrong byte or a failed
 * transfer; 2 bad input; 3 anything else that failed. */

#include "bench.h"
#include "options.h"

#include <weir/version.h>

#include <stdio.h>
#include <string.h>

#define N_SUBJECTS (sizeof subjects / sizeof subjects[0])

static const struct {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} subjects[] = {
    { "copy", "how fast each engine moves pages, alone", weir_bench_copy },
    { "overlap", "how well a load hides behind a forward pass", weir_bench_overlap },
    { "pin", "how fast a host pool becomes ready", weir_bench_pin },
    { "launch", "what enqueueing a load costs the host", weir_bench_launch },
    { "index", "what the cache's decisions take", weir_bench_index },
    { "gather", "how fast missed experts come, alone and beside a GEMM", weir_bench_gather },
};

struct command {
    int argc; /* of the subject */
    char **argv;
    size_t subject;
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct command *command = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        command->subject = 0;
        while (command->subject < N_SUBJECTS && strcmp(subjects[command->subject].name, text) != 0)
            command->subject++;
        if (command->subject == N_SUBJECTS)
            argp_error(state, "there is no subject %s", text);
        command->argc = state->argc - state->next + 1;
        command->argv = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no subject given");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static char *list_subjects(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)text;
    char *list = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&list, &bytes);
    if (!stream)
        return (char *)text;
    for (size_t i = 0; i < N_SUBJECTS; i++)
        fprintf(stream, "  %-10s %s\n", subjects[i].name, subjects[i].summary);
    fprintf(stream, "\n%s", text);
    return fclose(stream) ? (char *)text : list;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        NULL,
        parse,
        "SUBJECT [OPTION...]",
        "Measures weir on this machine.\vweir-bench SUBJECT --help lists a subject's options. The "
        "exit status is 1 after a wrong byte or a failed transfer, 2 after bad input, 3 if "
        "anything else failed.",
        NULL,
        list_subjects,
        NULL
    };
    struct command command = { 0 };
    char name[64];
    argp_err_exit_status = WEIR_BENCH_BAD_INPUT;
    argp_program_version = weir_version();
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &command);
    snprintf(name, sizeof name, "weir-bench %s", subjects[command.subject].name);
    command.argv[0] = name;
    return subjects[command.subject].run(command.argc, command.argv);
}
