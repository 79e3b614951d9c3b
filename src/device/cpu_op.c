/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Ops and payloads are recycled, so that steady work allocates nothing. */

int weir_cpu_op_new(struct weir_cpu_device *device, struct weir_stream *stream, weir_cpu_call call,
                    enum weir_cpu_op_kind kind, bool with_mark, struct weir_cpu_op **op)
{
    uint64_t stall_round;
    int rc = weir_cpu_count(device, call, &stall_round);
    if (rc)
        return rc;
    struct weir_cpu_point *mark = NULL;
    if (with_mark) {
        mark = weir_cpu_point_new(&device->points);
        if (!mark)
            return -ENOMEM;
    }
    struct weir_cpu_op *made = device->free_ops;
    if (made)
        device->free_ops = made->next;
    else
        made = malloc(sizeof *made);
    if (!made) {
        weir_cpu_point_unref(&device->points, mark);
        return -ENOMEM;
    }
    *made = (struct weir_cpu_op){ .stream = stream,
                                  .kind = kind,
                                  .stall_round = stall_round,
                                  .host = weir_cpu_point_ref(device->host),
                                  .mark = mark };
    *op = made;
    return 0;
}

void weir_cpu_op_free(struct weir_cpu_device *device, struct weir_cpu_op *op)
{
    weir_cpu_point_unref(&device->points, op->host);
    weir_cpu_point_unref(&device->points, op->bound);
    weir_cpu_point_unref(&device->points, op->mark);
    weir_cpu_payload_unref(device, op->payload);
    op->next = device->free_ops;
    device->free_ops = op;
}

/* Class c holds 64 << c bytes. */
static uint32_t size_class(uint64_t bytes)
{
    uint32_t c = 0;
    while (c < WEIR_CPU_PAYLOAD_CLASSES && (UINT64_C(64) << c) < bytes)
        c++;
    return c;
}

struct weir_cpu_payload *weir_cpu_payload_new(struct weir_cpu_device *device, const void *data,
                                              uint64_t bytes)
{
    uint32_t c = size_class(bytes);
    if (c == WEIR_CPU_PAYLOAD_CLASSES)
        return NULL;
    struct weir_cpu_payload *payload = device->free_payloads[c];
    if (payload) {
        device->free_payloads[c] = payload->next_free;
    } else {
        payload = malloc(sizeof *payload + (UINT64_C(64) << c));
        if (!payload)
            return NULL;
    }
    payload->refs = 1;
    payload->size_class = c;
    if (bytes > 0)
        memcpy(payload->data, data, bytes);
    return payload;
}

void weir_cpu_payload_unref(struct weir_cpu_device *device, struct weir_cpu_payload *payload)
{
    if (!payload || --payload->refs > 0)
        return;
    payload->next_free = device->free_payloads[payload->size_class];
    device->free_payloads[payload->size_class] = payload;
}

void weir_cpu_free_ops(struct weir_cpu_device *device)
{
    while (device->free_ops) {
        struct weir_cpu_op *op = device->free_ops;
        device->free_ops = op->next;
        free(op);
    }
    for (uint32_t c = 0; c < WEIR_CPU_PAYLOAD_CLASSES; c++) {
        while (device->free_payloads[c]) {
            struct weir_cpu_payload *payload = device->free_payloads[c];
            device->free_payloads[c] = payload->next_free;
            free(payload);
        }
    }
}
