/* SPDX-License-Identifier: Apache-2.0 */
#include "hand_thread.h"
#include "hands_device.h"

#include "faults.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define REPORT_ITEMS 64u

void weir_hands_add_wrong(struct weir_hands *hands, uint64_t bytes,
                          const struct weir_wrong_place *place)
{
    const struct weir_step_part *part = place->part;
    if (hands->options->judge_later) {
        weir_request_add_wrong(part->request, place->token, bytes);
        return;
    }
    atomic_fetch_add(&hands->wrong_bytes, bytes);
    if (atomic_flag_test_and_set(&hands->wrong_told))
        return;
    fprintf(stderr,
            "first wrong bytes: request of line %llu, step %llu, rank %u, layer %u, tensor %u, "
            "token %zu, device page %d, %s\n",
            (unsigned long long)part->request->trace->line, (unsigned long long)place->work->step,
            place->rank, place->layer, place->tensor, place->token,
            part->request->pages[place->token / hands->options->page_tokens],
            place->token < part->begin ? "from the cache" : "just computed");
}

/* ---- Steps --------------------------------------------------------------- */

static int keep_parts(struct weir_work *work, uint64_t step, const struct weir_step_part *parts,
                      size_t n)
{
    if (n > work->capacity) {
        void *moved = reallocarray(work->parts, n, sizeof *work->parts);
        if (!moved)
            return -ENOMEM;
        work->parts = moved;
        work->capacity = n;
    }
    for (size_t i = 0; i < n; i++) {
        work->parts[i] = parts[i];
        parts[i].request->n_steps++;
    }
    work->n_parts = n;
    work->step = step;
    return 0;
}

int weir_hand_begin(struct weir_hands *hands, size_t work, uint32_t rank, const void *order,
                    size_t bytes)
{
    struct weir_hand *hand = &hands->hands[rank];
    uint64_t step;
    weir_faults_arm(true);
    int rc = weir_rank_begin(hand->rank, order, bytes, (uint32_t)work, hand->stream, &step);
    weir_faults_arm(false);
    return rc;
}

int weir_hand_run(struct weir_hands *hands, size_t work, uint32_t rank)
{
    struct weir_hand *hand = &hands->hands[rank];
    int rc = hands->ops->forward(hands, work, rank);
    if (rc)
        return rc;
    weir_faults_arm(true);
    rc = weir_rank_end(hand->rank, hands->works[work].step, hand->stream);
    weir_faults_arm(false);
    return rc ? rc : hands->ops->ended(hands, work, rank);
}

static int step_on_rank(struct weir_hands *hands, size_t work, uint32_t rank, const void *order,
                        size_t bytes)
{
    struct weir_hand_thread *thread = hands->hands[rank].thread;
    if (thread) {
        weir_hand_thread_give(thread, work, order, bytes);
        return 0;
    }
    int rc = weir_hand_begin(hands, work, rank, order, bytes);
    return rc ? rc : weir_hand_run(hands, work, rank);
}

static int acknowledge(struct weir_hands *hands, weir_cache *cache, const void *order, size_t bytes)
{
    size_t n;
    int rc = weir_order_acknowledge(order, bytes, hands->report, hands->report_bytes, &n, NULL);
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = weir_cache_report(cache, rank, hands->report, n);
    return rc;
}

static int prepare(struct weir_hands *hands, size_t work)
{
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = hands->ops->prepare(hands, work, rank);
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
    if (!hands->ops)
        return acknowledge(hands, cache, order, bytes);
    size_t index = next_work(hands);
    hands->last_step++;
    int rc = keep_parts(&hands->works[index], hands->last_step, parts, n);
    if (!rc)
        rc = prepare(hands, index);
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = step_on_rank(hands, index, rank, order, bytes);
    return rc;
}

/* ---- Reports ------------------------------------------------------------- */

void weir_hands_retire(struct weir_hands *hands)
{
    uint64_t ended = UINT64_MAX;
    for (uint32_t rank = 0; rank < hands->options->n_ranks; rank++)
        if (hands->hands[rank].ended < ended)
            ended = hands->hands[rank].ended;
    for (size_t i = 0; i < WEIR_REPLAY_STEPS; i++) {
        struct weir_work *work = &hands->works[i];
        if (!work->step || work->step > ended)
            continue;
        hands->ops->retire(hands, i);
        for (size_t k = 0; k < work->n_parts; k++) {
            work->parts[k].request->n_steps--;
            weir_request_put(hands->pool, work->parts[k].request);
        }
        work->step = 0;
    }
}

int weir_hand_report(struct weir_hands *hands, uint32_t rank, void *report, size_t *bytes)
{
    return weir_rank_report(hands->hands[rank].rank, report, hands->report_bytes, bytes);
}

int weir_hands_collect_rank(struct weir_hands *hands, weir_cache *cache, uint32_t rank, bool *any)
{
    struct weir_hand_thread *thread = hands->hands[rank].thread;
    for (;;) {
        size_t bytes;
        int rc = thread ? weir_hand_thread_take(thread, hands->report, hands->report_bytes, &bytes)
                        : weir_hand_report(hands, rank, hands->report, &bytes);
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
    if (!hands->ops)
        return 0;
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = weir_hands_collect_rank(hands, cache, rank, any);
    weir_hands_retire(hands);
    return rc;
}

int weir_hands_wait(struct weir_hands *hands)
{
    if (hands->hands[0].thread)
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL); /* ranks are their threads' */
    else if (hands->ops)
        return hands->ops->wait(hands);
    return 0;
}

weir_device *weir_hands_device(const struct weir_hands *hands, uint32_t rank)
{
    return hands->hands[rank].device;
}

/* ---- Opening and closing ------------------------------------------------- */

static const struct weir_hands_ops *ops_of(enum weir_replay_device device)
{
    if (device == WEIR_REPLAY_NONE)
        return NULL;
    return device == WEIR_REPLAY_CUDA ? &weir_hands_cuda : &weir_hands_cpu;
}

static int open_ranks(struct weir_hands *hands, const weir_shape *shape, uint32_t device_pages)
{
    const struct weir_replay_options *options = hands->options;
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = shape;
    params.device_pages = device_pages;
    params.host_pages = options->host_pages;
    params.host_layout = options->host_layout;
    params.max_steps = WEIR_REPLAY_STEPS;
    params.n_slots = WEIR_REPLAY_STEPS;
    params.load.engine = options->engine;
    params.write_back.engine = options->engine;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    return hands->ops->open(hands, &params);
}

int weir_hands_open(struct weir_hands **hands, const struct weir_replay_options *options,
                    const weir_shape *shape, uint32_t device_pages, struct weir_request_pool *pool)
{
    struct weir_hands *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->options = options;
    made->ops = ops_of(options->device);
    made->pool = pool;
    atomic_flag_clear(&made->wrong_told);
    made->report_bytes = weir_report_bytes(REPORT_ITEMS);
    made->report = malloc(made->report_bytes);
    made->hands = calloc(options->n_ranks, sizeof *made->hands);
    int rc = made->report && made->hands ? 0 : -ENOMEM;
    if (!rc && made->ops)
        rc = open_ranks(made, shape, device_pages);
    if (rc)
        weir_hands_close(&made);
    else
        *hands = made;
    return rc;
}

int weir_hands_start(struct weir_hands *hands)
{
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < hands->options->n_ranks; rank++)
        rc = weir_hand_thread_start(&hands->hands[rank].thread, hands, rank);
    return rc;
}

void weir_hands_quiesce(struct weir_hands *hands)
{
    for (uint32_t rank = 0; hands->hands && rank < hands->options->n_ranks; rank++)
        weir_hand_thread_stop(&hands->hands[rank].thread);
}

void weir_hands_close(struct weir_hands **hands)
{
    struct weir_hands *closed = *hands;
    if (!closed)
        return;
    weir_hands_quiesce(closed);
    if (closed->ops && closed->hands)
        closed->ops->close(closed);
    for (size_t i = 0; i < WEIR_REPLAY_STEPS; i++)
        free(closed->works[i].parts);
    free(closed->hands);
    free(closed->report);
    free(closed);
    *hands = NULL;
}

uint64_t weir_hands_wrong_bytes(const struct weir_hands *hands)
{
    return atomic_load(&hands->wrong_bytes);
}

uint64_t weir_hands_races(const struct weir_hands *hands)
{
    return hands->ops ? hands->ops->races(hands) : 0;
}

uint64_t weir_hands_failures(const struct weir_hands *hands)
{
    return hands->failures;
}
