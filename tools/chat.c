/* SPDX-License-Identifier: Apache-2.0 */
#include "chat.h"

#include "pattern.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHATS 32u /* at the same time */
#define SYSTEM_TOKENS_LEAST 100u
#define SYSTEM_TOKENS_MOST 500u
#define QUESTION_TOKENS_LEAST 10u
#define QUESTION_TOKENS_MOST 150u
#define ANSWER_TOKENS_LEAST 20u
#define ANSWER_TOKENS_MOST 250u
#define GAP_MS_MOST 400u

struct system_prompt {
    uint64_t tokens;
    uint64_t first_id; /* of its full blocks, in a row */
};

struct chat {
    uint32_t turns_left; /* 0: over */
    uint64_t tokens;
    uint64_t *ids;
    size_t n_ids; /* blocks that are full and have an id */
    size_t capacity;
};

struct generator {
    const struct weir_chat_options *options;
    struct system_prompt *systems;
    struct chat chats[CHATS];
    uint64_t random;
    uint64_t next_id;
};

static uint32_t draw(struct generator *generator, uint32_t least, uint32_t most)
{
    generator->random = weir_pattern_mix(generator->random, generator->options->seed);
    return least + (uint32_t)((generator->random >> 32) % (most - least + 1));
}

static int make_room(struct chat *chat, size_t n)
{
    if (n <= chat->capacity)
        return 0;
    uint64_t *moved = reallocarray(chat->ids, n * 2, sizeof *chat->ids);
    if (!moved)
        return -ENOMEM;
    chat->ids = moved;
    chat->capacity = n * 2;
    return 0;
}

static int begin_chat(struct generator *generator, struct chat *chat)
{
    const struct weir_chat_options *options = generator->options;
    const struct system_prompt *system =
        &generator->systems[draw(generator, 0, options->systems - 1)];
    chat->n_ids = system->tokens / options->block_tokens;
    chat->tokens = system->tokens;
    chat->turns_left = draw(generator, 1, options->turns);
    int rc = make_room(chat, chat->n_ids);
    for (size_t i = 0; !rc && i < chat->n_ids; i++)
        chat->ids[i] = system->first_id + i;
    return rc;
}

static int write_request(FILE *file, const struct chat *chat, uint64_t timestamp, uint32_t answer)
{
    fprintf(file, "{\"timestamp\": %" PRIu64 ", \"input_length\": %" PRIu64, timestamp,
            chat->tokens);
    fprintf(file, ", \"output_length\": %" PRIu32 ", \"hash_ids\": [", answer);
    for (size_t i = 0; i < chat->n_ids; i++)
        fprintf(file, "%s%" PRIu64, i ? ", " : "", chat->ids[i]);
    fputs("]}\n", file);
    return ferror(file) ? -EIO : 0;
}

static int take_turn(struct generator *generator, FILE *file, uint64_t timestamp)
{
    uint32_t block_tokens = generator->options->block_tokens;
    struct chat *chat = &generator->chats[draw(generator, 0, CHATS - 1)];
    int rc = chat->turns_left ? 0 : begin_chat(generator, chat);
    chat->tokens += draw(generator, QUESTION_TOKENS_LEAST, QUESTION_TOKENS_MOST);
    size_t n_ids = (chat->tokens + block_tokens - 1) / block_tokens;
    if (!rc)
        rc = make_room(chat, n_ids);
    for (; !rc && chat->n_ids < n_ids; chat->n_ids++)
        chat->ids[chat->n_ids] = generator->next_id++;
    uint32_t answer = draw(generator, ANSWER_TOKENS_LEAST, ANSWER_TOKENS_MOST);
    if (!rc)
        rc = write_request(file, chat, timestamp, answer);
    chat->n_ids = chat->tokens / block_tokens;
    chat->tokens += answer;
    chat->turns_left--;
    return rc;
}

static void make_systems(struct generator *generator)
{
    for (uint32_t i = 0; i < generator->options->systems; i++) {
        uint32_t tokens = draw(generator, SYSTEM_TOKENS_LEAST, SYSTEM_TOKENS_MOST);
        generator->systems[i] = (struct system_prompt){ tokens, generator->next_id };
        generator->next_id += tokens / generator->options->block_tokens;
    }
}

int weir_chat_write(FILE *file, const struct weir_chat_options *options)
{
    struct generator generator = { .options = options };
    generator.systems = calloc(options->systems, sizeof *generator.systems);
    int rc = generator.systems ? 0 : -ENOMEM;
    if (!rc)
        make_systems(&generator);
    uint64_t timestamp = 0;
    for (uint32_t i = 0; !rc && i < options->requests; i++) {
        rc = take_turn(&generator, file, timestamp);
        timestamp += draw(&generator, 0, GAP_MS_MOST);
    }
    for (size_t i = 0; i < CHATS; i++)
        free(generator.chats[i].ids);
    free(generator.systems);
    return rc;
}
