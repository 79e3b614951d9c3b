/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_SERVER_PROBE_H
#define WEIR_TESTS_SERVER_PROBE_H

/* Questions to a server, asked as another request would ask them: what the index
 * holds, whether it is right, how much room there is. */

#include "server_rig.h"

/* One rank, and more steps in flight than a stalled test needs. */
static inline struct server_params probe_params(uint64_t seed, const char *write_back,
                                                uint32_t device_pages, uint32_t host_pages)
{
    struct server_params params = server_params(seed, 1, device_pages, host_pages);
    params.cache.write_back = write_back;
    params.cache.max_steps = params.rank.max_steps = 32;
    return params;
}

static inline struct server *probe_open(const char *write_back, uint32_t device_pages,
                                        uint32_t host_pages)
{
    return server_open(probe_params(7, write_back, device_pages, host_pages));
}

/* Pages of the prompt that the index holds, in either tier. */
static inline size_t probe_holds(struct server *s, const char *letters)
{
    int32_t tokens[SERVER_TOKENS];
    weir_key key = server_key(s, letters, 0, tokens);
    weir_hit hit;
    cr_assert(zero(int, weir_cache_peek(s->caches[0], &key, &hit)));
    return hit.n_tokens / s->t;
}

/* Reserves as a server does that runs empty steps while it waits. */
static inline int probe_reserve(struct server *s, struct server_request *request, size_t more)
{
    int rc = server_reserve_more(s, request, more);
    for (int i = 0; rc == -EAGAIN && i < 8; i++) {
        server_settle(s);
        rc = server_reserve_more(s, request, more);
    }
    return rc;
}

/* The prompt is read by a request of its own, which finds so many pages, on whichever
 * tier, and computes the rest; all bytes are right. */
static inline void probe_expect(struct server *s, const char *letters, size_t hit)
{
    struct server_request *request = server_ask(s, letters);
    cr_assert(zero(int, probe_reserve(s, request, 0)));
    cr_assert(eq(sz, request->hit.n_tokens, hit), "%s", letters);
    server_step(s, 0, request);
    server_run(s);
    server_leave(s, request);
    server_expect_right(s);
}

/* Exactly so many device pages can be had, by whatever it takes. */
static inline void probe_expect_room(struct server *s, size_t pages)
{
    struct server_request *request = server_ask(s, "");
    if (pages > 0)
        cr_assert(zero(int, probe_reserve(s, request, pages - 1)), "%zu", pages);
    int rc = server_reserve_more(s, request, pages);
    cr_assert(rc == -ENOSPC || rc == -E2BIG, "%zu more than %zu", (size_t)1, pages);
    server_leave(s, request);
}

/* A request that holds this device page, which is free. */
static inline struct server_request *probe_hold_page(struct server *s, int32_t page)
{
    struct server_request *others[16];
    for (size_t n = 0; n < 16; n++) {
        others[n] = server_start(s, "");
        if (others[n]->table[0] != page)
            continue;
        struct server_request *found = others[n];
        while (n > 0)
            server_leave(s, others[--n]);
        return found;
    }
    cr_assert(false, "page %d is not free", page);
    return NULL;
}

/* Nothing is open: all comes back once it is forgotten, as if there had never been
 * anything. */
static inline void probe_expect_nothing_left(struct server *s, uint32_t device_pages,
                                             uint32_t host_pages)
{
    server_settle(s);
    SERVER_GIVES(s, weir_cache_forget_all(c), 0);
    server_settle(s);
    weir_stats stats = server_stats(s);
    weir_available available = server_available(s);
    cr_assert(stats.seqs_open == 0 && stats.orders_in_flight == 0);
    cr_assert(stats.write_backs_in_flight == 0 && stats.index_pages == 0);
    cr_assert(eq(u64, stats.device_free, device_pages));
    cr_assert(eq(u64, stats.host_free, host_pages));
    cr_assert(available.free == device_pages && available.pending == 0 && available.claimed == 0);
}

#endif
