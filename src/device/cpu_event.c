/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cpu.h"

#include <errno.h>
#include <stdlib.h>

int weir_cpu_event_create(weir_device *base, weir_event **event)
{
    if (!event)
        return weir_invalid(&base->log, "event create: event is NULL");
    struct weir_cpu_device *device = weir_cpu_enter(base);
    uint64_t stall_round;
    int rc = weir_cpu_count(device, WEIR_CPU_CALL_EVENT_CREATE, &stall_round);
    weir_cpu_leave(device);
    if (rc)
        return rc;
    weir_event *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    *event = made;
    return 0;
}

void weir_cpu_event_destroy(weir_device *base, weir_event *event)
{
    if (!event)
        return;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    weir_cpu_point_unref(&device->points, event->newest);
    weir_cpu_leave(device);
    free(event);
}

int weir_cpu_event_record(weir_device *base, weir_event *event, weir_stream *stream)
{
    int rc = weir_cpu_check_stream(base, stream, "event record");
    if (rc)
        return rc;
    if (!event)
        return weir_invalid(&base->log, "event record: event is NULL");
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_op *op;
    rc = weir_cpu_op_new(device, stream, WEIR_CPU_CALL_EVENT_RECORD, WEIR_CPU_OP_MARK, true, &op);
    if (!rc) {
        struct weir_cpu_point *mark = weir_cpu_point_ref(op->mark);
        rc = weir_cpu_submit(device, op);
        weir_cpu_point_unref(&device->points, rc ? mark : event->newest);
        if (!rc)
            event->newest = mark;
    }
    weir_cpu_leave(device);
    return rc;
}

int weir_cpu_stream_wait_event(weir_device *base, weir_stream *stream, weir_event *event)
{
    int rc = weir_cpu_check_stream(base, stream, "wait event");
    if (rc)
        return rc;
    if (!event)
        return weir_invalid(&base->log, "wait event: event is NULL");
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_op *op;
    rc = weir_cpu_op_new(device, stream, WEIR_CPU_CALL_STREAM_WAIT_EVENT, WEIR_CPU_OP_WAIT_EVENT,
                         false, &op);
    if (!rc) {
        op->bound = event->newest ? weir_cpu_point_ref(event->newest) : NULL;
        rc = weir_cpu_submit(device, op);
    }
    weir_cpu_leave(device);
    return rc;
}

int weir_cpu_stream_wait_event_external(weir_device *base, weir_stream *stream, weir_event *event)
{
    (void)event;
    int rc = weir_cpu_check_stream(base, stream, "wait event external");
    if (rc)
        return rc;
    return atomic_load(&weir_cpu_from(base)->lost) ? -EIO : -ENOTSUP;
}
