/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <errno.h>

/* One that has something to be forked or cut, mostly. */
static uint32_t pick_committed(struct world *w)
{
    uint32_t slot = world_pick(w);
    for (int i = 0; i < 8 && slot != MODEL_SEQS; i++) {
        if (w->m.seqs[slot].n_committed + w->m.seqs[slot].n_pending > 0)
            break;
        slot = world_pick(w);
    }
    return slot;
}

/* The kid says what its parent says up to len, then in part something else. */
static void make_kid(struct world *w, uint32_t slot, uint32_t kid, size_t len, weir_seq *handles)
{
    struct user user = { .prompt = w->users[slot].prompt, .handles = { handles[0], handles[1] } };
    user.no_deadline = w->users[slot].no_deadline;
    user.prompt.n_key = len;
    for (size_t i = (len + w->m.page_tokens - 1) / w->m.page_tokens; i < MODEL_PAGES; i++)
        if (random_percent(&w->random, 30))
            user.prompt.letters[i] = (char)(1 + random_below(&w->random, 3));
    weir_request_init(&user.request);
    w->users[kid] = user;
    w->m.seqs[kid] = (struct model_seq){ .open = true };
    prompt_chains(&user.prompt, w->m.seqs[kid].chains);
    int32_t table[MODEL_PAGES];
    size_t n = world_table(w, kid, table);
    model_fork(&w->m, &w->m.seqs[slot], &w->m.seqs[kid], len, table, n);
    trace_table(w, kid);
}

/* -EAGAIN and -ENOSPC for want of n pages must be true. */
static void check_no_room(struct world *w, int rc, size_t n)
{
    weir_available available;
    must(w, weir_cache_available(w->caches[0], &available) == 0, "available");
    if (rc == -EAGAIN)
        must(w, model_in_flight(&w->m) || available.pending || available.claimed,
             "-EAGAIN, and nothing is in flight");
    if (rc == -EAGAIN)
        return;
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    must(w,
         rc == -ENOSPC &&
             (available.claimed || n + stats.pinned_device_pages > model_not_held(&w->m)),
         "fork: %d, and %u pages could be had", rc, model_not_held(&w->m));
}

void op_fork(struct world *w)
{
    uint32_t slot = pick_committed(w);
    if (slot == MODEL_SEQS)
        return;
    const struct model_seq *seq = &w->m.seqs[slot];
    size_t committed = seq->n_committed + seq->n_pending;
    size_t len = 1 + random_below(&w->random, (uint32_t)committed + 1); /* or one too many */
    if (random_percent(&w->random, 30) && committed)
        len = committed;
    /* Not inside an image, half of which is another one. */
    size_t inside = len % w->m.page_tokens;
    if (len > inside && w->users[slot].prompt.letters[len / w->m.page_tokens] >= WORLD_IMAGE)
        len -= inside;
    else if (len == inside && w->users[slot].prompt.letters[0] >= WORLD_IMAGE)
        return;
    uint32_t slots[2] = { 0 }, n_free = 0, n = 1 + random_below(&w->random, 2);
    for (uint32_t k = 0; k < MODEL_SEQS && n_free < n; k++)
        if (!w->m.seqs[k].open)
            slots[n_free++] = k;
    void *users[2] = { &w->users[slots[0]], NULL };
    if (n_free == 2)
        users[1] = &w->users[slots[1]];
    weir_seq kids[2][2];
    int rc = both(w, weir_seq_fork(kids[i], n, w->users[slot].handles[i], len, users));
    trace_call(w, "fork", slot, rc);
    if (len > committed || model_is_doomed(&w->m, &w->m.seqs[slot])) {
        must(w, rc == (len > committed ? -EINVAL : -EIO), "fork: %d", rc);
        return;
    }
    if (n_free < n) {
        must(w, rc == -ENOSPC, "fork: %d without free sequences", rc);
        return;
    }
    must(w, w->draining ? rc != -EAGAIN : rc != -EBUSY, "fork: %d, drained %d", rc, w->draining);
    if (rc == -EBUSY)
        return;
    if (rc) {
        check_no_room(w, rc, len % w->m.page_tokens ? n : 0);
        return;
    }
    if (len % w->m.page_tokens)
        w->counted.new += n;
    for (uint32_t k = 0; k < n; k++) {
        must(w, kids[0][k].id == kids[1][k].id, "ids differ");
        make_kid(w, slot, slots[k], len, (weir_seq[]){ kids[0][k], kids[1][k] });
    }
}

void op_truncate(struct world *w)
{
    uint32_t slot = pick_committed(w);
    if (slot == MODEL_SEQS)
        return;
    struct model_seq *seq = &w->m.seqs[slot];
    struct user *user = &w->users[slot];
    bool doomed = model_is_doomed(&w->m, seq), lost = seq->lost;
    size_t good = (size_t)model_good_pages(&w->m, seq, false) * w->m.page_tokens;
    if (seq->late && good > (size_t)seq->late_pages * w->m.page_tokens)
        good = (size_t)seq->late_pages * w->m.page_tokens;
    size_t n = random_below(&w->random, (uint32_t)seq->n_committed + 1);
    if (doomed && random_percent(&w->random, 60) && good < n)
        n = good;
    int rc = both(w, weir_seq_truncate(user->handles[i], n));
    trace_call(w, "truncate", slot, rc);
    int want = seq->in_step ? -EBUSY : doomed && n > good ? -EIO : 0;
    must(w, rc == want, "truncate to %zu of %zu: %d, not %d", n, seq->n_committed, rc, want);
    if (rc)
        return;
    int32_t table[MODEL_PAGES];
    size_t n_table = world_table(w, slot, table);
    model_truncate(&w->m, seq, n, table, n_table);
    trace_table(w, slot);
    must(w, !model_is_doomed(&w->m, seq), "a sequence is wrong after it was cut");
    if (lost && user->epoch_after == w->epochs[user->prompt.name_space])
        user->prompt.epoch = user->epoch_after;
    size_t known = n > user->prompt.n_key ? n : user->prompt.n_key;
    for (size_t i = (known + w->m.page_tokens - 1) / w->m.page_tokens; i < MODEL_PAGES; i++)
        if (random_percent(&w->random, 20))
            user->prompt.letters[i] = (char)(1 + random_below(&w->random, 3));
    prompt_chains(&user->prompt, seq->chains);
}
