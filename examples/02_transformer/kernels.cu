/* SPDX-License-Identifier: Apache-2.0 */

/* model.c as kernels: simple ones, that add in the same fixed order. Each row is
 * computed by its own blocks in the same way whatever else the launch holds, so
 * that the logits of a row do not tell how it was served. They need not equal the
 * CPU's. */

#include "kernels.h"

#define KERNEL extern "C" __global__ void __launch_bounds__(VOCABULARY)
#define LANES 32u

static __device__ const struct plan_row *row_of(const kernel_args &args)
{
    return blockIdx.x < args.plan->n_rows ? &args.plan->rows[blockIdx.x] : nullptr;
}

static __device__ uint64_t random_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed * 0xd1342543de82ef95ull + (n + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Every thread adds up all of x, in the same order. */
static __device__ float norm_scale(const float *x)
{
    float squares = 0;
    for (uint32_t i = 0; i < D_MODEL; i++)
        squares += x[i] * x[i];
    return 1 / sqrtf(squares / D_MODEL + 1e-5f);
}

/* Output j of x W, where W has n_out columns. */
static __device__ float multiply(const float *x, uint32_t n_in, const float *w, uint32_t n_out,
                                 uint32_t j)
{
    float sum = 0;
    for (uint32_t i = 0; i < n_in; i++)
        sum += x[i] * w[(size_t)i * n_out + j];
    return sum;
}

static __device__ float *kv_row(uint64_t plane, const kernel_args &args, const plan_part &part,
                                uint32_t position, uint32_t group)
{
    uint64_t page = (uint64_t)part.pages[position / PAGE_TOKENS];
    float *rows = (float *)(plane + page * args.page_bytes);
    return rows + (size_t)(position % PAGE_TOKENS * N_GROUPS + group) * HEAD_DIM;
}

/* D_MODEL threads. */
KERNEL transformer_embed(const __grid_constant__ kernel_args args)
{
    const plan_row *row = row_of(args);
    uint32_t i = threadIdx.x;
    if (!row)
        return;
    int32_t token = row->input.token;
    if (token == NEXT_TOKEN)
        token = args.next_token[args.plan->parts[row->part].chat];
    float value;
    if (row->input.image) {
        uint64_t random = random_of(row->input.image, (uint64_t)row->input.patch * D_MODEL + i);
        value = 2 * ((float)(random >> 40) / (float)(1 << 24)) - 1;
    } else {
        value = args.model->embedding[token][i];
    }
    args.x[blockIdx.x][i] = value;
}

/* D_MODEL threads a group: GROUP_DIM for the query, HEAD_DIM for the key and for
 * the value each. Grid: (rows, groups). */
KERNEL transformer_project(const __grid_constant__ kernel_args args)
{
    __shared__ float h[D_MODEL], out[GROUP_DIM + 2 * HEAD_DIM];
    static_assert(GROUP_DIM + 2 * HEAD_DIM == D_MODEL, "an output a thread");
    const plan_row *row = row_of(args);
    if (!row)
        return;
    uint32_t j = threadIdx.x, group = blockIdx.y, position = row->input.position;
    const model_layer &layer = args.model->layers[args.layer];
    const model_group &weights = layer.groups[group];
    const float *x = args.x[blockIdx.x];
    h[j] = x[j] * norm_scale(x);
    __syncthreads();
    if (j < GROUP_DIM)
        out[j] = multiply(h, D_MODEL, weights.wq[0], GROUP_DIM, j);
    else if (j < GROUP_DIM + HEAD_DIM)
        out[j] = multiply(h, D_MODEL, weights.wk[0], HEAD_DIM, j - GROUP_DIM);
    else
        out[j] = multiply(h, D_MODEL, weights.wv[0], HEAD_DIM, j - GROUP_DIM - HEAD_DIM);
    __syncthreads();

    const plan_part &part = args.plan->parts[row->part];
    if (j < GROUP_DIM + HEAD_DIM) { /* queries and key: RoPE turns pairs */
        uint32_t pair = j % HEAD_DIM / 2;
        float cosine = args.model->rope_cos[position][pair];
        float sine = args.model->rope_sin[position][pair];
        float a = out[j & ~1u], b = out[j | 1u];
        float turned = j & 1 ? a * sine + b * cosine : a * cosine - b * sine;
        if (j < GROUP_DIM)
            args.queries[blockIdx.x][group].head[j / HEAD_DIM][j % HEAD_DIM] = turned;
        else
            kv_row(args.keys, args, part, position, group)[j - GROUP_DIM] = turned;
        return;
    }
    uint32_t i = j - GROUP_DIM - HEAD_DIM;
    float value = out[j];
    if (row->input.adapter) {
        uint32_t adapter = row->input.adapter - 1;
        float low[ADAPTER_RANK];
        for (uint32_t r = 0; r < ADAPTER_RANK; r++)
            low[r] = multiply(h, D_MODEL, layer.adapter_down[adapter][0], ADAPTER_RANK, r);
        value += multiply(low, ADAPTER_RANK, weights.adapter_up[adapter][0], HEAD_DIM, i);
    }
    kv_row(args.values, args, part, position, group)[i] = value;
}

/* D_MODEL threads a group, LANES a head. Grid: (rows, groups). */
KERNEL transformer_attend(const __grid_constant__ kernel_args args)
{
    __shared__ float weights[GROUP_HEADS][MAX_CONTEXT], out[GROUP_DIM];
    static_assert(GROUP_HEADS * LANES == D_MODEL && HEAD_DIM <= LANES, "LANES a head");
    const plan_row *row = row_of(args);
    if (!row)
        return;
    uint32_t head = threadIdx.x / LANES, lane = threadIdx.x % LANES, group = blockIdx.y;
    uint32_t n = row->input.position + 1;
    const plan_part &part = args.plan->parts[row->part];
    const float *q = args.queries[blockIdx.x][group].head[head];
    for (uint32_t t = lane; t < n; t += LANES) {
        const float *k = kv_row(args.keys, args, part, t, group);
        float score = 0;
        for (uint32_t i = 0; i < HEAD_DIM; i++)
            score += q[i] * k[i];
        weights[head][t] = score * 0.25f; /* 1 / sqrt(HEAD_DIM) */
    }
    __syncthreads();
    float largest = weights[head][0];
    for (uint32_t t = 1; t < n; t++)
        largest = fmaxf(largest, weights[head][t]);
    __syncthreads();
    for (uint32_t t = lane; t < n; t += LANES)
        weights[head][t] = expf(weights[head][t] - largest);
    __syncthreads();
    if (lane < HEAD_DIM) {
        float sum = 0, mean = 0;
        for (uint32_t t = 0; t < n; t++) {
            sum += weights[head][t];
            mean += weights[head][t] * kv_row(args.values, args, part, t, group)[lane];
        }
        out[head * HEAD_DIM + lane] = mean / sum;
    }
    __syncthreads();
    const float *wo = args.model->layers[args.layer].groups[group].wo[0];
    args.partials[blockIdx.x][group][threadIdx.x] =
        multiply(out, GROUP_DIM, wo, D_MODEL, threadIdx.x);
}

/* D_MODEL threads. */
KERNEL transformer_add(const __grid_constant__ kernel_args args)
{
    if (!row_of(args))
        return;
    float sum = args.x[blockIdx.x][threadIdx.x];
    for (uint32_t g = 0; g < N_GROUPS; g++)
        sum += args.partials[blockIdx.x][g][threadIdx.x];
    args.x[blockIdx.x][threadIdx.x] = sum;
}

/* D_MODEL threads a group. Grid: (rows, groups). */
KERNEL transformer_mlp(const __grid_constant__ kernel_args args)
{
    __shared__ float h[D_MODEL], hidden[GROUP_HIDDEN];
    static_assert(GROUP_HIDDEN == D_MODEL, "an output a thread");
    if (!row_of(args))
        return;
    uint32_t j = threadIdx.x, group = blockIdx.y;
    const model_group &weights = args.model->layers[args.layer].groups[group];
    const float *x = args.x[blockIdx.x];
    h[j] = x[j] * norm_scale(x);
    __syncthreads();
    float up = multiply(h, D_MODEL, weights.up[0], GROUP_HIDDEN, j);
    hidden[j] = up / (1 + expf(-up));
    __syncthreads();
    args.partials[blockIdx.x][group][j] =
        multiply(hidden, GROUP_HIDDEN, weights.down[0], D_MODEL, j);
}

/* VOCABULARY threads. */
KERNEL transformer_choose(const __grid_constant__ kernel_args args)
{
    __shared__ float h[D_MODEL], logits[VOCABULARY];
    const plan_row *row = row_of(args);
    if (!row)
        return;
    const float *x = args.x[blockIdx.x];
    if (threadIdx.x < D_MODEL)
        h[threadIdx.x] = x[threadIdx.x] * norm_scale(x);
    __syncthreads();
    float logit = 0;
    for (uint32_t i = 0; i < D_MODEL; i++)
        logit += h[i] * args.model->embedding[threadIdx.x][i];
    logits[threadIdx.x] = logit;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    model_answer answer = {};
    if (row->wanted) {
        answer.digest = 0xcbf29ce484222325ull;
        answer.token = answer.runner_up = -1;
        for (int32_t token = 0; token < VOCABULARY; token++) {
            answer.digest = random_of(answer.digest, __float_as_uint(logits[token]));
            if (token == IMAGE_TOKEN)
                continue;
            if (answer.token < 0 || logits[token] > logits[answer.token]) {
                answer.runner_up = answer.token;
                answer.token = token;
            } else if (answer.runner_up < 0 || logits[token] > logits[answer.runner_up]) {
                answer.runner_up = token;
            }
        }
        /* The last row of a chat is the last of its rows that are wanted. */
        if (blockIdx.x + 1 == args.plan->n_rows || row[1].part != row->part)
            args.next_token[args.plan->parts[row->part].chat] = answer.token;
    }
    args.answers[blockIdx.x] = answer;
}
