/* SPDX-License-Identifier: Apache-2.0 */
#include "fault_texts.h"

/* A fixed workload in which the n-th device call of a kind fails, for every kind
 * and every n, on the CPU device and on the CUDA device. Each run ends with a
 * cache that is sound and empty, with every step, load and write-back reported
 * once, nothing leaked, and the right bytes in all that was left in the index.
 * One workload has whole pages; in the other texts fork and are cut inside a page,
 * whose rows are copied on the device.
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

static void run_pages(struct server *s)
{
    server_start(s);
    work(s);
    work_forget(s);
    verify(s);
}

/* ---- Forks and cuts ------------------------------------------------------- */

/* Off what a text has computed, off what the index has, and off a page that is
 * itself still to be copied; three copies in one step. */
static void work_kids(struct server *s, struct talk *talk)
{
    talk_open(s, talk, 0, "AAAABBBBCC");
    talk_pass(s, talk);
    talk_fork(s, talk, 0, 1, 10);
    talk_fork(s, talk, 1, 2, 9);
    talk_fork(s, talk, 0, 3, 6);
    talk_write(talk, 0, "ccd"); /* in place, behind what the kids have of the page */
    talk_write(talk, 1, "ee");
    talk_write(talk, 2, "f");
    talk_write(talk, 3, "gg");
    talk_pass(s, talk);
}

/* Into a page of the index, in a page of its own, and with a copy that is due. */
static void work_cuts(struct server *s, struct talk *talk)
{
    talk_rewrite(s, talk, 0, 6, "BBCCh");
    talk_rewrite(s, talk, 1, 11, "iii");
    talk_rewrite(s, talk, 2, 9, "j");
    talk_close(s, talk, 3);
    talk_fork(s, talk, 1, 3, 7);
    talk_rewrite(s, talk, 3, 5, "BBk");
    talk_pass(s, talk);
}

/* Copies that are due and never made. */
static void work_undone(struct server *s, struct talk *talk)
{
    talk_close(s, talk, 3);
    talk_fork(s, talk, 0, 3, 7);
    talk_close(s, talk, 3);
    talk_fork(s, talk, 0, 4, 7);
    talk_rewrite(s, talk, 4, 4, "BBBl");
    talk_rewrite(s, talk, 1, 10, "");
    talk_close(s, talk, 1);
    talk_pass(s, talk);
}

/* Off pages that the same step begins to load, and that another is loading; the
 * load goes on for the kids alone. */
static void work_loads(struct server *s, struct talk *talk)
{
    talk_open(s, talk, 0, "AAAABBBBCCccm");
    if (talk->texts[0].n < 8)
        talk_pass(s, talk); /* a fault has taken it out of the index */
    talk_fork(s, talk, 0, 1, 6);
    talk_fork(s, talk, 0, 2, 3); /* has nothing of the load but the copy */
    talk_write(talk, 1, "nn");
    talk_write(talk, 2, "r");
    talk_step(s, talk);
    talk_fork(s, talk, 0, 3, 7);
    talk_fork(s, talk, 0, 4, 2);
    talk_close(s, talk, 0);
    talk_write(talk, 3, "o");
    talk_write(talk, 4, "tt");
    talk_pass(s, talk);
    talk_write(talk, 1, "q"); /* with the load ended, its page enters the index */
    talk_pass(s, talk);
    talk_rewrite(s, talk, 1, 7, "pp");
    talk_pass(s, talk);
}

static void work_texts(struct server *s, void (*act)(struct server *, struct talk *))
{
    struct talk *talk = malloc(sizeof *talk);
    cr_assert(ne(ptr, talk, NULL));
    talk_begin(s, talk);
    act(s, talk);
    talk_end(s, talk);
    free(talk);
}

static void work_forks(struct server *s, struct talk *talk)
{
    work_kids(s, talk);
    work_cuts(s, talk);
    work_undone(s, talk);
}

/* What texts left in the index is right: it is loaded, hit and looked at. */
static void read_texts(struct server *s, struct talk *talk)
{
    static const char *const texts[] = { "AAAABBBBCCccd", "AAAABBBBCCeii", "AAAABBBBCCee.",
                                         "AAAABBgg.",     "AAAABBBk.",     "AAAABBBl.",
                                         "AAAABBBo.",     "AAAABBnn.",     "AAAABBnp.",
                                         "AAAr.",         "AAtt." };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        talk_open(s, talk, 0, texts[i]);
        talk_pass(s, talk);
        talk_close(s, talk, 0);
    }
}

static void run_texts(struct server *s)
{
    server_start(s);
    server_serve_one(s, "AB");
    work_texts(s, work_forks);
    server_settle(s);
    server_serve_one(s, "GHIJKLMN"); /* pushes the others out to the host */
    work_texts(s, work_loads);
    work_texts(s, read_texts);
    server_serve_one(s, "AB");
    server_serve_one(s, "GHIJKLMN");
    cr_assert(zero(u64, s->wrong), "%d wrong bytes", (int)s->wrong);
}

struct workload {
    void (*run)(struct server *s);
    bool forks;
};

static const struct workload pages = { run_pages, false };
static const struct workload texts = { run_texts, true };

/* Without a fault a workload does what it is for. */
static void expect_busy(const struct workload *load, const struct server *s)
{
    if (load->forks)
        cr_assert(s->copies > 10 && s->copies_behind > 1 && s->copies_joining > 1,
                  "%d copies, %d behind the step's load, %d behind another's", (int)s->copies,
                  (int)s->copies_behind, (int)s->copies_joining);
    else
        cr_assert(s->loads > 4 && s->joins > 0 && s->writes > 10, "%d loads, %d joins, %d writes",
                  (int)s->loads, (int)s->joins, (int)s->writes);
}

/* ---- The CPU device ------------------------------------------------------- */

/* What the n-th call of a kind makes of the workload; false: it has fewer. n 0: none fails. */
static bool strike_cpu(const struct workload *load, weir_cpu_call call, uint64_t n, uint64_t seed,
                       uint32_t *failures)
{
    struct server *s = calloc(1, sizeof *s);
    cr_assert(ne(ptr, s, NULL));
    server_open(s, NULL, seed);
    bool memory = call <= WEIR_CPU_CALL_WORDS_ALLOC;
    if (n)
        works(s, weir_cpu_device_fail(s->device, call, n, memory ? -ENOMEM : -EIO));
    load->run(s);
    bool struck = weir_cpu_device_calls(s->device, call) >= n;
    weir_cpu_device_release(s->device);
    expect_empty(s);
    /* A load that could not be ordered is one that nobody may read. */
    uint32_t failed = s->failures + s->text_failures;
    if (call != WEIR_CPU_CALL_STREAM_WAIT_EVENT || failed == 0)
        cr_assert(zero(u64, weir_cpu_device_races(s->device)), "%s", s->log.last);
    if (n == 0)
        expect_busy(load, s);
    /* A copy of rows that is not made is told to somebody. */
    if (n && struck && call == WEIR_CPU_CALL_COPY_PAGES)
        cr_assert(lt(u32, 0, failed));
    *failures += failed;
    server_close(s);
    free(s);
    return struck;
}

static uint64_t sweep_cpu(const struct workload *load, weir_cpu_call call, uint32_t *failures)
{
    uint64_t n = 1;
    while (strike_cpu(load, call, n, 1 + n % 5, failures))
        n += stride();
    return n;
}

static void expect_no_failure(const struct workload *load)
{
    uint32_t failures = 0;
    for (uint64_t seed = 1; seed <= 8; seed++)
        strike_cpu(load, WEIR_CPU_CALL_COPY_LOAD, 0, seed, &failures);
    cr_assert(zero(u32, failures));
    check_leaks();
}

Test(fault_sweep, cpu_without_a_fault)
{
    expect_no_failure(&pages);
}

Test(fault_sweep, cpu_texts_without_a_fault)
{
    expect_no_failure(&texts);
}

/* Whether a request has to be tried again is known for some. */
static void sweep_cpu_copies(const struct workload *load)
{
    for (int call = WEIR_CPU_CALL_COPY_LOAD; call < WEIR_CPU_CALL_COUNT; call++) {
        uint32_t failures = 0;
        uint64_t n = sweep_cpu(load, (weir_cpu_call)call, &failures);
        cr_log_info("call %d: up to n %llu, %u failures", call, (unsigned long long)n, failures);
        if (call == WEIR_CPU_CALL_COPY_PAGES && !load->forks)
            continue;
        cr_assert(lt(u64, 12, n));
        if (call == WEIR_CPU_CALL_COPY_WRITE_BACK)
            cr_assert(zero(u32, failures)); /* a page that is not written back is no loss */
        else
            cr_assert(lt(u32, 0, failures));
    }
    check_leaks();
}

Test(fault_sweep, cpu_copies, .timeout = 100)
{
    sweep_cpu_copies(&pages);
}

Test(fault_sweep, cpu_copies_of_texts, .timeout = 100)
{
    sweep_cpu_copies(&texts);
}

static void sweep_cpu_calls(const struct workload *load)
{
    for (int call = 0; call < WEIR_CPU_CALL_COPY_LOAD; call++) {
        uint32_t failures = 0;
        uint64_t n = sweep_cpu(load, (weir_cpu_call)call, &failures);
        cr_log_info("call %d: up to n %llu, %u failures", call, (unsigned long long)n, failures);
        cr_assert(lt(u64, 1, n));
    }
    check_leaks();
}

Test(fault_sweep, cpu_calls, .timeout = 100)
{
    sweep_cpu_calls(&pages);
}

Test(fault_sweep, cpu_calls_of_texts, .timeout = 100)
{
    sweep_cpu_calls(&texts);
}

/* ---- The CUDA device ------------------------------------------------------ */

/* What a driver keeps that cannot free it is nothing that weir could free. */
static bool frees(enum fake_function function)
{
    return function == FAKE_cuMemFree || function == FAKE_cuMemFreeHost ||
           function == FAKE_cuMemHostUnregister || function == FAKE_cuStreamDestroy ||
           function == FAKE_cuEventDestroy || function == FAKE_cuDevicePrimaryCtxRelease;
}

static bool strike_cuda(const struct workload *load, struct fake_cuda *fake,
                        enum fake_function function, uint32_t n, uint32_t *failures)
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
    load->run(s);
    bool struck = fake->counts[function] - before >= n;
    fake->faults[function] = (struct fake_fault){ 0 };
    expect_empty(s);
    if (n == 0)
        expect_busy(load, s);
    *failures += s->failures + s->text_failures;
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

static void sweep_cuda(const struct workload *load)
{
    struct fake_cuda *fake = fake_cuda_find();
    cr_assert(ne(ptr, fake, NULL), "not the fake driver: is LD_LIBRARY_PATH set?");
    uint32_t failures = 0;
    strike_cuda(load, fake, FAKE_cuMemcpyAsync, 0, &failures);
    cr_assert(zero(u32, failures));
    uint32_t counts[FAKE_FUNCTIONS], n_functions = 0;
    memcpy(counts, fake->counts, sizeof counts);
    for (int function = 0; function < FAKE_FUNCTIONS; function++) {
        if (counts[function] == 0 || frees(function))
            continue;
        uint32_t n = 1, failed = 0;
        while (strike_cuda(load, fake, function, n, &failed))
            n += (uint32_t)stride();
        cr_log_info("driver function %d: up to n %u, %u failures", function, n, failed);
        failures += failed;
        n_functions++;
    }
    cr_assert(lt(u32, 15, n_functions));
    cr_assert(lt(u32, 0, failures));
    check_leaks();
}

Test(fault_sweep, cuda, .timeout = 100)
{
    sweep_cuda(&pages);
}

Test(fault_sweep, cuda_texts, .timeout = 100)
{
    sweep_cuda(&texts);
}
