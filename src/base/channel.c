/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/channel.h>

#include "base/log.h"

#include <errno.h>
#include <string.h>

/* A ring of frames. Positions count bytes since the beginning and only grow; a
 * position's place in the ring is its rest by the capacity.
 *
 *   head │ frame │ frame │ … free …   │ frame   skip │
 *                        ▲             ▲
 *                  sent (the sender's) │
 *                          released (the receiver's)
 *
 *   frame   bytes u32, check u32, the message, padded to a multiple of 8
 *   skip    a frame without message that fills the ring to its end, where the next
 *           message would not fit in one piece
 *
 * A message has at most half of the ring, so that it fits an empty one wherever
 * that stands. Each end keeps its own position to itself and only publishes it; it
 * reads the other's, and believes it if it lies where it can.
 *
 * Invariants, unless a peer breaks them: sent - released is at most the capacity;
 * both and the capacity are multiples of 8. */

#define CHANNEL_MAGIC UINT32_C(0x43525257)
#define CHANNEL_VERSION UINT32_C(1)
#define CHANNEL_ALIGN 64u
#define FRAME_CHECK UINT32_C(0x5ac35ac3)
#define SKIP UINT32_MAX

struct frame {
    uint32_t bytes; /* SKIP: none, the next frame is at the ring's beginning */
    uint32_t check;
};

/* Each position has a cache line of its own. */
struct head {
    uint32_t magic;
    uint32_t version;
    uint64_t capacity;
    uint64_t unused[6];
    uint64_t sent;
    uint64_t unused_too[7];
    uint64_t released;
    uint64_t unused_as_well[7];
};

_Static_assert(sizeof(struct head) == 3 * CHANNEL_ALIGN && sizeof(struct frame) == 8,
               "no padding between the processes");

static struct head *head_of(const weir_channel *channel)
{
    return channel->memory;
}

static unsigned char *place(const weir_channel *channel, uint64_t position)
{
    return (unsigned char *)channel->memory + sizeof(struct head) + position % channel->capacity;
}

static uint64_t frame_bytes(uint64_t message)
{
    return sizeof(struct frame) + (message + 7) / 8 * 8;
}

static int fail(weir_channel *channel)
{
    channel->broken = true;
    return -EIO;
}

/* ---- Memory --------------------------------------------------------------- */

size_t weir_channel_bytes(size_t largest, size_t n)
{
    const size_t room = SIZE_MAX - sizeof(struct head);
    if (largest > room / 4 - 16 || largest > UINT32_MAX - 16)
        return SIZE_MAX;
    uint64_t frame = frame_bytes(largest);
    uint64_t frames = n < SIZE_MAX ? (uint64_t)n + 1 : n; /* one more for the skip */
    if (frames > room / frame)
        return SIZE_MAX;
    return sizeof(struct head) + (size_t)(frames * frame);
}

static int check_memory(const void *memory, size_t bytes, const weir_log *log)
{
    if (!memory || (uintptr_t)memory % CHANNEL_ALIGN)
        return weir_invalid(log, "channel: memory is %p, must be a multiple of %u", memory,
                            CHANNEL_ALIGN);
    if (bytes < weir_channel_bytes(1, 1))
        return weir_invalid(log, "channel: bytes is %zu, must be at least %zu", bytes,
                            weir_channel_bytes(1, 1));
    return 0;
}

static uint64_t capacity_of(size_t bytes)
{
    return (bytes - sizeof(struct head)) / 8 * 8;
}

int weir_channel_format(void *memory, size_t bytes, const weir_log *log)
{
    int rc = check_memory(memory, bytes, log);
    if (rc)
        return rc;
    struct head *head = memory;
    *head = (struct head){ .version = CHANNEL_VERSION, .capacity = capacity_of(bytes) };
    /* Last, so that nobody attaches to half of it. */
    __atomic_store_n(&head->magic, CHANNEL_MAGIC, __ATOMIC_RELEASE);
    return 0;
}

int weir_channel_attach(weir_channel *channel, void *memory, size_t bytes, weir_channel_end end,
                        const weir_log *log)
{
    int rc = check_memory(memory, bytes, log);
    if (rc)
        return rc;
    if (!channel || (end != WEIR_CHANNEL_SEND && end != WEIR_CHANNEL_RECEIVE))
        return weir_invalid(log, "channel: %s",
                            channel ? "end is none of its enum" : "channel is NULL");
    struct head *head = memory;
    uint32_t magic = __atomic_load_n(&head->magic, __ATOMIC_ACQUIRE);
    if (magic != CHANNEL_MAGIC || head->version != CHANNEL_VERSION ||
        head->capacity != capacity_of(bytes))
        return weir_invalid(log,
                            "channel: magic %#x, version %u, %llu bytes, must be %#x, %u, %llu",
                            magic, head->version, (unsigned long long)head->capacity, CHANNEL_MAGIC,
                            CHANNEL_VERSION, (unsigned long long)capacity_of(bytes));
    uint64_t sent = __atomic_load_n(&head->sent, __ATOMIC_ACQUIRE);
    uint64_t released = __atomic_load_n(&head->released, __ATOMIC_ACQUIRE);
    *channel = (weir_channel){
        .memory = memory,
        .capacity = capacity_of(bytes),
        .position = end == WEIR_CHANNEL_SEND ? sent : released,
        .end = end,
    };
    channel->broken = channel->position % 8 != 0;
    return 0;
}

static int check_end(const weir_channel *channel, weir_channel_end end)
{
    if (!channel || !channel->memory || channel->end != end)
        return -EINVAL;
    return channel->broken ? -EIO : 0;
}

/* ---- Sending -------------------------------------------------------------- */

static void write_frame(const weir_channel *channel, uint64_t position, uint32_t bytes)
{
    struct frame frame = { bytes, bytes ^ FRAME_CHECK };
    memcpy(place(channel, position), &frame, sizeof frame);
}

int weir_channel_send(weir_channel *channel, const void *message, size_t bytes)
{
    int rc = check_end(channel, WEIR_CHANNEL_SEND);
    if (rc)
        return rc;
    if (!message || bytes == 0)
        return -EINVAL;
    if (bytes > UINT32_MAX - 16 || frame_bytes(bytes) > channel->capacity / 2)
        return -E2BIG;
    struct head *head = head_of(channel);
    uint64_t used = channel->position - __atomic_load_n(&head->released, __ATOMIC_ACQUIRE);
    if (used > channel->capacity || used % 8)
        return fail(channel);
    uint64_t to_end = channel->capacity - channel->position % channel->capacity;
    uint64_t skip = frame_bytes(bytes) > to_end ? to_end : 0;
    if (skip + frame_bytes(bytes) > channel->capacity - used)
        return -EAGAIN;
    if (skip)
        write_frame(channel, channel->position, SKIP);
    write_frame(channel, channel->position + skip, (uint32_t)bytes);
    memcpy(place(channel, channel->position + skip) + sizeof(struct frame), message, bytes);
    channel->position += skip + frame_bytes(bytes);
    __atomic_store_n(&head->sent, channel->position, __ATOMIC_RELEASE);
    return 0;
}

/* ---- Receiving ------------------------------------------------------------ */

static int read_frame(const weir_channel *channel, uint64_t position, uint32_t *bytes)
{
    struct frame frame;
    memcpy(&frame, place(channel, position), sizeof frame);
    *bytes = frame.bytes;
    return frame.check == (frame.bytes ^ FRAME_CHECK) ? 0 : -EIO;
}

int weir_channel_peek(weir_channel *channel, const void **message, size_t *bytes)
{
    int rc = check_end(channel, WEIR_CHANNEL_RECEIVE);
    if (rc)
        return rc;
    if (!message || !bytes)
        return -EINVAL;
    uint64_t used = __atomic_load_n(&head_of(channel)->sent, __ATOMIC_ACQUIRE) - channel->position;
    if (used > channel->capacity || used % 8)
        return fail(channel);
    if (used == 0)
        return -EAGAIN;
    uint64_t to_end = channel->capacity - channel->position % channel->capacity;
    uint32_t n;
    if (read_frame(channel, channel->position, &n))
        return fail(channel);
    if (n == SKIP) {
        if (to_end >= used || read_frame(channel, channel->position + to_end, &n) || n == SKIP)
            return fail(channel);
        channel->position += to_end; /* published with the message behind it */
        used -= to_end;
        to_end = channel->capacity;
    }
    if (n == 0 || frame_bytes(n) > used || frame_bytes(n) > to_end)
        return fail(channel);
    channel->message = n;
    *message = place(channel, channel->position) + sizeof(struct frame);
    *bytes = n;
    return 0;
}

int weir_channel_release(weir_channel *channel)
{
    int rc = check_end(channel, WEIR_CHANNEL_RECEIVE);
    if (rc)
        return rc;
    if (channel->message == 0)
        return -EINVAL;
    channel->position += frame_bytes(channel->message);
    channel->message = 0;
    __atomic_store_n(&head_of(channel)->released, channel->position, __ATOMIC_RELEASE);
    return 0;
}

int weir_channel_receive(weir_channel *channel, void *buffer, size_t capacity, size_t *bytes)
{
    const void *message;
    size_t n;
    if (!buffer || !bytes)
        return -EINVAL;
    int rc = weir_channel_peek(channel, &message, &n);
    if (rc)
        return rc;
    *bytes = n;
    if (n > capacity)
        return -ENOSPC;
    memcpy(buffer, message, n);
    return weir_channel_release(channel);
}
