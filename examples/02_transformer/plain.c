/* SPDX-License-Identifier: Apache-2.0 */
#include "plain.h"

#include "check.h"

#include <stdlib.h>

static uint64_t serve(const struct chat_script *chat, plain_forward forward, void *user,
                      struct outcome *outcome)
{
    const struct prompt *prompt = chat->prompt;
    uint32_t length = prompt_length(prompt), position = 0;
    int32_t tokens[MAX_CONTEXT];
    REQUIRE(length + prompt->n_generate <= MAX_CONTEXT && prompt->n_generate <= MAX_GENERATED);
    *outcome = (struct outcome){ 0 };
    if (prompt->abort_in_load)
        return 0;
    prompt_tokens(prompt, tokens);
    for (; outcome->n < prompt->n_generate; position++) {
        struct model_input input = prompt_input(prompt, position, tokens[position]);
        struct model_answer answer = forward(user, &input);
        if (position + 1 < length)
            continue;
        bool other = chat->sample == 1 && outcome->n == 0;
        tokens[position + 1] = other ? answer.runner_up : answer.token;
        outcome->tokens[outcome->n] = tokens[position + 1];
        outcome->digests[outcome->n++] = answer.digest;
    }
    return position;
}

uint64_t plain_run(const struct script *script, plain_forward forward, void *user,
                   struct outcome outcomes[MAX_CHATS])
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < script->n_chats; i++)
        n += serve(&script->chats[i], forward, user, &outcomes[i]);
    return n;
}

/* ---- On the CPU ------------------------------------------------------------ */

struct cpu {
    const struct model *model;
    float keys[N_LAYERS][N_GROUPS][MAX_CONTEXT][HEAD_DIM];
    float values[N_LAYERS][N_GROUPS][MAX_CONTEXT][HEAD_DIM];
};

static const float *row_of_array(const void *where, uint32_t position)
{
    return (const float *)where + (size_t)position * HEAD_DIM;
}

static struct model_answer cpu_forward(void *user, const struct model_input *input)
{
    struct cpu *cpu = user;
    const struct model *model = cpu->model;
    uint32_t position = input->position;
    float x[D_MODEL], partials[N_GROUPS][D_MODEL], logits[VOCABULARY];
    model_embed(model, input, x);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t g = 0; g < N_GROUPS; g++) {
            struct model_context context = { row_of_array, cpu->keys[l][g], cpu->values[l][g] };
            struct model_query query;
            model_project(model, l, g, input, x, &query, cpu->keys[l][g][position],
                          cpu->values[l][g][position]);
            model_attend(model, l, g, &query, position, &context, partials[g]);
        }
        model_add(x, partials);
        for (uint32_t g = 0; g < N_GROUPS; g++)
            model_mlp(model, l, g, x, partials[g]);
        model_add(x, partials);
    }
    model_logits(model, x, logits);
    return model_answer_of(logits);
}

uint64_t plain_run_cpu(const struct model *model, const struct script *script,
                       struct outcome outcomes[MAX_CHATS])
{
    struct cpu *cpu = calloc(1, sizeof *cpu);
    REQUIRE(cpu);
    cpu->model = model;
    uint64_t n = plain_run(script, cpu_forward, cpu, outcomes);
    free(cpu);
    return n;
}
