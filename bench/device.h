/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_DEVICE_H
#define WEIR_BENCH_DEVICE_H

/* A device under measurement: weir's device, and what a server would have on it.
 *
 *   stream  ─ forward ─ forward ─ mark ─►          marks: words that the host
 *   side    ─ copies that are not weir's ─►        polls, so that a measured
 *   victim  ─ 4 KiB ─ 4 KiB ─►                     time ends when work ends
 *
 * On the CPU device `gpu` is NULL, and launched functions do what kernels do
 * elsewhere; its link has the rate of the options. */

#include "gpu.h"
#include "kernels/bench_args.h"
#include "options.h"

#define WEIR_BENCH_REASON 256u
#define WEIR_BENCH_VICTIM_BYTES 4096u

struct weir_bench_device {
    weir_device *device;
    const struct weir_device_ops *ops;
    struct weir_bench_gpu *gpu;
    weir_stream *stream;
    weir_stream *side;
    weir_stream *victim;
    uint32_t *words; /* the marks, a counter, then what victims copy */
    uint64_t victim_target;
    uint32_t marks[2];              /* of stream, of side */
    char reason[WEIR_BENCH_REASON]; /* the last complaint of weir */
};

/* Opens as the options say. Prints why not to standard error. */
int weir_bench_device_open(struct weir_bench_device **device,
                           const struct weir_bench_common *common);
void weir_bench_device_close(struct weir_bench_device **device);

/* A log that keeps the last line as device->reason. */
weir_log weir_bench_log(struct weir_bench_device *device);

/* Why a call with this result failed: weir's complaint, or the error's name. */
const char *weir_bench_reason(const struct weir_bench_device *device, int rc);

/* Whether transfers can be told to use this engine. -ENOTSUP, and the reason:
 * the CPU device has but one. */
int weir_bench_has_engine(struct weir_bench_device *device, uint32_t engine);

/* Seconds on a monotonic clock. */
double weir_bench_now(void);

/* Lets others run where there may be no processor to spare. */
void weir_bench_relax(const struct weir_bench_device *device);

/* Marks the present point of `stream` or `side`, and whether the newest mark of
 * that stream has passed. */
int weir_bench_mark(struct weir_bench_device *device, weir_stream *stream);
bool weir_bench_passed(const struct weir_bench_device *device, const weir_stream *stream);

/* Polls until the newest mark has passed. -EIO: the device is lost. */
int weir_bench_wait(const struct weir_bench_device *device, const weir_stream *stream);

/* Fills or checks pages, in `stream`; returns once that is done. `args` with
 * pages that the device can read; wrong is set by this call: *n_wrong. */
int weir_bench_pattern(struct weir_bench_device *device, struct weir_bench_pattern_args args,
                       uint64_t *n_wrong);

/* The same for bytes that the host reaches: bytes offset..offset+n-1 of a page. */
uint64_t weir_bench_pattern_bytes(unsigned char *bytes, uint64_t n, uint64_t offset, uint64_t key,
                                  uint32_t move, bool check);

/* A server's own small copy to the device, and the seconds until it is there. */
int weir_bench_victim(struct weir_bench_device *device, double *seconds);

#endif
