/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_H
#define WEIR_TRANSFER_H

/* Which engine moves the bytes, and why. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/*   TMA     a kernel of a few warps that relay bulk copies through shared
 *           memory; compute capability 9.0 on, everything a multiple of 16
 *   VECTOR  a kernel that copies through registers; any bytes, 7.5 on
 *   COPY    the GPU's copy engines; no SM, but time on the CPU for each piece */
typedef enum weir_transfer_engine {
    WEIR_ENGINE_AUTO = 0,
    WEIR_ENGINE_TMA = 1,
    WEIR_ENGINE_VECTOR = 2,
    WEIR_ENGINE_COPY = 3
} weir_transfer_engine;

/* "auto", "tma", "vector", "copy"; NULL for a value that is no engine. */
WEIR_API const char *weir_transfer_engine_name(weir_transfer_engine engine) WEIR_NOEXCEPT;

/* How many launches a kernel's copy of several layers takes. */
typedef enum weir_launch_shape {
    WEIR_LAUNCH_AUTO = 0,
    WEIR_LAUNCH_ONE = 1,      /* one walks all layers and publishes each */
    WEIR_LAUNCH_PER_LAYER = 2 /* one a layer */
} weir_launch_shape;

/* How the transfers of one direction are made. 0 in a field: the library
 * chooses.
 *
 *   engine  one that cannot do a transfer gives way to one that can
 *   launch  of the kernels; AUTO: one, but for loads of a slot with captured
 *           waits; the copy engine goes layer by layer
 *   ctas    thread blocks of a kernel, at most 1024
 *   stages, stage_bytes
 *           ring of a TMA block; it must fit the device's shared memory */
typedef struct weir_transfer_tuning {
    weir_transfer_engine engine;
    weir_launch_shape launch;
    uint32_t ctas;
    uint32_t stages;
    uint32_t stage_bytes;
} weir_transfer_tuning;

/* One tensor of a transfer, and what is known of the device and its link.
 *
 *   struct_size     written by weir_transfer_case_init
 *   write_back      device to host; else host to device
 *   exclusive_sms   the forward pass needs every SM; default false
 *   compute         the device's compute capability, 90 for 9.0; 0 (default):
 *                   no kernel can be used
 *   shared_bytes    shared memory that a CTA may have there; default 0
 *   page_tokens     default 1
 *   row_bytes       bytes of a token; 0 (default): the page is opaque
 *   page_bytes      bytes of a page in one layer; with row_bytes,
 *                   page_tokens * row_bytes
 *   strided         the host's rows are apart (page_first); default false
 *   alignment       the largest power of two that divides all addresses and
 *                   strides of both sides; default 1
 *   run_bytes       bytes that lie together on both sides, typically: those of
 *                   a run, at least those of a page, or of a row if strided;
 *                   0 (default): a page or a row
 *   copies          copies that the copy engine would be given for the whole
 *                   transfer; default 0
 *   n_layers        layers of the transfer, each of which is a call; default 1
 *   max_enqueue_us  time on the CPU that enqueueing may take; default 200
 *   copy_engine_bytes
 *                   run_bytes from which the copy engine is at least as fast as
 *                   a kernel, as measured; default 512 KiB */
typedef struct weir_transfer_case {
    uint32_t struct_size;
    bool write_back;
    bool exclusive_sms;
    bool strided;
    uint32_t compute;
    uint32_t shared_bytes;
    uint32_t page_tokens;
    uint32_t row_bytes;
    uint64_t page_bytes;
    uint32_t alignment;
    uint32_t max_enqueue_us;
    uint64_t run_bytes;
    uint64_t copies;
    uint64_t copy_engine_bytes;
    uint32_t n_layers;
} weir_transfer_case;

WEIR_API void weir_transfer_case_init(weir_transfer_case *transfer) WEIR_NOEXCEPT;

/*   engine          never AUTO
 *   rows_per_chunk  rows that a stage of the TMA kernel's ring holds, a power of
 *                   two; 0 if the page is opaque or no ring fits
 *   stages, stage_bytes
 *                   of that ring; 0 if none fits the device. It is that of one
 *                   block; where there are several, each uses 8 stages at most
 *   reason          the condition that decided, as one lower-case line */
typedef struct weir_transfer_choice {
    weir_transfer_engine engine;
    uint32_t rows_per_chunk;
    uint32_t stages;
    uint32_t stage_bytes;
    char reason[128];
} weir_transfer_choice;

/* Chooses. Pure: the same case gives the same choice, on any machine. -EINVAL:
 * a field breaks a rule above, and one line to `log` (NULL is silent) names it.
 * Threads: any. */
WEIR_API int weir_transfer_explain(const weir_transfer_case *transfer, const weir_log *log,
                                   weir_transfer_choice *choice) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
