/* SPDX-License-Identifier: Apache-2.0 */

/* Channels: against a queue as a model, with a peer that dies, with a peer that
 * scribbles. */

#include "log_capture.h"
#include "random.h"

#include <weir/channel.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 192,
    QUEUE = 64
};

/* Exactly as much as asked, so that AddressSanitizer sees a byte too many. */
static void *room(size_t bytes)
{
    void *memory = NULL;
    cr_assert(zero(int, posix_memalign(&memory, 64, bytes)));
    memset(memory, 0xAB, bytes);
    return memory;
}

static void open_both(weir_channel *from, weir_channel *to, void *memory, size_t bytes)
{
    cr_assert(zero(int, weir_channel_format(memory, bytes, NULL)));
    cr_assert(zero(int, weir_channel_attach(from, memory, bytes, WEIR_CHANNEL_SEND, NULL)));
    cr_assert(zero(int, weir_channel_attach(to, memory, bytes, WEIR_CHANNEL_RECEIVE, NULL)));
}

static unsigned char byte_of(uint64_t number, size_t at)
{
    return (unsigned char)(number * 37 + at * 11);
}

static void fill(unsigned char *message, uint64_t number, size_t n)
{
    for (size_t i = 0; i < n; i++)
        message[i] = byte_of(number, i);
}

static bool is_message(const unsigned char *message, uint64_t number, size_t n)
{
    bool same = true;
    for (size_t i = 0; i < n; i++)
        same = same && message[i] == byte_of(number, i);
    return same;
}

/* ---- As a queue ----------------------------------------------------------- */

static void run_queue(uint64_t seed, size_t bytes)
{
    struct random random = { seed };
    void *memory = room(bytes);
    weir_channel from, to;
    open_both(&from, &to, memory, bytes);
    size_t capacity = (bytes - HEAD_BYTES) / 8 * 8;
    size_t largest = capacity / 2 / 8 * 8 - 8;
    size_t sizes[QUEUE];
    uint64_t sent = 0, received = 0, full = 0;
    unsigned char *message = malloc(largest + 9);
    for (int i = 0; i < 4000; i++) {
        if (random_percent(&random, 52)) {
            size_t n = 1 + random_below(&random, (uint32_t)largest);
            fill(message, sent, n);
            int rc = sent - received < QUEUE ? weir_channel_send(&from, message, n) : -EAGAIN;
            cr_assert(rc == 0 || rc == -EAGAIN);
            cr_assert(rc == 0 || sent > received, "an empty channel refuses %zu of %zu", n,
                      capacity);
            full += rc != 0;
            if (rc == 0)
                sizes[sent++ % QUEUE] = n;
        } else {
            const void *peeked = NULL;
            size_t n = 0;
            int rc = weir_channel_peek(&to, &peeked, &n);
            cr_assert(eq(int, rc, sent > received ? 0 : -EAGAIN));
            if (rc)
                continue;
            cr_assert(eq(sz, n, sizes[received % QUEUE]));
            cr_assert(zero(u64, (uintptr_t)peeked % 8));
            cr_assert(is_message(peeked, received, n));
            if (random_percent(&random, 20)) { /* the end stops here; another goes on */
                cr_assert(
                    zero(int, weir_channel_attach(&to, memory, bytes, WEIR_CHANNEL_RECEIVE, NULL)));
                continue;
            }
            if (random_percent(&random, 50)) {
                cr_assert(zero(int, weir_channel_release(&to)));
            } else {
                cr_assert(eq(int, weir_channel_receive(&to, message, n - 1, &n), -ENOSPC));
                cr_assert(eq(sz, n, sizes[received % QUEUE]));
                cr_assert(zero(int, weir_channel_receive(&to, message, n, &n)));
                cr_assert(is_message(message, received, n));
            }
            cr_assert(eq(int, weir_channel_release(&to), -EINVAL));
            received++;
        }
    }
    cr_assert(received > 500 && full > 20, "%zu: %d, %d", bytes, (int)received, (int)full);
    cr_assert(eq(int, weir_channel_send(&from, message, largest + 1), -E2BIG));
    free(message);
    free(memory);
}

Test(channel, is_a_queue)
{
    for (uint64_t seed = 1; seed <= 12; seed++)
        run_queue(seed, HEAD_BYTES + 32 + 8 * seed * seed + seed % 8);
}

Test(channel, holds_what_was_asked_for)
{
    for (size_t largest = 1; largest < 200; largest += 7) {
        for (size_t n = 1; n < 9; n++) {
            size_t bytes = weir_channel_bytes(largest, n);
            void *memory = room(bytes);
            unsigned char message[200] = { 0 };
            weir_channel from, to;
            open_both(&from, &to, memory, bytes);
            for (size_t turn = 0; turn < 40; turn++) { /* from every place in the ring */
                for (size_t i = 0; i < n; i++)
                    cr_assert(zero(int, weir_channel_send(&from, message, largest)));
                for (size_t i = 0; i < n; i++) {
                    size_t got;
                    cr_assert(zero(int, weir_channel_receive(&to, message, 200, &got)));
                }
                cr_assert(zero(int, weir_channel_send(&from, message, 1 + turn % largest)));
                size_t got;
                cr_assert(zero(int, weir_channel_receive(&to, message, 200, &got)));
            }
            free(memory);
        }
    }
    cr_assert(eq(sz, weir_channel_bytes(SIZE_MAX, 1), SIZE_MAX));
    cr_assert(eq(sz, weir_channel_bytes(UINT32_MAX, 1), SIZE_MAX));
    cr_assert(eq(sz, weir_channel_bytes(1, SIZE_MAX), SIZE_MAX));
    cr_assert(eq(sz, weir_channel_bytes(1000, SIZE_MAX / 1000), SIZE_MAX));
}

/* ---- A peer that dies ----------------------------------------------------- */

Test(channel, a_sender_that_dies_leaves_whole_messages)
{
    size_t bytes = 4096;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(memory != MAP_FAILED);
    cr_assert(zero(int, weir_channel_format(memory, bytes, NULL)));
    fflush(NULL);
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) { /* for ever, or as long as the test */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        weir_channel from;
        if (weir_channel_attach(&from, memory, bytes, WEIR_CHANNEL_SEND, NULL))
            _exit(1);
        unsigned char message[600];
        for (uint64_t i = 0;; i++) {
            size_t n = 1 + i * 7 % 600;
            fill(message, i, n);
            while (weir_channel_send(&from, message, n))
                sched_yield();
        }
    }
    weir_channel to;
    cr_assert(zero(int, weir_channel_attach(&to, memory, bytes, WEIR_CHANNEL_RECEIVE, NULL)));
    uint64_t received = 0;
    bool dead = false;
    for (;;) {
        const void *message;
        size_t n;
        int rc = weir_channel_peek(&to, &message, &n);
        if (rc == -EAGAIN && dead)
            break;
        if (rc == -EAGAIN) {
            sched_yield();
            continue;
        }
        cr_assert(zero(int, rc));
        cr_assert(eq(sz, n, 1 + received * 7 % 600));
        cr_assert(is_message(message, received, n));
        cr_assert(zero(int, weir_channel_release(&to)));
        if (++received == 2000) { /* wherever it is now */
            kill(child, SIGKILL);
            int status;
            cr_assert(eq(int, waitpid(child, &status, 0), child));
            dead = true;
        }
    }
    cr_assert(received >= 2000);
    munmap(memory, bytes);
}

Test(channel, a_receiver_that_dies_fills_it_and_another_goes_on)
{
    size_t bytes = weir_channel_bytes(32, 4);
    void *memory = room(bytes);
    weir_channel from, to;
    open_both(&from, &to, memory, bytes);
    unsigned char message[32];
    uint64_t sent = 0;
    do
        fill(message, sent, 32);
    while (weir_channel_send(&from, message, 32) == 0 && ++sent);
    cr_assert(ge(u64, sent, 4));
    size_t n;
    cr_assert(zero(int, weir_channel_receive(&to, message, 32, &n)));
    const void *peeked;
    cr_assert(zero(int, weir_channel_peek(&to, &peeked, &n)));
    cr_assert(zero(int, weir_channel_attach(&to, memory, bytes, WEIR_CHANNEL_RECEIVE, NULL)));
    cr_assert(zero(int, weir_channel_peek(&to, &peeked, &n)));
    cr_assert(is_message(peeked, 1, 32));
    free(memory);
}

/* ---- A peer that scribbles ------------------------------------------------ */

static void use(weir_channel *from, weir_channel *to)
{
    unsigned char message[64] = { 0 };
    for (int i = 0; i < 12; i++) {
        const void *peeked;
        size_t n;
        if (weir_channel_peek(to, &peeked, &n) == 0) {
            unsigned char sum = 0;
            for (size_t k = 0; k < n; k++)
                sum = (unsigned char)(sum + ((const unsigned char *)peeked)[k]);
            message[0] = sum;
            (void)weir_channel_release(to);
        }
        (void)weir_channel_send(from, message, 1 + (size_t)i * 5);
    }
}

Test(channel, nothing_in_the_memory_is_believed)
{
    size_t bytes = weir_channel_bytes(64, 3);
    unsigned char *memory = room(bytes);
    struct random random = { 5 };
    uint64_t broken = 0;
    for (int i = 0; i < 20000; i++) {
        weir_channel from, to;
        open_both(&from, &to, memory, bytes);
        use(&from, &to);
        for (uint32_t k = 1 + random_below(&random, 3); k > 0; k--) {
            size_t at =
                random_below(&random, (uint32_t)(random_percent(&random, 70) ? HEAD_BYTES : bytes));
            memory[at] = (unsigned char)random_next(&random);
        }
        use(&from, &to);
        const void *peeked;
        size_t n;
        unsigned char message = 0;
        if (from.broken) {
            broken++;
            cr_assert(eq(int, weir_channel_send(&from, &message, 1), -EIO));
        }
        if (to.broken) {
            broken++;
            cr_assert(eq(int, weir_channel_peek(&to, &peeked, &n), -EIO));
            cr_assert(eq(int, weir_channel_release(&to), -EIO));
        }
    }
    cr_assert(broken > 500, "%d", (int)broken);
    free(memory);
}

/* A length that its check agrees with, and that the ring does not hold. */
Test(channel, a_length_is_held_against_the_ring)
{
    static const uint32_t lengths[] = { 0, 9, 17, 1000, 0x7ffffff8, UINT32_MAX - 1, UINT32_MAX };
    size_t bytes = weir_channel_bytes(8, 2);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned char *memory = room(bytes);
        weir_channel from, to;
        open_both(&from, &to, memory, bytes);
        cr_assert(zero(int, weir_channel_send(&from, "8 bytes", 8)));
        uint32_t frame[2]; /* length, and length with a constant */
        memcpy(frame, memory + HEAD_BYTES, sizeof frame);
        frame[1] ^= frame[0] ^ lengths[i];
        frame[0] = lengths[i];
        memcpy(memory + HEAD_BYTES, frame, sizeof frame);
        const void *peeked;
        size_t n;
        cr_assert(eq(int, weir_channel_peek(&to, &peeked, &n), -EIO), "%u", lengths[i]);
        free(memory);
    }
}

Test(channel, arguments)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    size_t bytes = weir_channel_bytes(8, 2);
    unsigned char *memory = room(bytes);
    weir_channel from, to;
    cr_assert(eq(int, weir_channel_format(NULL, bytes, &log), -EINVAL));
    cr_assert(eq(int, weir_channel_format(memory + 8, bytes - 8, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "multiple of 64"), NULL));
    cr_assert(eq(int, weir_channel_format(memory, weir_channel_bytes(1, 1) - 1, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "at least"), NULL));
    cr_assert(eq(int, weir_channel_attach(&from, memory, bytes, WEIR_CHANNEL_SEND, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "magic"), NULL));
    open_both(&from, &to, memory, bytes);
    cr_assert(
        eq(int, weir_channel_attach(&from, memory, bytes - 8, WEIR_CHANNEL_SEND, &log), -EINVAL));
    cr_assert(eq(int, weir_channel_attach(NULL, memory, bytes, WEIR_CHANNEL_SEND, &log), -EINVAL));
    cr_assert(
        eq(int, weir_channel_attach(&from, memory, bytes, (weir_channel_end)2, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "end"), NULL));

    char message[16] = "a message";
    const void *peeked;
    size_t n = 5;
    weir_channel none = { 0 };
    cr_assert(eq(int, weir_channel_send(NULL, message, 1), -EINVAL));
    cr_assert(eq(int, weir_channel_send(&none, message, 1), -EINVAL));
    cr_assert(eq(int, weir_channel_send(&to, message, 1), -EINVAL));
    cr_assert(eq(int, weir_channel_send(&from, NULL, 1), -EINVAL));
    cr_assert(eq(int, weir_channel_send(&from, message, 0), -EINVAL));
    cr_assert(zero(int, weir_channel_send(&from, message, 8)));
    cr_assert(eq(int, weir_channel_peek(&from, &peeked, &n), -EINVAL));
    cr_assert(eq(int, weir_channel_peek(&to, NULL, &n), -EINVAL));
    cr_assert(eq(int, weir_channel_peek(&to, &peeked, NULL), -EINVAL));
    cr_assert(eq(int, weir_channel_release(&to), -EINVAL));
    cr_assert(eq(int, weir_channel_release(&from), -EINVAL));
    cr_assert(eq(int, weir_channel_receive(&to, NULL, 16, &n), -EINVAL));
    cr_assert(eq(int, weir_channel_receive(&to, message, 16, NULL), -EINVAL));
    cr_assert(eq(int, weir_channel_receive(&from, message, 16, &n), -EINVAL));
    cr_assert(eq(sz, n, 5));
    cr_assert(zero(int, weir_channel_receive(&to, message, 16, &n)));
    cr_assert(eq(int, weir_channel_receive(&to, message, 16, &n), -EAGAIN));
    free(memory);
}
