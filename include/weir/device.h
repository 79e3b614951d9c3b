/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

/* A device: memory that only copies reach, streams, events. A rank works on
 * one device. weir/cpu_device.h has the CPU device's own controls. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads: safe. Any thread may pass a device to any call. */
typedef struct weir_device weir_device;

typedef enum weir_device_kind {
    WEIR_DEVICE_AUTO = 0, /* CUDA if there is a GPU, else the CPU device, with one log line */
    WEIR_DEVICE_CPU = 1,
    WEIR_DEVICE_CUDA = 2
} weir_device_kind;

/*   struct_size  written by weir_device_params_init
 *   kind         default WEIR_DEVICE_AUTO
 *   ordinal      which GPU; ignored by the CPU device; default 0
 *   log          default: silent; kept by the device */
typedef struct weir_device_params {
    uint32_t struct_size;
    weir_device_kind kind;
    uint32_t ordinal;
    weir_log log;
} weir_device_params;

WEIR_API void weir_device_params_init(weir_device_params *params) WEIR_NOEXCEPT;

/* Opens a device. The caller owns *device and closes it after everything that
 * was opened on it. NULL params: the defaults.
 * -ENODEV: no such device or no driver; -ENOTSUP: the GPU cannot do what weir
 * needs; -EIO: it fails; -ENOMEM. May block while a driver starts. */
WEIR_API int weir_device_open(weir_device **device, const weir_device_params *params) WEIR_NOEXCEPT;

/* Closes a device and sets *device to NULL; a NULL content is allowed. Waits
 * for the work in its streams. -EBUSY and no effect: a rank, a gather or an
 * expert cache is still open on it. */
WEIR_API int weir_device_close(weir_device **device) WEIR_NOEXCEPT;

/* "cpu" or "cuda". The string is static. */
WEIR_API const char *weir_device_name(const weir_device *device) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
