/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CPU_DEVICE_H
#define WEIR_CPU_DEVICE_H

/* The CPU device: a device made of threads, so that a server, its tests and a
 * replay run without a GPU, and run into the races that a GPU has.
 *
 * Work is enqueued and runs later. Each stream runs its own work in order,
 * different streams run concurrently. A copy's destination holds garbage from
 * the moment the copy may start until it ends, its bytes land in no particular
 * order, and its source is read at either end of it. Enqueued work cannot be
 * cancelled. A stream belongs to one of a few hardware queues, and work at the
 * head of a queue that cannot start yet holds up what was submitted to that
 * queue behind it. A full queue blocks the thread that submits.
 *
 * Two modes. With seed 0 every stream is a thread. With another seed there is
 * no thread at all: work runs only inside weir_cpu_device_run and the calls
 * that wait, in an order drawn from the seed, which may be any order that the
 * streams and their waits allow.
 *
 * Races are found by construction: every stream, event and word carries a
 * vector clock, and every piece of every pool a record of its last writer and
 * its readers. An access that is not ordered after the last conflicting one is
 * counted as a race and logged, also when the timing happened to be kind. */

#include <weir/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The calls that a fault can strike. */
typedef enum weir_cpu_call {
    WEIR_CPU_CALL_MEMORY_ALLOC = 0,
    WEIR_CPU_CALL_HOST_REGISTER,
    WEIR_CPU_CALL_WORDS_ALLOC,
    WEIR_CPU_CALL_STREAM_CREATE,
    WEIR_CPU_CALL_EVENT_CREATE,
    WEIR_CPU_CALL_EVENT_RECORD,
    WEIR_CPU_CALL_STREAM_WAIT_EVENT,
    WEIR_CPU_CALL_STREAM_WAIT_WORD,
    WEIR_CPU_CALL_STREAM_WRITE_WORD,
    WEIR_CPU_CALL_COPY_LOAD,       /* one count a layer of a host-to-device copy */
    WEIR_CPU_CALL_COPY_WRITE_BACK, /* one count a layer of a device-to-host copy */
    WEIR_CPU_CALL_COPY_PAGES,      /* one count a layer of copies within the device */
    WEIR_CPU_CALL_COUNT
} weir_cpu_call;

/*   struct_size     written by weir_cpu_device_params_init
 *   seed            0: threads; else the single-threaded scheduler's seed
 *   n_queues        hardware queues that streams are dealt to in order of
 *                   creation, 1..64; default 8
 *   queue_depth     entries a hardware queue holds before a submission blocks,
 *                   1 or more; default 1024
 *   load_gbps, write_back_gbps
 *                   rate of the link per direction in 1e9 bytes a second;
 *                   0 (default): unlimited
 *   load_latency_us, write_back_latency_us
 *                   added to each layer of a copy; default 0
 *   check_races     default true
 *   log             default: silent; kept by the device */
typedef struct weir_cpu_device_params {
    uint32_t struct_size;
    uint32_t n_queues;
    uint64_t seed;
    uint32_t queue_depth;
    bool check_races;
    double load_gbps;
    double write_back_gbps;
    double load_latency_us;
    double write_back_latency_us;
    weir_log log;
} weir_cpu_device_params;

WEIR_API void weir_cpu_device_params_init(weir_cpu_device_params *params) WEIR_NOEXCEPT;

/* Opens a CPU device; weir_device_close closes it. NULL params: the defaults.
 * -EINVAL, -ENOMEM, -EAGAIN (no thread can be started). */
WEIR_API int weir_cpu_device_open(weir_device **device,
                                  const weir_cpu_device_params *params) WEIR_NOEXCEPT;

/* Creates a stream of the server's own. The caller owns it. Destroying waits
 * for its work, sets *stream to NULL and accepts a NULL content. */
WEIR_API int weir_cpu_stream_create(weir_device *device, weir_stream **stream) WEIR_NOEXCEPT;
WEIR_API void weir_cpu_stream_destroy(weir_device *device, weir_stream **stream) WEIR_NOEXCEPT;

/* Blocks until all work enqueued in `stream` so far has run. The caller is
 * then ordered after that work. -EIO: the device is lost; -EDEADLK: with a
 * seed, nothing can run any more. */
WEIR_API int weir_cpu_stream_synchronize(weir_device *device, weir_stream *stream) WEIR_NOEXCEPT;

/* One access of a function launched with weir_cpu_launch to a piece that weir
 * manages.
 *
 *   pool    from weir_rank_cpu_pool
 *   page    device page, 1..n
 *   tensor, layer  as in the shape (layer counts all layers, not the tensor's)
 *   write   false: read */
typedef struct weir_cpu_access {
    uint32_t pool;
    int32_t page;
    uint16_t tensor;
    uint16_t layer;
    bool write;
} weir_cpu_access;

/* Enqueues fn(arg) in `stream`: the CPU device's kernel launch. Only such a
 * function may touch device memory. `accesses` says which pieces it touches,
 * for the race check; they are copied. `arg` must live until fn has run.
 * Blocks while the stream's queue is full. -EIO: the device is lost;
 * -ENOMEM. */
WEIR_API int weir_cpu_launch(weir_device *device, weir_stream *stream, void (*fn)(void *arg),
                             void *arg, const weir_cpu_access *accesses,
                             size_t n_accesses) WEIR_NOEXCEPT;

/* Seeded mode: performs up to `steps` scheduler steps (the start or the end of
 * one piece of work) and returns how many it performed; fewer than `steps`
 * means that nothing can run. Returns 0 in threaded mode. */
WEIR_API size_t weir_cpu_device_run(weir_device *device, size_t steps) WEIR_NOEXCEPT;

/* Faults, for tests. Each strikes the nth call of its kind from now, n >= 1,
 * once. fail: that call returns rc and has no effect (a copy of several layers
 * has then enqueued the layers before it). stall: the work enqueued by that
 * call, and all behind it in its stream, does not start until
 * weir_cpu_device_release. -EINVAL: kind or n. */
WEIR_API int weir_cpu_device_fail(weir_device *device, weir_cpu_call call, uint64_t n,
                                  int rc) WEIR_NOEXCEPT;
WEIR_API int weir_cpu_device_stall(weir_device *device, weir_cpu_call call,
                                   uint64_t n) WEIR_NOEXCEPT;

/* How many calls of this kind there have been. */
WEIR_API uint64_t weir_cpu_device_calls(weir_device *device, weir_cpu_call call) WEIR_NOEXCEPT;

/* Ends every stall and every fault that has not struck yet. */
WEIR_API void weir_cpu_device_release(weir_device *device) WEIR_NOEXCEPT;

/* Parks a stream: what is enqueued in it from now on does not start until it
 * is released. What is running ends. */
WEIR_API void weir_cpu_stream_park(weir_device *device, weir_stream *stream) WEIR_NOEXCEPT;
WEIR_API void weir_cpu_stream_release(weir_device *device, weir_stream *stream) WEIR_NOEXCEPT;

/* Loses the device as a GPU is lost: what is enqueued never runs, its events
 * and words never complete, and every later call returns -EIO. */
WEIR_API void weir_cpu_device_lose(weir_device *device) WEIR_NOEXCEPT;

/* Races found so far. */
WEIR_API uint64_t weir_cpu_device_races(weir_device *device) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
