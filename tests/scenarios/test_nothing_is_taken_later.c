/* SPDX-License-Identifier: Apache-2.0 */

/* A server opens, serves for long and closes: what it takes it takes at once, to
 * the byte and by its name in the statistics; nothing more while it serves, so that
 * graphs may be captured at any time; and all of it goes back, the streams first. */

#include "alloc_fault.h"
#include "cuda_server.h"

#include <inttypes.h>

/* What takes memory, handles or registrations of the driver's. */
static const enum fake_function takers[] = { FAKE_cuMemAlloc,
                                             FAKE_cuMemHostAlloc,
                                             FAKE_cuMemHostRegister,
                                             FAKE_cuMemFree,
                                             FAKE_cuMemFreeHost,
                                             FAKE_cuMemHostUnregister,
                                             FAKE_cuStreamCreateWithPriority,
                                             FAKE_cuStreamDestroy,
                                             FAKE_cuEventCreate,
                                             FAKE_cuEventDestroy };
#define N_TAKERS (sizeof takers / sizeof *takers)

static void count_takers(const struct fake_cuda *fake, uint32_t counts[N_TAKERS])
{
    for (size_t i = 0; i < N_TAKERS; i++)
        counts[i] = fake->counts[takers[i]];
}

/* A few hundred prompts that share prefixes, far more than fit. */
static void serve_many(struct server *s, uint32_t n, struct random *random)
{
    for (uint32_t i = 0; i < n; i++) {
        char letters[SERVER_LETTERS + 1] = { 0 };
        uint32_t length = 1 + random_below(random, 6);
        for (uint32_t at = 0; at < length; at++)
            letters[at] = (char)('A' + random_below(random, 2 + at));
        server_serve(s, letters);
    }
}

/* ---- While serving ------------------------------------------------------------ */

static void serve_long(weir_host_layout layout)
{
    struct server s;
    struct random random = { 5 };
    uint32_t before[N_TAKERS];
    uint32_t after[N_TAKERS];
    server_open(&s, 8, 20, layout);
    count_takers(s.rig.fake, before);
    serve_many(&s, 400, &random);
    count_takers(s.rig.fake, after);
    for (size_t i = 0; i < N_TAKERS; i++)
        cr_assert(eq(u32, after[i], before[i]), "function %d", (int)takers[i]);
    weir_stats stats = server_stats(&s);
    cr_assert(lt(u64, 100, stats.loaded_pages));
    cr_assert(lt(u64, 10, stats.evicted_host_pages));
    server_settle(&s);
    server_close(&s);
    rig_check_clean(s.rig.fake);
}

Test(nothing_is_taken_later, of_the_device_in_batches, .timeout = 60)
{
    serve_long(WEIR_HOST_SEGMENTED);
}

Test(nothing_is_taken_later, of_the_device_by_rows, .timeout = 60)
{
    serve_long(WEIR_HOST_PAGE_FIRST);
}

/* The server captures a graph, in the mode that forbids most, for as long as it
 * serves: no call of the library's breaks it. */
Test(nothing_is_taken_later, beside_a_capture, .timeout = 60)
{
    struct server s;
    struct random random = { 6 };
    weir_stream *captured;
    bool capturing = false;
    server_open(&s, 8, 20, WEIR_HOST_SEGMENTED);
    cr_assert(zero(int, s.rig.ops->stream_create(s.rig.device, 0, &captured)));
    s.rig.fake->set_capture((CUstream)captured, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    serve_many(&s, 100, &random);
    cr_assert(zero(int, s.rig.ops->stream_is_capturing(s.rig.device, captured, &capturing)));
    cr_assert(capturing);
    cr_assert(zero(u32, s.rig.fake->captured((CUstream)captured)));
    s.rig.fake->set_capture((CUstream)captured, CU_STREAM_CAPTURE_STATUS_NONE);
    s.rig.ops->stream_destroy(s.rig.device, captured);
    server_settle(&s);
    server_close(&s);
    rig_check_clean(s.rig.fake);
}

/* Nor of the host, once each kind of request has been there. */
Test(nothing_is_taken_later, of_the_host, .timeout = 60)
{
    struct server s;
    struct random random = { 7 };
    server_open(&s, 8, 20, WEIR_HOST_SEGMENTED);
    serve_many(&s, 200, &random);
    alloc_fault_set(0, 0);
    s.unchecked = true;
    alloc_fault_on();
    serve_many(&s, 200, &random);
    alloc_fault_off();
    s.unchecked = false;
    cr_assert(zero(u64, alloc_fault_counted()));
    server_settle(&s);
    server_close(&s);
    rig_check_clean(s.rig.fake);
}

/* ---- At open -------------------------------------------------------------------- */

static uint64_t taken(const struct fake_cuda *fake, enum fake_function function, size_t argument)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < fake->n_calls; i++)
        if (fake->calls[i].function == function)
            bytes += fake->calls[i].arguments[argument];
    return bytes;
}

/* Pools of odd sizes: no power of two, no allocator's classes; what is reported and
 * logged is what the driver was asked for. */
Test(nothing_is_taken_later, pools_have_the_bytes_that_they_need)
{
    static const uint32_t pages[] = { 1, 3, 31, 33, 100, 1000 };
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        for (int layout = WEIR_HOST_LAYER_FIRST; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++) {
            weir_rank_params params =
                server_rank_params(pages[i], pages[i], (weir_host_layout)layout);
            params.log = log_capture_log(&rig.capture);
            weir_rank *rank = NULL;
            weir_rank_memory memory;
            uint64_t page_bytes;
            rig.fake->n_calls = 0;
            cr_assert(zero(int, weir_rank_open(&rank, rig.device, &params)));
            weir_rank_get_memory(rank, &memory);
            cr_assert(zero(int, weir_shape_page_bytes(&server_shape, NULL, &page_bytes)));
            cr_assert(
                eq(u64, memory.host_pool_bytes, (page_bytes * pages[i] + 4095) / 4096 * 4096));
            cr_assert(eq(u64, taken(rig.fake, FAKE_cuMemHostRegister, 1), memory.host_pool_bytes));
            cr_assert(eq(u64, taken(rig.fake, FAKE_cuMemAlloc, 0), memory.device_pool_bytes));
            /* And the dummy page. */
            cr_assert(ge(u64, memory.device_pool_bytes, page_bytes * (pages[i] + 1)));
            cr_assert(lt(u64, memory.device_pool_bytes, page_bytes * (pages[i] + 1) + 4096));
            const uint64_t logged[] = { memory.device_pool_bytes, memory.host_pool_bytes,
                                        memory.pinned_bytes, memory.other_bytes };
            for (size_t k = 0; k < 4; k++) {
                char number[32];
                snprintf(number, sizeof number, " %" PRIu64 " bytes", logged[k]);
                cr_assert(lt(u64, 0, logged[k]));
                cr_assert(ne(ptr, strstr(rig.capture.last, number), NULL), "%s", rig.capture.last);
            }
            weir_rank_close(&rank);
        }
    rig_close_device(&rig);
}

/* No shared memory, whose limit is another, and no file. */
Test(nothing_is_taken_later, pools_are_private_memory)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    struct weir_host_memory_params params = { .bytes = 5 << 20, .granule = 1 };
    struct weir_host_memory *memory = NULL;
    cr_assert(zero(int, weir_host_memory_create(&memory, rig.device, &params, NULL)));
    FILE *maps = fopen("/proc/self/maps", "r");
    cr_assert(ne(ptr, maps, NULL));
    uintptr_t base = (uintptr_t)memory->base;
    bool found = false;
    char line[512];
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end, inode;
        char mode[8];
        cr_assert(eq(int, sscanf(line, "%lx-%lx %7s %*s %*s %lu", &begin, &end, mode, &inode), 4));
        if (base < begin || base >= end)
            continue;
        found = true;
        cr_assert(zero(int, strcmp(mode, "rw-p")), "%s", line);
        cr_assert(zero(u64, inode), "%s", line);
    }
    cr_assert(found);
    fclose(maps);
    weir_host_memory_destroy(&memory);
    rig_close_device(&rig);
}

/* The limit is on all of the host pool: one byte less than it needs is refused, and
 * nothing has been taken then. */
Test(nothing_is_taken_later, a_limit_counts_every_byte)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    weir_rank_params params = server_rank_params(33, 133, WEIR_HOST_PAGE_FIRST);
    weir_rank *rank = NULL;
    weir_rank_memory memory;
    cr_assert(zero(int, weir_rank_open(&rank, rig.device, &params)));
    weir_rank_get_memory(rank, &memory);
    weir_rank_close(&rank);
    params.host_bytes_limit = memory.host_pool_bytes;
    cr_assert(zero(int, weir_rank_open(&rank, rig.device, &params)));
    weir_rank_close(&rank);
    params.host_bytes_limit--;
    uint32_t before[N_TAKERS];
    uint32_t after[N_TAKERS];
    count_takers(rig.fake, before);
    cr_assert(eq(int, weir_rank_open(&rank, rig.device, &params), -ENOSPC));
    count_takers(rig.fake, after);
    cr_assert(zero(int, memcmp(before, after, sizeof before)));
    rig_close_device(&rig);
}

/* Pinning that is refused half-way is undone, tried in smaller pieces, and is no
 * trouble for what comes after. */
Test(nothing_is_taken_later, a_pin_refused_half_way_is_undone)
{
    struct cuda_rig rig = { 0 };
    rig_open_device(&rig);
    const uint64_t chunk = 64 << 10;
    for (uint32_t n = 1; n <= 9; n++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            struct weir_host_memory_params params = {
                .bytes = 8 * chunk, .granule = 4096, .chunk_limit = chunk, .touch_threads = 1
            };
            struct weir_host_memory *memory = NULL;
            uint32_t at = rig.fake->counts[FAKE_cuMemHostRegister] + n;
            rig.fake->faults[FAKE_cuMemHostRegister] =
                (struct fake_fault){ at, for_ever ? UINT32_MAX : at, CUDA_ERROR_OUT_OF_MEMORY };
            int rc = weir_host_memory_create(&memory, rig.device, &params, &rig.device->log);
            bool refused = for_ever && n <= 8;
            cr_assert(eq(int, rc, refused ? -ENOMEM : 0));
            cr_assert(eq(u32, rig.fake->n_allocations, refused ? 0 : n <= 8 ? 16 : 8));
            if (refused)
                cr_assert(ne(ptr, strstr(rig.capture.last, "ulimit -l"), NULL), "%s",
                          rig.capture.last);
            weir_host_memory_destroy(&memory);
            cr_assert(zero(u32, rig.fake->n_allocations));
            rig.fake->faults[FAKE_cuMemHostRegister] = (struct fake_fault){ 0 };
            /* No error sticks to the device. */
            cr_assert(zero(int, rig.ops->status(rig.device)));
            cr_assert(zero(int, weir_host_memory_create(&memory, rig.device, &params, NULL)));
            weir_host_memory_destroy(&memory);
        }
    rig_close_device(&rig);
}

/* ---- At close -------------------------------------------------------------------- */

static uint32_t first_call(const struct fake_cuda *fake, enum fake_function function)
{
    for (uint32_t i = 0; i < fake->n_calls; i++)
        if (fake->calls[i].function == function)
            return i;
    return UINT32_MAX;
}

static uint32_t last_call(const struct fake_cuda *fake, enum fake_function function)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < fake->n_calls; i++)
        if (fake->calls[i].function == function)
            last = i;
    return last;
}

/* Told to stop in the midst of its work: the streams end before memory that they
 * copy is unpinned, each registration goes back once by the library's own hand, not
 * in the kernel as the process dies, and closing again does nothing. */
Test(nothing_is_taken_later, closing_ends_streams_before_memory)
{
    struct server s;
    server_open(&s, 8, 20, WEIR_HOST_SEGMENTED);
    server_serve(&s, "ABCDEF");
    server_serve(&s, "KLMNOP");
    weir_reserved reserved;
    weir_seq seq = server_admit(&s, "ABCDEF", &reserved);
    weir_step step;
    const void *order;
    size_t bytes;
    uint64_t number;
    SERVER_GIVES(&s, weir_step_begin(&step, s.cache), 0);
    SERVER_GIVES(&s, weir_step_add(step, seq), 0);
    SERVER_GIVES(&s, weir_step_end(&step, &order, &bytes), 0);
    server_begin(&s, order, bytes, &number);
    cr_assert(zero(int, weir_rank_end(s.rank, number, s.rig.stream)));
    cr_assert(lt(sz, 0, reserved.hit.n_host));
    cr_assert(not(s.rig.fake->idle()));

    s.rig.fake->n_calls = 0;
    struct fake_cuda *fake = s.rig.fake;
    uint32_t registered = fake->counts[FAKE_cuMemHostRegister];
    weir_rank_close(&s.rank);
    cr_assert(eq(ptr, s.rank, NULL));
    uint32_t n_calls = fake->n_calls;
    weir_rank_close(&s.rank);
    cr_assert(eq(u32, fake->n_calls, n_calls));
    cr_assert(eq(u32, fake->counts[FAKE_cuMemHostUnregister], registered));
    uint32_t streams_end = last_call(fake, FAKE_cuStreamDestroy);
    cr_assert(lt(u32, last_call(fake, FAKE_cuStreamSynchronize), streams_end));
    cr_assert(lt(u32, streams_end, first_call(fake, FAKE_cuMemHostUnregister)));
    cr_assert(lt(u32, streams_end, first_call(fake, FAKE_cuMemFree)));

    SERVER_GIVES(&s, weir_cache_rank_lost(s.cache, 0, &number), 0);
    SERVER_GIVES(&s, weir_seq_close(&seq), 0);
    server_close(&s);
    rig_check_clean(fake);
}
