/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"
#include "random.h"

#include <weir/radix.h>

/* In loops of many thousand steps: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

/* A span of this content; contents differ in the last byte of their digests. */
static weir_span span_of(size_t first, size_t n_tokens, unsigned char content)
{
    weir_span span = { .first = first, .n_tokens = n_tokens, .digest_bytes = 32 };
    span.digest[31] = content;
    return span;
}

static void expect_sound(const weir_radix *radix)
{
    const char *reason = "";
    must(weir_radix_check(radix, &reason) == 0, "%s", reason);
}

/* ---- The tree ------------------------------------------------------------- */

#define T 4u
#define PAGES 10u

struct tree {
    weir_radix *radix;
    int32_t root;
    int32_t tokens[T * PAGES]; /* all placeholders */
    int32_t refs[PAGES];
    uint32_t n_there;
};

static struct tree tree_open(void)
{
    struct tree t = { 0 };
    cr_assert(zero(int, weir_radix_create(&t.radix, T, 100, NULL)));
    cr_assert(zero(int, weir_radix_hold_root(t.radix, NULL, 0, &t.root)));
    return t;
}

static weir_part part_of(const struct tree *t, const weir_span *spans, size_t n)
{
    return (weir_part){ .tokens = t->tokens, .n_tokens = T * PAGES, .spans = spans, .n_spans = n };
}

static void insert(struct tree *t, const weir_span *spans, size_t n)
{
    weir_part part = part_of(t, spans, n);
    must(weir_radix_insert(t->radix, t->root, &part, t->refs, &t->n_there) == 0, "insert");
    expect_sound(t->radix);
}

static uint32_t peek(const struct tree *t, const weir_span *spans, size_t n)
{
    weir_part part = part_of(t, spans, n);
    return weir_radix_peek(t->radix, t->root, &part, NULL, PAGES);
}

/* An image over the tokens 10 to 21, which touches the pages 2 to 5. */
Test(spans, prompts_part_at_the_first_page_of_an_image)
{
    struct tree t = tree_open();
    weir_span one = span_of(10, 12, 1), other = span_of(10, 12, 2);
    insert(&t, &one, 1);
    cr_expect(zero(u32, t.n_there));
    cr_expect(eq(u32, peek(&t, &one, 1), PAGES));
    cr_expect(eq(u32, peek(&t, &other, 1), 2));
    cr_expect(eq(u32, peek(&t, NULL, 0), 2), "no image is another one, too");
    insert(&t, &other, 1);
    cr_expect(eq(u32, t.n_there, 2));
    insert(&t, NULL, 0);
    cr_expect(eq(u32, t.n_there, 2));
    cr_expect(eq(u32, peek(&t, &one, 1), PAGES));
    cr_expect(eq(u32, peek(&t, &other, 1), PAGES));
    cr_expect(eq(u32, peek(&t, NULL, 0), PAGES));
    cr_expect(eq(u32, weir_radix_pages(t.radix), 2 + 3 * (PAGES - 2)));
    weir_radix_destroy(&t.radix);
}

/* Everything of a span tells it from others: the page that differs first. */
Test(spans, identity_is_place_length_and_digest)
{
    weir_span image = span_of(10, 12, 1);
    weir_span shorter = span_of(10, 11, 1), later = span_of(11, 11, 1), moved = span_of(14, 12, 1);
    weir_span cut = image, two[] = { span_of(8, 2, 7), image }, behind[] = { image, image };
    cut.digest_bytes = 16; /* of which all are zero, as the first 16 of the image's are */
    behind[1].first = 22;  /* touches it */
    struct {
        const weir_span *spans;
        size_t n;
        uint32_t pages;
    } rows[] = { { &shorter, 1, 2 }, { &later, 1, 2 }, { &moved, 1, 2 }, { &cut, 1, 2 },
                 { two, 2, 2 },      { two, 1, 2 },    { behind, 2, 5 }, { &image, 1, PAGES } };
    struct tree t = tree_open();
    insert(&t, &image, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect(eq(u32, peek(&t, rows[i].spans, rows[i].n), rows[i].pages), "row %zu", i);
    weir_radix_destroy(&t.radix);
}

/* The bytes of a digest behind those that count do not. */
Test(spans, a_short_digest_is_compared_as_far_as_it_goes)
{
    struct tree t = tree_open();
    weir_span image = span_of(0, 3, 1), same = span_of(0, 3, 2);
    image.digest_bytes = same.digest_bytes = 31;
    insert(&t, &image, 1);
    cr_expect(eq(u32, peek(&t, &same, 1), PAGES));
    same.digest[30] = 1;
    cr_expect(eq(u32, peek(&t, &same, 1), 0));
    weir_span whole = span_of(0, 3, 0), half = whole;
    half.digest_bytes = 16;
    insert(&t, &whole, 1);
    cr_expect(eq(u32, peek(&t, &half, 1), 0), "zeros behind it are not the same digest");
    weir_radix_destroy(&t.radix);
}

/* A part that begins inside a span is the prompt's rest. */
Test(spans, a_part_continues_where_another_ended)
{
    weir_span spans[] = { span_of(1, 2, 1), span_of(10, 12, 2), span_of(39, 1, 3) };
    for (size_t at = 0; at <= PAGES; at++) {
        struct tree t = tree_open();
        weir_part part = part_of(&t, spans, 3), rest = part;
        part.n_tokens = at * T;
        rest.first = at * T;
        rest.tokens += at * T;
        rest.n_tokens -= at * T;
        uint32_t n_there;
        must(weir_radix_insert(t.radix, t.root, &part, t.refs, &n_there) == 0, "a part");
        int32_t place = at ? t.refs[at - 1] : t.root;
        must(weir_radix_insert(t.radix, place, &rest, t.refs, &n_there) == 0, "the rest");
        expect_sound(t.radix);
        insert(&t, spans, 3);
        cr_expect(eq(u32, t.n_there, PAGES), "cut at page %zu", at);
        place = at ? t.refs[at - 1] : t.root;
        cr_expect(eq(u32, weir_radix_peek(t.radix, place, &rest, NULL, PAGES), PAGES - at));
        rest.first += 1;
        if (at < 5)
            cr_expect(lt(u32, weir_radix_peek(t.radix, place, &rest, NULL, PAGES), PAGES - at),
                      "a part from elsewhere");
        weir_radix_destroy(&t.radix);
    }
}

Test(spans, bad_parts)
{
    struct tree t = tree_open();
    weir_span good = span_of(4, 4, 1);
    insert(&t, &good, 1);
    weir_span empty = span_of(4, 0, 1), far = span_of(INT32_MAX, 1, 1), long_one = good;
    weir_span short_digest = good, long_digest = good;
    weir_span overlap[] = { span_of(4, 4, 1), span_of(7, 1, 1) };
    weir_span descending[] = { span_of(8, 1, 1), span_of(4, 1, 1) };
    long_one.n_tokens = SIZE_MAX;
    short_digest.digest_bytes = WEIR_MIN_DIGEST_BYTES - 1;
    long_digest.digest_bytes = WEIR_MAX_DIGEST_BYTES + 1;
    weir_part parts[] = { part_of(&t, &empty, 1),
                          part_of(&t, &far, 1),
                          part_of(&t, &long_one, 1),
                          part_of(&t, &short_digest, 1),
                          part_of(&t, &long_digest, 1),
                          part_of(&t, overlap, 2),
                          part_of(&t, descending, 2),
                          part_of(&t, NULL, 1),
                          part_of(&t, &good, WEIR_MAX_SPANS + 1),
                          part_of(&t, &good, 1) };
    parts[9].first = SIZE_MAX;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t n_there = 77;
        cr_expect(zero(u32, weir_radix_peek(t.radix, t.root, &parts[i], NULL, PAGES)), "%zu", i);
        cr_expect(zero(sz, weir_radix_count_spans(t.radix, &parts[i])), "%zu", i);
        cr_expect(eq(int, weir_radix_insert(t.radix, t.root, &parts[i], t.refs, &n_there), -EINVAL),
                  "%zu", i);
        cr_expect(eq(u32, n_there, 77));
    }
    cr_expect(eq(int, weir_radix_hold_spans(t.radix, SIZE_MAX), -E2BIG));
    weir_radix_destroy(&t.radix);
}

Test(spans, counted_by_the_pages_that_they_overlap)
{
    struct tree t = tree_open();
    struct {
        size_t first, n_tokens, first_token;
        size_t want;
    } rows[] = { { 0, 1, 0, 1 },  { 0, 4, 0, 1 },    { 0, 5, 0, 2 },
                 { 3, 2, 0, 2 },  { 10, 12, 0, 4 },  { 36, 9, 0, 1 },
                 { 40, 9, 0, 0 }, { 10, 12, 16, 2 }, { 2, 1, 4, 0 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weir_span span = span_of(rows[i].first, rows[i].n_tokens, 1);
        weir_part part = part_of(&t, &span, 1);
        part.first = rows[i].first_token;
        cr_expect(eq(sz, weir_radix_count_spans(t.radix, &part), rows[i].want), "row %zu", i);
    }
    weir_span two[] = { span_of(1, 1, 1), span_of(2, 1, 1) };
    weir_part part = part_of(&t, two, 2);
    cr_expect(eq(sz, weir_radix_count_spans(t.radix, &part), 2), "of one page");
    weir_radix_destroy(&t.radix);
}

Test(spans, pages_without_spans_take_nothing)
{
    struct tree t = tree_open();
    size_t before = weir_radix_bytes(t.radix);
    insert(&t, NULL, 0);
    cr_expect(eq(sz, weir_radix_bytes(t.radix), before));
    weir_span image = span_of(10, 12, 1);
    insert(&t, &image, 1);
    size_t after = weir_radix_bytes(t.radix);
    cr_expect(lt(sz, before, after));
    for (unsigned char i = 2; i < 9; i++) {
        for (uint32_t k = PAGES; k-- > 2;)
            must(weir_radix_remove(t.radix, t.refs[k]) == 0, "remove");
        image.digest[31] = i;
        insert(&t, &image, 1);
        cr_expect(eq(u32, t.n_there, 2));
    }
    cr_expect(eq(sz, weir_radix_bytes(t.radix), after), "what goes is used again");
    weir_radix_destroy(&t.radix);
}

/* As chats with a picture each below one system prompt: same tokens, no two
 * alike. Their hashes are told apart as well, or looking one up would try all. */
Test(spans, many_images_behind_one_prompt)
{
    enum {
        IMAGES = 3000
    };
    weir_radix *radix;
    int32_t root, tokens[2] = { 0 }, refs[2], *all = calloc(IMAGES, sizeof *all);
    cr_assert(ne(ptr, all, NULL));
    cr_assert(zero(int, weir_radix_create(&radix, 1, IMAGES + 1, NULL)));
    cr_assert(zero(int, weir_radix_hold_root(radix, NULL, 0, &root)));
    weir_span image = { .first = 1, .n_tokens = 1, .digest_bytes = 16 };
    weir_part part = { .tokens = tokens, .n_tokens = 2, .spans = &image, .n_spans = 1 };
    uint32_t n_there;
    for (int32_t i = 0; i < IMAGES; i++) {
        memcpy(image.digest, &i, sizeof i);
        must(weir_radix_insert(radix, root, &part, refs, &n_there) == 0, "insert");
        must(n_there == (i > 0), "image %d", i);
        all[i] = refs[1];
    }
    expect_sound(radix);
    for (int32_t i = 0; i < IMAGES; i++) {
        memcpy(image.digest, &i, sizeof i);
        must(weir_radix_peek(radix, root, &part, refs, 2) == 2 && refs[1] == all[i], "%d", i);
        must(i == 0 || weir_radix_hash(radix, all[i]) != weir_radix_hash(radix, all[i - 1]),
             "two hashes");
        if (i % 3)
            must(weir_radix_remove(radix, all[i]) == 0, "remove");
    }
    expect_sound(radix);
    for (int32_t i = 0; i < IMAGES; i++) {
        memcpy(image.digest, &i, sizeof i);
        must(weir_radix_peek(radix, root, &part, refs, 2) == (i % 3 ? 1 : 2), "%d", i);
    }
    weir_radix_destroy(&radix);
    free(all);
}

/* Prompts of pages, each with one of a few patterns of spans over equal tokens,
 * against a list of all paths that were put in. */
static const size_t patterns[][2][2] = {
    { { 0, 0 }, { 0, 0 } }, { { 0, 4 }, { 0, 0 } }, { { 1, 2 }, { 0, 0 } },
    { { 0, 1 }, { 3, 1 } }, { { 0, 2 }, { 2, 2 } },
};
#define N_PATTERNS (sizeof patterns / sizeof *patterns)

static size_t spans_of(const unsigned char *prompt, size_t n_pages, weir_span *spans)
{
    size_t n = 0;
    for (size_t page = 0; page < n_pages; page++)
        for (size_t k = 0; k < 2; k++) {
            const size_t *at = patterns[prompt[page] % N_PATTERNS][k];
            if (at[1])
                spans[n++] = span_of(page * T + at[0], at[1], prompt[page] / N_PATTERNS);
        }
    return n;
}

Test(spans, random_prompts_equal_a_list)
{
    enum {
        DEPTH = 6,
        MOST = 300
    };
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct random random = { seed };
        static unsigned char paths[MOST][DEPTH];
        static size_t lengths[MOST];
        int32_t tokens[DEPTH * T] = { 0 }, refs[DEPTH], root;
        size_t n_paths = 0;
        weir_radix *radix;
        must(weir_radix_create(&radix, T, DEPTH * MOST, NULL) == 0, "create");
        must(weir_radix_hold_root(radix, NULL, 0, &root) == 0, "root");
        for (uint32_t i = 0; i < 3 * MOST; i++) {
            unsigned char prompt[DEPTH];
            weir_span spans[2 * DEPTH];
            size_t length = 1 + random_below(&random, DEPTH), want = 0;
            for (size_t k = 0; k < length; k++)
                prompt[k] = (unsigned char)random_below(&random, 2 * N_PATTERNS);
            for (size_t p = 0; p < n_paths; p++) {
                size_t same = 0;
                while (same < length && same < lengths[p] &&
                       (prompt[same] == paths[p][same] ||
                        (prompt[same] % N_PATTERNS == 0 && paths[p][same] % N_PATTERNS == 0)))
                    same++;
                want = same > want ? same : want;
            }
            weir_part part = { .tokens = tokens, .n_tokens = length * T, .spans = spans };
            part.n_spans = spans_of(prompt, length, spans);
            must(weir_radix_peek(radix, root, &part, refs, DEPTH) == want,
                 "seed %llu: prompt %u, not %zu pages", (unsigned long long)seed, i, want);
            if (n_paths == MOST || random_percent(&random, 50))
                continue;
            uint32_t n_there;
            must(weir_radix_insert(radix, root, &part, refs, &n_there) == 0, "insert");
            must(n_there == want, "seed %llu: prompt %u", (unsigned long long)seed, i);
            memcpy(paths[n_paths], prompt, length);
            lengths[n_paths++] = length;
            if (i % 16 == 0)
                expect_sound(radix);
        }
        expect_sound(radix);
        weir_radix_destroy(&radix);
    }
}

/* ---- The cache ------------------------------------------------------------ */

/* "ABBBC": a system prompt, an image of three pages less a token at either end,
 * and a question. */
static weir_key key_with_image(struct rig *r, const char *letters, size_t tail, weir_span *image,
                               unsigned char content)
{
    weir_key key = rig_key(r, letters, tail);
    *image = span_of(r->t + 1, 3 * (size_t)r->t - 2, content);
    key.spans = image;
    key.n_spans = 1;
    return key;
}

static size_t pages_hit(struct rig *r, const char *letters, unsigned char content)
{
    weir_span image;
    weir_key key = key_with_image(r, letters, 0, &image, content);
    weir_hit hit = { 0 };
    gives(r, weir_cache_peek(r->cache, &key, &hit), 0);
    return hit.n_tokens / r->t;
}

/* Computes the letters behind the key, too, as a server does that generates. */
static void chat(struct rig *r, const char *letters, size_t of_key, unsigned char content,
                 size_t want_hit)
{
    char known[16];
    snprintf(known, sizeof known, "%.*s", (int)of_key, letters);
    weir_span image;
    weir_key key = key_with_image(r, known, 0, &image, content);
    weir_seq seq;
    gives(r, weir_seq_open(&seq, r->cache, &key, NULL), 0);
    memset(&image, 0xff, sizeof image); /* a copy was made */
    weir_hit hit = { 0 };
    gives(r, rig_reserve(r, seq, (strlen(letters)) * r->t, &hit), 0);
    cr_expect(eq(sz, hit.n_tokens / r->t, want_hit), "%s", letters);
    key = rig_key(r, letters, 0);
    rig_begin(r);
    rig_add(r, seq);
    size_t n = rig_info(r, seq).n_committed;
    gives(r, weir_seq_commit(seq, key.tokens + n, key.n_tokens - n), 0);
    rig_ack(r, rig_end(r)->step);
    rig_done(r, &seq);
}

static const uint32_t chat_page_tokens[] = { 4, 16, 64, 1024 };

Test(spans, chats_with_other_images_share_the_system_prompt)
{
    for (size_t p = 0; p < 4; p++) {
        struct rig r;
        rig_open(&r, rig_params(chat_page_tokens[p], 40, 40));
        chat(&r, "ABBBC", 5, 1, 0);
        cr_expect(eq(sz, pages_hit(&r, "ABBBC", 1), 5));
        cr_expect(eq(sz, pages_hit(&r, "ABBBC", 2), 1));
        rig_expect_hit(&r, "ABBBC", 1, 0, 0);
        chat(&r, "ABBBC", 5, 2, 1);
        chat(&r, "ABBBC", 5, 1, 4); /* at least one token is computed */
        cr_expect(eq(sz, pages_hit(&r, "ABBBC", 2), 5));
        rig_close(&r);
    }
}

/* The answer is committed by its tokens; the next turn's key has the image, the
 * answer and the next question. */
Test(spans, the_next_turn_hits_the_image_and_the_answer)
{
    for (size_t p = 0; p < 4; p++) {
        struct rig r;
        rig_open(&r, rig_params(chat_page_tokens[p], 40, 40));
        chat(&r, "ABBBCDE", 5, 1, 0);
        chat(&r, "ABBBCDEFG", 8, 1, 7);
        chat(&r, "ABBBCDEFG", 8, 2, 1);
        cr_expect(eq(sz, pages_hit(&r, "ABBBCDEFG", 1), 9));
        rig_close(&r);
    }
}

/* The page that the key ends in has a part of the image, and the answer. */
Test(spans, an_image_at_the_end_of_the_key)
{
    struct rig r;
    rig_open(&r, rig_params(16, 20, 0));
    for (unsigned char content = 1; content <= 2; content++) {
        weir_key whole = rig_key(&r, "AB", 0), key = whole;
        weir_span image = span_of(14, 6, content);
        key.n_tokens = 20;
        key.spans = &image;
        key.n_spans = 1;
        weir_seq seq;
        gives(&r, weir_seq_open(&seq, r.cache, &key, NULL), 0);
        gives(&r, rig_reserve(&r, seq, 32, NULL), 0);
        rig_begin(&r);
        rig_add(&r, seq);
        gives(&r, weir_seq_commit(seq, whole.tokens, 32), 0);
        rig_ack(&r, rig_end(&r)->step);
        rig_done(&r, &seq);
        key.n_tokens = 32;
        weir_hit hit;
        gives(&r, weir_cache_peek(r.cache, &key, &hit), 0);
        cr_expect(eq(sz, hit.n_tokens, 32));
        image.digest[0]++;
        gives(&r, weir_cache_peek(r.cache, &key, &hit), 0);
        cr_expect(zero(sz, hit.n_tokens));
    }
    cr_expect(eq(u64, rig_stats(&r).index_pages, 4));
    rig_close(&r);
}

Test(spans, images_go_to_host_memory_and_come_back)
{
    struct rig r;
    rig_open(&r, rig_params(16, 8, 20));
    chat(&r, "ABBBC", 5, 1, 0);
    rig_settle(&r);
    rig_push_out(&r);
    weir_span image;
    weir_key key = key_with_image(&r, "ABBBC", 1, &image, 1);
    weir_hit hit;
    gives(&r, weir_cache_peek(r.cache, &key, &hit), 0);
    cr_expect(hit.n_host == 5 * 16 && hit.n_device == 0);
    weir_seq seq;
    gives(&r, weir_seq_open(&seq, r.cache, &key, NULL), 0);
    gives(&r, rig_reserve(&r, seq, key.n_tokens, &hit), 0);
    cr_expect(eq(sz, hit.n_host, 5 * 16));
    rig_ack(&r, rig_run(&r, seq, 5)->step);
    cr_expect(eq(sz, pages_hit(&r, "ABBBC", 2), 1));
    rig_done(&r, &seq);
    rig_close(&r);
}

/* A page that goes takes its spans along: others can have them. */
Test(spans, memory_follows_the_pages_that_are_there)
{
    struct rig r;
    rig_open(&r, rig_params(16, 8, 0));
    for (unsigned char content = 1; content < 4; content++)
        chat(&r, "ABBBC", 5, content, content > 1);
    uint64_t bytes = rig_stats(&r).index_bytes;
    for (unsigned char content = 4; content < 60; content++)
        chat(&r, "ABBBC", 5, content, 1);
    cr_expect(eq(u64, rig_stats(&r).index_bytes, bytes));
    rig_close(&r);
}

Test(spans, bad_keys)
{
    struct rig r;
    rig_open(&r, rig_params(16, 8, 8));
    weir_span image;
    weir_key key = key_with_image(&r, "ABBBC", 0, &image, 1);
    weir_span overlap[] = { span_of(0, 2, 1), span_of(1, 2, 1) };
    struct {
        weir_span span;
        const weir_span *spans;
        size_t n;
    } rows[] = {
        { .span = span_of(80, 1, 1), .n = 1 }, /* behind the tokens */
        { .span = span_of(79, 2, 1), .n = 1 },
        { .span = span_of(3, 0, 1), .n = 1 },
        { .span = span_of(3, SIZE_MAX, 1), .n = 1 },
        { .span = { .n_tokens = 1, .digest_bytes = 15 }, .n = 1 },
        { .span = { .n_tokens = 1, .digest_bytes = 33 }, .n = 1 },
        { .spans = overlap, .n = 2 },
        { .spans = overlap, .n = WEIR_MAX_SPANS + 1 },
        { .n = 1 },
    };
    uint64_t digest = weir_cache_digest(r.cache);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool is_null = !rows[i].spans && i == sizeof rows / sizeof *rows - 1;
        key.spans = rows[i].spans || is_null ? rows[i].spans : &rows[i].span;
        key.n_spans = rows[i].n;
        weir_seq seq = { 0 };
        weir_hit hit;
        uint32_t lines = r.log.lines;
        gives(&r, weir_seq_open(&seq, r.cache, &key, NULL), -EINVAL);
        gives(&r, weir_cache_peek(r.cache, &key, &hit), -EINVAL);
        cr_expect(eq(u32, r.log.lines, lines + 2), "row %zu: a line a call", i);
        cr_expect(zero(u64, seq.id));
    }
    cr_expect(eq(u64, weir_cache_digest(r.cache), digest));
    rig_close(&r);
}

/* What a digest of the state sees: the spans of a sequence and of pages. */
Test(spans, digests_tell_images_apart)
{
    struct rig r[2];
    uint64_t digests[2], open[2];
    for (unsigned char i = 0; i < 2; i++) {
        rig_open(&r[i], rig_params(16, 8, 8));
        weir_span image;
        weir_key key = key_with_image(&r[i], "D", 64, &image, i);
        weir_seq seq;
        gives(&r[i], weir_seq_open(&seq, r[i].cache, &key, NULL), 0);
        open[i] = weir_cache_digest(r[i].cache);
        rig_done(&r[i], &seq);
        chat(&r[i], "ABBBC", 5, i, 0);
        digests[i] = weir_cache_digest(r[i].cache);
        rig_close(&r[i]);
    }
    cr_expect(ne(u64, digests[0], digests[1]));
    cr_expect(ne(u64, open[0], open[1]));
}
