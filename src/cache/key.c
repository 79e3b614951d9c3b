/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <errno.h>
#include <string.h>

/* What a sequence keeps of its key beside the tokens: its spans. The index takes
 * memory for them only when more pages have spans than ever before; that happens
 * here, at open, so that a commit has what it needs. */

/* Names the first span that breaks a limit; n: it is their number. */
static int bad_spans(const weir_cache *cache, const weir_key *key, size_t i)
{
    if (i == key->n_spans)
        return weir_invalid(&cache->log, "key: %zu spans, must be at most %u and not NULL", i,
                            WEIR_MAX_SPANS);
    return weir_invalid(&cache->log,
                        "key: spans[%zu] is %zu + %zu with a digest of %u bytes, must be of 1 or "
                        "more of the %zu tokens, behind the span before it, of %u to %u bytes",
                        i, key->spans[i].first, key->spans[i].n_tokens, key->spans[i].digest_bytes,
                        key->n_tokens, WEIR_MIN_DIGEST_BYTES, WEIR_MAX_DIGEST_BYTES);
}

static int check_spans(const weir_cache *cache, const weir_key *key)
{
    if (key->n_spans > WEIR_MAX_SPANS || (key->n_spans && !key->spans))
        return bad_spans(cache, key, key->n_spans);
    size_t end = 0;
    for (size_t i = 0; i < key->n_spans; i++) {
        const weir_span *span = &key->spans[i];
        if (span->first < end || span->first > key->n_tokens || span->n_tokens == 0 ||
            span->n_tokens > key->n_tokens - span->first ||
            span->digest_bytes < WEIR_MIN_DIGEST_BYTES ||
            span->digest_bytes > WEIR_MAX_DIGEST_BYTES)
            return bad_spans(cache, key, i);
        end = span->first + span->n_tokens;
    }
    return 0;
}

int weir_key_root_result(const weir_cache *cache, int rc, const char *call)
{
    return rc == -EINVAL
               ? weir_invalid(&cache->log, "%s: more than %u fields, or one over %u bytes or NULL",
                              call, WEIR_MAX_FIELDS, WEIR_MAX_FIELD_BYTES)
               : rc;
}

int weir_key_find_root(const weir_cache *cache, const weir_key *key, const char *call,
                       int32_t *root)
{
    int rc = check_spans(cache, key);
    if (rc)
        return rc;
    rc = weir_radix_find_root(cache->radix, key->fields, key->n_fields, root);
    return weir_key_root_result(cache, rc, call);
}

int weir_key_check(const weir_cache *cache, const weir_key *key)
{
    if (!key)
        return weir_invalid(&cache->log, "key: is NULL");
    if (key->n_tokens == 0 || key->n_tokens > INT32_MAX || !key->tokens)
        return weir_invalid(&cache->log, "key: %zu tokens, must be 1 to %d and not NULL",
                            key->n_tokens, INT32_MAX);
    return check_spans(cache, key);
}

/* Tokens of the pages that the key needs. */
static size_t whole_pages(const weir_cache *cache, const weir_key *key)
{
    size_t past = key->n_tokens % cache->page_tokens;
    return past ? key->n_tokens + cache->page_tokens - past : key->n_tokens;
}

/* Pages that spans of the key overlap, a page for each; the last may be one that
 * the key does not fill. */
static size_t count_overlaps(const weir_cache *cache, const weir_key *key)
{
    weir_part part = { key->tokens, whole_pages(cache, key), 0, key->spans, key->n_spans };
    return weir_radix_count_spans(cache->radix, &part);
}

int weir_seq_set_spans(weir_cache *cache, struct seq *seq, const weir_key *key)
{
    size_t n = key->n_spans;
    if (n > seq->spans_capacity) {
        size_t capacity = seq->spans_capacity ? seq->spans_capacity : 4;
        while (capacity < n)
            capacity *= 2;
        weir_span *grown = weir_memory_grow(&cache->memory, seq->spans, seq->spans_capacity,
                                            capacity, sizeof *grown);
        if (!grown)
            return -ENOMEM;
        seq->spans = grown;
        seq->spans_capacity = capacity;
    }
    size_t overlaps = n ? count_overlaps(cache, key) : 0;
    int rc = overlaps ? weir_radix_hold_spans(cache->radix, overlaps) : 0;
    if (rc)
        return -ENOMEM;
    if (n)
        memcpy(seq->spans, key->spans, n * sizeof *seq->spans);
    seq->n_spans = n;
    seq->n_spans_held = overlaps;
    return 0;
}

int weir_seq_hold_spans(weir_cache *cache, struct seq *seq, uint32_t page)
{
    const weir_key key = { .n_tokens = seq->n_key };
    size_t from = (size_t)page * cache->page_tokens, end = whole_pages(cache, &key);
    if (seq->n_spans == 0 || from >= end)
        return 0;
    weir_part part = { seq->tokens + from, end - from, from, seq->spans, seq->n_spans };
    size_t n = weir_radix_count_spans(cache->radix, &part);
    if (n <= seq->n_spans_held)
        return 0;
    if (weir_radix_hold_spans(cache->radix, n - seq->n_spans_held))
        return -ENOMEM;
    seq->n_spans_held = n;
    return 0;
}

int weir_seq_fork_spans(weir_cache *cache, struct seq *kid, const struct seq *seq, size_t len)
{
    weir_key key = { .tokens = seq->tokens, .n_tokens = len, .spans = seq->spans };
    while (key.n_spans < seq->n_spans && seq->spans[key.n_spans].first < len)
        key.n_spans++;
    int rc = weir_seq_set_spans(cache, kid, &key);
    if (rc || key.n_spans == 0)
        return rc;
    weir_span *last = &kid->spans[key.n_spans - 1];
    if (last->n_tokens > len - last->first)
        last->n_tokens = len - last->first;
    return 0;
}

void weir_seq_clear_spans(weir_cache *cache, struct seq *seq)
{
    weir_radix_release_spans(cache->radix, seq->n_spans_held);
    seq->n_spans = seq->n_spans_held = 0;
}

weir_part weir_seq_part(const weir_cache *cache, const struct seq *seq, size_t first, size_t end)
{
    size_t from = first * cache->page_tokens;
    return (weir_part){ seq->tokens + from, (end - first) * cache->page_tokens, from, seq->spans,
                        seq->n_spans };
}

void weir_seq_use_spans(weir_cache *cache, struct seq *seq, const weir_part *part)
{
    if (seq->n_spans_held == 0)
        return;
    size_t n = weir_radix_count_spans(cache->radix, part);
    if (n > seq->n_spans_held)
        n = seq->n_spans_held;
    weir_radix_release_spans(cache->radix, n);
    seq->n_spans_held -= n;
}
