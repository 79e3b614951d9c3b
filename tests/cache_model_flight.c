/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_model_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- What is in flight --------------------------------------------------- */

void model_free_flight(struct model_flight *f)
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

struct model_flight *model_new_flight(struct model *m, const weir_order *order, const void *bytes,
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

struct model_flight *model_find_flight(const struct model *m, uint64_t step)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        if (step && m->flights[i].step == step)
            return (struct model_flight *)&m->flights[i];
    return NULL;
}

struct model_flight *model_flight_of(const struct model *m, uint32_t kind, uint64_t number)
{
    if (kind != WEIR_REPORT_WRITE_BACK)
        return model_find_flight(m, number);
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        if (m->flights[i].step && m->flights[i].ticket == number)
            return (struct model_flight *)&m->flights[i];
    return NULL;
}

bool model_all_reported(const struct model *m, const struct model_flight *f, uint32_t kind)
{
    for (uint32_t rank = 0; rank < m->n_ranks; rank++)
        if (!f->reported[kind][rank])
            return false;
    return true;
}

/* Whether one who waits for these steps comes behind `step`. */
bool model_is_behind(const struct model *m, const uint64_t *fences, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; i < n; i++) {
        if (fences[i] == step)
            return true;
        const struct model_flight *f = model_find_flight(m, fences[i]);
        if (f && fences[i] > step && model_is_behind(m, f->fences, f->n_fences, step))
            return true;
    }
    return false;
}

/* The flight whose unreported load or write-back moves a device or host page. A
 * load may read a host page that a cancelled one still reads. */
const struct model_flight *model_mover(const struct model *m, int32_t device, int32_t host,
                                       bool for_load)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++) {
        const struct model_flight *f = &m->flights[i];
        if (!f->step)
            continue;
        for (uint32_t k = 0; k < f->n_loads && !model_all_reported(m, f, WEIR_REPORT_LOAD); k++)
            if (f->loads[k].device.id == device ||
                (f->loads[k].host.id == host && !(for_load && f->cancelled[WEIR_REPORT_LOAD])))
                return f;
        for (uint32_t k = 0; k < f->n_writes && !model_all_reported(m, f, WEIR_REPORT_WRITE_BACK);
             k++)
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
        n += f->step && !(model_all_reported(m, f, WEIR_REPORT_STEP) &&
                          model_all_reported(m, f, WEIR_REPORT_LOAD));
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

/* ---- Reports ------------------------------------------------------------- */

static bool ended(const struct model *m, uint32_t kind, uint32_t rank, const uint64_t *steps,
                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct model_flight *f = model_find_flight(m, steps[i]);
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
    const struct model_flight *f = model_flight_of(m, item->kind, item->number);
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
        model_shorten(m, f->versions[i]);
    }
}

void model_report(struct model *m, uint32_t rank, const weir_report_item *item)
{
    struct model_flight *f = model_flight_of(m, item->kind, item->number);
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
    if (!model_all_reported(m, f, item->kind))
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
        if (!model_all_reported(m, f, kind))
            return;
    model_free_flight(f);
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
