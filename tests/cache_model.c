/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_model.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)

void model_fail(const struct model *m, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cr_fatal("%s, seed %llu, operation %llu: %s", m->name, (unsigned long long)m->seed,
             (unsigned long long)m->operation, text);
    abort();
}

void model_create(struct model *m)
{
    m->next_step = 1;
    for (uint32_t p = 0; p <= MODEL_PAGES; p++) {
        m->device[p] = m->host[p] = NONE;
        m->tails[p].from = NONE;
    }
}

static void free_flight(struct model_flight *f)
{
    free(f->fences);
    free(f->load_fences);
    free(f->write_fences);
    free(f->joins);
    free(f->loads);
    free(f->writes);
    free(f->versions);
    *f = (struct model_flight){ 0 };
}

void model_destroy(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        free_flight(&m->flights[i]);
    free(m->versions);
}

uint64_t model_chain(uint64_t prefix, uint64_t content)
{
    uint64_t z = (prefix ^ (content * UINT64_C(0x9e3779b97f4a7c15))) + 1;
    z = (z ^ (z >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ (z >> 29);
}

/* ---- Versions ------------------------------------------------------------ */

static int32_t add_version(struct model *m, uint64_t chain, int32_t from, uint64_t load_step)
{
    if (m->n_versions == m->versions_capacity) {
        m->versions_capacity = m->versions_capacity ? 2 * m->versions_capacity : 1024;
        m->versions = realloc(m->versions, (size_t)m->versions_capacity * sizeof *m->versions);
        model_must(m, m->versions, "no memory");
    }
    m->versions[m->n_versions] = (struct model_version){
        .chain = chain,
        .load_step = load_step,
        .from = from,
        .also = NONE,
        .arrived = load_step == 0,
    };
    return m->n_versions++;
}

/* Whether a version or one below it has failed. */
static bool is_bad(const struct model *m, int32_t version, bool early)
{
    for (; version != NONE; version = m->versions[version].from)
        if (m->versions[version].failed || (early && m->versions[version].failing) ||
            is_bad(m, m->versions[version].also, early))
            return true;
    return false;
}

/* Cuts the way down where nothing can fail any more, so that it stays short. */
static void shorten(struct model *m, int32_t version)
{
    for (; version != NONE; version = m->versions[version].from) {
        int32_t from = m->versions[version].from;
        if (from != NONE && m->versions[from].from == NONE && m->versions[from].also == NONE &&
            m->versions[from].arrived && !m->versions[from].failing)
            m->versions[version].from = NONE;
    }
}

static bool holds(const struct model *m, int32_t version, uint64_t chain)
{
    return version != NONE && m->versions[version].chain == chain && !is_bad(m, version, false);
}

/* ---- Flights ------------------------------------------------------------- */

static struct model_flight *find_flight(const struct model *m, uint64_t step)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        if (step && m->flights[i].step == step)
            return (struct model_flight *)&m->flights[i];
    return NULL;
}

static bool all_reported(const struct model *m, const struct model_flight *f, uint32_t kind)
{
    for (uint32_t rank = 0; rank < m->n_ranks; rank++)
        if (!f->reported[kind][rank])
            return false;
    return true;
}

static bool lists(const uint64_t *steps, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

/* Whether one who waits for these steps comes behind `step`. */
static bool is_behind(const struct model *m, const uint64_t *fences, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++) {
        if (fences[i] == step)
            return true;
        const struct model_flight *f = find_flight(m, fences[i]);
        if (f && fences[i] > step && is_behind(m, f->fences, f->n_fences, step))
            return true;
    }
    return false;
}

/* The flight whose unreported load or write-back moves a device or host page. A
 * load may read a host page that a cancelled one still reads. */
static const struct model_flight *mover(const struct model *m, int32_t device, int32_t host,
                                        bool for_load)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++) {
        const struct model_flight *f = &m->flights[i];
        if (!f->step)
            continue;
        for (uint32_t k = 0; k < f->n_loads && !all_reported(m, f, WEIR_REPORT_LOAD); k++)
            if (f->loads[k].device.id == device ||
                (f->loads[k].host.id == host && !(for_load && f->cancelled[WEIR_REPORT_LOAD])))
                return f;
        for (uint32_t k = 0; k < f->n_writes && !all_reported(m, f, WEIR_REPORT_WRITE_BACK); k++)
            if (f->writes[k].device.id == device || f->writes[k].host.id == host)
                return f;
    }
    return NULL;
}

uint32_t model_steps_in_flight(const struct model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++) {
        const struct model_flight *f = &m->flights[i];
        n += f->step &&
             !(all_reported(m, f, WEIR_REPORT_STEP) && all_reported(m, f, WEIR_REPORT_LOAD));
    }
    return n;
}

bool model_in_flight(const struct model *m)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        if (m->flights[i].step)
            return true;
    return false;
}

/* ---- Sequences ----------------------------------------------------------- */

uint32_t model_pages(const struct model_seq *seq)
{
    return seq->source && seq->source_index >= seq->n_pages ? seq->source_index + 1 : seq->n_pages;
}

static bool page_is_bad(const struct model *m, int32_t page, bool early)
{
    return is_bad(m, m->device[page] != NONE ? m->device[page] : m->tails[page].from, early);
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

static bool is_doomed(const struct model *m, const struct model_seq *seq)
{
    return seq->late || model_good_pages(m, seq, false) < model_pages(seq);
}

/* Whether a version, or what its first rows were copied from, is still to come. */
static bool is_coming(const struct model *m, int32_t version)
{
    for (; version != NONE; version = m->versions[version].also)
        if (m->versions[version].load_step && !m->versions[version].arrived)
            return true;
    return false;
}

/* Whether a page's load is still to come, or that of what was copied into it. */
static bool is_missing(const struct model *m, int32_t page)
{
    int32_t version = m->device[page];
    if (version == NONE)
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
static const struct model_seq *holder(const struct model *m, const struct model_seq *self,
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
    return version == NONE ? m->planned[page] : m->versions[version].chain;
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

/* A page that is to be loaded into, or to be written by its sequence alone. */
static void expect_fresh(const struct model *m, const struct model_seq *seq, uint32_t i)
{
    int32_t page = seq->table[i];
    uint32_t index;
    model_must(m, !holder(m, seq, page, &index), "device page %d is given out while in use", page);
    const struct model_flight *f = mover(m, page, NONE, false);
    model_must(m, !f, "device page %d is given out while step %d moves it", page, (int)f->step);
}

/* A page is given out; nothing of it counts any more. */
static void take_page(struct model *m, int32_t page, uint64_t planned)
{
    m->device[page] = NONE;
    m->planned[page] = planned;
    m->tails[page] = (struct model_tail){ .from = NONE };
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
        if (hit && holds(m, m->device[page], seq->chains[i]))
            continue;
        /* A hit whose load no order holds yet may be shared, at the same place
         * of the same prefix. */
        uint32_t index;
        const struct model_seq *other = holder(m, seq, page, &index);
        bool planned = m->device[page] == NONE && m->planned[page] == seq->chains[i];
        if (hit && planned && (!other || (index == i && other->chains[i] == seq->chains[i])))
            continue;
        expect_fresh(m, seq, i);
        take_page(m, page, hit ? seq->chains[i] : 0);
    }
    seq->reserved = true;
}

/* The pages that have become full hold their prefix from now on. */
static void fill_pages(struct model *m, struct model_seq *seq, size_t n)
{
    size_t from = seq->n_committed / m->page_tokens;
    seq->n_committed += n;
    for (size_t i = from; i < seq->n_committed / m->page_tokens; i++) {
        int32_t before = i ? m->device[seq->table[i - 1]] : NONE;
        if (before != NONE)
            shorten(m, before);
        int32_t page = seq->table[i];
        if (holds(m, m->device[page], seq->chains[i]))
            continue; /* by the sequence that it was forked off */
        int32_t version = add_version(m, seq->chains[i], before, 0);
        m->versions[version].also = m->tails[page].from;
        m->device[page] = version;
    }
    size_t last = seq->n_committed / m->page_tokens;
    uint32_t rows = (uint32_t)(seq->n_committed % m->page_tokens);
    if (rows && n) {
        struct model_tail *tail = &m->tails[seq->table[last]];
        *tail = (struct model_tail){ seq->chains[last], rows, last == from ? tail->from : NONE };
    }
}

void model_commit(struct model *m, struct model_seq *seq, size_t n)
{
    fill_pages(m, seq, n);
}

void model_close(struct model_seq *seq)
{
    if (seq->in_step)
        seq->closing = true;
    else
        *seq = (struct model_seq){ 0 };
}

static void leave_step(struct model_seq *seq)
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
            leave_step(seq);
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
    model_must(m, !holder(m, seq, page, &index), "page %d is cut in place while in use", page);
    model_must(m, !mover(m, page, NONE, false), "page %d is cut in place while it is moved", page);
    int32_t from = m->device[page] != NONE ? m->device[page] : m->tails[page].from;
    m->tails[page] = (struct model_tail){ seq->chains[i], rows, from };
    m->device[page] = NONE;
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

/* ---- Orders -------------------------------------------------------------- */

static void *copy(const struct model *m, const void *data, size_t n, size_t size)
{
    void *result = malloc(n * size + 1);
    model_must(m, result, "no memory");
    if (n)
        memcpy(result, data, n * size);
    return result;
}

static uint64_t digest(const void *bytes, size_t n)
{
    uint64_t result = 0;
    for (size_t i = 0; i < n; i++)
        result = model_chain(result, ((const unsigned char *)bytes)[i]);
    return result;
}

static struct model_flight *new_flight(struct model *m, const weir_order *order, const void *bytes,
                                       size_t n_bytes)
{
    struct model_flight *f = NULL;
    for (uint32_t i = 0; i < MODEL_FLIGHTS && !f; i++)
        if (!m->flights[i].step)
            f = &m->flights[i];
    model_must(m, f, "too many flights");
    *f = (struct model_flight){
        .step = order->step,
        .ticket = order->write_ticket,
        .n_fences = order->n_fences,
        .n_load_fences = order->n_load_fences,
        .n_write_fences = order->n_write_fences,
        .n_joins = order->n_joins,
        .n_loads = order->n_loads,
        .n_writes = order->n_writes,
        .fences = copy(m, order->fences, order->n_fences, sizeof *order->fences),
        .load_fences = copy(m, order->load_fences, order->n_load_fences, sizeof *order->fences),
        .write_fences = copy(m, order->write_fences, order->n_write_fences, sizeof *order->fences),
        .joins = copy(m, order->joins, order->n_joins, sizeof *order->joins),
        .loads = copy(m, order->loads, order->n_loads, sizeof *order->loads),
        .writes = copy(m, order->writes, order->n_writes, sizeof *order->writes),
        .versions = calloc(order->n_loads + order->n_writes + 1, sizeof(int32_t)),
        .order = bytes,
        .order_bytes = n_bytes,
    };
    model_must(m, f->versions, "no memory");
    f->order_digest = digest(bytes, n_bytes);
    return f;
}

static void check_moves(const struct model *m, const weir_move *moves, uint32_t n, bool for_load)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t device = moves[i].device.id, host = moves[i].host.id;
        model_must(m, device >= 1 && (uint32_t)device <= m->device_pages, "device page %d", device);
        model_must(m, host >= 1 && (uint32_t)host <= m->host_pages, "host page %d", host);
        const struct model_flight *f = mover(m, device, host, for_load);
        model_must(m, !f, "device page %d or host page %d is moved by step %d already", device,
                   host, (int)f->step);
        for (uint32_t k = 0; k < i; k++)
            model_must(m, moves[k].device.id != device && moves[k].host.id != host,
                       "device page %d or host page %d twice in an order", device, host);
    }
}

/* A load brings right bytes to a page that all who have it want them in. */
static void begin_loads(struct model *m, struct model_flight *f)
{
    for (uint32_t i = 0; i < f->n_loads; i++) {
        int32_t device = f->loads[i].device.id, host = f->loads[i].host.id;
        int32_t source = m->host[host];
        model_must(m, source != NONE, "host page %d is loaded and holds nothing", host);
        model_must(m, m->versions[source].arrived, "host page %d is loaded before it is written",
                   host);
        model_must(m, !is_bad(m, source, false), "host page %d is loaded and wrong", host);
        bool wanted = false;
        for (uint32_t k = 0; k < MODEL_SEQS; k++) {
            const struct model_seq *seq = &m->seqs[k];
            for (uint32_t j = 0; seq->open && j < seq->n_pages; j++) {
                if (seq->table[j] != device)
                    continue;
                model_must(m, seq->chains[j] == m->versions[source].chain,
                           "host page %d holds another prefix than device page %d is for", host,
                           device);
                wanted |= seq->in_step;
            }
            if (seq->open && seq->source == device) {
                model_must(m, seq->chains[seq->source_index] == m->versions[source].chain,
                           "host page %d holds another prefix than is to be copied", host);
                wanted |= seq->in_step;
            }
        }
        model_must(m, wanted, "device page %d is loaded and not used by the step", device);
        for (uint32_t k = 0; k < MODEL_FLIGHTS; k++) {
            const struct model_flight *t = &m->flights[k];
            if (!t->step || t == f || all_reported(m, t, WEIR_REPORT_STEP))
                continue;
            model_must(m,
                       !(t->reads_page[device] || t->writes_page[device]) ||
                           is_behind(m, f->load_fences, f->n_load_fences, t->step),
                       "the load into device page %d does not wait for step %d", device,
                       (int)t->step);
        }
        m->device[device] = add_version(m, m->versions[source].chain, source, f->step);
        f->versions[i] = m->device[device];
    }
}

/* The copy that a sequence of the step is to have: what it takes is there, or comes
 * by the load that the copy names. One that is wrong has none: it is cut before. */
static void make_copy(struct model *m, struct model_flight *f, struct model_seq *seq,
                      const weir_order *order)
{
    uint32_t i = seq->source_index, rows = (uint32_t)(seq->n_committed % m->page_tokens);
    int32_t to = seq->table[i], from = seq->source;
    if (is_doomed(m, seq))
        return;
    const weir_page_copy *copy = NULL;
    for (uint32_t k = 0; k < order->n_copies; k++)
        if (order->copies[k].to.id == to)
            copy = &order->copies[k];
    model_must(m, copy && copy->from.id == from, "page %d is not copied to page %d", from, to);
    seq->source = 0;
    m->copies_made++;
    f->reads_page[from] = f->writes_page[to] = true;
    const struct model_tail *tail = &m->tails[from];
    int32_t version = m->device[from];
    bool whole = version != NONE && m->versions[version].chain == seq->chains[i];
    model_must(m, whole || (version == NONE && tail->chain == seq->chains[i] && tail->rows >= rows),
               "page %d is copied and does not hold the rows", from);
    bool loading = whole && m->versions[version].load_step && !m->versions[version].arrived;
    uint64_t load = loading ? m->versions[version].load_step : 0;
    model_must(m, copy->load == load, "page %d is copied behind load %d, not %d", from,
               (int)copy->load, (int)load);
    m->tails[to] = (struct model_tail){ seq->chains[i], rows, whole ? version : tail->from };
    m->device[to] = NONE;
    seq->unindexed |= loading;
    f->copies_late |= loading;
    if (loading)
        find_flight(m, load)->load_copied = true;
}

/* What the step's sequences read is there, or comes by a load that it names. */
static void use_pages(struct model *m, struct model_flight *f, struct model_seq *seq)
{
    size_t full = seq->n_committed / m->page_tokens;
    for (size_t i = 0; i * m->page_tokens < seq->n_committed; i++)
        f->reads_page[seq->table[i]] = true;
    for (size_t i = full; i < seq->n_pages; i++)
        f->writes_page[seq->table[i]] = true;
    seq->n_step_pages = seq->n_pages;
    if (is_doomed(m, seq))
        return;
    uint32_t rows = (uint32_t)(seq->n_committed % m->page_tokens);
    if (rows) {
        const struct model_tail *tail = &m->tails[seq->table[full]];
        model_must(m, tail->chain == seq->chains[full] && tail->rows >= rows,
                   "device page %d does not hold the last %u rows of its sequence",
                   seq->table[full], rows);
    }
    for (size_t i = 0; i < full; i++) {
        int32_t page = seq->table[i];
        int32_t version = m->device[page];
        model_must(m, holds(m, version, seq->chains[i]),
                   "device page %d does not hold page %zu of its sequence", page, i);
        uint64_t step = m->versions[version].load_step;
        if (step == 0 || step == f->step || m->versions[version].arrived)
            continue;
        model_must(m, lists(f->joins, f->n_joins, step),
                   "device page %d is brought by the load of step %d, which is not joined", page,
                   (int)step);
    }
}

/* Whether the step's use of a page comes behind step `t`: by its own fences, or
 * because the load that brings the page does. */
static bool use_is_behind(const struct model *m, const struct model_flight *f, uint32_t page,
                          uint64_t t)
{
    if (is_behind(m, f->fences, f->n_fences, t))
        return true;
    int32_t version = m->device[page];
    uint64_t step = version == NONE ? 0 : m->versions[version].load_step;
    const struct model_flight *load = find_flight(m, step);
    return load && (load == f || lists(f->joins, f->n_joins, step)) &&
           is_behind(m, load->load_fences, load->n_load_fences, t);
}

static void check_fences(const struct model *m, const struct model_flight *f)
{
    for (uint32_t k = 0; k < MODEL_FLIGHTS; k++) {
        const struct model_flight *t = &m->flights[k];
        if (!t->step || t == f || all_reported(m, t, WEIR_REPORT_STEP))
            continue;
        for (uint32_t p = 1; p <= m->device_pages; p++) {
            bool hazard = (t->writes_page[p] && (f->reads_page[p] || f->writes_page[p])) ||
                          (t->reads_page[p] && f->writes_page[p]);
            model_must(m, !hazard || use_is_behind(m, f, p, t->step),
                       "step %d uses device page %u and does not wait for step %d", (int)f->step, p,
                       (int)t->step);
        }
    }
}

/* A write-back reads a full page behind all that wrote it. */
static void begin_writes(struct model *m, struct model_flight *f)
{
    for (uint32_t i = 0; i < f->n_writes; i++) {
        int32_t device = f->writes[i].device.id, host = f->writes[i].host.id;
        int32_t source = m->device[device];
        model_must(m, source != NONE, "device page %d is written back and holds nothing", device);
        model_must(m, !is_bad(m, source, false), "device page %d is written back and wrong",
                   device);
        for (uint32_t k = 0; k < MODEL_FLIGHTS; k++) {
            const struct model_flight *t = &m->flights[k];
            if (!t->step || !t->writes_page[device] || all_reported(m, t, WEIR_REPORT_STEP))
                continue;
            model_must(m, is_behind(m, f->write_fences, f->n_write_fences, t->step),
                       "the write-back of device page %d does not wait for step %d", device,
                       (int)t->step);
        }
        int32_t version = add_version(m, m->versions[source].chain, source, 0);
        m->versions[version].arrived = false;
        m->host[host] = version;
        f->versions[f->n_loads + i] = version;
    }
}

static struct model_flight *flight_of(const struct model *m, uint32_t kind, uint64_t number)
{
    if (kind != WEIR_REPORT_WRITE_BACK)
        return find_flight(m, number);
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        if (m->flights[i].step && m->flights[i].ticket == number)
            return (struct model_flight *)&m->flights[i];
    return NULL;
}

/* Only what is in flight is cancelled, once, and no load whose pages a sequence
 * has. */
static void check_cancels(struct model *m, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_cancels; i++) {
        const weir_cancel *cancel = &order->cancels[i];
        struct model_flight *f = flight_of(m, cancel->kind, cancel->number);
        model_must(m, f && !all_reported(m, f, cancel->kind) && !f->cancelled[cancel->kind],
                   "cancel %u of kind %u, number %d", i, cancel->kind, (int)cancel->number);
        model_must(m, cancel->kind != WEIR_REPORT_LOAD || !f->load_copied,
                   "the load of step %d is cancelled, and was copied from", (int)f->step);
        f->cancelled[cancel->kind] = true;
        uint32_t index;
        for (uint32_t k = 0; cancel->kind == WEIR_REPORT_LOAD && k < f->n_loads; k++)
            model_must(m, !holder(m, NULL, f->loads[k].device.id, &index),
                       "the load of step %d is cancelled, and a sequence has device page %d",
                       (int)f->step, f->loads[k].device.id);
    }
}

void model_order(struct model *m, const void *bytes, size_t n_bytes)
{
    weir_order order;
    model_must(m, weir_order_decode(&order, bytes, n_bytes, NULL) == 0, "an order is no order");
    model_must(m, order.step == m->next_step, "step %d, not %d", (int)order.step,
               (int)m->next_step);
    model_must(m, order.device_pages == m->device_pages && order.host_pages == m->host_pages,
               "sizes of the pools");
    m->next_step++;

    check_moves(m, order.loads, order.n_loads, true);
    struct model_flight *f = new_flight(m, &order, bytes, n_bytes);
    for (uint32_t rank = 0; rank < MODEL_RANKS; rank++)
        for (uint32_t kind = 0; kind <= WEIR_REPORT_WRITE_BACK; kind++)
            f->reported[kind][rank] = true;
    begin_loads(m, f);
    uint64_t before = m->copies_made;
    for (uint32_t k = 0; k < MODEL_SEQS; k++)
        if (m->seqs[k].in_step && !m->seqs[k].born && m->seqs[k].source)
            make_copy(m, f, &m->seqs[k], &order);
    model_must(m, m->copies_made - before == order.n_copies, "%u copies in an order",
               order.n_copies);
    for (uint32_t k = 0; k < MODEL_SEQS; k++)
        if (m->seqs[k].in_step && !m->seqs[k].born)
            use_pages(m, f, &m->seqs[k]);
    check_fences(m, f);
    for (uint32_t rank = 0; rank < m->n_ranks; rank++) {
        f->reported[WEIR_REPORT_STEP][rank] = false;
        f->reported[WEIR_REPORT_LOAD][rank] = f->n_loads == 0;
    }
    for (uint32_t k = 0; k < MODEL_SEQS; k++) {
        struct model_seq *seq = &m->seqs[k];
        if (!seq->in_step || !seq->born || !seq->parent->late)
            continue;
        seq->late = true; /* the step has not had what it needed */
        seq->late_pages = seq->parent->late_pages;
    }
    for (uint32_t k = 0; k < MODEL_SEQS; k++) {
        struct model_seq *seq = &m->seqs[k];
        if (!seq->in_step)
            continue;
        seq->unindexed |= seq->born && f->copies_late;
        fill_pages(m, seq, seq->n_pending);
        leave_step(seq);
    }
    check_cancels(m, &order);
    check_moves(m, f->writes, f->n_writes, false);
    begin_writes(m, f);
    for (uint32_t rank = 0; rank < m->n_ranks; rank++)
        f->reported[WEIR_REPORT_WRITE_BACK][rank] = f->n_writes == 0;
}

/* ---- Reports ------------------------------------------------------------- */

static bool ended(const struct model *m, uint32_t kind, uint32_t rank, const uint64_t *steps,
                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct model_flight *f = find_flight(m, steps[i]);
        if (f && !f->reported[kind][rank])
            return false;
    }
    return true;
}

size_t model_reportable(const struct model *m, uint32_t rank, weir_report_item *items)
{
    size_t n = 0;
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++) {
        const struct model_flight *f = &m->flights[i];
        if (!f->step)
            continue;
        if (!f->reported[WEIR_REPORT_LOAD][rank] &&
            ended(m, WEIR_REPORT_STEP, rank, f->load_fences, f->n_load_fences))
            items[n++] = (weir_report_item){ .number = f->step, .kind = WEIR_REPORT_LOAD };
        if (!f->reported[WEIR_REPORT_STEP][rank] && f->reported[WEIR_REPORT_LOAD][rank] &&
            ended(m, WEIR_REPORT_STEP, rank, f->fences, f->n_fences) &&
            ended(m, WEIR_REPORT_LOAD, rank, f->joins, f->n_joins))
            items[n++] = (weir_report_item){ .number = f->step, .kind = WEIR_REPORT_STEP };
        if (!f->reported[WEIR_REPORT_WRITE_BACK][rank] &&
            ended(m, WEIR_REPORT_STEP, rank, f->write_fences, f->n_write_fences))
            items[n++] = (weir_report_item){ .number = f->ticket, .kind = WEIR_REPORT_WRITE_BACK };
    }
    return n;
}

bool model_is_cancelled(const struct model *m, const weir_report_item *item)
{
    const struct model_flight *f = flight_of(m, item->kind, item->number);
    return f && f->cancelled[item->kind];
}

static void settle(struct model *m, const struct model_flight *f, uint32_t first, uint32_t n,
                   uint64_t *done, uint64_t *failed)
{
    for (uint32_t i = first; i < first + n; i++) {
        struct model_version *version = &m->versions[f->versions[i]];
        version->arrived = true;
        version->failed = version->failing;
        *(version->failed ? failed : done) += 1;
        shorten(m, f->versions[i]);
    }
}

void model_report(struct model *m, uint32_t rank, const weir_report_item *item)
{
    struct model_flight *f = flight_of(m, item->kind, item->number);
    model_must(m, f && !f->reported[item->kind][rank], "the test reports what is not in flight");
    if (item->kind == WEIR_REPORT_STEP)
        model_must(m, digest(f->order, f->order_bytes) == f->order_digest,
                   "the order of step %d has changed", (int)f->step);
    f->reported[item->kind][rank] = true;
    uint32_t first = item->kind == WEIR_REPORT_LOAD ? 0 : f->n_loads;
    uint32_t n = item->kind == WEIR_REPORT_LOAD         ? f->n_loads
                 : item->kind == WEIR_REPORT_WRITE_BACK ? f->n_writes
                                                        : 0;
    for (uint32_t i = first; item->rc && i < first + n; i++)
        m->versions[f->versions[i]].failing = true;
    if (!all_reported(m, f, item->kind))
        return;
    uint64_t *cancelled =
        item->kind == WEIR_REPORT_LOAD ? &m->loads_cancelled : &m->writes_cancelled;
    if (f->cancelled[item->kind])
        settle(m, f, first, n, cancelled, cancelled);
    else if (item->kind == WEIR_REPORT_LOAD)
        settle(m, f, first, n, &m->loads_done, &m->loads_failed);
    else
        settle(m, f, first, n, &m->writes_done, &m->writes_failed);
    for (uint32_t kind = WEIR_REPORT_STEP; kind <= WEIR_REPORT_WRITE_BACK; kind++)
        if (!all_reported(m, f, kind))
            return;
    free_flight(f);
}

void model_rank_lost(struct model *m, uint32_t rank)
{
    for (uint32_t k = 0; k < MODEL_SEQS; k++)
        m->seqs[k].lost |= m->seqs[k].open && model_pages(&m->seqs[k]) > 0;
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++) {
        const struct model_flight *f = &m->flights[i];
        uint64_t step = f->step, ticket = f->ticket;
        for (uint32_t kind = WEIR_REPORT_STEP; kind <= WEIR_REPORT_WRITE_BACK; kind++) {
            weir_report_item item = { .kind = kind, .rc = -EIO };
            item.number = kind == WEIR_REPORT_WRITE_BACK ? ticket : step;
            if (step && f->step == step && !f->reported[kind][rank])
                model_report(m, rank, &item);
        }
    }
}

/* ---- Looking ------------------------------------------------------------- */

void model_peek(const struct model *m, const uint64_t *chains, const weir_hit *hit)
{
    model_must(m, hit->n_tokens % m->page_tokens == 0, "%zu tokens are no pages", hit->n_tokens);
    model_must(m, hit->n_device + hit->n_host + hit->n_loading == hit->n_tokens,
               "the parts of a hit do not add up");
    size_t on_device = 0, somewhere = 0;
    for (size_t i = 0; i < hit->n_tokens / m->page_tokens; i++) {
        bool device = false, host = false;
        for (uint32_t p = 1; p <= m->device_pages; p++)
            device |= holds(m, m->device[p], chains[i]);
        for (uint32_t p = 1; p <= m->host_pages; p++)
            host |= holds(m, m->host[p], chains[i]) && m->versions[m->host[p]].arrived;
        model_must(m, device || host, "page %zu of a hit is nowhere", i);
        on_device += device;
        somewhere++;
    }
    model_must(m, hit->n_device <= on_device * m->page_tokens, "%zu tokens on the device of %zu",
               hit->n_device, on_device * m->page_tokens);
}
