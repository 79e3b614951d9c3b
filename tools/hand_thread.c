/* SPDX-License-Identifier: Apache-2.0 */
#include "hand_thread.h"

#include "hands_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BOX 8u             /* reports that wait to be taken */
#define LOOK_EVERY 200000l /* ns between two looks for what has ended */
#define TRIES 100000u      /* to begin a step that others in flight or faults hold up */

struct job {
    size_t work;
    const void *order;
    size_t bytes;
};

struct weir_hand_thread {
    struct weir_hands *hands;
    uint32_t rank;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t given;
    struct job jobs[WEIR_REPLAY_STEPS];
    size_t first_job;
    size_t n_jobs;
    uint64_t *reports; /* [BOX][hands->report_bytes] */
    size_t report_bytes[BOX];
    size_t first_report;
    size_t n_reports;
    int rc;
    bool stop;
};

static void *report_at(const struct weir_hand_thread *t, size_t i)
{
    return (char *)t->reports + i % BOX * t->hands->report_bytes;
}

/* One report, if anything has ended and there is room for it. */
static void look(struct weir_hand_thread *t)
{
    pthread_mutex_lock(&t->mutex);
    size_t at = t->first_report + t->n_reports;
    bool room = t->n_reports < BOX;
    pthread_mutex_unlock(&t->mutex);
    size_t bytes = 0;
    int rc = room ? weir_hand_report(t->hands, t->rank, report_at(t, at), &bytes) : 0;
    pthread_mutex_lock(&t->mutex);
    if (!rc && bytes) {
        t->report_bytes[at % BOX] = bytes;
        t->n_reports++;
    }
    t->rc = t->rc ? t->rc : rc;
    pthread_mutex_unlock(&t->mutex);
}

static void pause_a_moment(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = LOOK_EVERY }, NULL);
}

/* A slot is free only when all of its last step has been reported, and a wait
 * that could not be enqueued may be tried again. */
static int do_job(struct weir_hand_thread *t, const struct job *job)
{
    int rc = 0;
    for (uint32_t i = 0; i < TRIES; i++) {
        rc = weir_hand_begin(t->hands, job->work, t->rank, job->order, job->bytes);
        if (rc != -EBUSY && rc != -EAGAIN && rc != -EIO)
            break;
        look(t);
        pause_a_moment();
    }
    return rc ? rc : weir_hand_run(t->hands, job->work, t->rank);
}

static void wait_for_job(struct weir_hand_thread *t)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_EVERY;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&t->given, &t->mutex, &until);
}

static void *run(void *arg)
{
    struct weir_hand_thread *t = arg;
    pthread_mutex_lock(&t->mutex);
    while (!t->stop || t->n_jobs) {
        if (!t->n_jobs)
            wait_for_job(t);
        struct job job = t->jobs[t->first_job];
        bool any = t->n_jobs > 0;
        pthread_mutex_unlock(&t->mutex);
        int rc = any ? do_job(t, &job) : 0;
        if (!rc)
            look(t);
        pthread_mutex_lock(&t->mutex);
        t->rc = t->rc ? t->rc : rc;
        if (any) {
            t->first_job = (t->first_job + 1) % WEIR_REPLAY_STEPS;
            t->n_jobs--;
        }
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

int weir_hand_thread_start(struct weir_hand_thread **thread, struct weir_hands *hands,
                           uint32_t rank)
{
    struct weir_hand_thread *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->hands = hands;
    made->rank = rank;
    made->reports = calloc(BOX, hands->report_bytes);
    int rc = made->reports ? 0 : -ENOMEM;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->given, NULL);
    if (!rc)
        rc = -pthread_create(&made->thread, NULL, run, made);
    if (rc) {
        free(made->reports);
        free(made);
        return rc;
    }
    *thread = made;
    return 0;
}

void weir_hand_thread_stop(struct weir_hand_thread **thread)
{
    struct weir_hand_thread *stopped = *thread;
    if (!stopped)
        return;
    pthread_mutex_lock(&stopped->mutex);
    stopped->stop = true;
    pthread_cond_signal(&stopped->given);
    pthread_mutex_unlock(&stopped->mutex);
    pthread_join(stopped->thread, NULL);
    pthread_cond_destroy(&stopped->given);
    pthread_mutex_destroy(&stopped->mutex);
    free(stopped->reports);
    free(stopped);
    *thread = NULL;
}

void weir_hand_thread_give(struct weir_hand_thread *thread, size_t work, const void *order,
                           size_t bytes)
{
    pthread_mutex_lock(&thread->mutex);
    thread->jobs[(thread->first_job + thread->n_jobs++) % WEIR_REPLAY_STEPS] =
        (struct job){ work, order, bytes };
    pthread_cond_signal(&thread->given);
    pthread_mutex_unlock(&thread->mutex);
}

int weir_hand_thread_take(struct weir_hand_thread *thread, void *report, size_t capacity,
                          size_t *bytes)
{
    pthread_mutex_lock(&thread->mutex);
    int rc = thread->rc;
    *bytes = 0;
    if (!rc && thread->n_reports) {
        size_t at = thread->first_report++ % BOX;
        *bytes = thread->report_bytes[at];
        rc = *bytes <= capacity ? 0 : -ENOSPC;
        if (!rc)
            memcpy(report, report_at(thread, at), *bytes);
        thread->n_reports--;
    }
    pthread_mutex_unlock(&thread->mutex);
    return rc;
}
