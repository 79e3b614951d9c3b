/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CHANNEL_H
#define WEIR_CHANNEL_H

/* Messages from one process to another, through memory that both have mapped: a
 * way for orders to reach a rank in a process of its own, and for its reports to
 * come back. A channel goes one way, from one sender to one receiver.
 *
 *     memory = mmap(…, MAP_SHARED …);                  // before a fork, or a memfd
 *     weir_channel_format(memory, bytes, &log);        // once, by either side
 *     …
 *     weir_channel_attach(&channel, memory, bytes, WEIR_CHANNEL_SEND, &log);
 *     weir_channel_send(&channel, order, order_bytes);
 *     …                                                // in the other process:
 *     weir_channel_attach(&channel, memory, bytes, WEIR_CHANNEL_RECEIVE, &log);
 *     while (weir_channel_peek(&channel, &order, &n) == 0) {
 *         weir_rank_begin(rank, order, n, …);
 *         weir_channel_release(&channel);
 *     }
 *
 * No call blocks, makes a system call or allocates; who wants to sleep until there
 * is a message brings an eventfd or a futex. A peer that dies leaves whole messages
 * behind or none, and hangs nobody: the sender finds the channel full, the receiver
 * empty. What the peer has written to the memory is checked before it is used: a
 * channel whose numbers make no sense is -EIO from then on. The bytes of a message are
 * the peer's: orders and reports have checksums of their own.
 *
 * Calls that take no `log` write no line with -EINVAL.
 *
 * Threads: each end is used by one thread at a time; the two ends may be threads of
 * one process as well. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_channel_end {
    WEIR_CHANNEL_SEND = 0,
    WEIR_CHANNEL_RECEIVE = 1
} weir_channel_end;

/* One end of a channel, a value of the caller's. The fields are the library's. */
typedef struct weir_channel {
    void *memory;
    uint64_t capacity;
    uint64_t position; /* bytes that this end has sent or released, in all */
    uint64_t message;  /* bytes of the one that was peeked; 0: none */
    weir_channel_end end;
    bool broken;
} weir_channel;

/* Bytes of memory for a channel that holds at least n messages of up to `largest`
 * bytes each; n and largest are 1 or more. SIZE_MAX if that overflows. The largest
 * order: weir_cache_max_order_bytes; a report is as large as the buffer that it is
 * written to. */
WEIR_API size_t weir_channel_bytes(size_t largest, size_t n) WEIR_NOEXCEPT;

/* Makes an empty channel of the memory, which must be 64-byte aligned. To be done
 * before either end attaches, and not while one is. -EINVAL: NULL, misaligned, too small
 * (weir_channel_bytes(1, 1)); `log` receives one line, NULL is silent. */
WEIR_API int weir_channel_format(void *memory, size_t bytes, const weir_log *log) WEIR_NOEXCEPT;

/* Attaches an end, which goes on where the end before it stopped: what that one had
 * peeked and not released is received again. `memory` must stay mapped while the end is used; there
 * is nothing to close. -EINVAL: as above, or it is no channel of so many bytes. */
WEIR_API int weir_channel_attach(weir_channel *channel, void *memory, size_t bytes,
                                 weir_channel_end end, const weir_log *log) WEIR_NOEXCEPT;

/* Sends one message of `bytes` bytes, 1 or more. -EAGAIN: there is no room now;
 * -E2BIG: it never fits; -EIO: the channel is broken; -EINVAL: an argument is NULL or 0,
 * or this is the other end. */
WEIR_API int weir_channel_send(weir_channel *channel, const void *message,
                               size_t bytes) WEIR_NOEXCEPT;

/* The oldest message, in place: 8-byte aligned, valid until it is released. Again
 * gives the same one. -EAGAIN: there is none; -EIO, -EINVAL: as above. */
WEIR_API int weir_channel_peek(weir_channel *channel, const void **message,
                               size_t *bytes) WEIR_NOEXCEPT;

/* Gives the room of the message that was peeked back to the sender. -EINVAL: none
 * was. */
WEIR_API int weir_channel_release(weir_channel *channel) WEIR_NOEXCEPT;

/* Copies the oldest message out and releases it. -ENOSPC: it has more than
 * `capacity` bytes; *bytes is written then too, and the message stays. -EAGAIN, -EIO,
 * -EINVAL: as above. */
WEIR_API int weir_channel_receive(weir_channel *channel, void *buffer, size_t capacity,
                                  size_t *bytes) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
