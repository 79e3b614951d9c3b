/* SPDX-License-Identifier: Apache-2.0 */
#include "messages.h"

#include "check.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

void way_open(int ends[2])
{
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
}

void way_send(int end, const void *message, size_t bytes)
{
    REQUIRE(send(end, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

int way_wait(const int *ends, uint32_t n, int wait_ms)
{
    struct pollfd ready[N_GROUPS];
    REQUIRE(n <= N_GROUPS);
    for (uint32_t i = 0; i < n; i++)
        ready[i] = (struct pollfd){ .fd = ends[i], .events = POLLIN };
    if (poll(ready, n, wait_ms) <= 0)
        return -1;
    uint32_t first = 0;
    while (ready[first].revents == 0)
        first++;
    return (int)first;
}

size_t way_receive(int end, void *message, size_t capacity, int wait_ms)
{
    if (way_wait(&end, 1, wait_ms) < 0)
        return 0;
    ssize_t n = recv(end, message, capacity, 0);
    REQUIRE(n > 0);
    return (size_t)n;
}

void plan_send(int end, const struct plan *plan)
{
    way_send(end, plan, offsetof(struct plan, order) + plan->order_bytes);
}

bool plan_receive(int end, struct plan *plan, int wait_ms)
{
    size_t n = way_receive(end, plan, sizeof *plan, wait_ms);
    REQUIRE(n == 0 || n == offsetof(struct plan, order) + plan->order_bytes);
    return n > 0;
}
