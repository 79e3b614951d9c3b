/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include "pool/step_set.h"

/* Transfers in flight that nobody wants any more.
 *
 *   hold ────► n_wanted ──┐
 *   let go ──►            ├─► unwanted ── next order ──► cancelled ── reports ─►
 *   commit ──► built_on ──┤      │                        (for good)
 *   copy ────► load_copied┘      │
 *   drop ────► n_live ───────────┘
 *
 * Until an order says so a load can become wanted again. Then its pages leave
 * the index and stay pinned by the ticket, whatever each rank makes of it: an
 * entry that is hit again is loaded again, into another page. */

static void mark(weir_cache *cache, bool *unwanted, bool now)
{
    if (*unwanted == now)
        return;
    *unwanted = now;
    if (now)
        cache->n_unwanted++;
    else
        cache->n_unwanted--;
}

static void judge_load(weir_cache *cache, struct flight *flight)
{
    mark(cache, &flight->unwanted,
         flight->n_wanted == 0 && !flight->built_on && !flight->load_copied && !flight->cancelled);
}

void weir_cancel_count_load(weir_cache *cache, int32_t page, int change)
{
    int16_t mover = cache->device_pages[page].mover;
    if (mover <= 0 || mover == MOVER_WAITING)
        return;
    struct flight *flight = &cache->flights[mover - 1];
    flight->n_wanted += (uint32_t)change;
    judge_load(cache, flight);
}

void weir_cancel_count_write(weir_cache *cache, int32_t page)
{
    struct write_back *write = &cache->writes[-cache->device_pages[page].mover - 1];
    write->n_live--;
    mark(cache, &write->unwanted, write->n_live == 0 && !write->cancelled);
}

void weir_cancel_build_on(weir_cache *cache, const weir_step_set *loads)
{
    if (loads->newest == 0)
        return;
    for (uint32_t i = 0; i < cache->max_steps; i++) {
        struct flight *flight = &cache->flights[i];
        if (flight->loads.count && weir_step_set_has(*loads, flight->id)) {
            flight->built_on = true;
            judge_load(cache, flight);
        }
    }
}

void weir_cancel_unbuild(weir_cache *cache)
{
    for (uint32_t i = 0; i < cache->max_steps; i++) {
        cache->flights[i].built_on = false;
        if (cache->flights[i].loads.count)
            judge_load(cache, &cache->flights[i]);
    }
}

void weir_cancel_forget(weir_cache *cache, bool *unwanted)
{
    mark(cache, unwanted, false);
}

static void abandon_loads(weir_cache *cache, const struct flight *flight)
{
    for (int32_t page = flight->loads.first; page; page = cache->device_pages[page].next) {
        int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, page);
        if (ref >= 0)
            weir_entry_abandon_load(cache, ref);
    }
}

/* The steps in flight ascend from the oldest on, and so do the tickets. */
uint32_t weir_cancel_list(weir_cache *cache, uint64_t before)
{
    uint32_t n = 0;
    if (cache->n_unwanted == 0)
        return 0;
    uint64_t first = before > cache->max_steps ? before - cache->max_steps + 1 : 1;
    for (uint64_t step = first; step < before; step++) {
        struct flight *flight = flight_of(cache, step);
        if (!flight || !flight->unwanted)
            continue;
        flight->cancelled = true;
        judge_load(cache, flight);
        abandon_loads(cache, flight);
        cache->cancels[n++] = (weir_cancel){ .number = step, .kind = WEIR_REPORT_LOAD };
    }
    uint64_t next = cache->next_write;
    first = next > cache->max_write_backs ? next - cache->max_write_backs : 1;
    for (uint64_t ticket = first; ticket < next && cache->n_unwanted; ticket++) {
        struct write_back *write = &cache->writes[ticket % cache->max_write_backs];
        if (write->ticket != ticket || !write->unwanted)
            continue;
        write->cancelled = true;
        mark(cache, &write->unwanted, false);
        cache->cancels[n++] = (weir_cancel){ .number = ticket, .kind = WEIR_REPORT_WRITE_BACK };
    }
    return n;
}
