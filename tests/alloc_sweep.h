/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_ALLOC_SWEEP_H
#define WEIR_TESTS_ALLOC_SWEEP_H

/* Each workload is run again and again, and the n-th of its allocations fails,
 * for n = 1, 2, 3 … until none has: first that one alone, then all from it on
 * until the call that is told of it.
 *
 *   n = 1   ✗ ─ · ─ · ─ ·          -ENOMEM, memory is there again, the same call
 *   n = 2   · ─ ✗ ─ · ─ ·          succeeds, and the workload goes on
 *   n = 3   · ─ · ─ ✗ ─ ·
 *   n = 5   · ─ · ─ · ─ ·          nothing has failed: the sweep is over
 *
 * Invariants: after each run no block and no mapping is left; a workload
 * allocates the same in each run up to the failure.
 *
 * Plain conditions in cr_assert: what that macro allocates and frees must not be
 * counted here. */

#include "alloc_fault.h"
#include "device/cpu.h"

#include <weir/cache.h>

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

static inline void alloc_sweep(const char *name, void (*workload)(void))
{
    static const uint64_t widths[] = { 1, ALLOC_FAULT_FOREVER };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        int64_t blocks = alloc_fault_blocks();
        int64_t mapped = alloc_fault_mapped();
        for (uint64_t n = 1;; n++) {
            alloc_fault_set(n, widths[i]);
            workload();
            alloc_fault_off();
            cr_assert(alloc_fault_blocks() == blocks, "%s: %lld blocks leak at allocation %llu",
                      name, (long long)(alloc_fault_blocks() - blocks), (unsigned long long)n);
            cr_assert(alloc_fault_mapped() == mapped, "%s: %lld bytes stay mapped at %llu", name,
                      (long long)(alloc_fault_mapped() - mapped), (unsigned long long)n);
            if (alloc_fault_struck() == 0) {
                cr_assert(n > 1, "%s: nothing is allocated", name);
                fprintf(stderr, "alloc_failures: %s: %llu points\n", name,
                        (unsigned long long)(n - 1));
                break;
            }
        }
    }
    alloc_fault_set(0, 1);
#ifdef __SANITIZE_ADDRESS__
    cr_assert(__lsan_do_recoverable_leak_check() == 0);
#endif
}

/* rc = call with counting on; `failed` is whether an allocation failed in it. */
#define COUNTED(rc, failed, call)                   \
    do {                                            \
        uint64_t struck_ = alloc_fault_struck();    \
        alloc_fault_on();                           \
        (rc) = (call);                              \
        alloc_fault_off();                          \
        (failed) = alloc_fault_struck() != struck_; \
    } while (0)

/* A call that must say -ENOMEM exactly if an allocation failed, change nothing
 * that `same` looks at, and succeed when it is made again. */
#define MUST_TELL(call, same)                                                             \
    do {                                                                                  \
        int rc_;                                                                          \
        bool failed_;                                                                     \
        COUNTED(rc_, failed_, call);                                                      \
        cr_assert(rc_ == (failed_ ? -ENOMEM : 0), "%s: %s", #call, weir_error_name(rc_)); \
        if (failed_) {                                                                    \
            alloc_fault_cure();                                                           \
            same;                                                                         \
            rc_ = (call);                                                                 \
            cr_assert(rc_ == 0, "%s, again: %s", #call, weir_error_name(rc_));            \
        }                                                                                 \
    } while (0)

/* One that may do without: it may also succeed. */
#define MAY_TELL(call)                                                                       \
    do {                                                                                     \
        int rc_;                                                                             \
        bool failed_;                                                                        \
        COUNTED(rc_, failed_, call);                                                         \
        cr_assert(rc_ == 0 || (failed_ && (rc_ == -ENOMEM || rc_ == -EIO)), "%s: %s", #call, \
                  weir_error_name(rc_));                                                     \
        if (rc_) {                                                                           \
            alloc_fault_cure();                                                              \
            rc_ = (call);                                                                    \
            cr_assert(rc_ == 0, "%s, again: %s", #call, weir_error_name(rc_));               \
        }                                                                                    \
    } while (0)

static inline void is_null(const void *pointer)
{
    cr_assert(pointer == NULL, "an out-parameter was written on failure");
}

/* ---- What workloads share ------------------------------------------------- */

/* A name that is too long for the stack. */
enum {
    ALLOC_LONG_NAME = 2048
};

static const unsigned char alloc_long_name[ALLOC_LONG_NAME] = { 0 };

static inline weir_request alloc_request(size_t tokens)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = tokens;
    return request;
}

static inline void alloc_check_cache(const weir_cache *cache)
{
    const char *reason = "";
    cr_assert(weir_cache_check(cache, &reason) == 0, "%s", reason);
}

static const uint32_t alloc_odd_layers[] = { 1, 3 };
static const weir_tensor alloc_tensors[] = {
    { .page_bytes = 2 * 8, .row_bytes = 8 },
    { .page_bytes = 2 * 3, .row_bytes = 3, .n_layers = 2, .layers = alloc_odd_layers },
};
static const weir_shape alloc_shape = {
    .page_tokens = 2, .n_layers = 4, .n_tensors = 2, .tensors = alloc_tensors
};

static inline weir_device *alloc_open_device(void)
{
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.seed = 11;
    weir_device *device = NULL;
    MUST_TELL(weir_cpu_device_open(&device, &params), is_null(device));
    return device;
}

static inline void alloc_run_all(weir_device *device)
{
    alloc_fault_on(); /* it cannot tell; the race check may give up */
    while (weir_cpu_device_run(device, 1000) == 1000)
        continue;
    alloc_fault_off();
}

#endif
