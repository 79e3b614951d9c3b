/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_ITEMS 32u

uint64_t weir_bench_layout_bytes(const struct weir_bench_layout *layout)
{
    return (uint64_t)layout->row_bytes * layout->page_tokens * layout->n_pages * layout->n_tensors *
           layout->n_layers;
}

static uint64_t plane_bytes(const struct weir_bench_layout *layout)
{
    uint64_t bytes = (uint64_t)layout->row_bytes * layout->page_tokens * (layout->n_pages + 1);
    return (bytes + WEIR_GEOMETRY_PLANE_ALIGN - 1) & ~(uint64_t)(WEIR_GEOMETRY_PLANE_ALIGN - 1);
}

uint64_t weir_bench_layout_device_bytes(const struct weir_bench_layout *layout)
{
    return plane_bytes(layout) * layout->n_tensors * layout->n_layers;
}

/* ---- Opening and closing -------------------------------------------------- */

static uint32_t divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* How far apart on the host the blocks are that are neighbours on the device:
 * all of them are met, and none lies right behind its neighbour. */
static uint32_t block_step(uint32_t n_blocks)
{
    if (n_blocks < 3)
        return 1;
    uint32_t step = n_blocks * 3 / 8 + 2;
    while (divisor(step, n_blocks) != 1 || step % n_blocks == 1)
        step++;
    return step;
}

static void make_moves(struct weir_bench_rig *rig)
{
    uint32_t run = rig->layout.run_pages;
    uint32_t n_blocks = rig->layout.n_pages / run;
    uint64_t step = block_step(n_blocks);
    for (uint32_t i = 0; i < rig->layout.n_pages; i++) {
        uint32_t block = (uint32_t)((i / run + 1) * step % n_blocks);
        rig->moves[i].device.id = (int32_t)i + 1;
        rig->moves[i].host.id = (int32_t)(block * run + i % run) + 1;
        rig->pages[i] = rig->moves[i].device.id;
    }
}

static int upload_pages(struct weir_bench_rig *rig)
{
    struct weir_bench_device *device = rig->device;
    uint64_t bytes = rig->layout.n_pages * sizeof *rig->pages;
    if (!device->gpu)
        return 0;
    int rc = device->ops->memory_alloc(device->device, bytes, &rig->device_pages);
    if (!rc)
        rc = weir_bench_gpu_copy(device->gpu, device->stream, rig->device_pages,
                                 (uintptr_t)rig->pages, bytes);
    return rc ? rc : device->ops->stream_synchronize(device->device, device->stream);
}

static int allocate(struct weir_bench_rig *rig)
{
    uint32_t n = rig->layout.n_pages;
    weir_order largest = { .n_loads = n };
    rig->order_capacity = weir_order_bytes(&largest);
    rig->moves = calloc(n, sizeof *rig->moves);
    rig->pages = calloc(n, sizeof *rig->pages);
    rig->order = malloc(rig->order_capacity);
    rig->report = malloc(weir_report_bytes(REPORT_ITEMS));
    return rig->moves && rig->pages && rig->order && rig->report ? 0 : -ENOMEM;
}

static int open_rank(struct weir_bench_rig *rig, const weir_transfer_tuning *load,
                     const weir_transfer_tuning *write_back, uint64_t base)
{
    const struct weir_bench_layout *layout = &rig->layout;
    uint32_t n_planes = layout->n_tensors * layout->n_layers;
    weir_device_plane *planes = calloc(n_planes, sizeof *planes);
    if (!planes)
        return -ENOMEM;
    for (uint32_t i = 0; i < n_planes; i++)
        planes[i] = (weir_device_plane){ .base = base + i * plane_bytes(layout),
                                         .page_stride = rig->tensors[0].page_bytes };
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &rig->shape;
    params.device_pages = layout->n_pages;
    params.host_pages = layout->n_pages;
    params.host_layout = layout->host;
    /* A run never crosses a segment. */
    if (layout->run_pages > WEIR_GEOMETRY_MIN_SEGMENT_PAGES)
        params.segment_pages = layout->run_pages;
    params.planes = planes;
    params.load = *load;
    /* An engine that was named is measured also where it costs the host much. */
    if (load->engine != WEIR_ENGINE_AUTO)
        params.max_enqueue_us = 1000000;
    params.write_back = *write_back;
    params.log = weir_bench_log(rig->device);
    int rc = weir_rank_open(&rig->rank, rig->device->device, &params);
    free(planes);
    return rc;
}

static int open_parts(struct weir_bench_rig *rig, const weir_transfer_tuning *load,
                      const weir_transfer_tuning *write_back, uint64_t planes)
{
    struct weir_bench_device *device = rig->device;
    int rc = allocate(rig);
    if (!rc && !planes)
        rc = device->ops->memory_alloc(device->device, weir_bench_layout_device_bytes(&rig->layout),
                                       &rig->planes_base);
    if (!rc)
        rc = open_rank(rig, load, write_back, planes ? planes : rig->planes_base);
    if (rc)
        return rc;
    make_moves(rig);
    return upload_pages(rig);
}

int weir_bench_rig_open(struct weir_bench_rig **rig, struct weir_bench_device *device,
                        const struct weir_bench_layout *layout, const weir_transfer_tuning *load,
                        const weir_transfer_tuning *write_back, uint64_t planes)
{
    struct weir_bench_rig *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    device->reason[0] = 0;
    made->device = device;
    made->layout = *layout;
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        made->tensors[i] =
            (weir_tensor){ .page_bytes = (uint64_t)layout->row_bytes * layout->page_tokens,
                           .row_bytes = layout->row_bytes };
    made->shape = (weir_shape){ .page_tokens = layout->page_tokens,
                                .n_layers = layout->n_layers,
                                .n_tensors = layout->n_tensors,
                                .tensors = made->tensors };
    int rc = open_parts(made, load, write_back, planes);
    if (rc)
        weir_bench_rig_close(&made);
    else
        *rig = made;
    return rc;
}

void weir_bench_rig_close(struct weir_bench_rig **rig)
{
    struct weir_bench_rig *closed = *rig;
    if (!closed)
        return;
    struct weir_bench_device *device = closed->device;
    weir_rank_close(&closed->rank);
    if (closed->planes_base)
        device->ops->memory_free(device->device, closed->planes_base);
    if (closed->device_pages)
        device->ops->memory_free(device->device, closed->device_pages);
    free(closed->moves);
    free(closed->pages);
    free(closed->order);
    free(closed->report);
    free(closed);
    *rig = NULL;
}

/* ---- Steps ---------------------------------------------------------------- */

static int begin(struct weir_bench_rig *rig, weir_order order)
{
    order.step = rig->step + 1;
    order.device_pages = rig->layout.n_pages;
    order.host_pages = rig->layout.n_pages;
    size_t bytes;
    int rc = weir_order_encode(&order, rig->order, rig->order_capacity, &bytes, NULL);
    if (rc)
        return rc;
    uint64_t step;
    uint32_t slot = (uint32_t)(order.step % rig->rank->engine.n_slots);
    double start = weir_bench_now();
    rc = weir_rank_begin(rig->rank, rig->order, bytes, slot, rig->device->stream, &step);
    rig->enqueue_seconds = weir_bench_now() - start;
    if (rc)
        return rc;
    rig->step = step;
    rig->due += 2; /* the step and its transfer */
    rig->in_flight++;
    return 0;
}

int weir_bench_rig_load(struct weir_bench_rig *rig)
{
    return begin(rig, (weir_order){ .n_loads = rig->layout.n_pages, .loads = rig->moves });
}

int weir_bench_rig_write_back(struct weir_bench_rig *rig)
{
    return begin(rig, (weir_order){ .write_ticket = rig->step + 1,
                                    .n_writes = rig->layout.n_pages,
                                    .writes = rig->moves });
}

int weir_bench_rig_wait_layer(struct weir_bench_rig *rig, uint32_t layer)
{
    return weir_rank_wait_layer(rig->rank, rig->step, layer, rig->device->stream);
}

int weir_bench_rig_end(struct weir_bench_rig *rig)
{
    return weir_rank_end(rig->rank, rig->step, rig->device->stream);
}

int weir_bench_rig_poll(struct weir_bench_rig *rig)
{
    size_t bytes;
    int rc = weir_rank_report(rig->rank, rig->report, weir_report_bytes(REPORT_ITEMS), &bytes);
    if (rc || bytes == 0)
        return rc;
    const weir_report_item *items;
    size_t n;
    rc = weir_report_decode(&items, &n, rig->report, bytes, NULL);
    for (size_t i = 0; i < n && !rc; i++) {
        rc = items[i].rc;
        rig->due--;
        rig->in_flight -= items[i].kind != WEIR_REPORT_STEP;
    }
    return rc;
}

int weir_bench_rig_drain(struct weir_bench_rig *rig)
{
    while (rig->due > 0) {
        int rc = weir_bench_rig_poll(rig);
        if (rc)
            return rc;
        weir_bench_relax(rig->device);
    }
    return 0;
}

int weir_bench_rig_time(struct weir_bench_rig *rig, enum weir_direction direction, uint32_t n,
                        double *seconds)
{
    double start = weir_bench_now();
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++) {
        while (rig->in_flight > 1 && !rc) {
            rc = weir_bench_rig_poll(rig);
            weir_bench_relax(rig->device);
        }
        if (rc)
            break;
        rc = direction == WEIR_LOAD ? weir_bench_rig_load(rig) : weir_bench_rig_write_back(rig);
        if (!rc)
            rc = weir_bench_rig_end(rig);
    }
    if (!rc)
        rc = weir_bench_rig_drain(rig);
    *seconds = (weir_bench_now() - start) / n;
    return rc;
}
