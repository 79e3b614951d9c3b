/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_model.h"
#include "export_check.h"
#include "random.h"

#include <weir/lifecycle.h>
#include <weir/pin.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Random calls to a cache, each checked against the model, and each made to a
 * second cache too, which must then be in the same state.
 *
 *   WEIR_RANDOM_STEPS  operations over all configurations, 100000 by default
 *   WEIR_RANDOM_SEED   another number, another sequence of calls; 0 by default
 *   WEIR_RANDOM_CONFIG run only this configuration
 *   WEIR_RANDOM_TRACE  if set, one line a call on standard error
 *
 * A failure names its configuration and seed. */

static const char *const evictions[] = { "lru", "slru", "lfu",      "fifo",
                                         "mru", "filo", "priority", "cost" };
static const char *const write_backs[] = { "write_through", "write_through_selective(2)",
                                           "write_back", "never", "adaptive" };
#define N_EVICTIONS (sizeof evictions / sizeof *evictions)
#define N_WRITE_BACKS (sizeof write_backs / sizeof *write_backs)
#define N_CONFIGS ((uint32_t)(N_EVICTIONS * N_WRITE_BACKS))
#define N_PINS 4u
#define N_DOCUMENTS 3u

/* A prompt is one letter a page; every token tells its page's letter. Letters from
 * IMAGE on are images, which all have the same tokens: a span tells which. Only pages
 * that are whole in the key are such. */
#define IMAGE 4

struct prompt {
    uint32_t name_space;
    uint64_t epoch; /* of the namespace: how often it was forgotten */
    size_t n_key;
    char letters[MODEL_PAGES];
};

struct user {
    weir_seq handles[2];
    struct prompt prompt;
    uint32_t compute_at_least;
    weir_request request; /* the last one */
    bool no_deadline;     /* the model cannot tell when its loads are there */
    uint64_t epoch_after; /* of the prompt, when it has been cut after a lost rank; 0: none */
};

struct pinned {
    weir_pin handles[2]; /* {0, 0}: none */
    struct prompt prompt;
    size_t n_tokens; /* kept when it was last looked at */
};

/* What reserves should have counted. */
struct counted {
    uint64_t requests, again, nospace;
    uint64_t device, host, loading, new; /* pages */
};

struct world {
    struct model m;
    struct random random;
    weir_cache *caches[2];
    weir_step steps[2];
    bool step_open;
    bool events_left; /* by the last poll, for want of room */
    bool draining;
    uint64_t epochs[2]; /* of the namespaces */
    uint64_t now_ns;
    uint32_t load_failures; /* percent */
    uint32_t max_steps;
    uint32_t n_priorities;
    bool trace;
    char name[160];
    char documents[N_DOCUMENTS][MODEL_PAGES];
    struct user users[MODEL_SEQS]; /* beside m.seqs */
    struct pinned pins[N_PINS];
    uint32_t max_pinned[2]; /* device, host */
    uint64_t load_runs, load_run_squares, write_runs, write_run_squares;
    struct counted counted;
    weir_span spans[MODEL_PAGES]; /* of the last key */
    int32_t tokens[MODEL_PAGES * 16 + 16];
};

static const weir_field fields[] = { { .tag = 1, .bytes = 1, .data = "a" } };

#define must(w, condition, ...) model_must(&(w)->m, condition, __VA_ARGS__)

static void trace(const struct world *w, const char *what, uint32_t slot, int rc)
{
    if (w->trace)
        fprintf(stderr, "%llu: %s %u: %d\n", (unsigned long long)w->m.operation, what, slot, rc);
}

static void trace_table(const struct world *w, uint32_t slot)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    if (!w->trace)
        return;
    fprintf(stderr, "    %zu tokens hit, pages", seq->n_committed);
    for (uint32_t i = 0; i < seq->n_pages; i++)
        fprintf(stderr, " %d", seq->table[i]);
    fprintf(stderr, "\n");
}

static void trace_steps(const char *what, const uint64_t *steps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "%s %llu", i ? "" : what, (unsigned long long)steps[i]);
}

static void trace_moves(const char *what, const weir_move *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "%s %d/%d", i ? "" : what, moves[i].device.id, moves[i].host.id);
}

static void trace_order(const struct world *w, const void *bytes, size_t n)
{
    weir_order o;
    if (!w->trace || weir_order_decode(&o, bytes, n, NULL) != 0)
        return;
    fprintf(stderr, "    step %llu, write-back %llu", (unsigned long long)o.step,
            (unsigned long long)o.write_ticket);
    trace_steps(", behind", o.fences, o.n_fences);
    trace_steps(", joins", o.joins, o.n_joins);
    trace_moves(", loads (device/host)", o.loads, o.n_loads);
    trace_steps(" behind", o.load_fences, o.n_load_fences);
    trace_moves(", writes", o.writes, o.n_writes);
    trace_steps(" behind", o.write_fences, o.n_write_fences);
    for (uint32_t i = 0; i < o.n_cancels; i++)
        fprintf(stderr, ", cancels %s %llu",
                o.cancels[i].kind == WEIR_REPORT_LOAD ? "load" : "write-back",
                (unsigned long long)o.cancels[i].number);
    for (uint32_t i = 0; i < o.n_copies; i++)
        fprintf(stderr, ", copies %d to %d behind load %llu", o.copies[i].from.id,
                o.copies[i].to.id, (unsigned long long)o.copies[i].load);
    fprintf(stderr, "\n");
}

/* ---- Setting up ---------------------------------------------------------- */

static uint64_t environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void world_open(struct world *w, uint32_t config)
{
    static const uint32_t page_tokens[] = { 1, 3, 16, 4 };
    static const double offered[] = { 0, 0.05, 0.3 };
    memset(w, 0, sizeof *w);
    w->m.seed = environment("WEIR_RANDOM_SEED", 0);
    w->random.state = w->m.seed * 1000003 + config;
    w->trace = getenv("WEIR_RANDOM_TRACE") != NULL;

    weir_cache_params params;
    weir_cache_params_init(&params);
    params.eviction = evictions[config % N_EVICTIONS];
    params.write_back = write_backs[config / N_EVICTIONS];
    params.page_tokens = page_tokens[(config + config / 4) % 4];
    params.offered = offered[(config + config / 16) % 3];
    params.n_ranks = 1 + config % 3;
    params.device_pages = 8 + random_below(&w->random, config % 4 ? 24 : MODEL_PAGES - 7);
    params.host_pages = config % 7 == 6 ? 0 : 8 + random_below(&w->random, MODEL_PAGES - 7);
    params.max_steps = 1 + random_below(&w->random, 6);
    params.max_write_backs = 1 + random_below(&w->random, 6);
    params.max_seqs = MODEL_SEQS;
    params.page_bytes = 1000;
    params.priorities = config % 4;
    params.max_pins = N_PINS - 1;
    params.max_pinned = 0.4;
    params.host_drops_duplicates = config % 3 == 1;
    w->max_pinned[0] = (uint32_t)(params.max_pinned * params.device_pages);
    w->max_pinned[1] = (uint32_t)(params.max_pinned * params.host_pages);
    w->n_priorities = params.priorities;
    w->load_failures = config % 2 ? 0 : 10;
    w->max_steps = params.max_steps;
    snprintf(w->name, sizeof w->name,
             "config %u (%s, %s, pages of %u, %u + %u, offered %.2f, %u ranks)", config,
             params.eviction, params.write_back, params.page_tokens, params.device_pages,
             params.host_pages, params.offered, params.n_ranks);
    w->m.name = w->name;
    w->m.page_tokens = params.page_tokens;
    w->m.device_pages = params.device_pages;
    w->m.host_pages = params.host_pages;
    w->m.n_ranks = params.n_ranks;
    model_create(&w->m);
    for (int i = 0; i < 2; i++)
        must(w, weir_cache_create(&w->caches[i], &params) == 0, "create");
    for (uint32_t d = 0; d < N_DOCUMENTS; d++)
        for (uint32_t i = 0; i < MODEL_PAGES; i++)
            w->documents[d][i] = (char)(1 + random_below(&w->random, 3));
}

static void expect_sound(struct world *w)
{
    const char *reason = "";
    must(w, weir_cache_check(w->caches[0], &reason) == 0, "%s", reason);
    must(w, weir_cache_digest(w->caches[0]) == weir_cache_digest(w->caches[1]),
         "two caches with the same calls differ");
}

/* The same call to both caches, `i` being the cache; yields what they return. */
#define both(w, call)                                                                 \
    __extension__({                                                                   \
        int rcs_[2];                                                                  \
        for (int i = 0; i < 2; i++)                                                   \
            rcs_[i] = (call);                                                         \
        must((w), rcs_[0] == rcs_[1], "%d and %d from two caches", rcs_[0], rcs_[1]); \
        rcs_[0];                                                                      \
    })

/* ---- Prompts ------------------------------------------------------------- */

static struct prompt random_prompt(struct world *w)
{
    struct prompt p = { .name_space = random_percent(&w->random, 15) };
    p.epoch = w->epochs[p.name_space];
    const char *document = w->documents[random_below(&w->random, N_DOCUMENTS)];
    uint32_t shared = random_below(&w->random, w->m.device_pages);
    for (uint32_t i = 0; i < MODEL_PAGES; i++)
        p.letters[i] = i < shared ? document[i] : (char)(1 + random_below(&w->random, 3));
    uint32_t longest = w->m.device_pages * w->m.page_tokens;
    if (random_percent(&w->random, 80))
        longest = longest / 2;
    p.n_key = 1 + random_below(&w->random, longest);
    for (uint32_t i = 0; i < p.n_key / w->m.page_tokens; i++)
        if (random_percent(&w->random, 5))
            p.letters[i] = (char)(IMAGE + random_below(&w->random, 2));
    return p;
}

static void chains_of(const struct prompt *p, uint64_t *chains)
{
    uint64_t chain = model_chain(p->name_space, p->epoch);
    for (uint32_t i = 0; i < MODEL_PAGES; i++)
        chains[i] = chain = model_chain(chain, (uint64_t)p->letters[i]);
}

/* Tokens from..from+n-1 of a prompt, valid until the next call. */
static const int32_t *tokens_of(struct world *w, const struct prompt *p, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char letter = p->letters[(from + i) / w->m.page_tokens];
        w->tokens[i] =
            (letter < IMAGE ? letter : IMAGE) * 100 + (int32_t)((from + i) % w->m.page_tokens);
    }
    return w->tokens;
}

static weir_key key_of(struct world *w, const struct prompt *p, size_t n)
{
    size_t n_spans = 0;
    for (size_t i = 0; i < n / w->m.page_tokens; i++)
        if (p->letters[i] >= IMAGE)
            w->spans[n_spans++] = (weir_span){ .first = i * w->m.page_tokens,
                                               .n_tokens = w->m.page_tokens,
                                               .digest_bytes = WEIR_MIN_DIGEST_BYTES,
                                               .digest = { (unsigned char)p->letters[i] } };
    return (weir_key){ .tokens = tokens_of(w, p, 0, n),
                       .n_tokens = n,
                       .fields = fields,
                       .n_fields = p->name_space,
                       .spans = w->spans,
                       .n_spans = n_spans };
}

static weir_hit peek(struct world *w, const struct prompt *p, size_t n)
{
    weir_key key = key_of(w, p, n);
    weir_hit hits[2];
    must(w, both(w, weir_cache_peek(w->caches[i], &key, &hits[i])) == 0, "peek");
    must(w, memcmp(&hits[0], &hits[1], sizeof hits[0]) == 0, "peeks differ");
    uint64_t chains[MODEL_PAGES];
    struct prompt now = *p;
    now.epoch = w->epochs[p->name_space];
    chains_of(&now, chains);
    bool load = hits[0].load_ns <= hits[0].compute_ns || !hits[0].compute_ns;
    must(w, (hits[0].n_worth == hits[0].n_tokens) == load && hits[0].n_worth <= hits[0].n_tokens,
         "%zu of %zu tokens are worth loading", hits[0].n_worth, hits[0].n_tokens);
    must(w, hits[0].n_host || !(hits[0].load_ns | hits[0].compute_ns), "a load of nothing");
    must(w, hits[0].n_tokens <= n, "%zu of %zu tokens hit", hits[0].n_tokens, n);
    model_peek(&w->m, chains, &hits[0]);
    return hits[0];
}

static bool is_doomed(const struct world *w, uint32_t slot)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    return seq->late || model_good_pages(&w->m, seq, false) < model_pages(seq);
}

static bool is_forgotten(const struct world *w, uint32_t slot)
{
    const struct prompt *p = &w->users[slot].prompt;
    return p->epoch != w->epochs[p->name_space];
}

/* ---- Operations on sequences --------------------------------------------- */

/* A random open sequence; MODEL_SEQS if there is none. */
static uint32_t pick(struct world *w)
{
    uint32_t first = random_below(&w->random, MODEL_SEQS);
    for (uint32_t k = 0; k < MODEL_SEQS; k++) {
        uint32_t slot = (first + k) % MODEL_SEQS;
        if (w->m.seqs[slot].open && !w->m.seqs[slot].closing)
            return slot;
    }
    return MODEL_SEQS;
}

static void do_open(struct world *w)
{
    uint32_t slot = 0;
    while (slot < MODEL_SEQS && w->m.seqs[slot].open)
        slot++;
    struct user user = { .prompt = random_prompt(w) };
    user.compute_at_least = random_percent(&w->random, 80) ? 1 : random_below(&w->random, 20);
    weir_seq_params params;
    weir_seq_params_init(&params);
    params.compute_at_least = user.compute_at_least;
    params.priority = random_below(&w->random, w->n_priorities + 1);
    params.ttl_ns = random_percent(&w->random, 80) ? random_below(&w->random, 20000) : 0;
    params.user = slot < MODEL_SEQS ? &w->users[slot] : NULL;
    weir_key key = key_of(w, &user.prompt, user.prompt.n_key);
    int rc = both(w, weir_seq_open(&user.handles[i], w->caches[i], &key, &params));
    trace(w, "open", slot, rc);
    must(w, rc == (slot < MODEL_SEQS ? 0 : -ENOSPC), "open: %d", rc);
    if (rc)
        return;
    must(w, user.handles[0].id == user.handles[1].id, "ids differ");
    weir_request_init(&user.request);
    w->users[slot] = user;
    w->m.seqs[slot] = (struct model_seq){ .open = true };
    chains_of(&user.prompt, w->m.seqs[slot].chains);
}

static void do_close(struct world *w, uint32_t slot)
{
    weir_seq old = w->users[slot].handles[0];
    int rc = both(w, weir_seq_close(&w->users[slot].handles[i]));
    trace(w, "close", slot, rc);
    must(w, rc == 0, "close: %d", rc);
    must(w, !w->users[slot].handles[0].cache && !w->users[slot].handles[0].id, "handle not reset");
    must(w, weir_seq_close(&old) == -ESTALE, "a sequence is closed twice");
    model_close(&w->m.seqs[slot]);
}

/* Reads the block table, in units of kernel pages. */
static size_t table_of(struct world *w, uint32_t slot, int32_t *table)
{
    uint32_t unit = w->m.page_tokens;
    uint32_t ratio = unit % 4 == 0 && random_percent(&w->random, 30) ? 4 : 1;
    int32_t entries[2][4 * MODEL_PAGES];
    size_t n[2];
    int rc = both(w, weir_seq_pages(w->users[slot].handles[i], 0, unit / ratio, entries[i],
                                    4 * MODEL_PAGES, &n[i]));
    must(w, rc == 0 && n[0] == n[1] && n[0] % ratio == 0, "pages: %d", rc);
    must(w, memcmp(entries[0], entries[1], n[0] * sizeof **entries) == 0, "tables differ");
    for (size_t k = 0; k < n[0]; k++) {
        if (k % ratio == 0)
            table[k / ratio] = entries[0][k] / (int32_t)ratio;
        must(w, entries[0][k] == table[k / ratio] * (int32_t)ratio + (int32_t)(k % ratio),
             "kernel page %zu", k);
    }
    return n[0] / ratio;
}

static bool others_wait(const struct world *w, uint32_t slot)
{
    for (uint32_t k = 0; k < MODEL_SEQS; k++)
        if (k != slot && w->m.seqs[k].open && w->m.seqs[k].waiting)
            return true;
    return false;
}

/* Leading tokens that a first reserve with the present request is to use. */
static size_t expected_hit(struct world *w, uint32_t slot)
{
    const struct user *user = &w->users[slot];
    if (is_forgotten(w, slot))
        return 0;
    size_t n = user->prompt.n_key;
    n = n > user->compute_at_least ? n - user->compute_at_least : 0;
    n = n < user->request.use_hit ? n : user->request.use_hit;
    if (n == 0)
        return 0;
    weir_hit hit = peek(w, &user->prompt, n);
    return user->request.use_hit == WEIR_USE_HIT_IF_CHEAPER ? hit.n_worth : hit.n_tokens;
}

/* What a reserve with the present request is to bring about, at least. */
static size_t wanted_pages(const struct world *w, uint32_t slot)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    size_t total = w->users[slot].request.total_tokens;
    size_t committed = seq->n_committed + seq->n_pending;
    total = total > committed ? total : committed;
    return (total + w->m.page_tokens - 1) / w->m.page_tokens;
}

static void check_reserved(struct world *w, uint32_t slot, const weir_reserved *r, size_t hit)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    must(w, r->hit.n_tokens == hit, "hit of %zu tokens, not %zu", r->hit.n_tokens, hit);
    must(w, r->hit.n_device + r->hit.n_host + r->hit.n_loading == hit, "the parts of a hit");
    if (w->users[slot].request.use_hit == WEIR_USE_HIT_IF_CHEAPER && hit)
        must(w,
             r->hit.n_worth == hit &&
                 (!r->hit.n_host || !r->hit.compute_ns || r->hit.load_ns <= r->hit.compute_ns),
             "what does not pay is loaded");
    int32_t table[MODEL_PAGES];
    size_t n = table_of(w, slot, table);
    size_t wanted = wanted_pages(w, slot);
    size_t had = seq->n_pages + hit / w->m.page_tokens;
    must(w, n == (wanted > had ? wanted : had), "%zu pages reserved", n);
    struct counted *c = &w->counted;
    c->requests += !seq->reserved;
    c->device += r->hit.n_device / w->m.page_tokens;
    c->host += r->hit.n_host / w->m.page_tokens;
    c->loading += r->hit.n_loading / w->m.page_tokens;
    c->new += n - had;
    model_reserve(&w->m, &w->m.seqs[slot], hit, table, n);
    /* A load may bring back what the page holds still from before, by chance. */
    struct user *user = &w->users[slot];
    size_t n_loads = (r->hit.n_host + r->hit.n_loading) / w->m.page_tokens;
    user->no_deadline |= hit && n_loads != model_missing(&w->m, seq);
    if (user->no_deadline && user->request.deadline_ns) {
        user->request.deadline_ns = 0;
        must(w, both(w, weir_seq_reserve(user->handles[i], &user->request, NULL)) == 0, "again");
    }
    w->m.seqs[slot].deadline_ns = user->request.deadline_ns;
    trace_table(w, slot);
}

/* -EAGAIN and -ENOSPC must be true. */
static void check_refusal(struct world *w, uint32_t slot, int rc, size_t n_pages)
{
    weir_available available;
    must(w, weir_cache_available(w->caches[0], &available) == 0, "available");
    if (rc == -EAGAIN) {
        must(w, model_in_flight(&w->m) || available.pending || others_wait(w, slot),
             "-EAGAIN, and nothing is in flight");
        return;
    }
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    uint64_t could = w->m.seqs[slot].n_pages + model_not_held(&w->m);
    must(w, others_wait(w, slot) || n_pages + stats.pinned_device_pages > could,
         "-ENOSPC, and %u pages could be had", model_not_held(&w->m));
}

/* Calls reserve with the sequence's request. */
static int reserve(struct world *w, uint32_t slot)
{
    struct user *user = &w->users[slot];
    struct model_seq *seq = &w->m.seqs[slot];
    size_t hit = seq->reserved ? 0 : expected_hit(w, slot);
    size_t n_pages = wanted_pages(w, slot);
    size_t least = seq->n_pages + hit / w->m.page_tokens;
    n_pages = n_pages > least ? n_pages : least;

    weir_reserved reserved[2] = { 0 };
    int rc = both(w, weir_seq_reserve(user->handles[i], &user->request, &reserved[i]));
    trace(w, "reserve", slot, rc);
    must(w, memcmp(&reserved[0], &reserved[1], sizeof reserved[0]) == 0, "reserved differ");
    must(w, (rc == -EIO) == is_doomed(w, slot), "reserve: %d, and doomed %d", rc,
         is_doomed(w, slot));
    if (rc != -EIO)
        must(w, (rc == -E2BIG) == (n_pages > w->m.device_pages), "reserve of %zu pages: %d",
             n_pages, rc);
    if (rc == 0)
        check_reserved(w, slot, &reserved[0], hit);
    else if (rc == -EAGAIN || rc == -ENOSPC)
        check_refusal(w, slot, rc, n_pages);
    else
        must(w, rc == -E2BIG || rc == -EIO || rc == -EBUSY, "reserve: %d", rc);
    must(w, w->draining ? rc != -EAGAIN : rc != -EBUSY, "reserve: %d, drained %d", rc, w->draining);
    if (rc != 0 && rc != -EIO && rc != -EBUSY)
        must(w, reserved[0].n_short > 0, "nothing is short");
    w->counted.again += rc == -EAGAIN;
    w->counted.nospace += rc == -ENOSPC;
    /* A claim ends with close. */
    seq->waiting = rc == -EAGAIN || ((rc == -EIO || rc == -EBUSY) && seq->waiting);
    return rc;
}

static void do_reserve(struct world *w)
{
    uint32_t slot = pick(w);
    if (slot == MODEL_SEQS)
        return;
    const struct model_seq *seq = &w->m.seqs[slot];
    struct user *user = &w->users[slot];
    if (!seq->waiting || random_percent(&w->random, 30)) {
        size_t total = seq->reserved ? seq->n_committed + seq->n_pending : user->prompt.n_key;
        total += random_below(&w->random, 3 * w->m.page_tokens);
        if (!seq->reserved && random_percent(&w->random, 20))
            total = 1 + random_below(&w->random, (uint32_t)total);
        size_t limit = (size_t)MODEL_PAGES * w->m.page_tokens;
        user->request.total_tokens = total < limit ? total + (total == 0) : limit;
        user->request.use_hit = random_percent(&w->random, 85) ? WEIR_ALL_TOKENS
                                : random_percent(&w->random, 50)
                                    ? WEIR_USE_HIT_IF_CHEAPER
                                    : random_below(&w->random, (uint32_t)user->prompt.n_key);
        user->request.expect_tokens =
            random_percent(&w->random, 50) ? 0 : total + random_below(&w->random, 100);
        user->request.deadline_ns = user->no_deadline || random_percent(&w->random, 80)
                                        ? 0
                                        : w->now_ns + random_below(&w->random, 6000);
    }
    reserve(w, slot);
}

static void do_peek(struct world *w)
{
    uint32_t slot = pick(w);
    uint64_t before = weir_cache_digest(w->caches[0]);
    if (slot == MODEL_SEQS || random_percent(&w->random, 40)) {
        struct prompt p = random_prompt(w);
        peek(w, &p, p.n_key);
    } else {
        const struct model_seq *seq = &w->m.seqs[slot];
        size_t full = seq->n_committed - seq->n_committed % w->m.page_tokens;
        size_t n_tokens = full ? peek(w, &w->users[slot].prompt, full).n_tokens : 0;
        must(w,
             w->load_failures || is_forgotten(w, slot) || seq->unindexed || seq->late ||
                 n_tokens == full,
             "%zu of %zu committed tokens are in the index", n_tokens, full);
    }
    must(w, weir_cache_digest(w->caches[0]) == before, "a peek changes the cache");
}

/* A reserve counts once, when it succeeds, and so does what it hits. */
static void check_counters(struct world *w)
{
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    const struct counted *c = &w->counted;
    must(w, stats.requests == c->requests, "%d requests, not %d", (int)stats.requests,
         (int)c->requests);
    must(w, stats.reserve_again == c->again && stats.reserve_nospace == c->nospace,
         "refused reserves");
    must(w,
         stats.hit_pages_device == c->device && stats.hit_pages_host == c->host &&
             stats.hit_pages_loading == c->loading,
         "%d, %d and %d pages hit", (int)stats.hit_pages_device, (int)stats.hit_pages_host,
         (int)stats.hit_pages_loading);
    must(w, stats.new_pages == c->new, "%d new pages, not %d", (int)stats.new_pages, (int)c->new);
    weir_available available;
    must(w, weir_cache_available(w->caches[0], &available) == 0, "available");
    must(w, available.free == stats.device_free && available.offered == stats.device_offered,
         "two answers to what is free");
}

static void do_look(struct world *w)
{
    check_counters(w);
    uint32_t slot = pick(w);
    if (slot == MODEL_SEQS)
        return;
    const struct model_seq *seq = &w->m.seqs[slot];
    weir_seq_info info;
    must(w, weir_seq_get_info(w->users[slot].handles[0], &info) == 0, "get_info");
    size_t committed = seq->n_committed + seq->n_pending, n_key = w->users[slot].prompt.n_key;
    must(w, info.n_committed == committed, "%zu committed, not %zu", info.n_committed, committed);
    must(w, info.n_tokens == (committed > n_key ? committed : n_key), "%zu tokens", info.n_tokens);
    must(w, info.n_reserved == (size_t)seq->n_pages * w->m.page_tokens, "%zu tokens reserved",
         info.n_reserved);
    must(w, info.user == &w->users[slot], "another user pointer");
    int32_t table[MODEL_PAGES];
    size_t n = table_of(w, slot, table);
    must(w, n == seq->n_pages && memcmp(table, seq->table, n * sizeof *table) == 0,
         "a block table changed");
    const char *fault =
        export_fault(w->caches[0], w->users[slot].handles[0], w->m.page_tokens, table, n);
    must(w, !fault, "%s", fault);
}

/* ---- Pins and rates ------------------------------------------------------ */

/* A pin keeps what it kept, unless something has failed, and on the device what
 * it says. */
static void check_pin(struct world *w, struct pinned *pin)
{
    weir_pin_info info[2];
    if (!pin->handles[0].cache)
        return;
    must(w, both(w, weir_cache_get_pin(pin->handles[i], &info[i])) == 0, "get_pin");
    must(w, info[0].n_tokens == info[1].n_tokens && info[0].n_device == info[1].n_device,
         "two caches pin different tokens");
    must(w, info[0].user == pin, "another user pointer");
    if (pin->prompt.epoch != w->epochs[pin->prompt.name_space]) {
        must(w, info[0].n_tokens == 0, "%zu forgotten tokens are pinned", info[0].n_tokens);
        return;
    }
    must(w,
         info[0].n_tokens == pin->n_tokens ||
             (w->load_failures && info[0].n_tokens < pin->n_tokens),
         "a pin kept %zu tokens and keeps %zu", pin->n_tokens, info[0].n_tokens);
    pin->n_tokens = info[0].n_tokens;
    if (pin->n_tokens == 0)
        return;
    weir_hit hit = peek(w, &pin->prompt, pin->n_tokens);
    must(w, hit.n_tokens == pin->n_tokens && hit.n_device >= info[0].n_device,
         "of %zu pinned tokens %zu are there, on the device %zu of %zu", pin->n_tokens,
         hit.n_tokens, hit.n_device, info[0].n_device);
}

static void unpin(struct world *w, struct pinned *pin)
{
    weir_pin old = pin->handles[0];
    must(w, both(w, weir_cache_unpin(&pin->handles[i])) == 0, "unpin");
    must(w, !pin->handles[0].cache && !pin->handles[0].id, "handle not reset");
    must(w, !old.cache || weir_cache_unpin(&old) == -ESTALE, "a pin ends twice");
}

/* Whether so many more pinned pages could be too many in a tier. */
static bool over_limit(struct world *w, size_t n_pages)
{
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    return stats.pinned_device_pages + n_pages > w->max_pinned[0] ||
           stats.pinned_host_pages + n_pages > w->max_pinned[1];
}

static void do_pin(struct world *w)
{
    struct pinned *pin = &w->pins[random_below(&w->random, N_PINS)];
    if (pin->handles[0].cache) {
        check_pin(w, pin);
        unpin(w, pin);
        trace(w, "unpin", (uint32_t)(pin - w->pins), 0);
        return;
    }
    uint32_t slot = pick(w), held = 0;
    for (uint32_t k = 0; k < N_PINS; k++)
        held += w->pins[k].handles[0].cache != NULL;
    pin->prompt = slot == MODEL_SEQS || random_percent(&w->random, 20) ? random_prompt(w)
                                                                       : w->users[slot].prompt;
    pin->prompt.epoch = w->epochs[pin->prompt.name_space];
    weir_pin_params params;
    weir_pin_params_init(&params);
    params.user = pin;
    size_t n = pin->prompt.n_key;
    if (random_percent(&w->random, 50))
        params.n_tokens = n = random_below(&w->random, (uint32_t)n + 1);
    weir_hit hit = peek(w, &pin->prompt, n);
    weir_key key = key_of(w, &pin->prompt, pin->prompt.n_key);
    uint64_t before = weir_cache_digest(w->caches[0]);
    int rc = both(w, weir_cache_pin(&pin->handles[i], w->caches[i], &key, &params));
    trace(w, "pin", (uint32_t)(pin - w->pins), rc);
    must(w, (rc == -ENOENT) == (hit.n_tokens == 0), "pin of %zu tokens: %d", hit.n_tokens, rc);
    if (rc == 0) {
        weir_pin_info info;
        must(w, weir_cache_get_pin(pin->handles[0], &info) == 0, "get_pin");
        must(w, info.n_tokens <= hit.n_tokens && info.n_tokens > 0, "%zu tokens pinned of %zu",
             info.n_tokens, hit.n_tokens);
        pin->n_tokens = info.n_tokens;
        must(w, !over_limit(w, 0), "more is pinned than may be");
        check_pin(w, pin);
        return;
    }
    must(w, weir_cache_digest(w->caches[0]) == before, "a pin that failed changes the cache");
    if (rc == -EAGAIN)
        must(w, others_wait(w, MODEL_SEQS), "-EAGAIN, and nobody stands in line");
    else if (rc == -ENOSPC)
        must(w, held == N_PINS - 1 || over_limit(w, hit.n_tokens / w->m.page_tokens),
             "-ENOSPC for %zu tokens", hit.n_tokens);
    else
        must(w, rc == -ENOENT, "pin: %d", rc);
}

static void do_rates(struct world *w)
{
    uint64_t ns = random_percent(&w->random, 20) ? 0 : 1 + random_below(&w->random, 1000);
    uint64_t rate = random_percent(&w->random, 20) ? 0 : 1 + random_below(&w->random, 10000000);
    must(w, both(w, weir_cache_set_rates(w->caches[i], ns, rate)) == 0, "set_rates");
}

/* ---- Forks and cuts ------------------------------------------------------ */

/* One that has something to be forked or cut, mostly. */
static uint32_t pick_committed(struct world *w)
{
    uint32_t slot = pick(w);
    for (int i = 0; i < 8 && slot != MODEL_SEQS; i++) {
        if (w->m.seqs[slot].n_committed + w->m.seqs[slot].n_pending > 0)
            break;
        slot = pick(w);
    }
    return slot;
}

/* The kid says what its parent says up to len, then in part something else. */
static void make_kid(struct world *w, uint32_t slot, uint32_t kid, size_t len, weir_seq *handles)
{
    struct user user = { .prompt = w->users[slot].prompt, .handles = { handles[0], handles[1] } };
    user.no_deadline = w->users[slot].no_deadline;
    user.prompt.n_key = len;
    for (size_t i = (len + w->m.page_tokens - 1) / w->m.page_tokens; i < MODEL_PAGES; i++)
        if (random_percent(&w->random, 30))
            user.prompt.letters[i] = (char)(1 + random_below(&w->random, 3));
    weir_request_init(&user.request);
    w->users[kid] = user;
    w->m.seqs[kid] = (struct model_seq){ .open = true };
    chains_of(&user.prompt, w->m.seqs[kid].chains);
    int32_t table[MODEL_PAGES];
    size_t n = table_of(w, kid, table);
    model_fork(&w->m, &w->m.seqs[slot], &w->m.seqs[kid], len, table, n);
    trace_table(w, kid);
}

/* -EAGAIN and -ENOSPC for want of n pages must be true. */
static void check_no_room(struct world *w, int rc, size_t n)
{
    weir_available available;
    must(w, weir_cache_available(w->caches[0], &available) == 0, "available");
    if (rc == -EAGAIN)
        must(w, model_in_flight(&w->m) || available.pending || available.claimed,
             "-EAGAIN, and nothing is in flight");
    if (rc == -EAGAIN)
        return;
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    must(w,
         rc == -ENOSPC &&
             (available.claimed || n + stats.pinned_device_pages > model_not_held(&w->m)),
         "fork: %d, and %u pages could be had", rc, model_not_held(&w->m));
}

static void do_fork(struct world *w)
{
    uint32_t slot = pick_committed(w);
    if (slot == MODEL_SEQS)
        return;
    const struct model_seq *seq = &w->m.seqs[slot];
    size_t committed = seq->n_committed + seq->n_pending;
    size_t len = 1 + random_below(&w->random, (uint32_t)committed + 1); /* or one too many */
    if (random_percent(&w->random, 30) && committed)
        len = committed;
    /* Not inside an image, half of which is another one. */
    size_t inside = len % w->m.page_tokens;
    if (len > inside && w->users[slot].prompt.letters[len / w->m.page_tokens] >= IMAGE)
        len -= inside;
    else if (len == inside && w->users[slot].prompt.letters[0] >= IMAGE)
        return;
    uint32_t slots[2] = { 0 }, n_free = 0, n = 1 + random_below(&w->random, 2);
    for (uint32_t k = 0; k < MODEL_SEQS && n_free < n; k++)
        if (!w->m.seqs[k].open)
            slots[n_free++] = k;
    void *users[2] = { &w->users[slots[0]], NULL };
    if (n_free == 2)
        users[1] = &w->users[slots[1]];
    weir_seq kids[2][2];
    int rc = both(w, weir_seq_fork(kids[i], n, w->users[slot].handles[i], len, users));
    trace(w, "fork", slot, rc);
    if (len > committed || is_doomed(w, slot)) {
        must(w, rc == (len > committed ? -EINVAL : -EIO), "fork: %d", rc);
        return;
    }
    if (n_free < n) {
        must(w, rc == -ENOSPC, "fork: %d without free sequences", rc);
        return;
    }
    must(w, w->draining ? rc != -EAGAIN : rc != -EBUSY, "fork: %d, drained %d", rc, w->draining);
    if (rc == -EBUSY)
        return;
    if (rc) {
        check_no_room(w, rc, len % w->m.page_tokens ? n : 0);
        return;
    }
    if (len % w->m.page_tokens)
        w->counted.new += n;
    for (uint32_t k = 0; k < n; k++) {
        must(w, kids[0][k].id == kids[1][k].id, "ids differ");
        make_kid(w, slot, slots[k], len, (weir_seq[]){ kids[0][k], kids[1][k] });
    }
}

static void do_truncate(struct world *w)
{
    uint32_t slot = pick_committed(w);
    if (slot == MODEL_SEQS)
        return;
    struct model_seq *seq = &w->m.seqs[slot];
    struct user *user = &w->users[slot];
    bool doomed = is_doomed(w, slot), lost = seq->lost;
    size_t good = (size_t)model_good_pages(&w->m, seq, false) * w->m.page_tokens;
    if (seq->late && good > (size_t)seq->late_pages * w->m.page_tokens)
        good = (size_t)seq->late_pages * w->m.page_tokens;
    size_t n = random_below(&w->random, (uint32_t)seq->n_committed + 1);
    if (doomed && random_percent(&w->random, 60) && good < n)
        n = good;
    int rc = both(w, weir_seq_truncate(user->handles[i], n));
    trace(w, "truncate", slot, rc);
    int want = seq->in_step ? -EBUSY : doomed && n > good ? -EIO : 0;
    must(w, rc == want, "truncate to %zu of %zu: %d, not %d", n, seq->n_committed, rc, want);
    if (rc)
        return;
    int32_t table[MODEL_PAGES];
    size_t n_table = table_of(w, slot, table);
    model_truncate(&w->m, seq, n, table, n_table);
    trace_table(w, slot);
    must(w, !is_doomed(w, slot), "a sequence is wrong after it was cut");
    if (lost && user->epoch_after == w->epochs[user->prompt.name_space])
        user->prompt.epoch = user->epoch_after;
    size_t known = n > user->prompt.n_key ? n : user->prompt.n_key;
    for (size_t i = (known + w->m.page_tokens - 1) / w->m.page_tokens; i < MODEL_PAGES; i++)
        if (random_percent(&w->random, 20))
            user->prompt.letters[i] = (char)(1 + random_below(&w->random, 3));
    chains_of(&user->prompt, seq->chains);
}

/* ---- Operations on steps ------------------------------------------------- */

static void commit(struct world *w, uint32_t slot, size_t room)
{
    struct user *user = &w->users[slot];
    struct model_seq *seq = &w->m.seqs[slot];
    size_t from = seq->n_committed + seq->n_pending;
    size_t n = random_percent(&w->random, 40) ? room : random_below(&w->random, (uint32_t)room + 1);
    const int32_t *tokens = NULL;
    if (from + n > user->prompt.n_key || random_percent(&w->random, 50))
        tokens = tokens_of(w, &user->prompt, from, n);
    int rc = both(w, weir_seq_commit(user->handles[i], tokens, n));
    trace(w, "commit", slot, rc);
    must(w, rc == (is_doomed(w, slot) ? -EIO : 0), "commit: %d", rc);
    if (rc)
        return;
    if (seq->in_step)
        seq->n_pending += n;
    else
        model_commit(&w->m, seq, n);
}

/* Speculation: what an earlier step computed is accepted later. */
static void do_late_commit(struct world *w)
{
    uint32_t slot = pick(w);
    if (slot == MODEL_SEQS || w->m.seqs[slot].in_step || !w->m.seqs[slot].n_step_pages)
        return;
    size_t end = (size_t)w->m.seqs[slot].n_step_pages * w->m.page_tokens;
    commit(w, slot, end - w->m.seqs[slot].n_committed);
}

static void begin_step(struct world *w)
{
    int rc = both(w, weir_step_begin(&w->steps[i], w->caches[i]));
    trace(w, "begin", 0, rc);
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

static void end_step(struct world *w)
{
    const void *orders[2];
    size_t bytes[2];
    int rc = both(w, weir_step_end(&w->steps[i], &orders[i], &bytes[i]));
    trace(w, "end", 0, rc);
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
    trace(w, "abort", 0, rc);
    must(w, rc == 0, "abort: %d", rc);
    w->step_open = false;
    model_abort(&w->m);
}

static void add_to_step(struct world *w)
{
    uint32_t slot = pick(w);
    if (slot == MODEL_SEQS || w->m.seqs[slot].n_pages == 0)
        return;
    int rc = both(w, weir_step_add(w->steps[i], w->users[slot].handles[i]));
    trace(w, "add", slot, rc);
    bool lacks = (size_t)w->m.seqs[slot].n_pages * w->m.page_tokens < w->m.seqs[slot].n_committed;
    int want = is_doomed(w, slot) ? -EIO : w->m.seqs[slot].born ? -EBUSY : lacks ? -EINVAL : 0;
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

static void do_step(struct world *w)
{
    if (!w->step_open)
        begin_step(w);
    else if (random_percent(&w->random, 60))
        add_to_step(w);
    else if (random_percent(&w->random, 90))
        end_step(w);
    else
        abort_step(w);
}

/* ---- Reports and events -------------------------------------------------- */

static void send(struct world *w, uint32_t rank, const weir_report_item *items, size_t n)
{
    _Alignas(8) unsigned char report[4096];
    size_t bytes;
    must(w, weir_report_encode(items, n, report, sizeof report, &bytes, NULL) == 0, "encode");
    int rc = both(w, weir_cache_report(w->caches[i], rank, report, bytes));
    must(w, rc == 0, "report: %d", rc);
    for (size_t k = 0; k < n; k++) {
        static const char *const kinds[] = { "", "step", "load", "write-back" };
        trace(w, kinds[items[k].kind], (uint32_t)items[k].number, items[k].rc);
        model_report(&w->m, rank, &items[k]);
    }
    rc = both(w, weir_cache_report(w->caches[i], rank, report, bytes));
    must(w, rc == -EINVAL, "a report is taken twice: %d", rc);
    report[random_below(&w->random, (uint32_t)bytes)] ^= 4;
    rc = both(w, weir_cache_report(w->caches[i], rank, report, bytes));
    must(w, rc == -EINVAL, "a corrupted report is taken: %d", rc);
}

/* Reports up to `limit` of what one rank could report; whether there was any. */
static bool report(struct world *w, uint32_t rank, size_t limit)
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

static void do_report(struct world *w)
{
    report(w, random_below(&w->random, w->m.n_ranks), 1 + random_below(&w->random, 4));
}

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
    trace(w, "event", slot, (int)event->kind);
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
    if (!at_once || is_doomed(w, slot))
        return false;
    /* A first reserve matches again, and may need more than it claimed: pages
     * that others held at that time. Growing needs what it claimed. */
    bool grows = seq->reserved;
    int rc = reserve(w, slot);
    must(w, !grows || rc == 0, "reserve: %d after the event that promises it", rc);
    return true;
}

static void poll_events(struct world *w, size_t capacity, bool at_once)
{
    weir_cache_event events[2][32];
    size_t n[2];
    w->now_ns += random_below(&w->random, 1000);
    model_poll(&w->m, w->now_ns);
    int rc = both(w, weir_cache_poll(w->caches[i], w->now_ns, events[i], capacity, &n[i]));
    trace(w, "poll", (uint32_t)n[0], rc);
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
        must(w, !seq->open || seq->closing || seq->failure_told || !is_doomed(w, k),
             "sequence %u was not told of a failed load", k);
    }
}

static void do_poll(struct world *w)
{
    size_t capacity = random_percent(&w->random, 60) ? 32 : random_below(&w->random, 3);
    poll_events(w, capacity, random_percent(&w->random, 50));
}

/* ---- The cache as a whole ------------------------------------------------ */

static void do_forget(struct world *w)
{
    uint32_t name_space = random_below(&w->random, 2);
    bool all = random_percent(&w->random, 30);
    int rc = all ? both(w, weir_cache_forget_all(w->caches[i]))
                 : both(w, weir_cache_forget(w->caches[i], fields, name_space));
    trace(w, all ? "forget all" : "forget", name_space, rc);
    must(w, rc == 0, "forget: %d", rc);
    for (uint32_t k = 0; k < 2; k++) {
        w->epochs[k] += all || k == name_space;
        struct prompt p = { .name_space = k, .epoch = w->epochs[k] };
        memcpy(p.letters, w->documents[0], sizeof p.letters);
        size_t n = peek(w, &p, (size_t)w->m.page_tokens * 4).n_tokens;
        must(w, n == 0 || (!all && k != name_space), "%zu tokens are not forgotten", n);
    }
}

static void do_reset(struct world *w)
{
    int rc = both(w, weir_cache_reset(w->caches[i]));
    trace(w, "reset", 0, rc);
    must(w, rc == (w->step_open ? -EBUSY : 0), "reset: %d", rc);
    if (rc)
        return;
    for (uint32_t slot = 0; slot < MODEL_SEQS; slot++) {
        if (!w->m.seqs[slot].open)
            continue;
        must(w, weir_seq_close(&w->users[slot].handles[0]) == -ESTALE, "a sequence outlives reset");
        model_close(&w->m.seqs[slot]);
    }
    w->epochs[0]++;
    w->epochs[1]++;
}

/* What is in flight on the rank has failed; the index is empty; who has pages is
 * told that none of them is good. */
static void do_rank_lost(struct world *w)
{
    uint64_t first[2];
    uint32_t rank = random_below(&w->random, w->m.n_ranks);
    int rc = both(w, weir_cache_rank_lost(w->caches[i], rank, &first[i]));
    trace(w, "rank lost", rank, rc);
    must(w, rc == 0 && first[0] == first[1], "rank_lost: %d", rc);
    must(w, first[0] == w->m.next_step, "a new rank begins with step %d, not %d", (int)first[0],
         (int)w->m.next_step);
    model_rank_lost(&w->m, rank);
    w->epochs[0]++;
    w->epochs[1]++;
    for (uint32_t slot = 0; slot < MODEL_SEQS; slot++) {
        struct user *user = &w->users[slot];
        struct prompt *p = &user->prompt;
        struct model_seq *seq = &w->m.seqs[slot];
        if (!seq->open)
            continue;
        /* What was not forgotten hits what comes: at once if it has lost nothing, else
         * when it has been cut to nothing. */
        uint64_t epoch = w->epochs[p->name_space];
        bool remembered = p->epoch + 1 == epoch || user->epoch_after + 1 == epoch;
        user->epoch_after = seq->lost && remembered ? epoch : 0;
        if (!seq->lost && remembered)
            p->epoch = epoch;
        if (!seq->lost)
            chains_of(p, seq->chains);
    }
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    must(w, stats.index_pages == 0, "%d pages of the index outlive a rank", (int)stats.index_pages);
}

/* Nothing begins while the cache is drained; what is open ends. */
static void do_quiesce(struct world *w)
{
    int rc = both(w, weir_cache_drain(w->caches[i]));
    trace(w, "drain", 0, rc);
    must(w, rc == (w->step_open || model_in_flight(&w->m) ? -EAGAIN : 0), "drain: %d", rc);
    w->draining = true;
    if (w->step_open && random_percent(&w->random, 50))
        end_step(w);
    weir_step step;
    must(w, both(w, weir_step_begin(&step, w->caches[i])) == -EBUSY, "a step while drained");
    for (uint32_t k = random_below(&w->random, 4); k > 0; k--) {
        do_reserve(w);
        do_late_commit(w);
        do_fork(w);
        do_truncate(w);
        do_report(w);
        do_poll(w);
        expect_sound(w);
    }
    must(w, both(w, weir_cache_resume(w->caches[i])) == 0, "resume");
    trace(w, "resume", 0, 0);
    w->draining = false;
}

static void do_nonsense(struct world *w)
{
    weir_step step = { 0 };
    weir_seq seq = { w->caches[0], UINT64_C(77) << 40 | 1 };
    if (w->step_open)
        must(w, both(w, weir_step_begin(&step, w->caches[i])) == -EBUSY, "a step in a step");
    must(w, weir_seq_close(&seq) == -ESTALE, "a handle of nothing is closed");
    must(w, both(w, weir_cache_report(w->caches[i], w->m.n_ranks, "", 0)) == -EINVAL, "rank");
    if (w->step_open || model_in_flight(&w->m) || pick(w) != MODEL_SEQS) {
        weir_cache *cache = w->caches[0];
        if (w->step_open || model_steps_in_flight(&w->m) || pick(w) != MODEL_SEQS)
            must(w, weir_cache_destroy(&cache) == -EBUSY && cache, "a cache in use is destroyed");
    }
}

/* ---- Draining ------------------------------------------------------------ */

/* Runs empty steps, carries all reports and polls until nothing is in flight;
 * then whoever waits is served or told -ENOSPC. */
static void do_drain(struct world *w)
{
    if (w->step_open)
        end_step(w);
    bool waits = true;
    for (int round = 0; waits; round++) {
        must(w, round < 100, "a sequence waits for ever");
        if (round > 0) {
            begin_step(w);
            must(w, w->step_open, "no step can be begun though none is in flight");
            end_step(w);
        }
        for (bool any = true; any;) {
            any = false;
            for (uint32_t rank = 0; rank < w->m.n_ranks; rank++)
                any |= report(w, rank, 100);
        }
        must(w, !model_in_flight(&w->m), "what is in flight cannot be reported");
        poll_events(w, 32, false);
        waits = false;
        for (uint32_t slot = 0; slot < MODEL_SEQS; slot++)
            if (w->m.seqs[slot].open && w->m.seqs[slot].waiting)
                waits |= reserve(w, slot) == -EAGAIN;
    }
    expect_sound(w);
}

static void world_close(struct world *w)
{
    do_drain(w);
    for (uint32_t slot = 0; slot < MODEL_SEQS; slot++)
        if (w->m.seqs[slot].open)
            do_close(w, slot);
    for (uint32_t k = 0; k < N_PINS; k++) {
        check_pin(w, &w->pins[k]);
        unpin(w, &w->pins[k]);
    }
    must(w, model_not_held(&w->m) == w->m.device_pages, "pages are held by nobody");
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    must(w, stats.seqs_open == 0 && stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0,
         "something is still open");
    must(w, stats.pins + stats.pinned_device_pages + stats.pinned_host_pages == 0,
         "something is still pinned");
    must(w,
         stats.loaded_bytes == 1000 * stats.loaded_pages &&
             stats.written_bytes == 1000 * stats.written_pages,
         "bytes");
    must(w, stats.load_runs == w->load_runs && stats.load_run_squares == w->load_run_squares,
         "%d runs loaded, not %d", (int)stats.load_runs, (int)w->load_runs);
    must(w, stats.write_runs == w->write_runs && stats.write_run_squares == w->write_run_squares,
         "%d runs written, not %d", (int)stats.write_runs, (int)w->write_runs);
    must(w, stats.steps == w->m.next_step - 1, "steps");
    must(w, stats.loaded_pages == w->m.loads_done, "%d pages loaded, not %d",
         (int)stats.loaded_pages, (int)w->m.loads_done);
    must(w, stats.load_failed_pages == w->m.loads_failed, "failed loads");
    must(w, stats.load_cancelled_pages == w->m.loads_cancelled, "cancelled loads");
    must(w, stats.written_pages == w->m.writes_done, "%d pages written, not %d",
         (int)stats.written_pages, (int)w->m.writes_done);
    must(w, both(w, weir_cache_destroy(&w->caches[i])) == 0 && !w->caches[0], "destroy");
    model_destroy(&w->m);
}

/* ---- Tests --------------------------------------------------------------- */

static void operate(struct world *w)
{
    uint32_t what = random_below(&w->random, 1080);
    w->m.operation++;
    if (what < 120) {
        do_open(w);
    } else if (what < 330) {
        do_reserve(w);
    } else if (what < 600) {
        do_step(w);
    } else if (what < 620) {
        do_late_commit(w);
    } else if (what < 720) {
        do_report(w);
    } else if (what < 800) {
        do_poll(w);
    } else if (what < 840) {
        do_peek(w);
    } else if (what < 860) {
        do_look(w);
    } else if (what < 870) {
        do_nonsense(w);

    } else if (what < 872) {
        do_drain(w);
    } else if (what < 875) {
        do_forget(w);
    } else if (what < 876) {
        do_reset(w);
    } else if (what < 879) {
        do_quiesce(w);
    } else if (what < 893) {
        do_pin(w);
    } else if (what < 896) {
        do_rates(w);
    } else if (what < 897) {
        do_rank_lost(w);
    } else if (what >= 1000) {
        if (random_percent(&w->random, 60))
            do_fork(w);
        else
            do_truncate(w);
    } else {
        uint32_t slot = pick(w);
        if (slot != MODEL_SEQS)
            do_close(w, slot);
    }
    check_pin(w, &w->pins[w->m.operation % N_PINS]);
    expect_sound(w);
}

ParameterizedTestParameters(cache_random, equals_a_naive_model)
{
    static uint32_t configs[N_CONFIGS];
    for (uint32_t i = 0; i < N_CONFIGS; i++)
        configs[i] = i;
    return cr_make_param_array(uint32_t, configs, N_CONFIGS, NULL);
}

ParameterizedTest(uint32_t *config, cache_random, equals_a_naive_model)
{
    static struct world w;
    uint64_t steps = environment("WEIR_RANDOM_STEPS", 100000) / N_CONFIGS;
    if (environment("WEIR_RANDOM_CONFIG", *config) != *config)
        return;
    world_open(&w, *config);
    for (uint64_t i = 0; i < steps; i++)
        operate(&w);
    world_close(&w);
}

/* Pools that are too small for what is asked, so that most reserves wait. */
Test(cache_random, after_draining_every_wait_is_over)
{
    static struct world w;
    for (uint32_t config = 0; config < N_CONFIGS; config++) {
        if (environment("WEIR_RANDOM_CONFIG", config) != config)
            continue;
        world_open(&w, config);
        for (int round = 0; round < 15; round++) {
            for (int i = 0; i < 40; i++)
                operate(&w);
            do_drain(&w);
        }
        world_close(&w);
    }
}
