/* SPDX-License-Identifier: Apache-2.0 */

/* Work in a stream that nobody meant: kernels on the default stream, a copy behind
 * a stream that it has nothing to do with, a wait that is missing from a graph because
 * there was nothing to wait for when it was captured. */

#include "driver_rig.h"

/* ---- The stream of each call ---------------------------------------------- */

static bool enqueues(enum fake_function function)
{
    switch (function) {
    case FAKE_cuMemcpyAsync:
    case FAKE_cuMemcpy2DAsync:
    case FAKE_cuMemcpyBatchAsync:
    case FAKE_cuEventRecord:
    case FAKE_cuStreamWaitEvent:
    case FAKE_cuStreamWriteValue32:
    case FAKE_cuStreamWaitValue32:
    case FAKE_cuStreamSynchronize:
        return true;
    default:
        return false;
    }
}

static bool copies(enum fake_function function)
{
    return function == FAKE_cuMemcpyAsync || function == FAKE_cuMemcpy2DAsync ||
           function == FAKE_cuMemcpyBatchAsync;
}

/* Two steps with a load, a join and write-backs, in two streams. */
static void work(struct driver_rig *d, weir_stream *first, weir_stream *second)
{
    weir_move loads[] = { { { 3 }, { 7 } }, { { 4 }, { 8 } }, { { 9 }, { 2 } } };
    weir_move writes[] = { { { 20 }, { 100 } }, { { 21 }, { 102 } } };
    uint64_t step = driver_begin(d, (weir_order){ .n_loads = 3, .loads = loads }, 0, first);
    for (uint32_t layer = 0; layer < d->shape->n_layers; layer++)
        cr_assert(zero(int, weir_rank_wait_layer(d->rank, step, layer, first)));
    driver_end(d, step, first);
    uint64_t next = driver_begin(d,
                                 (weir_order){ .n_fences = 1,
                                               .fences = &step,
                                               .n_joins = 1,
                                               .joins = &step,
                                               .n_writes = 2,
                                               .writes = writes },
                                 1, second);
    for (uint32_t layer = 0; layer < d->shape->n_layers; layer++)
        cr_assert(zero(int, weir_rank_wait_layer(d->rank, next, layer, second)));
    driver_end(d, next, second);
    driver_settle(d);
}

/* Whatever streams the server uses, its own or the legacy default one, each call names
 * one on purpose: waits and marks in the server's, copies in the rank's. */
Test(streams_mix_up, every_call_names_its_stream)
{
    for (int legacy = 0; legacy < 2; legacy++) {
        weir_tensor tensors[2];
        weir_shape shape = driver_shape(tensors, 3);
        struct driver_rig d;
        driver_open(&d, &shape, false);
        weir_stream *second = legacy ? weir_stream_from_cuda(NULL) : d.streams[1];
        struct fake_cuda *fake = d.cuda.fake;
        uint32_t first_call = fake->n_calls;
        work(&d, d.streams[0], second);
        uint32_t n_copies = 0, n_server = 0;
        for (uint32_t i = first_call; i < fake->n_calls; i++) {
            const struct fake_call *call = &fake->calls[i];
            if (!enqueues(call->function))
                continue;
            cr_assert(ne(ptr, call->stream, NULL), "call %u names no stream", i);
            bool server = false;
            for (int k = 0; k < DRIVER_STREAMS; k++)
                server = server || call->stream == driver_handle(d.streams[k]);
            server = server || (legacy && call->stream == driver_handle(second));
            bool lane = call->stream == driver_handle(d.rank->engine.lanes[0].stream) ||
                        call->stream == driver_handle(d.rank->engine.lanes[1].stream);
            cr_assert(copies(call->function) ? lane : lane || server, "call %u", i);
            n_copies += copies(call->function);
            n_server += server;
        }
        cr_assert(n_copies >= 6 && n_server >= 8, "%u %u", n_copies, n_server);
        driver_close(&d);
    }
}

/* Streams of the rank's own stand beside the legacy stream, which orders itself
 * against all others that are not made so. */
Test(streams_mix_up, side_streams_do_not_block)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, 2);
    struct driver_rig d;
    driver_open(&d, &shape, true);
    const struct fake_cuda *fake = d.cuda.fake;
    uint32_t n = 0;
    for (uint32_t i = 0; i < fake->n_calls; i++)
        if (fake->calls[i].function == FAKE_cuStreamCreateWithPriority) {
            cr_assert(eq(u64, fake->calls[i].arguments[0], CU_STREAM_NON_BLOCKING));
            n++;
        }
    cr_assert(ge(u32, n, 2));
    driver_close(&d);
}

/* The server's default stream stands still, and a load for another stream does not. */
Test(streams_mix_up, a_load_beside_a_default_stream_that_stands_still)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, 3);
    struct driver_rig d;
    driver_open(&d, &shape, false);
    weir_stream *legacy = weir_stream_from_cuda(NULL);
    driver_shut(&d, legacy);
    uint64_t parked = driver_begin(&d, (weir_order){ 0 }, 0, legacy);
    driver_end(&d, parked, legacy);
    weir_move load = { { 3 }, { 7 } };
    uint64_t step = driver_begin(&d, (weir_order){ .n_loads = 1, .loads = &load }, 1, d.streams[0]);
    uint32_t notes[3];
    for (uint32_t layer = 0; layer < 3; layer++) {
        cr_assert(zero(int, weir_rank_wait_layer(d.rank, step, layer, d.streams[0])));
        notes[layer] = driver_forward(&d, 3, layer, d.streams[0]);
    }
    driver_end(&d, step, d.streams[0]);
    driver_run(&d);
    for (uint32_t layer = 0; layer < 3; layer++)
        cr_assert(eq(u8, driver_note(&d, notes[layer]), driver_byte(7, layer)));
    cr_assert(eq(sz, driver_report(&d), 2));
    driver_open_gate(&d);
    cr_assert(eq(sz, driver_report(&d), 1));
    driver_close(&d);
}

/* ---- Waits in a graph ----------------------------------------------------- */

enum when {
    BEFORE,      /* the graph is captured, then the step begins */
    WHILE_LOADS, /* the step's load is in flight, told by words */
    WHILE_HELD,  /* it has begun, and its load is held back */
    N_WHENS
};

enum whose {
    OWN,  /* the step loads */
    JOIN, /* it joins the load of the step before */
    N_WHOSES
};

static const uint32_t graph_layers = 3;

/* Captures a forward pass of a slot that reads page 3. */
static void capture(struct driver_rig *d, uint32_t slot, weir_stream *stream, uint32_t *notes)
{
    driver_capture(d, stream, true);
    for (uint32_t layer = 0; layer < graph_layers; layer++) {
        cr_assert(zero(int, weir_rank_capture_wait(d->rank, slot, layer, stream)));
        notes[layer] = driver_forward(d, 3, layer, stream);
    }
    driver_capture(d, stream, false);
    cr_assert(eq(u32, d->cuda.fake->captured(driver_handle(stream)), 2 * graph_layers));
}

static void expect_notes(const struct driver_rig *d, const uint32_t *notes, int32_t host)
{
    for (uint32_t layer = 0; layer < graph_layers; layer++)
        cr_assert(eq(u8, driver_note(d, notes[layer]), host ? driver_byte(host, layer) : 0));
}

/* A load into page 3 that cannot run before the gate opens, by its fence. */
static uint64_t begin_shut_load(struct driver_rig *d, int32_t host, uint32_t slot, bool waits)
{
    driver_shut(d, d->streams[0]);
    uint64_t user = driver_begin(d, (weir_order){ 0 }, 2, d->streams[0]);
    driver_end(d, user, d->streams[0]);
    weir_move load = { { 3 }, { host } };
    weir_order order = { .n_loads = 1, .loads = &load, .n_load_fences = 1, .load_fences = &user };
    uint64_t step = driver_begin(d, order, slot, d->streams[1]);
    if (waits)
        cr_assert(zero(int, weir_rank_wait_layer(d->rank, step, 0, d->streams[2])));
    return step;
}

static void check_graph(enum when when, enum whose whose)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, graph_layers);
    struct driver_rig d;
    driver_open(&d, &shape, true);
    uint32_t notes[3];
    if (when == BEFORE)
        capture(&d, 1, d.streams[1], notes);
    uint64_t step = begin_shut_load(&d, 7, whose == OWN, when == WHILE_LOADS);
    if (whose == JOIN) {
        driver_end(&d, step, d.streams[2]);
        step = driver_begin(&d, (weir_order){ .n_joins = 1, .joins = &step }, 1, d.streams[1]);
    }
    if (when != BEFORE)
        capture(&d, 1, d.streams[1], notes);
    d.cuda.fake->replay(driver_handle(d.streams[1]), driver_handle(d.streams[1]));
    driver_end(&d, step, d.streams[1]);
    driver_run(&d);
    expect_notes(&d, notes, 0);
    driver_open_gate(&d);
    expect_notes(&d, notes, 7);
    driver_settle(&d);

    /* The same graph for the next load, and for a step without one. */
    step = begin_shut_load(&d, 8, 1, false);
    d.cuda.fake->replay(driver_handle(d.streams[1]), driver_handle(d.streams[1]));
    driver_end(&d, step, d.streams[1]);
    driver_run(&d);
    expect_notes(&d, notes, 7);
    driver_open_gate(&d);
    expect_notes(&d, notes, 8);
    driver_settle(&d);
    step = driver_begin(&d, (weir_order){ 0 }, 1, d.streams[1]);
    d.cuda.fake->replay(driver_handle(d.streams[1]), driver_handle(d.streams[1]));
    driver_end(&d, step, d.streams[1]);
    driver_settle(&d);
    cr_assert(eq(sz, d.n_items, whose == JOIN ? 8 : 7));
    driver_close(&d);
}

/* A graph waits for what its step reads, whenever it was captured: before there was
 * any load, while one was on its way, or held back. */
Test(streams_mix_up, a_graph_is_captured_before_the_load)
{
    for (enum whose whose = OWN; whose < N_WHOSES; whose++)
        check_graph(BEFORE, whose);
}

Test(streams_mix_up, a_graph_is_captured_while_its_load_is_in_flight)
{
    for (enum whose whose = OWN; whose < N_WHOSES; whose++)
        check_graph(WHILE_LOADS, whose);
}

Test(streams_mix_up, a_graph_is_captured_while_its_load_is_held_back)
{
    for (enum whose whose = OWN; whose < N_WHOSES; whose++)
        check_graph(WHILE_HELD, whose);
}

/* What cannot be in a graph says so, in whatever state its step is: nothing is
 * captured, and the capture goes on. */
Test(streams_mix_up, a_wait_that_no_graph_can_hold)
{
    for (int captured_waits = 0; captured_waits < 2; captured_waits++) {
        weir_tensor tensors[2];
        weir_shape shape = driver_shape(tensors, graph_layers);
        struct driver_rig d;
        driver_open(&d, &shape, captured_waits);
        weir_stream *stream = d.streams[1];
        driver_capture(&d, stream, true);
        cr_assert(eq(int, weir_rank_wait_layer(d.rank, 1, 0, stream), -EINVAL));
        driver_capture(&d, stream, false);
        weir_move load = { { 3 }, { 7 } };
        uint64_t steps[2];
        steps[0] = driver_begin(&d, (weir_order){ 0 }, 0, d.streams[0]);
        steps[1] = driver_begin(&d, (weir_order){ .n_loads = 1, .loads = &load }, 1, d.streams[0]);
        driver_capture(&d, stream, true);
        for (int i = 0; i < 2; i++) {
            cr_assert(eq(int, weir_rank_wait_layer(d.rank, steps[i], 0, stream), -ENOTSUP));
            cr_assert(eq(int, weir_rank_end(d.rank, steps[i], stream), -ENOTSUP));
            cr_assert(eq(int, driver_try_begin(&d, (weir_order){ 0 }, 0, stream), -ENOTSUP));
            if (!captured_waits)
                cr_assert(eq(int, weir_rank_capture_wait(d.rank, (uint32_t)i, 0, stream), -EINVAL));
        }
        cr_assert(eq(int, weir_rank_capture_wait(d.rank, DRIVER_SLOTS, 0, stream), -EINVAL));
        cr_assert(eq(int, weir_rank_capture_wait(d.rank, 0, graph_layers, stream), -EINVAL));
        cr_assert(zero(u32, d.cuda.fake->captured(driver_handle(stream))));
        driver_capture(&d, stream, false);
        /* Beside it all goes on. */
        for (int i = 0; i < 2; i++) {
            cr_assert(zero(int, weir_rank_wait_layer(d.rank, steps[i], 0, d.streams[0])));
            driver_end(&d, steps[i], d.streams[0]);
        }
        cr_assert(eq(int, weir_rank_capture_wait(d.rank, 0, 0, d.streams[0]), -EINVAL));
        driver_settle(&d);
        cr_assert(eq(sz, d.n_items, 3));
        driver_close(&d);
    }
}

/* A capture that fails in the middle leaves a slot that can be captured again, also
 * while its load is in flight. */
Test(streams_mix_up, a_capture_that_fails)
{
    static const enum fake_function functions[] = { FAKE_cuStreamWaitEvent, FAKE_cuEventRecord };
    for (size_t f = 0; f < 2; f++)
        for (uint32_t nth = 1; nth <= 3; nth++) {
            weir_tensor tensors[2];
            weir_shape shape = driver_shape(tensors, graph_layers);
            struct driver_rig d;
            driver_open(&d, &shape, true);
            uint64_t step = begin_shut_load(&d, 7, 1, true);
            weir_stream *stream = d.streams[1];
            driver_capture(&d, stream, true);
            fake_cuda_fail(d.cuda.fake, functions[f], nth, CUDA_ERROR_OUT_OF_MEMORY);
            int rc = 0;
            for (uint32_t layer = 0; layer < graph_layers && rc == 0; layer++)
                rc = weir_rank_capture_wait(d.rank, 1, layer, stream);
            cr_assert(lt(int, rc, 0));
            driver_capture(&d, stream, false);

            uint32_t notes[3];
            capture(&d, 1, stream, notes);
            d.cuda.fake->replay(driver_handle(stream), driver_handle(stream));
            driver_end(&d, step, stream);
            driver_run(&d);
            expect_notes(&d, notes, 0);
            driver_open_gate(&d);
            expect_notes(&d, notes, 7);
            driver_settle(&d);
            driver_close(&d);
        }
}

/* One that was broken by somebody else: what weir_rank_capture_wait says then is not that
 * it cannot be done. */
Test(streams_mix_up, a_capture_that_is_broken)
{
    weir_tensor tensors[2];
    weir_shape shape = driver_shape(tensors, graph_layers);
    struct driver_rig d;
    driver_open(&d, &shape, true);
    d.cuda.fake->set_capture(driver_handle(d.streams[1]), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    cr_assert(eq(int, weir_rank_capture_wait(d.rank, 1, 0, d.streams[1]), -EIO));
    driver_capture(&d, d.streams[1], false);
    uint32_t notes[3];
    capture(&d, 1, d.streams[1], notes);
    driver_close(&d);
}

/* A step's own load fails, in whichever layer, and what it joins is still waited for:
 * that load goes well, so nobody is told to mistrust its pages. */
Test(streams_mix_up, a_graph_whose_load_fails_beside_one_that_it_joins)
{
    static const enum fake_function functions[] = { FAKE_cuMemcpyBatchAsync, FAKE_cuEventRecord };
    for (size_t f = 0; f < 2; f++)
        for (uint32_t nth = 1; nth <= 2 * graph_layers; nth++) {
            weir_tensor tensors[2];
            weir_shape shape = driver_shape(tensors, graph_layers);
            struct driver_rig d;
            driver_open(&d, &shape, true);
            uint32_t notes[3];
            capture(&d, 1, d.streams[1], notes);
            uint64_t joined = begin_shut_load(&d, 7, 0, true);
            driver_end(&d, joined, d.streams[2]);
            weir_move load = { { 4 }, { 9 } };
            weir_order order = { .n_joins = 1, .joins = &joined, .n_loads = 1, .loads = &load };
            fake_cuda_fail(d.cuda.fake, functions[f], nth, CUDA_ERROR_OUT_OF_MEMORY);
            if (driver_try_begin(&d, order, 1, d.streams[1]))
                driver_begin(&d, order, 1, d.streams[1]);
            d.cuda.fake->faults[functions[f]] = (struct fake_fault){ 0, 0, CUDA_SUCCESS };
            uint64_t step = d.newest;
            d.cuda.fake->replay(driver_handle(d.streams[1]), driver_handle(d.streams[1]));
            driver_end(&d, step, d.streams[1]);
            driver_run(&d);
            expect_notes(&d, notes, 0);
            driver_open_gate(&d);
            expect_notes(&d, notes, 7);
            driver_settle(&d);
            for (size_t i = 0; i < d.n_items; i++)
                if (d.items[i].kind != WEIR_REPORT_LOAD || d.items[i].number != step)
                    cr_assert(zero(int, d.items[i].rc));
            driver_close(&d);
        }
}

/* ---- What is made up for --------------------------------------------------- */

/* The end of a step could not be marked, and then the server captures that stream:
 * the mark is not for the graph. A graph would set the word back at each launch, and
 * an event of its own would draw the side streams into the capture. */
Test(streams_mix_up, a_mark_that_failed_is_not_captured)
{
    static const enum fake_function functions[] = { FAKE_cuStreamWriteValue32, FAKE_cuEventRecord };
    for (size_t f = 0; f < 2; f++) {
        weir_tensor tensors[2];
        weir_shape shape = driver_shape(tensors, 1);
        struct driver_rig d;
        driver_open(&d, &shape, false);
        weir_move write = { { 3 }, { 7 } };
        uint64_t first =
            driver_begin(&d, (weir_order){ .n_writes = 1, .writes = &write }, 0, d.streams[0]);
        struct fake_fault *fault = &d.cuda.fake->faults[functions[f]];
        *fault = (struct fake_fault){ 0, UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY };
        driver_end(&d, first, d.streams[0]);
        *fault = (struct fake_fault){ 0, 0, CUDA_SUCCESS };
        driver_capture(&d, d.streams[0], true);
        weir_order order = { .n_fences = 1, .fences = &first };
        for (int i = 0; i < 2; i++) {
            driver_report(&d);
            cr_assert(eq(int, driver_try_begin(&d, order, 1, d.streams[1]), -EIO));
        }
        cr_assert(zero(u32, d.cuda.fake->captured(driver_handle(d.streams[0]))));
        driver_capture(&d, d.streams[0], false);
        driver_end(&d, driver_begin(&d, order, 1, d.streams[1]), d.streams[1]);
        driver_settle(&d);
        cr_assert(eq(sz, d.n_items, 3));
        for (size_t i = 0; i < d.n_items; i++)
            cr_assert(zero(int, d.items[i].rc));
        driver_close(&d);
    }
}
