/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_SCRIPT_H
#define TRANSFORMER_SCRIPT_H

/* What the server is asked, scene by scene.
 *
 *   prompt = system prompt | image | the user's words
 *            shared by many  maybe   its own
 *
 * The prompts of a scene come at once; the next scene begins when all of them
 * are answered and nothing is in flight any more. Each of a prompt's samples is
 * a chat. */

#include "model.h"

#include <stdbool.h>
#include <stddef.h>

#define MAX_CHATS 64
#define MAX_GENERATED 128

struct prompt {
    const char *name;
    uint32_t scene; /* ascending from 0 */
    uint32_t system, n_system;
    uint32_t image, n_image; /* seed, tokens; 0: none */
    uint32_t user, n_user;
    uint32_t adapter;
    uint32_t n_generate; /* tokens of an answer, 1 or more */
    bool two_samples;    /* the second begins with the second best token */
    uint32_t n_draft;    /* tokens that a draft model guesses ahead; 0: none */
    bool abort_in_load;  /* its client hangs up when its first step is under way */
    bool load_fails;     /* the last rank's link breaks in its first step's load; not on CUDA */
};

/* A sequence to be served: sample 0 or 1 of a prompt. */
struct chat_script {
    const struct prompt *prompt;
    uint32_t sample;
};

struct script {
    uint32_t n_scenes;
    uint32_t n_chats;
    struct chat_script chats[MAX_CHATS]; /* the samples of a prompt side by side */
};

void script_write(struct script *script);

uint32_t prompt_length(const struct prompt *prompt);
void prompt_tokens(const struct prompt *prompt, int32_t *tokens);

/* What goes into the model for the token at a position of the prompt's chats. */
struct model_input prompt_input(const struct prompt *prompt, uint32_t position, int32_t token);

/* What a chat has been answered. digests[i] is that of the logits from which
 * tokens[i] was chosen. */
struct outcome {
    uint32_t n;
    int32_t tokens[MAX_GENERATED];
    uint64_t digests[MAX_GENERATED];
};

/* What the draft model guesses for tokens[i]. This example has none: it takes
 * the right answer and spoils every third token, so that there is always
 * something to accept and something to roll back. */
int32_t draft_token(const struct outcome *right, uint32_t i);

#endif
