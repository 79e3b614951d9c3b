/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

#include <errno.h>

/* Adding a sequence only notes it; all that a step does happens when it ends,
 * so that aborting one has nothing to undo. */

static int find_step(weir_step handle)
{
    if (!handle.cache)
        return -EINVAL;
    if (!handle.cache->step_open || handle.id != handle.cache->next_step)
        return -ESTALE;
    return 0;
}

int weir_step_begin(weir_step *step, weir_cache *cache)
{
    if (!cache)
        return -EINVAL;
    if (!step)
        return weir_invalid(&cache->log, "step_begin: step is NULL");
    if (cache->step_open || cache->draining)
        return -EBUSY;
    if (cache->flights[cache->next_step % cache->max_steps].id)
        return -EAGAIN;
    cache->step_open = true;
    cache->step_first = cache->step_last = -1;
    *step = (weir_step){ cache, cache->next_step };
    return 0;
}

int weir_step_add(weir_step step, weir_seq handle)
{
    int rc = find_step(step);
    if (rc)
        return rc;
    weir_cache *cache = step.cache;
    if (handle.cache != cache)
        return weir_invalid(&cache->log, "step_add: seq is of another cache, or {0, 0}");
    struct seq *seq = weir_seq_find(handle, &rc);
    if (!seq)
        return rc;
    if (seq->failed)
        return -EIO;
    if (seq->born_of >= 0)
        return -EBUSY;
    if (seq->n_pages == 0 || (size_t)seq->n_pages * cache->page_tokens < seq->n_committed)
        return weir_invalid(&cache->log,
                            "step_add: the sequence has %u pages for %zu tokens, reserve first",
                            seq->n_pages, seq->n_committed);
    if (seq->in_step)
        return 0;
    seq->in_step = true;
    seq->step_next = -1;
    if (cache->step_last >= 0)
        cache->seqs[cache->step_last].step_next = seq_index(cache, seq);
    else
        cache->step_first = seq_index(cache, seq);
    cache->step_last = seq_index(cache, seq);
    return 0;
}

/* Takes a sequence out of the open step; it may end here. */
static void leave_step(weir_cache *cache, struct seq *seq)
{
    seq->in_step = false;
    if (seq->closing)
        weir_seq_release(cache, seq);
}

int weir_step_abort(weir_step *step)
{
    if (!step)
        return -EINVAL;
    int rc = find_step(*step);
    if (rc)
        return rc;
    weir_cache *cache = step->cache;
    int32_t next;
    for (int32_t i = cache->step_first; i >= 0; i = next) {
        struct seq *seq = &cache->seqs[i];
        next = seq->step_next;
        seq->n_pending = 0;
        seq->n_tokens = seq->n_committed > seq->n_key ? seq->n_committed : seq->n_key;
        if (seq->born_of >= 0)
            weir_fork_undo(cache, seq);
        leave_step(cache, seq);
    }
    cache->step_open = false;
    *step = (weir_step){ 0 };
    return 0;
}

/* ---- Ending -------------------------------------------------------------- */

/* The order under construction, as sets of steps. */
struct draft {
    uint64_t step;
    weir_step_set fences;
    weir_step_set load_fences;
    weir_step_set write_fences;
    weir_step_set joins;
    uint32_t n_copies; /* in cache->copies */
};

/* Writes the members of a set that `keep` accepts to `steps`, ascending. */
static uint32_t list_steps(const weir_cache *cache, weir_step_set set, uint64_t last,
                           bool (*keep)(const weir_cache *, uint64_t), uint64_t *steps)
{
    uint32_t n = 0;
    uint64_t first = last > 64 ? last - 64 : 1;
    for (uint64_t step = first; step <= last; step++)
        if (weir_step_set_has(set, step) && keep(cache, step))
            steps[n++] = step;
    return n;
}

static void settle_load(weir_cache *cache, struct seq *seq, int32_t page, struct flight *flight,
                        struct draft *draft)
{
    const struct device_page *device_page = &cache->device_pages[page];
    if (device_page->mover == MOVER_WAITING) {
        weir_entry_order_load(cache, page, flight);
        draft->load_fences = weir_step_set_merge(
            draft->load_fences, weir_page_pool_steps(cache->tiers[DEVICE].pool, page));
    }
    if (device_page->mover > 0)
        seq->joins = weir_step_set_add(seq->joins, cache->flights[device_page->mover - 1].id);
}

/* Starts the loads that the sequence is the first to need, joins the others. One
 * that has failed in the open step needs none, but its kernels touch the pages: who
 * loads them for others comes behind. */
static void settle_loads(weir_cache *cache, struct seq *seq, struct flight *flight,
                         struct draft *draft)
{
    for (uint32_t i = 0; i < seq->n_load_scan && seq->failed; i++)
        weir_page_pool_add_steps(cache->tiers[DEVICE].pool, seq->pages[i].page, &seq->steps);
    if (seq->failed)
        return;
    for (uint32_t i = 0; i < seq->n_load_scan; i++)
        settle_load(cache, seq, seq->pages[i].page, flight, draft);
    seq->n_load_scan = 0;
    if (seq->source.page)
        settle_load(cache, seq, seq->source.page, flight, draft);
    draft->joins = weir_step_set_merge(draft->joins, seq->joins);
}

/* Hands the queued write-backs to a ticket, if one is free. Those whose entry
 * has been dropped meanwhile are not worth the link. */
static struct write_back *take_writes(weir_cache *cache, struct draft *draft)
{
    struct write_back *write = &cache->writes[cache->next_write % cache->max_write_backs];
    if (cache->write_queue.count == 0 || write->ticket)
        return NULL;
    struct page_chain dropped = { 0 };
    struct page_chain queue = cache->write_queue;
    cache->write_queue = (struct page_chain){ 0 };
    int32_t next;
    for (int32_t page = queue.first; page; page = next) {
        next = cache->device_pages[page].next;
        int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, page);
        bool live = ref >= 0;
        weir_chain_push(cache, live ? &write->pages : &dropped, page,
                        cache->device_pages[page].partner);
        if (!live)
            continue;
        cache->device_pages[page].mover = (int16_t)(cache->writes - write - 1);
        draft->write_fences = weir_step_set_add(draft->write_fences, cache->entries[ref].writer);
    }
    weir_write_finish(cache, &dropped, -ECANCELED);
    if (write->pages.count == 0)
        return NULL;
    weir_run_count(cache, &write->pages, &cache->stats.write_runs, &cache->stats.write_run_squares);
    write->ticket = cache->next_write++;
    write->ranks = cache->all_ranks;
    write->failed = write->unwanted = write->cancelled = false;
    write->n_live = write->pages.count;
    cache->n_writes++;
    return write;
}

static uint32_t list_moves(const weir_cache *cache, const struct page_chain *chain,
                           weir_move *moves)
{
    uint32_t n = 0;
    for (int32_t page = chain->first; page; page = cache->device_pages[page].next)
        moves[n++] =
            (weir_move){ .device = { page }, .host = { cache->device_pages[page].partner } };
    return n;
}

static bool is_before(const weir_cache *cache, uint64_t step)
{
    return step < cache->next_step && step_is_running(cache, step);
}

static bool is_joined(const weir_cache *cache, uint64_t step)
{
    return step < cache->next_step && load_is_running(cache, step);
}

static int write_order(weir_cache *cache, const struct draft *draft, struct flight *flight,
                       const struct write_back *write, size_t *bytes)
{
    uint64_t fences[65], load_fences[65], write_fences[65], joins[65];
    weir_order order = {
        .step = draft->step,
        .write_ticket = write ? write->ticket : 0,
        .device_pages = weir_page_pool_size(cache->tiers[DEVICE].pool),
        .host_pages = weir_page_pool_size(cache->tiers[HOST].pool),
        .fences = fences,
        .load_fences = load_fences,
        .write_fences = write_fences,
        .joins = joins,
        .loads = cache->moves[DEVICE],
        .writes = cache->moves[HOST],
        .cancels = cache->cancels,
        .n_cancels = weir_cancel_list(cache, draft->step),
        .copies = cache->copies,
        .n_copies = draft->n_copies,
    };
    order.n_fences = list_steps(cache, draft->fences, draft->step - 1, is_before, fences);
    order.n_joins = list_steps(cache, draft->joins, draft->step - 1, is_joined, joins);
    order.n_loads = list_moves(cache, &flight->loads, cache->moves[DEVICE]);
    if (order.n_loads)
        order.n_load_fences =
            list_steps(cache, draft->load_fences, draft->step - 1, is_before, load_fences);
    if (write) {
        order.n_writes = list_moves(cache, &write->pages, cache->moves[HOST]);
        order.n_write_fences =
            list_steps(cache, draft->write_fences, draft->step, step_is_running, write_fences);
    }
    return weir_order_encode(&order, flight->order, cache->order_capacity, bytes, &cache->log);
}

size_t weir_cache_max_order_bytes(const weir_cache *cache)
{
    return cache ? cache->order_capacity : 0;
}

int weir_step_end(weir_step *step, const void **order, size_t *bytes)
{
    if (!step)
        return -EINVAL;
    int rc = find_step(*step);
    if (rc)
        return rc;
    weir_cache *cache = step->cache;
    if (!order || !bytes)
        return weir_invalid(&cache->log, "step_end: order or bytes is NULL");

    struct draft draft = { .step = step->id };
    struct flight *flight = &cache->flights[draft.step % cache->max_steps];
    flight->id = draft.step;
    flight->built_on = flight->unwanted = flight->cancelled = flight->load_copied = false;
    flight->n_wanted = 0;
    for (int32_t i = cache->step_first; i >= 0; i = cache->seqs[i].step_next) {
        struct seq *seq = &cache->seqs[i];
        if (seq->born_of >= 0) {
            weir_fork_settle(cache, seq, draft.step);
            continue;
        }
        /* The step that used the sequence last has waited for those before. */
        draft.fences = weir_step_set_merge(draft.fences, seq->fences);
        draft.fences = weir_step_set_add(draft.fences, seq->steps.newest);
        seq->fences = (weir_step_set){ 0 };
        seq->steps = weir_step_set_add(seq->steps, draft.step);
        settle_loads(cache, seq, flight, &draft);
        weir_tail_settle(cache, seq, draft.step, &draft.fences, cache->copies, &draft.n_copies);
    }
    if (flight->loads.count)
        weir_run_count(cache, &flight->loads, &cache->stats.load_runs,
                       &cache->stats.load_run_squares);

    /* From here on the step runs: what is committed names it as its writer. */
    flight->step_ranks = cache->all_ranks;
    flight->load_ranks = flight->loads.count ? cache->all_ranks : 0;
    flight->load_failed = flight->step_failed = flight->step_finished = false;
    cache->n_flights++;
    int32_t next;
    for (int32_t i = cache->step_first; i >= 0; i = next) {
        struct seq *seq = &cache->seqs[i];
        next = seq->step_next;
        weir_seq_apply_commit(cache, seq, draft.step);
        seq->born_of = -1;
        leave_step(cache, seq);
    }
    struct write_back *write = take_writes(cache, &draft);
    rc = write_order(cache, &draft, flight, write, bytes);
    if (rc)
        return rc; /* only a broken invariant leads here */
    *order = flight->order;
    cache->step_open = false;
    cache->write_told = false;
    cache->next_step++;
    cache->stats.steps++;
    *step = (weir_step){ 0 };
    return 0;
}
