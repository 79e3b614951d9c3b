/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_RADIX_ROOTS_H
#define WEIR_RADIX_ROOTS_H

/* The roots of a radix tree, one a namespace.
 *
 *   canonical fields ──hash──► root 0 ─┐    place of root i: -(i + 2), so that
 *   (tag, length, bytes)       root 1  │    refs (0…), none (-1) and roots
 *                              ·       │    (below -1) are told apart by sign
 *                              free ───┘
 *
 * A root lives while it has pages or is held. Making one may allocate; finding
 * one never does. */

#include "base/memory.h"

#include <weir/key.h>

struct weir_roots;

/* `memory` must outlive them. -ENOMEM. */
int weir_roots_create(struct weir_roots **roots, struct weir_memory *memory);
void weir_roots_destroy(struct weir_roots **roots);

/* The place of a namespace's root. find: -ENOENT. add: makes it, with nothing
 * held. -EINVAL: fields break a limit of weir/key.h; -ENOMEM. */
int weir_roots_find(const struct weir_roots *roots, const weir_field *fields, size_t n_fields,
                    int32_t *place);
int weir_roots_add(struct weir_roots *roots, const weir_field *fields, size_t n_fields,
                   int32_t *place);

/* Whether `place` is a root. */
bool weir_roots_has(const struct weir_roots *roots, int32_t place);

/* The root's first child node; writable. */
int32_t *weir_roots_first_child(struct weir_roots *roots, int32_t place);

/* Holds are counted; a root without holds and children is freed by the
 * release of either. */
void weir_roots_hold(struct weir_roots *roots, int32_t place);
void weir_roots_release(struct weir_roots *roots, int32_t place);
void weir_roots_free_if_unused(struct weir_roots *roots, int32_t place);

static inline uint32_t weir_root_number(int32_t place)
{
    return (uint32_t)(-(place + 2));
}

#endif
