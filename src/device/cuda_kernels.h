/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CUDA_KERNELS_H
#define WEIR_DEVICE_CUDA_KERNELS_H

/* The copy kernels of one GPU: loaded at open, launched from then on.
 *
 *   kernels        functions that this GPU can run, its ring
 *      │
 *      └─ pages    of one geometry (transfer_prepare); one block, twice:
 *
 *           pinned  ┌──────┬────────┬────────┬──────────────┬──────────────┐
 *                   │ maps │ planes │ layers │ arrivals  ×2 │ page lists ×2│
 *           device  └──────┴────────┴────────┴──────────────┴──────────────┘
 *                     copied once                             copied a transfer at
 *                                                             a time, in its stream
 *
 *   A list's life (×2: one ring a direction, so that a load never waits for a
 *   write-back):
 *
 *     begin    takes the next slot and room in the ring, uploads the pages
 *     launch   any number of times, over ranges of layers
 *     end      the stream writes the slot's word: slot and room are free again
 *
 * A third ring holds the lists of copies within the device, which have no words to
 * publish and so no arrivals.
 *
 * Bounds: 64 lists of loads, 1024 of write-backs and twice min(device_pages,
 * host_pages) pages a direction, rounded up to a power of two, are in flight. Beyond
 * them begin blocks until the oldest list has ended. A rank never comes there: it has
 * no more steps and write-backs in flight, and a page is in one load or one write-back
 * at a time. More than 64 lists of one direction in flight are of one stream.
 *
 * Every function below is called between weir_cuda_enter and weir_cuda_leave,
 * and maps the driver's errors by weir_cuda_result. Launching allocates nothing. */

#include "device/cuda_device.h"
#include "kernels/args.h"

#include <weir/copy.h>
#include <weir/transfer.h>

enum weir_cuda_kernel {
    WEIR_KERNEL_PAGES_TMA,
    WEIR_KERNEL_ROWS_TMA,
    WEIR_KERNEL_PAGES_VECTOR,
    WEIR_KERNEL_ROWS_VECTOR,
    WEIR_KERNEL_GATHER_TMA,
    WEIR_KERNEL_GATHER_FEW_TMA,
    WEIR_KERNEL_GATHER_VECTOR,
    WEIR_KERNEL_GATHER_FEW_VECTOR,
    WEIR_KERNEL_EXPERT_ENSURE,
    WEIR_KERNEL_EXPERT_RESET,
    WEIR_KERNEL_COUNT
};

/* One a file of kernels/. */
#define WEIR_CUDA_LIBRARIES 5u

struct weir_cuda_kernels {
    struct weir_cuda_device *device;
    CUlibrary libraries[WEIR_CUDA_LIBRARIES];
    CUfunction functions[WEIR_KERNEL_COUNT]; /* NULL: not for this GPU */
    uint32_t compute;                        /* 90 for 9.0; 0: no kernel at all */
    uint32_t shared_bytes;                   /* a CTA's, by opting in */
    uint32_t stages;                         /* of the default ring; 0: no ring fits */
    uint32_t stage_bytes;
};

/* How a kernel is launched. 0 takes the default of a field, but of `engine`,
 * which is TMA or VECTOR. */
struct weir_launch {
    weir_transfer_engine engine;
    uint32_t ctas;    /* 2 */
    uint32_t threads; /* of a VECTOR CTA: a multiple of 32 up to 512; 512 */
    uint32_t stages;  /* of a TMA CTA, one a warp: 2..16 */
    uint32_t stage_bytes;
};

/* A list of pages between begin and end. */
struct weir_cuda_list {
    struct weir_cuda_pages *pages;
    const struct weir_transfer *transfer; /* NULL: copies within the device */
    CUstream stream;
    uint32_t ring;
    uint32_t number; /* of its ring's lists */
    uint32_t first;  /* page in the ring */
    uint32_t n_pages;
};

struct weir_cuda_pages;

/* Loads what this GPU can run. A GPU or a driver that can run none is no error:
 * compute is then 0 and every launch is -ENOTSUP. -ENOMEM, -EIO. */
int weir_cuda_kernels_create(struct weir_cuda_kernels **kernels, struct weir_cuda_device *device);
void weir_cuda_kernels_destroy(struct weir_cuda_kernels **kernels);

/* The tables of one geometry; pre: it is bound and outlives them. *pages is NULL
 * where there is no kernel. release: pre: no enqueued work uses them.
 * -ENOMEM, -EIO. */
int weir_cuda_kernels_prepare(struct weir_cuda_kernels *kernels,
                              const struct weir_geometry *geometry, struct weir_cuda_pages **pages);
void weir_cuda_kernels_release(struct weir_cuda_pages **pages);

/* Bytes taken, on the device and pinned: the same number of each. */
uint64_t weir_cuda_kernels_bytes(const struct weir_cuda_pages *pages);

/* Whether the TMA kernel can copy these pages at all: all is a multiple of 16. */
bool weir_cuda_kernels_can_tma(const struct weir_cuda_pages *pages);

/* Whether weir_cuda_list_launch would take this launch; 0 or -EINVAL, -ENOTSUP,
 * with a log line. */
int weir_cuda_kernels_check(const struct weir_cuda_pages *pages, const struct weir_launch *launch);

/* pages: a transfer of that geometry. -E2BIG: more pages than a tier has; -EIO:
 * nothing will run. `transfer` lives until end. */
int weir_cuda_list_begin(struct weir_cuda_list *list, struct weir_cuda_pages *pages,
                         CUstream stream, const struct weir_transfer *transfer);

/* Enqueues the copy of layers layer_begin..layer_end-1. `publish`: the kernel
 * writes transfer->words; else the caller sees to them. */
int weir_cuda_list_launch(const struct weir_cuda_list *list, uint32_t layer_begin,
                          uint32_t layer_end, const struct weir_launch *launch, bool publish);

/* Once, after the last launch, also of a list that had none. */
void weir_cuda_list_end(struct weir_cuda_list *list);

/* begin, one launch, end. */
int weir_cuda_kernels_copy(struct weir_cuda_pages *pages, CUstream stream,
                           const struct weir_transfer *transfer, uint32_t layer_begin,
                           uint32_t layer_end, const struct weir_launch *launch, bool publish);

/* Copies n pages, 1 or more, within the device. Never waits for room. -ENOTSUP, -E2BIG,
 * -EAGAIN: not by a kernel, or not now, and nothing was enqueued. */
int weir_cuda_kernels_copy_within(struct weir_cuda_pages *pages, CUstream stream,
                                  const weir_page_copy *copies, uint32_t n);

/* Rows by index, for weir_copy_rows; pre: checked, n_rows and n_layers above 0.
 * `tables`: buffers are tables. -ENOTSUP, -EINVAL: the launch. */
int weir_cuda_kernels_rows(struct weir_cuda_kernels *kernels, CUstream stream,
                           const weir_copy_rows_params *params, bool tables);

/* ---- cuda_kernel_gather.c -------------------------------------------------- */

struct weir_cuda_gather;

/* What a gather needs on this GPU; pre: its banks are checked, its word is zero.
 * free: accepts NULL. -ENOTSUP, -EINVAL: the launches; -ENOMEM, -EIO. */
int weir_cuda_gather_make(const struct weir_cuda_kernels *kernels, const struct weir_gather *gather,
                          struct weir_cuda_gather **made);
void weir_cuda_gather_free(const struct weir_cuda_kernels *kernels, struct weir_cuda_gather *made);

int weir_cuda_gather_enqueue(const struct weir_cuda_kernels *kernels,
                             const struct weir_cuda_gather *made, CUstream stream,
                             const struct weir_gather_call *call);

/* ---- cuda_kernel_expert.c -------------------------------------------------- */

/* One call on an expert cache, or its reset. -ENOTSUP: no kernel for this GPU. */
int weir_cuda_kernels_expert(struct weir_cuda_kernels *kernels, CUstream stream,
                             const struct weir_expert_args *args, enum weir_expert_work work);

/* ---- cuda_kernels.c, for the other files ----------------------------------- */

/* Fills in the defaults of a launch, checks it, and says what it needs.
 * `what` begins the log line. */
struct weir_cuda_grid {
    CUfunction function;
    uint32_t ctas;
    uint32_t threads;
    uint32_t shared_bytes;
    uint32_t stage_bytes; /* of a TMA CTA, which has a warp for each; else 0 */
};

int weir_cuda_kernels_grid(const struct weir_cuda_kernels *kernels, enum weir_cuda_kernel tma,
                           enum weir_cuda_kernel vector, const struct weir_launch *launch,
                           const char *what, struct weir_cuda_grid *grid);

int weir_cuda_kernels_launch(const struct weir_cuda_kernels *kernels,
                             const struct weir_cuda_grid *grid, CUstream stream, void *args);

/* Copies pinned memory to the device before it returns, in a stream of its own. */
int weir_cuda_kernels_upload(const struct weir_cuda_kernels *kernels, CUdeviceptr to,
                             const void *from, uint64_t bytes);

/* A map over {row, layer, token} for boxes of box_rows rows. False: the driver
 * takes no such map, so rows are loaded one by one. */
bool weir_cuda_kernels_encode(const struct weir_cuda_kernels *kernels, struct weir_tensor_map *map,
                              uint64_t base, uint32_t row_bytes, uint32_t n_layers,
                              uint64_t layer_stride, uint64_t n_rows, uint64_t row_stride,
                              uint32_t box_rows);

/* The most rows of a box, a power of two that divides `divisor` (0: any). 0: a
 * box of such rows is impossible or pointless. */
uint32_t weir_cuda_kernels_box_rows(uint32_t row_bytes, uint32_t divisor);

#endif
