/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_model_parts.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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
        m->device[p] = m->host[p] = MODEL_NONE;
        m->tails[p].from = MODEL_NONE;
    }
}

void model_destroy(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_FLIGHTS; i++)
        model_free_flight(&m->flights[i]);
    free(m->versions);
}

uint64_t model_chain(uint64_t prefix, uint64_t content)
{
    uint64_t z = (prefix ^ (content * UINT64_C(0x9e3779b97f4a7c15))) + 1;
    z = (z ^ (z >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ (z >> 29);
}

/* ---- Versions ------------------------------------------------------------ */

int32_t model_add_version(struct model *m, uint64_t chain, int32_t from, uint64_t load_step)
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
        .also = MODEL_NONE,
        .arrived = load_step == 0,
    };
    return m->n_versions++;
}

/* Whether a version or one below it has failed. */
bool model_is_bad(const struct model *m, int32_t version, bool early)
{
    for (; version != MODEL_NONE; version = m->versions[version].from)
        if (m->versions[version].failed || (early && m->versions[version].failing) ||
            model_is_bad(m, m->versions[version].also, early))
            return true;
    return false;
}

/* Cuts the way down where nothing can fail any more, so that it stays short. */
void model_shorten(struct model *m, int32_t version)
{
    for (; version != MODEL_NONE; version = m->versions[version].from) {
        int32_t from = m->versions[version].from;
        if (from != MODEL_NONE && m->versions[from].from == MODEL_NONE &&
            m->versions[from].also == MODEL_NONE && m->versions[from].arrived &&
            !m->versions[from].failing)
            m->versions[version].from = MODEL_NONE;
    }
}

bool model_holds(const struct model *m, int32_t version, uint64_t chain)
{
    return version != MODEL_NONE && m->versions[version].chain == chain &&
           !model_is_bad(m, version, false);
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
            device |= model_holds(m, m->device[p], chains[i]);
        for (uint32_t p = 1; p <= m->host_pages; p++)
            host |= model_holds(m, m->host[p], chains[i]) && m->versions[m->host[p]].arrived;
        model_must(m, device || host, "page %zu of a hit is nowhere", i);
        on_device += device;
        somewhere++;
    }
    model_must(m, hit->n_device <= on_device * m->page_tokens, "%zu tokens on the device of %zu",
               hit->n_device, on_device * m->page_tokens);
}
