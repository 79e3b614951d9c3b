/* SPDX-License-Identifier: Apache-2.0 */
#include "hands.h"

#include "pattern.h"

#include <weir/cpu_device.h>
#include <weir/rank.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_ITEMS 64u

struct work {
    uint64_t step; /* 0: free */
    struct weir_step_part *parts;
    size_t n_parts;
    size_t capacity;
};

/* The argument of one kernel: one layer of one step on one rank. */
struct launch {
    struct weir_hands *hands;
    const struct work *work;
    uint32_t rank;
    uint32_t layer;
};

struct hand {
    weir_device *device;
    weir_rank *rank;
    weir_stream *stream;
    uint64_t ended; /* the last step whose end was reported */
};

struct weir_hands {
    const struct weir_replay_options *options;
    struct weir_request_pool *pool;
    struct hand *hands;
    uint64_t last_step;
    struct work works[WEIR_REPLAY_STEPS];
    struct launch *launches; /* [work][rank][layer] */
    uint64_t *places;        /* [rank][layer][tensor] */
    weir_cpu_access *accesses;
    size_t accesses_capacity;
    uint64_t *report;
    size_t report_bytes;
    uint64_t failures;
    atomic_ullong wrong_bytes;
    atomic_flag wrong_told;
};

static uint64_t place_of(const struct weir_hands *hands, uint32_t rank, uint32_t layer,
                         uint32_t tensor)
{
    const struct weir_replay_options *options = hands->options;
    return hands->places[((size_t)rank * options->n_layers + layer) * options->n_tensors + tensor];
}

static struct launch *launch_of(struct weir_hands *hands, size_t work, uint32_t rank,
                                uint32_t layer)
{
    const struct weir_replay_options *options = hands->options;
    return &hands->launches[(work * options->n_ranks + rank) * options->n_layers + layer];
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
        if (!wrong)
            continue;
        atomic_fetch_add(&hands->wrong_bytes, wrong);
        if (!atomic_flag_test_and_set(&hands->wrong_told))
            fprintf(stderr,
                    "first wrong bytes: request of line %llu, step %llu, rank %u, layer %u, "
                    "tensor %u, token %zu, device page %d, %s\n",
                    (unsigned long long)part->request->trace->line,
                    (unsigned long long)launch->work->step, launch->rank, launch->layer, tensor, i,
                    part->request->pages[i / options->page_tokens],
                    i < part->begin ? "from the cache" : "just computed");
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

static int enlarge(void *array, size_t n, size_t *capacity, size_t size)
{
    if (n <= *capacity)
        return 0;
    void *moved = reallocarray(*(void **)array, n, size);
    if (!moved)
        return -ENOMEM;
    *(void **)array = moved;
    *capacity = n;
    return 0;
}

static int keep_parts(struct work *work, uint64_t step, const struct weir_step_part *parts,
                      size_t n)
{
    int rc = enlarge(&work->parts, n, &work->capacity, sizeof *work->parts);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++) {
        work->parts[i] = parts[i];
        parts[i].request->n_steps++;
    }
    work->n_parts = n;
    work->step = step;
    return 0;
}

/* A page that is partly computed already counts as written. */
static int list_accesses(struct weir_hands *hands, const struct work *work, size_t *n)
{
    uint32_t page_tokens = hands->options->page_tokens;
    uint32_t n_tensors = hands->options->n_tensors;
    size_t n_pages = 0;
    for (size_t i = 0; i < work->n_parts; i++)
        n_pages += (work->parts[i].end + page_tokens - 1) / page_tokens;
    int rc = enlarge(&hands->accesses, n_pages * n_tensors, &hands->accesses_capacity,
                     sizeof *hands->accesses);
    if (rc)
        return rc;
    weir_cpu_access *access = hands->accesses;
    for (size_t i = 0; i < work->n_parts; i++) {
        const struct weir_step_part *part = &work->parts[i];
        for (size_t page = 0; page * page_tokens < part->end; page++)
            for (uint32_t tensor = 0; tensor < n_tensors; tensor++)
                *access++ = (weir_cpu_access){
                    .page = part->request->pages[page],
                    .tensor = (uint16_t)tensor,
                    .write = part->begin < part->end && page >= part->begin / page_tokens,
                };
    }
    *n = n_pages * n_tensors;
    return 0;
}

static int forward(struct weir_hands *hands, size_t index, uint32_t rank, size_t n_accesses)
{
    struct hand *hand = &hands->hands[rank];
    const struct work *work = &hands->works[index];
    uint32_t pool = weir_rank_cpu_pool(hand->rank);
    for (uint32_t layer = 0; layer < hands->options->n_layers; layer++) {
        int rc = weir_rank_wait_layer(hand->rank, work->step, layer, hand->stream);
        if (rc)
            return rc;
        for (size_t i = 0; i < n_accesses; i++) {
            hands->accesses[i].pool = pool;
            hands->accesses[i].layer = (uint16_t)layer;
        }
        rc = weir_cpu_launch(hand->device, hand->stream, forward_layer,
                             launch_of(hands, index, rank, layer), hands->accesses, n_accesses);
        if (rc)
            return rc;
    }
    return 0;
}

static int step_on_rank(struct weir_hands *hands, size_t index, uint32_t rank, const void *order,
                        size_t bytes, size_t n_accesses)
{
    struct hand *hand = &hands->hands[rank];
    uint64_t step;
    int rc = weir_rank_begin(hand->rank, order, bytes, (uint32_t)index, hand->stream, &step);
    if (!rc)
        rc = forward(hands, index, rank, n_accesses);
    if (!rc)
        rc = weir_rank_end(hand->rank, step, hand->stream);
    return rc;
}

static int acknowledge(struct weir_hands *hands, weir_cache *cache, const void *order, size_t bytes)
{
    size_t n;
    int rc = weir_order_acknowledge(order, bytes, hands->report, hands->report_bytes, &n, NULL);
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = weir_cache_report(cache, rank, hands->report, n);
    return rc;
}

static size_t next_work(const struct weir_hands *hands)
{
    return (hands->last_step + 1) % WEIR_REPLAY_STEPS;
}

bool weir_hands_ready(const struct weir_hands *hands)
{
    return hands->works[next_work(hands)].step == 0;
}

int weir_hands_step(struct weir_hands *hands, weir_cache *cache, const void *order, size_t bytes,
                    const struct weir_step_part *parts, size_t n)
{
    if (!hands->options->device)
        return acknowledge(hands, cache, order, bytes);
    size_t index = next_work(hands);
    hands->last_step++;
    size_t n_accesses;
    int rc = keep_parts(&hands->works[index], hands->last_step, parts, n);
    if (!rc)
        rc = list_accesses(hands, &hands->works[index], &n_accesses);
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = step_on_rank(hands, index, rank, order, bytes, n_accesses);
    return rc;
}

static void free_works(struct weir_hands *hands)
{
    uint64_t ended = UINT64_MAX;
    for (uint32_t rank = 0; rank < hands->options->n_ranks; rank++)
        if (hands->hands[rank].ended < ended)
            ended = hands->hands[rank].ended;
    for (size_t i = 0; i < WEIR_REPLAY_STEPS; i++) {
        struct work *work = &hands->works[i];
        if (!work->step || work->step > ended)
            continue;
        for (size_t k = 0; k < work->n_parts; k++) {
            work->parts[k].request->n_steps--;
            weir_request_put(hands->pool, work->parts[k].request);
        }
        work->step = 0;
    }
}

static int collect_rank(struct weir_hands *hands, weir_cache *cache, uint32_t rank, bool *any)
{
    for (;;) {
        size_t bytes;
        int rc =
            weir_rank_report(hands->hands[rank].rank, hands->report, hands->report_bytes, &bytes);
        if (rc || !bytes)
            return rc;
        const weir_report_item *items;
        size_t n;
        rc = weir_report_decode(&items, &n, hands->report, bytes, NULL);
        if (!rc)
            rc = weir_cache_report(cache, rank, hands->report, bytes);
        if (rc)
            return rc;
        for (size_t i = 0; i < n; i++) {
            hands->failures += items[i].rc != 0;
            if (items[i].kind == WEIR_REPORT_STEP && items[i].number > hands->hands[rank].ended)
                hands->hands[rank].ended = items[i].number;
        }
        *any = true;
    }
}

int weir_hands_collect(struct weir_hands *hands, weir_cache *cache, bool *any)
{
    *any = false;
    if (!hands->options->device)
        return 0;
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = collect_rank(hands, cache, rank, any);
    free_works(hands);
    return rc;
}

int weir_hands_wait(struct weir_hands *hands)
{
    int rc = 0;
    for (uint32_t rank = 0; hands->options->device && !rc && rank < hands->options->n_ranks;
         rank++) {
        struct hand *hand = &hands->hands[rank];
        rc = weir_cpu_stream_synchronize(hand->device, hand->stream);
        if (!rc)
            rc = weir_rank_synchronize(hand->rank);
    }
    return rc;
}

/* ---- Opening and closing ------------------------------------------------- */

static int open_rank(struct hand *hand, const struct weir_replay_options *options,
                     const weir_shape *shape, uint32_t device_pages)
{
    weir_cpu_device_params device_params;
    weir_cpu_device_params_init(&device_params);
    device_params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_cpu_device_open(&hand->device, &device_params);
    if (!rc)
        rc = weir_cpu_stream_create(hand->device, &hand->stream);
    if (rc)
        return rc;
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = shape;
    params.device_pages = device_pages;
    params.host_pages = options->host_pages;
    params.host_layout = options->host_layout;
    params.max_steps = WEIR_REPLAY_STEPS;
    params.n_slots = WEIR_REPLAY_STEPS;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    return weir_rank_open(&hand->rank, hand->device, &params);
}

static int make_launches(struct weir_hands *hands)
{
    const struct weir_replay_options *options = hands->options;
    size_t n = (size_t)options->n_ranks * options->n_layers;
    hands->launches = calloc(WEIR_REPLAY_STEPS * n, sizeof *hands->launches);
    hands->places = calloc(n * options->n_tensors, sizeof *hands->places);
    if (!hands->launches || !hands->places)
        return -ENOMEM;
    uint64_t *place = hands->places;
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

int weir_hands_open(struct weir_hands **hands, const struct weir_replay_options *options,
                    const weir_shape *shape, uint32_t device_pages, struct weir_request_pool *pool)
{
    struct weir_hands *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->options = options;
    made->pool = pool;
    atomic_flag_clear(&made->wrong_told);
    made->report_bytes = weir_report_bytes(REPORT_ITEMS);
    made->report = malloc(made->report_bytes);
    made->hands = calloc(options->n_ranks, sizeof *made->hands);
    int rc = made->report && made->hands ? 0 : -ENOMEM;
    if (!rc && options->device)
        rc = make_launches(made);
    for (uint32_t rank = 0; !rc && options->device && rank < options->n_ranks; rank++)
        rc = open_rank(&made->hands[rank], options, shape, device_pages);
    if (rc)
        weir_hands_close(&made);
    else
        *hands = made;
    return rc;
}

void weir_hands_close(struct weir_hands **hands)
{
    struct weir_hands *closed = *hands;
    if (!closed)
        return;
    for (uint32_t rank = 0; closed->hands && rank < closed->options->n_ranks; rank++) {
        struct hand *hand = &closed->hands[rank];
        if (!hand->device)
            continue;
        weir_cpu_stream_destroy(hand->device, &hand->stream);
        weir_rank_close(&hand->rank);
        weir_device_close(&hand->device);
    }
    for (size_t i = 0; i < WEIR_REPLAY_STEPS; i++)
        free(closed->works[i].parts);
    free(closed->hands);
    free(closed->report);
    free(closed->launches);
    free(closed->places);
    free(closed->accesses);
    free(closed);
    *hands = NULL;
}

uint64_t weir_hands_wrong_bytes(const struct weir_hands *hands)
{
    return atomic_load(&hands->wrong_bytes);
}

uint64_t weir_hands_races(const struct weir_hands *hands)
{
    uint64_t races = 0;
    for (uint32_t rank = 0; hands->options->device && rank < hands->options->n_ranks; rank++)
        races += weir_cpu_device_races(hands->hands[rank].device);
    return races;
}

uint64_t weir_hands_failures(const struct weir_hands *hands)
{
    return hands->failures;
}
