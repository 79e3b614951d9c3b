/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_PLAIN_H
#define TRANSFORMER_PLAIN_H

/* The model without a server: each chat by itself, token by token, its keys and
 * values in one plain array, nothing kept. What it says is right. */

#include "script.h"

/* Returns how many tokens went through the model. */
uint64_t plain_run(const struct model *model, const struct script *script,
                   struct outcome outcomes[MAX_CHATS]);

#endif
