/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KEY_H
#define WEIR_KEY_H

/* What a prompt is known by: its tokens, its namespace, and what the tokens do
 * not tell. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_MAX_FIELDS 16u
#define WEIR_MAX_FIELD_BYTES 4096u
#define WEIR_MAX_SPANS 65536u

/* One field of a namespace: a LoRA's id and version, a tenant's salt. Fields
 * are framed by tag and length, so ("a", "bc") and ("ab", "c") differ. */
typedef struct weir_field {
    uint32_t tag;
    uint32_t bytes;
    const void *data;
} weir_field;

#define WEIR_MIN_DIGEST_BYTES 16u
#define WEIR_MAX_DIGEST_BYTES 32u

/* Tokens that stand for something else, an image or a sound, and are the same
 * whatever it is. Its digest tells one from another: it is compared as it is and
 * should be collision-free, since nothing else of the content is looked at.
 *
 * A page that a span overlaps is the same page only if the span is: its place
 * relative to the page, its length and its digest. So two chats share the pages
 * before an image and, if the images differ, none from the first one that the
 * image touches.
 *
 *   first, n_tokens  the tokens of the prompt; n_tokens 1 or more
 *   digest_bytes     WEIR_MIN_DIGEST_BYTES to WEIR_MAX_DIGEST_BYTES
 *   digest           of which the first digest_bytes count */
typedef struct weir_span {
    size_t first;
    size_t n_tokens;
    uint32_t digest_bytes;
    unsigned char digest[WEIR_MAX_DIGEST_BYTES];
} weir_span;

/* What a prompt is known by. Prompts of different namespaces share nothing.
 *
 *   tokens, n_tokens  the prompt; at most 2^31 - 1 tokens
 *   fields, n_fields  the namespace; the same fields in the same order;
 *                     0 fields: the common namespace
 *   spans, n_spans    ascending, not overlapping (they may touch), within the
 *                     tokens; at most WEIR_MAX_SPANS; 0: none */
typedef struct weir_key {
    const int32_t *tokens;
    size_t n_tokens;
    const weir_field *fields;
    size_t n_fields;
    const weir_span *spans;
    size_t n_spans;
} weir_key;

#ifdef __cplusplus
}
#endif

#endif
