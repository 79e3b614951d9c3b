/* SPDX-License-Identifier: Apache-2.0 */
#include "fault_server.h"

/* A fixed workload in which the n-th device call of a kind fails, for every kind
 * and every n, on the CPU device and on the CUDA device. Each run ends with a
 * cache that is sound and empty, with every step, load and write-back reported
 * once, nothing leaked, and the right bytes in all that was left in the index.
 *
 *   WEIR_FAULT_STRIDE  every so many n only; 1 by default, 3 with a sanitizer */

#ifdef __SANITIZE_ADDRESS__
#define DEFAULT_STRIDE 3
#else
#define DEFAULT_STRIDE 1
#endif

/* Closed by its server before its load has come. */
static void abandon(struct server *s, const char *letters)
{
    struct request request = { .letters = letters };
    struct hand_work todo[SERVER_DEVICE_PAGES];
    cr_assert(server_open_request(s, &request));
    size_t n = server_works(s, &request, todo);
    server_step(s, request.seq, todo, n);
    works(s, weir_seq_close(&request.seq));
    server_check(s);
    server_pump(s, NULL, 0);
    (void)server_seen_wrong(s);
}

static void pin(struct server *s, const char *letters, weir_pin *handle)
{
    weir_key key = server_key(s, letters, NULL);
    int rc = weir_cache_pin(handle, s->cache, &key, NULL);
    cr_assert(rc == 0 || rc == -ENOENT, "pin: %d", rc); /* a fault may have taken it out */
    server_check(s);
}

static void work(struct server *s)
{
    weir_pin handle = { 0 };
    server_serve_one(s, "ABCD");
    server_serve_two(s, "ABEF", "ABCD");
    pin(s, "AB", &handle);
    server_serve_one(s, "GHIJKL");         /* pushes others out to the host */
    server_serve_two(s, "ABCD", "ABCDMN"); /* hits there, one loads and one joins */
    abandon(s, "GHIJ");
    works(s, weir_cache_unpin(&handle));
    server_serve_one(s, "GHIJOP");
    server_serve_two(s, "ABEF", "GHQ");
    server_settle(s);
}

/* Forgotten while a load is on its way to one that goes on. */
static void work_forget(struct server *s)
{
    struct request request = { .letters = "ABCD" };
    struct hand_work todo[SERVER_DEVICE_PAGES];
    cr_assert(server_open_request(s, &request));
    size_t n = server_works(s, &request, todo);
    server_step(s, request.seq, todo, n);
    works(s, weir_cache_forget_all(s->cache));
    server_check(s);
    server_pump(s, &request, 1);
    works(s, weir_seq_close(&request.seq));
    uint64_t wrong = server_seen_wrong(s);
    s->wrong += request.failed ? 0 : wrong;
    server_serve_one(s, "ABCD");
    server_settle(s);
}

/* All that the index still holds is right: who hits it sees so. */
static void verify(struct server *s)
{
    static const char *const prompts[] = { "ABCDMN", "ABEF", "GHIJKL", "GHIJOP", "GHQ" };
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        server_serve_one(s, prompts[i]);
    cr_assert(zero(u64, s->wrong), "%d wrong bytes", (int)s->wrong);
}

static void expect_empty(struct server *s)
{
    server_settle(s);
    works(s, weir_cache_forget_all(s->cache));
    server_settle(s);
    weir_stats stats = { .struct_size = sizeof stats };
    works(s, weir_cache_get_stats(s->cache, &stats));
    cr_assert(zero(u64, stats.index_pages));
    cr_assert(zero(u64, stats.orders_in_flight));
    cr_assert(zero(u64, stats.write_backs_in_flight));
    cr_assert(eq(u64, stats.device_free, (uint64_t)SERVER_DEVICE_PAGES));
    cr_assert(eq(u64, stats.host_free, (uint64_t)SERVER_HOST_PAGES));
}

static uint64_t stride(void)
{
    const char *text = getenv("WEIR_FAULT_STRIDE");
    uint64_t n = text ? strtoull(text, NULL, 10) : 0;
    return n ? n : DEFAULT_STRIDE;
}

static void check_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
    cr_assert(eq(int, __lsan_do_recoverable_leak_check(), 0));
#endif
}

static void run_all(struct server *s)
{
    server_start(s);
    work(s);
    work_forget(s);
    verify(s);
}

/* ---- The CPU device ------------------------------------------------------- */

/* What the n-th call of a kind makes of the workload; false: it has fewer. n 0: none fails. */
static bool strike_cpu(weir_cpu_call call, uint64_t n, uint64_t seed, uint32_t *failures)
{
    struct server *s = calloc(1, sizeof *s);
    cr_assert(ne(ptr, s, NULL));
    server_open(s, NULL, seed);
    bool memory = call <= WEIR_CPU_CALL_WORDS_ALLOC;
    if (n)
        works(s, weir_cpu_device_fail(s->device, call, n, memory ? -ENOMEM : -EIO));
    run_all(s);
    bool struck = weir_cpu_device_calls(s->device, call) >= n;
    weir_cpu_device_release(s->device);
    expect_empty(s);
    /* A load that could not be ordered is one that nobody may read. */
    if (call != WEIR_CPU_CALL_STREAM_WAIT_EVENT || s->failures == 0)
        cr_assert(zero(u64, weir_cpu_device_races(s->device)), "%s", s->log.last);
    if (n == 0)
        cr_assert(s->loads > 4 && s->joins > 0 && s->writes > 10, "%d loads, %d joins, %d writes",
                  (int)s->loads, (int)s->joins, (int)s->writes);
    *failures += s->failures;
    server_close(s);
    free(s);
    return struck;
}

static uint64_t sweep_cpu(weir_cpu_call call, uint32_t *failures)
{
    uint64_t n = 1;
    while (strike_cpu(call, n, 1 + n % 5, failures))
        n += stride();
    return n;
}

Test(fault_sweep, cpu_without_a_fault)
{
    uint32_t failures = 0;
    for (uint64_t seed = 1; seed <= 8; seed++)
        strike_cpu(WEIR_CPU_CALL_COPY_LOAD, 0, seed, &failures);
    cr_assert(zero(u32, failures));
    check_leaks();
}

/* Whether a request has to be tried again is known for some. */
Test(fault_sweep, cpu_copies, .timeout = 100)
{
    static const weir_cpu_call calls[] = { WEIR_CPU_CALL_COPY_LOAD, WEIR_CPU_CALL_COPY_WRITE_BACK };
    for (size_t i = 0; i < 2; i++) {
        uint32_t failures = 0;
        uint64_t n = sweep_cpu(calls[i], &failures);
        cr_log_info("call %d: up to n %llu, %u requests failed", (int)calls[i],
                    (unsigned long long)n, failures);
        cr_assert(lt(u64, 12, n));
        if (calls[i] == WEIR_CPU_CALL_COPY_LOAD)
            cr_assert(lt(u32, 0, failures));
        else
            cr_assert(zero(u32, failures)); /* a page that is not written back is no loss */
    }
    check_leaks();
}

Test(fault_sweep, cpu_calls, .timeout = 100)
{
    for (int call = 0; call < WEIR_CPU_CALL_COPY_LOAD; call++) {
        uint32_t failures = 0;
        uint64_t n = sweep_cpu((weir_cpu_call)call, &failures);
        cr_log_info("call %d: up to n %llu, %u requests failed", call, (unsigned long long)n,
                    failures);
        cr_assert(lt(u64, 1, n));
    }
    check_leaks();
}

/* ---- The CUDA device ------------------------------------------------------ */

/* What a driver keeps that cannot free it is nothing that weir could free. */
static bool frees(enum fake_function function)
{
    return function == FAKE_cuMemFree || function == FAKE_cuMemFreeHost ||
           function == FAKE_cuMemHostUnregister || function == FAKE_cuStreamDestroy ||
           function == FAKE_cuEventDestroy || function == FAKE_cuDevicePrimaryCtxRelease;
}

static bool strike_cuda(struct fake_cuda *fake, enum fake_function function, uint32_t n,
                        uint32_t *failures)
{
    struct server *s = calloc(1, sizeof *s);
    cr_assert(ne(ptr, s, NULL));
    server_open(s, fake, 0);
    uint32_t before = fake->counts[function];
    if (n)
        fake_cuda_fail(fake, function, n,
                       function == FAKE_cuMemAlloc || function == FAKE_cuMemHostAlloc
                           ? CUDA_ERROR_OUT_OF_MEMORY
                           : CUDA_ERROR_INVALID_VALUE);
    run_all(s);
    bool struck = fake->counts[function] - before >= n;
    fake->faults[function] = (struct fake_fault){ 0 };
    expect_empty(s);
    *failures += s->failures;
    server_close(s);
    free(s);
    /* Nor is a context that it cannot leave. */
    if (function == FAKE_cuCtxPopCurrent && struck)
        fake->contexts = 0;
    if (function == FAKE_cuThreadExchangeStreamCaptureMode && struck)
        fake->mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cr_assert(zero(u32, fake->n_violations), "%s", fake->violation);
    cr_assert(zero(int, fake->contexts));
    cr_assert(zero(int, fake->retained));
    cr_assert(zero(u32, fake->n_allocations));
    cr_assert(zero(u32, fake->n_streams));
    cr_assert(zero(u32, fake->n_events));
    return struck;
}

Test(fault_sweep, cuda, .timeout = 100)
{
    struct fake_cuda *fake = fake_cuda_find();
    cr_assert(ne(ptr, fake, NULL), "not the fake driver: is LD_LIBRARY_PATH set?");
    uint32_t failures = 0;
    strike_cuda(fake, FAKE_cuMemcpyAsync, 0, &failures);
    cr_assert(zero(u32, failures));
    uint32_t counts[FAKE_FUNCTIONS], n_functions = 0;
    memcpy(counts, fake->counts, sizeof counts);
    for (int function = 0; function < FAKE_FUNCTIONS; function++) {
        if (counts[function] == 0 || frees(function))
            continue;
        uint32_t n = 1, failed = 0;
        while (strike_cuda(fake, function, n, &failed))
            n += (uint32_t)stride();
        cr_log_info("driver function %d: up to n %u, %u requests failed", function, n, failed);
        failures += failed;
        n_functions++;
    }
    cr_assert(lt(u32, 15, n_functions));
    cr_assert(lt(u32, 0, failures));
    check_leaks();
}
