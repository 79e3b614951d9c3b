/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/device.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

int weir_host_register_check(const void *address, uint64_t bytes, const weir_log *log)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!address || (uintptr_t)address % page != 0)
        return weir_invalid(log, "host register: address is %p, must be a multiple of %u", address,
                            (unsigned)page);
    if (bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)address)
        return weir_invalid(
            log, "host register: bytes is %" PRIu64 ", must be 1 to the end of memory", bytes);
    return 0;
}

static bool run_is_valid(const struct weir_geometry *g, struct weir_run run)
{
    if (run.device < 1 || run.host < 1 || run.count < 1)
        return false;
    uint64_t last = (uint64_t)run.host + (uint64_t)run.count - 1;
    return (uint64_t)run.device + (uint64_t)run.count - 1 <= g->device_pages &&
           last <= g->host_pages &&
           ((uint64_t)run.host - 1) / g->segment_pages == (last - 1) / g->segment_pages;
}

int weir_transfer_check(const struct weir_transfer *transfer, uint32_t *enqueued,
                        const weir_log *log)
{
    if (!enqueued)
        return weir_invalid(log, "copy: enqueued is NULL");
    *enqueued = transfer ? transfer->layer_begin : 0;
    if (!transfer || !transfer->geometry)
        return weir_invalid(log, "copy: %s is NULL", transfer ? "geometry" : "transfer");
    if (transfer->direction != WEIR_LOAD && transfer->direction != WEIR_WRITE_BACK)
        return weir_invalid(log, "copy: direction is %d, must be 0 or 1", (int)transfer->direction);
    if (transfer->layer_begin > transfer->layer_end ||
        transfer->layer_end > transfer->geometry->n_layers)
        return weir_invalid(log, "copy: layers are %u..%u, must be ascending, to at most %u",
                            transfer->layer_begin, transfer->layer_end,
                            transfer->geometry->n_layers);
    if (transfer->n_runs > 0 && !transfer->runs)
        return weir_invalid(log, "copy: runs is NULL, n_runs is %u", transfer->n_runs);
    for (uint32_t i = 0; i < transfer->n_runs; i++) {
        struct weir_run run = transfer->runs[i];
        if (!run_is_valid(transfer->geometry, run))
            return weir_invalid(log,
                                "copy: run %u is %d pages from device page %d and host page %d, "
                                "must be in 1..%u and 1..%u and in one segment",
                                i, (int)run.count, (int)run.device, (int)run.host,
                                transfer->geometry->device_pages, transfer->geometry->host_pages);
    }
    return 0;
}

static bool is_page(const struct weir_geometry *g, weir_device_page page)
{
    return page.id >= 1 && (uint32_t)page.id <= g->device_pages;
}

int weir_page_copies_check(const struct weir_page_copies *copies, const weir_log *log)
{
    if (!copies || !copies->geometry || (copies->n && !copies->copies))
        return weir_invalid(log, "copy pages: copies, their geometry or their pages are NULL");
    for (uint32_t i = 0; i < copies->n; i++) {
        const weir_page_copy *copy = &copies->copies[i];
        if (!is_page(copies->geometry, copy->from) || !is_page(copies->geometry, copy->to))
            return weir_invalid(log, "copy pages: copy %u is from %d to %d, must be in 1..%u", i,
                                copy->from.id, copy->to.id, copies->geometry->device_pages);
    }
    return 0;
}
