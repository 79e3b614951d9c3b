/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "forward_cuda.h"
#include "plain.h"

/* The kernels as the server's, with the pages of one buffer in a row: page i + 1
 * holds the i-th piece of whatever chat there is. No weir in it. */
static struct model_answer gpu_forward(void *user, const struct model_input *input)
{
    struct forward *forward = user;
    struct plan *plan = forward_cuda.plan(forward, 0);
    struct plan_part *part = &plan->parts[0];
    plan->kind = PLAN_STEP;
    plan->n_rows = plan->n_parts = 1;
    plan->rows[0] = (struct plan_row){ .input = *input, .wanted = true };
    *part = (struct plan_part){ .n_rows = 1, .n_pages = MAX_CHAT_PAGES };
    for (int32_t i = 0; i < MAX_CHAT_PAGES; i++)
        part->pages[i] = i + 1;
    CHECK(forward_cuda.begin(forward, 0));
    for (uint32_t l = 0; l < N_LAYERS; l++)
        CHECK(forward_cuda.layer(forward, 0, l));
    CHECK(forward_cuda.end(forward, 0));
    CHECK(forward_cuda_synchronize(forward));
    return forward_cuda.answers(forward, 0)[0];
}

uint64_t plain_run_cuda(const struct model *model, const struct script *script,
                        struct outcome outcomes[MAX_CHATS])
{
    struct forward *forward;
    struct forward_params params = { .model = model,
                                     .groups = pages_groups(0, 1),
                                     .device_pages = MAX_CHAT_PAGES };
    CHECK(forward_cuda.open(&forward, &params));
    uint64_t n = plain_run(script, gpu_forward, forward, outcomes);
    forward_cuda.close(forward);
    return n;
}
