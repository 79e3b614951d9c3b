/* SPDX-License-Identifier: Apache-2.0 */
#include "random_shape.h"
#include "rank_random.h"

#include <weir/cache.h>

static const uint32_t middle_layer[] = { 1 };
static const weir_tensor odd[] = {
    { .page_bytes = 2 * 33, .row_bytes = 33 },
    { .page_bytes = 2 * 5, .row_bytes = 5, .layers = middle_layer, .n_layers = 1 },
    { .page_bytes = 77 },
};
static const weir_shape odd_shape = {
    .page_tokens = 2, .n_layers = 3, .n_tensors = 3, .tensors = odd
};

static void fill_page(struct world *w, int32_t p)
{
    world_make_page(w, p, w->streams[0]);
}

/* Begins a step that copies, in the second stream. */
static uint64_t begin_copies(struct world *w, weir_order order, const weir_page_copy *copies,
                             uint32_t n)
{
    order.copies = copies;
    order.n_copies = n;
    return world_begin(w, order, w->streams[1]);
}

static void read_copy(struct world *w, uint64_t step, int32_t p, uint64_t content, uint64_t load)
{
    for (uint32_t layer = 0; layer < w->shape->n_layers; layer++) {
        cr_assert(eq(int, weir_rank_wait_layer(w->rank, step, layer, w->steps[step].stream), 0));
        struct world_kernel *k = world_launch(w, w->steps[step].stream, p, layer, content, false);
        k->load = load;
        k->copy = step;
    }
}

/* ---- Bytes ---------------------------------------------------------------- */

static void copy_two_pages(struct world *w)
{
    fill_page(w, 3);
    fill_page(w, 4);
    const uint64_t fences[] = { 1, 2 };
    const weir_page_copy copies[] = { { { 3 }, { 14 }, 0 },
                                      { { 4 }, { 1 }, 0 },
                                      { { 3 }, { 2 }, 0 } };
    uint64_t step = begin_copies(w, (weir_order){ .n_fences = 2, .fences = fences }, copies, 3);
    read_copy(w, step, 14, w->pages[3].content, 0);
    read_copy(w, step, 1, w->pages[4].content, 0);
    read_copy(w, step, 2, w->pages[3].content, 0);
    world_end(w, step);
    world_expect_right(w);
    cr_assert(zero(int, w->steps[step].rc));
}

Test(rank_copies, every_byte_of_odd_pages)
{
    for (uint64_t seed = 0; seed <= 30; seed++) {
        struct random random = { seed };
        struct random_shape shape;
        random_shape(&random, &shape, true, 65536);
        weir_rank_params params = world_params(&shape.shape, WEIR_HOST_SEGMENTED);
        struct world *w = world_open(seed, &params);
        copy_two_pages(w);
        world_close(w);
    }
    check_leaks();
}

/* Planes of a server's own, with room between the pages. */
Test(rank_copies, between_padded_pages)
{
    enum {
        STRIDE = 256,
        PLANE = STRIDE * (WORLD_DEVICE_PAGES + 1)
    };
    unsigned char *buffer = calloc(7, PLANE);
    weir_device_plane planes[7];
    for (size_t i = 0; i < 7; i++)
        planes[i] = (weir_device_plane){ (uintptr_t)buffer + i * PLANE, STRIDE };
    weir_rank_params params = world_params(&odd_shape, WEIR_HOST_LAYER_FIRST);
    params.planes = planes;
    struct world *w = world_open(5, &params);
    copy_two_pages(w);
    for (size_t i = 0; i < 7 * PLANE; i++)
        if (i % STRIDE >= 77)
            cr_assert(eq(u8, buffer[i], 0));
    world_close(w);
    free(buffer);
}

Test(rank_copies, without_a_host_tier)
{
    weir_rank_params params = world_params(&odd_shape, WEIR_HOST_SEGMENTED);
    params.host_pages = 0;
    struct world *w = world_open(2, &params);
    uint64_t first = world_begin(w, (weir_order){ 0 }, w->streams[0]);
    for (uint32_t layer = 0; layer < odd_shape.n_layers; layer++)
        world_launch(w, w->streams[0], 6, layer, 99, true);
    world_end(w, first);
    const weir_page_copy copy = { { 6 }, { 5 }, 0 };
    const uint64_t fence = 1;
    uint64_t step = begin_copies(w, (weir_order){ .n_fences = 1, .fences = &fence }, &copy, 1);
    read_copy(w, step, 5, 99, 0);
    world_end(w, step);
    world_expect_right(w);
    world_close(w);
}

Test(rank_copies, random_steps_copy)
{
    uint32_t copies = 0, behind_loads = 0;
    for (uint64_t seed = 0; seed <= 12; seed++) {
        weir_rank_params params = world_params(&odd_shape, WEIR_HOST_PAGE_FIRST_DIRECT);
        struct world *w = world_open(seed, &params);
        for (unsigned i = 0; i < 60; i++) {
            cr_assert(world_random_step(w));
            world_run_a_little(w);
            if (!w->seeded && i % 5 == 4)
                world_settle(w);
            copies += w->steps[w->newest].n_copies;
            for (int32_t p = 1; p <= WORLD_DEVICE_PAGES; p++)
                behind_loads += w->pages[p].copy == w->newest && w->pages[p].origin != 0;
        }
        world_expect_right(w);
        for (uint64_t step = 1; step <= w->newest; step++)
            cr_assert(zero(int, w->steps[step].rc));
        world_close(w);
    }
    cr_assert(lt(u32, 100, copies));
    cr_assert(lt(u32, 10, behind_loads));
}

/* ---- Behind loads --------------------------------------------------------- */

static struct world *loading_world(uint64_t seed, weir_move *load)
{
    weir_rank_params params = world_params(&odd_shape, WEIR_HOST_SEGMENTED);
    struct world *w = world_open(seed, &params);
    fill_page(w, 1);
    world_settle(w);
    *load = (weir_move){ { 7 }, { 1 } };
    return w;
}

Test(rank_copies, behind_the_load_of_the_same_step)
{
    for (uint64_t seed = 0; seed <= 12; seed++) {
        weir_move load;
        struct world *w = loading_world(seed, &load);
        const weir_page_copy copy = { { 7 }, { 8 }, 2 };
        uint64_t step = begin_copies(w, (weir_order){ .n_loads = 1, .loads = &load }, &copy, 1);
        read_copy(w, step, 8, w->pages[1].content, step);
        world_end(w, step);
        world_expect_right(w);
        cr_assert(zero(int, w->steps[step].load_rc));
        world_close(w);
    }
}

Test(rank_copies, behind_a_load_that_is_joined)
{
    for (uint64_t seed = 0; seed <= 12; seed++) {
        weir_move load;
        struct world *w = loading_world(seed, &load);
        weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_LOAD, 3);
        uint64_t first =
            world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[0]);
        world_end(w, first);
        const weir_page_copy copies[] = { { { 7 }, { 8 }, first }, { { 7 }, { 9 }, first } };
        uint64_t step = begin_copies(w, (weir_order){ .n_joins = 1, .joins = &first }, copies, 2);
        read_copy(w, step, 8, w->pages[1].content, first);
        read_copy(w, step, 9, w->pages[1].content, first);
        world_end(w, step);
        weir_cpu_device_release(w->device);
        world_expect_right(w);
        world_close(w);
    }
}

/* Whoever joins a load that was over long ago waits for nothing, also where the step
 * that copies has the record of the one that loaded. */
Test(rank_copies, behind_a_load_that_is_over)
{
    for (int between = 0; between <= 16; between++) {
        weir_move load;
        struct world *w = loading_world(3, &load);
        uint64_t first =
            world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[0]);
        world_end(w, first);
        for (int i = 0; i < between; i++) {
            world_settle(w);
            world_end(w, world_begin(w, (weir_order){ 0 }, w->streams[0]));
        }
        world_settle(w);
        const weir_page_copy copy = { { 7 }, { 8 }, first };
        uint64_t step = begin_copies(w, (weir_order){ .n_joins = 1, .joins = &first }, &copy, 1);
        read_copy(w, step, 8, w->pages[1].content, 0);
        world_end(w, step);
        world_expect_right(w);
        cr_assert(zero(int, w->steps[step].rc), "%d steps between", between);
        world_close(w);
    }
}

/* ---- Faults --------------------------------------------------------------- */

/* Nothing hangs, the step alone fails, and what it should have copied is not
 * counted as right. */
static bool strike(uint64_t seed, weir_cpu_call call, unsigned n, bool loading)
{
    weir_move load;
    struct world *w = loading_world(seed, &load);
    weir_page_copy copies[] = { { { 1 }, { 8 }, 0 }, { { 1 }, { 9 }, 0 } };
    weir_order order = { 0 };
    if (loading) {
        copies[0] = (weir_page_copy){ { 7 }, { 8 }, 2 };
        order = (weir_order){ .n_loads = 1, .loads = &load };
    }
    uint64_t before = weir_cpu_device_calls(w->device, call);
    weir_cpu_device_fail(w->device, call, n, -EIO);
    uint64_t step = begin_copies(w, order, copies, 2);
    bool struck = weir_cpu_device_calls(w->device, call) >= before + n;
    weir_cpu_device_release(w->device);
    read_copy(w, step, 8, w->pages[1].content, loading ? step : 0);
    read_copy(w, step, 9, w->pages[1].content, 0);
    world_end(w, step);
    uint64_t next = world_begin(w, (weir_order){ .n_fences = 1, .fences = &step }, w->streams[0]);
    world_read_page(w, next, 1, w->pages[1].content, 0);
    world_end(w, next);
    world_finish(w);
    cr_assert(zero(u64, world_wrong(w)));
    cr_assert(zero(u64, weir_cpu_device_races(w->device)), "%s", w->log.last);
    bool fails =
        struck && (call == WEIR_CPU_CALL_COPY_PAGES || call == WEIR_CPU_CALL_STREAM_WAIT_WORD);
    cr_assert(eq(int, w->steps[step].rc, fails ? -EIO : 0), "call %d, n %u", (int)call, n);
    cr_assert(zero(int, w->steps[next].rc));
    world_close(w);
    return struck;
}

Test(rank_copies, every_call_fails_once)
{
    for (uint64_t seed = 0; seed <= 2; seed++)
        for (int call = WEIR_CPU_CALL_EVENT_RECORD; call < WEIR_CPU_CALL_COUNT; call++)
            for (int loading = 0; loading < 2; loading++) {
                unsigned n = 1;
                while (strike(seed, (weir_cpu_call)call, n, loading))
                    n++;
                if (call == WEIR_CPU_CALL_COPY_PAGES)
                    cr_assert(eq(u32, n, odd_shape.n_layers + 1));
                if (call == WEIR_CPU_CALL_STREAM_WAIT_WORD && loading && seed > 0)
                    cr_assert(eq(u32, n, 2));
            }
    check_leaks();
}

Test(rank_copies, a_lost_device)
{
    weir_move load;
    struct world *w = loading_world(1, &load);
    const weir_page_copy copy = { { 1 }, { 8 }, 0 };
    uint64_t step = begin_copies(w, (weir_order){ 0 }, &copy, 1);
    weir_cpu_device_lose(w->device);
    w->lost = true;
    world_end(w, step);
    world_report(w, 20);
    cr_assert(eq(int, w->steps[step].rc, -EIO));
    world_close(w);
}

/* ---- Refusals ------------------------------------------------------------- */

static void refused(struct world *w, weir_order order, const char *text)
{
    struct world_step s = { 0 };
    order.step = w->newest + 1;
    world_encode(w, &s, &order);
    uint64_t step;
    cr_assert(eq(int, weir_rank_begin(w->rank, s.order, s.order_bytes, 0, w->streams[0], &step),
                 -EINVAL));
    cr_assert(ne(ptr, strstr(w->log.last, text), NULL), "%s", w->log.last);
}

Test(rank_copies, rules_that_need_a_map_of_the_pages)
{
    weir_rank_params params = world_params(&odd_shape, WEIR_HOST_SEGMENTED);
    struct world *w = world_open(1, &params);
    const weir_move load = { { 7 }, { 1 } };
    const weir_page_copy twice[] = { { { 1 }, { 2 }, 0 }, { { 3 }, { 2 }, 0 } };
    const weir_page_copy chained[] = { { { 1 }, { 2 }, 0 }, { { 2 }, { 3 }, 0 } };
    const weir_page_copy loaded = { { 1 }, { 7 }, 0 };
    const weir_page_copy early = { { 7 }, { 8 }, 0 };
    const weir_page_copy late = { { 6 }, { 8 }, 1 };
    const weir_page_copy right[] = { { { 7 }, { 8 }, 1 },
                                     { { 7 }, { 9 }, 1 },
                                     { { 6 }, { 5 }, 0 } };
    weir_order order = { .n_copies = 2, .copies = twice };
    refused(w, order, "copies[1] is the second to device page 2");
    order.copies = chained;
    refused(w, order, "device page 2 is copied from and to");
    order = (weir_order){ .n_loads = 1, .loads = &load, .n_copies = 1, .copies = &loaded };
    refused(w, order, "device page 7 is loaded and copied to");
    order.copies = &early;
    refused(w, order, "copies[0].load is 0");
    order.copies = &late;
    refused(w, order, "copies[0].load is 1");
    order.copies = right;
    order.n_copies = 3;
    world_end(w, world_begin(w, order, w->streams[0]));
    world_finish(w);
    world_close(w);
}

/* ---- A cache and two ranks ------------------------------------------------- */

enum {
    TEXTS = 8,
    TOKENS = 96,
    DEVICE_PAGES = 44,
    HOST_PAGES = 70,
    T = 4
};

static const weir_tensor narrow[] = { { .page_bytes = T * 3, .row_bytes = 3 } };
static const weir_tensor wide[] = { { .page_bytes = T * 24, .row_bytes = 24 },
                                    { .page_bytes = T * 7, .row_bytes = 7 } };
static const weir_shape rank_shapes[] = {
    { .page_tokens = T, .n_layers = 2, .n_tensors = 1, .tensors = narrow },
    { .page_tokens = T, .n_layers = 3, .n_tensors = 2, .tensors = wide },
};

/* A sequence and what it is to say. */
struct text {
    weir_seq seq;
    int32_t tokens[TOKENS];
    size_t n; /* committed */
};

struct server {
    struct random random;
    weir_cache *cache;
    struct world *ranks[2];
    struct text texts[TEXTS];
    int32_t next_token;
    uint64_t n_checked;
    uint64_t n_copies;
    uint64_t n_loads;
    uint64_t n_behind; /* copies behind loads */
};

/* Writes, or compares, rows first..end-1 of a sequence in one layer. */
struct row_kernel {
    struct world *world;
    uint32_t layer;
    bool fill;
    size_t first, end;
    int32_t table[TOKENS / T];
    int32_t tokens[TOKENS];
};

static void run_rows(void *arg)
{
    struct row_kernel *k = arg;
    for (size_t i = k->first; i < k->end; i++)
        for (uint32_t t = 0; t < k->world->shape->n_tensors; t++) {
            uint32_t bytes = k->world->shape->tensors[t].row_bytes;
            weir_device_page page = { k->table[i / T] };
            unsigned char *row =
                (unsigned char *)(uintptr_t)(world_piece(k->world, t, k->layer, page) +
                                             i % T * bytes);
            for (uint32_t b = 0; b < bytes; b++) {
                unsigned char value = pattern((uint64_t)k->tokens[i], t, k->layer, b);
                if (k->fill)
                    row[b] = value;
                else if (row[b] != value)
                    k->world->kernels->wrong++;
            }
        }
    free(k);
}

static void launch_rows(struct world *w, weir_stream *stream, const struct text *text,
                        const int32_t *table, uint32_t layer, size_t first, size_t end, bool fill)
{
    struct row_kernel *k = calloc(1, sizeof *k);
    *k = (struct row_kernel){ w, layer, fill, first, end, { 0 }, { 0 } };
    memcpy(k->table, table, sizeof k->table);
    memcpy(k->tokens, text->tokens, sizeof k->tokens);
    weir_cpu_access accesses[2 * TOKENS / T];
    size_t n = 0;
    for (size_t i = first / T; i < (end + T - 1) / T; i++)
        for (uint32_t t = 0; t < w->shape->n_tensors; t++)
            accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(w->rank),
                                               .page = table[i],
                                               .tensor = (uint16_t)t,
                                               .layer = (uint16_t)layer,
                                               .write = fill };
    cr_assert(zero(int, weir_cpu_launch(w->device, stream, run_rows, k, accesses, n)));
}

static void report_all(struct server *s)
{
    for (uint32_t r = 0; r < 2; r++) {
        uint64_t report[128];
        size_t bytes = 1;
        while (bytes) {
            cr_assert(
                zero(int, weir_rank_report(s->ranks[r]->rank, report, sizeof report, &bytes)));
            if (bytes)
                cr_assert(zero(int, weir_cache_report(s->cache, r, report, bytes)));
        }
    }
    const char *reason = "";
    cr_assert(zero(int, weir_cache_check(s->cache, &reason)), "%s", reason);
}

static void step_of(struct server *s, struct text *const *texts, const size_t *lengths, size_t n);

/* Reserves for n tokens; runs empty steps while that has to wait. False: others hold
 * too much. */
static bool reserve_for(struct server *s, const struct text *text, size_t n)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = n;
    int rc = weir_seq_reserve(text->seq, &request, NULL);
    for (int i = 0; rc == -EAGAIN && i < 20; i++) {
        step_of(s, NULL, NULL, 0);
        for (int r = 0; r < 2; r++)
            while (weir_cpu_device_run(s->ranks[r]->device, 1000) == 1000)
                continue;
        report_all(s);
        rc = weir_seq_reserve(text->seq, &request, NULL);
    }
    cr_assert(rc == 0 || rc == -ENOSPC, "%d", rc);
    return rc == 0;
}

static void begin_step(struct server *s, weir_step *step)
{
    int rc = weir_step_begin(step, s->cache);
    for (int i = 0; rc == -EAGAIN && i < 1000; i++) {
        for (int r = 0; r < 2; r++)
            weir_cpu_device_run(s->ranks[r]->device, 50);
        report_all(s);
        rc = weir_step_begin(step, s->cache);
    }
    cr_assert(zero(int, rc));
}

static void run_rank(struct server *s, struct world *w, const void *order, size_t bytes,
                     struct text *const *texts, const size_t *lengths, int32_t tables[][TOKENS / T],
                     size_t n)
{
    weir_stream *stream = w->streams[random_below(&s->random, 2)];
    uint64_t step = 0;
    uint32_t slot = (uint32_t)(++w->newest % w->n_slots);
    cr_assert(zero(int, weir_rank_begin(w->rank, order, bytes, slot, stream, &step)), "%s",
              w->log.last);
    for (uint32_t layer = 0; layer < w->shape->n_layers; layer++) {
        cr_assert(zero(int, weir_rank_wait_layer(w->rank, step, layer, stream)));
        for (size_t i = 0; i < n; i++) {
            launch_rows(w, stream, texts[i], tables[i], layer, texts[i]->n, lengths[i], true);
            launch_rows(w, stream, texts[i], tables[i], layer, 0, lengths[i], false);
        }
    }
    cr_assert(zero(int, weir_rank_end(w->rank, step, stream)));
    weir_cpu_device_run(w->device, random_below(&s->random, 40));
}

/* One forward pass: each text grows to its length, and all that it has is read. */
static void step_of(struct server *s, struct text *const *texts, const size_t *lengths, size_t n)
{
    int32_t tables[TEXTS][TOKENS / T] = { { 0 } };
    weir_step step;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = texts[i]->n; k < lengths[i]; k++)
            if (texts[i]->tokens[k] == 0)
                texts[i]->tokens[k] = ++s->next_token;
    }
    begin_step(s, &step);
    for (size_t i = 0; i < n; i++) {
        size_t n_pages;
        cr_assert(zero(int, weir_step_add(step, texts[i]->seq)));
        cr_assert(zero(int, weir_seq_pages(texts[i]->seq, 0, T, tables[i], TOKENS / T, &n_pages)));
        cr_assert(zero(int, weir_seq_commit(texts[i]->seq, texts[i]->tokens + texts[i]->n,
                                            lengths[i] - texts[i]->n)));
    }
    const void *order;
    size_t bytes;
    weir_order decoded;
    cr_assert(zero(int, weir_step_end(&step, &order, &bytes)));
    cr_assert(zero(int, weir_order_decode(&decoded, order, bytes, NULL)));
    s->n_copies += decoded.n_copies;
    s->n_loads += decoded.n_loads;
    for (uint32_t i = 0; i < decoded.n_copies; i++)
        s->n_behind += decoded.copies[i].load != 0;
    for (int r = 0; r < 2; r++)
        run_rank(s, s->ranks[r], order, bytes, texts, lengths, tables, n);
    for (size_t i = 0; i < n; i++) {
        s->n_checked += lengths[i];
        texts[i]->n = lengths[i];
    }
    if (random_percent(&s->random, 50))
        report_all(s);
}

static struct text *free_text(struct server *s)
{
    for (size_t i = 0; i < TEXTS; i++)
        if (!s->texts[i].seq.cache)
            return &s->texts[i];
    return NULL;
}

/* A prompt of a document that all share, and a word of its own. */
static void open_text(struct server *s)
{
    struct text *text = free_text(s);
    if (!text)
        return;
    *text = (struct text){ 0 };
    size_t n = 5 + random_below(&s->random, 20);
    for (size_t i = 0; i < n; i++)
        text->tokens[i] = 1000000 + (int32_t)i;
    text->tokens[n++] = ++s->next_token;
    weir_key key = { .tokens = text->tokens, .n_tokens = n };
    cr_assert(zero(int, weir_seq_open(&text->seq, s->cache, &key, NULL)));
    if (!reserve_for(s, text, n)) {
        cr_assert(zero(int, weir_seq_close(&text->seq)));
        return;
    }
    weir_seq_info info;
    cr_assert(zero(int, weir_seq_get_info(text->seq, &info)));
    text->n = info.n_committed;
}

static struct text *some_text(struct server *s)
{
    size_t first = random_below(&s->random, TEXTS);
    for (size_t i = 0; i < TEXTS; i++)
        if (s->texts[(first + i) % TEXTS].seq.cache)
            return &s->texts[(first + i) % TEXTS];
    return NULL;
}

static void fork_text(struct server *s)
{
    const struct text *text = some_text(s);
    struct text *kid = free_text(s);
    if (!text || !kid || text->n == 0)
        return;
    size_t len = 1 + random_below(&s->random, (uint32_t)text->n);
    struct text made = { .n = len };
    memcpy(made.tokens, text->tokens, len * sizeof *made.tokens);
    int rc = weir_seq_fork(&made.seq, 1, text->seq, len, NULL);
    cr_assert(rc == 0 || rc == -EAGAIN || rc == -ENOSPC);
    if (rc == 0)
        *kid = made;
}

static void cut_text(struct server *s)
{
    struct text *text = some_text(s);
    if (!text)
        return;
    size_t n = random_below(&s->random, (uint32_t)text->n + 1);
    cr_assert(zero(int, weir_seq_truncate(text->seq, n)));
    weir_seq_info info;
    cr_assert(zero(int, weir_seq_get_info(text->seq, &info)));
    text->n = n;
    memset(text->tokens + info.n_tokens, 0, (TOKENS - info.n_tokens) * sizeof *text->tokens);
}

static void run_batch(struct server *s)
{
    struct text *texts[TEXTS];
    size_t lengths[TEXTS], n = 0;
    for (size_t i = 0; i < TEXTS; i++) {
        struct text *text = &s->texts[i];
        if (!text->seq.cache || random_percent(&s->random, 30))
            continue;
        size_t length = text->n + 1 + random_below(&s->random, 6);
        lengths[n] = length < 60 ? length : text->n;
        if (lengths[n] > 0 && reserve_for(s, text, lengths[n]))
            texts[n++] = text;
    }
    step_of(s, texts, lengths, n);
}

static void close_text(struct server *s)
{
    struct text *text = some_text(s);
    if (text)
        cr_assert(zero(int, weir_seq_close(&text->seq)));
}

/* Takes the room of what nobody holds, so that it has to be loaded when it is hit. */
static void push_out(struct server *s)
{
    struct text filler = { .tokens = { ++s->next_token } };
    weir_key key = { .tokens = filler.tokens, .n_tokens = 1 };
    if (weir_seq_open(&filler.seq, s->cache, &key, NULL))
        return;
    size_t n = DEVICE_PAGES;
    while (n > 0 && !reserve_for(s, &filler, n * T))
        n--;
    cr_assert(zero(int, weir_seq_close(&filler.seq)));
}

static void operate(struct server *s)
{
    uint32_t what = random_below(&s->random, 100);
    if (what < 20)
        open_text(s);
    else if (what < 35)
        fork_text(s);
    else if (what < 45)
        cut_text(s);
    else if (what < 70)
        run_batch(s);
    else if (what < 78)
        push_out(s);
    else
        close_text(s);
}

static void open_server(struct server *s, uint64_t seed)
{
    *s = (struct server){ .random = { seed } };
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = T;
    params.device_pages = DEVICE_PAGES;
    params.host_pages = HOST_PAGES;
    params.n_ranks = 2;
    params.max_steps = 8;
    params.max_write_backs = 3;
    params.max_seqs = TEXTS + 1;
    cr_assert(zero(int, weir_cache_create(&s->cache, &params)));
    for (uint32_t r = 0; r < 2; r++) {
        weir_rank_params rank = world_params(&rank_shapes[r], WEIR_HOST_SEGMENTED);
        rank.device_pages = DEVICE_PAGES;
        rank.host_pages = HOST_PAGES;
        s->ranks[r] = world_open(seed * 2 + r + 1, &rank);
        /* Where the row kernels count what is wrong. */
        s->ranks[r]->kernels = calloc(1, sizeof *s->ranks[r]->kernels);
    }
}

static void close_server(struct server *s)
{
    for (size_t i = 0; i < TEXTS; i++)
        cr_assert(zero(int, weir_seq_close(&s->texts[i].seq)));
    for (int i = 0; i < 10; i++) {
        for (uint32_t r = 0; r < 2; r++)
            while (weir_cpu_device_run(s->ranks[r]->device, 1000) == 1000)
                continue;
        report_all(s);
        if (i < 5)
            step_of(s, NULL, NULL, 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        cr_assert(zero(u64, s->ranks[r]->kernels->wrong));
        cr_assert(zero(u64, weir_cpu_device_races(s->ranks[r]->device)), "%s",
                  s->ranks[r]->log.last);
        world_close(s->ranks[r]);
    }
    cr_assert(zero(int, weir_cache_destroy(&s->cache)));
}

Test(rank_copies, forks_and_cuts_read_their_own_tokens_on_two_ranks)
{
    uint64_t checked = 0, copies = 0, loads = 0, behind = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct server s;
        open_server(&s, seed);
        for (int i = 0; i < 200; i++)
            operate(&s);
        close_server(&s);
        checked += s.n_checked;
        copies += s.n_copies;
        loads += s.n_loads;
        behind += s.n_behind;
    }
    cr_assert(lt(u64, 5000, checked));
    cr_assert(lt(u64, 100, copies));
    cr_assert(lt(u64, 50, loads));
    cr_assert(lt(u64, 5, behind));
    check_leaks();
}
