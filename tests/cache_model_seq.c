/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_model_parts.h"

#include <stdlib.h>
#include <string.h>

uint32_t model_pages(const struct model_seq *seq)
{
    return seq->source && seq->source_index >= seq->n_pages ? seq->source_index + 1 : seq->n_pages;
}

static bool page_is_bad(const struct model *m, int32_t page, bool early)
{
    return model_is_bad(m, m->device[page] != MODEL_NONE ? m->device[page] : m->tails[page].from,
                        early);
}

uint32_t model_good_pages(const struct model *m, const struct model_seq *seq, bool early)
{
    if (seq->lost)
        return 0;
    uint32_t n = model_pages(seq);
    for (uint32_t i = 0; i < n; i++) {
        bool due = seq->source && i == seq->source_index;
        if (page_is_bad(m, due ? seq->source : seq->table[i], early))
            return i;
    }
    return n;
}

bool model_is_doomed(const struct model *m, const struct model_seq *seq)
{
    return seq->late || model_good_pages(m, seq, false) < model_pages(seq);
}

/* Whether a version, or what its first rows were copied from, is still to come. */
static bool is_coming(const struct model *m, int32_t version)
{
    for (; version != MODEL_NONE; version = m->versions[version].also)
        if (m->versions[version].load_step && !m->versions[version].arrived)
            return true;
    return false;
}

/* Whether a page's load is still to come, or that of what was copied into it. */
static bool is_missing(const struct model *m, int32_t page)
{
    int32_t version = m->device[page];
    if (version == MODEL_NONE)
        return m->planned[page] || is_coming(m, m->tails[page].from);
    return is_coming(m, version);
}

uint32_t model_missing(const struct model *m, const struct model_seq *seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq->n_pages; i++)
        n += is_missing(m, seq->table[i]);
    return n;
}

void model_poll(struct model *m, uint64_t now_ns)
{
    for (uint32_t k = 0; k < MODEL_SEQS; k++) {
        struct model_seq *seq = &m->seqs[k];
        if (!seq->open || seq->closing || !seq->deadline_ns || seq->deadline_ns > now_ns)
            continue;
        seq->deadline_ns = 0;
        uint32_t n = model_pages(seq);
        for (uint32_t i = 0; i < n && !seq->late; i++) {
            bool due = seq->source && i == seq->source_index;
            seq->late = is_missing(m, due ? seq->source : seq->table[i]);
            seq->late_pages = i;
        }
    }
}

/* An open sequence other than `self` with this page in its table, or to copy it, and
 * where. */
const struct model_seq *model_holder(const struct model *m, const struct model_seq *self,
                                     int32_t page, uint32_t *index)
{
    for (uint32_t k = 0; k < MODEL_SEQS; k++) {
        const struct model_seq *seq = &m->seqs[k];
        if (!seq->open || seq == self)
            continue;
        for (uint32_t i = 0; i < seq->n_pages; i++) {
            if (seq->table[i] == page) {
                *index = i;
                return seq;
            }
        }
        if (seq->source == page) {
            *index = seq->source_index;
            return seq;
        }
    }
    return NULL;
}

static uint64_t chain_of(const struct model *m, int32_t page)
{
    int32_t version = m->device[page];
    return version == MODEL_NONE ? m->planned[page] : m->versions[version].chain;
}

uint32_t model_not_held(const struct model *m)
{
    uint32_t n = 0;
    for (int32_t p = 1; p <= (int32_t)m->device_pages; p++) {
        bool held = false;
        for (uint32_t k = 0; k < MODEL_SEQS; k++) {
            const struct model_seq *seq = &m->seqs[k];
            for (uint32_t i = 0; seq->open && i < seq->n_pages; i++)
                held |= seq->table[i] == p || chain_of(m, p) == seq->chains[i];
            if (seq->open && seq->source)
                held |= seq->source == p || chain_of(m, p) == seq->chains[seq->source_index];
        }
        n += !held;
    }
    return n;
}

/* ---- Reserves and commits ------------------------------------------------ */

/* A page that is to be loaded into, or to be written by its sequence alone. */
static void expect_fresh(const struct model *m, const struct model_seq *seq, uint32_t i)
{
    int32_t page = seq->table[i];
    uint32_t index;
    model_must(m, !model_holder(m, seq, page, &index), "device page %d is given out while in use",
               page);
    const struct model_flight *f = model_mover(m, page, MODEL_NONE, false);
    model_must(m, !f, "device page %d is given out while step %d moves it", page, (int)f->step);
}

/* A page is given out; nothing of it counts any more. */
static void take_page(struct model *m, int32_t page, uint64_t planned)
{
    m->device[page] = MODEL_NONE;
    m->planned[page] = planned;
    m->tails[page] = (struct model_tail){ .from = MODEL_NONE };
}

void model_reserve(struct model *m, struct model_seq *seq, size_t n_hit, const int32_t *table,
                   size_t n)
{
    model_must(m, n >= seq->n_pages && n <= m->device_pages, "%zu pages in a table", n);
    for (uint32_t i = 0; i < seq->n_pages; i++)
        model_must(m, table[i] == seq->table[i], "entry %u of a table changed", i);
    uint32_t first = seq->n_pages;
    memcpy(seq->table, table, n * sizeof *table);
    seq->n_pages = (uint32_t)n;
    if (!seq->reserved)
        seq->n_committed = n_hit;
    for (uint32_t i = first; i < n; i++) {
        int32_t page = table[i];
        model_must(m, page >= 1 && (uint32_t)page <= m->device_pages, "device page %d", page);
        for (uint32_t k = 0; k < i; k++)
            model_must(m, table[k] != page, "device page %d twice in a table", page);
        bool hit = !seq->reserved && i < n_hit / m->page_tokens;
        if (hit && model_holds(m, m->device[page], seq->chains[i]))
            continue;
        /* A hit whose load no order holds yet may be shared, at the same place
         * of the same prefix. */
        uint32_t index;
        const struct model_seq *other = model_holder(m, seq, page, &index);
        bool planned = m->device[page] == MODEL_NONE && m->planned[page] == seq->chains[i];
        if (hit && planned && (!other || (index == i && other->chains[i] == seq->chains[i])))
            continue;
        expect_fresh(m, seq, i);
        take_page(m, page, hit ? seq->chains[i] : 0);
    }
    seq->reserved = true;
}

void model_commit(struct model *m, struct model_seq *seq, size_t n)
{
    size_t from = seq->n_committed / m->page_tokens;
    seq->n_committed += n;
    for (size_t i = from; i < seq->n_committed / m->page_tokens; i++) {
        int32_t before = i ? m->device[seq->table[i - 1]] : MODEL_NONE;
        if (before != MODEL_NONE)
            model_shorten(m, before);
        int32_t page = seq->table[i];
        if (model_holds(m, m->device[page], seq->chains[i]))
            continue; /* by the sequence that it was forked off */
        int32_t version = model_add_version(m, seq->chains[i], before, 0);
        m->versions[version].also = m->tails[page].from;
        m->device[page] = version;
    }
    size_t last = seq->n_committed / m->page_tokens;
    uint32_t rows = (uint32_t)(seq->n_committed % m->page_tokens);
    if (rows && n) {
        struct model_tail *tail = &m->tails[seq->table[last]];
        *tail =
            (struct model_tail){ seq->chains[last], rows, last == from ? tail->from : MODEL_NONE };
    }
}

void model_close(struct model_seq *seq)
{
    if (seq->in_step)
        seq->closing = true;
    else
        *seq = (struct model_seq){ 0 };
}

void model_leave_step(struct model_seq *seq)
{
    seq->in_step = seq->born = false;
    seq->n_pending = 0;
    if (seq->closing)
        *seq = (struct model_seq){ 0 };
}

void model_abort(struct model *m)
{
    for (uint32_t k = 0; k < MODEL_SEQS; k++)
        if (m->seqs[k].in_step) {
            struct model_seq *seq = &m->seqs[k];
            if (seq->born) {
                seq->n_pages = (uint32_t)(seq->n_committed / m->page_tokens);
                seq->source = 0;
            }
            model_leave_step(seq);
        }
}

/* ---- Forks and cuts ------------------------------------------------------ */

void model_fork(struct model *m, const struct model_seq *seq, struct model_seq *kid, size_t len,
                const int32_t *table, size_t n)
{
    uint32_t full = (uint32_t)(len / m->page_tokens);
    uint32_t rows = (uint32_t)(len % m->page_tokens);
    model_must(m, n == full + (rows > 0), "%zu pages in a kid's table", n);
    memcpy(kid->table, table, n * sizeof *table);
    kid->n_pages = (uint32_t)n;
    kid->n_committed = len;
    kid->open = kid->reserved = true;
    kid->unindexed = seq->unindexed;
    for (uint32_t i = 0; i < full; i++)
        model_must(m, table[i] == seq->table[i], "page %u of a kid is not its parent's", i);
    bool born = len > seq->n_committed;
    if (rows) {
        bool due = seq->source && seq->source_index == full && (seq->born || !born);
        kid->source = due ? seq->source : seq->table[full];
        kid->source_index = full;
        expect_fresh(m, kid, full);
        take_page(m, table[full], 0);
    }
    if (!born)
        return;
    model_must(m, seq->in_step, "a fork of what nobody computes");
    kid->born = kid->in_step = true;
    kid->parent = seq;
    kid->n_committed = seq->n_committed - seq->n_committed % m->page_tokens;
    kid->n_pending = len - kid->n_committed;
}

/* It goes on inside its page i: the rows beyond are anything from now on. */
static void go_on_in_place(struct model *m, struct model_seq *seq, uint32_t i, uint32_t rows)
{
    int32_t page = seq->table[i];
    uint32_t index;
    model_must(m, !model_holder(m, seq, page, &index), "page %d is cut in place while in use",
               page);
    model_must(m, !model_mover(m, page, MODEL_NONE, false),
               "page %d is cut in place while it is moved", page);
    int32_t from = m->device[page] != MODEL_NONE ? m->device[page] : m->tails[page].from;
    m->tails[page] = (struct model_tail){ seq->chains[i], rows, from };
    m->device[page] = MODEL_NONE;
    m->planned[page] = 0;
}

void model_truncate(struct model *m, struct model_seq *seq, size_t n_tokens, const int32_t *table,
                    size_t n)
{
    uint32_t full = (uint32_t)(n_tokens / m->page_tokens);
    uint32_t rows = (uint32_t)(n_tokens % m->page_tokens);
    uint32_t most = full + (rows > 0);
    model_must(m, n <= seq->n_pages && (n == most || n == full), "%zu pages after a cut", n);
    for (uint32_t i = 0; i < n; i++)
        model_must(m, table[i] == seq->table[i], "entry %u of a table changed", i);
    bool due = seq->source && rows && seq->source_index == full;
    if (!due)
        seq->source = 0;
    model_must(m, due || n == most || rows, "%zu pages after a cut", n);
    if (rows && !due && n == full) {
        seq->source = seq->table[full];
        seq->source_index = full;
    } else if (rows && !due && n_tokens < seq->n_committed) {
        go_on_in_place(m, seq, full, rows);
    }
    seq->n_pages = (uint32_t)n;
    seq->n_committed = n_tokens;
    seq->n_step_pages = 0;
    seq->waiting = seq->failure_told = seq->late = seq->lost = false;
}
