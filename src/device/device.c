/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cuda_device.h"
#include "device/device.h"

#include <weir/cpu_device.h>

#include <errno.h>

void weir_device_params_init(weir_device_params *params)
{
    if (params)
        *params = (weir_device_params){ .struct_size = sizeof *params, .kind = WEIR_DEVICE_AUTO };
}

static int open_cpu(weir_device **device, const weir_device_params *params)
{
    weir_cpu_device_params cpu;
    weir_cpu_device_params_init(&cpu);
    cpu.log = params->log;
    return weir_cpu_device_open(device, &cpu);
}

static int open_auto(weir_device **device, const weir_device_params *params)
{
    const char *reason;
    int n_gpus;
    if (weir_cuda_count_gpus(&n_gpus, &reason) == 0)
        return weir_cuda_device_open(device, params);
    int rc = open_cpu(device, params);
    if (!rc)
        weir_log_line(&params->log, WEIR_LOG_INFO, "%s: using the cpu device", reason);
    return rc;
}

int weir_device_open(weir_device **device, const weir_device_params *params)
{
    weir_device_params defaults;
    weir_device_params_init(&defaults);
    if (!params)
        params = &defaults;
    /* Of a struct of another size not even the log can be trusted. */
    if (params->struct_size != sizeof *params)
        return -EINVAL;
    if (!device)
        return weir_invalid(&params->log, "device open: device is NULL");
    switch (params->kind) {
    case WEIR_DEVICE_AUTO:
        return open_auto(device, params);
    case WEIR_DEVICE_CPU:
        return open_cpu(device, params);
    case WEIR_DEVICE_CUDA:
        return weir_cuda_device_open(device, params);
    }
    return weir_invalid(&params->log, "device open: kind is %d, not one of 0..2",
                        (int)params->kind);
}

int weir_device_close(weir_device **device)
{
    if (!device)
        return -EINVAL;
    if (!*device)
        return 0;
    unsigned users = atomic_load(&(*device)->users);
    if (users > 0) {
        weir_log_line(&(*device)->log, WEIR_LOG_ERROR,
                      "device close: %u ranks, gathers or expert caches are open on it", users);
        return -EBUSY;
    }
    (*device)->ops->close(*device);
    *device = NULL;
    return 0;
}

const char *weir_device_name(const weir_device *device)
{
    return device ? device->ops->name : NULL;
}
