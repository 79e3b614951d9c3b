/* SPDX-License-Identifier: Apache-2.0
 * The toy model of 03_expert_offload: the same arithmetic on both devices, all of it exact. */
#ifndef EXPERT_OFFLOAD_H
#define EXPERT_OFFLOAD_H

#include <weir/weir.h>

#ifdef __CUDACC__
#define MODEL_FUNCTION static __host__ __device__ inline
#else
#define MODEL_FUNCTION static inline
#endif

enum {
    LAYERS = 6,
    EXPERTS = 32,
    TOKENS = 4,
    CHOSEN = 2,
    WIDTH = 64,
    IDS = TOKENS * CHOSEN
};

/* What a layer's kernels read and write. Its experts lie in rows of both banks: row 0 of `weights`
 * is WIDTH * WIDTH bytes, row 0 of `bias` WIDTH numbers. */
struct layer {
    const uint32_t *in; /* [TOKENS][WIDTH] */
    uint32_t *out;
    int32_t *ids; /* [TOKENS][CHOSEN]: experts, then the rows they lie in */
    const int8_t *weights;
    const int32_t *bias;
    int32_t first_row; /* added to what is in ids */
    uint32_t number;
};

MODEL_FUNCTION uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t z = (a ^ b * 0x9e3779b9u) * 0x85ebca6bu;
    return (z ^ z >> 15) * 0xc2b2ae35u ^ z >> 13;
}

/* Chooses a token's experts: by what it is, but some are liked by all. */
MODEL_FUNCTION void route(const struct layer *l, uint32_t token)
{
    uint32_t state = 0;
    for (uint32_t i = 0; i < WIDTH; i++)
        state = mix(state, l->in[token * WIDTH + i]);
    for (uint32_t k = 0; k < CHOSEN; k++) {
        uint32_t best = 0, best_score = 0;
        for (uint32_t e = 0; e < EXPERTS; e++) {
            uint32_t score = 1 + mix(state, e) % 100 + (e * 7 + l->number) % EXPERTS * 2;
            bool taken = k > 0 && l->ids[token * CHOSEN] == (int32_t)e;
            if (score > best_score && !taken) {
                best = e;
                best_score = score;
            }
        }
        l->ids[token * CHOSEN + k] = (int32_t)best;
    }
}

/* One number of a token's output: what its experts make of all of its input. */
MODEL_FUNCTION void forward(const struct layer *l, uint32_t token, uint32_t column)
{
    const uint32_t *in = l->in + token * WIDTH;
    uint32_t sum = in[column] * 3;
    for (uint32_t k = 0; k < CHOSEN; k++) {
        int64_t row = l->first_row + l->ids[token * CHOSEN + k];
        const int8_t *weights = l->weights + (row * WIDTH + column) * WIDTH;
        sum += (uint32_t)l->bias[row * WIDTH + column];
        for (uint32_t i = 0; i < WIDTH; i++)
            sum += (uint32_t)weights[i] * in[i];
    }
    l->out[token * WIDTH + column] = sum;
}

/* A device as the example uses it. Memory is never freed: the example ends first. */
struct backend {
    weir_device_kind kind;
    void *(*memory)(size_t bytes); /* of the device */
    void *(*pinned)(size_t bytes); /* of the host, for the device to read */
    void (*copy)(void *to, const void *from, size_t bytes, weir_stream *stream); /* waits */
    weir_stream *(*stream)(weir_device *device);
    void (*route)(const struct layer *layer, weir_stream *stream);
    void (*forward)(const struct layer *layer, weir_stream *stream);
    /* A graph of all that enqueue enqueues, and running it; NULL: there are none. */
    void *(*record)(void (*enqueue)(void *user), void *user, weir_stream *stream);
    void (*play)(void *graph, weir_stream *stream);
};

#ifdef __cplusplus
extern "C"
#else
extern
#endif
    const struct backend cuda_backend; /* 03_expert_offload.cu */

#endif
