/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

#include <errno.h>
#include <string.h>

/* What a fork is made from. */
struct plan {
    size_t len;
    uint32_t n_shared;      /* full pages */
    uint32_t n_own;         /* the page of the tail: 0 or 1 */
    struct seq_page source; /* of the tail */
    bool of_open_step;      /* the open step computes some of it */
};

static int check(const struct seq *seq, const weir_seq *kids, size_t n, size_t len,
                 const weir_log *log)
{
    size_t committed = seq->n_committed + seq->n_pending;
    if (!kids || n == 0)
        return weir_invalid(log, "seq_fork: kids is NULL or n is 0");
    if (len == 0 || len > committed)
        return weir_invalid(log, "seq_fork: len is %zu, must be 1 to the %zu tokens committed", len,
                            committed);
    return seq->failed ? -EIO : 0;
}

static struct plan make_plan(const weir_cache *cache, const struct seq *seq, size_t len)
{
    struct plan plan = {
        .len = len,
        .n_shared = (uint32_t)(len / cache->page_tokens),
        .n_own = len % cache->page_tokens != 0,
        .of_open_step = len > seq->n_committed,
    };
    if (plan.n_own) {
        /* The sequence's own page has nothing in it before its copy is made. */
        bool due = seq->source.page && seq->source_index == plan.n_shared &&
                   (seq->born_of >= 0 || !plan.of_open_step);
        plan.source = due ? seq->source : seq->pages[plan.n_shared];
    }
    return plan;
}

/* What a kid needs besides device pages, in the slot that it is to have. */
static int prepare_slot(weir_cache *cache, struct seq *kid, const struct seq *seq,
                        const struct plan *plan)
{
    int rc = weir_seq_grow_tokens(cache, kid, plan->len);
    if (rc == 0)
        rc = weir_seq_grow_pages(cache, kid, plan->n_shared + plan->n_own);
    return rc ? rc : weir_seq_fork_spans(cache, kid, seq, plan->len);
}

/* The first n free slots are to have no kids after all. */
static void give_slots_back(weir_cache *cache, size_t n)
{
    int32_t slot = cache->free_seq;
    for (; n > 0; n--) {
        weir_seq_clear_spans(cache, &cache->seqs[slot]);
        slot = cache->seqs[slot].free_next;
    }
}

static int prepare_slots(weir_cache *cache, const struct seq *seq, const struct plan *plan,
                         size_t n)
{
    int32_t slot = cache->free_seq;
    for (size_t i = 0; i < n; i++) {
        int rc = slot < 0 ? -ENOSPC : prepare_slot(cache, &cache->seqs[slot], seq, plan);
        if (rc) {
            give_slots_back(cache, i);
            return rc;
        }
        slot = cache->seqs[slot].free_next;
    }
    return 0;
}

/* Puts n device pages into tiers[DEVICE].pages, behind all that is claimed. */
static int take_pages(weir_cache *cache, size_t n)
{
    if (n == 0)
        return 0;
    size_t wish = n + cache->n_claimed;
    if (cache->draining && wish > weir_tier_available(&cache->tiers[DEVICE]))
        return -EBUSY;
    if (wish > weir_page_pool_size(cache->tiers[DEVICE].pool) - cache->n_held)
        return -ENOSPC;
    if (weir_tier_make_room(cache, DEVICE, (uint32_t)wish) < wish)
        return -EAGAIN;
    weir_tier_alloc(cache, DEVICE, (uint32_t)n, 0, 0);
    return 0;
}

static void share(weir_cache *cache, const struct seq_page *sp)
{
    weir_device_hold(cache, sp->page);
    if (sp->guard)
        weir_device_hold(cache, sp->guard);
}

/* Its tokens come from a load in part, or from a step that the index does not know
 * of any more, if they reach as far. */
static void inherit_tail(const weir_cache *cache, struct seq *kid, const struct seq *seq)
{
    if (seq->tail_load && kid->n_tokens > (size_t)seq->tail_index * cache->page_tokens) {
        kid->tail_load = seq->tail_load;
        kid->tail_index = seq->tail_index;
    }
    if (seq->lost_writer && kid->n_tokens > (size_t)seq->lost_from * cache->page_tokens)
        weir_seq_note_writer(cache, kid, seq->lost_from, seq->lost_writer);
}

static void put_in_step(weir_cache *cache, struct seq *kid, const struct seq *seq)
{
    kid->n_committed = seq->n_committed - seq->n_committed % cache->page_tokens;
    kid->n_pending = kid->n_tokens - kid->n_committed;
    kid->born_of = seq_index(cache, seq);
    kid->first_step = cache->next_step + 1;
    kid->in_step = true;
    cache->seqs[cache->step_last].step_next = seq_index(cache, kid);
    cache->step_last = seq_index(cache, kid);
}

static struct seq *make_kid(weir_cache *cache, const struct seq *seq, const struct plan *plan,
                            void *user)
{
    weir_radix_keep_root(cache->radix, seq->root);
    struct seq *kid = weir_seq_make(cache, seq->root, user);
    memcpy(kid->tokens, seq->tokens, plan->len * sizeof *kid->tokens);
    kid->n_key = kid->n_tokens = kid->n_committed = plan->len;
    kid->n_hit = seq->n_hit < plan->len ? seq->n_hit : plan->len;
    kid->reserved = true;
    kid->priority = seq->priority;
    kid->ttl_ns = seq->ttl_ns;
    kid->detached = seq->detached;
    kid->forgotten = seq->forgotten;
    kid->n_indexed = seq->n_indexed < plan->n_shared ? seq->n_indexed : plan->n_shared;
    uint32_t n_hit = (uint32_t)(seq->n_hit / cache->page_tokens);
    kid->n_load_scan = n_hit < plan->n_shared ? n_hit : plan->n_shared;
    /* A step that has gone wrong may have spoilt what it has of the other. */
    kid->steps = seq->steps;
    kid->fences = weir_step_set_add(seq->fences, seq->steps.newest);
    kid->first_step = cache->next_step;
    inherit_tail(cache, kid, seq);
    for (uint32_t i = 0; i < plan->n_shared; i++) {
        share(cache, &seq->pages[i]);
        kid->pages[kid->n_pages++] = seq->pages[i];
    }
    weir_seq_find_joins(cache, kid);
    return kid;
}

static void give_tail(weir_cache *cache, struct seq *kid, const struct plan *plan, int32_t page)
{
    weir_page_pool *pool = cache->tiers[DEVICE].pool;
    share(cache, &plan->source);
    weir_tail_owe(cache, kid, plan->source, plan->n_shared);
    weir_device_hold(cache, page);
    kid->fences = weir_step_set_merge(kid->fences, weir_page_pool_steps(pool, page));
    kid->pages[kid->n_pages++] = (struct seq_page){ .page = page, .ref = WEIR_RADIX_NONE };
    cache->stats.new_pages++;
}

int weir_seq_fork(weir_seq *kids, size_t n, weir_seq handle, size_t len, void *const *users)
{
    int rc;
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    weir_cache *cache = handle.cache;
    rc = check(seq, kids, n, len, &cache->log);
    if (rc)
        return rc;
    if (n > cache->max_seqs)
        return -ENOSPC;
    struct plan plan = make_plan(cache, seq, len);
    rc = prepare_slots(cache, seq, &plan, n);
    if (rc)
        return rc;
    rc = take_pages(cache, n * plan.n_own);
    if (rc) {
        give_slots_back(cache, n);
        return rc;
    }
    for (size_t i = 0; i < n; i++) {
        struct seq *kid = make_kid(cache, seq, &plan, users ? users[i] : NULL);
        if (plan.n_own)
            give_tail(cache, kid, &plan, cache->tiers[DEVICE].pages[i]);
        if (plan.of_open_step)
            put_in_step(cache, kid, seq);
        kids[i] = weir_seq_handle(cache, kid);
    }
    cache->stats.forks += n;
    return 0;
}

void weir_fork_settle(weir_cache *cache, struct seq *seq, uint64_t step)
{
    const struct seq *parent = &cache->seqs[seq->born_of];
    inherit_tail(cache, seq, parent);
    seq->steps = weir_step_set_add(seq->steps, step);
    if (parent->failed)
        weir_fail_seq(cache, seq, parent->good_tokens, parent->failed_rc);
}

void weir_fork_undo(weir_cache *cache, struct seq *seq)
{
    seq->born_of = -1;
    weir_seq_cut(cache, seq, seq->n_committed);
}
