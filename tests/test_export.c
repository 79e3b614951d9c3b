/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/export.h>

/* Each exporter against a table that is built here from the pages of
 * weir_seq_pages at page_tokens, one entry at a time. */

#define N_SEQS 4u
#define ENTRIES 8192u
#define MARK 0x5a

static struct rig rig;
static weir_seq seqs[N_SEQS];
static int32_t pages[N_SEQS][RIG_PAGES];
static size_t n_pages[N_SEQS];
static uint64_t before;

static int32_t indptr[64], lengths[64], indices[ENTRIES];
static uint64_t pointers[ENTRIES];
static int64_t slots[ENTRIES];

/* Sequences of 3, 1, 0 and 5 pages, and pages that are not consecutive: one in
 * between is freed and taken again. */
static void open_rig(uint32_t page_tokens)
{
    rig_open(&rig, rig_params(page_tokens, 16, 0));
    weir_seq hole = rig_start(&rig, "XY", 0);
    seqs[0] = rig_start(&rig, "ABC", 0);
    seqs[1] = rig_start(&rig, "D", 0);
    rig_done(&rig, &hole);
    seqs[2] = rig_seq(&rig, "E", 0);
    seqs[3] = rig_start(&rig, "FGHIJ", 0);
    for (size_t i = 0; i < N_SEQS; i++)
        n_pages[i] = rig_table(&rig, seqs[i], pages[i]);
    /* Committed and pending tokens, and an open step, must stay what they are. */
    rig_begin(&rig);
    rig_add(&rig, seqs[0]);
    rig_commit(&rig, seqs[0], 2);
    before = weir_cache_digest(rig.cache);
}

static void close_rig(void)
{
    cr_assert(eq(u64, weir_cache_digest(rig.cache), before), "an export changes the cache");
    cr_assert(eq(sz, rig_info(&rig, seqs[0]).n_committed, 2 * rig.t));
    rig_ack(&rig, rig_end(&rig)->step);
    for (size_t i = 0; i < N_SEQS; i++)
        rig_done(&rig, &seqs[i]);
    rig_close(&rig);
}

/* The number of the unit that holds a token, where a unit has so many tokens. */
static int64_t unit_of(size_t seq, size_t token, uint32_t unit)
{
    return ((int64_t)pages[seq][token / rig.t] * rig.t + (int64_t)(token % rig.t)) / unit;
}

static bool untouched(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const unsigned char *)bytes)[i] != MARK)
            return false;
    return true;
}

/* Items that begin and end everywhere that matters for a kernel page size. */
static size_t make_items(uint32_t unit, weir_export_item items[32], size_t of[32])
{
    size_t n = 0, t = rig.t;
    const struct {
        size_t seq, from, to;
    } all[] = {
        { 0, 0, WEIR_ALL_TOKENS },
        { 1, 0, 1 },
        { 2, 0, WEIR_ALL_TOKENS },
        { 2, 0, 0 },
        { 3, unit, 5 * t },
        { 3, 0, 5 * t - 1 },
        { 3, 2 * t, 2 * t },
        { 3, t / unit * unit, 3 * t - t / 2 },
        { 0, 3 * t, WEIR_ALL_TOKENS },
        { 0, 64 * t, WEIR_ALL_TOKENS },
        { 0, SIZE_MAX - SIZE_MAX % unit - unit, WEIR_ALL_TOKENS },
        { 0, 2 * t, 2 * t + 1 },
        { 1, t - unit, t },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        of[n] = all[i].seq;
        items[n++] = (weir_export_item){ seqs[all[i].seq], all[i].from, all[i].to };
    }
    return n;
}

/* Where an item ends, in tokens. */
static size_t end_of(const weir_export_item *item, size_t seq)
{
    if (item->to != WEIR_ALL_TOKENS)
        return item->to;
    size_t all = n_pages[seq] * rig.t;
    return all > item->from ? all : item->from;
}

static size_t pages_of(const weir_export_item *item, size_t seq, uint32_t unit)
{
    size_t tokens = end_of(item, seq) - item->from;
    return tokens / unit + (tokens % unit != 0);
}

/* Every page size and every divisor of it. */
#define each_size(unit)                                      \
    for (size_t i_ = 0; i_ < RIG_N_PAGE_TOKENS; i_++)        \
        for (uint32_t unit = 1, once_ = 1; once_; once_ = 0) \
            for (open_rig(rig_page_tokens[i_]); unit <= rig.t || (close_rig(), 0); unit *= 2)

static weir_export_batch batch_of(const weir_export_item *items, size_t n, uint32_t unit)
{
    return (weir_export_batch){ rig.cache, items, n, unit };
}

Test(export, csr)
{
    weir_export_item items[32];
    size_t of[32], needed;
    each_size(unit)
    {
        size_t n = make_items(unit, items, of), total = 0;
        for (size_t i = 0; i < n; i++)
            total += pages_of(&items[i], of[i], unit);
        if (total > ENTRIES - 1)
            continue;
        weir_export_batch batch = batch_of(items, n, unit);
        memset(indptr, MARK, sizeof indptr);
        memset(lengths, MARK, sizeof lengths);
        memset(indices, MARK, sizeof indices);
        for (size_t room = 0; room < total; room += total - 1) {
            needed = 0;
            gives(&rig, weir_export_csr(&batch, indptr, lengths, indices, room, &needed), -ENOSPC);
            cr_assert(eq(sz, needed, total));
            cr_assert(untouched(indptr, sizeof indptr) && untouched(lengths, sizeof lengths) &&
                      untouched(indices, sizeof indices));
        }
        gives(&rig, weir_export_csr(&batch, indptr, NULL, NULL, 0, &needed), -ENOSPC);
        gives(&rig, weir_export_csr(&batch, indptr, lengths, indices, total, &needed), 0);
        cr_assert(eq(sz, needed, total));
        size_t at = 0;
        cr_assert(zero(i32, indptr[0]));
        for (size_t i = 0; i < n; i++) {
            size_t count = pages_of(&items[i], of[i], unit);
            for (size_t k = 0; k < count; k++, at++)
                cr_assert(eq(i64, indices[at], unit_of(of[i], items[i].from + k * unit, unit)),
                          "%zu of %zu, %u of %u tokens", k, i, unit, rig.t);
            cr_assert(eq(sz, (size_t)indptr[i + 1], at));
            /* How a kernel gets the length back. */
            size_t length = count ? (count - 1) * unit + (size_t)lengths[i] : (size_t)lengths[i];
            cr_assert(eq(sz, length, end_of(&items[i], of[i]) - items[i].from), "%zu", i);
            cr_assert(count ? lengths[i] >= 1 && lengths[i] <= (int32_t)unit : lengths[i] == 0);
        }
        cr_assert(untouched(&indices[total], (ENTRIES - total) * sizeof *indices));
        cr_assert(untouched(&indptr[n + 1], sizeof indptr - (n + 1) * sizeof *indptr));
        cr_assert(untouched(&lengths[n], sizeof lengths - n * sizeof *lengths));
        gives(&rig, weir_export_csr(&batch, indptr, NULL, indices, total, &needed), 0);
    }
}

/* Rows of `width` behind each other, the second of a pair shifted. */
static void check_rows(const weir_export_item *items, const size_t *of, size_t n, uint32_t unit,
                       size_t rows, int64_t scale, int64_t shift, int32_t pad, size_t width)
{
    for (size_t i = 0; i < n; i++)
        for (size_t row = 0; row < rows; row++)
            for (size_t k = 0; k < width; k++) {
                int64_t want = pad;
                if (k < pages_of(&items[i], of[i], unit))
                    want = unit_of(of[i], items[i].from + k * unit, unit) * scale +
                           (int64_t)row * shift;
                cr_assert(eq(i64, indices[(i * rows + row) * width + k], want),
                          "item %zu, row %zu, %zu", i, row, k);
            }
    size_t used = n * rows * width;
    cr_assert(untouched(&indices[used], (ENTRIES - used) * sizeof *indices));
}

Test(export, dense_and_offsets)
{
    weir_export_item items[32];
    size_t of[32], needed;
    each_size(unit)
    {
        size_t n = make_items(unit, items, of), most = 0;
        for (size_t i = 0; i < n; i++) {
            size_t count = pages_of(&items[i], of[i], unit);
            most = most > count ? most : count;
        }
        if ((most + 2) * 2 * n > ENTRIES - 1)
            continue;
        weir_export_batch batch = batch_of(items, n, unit);
        memset(indices, MARK, sizeof indices);
        needed = 0;
        gives(&rig, weir_export_dense(&batch, 0, indices, most - 1, &needed), -ENOSPC);
        cr_assert(eq(sz, needed, most));
        needed = 0;
        gives(&rig, weir_export_offsets(&batch, 2, 1, 0, indices, most - 1, &needed), -ENOSPC);
        cr_assert(eq(sz, needed, most));
        gives(&rig, weir_export_dense(&batch, 0, NULL, 0, &needed), -ENOSPC);
        gives(&rig, weir_export_offsets(&batch, 2, 1, 0, NULL, 0, &needed), -ENOSPC);
        cr_assert(untouched(indices, sizeof indices));
        for (size_t width = most; width <= most + 2; width += 2)
            for (int32_t pad = -1; pad <= 0; pad++) {
                memset(indices, MARK, sizeof indices);
                needed = 0;
                gives(&rig, weir_export_dense(&batch, pad, indices, width, &needed), 0);
                cr_assert(eq(sz, needed, most));
                check_rows(items, of, n, unit, 1, 1, 0, pad, width);
                static const int32_t forms[][2] = { { 2, 1 }, { 64, 1 }, { 64, 32 }, { 0, 0 } };
                for (size_t i = 0; i < 4; i++) {
                    memset(indices, MARK, sizeof indices);
                    needed = 0;
                    gives(&rig,
                          weir_export_offsets(&batch, forms[i][0], forms[i][1], pad, indices, width,
                                              &needed),
                          0);
                    cr_assert(eq(sz, needed, most));
                    check_rows(items, of, n, unit, 2, forms[i][0], forms[i][1], pad, width);
                }
            }
    }
}

Test(export, pointers)
{
    weir_export_item items[32];
    size_t of[32], needed;
    const uint64_t base = UINT64_C(0x7f0000001000), stride = UINT64_C(5) << 32;
    each_size(unit)
    {
        size_t n = make_items(unit, items, of), total = 0;
        for (size_t i = 0; i < n; i++)
            total += pages_of(&items[i], of[i], unit);
        if (total > ENTRIES - 1)
            continue;
        weir_export_batch batch = batch_of(items, n, unit);
        memset(pointers, MARK, sizeof pointers);
        needed = 0;
        gives(&rig, weir_export_pointers(&batch, base, stride, pointers, total - 1, &needed),
              -ENOSPC);
        cr_assert(eq(sz, needed, total));
        cr_assert(untouched(pointers, sizeof pointers));
        gives(&rig, weir_export_pointers(&batch, base, stride, pointers, total, &needed), 0);
        cr_assert(eq(sz, needed, total));
        for (size_t i = 0, at = 0; i < n; i++)
            for (size_t k = 0; k < pages_of(&items[i], of[i], unit); k++, at++)
                cr_assert(
                    eq(u64, pointers[at],
                       base + stride * (uint64_t)unit_of(of[i], items[i].from + k * unit, unit)));
        cr_assert(untouched(&pointers[total], (ENTRIES - total) * sizeof *pointers));
    }
}

Test(export, slots)
{
    size_t needed;
    for (size_t t = 0; t < 3; t++) {
        open_rig(rig_page_tokens[t]);
        weir_export_item items[] = {
            { seqs[0], 0, WEIR_ALL_TOKENS },
            { seqs[3], 2 * rig.t + rig.t / 3, 4 * rig.t + rig.t / 2 + 1 },
            { seqs[2], 5, WEIR_ALL_TOKENS },
            { seqs[1], rig.t - 1, rig.t },
            { seqs[1], rig.t, rig.t },
        };
        const size_t of[] = { 0, 3, 2, 1, 1 };
        size_t total = 0;
        for (size_t i = 0; i < 5; i++)
            total += end_of(&items[i], of[i]) - items[i].from;
        /* kernel_page_tokens is not looked at. */
        weir_export_batch batch = batch_of(items, 5, 0);
        memset(slots, MARK, sizeof slots);
        needed = 0;
        gives(&rig, weir_export_slots(&batch, slots, total - 1, &needed), -ENOSPC);
        cr_assert(eq(sz, needed, total));
        gives(&rig, weir_export_slots(&batch, NULL, 0, &needed), -ENOSPC);
        cr_assert(untouched(slots, sizeof slots));
        gives(&rig, weir_export_slots(&batch, slots, total, &needed), 0);
        cr_assert(eq(sz, needed, total));
        for (size_t i = 0, at = 0; i < 5; i++)
            for (size_t token = items[i].from; token < end_of(&items[i], of[i]); token++, at++)
                cr_assert(eq(i64, slots[at], unit_of(of[i], token, 1)));
        cr_assert(untouched(&slots[total], (ENTRIES - total) * sizeof *slots));
        close_rig();
    }
}

/* What a server gets that asks only for what is new, put behind what it has. */
Test(export, incremental)
{
    rig_open(&rig, rig_params(16, 16, 0));
    weir_seq seq = rig_seq(&rig, "ABCDEF", 0);
    int32_t kept[64], whole[64];
    size_t n = 0, needed;
    for (size_t length = 16; length <= 96; length += 16) {
        gives(&rig, rig_reserve(&rig, seq, length, NULL), 0);
        weir_export_item item = { seq, n * 8, WEIR_ALL_TOKENS };
        weir_export_batch batch = batch_of(&item, 1, 8);
        gives(&rig, weir_export_dense(&batch, 0, kept + n, 2, &needed), 0);
        cr_assert(eq(sz, needed, 2));
        n += needed;
        gives(&rig, weir_seq_pages(seq, 0, 8, whole, 64, &needed), 0);
        cr_assert(needed == n && memcmp(kept, whole, n * sizeof *kept) == 0);
    }
    rig_done(&rig, &seq);
    rig_close(&rig);
}

Test(export, nothing)
{
    open_rig(16);
    weir_export_batch batch = batch_of(NULL, 0, 16);
    size_t needed[5] = { 9, 9, 9, 9, 9 };
    indptr[0] = 7;
    gives(&rig, weir_export_csr(&batch, indptr, NULL, NULL, 0, &needed[0]), 0);
    gives(&rig, weir_export_dense(&batch, 0, NULL, 0, &needed[1]), 0);
    gives(&rig, weir_export_offsets(&batch, 2, 1, 0, NULL, 0, &needed[2]), 0);
    gives(&rig, weir_export_pointers(&batch, 0, 1, NULL, 0, &needed[3]), 0);
    gives(&rig, weir_export_slots(&batch, NULL, 0, &needed[4]), 0);
    cr_assert(zero(i32, indptr[0]));
    for (size_t i = 0; i < 5; i++)
        cr_assert(zero(sz, needed[i]), "%zu", i);
    /* A row without pages is all padding. */
    weir_export_item item = { seqs[2], 0, WEIR_ALL_TOKENS };
    batch = batch_of(&item, 1, 16);
    gives(&rig, weir_export_offsets(&batch, 2, 1, 6, indices, 2, &needed[0]), 0);
    for (size_t i = 0; i < 4; i++)
        cr_assert(eq(i32, indices[i], 6));
    gives(&rig, weir_export_dense(&batch, 0, NULL, 0, &needed[0]), 0);
    close_rig();
}

/* ---- Refusals ------------------------------------------------------------ */

enum form {
    CSR,
    DENSE,
    OFFSETS,
    POINTERS,
    SLOTS,
    N_FORMS
};

static int export_as(enum form form, const weir_export_batch *batch, void *buffer, size_t room,
                     size_t *needed)
{
    switch (form) {
    case CSR:
        return weir_export_csr(batch, indptr, lengths, buffer, room, needed);
    case DENSE:
        return weir_export_dense(batch, 0, buffer, room, needed);
    case OFFSETS:
        return weir_export_offsets(batch, 2, 1, 0, buffer, room, needed);
    case POINTERS:
        return weir_export_pointers(batch, 0, 64, buffer, room, needed);
    default:
        return weir_export_slots(batch, buffer, room, needed);
    }
}

/* Nothing is written, and there is one line with `word` in it, or none. */
#define refused(call, want, word)                                                        \
    do {                                                                                 \
        const char *word_ = (word);                                                      \
        unsigned lines_ = rig.log.lines;                                                 \
        gives(&rig, call, want);                                                         \
        cr_assert(eq(u32, rig.log.lines, lines_ + (word_ != NULL)), "%s", rig.log.last); \
        cr_assert(word_ == NULL || strstr(rig.log.last, word_), "%s: \"%s\"", word_,     \
                  rig.log.last);                                                         \
        cr_assert(eq(sz, needed, 77));                                                   \
        cr_assert(untouched(slots, sizeof slots) && untouched(indptr, sizeof indptr) &&  \
                  untouched(lengths, sizeof lengths));                                   \
    } while (0)

Test(export, refusals)
{
    open_rig(16);
    memset(slots, MARK, sizeof slots);
    memset(indptr, MARK, sizeof indptr);
    memset(lengths, MARK, sizeof lengths);
    size_t needed = 77;
    weir_cache *other = NULL;
    weir_cache_params params = rig_params(16, 4, 0);
    cr_assert(zero(int, weir_cache_create(&other, &params)));
    weir_seq closed = rig_seq(&rig, "Z", 0), gone = closed;
    rig_done(&rig, &closed);
    for (int f = 0; f < N_FORMS; f++) {
        /* The first item is right: it must not be written either. */
        weir_export_item items[] = { { seqs[0], 0, WEIR_ALL_TOKENS },
                                     { seqs[1], 0, WEIR_ALL_TOKENS } };
        weir_export_batch batch = batch_of(items, 2, 8), bad = batch;
        enum form form = (enum form)f;
        refused(export_as(form, NULL, slots, 200, &needed), -EINVAL, NULL);
        bad.cache = NULL;
        refused(export_as(form, &bad, slots, 200, &needed), -EINVAL, NULL);
        bad = batch_of(NULL, 2, 8);
        refused(export_as(form, &bad, slots, 200, &needed), -EINVAL, "items is NULL");
        refused(export_as(form, &batch, slots, 200, NULL), -EINVAL, "needed is NULL");
        refused(export_as(form, &batch, NULL, 200, &needed), -EINVAL, "buffer is NULL");
        items[1].seq.cache = other;
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "items[1].seq");
        items[1].seq = (weir_seq){ 0 };
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "items[1].seq");
        items[1].seq = (weir_seq){ rig.cache, UINT32_MAX };
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "not a handle");
        items[1].seq = gone;
        refused(export_as(form, &batch, slots, 200, &needed), -ESTALE, NULL);
        items[1] = (weir_export_item){ seqs[1], 0, 17 };
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "items[1].to");
        items[1] = (weir_export_item){ seqs[1], 8, 7 };
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "items[1].to");
        items[1] = (weir_export_item){ seqs[1], 0, SIZE_MAX - 1 };
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "items[1].to");
        if (form == SLOTS)
            continue;
        items[1] = (weir_export_item){ seqs[1], 7, 16 };
        refused(export_as(form, &batch, slots, 200, &needed), -EINVAL, "items[1].from");
        items[1].from = 0;
        static const uint32_t units[] = { 0, 3, 32, UINT32_MAX };
        for (size_t i = 0; i < 4; i++) {
            bad = batch_of(items, 2, units[i]);
            refused(export_as(form, &bad, slots, 200, &needed), -EINVAL, "kernel_page_tokens");
        }
    }
    weir_export_item item = { seqs[0], 0, WEIR_ALL_TOKENS };
    weir_export_batch batch = batch_of(&item, 1, 8);
    refused(weir_export_csr(&batch, NULL, lengths, indices, 200, &needed), -EINVAL, "indptr");
    refused(weir_export_offsets(&batch, -1, 1, 0, indices, 99, &needed), -EINVAL, "scale");
    refused(weir_export_offsets(&batch, 2, -1, 0, indices, 99, &needed), -EINVAL, "v_offset");
    /* 16 pages of 2 kernel pages: the last id is 33. */
    int32_t scale = (INT32_MAX - 5) / 33, rest = INT32_MAX - 33 * scale;
    refused(weir_export_offsets(&batch, scale, rest + 1, 0, indices, 99, &needed), -EINVAL,
            "int32");
    refused(weir_export_offsets(&batch, INT32_MAX, INT32_MAX, 0, indices, 99, &needed), -EINVAL,
            "int32");
    uint64_t stride = (UINT64_MAX - 1000) / 33;
    refused(
        weir_export_pointers(&batch, UINT64_MAX - 33 * stride + 1, stride, pointers, 99, &needed),
        -EINVAL, "stride");
    gives(&rig, weir_export_offsets(&batch, scale, rest, 0, indices, 99, &needed), 0);
    gives(&rig,
          weir_export_pointers(&batch, UINT64_MAX - 33 * stride, stride, pointers, 99, &needed), 0);
    cr_assert(zero(int, weir_cache_destroy(&other)));
    close_rig();
}
