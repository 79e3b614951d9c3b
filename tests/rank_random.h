/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_RANK_RANDOM_H
#define WEIR_TESTS_RANK_RANDOM_H

/* Random steps in a rank_world: what a cache would order, from the world's
 * model of what every page holds and who uses it. */

#include "rank_world.h"

enum {
    WORLD_RECENT = 12
};

/* A plan of one step, as a cache would make it. */
struct world_plan {
    weir_order order;
    uint64_t fences[WORLD_STEPS];
    uint64_t load_fences[WORLD_STEPS];
    uint64_t write_fences[WORLD_STEPS];
    uint64_t joins[WORLD_STEPS];
    weir_move loads[WORLD_MOVES];
    weir_move writes[WORLD_MOVES];
    weir_cancel cancels[2 * WORLD_RECENT];
    weir_page_copy copies[WORLD_MOVES];
    uint64_t sources;   /* bit p: of a copy */
    bool prefetch;      /* loads only, for steps to come */
    uint64_t fence_set; /* bit i: step - 1 - i */
    uint64_t load_set;
    uint64_t write_set;
    uint64_t join_set;
    uint64_t reads; /* bit p: page p */
    uint64_t fills;
};

/* Steps before `step` that use a page and are not known to have ended. */
static inline uint64_t world_users(const struct world *w, uint64_t step, int32_t page)
{
    uint64_t set = 0;
    for (uint64_t i = 0; i < 64 && i + 1 < step; i++) {
        const struct world_step *s = &w->steps[step - 1 - i];
        if (!s->reported && s->uses >> page & 1)
            set |= UINT64_C(1) << i;
    }
    return set;
}

static inline bool world_open_user(const struct world *w, uint64_t step, int32_t page)
{
    for (uint64_t i = 1; i < step && i <= 64; i++)
        if (!w->steps[step - i].ended && w->steps[step - i].uses >> page & 1)
            return true;
    return false;
}

static inline bool world_loading(const struct world *w, int32_t page)
{
    uint64_t load = w->pages[page].load;
    return load && !w->steps[load].load_reported;
}

static inline uint64_t world_before(uint64_t step, uint64_t earlier)
{
    return step - earlier <= 64 ? UINT64_C(1) << (step - earlier - 1) : 0;
}

/* Whether what a page holds depends on nothing that can still fail. */
static inline bool world_settled(const struct world *w, const struct world_page *page)
{
    return (page->copy == 0 || w->steps[page->copy].reported) &&
           (page->origin == 0 || w->steps[page->origin].load_reported);
}

/* Copies page q, as it is before the step, to page p. */
static inline void world_plan_copy(struct world *w, struct world_plan *plan, uint64_t step,
                                   int32_t p)
{
    int32_t q = 1 + (int32_t)random_below(&w->random, WORLD_DEVICE_PAGES);
    const struct world_page *source = &w->pages[q];
    if (q == p || !source->content || !world_settled(w, source) || world_open_user(w, step, q) ||
        plan->fills >> q & 1 || source->copy == step || plan->order.n_copies == WORLD_MOVES)
        return;
    uint64_t load = world_loading(w, q) ? source->load : 0;
    plan->copies[plan->order.n_copies++] = (weir_page_copy){ { q }, { p }, load };
    plan->sources |= UINT64_C(1) << q;
    w->steps[load].load_copied = true; /* of step 0 nobody asks */
    if (load && load != step)
        plan->join_set |= world_before(step, load);
    else if (!load && source->producer && !w->steps[source->producer].reported)
        plan->fence_set |= world_before(step, source->producer);
    plan->fence_set |= world_users(w, step, p);
    w->pages[p] = (struct world_page){
        .content = source->content, .producer = step, .copy = step, .origin = load
    };
    plan->reads |= UINT64_C(1) << p;
}

static inline void world_plan_page(struct world *w, struct world_plan *plan, uint64_t step,
                                   int32_t p)
{
    struct world_page *page = &w->pages[p];
    bool open = world_open_user(w, step, p);
    bool writable = !open && !page->writing && !world_loading(w, p) && !(plan->sources >> p & 1);
    int32_t h = 1 + (int32_t)random_below(&w->random, w->rank->geometry->host_pages);
    struct world_host *host = &w->hosts[h];
    uint32_t choice = random_below(&w->random, 100);
    if (choice < 25 && writable && host->content && !host->writing &&
        plan->order.n_loads < WORLD_MOVES) {
        for (uint32_t i = 0; i < plan->order.n_loads; i++)
            if (plan->loads[i].host.id == h)
                return;
        plan->load_set |= world_users(w, step, p);
        plan->loads[plan->order.n_loads++] = (weir_move){ { p }, { h } };
        host->loading++;
        *page = (struct world_page){ .content = host->content, .load = step };
        if (!plan->prefetch)
            plan->reads |= UINT64_C(1) << p;
    } else if (plan->prefetch) {
        return;
    } else if (choice < 55 && page->content && !open) {
        plan->reads |= UINT64_C(1) << p;
        if (world_loading(w, p))
            plan->join_set |= world_before(step, page->load);
        else if (page->producer && !w->steps[page->producer].reported)
            plan->fence_set |= world_before(step, page->producer);
    } else if (choice < 70 && writable) {
        plan->fence_set |= world_users(w, step, p);
        *page = (struct world_page){ .content = ++w->next_content, .producer = step };
        plan->fills |= UINT64_C(1) << p;
    } else if (choice < 80 && writable) {
        world_plan_copy(w, plan, step, p);
    }
}

static inline void world_plan_write(struct world *w, struct world_plan *plan, uint64_t step,
                                    int32_t p)
{
    struct world_page *page = &w->pages[p];
    int32_t h = 1 + (int32_t)random_below(&w->random, w->rank->geometry->host_pages);
    struct world_host *host = &w->hosts[h];
    if (!page->content || page->writing || !page->producer || !world_settled(w, page) ||
        host->writing || host->loading || plan->order.n_writes == WORLD_MOVES ||
        random_percent(&w->random, 60))
        return;
    plan->writes[plan->order.n_writes++] = (weir_move){ { p }, { h } };
    page->writing = host->writing = true;
    host->content = 0;
    if (page->producer != step)
        plan->write_set |= world_before(step, page->producer);
}

static inline uint32_t world_list(uint64_t step, uint64_t set, uint64_t *list)
{
    uint32_t n = 0;
    for (int i = 63; i >= 0; i--)
        if (set >> i & 1)
            list[n++] = step - 1 - (uint64_t)i;
    return n;
}

/* Before any page is planned: what is cancelled holds nothing. */
static inline void world_plan_cancels(struct world *w, struct world_plan *plan, uint64_t step)
{
    weir_order *order = &plan->order;
    uint64_t first = step > WORLD_RECENT ? step - WORLD_RECENT : 1;
    for (int writes = 0; writes < 2; writes++)
        for (uint64_t i = first; i < step; i++) {
            const struct world_step *s = &w->steps[i];
            bool due = writes ? s->n_writes && !s->write_reported && !s->write_cancelled
                              : s->n_loads && !s->load_reported && !s->load_cancelled;
            if (due && random_percent(&w->random, w->cancels))
                plan->cancels[order->n_cancels++] =
                    (weir_cancel){ .number = writes ? i + 5000 : i,
                                   .kind = writes ? WEIR_REPORT_WRITE_BACK : WEIR_REPORT_LOAD };
        }
    order->cancels = plan->cancels;
    world_cancel(w, order);
}

static inline void world_plan_step(struct world *w, struct world_plan *plan, uint64_t step)
{
    if (w->cancels) {
        world_plan_cancels(w, plan, step);
        plan->prefetch = random_percent(&w->random, 40);
    }
    for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++)
        world_plan_page(w, plan, step, p);
    for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++)
        world_plan_write(w, plan, step, p);
    weir_order *order = &plan->order;
    order->step = step;
    order->write_ticket = order->n_writes > 0 ? step + 5000 : 0;
    order->n_fences = world_list(step, plan->fence_set, plan->fences);
    order->n_load_fences = world_list(step, plan->load_set, plan->load_fences);
    order->n_write_fences = world_list(step, plan->write_set, plan->write_fences);
    order->n_joins = world_list(step, plan->join_set, plan->joins);
    order->fences = plan->fences;
    order->load_fences = plan->load_fences;
    order->write_fences = plan->write_fences;
    order->joins = plan->joins;
    order->loads = plan->loads;
    order->writes = plan->writes;
    order->copies = plan->copies;
}

static inline void world_forward(struct world *w, const struct world_plan *plan, uint64_t step)
{
    weir_stream *stream = w->steps[step].stream;
    for (uint32_t layer = 0; layer < w->shape->n_layers && !plan->prefetch; layer++) {
        int rc;
        while ((rc = weir_rank_wait_layer(w->rank, step, layer, stream)) != 0 && !w->lost)
            cr_assert(eq(int, rc, -EIO)); /* a fault strikes once */
        if (rc)
            return;
        for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++) {
            bool fill = plan->fills >> p & 1;
            if (!fill && !(plan->reads >> p & 1))
                continue;
            struct world_kernel *k = world_launch(w, stream, p, layer, w->pages[p].content, fill);
            k->load = w->pages[p].load ? w->pages[p].load : w->pages[p].origin;
            k->copy = w->pages[p].copy;
        }
        world_run_a_little(w);
    }
}

/* One random step; false if the device is lost. */
static inline bool world_random_step(struct world *w)
{
    struct world_plan plan = { 0 };
    uint64_t step = w->newest + 1;
    world_plan_step(w, &plan, step);
    struct world_step *s = &w->steps[step];
    s->stream = w->streams[random_below(&w->random, 2)];
    s->uses = plan.reads | plan.fills | plan.sources;
    s->n_loads = plan.order.n_loads;
    s->n_writes = plan.order.n_writes;
    s->n_copies = plan.order.n_copies;
    memcpy(s->loads, plan.loads, sizeof plan.loads);
    memcpy(s->writes, plan.writes, sizeof plan.writes);
    world_encode(w, s, &plan.order);

    uint64_t begun = 0;
    uint32_t slot = (uint32_t)(step % w->n_slots);
    for (int attempt = 0;; attempt++) {
        int rc = weir_rank_begin(w->rank, s->order, s->order_bytes, slot, s->stream, &begun);
        if (rc == 0)
            break;
        cr_assert(zero(u64, begun));
        cr_assert(rc == -EAGAIN || rc == -EBUSY || rc == -EIO, "%d: %s", rc, w->log.last);
        cr_assert(lt(int, attempt, 8));
        if (w->lost) {
            cr_assert(eq(int, rc, -EIO));
            *s = (struct world_step){ 0 };
            return false;
        }
        world_end_some(w, 100);
        world_settle(w);
    }
    cr_assert(eq(u64, begun, step));
    w->newest = step;
    world_forward(w, &plan, step);
    if (random_percent(&w->random, 75))
        world_end(w, step);
    if (random_percent(&w->random, 50))
        world_end_some(w, 50);
    return true;
}

#endif
