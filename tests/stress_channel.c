/* SPDX-License-Identifier: Apache-2.0 */

/* The two ends of a channel on two threads, for ThreadSanitizer. */

#include <weir/channel.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define MESSAGES 40000u
#define LARGEST 300u

static _Alignas(64) unsigned char memory[4096];

static size_t size_of(uint32_t i)
{
    return 1 + i * 31 % LARGEST;
}

/* *failed is what went wrong. */
static void *send_all(void *arg)
{
    const char **failed = arg;
    weir_channel channel;
    unsigned char message[LARGEST];
    if (weir_channel_attach(&channel, memory, sizeof memory, WEIR_CHANNEL_SEND, NULL)) {
        *failed = "attach";
        return NULL;
    }
    for (uint32_t i = 0; i < MESSAGES; i++) {
        for (size_t k = 0; k < size_of(i); k++)
            message[k] = (unsigned char)(i + k);
        int rc;
        while ((rc = weir_channel_send(&channel, message, size_of(i))) == -EAGAIN)
            sched_yield();
        if (rc) {
            *failed = "send";
            return NULL;
        }
    }
    return NULL;
}

static const char *receive_all(void)
{
    weir_channel channel;
    if (weir_channel_attach(&channel, memory, sizeof memory, WEIR_CHANNEL_RECEIVE, NULL))
        return "attach";
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const void *message;
        size_t n;
        int rc;
        while ((rc = weir_channel_peek(&channel, &message, &n)) == -EAGAIN)
            sched_yield();
        if (rc || n != size_of(i))
            return "peek";
        for (size_t k = 0; k < n; k++)
            if (((const unsigned char *)message)[k] != (unsigned char)(i + k))
                return "a wrong byte";
        if (weir_channel_release(&channel))
            return "release";
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    const char *sent = NULL;
    if (weir_channel_format(memory, sizeof memory, NULL) ||
        pthread_create(&thread, NULL, send_all, &sent))
        return 1;
    const char *received = receive_all();
    pthread_join(thread, NULL);
    if (received || sent)
        fprintf(stderr, "%s\n", received ? received : sent);
    return received || sent;
}
