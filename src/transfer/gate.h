/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_GATE_H
#define WEIR_TRANSFER_GATE_H

/* Which engine: the conditions, in the order in which they decide.
 *
 *   no kernel for this device ─────────────────────────────► copy
 *   exclusive_sms ─────────────────────────────────────────► copy
 *   within the CPU's budget, and a write-back or long runs ► copy
 *   all conditions of the TMA kernel hold ─────────────────► tma
 *   else ──────────────────────────────────────────────────► vector
 *
 * Invariant: what is chosen is always able to do the copy; everything else is
 * about speed. */

#include "device/device.h"

#include <weir/transfer.h>

/* What a layer's call and what each copy of it take of the CPU, by measurement on
 * an H200 host: 32 layers take 0.07 ms with 64 copies, 0.25 with 256, 0.39 with
 * 512. */
#define WEIR_GATE_LAYER_NS 2000u
#define WEIR_GATE_COPY_NS 650u

/* The most that the copy engine is given at once. A server's own small copy waits
 * for the piece that is running, by measurement no longer beside 16 MiB than
 * beside 2, while each piece takes time of the CPU. */
#define WEIR_GATE_PIECE_BYTES (UINT64_C(8) << 20)

/* Below so many bytes a bulk copy costs more than its bytes: its issue is the
 * limit, not the link. */
#define WEIR_GATE_SCATTERED_BYTES 1024u

#define WEIR_GATE_MAX_CHUNK_ROWS 128u

/* The ring of one CTA, dealt to its warps: 12 × 16 KiB where that fits, else
 * fewer and smaller stages. By measurement on an H200: as fast as 6 × 32 KiB where
 * pieces are contiguous, and faster by a third where rows are apart, because more
 * warps issue them. False: none of use fits. */
bool weir_gate_ring(uint32_t shared_bytes, uint32_t *stages, uint32_t *stage_bytes);

/* How many of a ring's stages each of so many CTAs uses: all if it is alone, else 8
 * at most, since what two have in flight beyond that only queues. By measurement on
 * an H200: two CTAs of 8 instead of 12 stages lose 1 % by themselves, gain 1 to 2
 * points beside a forward pass, and a server's own small copy waits 22 us instead of
 * 29 (p99). */
uint32_t weir_gate_stages(uint32_t stages, uint32_t ctas);

/* Shared memory that a ring takes. */
uint64_t weir_gate_ring_bytes(uint32_t stages, uint32_t stage_bytes);

/* The largest power of two of rows that fit a stage and a page, at most 128. */
uint32_t weir_gate_rows_per_chunk(uint32_t row_bytes, uint32_t page_tokens, uint32_t stage_bytes);

/* What decides whether the TMA kernel may be used: NULL, or the condition that
 * fails, as text in `reason`. */
const char *weir_gate_refuse_tma(const weir_transfer_case *transfer, char *reason, size_t capacity);

/* Fills the fields that follow from the geometry and the transfer's runs; the
 * device, the link and the budget stay as they are. */
void weir_gate_describe(weir_transfer_case *out, const struct weir_transfer *transfer,
                        uint32_t tensor);

#endif
