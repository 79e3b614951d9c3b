/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"

#include <weir/radix.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* In loops of many thousand steps: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

/* Only there under AddressSanitizer. Criterion alone does not fail on a leak. */
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

static const uint32_t page_sizes[] = { 1, 3, 16, 64, 1024 };
#define N_PAGE_SIZES (sizeof page_sizes / sizeof *page_sizes)

/* Prompts are written as strings, one letter a page. Pages of different
 * letters differ in one token only, which moves with the letter. */
static void write_page(int32_t *tokens, uint32_t page_tokens, char letter)
{
    for (uint32_t i = 0; i < page_tokens; i++)
        tokens[i] = (int32_t)i - 5;
    uint32_t at = letter % 3 == 0 ? 0 : letter % 3 == 1 ? page_tokens - 1 : page_tokens / 2;
    tokens[at] = INT32_MIN + letter;
}

/* Freed by the caller; one token longer than its pages. */
static int32_t *tokens_of(const char *prompt, uint32_t page_tokens)
{
    size_t n = strlen(prompt);
    int32_t *tokens = calloc(n * page_tokens + 1, sizeof *tokens);
    must(tokens, "no memory");
    for (size_t i = 0; i < n; i++)
        write_page(tokens + i * page_tokens, page_tokens, prompt[i]);
    return tokens;
}

static void expect_sound(const weir_radix *radix)
{
    const char *reason = "";
    must(weir_radix_check(radix, &reason) == 0, "%s", reason);
}

#define MAX_PROMPT 512u

struct tree {
    weir_radix *radix;
    uint32_t page_tokens;
    int32_t root; /* held, of the common namespace */
    int32_t refs[MAX_PROMPT];
    uint32_t n_there;
};

static struct tree tree_open(uint32_t page_tokens, uint32_t max_pages)
{
    struct tree t = { .page_tokens = page_tokens };
    cr_assert(eq(int, weir_radix_create(&t.radix, page_tokens, max_pages, NULL), 0));
    cr_assert(eq(int, weir_radix_hold_root(t.radix, NULL, 0, &t.root), 0));
    return t;
}

static void tree_close(struct tree *t)
{
    expect_sound(t->radix);
    weir_radix_destroy(&t->radix);
}

static weir_part part_of(const int32_t *tokens, size_t n)
{
    return (weir_part){ .tokens = tokens, .n_tokens = n };
}

static int insert(struct tree *t, int32_t place, const char *prompt)
{
    int32_t *tokens = tokens_of(prompt, t->page_tokens);
    weir_part part = part_of(tokens, strlen(prompt) * t->page_tokens);
    int rc = weir_radix_insert(t->radix, place, &part, t->refs, &t->n_there);
    free(tokens);
    return rc;
}

static uint32_t peek(struct tree *t, int32_t place, const char *prompt)
{
    int32_t *tokens = tokens_of(prompt, t->page_tokens);
    weir_part part = part_of(tokens, strlen(prompt) * t->page_tokens);
    uint32_t n = weir_radix_peek(t->radix, place, &part, t->refs, MAX_PROMPT);
    free(tokens);
    return n;
}

static uint32_t match(struct tree *t, int32_t place, const char *prompt)
{
    int32_t *tokens = tokens_of(prompt, t->page_tokens);
    weir_part part = part_of(tokens, strlen(prompt) * t->page_tokens);
    uint32_t n = weir_radix_match(t->radix, place, &part, t->refs, MAX_PROMPT);
    free(tokens);
    return n;
}

/* ---- One thing at a time ------------------------------------------------- */

Test(radix, limits_of_create)
{
    static const uint32_t bad[][2] = { { 0, 1 },  { 1025, 1 },      { UINT32_MAX, 1 },
                                       { 16, 0 }, { 16, 1u << 30 }, { 16, UINT32_MAX } };
    weir_radix *untouched = (weir_radix *)&untouched;
    weir_radix *radix = untouched;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect(eq(int, weir_radix_create(&radix, bad[i][0], bad[i][1], NULL), -EINVAL));
    cr_expect(eq(int, weir_radix_create(NULL, 16, 16, NULL), -EINVAL));
    cr_expect(eq(ptr, radix, untouched));
    for (size_t i = 0; i < N_PAGE_SIZES; i++) {
        cr_assert(eq(int, weir_radix_create(&radix, page_sizes[i], 1, NULL), 0));
        cr_expect(zero(u32, weir_radix_pages(radix)));
        cr_expect(lt(sz, page_sizes[i] * sizeof(int32_t), weir_radix_bytes(radix)));
        weir_radix_destroy(&radix);
        cr_expect(zero(ptr, radix));
    }
    weir_radix_destroy(&radix);
    weir_radix_destroy(NULL);
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

Test(radix, only_whole_pages_match)
{
    for (size_t i = 0; i < N_PAGE_SIZES; i++) {
        uint32_t page_tokens = page_sizes[i];
        struct tree t = tree_open(page_tokens, 8);
        cr_assert(eq(int, insert(&t, t.root, "abcd"), 0));
        int32_t *tokens = tokens_of("abcde", page_tokens);
        for (uint32_t k = 0; k <= 4; k++) {
            for (int extra = -1; extra <= 1; extra++) {
                if (k == 0 && extra < 0)
                    continue;
                size_t n = k * page_tokens + (size_t)extra;
                uint32_t expected = (uint32_t)(n / page_tokens);
                expected = expected < 4 ? expected : 4;
                weir_part part = part_of(tokens, n);
                uint32_t got = weir_radix_peek(t.radix, t.root, &part, t.refs, MAX_PROMPT);
                cr_expect(eq(u32, got, expected), "%zu tokens in pages of %u", n, page_tokens);
                got = weir_radix_match(t.radix, t.root, &part, t.refs, 2);
                cr_expect(eq(u32, got, expected < 2 ? expected : 2), "at most the capacity");
            }
        }
        weir_part none = part_of(NULL, 0);
        cr_expect(zero(u32, weir_radix_peek(t.radix, t.root, &none, NULL, 0)));
        /* One wrong token anywhere ends the match before its page. */
        for (uint32_t k = 0; k < 4 * page_tokens; k += 1 + page_tokens / 5) {
            tokens[k] ^= 1;
            weir_part part = part_of(tokens, (size_t)4 * page_tokens);
            uint32_t got = weir_radix_peek(t.radix, t.root, &part, t.refs, MAX_PROMPT);
            cr_expect(eq(u32, got, k / page_tokens), "token %u of pages of %u", k, page_tokens);
            tokens[k] ^= 1;
        }
        free(tokens);
        tree_close(&t);
    }
}

Test(radix, insert_tells_what_was_there)
{
    for (size_t i = 0; i < N_PAGE_SIZES; i++) {
        struct tree t = tree_open(page_sizes[i], 20);
        cr_assert(eq(int, insert(&t, t.root, "abcdef"), 0));
        cr_expect(eq(u32, t.n_there, 0));
        int32_t first[6];
        memcpy(first, t.refs, sizeof first);

        cr_assert(eq(int, insert(&t, t.root, "abcxyz"), 0)); /* splits */
        cr_expect(eq(u32, t.n_there, 3));
        cr_expect(zero(int, memcmp(first, t.refs, 3 * sizeof *first)));
        int32_t x = t.refs[3];
        cr_expect(eq(i32, weir_radix_parent(t.radix, x), first[2]));

        cr_assert(eq(int, insert(&t, first[1], "cd"), 0)); /* below a page inside */
        cr_expect(eq(u32, t.n_there, 2));
        cr_expect(eq(i32, t.refs[1], first[3]));
        cr_assert(eq(int, insert(&t, t.root, "abcdef"), 0));
        cr_expect(eq(u32, t.n_there, 6));
        cr_expect(zero(int, memcmp(first, t.refs, sizeof first)), "refs outlive splits");
        cr_assert(eq(int, insert(&t, t.root, ""), 0));
        cr_expect(eq(u32, t.n_there, 0));
        cr_expect(eq(u32, weir_radix_pages(t.radix), 9));
        cr_expect(eq(u32, peek(&t, first[2], "xyz"), 3));
        cr_expect(eq(u32, peek(&t, first[3], "xyz"), 0));
        tree_close(&t);
    }
}

Test(radix, nospace_has_no_effect)
{
    struct tree t = tree_open(16, 5);
    cr_assert(eq(int, insert(&t, t.root, "abc"), 0));
    uint64_t used = weir_radix_last_use(t.radix, t.refs[0]);
    t.n_there = 77;
    cr_expect(eq(int, insert(&t, t.root, "abxyz"), -ENOSPC));
    cr_expect(eq(u32, t.n_there, 77));
    cr_expect(eq(u32, weir_radix_pages(t.radix), 3));
    cr_expect(eq(u32, peek(&t, t.root, "abxyz"), 2));
    cr_expect(eq(u32, peek(&t, t.root, "abc"), 3));
    cr_expect(eq(u64, weir_radix_last_use(t.radix, t.refs[0]), used));
    expect_sound(t.radix);
    cr_expect(eq(int, insert(&t, t.root, "abxy"), 0), "what fits goes in");
    cr_expect(eq(int, insert(&t, t.root, "abcd"), -ENOSPC));
    tree_close(&t);
}

Test(radix, leaves_are_removed_before_parents)
{
    struct tree t = tree_open(3, 10);
    cr_assert(eq(int, insert(&t, t.root, "abcd"), 0));
    int32_t chain[4];
    memcpy(chain, t.refs, sizeof chain);
    cr_assert(eq(int, insert(&t, t.root, "abx"), 0));
    int32_t x = t.refs[2];
    for (int i = 0; i < 3; i++)
        cr_expect(eq(int, weir_radix_remove(t.radix, chain[i]), -EBUSY));
    cr_expect(eq(int, weir_radix_remove(t.radix, chain[3]), 0));
    cr_expect(eq(int, weir_radix_remove(t.radix, chain[3]), -EINVAL));
    cr_expect(eq(int, weir_radix_remove(t.radix, chain[2]), 0));
    cr_expect(eq(int, weir_radix_remove(t.radix, chain[1]), -EBUSY), "the other branch");
    cr_expect(eq(int, weir_radix_remove(t.radix, x), 0));
    cr_expect(eq(int, weir_radix_remove(t.radix, chain[1]), 0));
    cr_expect(eq(int, weir_radix_remove(t.radix, chain[0]), 0));
    static const int32_t bad[] = { -1, -2, INT32_MIN, 10, INT32_MAX };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect(eq(int, weir_radix_remove(t.radix, bad[i]), -EINVAL), "%d", bad[i]);
        cr_expect(eq(i32, weir_radix_parent(t.radix, bad[i]), WEIR_RADIX_NONE));
        cr_expect(eq(i32, weir_radix_next_sibling(t.radix, bad[i]), WEIR_RADIX_NONE));
        cr_expect(zero(ptr, (void *)weir_radix_tokens(t.radix, bad[i])));
    }
    cr_expect(zero(ptr, (void *)weir_radix_tokens(t.radix, chain[0])), "removed");
    cr_expect(eq(i32, weir_radix_parent(t.radix, chain[0]), WEIR_RADIX_NONE));
    cr_expect(zero(u32, weir_radix_pages(t.radix)));
    tree_close(&t);
}

Test(radix, match_marks_and_peek_does_not)
{
    struct tree t = tree_open(16, 10);
    cr_assert(eq(int, insert(&t, t.root, "abc"), 0));
    int32_t a = t.refs[0], b = t.refs[1], c = t.refs[2];
    uint64_t inserted = weir_radix_last_use(t.radix, a);
    cr_expect(eq(u64, weir_radix_last_use(t.radix, c), inserted), "one call, one time");

    cr_expect(eq(u32, peek(&t, t.root, "ab"), 2));
    cr_expect(eq(u64, weir_radix_last_use(t.radix, a), inserted));
    cr_expect(eq(u32, match(&t, t.root, "ab"), 2));
    cr_expect(lt(u64, inserted, weir_radix_last_use(t.radix, a)));
    cr_expect(eq(u64, weir_radix_last_use(t.radix, b), weir_radix_last_use(t.radix, a)));
    cr_expect(eq(u64, weir_radix_last_use(t.radix, c), inserted), "not in the match");

    weir_radix_touch(t.radix, &c, 1);
    cr_expect(lt(u64, weir_radix_last_use(t.radix, a), weir_radix_last_use(t.radix, c)));
    cr_assert(eq(int, insert(&t, t.root, "ax"), 0));
    cr_expect(lt(u64, weir_radix_last_use(t.radix, c), weir_radix_last_use(t.radix, a)),
              "inserting again is a use");
    tree_close(&t);
}

Test(radix, many_children_below_one_page)
{
    for (size_t i = 0; i < N_PAGE_SIZES; i++) {
        struct tree t = tree_open(page_sizes[i], 101);
        cr_assert(eq(int, insert(&t, t.root, "a"), 0));
        int32_t a = t.refs[0];
        int32_t children[100];
        bool seen[101] = { false };
        for (int k = 0; k < 100; k++) {
            char prompt[] = { (char)(k + 1), '\0' };
            cr_assert(eq(int, insert(&t, a, prompt), 0));
            children[k] = t.refs[0];
        }
        uint32_t n = 0;
        for (int32_t child = weir_radix_first_child(t.radix, a); child != WEIR_RADIX_NONE;
             child = weir_radix_next_sibling(t.radix, child)) {
            must(child >= 0 && child < 101 && !seen[child], "child %d", child);
            seen[child] = true;
            n++;
        }
        cr_expect(eq(u32, n, 100));
        for (int k = 0; k < 100; k += 2)
            must(weir_radix_remove(t.radix, children[k]) == 0, "child %d", k);
        for (int k = 0; k < 100; k++) {
            char prompt[] = { (char)(k + 1), '\0' };
            must(peek(&t, a, prompt) == (uint32_t)(k % 2), "child %d", k);
        }
        tree_close(&t);
    }
}

/* ---- Namespaces ---------------------------------------------------------- */

#define FIELD(tag_, text)                                        \
    {                                                            \
        .tag = (tag_), .bytes = sizeof(text) - 1, .data = (text) \
    }

static const struct {
    weir_field fields[3];
    size_t n_fields;
} namespaces[] = {
    { { { 0 } }, 0 },
    { { FIELD(1, "a"), FIELD(2, "bc") }, 2 },
    { { FIELD(1, "ab"), FIELD(2, "c") }, 2 },
    { { FIELD(1, "abc") }, 1 },
    { { FIELD(2, "abc") }, 1 },
    { { FIELD(2, "bc"), FIELD(1, "a") }, 2 },
    { { FIELD(1, "a"), FIELD(1, "bc") }, 2 },
    { { FIELD(1, "ab"), FIELD(1, "c") }, 2 },
    { { FIELD(1, "") }, 1 },
    { { FIELD(1, ""), FIELD(1, "") }, 2 },
    { { FIELD(1, "a\0b") }, 1 },
    { { FIELD(1, "a\0c") }, 1 },
    { { FIELD(0, "a"), FIELD(0, "b"), FIELD(0, "c") }, 3 },
};
#define N_NAMESPACES (sizeof namespaces / sizeof *namespaces)

Test(radix, namespaces_share_nothing)
{
    struct tree t = tree_open(3, 64);
    int32_t roots[N_NAMESPACES], refs[N_NAMESPACES];
    for (size_t i = 0; i < N_NAMESPACES; i++) {
        const weir_field *fields = namespaces[i].fields;
        size_t n = namespaces[i].n_fields;
        int32_t root = 77;
        if (i > 0) {
            cr_expect(eq(int, weir_radix_find_root(t.radix, fields, n, &root), -ENOENT), "%zu", i);
            cr_expect(eq(i32, root, 77));
        }
        cr_assert(eq(int, weir_radix_hold_root(t.radix, fields, n, &roots[i]), 0));
        cr_expect(lt(i32, roots[i], WEIR_RADIX_NONE));
        for (size_t k = 0; k < i; k++)
            cr_expect(ne(i32, roots[i], roots[k]), "%zu and %zu", i, k);
        cr_expect(zero(u32, peek(&t, roots[i], "ab")));
        cr_assert(eq(int, insert(&t, roots[i], "ab"), 0));
        cr_expect(zero(u32, t.n_there));
        refs[i] = t.refs[0];
        cr_expect(eq(i32, weir_radix_parent(t.radix, refs[i]), roots[i]));
    }
    for (size_t i = 0; i < N_NAMESPACES; i++) {
        int32_t root = 77;
        cr_assert(eq(
            int, weir_radix_find_root(t.radix, namespaces[i].fields, namespaces[i].n_fields, &root),
            0));
        cr_expect(eq(i32, root, roots[i]));
        cr_expect(eq(u32, peek(&t, root, "ab"), 2));
        cr_expect(eq(i32, t.refs[0], refs[i]));
    }
    tree_close(&t);
}

Test(radix, a_root_lives_while_held_or_with_pages)
{
    struct tree t = tree_open(3, 8);
    const weir_field *fields = namespaces[1].fields;
    int32_t root, again;
    cr_assert(eq(int, weir_radix_hold_root(t.radix, fields, 2, &root), 0));
    cr_assert(eq(int, weir_radix_hold_root(t.radix, fields, 2, &again), 0));
    cr_expect(eq(i32, root, again));
    weir_radix_release_root(t.radix, root);
    cr_expect(eq(int, weir_radix_find_root(t.radix, fields, 2, &again), 0), "held once more");
    cr_assert(eq(int, insert(&t, root, "a"), 0));
    weir_radix_release_root(t.radix, root);
    cr_expect(eq(int, weir_radix_find_root(t.radix, fields, 2, &again), 0), "has a page");
    cr_assert(eq(int, weir_radix_remove(t.radix, t.refs[0]), 0));
    cr_expect(eq(int, weir_radix_find_root(t.radix, fields, 2, &again), -ENOENT));
    cr_assert(eq(int, weir_radix_hold_root(t.radix, fields, 2, &root), 0));
    weir_radix_release_root(t.radix, root);
    cr_expect(eq(int, weir_radix_find_root(t.radix, fields, 2, &again), -ENOENT));
    tree_close(&t);
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

Test(radix, limits_of_fields)
{
    struct tree t = tree_open(3, 8);
    static char data[WEIR_MAX_FIELD_BYTES + 1];
    weir_field fields[WEIR_MAX_FIELDS + 1];
    for (size_t i = 0; i <= WEIR_MAX_FIELDS; i++)
        fields[i] = (weir_field){ .tag = 1, .bytes = WEIR_MAX_FIELD_BYTES, .data = data };
    int32_t root = 77;
    cr_expect(eq(int, weir_radix_hold_root(t.radix, fields, WEIR_MAX_FIELDS + 1, &root), -EINVAL));
    cr_expect(eq(int, weir_radix_find_root(t.radix, fields, WEIR_MAX_FIELDS + 1, &root), -EINVAL));
    cr_expect(eq(int, weir_radix_hold_root(t.radix, fields, SIZE_MAX, &root), -EINVAL));
    cr_expect(eq(int, weir_radix_hold_root(t.radix, NULL, 1, &root), -EINVAL));
    fields[3].bytes = WEIR_MAX_FIELD_BYTES + 1;
    cr_expect(eq(int, weir_radix_hold_root(t.radix, fields, 4, &root), -EINVAL));
    fields[3] = (weir_field){ .tag = 1, .bytes = 1, .data = NULL };
    cr_expect(eq(int, weir_radix_hold_root(t.radix, fields, 4, &root), -EINVAL));
    cr_expect(eq(i32, root, 77));
    fields[3] = (weir_field){ .tag = 1, .bytes = 0, .data = NULL };
    cr_expect(eq(int, weir_radix_hold_root(t.radix, fields, WEIR_MAX_FIELDS, &root), 0));
    weir_radix_release_root(t.radix, root);
    tree_close(&t);
}

/* ---- Against a naive model ------------------------------------------------
 * The model is a list of pages, each a namespace and a string. */

#define MAX_PAGES 120u
#define MAX_DEPTH 24u

struct model_page {
    bool used; /* indexed by ref */
    uint32_t name_space;
    char prompt[MAX_DEPTH + 1]; /* up to and with this page */
    uint64_t last_use;
};

struct model {
    struct tree tree;
    uint32_t max_pages;
    struct model_page pages[MAX_PAGES];
    uint32_t n_pages;
    uint32_t holds[N_NAMESPACES];
    uint64_t clock;
};

static int32_t model_find(const struct model *m, uint32_t name_space, const char *prompt, size_t n)
{
    for (uint32_t ref = 0; ref < m->max_pages; ref++)
        if (m->pages[ref].used && m->pages[ref].name_space == name_space &&
            strlen(m->pages[ref].prompt) == n && memcmp(m->pages[ref].prompt, prompt, n) == 0)
            return (int32_t)ref;
    return WEIR_RADIX_NONE;
}

static bool model_has_children(const struct model *m, uint32_t ref)
{
    const struct model_page *p = &m->pages[ref];
    size_t n = strlen(p->prompt);
    for (uint32_t other = 0; other < m->max_pages; other++) {
        const struct model_page *o = &m->pages[other];
        if (o->used && o->name_space == p->name_space && strlen(o->prompt) == n + 1 &&
            memcmp(o->prompt, p->prompt, n) == 0)
            return true;
    }
    return false;
}

static bool model_root_lives(const struct model *m, uint32_t name_space)
{
    bool lives = m->holds[name_space] > 0;
    for (uint32_t ref = 0; ref < m->max_pages; ref++)
        lives |= m->pages[ref].used && m->pages[ref].name_space == name_space;
    return lives;
}

static int32_t hold(struct model *m, uint32_t name_space)
{
    int32_t root;
    must(weir_radix_hold_root(m->tree.radix, namespaces[name_space].fields,
                              namespaces[name_space].n_fields, &root) == 0,
         "hold");
    m->holds[name_space]++;
    return root;
}

static void release(struct model *m, uint32_t name_space, int32_t root)
{
    weir_radix_release_root(m->tree.radix, root);
    m->holds[name_space]--;
}

/* A place to work below, with the prompt that leads to it. The namespace's
 * root is held until the caller releases it. */
struct spot {
    uint32_t name_space;
    int32_t root;
    int32_t place;
    char prompt[2 * MAX_DEPTH + 1]; /* with what is asked for below the place */
    size_t at;                      /* length of the part above the place */
    size_t n;
};

static struct spot random_spot(struct model *m, struct random *random)
{
    struct spot s = { .name_space = random_below(random, N_NAMESPACES) };
    uint32_t ref = random_below(random, m->max_pages);
    const struct model_page *page = &m->pages[ref];
    if (random_percent(random, 40))
        s.name_space = 0;
    if (random_percent(random, 50) && page->used) {
        s.name_space = page->name_space;
        strcpy(s.prompt, page->prompt);
        s.at = random_percent(random, 50) ? strlen(page->prompt) : 0;
        s.n = random_below(random, (uint32_t)strlen(page->prompt) + 1);
        if (s.n < s.at)
            s.n = s.at;
    }
    s.root = hold(m, s.name_space);
    s.place = s.at ? (int32_t)ref : s.root;
    uint32_t more = random_below(random, 7);
    for (uint32_t i = 0; i < more && s.n < MAX_DEPTH; i++)
        s.prompt[s.n++] = (char)('a' + random_below(random, 3));
    s.prompt[s.n] = '\0';
    return s;
}

static uint32_t model_match(const struct model *m, const struct spot *s, int32_t *refs)
{
    uint32_t n = 0;
    for (size_t end = s->at + 1; end <= s->n; end++) {
        int32_t ref = model_find(m, s->name_space, s->prompt, end);
        if (ref == WEIR_RADIX_NONE)
            break;
        refs[n++] = ref;
    }
    return n;
}

static void random_insert(struct model *m, struct random *random)
{
    struct spot s = random_spot(m, random);
    int32_t there[2 * MAX_DEPTH];
    uint32_t n_there = model_match(m, &s, there);
    uint32_t n = (uint32_t)(s.n - s.at);
    struct tree *t = &m->tree;
    int rc = insert(t, s.place, s.prompt + s.at);
    if (n - n_there > m->max_pages - m->n_pages) {
        must(rc == -ENOSPC, "rc %d", rc);
    } else {
        must(rc == 0, "rc %d", rc);
        must(t->n_there == n_there, "%u there, not %u", t->n_there, n_there);
        m->clock++;
        for (uint32_t i = 0; i < n; i++) {
            int32_t ref = t->refs[i];
            must(ref >= 0 && (uint32_t)ref < m->max_pages, "ref %d", ref);
            struct model_page *page = &m->pages[ref];
            if (i < n_there) {
                must(ref == there[i], "page %u is %d, not %d", i, ref, there[i]);
            } else {
                must(!page->used, "ref %d names two pages", ref);
                *page = (struct model_page){ .used = true, .name_space = s.name_space };
                memcpy(page->prompt, s.prompt, s.at + i + 1);
                m->n_pages++;
            }
            page->last_use = m->clock;
        }
    }
    release(m, s.name_space, s.root);
}

static void random_match(struct model *m, struct random *random)
{
    struct spot s = random_spot(m, random);
    struct tree *t = &m->tree;
    int32_t expected[2 * MAX_DEPTH];
    uint32_t n_expected = model_match(m, &s, expected);
    size_t n_tokens = (s.n - s.at) * t->page_tokens;
    uint32_t capacity = random_percent(random, 70) ? MAX_PROMPT : random_below(random, 6);
    int32_t *tokens = tokens_of(s.prompt + s.at, t->page_tokens);
    if (random_percent(random, 30)) {
        n_tokens += 1; /* a page's beginning */
    } else if (n_tokens && random_percent(random, 40)) {
        n_tokens -= 1;
        uint32_t whole = (uint32_t)(n_tokens / t->page_tokens);
        n_expected = n_expected < whole ? n_expected : whole;
    }
    n_expected = n_expected < capacity ? n_expected : capacity;

    bool marks = random_percent(random, 50);
    weir_part part = part_of(tokens, n_tokens);
    uint32_t n = marks ? weir_radix_match(t->radix, s.place, &part, t->refs, capacity)
                       : weir_radix_peek(t->radix, s.place, &part, t->refs, capacity);
    must(n == n_expected, "%u pages match, not %u", n, n_expected);
    must(weir_radix_peek(t->radix, s.place, &part, NULL, capacity) == n, "counting");
    m->clock += marks;
    for (uint32_t i = 0; i < n; i++) {
        must(t->refs[i] == expected[i], "page %u is %d, not %d", i, t->refs[i], expected[i]);
        if (marks)
            m->pages[expected[i]].last_use = m->clock;
    }
    free(tokens);
    release(m, s.name_space, s.root);
}

static void random_remove(struct model *m, struct random *random)
{
    uint32_t ref = random_below(random, m->max_pages);
    int expected = !m->pages[ref].used ? -EINVAL : model_has_children(m, ref) ? -EBUSY : 0;
    int rc = weir_radix_remove(m->tree.radix, (int32_t)ref);
    must(rc == expected, "remove: %d, not %d", rc, expected);
    if (rc == 0) {
        m->pages[ref].used = false;
        m->n_pages--;
    }
}

static void random_touch(struct model *m, struct random *random)
{
    int32_t refs[3];
    uint32_t n = 0;
    for (int i = 0; i < 3; i++) {
        int32_t ref = (int32_t)random_below(random, m->max_pages);
        if (m->pages[ref].used)
            refs[n++] = ref;
    }
    weir_radix_touch(m->tree.radix, refs, n);
    m->clock++;
    for (uint32_t i = 0; i < n; i++)
        m->pages[refs[i]].last_use = m->clock;
}

/* Everything that the tree says of one page. */
static void expect_page(const struct model *m, uint32_t ref)
{
    const weir_radix *radix = m->tree.radix;
    const struct model_page *p = &m->pages[ref];
    const int32_t *tokens = weir_radix_tokens(radix, (int32_t)ref);
    int32_t parent = weir_radix_parent(radix, (int32_t)ref);
    if (!p->used) {
        must(!tokens && parent == WEIR_RADIX_NONE, "ref %u is no page", ref);
        return;
    }
    size_t n = strlen(p->prompt);
    int32_t *expected = tokens_of(p->prompt + n - 1, m->tree.page_tokens);
    must(tokens, "ref %u has no tokens", ref);
    must(memcmp(tokens, expected, m->tree.page_tokens * sizeof *tokens) == 0, "tokens of %u", ref);
    free(expected);
    if (n > 1) {
        must(parent == model_find(m, p->name_space, p->prompt, n - 1), "parent of %u", ref);
    } else {
        int32_t root;
        must(weir_radix_find_root(radix, namespaces[p->name_space].fields,
                                  namespaces[p->name_space].n_fields, &root) == 0,
             "root of %u", ref);
        must(parent == root, "parent of %u is %d, not root %d", ref, parent, root);
    }

    uint32_t n_children = 0, listed = 0;
    for (uint32_t other = 0; other < m->max_pages; other++)
        n_children +=
            m->pages[other].used && weir_radix_parent(radix, (int32_t)other) == (int32_t)ref;
    for (int32_t child = weir_radix_first_child(radix, (int32_t)ref); child != WEIR_RADIX_NONE;
         child = weir_radix_next_sibling(radix, child)) {
        must(weir_radix_parent(radix, child) == (int32_t)ref, "%d is no child of %u", child, ref);
        must(++listed <= n_children, "more children than there are");
    }
    must(listed == n_children, "%u children of %u listed, not %u", listed, ref, n_children);
}

/* Times are compared by their order, which is what they are for. */
static void expect_order(const struct model *m, uint32_t a, uint32_t b)
{
    if (!m->pages[a].used || !m->pages[b].used)
        return;
    uint64_t model_a = m->pages[a].last_use, model_b = m->pages[b].last_use;
    uint64_t real_a = weir_radix_last_use(m->tree.radix, (int32_t)a);
    uint64_t real_b = weir_radix_last_use(m->tree.radix, (int32_t)b);
    must((model_a < model_b) == (real_a < real_b) && (model_a > model_b) == (real_a > real_b),
         "use of %u and %u", a, b);
}

static void random_tree(uint32_t page_tokens, uint32_t max_pages, uint64_t seed, int operations)
{
    struct random random = { seed };
    struct model m = { .max_pages = max_pages };
    m.tree.page_tokens = page_tokens;
    must(weir_radix_create(&m.tree.radix, page_tokens, max_pages, NULL) == 0, "create");
    for (int i = 0; i < operations; i++) {
        uint32_t what = random_below(&random, 100);
        if (what < 30)
            random_insert(&m, &random);
        else if (what < 55)
            random_match(&m, &random);
        else if (what < 95)
            random_remove(&m, &random);
        else
            random_touch(&m, &random);
        expect_sound(m.tree.radix);
        must(weir_radix_pages(m.tree.radix) == m.n_pages, "pages");
        for (int k = 0; k < 3; k++) {
            expect_page(&m, random_below(&random, max_pages));
            expect_order(&m, random_below(&random, max_pages), random_below(&random, max_pages));
        }
        uint32_t s = random_below(&random, N_NAMESPACES);
        int32_t root;
        int rc =
            weir_radix_find_root(m.tree.radix, namespaces[s].fields, namespaces[s].n_fields, &root);
        must(rc == (model_root_lives(&m, s) ? 0 : -ENOENT), "namespace %u: %d", s, rc);
    }
    for (uint32_t ref = 0; ref < max_pages; ref++)
        expect_page(&m, ref);
    weir_radix_destroy(&m.tree.radix);
}

Test(radix, random_operations_equal_a_naive_model)
{
    for (size_t i = 0; i < N_PAGE_SIZES; i++) {
        int operations = page_sizes[i] > 64 ? 1500 : 5000;
        for (uint64_t seed = 1; seed <= 2; seed++) {
            random_tree(page_sizes[i], 12, seed, operations);
            random_tree(page_sizes[i], MAX_PAGES, seed + 10, operations);
        }
    }
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}
