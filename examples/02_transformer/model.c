/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The build switches the contraction of a * b + c off (-ffp-contract=off): a
 * compiler that fused it in one copy of an inlined function and not in another
 * would break the invariant. */

uint64_t model_random(uint64_t seed, uint64_t n)
{
    uint64_t z = seed * UINT64_C(0xd1342543de82ef95) + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In -scale..scale. */
static float uniform(uint64_t seed, uint64_t n, float scale)
{
    float unit = (float)(model_random(seed, n) >> 40) / (float)(1 << 24);
    return (2 * unit - 1) * scale;
}

/* ---- Weights ------------------------------------------------------------- */

struct filler {
    uint64_t seed;
    uint64_t n; /* drawn so far */
};

/* `inputs` of the sum that the weights are used in: keeps its size near 1. */
static void fill(struct filler *filler, float *weights, size_t n, uint32_t inputs)
{
    float scale = sqrtf(3.0f / (float)inputs);
    for (size_t i = 0; i < n; i++)
        weights[i] = uniform(filler->seed, filler->n++, scale);
}

#define FILL(filler, array, inputs) \
    fill(filler, (float *)(array), sizeof(array) / sizeof(float), inputs)

static void fill_layer(struct filler *filler, struct model_layer *layer)
{
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        struct model_group *group = &layer->groups[g];
        FILL(filler, group->wq, D_MODEL / 4); /* wide scores, so that attention chooses */
        FILL(filler, group->wk, D_MODEL);
        FILL(filler, group->wv, D_MODEL);
        FILL(filler, group->wo, GROUP_DIM);
        FILL(filler, group->up, D_MODEL);
        FILL(filler, group->down, GROUP_HIDDEN);
        FILL(filler, group->adapter_up, ADAPTER_RANK);
    }
    FILL(filler, layer->adapter_down, D_MODEL);
}

struct model *model_create(uint64_t seed)
{
    struct model *model = malloc(sizeof *model);
    if (!model)
        return NULL;
    struct filler filler = { .seed = seed };
    FILL(&filler, model->embedding, 3);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        fill_layer(&filler, &model->layers[l]);
    for (uint32_t position = 0; position < MAX_CONTEXT; position++) {
        for (uint32_t i = 0; i < HEAD_DIM / 2; i++) {
            double angle = position * pow(10000.0, -2.0 * i / HEAD_DIM);
            model->rope_cos[position][i] = (float)cos(angle);
            model->rope_sin[position][i] = (float)sin(angle);
        }
    }
    return model;
}

/* ---- Parts --------------------------------------------------------------- */

static void norm(const float x[D_MODEL], float y[D_MODEL])
{
    float squares = 0;
    for (uint32_t i = 0; i < D_MODEL; i++)
        squares += x[i] * x[i];
    float scale = 1 / sqrtf(squares / D_MODEL + 1e-5f);
    for (uint32_t i = 0; i < D_MODEL; i++)
        y[i] = x[i] * scale;
}

/* y = x W, each output summed over the inputs in ascending order. */
static void multiply(const float *x, uint32_t n_in, const float *w, uint32_t n_out, float *y)
{
    for (uint32_t j = 0; j < n_out; j++)
        y[j] = 0;
    for (uint32_t i = 0; i < n_in; i++)
        for (uint32_t j = 0; j < n_out; j++)
            y[j] += x[i] * w[(size_t)i * n_out + j];
}

static void rotate(const struct model *model, uint32_t position, float head[HEAD_DIM])
{
    for (uint32_t i = 0; i < HEAD_DIM / 2; i++) {
        float cosine = model->rope_cos[position][i], sine = model->rope_sin[position][i];
        float a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * cosine - b * sine;
        head[2 * i + 1] = a * sine + b * cosine;
    }
}

void model_embed(const struct model *model, const struct model_input *input, float x[D_MODEL])
{
    if (input->image == 0) {
        memcpy(x, model->embedding[input->token], sizeof model->embedding[0]);
        return;
    }
    for (uint32_t i = 0; i < D_MODEL; i++)
        x[i] = uniform(input->image, (uint64_t)input->patch * D_MODEL + i, 1);
}

/* ---- Attention ----------------------------------------------------------- */

void model_project(const struct model *model, uint32_t layer, uint32_t group,
                   const struct model_input *input, const float x[D_MODEL],
                   struct model_query *query, float k[HEAD_DIM], float v[HEAD_DIM])
{
    const struct model_group *weights = &model->layers[layer].groups[group];
    float h[D_MODEL];
    norm(x, h);
    multiply(h, D_MODEL, weights->wq[0], GROUP_DIM, query->head[0]);
    multiply(h, D_MODEL, weights->wk[0], HEAD_DIM, k);
    multiply(h, D_MODEL, weights->wv[0], HEAD_DIM, v);
    for (uint32_t head = 0; head < GROUP_HEADS; head++)
        rotate(model, input->position, query->head[head]);
    rotate(model, input->position, k);
    if (input->adapter) {
        uint32_t adapter = input->adapter - 1;
        float low[ADAPTER_RANK], change[HEAD_DIM];
        multiply(h, D_MODEL, model->layers[layer].adapter_down[adapter][0], ADAPTER_RANK, low);
        multiply(low, ADAPTER_RANK, weights->adapter_up[adapter][0], HEAD_DIM, change);
        for (uint32_t i = 0; i < HEAD_DIM; i++)
            v[i] += change[i];
    }
}

/* One head: softmax over the scores, then the mean of the values. */
static void attend_head(const float q[HEAD_DIM], uint32_t n, const struct model_context *context,
                        float out[HEAD_DIM])
{
    float weights[MAX_CONTEXT];
    float largest = -INFINITY;
    for (uint32_t t = 0; t < n; t++) {
        const float *k = context->row(context->keys, t);
        float score = 0;
        for (uint32_t i = 0; i < HEAD_DIM; i++)
            score += q[i] * k[i];
        weights[t] = score * 0.25f; /* 1 / sqrt(HEAD_DIM) */
        largest = weights[t] > largest ? weights[t] : largest;
    }
    float sum = 0;
    for (uint32_t t = 0; t < n; t++) {
        weights[t] = expf(weights[t] - largest);
        sum += weights[t];
    }
    for (uint32_t i = 0; i < HEAD_DIM; i++)
        out[i] = 0;
    for (uint32_t t = 0; t < n; t++) {
        const float *v = context->row(context->values, t);
        for (uint32_t i = 0; i < HEAD_DIM; i++)
            out[i] += weights[t] * v[i];
    }
    for (uint32_t i = 0; i < HEAD_DIM; i++)
        out[i] /= sum;
}

void model_attend(const struct model *model, uint32_t layer, uint32_t group,
                  const struct model_query *query, uint32_t position,
                  const struct model_context *context, float partial[D_MODEL])
{
    float heads[GROUP_HEADS][HEAD_DIM];
    for (uint32_t head = 0; head < GROUP_HEADS; head++)
        attend_head(query->head[head], position + 1, context, heads[head]);
    multiply(heads[0], GROUP_DIM, model->layers[layer].groups[group].wo[0], D_MODEL, partial);
}

/* ---- The rest ------------------------------------------------------------ */

void model_mlp(const struct model *model, uint32_t layer, uint32_t group, const float x[D_MODEL],
               float partial[D_MODEL])
{
    const struct model_group *weights = &model->layers[layer].groups[group];
    float h[D_MODEL], hidden[GROUP_HIDDEN];
    norm(x, h);
    multiply(h, D_MODEL, weights->up[0], GROUP_HIDDEN, hidden);
    for (uint32_t i = 0; i < GROUP_HIDDEN; i++)
        hidden[i] /= 1 + expf(-hidden[i]);
    multiply(hidden, GROUP_HIDDEN, weights->down[0], D_MODEL, partial);
}

void model_add(float x[D_MODEL], float partials[N_GROUPS][D_MODEL])
{
    for (uint32_t g = 0; g < N_GROUPS; g++)
        for (uint32_t i = 0; i < D_MODEL; i++)
            x[i] += partials[g][i];
}

void model_logits(const struct model *model, const float x[D_MODEL], float logits[VOCABULARY])
{
    float h[D_MODEL];
    norm(x, h);
    for (uint32_t token = 0; token < VOCABULARY; token++) {
        logits[token] = 0;
        for (uint32_t i = 0; i < D_MODEL; i++)
            logits[token] += h[i] * model->embedding[token][i];
    }
}

struct model_answer model_answer_of(const float logits[VOCABULARY])
{
    struct model_answer answer = { .digest = UINT64_C(0xcbf29ce484222325),
                                   .token = -1,
                                   .runner_up = -1 };
    for (int32_t token = 0; token < VOCABULARY; token++) {
        uint32_t bits;
        memcpy(&bits, &logits[token], sizeof bits);
        answer.digest = model_random(answer.digest, bits);
        if (token == IMAGE_TOKEN)
            continue; /* no model says a picture */
        if (answer.token < 0 || logits[token] > logits[answer.token]) {
            answer.runner_up = answer.token;
            answer.token = token;
        } else if (answer.runner_up < 0 || logits[token] > logits[answer.runner_up]) {
            answer.runner_up = token;
        }
    }
    return answer;
}
