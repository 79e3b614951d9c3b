/* SPDX-License-Identifier: Apache-2.0 */
#include "log_capture.h"
#include "transfer/gate.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

/* An H200 that loads pages of 64 tokens of 2 KiB, 128 KiB a piece, scattered. */
static weir_transfer_case usual(void)
{
    weir_transfer_case c;
    weir_transfer_case_init(&c);
    c.compute = 90;
    c.shared_bytes = 232448;
    c.page_tokens = 64;
    c.row_bytes = 2048;
    c.page_bytes = 64 * 2048;
    c.alignment = 256;
    return c;
}

static void expect(const weir_transfer_case *c, weir_transfer_engine engine, const char *why)
{
    weir_transfer_choice choice;
    cr_assert(eq(int, weir_transfer_explain(c, NULL, &choice), 0));
    cr_assert(eq(int, choice.engine, engine), "%s: %s", why, choice.reason);
    cr_assert(strstr(choice.reason, why) != NULL, "\"%s\" is not in \"%s\"", why, choice.reason);
}

Test(gate, scattered_pages_go_by_tma)
{
    weir_transfer_case c = usual();
    expect(&c, WEIR_ENGINE_TMA, "runs of 131072 bytes, the copy engine wins from 524288");
}

Test(gate, each_condition_decides)
{
    weir_transfer_case c = usual();
    c.compute = 0;
    expect(&c, WEIR_ENGINE_COPY, "no kernel for compute capability 0.0");
    c.compute = 74;
    expect(&c, WEIR_ENGINE_COPY, "no kernel");
    c.compute = 75;
    expect(&c, WEIR_ENGINE_VECTOR, "compute capability 7.5, tma needs 9.0");
    c.compute = 89;
    expect(&c, WEIR_ENGINE_VECTOR, "8.9");
    c = usual();
    c.exclusive_sms = true;
    expect(&c, WEIR_ENGINE_COPY, "exclusive_sms");
    c = usual();
    c.shared_bytes = 20000;
    expect(&c, WEIR_ENGINE_VECTOR, "hold no ring");
    c = usual();
    c.alignment = 8;
    expect(&c, WEIR_ENGINE_VECTOR, "aligned to 8");
    c = usual();
    c.page_tokens = 1;
    c.row_bytes = 132;
    c.page_bytes = 132;
    expect(&c, WEIR_ENGINE_VECTOR, "page_bytes 132 is not a multiple of 16");
    c.row_bytes = c.page_bytes = 656;
    expect(&c, WEIR_ENGINE_VECTOR, "small and scattered");
    c.row_bytes = c.page_bytes = 1152;
    expect(&c, WEIR_ENGINE_TMA, "runs of 1152 bytes");
}

Test(gate, long_runs_and_write_backs_go_by_copy_engine)
{
    weir_transfer_case c = usual();
    c.run_bytes = 524288;
    c.copies = 304;
    expect(&c, WEIR_ENGINE_COPY, "runs of 524288 bytes");
    c.copies = 305; /* 0.65 µs each, and 2 µs for the layer, are more than 200 µs */
    expect(&c, WEIR_ENGINE_TMA, "305 copies take the cpu more than 200 us");
    c.max_enqueue_us = 201;
    expect(&c, WEIR_ENGINE_COPY, "runs of");
    c = usual();
    c.write_back = true;
    expect(&c, WEIR_ENGINE_COPY, "a write-back");
    c.copies = 100000;
    expect(&c, WEIR_ENGINE_TMA, "runs of 131072");
    c.exclusive_sms = true;
    expect(&c, WEIR_ENGINE_COPY, "exclusive_sms");
}

Test(gate, strided_rows)
{
    weir_transfer_case c = usual();
    c.strided = true;
    c.row_bytes = 512;
    c.page_bytes = 64 * 512;
    expect(&c, WEIR_ENGINE_TMA, "runs of 512 bytes");
    c.page_tokens = 48;
    c.page_bytes = 48 * 512;
    expect(&c, WEIR_ENGINE_VECTOR, "page_tokens 48 is not a multiple of 32 rows a chunk");
    c.row_bytes = 132;
    c.page_bytes = 48 * 132;
    expect(&c, WEIR_ENGINE_VECTOR, "row_bytes 132 is not a multiple of 16");
    /* The same page, contiguous, is one unit of 6336 bytes. */
    c.strided = false;
    expect(&c, WEIR_ENGINE_TMA, "runs of 6336 bytes");
}

Test(gate, rings)
{
    static const struct {
        uint32_t shared, stages, bytes;
    } cases[] = {
        { 232448, 12, 16384 }, /* 9.0, 10.0 */
        { 166912, 10, 16384 }, /* 8.0 */
        { 101376, 6, 16384 },  /* 12.0 */
        { 49152, 11, 4096 },   { 24000, 0, 0 }, { 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t stages = 0, bytes = 0;
        bool fits = weir_gate_ring(cases[i].shared, &stages, &bytes);
        cr_assert(eq(int, fits, cases[i].stages > 0));
        cr_assert(eq(u32, stages, cases[i].stages), "%u", cases[i].shared);
        cr_assert(eq(u32, bytes, cases[i].bytes), "%u", cases[i].shared);
        cr_assert(le(u64, weir_gate_ring_bytes(stages, bytes), cases[i].shared));
    }
}

Test(gate, blocks_share_the_link)
{
    cr_assert(eq(u32, weir_gate_stages(12, 1), 12));
    cr_assert(eq(u32, weir_gate_stages(12, 2), 8));
    cr_assert(eq(u32, weir_gate_stages(8, 4), 8));
    cr_assert(eq(u32, weir_gate_stages(6, 2), 6));
}

Test(gate, rows_per_chunk)
{
    static const struct {
        uint32_t row_bytes, page_tokens, rows;
    } cases[] = { { 512, 64, 64 },  { 1152, 64, 16 }, { 128, 1024, 128 }, { 2048, 64, 16 },
                  { 512, 16, 16 },  { 512, 1, 1 },    { 65536, 64, 1 },   { 656, 64, 32 },
                  { 32768, 64, 1 }, { 1, 1024, 128 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert(eq(u32, weir_gate_rows_per_chunk(cases[i].row_bytes, cases[i].page_tokens, 32768),
                     cases[i].rows),
                  "case %zu", i);
    weir_transfer_case c = usual();
    weir_transfer_choice choice;
    cr_assert(eq(int, weir_transfer_explain(&c, NULL, &choice), 0));
    cr_assert(eq(u32, choice.rows_per_chunk, 8));
    cr_assert(eq(u32, choice.stages, 12));
    cr_assert(eq(u32, choice.stage_bytes, 16384));
    c.row_bytes = 0;
    cr_assert(eq(int, weir_transfer_explain(&c, NULL, &choice), 0));
    cr_assert(eq(u32, choice.rows_per_chunk, 0));
}

static void refuse(const weir_transfer_case *c, const char *word)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    weir_transfer_choice choice = { .engine = WEIR_ENGINE_AUTO };
    cr_assert(eq(int, weir_transfer_explain(c, &log, &choice), -EINVAL));
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(strstr(capture.last, word) != NULL, "%s", capture.last);
    cr_assert(eq(int, choice.engine, WEIR_ENGINE_AUTO));
}

Test(gate, refuses_what_is_no_case)
{
    weir_transfer_case c = usual();
    weir_transfer_choice choice;
    cr_assert(eq(int, weir_transfer_explain(NULL, NULL, &choice), -EINVAL));
    cr_assert(eq(int, weir_transfer_explain(&c, NULL, NULL), -EINVAL));
    c.struct_size = 1;
    refuse(&c, "struct_size");
    c = usual();
    c.page_tokens = 0;
    refuse(&c, "page_tokens");
    c.page_tokens = 1025;
    refuse(&c, "page_tokens");
    c = usual();
    c.page_bytes = 0;
    refuse(&c, "page_bytes");
    c.page_bytes = 2048;
    refuse(&c, "page_bytes");
    c = usual();
    c.row_bytes = 0;
    c.strided = true;
    refuse(&c, "strided");
    c = usual();
    c.alignment = 0;
    refuse(&c, "alignment");
    c.alignment = 24;
    refuse(&c, "alignment");
}

Test(gate, names)
{
    cr_assert(strcmp(weir_transfer_engine_name(WEIR_ENGINE_AUTO), "auto") == 0);
    cr_assert(strcmp(weir_transfer_engine_name(WEIR_ENGINE_TMA), "tma") == 0);
    cr_assert(strcmp(weir_transfer_engine_name(WEIR_ENGINE_VECTOR), "vector") == 0);
    cr_assert(strcmp(weir_transfer_engine_name(WEIR_ENGINE_COPY), "copy") == 0);
    cr_assert(weir_transfer_engine_name((weir_transfer_engine)4) == NULL);
    weir_transfer_case_init(NULL);
}

/* ---- From a transfer ------------------------------------------------------- */

/* The copy engine gets at most 8 MiB at once, so a long run is several copies. */
Test(gate, long_runs_are_counted_in_pieces)
{
    static const weir_tensor tensors[] = { { .page_bytes = 64 * 8192, .row_bytes = 8192 } };
    static const weir_shape shape = { 64, 3, 1, tensors };
    static const struct weir_run runs[] = { { 1, 1, 16 }, { 20, 20, 17 }, { 40, 40, 1 } };
    struct weir_geometry *g;
    cr_assert(
        eq(int, weir_geometry_create(&g, &shape, NULL, 64, WEIR_HOST_LAYER_FIRST, 64, 0, NULL), 0));
    weir_geometry_bind(g, 0x100000, 0x200000, 0);
    struct weir_transfer transfer = {
        .geometry = g, .runs = runs, .n_runs = 3, .direction = WEIR_LOAD, .layer_end = 3
    };
    weir_transfer_case c;
    weir_transfer_case_init(&c);
    weir_gate_describe(&c, &transfer, 0);
    cr_assert(eq(u64, c.copies, 3 * (1 + 2 + 1)));
    weir_geometry_destroy(&g);
}

static weir_transfer_case describe(weir_host_layout layout, const weir_device_plane *planes)
{
    static const weir_tensor tensors[] = { { .page_bytes = 64 * 512, .row_bytes = 512 } };
    static const weir_shape shape = { 64, 2, 1, tensors };
    static const struct weir_run runs[] = { { 1, 1, 4 }, { 7, 9, 2 } };
    struct weir_geometry *g;
    cr_assert(eq(int, weir_geometry_create(&g, &shape, planes, 20, layout, 20, 10, NULL), 0));
    weir_geometry_bind(g, 0x100000, 0x200010, 0);
    struct weir_transfer transfer = {
        .geometry = g, .runs = runs, .n_runs = 2, .direction = WEIR_WRITE_BACK, .layer_end = 2
    };
    weir_transfer_case c;
    weir_transfer_case_init(&c);
    weir_gate_describe(&c, &transfer, 0);
    weir_geometry_destroy(&g);
    return c;
}

Test(gate, describes_a_transfer)
{
    weir_transfer_case c = describe(WEIR_HOST_LAYER_FIRST, NULL);
    cr_assert(c.write_back && !c.strided);
    cr_assert(eq(u32, c.page_tokens, 64));
    cr_assert(eq(u64, c.page_bytes, 64 * 512));
    cr_assert(eq(u32, c.alignment, 16)); /* the host pool's */
    cr_assert(eq(u64, c.copies, 4));     /* two runs in two layers */
    cr_assert(eq(u64, c.run_bytes, 3 * 64 * 512));

    c = describe(WEIR_HOST_PAGE_FIRST_DIRECT, NULL);
    cr_assert(eq(u64, c.copies, 12)); /* pages are apart */
    cr_assert(eq(u64, c.run_bytes, 64 * 512));
    cr_assert(not(c.strided));

    c = describe(WEIR_HOST_PAGE_FIRST, NULL);
    cr_assert(c.strided);
    cr_assert(eq(u64, c.run_bytes, 512));

    const weir_device_plane planes[] = { { 0x100000, 65536 + 8 }, { 0x400000, 65536 + 8 } };
    c = describe(WEIR_HOST_LAYER_FIRST, planes);
    cr_assert(eq(u32, c.alignment, 8));
    cr_assert(eq(u64, c.copies, 12));
}
