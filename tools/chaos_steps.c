/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_parts.h"

#include "server.h"

#include <errno.h>

#define POLL_EVENTS 16u

static struct weir_life *life_of(struct weir_chaos *chaos, weir_seq seq)
{
    for (size_t i = 0; i < chaos->n_lives; i++)
        if (chaos->lives[i].request->seq.id == seq.id)
            return &chaos->lives[i];
    return NULL;
}

/* Reports come from some of the ranks only, now and then. */
int weir_chaos_carry(struct weir_chaos *chaos, bool all)
{
    int rc = 0;
    for (uint32_t rank = 0; !rc && rank < chaos->options.n_ranks; rank++) {
        bool any;
        if (all || weir_chaos_happens(chaos, 700))
            rc = weir_hands_collect_rank(chaos->hands, chaos->cache, rank, &any);
    }
    if (rc)
        return weir_chaos_fail(chaos, rc, "reports");
    weir_hands_retire(chaos->hands);
    size_t n = POLL_EVENTS;
    while (n == POLL_EVENTS) {
        weir_cache_event events[POLL_EVENTS];
        rc = weir_cache_poll(chaos->cache, chaos->now_ns += WEIR_CHAOS_POLL_NS, events, POLL_EVENTS,
                             &n);
        if (rc)
            return weir_chaos_fail(chaos, rc, "weir_cache_poll");
        for (size_t i = 0; i < n; i++) {
            struct weir_life *life = life_of(chaos, events[i].seq);
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

/* ---- Steps --------------------------------------------------------------- */

/* The next chunk of a request, if it gets pages. 1: it gets none for now. */
static int plan_part(struct weir_chaos *chaos, struct weir_life *life)
{
    struct weir_replay_request *request = life->request;
    size_t end = request->n_done + (1 + weir_chaos_below(chaos, 6)) * chaos->options.page_tokens -
                 weir_chaos_below(chaos, chaos->options.page_tokens);
    weir_request wanted;
    weir_request_init(&wanted);
    wanted.total_tokens = end < request->n_tokens ? end : request->n_tokens;
    wanted.expect_tokens = request->n_tokens;
    if (weir_chaos_happens(chaos, 100))
        wanted.deadline_ns = chaos->now_ns + weir_chaos_below(chaos, 10) * WEIR_CHAOS_POLL_NS;
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

static int plan_parts(struct weir_chaos *chaos)
{
    bool short_of_pages = false;
    chaos->n_parts = 0;
    for (size_t i = 0; i < chaos->n_lives; i++) {
        struct weir_life *life = &chaos->lives[i];
        if (life->failed || life->finished || weir_chaos_happens(chaos, 200))
            continue;
        int rc = plan_part(chaos, life);
        if (rc == -EIO) {
            continue; /* its event comes with the next poll */
        } else if (rc == -E2BIG) {
            chaos->result->too_large++;
            rc = weir_life_close(chaos, life);
            i--;
        } else if (rc == -ENOSPC) {
            short_of_pages = true;
            rc = 0;
        }
        if (rc < 0)
            return weir_chaos_fail(chaos, rc, "weir_seq_reserve");
    }
    /* Nobody can go on: somebody must give way. */
    if (!short_of_pages || chaos->n_parts || chaos->n_lives == 0)
        return 0;
    chaos->result->preempted++;
    return weir_life_close(chaos, &chaos->lives[weir_chaos_below(chaos, (uint32_t)chaos->n_lives)]);
}

static int add_part(struct weir_chaos *chaos, weir_step step, const struct weir_step_part *part)
{
    const char *call;
    int rc = weir_server_add(step, part, chaos->options.page_tokens, &call);
    return rc ? weir_chaos_fail(chaos, rc, call) : 0;
}

/* Sequences may be closed while they are in the open step, and the step may be
 * given up. */
int weir_chaos_step(struct weir_chaos *chaos)
{
    weir_step step;
    int rc = weir_hands_ready(chaos->hands) ? weir_step_begin(&step, chaos->cache) : -EAGAIN;
    if (rc == -EAGAIN)
        return weir_hands_wait(chaos->hands);
    if (rc)
        return weir_chaos_fail(chaos, rc, "weir_step_begin");
    rc = plan_parts(chaos);
    for (size_t i = 0; !rc && i < chaos->n_parts; i++)
        rc = add_part(chaos, step, &chaos->parts[i]);
    if (rc || weir_chaos_happens(chaos, 10)) {
        weir_step_abort(&step);
        chaos->result->aborted_steps++;
        return rc;
    }
    const void *order;
    size_t bytes;
    rc = weir_step_end(&step, &order, &bytes);
    if (rc)
        return weir_chaos_fail(chaos, rc, "weir_step_end");
    chaos->step++;
    for (size_t i = 0; i < chaos->n_parts; i++) {
        struct weir_life *life = chaos->part_lives[i];
        life->last_step = chaos->step;
        life->request->n_done = chaos->parts[i].end;
        life->finished = life->request->n_done == life->request->n_tokens;
    }
    rc = weir_hands_step(chaos->hands, chaos->cache, order, bytes, chaos->parts, chaos->n_parts);
    if (rc)
        return weir_chaos_fail(chaos, rc, "a step");
    return chaos->n_parts ? 0 : weir_hands_wait(chaos->hands);
}
