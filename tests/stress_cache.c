/* SPDX-License-Identifier: Apache-2.0 */

/* A server in small under ThreadSanitizer: one thread drives a cache, and one
 * thread a rank drives that rank, each on a CPU device with threads of its own.
 *
 *   scheduler ── works[step % MAX_STEPS], published ──►  rank threads
 *       ▲                                                  │ begin, per layer:
 *       └────────────── inbox of reports ◄─────────────────┘ wait, kernel; end
 *
 * Prompts share prefixes and the pools are small, so that pages are hit while
 * they are computed or loaded, reissued while steps run, and written back all
 * the time. Steps of a rank alternate between two streams. A kernel compares
 * every byte that its step reads and fills what it computes. No race, no wrong
 * byte; in the end all drains and the cache can be destroyed.
 *
 * Usage: stress_cache [seconds, 10 by default] [seed]. Exit: 0 or 1. */

#include "random.h"

#include <weir/weir.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS 2u
#define STREAMS 2u
#define LAYERS 3u
#define TENSORS 2u
#define TOKENS 4u
#define MAX_STEPS 4u
#define DEVICE_PAGES 24u
#define HOST_PAGES 32u
#define REQUESTS 6u
#define LENGTH 10u /* pages of a prompt and its answer, at most */
#define JOBS (REQUESTS * LENGTH)
#define REPORT_ITEMS 4u
#define DOCUMENTS 3u

/* A page that a step reads, or writes. */
struct job {
    int32_t page;
    uint64_t content;
    bool write;
};

struct kernel {
    struct hand *hand;
    const struct work *work;
    uint32_t layer;
};

/* A step, shared by all ranks and left alone until it is retired. */
struct work {
    uint64_t step;
    const void *order; /* the cache's memory */
    size_t bytes;
    uint32_t n_jobs;
    struct job jobs[JOBS];
    struct kernel kernels[RANKS][LAYERS];
};

struct message {
    struct message *next;
    uint32_t rank;
    size_t bytes;
    uint64_t report[(sizeof(weir_report_item) * REPORT_ITEMS + 64) / 8];
};

/* A rank and its thread. */
struct hand {
    struct world *world;
    uint32_t index;
    weir_device *device;
    weir_rank *rank;
    weir_stream *streams[STREAMS];
    uint32_t due; /* items that are to be reported */
    pthread_t thread;
};

struct request {
    weir_seq seq; /* id 0: none */
    char letters[LENGTH];
    uint64_t contents[LENGTH];
    size_t total;     /* pages */
    size_t committed; /* pages */
    size_t reserved;
    bool ready; /* has room to go on */
};

struct world {
    weir_cache *cache;
    struct random random;
    char documents[DOCUMENTS][LENGTH];
    struct request requests[REQUESTS];
    weir_pin pin;
    struct work works[MAX_STEPS];
    struct hand hands[RANKS];
    uint64_t now_ns;
    uint64_t joins, fences, preempted, closed_early, pinned;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t published; /* newest step that the ranks may begin */
    bool over;
    struct message *inbox, **inbox_end;

    atomic_ulong wrong_bytes, read_pages;
    atomic_uint failures;
};

static void fail(struct world *w, const char *what, int rc)
{
    if (rc == 0)
        return;
    fprintf(stderr, "stress_cache: %s: %s\n", what, weir_error_name(rc));
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(&w->failures, 1);
    pthread_cond_broadcast(&w->changed); /* who waits for work waits in vain */
    pthread_mutex_unlock(&w->lock);
}

/* ---- What a page holds --------------------------------------------------- */

static const uint32_t some_layers[] = { 0, 2 };
static const weir_tensor tensors[TENSORS] = {
    { .name = "kv", .row_bytes = 24, .page_bytes = 24 * TOKENS },
    { .name = "scales", .page_bytes = 37, .n_layers = 2, .layers = some_layers },
};
static const weir_shape shape = { TOKENS, LAYERS, TENSORS, tensors };

static unsigned char pattern(uint64_t content, uint32_t tensor, uint32_t layer, uint64_t i)
{
    return (unsigned char)((content >> i % 8 * 8) + i * 31 + layer * 17 + tensor * 5);
}

/* Bytes of the piece that differ from the content, or 0 after writing it. */
static uint64_t touch_piece(const struct kernel *k, uint32_t tensor, const struct job *job)
{
    weir_device_page page = { job->page };
    unsigned char *piece =
        (unsigned char *)(uintptr_t)weir_rank_device_address(k->hand->rank, tensor, k->layer, page);
    uint64_t wrong = 0;
    for (uint64_t i = 0; piece && i < tensors[tensor].page_bytes; i++) {
        unsigned char value = pattern(job->content, tensor, k->layer, i);
        if (job->write)
            piece[i] = value;
        else
            wrong += piece[i] != value;
    }
    return wrong;
}

static void forward(void *arg)
{
    const struct kernel *k = arg;
    uint64_t wrong = 0, read = 0;
    for (uint32_t j = 0; j < k->work->n_jobs; j++) {
        for (uint32_t t = 0; t < TENSORS; t++)
            wrong += touch_piece(k, t, &k->work->jobs[j]);
        read += !k->work->jobs[j].write;
    }
    atomic_fetch_add(&k->hand->world->wrong_bytes, wrong);
    atomic_fetch_add(&k->hand->world->read_pages, read);
}

/* ---- Ranks --------------------------------------------------------------- */

static int launch(struct hand *hand, struct work *work, uint32_t layer, weir_stream *stream)
{
    weir_cpu_access accesses[JOBS * TENSORS];
    size_t n = 0;
    for (uint32_t j = 0; j < work->n_jobs; j++)
        for (uint32_t t = 0; t < TENSORS; t++) {
            weir_device_page page = { work->jobs[j].page };
            if (weir_rank_device_address(hand->rank, t, layer, page))
                accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(hand->rank),
                                                   .page = page.id,
                                                   .tensor = (uint16_t)t,
                                                   .layer = (uint16_t)layer,
                                                   .write = work->jobs[j].write };
        }
    struct kernel *k = &work->kernels[hand->index][layer];
    *k = (struct kernel){ hand, work, layer };
    return weir_cpu_launch(hand->device, stream, forward, k, accesses, n);
}

/* Puts what the rank has to report into the scheduler's inbox. */
static void send_reports(struct hand *hand)
{
    struct world *w = hand->world;
    for (;;) {
        struct message *message = calloc(1, sizeof *message);
        if (!message)
            exit(1);
        message->rank = hand->index;
        int rc = weir_rank_report(hand->rank, message->report, weir_report_bytes(REPORT_ITEMS),
                                  &message->bytes);
        fail(w, "report", rc);
        if (rc || message->bytes == 0) {
            free(message);
            return;
        }
        const weir_report_item *items;
        size_t n = 0;
        fail(w, "decode", weir_report_decode(&items, &n, message->report, message->bytes, NULL));
        hand->due -= (uint32_t)n;
        pthread_mutex_lock(&w->lock);
        *w->inbox_end = message;
        w->inbox_end = &message->next;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
    }
}

static void run_step(struct hand *hand, struct work *work)
{
    struct world *w = hand->world;
    weir_stream *stream = hand->streams[work->step / 2 % STREAMS];
    weir_order order;
    fail(w, "order", weir_order_decode(&order, work->order, work->bytes, NULL));
    hand->due += 1 + (order.n_loads > 0) + (order.n_writes > 0);
    uint64_t step = 0;
    int rc;
    while ((rc = weir_rank_begin(hand->rank, work->order, work->bytes,
                                 (uint32_t)(work->step % MAX_STEPS), stream, &step)) == -EAGAIN ||
           rc == -EBUSY) {
        send_reports(hand);
        sched_yield();
    }
    fail(w, "begin", rc);
    for (uint32_t layer = 0; layer < LAYERS && !rc; layer++) {
        rc = weir_rank_wait_layer(hand->rank, step, layer, stream);
        fail(w, "wait_layer", rc);
        if (!rc)
            rc = launch(hand, work, layer, stream);
        fail(w, "launch", rc);
    }
    fail(w, "end", weir_rank_end(hand->rank, step, stream));
}

static void *work_loop(void *arg)
{
    struct hand *hand = arg;
    struct world *w = hand->world;
    for (uint64_t next = 1;;) {
        pthread_mutex_lock(&w->lock);
        while (!w->over && w->published < next && hand->due == 0)
            pthread_cond_wait(&w->changed, &w->lock);
        bool over = w->over, any = w->published >= next;
        pthread_mutex_unlock(&w->lock);
        if (any && !atomic_load(&w->failures))
            run_step(hand, &w->works[next++ % MAX_STEPS]);
        else if (over)
            return NULL;
        send_reports(hand);
        if (!any)
            sched_yield();
    }
}

/* ---- The scheduler: reports ---------------------------------------------- */

/* Takes the inbox; waits for something to be in it if `wait`. */
static void take_reports(struct world *w, bool wait)
{
    pthread_mutex_lock(&w->lock);
    while (wait && !w->inbox && !atomic_load(&w->failures))
        pthread_cond_wait(&w->changed, &w->lock);
    struct message *message = w->inbox;
    w->inbox = NULL;
    w->inbox_end = &w->inbox;
    pthread_mutex_unlock(&w->lock);
    while (message) {
        struct message *next = message->next;
        fail(w, "cache_report",
             weir_cache_report(w->cache, message->rank, message->report, message->bytes));
        free(message);
        message = next;
    }
    weir_cache_event events[8];
    size_t n;
    fail(w, "poll", weir_cache_poll(w->cache, w->now_ns++, events, 8, &n));
    for (size_t i = 0; i < n; i++)
        fail(w, "event", events[i].kind == WEIR_EVENT_LOAD_FAILED ? events[i].rc : 0);
}

static bool in_flight(struct world *w)
{
    weir_stats stats = { .struct_size = sizeof stats };
    fail(w, "stats", weir_cache_get_stats(w->cache, &stats));
    return stats.orders_in_flight + stats.write_backs_in_flight > 0;
}

/* ---- The scheduler: requests --------------------------------------------- */

static const int32_t *tokens_of(const struct request *r, size_t from, int32_t *tokens)
{
    for (size_t page = from; page < r->total; page++)
        for (uint32_t i = 0; i < TOKENS; i++)
            tokens[(page - from) * TOKENS + i] = r->letters[page] * 100 + (int32_t)i;
    return tokens;
}

static void start(struct world *w, struct request *r)
{
    *r = (struct request){ .total = 2 + random_below(&w->random, LENGTH - 1) };
    const char *document = w->documents[random_below(&w->random, DOCUMENTS)];
    size_t shared = random_below(&w->random, LENGTH + 1);
    uint64_t content = 1;
    for (size_t i = 0; i < LENGTH; i++) {
        r->letters[i] = i < shared ? document[i] : (char)(1 + random_below(&w->random, 2));
        content = content * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)r->letters[i];
        r->contents[i] = content;
    }
    int32_t tokens[LENGTH * TOKENS];
    weir_key key = { .tokens = tokens_of(r, 0, tokens), .n_tokens = r->total * TOKENS };
    if (random_percent(&w->random, 50))
        key.n_tokens = TOKENS * (1 + random_below(&w->random, (uint32_t)r->total));
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.priority = random_below(&w->random, 3);
    params.ttl_ns = random_below(&w->random, 50); /* polls; 0: for ever */
    fail(w, "open", weir_seq_open(&r->seq, w->cache, &key, &params));
}

static void stop(struct world *w, struct request *r)
{
    fail(w, "close", weir_seq_close(&r->seq));
    *r = (struct request){ 0 };
}

/* Pins what the index holds of a request, or lets go of it again. */
static void pin(struct world *w)
{
    const struct request *r = &w->requests[random_below(&w->random, REQUESTS)];
    int rc = weir_cache_unpin(&w->pin);
    if (!rc && r->seq.id) {
        int32_t tokens[LENGTH * TOKENS];
        weir_key key = { .tokens = tokens_of(r, 0, tokens), .n_tokens = r->total * TOKENS };
        rc = weir_cache_pin(&w->pin, w->cache, &key, NULL);
        w->pinned += rc == 0;
        rc = rc == -ENOENT || rc == -ENOSPC || rc == -EAGAIN ? 0 : rc;
    }
    fail(w, "pin", rc);
}

/* Sees to it that the request has room for some more pages, or waits, or is
 * given up. */
static void make_ready(struct world *w, struct request *r)
{
    r->ready = r->reserved > r->committed;
    if (r->ready)
        return;
    weir_request request;
    weir_request_init(&request);
    size_t want = r->committed + 1 + random_below(&w->random, 4);
    request.total_tokens = (want < r->total ? want : r->total) * TOKENS;
    request.expect_tokens = r->total * TOKENS;
    weir_reserved reserved;
    int rc = weir_seq_reserve(r->seq, &request, &reserved);
    if (rc == -ENOSPC) {
        w->preempted++;
        stop(w, r);
        return;
    }
    if (rc == -EAGAIN)
        return;
    fail(w, "reserve", rc);
    if (rc)
        return;
    weir_seq_info info;
    fail(w, "info", weir_seq_get_info(r->seq, &info));
    r->committed = info.n_committed / TOKENS;
    r->reserved = info.n_reserved / TOKENS;
    r->ready = r->reserved > r->committed;
}

static void tend(struct world *w, struct request *r)
{
    if (r->seq.id == 0) {
        if (random_percent(&w->random, 60))
            start(w, r);
    } else if (r->committed == r->total) {
        stop(w, r);
    } else if (random_percent(&w->random, 2)) {
        w->closed_early++; /* with whatever of it is in flight */
        stop(w, r);
    }
    if (r->seq.id)
        make_ready(w, r);
}

/* ---- The scheduler: steps ------------------------------------------------ */

/* Reads what the sequence has, computes some pages more, commits some of them:
 * the others are computed again. */
static void add(struct world *w, weir_step step, struct request *r, struct work *work)
{
    int rc = weir_step_add(step, r->seq);
    fail(w, "add", rc);
    int32_t table[LENGTH];
    size_t n = 0;
    if (!rc)
        rc = weir_seq_pages(r->seq, 0, TOKENS, table, LENGTH, &n);
    fail(w, "pages", rc);
    if (rc)
        return;
    size_t end = r->committed + 1 + random_below(&w->random, (uint32_t)(n - r->committed));
    for (size_t i = 0; i < end; i++)
        work->jobs[work->n_jobs++] = (struct job){ table[i], r->contents[i], i >= r->committed };
    size_t accepted = random_below(&w->random, (uint32_t)(end - r->committed + 1));
    int32_t tokens[LENGTH * TOKENS];
    fail(w, "commit",
         weir_seq_commit(r->seq, tokens_of(r, r->committed, tokens), accepted * TOKENS));
    r->committed += accepted;
    if (random_percent(&w->random, 3))
        stop(w, r); /* in the open step */
}

/* One step with some of the ready requests; false: max_steps are in flight. */
static bool run(struct world *w, uint32_t percent)
{
    weir_step step;
    int rc = weir_step_begin(&step, w->cache);
    if (rc == -EAGAIN)
        return false;
    fail(w, "step_begin", rc);
    if (rc)
        return true;
    struct work *work = &w->works[step.id % MAX_STEPS];
    work->step = step.id;
    work->n_jobs = 0;
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (w->requests[i].ready && random_percent(&w->random, percent)) {
            w->requests[i].ready = false;
            add(w, step, &w->requests[i], work);
        }
    rc = weir_step_end(&step, &work->order, &work->bytes);
    fail(w, "step_end", rc);
    weir_order order;
    if (rc || weir_order_decode(&order, work->order, work->bytes, NULL))
        return true;
    w->joins += order.n_joins;
    w->fences += order.n_fences + order.n_load_fences;
    pthread_mutex_lock(&w->lock);
    w->published = work->step;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return true;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void serve(struct world *w, double seconds)
{
    double end = seconds_now() + seconds;
    bool full = false;
    for (uint32_t i = 0; !atomic_load(&w->failures); i++) {
        take_reports(w, full);
        if (i % 16 == 0 && seconds_now() > end)
            break;
        for (uint32_t k = 0; k < REQUESTS; k++)
            tend(w, &w->requests[k]);
        if (i % 8 == 0)
            pin(w);
        full = !run(w, 70);
        if (i % 512 == 511)
            fail(w, "forget", weir_cache_forget_all(w->cache));
        const char *reason = "";
        if (i % 64 == 0 && weir_cache_check(w->cache, &reason)) {
            fprintf(stderr, "stress_cache: %s\n", reason);
            fail(w, "check", -EIO);
        }
    }
}

/* Everything is closed and reported. */
static void drain(struct world *w)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (w->requests[i].seq.id)
            stop(w, &w->requests[i]);
    fail(w, "unpin", weir_cache_unpin(&w->pin));
    while (in_flight(w) && !atomic_load(&w->failures))
        take_reports(w, true);
}

/* ---- A world ------------------------------------------------------------- */

static int open_hand(struct hand *hand)
{
    weir_cpu_device_params device_params;
    weir_cpu_device_params_init(&device_params);
    device_params.n_queues = 3 + hand->index;
    device_params.queue_depth = 16;
    device_params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_cpu_device_open(&hand->device, &device_params);
    if (rc)
        return rc;
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = DEVICE_PAGES;
    params.host_pages = HOST_PAGES;
    params.host_layout = hand->index ? WEIR_HOST_SEGMENTED : WEIR_HOST_LAYER_FIRST;
    params.segment_pages = hand->index ? 5 : 0;
    params.max_steps = MAX_STEPS;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    rc = weir_rank_open(&hand->rank, hand->device, &params);
    for (uint32_t i = 0; i < STREAMS && !rc; i++)
        rc = weir_cpu_stream_create(hand->device, &hand->streams[i]);
    return rc;
}

static void close_hand(struct world *w, struct hand *hand)
{
    for (uint32_t i = 0; i < STREAMS; i++)
        weir_cpu_stream_destroy(hand->device, &hand->streams[i]);
    weir_rank_close(&hand->rank);
    if (weir_cpu_device_races(hand->device) > 0)
        fail(w, "races", -EIO);
    fail(w, "device_close", weir_device_close(&hand->device));
}

/* Whether what the world is for has happened at all. */
static void expect_life(struct world *w, bool writes)
{
    weir_stats s = { .struct_size = sizeof s };
    fail(w, "stats", weir_cache_get_stats(w->cache, &s));
    printf("%llu steps, %llu requests, hits %llu + %llu + %llu, computed %llu, twice %llu, loaded "
           "%llu, written %llu, evicted %llu + %llu, joins %llu, fences %llu, waits %llu, "
           "preempted %llu, closed early %llu, pages read %lu\n",
           (unsigned long long)s.steps, (unsigned long long)s.requests,
           (unsigned long long)s.hit_pages_device, (unsigned long long)s.hit_pages_host,
           (unsigned long long)s.hit_pages_loading, (unsigned long long)s.committed_pages,
           (unsigned long long)s.duplicate_pages, (unsigned long long)s.loaded_pages,
           (unsigned long long)s.written_pages, (unsigned long long)s.evicted_device_pages,
           (unsigned long long)s.evicted_host_pages, (unsigned long long)w->joins,
           (unsigned long long)w->fences, (unsigned long long)s.reserve_again,
           (unsigned long long)w->preempted, (unsigned long long)w->closed_early,
           atomic_load(&w->read_pages));
    if (s.hit_pages_device == 0 || s.evicted_device_pages == 0 || w->fences == 0)
        fail(w, "nothing was hit, evicted or fenced", -EIO);
    if (s.demoted_pages == 0 || w->pinned == 0)
        fail(w, "nothing was demoted or pinned", -EIO);
    if (writes && (s.loaded_pages == 0 || s.written_pages == 0))
        fail(w, "nothing was loaded or written", -EIO);
    if (s.load_failed_pages + s.write_failed_pages > 0)
        fail(w, "a transfer failed", -EIO);
}

static int run_world(uint64_t seed, const char *eviction, const char *write_back, double seconds)
{
    static struct world world;
    struct world *w = &world;
    *w = (struct world){ .random = { seed } };
    w->inbox_end = &w->inbox;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    for (uint32_t d = 0; d < DOCUMENTS; d++)
        for (uint32_t i = 0; i < LENGTH; i++)
            w->documents[d][i] = (char)(3 + d);

    weir_cache_params params;
    weir_cache_params_init(&params);
    params.page_tokens = TOKENS;
    params.device_pages = DEVICE_PAGES;
    params.host_pages = HOST_PAGES;
    params.n_ranks = RANKS;
    params.max_steps = MAX_STEPS;
    params.offered = 0.1;
    params.eviction = eviction;
    params.priorities = 2;
    params.write_back = write_back;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    int rc = weir_cache_create(&w->cache, &params);
    for (uint32_t i = 0; i < RANKS && !rc; i++) {
        w->hands[i] = (struct hand){ .world = w, .index = i };
        rc = open_hand(&w->hands[i]);
    }
    for (uint32_t i = 0; i < RANKS && !rc; i++)
        rc = -pthread_create(&w->hands[i].thread, NULL, work_loop, &w->hands[i]);
    if (rc) {
        fprintf(stderr, "stress_cache: setting up: %s\n", weir_error_name(rc));
        exit(1);
    }
    serve(w, seconds);
    drain(w);
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(w->hands[i].thread, NULL);
    printf("%s, %s: ", eviction, write_back);
    expect_life(w, strcmp(write_back, "never") != 0);
    fail(w, "wrong bytes", atomic_load(&w->wrong_bytes) ? -EIO : 0);
    for (uint32_t i = 0; i < RANKS; i++)
        close_hand(w, &w->hands[i]);
    fail(w, "destroy", weir_cache_destroy(&w->cache));
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    return atomic_load(&w->failures) > 0;
}

int main(int argc, char **argv)
{
    static const char *const policies[][2] = {
        { "lru", "write_through" },   { "slru", "write_through_selective(2)" },
        { "lfu", "write_back" },      { "fifo", "never" },
        { "mru", "adaptive" },        { "filo", "write_through" },
        { "priority", "write_back" }, { "cost", "write_through" }
    };
    const size_t n = sizeof policies / sizeof *policies;
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 10;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (size_t i = 0; i < n; i++)
        if (run_world(seed + i, policies[i][0], policies[i][1], seconds / (double)n))
            return 1;
    return 0;
}
