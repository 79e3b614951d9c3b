/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_model_parts.h"

static bool lists(const uint64_t *steps, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

static void check_moves(const struct model *m, const weir_move *moves, uint32_t n, bool for_load)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t device = moves[i].device.id, host = moves[i].host.id;
        model_must(m, device >= 1 && (uint32_t)device <= m->device_pages, "device page %d", device);
        model_must(m, host >= 1 && (uint32_t)host <= m->host_pages, "host page %d", host);
        const struct model_flight *f = model_mover(m, device, host, for_load);
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
        model_must(m, source != MODEL_NONE, "host page %d is loaded and holds nothing", host);
        model_must(m, m->versions[source].arrived, "host page %d is loaded before it is written",
                   host);
        model_must(m, !model_is_bad(m, source, false), "host page %d is loaded and wrong", host);
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
            if (!t->step || t == f || model_all_reported(m, t, WEIR_REPORT_STEP))
                continue;
            model_must(m,
                       !(t->reads_page[device] || t->writes_page[device]) ||
                           model_is_behind(m, f->load_fences, f->n_load_fences, t->step),
                       "the load into device page %d does not wait for step %d", device,
                       (int)t->step);
        }
        m->device[device] = model_add_version(m, m->versions[source].chain, source, f->step);
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
    if (model_is_doomed(m, seq))
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
    bool whole = version != MODEL_NONE && m->versions[version].chain == seq->chains[i];
    model_must(
        m, whole || (version == MODEL_NONE && tail->chain == seq->chains[i] && tail->rows >= rows),
        "page %d is copied and does not hold the rows", from);
    bool loading = whole && m->versions[version].load_step && !m->versions[version].arrived;
    uint64_t load = loading ? m->versions[version].load_step : 0;
    model_must(m, copy->load == load, "page %d is copied behind load %d, not %d", from,
               (int)copy->load, (int)load);
    m->tails[to] = (struct model_tail){ seq->chains[i], rows, whole ? version : tail->from };
    m->device[to] = MODEL_NONE;
    seq->unindexed |= loading;
    f->copies_late |= loading;
    if (loading)
        model_find_flight(m, load)->load_copied = true;
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
    if (model_is_doomed(m, seq))
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
        model_must(m, model_holds(m, version, seq->chains[i]),
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
    if (model_is_behind(m, f->fences, f->n_fences, t))
        return true;
    int32_t version = m->device[page];
    uint64_t step = version == MODEL_NONE ? 0 : m->versions[version].load_step;
    const struct model_flight *load = model_find_flight(m, step);
    return load && (load == f || lists(f->joins, f->n_joins, step)) &&
           model_is_behind(m, load->load_fences, load->n_load_fences, t);
}

static void check_fences(const struct model *m, const struct model_flight *f)
{
    for (uint32_t k = 0; k < MODEL_FLIGHTS; k++) {
        const struct model_flight *t = &m->flights[k];
        if (!t->step || t == f || model_all_reported(m, t, WEIR_REPORT_STEP))
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
        model_must(m, source != MODEL_NONE, "device page %d is written back and holds nothing",
                   device);
        model_must(m, !model_is_bad(m, source, false), "device page %d is written back and wrong",
                   device);
        for (uint32_t k = 0; k < MODEL_FLIGHTS; k++) {
            const struct model_flight *t = &m->flights[k];
            if (!t->step || !t->writes_page[device] || model_all_reported(m, t, WEIR_REPORT_STEP))
                continue;
            model_must(m, model_is_behind(m, f->write_fences, f->n_write_fences, t->step),
                       "the write-back of device page %d does not wait for step %d", device,
                       (int)t->step);
        }
        int32_t version = model_add_version(m, m->versions[source].chain, source, 0);
        m->versions[version].arrived = false;
        m->host[host] = version;
        f->versions[f->n_loads + i] = version;
    }
}

/* Only what is in flight is cancelled, once, and no load whose pages a sequence
 * has. */
static void check_cancels(struct model *m, const weir_order *order)
{
    for (uint32_t i = 0; i < order->n_cancels; i++) {
        const weir_cancel *cancel = &order->cancels[i];
        struct model_flight *f = model_flight_of(m, cancel->kind, cancel->number);
        model_must(m, f && !model_all_reported(m, f, cancel->kind) && !f->cancelled[cancel->kind],
                   "cancel %u of kind %u, number %d", i, cancel->kind, (int)cancel->number);
        model_must(m, cancel->kind != WEIR_REPORT_LOAD || !f->load_copied,
                   "the load of step %d is cancelled, and was copied from", (int)f->step);
        f->cancelled[cancel->kind] = true;
        uint32_t index;
        for (uint32_t k = 0; cancel->kind == WEIR_REPORT_LOAD && k < f->n_loads; k++)
            model_must(m, !model_holder(m, NULL, f->loads[k].device.id, &index),
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
    struct model_flight *f = model_new_flight(m, &order, bytes, n_bytes);
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
        model_commit(m, seq, seq->n_pending);
        model_leave_step(seq);
    }
    check_cancels(m, &order);
    check_moves(m, f->writes, f->n_writes, false);
    begin_writes(m, f);
    for (uint32_t rank = 0; rank < m->n_ranks; rank++)
        f->reported[WEIR_REPORT_WRITE_BACK][rank] = f->n_writes == 0;
}
