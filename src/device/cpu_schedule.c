/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu.h"
#include "device/cpu_random.h"

#include <errno.h>

/* ---- Waking -------------------------------------------------------------- */

/* Only a head can start, so only its stream is ever worth waking. */
static void kick_queue(struct weir_cpu_queue *queue)
{
    if (queue->head && weir_cpu_can_start(queue->head))
        pthread_cond_signal(&queue->head->stream->wake);
}

void weir_cpu_kick(struct weir_cpu_device *device)
{
    for (uint32_t i = 0; i < device->n_queues; i++)
        kick_queue(&device->queues[i]);
}

void weir_cpu_wake_all(struct weir_cpu_device *device)
{
    for (uint32_t i = 0; i < device->n_queues; i++)
        pthread_cond_broadcast(&device->queues[i].space);
    for (struct weir_stream *stream = device->streams; stream; stream = stream->next) {
        pthread_cond_broadcast(&stream->wake);
        pthread_cond_broadcast(&stream->idle);
    }
    pthread_cond_broadcast(&device->step_done);
}

/* ---- Queues -------------------------------------------------------------- */

static int wait_for_room(struct weir_cpu_device *device, struct weir_cpu_queue *queue)
{
    while (!atomic_load(&device->lost) && queue->length >= device->queue_depth) {
        if (device->seed == 0) {
            queue->n_blocked++;
            pthread_cond_wait(&queue->space, &device->lock);
            queue->n_blocked--;
        } else if (!weir_cpu_step(device)) {
            return atomic_load(&device->lost) ? -EIO : -EDEADLK;
        }
    }
    return atomic_load(&device->lost) ? -EIO : 0;
}

int weir_cpu_submit(struct weir_cpu_device *device, struct weir_cpu_op *op)
{
    struct weir_cpu_queue *queue = op->stream->queue;
    int rc = wait_for_room(device, queue);
    if (rc == 0 && op->mark) /* streams may have come meanwhile */
        rc = weir_cpu_point_grow(op->mark, device->points.size);
    if (rc) {
        weir_cpu_op_free(device, op);
        return rc;
    }
    op->number = ++op->stream->submitted;
    op->next = NULL;
    if (queue->head)
        queue->tail->next = op;
    else
        queue->head = op;
    queue->tail = op;
    queue->length++;
    if (queue->head == op)
        kick_queue(queue);
    return 0;
}

static void has_room(struct weir_cpu_queue *queue)
{
    queue->length--;
    if (queue->n_blocked > 0)
        pthread_cond_signal(&queue->space);
}

static void dispatch(struct weir_cpu_op *op)
{
    struct weir_cpu_queue *queue = op->stream->queue;
    queue->head = op->next;
    has_room(queue);
    op->stream->running = op;
    kick_queue(queue);
}

void weir_cpu_drop_ops(struct weir_cpu_device *device, struct weir_stream *stream)
{
    struct weir_cpu_queue *queue = stream->queue;
    struct weir_cpu_op *kept = NULL;
    for (struct weir_cpu_op **link = &queue->head; *link;) {
        struct weir_cpu_op *op = *link;
        if (op->stream != stream) {
            kept = op;
            link = &op->next;
            continue;
        }
        *link = op->next;
        has_room(queue);
        weir_cpu_op_free(device, op);
    }
    queue->tail = kept;
    kick_queue(queue);
}

/* ---- The core ------------------------------------------------------------ */

bool weir_cpu_can_start(const struct weir_cpu_op *op)
{
    const struct weir_stream *stream = op->stream;
    if (atomic_load(&stream->device->lost) || stream->running ||
        (stream->parked && op->number > stream->park_after) ||
        op->stall_round == stream->device->stall_round)
        return false;
    if (op->kind == WEIR_CPU_OP_WAIT_EVENT)
        return !op->bound || op->bound->done;
    if (op->kind == WEIR_CPU_OP_WAIT_WORD)
        return (int32_t)(*op->word->value - op->value) >= 0;
    return true;
}

static void check_launch(struct weir_cpu_race *race, const struct weir_cpu_op *op,
                         const struct weir_cpu_accessor *accessor)
{
    const weir_cpu_access *accesses = (const weir_cpu_access *)op->payload->data;
    for (size_t i = 0; i < op->launch.n_accesses; i++)
        weir_cpu_race_access(race, accessor, accesses[i].pool, accesses[i].page, 1,
                             accesses[i].tensor, accesses[i].layer, accesses[i].write);
    if (op->launch.touch)
        op->launch.touch(race, accessor, op->launch.arg);
}

static void check(struct weir_cpu_device *device, const struct weir_cpu_op *op)
{
    struct weir_stream *stream = op->stream;
    weir_cpu_point_join(stream->clock, op->host);
    if (op->bound)
        weir_cpu_point_join(stream->clock, op->bound);
    if (op->kind == WEIR_CPU_OP_WAIT_WORD && op->word->last)
        weir_cpu_point_join(stream->clock, op->word->last);
    stream->clock->time[stream->component]++;

    struct weir_cpu_accessor accessor = { stream->clock, stream->component };
    if (op->kind == WEIR_CPU_OP_COPY)
        weir_cpu_copy_check(device, op, &accessor);
    else if (op->kind == WEIR_CPU_OP_COPY_PAGES)
        weir_cpu_pages_check(device, op, &accessor);
    else if (op->kind == WEIR_CPU_OP_LAUNCH)
        check_launch(&device->race, op, &accessor);
}

static bool is_copy(const struct weir_cpu_op *op)
{
    return op->kind == WEIR_CPU_OP_COPY || op->kind == WEIR_CPU_OP_COPY_PAGES;
}

void weir_cpu_start(struct weir_cpu_device *device, struct weir_cpu_op *op)
{
    dispatch(op);
    if (device->race.enabled)
        check(device, op);
    if (is_copy(op)) {
        op->seed = weir_cpu_random(&op->stream->random);
        if (device->seed == 0 && op->kind == WEIR_CPU_OP_COPY)
            op->end_ns = weir_cpu_link_take(&device->links[op->copy.direction], op->copy.bytes);
    }
}

static void wait_for_link(struct weir_cpu_device *device, const struct weir_cpu_op *op)
{
    struct timespec end = { .tv_sec = (time_t)(op->end_ns / 1000000000),
                            .tv_nsec = (long)(op->end_ns % 1000000000) };
    while (!atomic_load(&device->lost) && weir_cpu_now() < op->end_ns)
        pthread_cond_timedwait(&op->stream->wake, &device->lock, &end);
}

void weir_cpu_begin(struct weir_cpu_device *device, struct weir_cpu_op *op)
{
    if (!is_copy(op))
        return;
    pthread_mutex_unlock(&device->lock);
    if (op->kind == WEIR_CPU_OP_COPY)
        weir_cpu_copy_begin(op);
    else
        weir_cpu_pages_begin(op);
    pthread_mutex_lock(&device->lock);
    if (op->end_ns)
        wait_for_link(device, op);
}

void weir_cpu_end(struct weir_cpu_device *device, struct weir_cpu_op *op)
{
    if (atomic_load(&device->lost) || (!is_copy(op) && op->kind != WEIR_CPU_OP_LAUNCH))
        return;
    pthread_mutex_unlock(&device->lock);
    if (op->kind == WEIR_CPU_OP_COPY)
        weir_cpu_copy_end(op);
    else if (op->kind == WEIR_CPU_OP_COPY_PAGES)
        weir_cpu_pages_end(op);
    else
        op->launch.fn(op->launch.arg);
    pthread_mutex_lock(&device->lock);
}

void weir_cpu_finish(struct weir_cpu_device *device, struct weir_cpu_op *op)
{
    struct weir_stream *stream = op->stream;
    stream->running = NULL;
    if (!atomic_load(&device->lost)) {
        stream->finished++;
        if (op->mark) {
            weir_cpu_point_join(op->mark, stream->clock);
            op->mark->done = true;
            if (op->word)
                weir_cpu_word_publish(device, op->word, op->value, op->mark);
            weir_cpu_kick(device);
        }
        if (stream->n_waiting > 0)
            pthread_cond_broadcast(&stream->idle);
    }
    weir_cpu_op_free(device, op);
}

/* ---- The scheduler ------------------------------------------------------- */

/* The k-th op that can go on, among those of the shy stream or of the others;
 * NULL if there are only *n of them. */
static struct weir_cpu_op *candidate(const struct weir_cpu_device *device, bool shy, uint64_t k,
                                     uint64_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < device->n_queues; i++) {
        struct weir_cpu_op *op = device->queues[i].head;
        if (op && weir_cpu_can_start(op) && (op->stream == device->shy) == shy && (*n)++ == k)
            return op;
    }
    for (struct weir_stream *stream = device->streams; stream; stream = stream->next)
        if (stream->running && (stream == device->shy) == shy && (*n)++ == k)
            return stream->running;
    return NULL;
}

/* An even choice at every step would hardly ever leave one stream far behind
 * the others; so one is put off for a while, then another, or none. */
static void choose_shy(struct weir_cpu_device *device)
{
    if (device->shy_countdown-- > 0)
        return;
    device->shy_countdown = (uint32_t)(weir_cpu_random(&device->random) % 64);
    uint64_t n = 1;
    for (struct weir_stream *stream = device->streams; stream; stream = stream->next)
        n++;
    uint64_t skip = weir_cpu_random(&device->random) % n;
    device->shy = device->streams;
    while (device->shy && skip-- > 0)
        device->shy = device->shy->next;
}

static struct weir_cpu_op *choose(struct weir_cpu_device *device)
{
    choose_shy(device);
    uint64_t n;
    bool shy = false;
    candidate(device, shy, UINT64_MAX, &n);
    if (n == 0) {
        shy = true;
        candidate(device, shy, UINT64_MAX, &n);
    }
    return n > 0 ? candidate(device, shy, weir_cpu_random(&device->random) % n, &n) : NULL;
}

bool weir_cpu_step(struct weir_cpu_device *device)
{
    while (device->in_step)
        pthread_cond_wait(&device->step_done, &device->lock);
    struct weir_cpu_op *op = atomic_load(&device->lost) ? NULL : choose(device);
    if (!op)
        return false;
    device->in_step = true;
    if (op == op->stream->running) {
        weir_cpu_end(device, op);
        weir_cpu_finish(device, op);
    } else {
        weir_cpu_start(device, op);
        weir_cpu_begin(device, op);
    }
    device->in_step = false;
    pthread_cond_broadcast(&device->step_done);
    return true;
}
