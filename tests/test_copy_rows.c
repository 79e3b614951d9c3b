/* SPDX-License-Identifier: Apache-2.0 */
#include "log_capture.h"
#include "transfer/copy_rows.h"

#include <weir/cpu_device.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* Argument checks; the bytes are in test_kernels and gpu_copy_rows. */

#define STREAM ((weir_stream *)(uintptr_t)0x40)

static uint64_t indices[4];

static weir_copy_rows_params usual(void)
{
    weir_copy_rows_params p;
    weir_copy_rows_params_init(&p);
    p.n_buffers = 2;
    p.row_bytes = 512;
    p.n_rows = 4;
    p.to = (weir_copy_side){ { 0x100000, 0x200000 }, indices, 512, 100 };
    p.from = (weir_copy_side){ { 0x300000, 0x400000 }, indices, 1024, 100 };
    return p;
}

static void refuse(const weir_copy_rows_params *p, bool tables, const char *word)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    cr_assert(eq(int, weir_copy_rows_check(p, tables, &log), -EINVAL), "%s", word);
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(strstr(capture.last, word) != NULL, "\"%s\" is not in \"%s\"", word, capture.last);
}

static void take(const weir_copy_rows_params *p, bool tables)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    cr_assert(eq(int, weir_copy_rows_check(p, tables, &log), 0), "%s", capture.last);
    cr_assert(eq(u32, capture.lines, 0));
}

Test(copy_rows, takes_good_jobs)
{
    weir_copy_rows_params p = usual();
    take(&p, false);
    p.engine = WEIR_ENGINE_TMA;
    take(&p, false);
    p.n_layers = 32;
    take(&p, true);
    p = usual();
    p.row_bytes = 511;
    p.index_bytes = 4;
    p.n_rows = 1000;
    take(&p, false);
    p.to.buffers[0] = 0x100001;
    p.engine = WEIR_ENGINE_VECTOR;
    take(&p, false);
    p = usual();
    p.n_rows = 0; /* nothing is asked of the sides then */
    p.to = p.from = (weir_copy_side){ { 0, 0 }, NULL, 0, 0 };
    take(&p, false);
}

#define REFUSE(field, value, tables, word)   \
    do {                                     \
        weir_copy_rows_params bad = usual(); \
        bad.field = (value);                 \
        refuse(&bad, tables, word);          \
    } while (0)

Test(copy_rows, refuses_scalars)
{
    REFUSE(engine, WEIR_ENGINE_COPY, false, "engine");
    REFUSE(engine, (weir_transfer_engine)7, false, "engine");
    REFUSE(direction, (weir_copy_direction)3, false, "direction");
    REFUSE(n_buffers, 0, false, "n_buffers");
    REFUSE(n_buffers, 3, false, "n_buffers");
    REFUSE(row_bytes, 0, false, "row_bytes");
    REFUSE(row_bytes, WEIR_COPY_MAX_ROW_BYTES + 1, false, "row_bytes");
    REFUSE(index_bytes, 2, false, "index_bytes");
    REFUSE(page_tokens, 0, false, "page_tokens");
    REFUSE(page_tokens, 1025, false, "page_tokens");
    REFUSE(n_layers, 2, false, "n_layers");
    REFUSE(n_layers, 0, true, "n_layers");
    REFUSE(n_layers, 1025, true, "n_layers");
    weir_copy_rows_params p = usual();
    p.row_bytes = 1 << 20;
    p.n_rows = 1 << 23;
    refuse(&p, false, "n_rows");
}

Test(copy_rows, refuses_sides)
{
    REFUSE(to.indices, NULL, false, "to.indices");
    REFUSE(from.indices, NULL, false, "from.indices");
    REFUSE(to.indices, (char *)indices + 4, false, "to.indices");
    REFUSE(to.stride, 511, false, "to.stride");
    REFUSE(from.stride, 0, false, "from.stride");
    REFUSE(from.stride, UINT64_C(1) << 63, false, "from.stride");
    REFUSE(to.n_rows, UINT64_MAX / 2, false, "to.n_rows");
    REFUSE(to.buffers[0], 0, false, "to.buffers[0]");
    REFUSE(from.buffers[1], 0, false, "from.buffers[1]");
    REFUSE(from.buffers[1], UINT64_C(1) << 63, false, "from.buffers[1]");
    REFUSE(to.buffers[1], 0x200004, true, "to.buffers[1]");
    /* With 4-byte indices the same address is aligned. */
    weir_copy_rows_params p = usual();
    p.index_bytes = 4;
    p.to.indices = (char *)indices + 4;
    take(&p, false);
    /* A second buffer that is not used may be anything. */
    p = usual();
    p.n_buffers = 1;
    p.to.buffers[1] = 0;
    take(&p, false);
}

Test(copy_rows, tma_needs_multiples_of_16)
{
    for (uint32_t i = 0; i < 5; i++) {
        weir_copy_rows_params p = usual();
        p.row_bytes -= i == 0 ? 8 : 0;
        p.to.stride += i == 1 ? 8 : 0;
        p.from.stride += i == 2 ? 8 : 0;
        p.to.buffers[0] += i == 3 ? 8 : 0;
        p.from.buffers[1] += i == 4 ? 8 : 0;
        take(&p, false);
        p.engine = WEIR_ENGINE_TMA;
        refuse(&p, false, "multiples of 16");
    }
    weir_copy_rows_params p = usual();
    p.engine = WEIR_ENGINE_TMA;
    p.to.buffers[0] += 8; /* a table */
    take(&p, true);
}

Test(copy_rows, refuses_overlaps)
{
    weir_copy_rows_params p = usual();
    p.from.buffers[1] = p.to.buffers[0] + 99 * 512; /* the last row */
    refuse(&p, false, "to.buffers[0] overlaps from.buffers[1]");
    p.from.buffers[1] += 512;
    take(&p, false);
    p.from.buffers[1] = p.to.buffers[0] - 99 * 1024 - 511;
    refuse(&p, false, "overlaps");
    p.from.n_rows = 0; /* unknown */
    take(&p, false);
    /* K and V of one allocation, row by row. */
    p = usual();
    p.n_buffers = 1;
    p.to.stride = p.from.stride = 1024;
    p.from.buffers[0] = p.to.buffers[0] + 512;
    take(&p, false);
    p.from.buffers[0] -= 16;
    refuse(&p, false, "overlaps");
    p.from.buffers[0] += 32;
    refuse(&p, false, "overlaps");
    p.to.stride = 2048;
    refuse(&p, false, "overlaps");
}

Test(copy_rows, auto_takes_tma_where_it_pays)
{
    weir_copy_rows_params p = usual();
    p.page_tokens = 64;
    cr_assert(eq(int, weir_copy_rows_engine(&p, false, 90, 232448), WEIR_ENGINE_TMA));
    cr_assert(eq(int, weir_copy_rows_engine(&p, false, 80, 166912), WEIR_ENGINE_VECTOR));
    p.to.buffers[0] += 8;
    cr_assert(eq(int, weir_copy_rows_engine(&p, false, 90, 232448), WEIR_ENGINE_VECTOR));
    p = usual();
    p.from.stride = 512;
    p.page_tokens = 1; /* rows of 512 bytes that lie alone */
    cr_assert(eq(int, weir_copy_rows_engine(&p, false, 90, 232448), WEIR_ENGINE_VECTOR));
    p.page_tokens = 16;
    cr_assert(eq(int, weir_copy_rows_engine(&p, false, 90, 232448), WEIR_ENGINE_TMA));
    p.engine = WEIR_ENGINE_VECTOR;
    cr_assert(eq(int, weir_copy_rows_engine(&p, false, 90, 232448), WEIR_ENGINE_VECTOR));
}

Test(copy_rows, a_cpu_device_has_none)
{
    struct log_capture capture = { 0 };
    weir_cpu_device_params params;
    weir_cpu_device_params_init(&params);
    params.seed = 1;
    params.log = log_capture_log(&capture);
    weir_device *device;
    cr_assert(eq(int, weir_cpu_device_open(&device, &params), 0));
    weir_copy_rows_params p = usual();
    capture.lines = 0;
    cr_assert(eq(int, weir_copy_rows(device, STREAM, &p), -ENOTSUP));
    cr_assert(eq(int, weir_copy_rows_layers(device, STREAM, &p), -ENOTSUP));
    cr_assert(eq(u32, capture.lines, 0));
    cr_assert(eq(int, weir_copy_rows(NULL, STREAM, &p), -EINVAL));
    cr_assert(eq(int, weir_copy_rows(device, NULL, &p), -EINVAL));
    cr_assert(eq(int, weir_copy_rows(device, STREAM, NULL), -EINVAL));
    p.struct_size = 8;
    cr_assert(eq(int, weir_copy_rows(device, STREAM, &p), -EINVAL));
    cr_assert(eq(u32, capture.lines, 3));
    weir_copy_rows_params_init(NULL);
    cr_assert(eq(int, weir_device_close(&device), 0));
}
