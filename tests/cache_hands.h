/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CACHE_HANDS_H
#define WEIR_TESTS_CACHE_HANDS_H

/* A cache_rig with two ranks that move bytes, each on a CPU device of its own
 * with a seed, so that a test says when it runs. Page i of a table is filled with
 * what its place, layer and rank tell, and compared. */

#include "cache_rig.h"

#include <weir/cpu_device.h>
#include <weir/rank.h>

#define HAND_PAGES 6u
#define HAND_LAYERS 3u

static const weir_tensor hand_tensors[] = { { .page_bytes = 4 * 24, .row_bytes = 24 } };
static const weir_shape hand_shape = {
    .page_tokens = 4, .n_layers = HAND_LAYERS, .n_tensors = 1, .tensors = hand_tensors
};

struct hand {
    weir_device *device;
    weir_stream *stream;
    weir_rank *rank; /* NULL: lost */
};

static struct hand hands[2];
static uint64_t hands_wrong;

static inline void hand_open(struct hand *hand, uint32_t index, uint64_t first_step)
{
    weir_cpu_device_params device;
    weir_cpu_device_params_init(&device);
    device.seed = 11 + index + first_step;
    cr_assert(zero(int, weir_cpu_device_open(&hand->device, &device)));
    cr_assert(zero(int, weir_cpu_stream_create(hand->device, &hand->stream)));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &hand_shape;
    params.device_pages = params.host_pages = HAND_PAGES;
    params.touch_threads = 1;
    params.first_step = first_step;
    cr_assert(zero(int, weir_rank_open(&hand->rank, hand->device, &params)));
}

/* Like a process that died: what it had enqueued is nobody's any more. */
static inline void hand_close(struct hand *hand)
{
    weir_rank_close(&hand->rank);
    cr_assert(zero(u64, weir_cpu_device_races(hand->device)));
    weir_cpu_stream_destroy(hand->device, &hand->stream);
    cr_assert(zero(int, weir_device_close(&hand->device)));
}

/* A kernel of one layer of one page: fills it, or compares. */
struct hand_kernel {
    struct hand_kernel *next;
    unsigned char *piece;
    uint32_t value;
    bool fill;
};

static struct hand_kernel *hand_kernels;

static inline void hand_run_kernel(void *arg)
{
    const struct hand_kernel *k = arg;
    for (uint32_t i = 0; i < 4 * 24; i++) {
        unsigned char byte = (unsigned char)(k->value * 31 + i);
        if (k->fill)
            k->piece[i] = byte;
        else
            hands_wrong += k->piece[i] != byte;
    }
}

static inline void hand_launch(struct hand *hand, uint32_t layer, int32_t page, uint32_t value,
                               bool fill)
{
    struct hand_kernel *k = malloc(sizeof *k);
    cr_assert(ne(ptr, k, NULL));
    *k = (struct hand_kernel){ hand_kernels,
                               (unsigned char *)(uintptr_t)weir_rank_device_address(
                                   hand->rank, 0, layer, (weir_device_page){ page }),
                               value, fill };
    hand_kernels = k;
    weir_cpu_access access = { .pool = weir_rank_cpu_pool(hand->rank),
                               .page = page,
                               .layer = (uint16_t)layer,
                               .write = fill };
    cr_assert(
        zero(int, weir_cpu_launch(hand->device, hand->stream, hand_run_kernel, k, &access, 1)));
}

/* The forward pass of one rank, none without pages: reads the first pages and fills the others,
 * each rank with values of its own. */
static inline void hand_forward(struct hand *hand, const struct rig_order *order,
                                const int32_t *table, uint32_t n_read, uint32_t n_pages)
{
    uint64_t step;
    uint32_t slot = (uint32_t)(order->decoded.step % 16);
    cr_assert(
        zero(int, weir_rank_begin(hand->rank, order->bytes, order->n, slot, hand->stream, &step)));
    for (uint32_t layer = 0; n_pages && layer < HAND_LAYERS; layer++) {
        cr_assert(zero(int, weir_rank_wait_layer(hand->rank, step, layer, hand->stream)));
        for (uint32_t i = 0; i < n_pages; i++)
            hand_launch(hand, layer, table[i], (uint32_t)(hand - hands) * 100 + layer * 10 + i,
                        i >= n_read);
    }
    cr_assert(zero(int, weir_rank_end(hand->rank, step, hand->stream)));
}

static inline void hands_report(struct rig *r)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct hand *hand = &hands[i];
        for (int again = 0; hand->rank && again < 3; again++) {
            while (weir_cpu_device_run(hand->device, 100) == 100)
                continue;
            uint64_t report[64];
            size_t bytes;
            cr_assert(zero(int, weir_rank_report(hand->rank, report, sizeof report, &bytes)));
            if (bytes)
                gives(r, weir_cache_report(r->cache, i, report, bytes), 0);
        }
    }
    rig_poll(r);
}

/* A step of one sequence, whose first n_read pages are there, on the ranks that
 * live. */
static inline void hands_serve(struct rig *r, weir_seq seq, uint32_t n_read, size_t n_pages)
{
    int32_t table[RIG_PAGES];
    rig_table(r, seq, table);
    uint64_t step = rig_run(r, seq, n_pages)->step;
    for (uint32_t i = 0; i < 2; i++)
        if (hands[i].rank)
            hand_forward(&hands[i], &r->orders[step % RIG_ORDERS], table, n_read,
                         (uint32_t)n_pages);
}

static inline void hands_idle(struct rig *r)
{
    uint64_t step;
    rig_begin(r);
    step = rig_end(r)->step;
    for (uint32_t i = 0; i < 2; i++)
        if (hands[i].rank)
            hand_forward(&hands[i], &r->orders[step % RIG_ORDERS], NULL, 0, 0);
    hands_report(r);
}

/* Computes "AB", has its device copies evicted, and loads it again. */
static inline weir_seq hands_there_and_back(struct rig *r)
{
    weir_seq seq = rig_start(r, "AB", 1);
    hands_serve(r, seq, 0, 2);
    hands_report(r);
    hands_idle(r);
    rig_done(r, &seq);
    rig_push_out(r);
    rig_expect_hit(r, "AB", 0, 2, 0);
    return rig_start(r, "AB", 1);
}

static inline void hands_open(struct rig *r)
{
    weir_cache_params params = rig_params(4, HAND_PAGES, HAND_PAGES);
    params.n_ranks = 2;
    rig_open(r, params);
    hand_open(&hands[0], 0, 0);
    hand_open(&hands[1], 1, 0);
}

static inline void hands_close(struct rig *r)
{
    cr_assert(zero(u64, hands_wrong));
    hand_close(&hands[0]);
    hand_close(&hands[1]);
    while (hand_kernels) {
        struct hand_kernel *next = hand_kernels->next;
        free(hand_kernels);
        hand_kernels = next;
    }
    rig_close(r);
}

#endif
