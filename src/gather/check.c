/* SPDX-License-Identifier: Apache-2.0 */
#include "gather/gather.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>

#define MAX_LENGTH UINT32_MAX
#define MAX_ROWS INT32_MAX

/* ---- One bank ------------------------------------------------------------ */

static int check_length(const weir_log *log, uint32_t bank, const char *field, uint64_t value)
{
    if (value == 0 || value > MAX_LENGTH)
        return weir_invalid(log, "gather: bank %u: %s is %" PRIu64 ", must be 1..%" PRIu32, bank,
                            field, value, MAX_LENGTH);
    return 0;
}

static int check_pitch(const weir_log *log, uint32_t bank, const char *field, uint64_t pitch,
                       uint64_t bytes)
{
    if (pitch < bytes || pitch > MAX_LENGTH)
        return weir_invalid(log,
                            "gather: bank %u: %s is %" PRIu64 ", must be %" PRIu64 "..%" PRIu32,
                            bank, field, pitch, bytes, MAX_LENGTH);
    return 0;
}

/* A row without a payload is one line. */
static int complete_lines(weir_bank *bank, const weir_log *log, uint32_t index)
{
    if (bank->payload_bytes == 0) {
        if (bank->payload_lines || bank->dst_pitch || bank->src_pitch)
            return weir_invalid(log,
                                "gather: bank %u: payload_bytes is 0, but payload_lines or a "
                                "pitch is not",
                                index);
        bank->payload_bytes = bank->row_bytes;
        bank->payload_lines = 1;
        bank->dst_pitch = bank->row_bytes;
        bank->src_pitch = bank->row_bytes;
        return check_length(log, index, "row_bytes", bank->row_bytes);
    }
    int rc = check_length(log, index, "payload_bytes", bank->payload_bytes);
    if (!rc)
        rc = check_length(log, index, "payload_lines", bank->payload_lines);
    if (!rc && bank->payload_lines > MAX_LENGTH / bank->payload_bytes)
        rc = weir_invalid(log,
                          "gather: bank %u: payload_lines is %" PRIu64 ", must be at most %" PRIu64,
                          index, bank->payload_lines, MAX_LENGTH / bank->payload_bytes);
    if (!rc)
        rc = check_pitch(log, index, "dst_pitch", bank->dst_pitch, bank->payload_bytes);
    return rc ? rc : check_pitch(log, index, "src_pitch", bank->src_pitch, bank->payload_bytes);
}

static int check_side(const weir_log *log, uint32_t bank, const char *side, uint64_t base,
                      uint64_t stride, uint64_t rows, uint64_t extent)
{
    if (stride < extent)
        return weir_invalid(
            log, "gather: bank %u: %s_row_stride is %" PRIu64 ", must be at least %" PRIu64, bank,
            side, stride, extent);
    if (rows > MAX_ROWS)
        return weir_invalid(log, "gather: bank %u: %s_rows is %" PRIu64 ", must be at most %d",
                            bank, side, rows, MAX_ROWS);
    if (rows > 0 && stride > (UINT64_MAX - base) / rows)
        return weir_invalid(log,
                            "gather: bank %u: %" PRIu64 " %s rows of %" PRIu64
                            " bytes at 0x%" PRIx64 " end beyond all addresses",
                            bank, rows, side, stride, base);
    return 0;
}

static int complete_bank(weir_bank *bank, const weir_log *log, uint32_t index)
{
    int rc = complete_lines(bank, log, index);
    if (rc)
        return rc;
    if (bank->dst_row_stride == 0)
        bank->dst_row_stride = bank->row_bytes;
    if (bank->src_row_stride == 0)
        bank->src_row_stride = bank->row_bytes;
    rc = check_side(log, index, "dst", bank->dst, bank->dst_row_stride, bank->dst_rows,
                    weir_bank_extent(bank, bank->dst_pitch));
    return rc ? rc
              : check_side(log, index, "src", bank->src, bank->src_row_stride, bank->src_rows,
                           weir_bank_extent(bank, bank->src_pitch));
}

/* ---- The rest ------------------------------------------------------------ */

static int check_scalars(const weir_gather_params *p, const weir_log *log)
{
    if (p->n_banks == 0 || p->n_banks > WEIR_GATHER_MAX_BANKS)
        return weir_invalid(log, "gather: n_banks is %u, must be 1..%u", p->n_banks,
                            WEIR_GATHER_MAX_BANKS);
    if (!p->banks)
        return weir_invalid(log, "gather: banks is NULL");
    if (p->direction < WEIR_COPY_HOST_TO_DEVICE || p->direction > WEIR_COPY_DEVICE_TO_DEVICE)
        return weir_invalid(log, "gather: direction is %d, not one of 0..2", (int)p->direction);
    if (p->engine != WEIR_ENGINE_AUTO && p->engine != WEIR_ENGINE_TMA &&
        p->engine != WEIR_ENGINE_VECTOR)
        return weir_invalid(log, "gather: engine is %d, must be auto, tma or vector",
                            (int)p->engine);
    if (p->max_count == 0 || p->max_count > WEIR_GATHER_MAX_COUNT)
        return weir_invalid(log, "gather: max_count is %u, must be 1..%u", p->max_count,
                            WEIR_GATHER_MAX_COUNT);
    if (p->index_bytes != 4 && p->index_bytes != 8)
        return weir_invalid(log, "gather: index_bytes is %u, must be 4 or 8", p->index_bytes);
    if (p->ctas > WEIR_GATHER_MAX_CTAS)
        return weir_invalid(log, "gather: ctas is %u, must be at most %u", p->ctas,
                            WEIR_GATHER_MAX_CTAS);
    if (p->threads > 512 || p->threads % 32 != 0)
        return weir_invalid(log, "gather: threads is %u, must be a multiple of 32 up to 512",
                            p->threads);
    if (p->stages == 1 || p->stages > 16)
        return weir_invalid(log, "gather: stages is %u, must be 2..16", p->stages);
    if (p->stage_bytes != 0 &&
        (p->stage_bytes < 1024 || p->stage_bytes > 131072 || p->stage_bytes % 128 != 0))
        return weir_invalid(log,
                            "gather: stage_bytes is %u, must be a multiple of 128 in 1024..131072",
                            p->stage_bytes);
    return 0;
}

int weir_gather_check(const weir_gather_params *params, const weir_log *log, weir_bank *banks)
{
    int rc = check_scalars(params, log);
    for (uint32_t i = 0; i < params->n_banks && !rc; i++) {
        banks[i] = params->banks[i];
        rc = complete_bank(&banks[i], log, i);
    }
    return rc;
}
