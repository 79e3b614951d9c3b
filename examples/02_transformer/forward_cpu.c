/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "forward.h"

#include <errno.h>

/* The functions below `on the stream` run on the stream's thread, one after the
 * other, some time after they were enqueued: as kernels do. They alone touch the
 * pages, the rows' state and next_token. */

/* One enqueued function's argument. */
struct call {
    struct forward *forward;
    struct slot *slot;
    uint32_t layer;
};

struct slot {
    struct plan plan;
    float x[MAX_ROWS][D_MODEL];
    struct model_query queries[MAX_ROWS][N_GROUPS];
    struct model_answer answers[MAX_ROWS];
    struct call calls[N_LAYERS];
};

struct forward {
    struct forward_params with;
    weir_rank *rank;
    weir_stream *stream;
    int32_t next_token[MAX_CHATS]; /* what a chat's last row came to */
    uint32_t side;                 /* of the exchange */
    struct page_view keys[MAX_BATCH], values[MAX_BATCH];
    weir_cpu_access accesses[MAX_ACCESSES];
    struct slot slots[MAX_STEPS];
};

/* ---- On the stream ------------------------------------------------------- */

static void embed(void *argument)
{
    struct call *call = argument;
    struct forward *forward = call->forward;
    struct plan *plan = &call->slot->plan;
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        struct plan_row *row = &plan->rows[r];
        if (row->input.token == NEXT_TOKEN)
            row->input.token = forward->next_token[plan->parts[row->part].chat];
        model_embed(forward->with.model, &row->input, call->slot->x[r]);
    }
}

/* Each rank has written its groups' partial sums of all rows. */
static void add_partials(struct forward *forward, struct slot *slot)
{
    exchange_meet(forward->with.exchange);
    for (uint32_t r = 0; r < slot->plan.n_rows; r++)
        model_add(slot->x[r], forward->with.exchange->partials[forward->side][r]);
    forward->side ^= 1;
}

static void attend(struct forward *forward, struct slot *slot, uint32_t layer, uint32_t group)
{
    const struct model *model = forward->with.model;
    const struct plan *plan = &slot->plan;
    for (uint32_t p = 0; p < plan->n_parts; p++) {
        pages_view(&forward->keys[p], forward->rank, PAGE_KEYS, layer, forward->with.groups, group,
                   &plan->parts[p]);
        pages_view(&forward->values[p], forward->rank, PAGE_VALUES, layer, forward->with.groups,
                   group, &plan->parts[p]);
    }
    /* All rows first: those of a chunk look at one another. */
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const struct plan_row *row = &plan->rows[r];
        model_project(model, layer, group, &row->input, slot->x[r], &slot->queries[r][group],
                      pages_row(&forward->keys[row->part], row->input.position),
                      pages_row(&forward->values[row->part], row->input.position));
    }
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const struct plan_row *row = &plan->rows[r];
        struct model_context context = { pages_row_of, &forward->keys[row->part],
                                         &forward->values[row->part] };
        model_attend(model, layer, group, &slot->queries[r][group], row->input.position, &context,
                     forward->with.exchange->partials[forward->side][r][group]);
    }
}

static void run_layer(void *argument)
{
    const struct call *call = argument;
    struct forward *forward = call->forward;
    struct slot *slot = call->slot;
    struct page_groups groups = forward->with.groups;
    for (uint32_t g = groups.first; g < groups.first + groups.n; g++)
        attend(forward, slot, call->layer, g);
    add_partials(forward, slot);
    for (uint32_t g = groups.first; g < groups.first + groups.n; g++)
        for (uint32_t r = 0; r < slot->plan.n_rows; r++)
            model_mlp(forward->with.model, call->layer, g, slot->x[r],
                      forward->with.exchange->partials[forward->side][r][g]);
    add_partials(forward, slot);
}

static void choose(void *argument)
{
    const struct call *call = argument;
    struct slot *slot = call->slot;
    const struct plan *plan = &slot->plan;
    float logits[VOCABULARY];
    for (uint32_t r = 0; r < plan->n_rows; r++) {
        const struct plan_row *row = &plan->rows[r];
        slot->answers[r] = (struct model_answer){ 0 };
        if (!row->wanted)
            continue;
        model_logits(call->forward->with.model, slot->x[r], logits);
        slot->answers[r] = model_answer_of(logits);
        call->forward->next_token[plan->parts[row->part].chat] = slot->answers[r].token;
    }
}

/* ---- On the rank's thread ------------------------------------------------ */

static int cpu_begin(struct forward *forward, uint32_t slot)
{
    return weir_cpu_launch(forward->with.device, forward->stream, embed,
                           &forward->slots[slot].calls[0], NULL, 0);
}

static int cpu_layer(struct forward *forward, uint32_t slot, uint32_t layer)
{
    struct slot *with = &forward->slots[slot];
    size_t n = pages_accesses(forward->rank, layer, &with->plan, forward->accesses);
    return weir_cpu_launch(forward->with.device, forward->stream, run_layer, &with->calls[layer],
                           forward->accesses, n);
}

static int cpu_end(struct forward *forward, uint32_t slot)
{
    return weir_cpu_launch(forward->with.device, forward->stream, choose,
                           &forward->slots[slot].calls[0], NULL, 0);
}

static int cpu_open(struct forward **opened, const struct forward_params *params)
{
    struct forward *forward = calloc(1, sizeof *forward);
    if (!forward)
        return -ENOMEM;
    forward->with = *params;
    for (uint32_t s = 0; s < MAX_STEPS; s++)
        for (uint32_t l = 0; l < N_LAYERS; l++)
            forward->slots[s].calls[l] = (struct call){ forward, &forward->slots[s], l };
    int rc = weir_cpu_stream_create(params->device, &forward->stream);
    if (rc) {
        free(forward);
        return rc;
    }
    *opened = forward;
    return 0;
}

static void cpu_close(struct forward *forward)
{
    weir_cpu_stream_destroy(forward->with.device, &forward->stream);
    free(forward);
}

static const weir_device_plane *cpu_planes(const struct forward *forward)
{
    (void)forward;
    return NULL;
}

static int cpu_attach(struct forward *forward, weir_rank *rank)
{
    forward->rank = rank;
    return 0;
}

static weir_stream *cpu_stream(const struct forward *forward)
{
    return forward->stream;
}

static struct plan *cpu_plan(struct forward *forward, uint32_t slot)
{
    return &forward->slots[slot].plan;
}

static const struct model_answer *cpu_answers(const struct forward *forward, uint32_t slot)
{
    return forward->slots[slot].answers;
}

const struct forward_ops forward_cpu = {
    .open = cpu_open,
    .close = cpu_close,
    .planes = cpu_planes,
    .attach = cpu_attach,
    .stream = cpu_stream,
    .plan = cpu_plan,
    .begin = cpu_begin,
    .layer = cpu_layer,
    .end = cpu_end,
    .answers = cpu_answers,
};
