/* SPDX-License-Identifier: Apache-2.0 */
#include "chat.h"

#include "check.h"
#include "messages.h"

#include <string.h>

void chat_init(struct chat *chat, uint32_t index, const struct chat_script *script,
               const struct outcome *right, struct outcome *outcome)
{
    const struct prompt *prompt = script->prompt;
    *chat = (struct chat){ .prompt = prompt, .outcome = outcome, .right = right, .index = index };
    *outcome = (struct outcome){ 0 };
    prompt_tokens(prompt, chat->tokens);
    chat->n_known = chat->n_prompt = prompt_length(prompt);
    chat->n_target = chat->n_prompt + prompt->n_generate;
}

/* A key tells all that changes what a token's keys and values are: the tokens, by
 * its namespace what is true of all of them, by its spans what a few of them stand
 * for. */
enum field_tag {
    FIELD_ADAPTER = 1
};

/* The digest is of the picture; a server hashes it when it arrives. */
static weir_span image_span(const struct prompt *prompt)
{
    weir_span span = { prompt->n_system, prompt->n_image, 16, { 0 } };
    uint64_t digest[2] = { model_random(prompt->image, 0), model_random(prompt->image, 1) };
    memcpy(span.digest, digest, sizeof digest);
    return span;
}

int chat_open(struct chat *chat, weir_cache *cache)
{
    weir_field adapter = { FIELD_ADAPTER, sizeof chat->prompt->adapter, &chat->prompt->adapter };
    weir_span image = image_span(chat->prompt);
    weir_key key = {
        .tokens = chat->tokens,
        .n_tokens = chat->n_known,
        .fields = &adapter,
        .n_fields = chat->prompt->adapter ? 1 : 0,
        .spans = &image,
        .n_spans = chat->prompt->n_image ? 1 : 0,
    };
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.user = chat;
    return weir_seq_open(&chat->seq, cache, &key, &params);
}

void chat_close(struct chat *chat)
{
    CHECK(weir_seq_close(&chat->seq));
    chat->life++;
    chat->n_sent = chat->n_committed = 0;
    chat->stands = 0;
}

/* The last token of an answer goes nowhere: nothing comes after it. */
bool chat_can_go_on(const struct chat *chat)
{
    return chat->state == CHAT_RUNNING && chat->stands == 0 && chat->n_sent + 1 < chat->n_target;
}

bool chat_decodes(const struct chat *chat)
{
    return chat->n_sent + 1 >= chat->n_known;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t chat_next_rows(const struct chat *chat, uint32_t room)
{
    if (chat->n_sent + 1 == chat->n_known && chat->prompt->n_draft > 0)
        return least(room, least(1 + chat->prompt->n_draft, chat->n_target - 1 - chat->n_sent));
    if (chat->n_sent < chat->n_known)
        return least(room, chat->n_known - chat->n_sent);
    return least(room, 1);
}

int32_t chat_row_token(const struct chat *chat, uint32_t position)
{
    if (position < chat->n_known)
        return chat->tokens[position];
    if (chat->prompt->n_draft > 0)
        return draft_token(chat->right, position - chat->n_prompt);
    return NEXT_TOKEN;
}

bool chat_wants(const struct chat *chat, uint32_t position)
{
    return position + 1 >= chat->n_known;
}

/* Behind a draft nothing can be planned before it is known how much of it is
 * right. */
void chat_sent(struct chat *chat, uint64_t step, uint32_t n_rows)
{
    if (chat->prompt->n_draft > 0 && chat->n_sent + n_rows >= chat->n_known)
        chat->stands = step;
    else
        chat->n_sent += n_rows;
}

bool chat_take(struct chat *chat, uint32_t position, int32_t token,
               const struct model_answer *answer)
{
    if (position + 1 != chat->n_known || chat->n_known == chat->n_target ||
        (token != NEXT_TOKEN && token != chat->tokens[position]))
        return false;
    struct outcome *outcome = chat->outcome;
    chat->tokens[chat->n_known++] = answer->token;
    outcome->tokens[outcome->n] = answer->token;
    outcome->digests[outcome->n++] = answer->digest;
    return true;
}

void chat_settle(struct chat *chat, uint64_t step)
{
    if (chat->stands != step)
        return;
    chat->n_sent = chat->n_known - 1;
    chat->stands = 0;
}

void chat_commit(struct chat *chat)
{
    uint32_t to = least(chat->n_sent, chat->n_known);
    if (to == chat->n_committed)
        return;
    CHECK(weir_seq_commit(chat->seq, chat->tokens + chat->n_committed, to - chat->n_committed));
    chat->n_committed = to;
}
