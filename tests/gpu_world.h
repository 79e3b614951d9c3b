/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_GPU_WORLD_H
#define WEIR_TESTS_GPU_WORLD_H

/* A server in small on a GPU: a rank, two streams, and a model of what every
 * page holds. Random steps fill pages, write them back, load them elsewhere and
 * read them; the model makes orders with exactly the fences, joins and moves
 * that are needed, so that a wrong byte is the library's fault.
 *
 *   step ── uploads its batch ─ for each layer: wait, fill, check ─ end
 *
 * At a large pool's size only some pages, the candidates, take part in steps. */

#include "copy_model.h"
#include "gpu_rig.h"

enum {
    WORLD_IN_FLIGHT = 8,
    WORLD_RING = 64, /* steps remembered */
    WORLD_MOVES = 8,
    WORLD_CANDIDATES = 24,
    WORLD_GUARD_DEVICE = 0xa5, /* bytes of no page */
    WORLD_GUARD_HOST = 0x5a
};

struct world_page {
    uint64_t content;
    uint64_t load;     /* step whose load brings it; 0: arrived or computed */
    uint64_t producer; /* step that computed it; 0: it has ended */
    uint64_t users;    /* bit s % 64: step s uses it and has not been reported */
    bool writing;
};

struct world_host {
    uint64_t content; /* 0: nothing of use */
    uint32_t loading;
    bool writing;
};

struct world_step {
    weir_stream *stream;
    bool ended;
    weir_move loads[WORLD_MOVES];
    weir_move writes[WORLD_MOVES];
    uint32_t n_loads;
    uint32_t n_writes;
};

/* What a step does, as a cache would plan it. */
struct world_plan {
    weir_order order;
    uint64_t lists[4][WORLD_RING];
    uint64_t fences; /* bits s % 64 */
    uint64_t load_fences;
    uint64_t write_fences;
    uint64_t joins;
    weir_move loads[WORLD_MOVES];
    weir_move writes[WORLD_MOVES];
    int32_t fills[WORLD_CANDIDATES];
    int32_t reads[WORLD_CANDIDATES];
    uint32_t n_fills;
    uint32_t n_reads;
};

struct world_counts {
    uint64_t loads;
    uint64_t writes;
    uint64_t reads;
    uint64_t joins;
};

struct world {
    struct rig *rig;
    struct random random;
    const weir_shape *shape;
    weir_rank *rank;
    bool by_bulk; /* pages can be read by bulk copies */
    struct weir_pattern_planes planes;
    struct weir_pattern_batch batches[WORLD_IN_FLIGHT];
    struct weir_pattern_batch all;
    uint32_t n_pages;
    uint32_t n_hosts;
    int32_t candidates[WORLD_CANDIDATES];
    int32_t host_candidates[WORLD_CANDIDATES];
    uint32_t n_candidates;
    uint32_t n_host_candidates;
    struct world_page *pages;
    struct world_host *hosts;
    struct world_step steps[WORLD_RING];
    uint64_t newest;
    uint64_t unreported; /* bits s % 64 */
    uint64_t next_content;
    struct world_counts counts;
};

static inline uint64_t world_bit(uint64_t step)
{
    return UINT64_C(1) << step % WORLD_RING;
}

/* ---- All pages ----------------------------------------------------------- */

/* Fills or checks every page with its content, some at a time. */
static inline void world_all_pages(struct world *w, bool fill)
{
    enum {
        AT_ONCE = 64
    };
    weir_stream *stream = w->rig->streams[0];
    struct weir_pattern_gpu *pattern = &w->rig->pattern;
    for (uint32_t first = 1; first <= w->n_pages; first += AT_ONCE) {
        uint32_t n = w->n_pages - first + 1 < AT_ONCE ? w->n_pages - first + 1 : AT_ONCE;
        int rc = weir_pattern_batch_begin(&w->all, pattern, fill ? n : 0, fill ? 0 : n,
                                          (uint64_t)n * w->shape->page_tokens);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
        for (uint32_t i = 0; i < n; i++)
            content_entry(&w->all, w->shape, &(fill ? w->all.fills : w->all.checks)[i], i,
                          (int32_t)(first + i), w->pages[first + i].content);
        rc = weir_pattern_batch_upload(&w->all, pattern, stream);
        for (uint32_t layer = 0; !rc && layer < w->shape->n_layers; layer++)
            rc = fill ? weir_pattern_batch_fill(&w->all, pattern, &w->planes, layer, stream)
                      : weir_pattern_batch_check(&w->all, pattern, &w->planes, layer, stream);
        if (!rc)
            rc = weir_pattern_batch_download(&w->all, pattern, stream);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
        rig_synchronize(w->rig, stream);
        const struct weir_pattern_wrong *wrong = w->all.wrong;
        CHECK(wrong->bytes == 0, "%lu bytes at the end, page %u, layer %u, tensor %u, row %u",
              (unsigned long)wrong->bytes, first + wrong->entry, wrong->layer, wrong->tensor,
              wrong->row);
    }
}

/* ---- Reports ------------------------------------------------------------- */

static inline void world_take_step(struct world *w, uint64_t step)
{
    const struct weir_pattern_wrong *wrong = w->batches[step % WORLD_IN_FLIGHT].wrong;
    CHECK(wrong->bytes == 0, "%lu bytes in step %lu, entry %u, layer %u, tensor %u, row %u",
          (unsigned long)wrong->bytes, (unsigned long)step, wrong->entry, wrong->layer,
          wrong->tensor, wrong->row);
    w->unreported &= ~world_bit(step);
    for (uint32_t i = 0; i < w->n_candidates; i++) {
        struct world_page *page = &w->pages[w->candidates[i]];
        page->users &= ~world_bit(step);
        if (page->producer == step)
            page->producer = 0;
    }
}

static inline void world_take_load(struct world *w, uint64_t step)
{
    const struct world_step *s = &w->steps[step % WORLD_RING];
    for (uint32_t i = 0; i < s->n_loads; i++) {
        struct world_page *page = &w->pages[s->loads[i].device.id];
        w->hosts[s->loads[i].host.id].loading--;
        if (page->load == step)
            page->load = 0;
    }
}

static inline void world_take_write(struct world *w, uint64_t step)
{
    const struct world_step *s = &w->steps[step % WORLD_RING];
    for (uint32_t i = 0; i < s->n_writes; i++) {
        struct world_page *page = &w->pages[s->writes[i].device.id];
        struct world_host *host = &w->hosts[s->writes[i].host.id];
        page->writing = host->writing = false;
        host->content = page->content;
    }
}

static inline void world_report(struct world *w)
{
    uint64_t buffer[64];
    for (;;) {
        size_t bytes = 0;
        const weir_report_item *items;
        size_t n = 0;
        int rc = weir_rank_report(w->rank, buffer, sizeof buffer, &bytes);
        if (rc == 0 && bytes > 0)
            rc = weir_report_decode(&items, &n, buffer, bytes, NULL);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
        if (bytes == 0)
            return;
        for (size_t i = 0; i < n; i++) {
            CHECK(items[i].rc == 0, "kind %u of %lu: %s", items[i].kind,
                  (unsigned long)items[i].number, weir_error_name(items[i].rc));
            if (items[i].kind == WEIR_REPORT_STEP)
                world_take_step(w, items[i].number);
            else if (items[i].kind == WEIR_REPORT_LOAD)
                world_take_load(w, items[i].number);
            else
                world_take_write(w, items[i].number);
        }
    }
}

static inline void world_end(struct world *w, uint64_t step)
{
    struct world_step *s = &w->steps[step % WORLD_RING];
    if (s->ended)
        return;
    int rc = weir_pattern_batch_download(&w->batches[step % WORLD_IN_FLIGHT], &w->rig->pattern,
                                         s->stream);
    if (!rc)
        rc = weir_rank_end(w->rank, step, s->stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    s->ended = true;
}

/* Waits for everything and takes all reports. A write-back may be enqueued by
 * the call that finds its producers ended, so twice. */
static inline void world_settle(struct world *w)
{
    for (uint64_t step = w->newest > WORLD_IN_FLIGHT ? w->newest - WORLD_IN_FLIGHT : 1;
         step <= w->newest; step++)
        world_end(w, step);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++)
            rig_synchronize(w->rig, w->rig->streams[k]);
        int rc = weir_rank_synchronize(w->rank);
        REQUIRE(rc == 0, "%s", weir_error_name(rc));
        world_report(w);
    }
    CHECK(w->unreported == 0, "steps %lx were not reported", (unsigned long)w->unreported);
}

/* ---- Plans --------------------------------------------------------------- */

/* A step that has not ended can be waited for by nobody. */
static inline bool world_is_open(const struct world *w, const struct world_page *page)
{
    for (uint64_t i = 0; i < WORLD_IN_FLIGHT && i < w->newest; i++)
        if (page->users & world_bit(w->newest - i) && !w->steps[(w->newest - i) % WORLD_RING].ended)
            return true;
    return false;
}

static inline bool world_plan_load(struct world *w, struct world_plan *plan, uint64_t step,
                                   int32_t p, int32_t h)
{
    struct world_page *page = &w->pages[p];
    struct world_host *host = &w->hosts[h];
    if (!host->content || host->writing || plan->order.n_loads == WORLD_MOVES)
        return false;
    for (uint32_t i = 0; i < plan->order.n_loads; i++)
        if (plan->loads[i].host.id == h)
            return false;
    plan->load_fences |= page->users;
    plan->loads[plan->order.n_loads++] = (weir_move){ { p }, { h } };
    host->loading++;
    page->content = host->content;
    page->load = step;
    page->producer = 0;
    return true;
}

/* Loads, reads, fills or leaves a page alone. */
static inline void world_plan_page(struct world *w, struct world_plan *plan, uint64_t step,
                                   int32_t p, int32_t h)
{
    struct world_page *page = &w->pages[p];
    if (world_is_open(w, page))
        return;
    bool writable = !page->writing && !page->load;
    uint32_t choice = random_below(&w->random, 100);
    bool read = choice < 60;
    if (choice < 30 && writable) {
        read = world_plan_load(w, plan, step, p, h);
    } else if (read) {
        if (page->load) {
            plan->joins |= world_bit(page->load);
            w->counts.joins++;
        } else if (page->producer) {
            plan->fences |= world_bit(page->producer);
        }
    } else if (choice < 75 && writable) {
        plan->fences |= page->users;
        page->content = ++w->next_content;
        page->producer = step;
        plan->fills[plan->n_fills++] = p;
    } else {
        return;
    }
    if (read)
        plan->reads[plan->n_reads++] = p;
    if (read || page->producer == step)
        page->users |= world_bit(step);
}

static inline void world_plan_write(struct world *w, struct world_plan *plan, uint64_t step,
                                    int32_t p, int32_t h)
{
    struct world_page *page = &w->pages[p];
    struct world_host *host = &w->hosts[h];
    if (page->writing || page->load || host->writing || host->loading ||
        plan->order.n_writes == WORLD_MOVES || random_percent(&w->random, 60))
        return;
    plan->writes[plan->order.n_writes++] = (weir_move){ { p }, { h } };
    page->writing = host->writing = true;
    host->content = 0;
    if (page->producer && page->producer != step)
        plan->write_fences |= world_bit(page->producer);
}

static inline uint32_t world_list(uint64_t step, uint64_t set, uint64_t *list)
{
    uint32_t n = 0;
    for (uint64_t i = WORLD_RING - 1; i > 0; i--)
        if (i < step && set & world_bit(step - i))
            list[n++] = step - i;
    return n;
}

/* Hosts run along with the pages more often than not, so that there are runs. */
static inline int32_t world_next_host(struct world *w, uint32_t *at)
{
    *at = random_percent(&w->random, 70) ? (*at + 1) % w->n_host_candidates
                                         : random_below(&w->random, w->n_host_candidates);
    return w->host_candidates[*at];
}

static inline void world_plan_step(struct world *w, struct world_plan *plan, uint64_t step)
{
    uint32_t at = random_below(&w->random, w->n_host_candidates);
    for (uint32_t i = 0; i < w->n_candidates; i++)
        world_plan_page(w, plan, step, w->candidates[i], world_next_host(w, &at));
    for (uint32_t i = 0; i < w->n_candidates; i++)
        world_plan_write(w, plan, step, w->candidates[i], world_next_host(w, &at));
    weir_order *order = &plan->order;
    order->step = step;
    order->write_ticket = order->n_writes > 0 ? step : 0;
    order->device_pages = w->n_pages;
    order->host_pages = w->n_hosts;
    order->n_fences = world_list(step, plan->fences, plan->lists[0]);
    order->n_load_fences = world_list(step, plan->load_fences, plan->lists[1]);
    order->n_write_fences = world_list(step, plan->write_fences, plan->lists[2]);
    order->n_joins = world_list(step, plan->joins, plan->lists[3]);
    order->fences = plan->lists[0];
    order->load_fences = plan->lists[1];
    order->write_fences = plan->lists[2];
    order->joins = plan->lists[3];
    order->loads = plan->loads;
    order->writes = plan->writes;
    w->counts.loads += order->n_loads;
    w->counts.writes += order->n_writes;
    w->counts.reads += plan->n_reads;
}

/* ---- Steps --------------------------------------------------------------- */

static inline void world_begin(struct world *w, const struct world_plan *plan, uint64_t step,
                               weir_stream *stream)
{
    uint64_t order[256];
    size_t bytes;
    int rc = weir_order_encode(&plan->order, order, sizeof order, &bytes, &w->rig->device->log);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    uint64_t begun = 0;
    rc = weir_rank_begin(w->rank, order, bytes, (uint32_t)(step % WORLD_IN_FLIGHT), stream, &begun);
    if (rc == -EAGAIN || rc == -EBUSY) {
        world_settle(w);
        rc = weir_rank_begin(w->rank, order, bytes, (uint32_t)(step % WORLD_IN_FLIGHT), stream,
                             &begun);
    }
    REQUIRE(rc == 0 && begun == step, "%s", weir_error_name(rc));
    struct world_step *s = &w->steps[step % WORLD_RING];
    *s = (struct world_step){ .stream = stream,
                              .n_loads = plan->order.n_loads,
                              .n_writes = plan->order.n_writes };
    memcpy(s->loads, plan->loads, sizeof s->loads);
    memcpy(s->writes, plan->writes, sizeof s->writes);
    w->newest = step;
    w->unreported |= world_bit(step);
}

static inline int world_check(struct world *w, const struct weir_pattern_batch *batch, bool by_bulk,
                              uint32_t layer, weir_stream *stream)
{
    if (!by_bulk || batch->n_checks == 0)
        return weir_pattern_batch_check(batch, &w->rig->pattern, &w->planes, layer, stream);
    struct weir_pattern_args args = weir_pattern_batch_args(batch, &w->planes, layer);
    struct weir_gpu_grid grid = { batch->n_checks, w->planes.n_tensors, w->planes.parts, 128, 0 };
    return weir_gpu_launch(&w->rig->tests, stream, w->rig->check_bulk, grid, &args);
}

static inline void world_forward(struct world *w, const struct world_plan *plan, uint64_t step,
                                 weir_stream *stream)
{
    struct weir_pattern_gpu *pattern = &w->rig->pattern;
    struct weir_pattern_batch *batch = &w->batches[step % WORLD_IN_FLIGHT];
    uint32_t n = plan->n_fills + plan->n_reads;
    int rc = weir_pattern_batch_begin(batch, pattern, plan->n_fills, plan->n_reads,
                                      (uint64_t)n * w->shape->page_tokens);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (uint32_t i = 0; i < n; i++) {
        int32_t p = i < plan->n_fills ? plan->fills[i] : plan->reads[i - plan->n_fills];
        content_entry(batch, w->shape, &batch->fills[i], i, p, w->pages[p].content);
    }
    bool by_bulk = w->by_bulk && random_percent(&w->random, 50);
    rc = weir_pattern_batch_upload(batch, pattern, stream);
    for (uint32_t layer = 0; !rc && layer < w->shape->n_layers; layer++) {
        rc = weir_rank_wait_layer(w->rank, step, layer, stream);
        if (!rc)
            rc = weir_pattern_batch_fill(batch, pattern, &w->planes, layer, stream);
        if (!rc)
            rc = world_check(w, batch, by_bulk, layer, stream);
    }
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

static inline void world_random_step(struct world *w)
{
    struct world_plan plan = { 0 };
    uint64_t step = w->newest + 1;
    world_plan_step(w, &plan, step);
    weir_stream *stream = w->rig->streams[random_below(&w->random, 2)];
    world_begin(w, &plan, step, stream);
    world_forward(w, &plan, step, stream);
    uint64_t oldest = step > WORLD_IN_FLIGHT ? step - WORLD_IN_FLIGHT : 1;
    for (uint64_t s = oldest; s <= step; s++)
        if (random_percent(&w->random, s < step ? 50 : 75))
            world_end(w, s);
    if (random_percent(&w->random, 60))
        world_report(w);
}

/* ---- Opening and closing ------------------------------------------------- */

/* The rank is open. Every page gets a content, hosts those of the candidates. */
static inline void world_start(struct world *w)
{
    w->pages = calloc(w->n_pages + 1, sizeof *w->pages);
    w->hosts = calloc(w->n_hosts + 1, sizeof *w->hosts);
    REQUIRE(w->pages && w->hosts, "memory");
    int rc = weir_pattern_planes_create(&w->planes, &w->rig->pattern, w->rank, w->shape, 0,
                                        w->rig->streams[0]);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    for (uint32_t p = 1; p <= w->n_pages; p++)
        w->pages[p].content = ++w->next_content;
    for (uint32_t i = 0; i < w->n_host_candidates; i++) {
        int32_t h = w->host_candidates[i];
        w->hosts[h].content = ++w->next_content;
        content_write(content_host(w->rank), h, w->hosts[h].content);
    }
    world_all_pages(w, true);
}

static inline void world_stop(struct world *w)
{
    weir_rank_close(&w->rank);
    weir_pattern_planes_destroy(&w->planes, &w->rig->pattern);
    for (int i = 0; i < WORLD_IN_FLIGHT; i++)
        weir_pattern_batch_destroy(&w->batches[i], &w->rig->pattern);
    weir_pattern_batch_destroy(&w->all, &w->rig->pattern);
    free(w->pages);
    free(w->hosts);
}

#endif
