/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos.h"

#include "faults.h"
#include "pattern.h"
#include "server.h"

#include <weir/lifecycle.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_EVENTS 16u
#define MOST_ANSWER 48u /* tokens */
#define TRIES 3u        /* of a request that fails */
#define WINDOW 96u      /* requests that come again … */
#define AGAIN 4u        /* … so many times */
#define NAMESPACES 3u
#define POLL_NS 100000u /* of the cache's clock between two polls */
#define DRAIN_TRIES 100000u
#define FAIL_SHARE 400u /* of 65536 device calls */
#define STALL_SHARE 2000u
#define RELEASE_EVERY_US 3000u

/* A request that is being served. */
struct life {
    struct weir_replay_request *request;
    size_t index; /* of the trace */
    uint32_t tries;
    uint64_t last_step;
    struct weir_replay_request *before; /* what it was until it was cut; NULL: judged */
    uint64_t before_step;               /* the last that read it */
    bool failed;
    bool finished;
};

struct chaos {
    const struct weir_trace *trace;
    struct weir_replay_options options;
    struct weir_chaos_result *result;
    weir_cache *cache;
    struct weir_hands *hands;
    struct weir_request_pool pool;
    struct weir_faults **faults; /* [n_ranks], one device may serve all */
    struct life *lives;          /* [options.active] */
    size_t n_lives;
    struct weir_step_part *parts;
    struct life **part_lives;
    size_t n_parts;
    size_t next; /* request of the trace */
    uint32_t pass;
    uint64_t step; /* the last that was given out */
    uint64_t random;
    uint64_t seed;
    uint64_t now_ns;
    uint32_t adapter;
    uint64_t n_turns; /* requests that went on in another way, a number for each */
    pthread_t releaser;
    bool has_releaser;
    atomic_bool stop;
};

static int fail(struct chaos *chaos, int rc, const char *what)
{
    if (!chaos->result->error[0])
        snprintf(chaos->result->error, sizeof chaos->result->error, "%s: %s", what,
                 weir_error_name(rc));
    return rc;
}

static uint32_t below(struct chaos *chaos, uint32_t n)
{
    chaos->random = weir_pattern_mix(chaos->random, chaos->seed);
    return (uint32_t)((chaos->random >> 32) % n);
}

/* n times in a thousand. */
static bool happens(struct chaos *chaos, uint32_t n)
{
    return below(chaos, 1000) < n;
}

/* ---- Requests ------------------------------------------------------------ */

/* An adapter, say. The field's data must outlive the call that it is for. */
static weir_field namespace_of(struct chaos *chaos, size_t index)
{
    chaos->adapter = (uint32_t)(index % NAMESPACES);
    return (weir_field){ .tag = 1, .bytes = sizeof chaos->adapter, .data = &chaos->adapter };
}

static int open_life(struct chaos *chaos, size_t index, uint32_t tries)
{
    size_t n_answer = chaos->trace->requests[index].output_length % MOST_ANSWER + 1;
    struct weir_replay_request *request;
    int rc = weir_server_request(&chaos->pool, &chaos->options, chaos->trace, index, n_answer,
                                 chaos->pass, &request);
    if (rc)
        return fail(chaos, rc, "a request");
    const weir_field field = namespace_of(chaos, index);
    weir_key key = {
        .tokens = request->tokens, .n_tokens = request->n_prompt, .fields = &field, .n_fields = 1
    };
    weir_seq_params params;
    weir_seq_params_init(&params);
    rc = weir_seq_open(&request->seq, chaos->cache, &key, &params);
    if (rc) {
        weir_request_put(&chaos->pool, request);
        return fail(chaos, rc, "weir_seq_open");
    }
    request->open = true;
    chaos->lives[chaos->n_lives++] =
        (struct life){ .request = request, .index = index, .tries = tries };
    return 0;
}

/* From now on only steps in flight look at it. */
static void put_request(struct chaos *chaos, struct weir_replay_request *request)
{
    request->open = false;
    weir_request_put(&chaos->pool, request);
}

static void put_life(struct chaos *chaos, struct life *life)
{
    put_request(chaos, life->request);
    if (life->before)
        put_request(chaos, life->before);
}

static int close_life(struct chaos *chaos, struct life *life)
{
    int rc = weir_seq_close(&life->request->seq);
    put_life(chaos, life);
    *life = chaos->lives[--chaos->n_lives];
    return rc ? fail(chaos, rc, "weir_seq_close") : 0;
}

/* Pre: all of its steps, and the loads that they joined, have been reported. */
static void judge(struct chaos *chaos, const struct weir_replay_request *request)
{
    size_t from = atomic_load(&request->wrong_from);
    if (from >= request->good_tokens) {
        chaos->result->excused_bytes += atomic_load(&request->wrong_bytes);
        return;
    }
    if (!chaos->result->wrong_bytes)
        fprintf(stderr, "wrong bytes: request of line %llu, from token %zu of %zu on\n",
                (unsigned long long)request->trace->line, from, request->n_tokens);
    chaos->result->wrong_bytes += atomic_load(&request->wrong_bytes);
}

/* A step is retired when the one WEIR_REPLAY_STEPS later could begin. */
static bool is_settled(const struct chaos *chaos, const struct weir_replay_request *request,
                       uint64_t last_step)
{
    return request->n_steps == 0 && chaos->step >= last_step + WEIR_REPLAY_STEPS;
}

/* Requests come again after a while, so that many find their pages on the host. */
static size_t next_request(struct chaos *chaos)
{
    size_t n = chaos->trace->n_requests;
    size_t back = below(chaos, WINDOW);
    size_t index = chaos->next > back ? chaos->next - back : 0;
    if (back < WINDOW / AGAIN && ++chaos->next == n) {
        chaos->next = 0;
        chaos->pass++;
    }
    return index;
}

/* ---- Forks and cuts ------------------------------------------------------ */

/* An object that begins with the first n tokens of a request, and keeps its prompt;
 * what comes then is another answer. Device threads may still read the old one. */
static int turn_off(struct chaos *chaos, const struct weir_replay_request *from, size_t n,
                    size_t n_prompt, struct weir_replay_request **made)
{
    uint32_t page_tokens = chaos->options.page_tokens;
    size_t known = n > n_prompt ? n : n_prompt;
    size_t n_tokens = known + 1 + below(chaos, MOST_ANSWER);
    int rc =
        weir_request_get(&chaos->pool, n_tokens, (n_tokens + page_tokens - 1) / page_tokens, made);
    if (rc)
        return fail(chaos, rc, "a request");
    struct weir_replay_request *request = *made;
    request->trace = from->trace;
    request->n_prompt = n_prompt;
    request->n_done = n;
    memcpy(request->tokens, from->tokens, known * sizeof *request->tokens);
    weir_pattern_tokens(request->tokens + known, n_tokens - known, WEIR_PATTERN_ANSWER,
                        chaos->trace->n_requests + ++chaos->n_turns, chaos->pass);
    weir_pattern_fingerprints(request->fingerprints, request->tokens, n_tokens, 0);
    request->open = true;
    return 0;
}

/* The life goes on from its first n tokens. */
static int cut_life(struct chaos *chaos, struct life *life, size_t n)
{
    struct weir_replay_request *old = life->request, *request;
    int rc = turn_off(chaos, old, n, old->n_prompt, &request);
    if (rc)
        return rc;
    request->seq = old->seq;
    rc = weir_seq_truncate(request->seq, n);
    life->request = request;
    life->before = old;
    life->before_step = life->last_step;
    life->failed = life->finished = false;
    /* What fails of the rest is not told any more. */
    if (old->good_tokens > n)
        old->good_tokens = n;
    return rc ? fail(chaos, rc, "weir_seq_truncate") : 0;
}

static void judge_before(struct chaos *chaos, struct life *life)
{
    if (!life->before || !is_settled(chaos, life->before, life->before_step))
        return;
    judge(chaos, life->before);
    put_request(chaos, life->before);
    life->before = NULL;
}

/* One that runs and has computed something; NULL: the one that was drawn has not. */
static struct life *draw_life(struct chaos *chaos)
{
    if (!chaos->n_lives)
        return NULL;
    struct life *life = &chaos->lives[below(chaos, (uint32_t)chaos->n_lives)];
    return life->failed || life->finished || life->request->n_done == 0 ? NULL : life;
}

static int cut_back(struct chaos *chaos)
{
    struct life *life = draw_life(chaos);
    if (!life || life->before)
        return 0;
    size_t n_done = life->request->n_done;
    uint32_t most = 3 * chaos->options.page_tokens;
    chaos->result->cuts++;
    return cut_life(chaos, life,
                    n_done - 1 - below(chaos, n_done < most ? (uint32_t)n_done : most));
}

/* Two lives from here on, in the place of another if there are too many. */
static int fork_life(struct chaos *chaos)
{
    struct life *life = draw_life(chaos);
    if (!life || chaos->n_lives == chaos->options.active)
        return 0;
    size_t n_done = life->request->n_done;
    size_t len = happens(chaos, 500) ? n_done : 1 + below(chaos, (uint32_t)n_done);
    struct weir_replay_request *request;
    int rc = turn_off(chaos, life->request, len, len, &request);
    if (rc)
        return rc;
    rc = weir_seq_fork(&request->seq, 1, life->request->seq, len, NULL);
    if (rc) {
        put_request(chaos, request);
        bool no_room = rc == -EAGAIN || rc == -ENOSPC;
        return no_room ? 0 : fail(chaos, rc, "weir_seq_fork");
    }
    chaos->lives[chaos->n_lives++] = (struct life){
        .request = request, .index = life->index, .tries = life->tries, .last_step = life->last_step
    };
    chaos->result->forks++;
    return 0;
}

/* ---- Beginning and ending ------------------------------------------------ */

/* Of the failed ones some go on from what is good of them. */
static bool is_mended(struct chaos *chaos, const struct life *life)
{
    return life->failed && life->request->n_done && happens(chaos, 500);
}

/* Ends what is finished or has failed, and begins new ones. */
static int turn_over(struct chaos *chaos, bool admit)
{
    for (size_t i = chaos->n_lives; i-- > 0;) {
        struct life *life = &chaos->lives[i];
        judge_before(chaos, life);
        if (!(life->finished || life->failed) || !is_settled(chaos, life->request, life->last_step))
            continue;
        if (!life->before && is_mended(chaos, life)) {
            chaos->result->mended++;
            int rc = cut_life(chaos, life, life->request->good_tokens);
            if (rc)
                return rc;
            continue;
        }
        judge(chaos, life->request);
        chaos->result->completed += !life->failed;
        chaos->result->failed += life->failed;
        size_t index = life->index;
        uint32_t tries = life->failed ? life->tries + 1 : TRIES;
        int rc = close_life(chaos, life);
        if (!rc && admit && tries < TRIES)
            rc = open_life(chaos, index, tries);
        if (rc)
            return rc;
    }
    while (admit && chaos->n_lives < chaos->options.active) {
        int rc = open_life(chaos, next_request(chaos), 0);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- Steps --------------------------------------------------------------- */

static struct life *life_of(struct chaos *chaos, weir_seq seq)
{
    for (size_t i = 0; i < chaos->n_lives; i++)
        if (chaos->lives[i].request->seq.id == seq.id)
            return &chaos->lives[i];
    return NULL;
}

/* Reports come from some of the ranks only, now and then. */
static int carry(struct chaos *chaos, bool all)
{
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < chaos->options.n_ranks; rank++) {
        bool any;
        if (all || happens(chaos, 700))
            rc = weir_hands_collect_rank(chaos->hands, chaos->cache, rank, &any);
    }
    if (rc)
        return fail(chaos, rc, "reports");
    weir_hands_retire(chaos->hands);
    size_t n = POLL_EVENTS;
    while (n == POLL_EVENTS) {
        weir_cache_event events[POLL_EVENTS];
        rc = weir_cache_poll(chaos->cache, chaos->now_ns += POLL_NS, events, POLL_EVENTS, &n);
        if (rc)
            return fail(chaos, rc, "weir_cache_poll");
        for (size_t i = 0; i < n; i++) {
            struct life *life = life_of(chaos, events[i].seq);
            if (!life || events[i].rc == 0)
                continue;
            life->failed = true;
            if (events[i].good_tokens < life->request->good_tokens)
                life->request->good_tokens = events[i].good_tokens;
            if (life->before && events[i].good_tokens < life->before->good_tokens)
                life->before->good_tokens = events[i].good_tokens;
        }
    }
    return 0;
}

/* The next chunk of a request, if it gets pages. 1: it gets none for now. */
static int plan_part(struct chaos *chaos, struct life *life)
{
    struct weir_replay_request *request = life->request;
    size_t end = request->n_done + (1 + below(chaos, 6)) * chaos->options.page_tokens -
                 below(chaos, chaos->options.page_tokens);
    weir_request wanted;
    weir_request_init(&wanted);
    wanted.total_tokens = end < request->n_tokens ? end : request->n_tokens;
    wanted.expect_tokens = request->n_tokens;
    if (happens(chaos, 100))
        wanted.deadline_ns = chaos->now_ns + below(chaos, 10) * POLL_NS;
    weir_reserved reserved;
    int rc = weir_seq_reserve(request->seq, &wanted, &reserved);
    if (rc == -EAGAIN)
        return 1;
    if (rc)
        return rc;
    if (reserved.hit.n_tokens)
        request->n_done = reserved.hit.n_tokens;
    end = wanted.total_tokens > request->n_done ? wanted.total_tokens : request->n_done;
    chaos->part_lives[chaos->n_parts] = life;
    chaos->parts[chaos->n_parts++] = (struct weir_step_part){ request, request->n_done, end };
    return 0;
}

static int plan_parts(struct chaos *chaos)
{
    bool short_of_pages = false;
    chaos->n_parts = 0;
    for (size_t i = 0; i < chaos->n_lives; i++) {
        struct life *life = &chaos->lives[i];
        if (life->failed || life->finished || happens(chaos, 200))
            continue;
        int rc = plan_part(chaos, life);
        if (rc == -EIO) {
            continue; /* its event comes with the next poll */
        } else if (rc == -E2BIG) {
            chaos->result->too_large++;
            rc = close_life(chaos, life);
            i--;
        } else if (rc == -ENOSPC) {
            short_of_pages = true;
            rc = 0;
        }
        if (rc < 0)
            return fail(chaos, rc, "weir_seq_reserve");
    }
    /* Nobody can go on: somebody must give way. */
    if (!short_of_pages || chaos->n_parts || chaos->n_lives == 0)
        return 0;
    chaos->result->preempted++;
    return close_life(chaos, &chaos->lives[below(chaos, (uint32_t)chaos->n_lives)]);
}

static int add_part(struct chaos *chaos, weir_step step, const struct weir_step_part *part)
{
    const char *call;
    int rc = weir_server_add(step, part, chaos->options.page_tokens, &call);
    return rc ? fail(chaos, rc, call) : 0;
}

/* Sequences may be closed while they are in the open step, and the step may be
 * given up. */
static int run_step(struct chaos *chaos)
{
    weir_step step;
    int rc = weir_hands_ready(chaos->hands) ? weir_step_begin(&step, chaos->cache) : -EAGAIN;
    if (rc == -EAGAIN)
        return weir_hands_wait(chaos->hands);
    if (rc)
        return fail(chaos, rc, "weir_step_begin");
    rc = plan_parts(chaos);
    for (size_t i = 0; !rc && i < chaos->n_parts; i++)
        rc = add_part(chaos, step, &chaos->parts[i]);
    if (rc || happens(chaos, 10)) {
        weir_step_abort(&step);
        chaos->result->aborted_steps++;
        return rc;
    }
    const void *order;
    size_t bytes;
    rc = weir_step_end(&step, &order, &bytes);
    if (rc)
        return fail(chaos, rc, "weir_step_end");
    chaos->step++;
    for (size_t i = 0; i < chaos->n_parts; i++) {
        struct life *life = chaos->part_lives[i];
        life->last_step = chaos->step;
        life->request->n_done = chaos->parts[i].end;
        life->finished = life->request->n_done == life->request->n_tokens;
    }
    rc = weir_hands_step(chaos->hands, chaos->cache, order, bytes, chaos->parts, chaos->n_parts);
    if (rc)
        return fail(chaos, rc, "a step");
    return chaos->n_parts ? 0 : weir_hands_wait(chaos->hands);
}

static int check(struct chaos *chaos)
{
    const char *reason = "";
    int rc = weir_cache_check(chaos->cache, &reason);
    chaos->result->checks++;
    if (rc)
        snprintf(chaos->result->error, sizeof chaos->result->error, "weir_cache_check: %s", reason);
    return rc;
}

static int abandon(struct chaos *chaos)
{
    if (!chaos->n_lives)
        return 0;
    chaos->result->abandoned++;
    return close_life(chaos, &chaos->lives[below(chaos, (uint32_t)chaos->n_lives)]);
}

static int forget(struct chaos *chaos)
{
    const weir_field field = namespace_of(chaos, below(chaos, NAMESPACES));
    bool all = happens(chaos, 200);
    chaos->result->forgets++;
    int rc = all ? weir_cache_forget_all(chaos->cache) : weir_cache_forget(chaos->cache, &field, 1);
    return rc ? fail(chaos, rc, "weir_cache_forget") : 0;
}

/* Every sequence ends; nobody looks at what their steps still read. */
static int reset(struct chaos *chaos)
{
    chaos->result->resets++;
    int rc = weir_cache_reset(chaos->cache);
    if (rc)
        return fail(chaos, rc, "weir_cache_reset");
    for (size_t i = 0; i < chaos->n_lives; i++)
        put_life(chaos, &chaos->lives[i]);
    chaos->n_lives = 0;
    return 0;
}

static int drain(struct chaos *chaos)
{
    chaos->result->drains++;
    int rc = -EAGAIN;
    for (uint32_t i = 0; rc == -EAGAIN && i < DRAIN_TRIES; i++) {
        rc = carry(chaos, true);
        if (rc)
            return rc;
        rc = weir_cache_drain(chaos->cache);
        if (rc == -EAGAIN)
            weir_hands_wait(chaos->hands);
    }
    if (rc)
        return fail(chaos, rc, "weir_cache_drain");
    rc = check(chaos);
    return rc ? rc : weir_cache_resume(chaos->cache);
}

static int act(struct chaos *chaos)
{
    static const struct {
        uint32_t share; /* of a thousand turns */
        int (*act)(struct chaos *);
    } acts[] = { { 15, abandon }, { 40, fork_life }, { 40, cut_back }, { 5, check },
                 { 3, forget },   { 1, reset },      { 2, drain } };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof acts / sizeof *acts; i++)
        if (happens(chaos, acts[i].share))
            rc = acts[i].act(chaos);
    return rc;
}

/* ---- The run ------------------------------------------------------------- */

static void *release_stalls(void *arg)
{
    struct chaos *chaos = arg;
    while (!atomic_load(&chaos->stop)) {
        nanosleep(&(struct timespec){ .tv_nsec = RELEASE_EVERY_US * 1000l }, NULL);
        for (uint32_t rank = 0; rank < chaos->options.n_ranks; rank++)
            if (chaos->faults[rank])
                weir_faults_release(chaos->faults[rank]);
    }
    return NULL;
}

static void stop_faults(struct chaos *chaos)
{
    atomic_store(&chaos->stop, true);
    if (chaos->has_releaser)
        pthread_join(chaos->releaser, NULL);
    chaos->has_releaser = false;
    for (uint32_t rank = 0; chaos->faults && rank < chaos->options.n_ranks; rank++)
        if (chaos->faults[rank])
            weir_faults_stop(chaos->faults[rank]);
}

/* All requests to their end, all reports home, nothing left over. */
static int wind_up(struct chaos *chaos)
{
    stop_faults(chaos);
    while (chaos->n_lives) {
        struct life *life = &chaos->lives[0];
        int rc = close_life(chaos, life);
        if (rc)
            return rc;
    }
    weir_stats stats = { .struct_size = sizeof stats };
    for (uint32_t i = 0; i < DRAIN_TRIES; i++) {
        int rc = carry(chaos, true);
        if (!rc)
            rc = run_step(chaos);
        if (!rc)
            rc = weir_cache_get_stats(chaos->cache, &stats);
        if (rc)
            return rc;
        if (stats.write_backs_in_flight == 0 && i > WEIR_REPLAY_STEPS)
            break;
    }
    for (uint32_t i = 0; stats.orders_in_flight && i < DRAIN_TRIES; i++) {
        int rc = weir_hands_wait(chaos->hands);
        if (!rc)
            rc = carry(chaos, true);
        if (!rc)
            rc = weir_cache_get_stats(chaos->cache, &stats);
        if (rc)
            return rc;
    }
    if (stats.orders_in_flight || stats.write_backs_in_flight)
        return fail(chaos, -EAGAIN, "orders in flight are never retired");
    weir_available available;
    int rc = weir_cache_available(chaos->cache, &available);
    if (!rc && (available.pending || available.claimed))
        return fail(chaos, -EIO, "pages are pending or claimed with nothing in flight");
    return rc ? rc : check(chaos);
}

static bool has_device_of_earlier(const struct chaos *chaos, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (weir_hands_device(chaos->hands, i) == weir_hands_device(chaos->hands, rank))
            return true;
    return false;
}

static int open_faults(struct chaos *chaos)
{
    uint32_t n_ranks = chaos->options.n_ranks;
    chaos->faults = calloc(n_ranks, sizeof(struct weir_faults *));
    if (!chaos->faults)
        return -ENOMEM;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        if (has_device_of_earlier(chaos, rank))
            continue;
        int rc = weir_faults_open(&chaos->faults[rank], weir_hands_device(chaos->hands, rank),
                                  chaos->seed + rank, FAIL_SHARE, STALL_SHARE);
        if (rc)
            return rc;
    }
    int rc = -pthread_create(&chaos->releaser, NULL, release_stalls, chaos);
    chaos->has_releaser = rc == 0;
    return rc;
}

static int open_chaos(struct chaos *chaos)
{
    const struct weir_replay_options *options = &chaos->options;
    const char *call;
    int rc = weir_server_open(options, options->device_pages, options->active + 1, &chaos->pool,
                              &chaos->cache, &chaos->hands, &call);
    if (rc)
        return fail(chaos, rc, call);
    chaos->lives = calloc(options->active, sizeof *chaos->lives);
    chaos->parts = calloc(options->active, sizeof *chaos->parts);
    chaos->part_lives = calloc(options->active, sizeof(struct life *));
    if (!chaos->lives || !chaos->parts || !chaos->part_lives)
        return fail(chaos, -ENOMEM, "requests");
    rc = open_faults(chaos);
    if (!rc)
        rc = weir_hands_start(chaos->hands);
    return rc ? fail(chaos, rc, "faults and threads") : 0;
}

static void close_chaos(struct chaos *chaos)
{
    stop_faults(chaos);
    for (size_t i = 0; i < chaos->n_lives; i++)
        weir_seq_close(&chaos->lives[i].request->seq);
    if (chaos->hands)
        weir_hands_quiesce(chaos->hands);
    for (uint32_t rank = 0; chaos->faults && rank < chaos->options.n_ranks; rank++)
        weir_faults_close(&chaos->faults[rank]);
    weir_hands_close(&chaos->hands);
    weir_cache_destroy(&chaos->cache);
    weir_request_pool_free(&chaos->pool);
    free(chaos->faults);
    free(chaos->lives);
    free(chaos->parts);
    free(chaos->part_lives);
}

static void count(struct chaos *chaos)
{
    struct weir_chaos_result *result = chaos->result;
    weir_stats stats = { .struct_size = sizeof stats };
    if (weir_cache_get_stats(chaos->cache, &stats) == 0) {
        result->loaded_pages = stats.loaded_pages;
        result->written_pages = stats.written_pages;
    }
    result->steps = chaos->step;
    result->failed_transfers = weir_hands_failures(chaos->hands);
    result->races = weir_hands_races(chaos->hands);
    for (uint32_t rank = 0; rank < chaos->options.n_ranks; rank++) {
        uint64_t failed = 0;
        uint64_t stalled = 0;
        if (chaos->faults[rank])
            weir_faults_count(chaos->faults[rank], &failed, &stalled);
        result->failed_calls += failed;
        result->stalled_copies += stalled;
    }
}

int weir_chaos_run(const struct weir_trace *trace, const struct weir_replay_options *options,
                   uint64_t seed, double seconds, struct weir_chaos_result *result)
{
    struct chaos chaos = {
        .trace = trace, .options = *options, .result = result, .seed = seed, .pass = 1
    };
    *result = (struct weir_chaos_result){ 0 };
    chaos.options.judge_later = chaos.options.verify = true;
    if (!chaos.options.active)
        chaos.options.active = 16;
    double began = weir_server_seconds();
    int rc = open_chaos(&chaos);
    while (!rc && weir_server_seconds() - began < seconds) {
        rc = carry(&chaos, false);
        if (!rc)
            rc = act(&chaos);
        if (!rc)
            rc = turn_over(&chaos, true);
        if (!rc)
            rc = run_step(&chaos);
    }
    if (!rc)
        rc = wind_up(&chaos);
    if (chaos.hands && chaos.faults)
        count(&chaos);
    result->seconds = weir_server_seconds() - began;
    close_chaos(&chaos);
    return rc;
}

void weir_chaos_print(const struct weir_chaos_result *result)
{
#define COUNT(name, text) printf("%-22s %12" PRIu64 "  %s\n", #name, result->name, text);
    WEIR_CHAOS_COUNTS(COUNT)
#undef COUNT
    printf("%-22s %12.1f  time\n", "seconds", result->seconds);
}
