/* SPDX-License-Identifier: Apache-2.0 */
#include "hands.h"
#include "pattern.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_PAGES (UINT64_C(1) << 30)

/* An open-addressing set of hashes with room for all that will come. */
struct hash_set {
    uint64_t *slots; /* 0: empty */
    size_t mask;
};

static bool add(struct hash_set *set, uint64_t hash)
{
    hash += hash == 0;
    size_t i = hash & set->mask;
    while (set->slots[i] && set->slots[i] != hash)
        i = (i + 1) & set->mask;
    bool is_new = set->slots[i] == 0;
    set->slots[i] = hash;
    return is_new;
}

/* Pages of one pass that stay in the index: each page that ends within a block
 * is told by the ids up to that block. */
static uint64_t distinct_pages(const struct weir_trace *trace,
                               const struct weir_replay_options *options, struct hash_set *set)
{
    uint64_t block = options->block_tokens;
    uint64_t page = options->page_tokens;
    uint64_t pages = 0;
    for (size_t r = 0; r < trace->n_requests; r++) {
        const struct weir_trace_request *request = &trace->requests[r];
        uint64_t prefix = 0;
        for (size_t i = 0; i < request->n_ids; i++) {
            uint64_t id = (uint64_t)trace->ids[request->first_id + i];
            prefix = weir_pattern_mix(prefix, id);
            if (add(set, prefix))
                pages += (i + 1) * block / page - i * block / page;
        }
        uint64_t prompt = request->n_ids * block;
        if (options->active)
            pages += (prompt + request->output_length) / page - prompt / page;
    }
    return pages;
}

/* Pages of sequences that run at the same time and are not shared. */
static uint64_t private_pages(const struct weir_trace *trace,
                              const struct weir_replay_options *options)
{
    uint64_t longest = 0;
    for (size_t r = 0; r < trace->n_requests; r++) {
        const struct weir_trace_request *request = &trace->requests[r];
        uint64_t tokens = request->n_ids * options->block_tokens;
        if (options->active)
            tokens += request->output_length;
        if (tokens > longest)
            longest = tokens;
    }
    uint64_t sequences = options->active + (uint64_t)options->batch * (WEIR_REPLAY_STEPS + 1);
    return sequences * (longest / options->page_tokens + 1);
}

int weir_replay_unlimited(const struct weir_trace *trace, const struct weir_replay_options *options,
                          uint32_t *pages)
{
    size_t capacity = 16;
    while (capacity < trace->n_ids * 2)
        capacity *= 2;
    struct hash_set set = { calloc(capacity, sizeof *set.slots), capacity - 1 };
    if (!set.slots)
        return -ENOMEM;
    uint64_t needed =
        distinct_pages(trace, options, &set) * options->passes + private_pages(trace, options);
    free(set.slots);
    /* The offered share is open to the allocator, so it comes on top. */
    double total = (double)needed / (1.0 - options->offered) + 1;
    if (total > (double)MAX_PAGES)
        return -E2BIG;
    *pages = (uint32_t)total;
    return 0;
}
