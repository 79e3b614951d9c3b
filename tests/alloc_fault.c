/* SPDX-License-Identifier: Apache-2.0 */
#include "alloc_fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

/* The linker's names: __wrap_x is what callers of x reach, __real_x is x. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *block);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__real_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t bytes);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *block);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t bytes);

/* Of the one thread that switches counting on. */
static _Thread_local bool counting;
static uint64_t first, last, counted, struck;
/* Of all threads. */
static atomic_int_least64_t blocks, mapped;

void alloc_fault_set(uint64_t n, uint64_t width)
{
    counting = false;
    counted = struck = 0;
    first = n ? n : UINT64_MAX;
    last = width > UINT64_MAX - first ? UINT64_MAX : first + width - 1;
}

void alloc_fault_on(void)
{
    counting = true;
}

void alloc_fault_off(void)
{
    counting = false;
}

void alloc_fault_cure(void)
{
    last = 0;
}

uint64_t alloc_fault_struck(void)
{
    return struck;
}

uint64_t alloc_fault_counted(void)
{
    return counted;
}

int64_t alloc_fault_blocks(void)
{
    return atomic_load(&blocks);
}

int64_t alloc_fault_mapped(void)
{
    return atomic_load(&mapped);
}

static bool fails(void)
{
    if (!counting)
        return false;
    counted++;
    if (counted < first || counted > last)
        return false;
    struck++;
    errno = ENOMEM;
    return true;
}

static void *block_made(void *block)
{
    if (block)
        atomic_fetch_add(&blocks, 1);
    return block;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : block_made(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : block_made(__real_calloc(n, size));
}

void *__wrap_realloc(void *block, size_t bytes)
{
    if (fails())
        return NULL;
    if (!block)
        return block_made(__real_realloc(block, bytes));
    return __real_realloc(block, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : block_made(__real_aligned_alloc(alignment, bytes));
}

void __wrap_free(void *block)
{
    if (block)
        atomic_fetch_sub(&blocks, 1);
    __real_free(block);
}

static void *map_made(void *address, size_t bytes)
{
    if (address != MAP_FAILED)
        atomic_fetch_add(&mapped, (int64_t)bytes);
    return address;
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails())
        return MAP_FAILED;
    return map_made(__real_mmap(address, bytes, protection, flags, fd, offset), bytes);
}

/* What mmap is called where file offsets have 64 bits by option. */
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails())
        return MAP_FAILED;
    return map_made(__real_mmap64(address, bytes, protection, flags, fd, offset), bytes);
}

int __wrap_munmap(void *address, size_t bytes)
{
    int rc = __real_munmap(address, bytes);
    if (rc == 0)
        atomic_fetch_sub(&mapped, (int64_t)bytes);
    return rc;
}
/* NOLINTEND(bugprone-reserved-identifier) */
