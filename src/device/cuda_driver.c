/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Without the ".1" it would be a file that only development packages have. */
#define LIBRARY "libcuda.so.1"

typedef CUresult (*get_proc_address)(const char *name, void **function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult *found);

static struct {
    pthread_once_t once;
    int rc;
    char reason[192];
    get_proc_address look_up;
    struct weir_cuda_driver functions;
} loaded = { .once = PTHREAD_ONCE_INIT };

enum need {
    REQUIRED,
    OPTIONAL
};

static const struct entry {
    const char *name;
    int version;
    enum need need;
    size_t offset;
} entries[] = {
#define ENTRY(name, version, need, parameters) \
    { #name, version, need, offsetof(struct weir_cuda_driver, name) },
    WEIR_CUDA_FUNCTIONS(ENTRY)
#undef ENTRY
};

const char *weir_cuda_error_name(const struct weir_cuda_driver *driver, CUresult error)
{
    const char *name = NULL;
    if (!driver->cuGetErrorName || driver->cuGetErrorName(error, &name) || !name)
        return "unknown error";
    return name;
}

/* Success with a NULL pointer is how some drivers say that they lack it. */
static void *look_up(const char *name, int version)
{
    void *function = NULL;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult result =
        loaded.look_up(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
    return result || found != CU_GET_PROC_ADDRESS_SUCCESS ? NULL : function;
}

static bool fill_table(void)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const struct entry *entry = &entries[i];
        void *function = look_up(entry->name, entry->version);
        if (!function && entry->need == REQUIRED) {
            snprintf(loaded.reason, sizeof loaded.reason,
                     "the driver is too old: it has no %s of version %d", entry->name,
                     entry->version);
            return false;
        }
        memcpy((char *)&loaded.functions + entry->offset, &function, sizeof function);
    }
    return true;
}

static bool load_driver(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *error = dlerror();
        snprintf(loaded.reason, sizeof loaded.reason, "no driver: %s", error ? error : LIBRARY);
        return false;
    }
    void *function = dlsym(library, "cuGetProcAddress_v2");
    if (!function) {
        snprintf(loaded.reason, sizeof loaded.reason,
                 "the driver is too old: it has no cuGetProcAddress_v2 (CUDA 12.0)");
        return false;
    }
    memcpy(&loaded.look_up, &function, sizeof function);
    if (!fill_table())
        return false;
    CUresult result = loaded.functions.cuInit(0);
    if (result) {
        snprintf(loaded.reason, sizeof loaded.reason, "the driver does not start: cuInit: %s",
                 weir_cuda_error_name(&loaded.functions, result));
        return false;
    }
    return true;
}

static void load(void)
{
    loaded.rc = load_driver() ? 0 : -ENODEV;
}

int weir_cuda_driver_get(const struct weir_cuda_driver **driver, const char **reason)
{
    pthread_once(&loaded.once, load);
    *reason = loaded.reason;
    if (loaded.rc == 0)
        *driver = &loaded.functions;
    return loaded.rc;
}

int weir_cuda_driver_find(const char *name, int version, void **function)
{
    void *found = look_up(name, version);
    if (!found)
        return -ENOTSUP;
    *function = found;
    return 0;
}
