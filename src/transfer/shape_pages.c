/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "transfer/geometry.h"

#include <errno.h>
#include <unistd.h>

/* Budgets in bytes become page counts: the inverse of what geometry.c computes. */

__extension__ typedef unsigned __int128 wide;

static wide align_up(wide value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

static uint32_t layers_of(const weir_shape *shape, uint32_t tensor)
{
    const weir_tensor *t = &shape->tensors[tensor];
    return t->layers ? t->n_layers : shape->n_layers;
}

static wide device_bytes(const weir_shape *shape, uint32_t pages)
{
    wide bytes = 0;
    for (uint32_t i = 0; i < shape->n_tensors; i++)
        bytes += layers_of(shape, i) * align_up((pages + (wide)1) * shape->tensors[i].page_bytes,
                                                WEIR_GEOMETRY_PLANE_ALIGN);
    return bytes;
}

/* All that decides the size of a host pool beside its pages. */
struct host_case {
    uint64_t page_bytes;
    uint64_t smallest; /* tensor's page */
    uint32_t segment_pages;
    bool segmented;
};

static wide host_bytes(const struct host_case *host, uint32_t pages)
{
    wide bytes = (wide)pages * host->page_bytes;
    if (host->segmented && pages > 0) {
        uint32_t segment = host->segment_pages ? host->segment_pages
                                               : weir_geometry_segment(host->smallest, pages);
        segment = segment < pages ? segment : pages;
        uint64_t n_segments = ((uint64_t)pages + segment - 1) / segment;
        bytes =
            n_segments * align_up((wide)segment * host->page_bytes, WEIR_GEOMETRY_SEGMENT_ALIGN);
    }
    return align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
}

static int check(const char *what, const weir_shape *shape, const weir_log *log, uint32_t *pages,
                 uint64_t *page_bytes)
{
    if (!pages)
        return weir_invalid(log, "%s pages: pages is NULL", what);
    return weir_shape_page_bytes(shape, log, page_bytes);
}

int weir_shape_device_pages(const weir_shape *shape, uint64_t bytes, const weir_log *log,
                            uint32_t *pages)
{
    uint64_t page_bytes;
    int rc = check("device", shape, log, pages, &page_bytes);
    if (rc)
        return rc;
    uint32_t low = 0; /* fits, or is no page */
    uint32_t high = WEIR_GEOMETRY_MAX_PAGES;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (device_bytes(shape, middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    *pages = low;
    return 0;
}

int weir_shape_host_pages(const weir_shape *shape, weir_host_layout layout, uint32_t segment_pages,
                          uint64_t bytes, const weir_log *log, uint32_t *pages)
{
    struct host_case host = { .segmented = layout == WEIR_HOST_SEGMENTED,
                              .segment_pages = segment_pages,
                              .smallest = UINT64_MAX };
    int rc = check("host", shape, log, pages, &host.page_bytes);
    if (rc)
        return rc;
    if (!weir_host_layout_name(layout))
        return weir_invalid(log, "host pages: layout is %d: must be one of weir_host_layout",
                            (int)layout);
    for (uint32_t i = 0; i < shape->n_tensors; i++)
        if (shape->tensors[i].page_bytes < host.smallest)
            host.smallest = shape->tensors[i].page_bytes;
    /* With segments the bytes do not always grow with the pages, so go down from
     * what would fit without padding: by less than a page a segment. */
    uint64_t most = bytes / host.page_bytes;
    uint32_t n = most < WEIR_GEOMETRY_MAX_PAGES ? (uint32_t)most : WEIR_GEOMETRY_MAX_PAGES;
    while (n > 0 && host_bytes(&host, n) > bytes)
        n--;
    *pages = n;
    return 0;
}
