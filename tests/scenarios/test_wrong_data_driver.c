/* SPDX-License-Identifier: Apache-2.0 */

/* The same as test_wrong_data.c where the CUDA driver moves the bytes: all tensors of a
 * page or none, whatever it refuses, and nothing beside the page. */

#include "../cuda_rig.h"
#include "transfer/rank.h"

#include <weir/rank.h>

enum {
    T = 16,
    LAYERS = 3,
    DEVICE_PAGES = 20,
    HOST_PAGES = 12,
    MOVES = 6
};

/* A latent with scales behind it, an index, a byte a token, a wide one, a draft. */
static const uint32_t some_layers[] = { 0, 2 };
static const uint32_t last_layer[] = { 2 };
static const weir_tensor tensors[] = {
    { .name = "latent", .row_bytes = 656, .page_bytes = 656 * T },
    { .name = "index",
      .row_bytes = 132,
      .page_bytes = 132 * T,
      .layers = some_layers,
      .n_layers = 2 },
    { .name = "scales", .row_bytes = 1, .page_bytes = T },
    { .name = "wide",
      .row_bytes = 2064,
      .page_bytes = 2064 * T,
      .layers = last_layer,
      .n_layers = 1 },
    { .name = "draft", .row_bytes = 24, .page_bytes = 24 * T, .layers = last_layer, .n_layers = 1 },
};
enum {
    TENSORS = sizeof tensors / sizeof *tensors
};
static const weir_shape shape = { T, LAYERS, TENSORS, tensors };

struct bench {
    struct cuda_rig cuda;
    weir_rank *rank;
    uint64_t step;
    int load_rc, write_rc; /* of the last step; 1: not reported */
    int32_t damaged;       /* host page */
};

static void bench_open(struct bench *b, weir_host_layout layout, uint32_t checksums)
{
    *b = (struct bench){ 0 };
    rig_open_device(&b->cuda);
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = DEVICE_PAGES;
    params.host_pages = HOST_PAGES;
    params.host_layout = layout;
    params.segment_pages = 4;
    params.max_steps = 4;
    params.touch_threads = 1;
    params.checksums = checksums;
    params.log = log_capture_log(&b->cuda.capture);
    cr_assert(zero(int, weir_rank_open(&b->rank, b->cuda.device, &params)), "%s",
              b->cuda.capture.last);
}

static void bench_close(struct bench *b)
{
    weir_rank_close(&b->rank);
    rig_close_device(&b->cuda);
}

/* ---- Bytes ---------------------------------------------------------------- */

static unsigned char byte_of(uint32_t content, uint32_t tensor, uint32_t layer, uint64_t at)
{
    uint32_t mixed = (uint32_t)at * 40503u ^ content * 2654435761u ^ (tensor * 8u + layer) << 17;
    return (unsigned char)((mixed * 2246822519u) >> 23);
}

/* Fills a device page, or counts its bytes that are not of this content. */
static uint64_t touch(struct bench *b, int32_t page, uint32_t content, bool fill)
{
    uint64_t wrong = 0;
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            unsigned char *piece = (unsigned char *)(uintptr_t)weir_rank_device_address(
                b->rank, t, layer, (weir_device_page){ page });
            for (uint64_t i = 0; piece && i < tensors[t].page_bytes; i++) {
                unsigned char right = byte_of(content, t, layer, i);
                if (fill)
                    piece[i] = right;
                wrong += piece[i] != right;
            }
        }
    return wrong;
}

static void fill_all(struct bench *b, uint32_t content)
{
    for (int32_t page = 0; page <= DEVICE_PAGES; page++)
        touch(b, page, content + (uint32_t)page, true);
}

/* ---- Steps ---------------------------------------------------------------- */

static void take_reports(struct bench *b)
{
    uint64_t report[64];
    size_t bytes, n;
    const weir_report_item *items;
    for (int i = 0; i < 8; i++) { /* what failed is made up for by the calls that follow */
        (void)b->cuda.ops->stream_synchronize(b->cuda.device, b->cuda.stream);
        cr_assert(zero(int, weir_rank_report(b->rank, report, sizeof report, &bytes)));
        if (bytes == 0)
            continue;
        cr_assert(zero(int, weir_report_decode(&items, &n, report, bytes, NULL)));
        for (size_t k = 0; k < n; k++) {
            if (items[k].kind == WEIR_REPORT_PAGE)
                b->damaged = (int32_t)items[k].number;
            int *rc = items[k].kind == WEIR_REPORT_LOAD         ? &b->load_rc
                      : items[k].kind == WEIR_REPORT_WRITE_BACK ? &b->write_rc
                                                                : NULL;
            if (rc) {
                cr_assert(eq(int, *rc, 1), "reported twice");
                *rc = items[k].rc;
            }
        }
    }
}

/* A step with these moves, in either direction. */
static void step(struct bench *b, const weir_move *moves, bool load)
{
    weir_order order = { .step = ++b->step, .device_pages = DEVICE_PAGES };
    order.host_pages = HOST_PAGES;
    order.loads = order.writes = moves;
    order.n_loads = load ? MOVES : 0;
    order.n_writes = load ? 0 : MOVES;
    order.write_ticket = load ? 0 : b->step;
    uint64_t bytes[64], begun;
    size_t n;
    cr_assert(zero(int, weir_order_encode(&order, bytes, sizeof bytes, &n, NULL)));
    b->load_rc = b->write_rc = 1;
    b->damaged = 0;
    int rc = weir_rank_begin(b->rank, bytes, n, (uint32_t)(b->step % 4), b->cuda.stream, &begun);
    if (rc == -EIO) /* nothing has begun */
        rc = weir_rank_begin(b->rank, bytes, n, (uint32_t)(b->step % 4), b->cuda.stream, &begun);
    cr_assert(zero(int, rc), "%s", b->cuda.capture.last);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        if (weir_rank_wait_layer(b->rank, begun, layer, b->cuda.stream))
            cr_assert(zero(int, weir_rank_wait_layer(b->rank, begun, layer, b->cuda.stream)));
    cr_assert(zero(int, weir_rank_end(b->rank, begun, b->cuda.stream)));
    take_reports(b);
    cr_assert(le(int, load ? b->load_rc : b->write_rc, 0), "not reported");
    cr_assert(eq(int, load ? b->write_rc : b->load_rc, 1));
}

/* Pages 2..7 go to host pages in two runs and two single ones, and come back into
 * pages 10..15, which have been another's. */
static const weir_move away[MOVES] = { { { 2 }, { 5 } }, { { 3 }, { 6 } }, { { 4 }, { 12 } },
                                       { { 5 }, { 1 } }, { { 6 }, { 2 } }, { { 7 }, { 9 } } };
static const weir_move back[MOVES] = { { { 10 }, { 5 } }, { { 11 }, { 6 } }, { { 12 }, { 12 } },
                                       { { 13 }, { 1 } }, { { 14 }, { 2 } }, { { 15 }, { 9 } } };

/* Writes back, loads, and says whether a transfer was reported as failed. What was
 * reported as done is right in every byte, and nothing else has changed. */
static bool round_trip(struct bench *b, uint32_t content)
{
    fill_all(b, content);
    step(b, away, false);
    for (int32_t page = 0; page <= DEVICE_PAGES; page++)
        cr_assert(zero(u64, touch(b, page, content + (uint32_t)page, false)), "page %d", page);
    if (b->write_rc)
        return true;
    step(b, back, true);
    for (int32_t page = 0; page <= DEVICE_PAGES; page++) {
        bool loaded = page >= 10 && page <= 15;
        uint32_t as = content + (uint32_t)(loaded ? page - 8 : page);
        if (!loaded || b->load_rc == 0)
            cr_assert(zero(u64, touch(b, page, as, false)), "page %d", page);
    }
    return b->load_rc != 0;
}

#define EACH_LAYOUT(layout)                                                                    \
    for (weir_host_layout layout = WEIR_HOST_SEGMENTED; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; \
         layout++)

Test(wrong_data_driver, all_tensors_and_nothing_beside_them, .timeout = 100)
{
    EACH_LAYOUT(layout)
    {
        struct bench b;
        bench_open(&b, layout, 0);
        cr_assert(not(round_trip(&b, 100)));
        cr_assert(not(round_trip(&b, 500)));
        bench_close(&b);
    }
}

/* ---- What the driver refuses ---------------------------------------------- */

static bool refuse(struct bench *b, enum fake_function function, uint32_t n, bool *failed)
{
    uint32_t before = b->cuda.fake->counts[function];
    fake_cuda_fail(b->cuda.fake, function, n, CUDA_ERROR_OUT_OF_MEMORY);
    *failed = round_trip(b, 100 * n);
    bool struck = b->cuda.fake->counts[function] >= before + n;
    b->cuda.fake->faults[function] = (struct fake_fault){ 0 };
    cr_assert(struck || !*failed);
    cr_assert(not(round_trip(b, 100 * n + 50)), "it is over with the fault");
    return struck;
}

/* Every call of a round trip, one after the other. Those that copy make a transfer fail,
 * and all of it; no call makes one look done that is not. */
Test(wrong_data_driver, a_call_that_is_refused, .timeout = 100)
{
    static const struct {
        enum fake_function function;
        bool copies;
    } calls[] = {
        { FAKE_cuMemcpyBatchAsync, true },    { FAKE_cuMemcpy2DAsync, true },
        { FAKE_cuEventRecord, false },        { FAKE_cuStreamWaitEvent, false },
        { FAKE_cuStreamWriteValue32, false }, { FAKE_cuStreamWaitValue32, false },
    };
    uint32_t n_struck[sizeof calls / sizeof *calls] = { 0 };
    EACH_LAYOUT(layout)
    {
        struct bench b;
        bench_open(&b, layout, 0);
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            bool failed;
            for (uint32_t n = 1; refuse(&b, calls[i].function, n, &failed); n++) {
                n_struck[i]++;
                cr_assert(failed || !calls[i].copies, "call %zu, %u", i, n);
            }
        }
        bench_close(&b);
    }
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        cr_assert(lt(u32, 0, n_struck[i]), "call %zu is never made", i);
}

/* Piece by piece, for a driver without batches. */
Test(wrong_data_driver, a_piece_that_is_refused, .timeout = 100)
{
    struct bench b;
    bench_open(&b, WEIR_HOST_SEGMENTED, 0);
    fake_cuda_fail(b.cuda.fake, FAKE_cuMemcpyBatchAsync, 1, CUDA_ERROR_NOT_SUPPORTED);
    cr_assert(not(round_trip(&b, 1)));
    bool failed = true;
    uint32_t n = 0;
    while (failed) {
        bool struck = refuse(&b, FAKE_cuMemcpyAsync, ++n, &failed);
        cr_assert(eq(int, struck, failed), "%u", n);
    }
    cr_assert(lt(u32, 2 * (LAYERS * 2 + 4), n));
    bench_close(&b);
}

/* ---- In host memory ------------------------------------------------------- */

Test(wrong_data_driver, a_host_page_that_changes, .timeout = 100)
{
    EACH_LAYOUT(layout)
    for (uint32_t t = 0; t < TENSORS; t++) {
        struct bench b;
        bench_open(&b, layout, 1);
        fill_all(&b, 7);
        step(&b, away, false);
        step(&b, back, true);
        cr_assert(b.load_rc == 0 && b.damaged == 0);
        const weir_move *move = &away[t % MOVES];
        unsigned char *byte = (unsigned char *)(uintptr_t)weir_geometry_host(
            b.rank->geometry, t, LAYERS - 1, move->host, T - 1);
        byte[tensors[t].row_bytes - 1] ^= 0x80;
        step(&b, back, true);
        cr_assert(eq(int, b.damaged, move->host.id), "tensor %u", t);
        byte[tensors[t].row_bytes - 1] ^= 0x80;
        step(&b, back, true);
        cr_assert(b.load_rc == 0 && b.damaged == 0);
        bench_close(&b);
    }
}
