/* SPDX-License-Identifier: Apache-2.0 */
#include "script.h"

#define SYSTEM(seed, n) .system = (seed), .n_system = (n)
#define IMAGE(seed, n) .image = (seed), .n_image = (n)
#define WORDS(seed, n) .user = (seed), .n_user = (n)
#define HELPER SYSTEM(1, 70) /* ends inside a page, as prompts do */

static const struct prompt prompts[] = {
    /* Two chats ask the same at once. Neither finds anything, both compute it; what the second
     * computes stays its own until it closes. */
    { "cold", 0, HELPER, WORDS(10, 20), .n_generate = 12 },
    { "cold twin", 0, HELPER, WORDS(10, 20), .n_generate = 12 },

    /* The system prompt is in device memory. Two answers to one prompt share its pages; where it
     * ends inside a page, the second gets a copy of that page. */
    { "device hit", 1, HELPER, WORDS(11, 25), .n_generate = 12 },
    { "two samples", 1, HELPER, WORDS(12, 21), .n_generate = 24, .two_samples = true },

    /* Longer than a step takes: prefilled in chunks. Takes nearly all of device memory. */
    { "long", 2, SYSTEM(2, 370), WORDS(13, 15), .n_generate = 20 },

    /* The system prompt is in host memory now. The first chat loads it, the others join. */
    { "host hit", 3, HELPER, WORDS(14, 18), .n_generate = 16 },
    { "host hit, joined", 3, HELPER, WORDS(15, 33), .n_generate = 16 },
    { "cold again", 3, HELPER, WORDS(10, 20), .n_generate = 12 },

    /* A client hangs up in the middle of a load, which nobody else wants. */
    { "aborted", 4, SYSTEM(2, 370), WORDS(28, 20), .n_generate = 8, .abort_in_load = true },

    /* Another one hangs up; who joined that load is none the worse. */
    { "long again", 5, SYSTEM(2, 370), WORDS(16, 20), .n_generate = 8 },
    { "aborted, but joined", 6, HELPER, WORDS(17, 30), .n_generate = 8, .abort_in_load = true },
    { "joined the aborted", 6, HELPER, WORDS(18, 30), .n_generate = 8 },

    /* A load fails on one rank. What was computed on top of it is thrown away, and both chats that
     * needed it begin again: what did not arrive is computed. */
    { "long once more", 7, SYSTEM(2, 370), WORDS(23, 20), .n_generate = 8 },
    { "load fails", 8, HELPER, WORDS(24, 30), .n_generate = 12, .load_fails = true },
    { "joined the failed", 8, HELPER, WORDS(25, 50), .n_generate = 12 },

    /* Each fits alone. As their answers grow one must go, and comes back later with the tokens
     * that it has so far: most of its pages are still there. */
    { "growing", 9, SYSTEM(3, 100), WORDS(19, 20), .n_generate = 100 },
    { "growing too", 9, SYSTEM(4, 100), WORDS(20, 20), .n_generate = 100 },

    /* A draft model guesses; what the model does not confirm is computed over. */
    { "speculative", 10, HELPER, WORDS(21, 22), .n_generate = 40, .n_draft = 3 },
    { "beside it", 10, HELPER, WORDS(22, 22), .n_generate = 40 },

    /* The same tokens under another LoRA adapter have other keys and values. */
    { "adapter", 11, HELPER, WORDS(10, 20), .adapter = 1, .n_generate = 12 },
    { "no adapter", 11, HELPER, WORDS(10, 20), .n_generate = 12 },
    { "adapter again", 12, HELPER, WORDS(10, 22), .adapter = 1, .n_generate = 12 },
    { "other adapter", 12, HELPER, WORDS(10, 20), .adapter = 2, .n_generate = 12 },

    /* The same tokens, but another picture. Only what comes before it is shared; who sends the
     * first picture again finds that too. */
    { "image", 13, HELPER, IMAGE(7, 20), WORDS(26, 12), .n_generate = 12 },
    { "other image", 14, HELPER, IMAGE(9, 20), WORDS(26, 12), .n_generate = 12 },
    { "image again", 14, HELPER, IMAGE(7, 20), WORDS(26, 30), .n_generate = 12 },
};

#define N_PROMPTS (sizeof prompts / sizeof prompts[0])
_Static_assert(2 * N_PROMPTS <= MAX_CHATS, "two samples each");

void script_write(struct script *script)
{
    *script = (struct script){ .n_scenes = prompts[N_PROMPTS - 1].scene + 1 };
    for (size_t i = 0; i < N_PROMPTS; i++)
        for (uint32_t sample = 0; sample < (prompts[i].two_samples ? 2 : 1); sample++)
            script->chats[script->n_chats++] = (struct chat_script){ &prompts[i], sample };
}

uint32_t prompt_length(const struct prompt *prompt)
{
    return prompt->n_system + prompt->n_image + prompt->n_user;
}

static int32_t word(uint32_t seed, uint32_t n)
{
    return 1 + (int32_t)(model_random(1000 + seed, n) % (VOCABULARY - 1));
}

void prompt_tokens(const struct prompt *prompt, int32_t *tokens)
{
    for (uint32_t i = 0; i < prompt->n_system; i++)
        *tokens++ = word(prompt->system, i);
    for (uint32_t i = 0; i < prompt->n_image; i++)
        *tokens++ = IMAGE_TOKEN;
    for (uint32_t i = 0; i < prompt->n_user; i++)
        *tokens++ = word(prompt->user, i);
}

struct model_input prompt_input(const struct prompt *prompt, uint32_t position, int32_t token)
{
    struct model_input input = { .token = token, .position = position, .adapter = prompt->adapter };
    if (position >= prompt->n_system && position - prompt->n_system < prompt->n_image) {
        input.image = prompt->image;
        input.patch = position - prompt->n_system;
    }
    return input;
}

int32_t draft_token(const struct outcome *right, uint32_t i)
{
    int32_t token = right->tokens[i];
    return i % 3 == 2 ? 1 + token % (VOCABULARY - 1) : token;
}
