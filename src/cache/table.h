/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CACHE_TABLE_H
#define WEIR_CACHE_TABLE_H

/* A walk along a sequence's block table in units that divide a page.
 *
 *   seq pages      7               3               9
 *   ratio 4    28 29 30 31 │ 12 13 14 15 │ 36 37 38 39
 *                    ▲ page 0, unit 2
 *
 * With kernel pages as units this gives their ids; with tokens, their slots.
 * A walk is not taken beyond the pages that the sequence has. */

#include "cache/brain.h"

struct table_walk {
    const struct seq_page *page;
    uint32_t ratio; /* units of a page */
    uint32_t unit;  /* of the page, the next one */
};

static inline struct table_walk table_walk_from(const struct seq *seq, uint32_t ratio, size_t first)
{
    /* A sequence without pages may have no array to point into. */
    return (struct table_walk){ seq->pages ? seq->pages + first / ratio : NULL, ratio,
                                (uint32_t)(first % ratio) };
}

static inline int64_t table_walk_next(struct table_walk *walk)
{
    int64_t id = (int64_t)walk->page->page * walk->ratio + walk->unit;
    if (++walk->unit == walk->ratio) {
        walk->unit = 0;
        walk->page++;
    }
    return id;
}

/* Kernel page ids, which weir_table_ratio has found to fit. */
static inline void table_write(const struct seq *seq, uint32_t ratio, size_t first, size_t n,
                               int32_t *table)
{
    if (n == 0)
        return;
    struct table_walk walk = table_walk_from(seq, ratio, first);
    for (size_t i = 0; i < n; i++)
        table[i] = (int32_t)table_walk_next(&walk);
}

/* Kernel pages a page. -EINVAL, with a line in the name of `call`: they do not
 * divide it, or their ids exceed an int32. */
int weir_table_ratio(const weir_cache *cache, const char *call, uint32_t kernel_page_tokens,
                     uint32_t *ratio);

#endif
