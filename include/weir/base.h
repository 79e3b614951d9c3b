/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BASE_H
#define WEIR_BASE_H

/* What every other header needs: linkage, page ids, errors and logging.
 *
 * Errors. A function that can fail returns 0 or a negative errno. It writes
 * its out-parameters on success only and leaves its object as it was on
 * failure, unless its comment says otherwise.
 *
 *   -EINVAL     an argument is wrong; one log line names it and its limit
 *   -EAGAIN     not now: carry reports, poll, try again
 *   -ENOSPC     a pool or a buffer is too small and nothing in flight helps
 *   -E2BIG      larger than the whole pool: can never succeed
 *   -EIO        a transfer or the device failed
 *   -ENODEV     no such device, or no driver for it
 *   -ENOENT     the index holds nothing of it
 *   -ENOTSUP    compiled out, or impossible with this layout
 *   -ESTALE     the handle's object has been closed
 *   -ECANCELED  ended by a cancel
 *   -ETIMEDOUT  not there by its deadline
 *   -EBUSY      in use
 *   -ENOMEM     host memory is short
 *   -EDEADLK    a CPU device with a seed: nothing can run any more
 *
 * The line goes to the log of the object, which is silent unless its params were
 * given one: weir_log_stderr(WEIR_LOG_WARN) is a good start. There is no line where
 * there is no log: neither the call nor its object has one, the object is NULL, a
 * handle is {0, 0}, or the params of a cache or a device are NULL or not of their
 * struct_size. -EBUSY, -EAGAIN, -ESTALE and -ENOSPC of calls that a server makes all
 * the time are no mistakes and write no line.
 *
 * Parameter structs start with struct_size, written by the struct's _init
 * function; a later library accepts the smaller struct of an older caller.
 * Fill them through _init and set the fields you need: one that was only zeroed
 * is -EINVAL. A parameter struct and what it points to need live only until the
 * call returns, unless the field's comment says otherwise. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#define WEIR_WARN_UNUSED __attribute__((warn_unused_result))
#else
#define WEIR_API
#define WEIR_WARN_UNUSED
#endif

#ifdef __cplusplus
#define WEIR_NOEXCEPT noexcept
extern "C" {
#else
#define WEIR_NOEXCEPT
#endif

/* A page of the device pool and a page of the host pool. They are different
 * types so that one cannot be passed for the other. Valid ids are 1..n; id 0
 * is the dummy page that padded batches write to: it is never given out and
 * never copied. */
typedef struct weir_device_page {
    int32_t id;
} weir_device_page;

typedef struct weir_host_page {
    int32_t id;
} weir_host_page;

/* A queue of device work, run in order. On a CUDA device a weir_stream is the
 * driver's stream handle itself (weir/cuda.h converts); on the CPU device it
 * comes from weir_cpu_stream_create. */
typedef struct weir_stream weir_stream;

typedef enum weir_log_level {
    WEIR_LOG_ERROR = 0,
    WEIR_LOG_WARN = 1,
    WEIR_LOG_INFO = 2,
    WEIR_LOG_DEBUG = 3
} weir_log_level;

/* Where an object writes its log lines. The library logs at creation, at
 * destruction and on errors, never on a hot path.
 *
 *   write  called with one line of text without a newline, valid during the
 *          call, on the thread that called the library; NULL discards
 *   user   passed through
 *   level  lines above this level are not formatted */
typedef struct weir_log {
    void (*write)(void *user, weir_log_level level, const char *text);
    void *user;
    weir_log_level level;
} weir_log;

/* Where an object takes the host memory of its metadata: index, tables, scratch.
 * What a device or the pages themselves take does not come from here. Without
 * functions (all zero, the default): the C library's. The object keeps a copy.
 *
 *   alloc  `bytes` (1 or more) of memory, aligned for any type, of any content;
 *          NULL: there is none
 *   free   gives a block back that alloc returned for the same number of bytes;
 *          never NULL
 *   user   passed through
 *
 * Both are called on the thread that called the library, and may not call back
 * into the object. One without the other is -EINVAL. */
typedef struct weir_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void (*free)(void *user, void *block, size_t bytes);
    void *user;
} weir_allocator;

/* A weir_log that writes lines of up to `level` to standard error, each
 * prefixed with "weir: " and its level. Threads: any. */
WEIR_API weir_log weir_log_stderr(weir_log_level level) WEIR_NOEXCEPT;

/* The name of an error code, such as "-ENOSPC" for -ENOSPC (either sign is
 * accepted), "0" for 0, and "unknown" for a code this library never returns.
 * The string is static. Threads: any. */
WEIR_API const char *weir_error_name(int rc) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
