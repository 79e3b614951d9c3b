/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/table.h"

#include <weir/export.h>

#include <errno.h>

/* Every call goes over the items twice: the first time checks and counts, so
 * that a call that fails writes nothing; the second time writes. */

/* An item in units: kernel pages, or tokens. */
struct part {
    const struct seq *seq;
    size_t first;
    size_t n;
    size_t to; /* in tokens */
};

/* What the first pass found. */
struct counted {
    size_t sum;
    size_t most;
};

static int look(const weir_export_batch *batch, const char *call, size_t i, uint32_t unit,
                struct part *part)
{
    const weir_export_item *item = &batch->items[i];
    const weir_log *log = &batch->cache->log;
    if (item->seq.cache != batch->cache)
        return weir_invalid(log, "%s: items[%zu].seq is not of the batch's cache", call, i);
    int rc;
    const struct seq *seq = weir_seq_find(item->seq, &rc);
    if (!seq)
        return rc;
    if (item->from % unit)
        return weir_invalid(log, "%s: items[%zu].from is %zu, not a multiple of %u", call, i,
                            item->from, unit);
    size_t all = (size_t)seq->n_pages * batch->cache->page_tokens;
    size_t to = item->to;
    if (to == WEIR_ALL_TOKENS)
        to = all > item->from ? all : item->from;
    else if (to < item->from || to > all)
        return weir_invalid(log, "%s: items[%zu].to is %zu, must be from %zu to %zu", call, i, to,
                            item->from, all);
    size_t tokens = to - item->from;
    *part = (struct part){ seq, item->from / unit, tokens / unit + (tokens % unit != 0), to };
    return 0;
}

/* What look has found sound. */
static struct part again(const weir_export_batch *batch, size_t i, uint32_t unit)
{
    struct part part = { 0 };
    (void)look(batch, "export", i, unit, &part);
    return part;
}

static int count(const weir_export_batch *batch, const char *call, uint32_t unit,
                 struct counted *counted)
{
    if (batch->n && !batch->items)
        return weir_invalid(&batch->cache->log, "%s: items is NULL and n is %zu", call, batch->n);
    struct counted total = { 0 };
    for (size_t i = 0; i < batch->n; i++) {
        struct part part = { 0 };
        int rc = look(batch, call, i, unit, &part);
        if (rc)
            return rc;
        total.sum += part.n;
        if (part.n > total.most)
            total.most = part.n;
    }
    *counted = total;
    return 0;
}

/* The checks that all calls share, of a buffer of `room` entries. */
static int check(const weir_export_batch *batch, const char *call, const void *buffer, size_t room,
                 const size_t *needed)
{
    if (!batch || !batch->cache)
        return -EINVAL;
    if (!needed)
        return weir_invalid(&batch->cache->log, "%s: needed is NULL", call);
    if (!buffer && room)
        return weir_invalid(&batch->cache->log, "%s: the buffer is NULL and has %zu entries", call,
                            room);
    return 0;
}

/* The largest kernel page id of the pool. */
static uint64_t last_id(const weir_cache *cache, uint32_t ratio)
{
    return ((uint64_t)weir_page_pool_size(cache->tiers[DEVICE].pool) + 1) * ratio - 1;
}

/* The start of the calls that write kernel pages. */
static int begin(const weir_export_batch *batch, const char *call, const void *buffer, size_t room,
                 const size_t *needed, uint32_t *ratio, struct counted *counted)
{
    int rc = check(batch, call, buffer, room, needed);
    if (!rc)
        rc = weir_table_ratio(batch->cache, call, batch->kernel_page_tokens, ratio);
    if (!rc)
        rc = count(batch, call, batch->kernel_page_tokens, counted);
    return rc;
}

int weir_export_csr(const weir_export_batch *batch, int32_t *indptr, int32_t *last_page_len,
                    int32_t *indices, size_t capacity, size_t *needed)
{
    uint32_t ratio;
    struct counted counted;
    int rc = begin(batch, "export_csr", indices, capacity, needed, &ratio, &counted);
    if (rc)
        return rc;
    if (!indptr)
        return weir_invalid(&batch->cache->log, "export_csr: indptr is NULL");
    if (counted.sum > INT32_MAX)
        return weir_invalid(&batch->cache->log, "export_csr: %zu pages, must be at most %d",
                            counted.sum, INT32_MAX);
    *needed = counted.sum;
    if (counted.sum > capacity)
        return -ENOSPC;
    uint32_t unit = batch->kernel_page_tokens;
    size_t at = 0;
    indptr[0] = 0;
    for (size_t i = 0; i < batch->n; i++) {
        struct part part = again(batch, i, unit);
        if (part.n)
            table_write(part.seq, ratio, part.first, part.n, indices + at);
        at += part.n;
        indptr[i + 1] = (int32_t)at;
        if (last_page_len)
            last_page_len[i] = part.n ? (int32_t)((part.to - 1) % unit) + 1 : 0;
    }
    return 0;
}

static void fill(int32_t *row, size_t from, size_t to, int32_t value)
{
    for (size_t i = from; i < to; i++)
        row[i] = value;
}

int weir_export_dense(const weir_export_batch *batch, int32_t pad, int32_t *table, size_t width,
                      size_t *needed)
{
    uint32_t ratio;
    struct counted counted;
    int rc = begin(batch, "export_dense", table, width, needed, &ratio, &counted);
    if (rc)
        return rc;
    *needed = counted.most;
    if (counted.most > width)
        return -ENOSPC;
    for (size_t i = 0; i < batch->n && width; i++) {
        struct part part = again(batch, i, batch->kernel_page_tokens);
        int32_t *row = table + i * width;
        table_write(part.seq, ratio, part.first, part.n, row);
        fill(row, part.n, width, pad);
    }
    return 0;
}

int weir_export_offsets(const weir_export_batch *batch, int32_t scale, int32_t v_offset,
                        int32_t pad, int32_t *offsets, size_t width, size_t *needed)
{
    uint32_t ratio;
    struct counted counted;
    int rc = begin(batch, "export_offsets", offsets, width, needed, &ratio, &counted);
    if (rc)
        return rc;
    if (scale < 0 || v_offset < 0)
        return weir_invalid(&batch->cache->log,
                            "export_offsets: scale is %d and v_offset %d, must be 0 or more", scale,
                            v_offset);
    uint64_t last = last_id(batch->cache, ratio);
    if (last * (uint64_t)scale + (uint64_t)v_offset > INT32_MAX)
        return weir_invalid(&batch->cache->log,
                            "export_offsets: scale is %d and v_offset %d, with ids up to %llu the "
                            "offsets exceed an int32",
                            scale, v_offset, (unsigned long long)last);
    *needed = counted.most;
    if (counted.most > width)
        return -ENOSPC;
    for (size_t i = 0; i < batch->n && width; i++) {
        struct part part = again(batch, i, batch->kernel_page_tokens);
        int32_t *k = offsets + i * 2 * width, *v = k + width;
        table_write(part.seq, ratio, part.first, part.n, k);
        for (size_t j = 0; j < part.n; j++) {
            k[j] *= scale;
            v[j] = k[j] + v_offset;
        }
        fill(k, part.n, width, pad);
        fill(v, part.n, width, pad);
    }
    return 0;
}

int weir_export_pointers(const weir_export_batch *batch, uint64_t base, uint64_t stride,
                         uint64_t *pointers, size_t capacity, size_t *needed)
{
    uint32_t ratio;
    struct counted counted;
    int rc = begin(batch, "export_pointers", pointers, capacity, needed, &ratio, &counted);
    if (rc)
        return rc;
    uint64_t last = last_id(batch->cache, ratio);
    if (stride > (UINT64_MAX - base) / last)
        return weir_invalid(&batch->cache->log,
                            "export_pointers: stride is %llu, with ids up to %llu the addresses "
                            "exceed 64 bits",
                            (unsigned long long)stride, (unsigned long long)last);
    *needed = counted.sum;
    if (counted.sum > capacity)
        return -ENOSPC;
    size_t at = 0;
    for (size_t i = 0; i < batch->n; i++) {
        struct part part = again(batch, i, batch->kernel_page_tokens);
        struct table_walk walk = table_walk_from(part.seq, ratio, part.n ? part.first : 0);
        for (size_t j = 0; j < part.n; j++)
            pointers[at++] = base + (uint64_t)table_walk_next(&walk) * stride;
    }
    return 0;
}

int weir_export_slots(const weir_export_batch *batch, int64_t *slots, size_t capacity,
                      size_t *needed)
{
    struct counted counted;
    int rc = check(batch, "export_slots", slots, capacity, needed);
    if (!rc)
        rc = count(batch, "export_slots", 1, &counted);
    if (rc)
        return rc;
    *needed = counted.sum;
    if (counted.sum > capacity)
        return -ENOSPC;
    size_t at = 0;
    for (size_t i = 0; i < batch->n; i++) {
        struct part part = again(batch, i, 1);
        struct table_walk walk =
            table_walk_from(part.seq, batch->cache->page_tokens, part.n ? part.first : 0);
        for (size_t j = 0; j < part.n; j++)
            slots[at++] = table_walk_next(&walk);
    }
    return 0;
}
