/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/gate.h"

#include "base/log.h"
#include "kernels/args.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

const char *weir_transfer_engine_name(weir_transfer_engine engine)
{
    static const char *const names[] = { "auto", "tma", "vector", "copy" };
    return (unsigned)engine < sizeof names / sizeof *names ? names[engine] : NULL;
}

void weir_transfer_case_init(weir_transfer_case *transfer)
{
    if (transfer)
        *transfer = (weir_transfer_case){ .struct_size = sizeof *transfer,
                                          .page_tokens = 1,
                                          .alignment = 1,
                                          .max_enqueue_us = 200,
                                          .n_layers = 1,
                                          .copy_engine_bytes = 512u << 10 };
}

/* ---- The ring ------------------------------------------------------------ */

uint64_t weir_gate_ring_bytes(uint32_t stages, uint32_t stage_bytes)
{
    return (uint64_t)stages * (stage_bytes + WEIR_TMA_STAGE_OVERHEAD);
}

bool weir_gate_ring(uint32_t shared_bytes, uint32_t *stages, uint32_t *stage_bytes)
{
    for (uint32_t bytes = 16u << 10; bytes >= 4u << 10; bytes /= 2) {
        uint64_t fit = shared_bytes / weir_gate_ring_bytes(1, bytes);
        if (fit < 6)
            continue;
        *stages = fit < 12 ? (uint32_t)fit : 12;
        *stage_bytes = bytes;
        return true;
    }
    return false;
}

uint32_t weir_gate_stages(uint32_t stages, uint32_t ctas)
{
    return ctas > 1 && stages > 8 ? 8 : stages;
}

uint32_t weir_gate_rows_per_chunk(uint32_t row_bytes, uint32_t page_tokens, uint32_t stage_bytes)
{
    uint32_t most = stage_bytes / row_bytes;
    if (most > page_tokens)
        most = page_tokens;
    if (most > WEIR_GATE_MAX_CHUNK_ROWS)
        most = WEIR_GATE_MAX_CHUNK_ROWS;
    uint32_t rows = 1;
    while (rows * 2 <= most)
        rows *= 2;
    return rows;
}

/* ---- The gate ------------------------------------------------------------ */

/* What is contiguous on both sides, at the least. */
static uint64_t unit_bytes(const weir_transfer_case *c)
{
    return c->strided ? c->row_bytes : c->page_bytes;
}

static uint64_t run_bytes(const weir_transfer_case *c)
{
    return c->run_bytes ? c->run_bytes : unit_bytes(c);
}

const char *weir_gate_refuse_tma(const weir_transfer_case *c, char *reason, size_t capacity)
{
    uint32_t stages;
    uint32_t stage_bytes;
    int n = 0;
    if (c->compute < 90) {
        n = snprintf(reason, capacity, "compute capability %u.%u, tma needs 9.0", c->compute / 10,
                     c->compute % 10);
    } else if (!weir_gate_ring(c->shared_bytes, &stages, &stage_bytes)) {
        n = snprintf(reason, capacity, "%u bytes of shared memory hold no ring", c->shared_bytes);
    } else if (unit_bytes(c) % 16 != 0) {
        n = snprintf(reason, capacity, "%s_bytes %" PRIu64 " is not a multiple of 16",
                     c->strided ? "row" : "page", unit_bytes(c));
    } else if (c->alignment < 16) {
        n = snprintf(reason, capacity, "addresses and strides are aligned to %u bytes, not to 16",
                     c->alignment);
    } else if (c->strided) {
        uint32_t rows = weir_gate_rows_per_chunk(c->row_bytes, c->page_tokens, stage_bytes);
        if (c->page_tokens % rows != 0)
            n = snprintf(reason, capacity, "page_tokens %u is not a multiple of %u rows a chunk",
                         c->page_tokens, rows);
    } else if (run_bytes(c) < WEIR_GATE_SCATTERED_BYTES) {
        n = snprintf(reason, capacity,
                     "runs of %" PRIu64 " bytes are below %u, small and scattered", run_bytes(c),
                     WEIR_GATE_SCATTERED_BYTES);
    }
    return n > 0 ? reason : NULL;
}

static bool is_enqueued_in_time(const weir_transfer_case *c)
{
    uint64_t budget = (uint64_t)c->max_enqueue_us * 1000;
    uint64_t calls = (uint64_t)c->n_layers * WEIR_GATE_LAYER_NS;
    return calls <= budget && c->copies <= (budget - calls) / WEIR_GATE_COPY_NS;
}

/* Why the copy engine, or NULL. */
static const char *choose_copy(const weir_transfer_case *c, char *reason, size_t capacity)
{
    if (c->compute < 75) {
        snprintf(reason, capacity, "no kernel for compute capability %u.%u", c->compute / 10,
                 c->compute % 10);
    } else if (c->exclusive_sms) {
        snprintf(reason, capacity, "exclusive_sms: the forward pass keeps every sm");
    } else if (!is_enqueued_in_time(c)) {
        return NULL;
    } else if (c->write_back) {
        snprintf(reason, capacity, "a write-back: the copy engine disturbs a forward pass least");
    } else if (run_bytes(c) >= c->copy_engine_bytes) {
        snprintf(reason, capacity, "runs of %" PRIu64 " bytes, the copy engine wins from %" PRIu64,
                 run_bytes(c), c->copy_engine_bytes);
    } else {
        return NULL;
    }
    return reason;
}

static int check_case(const weir_transfer_case *c, const weir_log *log)
{
    if (c->struct_size != sizeof *c)
        return weir_invalid(
            log, "transfer explain: struct_size is %u, not %zu: use weir_transfer_case_init",
            c->struct_size, sizeof *c);
    if (c->page_tokens < 1 || c->page_tokens > WEIR_MAX_PAGE_TOKENS)
        return weir_invalid(log, "transfer explain: page_tokens is %u, must be 1..%u",
                            c->page_tokens, WEIR_MAX_PAGE_TOKENS);
    if (c->page_bytes < 1)
        return weir_invalid(log, "transfer explain: page_bytes is 0, must be 1 or more");
    if (c->row_bytes && c->page_bytes != (uint64_t)c->row_bytes * c->page_tokens)
        return weir_invalid(log,
                            "transfer explain: page_bytes is %" PRIu64
                            ", must be row_bytes times page_tokens, %" PRIu64,
                            c->page_bytes, (uint64_t)c->row_bytes * c->page_tokens);
    if (c->strided && !c->row_bytes)
        return weir_invalid(log, "transfer explain: strided needs row_bytes");
    if (c->alignment == 0 || (c->alignment & (c->alignment - 1)) != 0)
        return weir_invalid(log, "transfer explain: alignment is %u, must be a power of two",
                            c->alignment);
    return 0;
}

int weir_transfer_explain(const weir_transfer_case *transfer, const weir_log *log,
                          weir_transfer_choice *choice)
{
    if (!transfer || !choice)
        return weir_invalid(log, "transfer explain: %s is NULL", transfer ? "choice" : "transfer");
    int rc = check_case(transfer, log);
    if (rc)
        return rc;
    weir_transfer_choice made = { .engine = WEIR_ENGINE_COPY };
    if (weir_gate_ring(transfer->shared_bytes, &made.stages, &made.stage_bytes) &&
        transfer->row_bytes)
        made.rows_per_chunk =
            weir_gate_rows_per_chunk(transfer->row_bytes, transfer->page_tokens, made.stage_bytes);
    if (!choose_copy(transfer, made.reason, sizeof made.reason)) {
        bool refused = weir_gate_refuse_tma(transfer, made.reason, sizeof made.reason);
        made.engine = refused ? WEIR_ENGINE_VECTOR : WEIR_ENGINE_TMA;
        if (!refused && run_bytes(transfer) < transfer->copy_engine_bytes)
            snprintf(made.reason, sizeof made.reason,
                     "runs of %" PRIu64 " bytes, the copy engine wins from %" PRIu64,
                     run_bytes(transfer), transfer->copy_engine_bytes);
        else if (!refused)
            snprintf(made.reason, sizeof made.reason,
                     "%" PRIu64 " copies take the cpu more than %u us", transfer->copies,
                     transfer->max_enqueue_us);
    }
    *choice = made;
    return 0;
}

/* ---- From a transfer ----------------------------------------------------- */

/* The largest power of two that divides all of these bits' numbers. */
static uint32_t alignment_of(uint64_t bits)
{
    uint64_t lowest = bits & (~bits + 1);
    return lowest && lowest < 1u << 30 ? (uint32_t)lowest : 1u << 30;
}

/* Pieces that the copy engine is given for the runs of one layer. */
static uint64_t count_pieces(const struct weir_transfer *transfer, uint64_t page_bytes)
{
    uint64_t pieces = 0;
    for (uint32_t i = 0; i < transfer->n_runs; i++) {
        uint64_t bytes = (uint32_t)transfer->runs[i].count * page_bytes;
        pieces += (bytes + WEIR_GATE_PIECE_BYTES - 1) / WEIR_GATE_PIECE_BYTES;
    }
    return pieces;
}

/* Layers of the transfer that hold the tensor, and the bits of their addresses. */
static uint32_t walk_layers(const struct weir_transfer *transfer, uint32_t tensor, uint64_t *bits,
                            bool *dense)
{
    const struct weir_geometry *g = transfer->geometry;
    const struct weir_geometry_tensor *t = &g->tensors[tensor];
    uint32_t n = 0;
    for (uint32_t layer = transfer->layer_begin; layer < transfer->layer_end; layer++) {
        int32_t index = g->layer_index[(size_t)tensor * g->n_layers + layer];
        if (index < 0)
            continue;
        const weir_device_plane *plane = &g->planes[t->first_plane + (uint32_t)index];
        *bits |= plane->base | plane->page_stride;
        *dense = *dense && plane->page_stride == t->page_bytes;
        n++;
    }
    return n;
}

void weir_gate_describe(weir_transfer_case *out, const struct weir_transfer *transfer,
                        uint32_t tensor)
{
    const struct weir_geometry *g = transfer->geometry;
    const struct weir_geometry_tensor *t = &g->tensors[tensor];
    struct weir_host_place place = weir_geometry_place(g, t);
    uint64_t bits = place.base | t->host_offset | t->host_layer_stride | t->host_page_stride |
                    place.segment_stride | (t->host_contiguous ? 0 : t->host_token_stride);
    bool merges = t->host_contiguous && t->host_page_stride == t->page_bytes;
    uint64_t layers = walk_layers(transfer, tensor, &bits, &merges);
    uint64_t pages = weir_transfer_pages(transfer);
    out->write_back = transfer->direction == WEIR_WRITE_BACK;
    out->page_tokens = g->page_tokens;
    out->row_bytes = t->row_bytes;
    out->page_bytes = t->page_bytes;
    out->strided = !t->host_contiguous;
    out->alignment = alignment_of(bits);
    out->n_layers = transfer->layer_end - transfer->layer_begin;
    out->copies = layers * (merges ? count_pieces(transfer, t->page_bytes) : pages);
    out->run_bytes = out->strided ? t->row_bytes : t->page_bytes;
    if (merges && transfer->n_runs)
        out->run_bytes = pages / transfer->n_runs * t->page_bytes;
}
