/* SPDX-License-Identifier: Apache-2.0 */

/* Bytes that are not what they should be: a tensor that was left out, a width that two
 * sides see differently, a host page that changes in secret, an order that was damaged
 * on its way, the dummy page. */

#include "server_probe.h"
#include "transfer/rank.h"

enum {
    T = 4,
    LAYERS = 4
};

/* Keys, values, an index in some layers, scales of a byte a token, a draft model's keys
 * in a layer of their own. */
static const uint32_t index_layers[] = { 0, 2 };
static const uint32_t main_layers[] = { 0, 1, 2 };
static const uint32_t draft_layers[] = { 3 };
static const weir_tensor tensors[] = {
    { .name = "k", .row_bytes = 16, .page_bytes = 16 * T, .layers = main_layers, .n_layers = 3 },
    { .name = "v", .row_bytes = 16, .page_bytes = 16 * T, .layers = main_layers, .n_layers = 3 },
    { .name = "index", .row_bytes = 5, .page_bytes = 5 * T, .layers = index_layers, .n_layers = 2 },
    { .name = "scales", .row_bytes = 1, .page_bytes = T, .layers = main_layers, .n_layers = 3 },
    { .name = "draft",
      .row_bytes = 12,
      .page_bytes = 12 * T,
      .layers = draft_layers,
      .n_layers = 1 },
};
enum {
    TENSORS = sizeof tensors / sizeof *tensors,
    PIECES = 3 + 3 + 2 + 3 + 1 /* of a page */
};
static const weir_shape shape = { T, LAYERS, TENSORS, tensors };

static struct server_params tensor_params(uint64_t seed, uint32_t n_ranks, weir_host_layout layout)
{
    struct server_params params = server_params(seed, n_ranks, 12, 12);
    params.cache.max_steps = params.rank.max_steps = 32;
    params.rank.shape = &shape;
    params.rank.host_layout = layout;
    return params;
}

#define EACH_LAYOUT(layout)                                                                    \
    for (weir_host_layout layout = WEIR_HOST_SEGMENTED; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; \
         layout++)

/* ---- All tensors or none -------------------------------------------------- */

/* From the device to the host and back, again and again, into other pages each time:
 * not a bit of any tensor changes, so a hit computes what a miss would have. */
Test(wrong_data, no_bit_changes_on_the_way)
{
    static const char *const prompts[] = { "ABC", "ABXY", "PQRS" };
    EACH_LAYOUT(layout)
    {
        struct server_params params = tensor_params(3, 2, layout);
        params.cache.write_back = "write_back";
        struct server *s = server_open(params);
        for (int round = 0; round < 5; round++)
            for (size_t i = 0; i < 3; i++) {
                probe_expect(s, prompts[i], round ? strlen(prompts[i]) : i == 1 ? 2 : 0);
                server_push_out(s);
            }
        weir_stats stats = server_stats(s);
        cr_assert(eq(u64, stats.written_pages, 9));
        cr_assert(ge(u64, stats.loaded_pages, 4 * 11));
        server_close(s);
    }
}

/* A layer of a load fails, on one of two ranks, while all others arrive: none of the
 * page counts as loaded, nobody is told that it is right, it is not offered again. */
static bool load_fails(weir_host_layout layout, uint32_t whose, uint64_t n)
{
    struct server *s = server_open(tensor_params(n, 2, layout));
    server_serve(s, "ABC");
    server_push_out(s);
    weir_device *device = s->ranks[whose].device;
    uint64_t before = weir_cpu_device_calls(device, WEIR_CPU_CALL_COPY_LOAD);
    cr_assert(zero(int, weir_cpu_device_fail(device, WEIR_CPU_CALL_COPY_LOAD, n, -EIO)));
    struct server_request *request = server_start(s, "ABC");
    server_step(s, 0, request);
    server_run(s);
    bool struck = weir_cpu_device_calls(device, WEIR_CPU_CALL_COPY_LOAD) >= before + n;
    weir_cpu_device_release(device);
    weir_stats stats = server_stats(s);
    cr_assert(eq(u64, stats.load_failed_pages, struck ? 3 : 0));
    cr_assert(eq(u64, stats.loaded_pages, struck ? 0 : 3));
    cr_assert(eq(u32, request->failures, struck));
    cr_assert(eq(sz, request->good, struck ? 0 : SIZE_MAX));
    server_expect_hit(s, "ABC", struck ? 0 : 3, 0, 0);
    server_leave(s, request);
    probe_expect(s, "ABC", struck ? 0 : 3);
    server_push_out(s);
    probe_expect(s, "ABC", 3);
    server_close(s);
    return struck;
}

Test(wrong_data, a_load_that_brings_some_tensors, .timeout = 100)
{
    EACH_LAYOUT(layout)
    for (uint32_t whose = 0; whose < 2; whose++) {
        uint64_t n = 1;
        while (load_fails(layout, whose, n))
            n++;
        cr_assert(eq(u64, n, LAYERS + 1));
    }
}

/* Likewise a write-back: there is no host copy then, and the device copy stays. */
static bool write_fails(weir_host_layout layout, uint32_t whose, uint64_t n)
{
    struct server *s = server_open(tensor_params(n, 2, layout));
    weir_device *device = s->ranks[whose].device;
    uint64_t before = weir_cpu_device_calls(device, WEIR_CPU_CALL_COPY_WRITE_BACK);
    cr_assert(zero(int, weir_cpu_device_fail(device, WEIR_CPU_CALL_COPY_WRITE_BACK, n, -EIO)));
    server_serve(s, "ABC");
    bool struck = weir_cpu_device_calls(device, WEIR_CPU_CALL_COPY_WRITE_BACK) >= before + n;
    weir_cpu_device_release(device);
    cr_assert(eq(u64, server_stats(s).written_pages, struck ? 0 : 3));
    probe_expect(s, "ABC", 3);
    server_settle(s); /* a hit asks for the copy that is missing */
    server_push_out(s);
    server_expect_hit(s, "ABC", 0, 3, 0);
    probe_expect(s, "ABC", 3);
    server_close(s);
    return struck;
}

Test(wrong_data, a_write_back_that_brings_some_tensors, .timeout = 100)
{
    EACH_LAYOUT(layout)
    for (uint32_t whose = 0; whose < 2; whose++) {
        uint64_t n = 1;
        while (write_fails(layout, whose, n))
            n++;
        cr_assert(eq(u64, n, LAYERS + 1));
    }
}

/* ---- Widths, gaps, the dummy page ----------------------------------------- */

static int open_shape(const weir_shape *as, const weir_device_plane *planes, char line[256])
{
    struct log_capture log = { 0 };
    weir_cpu_device_params device_params;
    weir_cpu_device_params_init(&device_params);
    device_params.seed = 1;
    weir_device *device;
    cr_assert(zero(int, weir_cpu_device_open(&device, &device_params)));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = as;
    params.device_pages = 8;
    params.host_pages = 8;
    params.touch_threads = 1;
    params.planes = planes;
    params.log = log_capture_log(&log);
    weir_rank *rank = NULL;
    int rc = weir_rank_open(&rank, device, &params);
    cr_assert(eq(int, rank == NULL, rc != 0));
    weir_rank_close(&rank);
    cr_assert(zero(int, weir_device_close(&device)));
    memcpy(line, log.last, 256);
    return rc;
}

/* What a row has in one place and not in the other, scales behind the latent for
 * instance: neither tensor nor buffer may be taken for the narrower or the wider one. */
Test(wrong_data, widths_that_disagree)
{
    static const struct {
        uint32_t row, other;
    } widths[] = { { 512, 528 }, { 576, 656 }, { 528, 512 }, { 656, 576 }, { 1, 2 } };
    char line[256];
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        uint32_t row = widths[i].row, other = widths[i].other;
        weir_tensor one = { .name = "latent", .row_bytes = row, .page_bytes = (uint64_t)other * T };
        weir_shape as = { T, 1, 1, &one };
        cr_assert(eq(int, open_shape(&as, NULL, line), -EINVAL));
        cr_assert(ne(ptr, strstr(line, "page_bytes"), NULL), "%s", line);
        one.page_bytes = (uint64_t)row * T;

        /* The server's buffer: pages of the other width, which may be wider, not
         * narrower. */
        unsigned char *buffer = calloc(9 * T, 656);
        cr_assert(ne(ptr, buffer, NULL));
        weir_device_plane plane = { (uintptr_t)buffer, (uint64_t)other * T };
        cr_assert(eq(int, open_shape(&as, &plane, line), other < row ? -EINVAL : 0), "%s", line);
        cr_assert(other > row || strstr(line, "stride"), "%s", line);

        /* Two tensors in one buffer, the second where the first one's wider row ends, or
         * its narrower one. */
        uint32_t narrow = row < other ? row : other, wide = row < other ? other : row;
        weir_tensor two[] = { one,
                              { .name = "scales",
                                .row_bytes = wide - narrow,
                                .page_bytes = (uint64_t)(wide - narrow) * T } };
        as = (weir_shape){ T, 1, 2, two };
        weir_device_plane planes[] = {
            { (uintptr_t)buffer, (uint64_t)wide * T },
            { (uintptr_t)buffer + (uint64_t)narrow * T, (uint64_t)wide * T },
        };
        cr_assert(eq(int, open_shape(&as, planes, line), row == wide ? -EINVAL : 0), "%s", line);
        cr_assert(row == narrow || strstr(line, "overlap"), "%s", line);
        free(buffer);
    }
}

/* A server's buffers with gaps between the pages and a dummy page in front, which
 * padded batches write to at any time: weir writes to neither and copies neither. */
static void gaps_and_page_zero(uint64_t gap)
{
    enum {
        DEVICE_PAGES = 12
    };
    struct server_params params = tensor_params(5, 1, WEIR_HOST_SEGMENTED);
    weir_device_plane planes[PIECES];
    uint64_t page_bytes[PIECES], bytes = 0;
    size_t n = 0;
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t i = 0; i < tensors[t].n_layers; i++) {
            page_bytes[n] = tensors[t].page_bytes;
            planes[n] = (weir_device_plane){ bytes, page_bytes[n] + gap };
            bytes += (DEVICE_PAGES + 1) * planes[n++].page_stride;
        }
    cr_assert(eq(sz, n, PIECES));
    unsigned char *buffer = malloc(bytes);
    cr_assert(ne(ptr, buffer, NULL));
    memset(buffer, 0xC5, bytes);
    for (size_t i = 0; i < PIECES; i++)
        planes[i].base += (uintptr_t)buffer;
    params.rank.planes = planes;
    struct server *s = server_open(params);
    for (int round = 0; round < 3; round++) {
        probe_expect(s, "ABCDE", round ? 5 : 0);
        probe_expect(s, "PQRSTUV", round ? 7 : 0);
        server_settle(s);
        server_push_out(s);
    }
    server_close(s);
    for (size_t i = 0; i < PIECES; i++) {
        const unsigned char *plane = (const unsigned char *)(uintptr_t)planes[i].base;
        for (uint64_t at = 0; at < (DEVICE_PAGES + 1) * planes[i].page_stride; at++) {
            bool inside = at >= planes[i].page_stride && at % planes[i].page_stride < page_bytes[i];
            cr_assert(inside || plane[at] == 0xC5, "plane %zu, byte %lu", i, (unsigned long)at);
        }
    }
    free(buffer);
}

Test(wrong_data, gaps_and_the_dummy_page)
{
    gaps_and_page_zero(0);
    gaps_and_page_zero(1);
    gaps_and_page_zero(64);
}

/* No order names page 0 or one behind the last, whoever made it. */
Test(wrong_data, orders_name_real_pages)
{
    static const weir_move moves[] = { { { 0 }, { 1 } },  { { 1 }, { 0 } },  { { -1 }, { 1 } },
                                       { { 1 }, { -1 } }, { { 13 }, { 1 } }, { { 1 }, { 13 } } };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        for (int load = 0; load < 2; load++) {
            weir_order order = { .step = 1, .device_pages = 12, .host_pages = 12 };
            order.loads = order.writes = &moves[i];
            order.n_loads = load ? 1 : 0;
            order.n_writes = load ? 0 : 1;
            order.write_ticket = load ? 0 : 1;
            uint64_t bytes[32];
            size_t n = 0;
            cr_assert(eq(int, weir_order_encode(&order, bytes, sizeof bytes, &n, NULL), -EINVAL));
            cr_assert(zero(sz, n));
        }
}

/* ---- On its way ----------------------------------------------------------- */

/* Every bit of an order, and of a report: a damaged one is refused and has done
 * nothing, and the right one is taken afterwards. */
Test(wrong_data, damaged_orders_and_reports, .timeout = 100)
{
    struct server *s = server_open(tensor_params(9, 1, WEIR_HOST_SEGMENTED));
    server_serve(s, "ABC");
    server_push_out(s);
    server_hold(s, 0);
    struct server_request *request = server_start(s, "ABCDE");
    server_step(s, 0, request);
    cr_assert(s->last.n_loads == 3 && s->last.n_writes == 2);
    const struct server_work *work = &s->works[s->n_steps % SERVER_ORDERS];
    uint64_t bytes[64], step = 0;
    cr_assert(le(sz, work->bytes, sizeof bytes));
    memcpy(bytes, work->order, work->bytes);
    for (size_t bit = 0; bit < work->bytes * 8; bit++) {
        ((unsigned char *)bytes)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        cr_assert(eq(int,
                     weir_rank_begin(s->ranks[0].rank, bytes, work->bytes, 0,
                                     s->ranks[0].streams[0], &step),
                     -EINVAL),
                  "bit %zu", bit);
        ((unsigned char *)bytes)[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t n = 0; n < work->bytes; n++)
        cr_assert(eq(int,
                     weir_rank_begin(s->ranks[0].rank, bytes, n, 0, s->ranks[0].streams[0], &step),
                     -EINVAL),
                  "%zu bytes", n);
    server_let_go(s, 0);
    server_run_devices(s);

    uint64_t report[32];
    size_t n = 0;
    cr_assert(zero(int, weir_rank_report(s->ranks[0].rank, report, sizeof report, &n)));
    cr_assert(eq(sz, n, weir_report_bytes(3)));
    uint64_t digest = weir_cache_digest(s->caches[0]);
    for (size_t bit = 0; bit < n * 8; bit++) {
        ((unsigned char *)report)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        cr_assert(eq(int, weir_cache_report(s->caches[0], 0, report, n), -EINVAL), "bit %zu", bit);
        ((unsigned char *)report)[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    cr_assert(eq(u64, weir_cache_digest(s->caches[0]), digest));
    SERVER_GIVES(s, weir_cache_report(c, 0, report, n), 0);
    server_expect_hit(s, "ABCDE", 5, 0, 0);
    server_expect_right(s);
    server_close(s);
}

/* ---- In host memory ------------------------------------------------------- */

/* A bit of a page of "ABCDE" changes in host memory. With checksums nobody reads it, or
 * what was computed behind it: the beginning is still good and the rest is computed
 * again. */
static void host_page_changes(weir_host_layout layout, size_t page, uint32_t tensor, uint32_t layer,
                              uint32_t whose)
{
    struct server_params params = tensor_params(page + 1, 2, layout);
    params.rank.checksums = 1;
    struct server *s = server_open(params);
    server_serve(s, "ABCDE");
    server_serve(s, "PQ");
    server_push_out(s);
    server_hold(s, 0);
    server_hold(s, 1);
    struct server_request *request = server_start(s, "ABCDE");
    struct server_request *other = server_start(s, "PQ");
    struct server_request *both[] = { request, other };
    cr_assert(zero(int, server_try_step(s, 0, SIZE_MAX, 2, both)));
    weir_move move = { .host = { 0 } };
    for (uint32_t i = 0; i < s->last.n_loads; i++)
        if (s->last.loads[i].device.id == request->table[page])
            move = s->last.loads[i];
    uint32_t row = (uint32_t)page % T;
    unsigned char *byte = (unsigned char *)(uintptr_t)weir_geometry_host(
        s->ranks[whose].rank->geometry, tensor, layer, move.host, row);
    byte[tensors[tensor].row_bytes - 1] ^= 1;
    server_let_go(s, 0);
    server_let_go(s, 1);
    server_run(s);

    cr_assert(eq(u64, server_stats(s).damaged_pages, 1));
    cr_assert(request->failures == 1 && other->failures == 0);
    cr_assert(eq(sz, request->good, page));
    server_expect_hit(s, "ABCDE", page, 0, 0);
    server_expect_hit(s, "PQ", 2, 0, 0);
    server_leave(s, request);
    server_leave(s, other);
    probe_expect(s, "ABCDE", page);
    server_settle(s);
    server_push_out(s);
    probe_expect(s, "ABCDE", 5);
    cr_assert(eq(u64, server_stats(s).damaged_pages, 1));
    server_close(s);
}

Test(wrong_data, a_host_page_that_changes, .timeout = 100)
{
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint32_t i = 0; i < tensors[t].n_layers; i++)
            for (size_t page = 0; page < 5; page += 2)
                host_page_changes((weir_host_layout)((t + i) % 4), page, t, tensors[t].layers[i],
                                  (t + i) % 2);
}
