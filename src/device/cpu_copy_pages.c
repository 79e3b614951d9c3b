/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu.h"
#include "device/cpu_random.h"

#include <errno.h>

/* Copies within the device take no link. Each piece is garbage and disorder like
 * those of a copy by plan, with the source page in the host's place. */

static bool piece_of(const struct weir_cpu_op *op, uint32_t tensor, const weir_page_copy *pages,
                     struct weir_copy *piece)
{
    const struct weir_geometry *g = op->copy.geometry;
    uint32_t layer = op->copy.layer;
    if (g->layer_index[(size_t)tensor * g->n_layers + layer] < 0)
        return false;
    uint64_t bytes = g->tensors[tensor].page_bytes;
    *piece = (struct weir_copy){ .device = weir_geometry_device(g, tensor, layer, pages->to),
                                 .host = weir_geometry_device(g, tensor, layer, pages->from),
                                 .row_bytes = bytes,
                                 .rows = 1,
                                 .device_stride = bytes,
                                 .host_stride = bytes };
    return true;
}

static void each_piece(const struct weir_cpu_op *op,
                       void (*act)(const struct weir_copy *, enum weir_direction, uint64_t))
{
    const weir_page_copy *pages = (const weir_page_copy *)op->payload->data;
    uint64_t random = op->seed;
    for (uint32_t tensor = 0; tensor < op->copy.geometry->n_tensors; tensor++) {
        for (uint32_t i = 0; i < op->copy.n_runs; i++) {
            struct weir_copy piece;
            if (piece_of(op, tensor, &pages[i], &piece))
                act(&piece, WEIR_LOAD, weir_cpu_random(&random));
        }
    }
}

void weir_cpu_pages_begin(const struct weir_cpu_op *op)
{
    each_piece(op, weir_cpu_piece_begin);
}

void weir_cpu_pages_end(const struct weir_cpu_op *op)
{
    each_piece(op, weir_cpu_piece_end);
}

void weir_cpu_pages_check(struct weir_cpu_device *device, const struct weir_cpu_op *op,
                          const struct weir_cpu_accessor *accessor)
{
    const struct weir_cpu_copy *c = &op->copy;
    const weir_page_copy *pages = (const weir_page_copy *)op->payload->data;
    for (uint32_t tensor = 0; tensor < c->geometry->n_tensors; tensor++) {
        for (uint32_t i = 0; i < c->n_runs; i++) {
            struct weir_copy piece;
            if (!piece_of(op, tensor, &pages[i], &piece))
                continue;
            weir_cpu_race_access(&device->race, accessor, c->device_pool, pages[i].from.id, 1,
                                 tensor, c->layer, false);
            weir_cpu_race_access(&device->race, accessor, c->device_pool, pages[i].to.id, 1, tensor,
                                 c->layer, true);
        }
    }
}

static int enqueue_layer(struct weir_cpu_device *device, weir_stream *stream,
                         const struct weir_page_copies *copies, uint32_t layer,
                         struct weir_cpu_payload *pages)
{
    struct weir_cpu_op *op;
    int rc = weir_cpu_op_new(device, stream, WEIR_CPU_CALL_COPY_PAGES, WEIR_CPU_OP_COPY_PAGES,
                             false, &op);
    if (rc)
        return rc;
    op->payload = pages;
    pages->refs++;
    op->copy = (struct weir_cpu_copy){ .geometry = copies->geometry,
                                       .layer = layer,
                                       .n_runs = copies->n,
                                       .device_pool = copies->device_pool };
    return weir_cpu_submit(device, op);
}

int weir_cpu_copy_pages(weir_device *base, weir_stream *stream,
                        const struct weir_page_copies *copies)
{
    int rc = weir_cpu_check_stream(base, stream, "copy pages");
    if (rc == 0)
        rc = weir_page_copies_check(copies, &base->log);
    if (rc)
        return rc;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_payload *pages =
        weir_cpu_payload_new(device, copies->copies, copies->n * sizeof *copies->copies);
    rc = pages ? 0 : -ENOMEM;
    for (uint32_t layer = 0; layer < copies->geometry->n_layers && !rc; layer++)
        rc = enqueue_layer(device, stream, copies, layer, pages);
    weir_cpu_payload_unref(device, pages);
    weir_cpu_leave(device);
    return rc;
}
