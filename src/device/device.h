/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_DEVICE_H
#define WEIR_DEVICE_DEVICE_H

/* The device contract: all that weir asks of a device. The CPU device and the
 * CUDA device implement it; nothing above this header knows which it has.
 *
 *   host thread ── enqueue ─►  stream ─ copy ─ copy ─ write word ─ record ─►
 *                                                        │           │
 *   host thread ◄─ word_load ────────────────────────────┘           │
 *   other stream ◄─ wait_event ──────────────────────────────────────┘
 *
 * General rules, for every function:
 *   - Returns 0 or -errno; out-parameters are written on success only. A call
 *     that fails has enqueued nothing, except `copy`, which says how far it
 *     came, and `copy_pages`.
 *   - Enqueueing returns before the work runs. Work of one stream runs in
 *     order; work of different streams runs concurrently unless an event or a
 *     word orders it.
 *   - No wait is enqueued for something that a later call enqueues: the event
 *     was recorded, or the work that writes the word was enqueued, before.
 *   - Once the device is lost, every function that can fail returns -EIO.
 *   - Threads: safe, except that one stream is used by one thread at a time.
 *   - Nothing but create and alloc functions allocates device resources. */

#include "transfer/plan.h"

#include <weir/copy.h>
#include <weir/device.h>
#include <weir/transfer.h>

#include <stdatomic.h>

typedef struct weir_event weir_event;
struct weir_gather;
struct weir_gather_call;

struct weir_expert_args;

enum weir_expert_work {
    WEIR_EXPERT_ENSURE,
    WEIR_EXPERT_RESET
};

enum weir_direction {
    WEIR_LOAD,      /* host to device */
    WEIR_WRITE_BACK /* device to host */
};

/* A copy by plan: layers layer_begin..layer_end-1 of all runs, layer after
 * layer, all tensors of a layer together.
 *
 *   geometry   must outlive the copy
 *   runs       copied before the call returns
 *   words      NULL, or one word a layer (words[layer], of words_alloc): when
 *              all of layer l has arrived and is visible to every later reader,
 *              words[l] becomes `generation`. Layers that hold no tensor are
 *              published too, each after the layers before it
 *   events     NULL, or one a layer, like words: recorded in the stream behind the
 *              layer. Kernels then take a launch a layer
 *   device_pool, host_pool, shared_pool
 *              from pool_register, for the CPU device's race check; the last
 *              one of the share's tensors, by their shared_id
 *   tuning, max_enqueue_us, exclusive_sms
 *              as in weir_rank_params, with max_enqueue_us set
 *   state      from transfer_prepare with this geometry; used by one thread at
 *              a time */
struct weir_transfer {
    const struct weir_geometry *geometry;
    const struct weir_run *runs;
    uint32_t n_runs;
    enum weir_direction direction;
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t *words;
    uint32_t generation;
    weir_event *const *events;
    uint32_t device_pool;
    uint32_t host_pool;
    uint32_t shared_pool;
    weir_transfer_tuning tuning;
    uint32_t max_enqueue_us;
    bool exclusive_sms;
    void *state;
};

/* Pages copied within the device: all tensors of all layers of copies[0..n-1], each
 * from its first page to its second. What must come before is for the caller to
 * order; `load` is not looked at.
 *
 *   copies       copied before the call returns; no page is the target of two, or
 *                the target of one and the source of another
 *   geometry, device_pool, state
 *                as of a transfer */
struct weir_page_copies {
    const struct weir_geometry *geometry;
    const weir_page_copy *copies;
    uint32_t n;
    uint32_t device_pool;
    void *state;
};

/* -EINVAL, with a log line that names the field: a page that does not exist. */
int weir_page_copies_check(const struct weir_page_copies *copies, const weir_log *log);

/* -EINVAL, with a log line that names the field, for a transfer that no device
 * could run: a layer or a page that does not exist, a run across segments. Sets
 * *enqueued as a copy does that has enqueued nothing yet. */
int weir_transfer_check(const struct weir_transfer *transfer, uint32_t *enqueued,
                        const weir_log *log);

/* Pages of all runs. */
static inline uint64_t weir_transfer_pages(const struct weir_transfer *transfer)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < transfer->n_runs; i++)
        pages += (uint32_t)transfer->runs[i].count;
    return pages;
}

/* -EINVAL, with a log line, for memory that no device could pin. */
int weir_host_register_check(const void *address, uint64_t bytes, const weir_log *log);

struct weir_device_ops {
    const char *name;

    /* Frees the device. Pre: no rank, no stream of a caller left. Post: all
     * work has run, unless the device is lost. */
    void (*close)(weir_device *device);

    /* 0, or -EIO once the device is lost. Never blocks, makes no driver call. */
    int (*status)(weir_device *device);

    /* Device memory, 256-byte aligned, content undefined. free: pre: no
     * enqueued work uses it. -ENOMEM. */
    int (*memory_alloc)(weir_device *device, uint64_t bytes, uint64_t *address);
    void (*memory_free)(weir_device *device, uint64_t address);

    /* Pins host memory for copies. Pre: page-aligned, not registered with this
     * device. With several devices it is unregistered in reverse order. A copy
     * never crosses two registrations. unregister: pre: address is that of a
     * registration, no enqueued work uses it. -ENOMEM, -EIO. */
    int (*host_register)(weir_device *device, void *address, uint64_t bytes);
    void (*host_unregister)(weir_device *device, void *address);

    /* n pinned 32-bit words, zero, readable and writable by host and device.
     * -ENOMEM. */
    int (*words_alloc)(weir_device *device, uint32_t n, uint32_t **words);
    void (*words_free)(weir_device *device, uint32_t *words);

    /* Host side of a word: an acquire load, and a release store that also
     * releases streams waiting for it. No driver call. After a load that sees
     * a stream's write, the calling thread, and what it enqueues, is ordered
     * after the work before that write. */
    uint32_t (*word_load)(weir_device *device, const uint32_t *word);
    void (*word_store)(weir_device *device, uint32_t *word, uint32_t value);

    /* A side stream; a larger priority is served first where the device can.
     * destroy: waits for its work, unless the device is lost. synchronize:
     * blocks; the caller is ordered after the stream's work. */
    int (*stream_create)(weir_device *device, int priority, weir_stream **stream);
    void (*stream_destroy)(weir_device *device, weir_stream *stream);
    int (*stream_synchronize)(weir_device *device, weir_stream *stream);

    /* Whether what is enqueued in `stream` now goes into a graph instead of
     * running. */
    int (*stream_is_capturing)(weir_device *device, weir_stream *stream, bool *capturing);

    /* Events. record marks the stream's present point; recording again moves
     * the event. wait orders what is enqueued in `stream` from now on after
     * the newest record at the time of this call; on an event that was never
     * recorded it does nothing. */
    int (*event_create)(weir_device *device, weir_event **event);
    void (*event_destroy)(weir_device *device, weir_event *event);
    int (*event_record)(weir_device *device, weir_event *event, weir_stream *stream);
    int (*stream_wait_event)(weir_device *device, weir_stream *stream, weir_event *event);

    /* As wait, into the graph that `stream` is being captured to: each replay
     * waits for the newest record at the time of its launch. -EINVAL: the
     * stream is not being captured; -ENOTSUP: the device has no graphs. */
    int (*stream_wait_event_external)(weir_device *device, weir_stream *stream, weir_event *event);

    /* In-stream completion words. write: after all earlier work of the stream
     * has ended and its effects are visible, *word becomes value. wait: what is
     * enqueued in `stream` from now on starts once (int32_t)(*word - value) >= 0
     * and sees all that came before the write. */
    int (*stream_write_word)(weir_device *device, weir_stream *stream, uint32_t *word,
                             uint32_t value);
    int (*stream_wait_word)(weir_device *device, weir_stream *stream, const uint32_t *word,
                            uint32_t value);

    /* Makes all that copies with this geometry need beyond their transfer, for
     * transfers of at most max_runs runs: pre: the geometry is bound and
     * outlives the state. *state may become NULL where nothing is needed.
     * release: pre: no enqueued work uses it; accepts NULL. -ENOMEM. bytes: what
     * it takes on the device, and as much pinned. */
    int (*transfer_prepare)(weir_device *device, const struct weir_geometry *geometry,
                            uint32_t max_runs, void **state);
    void (*transfer_release)(weir_device *device, void *state);
    uint64_t (*transfer_bytes)(weir_device *device, const void *state);

    /* Whether transfers with this tuning can be launched, so that no transfer is
     * the first to find out. -EINVAL, with a log line. */
    int (*transfer_tune)(weir_device *device, const void *state, enum weir_direction direction,
                         const weir_transfer_tuning *tuning);

    /* Enqueues a copy by plan. -ENOTSUP: not while `stream` is captured. On
     * success *enqueued == layer_end. On failure it
     * is the first layer that was not enqueued: the layers before it still run
     * and publish their words, those from it on never do. *enqueued is written
     * in both cases. */
    int (*copy)(weir_device *device, weir_stream *stream, const struct weir_transfer *transfer,
                uint32_t *enqueued);

    /* Enqueues copies within the device. After a failure some of them may run.
     * -ENOTSUP: not while `stream` is captured. */
    int (*copy_pages)(weir_device *device, weir_stream *stream,
                      const struct weir_page_copies *copies);

    /* Rows by index; NULL: the device cannot. Pre: weir_copy_rows_check. */
    int (*copy_rows)(weir_device *device, weir_stream *stream, const weir_copy_rows_params *params,
                     bool tables);

    /* Makes what a gather needs beyond its calls: pre: its banks are checked, its
     * word is set. *state may become NULL. release: pre: no enqueued work uses it;
     * accepts NULL. -ENOTSUP: the device has no such kernel; -ENOMEM, -EIO. */
    int (*gather_prepare)(weir_device *device, const struct weir_gather *gather, void **state);
    void (*gather_release)(weir_device *device, void *state);

    /* Enqueues a gather; `call` may be gone when this returns, its gather may not
     * before the work has run. */
    int (*gather_launch)(weir_device *device, weir_stream *stream,
                         const struct weir_gather_call *call);

    /* One call on an expert cache, or its reset; NULL: the device cannot. The args
     * are copied. Pre: all that expert_args.h says of them. */
    int (*expert_launch)(weir_device *device, weir_stream *stream,
                         const struct weir_expert_args *args, enum weir_expert_work work);

    /* Names a pool of pages for the race check: pieces [page][tensor][layer],
     * pages 0..n_pages. Devices without a race check give id 0. -ENOMEM. */
    int (*pool_register)(weir_device *device, uint32_t n_pages, uint32_t n_tensors,
                         uint32_t n_layers, uint32_t *pool);
    void (*pool_unregister)(weir_device *device, uint32_t pool);
};

/* The head of every device's struct. */
struct weir_device {
    const struct weir_device_ops *ops;
    weir_log log;
    atomic_uint users; /* ranks, gathers, expert caches: that are open */
    int numa_node;     /* of the host, nearest to the device; -1: none or unknown */
};

#endif
