/* SPDX-License-Identifier: Apache-2.0
 *
 * A prompt is computed and kept. Another one takes all of device memory. A
 * third, which begins like the first, finds that beginning in host memory and
 * has it loaded layer by layer, each layer just before it is needed. */
#include <weir/weir.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    PAGE_TOKENS = 16,
    ROW_BYTES = 64,
    PAGES = 8,
    SLOTS = 16
};

static void check(int rc, const char *call)
{
    if (rc != 0) {
        fprintf(stderr, "%s: %s\n", call, weir_error_name(rc));
        exit(1);
    }
}
#define TRY(call) check((call), #call)

/* What a server has: the cache decides, the rank moves bytes, the stream is
 * where the model runs. */
struct server {
    weir_device *device;
    weir_stream *stream;
    weir_rank *rank;
    weir_cache *cache;
    uint32_t n_steps;
    uint64_t now;
};

/* One layer of a forward pass. The model: each token's row in K and in V is
 * one byte, repeated. Rows of the hit are read, the others are computed. */
struct layer {
    struct server *server;
    const int32_t *tokens;
    size_t n_tokens, n_hit, n_wrong;
    uint32_t index;
    int32_t pages[PAGES];
};

static void forward(void *argument)
{
    struct layer *l = argument;
    for (size_t i = 0; i < l->n_tokens * 2; i++) {
        size_t token = i / 2;
        weir_device_page page = { l->pages[token / PAGE_TOKENS] };
        uint64_t piece = weir_rank_device_address(l->server->rank, i % 2, l->index, page);
        uint8_t *row = (uint8_t *)(uintptr_t)piece + token % PAGE_TOKENS * ROW_BYTES;
        uint8_t byte = (uint8_t)(l->tokens[token] * 4 + (int)(i % 2 * 2 + l->index));
        if (token >= l->n_hit)
            memset(row, byte, ROW_BYTES);
        for (int b = 0; b < ROW_BYTES; b++)
            l->n_wrong += row[b] != byte;
    }
}

/* Ends a step and runs it; n_layers 0: it only moves pages. */
static void run(struct server *s, weir_step *step, struct layer *layers, uint32_t n_layers)
{
    const void *order;
    size_t bytes;
    uint64_t id;
    TRY(weir_step_end(step, &order, &bytes));
    TRY(weir_rank_begin(s->rank, order, bytes, s->n_steps++ % SLOTS, s->stream, &id));
    for (uint32_t l = 0; l < n_layers; l++) {
        TRY(weir_rank_wait_layer(s->rank, id, l, s->stream));
        TRY(weir_cpu_launch(s->device, s->stream, forward, &layers[l], NULL, 0));
    }
    TRY(weir_rank_end(s->rank, id, s->stream));
}

/* One turn of the server's loop: the rank's reports go to the cache, and a
 * step is run if pages wait to be written back. */
static void turn(struct server *s)
{
    uint64_t report[128];
    weir_cache_event events[8];
    size_t bytes, n;
    TRY(weir_rank_report(s->rank, report, sizeof report, &bytes));
    if (bytes > 0)
        TRY(weir_cache_report(s->cache, 0, report, bytes));
    TRY(weir_cache_poll(s->cache, ++s->now, events, 8, &n));
    for (size_t i = 0; i < n; i++) {
        weir_step step;
        if (events[i].kind != WEIR_EVENT_WRITE_WAITING)
            continue;
        TRY(weir_step_begin(&step, s->cache));
        run(s, &step, NULL, 0);
    }
}

/* Serves a prompt, waits until it is in both tiers, returns the wrong bytes. */
static size_t serve(struct server *s, const char *name, const int32_t *tokens, size_t n)
{
    weir_key key = { .tokens = tokens, .n_tokens = n };
    weir_seq seq;
    TRY(weir_seq_open(&seq, s->cache, &key, NULL));

    weir_request request;
    weir_reserved reserved;
    int rc;
    weir_request_init(&request);
    request.total_tokens = n;
    while ((rc = weir_seq_reserve(seq, &request, &reserved)) == -EAGAIN)
        turn(s);
    check(rc, "weir_seq_reserve");

    weir_step step;
    size_t n_pages, n_hit = reserved.hit.n_tokens;
    struct layer layers[LAYERS];
    TRY(weir_step_begin(&step, s->cache));
    TRY(weir_step_add(step, seq));
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] = (struct layer){ s, tokens, n, n_hit, 0, l, { 0 } };
        TRY(weir_seq_pages(seq, 0, PAGE_TOKENS, layers[l].pages, PAGES, &n_pages));
    }
    TRY(weir_seq_commit(seq, NULL, n - n_hit));
    run(s, &step, layers, LAYERS);
    TRY(weir_seq_close(&seq));

    weir_stats stats = { .struct_size = sizeof stats };
    do {
        turn(s);
        TRY(weir_cache_get_stats(s->cache, &stats));
    } while (stats.orders_in_flight + stats.write_backs_in_flight > 0);
    printf("%s: %zu tokens, %zu from device and %zu from host memory, %zu computed\n", name, n,
           reserved.hit.n_device, reserved.hit.n_host, n - n_hit);
    return layers[0].n_wrong + layers[1].n_wrong;
}

int main(void)
{
    struct server s = { 0 };
    weir_cpu_device_params link;
    weir_cpu_device_params_init(&link);
    link.load_latency_us = 10000; /* a layer takes long: who does not wait for it sees garbage */
    TRY(weir_cpu_device_open(&s.device, &link));
    TRY(weir_cpu_stream_create(s.device, &s.stream));

    const weir_tensor tensors[] = { { "k", PAGE_TOKENS * ROW_BYTES, ROW_BYTES, 0, NULL },
                                    { "v", PAGE_TOKENS * ROW_BYTES, ROW_BYTES, 0, NULL } };
    const weir_shape shape = { PAGE_TOKENS, LAYERS, 2, tensors };
    weir_rank_params hands;
    weir_rank_params_init(&hands);
    hands.shape = &shape;
    hands.device_pages = PAGES;
    hands.host_pages = 4 * PAGES;
    TRY(weir_rank_open(&s.rank, s.device, &hands));

    weir_cache_params brain;
    weir_cache_params_init(&brain);
    brain.page_tokens = PAGE_TOKENS;
    brain.device_pages = PAGES;
    brain.host_pages = 4 * PAGES;
    TRY(weir_cache_create(&s.cache, &brain));

    int32_t first[65], other[PAGES * PAGE_TOKENS], second[70];
    for (int i = 0; i < 65; i++)
        first[i] = i;
    for (int i = 0; i < PAGES * PAGE_TOKENS; i++)
        other[i] = 1000 + i;
    for (int i = 0; i < 70; i++)
        second[i] = i < 64 ? i : 2000 + i;
    size_t wrong = serve(&s, "first", first, 65);
    wrong += serve(&s, "other", other, PAGES * PAGE_TOKENS);
    wrong += serve(&s, "second", second, 70);

    weir_stats stats = { .struct_size = sizeof stats };
    TRY(weir_cache_get_stats(s.cache, &stats));
    TRY(weir_cache_destroy(&s.cache));
    weir_rank_close(&s.rank);
    weir_cpu_stream_destroy(s.device, &s.stream);
    TRY(weir_device_close(&s.device));
    return wrong == 0 && stats.loaded_pages == 4 ? 0 : 1;
}
