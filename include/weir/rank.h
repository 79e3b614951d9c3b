/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_RANK_H
#define WEIR_RANK_H

/* A rank: the hands of one device. It begins steps in order, enqueues their
 * copies on side streams around the server's stream, and reports what ended.
 *
 *     weir_rank_begin(rank, order, bytes, slot, stream, &step);
 *     for (layer …) {
 *         weir_rank_wait_layer(rank, step, layer, stream);
 *         forward(layer, stream);
 *     }
 *     weir_rank_end(rank, step, stream);
 *     …
 *     weir_rank_report(rank, report, sizeof report, &n);
 *
 * Threads: a rank is used by one thread at a time, without any lock of the
 * cache's. No call waits for the device, except where its comment says so; a
 * CPU device's full queue blocks as a GPU's does. */

#include <weir/device.h>
#include <weir/host_share.h>
#include <weir/order.h>
#include <weir/shape.h>
#include <weir/transfer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_rank weir_rank;

/*   struct_size     written by weir_rank_params_init
 *   shape           this rank's tensors and layers; required. page_tokens as in the
 *                   cache, which no order tells and nothing checks
 *   device_pages    as in the cache; 1 or more. Another number, here or in
 *                   host_pages, is -EINVAL with the first order
 *   host_pages      as in the cache; 0: no host tier
 *   host_layout     default WEIR_HOST_SEGMENTED
 *   segment_pages   pages of a segment; 0 (default): 32, or more where the
 *                   pieces are small, so that a layer's stripe reaches 2 MiB
 *   planes          the server's buffers: [tensor][layer of that tensor], as
 *                   many as all tensors' layer counts together; on a CPU device
 *                   any memory of the process. NULL (default): the rank allocates
 *                   its own, in which pages lie without gaps
 *   max_steps       steps in flight; as in the cache; 0 (default): 16; at
 *                   most 64
 *   n_slots         slots, 1..64; 0 (default): max_steps
 *   max_write_backs write-backs in flight; as in the cache; 0 (default): 64
 *   host_bytes_limit
 *                   the most bytes that the host pool may take, all of it
 *                   counted, a share's memory too; 0 (default): no limit
 *   skip_memory_check
 *                   opens the host pool even where the machine, or a control
 *                   group of the process, has no room for it by what the kernel
 *                   says; default false
 *   touch_threads   threads that first touch the host pool; 0 (default): one a
 *                   processor, at most 16
 *   load, write_back
 *                   how transfers are made; default: the library chooses. On the
 *                   CPU device without effect
 *   max_enqueue_us  time on the CPU that enqueueing one transfer may take: beyond
 *                   it a kernel does what the copy engine might; 0 (default): 200
 *   exclusive_sms   the forward pass needs every SM; default false
 *   captured_waits  makes the events that weir_rank_capture_wait needs, one a
 *                   slot and layer; default false
 *   first_step      step that the rank begins first: one opened in the place of
 *                   another that was lost starts where weir_cache_rank_lost
 *                   says; 0 (default): 1
 *   share           keeps the replicated tensors of this process's ranks in host
 *                   memory once; the rank holds on to it. NULL (default): a host
 *                   copy of the rank's own. With a share, segment_pages 0 looks at
 *                   the replicated tensors alone
 *   checksums       n: one in n pages that are written back gets a checksum
 *                   (XXH3-64) of its bytes in host memory once they have arrived,
 *                   and is held against it whenever it is loaded; 1: every page; 0
 *                   (default): none. With a share the same on all its ranks. See
 *                   weir_rank_report
 *   checksum_bytes  bytes that one weir_rank_report may hash; 0 (default): 8 MiB
 *   log             default: silent; kept by the rank
 *   allocator       of the rank's tables; default: the C library's. The pools and
 *                   what the device keeps for itself do not come from there */
typedef struct weir_rank_params {
    uint32_t struct_size;
    weir_host_layout host_layout;
    const weir_shape *shape;
    uint32_t device_pages;
    uint32_t host_pages;
    uint32_t segment_pages;
    uint32_t max_steps;
    const weir_device_plane *planes;
    uint32_t n_slots;
    uint32_t max_write_backs;
    uint64_t host_bytes_limit;
    uint32_t touch_threads;
    weir_transfer_tuning load;
    weir_transfer_tuning write_back;
    uint32_t max_enqueue_us;
    bool exclusive_sms;
    bool captured_waits;
    bool skip_memory_check;
    uint64_t first_step;
    weir_host_share *share;
    uint32_t checksums;
    uint32_t checksum_bytes;
    weir_log log;
    weir_allocator allocator;
} weir_rank_params;

WEIR_API void weir_rank_params_init(weir_rank_params *params) WEIR_NOEXCEPT;

/* Opens a rank on `device`, which must outlive it. Allocates and registers all
 * that the rank will ever use and logs every byte of it; later calls allocate
 * nothing on the device. Blocks while the host pool is touched and pinned.
 * -EINVAL: a parameter is wrong, planes overlap, strides overflow, the tuning
 * asks for a launch that the device cannot make, the replicated tensors lie
 * otherwise than in the share's other ranks;
 * -ENOTSUP: the layout cannot hold a tensor; -ENOSPC: host_bytes_limit;
 * -ENOMEM, before anything is taken if there is no room for the host pool; -EIO.
 * Nothing is left behind on failure. */
WEIR_API int weir_rank_open(weir_rank **rank, weir_device *device,
                            const weir_rank_params *params) WEIR_NOEXCEPT;

/* Waits for the rank's copies and for the steps that have ended, unpins and frees all,
 * sets *rank to NULL; a NULL content is allowed. Does not touch the server's buffers.
 * What is enqueued behind the begin of a step that was not ended must have run, and no
 * graph with captured waits may be launched again. */
WEIR_API void weir_rank_close(weir_rank **rank) WEIR_NOEXCEPT;

/* Begins the next step: makes `stream` wait for the order's fences and
 * enqueues the step's load behind the last uses of its targets, and in `stream` the
 * order's copies, which come before all that the server enqueues there then. The
 * slot's completion words serve this step's layer waits. A load whose targets are
 * still in use is held back until they are not, or until a layer wait or a copy
 * needs it: till then it holds up no other, and a later order can cancel it. What
 * the order cancels and is not enqueued yet is dropped, reported as -ECANCELED, and
 * waited for by nobody.
 *
 *   order   of `bytes` bytes, 8-byte aligned; not used after the call
 *   slot    0..n_slots-1, one whose last step has been reported, its load too. With
 *           n_slots of the cache's max_steps, step % max_steps always is: the cache
 *           ends no step before the one max_steps earlier is retired
 *   step    receives the order's step number
 *
 * A load that cannot be enqueued fails by its report: its layer waits pass all
 * the same and nothing hangs. If the copies cannot be, the step is reported as
 * failed. -EINVAL: not an order for this rank, not the step
 * after the last one begun, a step that it must come behind has not ended
 * (weir_rank_end) yet, or not all ranks of its share have been opened; -EBUSY:
 * the slot's step or its load has not been reported; -EAGAIN: max_steps or
 * max_write_backs are in flight; -ENOTSUP: the stream is being captured; -EIO: the device is lost
 * or a wait could not be enqueued. On failure nothing has begun and the same order may be tried
 * again. */
WEIR_API int weir_rank_begin(weir_rank *rank, const void *order, size_t bytes, uint32_t slot,
                             weir_stream *stream, uint64_t *step) WEIR_NOEXCEPT;

/* Makes `stream` wait until all that this step reads of `layer`, whichever
 * step's load brings it, has arrived. Passes at once where there is nothing to
 * wait for. -EINVAL: no such layer, or the step has not begun or has ended;
 * -ENOTSUP: the stream is being captured (see weir_rank_capture_wait); -EIO: the
 * device is lost. */
WEIR_API int weir_rank_wait_layer(weir_rank *rank, uint64_t step, uint32_t layer,
                                  weir_stream *stream) WEIR_NOEXCEPT;

/* Captures, in a stream that is being captured into a graph, a wait for what the
 * step of `slot` reads of `layer`. Once captured, each replay waits for the
 * loads of the step that began on the slot last, also if that was before the
 * capture, and passes at once where it has none: begin the step, launch the
 * graph, end the step. From the first capture on a slot, its loads take one
 * launch a layer.
 * -EINVAL: the rank was opened without captured_waits, no such slot or layer, or
 * the stream is not being captured (on a device without graphs none ever is);
 * -ENOMEM, -EIO: the driver refuses; capture anew. */
WEIR_API int weir_rank_capture_wait(weir_rank *rank, uint32_t slot, uint32_t layer,
                                    weir_stream *stream) WEIR_NOEXCEPT;

/* Ends a step at the present point of `stream`, which must live until the step
 * has been reported; its write-back starts after it. Each step that has begun is to
 * be ended, also one in which the server enqueued nothing, or gave up half-way.
 * Steps may end in any order. -EINVAL: not a step that has begun and not ended;
 * -ENOTSUP: the stream is being captured. A failure to enqueue is reported, not
 * returned. */
WEIR_API int weir_rank_end(weir_rank *rank, uint64_t step, weir_stream *stream) WEIR_NOEXCEPT;

/* Writes what has ended since the last call as one report. *bytes is 0 if
 * nothing has. At most as many items as fit are taken; the others come with
 * the next call, so that any buffer will do: of uint64_t, for its alignment. To be
 * called again and again while anything is in flight, since nothing wakes the
 * server. weir_report_decode tells which steps have ended; the load of a step, or
 * one that it joined, comes before it if it has failed. Reads pinned memory; never blocks; makes a
 * driver call only to enqueue a load that was held back and may run now, or to make up for a call
 * that failed.
 *
 * With checksums this call also hashes up to checksum_bytes of host memory: XXH3
 * does 4 to 10 GB/s from main memory on one core, so the default costs a call up to 1
 * to 2 ms. A transfer is reported when its pages have been hashed, so that a large one
 * takes several calls; a load's are hashed from its begin on, and its layer waits are
 * not held up. A page that has changed is reported as WEIR_REPORT_PAGE: the cache drops
 * it with all that was computed on it, as after a failed load.
 *
 * -ENOSPC: `capacity` is below weir_report_bytes(1) and something has ended;
 * -EINVAL: `report` is NULL or not 8-byte aligned. */
WEIR_API int weir_rank_report(weir_rank *rank, void *report, size_t capacity,
                              size_t *bytes) WEIR_NOEXCEPT;

/* Blocks until the copies enqueued so far have ended: for shutdown and tests.
 * Steps that were begun and not ended stay open. -EIO: the device is lost. */
WEIR_API int weir_rank_synchronize(weir_rank *rank) WEIR_NOEXCEPT;

/* Device address of a page's piece, for the server's kernels; 0 if the tensor
 * has no such layer or the page is out of range. `layer` counts all layers. Page 0
 * is the dummy page; page p is at its address plus p times the plane's page_stride,
 * which in buffers of the rank's own is the tensor's page_bytes. Threads: any. */
WEIR_API uint64_t weir_rank_device_address(const weir_rank *rank, uint32_t tensor, uint32_t layer,
                                           weir_device_page page) WEIR_NOEXCEPT;

/* The id of this rank's device pool in weir_cpu_access; 0 on other devices. */
WEIR_API uint32_t weir_rank_cpu_pool(const weir_rank *rank) WEIR_NOEXCEPT;

/* Bytes that the rank took. Threads: any.
 *
 *   device_pool_bytes   0 if the buffers are the server's
 *   device_other_bytes  tables and page lists of the copy kernels, on the device
 *   host_pool_bytes     the rank's own
 *   shared_host_bytes   the share's memory, all of it in each of its ranks
 *   pinned_bytes        all else that is pinned
 *   other_bytes         all else */
typedef struct weir_rank_memory {
    uint64_t device_pool_bytes;
    uint64_t device_other_bytes;
    uint64_t host_pool_bytes;
    uint64_t shared_host_bytes;
    uint64_t pinned_bytes;
    uint64_t other_bytes;
} weir_rank_memory;

WEIR_API void weir_rank_get_memory(const weir_rank *rank, weir_rank_memory *memory) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
