/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_FAKE_CUDA_H
#define WEIR_TESTS_FAKE_CUDA_H

/* A CUDA driver without a GPU, a libcuda.so.1 that tests find through
 * LD_LIBRARY_PATH. Nothing runs before someone synchronizes:
 *
 *   cuMemcpyAsync … ─► stream: op ─ op ─ op       device memory: malloc
 *                              │                  pinned memory: ranges
 *   cuStreamSynchronize ─► every stream goes on as far as its waits allow
 *
 * It counts and keeps the calls, fails those that it is told to fail, and notes
 * as a violation whatever a real driver would punish now or later: a call
 * without the context, a handle that is none, memory that is not pinned, a call
 * that breaks a capture, a batch with a tiny copy beside a large one.
 *
 * For one thread at a time. */

#include "device/cuda_driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

enum fake_function {
#define FAKE_NUMBER(name, version, need, parameters) FAKE_##name,
    WEIR_CUDA_FUNCTIONS(FAKE_NUMBER)
#undef FAKE_NUMBER
    FAKE_FUNCTIONS
};

/* How cuGetProcAddress answers. */
enum fake_presence {
    FAKE_PRESENT,
    FAKE_NOT_FOUND,
    FAKE_TOO_OLD,
    FAKE_NULL,   /* success, but no function */
    FAKE_REFUSED /* an error */
};

/* Strikes the calls first..last; the first call of a function is 1. */
struct fake_fault {
    uint32_t first;
    uint32_t last;
    CUresult result;
};

/* For copies: bytes; for batches: n, the smallest and the largest bytes; for
 * words: address and value; for streams: priority; for host memory: flags. */
struct fake_call {
    enum fake_function function;
    CUstream stream;
    uint64_t arguments[3];
};

#define FAKE_CALLS 4096u
#define FAKE_ATTRIBUTES 160u

struct fake_cuda {
    enum fake_presence presence[FAKE_FUNCTIONS];
    struct fake_fault faults[FAKE_FUNCTIONS];
    bool dropped;    /* the context is lost, and its work with it */
    CUresult sticky; /* what every call on the context returns; 0: nothing */
    int n_devices;
    int attributes[FAKE_ATTRIBUTES];
    int least_priority;
    int greatest_priority;

    uint32_t counts[FAKE_FUNCTIONS];
    uint64_t flags[FAKE_FUNCTIONS]; /* asked of cuGetProcAddress */
    int versions[FAKE_FUNCTIONS];
    struct fake_call calls[FAKE_CALLS];
    uint32_t n_calls; /* stays at FAKE_CALLS */

    uint32_t n_violations;
    char violation[160]; /* the first */
    int contexts;        /* pushed and not popped */
    int retained;
    CUstreamCaptureMode mode;
    uint32_t n_allocations; /* device memory, words and registrations */
    uint32_t n_streams;
    uint32_t n_events;

    void (*set_capture)(CUstream stream, CUstreamCaptureStatus status);
    uint32_t (*captured)(CUstream stream);          /* calls that went into the graph */
    void (*replay)(CUstream captured, CUstream to); /* launches the newest graph */
    bool (*idle)(void);                             /* nothing is enqueued any more */
};

/* Where the GPU sees pinned memory that has not the host's address. */
#define FAKE_ALIAS_OFFSET (UINT64_C(1) << 52)

/* The state of the fake in this process, or NULL if another driver was found. */
static inline struct fake_cuda *fake_cuda_find(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "fake_cuda_state") : NULL;
    struct fake_cuda *(*state)(void) = NULL;
    memcpy(&state, &symbol, sizeof state);
    return state ? state() : NULL;
}

static inline void fake_cuda_fail(struct fake_cuda *fake, enum fake_function function,
                                  uint32_t from_now, CUresult result)
{
    uint32_t at = fake->counts[function] + from_now;
    fake->faults[function] = (struct fake_fault){ at, at, result };
}

#endif
