/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange.h"

#include "check.h"

#include <sys/mman.h>

struct exchange *exchange_create(uint32_t n_ranks)
{
    struct exchange *exchange =
        mmap(NULL, sizeof *exchange, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(exchange != MAP_FAILED);
    exchange->n_ranks = n_ranks;
    pthread_barrierattr_t attributes;
    REQUIRE(pthread_barrierattr_init(&attributes) == 0);
    REQUIRE(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    REQUIRE(pthread_barrier_init(&exchange->barrier, &attributes, n_ranks) == 0);
    pthread_barrierattr_destroy(&attributes);
    return exchange;
}

void exchange_destroy(struct exchange *exchange)
{
    pthread_barrier_destroy(&exchange->barrier);
    munmap(exchange, sizeof *exchange);
}

void exchange_meet(struct exchange *exchange)
{
    if (exchange->n_ranks > 1)
        pthread_barrier_wait(&exchange->barrier);
}
