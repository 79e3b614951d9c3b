/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DRIVER_NAME(name) DRIVER_NAME_OF(name)
#define DRIVER_NAME_OF(name) #name,

static const char *const names[] = { DRIVER_FUNCTIONS(DRIVER_NAME) };

int driver_open(struct driver *driver)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return -ENODEV;
    char *field = (char *)driver;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = dlsym(library, names[i]);
        if (!function) {
            fprintf(stderr, "the CUDA driver has no %s\n", names[i]);
            dlclose(library);
            return -ENODEV;
        }
        memcpy(field + i * sizeof function, &function, sizeof function);
    }
    return driver->cuInit(0) == CUDA_SUCCESS ? 0 : -ENODEV;
}

int driver_result(const char *what, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    return -EIO;
}
