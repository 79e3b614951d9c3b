/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_FAKE_DRIVER_H
#define WEIR_TESTS_FAKE_DRIVER_H

/* What the parts of the fake driver share; tests include fake_cuda.h alone.
 *
 *   cuGetProcAddress ─► fake_cuda.c     counts, faults, the device, the context
 *                         │
 *   fake_copy.c ────────► fake_stream.c   queues of ops, events, words, captures
 *        └──────────────► fake_memory.c   ranges: where a copy may be
 *
 * Invariants:
 *   - each function of the driver begins with COUNT: so each call is counted, kept
 *     and can fail, whatever comes then
 *   - ranges do not overlap; an op names bytes that lay in one when it was made
 *   - an op runs when a synchronize finds it first in its stream and ready */

#include "fake_cuda.h"

enum fake_kind {
    FAKE_COPY,
    FAKE_COPY_2D,
    FAKE_RECORD,
    FAKE_WAIT_EVENT,
    FAKE_WRITE_WORD,
    FAKE_WAIT_WORD
};

struct CUevent_st {
    uint64_t recorded; /* records that were enqueued */
    uint64_t passed;   /* the newest that has run */
};

struct fake_op {
    struct fake_op *next;
    enum fake_kind kind;
    union {
        struct {
            unsigned char *to;
            const unsigned char *from;
            size_t bytes;
            size_t to_pitch;
            size_t from_pitch;
            size_t rows;
        } copy;
        struct {
            CUevent event;
            uint64_t number;
        } event;
        struct {
            uint32_t *word;
            uint32_t value;
        } word;
    };
};

struct CUstream_st {
    struct fake_op *first;
    struct fake_op **end;
    CUstreamCaptureStatus capture;
    struct fake_op *graph; /* what was captured last, kept for replays */
    struct fake_op **graph_end;
    uint32_t captured;
};

/* ---- Accounts (fake_cuda.c) ----------------------------------------------- */

extern struct fake_cuda fake_state;

/* What a real driver would punish. */
void fake_violate(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Counts and keeps a call; what it is to fail with, if so. */
CUresult fake_count(enum fake_function function, CUstream stream, uint64_t a, uint64_t b,
                    uint64_t c);

/* Leaves the function that names itself if the call is to fail. */
#define COUNT(name, stream, a, b, c)                                 \
    do {                                                             \
        CUresult counted = fake_count(FAKE_##name, stream, a, b, c); \
        if (counted)                                                 \
            return counted;                                          \
    } while (0)

#define COUNT_IN_CONTEXT(name, stream, a, b, c)       \
    do {                                              \
        COUNT(name, stream, a, b, c);                 \
        if (fake_state.contexts < 1) {                \
            fake_violate(#name " without a context"); \
            return CUDA_ERROR_INVALID_CONTEXT;        \
        }                                             \
        if (fake_state.sticky)                        \
            return fake_state.sticky;                 \
    } while (0)

/* ---- Memory (fake_memory.c) ----------------------------------------------- */

enum fake_place {
    FAKE_DEVICE,
    FAKE_WORDS,
    FAKE_REGISTERED
};

struct fake_range {
    enum fake_place place;
    unsigned char *begin;
    size_t bytes;
};

/* The range that has all of these bytes, or NULL. */
const struct fake_range *fake_range_of(const unsigned char *begin, size_t bytes);

/* The host's address for one of the GPU's, or NULL. */
unsigned char *fake_resolve(CUdeviceptr address, size_t bytes, enum fake_place *place);

/* ---- Streams (fake_stream.c) ---------------------------------------------- */

/* The stream of a handle; NULL: it is none. */
CUstream fake_stream_of(CUstream stream);

/* What a driver does to a capture in a mode that is not relaxed. */
CUresult fake_check_capture_mode(const char *name);

/* Into the stream, or into its graph if it is being captured. Copies the op. */
CUresult fake_enqueue(CUstream stream, const struct fake_op *op);

/* What struct fake_cuda gives to the tests. */
void fake_set_capture(CUstream handle, CUstreamCaptureStatus status);
uint32_t fake_captured(CUstream stream);
void fake_replay(CUstream from, CUstream to);
bool fake_idle(void);

/* ---- The driver's functions, those that it has ---------------------------- */

#define FAKE_PROTOTYPE(name, version, need, parameters) CUresult fake_##name parameters;
WEIR_CUDA_FUNCTIONS(FAKE_PROTOTYPE)
#undef FAKE_PROTOTYPE

#endif
