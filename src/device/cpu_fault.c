/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cpu.h"

#include <errno.h>
#include <stdlib.h>

int weir_cpu_count(struct weir_cpu_device *device, weir_cpu_call call, uint64_t *stall_round)
{
    if (atomic_load(&device->lost))
        return -EIO;
    *stall_round = 0;
    if (call == WEIR_CPU_CALL_COUNT)
        return 0;
    uint64_t count = ++device->calls[call];
    int rc = 0;
    for (struct weir_cpu_fault **link = &device->faults[call]; *link;) {
        struct weir_cpu_fault *fault = *link;
        if (fault->at != count) {
            link = &fault->next;
            continue;
        }
        if (fault->rc)
            rc = fault->rc;
        else
            *stall_round = device->stall_round;
        *link = fault->next;
        free(fault);
    }
    return rc;
}

void weir_cpu_drop_faults(struct weir_cpu_device *device)
{
    for (size_t call = 0; call < WEIR_CPU_CALL_COUNT; call++) {
        while (device->faults[call]) {
            struct weir_cpu_fault *fault = device->faults[call];
            device->faults[call] = fault->next;
            free(fault);
        }
    }
}

/* The device if it is a CPU device, locked; else NULL. */
static struct weir_cpu_device *enter_checked(weir_device *device, const char *call)
{
    if (!device)
        return NULL;
    if (!weir_cpu_is(device)) {
        weir_log_line(&device->log, WEIR_LOG_ERROR, "%s: not a cpu device", call);
        return NULL;
    }
    return weir_cpu_enter(device);
}

static int add_fault(weir_device *base, weir_cpu_call call, uint64_t n, int rc, const char *name)
{
    if (!base)
        return -EINVAL;
    if ((unsigned)call >= WEIR_CPU_CALL_COUNT)
        return weir_invalid(&base->log, "%s: call is %d, not below %d", name, (int)call,
                            (int)WEIR_CPU_CALL_COUNT);
    if (n == 0)
        return weir_invalid(&base->log, "%s: n is 0, must be at least 1", name);
    struct weir_cpu_device *device = enter_checked(base, name);
    if (!device)
        return -EINVAL;
    int result = -EIO;
    if (!atomic_load(&device->lost)) {
        struct weir_cpu_fault *fault = malloc(sizeof *fault);
        result = -ENOMEM;
        if (fault) {
            *fault = (struct weir_cpu_fault){ device->faults[call], device->calls[call] + n, rc };
            device->faults[call] = fault;
            result = 0;
        }
    }
    weir_cpu_leave(device);
    return result;
}

int weir_cpu_device_fail(weir_device *device, weir_cpu_call call, uint64_t n, int rc)
{
    if (device && rc >= 0)
        return weir_invalid(&device->log, "device fail: rc is %d, not a negative errno", rc);
    return add_fault(device, call, n, rc, "device fail");
}

int weir_cpu_device_stall(weir_device *device, weir_cpu_call call, uint64_t n)
{
    if (device && (call == WEIR_CPU_CALL_MEMORY_ALLOC || call == WEIR_CPU_CALL_HOST_REGISTER ||
                   call == WEIR_CPU_CALL_WORDS_ALLOC || call == WEIR_CPU_CALL_STREAM_CREATE ||
                   call == WEIR_CPU_CALL_EVENT_CREATE))
        return weir_invalid(&device->log, "device stall: call %d enqueues no work", (int)call);
    return add_fault(device, call, n, 0, "device stall");
}

uint64_t weir_cpu_device_calls(weir_device *base, weir_cpu_call call)
{
    struct weir_cpu_device *device = enter_checked(base, "device calls");
    if (!device)
        return 0;
    uint64_t calls = (unsigned)call < WEIR_CPU_CALL_COUNT ? device->calls[call] : 0;
    weir_cpu_leave(device);
    return calls;
}

void weir_cpu_device_release(weir_device *base)
{
    struct weir_cpu_device *device = enter_checked(base, "device release");
    if (!device)
        return;
    weir_cpu_drop_faults(device);
    device->stall_round++;
    weir_cpu_kick(device);
    weir_cpu_leave(device);
}

void weir_cpu_stream_park(weir_device *base, weir_stream *stream)
{
    if (weir_cpu_check_stream(base, stream, "stream park"))
        return;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    if (!stream->parked) {
        stream->parked = true;
        stream->park_after = stream->submitted;
    }
    weir_cpu_leave(device);
}

void weir_cpu_stream_release(weir_device *base, weir_stream *stream)
{
    if (weir_cpu_check_stream(base, stream, "stream release"))
        return;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    stream->parked = false;
    weir_cpu_kick(device);
    weir_cpu_leave(device);
}

void weir_cpu_device_lose(weir_device *base)
{
    struct weir_cpu_device *device = enter_checked(base, "device lose");
    if (!device)
        return;
    atomic_store(&device->lost, true);
    weir_cpu_wake_all(device);
    weir_cpu_leave(device);
}

uint64_t weir_cpu_device_races(weir_device *base)
{
    struct weir_cpu_device *device = enter_checked(base, "device races");
    if (!device)
        return 0;
    uint64_t races = device->race.n_races;
    weir_cpu_leave(device);
    return races;
}

size_t weir_cpu_device_run(weir_device *base, size_t steps)
{
    struct weir_cpu_device *device = enter_checked(base, "device run");
    if (!device)
        return 0;
    size_t done = 0;
    while (device->seed != 0 && done < steps && weir_cpu_step(device))
        done++;
    weir_cpu_leave(device);
    return done;
}
