/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cpu.h"
#include "device/cpu_random.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#define MAX_COMPONENTS (1u << 15)

int weir_cpu_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int rc = pthread_condattr_init(&attributes);
    if (rc)
        return -rc;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    rc = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return -rc;
}

int weir_cpu_check_stream(weir_device *base, const weir_stream *stream, const char *call)
{
    if (!base)
        return -EINVAL;
    if (!weir_cpu_is(base))
        return weir_invalid(&base->log, "%s: not a cpu device", call);
    if (!stream)
        return weir_invalid(&base->log, "%s: stream is NULL", call);
    if (stream->device != weir_cpu_from(base))
        return weir_invalid(&base->log, "%s: stream is another device's", call);
    return 0;
}

/* ---- Clocks -------------------------------------------------------------- */

void weir_cpu_host_learns(struct weir_cpu_device *device, const struct weir_cpu_point *point)
{
    if (!device->race.enabled || weir_cpu_point_covers(device->host, point))
        return;
    if (device->host->refs > 1) { /* ops were submitted with it */
        struct weir_cpu_point *host = weir_cpu_point_new(&device->points);
        if (!host) {
            weir_cpu_race_give_up(&device->race);
            return;
        }
        weir_cpu_point_join(host, device->host);
        weir_cpu_point_unref(&device->points, device->host);
        device->host = host;
    }
    weir_cpu_point_join(device->host, point);
}

static uint32_t lowest_free_component(const struct weir_cpu_device *device)
{
    uint32_t component = 0;
    for (const struct weir_stream *stream = device->streams; stream;) {
        bool taken = stream->component == component;
        component += taken;
        stream = taken ? device->streams : stream->next;
    }
    return component;
}

/* All points that can still be written get the components that new ones have. */
static int grow_points(struct weir_cpu_device *device, uint32_t size)
{
    int rc = weir_cpu_point_grow(device->host, size);
    for (struct weir_stream *stream = device->streams; stream && !rc; stream = stream->next) {
        rc = weir_cpu_point_grow(stream->clock, size);
        if (!rc && stream->running && stream->running->mark)
            rc = weir_cpu_point_grow(stream->running->mark, size);
    }
    for (uint32_t i = 0; i < device->n_queues; i++)
        for (struct weir_cpu_op *op = device->queues[i].head; op && !rc; op = op->next)
            if (op->mark)
                rc = weir_cpu_point_grow(op->mark, size);
    if (!rc)
        device->points.size = size;
    return rc;
}

/* A component that was another stream's goes on where that one ended: who
 * destroyed it has told the host, and each op starts with what the host knows. */
static int give_clock(struct weir_cpu_device *device, struct weir_stream *stream)
{
    stream->component = lowest_free_component(device);
    if (stream->component >= MAX_COMPONENTS)
        return -EAGAIN;
    if (device->race.enabled && stream->component >= device->points.size) {
        int rc = grow_points(device, 2 * device->points.size);
        if (rc)
            return rc;
    }
    stream->clock = weir_cpu_point_new(&device->points);
    return stream->clock ? 0 : -ENOMEM;
}

/* ---- The stream's thread ------------------------------------------------- */

static struct weir_cpu_op *next_op(const struct weir_stream *stream)
{
    struct weir_cpu_op *op = stream->queue->head;
    if (atomic_load(&stream->device->lost) || !op || op->stream != stream ||
        !weir_cpu_can_start(op))
        return NULL;
    return op;
}

static bool has_work(const struct weir_stream *stream)
{
    return !atomic_load(&stream->device->lost) && stream->finished < stream->submitted;
}

static void *stream_main(void *argument)
{
    struct weir_stream *stream = argument;
    struct weir_cpu_device *device = stream->device;
    pthread_mutex_lock(&device->lock);
    while (!stream->quit || has_work(stream)) {
        struct weir_cpu_op *op = next_op(stream);
        if (op) {
            weir_cpu_start(device, op);
            weir_cpu_begin(device, op);
            weir_cpu_end(device, op);
            weir_cpu_finish(device, op);
        } else {
            pthread_cond_wait(&stream->wake, &device->lock);
        }
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* The process's signals are not for this thread to take. */
static int start_thread(struct weir_stream *stream)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&stream->thread, NULL, stream_main, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? -EAGAIN : 0;
}

/* ---- Creating ------------------------------------------------------------ */

static int init_conditions(struct weir_stream *stream)
{
    int rc = weir_cpu_cond_init(&stream->wake);
    if (rc)
        return rc;
    rc = weir_cpu_cond_init(&stream->idle);
    if (rc)
        pthread_cond_destroy(&stream->wake);
    return rc;
}

static void free_stream(struct weir_cpu_device *device, struct weir_stream *stream)
{
    weir_cpu_point_unref(&device->points, stream->clock);
    pthread_cond_destroy(&stream->wake);
    pthread_cond_destroy(&stream->idle);
    free(stream);
}

static void append(struct weir_cpu_device *device, struct weir_stream *stream)
{
    struct weir_stream **link = &device->streams;
    while (*link)
        link = &(*link)->next;
    *link = stream;
    device->streams_created++;
}

static int make_stream(struct weir_cpu_device *device, struct weir_stream **made)
{
    uint64_t stall_round;
    int rc = weir_cpu_count(device, WEIR_CPU_CALL_STREAM_CREATE, &stall_round);
    if (rc)
        return rc;
    struct weir_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return -ENOMEM;
    rc = init_conditions(stream);
    if (rc) {
        free(stream);
        return rc;
    }
    stream->device = device;
    stream->queue = &device->queues[device->streams_created % device->n_queues];
    stream->random = device->seed + (device->streams_created + 1) * WEIR_CPU_ODD_STEP;
    rc = give_clock(device, stream);
    if (!rc && device->seed == 0)
        rc = start_thread(stream);
    if (rc) {
        free_stream(device, stream);
        return rc;
    }
    append(device, stream);
    *made = stream;
    return 0;
}

int weir_cpu_new_stream(weir_device *base, int priority, weir_stream **stream)
{
    (void)priority; /* threads have none to give */
    if (!stream)
        return weir_invalid(&base->log, "stream create: stream is NULL");
    struct weir_cpu_device *device = weir_cpu_enter(base);
    int rc = make_stream(device, stream);
    weir_cpu_leave(device);
    return rc;
}

/* ---- Destroying ---------------------------------------------------------- */

static void unlink_stream(struct weir_cpu_device *device, struct weir_stream *stream)
{
    struct weir_stream **link = &device->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    if (device->shy == stream)
        device->shy = NULL;
}

/* Nobody could release a stream that is gone. */
static void release_for_good(struct weir_cpu_device *device, struct weir_stream *stream)
{
    stream->parked = false;
    for (struct weir_cpu_op *op = stream->queue->head; op; op = op->next)
        if (op->stream == stream)
            op->stall_round = 0;
    weir_cpu_kick(device);
}

/* Whether all of the stream's work has run. */
static bool run_out(struct weir_cpu_device *device, struct weir_stream *stream)
{
    if (device->seed == 0) {
        stream->quit = true;
        pthread_cond_signal(&stream->wake);
        pthread_mutex_unlock(&device->lock);
        pthread_join(stream->thread, NULL);
        pthread_mutex_lock(&device->lock);
    } else {
        while (has_work(stream) && weir_cpu_step(device))
            ;
    }
    return !has_work(stream);
}

void weir_cpu_destroy_stream(weir_device *base, weir_stream *stream)
{
    if (!stream || weir_cpu_check_stream(base, stream, "stream destroy"))
        return;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    release_for_good(device, stream);
    bool stuck = !run_out(device, stream);
    weir_cpu_drop_ops(device, stream);
    if (stream->running)
        weir_cpu_op_free(device, stream->running);
    weir_cpu_host_learns(device, stream->clock);
    unlink_stream(device, stream);
    free_stream(device, stream);
    weir_cpu_leave(device);
    if (stuck)
        weir_log_line(&base->log, WEIR_LOG_ERROR,
                      "stream destroy: its work waits for something that never runs; dropped");
}

/* ---- Waiting ------------------------------------------------------------- */

static int wait_until_finished(struct weir_cpu_device *device, struct weir_stream *stream)
{
    uint64_t target = stream->submitted;
    while (!atomic_load(&device->lost) && stream->finished < target) {
        if (device->seed == 0) {
            stream->n_waiting++;
            pthread_cond_wait(&stream->idle, &device->lock);
            stream->n_waiting--;
        } else if (!weir_cpu_step(device)) {
            return atomic_load(&device->lost) ? -EIO : -EDEADLK;
        }
    }
    return atomic_load(&device->lost) ? -EIO : 0;
}

int weir_cpu_stream_synchronize(weir_device *base, weir_stream *stream)
{
    int rc = weir_cpu_check_stream(base, stream, "stream synchronize");
    if (rc)
        return rc;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    rc = wait_until_finished(device, stream);
    if (!rc)
        weir_cpu_host_learns(device, stream->clock);
    weir_cpu_leave(device);
    return rc;
}

/* There are no graphs. */
int weir_cpu_stream_is_capturing(weir_device *base, weir_stream *stream, bool *capturing)
{
    int rc = weir_cpu_check_stream(base, stream, "stream is capturing");
    if (!rc && atomic_load(&weir_cpu_from(base)->lost))
        rc = -EIO;
    if (!rc)
        *capturing = false;
    return rc;
}

int weir_cpu_stream_create(weir_device *base, weir_stream **stream)
{
    if (!base)
        return -EINVAL;
    if (!weir_cpu_is(base))
        return weir_invalid(&base->log, "stream create: not a cpu device");
    return weir_cpu_new_stream(base, 0, stream);
}

void weir_cpu_stream_destroy(weir_device *base, weir_stream **stream)
{
    if (!base || !stream)
        return;
    weir_cpu_destroy_stream(base, *stream);
    *stream = NULL;
}

/* ---- Launching ----------------------------------------------------------- */

/* `payload`: the accesses, or what fn's argument is a copy of. */
static int launch(struct weir_cpu_device *device, weir_stream *stream,
                  const struct weir_cpu_launch *what, const void *payload, size_t bytes)
{
    struct weir_cpu_op *op;
    int rc = weir_cpu_op_new(device, stream, WEIR_CPU_CALL_COUNT, WEIR_CPU_OP_LAUNCH, false, &op);
    if (rc)
        return rc;
    op->launch = *what;
    op->payload = weir_cpu_payload_new(device, payload, bytes);
    if (!op->payload) {
        weir_cpu_op_free(device, op);
        return -ENOMEM;
    }
    if (what->owns_arg)
        op->launch.arg = op->payload->data;
    return weir_cpu_submit(device, op);
}

int weir_cpu_launch(weir_device *base, weir_stream *stream, void (*fn)(void *arg), void *arg,
                    const weir_cpu_access *accesses, size_t n_accesses)
{
    int rc = weir_cpu_check_stream(base, stream, "launch");
    if (rc)
        return rc;
    if (!fn)
        return weir_invalid(&base->log, "launch: fn is NULL");
    if (n_accesses > 0 && !accesses)
        return weir_invalid(&base->log, "launch: accesses is NULL, n_accesses is %zu", n_accesses);
    if (n_accesses > SIZE_MAX / sizeof *accesses)
        return -ENOMEM;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_launch what = { .fn = fn, .arg = arg, .n_accesses = n_accesses };
    rc = launch(device, stream, &what, accesses, n_accesses * sizeof *accesses);
    weir_cpu_leave(device);
    return rc;
}

int weir_cpu_launch_touching(weir_device *base, weir_stream *stream, void (*fn)(void *arg),
                             const void *arg, size_t bytes, weir_cpu_touch *touch)
{
    int rc = weir_cpu_check_stream(base, stream, "launch");
    if (rc)
        return rc;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_launch what = { .fn = fn, .owns_arg = true, .touch = touch };
    rc = launch(device, stream, &what, arg, bytes);
    weir_cpu_leave(device);
    return rc;
}
