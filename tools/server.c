/* SPDX-License-Identifier: Apache-2.0 */
#include "server.h"

#include "pattern.h"

#include <time.h>

int weir_server_open(const struct weir_replay_options *options, uint32_t device_pages,
                     uint32_t max_seqs, struct weir_request_pool *pool, weir_cache **cache,
                     struct weir_hands **hands, const char **call)
{
    weir_tensor tensors[WEIR_MAX_TENSORS];
    for (uint32_t i = 0; i < options->n_tensors; i++)
        tensors[i] =
            (weir_tensor){ .page_bytes = (uint64_t)options->row_bytes * options->page_tokens,
                           .row_bytes = options->row_bytes };
    weir_shape shape = { .page_tokens = options->page_tokens,
                         .n_layers = options->n_layers,
                         .n_tensors = options->n_tensors,
                         .tensors = tensors };
    weir_log log = weir_log_stderr(WEIR_LOG_WARN);
    weir_cache_params params;
    weir_cache_params_init(&params);
    *call = "the shape";
    int rc = weir_shape_page_bytes(&shape, &log, &params.page_bytes);
    if (rc)
        return rc;
    params.page_bytes *= options->n_ranks;
    params.page_tokens = options->page_tokens;
    params.device_pages = device_pages;
    params.host_pages = options->host_pages;
    params.n_ranks = options->n_ranks;
    params.max_steps = WEIR_REPLAY_STEPS;
    params.max_seqs = max_seqs;
    params.offered = options->offered;
    params.host_drops_duplicates = options->drop_duplicates;
    params.eviction = options->policy;
    params.write_back = options->write_back;
    params.log = log;
    *call = "weir_cache_create";
    rc = weir_cache_create(cache, &params);
    if (rc)
        return rc;
    *call = "opening the ranks";
    return weir_hands_open(hands, options, &shape, device_pages, pool);
}

int weir_server_request(struct weir_request_pool *pool, const struct weir_replay_options *options,
                        const struct weir_trace *trace, size_t index, size_t n_answer,
                        uint32_t pass, struct weir_replay_request **request)
{
    const struct weir_trace_request *of_trace = &trace->requests[index];
    size_t n_prompt = of_trace->n_ids * options->block_tokens;
    size_t n_tokens = n_prompt + n_answer;
    struct weir_replay_request *made;
    int rc = weir_request_get(pool, n_tokens,
                              (n_tokens + options->page_tokens - 1) / options->page_tokens, &made);
    if (rc)
        return rc;
    made->trace = of_trace;
    made->n_prompt = n_prompt;
    for (size_t i = 0; i < of_trace->n_ids; i++)
        weir_pattern_tokens(made->tokens + i * options->block_tokens, options->block_tokens,
                            WEIR_PATTERN_PROMPT, (uint64_t)trace->ids[of_trace->first_id + i],
                            pass);
    weir_pattern_tokens(made->tokens + n_prompt, n_answer, WEIR_PATTERN_ANSWER, index, pass);
    if (options->device != WEIR_REPLAY_NONE)
        weir_pattern_fingerprints(made->fingerprints, made->tokens, n_tokens, 0);
    *request = made;
    return 0;
}

int weir_server_add(weir_step step, const struct weir_step_part *part, uint32_t page_tokens,
                    const char **call)
{
    struct weir_replay_request *request = part->request;
    *call = "weir_step_add";
    int rc = weir_step_add(step, request->seq);
    if (rc)
        return rc;
    size_t n;
    size_t n_most = (request->n_tokens + page_tokens - 1) / page_tokens;
    *call = "weir_seq_pages";
    rc = weir_seq_pages(request->seq, request->n_pages * page_tokens, page_tokens,
                        request->pages + request->n_pages, n_most - request->n_pages, &n);
    if (rc)
        return rc;
    request->n_pages += n;
    /* The key tells a prompt's tokens; those of an answer are news. */
    const int32_t *tokens = part->end <= request->n_prompt ? NULL : request->tokens + part->begin;
    *call = "weir_seq_commit";
    return part->end > part->begin ? weir_seq_commit(request->seq, tokens, part->end - part->begin)
                                   : 0;
}

double weir_server_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}
