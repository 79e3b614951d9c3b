/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <errno.h>

/* ---- What has ended ------------------------------------------------------ */

static void finish_load(weir_cache *cache, struct flight *flight)
{
    /* A cancelled load says nothing of its pages: nobody has them. */
    bool failed = flight->load_failed && !flight->cancelled;
    struct page_chain loads = flight->loads;
    flight->loads = (struct page_chain){ 0 };
    weir_cancel_forget(cache, &flight->unwanted);
    uint32_t n_failed = 0;  /* entries */
    uint32_t n_wrong = 0;   /* pages */
    uint32_t n_damaged = 0; /* of them, said to be so one by one */
    int32_t next;
    for (int32_t page = loads.first; page; page = next) {
        next = cache->device_pages[page].next;
        cache->device_pages[page].mover = MOVER_NONE;
        bool wrong = !flight->cancelled && (failed || cache->device_pages[page].wrong);
        n_damaged += wrong && cache->device_pages[page].wrong;
        n_wrong += wrong;
        cache->device_pages[page].wrong = wrong;
        int32_t host_page = cache->device_pages[page].partner;
        int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, page);
        if (ref >= 0) {
            cache->entries[ref].flags &= ~(uint32_t)ENTRY_LOADING;
            if (wrong)
                cache->wanted[n_failed++] = ref;
        }
        weir_tier_unpin(cache, DEVICE, page);
        weir_tier_unpin(cache, HOST, host_page);
    }
    if (flight->cancelled) {
        cache->stats.load_cancelled_pages += loads.count;
        return;
    }
    cache->stats.load_failed_pages += n_wrong;
    cache->stats.loaded_pages += loads.count - n_wrong;
    cache->stats.damaged_pages += n_damaged;
    if (n_wrong == 0)
        return;
    weir_fail_drop(cache, cache->wanted, n_failed, 0);
    if (flight->load_copied)
        weir_tail_fail(cache, flight->id);
    for (int32_t page = loads.first; page; page = cache->device_pages[page].next)
        cache->device_pages[page].wrong = false;
}

/* What a failed step has written is wrong, and a page that a later step has
 * completed may be its work in part: all that was computed since goes. Rare, so
 * that a scan will do. */
static void finish_step(weir_cache *cache, struct flight *flight)
{
    flight->step_finished = true;
    if (!flight->step_failed)
        return;
    for (uint32_t ref = 0; ref < cache->n_entries; ref++)
        if ((cache->entries[ref].flags & ENTRY_LIVE) && cache->entries[ref].writer >= flight->id)
            weir_entry_drop(cache, (int32_t)ref);
    weir_fail_drop(cache, NULL, 0, flight->id);
}

/* Not by the ranks' bits: a report strikes them out before its items are taken. */
static void retire(weir_cache *cache, struct flight *flight)
{
    if (!flight->step_finished || flight->loads.count)
        return;
    flight->id = 0;
    cache->n_flights--;
}

static struct write_back *write_of(const weir_cache *cache, uint64_t ticket)
{
    struct write_back *write = &cache->writes[ticket % cache->max_write_backs];
    return ticket && write->ticket == ticket ? write : NULL;
}

/* The ranks that have not reported an item's work; NULL if it is not in
 * flight. */
static uint64_t *ranks_of(weir_cache *cache, const weir_report_item *item)
{
    if (item->kind == WEIR_REPORT_WRITE_BACK) {
        struct write_back *write = write_of(cache, item->number);
        return write ? &write->ranks : NULL;
    }
    struct flight *flight = flight_of(cache, item->number);
    if (!flight)
        return NULL;
    return item->kind == WEIR_REPORT_STEP ? &flight->step_ranks : &flight->load_ranks;
}

void weir_report_step(weir_cache *cache, struct flight *flight, bool failed)
{
    flight->step_failed |= failed;
    if (flight->step_ranks == 0)
        finish_step(cache, flight);
    retire(cache, flight);
}

void weir_report_load(weir_cache *cache, struct flight *flight, bool failed)
{
    flight->load_failed |= failed;
    if (flight->load_ranks == 0)
        finish_load(cache, flight);
    retire(cache, flight);
}

void weir_report_write(weir_cache *cache, struct write_back *write, bool failed)
{
    write->failed |= failed;
    if (write->ranks)
        return;
    weir_cancel_forget(cache, &write->unwanted);
    weir_write_finish(cache, &write->pages,
                      write->cancelled ? -ECANCELED
                      : write->failed  ? -EIO
                                       : 0);
    write->ticket = 0;
    cache->n_writes--;
}

/* The device page that a load fills from a host page; 0: none. The page's entry may have
 * been dropped meanwhile, so look at the load itself: this is rare. */
static int32_t filled_from(const weir_cache *cache, const struct flight *flight, uint64_t host_page)
{
    int32_t page = flight->loads.first;
    while (page && (uint64_t)cache->device_pages[page].partner != host_page)
        page = cache->device_pages[page].next;
    return page;
}

/* Whether a load that this rank has not reported reads a host page. */
static bool is_loading_from(const weir_cache *cache, uint64_t host_page, uint64_t rank)
{
    for (uint32_t i = 0; i < cache->max_steps; i++)
        if ((cache->flights[i].load_ranks & rank) &&
            filled_from(cache, &cache->flights[i], host_page))
            return true;
    return false;
}

/* A host page has changed. A load that was cancelled, or that nobody wants, may read it
 * beside the one that came after it: none of them brings what it should. */
static void mark_wrong(weir_cache *cache, uint64_t host_page)
{
    for (uint32_t i = 0; i < cache->max_steps; i++) {
        int32_t page = filled_from(cache, &cache->flights[i], host_page);
        if (page)
            cache->device_pages[page].wrong = true;
    }
}

static void take_item(weir_cache *cache, const weir_report_item *item)
{
    bool failed = item->rc != 0;
    if (item->kind == WEIR_REPORT_PAGE)
        mark_wrong(cache, item->number);
    else if (item->kind == WEIR_REPORT_WRITE_BACK)
        weir_report_write(cache, write_of(cache, item->number), failed);
    else if (item->kind == WEIR_REPORT_STEP)
        weir_report_step(cache, flight_of(cache, item->number), failed);
    else
        weir_report_load(cache, flight_of(cache, item->number), failed);
}

int weir_cache_report(weir_cache *cache, uint32_t rank_index, const void *report, size_t bytes)
{
    if (!cache)
        return -EINVAL;
    if (rank_index >= cache->n_ranks)
        return weir_invalid(&cache->log, "report: rank_index is %u, there are %u ranks", rank_index,
                            cache->n_ranks);
    const weir_report_item *items;
    size_t n;
    int rc = weir_report_decode(&items, &n, report, bytes, &cache->log);
    if (rc)
        return rc;
    /* Strike all items out first: a report is taken whole or not at all. */
    uint64_t bit = UINT64_C(1) << rank_index;
    for (size_t i = 0; i < n; i++) {
        bool is_page = items[i].kind == WEIR_REPORT_PAGE;
        if (is_page && is_loading_from(cache, items[i].number, bit))
            continue;
        uint64_t *ranks = is_page ? NULL : ranks_of(cache, &items[i]);
        if (ranks && (*ranks & bit)) {
            *ranks &= ~bit;
            continue;
        }
        while (i-- > 0)
            if (items[i].kind != WEIR_REPORT_PAGE)
                *ranks_of(cache, &items[i]) |= bit;
        return weir_invalid(&cache->log, "report: an item is not in flight on rank %u", rank_index);
    }
    for (size_t i = 0; i < n; i++)
        take_item(cache, &items[i]);
    return 0;
}

/* ---- Polling ------------------------------------------------------------- */

/* Tells those in line whose turn has come. */
static void serve_claims(weir_cache *cache)
{
    uint32_t available = weir_tier_available(&cache->tiers[DEVICE]);
    uint32_t claimed = 0;
    for (int32_t i = cache->claim_first; i >= 0; i = cache->seqs[i].claim_next) {
        struct seq *seq = &cache->seqs[i];
        weir_seq_recount_claim(cache, seq);
        claimed += seq->n_claimed;
        if (claimed > available)
            return;
        if (seq->claim_told)
            continue;
        seq->claim_told = seq->tell_ready = true;
        weir_seq_queue_event(cache, seq);
    }
}

/* Takes the next event off the queue. A sequence may have nothing to tell any
 * more, because its claim has ended since it was queued. */
static bool next_event(weir_cache *cache, weir_cache_event *event)
{
    struct seq *seq = &cache->seqs[cache->event_first];
    bool told = true;
    *event = (weir_cache_event){ .seq = weir_seq_handle(cache, seq), .user = seq->user };
    if (seq->tell_failed) {
        seq->tell_failed = false;
        event->kind = WEIR_EVENT_LOAD_FAILED;
        event->rc = seq->failed_rc;
        event->good_tokens = seq->good_tokens;
    } else if (seq->tell_ready) {
        seq->tell_ready = false;
        event->kind = WEIR_EVENT_RESERVE_READY;
        event->good_tokens = seq->n_committed;
    } else {
        told = false;
    }
    if (!seq->tell_failed && !seq->tell_ready) {
        cache->event_first = seq->event_next;
        if (cache->event_first < 0)
            cache->event_last = -1;
        seq->event_queued = false;
    }
    return told;
}

/* Whether the step that ends next would take write-backs along. */
static bool writes_wait(const weir_cache *cache)
{
    return cache->write_queue.count && !cache->step_open && !cache->draining &&
           !cache->writes[cache->next_write % cache->max_write_backs].ticket;
}

int weir_cache_poll(weir_cache *cache, uint64_t now_ns, weir_cache_event *events, size_t capacity,
                    size_t *n)
{
    if (!cache)
        return -EINVAL;
    if (!n || (!events && capacity))
        return weir_invalid(&cache->log, "poll: n is NULL, or events is NULL and capacity is %zu",
                            capacity);
    if (now_ns < cache->now_ns)
        return weir_invalid(&cache->log, "poll: now_ns goes back from %llu to %llu",
                            (unsigned long long)cache->now_ns, (unsigned long long)now_ns);
    cache->now_ns = now_ns;
    weir_priority_expire(cache);

    struct tier *device = &cache->tiers[DEVICE];
    uint32_t room = device->window > cache->n_claimed ? device->window : cache->n_claimed;
    weir_tier_make_room(cache, DEVICE, room);
    weir_tier_make_room(cache, HOST, cache->tiers[HOST].window);
    weir_deadline_poll(cache);
    if (cache->n_claimed)
        serve_claims(cache);

    size_t taken = 0;
    while (taken < capacity && cache->event_first >= 0)
        taken += next_event(cache, &events[taken]);
    if (taken < capacity && !cache->write_told && writes_wait(cache)) {
        cache->write_told = true;
        events[taken++] = (weir_cache_event){ .kind = WEIR_EVENT_WRITE_WAITING };
    }
    *n = taken;
    return 0;
}
