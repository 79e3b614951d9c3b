/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const evictions[] = { "lru", "slru", "lfu",      "fifo",
                                         "mru", "filo", "priority", "cost" };
static const char *const write_backs[] = { "write_through", "write_through_selective(2)",
                                           "write_back", "never", "adaptive" };
#define N_EVICTIONS (sizeof evictions / sizeof *evictions)
#define N_WRITE_BACKS (sizeof write_backs / sizeof *write_backs)
_Static_assert(WORLD_CONFIGS == N_EVICTIONS * N_WRITE_BACKS, "a configuration is left out");

/* ---- Setting up ---------------------------------------------------------- */

const weir_field world_fields[1] = { { .tag = 1, .bytes = 1, .data = "a" } };

uint64_t world_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

void world_open(struct world *w, uint32_t config)
{
    static const uint32_t page_tokens[] = { 1, 3, 16, 4 };
    static const double offered[] = { 0, 0.05, 0.3 };
    memset(w, 0, sizeof *w);
    w->m.seed = world_environment("WEIR_RANDOM_SEED", 0);
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
    params.max_pins = WORLD_PINS - 1;
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
    for (uint32_t d = 0; d < WORLD_DOCUMENTS; d++)
        for (uint32_t i = 0; i < MODEL_PAGES; i++)
            w->documents[d][i] = (char)(1 + random_below(&w->random, 3));
}

void world_check(struct world *w)
{
    const char *reason = "";
    must(w, weir_cache_check(w->caches[0], &reason) == 0, "%s", reason);
    must(w, weir_cache_digest(w->caches[0]) == weir_cache_digest(w->caches[1]),
         "two caches with the same calls differ");
}

void world_close(struct world *w)
{
    op_drain(w);
    for (uint32_t slot = 0; slot < MODEL_SEQS; slot++)
        if (w->m.seqs[slot].open)
            op_close(w, slot);
    for (uint32_t k = 0; k < WORLD_PINS; k++) {
        world_check_pin(w, &w->pins[k]);
        world_unpin(w, &w->pins[k]);
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

/* ---- Prompts ------------------------------------------------------------- */

struct prompt world_prompt(struct world *w)
{
    struct prompt p = { .name_space = random_percent(&w->random, 15) };
    p.epoch = w->epochs[p.name_space];
    const char *document = w->documents[random_below(&w->random, WORLD_DOCUMENTS)];
    uint32_t shared = random_below(&w->random, w->m.device_pages);
    for (uint32_t i = 0; i < MODEL_PAGES; i++)
        p.letters[i] = i < shared ? document[i] : (char)(1 + random_below(&w->random, 3));
    uint32_t longest = w->m.device_pages * w->m.page_tokens;
    if (random_percent(&w->random, 80))
        longest = longest / 2;
    p.n_key = 1 + random_below(&w->random, longest);
    for (uint32_t i = 0; i < p.n_key / w->m.page_tokens; i++)
        if (random_percent(&w->random, 5))
            p.letters[i] = (char)(WORLD_IMAGE + random_below(&w->random, 2));
    return p;
}

void prompt_chains(const struct prompt *p, uint64_t *chains)
{
    uint64_t chain = model_chain(p->name_space, p->epoch);
    for (uint32_t i = 0; i < MODEL_PAGES; i++)
        chains[i] = chain = model_chain(chain, (uint64_t)p->letters[i]);
}

/* Tokens from..from+n-1 of a prompt, valid until the next call. */
const int32_t *world_tokens(struct world *w, const struct prompt *p, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char letter = p->letters[(from + i) / w->m.page_tokens];
        w->tokens[i] = (letter < WORLD_IMAGE ? letter : WORLD_IMAGE) * 100 +
                       (int32_t)((from + i) % w->m.page_tokens);
    }
    return w->tokens;
}

weir_key world_key(struct world *w, const struct prompt *p, size_t n)
{
    size_t n_spans = 0;
    for (size_t i = 0; i < n / w->m.page_tokens; i++)
        if (p->letters[i] >= WORLD_IMAGE)
            w->spans[n_spans++] = (weir_span){ .first = i * w->m.page_tokens,
                                               .n_tokens = w->m.page_tokens,
                                               .digest_bytes = WEIR_MIN_DIGEST_BYTES,
                                               .digest = { (unsigned char)p->letters[i] } };
    return (weir_key){ .tokens = world_tokens(w, p, 0, n),
                       .n_tokens = n,
                       .fields = world_fields,
                       .n_fields = p->name_space,
                       .spans = w->spans,
                       .n_spans = n_spans };
}

weir_hit world_peek(struct world *w, const struct prompt *p, size_t n)
{
    weir_key key = world_key(w, p, n);
    weir_hit hits[2];
    must(w, both(w, weir_cache_peek(w->caches[i], &key, &hits[i])) == 0, "peek");
    must(w, memcmp(&hits[0], &hits[1], sizeof hits[0]) == 0, "peeks differ");
    uint64_t chains[MODEL_PAGES];
    struct prompt now = *p;
    now.epoch = w->epochs[p->name_space];
    prompt_chains(&now, chains);
    bool load = hits[0].load_ns <= hits[0].compute_ns || !hits[0].compute_ns;
    must(w, (hits[0].n_worth == hits[0].n_tokens) == load && hits[0].n_worth <= hits[0].n_tokens,
         "%zu of %zu tokens are worth loading", hits[0].n_worth, hits[0].n_tokens);
    must(w, hits[0].n_host || !(hits[0].load_ns | hits[0].compute_ns), "a load of nothing");
    must(w, hits[0].n_tokens <= n, "%zu of %zu tokens hit", hits[0].n_tokens, n);
    model_peek(&w->m, chains, &hits[0]);
    return hits[0];
}

/* ---- Sequences ----------------------------------------------------------- */

bool world_is_forgotten(const struct world *w, uint32_t slot)
{
    const struct prompt *p = &w->users[slot].prompt;
    return p->epoch != w->epochs[p->name_space];
}

/* A random open sequence; MODEL_SEQS if there is none. */
uint32_t world_pick(struct world *w)
{
    uint32_t first = random_below(&w->random, MODEL_SEQS);
    for (uint32_t k = 0; k < MODEL_SEQS; k++) {
        uint32_t slot = (first + k) % MODEL_SEQS;
        if (w->m.seqs[slot].open && !w->m.seqs[slot].closing)
            return slot;
    }
    return MODEL_SEQS;
}

bool world_others_wait(const struct world *w, uint32_t slot)
{
    for (uint32_t k = 0; k < MODEL_SEQS; k++)
        if (k != slot && w->m.seqs[k].open && w->m.seqs[k].waiting)
            return true;
    return false;
}

/* Reads the block table, in units of kernel pages. */
size_t world_table(struct world *w, uint32_t slot, int32_t *table)
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
