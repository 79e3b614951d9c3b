/* SPDX-License-Identifier: Apache-2.0 */
#include "radix/spans.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define FIRST_CAPACITY 64u
#define MAX_RECORDS (1u << 30)

void weir_spans_init(struct weir_spans *spans, uint32_t page_tokens, uint32_t max_pages,
                     struct weir_memory *memory)
{
    *spans = (struct weir_spans){
        .memory = memory, .max_pages = max_pages, .page_tokens = page_tokens, .first_free = -1
    };
}

void weir_spans_destroy(struct weir_spans *spans)
{
    weir_memory_give(spans->memory, spans->records, spans->capacity, sizeof *spans->records);
    weir_memory_give(spans->memory, spans->buckets, spans->capacity, sizeof *spans->buckets);
    weir_bitmap_destroy(&spans->pages);
    *spans = (struct weir_spans){ 0 };
}

/* ---- Spans of a part ----------------------------------------------------- */

static size_t end_of(const weir_span *span)
{
    return span->first + span->n_tokens;
}

bool weir_spans_part_is_sound(const weir_part *part)
{
    if (part->n_tokens && !part->tokens)
        return false;
    if (part->n_spans == 0)
        return true;
    if (part->n_spans > WEIR_MAX_SPANS || !part->spans || part->first > INT32_MAX ||
        part->n_tokens > INT32_MAX - part->first)
        return false;
    size_t end = 0;
    for (size_t i = 0; i < part->n_spans; i++) {
        const weir_span *span = &part->spans[i];
        if (span->first < end || span->first > INT32_MAX || span->n_tokens == 0 ||
            span->n_tokens > INT32_MAX - span->first ||
            span->digest_bytes < WEIR_MIN_DIGEST_BYTES ||
            span->digest_bytes > WEIR_MAX_DIGEST_BYTES)
            return false;
        end = end_of(span);
    }
    return true;
}

/* The first span that ends behind a token: O(log n). */
static size_t first_span(const weir_part *part, size_t token)
{
    size_t low = 0, high = part->n_spans;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (end_of(&part->spans[middle]) <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t start_of(const struct weir_spans *spans, const weir_part *part, size_t page)
{
    return part->first + page * spans->page_tokens;
}

static struct weir_page_span relative(const weir_span *span, size_t start)
{
    struct weir_page_span made = { .position = (int32_t)((int64_t)span->first - (int64_t)start),
                                   .n_tokens = (uint32_t)span->n_tokens,
                                   .digest_bytes = span->digest_bytes };
    memcpy(made.digest, span->digest, span->digest_bytes);
    return made;
}

size_t weir_spans_count(const struct weir_spans *spans, const weir_part *part, size_t from)
{
    size_t n_pages = part->n_tokens / spans->page_tokens;
    if (part->n_spans == 0 || from >= n_pages)
        return 0;
    size_t begin = start_of(spans, part, from), end = start_of(spans, part, n_pages);
    size_t n = 0;
    for (size_t i = first_span(part, begin); i < part->n_spans && part->spans[i].first < end; i++) {
        size_t first = part->spans[i].first > begin ? part->spans[i].first : begin;
        size_t last = end_of(&part->spans[i]) < end ? end_of(&part->spans[i]) - 1 : end - 1;
        n += (last - part->first) / spans->page_tokens -
             (first - part->first) / spans->page_tokens + 1;
    }
    return n;
}

/* ---- Records ------------------------------------------------------------- */

static int32_t *bucket_of(const struct weir_spans *spans, int32_t ref)
{
    return &spans->buckets[((uint32_t)ref * 0x9e3779b1u >> 4) & (spans->capacity - 1)];
}

static bool has_records(const struct weir_spans *spans, int32_t ref)
{
    return spans->n_used && weir_bitmap_test(&spans->pages, (uint32_t)ref);
}

static void put_in_bucket(struct weir_spans *spans, int32_t record)
{
    int32_t *bucket = bucket_of(spans, spans->records[record].ref);
    spans->records[record].next = *bucket;
    *bucket = record;
}

/* Takes longer arrays, or leaves all as it was. */
static int grow(struct weir_spans *spans, uint32_t capacity)
{
    if (spans->capacity == 0 && weir_bitmap_create(&spans->pages, spans->max_pages, spans->memory))
        return -ENOMEM;
    int32_t *buckets = weir_memory_take(spans->memory, capacity, sizeof *buckets);
    struct weir_span_record *records = NULL;
    if (buckets)
        records = weir_memory_grow(spans->memory, spans->records, spans->capacity, capacity,
                                   sizeof *records);
    if (!records) {
        weir_memory_give(spans->memory, buckets, capacity, sizeof *buckets);
        if (spans->capacity == 0)
            weir_bitmap_destroy(&spans->pages);
        return -ENOMEM;
    }
    int32_t *old_buckets = spans->buckets;
    uint32_t old_capacity = spans->capacity;
    spans->records = records;
    spans->buckets = buckets;
    spans->capacity = capacity;
    memset(buckets, 0xff, capacity * sizeof *buckets);
    for (uint32_t i = 0; i < old_capacity; i++) {
        int32_t next;
        for (int32_t record = old_buckets[i]; record >= 0; record = next) {
            next = records[record].next;
            put_in_bucket(spans, record);
        }
    }
    weir_memory_give(spans->memory, old_buckets, old_capacity, sizeof *old_buckets);
    for (uint32_t i = capacity; i-- > old_capacity;) {
        records[i].next = spans->first_free;
        spans->first_free = (int32_t)i;
    }
    return 0;
}

int weir_spans_make_room(struct weir_spans *spans, size_t n)
{
    size_t taken = (size_t)spans->n_used + spans->n_held;
    if (n <= spans->capacity - taken)
        return 0;
    if (n > MAX_RECORDS - taken)
        return -E2BIG;
    uint32_t capacity = spans->capacity ? spans->capacity : FIRST_CAPACITY;
    while (capacity < taken + n)
        capacity *= 2;
    return grow(spans, capacity);
}

int weir_spans_hold(struct weir_spans *spans, size_t n)
{
    int rc = weir_spans_make_room(spans, n);
    if (rc == 0)
        spans->n_held += (uint32_t)n;
    return rc;
}

void weir_spans_release(struct weir_spans *spans, size_t n)
{
    spans->n_held -= n < spans->n_held ? (uint32_t)n : spans->n_held;
}

static void add_record(struct weir_spans *spans, int32_t ref, const struct weir_page_span *span)
{
    int32_t record = spans->first_free;
    spans->first_free = spans->records[record].next;
    spans->records[record].span = *span;
    spans->records[record].ref = ref;
    put_in_bucket(spans, record);
    spans->n_used++;
    weir_bitmap_set(&spans->pages, (uint32_t)ref);
}

void weir_spans_add(struct weir_spans *spans, int32_t ref, uint32_t n, const weir_part *part,
                    size_t page)
{
    size_t start = start_of(spans, part, page), end = start_of(spans, part, page + n);
    for (size_t i = first_span(part, start); i < part->n_spans && part->spans[i].first < end; i++) {
        const weir_span *span = &part->spans[i];
        uint32_t k =
            span->first > start ? (uint32_t)((span->first - start) / spans->page_tokens) : 0;
        for (; k < n; k++) {
            size_t at = start + (size_t)k * spans->page_tokens;
            if (at >= end_of(span))
                break;
            struct weir_page_span made = relative(span, at);
            add_record(spans, ref + (int32_t)k, &made);
        }
    }
}

void weir_spans_remove(struct weir_spans *spans, int32_t ref)
{
    if (!has_records(spans, ref))
        return;
    int32_t *link = bucket_of(spans, ref);
    while (*link >= 0) {
        int32_t record = *link;
        if (spans->records[record].ref != ref) {
            link = &spans->records[record].next;
            continue;
        }
        *link = spans->records[record].next;
        spans->records[record].next = spans->first_free;
        spans->first_free = record;
        spans->n_used--;
    }
    weir_bitmap_clear(&spans->pages, (uint32_t)ref);
}

/* ---- Comparing ----------------------------------------------------------- */

static bool has_span(const struct weir_spans *spans, int32_t ref, const struct weir_page_span *span)
{
    for (int32_t i = *bucket_of(spans, ref); i >= 0; i = spans->records[i].next)
        if (spans->records[i].ref == ref &&
            memcmp(&spans->records[i].span, span, sizeof *span) == 0)
            return true;
    return false;
}

static uint32_t count_records(const struct weir_spans *spans, int32_t ref)
{
    uint32_t n = 0;
    for (int32_t i = *bucket_of(spans, ref); i >= 0; i = spans->records[i].next)
        n += spans->records[i].ref == ref;
    return n;
}

static bool page_is_equal(const struct weir_spans *spans, int32_t ref, const weir_part *part,
                          size_t page)
{
    uint32_t n_records = has_records(spans, ref) ? count_records(spans, ref) : 0;
    size_t start = start_of(spans, part, page), end = start + spans->page_tokens;
    for (size_t i = first_span(part, start); i < part->n_spans && part->spans[i].first < end; i++) {
        struct weir_page_span span = relative(&part->spans[i], start);
        if (n_records == 0 || !has_span(spans, ref, &span))
            return false;
        n_records--;
    }
    return n_records == 0;
}

/* The first page, of n from `page` on, that a span of the part overlaps; n: none. */
static uint32_t next_overlapped(const struct weir_spans *spans, const weir_part *part, size_t page,
                                uint32_t n)
{
    size_t start = start_of(spans, part, page);
    size_t i = first_span(part, start);
    if (i == part->n_spans)
        return n;
    if (part->spans[i].first <= start)
        return 0;
    size_t k = (part->spans[i].first - start) / spans->page_tokens;
    return k < n ? (uint32_t)k : n;
}

static uint32_t next_recorded(const struct weir_spans *spans, int32_t ref, uint32_t n)
{
    uint32_t found =
        spans->n_used ? weir_bitmap_next(&spans->pages, (uint32_t)ref) : WEIR_BITMAP_NONE;
    return found < (uint32_t)ref + n ? found - (uint32_t)ref : n;
}

uint32_t weir_spans_equal(const struct weir_spans *spans, int32_t ref, uint32_t n,
                          const weir_part *part, size_t page)
{
    /* Only the pages where one of the two has a span need a look. */
    uint32_t k = 0;
    while (k < n) {
        uint32_t mine = next_recorded(spans, ref + (int32_t)k, n - k);
        uint32_t yours = next_overlapped(spans, part, page + k, n - k);
        k += mine < yours ? mine : yours;
        if (k < n && !page_is_equal(spans, ref + (int32_t)k, part, page + k))
            return k;
        k++;
    }
    return n;
}

/* A sum, because a page's records are in no order. */
uint64_t weir_spans_hash(const struct weir_spans *spans, int32_t ref)
{
    uint64_t hash = 0;
    if (!has_records(spans, ref))
        return 0;
    for (int32_t i = *bucket_of(spans, ref); i >= 0; i = spans->records[i].next)
        if (spans->records[i].ref == ref)
            hash += XXH3_64bits(&spans->records[i].span, sizeof spans->records[i].span);
    return hash;
}

uint64_t weir_spans_hash_part(const struct weir_spans *spans, const weir_part *part, size_t page)
{
    uint64_t hash = 0;
    if (part->n_spans == 0)
        return 0;
    size_t start = start_of(spans, part, page), end = start + spans->page_tokens;
    for (size_t i = first_span(part, start); i < part->n_spans && part->spans[i].first < end; i++) {
        struct weir_page_span span = relative(&part->spans[i], start);
        hash += XXH3_64bits(&span, sizeof span);
    }
    return hash;
}

/* ---- Checking ------------------------------------------------------------ */

int weir_spans_check(const struct weir_spans *spans, const char **reason)
{
    uint32_t n_used = 0, n_pages = 0, n_bits = 0, n_free = 0;
    for (uint32_t i = 0; i < spans->capacity; i++) {
        for (int32_t r = spans->buckets[i]; r >= 0; r = spans->records[r].next) {
            int32_t ref = spans->records[r].ref;
            n_used++;
            if (bucket_of(spans, ref) != &spans->buckets[i] || !has_records(spans, ref)) {
                *reason = "spans: a record is in the wrong bucket, or its page has no bit";
                return -EIO;
            }
            /* The first of its page in the bucket counts the page. */
            int32_t first = spans->buckets[i];
            while (spans->records[first].ref != ref)
                first = spans->records[first].next;
            n_pages += first == r;
        }
    }
    for (uint32_t bit = spans->capacity ? weir_bitmap_next(&spans->pages, 0) : WEIR_BITMAP_NONE;
         bit != WEIR_BITMAP_NONE; bit = weir_bitmap_next(&spans->pages, bit + 1))
        n_bits++;
    for (int32_t r = spans->first_free; r >= 0; r = spans->records[r].next)
        n_free++;
    if (n_bits == n_pages && n_used == spans->n_used && n_free == spans->capacity - n_used &&
        (uint64_t)n_used + spans->n_held <= spans->capacity)
        return 0;
    *reason = "spans: the records and the counts differ";
    return -EIO;
}
