/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"
#include "export_check.h"

#include <errno.h>
#include <string.h>

void op_open(struct world *w)
{
    uint32_t slot = 0;
    while (slot < MODEL_SEQS && w->m.seqs[slot].open)
        slot++;
    struct user user = { .prompt = world_prompt(w) };
    user.compute_at_least = random_percent(&w->random, 80) ? 1 : random_below(&w->random, 20);
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.compute_at_least = user.compute_at_least;
    params.priority = random_below(&w->random, w->n_priorities + 1);
    params.ttl_ns = random_percent(&w->random, 80) ? random_below(&w->random, 20000) : 0;
    params.user = slot < MODEL_SEQS ? &w->users[slot] : NULL;
    weir_key key = world_key(w, &user.prompt, user.prompt.n_key);
    int rc = both(w, weir_seq_open(&user.handles[i], w->caches[i], &key, &params));
    trace_call(w, "open", slot, rc);
    must(w, rc == (slot < MODEL_SEQS ? 0 : -ENOSPC), "open: %d", rc);
    if (rc)
        return;
    must(w, user.handles[0].id == user.handles[1].id, "ids differ");
    weir_request_init(&user.request);
    w->users[slot] = user;
    w->m.seqs[slot] = (struct model_seq){ .open = true };
    prompt_chains(&user.prompt, w->m.seqs[slot].chains);
}

void op_close(struct world *w, uint32_t slot)
{
    weir_seq old = w->users[slot].handles[0];
    int rc = both(w, weir_seq_close(&w->users[slot].handles[i]));
    trace_call(w, "close", slot, rc);
    must(w, rc == 0, "close: %d", rc);
    must(w, !w->users[slot].handles[0].cache && !w->users[slot].handles[0].id, "handle not reset");
    must(w, weir_seq_close(&old) == -ESTALE, "a sequence is closed twice");
    model_close(&w->m.seqs[slot]);
}

/* ---- Reserves ------------------------------------------------------------ */

/* Leading tokens that a first reserve with the present request is to use. */
static size_t expected_hit(struct world *w, uint32_t slot)
{
    const struct user *user = &w->users[slot];
    if (world_is_forgotten(w, slot))
        return 0;
    size_t n = user->prompt.n_key;
    n = n > user->compute_at_least ? n - user->compute_at_least : 0;
    n = n < user->request.use_hit ? n : user->request.use_hit;
    if (n == 0)
        return 0;
    weir_hit hit = world_peek(w, &user->prompt, n);
    return user->request.use_hit == WEIR_USE_HIT_IF_CHEAPER ? hit.n_worth : hit.n_tokens;
}

/* What a reserve with the present request is to bring about, at least. */
static size_t wanted_pages(const struct world *w, uint32_t slot)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    size_t total = w->users[slot].request.total_tokens;
    size_t committed = seq->n_committed + seq->n_pending;
    total = total > committed ? total : committed;
    return (total + w->m.page_tokens - 1) / w->m.page_tokens;
}

static void check_reserved(struct world *w, uint32_t slot, const weir_reserved *r, size_t hit)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    must(w, r->hit.n_tokens == hit, "hit of %zu tokens, not %zu", r->hit.n_tokens, hit);
    must(w, r->hit.n_device + r->hit.n_host + r->hit.n_loading == hit, "the parts of a hit");
    if (w->users[slot].request.use_hit == WEIR_USE_HIT_IF_CHEAPER && hit)
        must(w,
             r->hit.n_worth == hit &&
                 (!r->hit.n_host || !r->hit.compute_ns || r->hit.load_ns <= r->hit.compute_ns),
             "what does not pay is loaded");
    int32_t table[MODEL_PAGES];
    size_t n = world_table(w, slot, table);
    size_t wanted = wanted_pages(w, slot);
    size_t had = seq->n_pages + hit / w->m.page_tokens;
    must(w, n == (wanted > had ? wanted : had), "%zu pages reserved", n);
    struct counted *c = &w->counted;
    c->requests += !seq->reserved;
    c->device += r->hit.n_device / w->m.page_tokens;
    c->host += r->hit.n_host / w->m.page_tokens;
    c->loading += r->hit.n_loading / w->m.page_tokens;
    c->new += n - had;
    model_reserve(&w->m, &w->m.seqs[slot], hit, table, n);
    /* A load may bring back what the page holds still from before, by chance. */
    struct user *user = &w->users[slot];
    size_t n_loads = (r->hit.n_host + r->hit.n_loading) / w->m.page_tokens;
    user->no_deadline |= hit && n_loads != model_missing(&w->m, seq);
    if (user->no_deadline && user->request.deadline_ns) {
        user->request.deadline_ns = 0;
        must(w, both(w, weir_seq_reserve(user->handles[i], &user->request, NULL)) == 0, "again");
    }
    w->m.seqs[slot].deadline_ns = user->request.deadline_ns;
    trace_table(w, slot);
}

/* -EAGAIN and -ENOSPC must be true. */
static void check_refusal(struct world *w, uint32_t slot, int rc, size_t n_pages)
{
    weir_available available;
    must(w, weir_cache_available(w->caches[0], &available) == 0, "available");
    if (rc == -EAGAIN) {
        must(w, model_in_flight(&w->m) || available.pending || world_others_wait(w, slot),
             "-EAGAIN, and nothing is in flight");
        return;
    }
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    uint64_t could = w->m.seqs[slot].n_pages + model_not_held(&w->m);
    must(w, world_others_wait(w, slot) || n_pages + stats.pinned_device_pages > could,
         "-ENOSPC, and %u pages could be had", model_not_held(&w->m));
}

/* Calls reserve with the sequence's request. */
int world_reserve(struct world *w, uint32_t slot)
{
    struct user *user = &w->users[slot];
    struct model_seq *seq = &w->m.seqs[slot];
    size_t hit = seq->reserved ? 0 : expected_hit(w, slot);
    size_t n_pages = wanted_pages(w, slot);
    size_t least = seq->n_pages + hit / w->m.page_tokens;
    n_pages = n_pages > least ? n_pages : least;

    weir_reserved reserved[2] = { 0 };
    int rc = both(w, weir_seq_reserve(user->handles[i], &user->request, &reserved[i]));
    trace_call(w, "reserve", slot, rc);
    must(w, memcmp(&reserved[0], &reserved[1], sizeof reserved[0]) == 0, "reserved differ");
    must(w, (rc == -EIO) == model_is_doomed(&w->m, &w->m.seqs[slot]), "reserve: %d, and doomed %d",
         rc, model_is_doomed(&w->m, &w->m.seqs[slot]));
    if (rc != -EIO)
        must(w, (rc == -E2BIG) == (n_pages > w->m.device_pages), "reserve of %zu pages: %d",
             n_pages, rc);
    if (rc == 0)
        check_reserved(w, slot, &reserved[0], hit);
    else if (rc == -EAGAIN || rc == -ENOSPC)
        check_refusal(w, slot, rc, n_pages);
    else
        must(w, rc == -E2BIG || rc == -EIO || rc == -EBUSY, "reserve: %d", rc);
    must(w, w->draining ? rc != -EAGAIN : rc != -EBUSY, "reserve: %d, drained %d", rc, w->draining);
    if (rc != 0 && rc != -EIO && rc != -EBUSY)
        must(w, reserved[0].n_short > 0, "nothing is short");
    w->counted.again += rc == -EAGAIN;
    w->counted.nospace += rc == -ENOSPC;
    /* A claim ends with close. */
    seq->waiting = rc == -EAGAIN || ((rc == -EIO || rc == -EBUSY) && seq->waiting);
    return rc;
}

void op_reserve(struct world *w)
{
    uint32_t slot = world_pick(w);
    if (slot == MODEL_SEQS)
        return;
    const struct model_seq *seq = &w->m.seqs[slot];
    struct user *user = &w->users[slot];
    if (!seq->waiting || random_percent(&w->random, 30)) {
        size_t total = seq->reserved ? seq->n_committed + seq->n_pending : user->prompt.n_key;
        total += random_below(&w->random, 3 * w->m.page_tokens);
        if (!seq->reserved && random_percent(&w->random, 20))
            total = 1 + random_below(&w->random, (uint32_t)total);
        size_t limit = (size_t)MODEL_PAGES * w->m.page_tokens;
        user->request.total_tokens = total < limit ? total + (total == 0) : limit;
        user->request.use_hit = random_percent(&w->random, 85) ? WEIR_ALL_TOKENS
                                : random_percent(&w->random, 50)
                                    ? WEIR_USE_HIT_IF_CHEAPER
                                    : random_below(&w->random, (uint32_t)user->prompt.n_key);
        user->request.expect_tokens =
            random_percent(&w->random, 50) ? 0 : total + random_below(&w->random, 100);
        user->request.deadline_ns = user->no_deadline || random_percent(&w->random, 80)
                                        ? 0
                                        : w->now_ns + random_below(&w->random, 6000);
    }
    world_reserve(w, slot);
}

/* ---- Looking ------------------------------------------------------------- */

void op_peek(struct world *w)
{
    uint32_t slot = world_pick(w);
    uint64_t before = weir_cache_digest(w->caches[0]);
    if (slot == MODEL_SEQS || random_percent(&w->random, 40)) {
        struct prompt p = world_prompt(w);
        world_peek(w, &p, p.n_key);
    } else {
        const struct model_seq *seq = &w->m.seqs[slot];
        size_t full = seq->n_committed - seq->n_committed % w->m.page_tokens;
        size_t n_tokens = full ? world_peek(w, &w->users[slot].prompt, full).n_tokens : 0;
        must(w,
             w->load_failures || world_is_forgotten(w, slot) || seq->unindexed || seq->late ||
                 n_tokens == full,
             "%zu of %zu committed tokens are in the index", n_tokens, full);
    }
    must(w, weir_cache_digest(w->caches[0]) == before, "a peek changes the cache");
}

/* A reserve counts once, when it succeeds, and so does what it hits. */
static void check_counters(struct world *w)
{
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    const struct counted *c = &w->counted;
    must(w, stats.requests == c->requests, "%d requests, not %d", (int)stats.requests,
         (int)c->requests);
    must(w, stats.reserve_again == c->again && stats.reserve_nospace == c->nospace,
         "refused reserves");
    must(w,
         stats.hit_pages_device == c->device && stats.hit_pages_host == c->host &&
             stats.hit_pages_loading == c->loading,
         "%d, %d and %d pages hit", (int)stats.hit_pages_device, (int)stats.hit_pages_host,
         (int)stats.hit_pages_loading);
    must(w, stats.new_pages == c->new, "%d new pages, not %d", (int)stats.new_pages, (int)c->new);
    weir_available available;
    must(w, weir_cache_available(w->caches[0], &available) == 0, "available");
    must(w, available.free == stats.device_free && available.offered == stats.device_offered,
         "two answers to what is free");
}

void op_look(struct world *w)
{
    check_counters(w);
    uint32_t slot = world_pick(w);
    if (slot == MODEL_SEQS)
        return;
    const struct model_seq *seq = &w->m.seqs[slot];
    weir_seq_info info;
    must(w, weir_seq_get_info(w->users[slot].handles[0], &info) == 0, "get_info");
    size_t committed = seq->n_committed + seq->n_pending, n_key = w->users[slot].prompt.n_key;
    must(w, info.n_committed == committed, "%zu committed, not %zu", info.n_committed, committed);
    must(w, info.n_tokens == (committed > n_key ? committed : n_key), "%zu tokens", info.n_tokens);
    must(w, info.n_reserved == (size_t)seq->n_pages * w->m.page_tokens, "%zu tokens reserved",
         info.n_reserved);
    must(w, info.user == &w->users[slot], "another user pointer");
    int32_t table[MODEL_PAGES];
    size_t n = world_table(w, slot, table);
    must(w, n == seq->n_pages && memcmp(table, seq->table, n * sizeof *table) == 0,
         "a block table changed");
    const char *fault =
        export_fault(w->caches[0], w->users[slot].handles[0], w->m.page_tokens, table, n);
    must(w, !fault, "%s", fault);
}
