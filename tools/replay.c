/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include "server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_EVENTS 64u
/* Empty steps in a row after which the cache's -EAGAIN is taken for a mistake. */
#define PATIENCE 10000u
#define PROGRESS_EVERY 16u /* requests */

struct replay {
    const struct weir_trace *trace;
    const struct weir_replay_options *options;
    struct weir_replay_result *result;
    weir_cache *cache;
    struct weir_hands *hands;
    struct weir_request_pool pool;
    struct weir_step_part *parts; /* of the step that is being put together */
    size_t n_parts;
    struct weir_replay_request **active; /* that have pages, oldest first */
    size_t n_active;
    struct weir_replay_request *pending; /* open, waits for pages */
    uint32_t pass;
    uint32_t stalled; /* decode steps in a row in which nobody got a page */
    uint64_t now_ns;
};

const char *weir_replay_device_name(enum weir_replay_device device)
{
    static const char *const names[] = { "none", "cpu", "cuda" };
    return names[device];
}

static int fail(struct replay *replay, int rc, const char *call)
{
    snprintf(replay->result->error, sizeof replay->result->error, "%s: %s", call,
             weir_error_name(rc));
    return rc;
}

static int fail_request(struct replay *replay, int rc, const char *call,
                        const struct weir_replay_request *request)
{
    replay->result->error_line = request->trace->line;
    return fail(replay, rc, call);
}

static size_t pages_of(const struct weir_replay_options *options, size_t tokens)
{
    return (tokens + options->page_tokens - 1) / options->page_tokens;
}

/* ---- Steps --------------------------------------------------------------- */

/* Carries reports from the ranks to the cache and lets the cache do what is
 * due. wait: if there is no report, waits for some work and looks again. */
static int carry(struct replay *replay, bool wait)
{
    bool any;
    int rc = weir_hands_collect(replay->hands, replay->cache, &any);
    if (!rc && wait && !any) {
        rc = weir_hands_wait(replay->hands);
        if (!rc)
            rc = weir_hands_collect(replay->hands, replay->cache, &any);
    }
    if (rc)
        return fail(replay, rc, "reports");
    weir_cache_event events[POLL_EVENTS];
    size_t n = POLL_EVENTS;
    /* The events themselves tell nothing new: reserves are tried again anyway
     * and failed transfers are counted. */
    while (!rc && n == POLL_EVENTS)
        rc = weir_cache_poll(replay->cache, replay->now_ns += 1000, events, POLL_EVENTS, &n);
    return rc ? fail(replay, rc, "weir_cache_poll") : 0;
}

static int begin_step(struct replay *replay, weir_step *step)
{
    for (uint32_t i = 0; i < PATIENCE; i++) {
        int rc = weir_hands_ready(replay->hands) ? weir_step_begin(step, replay->cache) : -EAGAIN;
        if (rc != -EAGAIN)
            return rc ? fail(replay, rc, "weir_step_begin") : 0;
        rc = carry(replay, true);
        if (rc)
            return rc;
    }
    return fail(replay, -EAGAIN, "steps in flight never end; weir_step_begin");
}

static int add_part(struct replay *replay, weir_step step, const struct weir_step_part *part)
{
    const char *call;
    int rc = weir_server_add(step, part, replay->options->page_tokens, &call);
    return rc ? fail_request(replay, rc, call, part->request) : 0;
}

static int close_request(struct replay *replay, struct weir_replay_request *request)
{
    int rc = weir_seq_close(&request->seq);
    request->open = false;
    weir_request_put(&replay->pool, request);
    return rc ? fail_request(replay, rc, "weir_seq_close", request) : 0;
}

/* Takes the step's result for computed and closes what is complete. */
static int settle(struct replay *replay)
{
    int rc = 0;
    for (size_t i = 0; i < replay->n_parts; i++) {
        struct weir_step_part *part = &replay->parts[i];
        part->request->n_done = part->end;
        if (part->begin >= part->request->n_prompt)
            replay->result->decoded_tokens += part->end - part->begin;
    }
    replay->n_parts = 0;
    size_t kept = 0;
    for (size_t i = 0; i < replay->n_active; i++) {
        struct weir_replay_request *request = replay->active[i];
        if (rc || request->n_done < request->n_tokens)
            replay->active[kept++] = request;
        else
            rc = close_request(replay, request);
    }
    replay->n_active = kept;
    return rc;
}

/* Runs the parts that were gathered, or an empty step. */
static int run_step(struct replay *replay)
{
    weir_step step;
    int rc = begin_step(replay, &step);
    if (rc)
        return rc;
    for (size_t i = 0; !rc && i < replay->n_parts; i++)
        rc = add_part(replay, step, &replay->parts[i]);
    if (rc) {
        weir_step_abort(&step);
        return rc;
    }
    const void *order;
    size_t bytes;
    rc = weir_step_end(&step, &order, &bytes);
    if (rc)
        return fail(replay, rc, "weir_step_end");
    rc =
        weir_hands_step(replay->hands, replay->cache, order, bytes, replay->parts, replay->n_parts);
    if (rc)
        return fail(replay, rc, "a rank's step");
    rc = settle(replay);
    return rc ? rc : carry(replay, false);
}

static int drain(struct replay *replay)
{
    weir_stats stats = { .struct_size = sizeof stats };
    for (uint32_t i = 0; i < PATIENCE; i++) {
        int rc = weir_cache_get_stats(replay->cache, &stats);
        if (rc)
            return fail(replay, rc, "weir_cache_get_stats");
        if (stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0)
            return 0;
        rc = carry(replay, true);
        if (rc)
            return rc;
    }
    return fail(replay, -EAGAIN, "orders in flight are never retired");
}

/* ---- Prefill ------------------------------------------------------------- */

static int open_request(struct replay *replay, size_t index)
{
    const struct weir_replay_options *options = replay->options;
    const struct weir_trace_request *trace = &replay->trace->requests[index];
    struct weir_replay_request *request;
    int rc =
        weir_server_request(&replay->pool, options, replay->trace, index,
                            options->active ? trace->output_length : 0, replay->pass, &request);
    if (rc)
        return fail(replay, rc, "a request");
    weir_key key = { .tokens = request->tokens, .n_tokens = request->n_prompt };
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.compute_at_least = 0;
    params.user = request;
    rc = weir_seq_open(&request->seq, replay->cache, &key, &params);
    if (rc) {
        weir_request_put(&replay->pool, request);
        return fail_request(replay, rc, "weir_seq_open", request);
    }
    request->open = true;
    replay->pending = request;
    return 0;
}

static void start(struct replay *replay, struct weir_replay_request *request, const weir_hit *hit)
{
    uint32_t page_tokens = replay->options->page_tokens;
    replay->result->hit_pages_device += hit->n_device / page_tokens;
    replay->result->hit_pages_host += (hit->n_host + hit->n_loading) / page_tokens;
    request->n_done = hit->n_tokens;
    replay->parts[replay->n_parts++] =
        (struct weir_step_part){ request, hit->n_tokens, request->n_prompt };
    replay->active[replay->n_active++] = request;
}

/* Reserves the pending request's prompt and puts it into the step. 1: it must
 * wait for running ones. -E2BIG: it never fits. */
static int admit(struct replay *replay)
{
    struct weir_replay_request *request = replay->pending;
    weir_request wanted;
    weir_request_init(&wanted);
    wanted.total_tokens = request->n_prompt;
    wanted.expect_tokens = request->n_tokens;
    bool drained = false;
    for (uint32_t i = 0; i < PATIENCE; i++) {
        weir_reserved reserved;
        int rc = weir_seq_reserve(request->seq, &wanted, &reserved);
        if (!rc) {
            start(replay, request, &reserved.hit);
            return 0;
        }
        if (rc == -E2BIG)
            return rc;
        if (rc == -ENOSPC && replay->n_parts == 0) {
            if (replay->n_active)
                return 1;
            if (drained)
                return -E2BIG;
            drained = true;
            rc = drain(replay);
        } else if (rc == -EAGAIN || rc == -ENOSPC) {
            rc = run_step(replay);
            if (!rc)
                rc = carry(replay, true);
        } else {
            return fail_request(replay, rc, "weir_seq_reserve", request);
        }
        if (rc)
            return rc;
    }
    return fail_request(replay, -EAGAIN, "nothing becomes free; weir_seq_reserve", request);
}

/* Starts requests from *next on until `limit` are active or pages are short. */
static int prefill(struct replay *replay, size_t *next, size_t limit)
{
    while (*next < replay->trace->n_requests && replay->n_active < limit) {
        int rc = replay->pending ? 0 : open_request(replay, *next);
        if (!rc)
            rc = admit(replay);
        if (rc == 1)
            break;
        if (rc && rc != -E2BIG)
            return rc;
        struct weir_replay_request *request = replay->pending;
        replay->pending = NULL;
        ++*next;
        replay->result->requests++;
        replay->result->pages += pages_of(replay->options, request->n_prompt);
        if (rc == -E2BIG) {
            replay->result->too_large++;
            rc = close_request(replay, request);
        } else {
            rc = replay->n_parts == replay->options->batch ? run_step(replay) : 0;
        }
        if (rc)
            return rc;
        if (replay->options->progress && *next % PROGRESS_EVERY == 0)
            replay->options->progress(replay->pass, replay->options->passes, *next,
                                      replay->trace->n_requests);
    }
    return replay->n_parts ? run_step(replay) : 0;
}

/* ---- Decode -------------------------------------------------------------- */

/* Ends an answer early; its pages stay in the index but may be evicted. */
static int cut_short(struct replay *replay, struct weir_replay_request *request)
{
    request->n_tokens = request->n_done;
    replay->result->cut_short++;
    return settle(replay);
}

/* Advances every active sequence by a page, as far as there are pages. */
static int decode(struct replay *replay)
{
    uint32_t page_tokens = replay->options->page_tokens;
    bool again = false;
    for (size_t i = 0; i < replay->n_active; i++) {
        struct weir_replay_request *request = replay->active[i];
        size_t end = (request->n_done / page_tokens + 1) * page_tokens;
        weir_request wanted;
        weir_request_init(&wanted);
        wanted.total_tokens = end < request->n_tokens ? end : request->n_tokens;
        wanted.expect_tokens = request->n_tokens;
        int rc = weir_seq_reserve(request->seq, &wanted, NULL);
        if (!rc)
            replay->parts[replay->n_parts++] =
                (struct weir_step_part){ request, request->n_done, wanted.total_tokens };
        else if (rc == -EAGAIN)
            again = true;
        else if (rc != -ENOSPC && rc != -E2BIG)
            return fail_request(replay, rc, "weir_seq_reserve", request);
    }
    replay->stalled = replay->n_parts ? 0 : replay->stalled + 1;
    int rc = run_step(replay);
    if (rc || !replay->stalled)
        return rc;
    if (again && replay->stalled < PATIENCE)
        return carry(replay, true);
    return cut_short(replay, replay->active[replay->n_active - 1]);
}

/* ---- The replay ---------------------------------------------------------- */

static void take_stats(struct weir_replay_result *result, const weir_stats *first,
                       const weir_stats *last)
{
    result->steps = last->steps - first->steps;
    result->loaded_pages = last->loaded_pages - first->loaded_pages;
    result->written_pages = last->written_pages - first->written_pages;
    result->evicted_device_pages = last->evicted_device_pages - first->evicted_device_pages;
    result->evicted_host_pages = last->evicted_host_pages - first->evicted_host_pages;
    uint64_t squares = last->load_run_squares - first->load_run_squares;
    if (result->loaded_pages)
        result->mean_run_pages = (double)squares / (double)result->loaded_pages;
}

static int check_cache(struct replay *replay)
{
    const char *reason = "";
    int rc = weir_cache_check(replay->cache, &reason);
    if (rc)
        snprintf(replay->result->error, sizeof replay->result->error,
                 "weir_cache_check after pass %u: %s", replay->pass, reason);
    return rc;
}

static int run_pass(struct replay *replay)
{
    const struct weir_replay_options *options = replay->options;
    struct weir_replay_result *result = replay->result;
    size_t limit = options->active ? options->active : options->batch;
    *result = (struct weir_replay_result){ .device_pages = result->device_pages };
    weir_stats first = { .struct_size = sizeof first };
    weir_stats last = { .struct_size = sizeof last };
    int rc = weir_cache_get_stats(replay->cache, &first);
    if (rc)
        return fail(replay, rc, "weir_cache_get_stats");
    double began = weir_server_seconds();
    size_t next = 0;
    while (!rc && (next < replay->trace->n_requests || replay->n_active)) {
        rc = prefill(replay, &next, limit);
        if (!rc && replay->n_active)
            rc = decode(replay);
    }
    if (!rc)
        rc = drain(replay);
    result->seconds = weir_server_seconds() - began;
    if (!rc && options->verify)
        rc = check_cache(replay);
    if (!rc && weir_cache_get_stats(replay->cache, &last) == 0)
        take_stats(result, &first, &last);
    result->wrong_bytes = weir_hands_wrong_bytes(replay->hands);
    result->races = weir_hands_races(replay->hands);
    result->failed_transfers = weir_hands_failures(replay->hands);
    return rc;
}

static int open_replay(struct replay *replay)
{
    const struct weir_replay_options *options = replay->options;
    const char *call;
    int rc = weir_server_open(options, replay->result->device_pages,
                              options->active + options->batch + 1, &replay->pool, &replay->cache,
                              &replay->hands, &call);
    if (rc)
        return fail(replay, rc, call);
    size_t n = (size_t)options->active + options->batch;
    replay->parts = calloc(n, sizeof *replay->parts);
    replay->active = calloc(n, sizeof *replay->active);
    return replay->parts && replay->active ? 0 : fail(replay, -ENOMEM, "a step");
}

/* After a failure, too, so that nothing that ran is left behind. */
static void close_replay(struct replay *replay)
{
    for (size_t i = 0; i < replay->n_active; i++)
        weir_seq_close(&replay->active[i]->seq);
    if (replay->pending)
        weir_seq_close(&replay->pending->seq);
    weir_hands_close(&replay->hands);
    weir_cache_destroy(&replay->cache);
    weir_request_pool_free(&replay->pool);
    free(replay->parts);
    free(replay->active);
}

static int check_trace(const struct weir_trace *trace, const struct weir_replay_options *options,
                       struct weir_replay_result *result)
{
    for (size_t i = 0; i < trace->n_requests; i++) {
        const struct weir_trace_request *request = &trace->requests[i];
        if (request->n_ids * options->block_tokens + request->output_length <= INT32_MAX)
            continue;
        result->error_line = request->line;
        snprintf(result->error, sizeof result->error,
                 "%zu ids of %u tokens are more than %d tokens", request->n_ids,
                 options->block_tokens, INT32_MAX);
        return -EINVAL;
    }
    return 0;
}

int weir_replay_run(const struct weir_trace *trace, const struct weir_replay_options *options,
                    struct weir_replay_result *result)
{
    struct replay replay = { .trace = trace, .options = options, .result = result };
    *result = (struct weir_replay_result){ .device_pages = options->device_pages };
    int rc = check_trace(trace, options, result);
    if (!rc && !options->device_pages) {
        rc = weir_replay_unlimited(trace, options, &result->device_pages);
        if (rc)
            fail(&replay, rc, "counting the pages of an unlimited device tier");
    }
    if (!rc)
        rc = open_replay(&replay);
    for (replay.pass = 1; !rc && replay.pass <= options->passes; replay.pass++)
        rc = run_pass(&replay);
    close_replay(&replay);
    return rc;
}
