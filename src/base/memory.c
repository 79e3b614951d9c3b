/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int weir_memory_init(struct weir_memory *memory, const weir_allocator *allocator)
{
    *memory = (struct weir_memory){ .bytes = 0 };
    if (!allocator)
        return 0;
    if (!allocator->alloc != !allocator->free)
        return -EINVAL;
    memory->allocator = *allocator;
    return 0;
}

static size_t bytes_of(size_t n, size_t size)
{
    return (n ? n : 1) * size;
}

static const weir_allocator *hooks_of(const struct weir_memory *memory)
{
    return memory && memory->allocator.alloc ? &memory->allocator : NULL;
}

void *weir_memory_take(struct weir_memory *memory, size_t n, size_t size)
{
    const weir_allocator *hooks = hooks_of(memory);
    if (size && n > SIZE_MAX / size)
        return NULL;
    size_t bytes = bytes_of(n, size);
    /* calloc leaves large blocks untouched: the system zeroes their pages. */
    void *block = hooks ? hooks->alloc(hooks->user, bytes) : calloc(1, bytes);
    if (!block)
        return NULL;
    if (hooks)
        memset(block, 0, bytes);
    if (memory)
        memory->bytes += bytes;
    return block;
}

void weir_memory_give(struct weir_memory *memory, void *block, size_t n, size_t size)
{
    const weir_allocator *hooks = hooks_of(memory);
    if (!block)
        return;
    if (memory)
        memory->bytes -= bytes_of(n, size);
    if (hooks)
        hooks->free(hooks->user, block, bytes_of(n, size));
    else
        free(block);
}

int weir_memory_begin(void **object, size_t size, const weir_allocator *allocator)
{
    struct weir_memory memory;
    int rc = weir_memory_init(&memory, allocator);
    if (rc)
        return rc;
    struct weir_memory *made = weir_memory_take(&memory, 1, size);
    if (!made)
        return -ENOMEM;
    *made = memory;
    *object = made;
    return 0;
}

void weir_memory_end(void *object, size_t size)
{
    if (!object)
        return;
    struct weir_memory memory = *(struct weir_memory *)object;
    weir_memory_give(&memory, object, 1, size);
}

void *weir_memory_grow(struct weir_memory *memory, void *block, size_t n, size_t grown, size_t size)
{
    void *made = weir_memory_take(memory, grown, size);
    if (!made)
        return NULL;
    if (block)
        memcpy(made, block, n * size);
    weir_memory_give(memory, block, n, size);
    return made;
}

static void *take_bytes(void *user, size_t bytes)
{
    return weir_memory_take(user, bytes, 1);
}

static void give_bytes(void *user, void *block, size_t bytes)
{
    weir_memory_give(user, block, bytes, 1);
}

weir_allocator weir_memory_hooks(struct weir_memory *memory)
{
    return (weir_allocator){ .alloc = take_bytes, .free = give_bytes, .user = memory };
}
