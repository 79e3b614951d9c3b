/* SPDX-License-Identifier: Apache-2.0 */

/* Run with a libcuda.so.1 in LD_LIBRARY_PATH that is no driver: WEIR_DEVICE_CUDA
 * is -ENODEV and says why, WEIR_DEVICE_AUTO is the CPU device.
 *
 * usage: cuda_absent REASON */

#include "log_capture.h"

#include <weir/device.h>

#include <errno.h>
#include <string.h>

static int check(weir_device_kind kind, int expected, const char *reason)
{
    struct log_capture capture = { 0 };
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = kind;
    params.log = log_capture_log(&capture);
    weir_device *device = NULL;
    int rc = weir_device_open(&device, &params);
    const char *name = weir_device_name(device);
    bool good = rc == expected && capture.lines == 1 && strstr(capture.last, reason) &&
                (rc ? !device : strcmp(name, "cpu") == 0);
    printf("kind %d: %s, %s, \"%s\"\n", (int)kind, weir_error_name(rc), name ? name : "none",
           capture.last);
    return weir_device_close(&device) == 0 && good ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    return check(WEIR_DEVICE_CUDA, -ENODEV, argv[1]) | check(WEIR_DEVICE_AUTO, 0, argv[1]);
}
