/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_world.h"

static const weir_tensor tensors[] = { { .page_bytes = 4 * 24, .row_bytes = 24 },
                                       { .page_bytes = 4 * 24, .row_bytes = 24 } };
static const weir_shape shape = {
    .page_tokens = 4, .n_layers = 3, .n_tensors = 2, .tensors = tensors
};
static const weir_device_page page1 = { 1 };

static struct world *small_world(uint64_t seed)
{
    weir_rank_params params = world_params(&shape, WEIR_HOST_SEGMENTED);
    return world_open(seed, &params);
}

/* ---- Refusals ------------------------------------------------------------- */

struct refusal {
    const char *name;
    weir_order order;
    const char *text; /* in the log line */
};

static void expect_refused(struct world *w, const struct refusal *refusal)
{
    struct world_step s = { 0 };
    weir_order order = refusal->order;
    if (!order.step)
        order.step = w->newest + 1;
    if (order.n_writes > 0)
        order.write_ticket = 1;
    if (!order.device_pages)
        order.device_pages = WORLD_DEVICE_PAGES;
    if (!order.host_pages)
        order.host_pages = WORLD_HOST_PAGES;
    cr_assert(eq(int, weir_order_encode(&order, s.order, sizeof s.order, &s.order_bytes, NULL), 0));
    uint64_t step = 99;
    unsigned lines = w->log.lines;
    int rc = weir_rank_begin(w->rank, s.order, s.order_bytes, 3, w->streams[0], &step);
    cr_assert(eq(int, rc, -EINVAL), "%s", refusal->name);
    cr_assert(eq(u64, step, 99), "%s", refusal->name);
    cr_assert(eq(u32, w->log.lines, lines + 1), "%s", refusal->name);
    cr_assert(ne(ptr, strstr(w->log.last, refusal->text), NULL), "%s: %s", refusal->name,
              w->log.last);
}

Test(rank_refusals, wrong_orders)
{
    struct world *w = small_world(3);
    uint64_t open = world_begin(w, (weir_order){ 0 }, w->streams[0]); /* step 1 */
    uint64_t without_load = open;
    weir_move device_twice[] = { { { 1 }, { 1 } }, { { 2 }, { 2 } }, { { 1 }, { 3 } } };
    weir_move host_twice[] = { { { 1 }, { 1 } }, { { 2 }, { 2 } }, { { 3 }, { 1 } } };
    weir_move fine = { { 1 }, { 1 } };
    const struct refusal refusals[] = {
        { "the step after next", { .step = 3 }, "step is 3, must be 2" },
        { "a step again", { .step = 1 }, "step is 1, must be 2" },
        { "device pages", { .device_pages = WORLD_DEVICE_PAGES + 1 }, "pools of 15 and 11" },
        { "host pages", { .host_pages = WORLD_HOST_PAGES - 1 }, "pools of 14 and 10" },
        { "device page loaded twice", { .n_loads = 3, .loads = device_twice }, "loads[2]" },
        { "host page loaded twice", { .n_loads = 3, .loads = host_twice }, "loads[2]" },
        { "device page written twice", { .n_writes = 3, .writes = device_twice }, "writes[2]" },
        { "host page written twice", { .n_writes = 3, .writes = host_twice }, "writes[2]" },
        { "fence is open", { .n_fences = 1, .fences = &open }, "step 1 must end before step 2" },
        { "load fence is open",
          { .n_load_fences = 1, .load_fences = &open, .n_loads = 1, .loads = &fine },
          "step 1 must end before step 2" },
        { "join without load", { .n_joins = 1, .joins = &without_load }, "joins[0] is step 1" },
    };
    for (size_t i = 0; i < 2 * sizeof refusals / sizeof *refusals; i++)
        expect_refused(w, &refusals[i / 2]); /* twice: nothing is left behind */
    world_end(w, open);

    /* The same pages, once each, pass. */
    world_make_page(w, 1, w->streams[0]);
    world_settle(w);
    weir_move both[] = { { { 2 }, { 1 } }, { { 1 }, { 2 } } };
    world_begin(w,
                (weir_order){ .n_loads = 1, .loads = &both[0], .n_writes = 1, .writes = &both[1] },
                w->streams[0]);
    world_expect_right(w);
    world_close(w);
}

Test(rank_refusals, wrong_arguments)
{
    struct world *w = small_world(3);
    struct world_step s = { 0 };
    weir_order order = { .step = 1 };
    world_encode(w, &s, &order);
    weir_rank *rank = w->rank;
    weir_stream *stream = w->streams[0];
    uint64_t step = 0;
    uint64_t buffer[64];
    size_t bytes = 0;
    void *odd = (char *)buffer + 4;
    unsigned lines = w->log.lines;

#define REFUSED(call, word)                                                     \
    do {                                                                        \
        cr_assert(eq(int, (call), -EINVAL), #call);                             \
        cr_assert(eq(u32, w->log.lines, ++lines), #call);                       \
        cr_assert(ne(ptr, strstr(w->log.last, word), NULL), "%s", w->log.last); \
    } while (0)
    REFUSED(weir_rank_begin(rank, NULL, s.order_bytes, 0, stream, &step), "bytes");
    REFUSED(weir_rank_begin(rank, odd, 60, 0, stream, &step), "aligned");
    REFUSED(weir_rank_begin(rank, s.order, s.order_bytes - 1, 0, stream, &step), "bytes");
    REFUSED(weir_rank_begin(rank, s.order, 0, 0, stream, &step), "bytes");
    REFUSED(weir_rank_begin(rank, s.order, s.order_bytes, 8, stream, &step), "slot is 8");
    REFUSED(weir_rank_begin(rank, s.order, s.order_bytes, 0, NULL, &step), "stream");
    REFUSED(weir_rank_begin(rank, s.order, s.order_bytes, 0, stream, NULL), "step");
    REFUSED(weir_rank_wait_layer(rank, 0, 0, stream), "step 0");
    REFUSED(weir_rank_wait_layer(rank, 1, 0, stream), "step 1");
    REFUSED(weir_rank_end(rank, 1, stream), "step 1");
    REFUSED(weir_rank_end(rank, 0, stream), "step 0");
    REFUSED(weir_rank_report(rank, NULL, 100, &bytes), "report");
    REFUSED(weir_rank_report(rank, buffer, 100, NULL), "bytes");
    REFUSED(weir_rank_report(rank, odd, 100, &bytes), "aligned");
    cr_assert(eq(int, weir_rank_begin(rank, s.order, s.order_bytes, 0, stream, &step), 0));
    w->newest = 1;
    w->steps[1].stream = stream;
    REFUSED(weir_rank_wait_layer(rank, 1, 3, stream), "layer is 3");
    REFUSED(weir_rank_wait_layer(rank, 1, 0, NULL), "stream");
    REFUSED(weir_rank_wait_layer(rank, 2, 0, stream), "step 2");
    REFUSED(weir_rank_end(rank, 1, NULL), "stream");
    world_end(w, 1);
    REFUSED(weir_rank_wait_layer(rank, 1, 0, stream), "step 1");
    REFUSED(weir_rank_end(rank, 1, stream), "step 1");
#undef REFUSED

    cr_assert(eq(int, weir_rank_begin(NULL, s.order, s.order_bytes, 0, stream, &step), -EINVAL));
    cr_assert(eq(int, weir_rank_wait_layer(NULL, 1, 0, stream), -EINVAL));
    cr_assert(eq(int, weir_rank_end(NULL, 1, stream), -EINVAL));
    cr_assert(eq(int, weir_rank_report(NULL, buffer, 100, &bytes), -EINVAL));
    cr_assert(eq(int, weir_rank_synchronize(NULL), -EINVAL));
    cr_assert(zero(u64, weir_rank_device_address(NULL, 0, 0, page1)));
    cr_assert(zero(u32, weir_rank_cpu_pool(NULL)));
    weir_rank_memory memory;
    weir_rank_get_memory(NULL, &memory);
    weir_rank_get_memory(rank, NULL);
    weir_rank_params_init(NULL);
    weir_rank_close(NULL);
    weir_rank *none = NULL;
    weir_rank_close(&none);
    world_expect_right(w);
    world_close(w);
}

Test(rank_refusals, wrong_parameters)
{
    struct world *w = world_create(1, 8);
    weir_rank_params good = world_params(&shape, WEIR_HOST_SEGMENTED);
    struct {
        const char *word;
        weir_rank_params params;
        int rc;
    } cases[] = {
        { "shape", good, -EINVAL },
        { "device_pages", good, -EINVAL },
        { "device_pages", good, -EINVAL },
        { "host_pages", good, -EINVAL },
        { "max_steps", good, -EINVAL },
        { "n_slots", good, -EINVAL },
        { "max_write_backs", good, -EINVAL },
        { "layout", good, -EINVAL },
        { "host_bytes_limit", good, -ENOSPC },
    };
    cases[0].params.shape = NULL;
    cases[1].params.device_pages = 0;
    cases[2].params.device_pages = UINT32_MAX;
    cases[3].params.host_pages = UINT32_MAX;
    cases[4].params.max_steps = 65;
    cases[5].params.n_slots = 65;
    cases[6].params.max_write_backs = 1025;
    cases[7].params.host_layout = (weir_host_layout)4;
    cases[8].params.host_bytes_limit = 4096;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned lines = w->log.lines;
        cr_assert(eq(int, world_open_rank(w, &cases[i].params), cases[i].rc), "%zu", i);
        cr_assert(eq(ptr, w->rank, NULL));
        cr_assert(eq(u32, w->log.lines, lines + 1), "%zu", i);
        cr_assert(ne(ptr, strstr(w->log.last, cases[i].word), NULL), "%s", w->log.last);
    }
    cr_assert(eq(int, weir_rank_open(&w->rank, w->device, NULL), -EINVAL));
    cr_assert(eq(int, weir_rank_open(NULL, w->device, &good), -EINVAL));
    cr_assert(eq(int, weir_rank_open(&w->rank, NULL, &good), -EINVAL));
    good.struct_size--;
    cr_assert(eq(int, weir_rank_open(&w->rank, w->device, &good), -EINVAL));
    cr_assert(ne(ptr, strstr(w->log.last, "struct_size"), NULL));
    world_close(w);
    check_leaks();
}

Test(rank_refusals, limits_in_flight)
{
    struct world *w = small_world(9);
    struct world_step s = { 0 };
    uint64_t step = 0;
    for (uint32_t i = 0; i < 8; i++)
        world_end(w, world_begin(w, (weir_order){ 0 }, w->streams[0]));
    weir_order order = { .step = 9 };
    world_encode(w, &s, &order);
    cr_assert(eq(int, weir_rank_begin(w->rank, s.order, s.order_bytes, 1, w->streams[0], &step),
                 -EAGAIN));
    while (weir_cpu_device_run(w->device, 100) == 100)
        continue;
    /* All have ended, but only what is reported makes room. */
    cr_assert(eq(int, weir_rank_begin(w->rank, s.order, s.order_bytes, 1, w->streams[0], &step),
                 -EAGAIN));
    uint64_t buffer[64];
    size_t bytes = 0;
    cr_assert(
        eq(int, weir_rank_report(w->rank, buffer, weir_report_bytes(1) - 1, &bytes), -ENOSPC));
    cr_assert(zero(sz, bytes));
    cr_assert(eq(int, weir_rank_report(w->rank, buffer, weir_report_bytes(1), &bytes), 0));
    const weir_report_item *items;
    size_t n;
    cr_assert(eq(int, weir_report_decode(&items, &n, buffer, bytes, NULL), 0));
    cr_assert(eq(sz, n, 1));
    cr_assert(eq(u64, items[0].number, 1));
    world_take(w, &items[0]);
    /* Step 1's record is free, the slot of step 2 is not. */
    cr_assert(
        eq(int, weir_rank_begin(w->rank, s.order, s.order_bytes, 2, w->streams[0], &step), -EBUSY));
    cr_assert(
        eq(int, weir_rank_begin(w->rank, s.order, s.order_bytes, 1, w->streams[0], &step), 0));
    w->newest = 9;
    w->steps[9].stream = w->streams[0];
    world_expect_right(w);
    cr_assert(eq(int, weir_rank_report(w->rank, buffer, 0, &bytes), 0));
    cr_assert(zero(sz, bytes));
    world_close(w);
}

Test(rank_refusals, slot_is_busy_until_its_load_is_reported)
{
    struct world *w = small_world(4);
    world_make_page(w, 1, w->streams[0]);
    world_settle(w);
    cr_assert(eq(int, weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_LOAD, 2), 0));
    weir_move load = { { 2 }, { 1 } };
    uint64_t first = world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[0]);
    world_end(w, first);
    world_settle(w);
    cr_assert(w->steps[first].reported);
    struct world_step s = { 0 };
    weir_order order = { .step = first + 1 };
    uint64_t step = 0;
    world_encode(w, &s, &order);
    cr_assert(eq(int,
                 weir_rank_begin(w->rank, s.order, s.order_bytes, (uint32_t)first % w->n_slots,
                                 w->streams[0], &step),
                 -EBUSY));
    weir_cpu_device_release(w->device);
    world_expect_right(w);
    world_close(w);
}

Test(rank_refusals, write_backs_in_flight_are_limited)
{
    struct world *w = small_world(2);
    cr_assert(eq(int, weir_cpu_device_stall(w->device, WEIR_CPU_CALL_COPY_WRITE_BACK, 1), 0));
    for (int32_t p = 1; p <= 2; p++)
        world_make_page(w, p, w->streams[0]);
    weir_move write = { { 3 }, { 3 } };
    uint64_t third = world_begin(w, (weir_order){ .n_writes = 1, .writes = &write }, w->streams[0]);
    world_settle(w);
    struct world_step s = { 0 };
    weir_move another = { { 4 }, { 4 } };
    weir_order order = { .step = third + 1, .n_writes = 1, .writes = &another, .write_ticket = 9 };
    uint64_t step = 0;
    world_encode(w, &s, &order);
    cr_assert(eq(int, weir_rank_begin(w->rank, s.order, s.order_bytes, 5, w->streams[0], &step),
                 -EAGAIN));
    order = (weir_order){ .step = third + 1 }; /* one without a write-back goes */
    world_begin(w, order, w->streams[0]);
    weir_cpu_device_release(w->device);
    world_expect_right(w);
    world_close(w);
}

Test(rank_refusals, open_steps_that_write_the_same_pages)
{
    weir_rank_params params = world_params(&shape, WEIR_HOST_SEGMENTED);
    params.host_pages = 2; /* room for two moves at a time */
    struct world *w = world_open(6, &params);
    weir_move moves[] = { { { 1 }, { 1 } }, { { 2 }, { 2 } } };
    weir_order order = { .n_writes = 2, .writes = moves };
    uint64_t first = world_begin(w, order, w->streams[0]);
    uint64_t second = world_begin(w, order, w->streams[0]);
    cr_assert(ne(ptr, strstr(w->log.last, "write-back 5002 of 2 pages fails"), NULL));
    world_end(w, second);
    world_end(w, first);
    uint64_t third = world_begin(w, order, w->streams[0]);
    world_finish(w);
    cr_assert(eq(int, w->steps[first].write_rc, 0));
    cr_assert(eq(int, w->steps[second].write_rc, -EIO));
    cr_assert(eq(int, w->steps[third].write_rc, 0));
    world_close(w);
}

/* ---- The object ----------------------------------------------------------- */

Test(rank_refusals, memory_and_addresses)
{
    struct world *w = small_world(0);
    weir_rank_memory memory;
    weir_rank_get_memory(w->rank, &memory);
    uint64_t page = 3 * 2 * 96;
    cr_assert(ge(u64, memory.device_pool_bytes, (WORLD_DEVICE_PAGES + 1) * page));
    cr_assert(ge(u64, memory.host_pool_bytes, WORLD_HOST_PAGES * page));
    cr_assert(eq(u64, memory.pinned_bytes, 4 * (8 * 3 + 2 + 8)));
    cr_assert(lt(u64, sizeof(struct weir_rank), memory.other_bytes));
    cr_assert(ne(u32, weir_rank_cpu_pool(w->rank), 0));
    uint64_t base = weir_rank_device_address(w->rank, 0, 0, (weir_device_page){ 0 });
    cr_assert(ne(u64, base, 0));
    cr_assert(eq(u64, weir_rank_device_address(w->rank, 0, 0, page1), base + 96));
    cr_assert(zero(u64, weir_rank_device_address(w->rank, 2, 0, page1)));
    cr_assert(zero(u64, weir_rank_device_address(w->rank, 0, 3, page1)));
    cr_assert(zero(u64, weir_rank_device_address(w->rank, 0, 0, (weir_device_page){ -1 })));
    cr_assert(zero(u64, weir_rank_device_address(w->rank, 0, 0,
                                                 (weir_device_page){ WORLD_DEVICE_PAGES + 1 })));
    weir_device *device = w->device;
    cr_assert(eq(int, weir_device_close(&w->device), -EBUSY));
    cr_assert(eq(ptr, w->device, device));
    world_close(w);
    check_leaks();
}

Test(rank_refusals, the_servers_planes_and_no_host_tier)
{
    struct world *w = world_create(7, 8);
    uint64_t stride = 128; /* of pieces of 96 bytes */
    uint64_t bytes = 6 * (WORLD_DEVICE_PAGES + 1) * stride;
    uint64_t address = 0;
    cr_assert(eq(int, w->device->ops->memory_alloc(w->device, bytes, &address), 0));
    weir_device_plane planes[6];
    for (uint64_t i = 0; i < 6; i++) /* interleaved: page, then plane */
        planes[i] = (weir_device_plane){ address + i * stride, 6 * stride };
    for (uint32_t host_pages = 0; host_pages <= WORLD_HOST_PAGES; host_pages += WORLD_HOST_PAGES) {
        weir_rank_params params = world_params(&shape, WEIR_HOST_PAGE_FIRST);
        params.planes = planes;
        params.host_pages = host_pages;
        params.segment_pages = 0;
        cr_assert(eq(int, world_open_rank(w, &params), 0));
        weir_rank_memory memory;
        weir_rank_get_memory(w->rank, &memory);
        cr_assert(zero(u64, memory.device_pool_bytes));
        cr_assert(eq(int, memory.host_pool_bytes == 0, host_pages == 0));
        cr_assert(eq(u64, weir_rank_device_address(w->rank, 1, 2, page1),
                     address + 5 * stride + 6 * stride));
        w->newest = 0;
        memset(w->steps, 0, sizeof w->steps);
        uint64_t first = world_begin(w, (weir_order){ 0 }, w->streams[0]);
        for (uint32_t layer = 0; layer < 3; layer++)
            world_launch(w, w->streams[0], 1, layer, 9, true);
        world_end(w, first);
        if (host_pages == 0)
            world_begin(w, (weir_order){ .n_fences = 1, .fences = &first }, w->streams[1]);
        else
            world_make_page(w, 2, w->streams[0]);
        world_expect_right(w);
        weir_rank_close(&w->rank);
    }
    w->device->ops->memory_free(w->device, address);
    world_close(w);
    check_leaks();
}

Test(rank_refusals, close_waits_for_what_is_in_flight)
{
    for (uint64_t seed = 0; seed <= 8; seed++)
        for (int with_copies = 0; with_copies < 2; with_copies++) {
            struct world *w = small_world(seed);
            world_make_page(w, 1, w->streams[0]);
            world_settle(w);
            if (with_copies) {
                weir_move load = { { 2 }, { 1 } };
                world_end(
                    w, world_begin(w, (weir_order){ .n_loads = 1, .loads = &load }, w->streams[1]));
                world_make_page(w, 3, w->streams[0]);
            }
            /* Only its end is still to be written, by the server's stream. */
            uint64_t step = world_begin(w, (weir_order){ 0 }, w->streams[1]);
            for (uint32_t layer = 0; layer < w->shape->n_layers; layer++)
                world_launch(w, w->streams[1], 4, layer, 1, true);
            world_end(w, step);
            world_close(w);
        }
    check_leaks();
}
