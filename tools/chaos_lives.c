/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_parts.h"

#include "pattern.h"
#include "server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MOST_ANSWER 48u /* tokens */
#define TRIES 3u        /* of a request that fails */
#define WINDOW 96u      /* requests that come again … */
#define AGAIN 4u        /* … so many times */

weir_field weir_chaos_namespace(struct weir_chaos *chaos, size_t index)
{
    chaos->adapter = (uint32_t)(index % WEIR_CHAOS_NAMESPACES);
    return (weir_field){ .tag = 1, .bytes = sizeof chaos->adapter, .data = &chaos->adapter };
}

static int open_life(struct weir_chaos *chaos, size_t index, uint32_t tries)
{
    size_t n_answer = chaos->trace->requests[index].output_length % MOST_ANSWER + 1;
    struct weir_replay_request *request;
    int rc = weir_server_request(&chaos->pool, &chaos->options, chaos->trace, index, n_answer,
                                 chaos->pass, &request);
    if (rc)
        return weir_chaos_fail(chaos, rc, "a request");
    const weir_field field = weir_chaos_namespace(chaos, index);
    weir_key key = {
        .tokens = request->tokens, .n_tokens = request->n_prompt, .fields = &field, .n_fields = 1
    };
    weir_seq_params params;
    weir_seq_params_init(&params);
    rc = weir_seq_open(&request->seq, chaos->cache, &key, &params);
    if (rc) {
        weir_request_put(&chaos->pool, request);
        return weir_chaos_fail(chaos, rc, "weir_seq_open");
    }
    request->open = true;
    chaos->lives[chaos->n_lives++] =
        (struct weir_life){ .request = request, .index = index, .tries = tries };
    return 0;
}

/* From now on only steps in flight look at it. */
static void put_request(struct weir_chaos *chaos, struct weir_replay_request *request)
{
    request->open = false;
    weir_request_put(&chaos->pool, request);
}

void weir_life_put(struct weir_chaos *chaos, struct weir_life *life)
{
    put_request(chaos, life->request);
    if (life->before)
        put_request(chaos, life->before);
}

int weir_life_close(struct weir_chaos *chaos, struct weir_life *life)
{
    int rc = weir_seq_close(&life->request->seq);
    weir_life_put(chaos, life);
    *life = chaos->lives[--chaos->n_lives];
    return rc ? weir_chaos_fail(chaos, rc, "weir_seq_close") : 0;
}

/* Pre: all of its steps, and the loads that they joined, have been reported. */
static void judge(struct weir_chaos *chaos, const struct weir_replay_request *request)
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
static bool is_settled(const struct weir_chaos *chaos, const struct weir_replay_request *request,
                       uint64_t last_step)
{
    return request->n_steps == 0 && chaos->step >= last_step + WEIR_REPLAY_STEPS;
}

/* Requests come again after a while, so that many find their pages on the host. */
static size_t next_request(struct weir_chaos *chaos)
{
    size_t n = chaos->trace->n_requests;
    size_t back = weir_chaos_below(chaos, WINDOW);
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
static int turn_off(struct weir_chaos *chaos, const struct weir_replay_request *from, size_t n,
                    size_t n_prompt, struct weir_replay_request **made)
{
    uint32_t page_tokens = chaos->options.page_tokens;
    size_t known = n > n_prompt ? n : n_prompt;
    size_t n_tokens = known + 1 + weir_chaos_below(chaos, MOST_ANSWER);
    int rc =
        weir_request_get(&chaos->pool, n_tokens, (n_tokens + page_tokens - 1) / page_tokens, made);
    if (rc)
        return weir_chaos_fail(chaos, rc, "a request");
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
static int cut_life(struct weir_chaos *chaos, struct weir_life *life, size_t n)
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
    return rc ? weir_chaos_fail(chaos, rc, "weir_seq_truncate") : 0;
}

static void judge_before(struct weir_chaos *chaos, struct weir_life *life)
{
    if (!life->before || !is_settled(chaos, life->before, life->before_step))
        return;
    judge(chaos, life->before);
    put_request(chaos, life->before);
    life->before = NULL;
}

/* One that runs and has computed something; NULL: the one that was drawn has not. */
static struct weir_life *draw_life(struct weir_chaos *chaos)
{
    if (!chaos->n_lives)
        return NULL;
    struct weir_life *life = &chaos->lives[weir_chaos_below(chaos, (uint32_t)chaos->n_lives)];
    return life->failed || life->finished || life->request->n_done == 0 ? NULL : life;
}

int weir_life_cut(struct weir_chaos *chaos)
{
    struct weir_life *life = draw_life(chaos);
    if (!life || life->before)
        return 0;
    size_t n_done = life->request->n_done;
    uint32_t most = 3 * chaos->options.page_tokens;
    chaos->result->cuts++;
    return cut_life(chaos, life,
                    n_done - 1 - weir_chaos_below(chaos, n_done < most ? (uint32_t)n_done : most));
}

/* Two lives from here on, if there is room for another. */
int weir_life_fork(struct weir_chaos *chaos)
{
    struct weir_life *life = draw_life(chaos);
    if (!life || chaos->n_lives == chaos->options.active)
        return 0;
    size_t n_done = life->request->n_done;
    size_t len =
        weir_chaos_happens(chaos, 500) ? n_done : 1 + weir_chaos_below(chaos, (uint32_t)n_done);
    struct weir_replay_request *request;
    int rc = turn_off(chaos, life->request, len, len, &request);
    if (rc)
        return rc;
    rc = weir_seq_fork(&request->seq, 1, life->request->seq, len, NULL);
    if (rc) {
        put_request(chaos, request);
        bool no_room = rc == -EAGAIN || rc == -ENOSPC;
        return no_room ? 0 : weir_chaos_fail(chaos, rc, "weir_seq_fork");
    }
    chaos->lives[chaos->n_lives++] = (struct weir_life){
        .request = request, .index = life->index, .tries = life->tries, .last_step = life->last_step
    };
    chaos->result->forks++;
    return 0;
}

/* ---- Beginning and ending ------------------------------------------------ */

/* Of the failed ones some go on from what is good of them. */
static bool is_mended(struct weir_chaos *chaos, const struct weir_life *life)
{
    return life->failed && life->request->n_done && weir_chaos_happens(chaos, 500);
}

/* Ends what is finished or has failed, and begins new ones. */
int weir_lives_turn_over(struct weir_chaos *chaos)
{
    for (size_t i = chaos->n_lives; i-- > 0;) {
        struct weir_life *life = &chaos->lives[i];
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
        int rc = weir_life_close(chaos, life);
        if (!rc && tries < TRIES)
            rc = open_life(chaos, index, tries);
        if (rc)
            return rc;
    }
    while (chaos->n_lives < chaos->options.active) {
        int rc = open_life(chaos, next_request(chaos), 0);
        if (rc)
            return rc;
    }
    return 0;
}
