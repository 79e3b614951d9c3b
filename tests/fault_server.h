/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_FAULT_SERVER_H
#define WEIR_TESTS_FAULT_SERVER_H

/* A server in small that device calls may fail under: a cache, one device with
 * two ranks, and requests that are tried again until they are well.
 *
 *   serve ─► reserve ─► step ─► order ─► rank 0, rank 1 ─► reports ─► events
 *     ▲                                                                 │
 *     └──────────── closed and tried again: a load or step failed ◄─────┘
 *
 * Page i of a prompt holds what its letters up to there tell, on each rank other
 * bytes. A forward pass looks at the pages that were hit and fills the others;
 * what it saw counts once the request has ended well. On the CPU device it runs
 * in the stream, when the device is run; on the fake driver, which has no
 * kernels, the host does it when the stream has come there.
 *
 * Of each rank every step, load and write-back must end once: `due` counts what
 * orders told and takes off what reports tell. */

#include "cuda_rig.h"
#include "hands_rig.h"

#include <weir/cache.h>
#include <weir/cpu_device.h>
#include <weir/lifecycle.h>
#include <weir/pin.h>

enum {
    SERVER_RANKS = 2,
    SERVER_TOKENS = 4, /* of a page */
    SERVER_LAYERS = 3,
    SERVER_DEVICE_PAGES = 9,
    SERVER_HOST_PAGES = 14,
    SERVER_STEPS = 4,
    SERVER_TRIES = 6,
    SERVER_NUMBERS = 256 /* of steps and of tickets, at most */
};

static const weir_tensor server_tensors[] = { { .page_bytes = 4 * 24, .row_bytes = 24 },
                                              { .page_bytes = 4 * 5, .row_bytes = 5 } };
static const weir_shape server_shape = { .page_tokens = SERVER_TOKENS,
                                         .n_layers = SERVER_LAYERS,
                                         .n_tensors = 2,
                                         .tensors = server_tensors };

struct request {
    const char *letters;
    weir_seq seq;
    bool failed;        /* an event said so */
    bool alone;         /* there was no room for it beside the others */
    size_t good_tokens; /* of the last such event */
};

struct server {
    struct log_capture log;
    struct fake_cuda *fake; /* NULL: a CPU device */
    weir_device *device;
    weir_cache *cache;
    struct hand hands[SERVER_RANKS];
    uint64_t now;
    uint32_t failures;       /* of requests */
    uint64_t wrong;          /* bytes that a request saw that ended well */
    uint64_t loads;          /* pages */
    uint64_t writes;         /* likewise */
    uint64_t joins;          /* of loads of other steps */
    uint64_t copies;         /* of pages within the device */
    uint64_t copies_behind;  /* of them, behind the load of the same step */
    uint64_t copies_joining; /* and behind one of another */
    struct request *watched; /* are told by whoever polls; see fault_texts.h */
    size_t n_watched;
    uint32_t text_failures;
    int due[SERVER_RANKS][WEIR_REPORT_WRITE_BACK + 1][SERVER_NUMBERS];
    int n_due;
    int n_due_steps; /* of them, steps and loads */
    struct random random;
    int32_t tokens[64];
};

#define works(s, call)                                                 \
    do {                                                               \
        int works_rc_ = (call);                                        \
        cr_assert(works_rc_ == 0, "%d: %s", works_rc_, (s)->log.last); \
    } while (0)

/* A call that a fault may strike once. */
#define works_at_last(s, call)  \
    do {                        \
        if ((call) != 0)        \
            works((s), (call)); \
    } while (0)

/* ---- Opening and closing -------------------------------------------------- */

static inline int server_stream(struct hand *hand)
{
    return hand->device->ops->stream_create(hand->device, 0, &hand->stream);
}

static inline void server_open_hand(struct server *s, uint32_t index)
{
    struct hand *hand = &s->hands[index];
    *hand = (struct hand){ .device = s->device, .shape = &server_shape, .index = index };
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &server_shape;
    params.device_pages = SERVER_DEVICE_PAGES;
    params.host_pages = SERVER_HOST_PAGES;
    params.max_steps = SERVER_STEPS;
    params.max_write_backs = 3;
    params.touch_threads = 1;
    params.log = log_capture_log(&s->log);
    works_at_last(s, server_stream(hand));
    if (weir_rank_open(&hand->rank, s->device, &params) == 0)
        return;
    cr_assert(zero(ptr, hand->rank));
    works(s, weir_rank_open(&hand->rank, s->device, &params));
}

/* The cache; ranks are opened by server_start. `fake` NULL: a CPU device with
 * this seed, which is open then. */
static inline void server_open(struct server *s, struct fake_cuda *fake, uint64_t seed)
{
    *s = (struct server){ .fake = fake, .random = { seed } };
    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = SERVER_TOKENS;
    params.device_pages = SERVER_DEVICE_PAGES;
    params.host_pages = SERVER_HOST_PAGES;
    params.n_ranks = SERVER_RANKS;
    params.max_steps = SERVER_STEPS;
    params.max_write_backs = 3;
    params.max_seqs = 8;
    params.offered = 0;
    params.max_pinned = 0.5;
    params.log = log_capture_log(&s->log);
    works(s, weir_cache_create(&s->cache, &params));
    if (fake)
        return;
    weir_cpu_device_params cpu;
    weir_cpu_device_params_init(&cpu);
    cpu.seed = seed;
    cpu.log = params.log;
    works(s, weir_cpu_device_open(&s->device, &cpu));
}

static inline void server_start(struct server *s)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.log = log_capture_log(&s->log);
    if (s->fake)
        works_at_last(s, weir_device_open(&s->device, &params));
    for (uint32_t i = 0; i < SERVER_RANKS; i++)
        server_open_hand(s, i);
}

static inline void server_close(struct server *s)
{
    for (uint32_t i = 0; i < SERVER_RANKS; i++) {
        struct hand *hand = &s->hands[i];
        weir_rank_close(&hand->rank);
        s->device->ops->stream_destroy(s->device, hand->stream);
        while (hand->kernels) {
            struct hand_kernel *next = hand->kernels->next;
            free(hand->kernels);
            hand->kernels = next;
        }
    }
    works(s, weir_device_close(&s->device));
    works(s, weir_cache_destroy(&s->cache));
}

/* ---- The device ----------------------------------------------------------- */

static inline void server_launch(struct server *s, struct hand *hand, struct hand_work work,
                                 uint32_t layer)
{
    if (!s->fake) {
        works(s, hand_launch(hand, work, layer));
        return;
    }
    works_at_last(s, s->device->ops->stream_synchronize(s->device, hand->stream));
    struct hand_kernel kernel = { NULL, hand, work, layer };
    hand_run_kernel(&kernel);
}

/* A layer's share of a forward pass on one rank. */
typedef void server_layer(struct server *s, struct hand *hand, uint32_t layer, void *pass);

static inline void server_forward(struct server *s, struct hand *hand, const void *order,
                                  size_t bytes, server_layer *run_layer, void *pass)
{
    uint64_t step;
    weir_order decoded;
    works(s, weir_order_decode(&decoded, order, bytes, NULL));
    uint32_t slot = (uint32_t)(decoded.step % SERVER_STEPS);
    works_at_last(s, weir_rank_begin(hand->rank, order, bytes, slot, hand->stream, &step));
    for (uint32_t layer = 0; layer < SERVER_LAYERS; layer++) {
        works_at_last(s, weir_rank_wait_layer(hand->rank, step, layer, hand->stream));
        run_layer(s, hand, layer, pass);
    }
    works_at_last(s, weir_rank_end(hand->rank, step, hand->stream));
}

/* ---- Orders and reports --------------------------------------------------- */

static inline void server_count_due(struct server *s, uint32_t rank, uint32_t kind, uint64_t number,
                                    int change)
{
    cr_assert(lt(u64, number, (uint64_t)SERVER_NUMBERS));
    int due = s->due[rank][kind][number] += change;
    s->n_due += change;
    s->n_due_steps += kind == WEIR_REPORT_WRITE_BACK ? 0 : change;
    cr_assert(due == 0 || due == 1, "kind %u, number %d of rank %u ends %d times", kind,
              (int)number, rank, 1 - due);
}

static inline void server_count_order(struct server *s, const void *order, size_t bytes)
{
    weir_order decoded;
    works(s, weir_order_decode(&decoded, order, bytes, NULL));
    s->loads += decoded.n_loads;
    s->writes += decoded.n_writes;
    s->joins += decoded.n_joins;
    s->copies += decoded.n_copies;
    for (uint32_t i = 0; i < decoded.n_copies; i++) {
        s->copies_behind += decoded.copies[i].load == decoded.step;
        s->copies_joining += decoded.copies[i].load && decoded.copies[i].load < decoded.step;
    }
    for (uint32_t rank = 0; rank < SERVER_RANKS; rank++) {
        server_count_due(s, rank, WEIR_REPORT_STEP, decoded.step, 1);
        if (decoded.n_loads)
            server_count_due(s, rank, WEIR_REPORT_LOAD, decoded.step, 1);
        if (decoded.n_writes)
            server_count_due(s, rank, WEIR_REPORT_WRITE_BACK, decoded.write_ticket, 1);
    }
}

static inline void server_check(const struct server *s)
{
    const char *reason = "";
    cr_assert(weir_cache_check(s->cache, &reason) == 0, "%s", reason);
}

static inline bool server_report(struct server *s, uint32_t rank)
{
    uint64_t report[64];
    size_t bytes, n;
    const weir_report_item *items;
    works(s, weir_rank_report(s->hands[rank].rank, report, sizeof report, &bytes));
    if (bytes == 0)
        return false;
    works(s, weir_report_decode(&items, &n, report, bytes, NULL));
    for (size_t i = 0; i < n; i++)
        server_count_due(s, rank, items[i].kind, items[i].number, -1);
    works(s, weir_cache_report(s->cache, rank, report, bytes));
    server_check(s);
    return true;
}

/* Something of what is enqueued runs; false: nothing can any more. */
static inline bool server_run_some(struct server *s)
{
    size_t most = 1 + random_below(&s->random, 12);
    if (!s->fake)
        return weir_cpu_device_run(s->device, most) == most;
    works_at_last(s, s->device->ops->stream_synchronize(s->device, s->hands[0].stream));
    return false;
}

static inline void server_tell(const weir_cache_event *event, struct request *requests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (event->kind != WEIR_EVENT_LOAD_FAILED || event->seq.id != requests[i].seq.id)
            continue;
        requests[i].failed = true;
        requests[i].good_tokens = event->good_tokens;
    }
}

static inline void server_events(struct server *s, struct request *requests, size_t n_requests)
{
    weir_cache_event events[8];
    size_t n;
    works(s, weir_cache_poll(s->cache, ++s->now, events, 8, &n));
    for (size_t i = 0; i < n; i++) {
        server_tell(&events[i], requests, n_requests);
        server_tell(&events[i], s->watched, s->n_watched);
    }
    server_check(s);
}

/* Runs the device and carries reports, until the steps and loads of these
 * requests have ended; what else was accepted may run on. Without requests:
 * until nothing moves any more. */
static inline void server_pump(struct server *s, struct request *requests, size_t n_requests)
{
    for (int quiet = 0; quiet < 2 && !(n_requests && s->n_due_steps == 0); quiet++) {
        if (server_run_some(s))
            quiet = 0;
        for (uint32_t rank = 0; rank < SERVER_RANKS; rank++)
            while (server_report(s, rank))
                quiet = 0;
    }
    server_events(s, requests, n_requests);
}

static inline void server_end_step(struct server *s, weir_step step, server_layer *run_layer,
                                   void *pass)
{
    const void *order;
    size_t bytes;
    works(s, weir_step_end(&step, &order, &bytes));
    server_check(s);
    server_count_order(s, order, bytes);
    for (uint32_t rank = 0; rank < SERVER_RANKS; rank++)
        server_forward(s, &s->hands[rank], order, bytes, run_layer, pass);
}

struct server_pass {
    const struct hand_work *todo;
    size_t n;
};

static inline void server_run_works(struct server *s, struct hand *hand, uint32_t layer, void *arg)
{
    const struct server_pass *pass = arg;
    for (size_t i = 0; i < pass->n; i++)
        server_launch(s, hand, pass->todo[i], layer);
}

static inline void server_step(struct server *s, weir_seq seq, const struct hand_work *todo,
                               size_t n)
{
    weir_step step;
    struct server_pass pass = { todo, n };
    works(s, weir_step_begin(&step, s->cache));
    if (seq.cache) {
        weir_seq_info info;
        works(s, weir_step_add(step, seq));
        works(s, weir_seq_get_info(seq, &info));
        works(s, weir_seq_commit(seq, NULL, info.n_tokens - info.n_committed));
    }
    server_end_step(s, step, server_run_works, &pass);
}

/* Empty steps until nothing is in flight and no write-back waits. */
static inline void server_settle(struct server *s)
{
    for (int i = 0; i < 3; i++) {
        server_step(s, (weir_seq){ 0 }, NULL, 0);
        server_pump(s, NULL, 0);
    }
    cr_assert(zero(int, s->n_due), "%d steps, loads or write-backs never end", s->n_due);
}

/* ---- Requests ------------------------------------------------------------- */

static inline weir_key server_key(struct server *s, const char *letters, const weir_field *field)
{
    size_t n = 0;
    for (; *letters; letters++)
        for (int32_t t = 0; t < SERVER_TOKENS; t++)
            s->tokens[n++] = *letters * 100 + t;
    s->tokens[n++] = -1; /* a forward pass needs an input */
    return (
        weir_key){ .tokens = s->tokens, .n_tokens = n, .fields = field, .n_fields = field != 0 };
}

/* False: there is no room, and it is closed. */
static inline bool server_open_request(struct server *s, struct request *r)
{
    weir_key key = server_key(s, r->letters, NULL);
    works(s, weir_seq_open(&r->seq, s->cache, &key, NULL));
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = key.n_tokens;
    int rc = -EAGAIN;
    for (int i = 0; i < SERVER_TRIES && rc == -EAGAIN; i++) {
        rc = weir_seq_reserve(r->seq, &request, NULL);
        if (rc == -EAGAIN)
            server_settle(s);
    }
    server_check(s);
    if (rc == -ENOSPC)
        works(s, weir_seq_close(&r->seq));
    else
        works(s, rc);
    return rc == 0;
}

/* What the forward pass of the request does with its whole pages. */
static inline size_t server_works(struct server *s, const struct request *r, struct hand_work *todo)
{
    int32_t table[SERVER_DEVICE_PAGES];
    size_t n;
    weir_seq_info info;
    works(s, weir_seq_get_info(r->seq, &info));
    works(s, weir_seq_pages(r->seq, 0, SERVER_TOKENS, table, SERVER_DEVICE_PAGES, &n));
    uint64_t content = 1;
    size_t n_whole = strlen(r->letters);
    for (size_t i = 0; i < n_whole; i++) {
        content = content * 131 + (uint64_t)(unsigned char)r->letters[i];
        todo[i] = (struct hand_work){ table[i], i * SERVER_TOKENS >= info.n_hit, content };
    }
    return n_whole;
}

static inline uint64_t server_seen_wrong(struct server *s)
{
    uint64_t wrong = 0;
    for (uint32_t rank = 0; rank < SERVER_RANKS; rank++) {
        wrong += s->hands[rank].wrong;
        s->hands[rank].wrong = 0;
    }
    return wrong;
}

/* Serves requests that are in flight together, a step each; those that fail, or
 * have no room, are served again, one by one. */
static inline void server_serve(struct server *s, struct request *requests, size_t n)
{
    bool well = true;
    for (size_t i = 0; i < n; i++)
        requests[i].alone = !server_open_request(s, &requests[i]);
    for (size_t i = 0; i < n; i++) {
        struct hand_work todo[SERVER_DEVICE_PAGES];
        if (requests[i].alone)
            continue;
        size_t n_todo = server_works(s, &requests[i], todo);
        server_step(s, requests[i].seq, todo, n_todo);
    }
    server_pump(s, requests, n);
    for (size_t i = 0; i < n; i++) {
        works(s, weir_seq_close(&requests[i].seq));
        well &= !requests[i].failed;
        s->failures += requests[i].failed;
    }
    server_check(s);
    uint64_t wrong = server_seen_wrong(s);
    if (well)
        s->wrong += wrong;
    cr_assert(lt(u32, s->failures, (uint32_t)SERVER_TRIES), "one fault fails everything");
    for (size_t i = 0; i < n; i++) {
        struct request again = { .letters = requests[i].letters };
        cr_assert(n > 1 || !requests[i].alone, "%s has no room", again.letters);
        if (requests[i].failed || requests[i].alone)
            server_serve(s, &again, 1);
    }
}

static inline void server_serve_one(struct server *s, const char *letters)
{
    struct request request = { .letters = letters };
    server_serve(s, &request, 1);
}

static inline void server_serve_two(struct server *s, const char *a, const char *b)
{
    struct request requests[] = { { .letters = a }, { .letters = b } };
    server_serve(s, requests, 2);
}

#endif
