/* SPDX-License-Identifier: Apache-2.0 */
#include "request.h"

#include <errno.h>
#include <stdlib.h>

/* Nothing in the arrays is kept, so a larger one is a new one. */
static int enlarge(struct weir_replay_request *request, size_t n_tokens, size_t n_pages)
{
    if (n_tokens > request->tokens_capacity) {
        free(request->tokens);
        free(request->fingerprints);
        request->tokens_capacity = 0;
        request->tokens = malloc(n_tokens * sizeof *request->tokens);
        request->fingerprints = malloc(n_tokens * sizeof *request->fingerprints);
        if (!request->tokens || !request->fingerprints)
            return -ENOMEM;
        request->tokens_capacity = n_tokens;
    }
    if (n_pages > request->pages_capacity) {
        free(request->pages);
        request->pages_capacity = 0;
        request->pages = malloc(n_pages * sizeof *request->pages);
        if (!request->pages)
            return -ENOMEM;
        request->pages_capacity = n_pages;
    }
    return 0;
}

int weir_request_get(struct weir_request_pool *pool, size_t n_tokens, size_t n_pages,
                     struct weir_replay_request **request)
{
    struct weir_replay_request *taken = pool->free;
    if (taken) {
        pool->free = taken->next_free;
    } else {
        taken = calloc(1, sizeof *taken);
        if (!taken)
            return -ENOMEM;
        taken->next_all = pool->all;
        pool->all = taken;
    }
    int rc = enlarge(taken, n_tokens, n_pages);
    taken->seq = (weir_seq){ 0 };
    taken->open = false;
    taken->n_steps = 0;
    taken->n_tokens = n_tokens;
    taken->n_done = 0;
    taken->n_pages = 0;
    taken->good_tokens = SIZE_MAX;
    atomic_store(&taken->wrong_from, SIZE_MAX);
    atomic_store(&taken->wrong_bytes, 0);
    if (rc)
        weir_request_put(pool, taken);
    else
        *request = taken;
    return rc;
}

void weir_request_add_wrong(struct weir_replay_request *request, size_t token, uint64_t bytes)
{
    size_t before = atomic_load(&request->wrong_from);
    while (token < before && !atomic_compare_exchange_weak(&request->wrong_from, &before, token))
        ;
    atomic_fetch_add(&request->wrong_bytes, bytes);
}

void weir_request_put(struct weir_request_pool *pool, struct weir_replay_request *request)
{
    if (request->open || request->n_steps)
        return;
    request->next_free = pool->free;
    pool->free = request;
}

void weir_request_pool_free(struct weir_request_pool *pool)
{
    while (pool->all) {
        struct weir_replay_request *request = pool->all;
        pool->all = request->next_all;
        free(request->tokens);
        free(request->fingerprints);
        free(request->pages);
        free(request);
    }
    pool->free = NULL;
}
