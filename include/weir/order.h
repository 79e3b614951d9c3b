/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_ORDER_H
#define WEIR_ORDER_H

/* Orders and reports: what the cache and the ranks say to each other.
 *
 * Both are flat, versioned, self-contained bytes: they hold page ids and step
 * numbers, never pointers, and can be handed to a function, another thread or
 * another process of the same byte order. A checksum guards each.
 *
 * The cache writes one order a step. Steps are numbered 1, 2, 3 … A step has
 * at most one load and at most one write-back; the load is known by its step's
 * number, the write-back by a number of its own, because it may outlive the
 * step by far. A rank answers with report items, each exactly once. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves one page, all tensors of all layers: host to device in a load, device
 * to host in a write-back. */
typedef struct weir_move {
    weir_device_page device;
    weir_host_page host;
} weir_move;

typedef enum weir_report_kind {
    WEIR_REPORT_STEP = 1,       /* the step's copies and forward pass have ended on this rank */
    WEIR_REPORT_LOAD = 2,       /* the step's load has ended; number = step */
    WEIR_REPORT_WRITE_BACK = 3, /* a write-back has ended; number = its ticket */
    WEIR_REPORT_PAGE = 4 /* a load in flight brings wrong bytes of one page, whose host copy has
                            changed; number = host page, rc is -EIO. It comes before the load's
                            own item, which tells of the other pages */
} weir_report_kind;

/* A transfer of an earlier order that nobody wants any more. A rank that has
 * not entered it drops it and reports -ECANCELED; one that has completes it. It
 * is reported once either way.
 *
 *   number  as in the report's item
 *   kind    WEIR_REPORT_LOAD or WEIR_REPORT_WRITE_BACK
 *   unused  0 */
typedef struct weir_cancel {
    uint64_t number;
    uint32_t kind;
    uint32_t unused;
} weir_cancel;

/* Copies one page to another on the device, all tensors of all layers.
 *
 *   load  the step whose load brings `from`, this one or one of its joins: the copy
 *         comes behind it; 0: what it copies is there */
typedef struct weir_page_copy {
    weir_device_page from;
    weir_device_page to;
    uint64_t load;
} weir_page_copy;

/* One order, decoded. Arrays point into the encoded bytes (decode) or belong
 * to the caller (encode); an array of length 0 may be NULL.
 *
 *   step           number of this step, 1 or more
 *   write_ticket   number of the write-back; 0 if n_writes is 0
 *   device_pages, host_pages
 *                  sizes of the pools; bounds of the moves
 *   fences         steps that must have ended before this step's copies and its
 *                  forward pass: those that wrote what it reads, and those that
 *                  last used what it writes. Each is below `step`, strictly ascending
 *   load_fences    steps that must have ended before its load may start: the
 *                  last uses of its target pages. Likewise
 *   write_fences   steps that must have ended before its write-back may start:
 *                  the producers of its pages; at most `step` itself
 *   joins          earlier steps whose loads bring pages that this step reads
 *   loads, writes  the moves; no device page twice, no host page twice
 *   cancels        loads of steps below `step`, then write-backs other than
 *                  this order's; the numbers of each kind strictly ascending. No
 *                  load that a copy names
 *   copies         made before the forward pass; no page is the target of two, or
 *                  the target of one and the source of another, or the target of
 *                  a copy and of a load. A source that this step loads names it */
typedef struct weir_order {
    uint64_t step;
    uint64_t write_ticket;
    uint32_t device_pages;
    uint32_t host_pages;
    uint32_t n_fences;
    uint32_t n_load_fences;
    uint32_t n_write_fences;
    uint32_t n_joins;
    uint32_t n_loads;
    uint32_t n_writes;
    uint32_t n_cancels;
    uint32_t n_copies;
    const uint64_t *fences;
    const uint64_t *load_fences;
    const uint64_t *write_fences;
    const uint64_t *joins;
    const weir_move *loads;
    const weir_move *writes;
    const weir_cancel *cancels;
    const weir_page_copy *copies;
} weir_order;

/* Bytes that weir_order_encode needs for this order. */
WEIR_API size_t weir_order_bytes(const weir_order *order) WEIR_NOEXCEPT;

/* Writes an order to `buffer`, which must be 8-byte aligned and hold
 * weir_order_bytes(order) bytes; *bytes receives that number. -ENOSPC: it does
 * not fit; -EINVAL: NULL, misaligned, or a field breaks a rule above. `log`
 * receives one line that says which; NULL is silent. Threads: any. */
WEIR_API int weir_order_encode(const weir_order *order, void *buffer, size_t capacity,
                               size_t *bytes, const weir_log *log) WEIR_NOEXCEPT;

/* Reads an order. `bytes` must be 8-byte aligned and stay unchanged while
 * *order is used. Every count, id and number is checked, so that a decoded
 * order obeys each rule above. -EINVAL: truncated, corrupted, of another
 * version, or a broken rule; one log line says which. Threads: any. Time is
 * linear in n; allocates nothing, except that repeated pages are found by the
 * rank, which has a map of its pages. */
WEIR_API int weir_order_decode(weir_order *order, const void *bytes, size_t n,
                               const weir_log *log) WEIR_NOEXCEPT;

/* rc: 0 done, -EIO failed, -ECANCELED cancelled. Nothing of the work named is
 * still running. */
typedef struct weir_report_item {
    uint64_t number;
    int32_t rc;
    uint32_t kind;
} weir_report_item;

/* Bytes of a report of n items. */
WEIR_API size_t weir_report_bytes(size_t n_items) WEIR_NOEXCEPT;

/* Writes a report; rules and errors as for weir_order_encode. */
WEIR_API int weir_report_encode(const weir_report_item *items, size_t n_items, void *buffer,
                                size_t capacity, size_t *bytes, const weir_log *log) WEIR_NOEXCEPT;

/* Reads a report; *items points into `bytes`. Rules and errors as for
 * weir_order_decode. */
WEIR_API int weir_report_decode(const weir_report_item **items, size_t *n_items, const void *bytes,
                                size_t n, const weir_log *log) WEIR_NOEXCEPT;

/* Writes the report of a rank that has done all of an order at once: what a
 * simulation without ranks carries back. -ENOSPC, -EINVAL as above; at most
 * weir_report_bytes(3) bytes are needed. */
WEIR_API int weir_order_acknowledge(const void *order, size_t order_bytes, void *report,
                                    size_t capacity, size_t *bytes,
                                    const weir_log *log) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
