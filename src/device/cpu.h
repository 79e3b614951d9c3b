/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CPU_H
#define WEIR_DEVICE_CPU_H

/* The CPU device: one core, driven by a thread a stream or by a scheduler.
 *
 *   host thread          hardware queues, FIFO             streams
 *
 *   submit ─► queue 0   head ─ op ─ op ─ op ─┐   dispatch  ┌─► stream 0: running op
 *             queue 1   head ─ op ───────────┼────────────►├─► stream 1: running op
 *             queue 2   (empty)              │             └─► stream 2: idle
 *                                            └ only heads, each when its stream
 *                                              is idle and its wait is over
 *
 *   an op's life (core in cpu_schedule.c, bodies in cpu_copy*.c):
 *
 *     submit   lock     the op gets the host's clock and its place in a queue
 *     start    lock     leaves its queue; clocks joined, accesses checked
 *     begin    no lock  a copy turns its destination to garbage
 *        ⋮              the link takes its time, other streams go on
 *     end      no lock  a copy's bytes land; a launched function runs
 *     finish   lock     events and words are published, others woken
 *
 *   With seed 0 the stream's thread does start..finish; else a scheduler step
 *   does start and begin, another one end and finish, and any host thread that
 *   waits performs steps.
 *
 * Invariants, under device->lock:
 *   - a stream has at most one running op; ops of a stream start in the order
 *     in which they were submitted, since one queue holds all of them
 *   - stream->finished <= number of the running op - 1 <= stream->submitted
 *   - once lost is set, no op starts and none publishes anything
 *   - at most one scheduler step is being performed (in_step) */

#include "device/cpu_clock.h"
#include "device/cpu_link.h"
#include "device/cpu_race.h"
#include "base/ranges.h"
#include "device/device.h"

#include <weir/cpu_device.h>

#include <pthread.h>

#define WEIR_CPU_PAYLOAD_CLASSES 40u

struct weir_cpu_device;

/* A word as the device sees it; attached, as an array, to its block's range. */
struct weir_cpu_word {
    uint32_t *value;
    struct weir_cpu_point *last; /* what its newest value is ordered after */
    bool seen;                   /* the host's clock includes `last` */
};

struct weir_event {
    struct weir_cpu_point *newest; /* NULL: never recorded */
};

/* What a copy's layers share (runs, pairs of pages), or a launch brings along
 * (accesses, or its argument). */
struct weir_cpu_payload {
    uint32_t refs;
    uint32_t size_class;
    struct weir_cpu_payload *next_free;
    uint64_t data[];
};

enum weir_cpu_op_kind {
    WEIR_CPU_OP_COPY,
    WEIR_CPU_OP_COPY_PAGES,
    WEIR_CPU_OP_LAUNCH,
    WEIR_CPU_OP_MARK, /* record an event, write a word */
    WEIR_CPU_OP_WAIT_EVENT,
    WEIR_CPU_OP_WAIT_WORD
};

/* One layer of a copy, by runs or within the device. */
struct weir_cpu_copy {
    const struct weir_geometry *geometry;
    enum weir_direction direction;
    uint32_t layer;
    uint32_t n_runs; /* or pairs of pages */
    uint32_t device_pool;
    uint32_t host_pool;
    uint32_t shared_pool;
    uint64_t bytes;
};

/* Tells the race check what a launch touches that only its arguments say, when it
 * starts. Under the lock. */
typedef void weir_cpu_touch(struct weir_cpu_race *race, const struct weir_cpu_accessor *accessor,
                            const void *arg);

struct weir_cpu_launch {
    void (*fn)(void *arg);
    void *arg;
    bool owns_arg; /* it is the payload */
    size_t n_accesses;
    weir_cpu_touch *touch; /* NULL: the accesses are all */
};

struct weir_cpu_op {
    struct weir_cpu_op *next; /* in its queue, or in the free list */
    struct weir_stream *stream;
    enum weir_cpu_op_kind kind;
    uint64_t number;              /* 1 for the first op of its stream */
    uint64_t stall_round;         /* the device's round in which it may not start; 0: none */
    uint64_t seed;                /* of the copy's garbage and disorder, drawn at start */
    uint64_t end_ns;              /* when the link is through with it; 0: at once */
    struct weir_cpu_point *host;  /* what the host knew when it submitted */
    struct weir_cpu_point *bound; /* the record that it waits for, or NULL */
    struct weir_cpu_point *mark;  /* published when it has ended, or NULL */
    struct weir_cpu_word *word;   /* written with the mark, or waited for */
    uint32_t value;
    struct weir_cpu_payload *payload;
    union {
        struct weir_cpu_copy copy;
        struct weir_cpu_launch launch;
    };
};

struct weir_cpu_queue {
    struct weir_cpu_op *head;
    struct weir_cpu_op *tail;
    uint32_t length;
    uint32_t n_blocked;   /* submitters that wait for room */
    pthread_cond_t space; /* one of them may go on */
};

struct weir_stream {
    struct weir_cpu_device *device;
    struct weir_stream *next; /* in order of creation */
    struct weir_cpu_queue *queue;
    struct weir_cpu_op *running;
    uint64_t submitted;
    uint64_t finished;
    bool parked;
    uint64_t park_after; /* the last op that a park does not hold */
    uint64_t random;
    uint32_t component; /* of the vector clocks */
    struct weir_cpu_point *clock;
    pthread_t thread;
    pthread_cond_t wake; /* its queue's head may start; lost; quit */
    pthread_cond_t idle; /* an op has finished; lost */
    uint32_t n_waiting;  /* threads that wait for `idle` */
    bool quit;
};

struct weir_cpu_fault {
    struct weir_cpu_fault *next;
    uint64_t at; /* strikes the call with this count */
    int rc;      /* 0: a stall */
};

struct weir_cpu_device {
    weir_device base;
    pthread_mutex_t lock;
    uint64_t seed; /* 0: threads */
    uint64_t random;
    bool check_races;
    atomic_bool lost;
    bool in_step;
    pthread_cond_t step_done;
    uint32_t shy_countdown;      /* steps until another stream is put off */
    struct weir_stream *shy;     /* goes on only when nothing else can */
    struct weir_stream *streams; /* in order of creation */
    uint64_t streams_created;
    uint32_t n_queues;
    uint32_t queue_depth;
    struct weir_cpu_queue *queues;
    struct weir_cpu_link links[2]; /* by enum weir_direction */
    struct weir_ranges registrations;
    struct weir_ranges words;

    struct weir_cpu_op *free_ops;
    struct weir_cpu_payload *free_payloads[WEIR_CPU_PAYLOAD_CLASSES];
    struct weir_cpu_points points;
    struct weir_cpu_point *host; /* what the host threads together know */

    uint64_t calls[WEIR_CPU_CALL_COUNT];
    struct weir_cpu_fault *faults[WEIR_CPU_CALL_COUNT];
    uint64_t stall_round;

    struct weir_cpu_race race;
};

extern const struct weir_device_ops weir_cpu_ops;

/* By what closes it: there may be another table in front of the device's own. */
static inline bool weir_cpu_is(const weir_device *device)
{
    return device->ops->close == weir_cpu_ops.close;
}

static inline struct weir_cpu_device *weir_cpu_from(weir_device *device)
{
    return (struct weir_cpu_device *)device;
}

/* Every call of a host thread stands between these two. leave logs the races
 * found meanwhile: the streams' own threads may not call the log. */
struct weir_cpu_device *weir_cpu_enter(weir_device *device);
void weir_cpu_leave(struct weir_cpu_device *device);

/* ---- cpu_fault.c --------------------------------------------------------- */

/* Counts a call (WEIR_CPU_CALL_COUNT: none). -EIO: lost; the rc of a fault that strikes now;
 * *stall_round is set if a stall strikes, else 0. */
int weir_cpu_count(struct weir_cpu_device *device, weir_cpu_call call, uint64_t *stall_round);
void weir_cpu_drop_faults(struct weir_cpu_device *device);

/* ---- cpu_op.c ------------------------------------------------------------ */

/* Counts the call and makes its op, with the host's clock and, if `with_mark`, a
 * mark; what the kind needs beyond is for the caller to fill in. `call`
 * WEIR_CPU_CALL_COUNT: no fault strikes it. -ENOMEM; as weir_cpu_count. */
int weir_cpu_op_new(struct weir_cpu_device *device, struct weir_stream *stream, weir_cpu_call call,
                    enum weir_cpu_op_kind kind, bool with_mark, struct weir_cpu_op **op);
void weir_cpu_op_free(struct weir_cpu_device *device, struct weir_cpu_op *op);
void weir_cpu_free_ops(struct weir_cpu_device *device);

struct weir_cpu_payload *weir_cpu_payload_new(struct weir_cpu_device *device, const void *data,
                                              uint64_t bytes);
void weir_cpu_payload_unref(struct weir_cpu_device *device, struct weir_cpu_payload *payload);

/* ---- cpu_schedule.c ------------------------------------------------------ */

/* Puts an op into its queue, blocking while that is full, or frees it.
 * -EIO: lost; -EDEADLK: full, and with a seed nothing can run; -ENOMEM. */
int weir_cpu_submit(struct weir_cpu_device *device, struct weir_cpu_op *op);

bool weir_cpu_can_start(const struct weir_cpu_op *op);
void weir_cpu_start(struct weir_cpu_device *device, struct weir_cpu_op *op);
void weir_cpu_finish(struct weir_cpu_device *device, struct weir_cpu_op *op);

/* The parts of an op that run without the lock; both return with it held. */
void weir_cpu_begin(struct weir_cpu_device *device, struct weir_cpu_op *op);
void weir_cpu_end(struct weir_cpu_device *device, struct weir_cpu_op *op);

/* Wakes the streams whose queue's head can start now. */
void weir_cpu_kick(struct weir_cpu_device *device);
/* Wakes everything that waits for anything. */
void weir_cpu_wake_all(struct weir_cpu_device *device);

/* Performs one scheduler step; false: nothing can run. Seeded mode only. */
bool weir_cpu_step(struct weir_cpu_device *device);

/* Takes all ops of a stream out of its queue and frees them unrun. */
void weir_cpu_drop_ops(struct weir_cpu_device *device, struct weir_stream *stream);

/* ---- cpu_stream.c -------------------------------------------------------- */

int weir_cpu_new_stream(weir_device *base, int priority, weir_stream **stream);
void weir_cpu_destroy_stream(weir_device *base, weir_stream *stream);
int weir_cpu_stream_is_capturing(weir_device *base, weir_stream *stream, bool *capturing);

/* A condition whose timed waits are on the clock of weir_cpu_now. -EAGAIN,
 * -ENOMEM. */
int weir_cpu_cond_init(pthread_cond_t *cond);

/* Makes the host's clock include `point`. */
void weir_cpu_host_learns(struct weir_cpu_device *device, const struct weir_cpu_point *point);

/* -EINVAL, with a log line, unless `base` is a CPU device and `stream` one of its
 * streams. */
int weir_cpu_check_stream(weir_device *base, const weir_stream *stream, const char *call);

/* As weir_cpu_launch, with an argument of its own that is copied and aligned to 8;
 * `touch` (NULL: nothing) says what it touches. */
int weir_cpu_launch_touching(weir_device *base, weir_stream *stream, void (*fn)(void *arg),
                             const void *arg, size_t bytes, weir_cpu_touch *touch);

/* The same for what the race check does not look at. */
static inline int weir_cpu_launch_copy(weir_device *base, weir_stream *stream,
                                       void (*fn)(void *arg), const void *arg, size_t bytes)
{
    return weir_cpu_launch_touching(base, stream, fn, arg, bytes, NULL);
}

/* ---- cpu_gather.c -------------------------------------------------------- */

int weir_cpu_gather_prepare(weir_device *base, const struct weir_gather *gather, void **state);
void weir_cpu_gather_release(weir_device *base, void *state);
int weir_cpu_gather_launch(weir_device *base, weir_stream *stream,
                           const struct weir_gather_call *call);

/* ---- cpu_expert.c: an entry of weir_cpu_ops -------------------------------- */

int weir_cpu_expert_launch(weir_device *base, weir_stream *stream,
                           const struct weir_expert_args *args, enum weir_expert_work work);

/* ---- cpu_event.c, cpu_word.c, cpu_copy.c: entries of weir_cpu_ops --------- */

int weir_cpu_event_create(weir_device *base, weir_event **event);
void weir_cpu_event_destroy(weir_device *base, weir_event *event);
int weir_cpu_event_record(weir_device *base, weir_event *event, weir_stream *stream);
int weir_cpu_stream_wait_event(weir_device *base, weir_stream *stream, weir_event *event);
int weir_cpu_stream_wait_event_external(weir_device *base, weir_stream *stream, weir_event *event);

int weir_cpu_words_alloc(weir_device *base, uint32_t n, uint32_t **words);
void weir_cpu_words_free(weir_device *base, uint32_t *words);
uint32_t weir_cpu_word_load(weir_device *base, const uint32_t *word);
void weir_cpu_word_store(weir_device *base, uint32_t *word, uint32_t value);
int weir_cpu_stream_write_word(weir_device *base, weir_stream *stream, uint32_t *word,
                               uint32_t value);
int weir_cpu_stream_wait_word(weir_device *base, weir_stream *stream, const uint32_t *word,
                              uint32_t value);

/* The state of words[0..n-1], or NULL if they are not words of this device. */
struct weir_cpu_word *weir_cpu_word_find(struct weir_cpu_device *device, const uint32_t *words,
                                         uint32_t n);
/* Gives a word its new value, ordered after `point`. */
void weir_cpu_word_publish(struct weir_cpu_device *device, struct weir_cpu_word *word,
                           uint32_t value, struct weir_cpu_point *point);
void weir_cpu_free_words(struct weir_cpu_device *device);

int weir_cpu_copy(weir_device *base, weir_stream *stream, const struct weir_transfer *transfer,
                  uint32_t *enqueued);
/* Checks the accesses of a copy that starts now. Under the lock. */
void weir_cpu_copy_check(struct weir_cpu_device *device, const struct weir_cpu_op *op,
                         const struct weir_cpu_accessor *accessor);
/* The two ends of a copy. Without the lock. */
void weir_cpu_copy_begin(const struct weir_cpu_op *op);
void weir_cpu_copy_end(const struct weir_cpu_op *op);

/* The same of one 2-D copy. The key is the copy's own. */
void weir_cpu_piece_begin(const struct weir_copy *copy, enum weir_direction direction,
                          uint64_t key);
void weir_cpu_piece_end(const struct weir_copy *copy, enum weir_direction direction, uint64_t key);

/* ---- cpu_copy_pages.c ----------------------------------------------------- */

int weir_cpu_copy_pages(weir_device *base, weir_stream *stream,
                        const struct weir_page_copies *copies);
/* As of a copy by plan. */
void weir_cpu_pages_check(struct weir_cpu_device *device, const struct weir_cpu_op *op,
                          const struct weir_cpu_accessor *accessor);
void weir_cpu_pages_begin(const struct weir_cpu_op *op);
void weir_cpu_pages_end(const struct weir_cpu_op *op);

#endif
