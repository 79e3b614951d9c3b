/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/copy_rows.h"

#include "base/log.h"
#include "transfer/gate.h"

#include <errno.h>
#include <inttypes.h>

#define MAX_ADDRESS (UINT64_C(1) << 63)

void weir_copy_rows_params_init(weir_copy_rows_params *params)
{
    if (params)
        *params = (weir_copy_rows_params){ .struct_size = sizeof *params,
                                           .n_buffers = 1,
                                           .index_bytes = 8,
                                           .page_tokens = 1,
                                           .n_layers = 1 };
}

/* ---- Checks -------------------------------------------------------------- */

static int check_scalars(const weir_copy_rows_params *p, bool tables, const weir_log *log)
{
    if (p->engine != WEIR_ENGINE_AUTO && p->engine != WEIR_ENGINE_TMA &&
        p->engine != WEIR_ENGINE_VECTOR)
        return weir_invalid(log, "copy rows: engine is %d, must be auto, tma or vector",
                            (int)p->engine);
    if ((unsigned)p->direction > WEIR_COPY_DEVICE_TO_DEVICE)
        return weir_invalid(log, "copy rows: direction is %d, must be 0..2", (int)p->direction);
    if (p->n_buffers < 1 || p->n_buffers > 2)
        return weir_invalid(log, "copy rows: n_buffers is %u, must be 1 or 2", p->n_buffers);
    if (p->row_bytes < 1 || p->row_bytes > WEIR_COPY_MAX_ROW_BYTES)
        return weir_invalid(log, "copy rows: row_bytes is %u, must be 1..%u", p->row_bytes,
                            WEIR_COPY_MAX_ROW_BYTES);
    if (p->index_bytes != 4 && p->index_bytes != 8)
        return weir_invalid(log, "copy rows: index_bytes is %u, must be 4 or 8", p->index_bytes);
    if (p->page_tokens < 1 || p->page_tokens > WEIR_MAX_PAGE_TOKENS)
        return weir_invalid(log, "copy rows: page_tokens is %u, must be 1..%u", p->page_tokens,
                            WEIR_MAX_PAGE_TOKENS);
    if (tables && (p->n_layers < 1 || p->n_layers > WEIR_MAX_LAYERS))
        return weir_invalid(log, "copy rows: n_layers is %u, must be 1..%u", p->n_layers,
                            WEIR_MAX_LAYERS);
    if (!tables && p->n_layers != 1)
        return weir_invalid(log, "copy rows: n_layers is %u, must be 1 for one layer", p->n_layers);
    /* The kernels number rows, or parts of them, in 32 bits. */
    uint64_t parts = p->row_bytes / 1024 + 1;
    if (parts * p->n_rows > UINT32_MAX)
        return weir_invalid(log, "copy rows: n_rows is %u, too many rows of %u bytes", p->n_rows,
                            p->row_bytes);
    return 0;
}

static int check_side(const weir_copy_rows_params *p, const weir_copy_side *side, const char *name,
                      bool tables, const weir_log *log)
{
    if (!side->indices || (uintptr_t)side->indices % p->index_bytes != 0)
        return weir_invalid(log, "copy rows: %s.indices is %p, must be aligned to %u and not NULL",
                            name, side->indices, p->index_bytes);
    if (side->stride < p->row_bytes || side->stride >= MAX_ADDRESS)
        return weir_invalid(log, "copy rows: %s.stride is %" PRIu64 ", must be %u or more", name,
                            side->stride, p->row_bytes);
    if (side->n_rows > MAX_ADDRESS / side->stride)
        return weir_invalid(log, "copy rows: %s.n_rows is %" PRIu64 ", too many", name,
                            side->n_rows);
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        uint64_t base = side->buffers[i];
        if (base == 0 || base >= MAX_ADDRESS || (tables && base % 8 != 0))
            return weir_invalid(log, "copy rows: %s.buffers[%u] is 0x%" PRIx64 "%s", name, i, base,
                                tables ? ", must be a table aligned to 8" : ", must be an address");
    }
    return 0;
}

/* Whether a row of one buffer shares a byte with a row of the other. */
static bool rows_overlap(const weir_copy_rows_params *p, uint64_t to, uint64_t from)
{
    uint64_t to_end = to + (p->to.n_rows - 1) * p->to.stride + p->row_bytes;
    uint64_t from_end = from + (p->from.n_rows - 1) * p->from.stride + p->row_bytes;
    if (to_end <= from || from_end <= to)
        return false;
    if (p->to.stride != p->from.stride)
        return true;
    /* Interleaved: rows of one lie in the gaps between the other's. */
    uint64_t apart = (to > from ? to - from : from - to) % p->to.stride;
    return apart < p->row_bytes || p->to.stride - apart < p->row_bytes;
}

static int check_overlap(const weir_copy_rows_params *p, const weir_log *log)
{
    if (p->to.n_rows == 0 || p->from.n_rows == 0)
        return 0;
    for (uint32_t i = 0; i < p->n_buffers; i++)
        for (uint32_t j = 0; j < p->n_buffers; j++)
            if (rows_overlap(p, p->to.buffers[i], p->from.buffers[j]))
                return weir_invalid(log, "copy rows: to.buffers[%u] overlaps from.buffers[%u]", i,
                                    j);
    return 0;
}

/* The bits of everything that has to be a multiple of 16; a table's buffers are
 * out of sight here. */
static uint64_t alignment_bits(const weir_copy_rows_params *p, bool tables)
{
    uint64_t bits = p->row_bytes | p->to.stride | p->from.stride;
    for (uint32_t i = 0; i < p->n_buffers && !tables; i++)
        bits |= p->to.buffers[i] | p->from.buffers[i];
    return bits;
}

int weir_copy_rows_check(const weir_copy_rows_params *params, bool tables, const weir_log *log)
{
    int rc = check_scalars(params, tables, log);
    if (!rc && params->n_rows > 0)
        rc = check_side(params, &params->to, "to", tables, log);
    if (!rc && params->n_rows > 0)
        rc = check_side(params, &params->from, "from", tables, log);
    if (!rc && params->n_rows > 0 && !tables)
        rc = check_overlap(params, log);
    if (!rc && params->engine == WEIR_ENGINE_TMA && params->n_rows > 0 &&
        alignment_bits(params, tables) % 16 != 0)
        rc = weir_invalid(log, "copy rows: engine is tma, but addresses, strides and row_bytes are "
                               "not all multiples of 16");
    return rc;
}

/* ---- The engine ---------------------------------------------------------- */

weir_transfer_engine weir_copy_rows_engine(const weir_copy_rows_params *params, bool tables,
                                           uint32_t compute, uint32_t shared_bytes)
{
    if (params->engine != WEIR_ENGINE_AUTO)
        return params->engine;
    bool together =
        params->to.stride == params->row_bytes && params->from.stride == params->row_bytes;
    weir_transfer_case c;
    weir_transfer_case_init(&c);
    c.compute = compute;
    c.shared_bytes = shared_bytes;
    c.page_tokens = params->page_tokens;
    c.row_bytes = params->row_bytes;
    c.page_bytes = (uint64_t)params->row_bytes * params->page_tokens;
    c.strided = !together;
    c.alignment = alignment_bits(params, tables) % 16 == 0 ? 16 : 1;
    char reason[128];
    return weir_gate_refuse_tma(&c, reason, sizeof reason) ? WEIR_ENGINE_VECTOR : WEIR_ENGINE_TMA;
}

/* ---- Calls --------------------------------------------------------------- */

static int copy_rows(weir_device *device, weir_stream *stream, const weir_copy_rows_params *params,
                     bool tables)
{
    if (!device)
        return -EINVAL;
    const weir_log *log = &device->log;
    if (!stream || !params)
        return weir_invalid(log, "copy rows: %s is NULL", params ? "stream" : "params");
    if (params->struct_size != sizeof *params)
        return weir_invalid(log,
                            "copy rows: struct_size is %u, not %zu: use weir_copy_rows_params_init",
                            params->struct_size, sizeof *params);
    int rc = weir_copy_rows_check(params, tables, log);
    if (rc)
        return rc;
    if (!device->ops->copy_rows)
        return -ENOTSUP;
    return params->n_rows == 0 ? 0 : device->ops->copy_rows(device, stream, params, tables);
}

int weir_copy_rows(weir_device *device, weir_stream *stream, const weir_copy_rows_params *params)
{
    return copy_rows(device, stream, params, false);
}

int weir_copy_rows_layers(weir_device *device, weir_stream *stream,
                          const weir_copy_rows_params *params)
{
    return copy_rows(device, stream, params, true);
}
