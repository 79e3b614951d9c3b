/* SPDX-License-Identifier: Apache-2.0 */
#include "log_capture.h"
#include "pool/host_memory.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#define MIB (UINT64_C(1) << 20)

/* A device that only pins, and keeps account of it. */
struct fake {
    weir_device base;
    unsigned n_calls;
    unsigned fail_from; /* calls fail_from..fail_to fail; 1 is the first */
    unsigned fail_to;
    uint64_t refuse_above; /* bytes of one registration; 0: no limit */
    bool lost;
    struct {
        unsigned char *address;
        uint64_t bytes;
    } pinned[64];
    unsigned n_pinned;
    unsigned wrong; /* unaligned, overlapping, or not undone in reverse order */
};

static int fake_register(weir_device *device, void *address, uint64_t bytes)
{
    struct fake *fake = (struct fake *)device;
    unsigned call = ++fake->n_calls;
    if (call >= fake->fail_from && call <= fake->fail_to)
        return -EIO;
    if (fake->refuse_above && bytes > fake->refuse_above)
        return -ENOMEM;
    fake->wrong += (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE) != 0 || bytes == 0;
    if (fake->n_pinned > 0)
        fake->wrong +=
            fake->pinned[fake->n_pinned - 1].address + fake->pinned[fake->n_pinned - 1].bytes !=
            (unsigned char *)address;
    fake->pinned[fake->n_pinned].address = address;
    fake->pinned[fake->n_pinned++].bytes = bytes;
    return 0;
}

static void fake_unregister(weir_device *device, void *address)
{
    struct fake *fake = (struct fake *)device;
    if (fake->n_pinned == 0 || fake->pinned[fake->n_pinned - 1].address != address)
        fake->wrong++;
    else
        fake->n_pinned--;
}

static int fake_status(weir_device *device)
{
    return ((struct fake *)device)->lost ? -EIO : 0;
}

static const struct weir_device_ops fake_ops = {
    .name = "fake",
    .status = fake_status,
    .host_register = fake_register,
    .host_unregister = fake_unregister,
};

static void check_leaks(void)
{
#ifdef __SANITIZE_ADDRESS__
    cr_assert(eq(int, __lsan_do_recoverable_leak_check(), 0));
#endif
}

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

Test(host_memory, sizes_granules_and_threads)
{
    static const uint64_t sizes[] = { 1,       4096,        4097,        MIB,
                                      2 * MIB, 2 * MIB + 1, 5 * MIB + 3, 9 * MIB + 1 };
    static const uint64_t granules[] = { 1, 100, 4096, 6144, 3 * 4096, MIB, 3 * MIB };
    static const uint32_t threads[] = { 0, 1, 3, 1000 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t g = 0; g < sizeof granules / sizeof *granules; g++)
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
                struct fake fake = { .base = { .ops = &fake_ops } };
                struct weir_host_memory_params params = { .bytes = sizes[s],
                                                          .granule = granules[g],
                                                          .chunk_limit = 4 * MIB,
                                                          .touch_threads = threads[t] };
                struct weir_host_memory *memory = NULL;
                cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, NULL), 0));
                cr_assert(ge(u64, memory->bytes, sizes[s]));
                cr_assert(lt(u64, memory->bytes, sizes[s] + page_bytes()));
                cr_assert(zero(u64, memory->chunk_bytes % granules[g]));
                cr_assert(zero(u64, memory->chunk_bytes % page_bytes()));
                if (memory->bytes >= 2 * MIB)
                    cr_assert(zero(u64, (uintptr_t)memory->base % (2 * MIB)));
                uint64_t chunks = (memory->bytes + memory->chunk_bytes - 1) / memory->chunk_bytes;
                cr_assert(eq(u64, fake.n_pinned, chunks));
                uint64_t pinned = 0;
                for (unsigned i = 0; i < fake.n_pinned; i++) {
                    cr_assert(
                        eq(ptr, fake.pinned[i].address, memory->base + i * memory->chunk_bytes));
                    pinned += fake.pinned[i].bytes;
                }
                cr_assert(eq(u64, pinned, memory->bytes));
                memset(memory->base, 0x5a, memory->bytes);
                weir_host_memory_destroy(&memory);
                cr_assert(eq(ptr, memory, NULL));
                weir_host_memory_destroy(&memory);
                cr_assert(zero(u32, fake.n_pinned));
                cr_assert(zero(u32, fake.wrong));
            }
    check_leaks();
}

/* Every page of the range is there before the device sees it. */
static int resident_register(weir_device *device, void *address, uint64_t bytes)
{
    unsigned char resident[4096];
    uint64_t pages = bytes / page_bytes();
    if (pages > sizeof resident || mincore(address, bytes, resident))
        return -EINVAL;
    for (uint64_t i = 0; i < pages; i++)
        ((struct fake *)device)->wrong += (resident[i] & 1) == 0;
    return fake_register(device, address, bytes);
}

Test(host_memory, touched_before_it_is_pinned)
{
    struct weir_device_ops ops = fake_ops;
    ops.host_register = resident_register;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct fake fake = { .base = { .ops = &ops } };
        struct weir_host_memory_params params = { .bytes = 7 * MIB + 5000,
                                                  .granule = 1,
                                                  .touch_threads = threads };
        struct weir_host_memory *memory = NULL;
        cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, NULL), 0));
        cr_assert(zero(u32, fake.wrong));
        weir_host_memory_destroy(&memory);
    }
}

Test(host_memory, a_refused_size_is_halved)
{
    struct fake fake = { .base = { .ops = &fake_ops }, .refuse_above = MIB };
    struct weir_host_memory_params params = { .bytes = 10 * MIB, .granule = 12288 };
    struct weir_host_memory *memory = NULL;
    cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, NULL), 0));
    cr_assert(le(u64, memory->chunk_bytes, MIB));
    cr_assert(lt(u64, MIB / 2 - 12288, memory->chunk_bytes));
    cr_assert(zero(u64, memory->chunk_bytes % 12288));
    cr_assert(zero(u32, fake.wrong));
    weir_host_memory_destroy(&memory);
    cr_assert(zero(u32, fake.n_pinned));
    cr_assert(zero(u32, fake.wrong));
}

Test(host_memory, one_failure_anywhere_is_rolled_back_and_retried)
{
    for (unsigned n = 1; n <= 8; n++) {
        struct fake fake = { .base = { .ops = &fake_ops }, .fail_from = n, .fail_to = n };
        struct weir_host_memory_params params = { .bytes = 8 * MIB,
                                                  .granule = 4096,
                                                  .chunk_limit = MIB };
        struct weir_host_memory *memory = NULL;
        cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, NULL), 0));
        cr_assert(eq(u64, memory->chunk_bytes, MIB / 2));
        cr_assert(eq(u32, fake.n_pinned, 16));
        cr_assert(eq(u32, fake.n_calls, n + 16));
        cr_assert(zero(u32, fake.wrong));
        weir_host_memory_destroy(&memory);
        cr_assert(zero(u32, fake.n_pinned));
    }
}

Test(host_memory, gives_up_at_the_granule)
{
    for (unsigned n = 1; n <= 4; n++) { /* chunks that work before the first failure */
        struct log_capture capture = { 0 };
        weir_log log = log_capture_log(&capture);
        struct fake fake = { .base = { .ops = &fake_ops }, .fail_from = n, .fail_to = 1000 };
        struct weir_host_memory_params params = { .bytes = 4 * MIB,
                                                  .granule = MIB / 4,
                                                  .chunk_limit = MIB };
        struct weir_host_memory *memory = NULL;
        cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, &log), -EIO));
        cr_assert(eq(ptr, memory, NULL));
        cr_assert(zero(u32, fake.n_pinned));
        cr_assert(zero(u32, fake.wrong));
        cr_assert(eq(u32, fake.n_calls, n + 2)); /* 1 MiB, 512 KiB, 256 KiB */
        cr_assert(eq(u32, capture.lines, 3));
        cr_assert(ne(ptr, strstr(capture.last, "4194304"), NULL));
        cr_assert(ne(ptr, strstr(capture.last, "262144"), NULL));
        cr_assert(ne(ptr, strstr(capture.last, "-EIO"), NULL));
    }
    check_leaks();
}

Test(host_memory, a_lost_device_is_not_asked_again)
{
    struct fake fake = {
        .base = { .ops = &fake_ops }, .fail_from = 2, .fail_to = 1000, .lost = true
    };
    struct weir_host_memory_params params = { .bytes = 4 * MIB, .granule = 1, .chunk_limit = MIB };
    struct weir_host_memory *memory = NULL;
    cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, NULL), -EIO));
    cr_assert(eq(u32, fake.n_calls, 2));
    cr_assert(zero(u32, fake.n_pinned));
}

Test(host_memory, the_budget_is_exact)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    for (uint64_t bytes = 3 * page_bytes() - 1; bytes <= 3 * page_bytes() + 1; bytes++) {
        uint64_t taken = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
        for (uint64_t limit = taken - 2; limit <= taken + 2; limit++) {
            struct fake fake = { .base = { .ops = &fake_ops } };
            struct weir_host_memory_params params = { .bytes = bytes,
                                                      .granule = 1,
                                                      .bytes_limit = limit };
            struct weir_host_memory *memory = NULL;
            unsigned lines = capture.lines;
            int rc = weir_host_memory_create(&memory, &fake.base, &params, &log);
            cr_assert(eq(int, rc, limit < taken ? -ENOSPC : 0));
            cr_assert(eq(u32, capture.lines - lines, limit < taken));
            if (rc) {
                char number[32];
                snprintf(number, sizeof number, "%" PRIu64, taken);
                cr_assert(ne(ptr, strstr(capture.last, number), NULL));
                snprintf(number, sizeof number, "%" PRIu64, limit);
                cr_assert(ne(ptr, strstr(capture.last, number), NULL));
                cr_assert(zero(u32, fake.n_calls));
            }
            weir_host_memory_destroy(&memory);
        }
    }
}

Test(host_memory, arguments)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    struct fake fake = { .base = { .ops = &fake_ops } };
    static const struct weir_host_memory_params wrong[] = {
        { .bytes = 0, .granule = 1 },
        { .bytes = UINT64_MAX, .granule = 1 },
        { .bytes = 4096, .granule = 0 },
        { .bytes = 4096, .granule = UINT64_MAX },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct weir_host_memory *memory = NULL;
        cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &wrong[i], &log), -EINVAL));
        cr_assert(eq(u32, capture.lines, i + 1));
    }
    /* More than any machine has, and a granule that has no multiple in range. */
    struct weir_host_memory_params params = { .bytes = UINT64_C(1) << 62, .granule = 1 };
    struct weir_host_memory *memory = NULL;
    cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, &log), -ENOMEM));
    params = (struct weir_host_memory_params){ .bytes = 1, .granule = (UINT64_C(1) << 61) + 1 };
    cr_assert(eq(int, weir_host_memory_create(&memory, &fake.base, &params, &log), 0));
    cr_assert(eq(u32, fake.n_pinned, 1));
    weir_host_memory_destroy(&memory);
    check_leaks();
}
