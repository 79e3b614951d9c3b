/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_PATTERN_H
#define WEIR_TOOLS_PATTERN_H

/* What a replay uses for a tokeniser and for a model.
 *
 *   block id, pass ──► tokens ──► fingerprints ──► bytes of a row
 *                      t0 t1 …    f0 f1 …          (token × layer, tensor, rank)
 *
 * The fingerprint of a token depends on it and on every token before it, as the
 * KV of a real model does. So a page that was found under a wrong prefix, in a
 * wrong place or half loaded differs from what is expected. All functions are
 * pure and the same on every run. */

#include "pattern_word.h"

#include <stddef.h>

enum weir_pattern_source {
    WEIR_PATTERN_PROMPT, /* id of a trace's block */
    WEIR_PATTERN_ANSWER  /* id of a request */
};

/* Writes n tokens, each 0 or more. The same id in another pass or of another
 * source gives other tokens; a longer n begins with the same ones. */
void weir_pattern_tokens(int32_t *tokens, size_t n, enum weir_pattern_source source, uint64_t id,
                         uint32_t pass);

/* Writes the fingerprints of n tokens that follow the token with the
 * fingerprint `before`, 0 at a sequence's start. */
void weir_pattern_fingerprints(uint64_t *fingerprints, const int32_t *tokens, size_t n,
                               uint64_t before);

/* The place of a row, hashed once for many rows. */
uint64_t weir_pattern_place(uint32_t rank, uint32_t layer, uint32_t tensor);

/* Writes a row of `bytes` bytes. */
void weir_pattern_fill(void *row, size_t bytes, uint64_t place, uint64_t fingerprint);

/* How many bytes of a row are wrong. */
size_t weir_pattern_compare(const void *row, size_t bytes, uint64_t place, uint64_t fingerprint);

#endif
