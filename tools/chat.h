/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_CHAT_H
#define WEIR_TOOLS_CHAT_H

/* Makes up a trace of chats, as a server would log it.
 *
 *   chat      system prompt ─ question ─ answer ─ question ─ answer ─ …
 *   request 1 └─────────────────────┘
 *   request 2 └──────────────────────────────────────────┘
 *
 * Chats share a few system prompts and are interleaved. Only blocks that are
 * full keep their id in the chat's next request; a prompt's last, partial block
 * gets a new one, since more tokens will follow in it. */

#include <stdint.h>
#include <stdio.h>

/*   requests      1 or more
 *   block_tokens  1..2^20
 *   systems       system prompts, 1..1000
 *   turns         the most questions of a chat, 1..1000 */
struct weir_chat_options {
    uint32_t requests;
    uint64_t seed;
    uint32_t block_tokens;
    uint32_t systems;
    uint32_t turns;
};

/* Writes the trace; the same options give the same bytes. -ENOMEM, -EIO. */
int weir_chat_write(FILE *file, const struct weir_chat_options *options);

#endif
