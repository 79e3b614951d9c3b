/* SPDX-License-Identifier: Apache-2.0 */
#include "executor.h"

#include "check.h"
#if TRANSFORMER_CUDA
#include "forward_cuda.h"
#endif

#include <errno.h>
#include <string.h>

struct executor {
    const struct executor_params *with;
    const struct forward_ops *ops;
    struct forward *forward;
    weir_device *device;
    weir_rank *rank;
    uint64_t n_begun;
    uint64_t n_replayed; /* by a graph */
    struct plan plan;
    struct note note;
};

/* A link so slow that a load takes longer than a forward pass: the layers that
 * wait for it do wait, and a missing wait would show. */
static void open_cpu(struct executor *executor)
{
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.load_latency_us = 500;
    params.write_back_latency_us = 100;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    CHECK(weir_cpu_device_open(&executor->device, &params));
    executor->ops = &forward_cpu;
}

#if TRANSFORMER_CUDA
static void open_cuda(struct executor *executor)
{
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    CHECK(weir_device_open(&executor->device, &params));
    executor->ops = &forward_cuda;
}
#endif

static void open_device(struct executor *executor)
{
#if TRANSFORMER_CUDA
    if (executor->with->device == WEIR_DEVICE_CUDA) {
        open_cuda(executor);
        return;
    }
#endif
    open_cpu(executor);
}

static void open_all(struct executor *executor)
{
    const struct executor_params *with = executor->with;
    struct page_groups groups = pages_groups(with->rank, with->n_ranks);
    weir_tensor tensors[N_PAGE_TENSORS];
    weir_shape shape = pages_shape(groups, tensors);
    weir_rank_params params;
    open_device(executor);
    struct forward_params forward = { with->model, executor->device, groups, with->device_pages,
                                      with->exchange };
    CHECK(executor->ops->open(&executor->forward, &forward));
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = with->device_pages;
    params.host_pages = with->host_pages;
    params.planes = executor->ops->planes(executor->forward);
    params.max_steps = MAX_STEPS;
    params.max_write_backs = MAX_WRITE_BACKS;
    params.captured_waits = executor->ops->replay != NULL;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    CHECK(weir_rank_open(&executor->rank, executor->device, &params));
    CHECK(executor->ops->attach(executor->forward, executor->rank));
}

static void close_all(struct executor *executor)
{
    CHECK(weir_rank_synchronize(executor->rank));
    weir_rank_close(&executor->rank);
    executor->ops->close(executor->forward);
    if (executor->ops->replay)
        REQUIRE(executor->n_replayed > 0);
    if (executor->with->device == WEIR_DEVICE_CPU)
        REQUIRE(weir_cpu_device_races(executor->device) == 0);
    CHECK(weir_device_close(&executor->device));
}

/* The layers go into the stream at once; the stream waits for each layer's
 * pages, not this thread. A step without rows is there for its write-back. */
static void enqueue_rows(struct executor *executor, uint64_t step, uint32_t slot)
{
    const struct forward_ops *ops = executor->ops;
    weir_stream *stream = ops->stream(executor->forward);
    bool done = false;
    if (ops->replay)
        CHECK(ops->replay(executor->forward, slot, &done));
    executor->n_replayed += done;
    if (done)
        return;
    CHECK(ops->begin(executor->forward, slot));
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        CHECK(weir_rank_wait_layer(executor->rank, step, l, stream));
        CHECK(ops->layer(executor->forward, slot, l));
    }
    CHECK(ops->end(executor->forward, slot));
}

/* A slot is free again once its step has been reported; the cache begins no step
 * before the one MAX_STEPS earlier has been. */
static void run_step(struct executor *executor)
{
    uint32_t slot = (uint32_t)(executor->n_begun++ % MAX_STEPS);
    struct plan *plan = executor->ops->plan(executor->forward, slot);
    weir_stream *stream = executor->ops->stream(executor->forward);
    uint64_t step;
    *plan = executor->plan;
    if (plan->load_fails && executor->with->rank + 1 == executor->with->n_ranks &&
        executor->with->device == WEIR_DEVICE_CPU) /* at the second layer from here on */
        CHECK(weir_cpu_device_fail(executor->device, WEIR_CPU_CALL_COPY_LOAD, 2, -EIO));
    CHECK(weir_rank_begin(executor->rank, plan->order, plan->order_bytes, slot, stream, &step));
    REQUIRE(step == executor->n_begun);
    if (plan->n_rows > 0)
        enqueue_rows(executor, step, slot);
    CHECK(weir_rank_end(executor->rank, step, stream));
}

static void send_answers(struct executor *executor, uint64_t step)
{
    uint32_t slot = (uint32_t)((step - 1) % MAX_STEPS);
    executor->note.kind = NOTE_ANSWERS;
    executor->note.step = step;
    memcpy(executor->note.answers, executor->ops->answers(executor->forward, slot),
           sizeof executor->note.answers);
    way_send(executor->with->end, &executor->note, offsetof(struct note, report_bytes));
}

/* The report goes first: who reads answers then knows already whether a load
 * under them has failed. */
static void send_what_ended(struct executor *executor)
{
    struct note *note = &executor->note;
    CHECK(weir_rank_report(executor->rank, note->report, sizeof note->report, &note->report_bytes));
    if (note->report_bytes == 0)
        return;
    const weir_report_item *items;
    size_t n;
    note->kind = NOTE_REPORT;
    way_send(executor->with->end, note, sizeof *note);
    CHECK(weir_report_decode(&items, &n, note->report, note->report_bytes, NULL));
    for (size_t i = 0; i < n; i++)
        if (items[i].kind == WEIR_REPORT_STEP)
            send_answers(executor, items[i].number);
}

void executor_run(const struct executor_params *params)
{
    struct executor *executor = calloc(1, sizeof *executor);
    REQUIRE(executor);
    executor->with = params;
    open_all(executor);
    for (;;) {
        send_what_ended(executor);
        /* What is in flight ends without a message: look again soon. */
        if (!plan_receive(params->end, &executor->plan, 1))
            continue;
        if (executor->plan.kind == PLAN_STOP)
            break;
        run_step(executor);
    }
    close_all(executor);
    free(executor);
}
