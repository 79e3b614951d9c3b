/* SPDX-License-Identifier: Apache-2.0
 * A prompt is computed and kept; another takes all of device memory; a third begins like the first
 * and has that beginning loaded from host memory, each layer just before it is needed. */
#include <weir/weir.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(calls) ((calls) == 0 ? (void)0 : (fprintf(stderr, "failed: %s\n", #calls), exit(1)))
#define PAGES 8
#define PAGE_TOKENS 16
#define PAGE_BYTES 1024     /* of one layer */
static weir_device *device; /* here made of threads */
static weir_stream *stream; /* where the model runs */
static weir_rank *rank;     /* moves bytes */
static weir_cache *cache;   /* decides */
static uint32_t layers[] = { 0, 1 };
static int32_t tokens[PAGES * PAGE_TOKENS], pages[PAGES]; /* of the prompt being served */
static size_t n_tokens, n_wrong;
static weir_reserved got;

/* A layer of the model: a page is its first token's byte. Computes what is no hit, checks all. */
static void forward(void *layer)
{
    for (size_t first = 0; first < n_tokens; first += PAGE_TOKENS) {
        weir_device_page page = { pages[first / PAGE_TOKENS] };
        uint64_t address = weir_rank_device_address(rank, 0, *(uint32_t *)layer, page);
        uint8_t right = (uint8_t)(tokens[first] + *(int *)layer),
                *kv = (uint8_t *)(uintptr_t)address;
        if (first >= got.hit.n_tokens)
            memset(kv, right, PAGE_BYTES);
        n_wrong += kv[0] != right || memcmp(kv, kv + 1, PAGE_BYTES - 1) != 0;
    }
}

/* Serves a prompt whose first n_alike tokens other prompts share, until it is written back. */
static void serve(const char *name, size_t n_alike, size_t n, int32_t other)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)i + (i < n_alike ? 0 : other);
    weir_key key = { .tokens = tokens, .n_tokens = n_tokens = n };
    weir_stats stats = { .struct_size = sizeof stats };
    uint64_t id, report[128];
    const void *order;
    size_t bytes, n_out;
    weir_request request;
    weir_seq seq;
    weir_step step;
    weir_request_init(&request);
    request.total_tokens = n;
    TRY(weir_seq_open(&seq, cache, &key, NULL));
    TRY(weir_seq_reserve(seq, &request, &got)); /* -EAGAIN: run a step, carry reports, try again */
    TRY(weir_step_begin(&step, cache));
    TRY(weir_step_add(step, seq)); /* starts the loads it needs */
    TRY(weir_seq_pages(seq, 0, PAGE_TOKENS, pages, PAGES, &n_out));
    TRY(weir_seq_commit(seq, NULL, n - got.hit.n_tokens)); /* what this step computes */
    TRY(weir_step_end(&step, &order, &bytes));
    TRY(weir_rank_begin(rank, order, bytes, 0, stream, &id));
    for (uint32_t l = 0; l < 2; l++) {
        TRY(weir_rank_wait_layer(rank, id, l, stream)); /* the stream waits, not the thread */
        TRY(weir_cpu_launch(device, stream, forward, &layers[l], NULL, 0));
    }
    TRY(weir_rank_end(rank, id, stream)); /* write-backs start behind this */
    TRY(weir_seq_close(&seq));            /* any time; the pages stay in the index */
    do {                                  /* in a server: once in each turn of its loop */
        TRY(weir_rank_report(rank, report, sizeof report, &bytes));
        TRY(bytes > 0 && weir_cache_report(cache, 0, report, bytes));
        TRY(weir_cache_poll(cache, 0, NULL, 0, &n_out) || weir_cache_get_stats(cache, &stats));
    } while (stats.orders_in_flight + stats.write_backs_in_flight > 0);
    printf("%s: %zu tokens, %zu device, %zu host\n", name, n, got.hit.n_device, got.hit.n_host);
}

int main(void)
{
    const weir_tensor kv = { .name = "kv", .page_bytes = PAGE_BYTES };
    const weir_shape shape = { PAGE_TOKENS, 2, 1, &kv };
    weir_cpu_device_params link;
    weir_rank_params hands;
    weir_cache_params brain;
    weir_cpu_device_params_init(&link);
    weir_rank_params_init(&hands);
    weir_cache_params_init(&brain);
    link.load_latency_us = 10000; /* who does not wait for a layer finds garbage */
    hands.shape = &shape;
    brain.page_tokens = PAGE_TOKENS;
    brain.device_pages = hands.device_pages = PAGES;
    brain.host_pages = hands.host_pages = 4 * PAGES;
    TRY(weir_cpu_device_open(&device, &link) || weir_cpu_stream_create(device, &stream));
    TRY(weir_rank_open(&rank, device, &hands) || weir_cache_create(&cache, &brain));
    serve("first", 64, 65, 0);
    serve("other", 0, PAGES * PAGE_TOKENS, 1000);
    serve("second", 64, 70, 2000);
    TRY(weir_cache_destroy(&cache));
    weir_rank_close(&rank);
    weir_cpu_stream_destroy(device, &stream);
    TRY(weir_device_close(&device));
    return n_wrong == 0 && got.hit.n_host == 64 ? 0 : 1;
}
