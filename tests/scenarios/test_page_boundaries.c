/* SPDX-License-Identifier: Apache-2.0 */

/* Prompts that end at a page's end, a token before it or a token behind it. What the
 * index takes for a page, what is moved and what is hit must be the same pages. */

#include "cache_rig.h"
#include "server_probe.h"

static const uint32_t sizes[] = { 1, 2, 16, 64, 128 };
#define N_SIZES (sizeof sizes / sizeof *sizes)

enum {
    MOST = 5 * 128
};

/* The n first tokens of the only text there is, up to the token `other`, which is
 * another one. */
static weir_key text(int32_t tokens[MOST], size_t n, size_t other)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = 100 + (int32_t)i;
    if (other < n)
        tokens[other] = -1;
    return (weir_key){ .tokens = tokens, .n_tokens = n };
}

static weir_hit reserve_text(struct rig *r, weir_seq *seq, size_t n, size_t other)
{
    int32_t tokens[MOST];
    weir_key key = text(tokens, n, other);
    weir_hit hit = { 0 };
    gives(r, weir_seq_open(seq, r->cache, &key, NULL), 0);
    gives(r, rig_reserve(r, *seq, n, &hit), 0);
    return hit;
}

/* A step that commits so many tokens; expects the moves, and their reports come. */
static void step(struct rig *r, weir_seq seq, size_t tokens, size_t loads, size_t writes)
{
    rig_begin(r);
    rig_add(r, seq);
    if (tokens > 0)
        gives(r, weir_seq_commit(seq, NULL, tokens), 0);
    const weir_order *order = rig_end(r);
    cr_assert(order->n_loads == loads && order->n_writes == writes,
              "%u loads and %u writes, not %zu and %zu", order->n_loads, order->n_writes, loads,
              writes);
    rig_ack(r, order->step);
}

/* Computes n tokens, `chunk` in a step; what is left of a page is nobody's. */
static void compute(struct rig *r, size_t n, size_t chunk)
{
    weir_seq seq;
    cr_assert(zero(sz, reserve_text(r, &seq, n, n).n_tokens));
    for (size_t done = 0; done < n;) {
        size_t now = n - done < chunk ? n - done : chunk;
        step(r, seq, now, 0, (done + now) / r->t - done / r->t);
        done += now;
    }
    size_t pages;
    int32_t table[16];
    gives(r, weir_seq_pages(seq, 0, r->t, table, 16, &pages), 0);
    cr_assert(eq(sz, pages, (n + r->t - 1) / r->t));
    cr_assert(eq(u64, rig_stats(r).index_pages, n / r->t));
    rig_done(r, &seq);
}

static void at_length(uint32_t t, size_t n, size_t chunk)
{
    struct rig r;
    rig_open(&r, rig_params(t, 8, 8));
    compute(&r, n, chunk);
    size_t whole = n / t, hit = (n - 1) / t; /* one token is always computed */
    weir_seq seq;
    for (int host = 0; host < 2; host++) {
        if (host)
            rig_push_out(&r);
        weir_hit found = reserve_text(&r, &seq, n, n);
        cr_assert(eq(sz, found.n_tokens, hit * t), "%zu tokens in pages of %u", n, t);
        cr_assert(eq(sz, found.n_host, host ? hit * t : 0));
        step(&r, seq, n - hit * t, host ? hit : 0, 0);
        rig_done(&r, &seq);
    }
    cr_assert(eq(u64, rig_stats(&r).index_pages, whole));

    /* One that goes on, and ones that are different from a token on. */
    cr_assert(eq(sz, reserve_text(&r, &seq, n + t, n + t).n_tokens, whole * t));
    rig_done(&r, &seq);
    size_t places[] = { n - 1, hit * t, hit ? hit * t - 1 : 0, 0 };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t most = places[i] / t < whole ? places[i] / t : whole;
        cr_assert(eq(sz, reserve_text(&r, &seq, n + 1, places[i]).n_tokens, most * t));
        rig_done(&r, &seq);
    }
    rig_close(&r);
}

Test(page_boundaries, a_token_more_or_less, .timeout = 100)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (size_t pages = 1; pages <= 3; pages++)
            for (int off = -1; off <= 1; off++) {
                size_t t = sizes[i], n = pages * t + (size_t)off;
                if (n == 0)
                    continue;
                at_length((uint32_t)t, n, n);
                at_length((uint32_t)t, n, t);
                at_length((uint32_t)t, n, t > 1 ? t - 1 : 1);
                at_length((uint32_t)t, n, t + 1);
            }
}

/* ---- Bytes ---------------------------------------------------------------- */

/* Rows that are no multiples of anything, in pages of each size: all bytes of a page
 * come back from the host tier, and no byte of its neighbours changes. */
static void round_trip(uint32_t t, weir_host_layout layout)
{
    const weir_tensor tensors[] = { { .row_bytes = 24, .page_bytes = 24 * (uint64_t)t },
                                    { .row_bytes = 1, .page_bytes = t },
                                    { .row_bytes = 7, .page_bytes = 7 * (uint64_t)t } };
    const weir_shape shape = { t, 2, 3, tensors };
    struct server_params params = probe_params(t, "write_through", 12, 12);
    params.cache.page_tokens = t;
    params.rank.shape = &shape;
    params.rank.host_layout = layout;
    struct server *s = server_open(params);
    server_serve(s, "ABC");
    server_serve(s, "ABXY");
    server_serve(s, "P");
    struct server_request *neighbour = server_start(s, "ABC");
    server_step(s, 0, neighbour);
    server_push_out(s);
    server_expect_hit(s, "ABXY", 2, 2, 0);
    probe_expect(s, "ABXY", 4);
    probe_expect(s, "P", 1);
    server_step(s, 0, neighbour);
    server_run(s);
    server_leave(s, neighbour);
    server_push_out(s);
    server_expect_hit(s, "ABC", 0, 3, 0);
    probe_expect(s, "ABC", 3);
    server_close(s);
}

Test(page_boundaries, whole_pages_come_back, .timeout = 100)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (weir_host_layout layout = WEIR_HOST_SEGMENTED; layout <= WEIR_HOST_PAGE_FIRST_DIRECT;
             layout++)
            round_trip(sizes[i], layout);
}
