/* SPDX-License-Identifier: Apache-2.0 */
#include "hands_device.h"

#include "pattern_gpu.h"

#include <weir/device.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One step on one rank. */
struct task {
    struct weir_pattern_batch batch;
    weir_event *event; /* behind the step's end */
};

struct gpu {
    weir_device *device;
    struct weir_pattern_gpu pattern;
};

struct state {
    struct gpu *gpus;                   /* [n_gpus] */
    struct weir_pattern_planes *planes; /* [rank] */
    struct task *tasks;                 /* [work][rank] */
};

static struct task *task_of(const struct weir_hands *hands, size_t work, uint32_t rank)
{
    const struct state *state = hands->state;
    return &state->tasks[work * hands->options->n_ranks + rank];
}

/* Ranks are dealt out to the GPUs. */
static struct gpu *gpu_of(const struct weir_hands *hands, uint32_t rank)
{
    const struct state *state = hands->state;
    return &state->gpus[rank % hands->options->n_gpus];
}

/* ---- Steps --------------------------------------------------------------- */

/* What of a part is filled and checked, and from which token on the kernels need
 * fingerprints: from the beginning of a page. */
struct span {
    size_t first_fill; /* pages */
    size_t first_check;
    size_t n_pages;
    size_t first_token;
};

static struct span span_of(const struct weir_replay_options *options,
                           const struct weir_step_part *part)
{
    size_t page_tokens = options->page_tokens;
    size_t n_pages = (part->end + page_tokens - 1) / page_tokens;
    size_t first_fill = part->begin < part->end ? part->begin / page_tokens : n_pages;
    size_t first_check = options->verify ? 0 : n_pages;
    size_t first = first_check < first_fill ? first_check : first_fill;
    return (struct span){ first_fill, first_check, n_pages, first * page_tokens };
}

static uint64_t count_tokens(const struct span *span, const struct weir_step_part *part)
{
    return span->first_token < part->end ? part->end - span->first_token : 0;
}

static int begin_batch(struct weir_hands *hands, const struct weir_work *work, uint32_t rank,
                       struct weir_pattern_batch *batch)
{
    uint64_t n_fills = 0;
    uint64_t n_checks = 0;
    uint64_t n_tokens = 0;
    for (size_t i = 0; i < work->n_parts; i++) {
        struct span span = span_of(hands->options, &work->parts[i]);
        n_fills += span.n_pages - span.first_fill;
        n_checks += span.n_pages - span.first_check;
        n_tokens += count_tokens(&span, &work->parts[i]);
    }
    if (n_fills > INT32_MAX || n_checks > INT32_MAX || n_tokens > UINT32_MAX)
        return -ENOMEM;
    return weir_pattern_batch_begin(batch, &gpu_of(hands, rank)->pattern, (uint32_t)n_fills,
                                    (uint32_t)n_checks, n_tokens);
}

static struct weir_pattern_entry *add_pages(struct weir_pattern_entry *entry,
                                            const struct weir_step_part *part,
                                            const struct span *span, uint32_t page_tokens,
                                            size_t first_page, size_t begin, size_t first)
{
    for (size_t page = first_page; page < span->n_pages; page++) {
        size_t token = page * page_tokens;
        size_t end = part->end - token;
        *entry++ = (struct weir_pattern_entry){
            .page = part->request->pages[page],
            .begin = begin > token ? (uint32_t)(begin - token) : 0,
            .end = end < page_tokens ? (uint32_t)end : page_tokens,
            .first = (uint32_t)(first + token - span->first_token),
        };
    }
    return entry;
}

/* The same for all ranks, but each has a batch of its own to be uploaded from
 * and to. */
static int prepare(struct weir_hands *hands, size_t index, uint32_t rank)
{
    const struct weir_work *work = &hands->works[index];
    struct weir_pattern_batch *batch = &task_of(hands, index, rank)->batch;
    int rc = begin_batch(hands, work, rank, batch);
    if (rc)
        return rc;
    uint32_t page_tokens = hands->options->page_tokens;
    struct weir_pattern_entry *fill = batch->fills;
    struct weir_pattern_entry *check = batch->checks;
    size_t first = 0;
    for (size_t i = 0; i < work->n_parts; i++) {
        const struct weir_step_part *part = &work->parts[i];
        struct span span = span_of(hands->options, part);
        fill = add_pages(fill, part, &span, page_tokens, span.first_fill, part->begin, first);
        check = add_pages(check, part, &span, page_tokens, span.first_check, 0, first);
        uint64_t n = count_tokens(&span, part);
        if (n)
            memcpy(batch->fingerprints + first, part->request->fingerprints + span.first_token,
                   n * sizeof *batch->fingerprints);
        first += n;
    }
    return 0;
}

/* All rows of a layer are computed before any is compared, so that a page that
 * lies over another one is seen. */
static int forward(struct weir_hands *hands, size_t index, uint32_t rank)
{
    struct state *state = hands->state;
    struct weir_pattern_gpu *pattern = &gpu_of(hands, rank)->pattern;
    const struct weir_hand *hand = &hands->hands[rank];
    const struct weir_pattern_batch *batch = &task_of(hands, index, rank)->batch;
    const struct weir_pattern_planes *planes = &state->planes[rank];
    int rc = weir_pattern_batch_upload(batch, pattern, hand->stream);
    for (uint32_t layer = 0; !rc && layer < hands->options->n_layers; layer++) {
        rc = weir_rank_wait_layer(hand->rank, hands->works[index].step, layer, hand->stream);
        if (!rc)
            rc = weir_pattern_batch_fill(batch, pattern, planes, layer, hand->stream);
        if (!rc)
            rc = weir_pattern_batch_check(batch, pattern, planes, layer, hand->stream);
    }
    return rc ? rc : weir_pattern_batch_download(batch, pattern, hand->stream);
}

static int ended(struct weir_hands *hands, size_t index, uint32_t rank)
{
    const struct weir_hand *hand = &hands->hands[rank];
    return hand->device->ops->event_record(hand->device, task_of(hands, index, rank)->event,
                                           hand->stream);
}

/* Which part a check's entry belongs to, and the token of its row. */
static struct weir_wrong_place place_of(const struct weir_hands *hands,
                                        const struct weir_work *work, uint32_t rank,
                                        const struct weir_pattern_wrong *wrong)
{
    struct weir_wrong_place place = {
        .work = work, .rank = rank, .layer = wrong->layer, .tensor = wrong->tensor
    };
    size_t page = wrong->entry;
    for (place.part = work->parts;; place.part++) {
        size_t n_pages = span_of(hands->options, place.part).n_pages;
        if (page < n_pages)
            break;
        page -= n_pages;
    }
    place.token = page * hands->options->page_tokens + wrong->row;
    return place;
}

static void retire(struct weir_hands *hands, size_t index)
{
    const struct weir_work *work = &hands->works[index];
    for (uint32_t rank = 0; rank < hands->options->n_ranks; rank++) {
        const struct weir_pattern_wrong *wrong = task_of(hands, index, rank)->batch.wrong;
        if (!wrong->bytes)
            continue;
        struct weir_wrong_place place = place_of(hands, work, rank, wrong);
        weir_hands_add_wrong(hands, wrong->bytes, &place);
    }
}

/* The oldest step only, so that the GPU has work while the host makes more. */
static int wait_for_oldest(struct weir_hands *hands)
{
    size_t oldest = WEIR_REPLAY_STEPS;
    for (size_t i = 0; i < WEIR_REPLAY_STEPS; i++)
        if (hands->works[i].step &&
            (oldest == WEIR_REPLAY_STEPS || hands->works[i].step < hands->works[oldest].step))
            oldest = i;
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = oldest < WEIR_REPLAY_STEPS ? weir_gpu_wait(&gpu_of(hands, rank)->pattern.gpu,
                                                        task_of(hands, oldest, rank)->event)
                                        : weir_rank_synchronize(hands->hands[rank].rank);
    return rc;
}

static uint64_t races(const struct weir_hands *hands)
{
    (void)hands;
    return 0;
}

/* ---- Opening and closing ------------------------------------------------- */

static int open_rank(struct weir_hands *hands, uint32_t rank, const weir_rank_params *params)
{
    struct state *state = hands->state;
    struct gpu *gpu = gpu_of(hands, rank);
    struct weir_hand *hand = &hands->hands[rank];
    const struct weir_device_ops *ops = gpu->device->ops;
    hand->device = gpu->device;
    int rc = ops->stream_create(hand->device, 0, &hand->stream);
    if (!rc)
        rc = weir_rank_open(&hand->rank, hand->device, params);
    if (!rc)
        rc = weir_pattern_planes_create(&state->planes[rank], &gpu->pattern, hand->rank,
                                        params->shape, rank, hand->stream);
    for (size_t work = 0; !rc && work < WEIR_REPLAY_STEPS; work++)
        rc = ops->event_create(hand->device, &task_of(hands, work, rank)->event);
    return rc;
}

static int open_gpu(struct gpu *gpu, uint32_t ordinal, weir_log log)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.ordinal = ordinal;
    params.log = log;
    int rc = weir_device_open(&gpu->device, &params);
    return rc ? rc : weir_pattern_gpu_open(&gpu->pattern, gpu->device);
}

static int open_all(struct weir_hands *hands, const weir_rank_params *params)
{
    uint32_t n_gpus = hands->options->n_gpus;
    uint32_t n_ranks = hands->options->n_ranks;
    struct state *state = hands->state = calloc(1, sizeof *state);
    if (!state)
        return -ENOMEM;
    state->gpus = calloc(n_gpus, sizeof *state->gpus);
    state->planes = calloc(n_ranks, sizeof *state->planes);
    state->tasks = calloc((size_t)n_ranks * WEIR_REPLAY_STEPS, sizeof *state->tasks);
    if (!state->gpus || !state->planes || !state->tasks)
        return -ENOMEM;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < n_gpus; i++)
        rc = open_gpu(&state->gpus[i], i, params->log);
    for (uint32_t rank = 0; !rc && rank < n_ranks; rank++)
        rc = open_rank(hands, rank, params);
    return rc;
}

static void close_rank(struct weir_hands *hands, uint32_t rank)
{
    struct state *state = hands->state;
    struct gpu *gpu = gpu_of(hands, rank);
    weir_rank_close(&hands->hands[rank].rank);
    weir_pattern_planes_destroy(&state->planes[rank], &gpu->pattern);
    for (size_t work = 0; work < WEIR_REPLAY_STEPS; work++) {
        struct task *task = task_of(hands, work, rank);
        weir_pattern_batch_destroy(&task->batch, &gpu->pattern);
        if (task->event)
            gpu->device->ops->event_destroy(gpu->device, task->event);
    }
}

/* First all work ends, since kernels of one rank may run while another closes. */
static void close_all(struct weir_hands *hands)
{
    struct state *state = hands->state;
    if (!state)
        return;
    bool opened = state->gpus && state->planes && state->tasks;
    for (uint32_t rank = 0; opened && rank < hands->options->n_ranks; rank++) {
        weir_device *device = gpu_of(hands, rank)->device;
        if (hands->hands[rank].stream)
            device->ops->stream_destroy(device, hands->hands[rank].stream);
    }
    for (uint32_t rank = 0; opened && rank < hands->options->n_ranks; rank++)
        close_rank(hands, rank);
    for (uint32_t i = 0; opened && i < hands->options->n_gpus; i++) {
        weir_pattern_gpu_close(&state->gpus[i].pattern);
        weir_device_close(&state->gpus[i].device);
    }
    free(state->gpus);
    free(state->planes);
    free(state->tasks);
    free(state);
}

const struct weir_hands_ops weir_hands_cuda = {
    .open = open_all,
    .close = close_all,
    .prepare = prepare,
    .forward = forward,
    .ended = ended,
    .retire = retire,
    .wait = wait_for_oldest,
    .races = races,
};
