/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/heap.h"
#include "random.h"

#include <weir/policy.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* In loops of many thousand steps: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

static const char *const names[] = {
    "lru", "slru", "lfu", "fifo", "mru", "filo", "priority", "cost"
};
#define N_NAMES (sizeof names / sizeof *names)

/* ---- The heap against a scan --------------------------------------------- */

#define HEAP_CAPACITY 50u

static int32_t scan_first(const bool *in, const uint64_t *keys, const uint32_t *depths, uint32_t n)
{
    int32_t first = -1;
    for (uint32_t i = 0; i < n; i++) {
        if (!in[i])
            continue;
        if (first < 0 || keys[i] < keys[first] ||
            (keys[i] == keys[first] && depths[i] > depths[first]))
            first = (int32_t)i;
    }
    return first;
}

Test(heap, random_operations_equal_a_scan)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct random random = { seed };
        struct weir_heap *heap;
        cr_assert(eq(int, weir_heap_create(&heap, HEAP_CAPACITY, NULL), 0));
        bool in[HEAP_CAPACITY] = { false };
        uint64_t keys[HEAP_CAPACITY] = { 0 };
        uint32_t depths[HEAP_CAPACITY] = { 0 };
        uint32_t n = 0;
        for (int step = 0; step < 20000; step++) {
            uint32_t entry = random_below(&random, HEAP_CAPACITY);
            uint32_t what = random_below(&random, 8);
            if (what < 5) {
                keys[entry] = random_below(&random, 10);
                depths[entry] = random_below(&random, 3);
                n += !in[entry];
                in[entry] = true;
                weir_heap_set(heap, keys[entry], depths[entry], entry);
            } else if (what < 7) {
                n -= in[entry];
                in[entry] = false;
                weir_heap_remove(heap, entry);
            } else {
                struct weir_heap_slot slot;
                int32_t first = scan_first(in, keys, depths, HEAP_CAPACITY);
                bool any = weir_heap_pop(heap, &slot);
                must(any == (first >= 0), "seed %d step %d: emptiness", (int)seed, step);
                if (any) {
                    must(slot.entry == (uint32_t)first, "seed %d step %d: %u, not %d", (int)seed,
                         step, slot.entry, first);
                    must(slot.key == keys[first] && slot.depth == depths[first], "its key");
                    in[first] = false;
                    n--;
                }
            }
            must(heap->n == n, "seed %d step %d: size", (int)seed, step);
            for (uint32_t i = 0; i < HEAP_CAPACITY; i++)
                must(weir_heap_has(heap, i) == in[i], "seed %d step %d: has", (int)seed, step);
        }
        weir_heap_destroy(&heap);
        cr_assert(zero(ptr, heap));
        weir_heap_destroy(&heap);
    }
}

/* ---- Eviction policies --------------------------------------------------- */

Test(evict, names_are_listed_and_found)
{
    size_t n = 0;
    for (; weir_evict_policy_at(n); n++)
        cr_expect(eq(ptr, (void *)weir_evict_policy_find(weir_evict_policy_at(n)->name),
                     (void *)weir_evict_policy_at(n)));
    cr_expect(eq(sz, n, N_NAMES));
    for (size_t i = 0; i < N_NAMES; i++) {
        cr_assert(not(zero(ptr, (void *)weir_evict_policy_find(names[i]))));
        cr_expect(eq(str, (char *)weir_evict_policy_find(names[i])->name, (char *)names[i]));
    }
    static const char *const unknown[] = { "", "LRU", "lru ", " lru", "lr", "lru2", "filo " };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        cr_expect(zero(ptr, (void *)weir_evict_policy_find(unknown[i])), "\"%s\"", unknown[i]);
    cr_expect(zero(ptr, (void *)weir_evict_policy_find(NULL)));
    cr_expect(zero(ptr, (void *)weir_evict_policy_at(SIZE_MAX)));
}

struct fixture {
    const weir_evict_policy *policy;
    void *state;
};

static struct fixture fixture_open(const char *name, uint32_t capacity)
{
    struct fixture f = { .policy = weir_evict_policy_find(name) };
    cr_assert(not(zero(ptr, (void *)f.policy)));
    cr_assert(eq(int, f.policy->create(&f.state, capacity), 0));
    return f;
}

static void fixture_close(struct fixture *f)
{
    f->policy->destroy(f->state);
}

static weir_evict_entry entry_of(uint32_t entry, uint32_t hits, uint64_t last_use, uint64_t since)
{
    return (weir_evict_entry){
        .entry = entry, .hits = hits, .depth = 0, .last_use = last_use, .since = since
    };
}

static void add(struct fixture *f, weir_evict_entry entry)
{
    f->policy->add(f->state, &entry);
}

static void use(struct fixture *f, weir_evict_entry entry)
{
    f->policy->use(f->state, &entry);
}

static int32_t next(struct fixture *f)
{
    return f->policy->next(f->state);
}

Test(evict, nothing_added_means_no_victim)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        for (uint32_t capacity = 0; capacity < 3; capacity++) {
            struct fixture f = fixture_open(names[i], capacity);
            cr_expect(eq(i32, next(&f), -1));
            if (capacity) {
                f.policy->remove(f.state, 0);
                f.policy->forget(f.state, 0);
                use(&f, entry_of(0, 2, 5, 1)); /* pinned: known, but no victim */
                cr_expect(eq(i32, next(&f), -1), "%s", names[i]);
            }
            fixture_close(&f);
        }
    }
}

Test(evict, ties_give_up_deeper_then_smaller_entries)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        struct fixture f = fixture_open(names[i], 6);
        static const uint32_t depths[] = { 0, 2, 1, 2, 0, 1 };
        static const int32_t expected[] = { 1, 3, 2, 5, 0, 4, -1 };
        for (uint32_t e = 0; e < 6; e++)
            add(&f, (weir_evict_entry){
                        .entry = e, .hits = 1, .depth = depths[e], .last_use = 9, .since = 9 });
        for (size_t k = 0; k < 7; k++)
            cr_expect(eq(i32, next(&f), expected[k]), "%s: victim %zu", names[i], k);
        fixture_close(&f);
    }
}

Test(evict, lru_follows_last_use_and_fifo_does_not)
{
    static const int32_t expected[2][3] = { { 1, 2, 0 }, { 0, 1, 2 } };
    for (size_t i = 0; i < 2; i++) {
        struct fixture f = fixture_open(i == 0 ? "lru" : "fifo", 3);
        for (uint32_t e = 0; e < 3; e++)
            add(&f, entry_of(e, 1, e + 1, e + 1));
        use(&f, entry_of(0, 2, 10, 1));
        for (size_t k = 0; k < 3; k++)
            cr_expect(eq(i32, next(&f), expected[i][k]));
        fixture_close(&f);
    }
}

Test(evict, mru_follows_last_use_and_filo_does_not)
{
    static const int32_t expected[2][3] = { { 0, 2, 1 }, { 2, 1, 0 } };
    for (size_t i = 0; i < 2; i++) {
        struct fixture f = fixture_open(i == 0 ? "mru" : "filo", 3);
        for (uint32_t e = 0; e < 3; e++)
            add(&f, entry_of(e, 1, e + 1, e + 1));
        use(&f, entry_of(0, 2, 10, 1));
        for (size_t k = 0; k < 3; k++)
            cr_expect(eq(i32, next(&f), expected[i][k]));
        fixture_close(&f);
    }
}

Test(evict, lfu_prefers_hits)
{
    struct fixture f = fixture_open("lfu", 3);
    for (uint32_t e = 0; e < 3; e++)
        add(&f, entry_of(e, 1, 1, 1));
    use(&f, entry_of(0, 3, 2, 1));
    use(&f, entry_of(1, 2, 3, 1));
    f.policy->remove(f.state, 1);
    use(&f, entry_of(1, 4, 4, 1)); /* counts while it is pinned */
    add(&f, entry_of(1, 4, 4, 1));
    static const int32_t expected[] = { 2, 0, 1, -1 };
    for (size_t k = 0; k < 4; k++)
        cr_expect(eq(i32, next(&f), expected[k]), "victim %zu", k);
    fixture_close(&f);
}

Test(evict, lfu_ages_what_was_popular_once)
{
    struct fixture f = fixture_open("lfu", 2);
    add(&f, entry_of(0, 5, 1, 1));
    /* Two hits each: keys 2, 4, 6 as the age climbs by the victims' keys. */
    static const int32_t expected[] = { 1, 1, 0 };
    for (uint32_t round = 0; round < 3; round++) {
        add(&f, entry_of(1, 2, 2 + round, 2 + round));
        cr_expect(eq(i32, next(&f), expected[round]), "round %u", round);
        f.policy->forget(f.state, (uint32_t)expected[round]);
    }
    fixture_close(&f);
}

/* A class is given up before the next one, and in a class what was used first.
 * A priority that ends comes with remove and add. */
Test(evict, priority_gives_up_class_after_class)
{
    struct fixture f = fixture_open("priority", 6);
    static const uint32_t priorities[] = { 2, 0, 1, 0, 1, 15 };
    for (uint32_t e = 0; e < 6; e++) {
        weir_evict_entry entry = entry_of(e, 1, 10 - e, 1);
        entry.priority = priorities[e];
        add(&f, entry);
    }
    use(&f, (weir_evict_entry){ .entry = 4, .last_use = 20, .priority = 1 });
    f.policy->remove(f.state, 0);
    add(&f, entry_of(0, 1, 10, 1));
    static const int32_t expected[] = { 3, 1, 0, 2, 4, 5, -1 };
    for (size_t k = 0; k < 7; k++)
        cr_expect(eq(i32, next(&f), expected[k]), "victim %zu", k);
    fixture_close(&f);
}

/* A span of 1000: that of a victim of no weight which was not used so long, as
 * often as it takes for the moving mean to come close. */
static struct fixture cost_with_span(void)
{
    struct fixture f = fixture_open("cost", 10);
    uint64_t now = 1000000;
    for (int i = 0; i < 20000; i++) {
        add(&f, (weir_evict_entry){ .entry = 0, .hits = 1, .last_use = now - 1125, .tokens = 16 });
        add(&f, (weir_evict_entry){ .entry = 1, .hits = 1, .last_use = now, .tokens = 16 });
        cr_assert(eq(i32, next(&f), 0));
        f.policy->remove(f.state, 1);
    }
    return f;
}

/* The four pages of a row weigh more and more, and so each is given up only if
 * it was used longer ago than all of its weight makes up for. */
Test(evict, cost_weighs_work_chance_and_priority_against_time)
{
    static const struct {
        weir_evict_entry entry;
        uint64_t worth; /* ticks of the clock, of a span of 1000 */
    } rows[] = {
        { { .hits = 1, .depth = 0, .tokens = 16, .bytes = 4096 }, 125 },
        { { .hits = 2, .depth = 0, .tokens = 16, .bytes = 4096 }, 1000 },
        { { .hits = 9, .depth = 0, .tokens = 16, .bytes = 4096 }, 1000 },
        { { .hits = 1, .depth = 2048, .tokens = 16, .bytes = 4096 }, 250 },
        { { .hits = 2, .depth = 2048, .tokens = 16, .bytes = 4096 }, 2000 },
        { { .hits = 2, .depth = 0, .tokens = 16, .bytes = 4096, .priority = 2 }, 3000 },
        { { .hits = 2, .depth = 0, .tokens = 32, .bytes = 4096 }, 2000 },
        { { .hits = 2, .depth = 0, .tokens = 16, .bytes = 8192 }, 500 },
        { { .hits = 2, .depth = 0, .tokens = 16, .bytes = 0 }, 1000 },
        { { .hits = 2, .depth = 1u << 27, .tokens = 16, .bytes = 4096 }, 64000 }, /* the most */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int older = 0; older < 2; older++) {
            struct fixture f = cost_with_span();
            /* tells the size of a page, and is idle as long as the others were */
            add(&f, (weir_evict_entry){
                        .entry = 2, .hits = 1, .last_use = 998875, .tokens = 16, .bytes = 4096 });
            cr_assert(eq(i32, next(&f), 2));
            weir_evict_entry plain = {
                .entry = 3, .hits = 1, .last_use = 2000000, .tokens = 16, .bytes = 4096
            };
            weir_evict_entry entry = rows[i].entry;
            entry.entry = 4;
            /* the plain page is worth 125 ticks; 2 % for the mean, and for having
             * been fed above */
            uint64_t margin = rows[i].worth / 50 + 20;
            uint64_t lead = rows[i].worth - 125;
            entry.last_use = plain.last_use - lead + (older ? -margin : margin);
            add(&f, plain);
            add(&f, entry);
            cr_expect(eq(i32, next(&f), older ? 4 : 3), "row %zu, older %d", i, older);
            fixture_close(&f);
        }
    }
}

static void expect_victims(struct fixture *f, const int32_t *expected, size_t n)
{
    for (size_t k = 0; k < n; k++)
        cr_expect(eq(i32, next(f), expected[k]), "victim %zu", k);
    cr_expect(eq(i32, next(f), -1));
}

Test(evict, slru_keeps_what_was_used_again)
{
    struct fixture f = fixture_open("slru", 6);
    for (uint32_t e = 0; e < 5; e++)
        add(&f, entry_of(e, 1, e + 1, e + 1));
    use(&f, entry_of(2, 1, 3, 3)); /* the request that brought it: not again */
    use(&f, entry_of(1, 2, 6, 2));
    use(&f, entry_of(0, 2, 7, 1));
    add(&f, entry_of(5, 1, 8, 8)); /* newest, and yet before the protected */
    expect_victims(&f, (int32_t[]){ 2, 3, 4, 5, 1, 0 }, 6);
    fixture_close(&f);
}

Test(evict, slru_demotes_the_oldest_beyond_80_percent)
{
    struct fixture f = fixture_open("slru", 10);
    for (uint32_t e = 0; e < 10; e++)
        add(&f, entry_of(e, 1, e + 1, e + 1));
    for (uint32_t e = 0; e < 9; e++)
        use(&f, entry_of(e, 2, 11 + e, e + 1)); /* the ninth demotes entry 0 */
    expect_victims(&f, (int32_t[]){ 9, 0, 1, 2, 3, 4, 5, 6, 7, 8 }, 10);
    fixture_close(&f);
}

Test(evict, slru_forget_shrinks_the_protected_segment)
{
    struct fixture f = fixture_open("slru", 5);
    for (uint32_t e = 0; e < 5; e++)
        add(&f, entry_of(e, 1, e + 1, e + 1));
    for (uint32_t e = 1; e < 5; e++)
        use(&f, entry_of(e, 2, 10 + e, e + 1));
    f.policy->forget(f.state, 0); /* three of four may stay: entry 1 is demoted */
    add(&f, entry_of(0, 1, 20, 20));
    expect_victims(&f, (int32_t[]){ 1, 0, 2, 3, 4 }, 5);
    fixture_close(&f);
}

Test(evict, slru_remembers_the_segment_until_forget)
{
    for (int forgotten = 0; forgotten < 2; forgotten++) {
        struct fixture f = fixture_open("slru", 5);
        for (uint32_t e = 0; e < 5; e++)
            add(&f, entry_of(e, 1, e + 1, e + 1));
        use(&f, entry_of(1, 2, 6, 2));
        f.policy->remove(f.state, 0);
        use(&f, entry_of(0, 2, 7, 1)); /* pinned when it was used again */
        if (forgotten)
            f.policy->forget(f.state, 0);
        add(&f, entry_of(0, 2, 7, 7));
        if (forgotten)
            expect_victims(&f, (int32_t[]){ 2, 3, 4, 0, 1 }, 5);
        else
            expect_victims(&f, (int32_t[]){ 2, 3, 4, 1, 0 }, 5);
        fixture_close(&f);
    }
}

/* ---- Eviction policies against scans --------------------------------------
 * The model keeps plain facts and recomputes the victim by a scan. */

#define MODEL_ENTRIES 40u

struct model_entry {
    weir_evict_entry facts;
    bool in_tier;
    bool known;
    bool added;
    bool guarded;
    uint64_t key;    /* lfu: set at the last use; slru: time of use or demotion; cost: when added */
    uint64_t weight; /* cost: in 65536ths, when added */
};

struct model {
    char kind; /* l, s, f (lfu), o (fifo), m, i (filo), p, c */
    struct model_entry entries[MODEL_ENTRIES];
    uint64_t now;
    uint64_t age; /* lfu: of the last victim; cost: 1024 spans */
    uint64_t newest;
};

static uint64_t model_key(const struct model *model, const struct model_entry *e)
{
    switch (model->kind) {
    case 'l':
        return e->facts.last_use;
    case 'o':
        return e->facts.since;
    case 'm':
        return UINT64_MAX - e->facts.last_use;
    case 'i':
        return UINT64_MAX - e->facts.since;
    case 'p':
        return e->facts.priority * UINT64_C(1000000) + e->facts.last_use;
    case 's':
        return e->key + (e->guarded ? UINT64_C(1) << 60 : 0);
    default:
        return e->key;
    }
}

static int32_t model_scan(const struct model *model, bool guarded_only)
{
    int32_t first = -1;
    for (uint32_t i = 0; i < MODEL_ENTRIES; i++) {
        const struct model_entry *e = &model->entries[i];
        if (guarded_only ? !e->guarded : !e->added)
            continue;
        const struct model_entry *f = first < 0 ? NULL : &model->entries[first];
        uint64_t key = model_key(model, e);
        if (!f || key < model_key(model, f) ||
            (key == model_key(model, f) && e->facts.depth > f->facts.depth))
            first = (int32_t)i;
    }
    return first;
}

static void model_balance(struct model *model)
{
    for (;;) {
        uint32_t known = 0, guarded = 0;
        for (uint32_t i = 0; i < MODEL_ENTRIES; i++) {
            known += model->entries[i].known;
            guarded += model->entries[i].guarded;
        }
        if (guarded * 5 <= known * 4)
            return;
        struct model_entry *oldest = &model->entries[model_scan(model, true)];
        oldest->guarded = false;
        oldest->key = model->now;
    }
}

/* All pages have 16 tokens and 4096 bytes. */
static void model_weigh(struct model *model, struct model_entry *e)
{
    uint64_t doubled = 2 * (32768 + e->facts.depth * 16) * (1 + e->facts.priority);
    e->weight = e->facts.hits < 2 ? doubled / 8 : doubled;
    e->key = e->facts.last_use + model->age / 1024 * e->weight / 65536;
    if (e->facts.last_use > model->newest)
        model->newest = e->facts.last_use;
}

static void model_learn(struct model *model, struct model_entry *e, bool used)
{
    if (model->kind == 'f' && (used || !e->known))
        e->key = model->age + e->facts.hits;
    if (model->kind == 's' && (used || !e->known))
        e->key = e->facts.last_use;
    if (model->kind == 'c' && (!used || e->added))
        model_weigh(model, e);
    e->known = true;
    if (model->kind == 's' && used && e->facts.last_use > e->facts.since)
        e->guarded = true;
    model_balance(model);
}

static void random_step(struct fixture *f, struct model *model, struct random *random)
{
    uint32_t i = random_below(random, MODEL_ENTRIES);
    struct model_entry *e = &model->entries[i];
    uint32_t what = random_below(random, 10);
    if (!e->in_tier) {
        *e = (struct model_entry){ .in_tier = true };
        e->facts = entry_of(i, 1 + random_below(random, 3), model->now, model->now);
        e->facts.depth = random_below(random, 4) * 700;
        e->facts.tokens = 16;
        e->facts.bytes = 4096;
    } else if (what < 3) {
        if (!e->added)
            e->facts.priority = random_below(random, 4);
        add(f, e->facts);
        model_learn(model, e, false);
        e->added = true;
    } else if (what < 7) {
        model->now += random_percent(random, 60); /* one request uses several */
        e->facts.last_use = model->now;
        e->facts.hits++;
        e->facts.priority = random_below(random, 4);
        use(f, e->facts);
        model_learn(model, e, true);
    } else if (what < 8) {
        f->policy->remove(f->state, i);
        e->added = false;
    } else if (what < 9) {
        f->policy->forget(f->state, i);
        *e = (struct model_entry){ .in_tier = false };
        model_balance(model);
    } else {
        int32_t expected = model_scan(model, false);
        int32_t victim = next(f);
        must(victim == expected, "%s: victim %d, not %d", f->policy->name, victim, expected);
        if (victim >= 0) {
            struct model_entry *v = &model->entries[victim];
            v->added = false;
            if (model->kind == 'f' && v->key > model->age)
                model->age = v->key;
            if (model->kind == 'c')
                model->age += (model->newest - v->facts.last_use) * 65536 / (65536 + v->weight) -
                              model->age / 1024;
        }
    }
}

Test(evict, random_operations_equal_a_scan)
{
    static const char kinds[] = { 'l', 's', 'f', 'o', 'm', 'i', 'p', 'c' };
    for (size_t k = 0; k < N_NAMES; k++) {
        for (uint64_t seed = 1; seed <= 10; seed++) {
            struct random random = { seed };
            struct fixture f = fixture_open(names[k], MODEL_ENTRIES);
            struct model model = { .kind = kinds[k], .now = 1 };
            for (int step = 0; step < 5000; step++)
                random_step(&f, &model, &random);
            fixture_close(&f);
        }
    }
}

/* ---- Write-back ---------------------------------------------------------- */

static weir_write_answer decide(const char *name, weir_write_event event, uint32_t hits)
{
    weir_write_policy policy;
    cr_assert(eq(int, weir_write_policy_parse(name, &policy), 0), "%s", name);
    weir_write_facts facts = { .event = event, .hits = hits, .depth = 1, .bytes = 4096 };
    return policy.decide(&facts, policy.parameter);
}

Test(write_back, answers)
{
    static const struct {
        const char *name;
        uint32_t threshold; /* hits at which `from` takes the place of `below` */
        weir_write_answer below, from, evict;
    } rows[] = {
        { "write_through", 0, WEIR_WRITE_LATER, WEIR_WRITE_NOW, WEIR_WRITE_DROP },
        { "write_through_selective", 2, WEIR_WRITE_LATER, WEIR_WRITE_NOW, WEIR_WRITE_DROP },
        { "write_through_selective(1)", 1, WEIR_WRITE_LATER, WEIR_WRITE_NOW, WEIR_WRITE_DROP },
        { "write_through_selective(7)", 7, WEIR_WRITE_LATER, WEIR_WRITE_NOW, WEIR_WRITE_DROP },
        { "write_back", 0, WEIR_WRITE_LATER, WEIR_WRITE_LATER, WEIR_WRITE_NOW },
        { "never", 0, WEIR_WRITE_LATER, WEIR_WRITE_LATER, WEIR_WRITE_DROP },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (uint32_t hits = 0; hits < 12; hits++) {
            weir_write_answer expected = hits < rows[i].threshold ? rows[i].below : rows[i].from;
            cr_expect(eq(int, decide(rows[i].name, WEIR_WRITE_ON_COMMIT, hits), expected),
                      "%s, %u hits", rows[i].name, hits);
            cr_expect(eq(int, decide(rows[i].name, WEIR_WRITE_ON_HIT, hits), expected),
                      "%s, %u hits", rows[i].name, hits);
            cr_expect(eq(int, decide(rows[i].name, WEIR_WRITE_ON_EVICT, hits), rows[i].evict),
                      "%s, %u hits", rows[i].name, hits);
        }
    }
}

Test(write_back, adaptive_chooses_under_pressure_only)
{
    static const struct {
        uint32_t pages, room, window;
        uint64_t hits, written;
        bool pressure;
    } rows[] = {
        { 1600, 1600, 80, 0, 1000, false },
        { 1600, 181, 80, 0, 1000, false },
        { 1600, 180, 80, 0, 1000, true }, /* a 16th beyond what is kept anyway */
        { 1600, 80, 80, 0, 1000, true },
        { 1600, 0, 80, 0, 1000, true },
        { 1600, 101, 0, 0, 1000, false },
        { 1600, 100, 0, 0, 1000, true },
        { 1600, 901, 800, 0, 1000, false },
        { 1600, 900, 800, 0, 1000, true },
        { 8, 1, 0, 0, 1000, false }, /* a 16th of eight pages is none */
        { 8, 0, 0, 0, 1000, true },
        { UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, 1000, true }, /* a sum beyond 32 bits */
        { 1600, 0, 80, 249, 1000, true },
        { 1600, 0, 80, 250, 1000, false }, /* a hit for four that were written */
        { 1600, 0, 80, 0, 3, false },
        { 1600, 0, 80, 0, 4, true },
        { 1600, 0, 80, UINT64_MAX / 2, UINT64_MAX, false },
    };
    weir_write_policy policy;
    cr_assert(eq(int, weir_write_policy_parse("adaptive", &policy), 0));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weir_write_facts facts = { .host_pages = rows[i].pages,
                                   .host_room = rows[i].room,
                                   .host_window = rows[i].window,
                                   .host_hits = rows[i].hits,
                                   .host_written = rows[i].written };
        for (facts.hits = 0; facts.hits < 5; facts.hits++) {
            weir_write_answer expected =
                rows[i].pressure && facts.hits < 2 ? WEIR_WRITE_LATER : WEIR_WRITE_NOW;
            facts.event = WEIR_WRITE_ON_COMMIT;
            cr_expect(eq(int, policy.decide(&facts, policy.parameter), expected),
                      "row %zu, %u hits", i, facts.hits);
            facts.event = WEIR_WRITE_ON_HIT;
            cr_expect(eq(int, policy.decide(&facts, policy.parameter), expected),
                      "row %zu, %u hits", i, facts.hits);
            facts.event = WEIR_WRITE_ON_EVICT;
            cr_expect(eq(int, policy.decide(&facts, policy.parameter), WEIR_WRITE_DROP),
                      "row %zu, %u hits", i, facts.hits);
        }
    }
}

Test(write_back, listed_names_parse_to_themselves)
{
    size_t n = 0;
    const char *name;
    for (; (name = weir_write_policy_name_at(n)); n++) {
        weir_write_policy policy;
        cr_assert(eq(int, weir_write_policy_parse(name, &policy), 0));
        cr_expect(eq(str, (char *)policy.name, (char *)name));
    }
    cr_expect(eq(sz, n, 5));
    cr_expect(zero(ptr, (void *)weir_write_policy_name_at(SIZE_MAX)));
}

Test(write_back, parameter_range)
{
    for (uint32_t n = 0; n <= 1100; n++) {
        char text[64];
        snprintf(text, sizeof text, "write_through_selective(%u)", n);
        weir_write_policy policy = { .parameter = 77 };
        int rc = weir_write_policy_parse(text, &policy);
        if (n >= 1 && n <= 1000) {
            must(rc == 0 && policy.parameter == n, "%s", text);
            must(strcmp(policy.name, "write_through_selective") == 0, "%s", text);
        } else {
            must(rc == -EINVAL && policy.parameter == 77, "%s", text);
        }
    }
}

Test(write_back, bad_names_change_nothing)
{
    static const char *const bad[] = {
        "",
        "writethrough",
        "Write_through",
        "write_through ",
        " write_through",
        "write_through(1)",
        "write_back(2)",
        "never()",
        "adaptive(2)",
        "Adaptive",
        "write_through_selective(",
        "write_through_selective()",
        "write_through_selective(3",
        "write_through_selective(3))",
        "write_through_selective(3) ",
        "write_through_selective (3)",
        "write_through_selective( 3)",
        "write_through_selective(+3)",
        "write_through_selective(-3)",
        "write_through_selective(03)",
        "write_through_selective(0x3)",
        "write_through_selective(3.0)",
        "write_through_selective(4294967299)",
        "write_through_selective(18446744073709551619)",
        "write_through_selectiv(3)",
        "(3)",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        weir_write_policy policy = { .name = NULL, .decide = NULL, .parameter = 77 };
        cr_expect(eq(int, weir_write_policy_parse(bad[i], &policy), -EINVAL), "\"%s\"", bad[i]);
        cr_expect(zero(ptr, (void *)policy.name), "\"%s\"", bad[i]);
        cr_expect(eq(u32, policy.parameter, 77), "\"%s\"", bad[i]);
    }
    weir_write_policy policy;
    cr_expect(eq(int, weir_write_policy_parse(NULL, &policy), -EINVAL));
    cr_expect(eq(int, weir_write_policy_parse("never", NULL), -EINVAL));
}
