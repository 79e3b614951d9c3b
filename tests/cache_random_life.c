/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <weir/lifecycle.h>
#include <errno.h>
#include <string.h>

void op_forget(struct world *w)
{
    uint32_t name_space = random_below(&w->random, 2);
    bool all = random_percent(&w->random, 30);
    int rc = all ? both(w, weir_cache_forget_all(w->caches[i]))
                 : both(w, weir_cache_forget(w->caches[i], world_fields, name_space));
    trace_call(w, all ? "forget all" : "forget", name_space, rc);
    must(w, rc == 0, "forget: %d", rc);
    for (uint32_t k = 0; k < 2; k++) {
        w->epochs[k] += all || k == name_space;
        struct prompt p = { .name_space = k, .epoch = w->epochs[k] };
        memcpy(p.letters, w->documents[0], sizeof p.letters);
        size_t n = world_peek(w, &p, (size_t)w->m.page_tokens * 4).n_tokens;
        must(w, n == 0 || (!all && k != name_space), "%zu tokens are not forgotten", n);
    }
}

void op_reset(struct world *w)
{
    int rc = both(w, weir_cache_reset(w->caches[i]));
    trace_call(w, "reset", 0, rc);
    must(w, rc == (w->step_open ? -EBUSY : 0), "reset: %d", rc);
    if (rc)
        return;
    for (uint32_t slot = 0; slot < MODEL_SEQS; slot++) {
        if (!w->m.seqs[slot].open)
            continue;
        must(w, weir_seq_close(&w->users[slot].handles[0]) == -ESTALE, "a sequence outlives reset");
        model_close(&w->m.seqs[slot]);
    }
    w->epochs[0]++;
    w->epochs[1]++;
}

/* What is in flight on the rank has failed; the index is empty; who has pages is
 * told that none of them is good. */
void op_rank_lost(struct world *w)
{
    uint64_t first[2];
    uint32_t rank = random_below(&w->random, w->m.n_ranks);
    int rc = both(w, weir_cache_rank_lost(w->caches[i], rank, &first[i]));
    trace_call(w, "rank lost", rank, rc);
    must(w, rc == 0 && first[0] == first[1], "rank_lost: %d", rc);
    must(w, first[0] == w->m.next_step, "a new rank begins with step %d, not %d", (int)first[0],
         (int)w->m.next_step);
    model_rank_lost(&w->m, rank);
    w->epochs[0]++;
    w->epochs[1]++;
    for (uint32_t slot = 0; slot < MODEL_SEQS; slot++) {
        struct user *user = &w->users[slot];
        struct prompt *p = &user->prompt;
        struct model_seq *seq = &w->m.seqs[slot];
        if (!seq->open)
            continue;
        /* What was not forgotten hits what comes: at once if it has lost nothing, else
         * when it has been cut to nothing. */
        uint64_t epoch = w->epochs[p->name_space];
        bool remembered = p->epoch + 1 == epoch || user->epoch_after + 1 == epoch;
        user->epoch_after = seq->lost && remembered ? epoch : 0;
        if (!seq->lost && remembered)
            p->epoch = epoch;
        if (!seq->lost)
            prompt_chains(p, seq->chains);
    }
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    must(w, stats.index_pages == 0, "%d pages of the index outlive a rank", (int)stats.index_pages);
}

/* Nothing begins while the cache is drained; what is open ends. */
void op_quiesce(struct world *w)
{
    int rc = both(w, weir_cache_drain(w->caches[i]));
    trace_call(w, "drain", 0, rc);
    must(w, rc == (w->step_open || model_in_flight(&w->m) ? -EAGAIN : 0), "drain: %d", rc);
    w->draining = true;
    if (w->step_open && random_percent(&w->random, 50))
        world_end_step(w);
    weir_step step;
    must(w, both(w, weir_step_begin(&step, w->caches[i])) == -EBUSY, "a step while drained");
    for (uint32_t k = random_below(&w->random, 4); k > 0; k--) {
        op_reserve(w);
        op_late_commit(w);
        op_fork(w);
        op_truncate(w);
        op_report(w);
        op_poll(w);
        world_check(w);
    }
    must(w, both(w, weir_cache_resume(w->caches[i])) == 0, "resume");
    trace_call(w, "resume", 0, 0);
    w->draining = false;
}

void op_nonsense(struct world *w)
{
    weir_step step = { 0 };
    weir_seq seq = { w->caches[0], UINT64_C(77) << 40 | 1 };
    if (w->step_open)
        must(w, both(w, weir_step_begin(&step, w->caches[i])) == -EBUSY, "a step in a step");
    must(w, weir_seq_close(&seq) == -ESTALE, "a handle of nothing is closed");
    must(w, both(w, weir_cache_report(w->caches[i], w->m.n_ranks, "", 0)) == -EINVAL, "rank");
    if (w->step_open || model_in_flight(&w->m) || world_pick(w) != MODEL_SEQS) {
        weir_cache *cache = w->caches[0];
        if (w->step_open || model_steps_in_flight(&w->m) || world_pick(w) != MODEL_SEQS)
            must(w, weir_cache_destroy(&cache) == -EBUSY && cache, "a cache in use is destroyed");
    }
}

/* Runs empty steps, carries all reports and polls until nothing is in flight;
 * then whoever waits is served or told -ENOSPC. */
void op_drain(struct world *w)
{
    if (w->step_open)
        world_end_step(w);
    bool waits = true;
    for (int round = 0; waits; round++) {
        must(w, round < 100, "a sequence waits for ever");
        if (round > 0) {
            world_begin_step(w);
            must(w, w->step_open, "no step can be begun though none is in flight");
            world_end_step(w);
        }
        for (bool any = true; any;) {
            any = false;
            for (uint32_t rank = 0; rank < w->m.n_ranks; rank++)
                any |= world_report(w, rank, 100);
        }
        must(w, !model_in_flight(&w->m), "what is in flight cannot be reported");
        world_poll(w, 32, false);
        waits = false;
        for (uint32_t slot = 0; slot < MODEL_SEQS; slot++)
            if (w->m.seqs[slot].open && w->m.seqs[slot].waiting)
                waits |= world_reserve(w, slot) == -EAGAIN;
    }
    world_check(w);
}
