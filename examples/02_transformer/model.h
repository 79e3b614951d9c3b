/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_MODEL_H
#define TRANSFORMER_MODEL_H

/* A small transformer, a token at a time.
 *
 *   x = embed(token or image patch)
 *   per layer
 *     q, k, v = norm(x) W          k and v of the token go into its page
 *     x = x + attend(q, all k, v up to the token) Wo        sum over the groups
 *     x = x + silu(norm(x) Wup) Wdown                       sum over the groups
 *   logits = norm(x) E'
 *
 * A group is a KV head with its query heads and a slice of the MLP: what one
 * rank of a tensor-parallel server computes, if it computes one of them. Its
 * result is a partial sum over D_MODEL.
 *
 * Invariant: what a token yields depends on the tokens before it and on nothing
 * else, to the last bit. Every function takes one token and adds in one fixed
 * order, so that neither the batch, nor where a prompt was cut into chunks, nor
 * the page that holds a row, nor the number of ranks can be seen in the result.
 * That is what lets this example compare its modes by a digest. */

#include <stdint.h>

#define N_LAYERS 4
#define D_MODEL 64
#define N_GROUPS 2
#define GROUP_HEADS 2
#define HEAD_DIM 16
#define GROUP_DIM (GROUP_HEADS * HEAD_DIM)
#define GROUP_HIDDEN 64
#define VOCABULARY 128
#define MAX_CONTEXT 512

/* LoRA: adapters 1..N_ADAPTERS change v; 0 is the plain model. */
#define N_ADAPTERS 2
#define ADAPTER_RANK 4

/* The token that stands where a patch of an image is. All images look alike in
 * the tokens of a prompt, which is why a cache must be told of them. */
#define IMAGE_TOKEN 0

/* Named by group, so that a rank reads what it needs and nothing else. */
struct model_group {
    float wq[D_MODEL][GROUP_DIM];
    float wk[D_MODEL][HEAD_DIM];
    float wv[D_MODEL][HEAD_DIM];
    float wo[GROUP_DIM][D_MODEL];
    float up[D_MODEL][GROUP_HIDDEN];
    float down[GROUP_HIDDEN][D_MODEL];
    float adapter_up[N_ADAPTERS][ADAPTER_RANK][HEAD_DIM];
};

struct model_layer {
    struct model_group groups[N_GROUPS];
    float adapter_down[N_ADAPTERS][D_MODEL][ADAPTER_RANK];
};

struct model {
    float embedding[VOCABULARY][D_MODEL];
    float rope_cos[MAX_CONTEXT][HEAD_DIM / 2];
    float rope_sin[MAX_CONTEXT][HEAD_DIM / 2];
    struct model_layer layers[N_LAYERS];
};

/* What goes into the model at one position. */
struct model_input {
    int32_t token;
    uint32_t position;
    uint32_t image; /* seed of the image that the token is a patch of; 0: none */
    uint32_t patch;
    uint32_t adapter;
};

/* The query of a token's heads in one group. Its key and value go to k and v. */
struct model_query {
    float head[GROUP_HEADS][HEAD_DIM];
};

/* Where the rows of a context are: a plain array or pages. */
struct model_context {
    const float *(*row)(const void *where, uint32_t position);
    const void *keys;
    const void *values;
};

/* The same weights for the same seed. The caller frees them; NULL: no memory. */
struct model *model_create(uint64_t seed);

void model_embed(const struct model *model, const struct model_input *input, float x[D_MODEL]);

/* The first half of a group's attention: the token's query, key and value. */
void model_project(const struct model *model, uint32_t layer, uint32_t group,
                   const struct model_input *input, const float x[D_MODEL],
                   struct model_query *query, float k[HEAD_DIM], float v[HEAD_DIM]);

/* The second half, over the rows 0..position, which must be there. */
void model_attend(const struct model *model, uint32_t layer, uint32_t group,
                  const struct model_query *query, uint32_t position,
                  const struct model_context *context, float partial[D_MODEL]);

void model_mlp(const struct model *model, uint32_t layer, uint32_t group, const float x[D_MODEL],
               float partial[D_MODEL]);

/* x = x + partial of group 0 + partial of group 1, in this order. */
void model_add(float x[D_MODEL], float partials[N_GROUPS][D_MODEL]);

void model_logits(const struct model *model, const float x[D_MODEL], float logits[VOCABULARY]);

/* What is kept of the logits of one position. */
struct model_answer {
    uint64_t digest;   /* of their bytes */
    int32_t token;     /* the best; of equals the first */
    int32_t runner_up; /* the second best */
};

struct model_answer model_answer_of(const float logits[VOCABULARY]);

/* A well-mixed number for each n: what weights, images and prompts are made of. */
uint64_t model_random(uint64_t seed, uint64_t n);

#endif
