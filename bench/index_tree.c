/* SPDX-License-Identifier: Apache-2.0 */
#include "index.h"

#include "device.h"

#include <weir/radix.h>

#include <errno.h>
#include <stdlib.h>

#define SHARED 16u /* pages of a system prompt */
#define OWN 48u    /* and what a prompt has behind it */
#define DEPTH (SHARED + OWN)
#define FANOUT 32u /* prompts of a system prompt */
#define BATCH 64u  /* prompts a repeat */

struct tree {
    weir_radix *radix;
    int32_t root;
    uint32_t page_tokens;
    uint32_t n_prompts;
    uint64_t random;
    int32_t *tokens; /* of one prompt */
    int32_t refs[DEPTH];
};

/* Of the timed prompts; they are far apart, so that none is in a cache because
 * the one before it was. */
static uint32_t next_prompt(struct tree *t)
{
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((t->random >> 33) % t->n_prompts);
}

static weir_part write_prompt(const struct tree *t, uint32_t prompt)
{
    size_t n_shared = (size_t)SHARED * t->page_tokens, n = (size_t)DEPTH * t->page_tokens;
    for (size_t i = 0; i < n_shared; i++)
        t->tokens[i] = (int32_t)(prompt / FANOUT * 31 + i);
    for (size_t i = n_shared; i < n; i++)
        t->tokens[i] = (int32_t)(prompt * 17 + i);
    return (weir_part){ .tokens = t->tokens, .n_tokens = n };
}

static int insert(struct tree *t, uint32_t prompt, uint32_t *n_there)
{
    weir_part part = write_prompt(t, prompt);
    return weir_radix_insert(t->radix, t->root, &part, t->refs, n_there);
}

static int fill(struct tree *t)
{
    int rc = weir_radix_hold_root(t->radix, NULL, 0, &t->root);
    for (uint32_t prompt = 0; prompt < t->n_prompts && !rc; prompt++) {
        uint32_t n_there;
        rc = insert(t, prompt, &n_there);
    }
    return rc;
}

static int add(struct weir_bench_samples *samples, double start, uint32_t pages)
{
    return weir_bench_samples_add(samples, (weir_bench_now() - start) * 1e9 / pages);
}

static int time_match(struct weir_bench_index *bench, struct tree *t,
                      struct weir_bench_samples *samples)
{
    weir_part part = write_prompt(t, next_prompt(t));
    if (bench->common.plant_error)
        t->tokens[0] ^= 1;
    double start = weir_bench_now();
    uint32_t n = weir_radix_match(t->radix, t->root, &part, t->refs, DEPTH);
    int rc = add(samples, start, DEPTH);
    bench->wrong += n != DEPTH;
    return rc;
}

/* Takes a prompt's own pages out from the last one on, as eviction does, and puts
 * them in again. */
static int time_change(struct weir_bench_index *bench, struct tree *t,
                       struct weir_bench_samples *evict, struct weir_bench_samples *enter)
{
    uint32_t prompt = next_prompt(t), n_there = 0;
    weir_part part = write_prompt(t, prompt);
    if (weir_radix_peek(t->radix, t->root, &part, t->refs, DEPTH) != DEPTH) {
        bench->wrong++;
        return 0;
    }
    int rc = 0;
    double start = weir_bench_now();
    for (uint32_t i = DEPTH; i-- > SHARED && !rc;)
        rc = weir_radix_remove(t->radix, t->refs[i]);
    if (!rc)
        rc = add(evict, start, OWN);
    start = weir_bench_now();
    if (!rc)
        rc = weir_radix_insert(t->radix, t->root, &part, t->refs, &n_there);
    if (!rc)
        rc = add(enter, start, OWN);
    bench->wrong += n_there != SHARED;
    return rc;
}

static int measure(struct weir_bench_index *bench, struct tree *t)
{
    struct weir_bench_samples match = { 0 }, evict = { 0 }, enter = { 0 }, warm[3] = { { 0 } };
    int rc = fill(t);
    for (uint32_t r = 0; r < bench->common.warm_up + bench->common.repeats && !rc; r++) {
        bool timed = r >= bench->common.warm_up;
        for (uint32_t i = 0; i < BATCH && !rc; i++)
            rc = time_match(bench, t, timed ? &match : &warm[0]);
        for (uint32_t i = 0; i < BATCH && !rc; i++)
            rc = time_change(bench, t, timed ? &evict : &warm[1], timed ? &enter : &warm[2]);
    }
    for (int i = 0; i < 3; i++)
        weir_bench_samples_free(&warm[i]);
    uint32_t pages = weir_radix_pages(t->radix);
    weir_bench_index_row(bench, "match", "page", pages, t->page_tokens, &match);
    weir_bench_index_row(bench, "insert", "page", pages, t->page_tokens, &enter);
    weir_bench_index_row(bench, "evict", "page", pages, t->page_tokens, &evict);
    return rc;
}

int weir_bench_index_tree(struct weir_bench_index *bench, uint32_t pages, uint32_t page_tokens)
{
    /* So many prompts as fill the pages, a system prompt for FANOUT of them. */
    uint32_t a_family = SHARED + FANOUT * OWN;
    struct tree t = { .page_tokens = page_tokens, .random = 1 };
    t.n_prompts = (uint32_t)((uint64_t)pages * FANOUT / a_family);
    if (t.n_prompts == 0)
        t.n_prompts = 1;
    t.tokens = malloc((size_t)DEPTH * page_tokens * sizeof *t.tokens);
    uint32_t room = t.n_prompts * OWN + (t.n_prompts / FANOUT + 1) * SHARED;
    int rc = t.tokens ? weir_radix_create(&t.radix, page_tokens, room, NULL) : -ENOMEM;
    if (!rc)
        rc = measure(bench, &t);
    weir_radix_destroy(&t.radix);
    free(t.tokens);
    return rc;
}
