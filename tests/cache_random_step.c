/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <errno.h>
#include <string.h>

static void commit(struct world *w, uint32_t slot, size_t room)
{
    struct user *user = &w->users[slot];
    struct model_seq *seq = &w->m.seqs[slot];
    size_t from = seq->n_committed + seq->n_pending;
    size_t n = random_percent(&w->random, 40) ? room : random_below(&w->random, (uint32_t)room + 1);
    const int32_t *tokens = NULL;
    if (from + n > user->prompt.n_key || random_percent(&w->random, 50))
        tokens = world_tokens(w, &user->prompt, from, n);
    int rc = both(w, weir_seq_commit(user->handles[i], tokens, n));
    trace_call(w, "commit", slot, rc);
    must(w, rc == (model_is_doomed(&w->m, seq) ? -EIO : 0), "commit: %d", rc);
    if (rc)
        return;
    if (seq->in_step)
        seq->n_pending += n;
    else
        model_commit(&w->m, seq, n);
}

/* Speculation: what an earlier step computed is accepted later. */
void op_late_commit(struct world *w)
{
    uint32_t slot = world_pick(w);
    if (slot == MODEL_SEQS || w->m.seqs[slot].in_step || !w->m.seqs[slot].n_step_pages)
        return;
    size_t end = (size_t)w->m.seqs[slot].n_step_pages * w->m.page_tokens;
    commit(w, slot, end - w->m.seqs[slot].n_committed);
}

void world_begin_step(struct world *w)
{
    int rc = both(w, weir_step_begin(&w->steps[i], w->caches[i]));
    trace_call(w, "begin", 0, rc);
    uint32_t n = model_steps_in_flight(&w->m);
    must(w, n > 0 ? rc == 0 || rc == -EAGAIN : rc == 0, "begin: %d", rc);
    must(w, n < w->max_steps || rc == -EAGAIN, "begin: %d with %u steps in flight", rc, n);
    w->step_open = rc == 0;
}

/* Counts the runs of one direction, each move by the run that it ends. */
static void count_runs(const weir_move *moves, uint32_t n, uint64_t *runs, uint64_t *squares)
{
    for (uint32_t first = 0, i = 0; i < n; i++) {
        bool last = i + 1 == n || moves[i + 1].device.id != moves[i].device.id + 1 ||
                    moves[i + 1].host.id != moves[i].host.id + 1 || moves[i].host.id % 32 == 0;
        if (!last)
            continue;
        uint64_t length = i + 1 - first;
        *squares += length * length;
        ++*runs;
        first = i + 1;
    }
}

static void count_order(struct world *w, const void *bytes, size_t n)
{
    weir_order o;
    must(w, weir_order_decode(&o, bytes, n, NULL) == 0, "an order is no order");
    count_runs(o.loads, o.n_loads, &w->load_runs, &w->load_run_squares);
    count_runs(o.writes, o.n_writes, &w->write_runs, &w->write_run_squares);
}

void world_end_step(struct world *w)
{
    const void *orders[2];
    size_t bytes[2];
    int rc = both(w, weir_step_end(&w->steps[i], &orders[i], &bytes[i]));
    trace_call(w, "end", 0, rc);
    must(w, rc == 0, "end: %d", rc);
    must(w, bytes[0] == bytes[1] && memcmp(orders[0], orders[1], bytes[0]) == 0, "orders differ");
    w->step_open = false;
    trace_order(w, orders[0], bytes[0]);
    count_order(w, orders[0], bytes[0]);
    model_order(&w->m, orders[0], bytes[0]);
}

static void abort_step(struct world *w)
{
    int rc = both(w, weir_step_abort(&w->steps[i]));
    trace_call(w, "abort", 0, rc);
    must(w, rc == 0, "abort: %d", rc);
    w->step_open = false;
    model_abort(&w->m);
}

static void add_to_step(struct world *w)
{
    uint32_t slot = world_pick(w);
    if (slot == MODEL_SEQS || w->m.seqs[slot].n_pages == 0)
        return;
    int rc = both(w, weir_step_add(w->steps[i], w->users[slot].handles[i]));
    trace_call(w, "add", slot, rc);
    bool lacks = (size_t)w->m.seqs[slot].n_pages * w->m.page_tokens < w->m.seqs[slot].n_committed;
    int want = model_is_doomed(&w->m, &w->m.seqs[slot]) ? -EIO
               : w->m.seqs[slot].born                   ? -EBUSY
               : lacks                                  ? -EINVAL
                                                        : 0;
    must(w, rc == want, "add: %d, not %d", rc, want);
    if (rc)
        return;
    w->m.seqs[slot].in_step = true;
    if (random_percent(&w->random, 70)) {
        const struct model_seq *seq = &w->m.seqs[slot];
        size_t end = (size_t)seq->n_pages * w->m.page_tokens;
        commit(w, slot, end - seq->n_committed - seq->n_pending);
    }
}

void op_step(struct world *w)
{
    if (!w->step_open)
        world_begin_step(w);
    else if (random_percent(&w->random, 60))
        add_to_step(w);
    else if (random_percent(&w->random, 90))
        world_end_step(w);
    else
        abort_step(w);
}

/* ---- Reports ------------------------------------------------------------- */

static void send(struct world *w, uint32_t rank, const weir_report_item *items, size_t n)
{
    _Alignas(8) unsigned char report[4096];
    size_t bytes;
    must(w, weir_report_encode(items, n, report, sizeof report, &bytes, NULL) == 0, "encode");
    int rc = both(w, weir_cache_report(w->caches[i], rank, report, bytes));
    must(w, rc == 0, "report: %d", rc);
    for (size_t k = 0; k < n; k++) {
        static const char *const kinds[] = { "", "step", "load", "write-back" };
        trace_call(w, kinds[items[k].kind], (uint32_t)items[k].number, items[k].rc);
        model_report(&w->m, rank, &items[k]);
    }
    rc = both(w, weir_cache_report(w->caches[i], rank, report, bytes));
    must(w, rc == -EINVAL, "a report is taken twice: %d", rc);
    report[random_below(&w->random, (uint32_t)bytes)] ^= 4;
    rc = both(w, weir_cache_report(w->caches[i], rank, report, bytes));
    must(w, rc == -EINVAL, "a corrupted report is taken: %d", rc);
}

/* Reports up to `limit` of what one rank could report; whether there was any. */
bool world_report(struct world *w, uint32_t rank, size_t limit)
{
    weir_report_item items[3 * MODEL_FLIGHTS];
    size_t n = model_reportable(&w->m, rank, items);
    if (n == 0)
        return false;
    limit = limit < n ? limit : n;
    for (size_t k = 0; k < limit; k++) {
        size_t other = k + random_below(&w->random, (uint32_t)(n - k));
        weir_report_item item = items[other];
        items[other] = items[k];
        items[k] = item;
        if (item.kind != WEIR_REPORT_STEP && random_percent(&w->random, w->load_failures))
            items[k].rc = random_percent(&w->random, 80) ? -EIO : -ECANCELED;
        else if (model_is_cancelled(&w->m, &item) && random_percent(&w->random, 50))
            items[k].rc = -ECANCELED;
    }
    send(w, rank, items, limit);
    return true;
}

void op_report(struct world *w)
{
    world_report(w, random_below(&w->random, w->m.n_ranks), 1 + random_below(&w->random, 4));
}

/* ---- Events -------------------------------------------------------------- */

/* Whether it was answered with a reserve. */
static bool take_event(struct world *w, const weir_cache_event *event, bool at_once)
{
    if (event->kind == WEIR_EVENT_WRITE_WAITING) {
        must(w, !event->seq.cache && !event->user, "an event without a sequence names one");
        return false;
    }
    uint32_t slot = (uint32_t)((struct user *)event->user - w->users);
    must(w, slot < MODEL_SEQS && w->m.seqs[slot].open, "an event for a closed sequence");
    must(w, !w->m.seqs[slot].closing, "an event for a sequence that was closed");
    must(w, event->seq.id == w->users[slot].handles[0].id, "an event for another sequence");
    struct model_seq *seq = &w->m.seqs[slot];
    trace_call(w, "event", slot, (int)event->kind);
    if (event->kind == WEIR_EVENT_LOAD_FAILED) {
        size_t good = model_good_pages(&w->m, seq, false);
        must(w, event->rc == (seq->late && seq->late_pages <= good ? -ETIMEDOUT : -EIO), "rc %d",
             event->rc);
        if (seq->late && seq->late_pages < good)
            good = seq->late_pages;
        must(w, good < model_pages(seq), "a failure is told of a sequence that is well");
        must(w, event->good_tokens == good * w->m.page_tokens, "%zu good tokens, not %zu",
             event->good_tokens, good * w->m.page_tokens);
        seq->failure_told = true;
        return false;
    }
    must(w, event->kind == WEIR_EVENT_RESERVE_READY, "event %d", (int)event->kind);
    must(w, seq->waiting, "a sequence that is not in line is told that its turn has come");
    if (!at_once || model_is_doomed(&w->m, seq))
        return false;
    /* A first reserve matches again, and may need more than it claimed: pages
     * that others held at that time. Growing needs what it claimed. */
    bool grows = seq->reserved;
    int rc = world_reserve(w, slot);
    must(w, !grows || rc == 0, "reserve: %d after the event that promises it", rc);
    return true;
}

void world_poll(struct world *w, size_t capacity, bool at_once)
{
    weir_cache_event events[2][32];
    size_t n[2];
    w->now_ns += random_below(&w->random, 1000);
    model_poll(&w->m, w->now_ns);
    int rc = both(w, weir_cache_poll(w->caches[i], w->now_ns, events[i], capacity, &n[i]));
    trace_call(w, "poll", (uint32_t)n[0], rc);
    must(w, rc == 0 && n[0] == n[1] && n[0] <= capacity, "poll: %d", rc);
    for (size_t k = 0; k < n[0]; k++) {
        must(w, events[0][k].kind == events[1][k].kind && events[0][k].user == events[1][k].user,
             "events differ");
        if (take_event(w, &events[0][k], at_once && !w->events_left))
            at_once = false;
    }
    w->events_left = n[0] == capacity;
    for (uint32_t k = 0; k < MODEL_SEQS && n[0] < capacity; k++) {
        const struct model_seq *seq = &w->m.seqs[k];
        must(w,
             !seq->open || seq->closing || seq->failure_told ||
                 !model_is_doomed(&w->m, &w->m.seqs[k]),
             "sequence %u was not told of a failed load", k);
    }
}

void op_poll(struct world *w)
{
    size_t capacity = random_percent(&w->random, 60) ? 32 : random_below(&w->random, 3);
    world_poll(w, capacity, random_percent(&w->random, 50));
}
