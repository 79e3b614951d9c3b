/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_PLAIN_H
#define TRANSFORMER_PLAIN_H

/* The model without a server: each chat by itself, token by token, its keys and
 * values in one plain array, nothing kept. What it says is right. */

#include "script.h"

/* The model's answer behind one more token of a chat; position 0 begins another. */
typedef struct model_answer (*plain_forward)(void *user, const struct model_input *input);

/* Returns how many tokens went through the model. */
uint64_t plain_run(const struct script *script, plain_forward forward, void *user,
                   struct outcome outcomes[MAX_CHATS]);

/* Runs it on the CPU, and on the GPU by the kernels of kernels.cu. */
uint64_t plain_run_cpu(const struct model *model, const struct script *script,
                       struct outcome outcomes[MAX_CHATS]);
uint64_t plain_run_cuda(const struct model *model, const struct script *script,
                        struct outcome outcomes[MAX_CHATS]);

#endif
