/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BASE_MEMORY_H
#define WEIR_BASE_MEMORY_H

/* Where an object's metadata comes from, and how much of it there is.
 *
 *   object ── take, grow, give ──► struct weir_memory ──► weir_allocator | libc
 *                                    bytes: what is out now
 *
 * Invariant: `bytes` is the sum of what was taken and not given back, so that an
 * object tells its size without adding up its parts. A NULL memory is libc's,
 * uncounted. */

#include <weir/base.h>

struct weir_memory {
    weir_allocator allocator; /* alloc NULL: libc */
    size_t bytes;
};

/* A copy of the caller's hooks; NULL, or without functions: libc. -EINVAL: one
 * function is there and the other is not; without a log line. */
int weir_memory_init(struct weir_memory *memory, const weir_allocator *allocator);

/* An object that begins with its own memory: `size` bytes, zeroed but for that, which
 * counts them. -EINVAL: as init; -ENOMEM. end: gives it back, of which nothing
 * else may be out any more; NULL is allowed. */
int weir_memory_begin(void **object, size_t size, const weir_allocator *allocator);
void weir_memory_end(void *object, size_t size);

/* n elements of `size` bytes, zeroed; NULL: there is no memory, or their product
 * overflows. n 0 is taken for 1. */
void *weir_memory_take(struct weir_memory *memory, size_t n, size_t size);

/* Gives back what take or grow returned, with the same n and size; NULL is
 * allowed. */
void weir_memory_give(struct weir_memory *memory, void *block, size_t n, size_t size);

/* Makes an array longer: n to `grown` elements, the new ones zeroed. NULL: no
 * memory, and the array is as it was. */
void *weir_memory_grow(struct weir_memory *memory, void *block, size_t n, size_t grown,
                       size_t size);

/* Hooks that take from this memory, which must stay where it is, and count
 * there: for an object of another module, or of the caller's. */
weir_allocator weir_memory_hooks(struct weir_memory *memory);

#endif
