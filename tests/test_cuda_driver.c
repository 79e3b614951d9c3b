/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_device.h"
#include "fake_cuda/fake_cuda.h"
#include "log_capture.h"

#include <weir/cpu_device.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name;
    int version;
    bool required;
    size_t offset;
} functions[] = {
#define REQUIRED true
#define OPTIONAL false
#define FUNCTION(name, version, need, parameters) \
    { #name, version, need, offsetof(struct weir_cuda_driver, name) },
    WEIR_CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
#undef REQUIRED
#undef OPTIONAL
};

static bool is_in(const struct weir_cuda_driver *driver, size_t function)
{
    void *pointer;
    memcpy(&pointer, (const char *)driver + functions[function].offset, sizeof pointer);
    return pointer != NULL;
}

static struct fake_cuda *find_fake(void)
{
    struct fake_cuda *fake = fake_cuda_find();
    cr_assert(ne(ptr, fake, NULL), "not the fake driver: is LD_LIBRARY_PATH set?");
    return fake;
}

Test(cuda_driver, each_function_is_asked_for_by_its_own_version)
{
    struct fake_cuda *fake = find_fake();
    const struct weir_cuda_driver *driver = NULL;
    const char *reason = NULL;
    cr_assert(eq(int, weir_cuda_driver_get(&driver, &reason), 0));
    cr_assert(zero(int, strcmp(reason, "")));
    for (size_t i = 0; i < FAKE_FUNCTIONS; i++) {
        if (!is_in(driver, i)) {
            cr_assert(not(functions[i].required), "%s", functions[i].name);
            continue;
        }
        cr_assert(eq(int, fake->versions[i], functions[i].version), "%s", functions[i].name);
        cr_assert(eq(u64, fake->flags[i], CU_GET_PROC_ADDRESS_LEGACY_STREAM));
    }
    cr_assert(ne(ptr, (void *)driver->cuMemcpyBatchAsync, NULL));
}

Test(cuda_driver, is_loaded_once)
{
    struct fake_cuda *fake = find_fake();
    const struct weir_cuda_driver *first = NULL;
    const struct weir_cuda_driver *second = NULL;
    const char *reason;
    cr_assert(eq(int, weir_cuda_driver_get(&first, &reason), 0));
    cr_assert(eq(int, weir_cuda_driver_get(&second, &reason), 0));
    cr_assert(eq(ptr, (void *)first, (void *)second));
    cr_assert(eq(u32, fake->counts[FAKE_cuInit], 1));
}

/* The loader works once a process, so that each case is a child of its own. */
static int status_of_child(bool (*check)(size_t function), size_t function)
{
    pid_t child = fork();
    if (child == 0)
        _exit(check(function) ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static bool is_missed(size_t function)
{
    const struct weir_cuda_driver *driver = NULL;
    const char *reason = "";
    int rc = weir_cuda_driver_get(&driver, &reason);
    if (!functions[function].required)
        return rc == 0 && driver && !is_in(driver, function);
    return rc == -ENODEV && !driver && strstr(reason, functions[function].name) &&
           fake_cuda_find()->counts[FAKE_cuInit] == 0;
}

Test(cuda_driver, a_function_may_be_missing_in_four_ways, .timeout = 100)
{
    static const enum fake_presence ways[] = { FAKE_NOT_FOUND, FAKE_TOO_OLD, FAKE_NULL,
                                               FAKE_REFUSED };
    struct fake_cuda *fake = find_fake();
    for (size_t i = 0; i < FAKE_FUNCTIONS; i++)
        for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
            fake->presence[i] = ways[way];
            cr_assert(zero(int, status_of_child(is_missed, i)), "%s, way %zu", functions[i].name,
                      way);
            fake->presence[i] = FAKE_PRESENT;
        }
}

Test(cuda_driver, a_failed_start_is_kept_and_explained)
{
    struct fake_cuda *fake = find_fake();
    fake_cuda_fail(fake, FAKE_cuInit, 1, CUDA_ERROR_NO_DEVICE);
    for (int i = 0; i < 2; i++) {
        const struct weir_cuda_driver *driver = NULL;
        const char *reason = "";
        cr_assert(eq(int, weir_cuda_driver_get(&driver, &reason), -ENODEV));
        cr_assert(eq(ptr, (void *)driver, NULL));
        cr_assert(ne(ptr, strstr(reason, "CUDA_ERROR_NO_DEVICE"), NULL), "%s", reason);
    }
    cr_assert(eq(u32, fake->counts[FAKE_cuInit], 1));
}

Test(cuda_driver, other_functions_can_be_found)
{
    find_fake();
    const struct weir_cuda_driver *driver;
    const char *reason;
    void *function = NULL;
    cr_assert(eq(int, weir_cuda_driver_get(&driver, &reason), 0));
    cr_assert(eq(int, weir_cuda_driver_find("cuStreamSynchronize", 2000, &function), 0));
    cr_assert(eq(ptr, function, (void *)driver->cuStreamSynchronize));
    cr_assert(eq(int, weir_cuda_driver_find("cuNoSuchThing", 2000, &function), -ENOTSUP));
    cr_assert(eq(ptr, function, (void *)driver->cuStreamSynchronize));
}

Test(cuda_driver, an_unknown_error_has_a_name)
{
    find_fake();
    const struct weir_cuda_driver *driver;
    const char *reason;
    cr_assert(eq(int, weir_cuda_driver_get(&driver, &reason), 0));
    cr_assert(zero(int, strcmp(weir_cuda_error_name(driver, CUDA_ERROR_OUT_OF_MEMORY),
                               "CUDA_ERROR_OUT_OF_MEMORY")));
    cr_assert(zero(int, strcmp(weir_cuda_error_name(driver, CUDA_ERROR_UNKNOWN), "unknown error")));
}

/* ---- Which device is opened ------------------------------------------------ */

static void expect_device(weir_device_kind kind, int rc, const char *name, const char *line)
{
    struct log_capture capture = { 0 };
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = kind;
    params.log = log_capture_log(&capture);
    weir_device *device = NULL;
    cr_assert(eq(int, weir_device_open(&device, &params), rc));
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(ne(ptr, strstr(capture.last, line), NULL), "%s", capture.last);
    if (rc)
        cr_assert(eq(ptr, device, NULL));
    else
        cr_assert(zero(int, strcmp(weir_device_name(device), name)));
    cr_assert(eq(int, weir_device_close(&device), 0));
}

Test(cuda_driver, auto_takes_the_gpu)
{
    find_fake();
    expect_device(WEIR_DEVICE_AUTO, 0, "cuda", "fake gpu");
    expect_device(WEIR_DEVICE_CUDA, 0, "cuda", "fake gpu");
}

Test(cuda_driver, auto_takes_the_cpu_without_a_gpu)
{
    find_fake()->n_devices = 0;
    expect_device(WEIR_DEVICE_AUTO, 0, "cpu", "no gpu: using the cpu device");
    expect_device(WEIR_DEVICE_CUDA, -ENODEV, NULL, "no gpu");
}

Test(cuda_driver, auto_takes_the_cpu_with_a_driver_that_does_not_start)
{
    fake_cuda_fail(find_fake(), FAKE_cuInit, 1, CUDA_ERROR_NO_DEVICE);
    expect_device(WEIR_DEVICE_AUTO, 0, "cpu", "CUDA_ERROR_NO_DEVICE: using the cpu device");
    expect_device(WEIR_DEVICE_CUDA, -ENODEV, NULL, "CUDA_ERROR_NO_DEVICE");
}

/* A wrong ordinal, or a GPU that does not open, is the caller's to know. */
Test(cuda_driver, auto_does_not_hide_a_gpu_that_fails)
{
    struct fake_cuda *fake = find_fake();
    fake_cuda_fail(fake, FAKE_cuDevicePrimaryCtxRetain, 1, CUDA_ERROR_OUT_OF_MEMORY);
    expect_device(WEIR_DEVICE_AUTO, -ENOMEM, NULL, "CUDA_ERROR_OUT_OF_MEMORY");

    struct log_capture capture = { 0 };
    weir_device_params params;
    weir_device_params_init(&params);
    params.ordinal = 1;
    params.log = log_capture_log(&capture);
    weir_device *device = NULL;
    cr_assert(eq(int, weir_device_open(&device, &params), -ENODEV));
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(ne(ptr, strstr(capture.last, "ordinal is 1"), NULL), "%s", capture.last);
    cr_assert(zero(int, fake->retained));
}
