/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CUDA_DEVICE_H
#define WEIR_DEVICE_CUDA_DEVICE_H

/* The CUDA device: one GPU through the driver, in the context that the runtime
 * API uses too, so that streams and events are anybody's.
 *
 *   every op     enter ── driver calls ── leave
 *                  │                        │
 *                  │ push the context       │ pop it
 *                  │ relax the capture mode │ restore it
 *
 *   pinned       words and registrations, each with the address by which the
 *                GPU knows it: the host's own, or on some GPUs another
 *
 *   stream, event   the driver's handles themselves, cast
 *
 * What the files hold: cuda.c opens, closes, and turns the driver's errors into
 * errnos; cuda_memory.c device memory, registrations, words; cuda_stream.c
 * streams, events, in-stream words; cuda_copy.c the copy by plan;
 * cuda_copy_engine.c its one engine that needs no kernel; cuda_kernels.h says
 * what the files of the kernels hold.
 *
 * Invariants: the calling thread's context and capture mode are the same before
 * and after every op; weir neither creates nor configures a context; lost never
 * goes back, and is set by the first error that says that the context is gone,
 * whoever caused it; nothing is allocated on the device but by the create and
 * alloc ops. */

#include "base/ranges.h"
#include "device/cuda_driver.h"
#include "device/device.h"

#include <pthread.h>

struct weir_cuda_kernels;
struct weir_cuda_pages;

struct weir_cuda_device {
    weir_device base;
    const struct weir_cuda_driver *driver;
    CUdevice ordinal;
    CUcontext context;
    atomic_bool lost;
    atomic_bool batches; /* the driver takes copies in batches */
    bool coherent_link;  /* the GPU walks the host's page tables: C2C, not PCIe */
    bool same_address;   /* host memory has the host's address on the GPU too */
    uint64_t max_pitch;  /* of 2-D copies */
    int lowest_priority; /* of streams; numerically the largest */
    int highest_priority;
    struct weir_cuda_kernels *kernels;
    pthread_mutex_t lock;       /* guards pinned, adopted */
    struct weir_ranges pinned;  /* attached: the GPU's address */
    struct weir_ranges adopted; /* of them, what another device registered */
};

/* Copies that the driver takes in one call. */
#define WEIR_CUDA_BATCH 1024u

struct weir_cuda_batch {
    size_t n;
    CUdeviceptr to[WEIR_CUDA_BATCH];
    CUdeviceptr from[WEIR_CUDA_BATCH];
    size_t bytes[WEIR_CUDA_BATCH];
};

/* What transfer_prepare makes. Both batches are empty between transfers. */
struct weir_cuda_transfer {
    struct weir_cuda_pages *pages; /* NULL: no kernel for this GPU */
    struct weir_cuda_batch large;
    struct weir_cuda_batch small;
};

static inline struct weir_cuda_device *weir_cuda_from(weir_device *device)
{
    return (struct weir_cuda_device *)device;
}

/* How many GPUs there are. -ENODEV: none, or no usable driver; *reason says why
 * and is static. */
int weir_cuda_count_gpus(int *count, const char **reason);

/* Opens GPU `params->ordinal`; as weir_device_open. Logs what it finds. */
int weir_cuda_device_open(weir_device **device, const weir_device_params *params);

/* ---- cuda.c: around every driver call -------------------------------------- */

/* -EIO: the device is lost. *mode is for leave. */
int weir_cuda_enter(struct weir_cuda_device *device, CUstreamCaptureMode *mode);
/* As enter, but goes on when the device is lost: what was pinned stays pinned
 * until the driver is asked to let go. */
int weir_cuda_enter_to_free(struct weir_cuda_device *device, CUstreamCaptureMode *mode);
void weir_cuda_leave(struct weir_cuda_device *device, CUstreamCaptureMode mode);

/* The errno for a driver call's result, 0 for success. Logs a failure, and marks
 * the device lost if that is what the result means.
 * -ENOMEM; -ENOTSUP: not by this GPU, or not while its stream is captured; -EIO. */
int weir_cuda_result(struct weir_cuda_device *device, const char *call, CUresult result);

/* -EINVAL, with a log line, if the stream is NULL. */
int weir_cuda_check_stream(weir_device *base, const weir_stream *stream, const char *call);

/* ---- cuda_memory.c --------------------------------------------------------- */

int weir_cuda_memory_alloc(weir_device *base, uint64_t bytes, uint64_t *address);
void weir_cuda_memory_free(weir_device *base, uint64_t address);
int weir_cuda_host_register(weir_device *base, void *address, uint64_t bytes);
void weir_cuda_host_unregister(weir_device *base, void *address);
int weir_cuda_words_alloc(weir_device *base, uint32_t n, uint32_t **words);
void weir_cuda_words_free(weir_device *base, uint32_t *words);
uint32_t weir_cuda_word_load(weir_device *base, const uint32_t *word);
void weir_cuda_word_store(weir_device *base, uint32_t *word, uint32_t value);

/* Where the GPU finds `bytes` of pinned host memory. -EINVAL: it is not pinned,
 * where that can be told. */
int weir_cuda_alias(struct weir_cuda_device *device, uint64_t host, uint64_t bytes,
                    CUdeviceptr *alias);

/* ---- cuda_stream.c --------------------------------------------------------- */

int weir_cuda_stream_create(weir_device *base, int priority, weir_stream **stream);
void weir_cuda_stream_destroy(weir_device *base, weir_stream *stream);
int weir_cuda_stream_synchronize(weir_device *base, weir_stream *stream);
int weir_cuda_stream_is_capturing(weir_device *base, weir_stream *stream, bool *capturing);
int weir_cuda_event_create(weir_device *base, weir_event **event);
void weir_cuda_event_destroy(weir_device *base, weir_event *event);
int weir_cuda_event_record(weir_device *base, weir_event *event, weir_stream *stream);
int weir_cuda_stream_wait_event(weir_device *base, weir_stream *stream, weir_event *event);
int weir_cuda_stream_wait_event_external(weir_device *base, weir_stream *stream, weir_event *event);
int weir_cuda_stream_write_word(weir_device *base, weir_stream *stream, uint32_t *word,
                                uint32_t value);
int weir_cuda_stream_wait_word(weir_device *base, weir_stream *stream, const uint32_t *word,
                               uint32_t value);

/* Between enter and leave. */
int weir_cuda_write_word(struct weir_cuda_device *device, CUstream stream, uint32_t *word,
                         uint32_t value);
int weir_cuda_capture_status(struct weir_cuda_device *device, CUstream stream,
                             CUstreamCaptureStatus *status);

/* ---- cuda_copy.c, cuda_copy_engine.c --------------------------------------- */

int weir_cuda_transfer_prepare(weir_device *base, const struct weir_geometry *geometry,
                               uint32_t max_runs, void **state);
void weir_cuda_transfer_release(weir_device *base, void *state);
uint64_t weir_cuda_transfer_bytes(weir_device *base, const void *state);
int weir_cuda_transfer_tune(weir_device *base, const void *state, enum weir_direction direction,
                            const weir_transfer_tuning *tuning);
int weir_cuda_copy(weir_device *base, weir_stream *stream, const struct weir_transfer *transfer,
                   uint32_t *enqueued);
int weir_cuda_copy_rows(weir_device *base, weir_stream *stream, const weir_copy_rows_params *params,
                        bool tables);

/* ---- cuda_kernel_gather.c -------------------------------------------------- */

int weir_cuda_gather_prepare(weir_device *base, const struct weir_gather *gather, void **state);
void weir_cuda_gather_release(weir_device *base, void *state);
int weir_cuda_gather_launch(weir_device *base, weir_stream *stream,
                            const struct weir_gather_call *call);

/* ---- cuda_kernel_expert.c -------------------------------------------------- */

int weir_cuda_expert_launch(weir_device *base, weir_stream *stream,
                            const struct weir_expert_args *args, enum weir_expert_work work);

/* Enqueues the copies of layers layer_begin..layer_end-1, without the words, by
 * the GPU's copy engine. Between enter and leave. After a failure some of them
 * may run. -ENOTSUP: the stream is captured and the capture is broken. */
int weir_cuda_copy_engine(struct weir_cuda_device *device, weir_stream *stream,
                          const struct weir_transfer *transfer, uint32_t layer_begin,
                          uint32_t layer_end);

int weir_cuda_copy_pages(weir_device *base, weir_stream *stream,
                         const struct weir_page_copies *copies);
/* Copies within the device, likewise. */
int weir_cuda_copy_engine_pages(struct weir_cuda_device *device, weir_stream *stream,
                                const struct weir_page_copies *copies);

#endif
