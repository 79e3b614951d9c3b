/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KEY_H
#define WEIR_KEY_H

/* What a prompt is known by: its tokens and its namespace. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_MAX_FIELDS 16u
#define WEIR_MAX_FIELD_BYTES 4096u

/* One field of a namespace: a LoRA's id and version, a tenant's salt. Fields
 * are framed by tag and length, so ("a", "bc") and ("ab", "c") differ. */
typedef struct weir_field {
    uint32_t tag;
    uint32_t bytes;
    const void *data;
} weir_field;

/* What a prompt is known by. Prompts of different namespaces share nothing.
 *
 *   tokens, n_tokens  the prompt; at most 2^31 - 1 tokens
 *   fields, n_fields  the namespace; the same fields in the same order;
 *                     0 fields: the common namespace */
typedef struct weir_key {
    const int32_t *tokens;
    size_t n_tokens;
    const weir_field *fields;
    size_t n_fields;
} weir_key;

#ifdef __cplusplus
}
#endif

#endif
