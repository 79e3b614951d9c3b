/* SPDX-License-Identifier: Apache-2.0 */
#include "hands_device.h"

#include "pattern.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <stdlib.h>

/* The argument of one kernel: one layer of one step on one rank. */
struct launch {
    struct weir_hands *hands;
    const struct weir_work *work;
    uint32_t rank;
    uint32_t layer;
};

/* What a layer of a step touches. Each rank has its own, since ranks may run on
 * threads. */
struct accesses {
    weir_cpu_access *list;
    size_t n;
    size_t capacity;
};

struct state {
    struct launch *launches;   /* [work][rank][layer] */
    uint64_t *places;          /* [rank][layer][tensor] */
    struct accesses *accesses; /* [work][rank] */
};

static struct accesses *accesses_of(const struct weir_hands *hands, size_t work, uint32_t rank)
{
    const struct state *state = hands->state;
    return &state->accesses[work * hands->options->n_ranks + rank];
}

static uint64_t place_of(const struct weir_hands *hands, uint32_t rank, uint32_t layer,
                         uint32_t tensor)
{
    const struct weir_replay_options *options = hands->options;
    const struct state *state = hands->state;
    return state->places[((size_t)rank * options->n_layers + layer) * options->n_tensors + tensor];
}

static struct launch *launch_of(const struct weir_hands *hands, size_t work, uint32_t rank,
                                uint32_t layer)
{
    const struct weir_replay_options *options = hands->options;
    const struct state *state = hands->state;
    return &state->launches[(work * options->n_ranks + rank) * options->n_layers + layer];
}

/* ---- The forward pass of a layer ----------------------------------------- */

static unsigned char *row_of(const struct launch *launch, uint32_t tensor,
                             const struct weir_replay_request *request, size_t token)
{
    const struct weir_replay_options *options = launch->hands->options;
    weir_device_page page = { request->pages[token / options->page_tokens] };
    uint64_t address = weir_rank_device_address(launch->hands->hands[launch->rank].rank, tensor,
                                                launch->layer, page);
    return (unsigned char *)(uintptr_t)address + token % options->page_tokens * options->row_bytes;
}

static void compute_rows(const struct launch *launch, uint32_t tensor,
                         const struct weir_step_part *part)
{
    const struct weir_replay_options *options = launch->hands->options;
    uint64_t place = place_of(launch->hands, launch->rank, launch->layer, tensor);
    unsigned char *row = NULL;
    for (size_t i = part->begin; i < part->end; i++) {
        bool page_begins = i == part->begin || i % options->page_tokens == 0;
        row = page_begins ? row_of(launch, tensor, part->request, i) : row + options->row_bytes;
        weir_pattern_fill(row, options->row_bytes, place, part->request->fingerprints[i]);
    }
}

static void verify_rows(const struct launch *launch, uint32_t tensor,
                        const struct weir_step_part *part)
{
    struct weir_hands *hands = launch->hands;
    const struct weir_replay_options *options = hands->options;
    uint64_t place = place_of(hands, launch->rank, launch->layer, tensor);
    const unsigned char *row = NULL;
    for (size_t i = 0; i < part->end; i++) {
        row = i % options->page_tokens == 0 ? row_of(launch, tensor, part->request, i)
                                            : row + options->row_bytes;
        size_t wrong =
            weir_pattern_compare(row, options->row_bytes, place, part->request->fingerprints[i]);
        if (wrong)
            weir_hands_add_wrong(hands, wrong,
                                 &(struct weir_wrong_place){ launch->work, part, i, launch->rank,
                                                             launch->layer, tensor });
    }
}

/* All rows are computed before any is compared, so that a page that lies over
 * another one is seen. */
static void forward_layer(void *arg)
{
    const struct launch *launch = arg;
    const struct weir_replay_options *options = launch->hands->options;
    for (size_t i = 0; i < launch->work->n_parts; i++)
        for (uint32_t tensor = 0; tensor < options->n_tensors; tensor++)
            compute_rows(launch, tensor, &launch->work->parts[i]);
    if (!options->verify)
        return;
    for (size_t i = 0; i < launch->work->n_parts; i++)
        for (uint32_t tensor = 0; tensor < options->n_tensors; tensor++)
            verify_rows(launch, tensor, &launch->work->parts[i]);
}

/* ---- Steps --------------------------------------------------------------- */

/* A page that is partly computed already counts as written. */
static int prepare(struct weir_hands *hands, size_t index, uint32_t rank)
{
    struct accesses *accesses = accesses_of(hands, index, rank);
    const struct weir_work *work = &hands->works[index];
    uint32_t page_tokens = hands->options->page_tokens;
    uint32_t n_tensors = hands->options->n_tensors;
    size_t n_pages = 0;
    for (size_t i = 0; i < work->n_parts; i++)
        n_pages += (work->parts[i].end + page_tokens - 1) / page_tokens;
    accesses->n = n_pages * n_tensors;
    if (accesses->n > accesses->capacity) {
        void *moved = reallocarray(accesses->list, accesses->n, sizeof *accesses->list);
        if (!moved)
            return -ENOMEM;
        accesses->list = moved;
        accesses->capacity = accesses->n;
    }
    weir_cpu_access *access = accesses->list;
    for (size_t i = 0; i < work->n_parts; i++) {
        const struct weir_step_part *part = &work->parts[i];
        for (size_t page = 0; page * page_tokens < part->end; page++)
            for (uint32_t tensor = 0; tensor < n_tensors; tensor++)
                *access++ = (weir_cpu_access){
                    .pool = weir_rank_cpu_pool(hands->hands[rank].rank),
                    .page = part->request->pages[page],
                    .tensor = (uint16_t)tensor,
                    .write = part->begin < part->end && page >= part->begin / page_tokens,
                };
    }
    return 0;
}

static int forward(struct weir_hands *hands, size_t index, uint32_t rank)
{
    struct accesses *accesses = accesses_of(hands, index, rank);
    struct weir_hand *hand = &hands->hands[rank];
    for (uint32_t layer = 0; layer < hands->options->n_layers; layer++) {
        int rc = weir_rank_wait_layer(hand->rank, hands->works[index].step, layer, hand->stream);
        if (rc)
            return rc;
        for (size_t i = 0; i < accesses->n; i++)
            accesses->list[i].layer = (uint16_t)layer;
        rc = weir_cpu_launch(hand->device, hand->stream, forward_layer,
                             launch_of(hands, index, rank, layer), accesses->list, accesses->n);
        if (rc)
            return rc;
    }
    return 0;
}

static int ended(struct weir_hands *hands, size_t index, uint32_t rank)
{
    (void)hands;
    (void)index;
    (void)rank;
    return 0;
}

static void retire(struct weir_hands *hands, size_t index)
{
    (void)hands;
    (void)index;
}

static int wait_for_all(struct weir_hands *hands)
{
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++) {
        struct weir_hand *hand = &hands->hands[rank];
        rc = weir_cpu_stream_synchronize(hand->device, hand->stream);
        if (!rc)
            rc = weir_rank_synchronize(hand->rank);
    }
    return rc;
}

static uint64_t races(const struct weir_hands *hands)
{
    uint64_t n = 0;
    for (uint32_t rank = 0; rank < hands->options->n_ranks; rank++)
        n += weir_cpu_device_races(hands->hands[rank].device);
    return n;
}

/* ---- Opening and closing ------------------------------------------------- */

static int open_rank(struct weir_hand *hand, const weir_rank_params *params, double link_gbps)
{
    weir_cpu_device_params device_params;
    weir_cpu_device_params_init(&device_params);
    device_params.log = params->log;
    device_params.load_gbps = link_gbps;
    device_params.write_back_gbps = link_gbps;
    int rc = weir_cpu_device_open(&hand->device, &device_params);
    if (!rc)
        rc = weir_cpu_stream_create(hand->device, &hand->stream);
    return rc ? rc : weir_rank_open(&hand->rank, hand->device, params);
}

static int make_launches(struct weir_hands *hands, struct state *state)
{
    const struct weir_replay_options *options = hands->options;
    size_t n = (size_t)options->n_ranks * options->n_layers;
    state->launches = calloc(WEIR_REPLAY_STEPS * n, sizeof *state->launches);
    state->places = calloc(n * options->n_tensors, sizeof *state->places);
    state->accesses = calloc((size_t)WEIR_REPLAY_STEPS * options->n_ranks, sizeof *state->accesses);
    if (!state->launches || !state->places || !state->accesses)
        return -ENOMEM;
    uint64_t *place = state->places;
    for (uint32_t rank = 0; rank < options->n_ranks; rank++)
        for (uint32_t layer = 0; layer < options->n_layers; layer++) {
            for (size_t work = 0; work < WEIR_REPLAY_STEPS; work++)
                *launch_of(hands, work, rank, layer) =
                    (struct launch){ hands, &hands->works[work], rank, layer };
            for (uint32_t tensor = 0; tensor < options->n_tensors; tensor++)
                *place++ = weir_pattern_place(rank, layer, tensor);
        }
    return 0;
}

static int open_all(struct weir_hands *hands, const weir_rank_params *params)
{
    struct state *state = hands->state = calloc(1, sizeof *state);
    int rc = state ? make_launches(hands, state) : -ENOMEM;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = open_rank(&hands->hands[rank], params, hands->options->link_gbps);
    return rc;
}

static void close_all(struct weir_hands *hands)
{
    for (uint32_t rank = 0; rank < hands->options->n_ranks; rank++) {
        struct weir_hand *hand = &hands->hands[rank];
        if (!hand->device)
            continue;
        weir_cpu_stream_destroy(hand->device, &hand->stream);
        weir_rank_close(&hand->rank);
        weir_device_close(&hand->device);
    }
    struct state *state = hands->state;
    if (!state)
        return;
    free(state->launches);
    free(state->places);
    for (size_t i = 0; state->accesses && i < (size_t)WEIR_REPLAY_STEPS * hands->options->n_ranks;
         i++)
        free(state->accesses[i].list);
    free(state->accesses);
    free(state);
}

const struct weir_hands_ops weir_hands_cpu = {
    .open = open_all,
    .close = close_all,
    .prepare = prepare,
    .forward = forward,
    .ended = ended,
    .retire = retire,
    .wait = wait_for_all,
    .races = races,
};
