/* SPDX-License-Identifier: Apache-2.0 */

/* Layer waits that are captured into a graph, on the driver without a GPU. What
 * a wait for a word would keep is the generation of its capture, so that every
 * replay but the first would pass at once: it must be one for an event, and each
 * load of the slot must record the events anew, behind its copies. */

#include "cuda_rig.h"

#include <weir/order.h>
#include <weir/rank.h>

enum {
    LAYERS = 3,
    PAGES = 8,
    SLOTS = 2
};

static const weir_tensor tensors[] = { { .page_bytes = 4 * 64, .row_bytes = 64 } };
static const weir_shape shape = {
    .page_tokens = 4, .n_layers = LAYERS, .n_tensors = 1, .tensors = tensors
};

struct graph_rig {
    struct cuda_rig cuda;
    weir_rank *rank;
    uint64_t newest;
    uint64_t order[64];
};

static void graph_open(struct graph_rig *r)
{
    *r = (struct graph_rig){ 0 };
    rig_open_device(&r->cuda);
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = params.host_pages = PAGES;
    params.max_steps = 4;
    params.n_slots = SLOTS;
    params.captured_waits = true;
    params.touch_threads = 1;
    params.log = log_capture_log(&r->cuda.capture);
    cr_assert(zero(int, weir_rank_open(&r->rank, r->cuda.device, &params)), "%s",
              r->cuda.capture.last);
}

static void graph_close(struct graph_rig *r)
{
    weir_rank_close(&r->rank);
    rig_close_device(&r->cuda);
}

static void capture(struct graph_rig *r, CUstreamCaptureStatus status)
{
    r->cuda.fake->set_capture((CUstream)r->cuda.stream, status);
}

static void capture_waits(struct graph_rig *r, uint32_t slot)
{
    capture(r, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        cr_assert(zero(int, weir_rank_capture_wait(r->rank, slot, layer, r->cuda.stream)), "%s",
                  r->cuda.capture.last);
    capture(r, CU_STREAM_CAPTURE_STATUS_NONE);
}

/* A step that loads a page, or joins the load of the step before, or neither. */
static void step(struct graph_rig *r, uint32_t slot, bool load, bool join)
{
    weir_move move = { { 1 + (int32_t)(r->newest % PAGES) }, { 3 } };
    uint64_t before = r->newest;
    weir_order order = { .step = r->newest + 1,
                         .device_pages = PAGES,
                         .host_pages = PAGES,
                         .joins = &before,
                         .n_joins = join,
                         .loads = &move,
                         .n_loads = load };
    size_t bytes;
    cr_assert(zero(int, weir_order_encode(&order, r->order, sizeof r->order, &bytes, NULL)));
    cr_assert(
        zero(int, weir_rank_begin(r->rank, r->order, bytes, slot, r->cuda.stream, &r->newest)));
    cr_assert(zero(int, weir_rank_end(r->rank, r->newest, r->cuda.stream)));
}

static void finish(struct graph_rig *r)
{
    uint64_t report[64];
    size_t bytes;
    rig_run(&r->cuda);
    cr_assert(zero(int, weir_rank_report(r->rank, report, sizeof report, &bytes)));
    cr_assert(lt(sz, 0, bytes));
}

/* Records since call `first` that come behind a copy of their layer: the n-th
 * record of a load behind its n-th copy. */
static uint32_t records_behind_copies(const struct graph_rig *r, uint32_t first)
{
    const struct fake_cuda *fake = r->cuda.fake;
    uint32_t copies = 0, records = 0;
    for (uint32_t i = first; i < fake->n_calls; i++) {
        const struct fake_call *call = &fake->calls[i];
        if (call->stream == (CUstream)r->cuda.stream)
            continue;
        copies += call->function == FAKE_cuMemcpyAsync || call->function == FAKE_cuMemcpy2DAsync ||
                  call->function == FAKE_cuMemcpyBatchAsync;
        if (call->function != FAKE_cuEventRecord)
            continue;
        records++;
        cr_assert(eq(u32, copies, records), "a layer's event is recorded at another place");
    }
    return records;
}

Test(rank_capture, a_captured_wait_is_for_an_event)
{
    struct graph_rig r;
    graph_open(&r);
    uint32_t first = r.cuda.fake->n_calls, n_waits = 0;
    uint32_t words = r.cuda.fake->counts[FAKE_cuStreamWaitValue32];
    capture_waits(&r, 1);
    cr_assert(eq(u32, r.cuda.fake->counts[FAKE_cuStreamWaitValue32], words));
    cr_assert(eq(u32, r.cuda.fake->captured((CUstream)r.cuda.stream), LAYERS));
    for (uint32_t i = first; i < r.cuda.fake->n_calls; i++) {
        const struct fake_call *call = &r.cuda.fake->calls[i];
        if (call->function != FAKE_cuStreamWaitEvent)
            continue;
        n_waits++;
        cr_assert(eq(u64, call->arguments[0], CU_EVENT_WAIT_EXTERNAL));
    }
    cr_assert(eq(u32, n_waits, LAYERS));
    graph_close(&r);
}

Test(rank_capture, each_load_of_the_slot_records_its_layers)
{
    struct graph_rig r;
    graph_open(&r);
    uint32_t first = r.cuda.fake->n_calls;
    step(&r, 0, true, false);
    finish(&r);
    cr_assert(zero(u32, records_behind_copies(&r, first)), "nothing is captured yet");

    capture_waits(&r, 0);
    for (int replay = 0; replay < 3; replay++) {
        first = r.cuda.fake->n_calls;
        step(&r, 0, true, false);
        finish(&r);
        cr_assert(eq(u32, records_behind_copies(&r, first), LAYERS), "replay %d", replay);
        first = r.cuda.fake->n_calls;
        step(&r, 1, true, false); /* another slot, which no graph waits for */
        finish(&r);
        cr_assert(zero(u32, records_behind_copies(&r, first)));
    }
    graph_close(&r);
}

/* Who joins a load of another slot waits for its own slot's events. */
Test(rank_capture, a_join_records_the_slots_events_behind_the_load)
{
    struct graph_rig r;
    graph_open(&r);
    capture_waits(&r, 0);
    step(&r, 1, true, false);
    uint32_t records = r.cuda.fake->counts[FAKE_cuEventRecord];
    step(&r, 0, false, true);
    /* the layers of the slot, and the end of the step */
    cr_assert(eq(u32, r.cuda.fake->counts[FAKE_cuEventRecord], records + LAYERS + 1));
    finish(&r);
    records = r.cuda.fake->counts[FAKE_cuEventRecord];
    step(&r, 0, false, false);
    cr_assert(eq(u32, r.cuda.fake->counts[FAKE_cuEventRecord], records + 1));
    finish(&r);
    graph_close(&r);
}
