/* SPDX-License-Identifier: Apache-2.0 */

/* The host has less memory than the pool is to have: machines with huge pages set
 * aside, containers of both versions, full file caches; and what is said of it. */

#include "log_capture.h"
#include "pool/host_memory.h"
#include "pool/memory_room.h"

#include <weir/cpu_device.h>
#include <weir/rank.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* ---- A machine made of files ------------------------------------------------ */

struct file {
    const char *path;
    const char *text;
};

struct machine {
    char root[64];
};

static void make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        cr_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
}

static void machine_put(const struct machine *m, const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", m->root, path);
    make_folders(full);
    FILE *file = fopen(full, "w");
    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void machine_open(struct machine *m, const struct file *files, size_t n)
{
    snprintf(m->root, sizeof m->root, "/tmp/weir-machine-XXXXXX");
    cr_assert(ne(ptr, mkdtemp(m->root), NULL));
    for (size_t i = 0; i < n && files[i].path; i++)
        machine_put(m, files[i].path, files[i].text);
}

static void machine_close(const struct machine *m)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", m->root);
    cr_assert(zero(int, system(command)));
}

/* ---- What limits, for each kind of machine ---------------------------------- */

#define MEMINFO(available)                                                   \
    {                                                                        \
        "/proc/meminfo", "MemTotal:       1056784384 kB\n"                   \
                         "MemFree:         2097152 kB\n"                     \
                         "MemAvailable:   " available " kB\nBuffers: 1 kB\n" \
    }
#define IN_V2(path)                          \
    {                                        \
        "/proc/self/cgroup", "0::" path "\n" \
    }
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/memory"
#define UNLIMITED_V1 "9223372036854771712\n"

/*   bytes  that a pool may take; UINT64_MAX: any number
 *   limit  a part of what is named as the reason */
static const struct {
    const char *name;
    uint64_t bytes;
    const char *limit;
    uint64_t huge_bytes;
    struct file files[10];
} machines[] = {
    { "nothing can be read", UINT64_MAX, "", 0, { { NULL, NULL } } },
    { "the machine alone", 4 * GIB, "MemAvailable", 0, { MEMINFO("4194304") } },
    { "nothing is left", 0, "MemAvailable", 0, { MEMINFO("0") } },
    { "a kernel that does not say",
      UINT64_MAX,
      "",
      0,
      { { "/proc/meminfo", "MemTotal: 1024 kB\nMemFree: 512 kB\n" } } },
    { "a word that only begins like the one looked for",
      UINT64_MAX,
      "",
      0,
      { { "/proc/meminfo", "MemAvailableSoon: 512 kB\nXMemAvailable: 3 kB\n" } } },
    { "huge pages are set aside",
      4 * GIB,
      "MemAvailable",
      512 * GIB,
      { { "/proc/meminfo",
          "MemTotal: 1056784384 kB\nMemAvailable: 4194304 kB\nHugePages_Total: 262200\n"
          "HugePages_Free: 262144\nHugePages_Rsvd: 7\nHugepagesize: 2048 kB\n" } } },
    { "huge pages, all in use",
      4 * GIB,
      "MemAvailable",
      0,
      { { "/proc/meminfo", "MemAvailable: 4194304 kB\nHugePages_Total: 262144\n"
                           "HugePages_Free: 0\nHugepagesize: 2048 kB\n" } } },
    { "a group without limits",
      4 * GIB,
      "MemAvailable",
      0,
      { MEMINFO("4194304"),
        IN_V2("/user.slice/a"),
        { V2 "/user.slice/a/memory.max", "max\n" },
        { V2 "/user.slice/a/memory.high", "max\n" },
        { V2 "/user.slice/a/memory.current", "123456789\n" } } },
    { "a group's limit",
      GIB - 100 * MIB,
      "/user.slice/a/memory.max",
      0,
      { MEMINFO("4194304"),
        IN_V2("/user.slice/a"),
        { V2 "/user.slice/a/memory.max", "1073741824\n" },
        { V2 "/user.slice/a/memory.current", "104857600\n" } } },
    { "a group where files fill the cache",
      GIB - 100 * MIB,
      "/a/memory.max",
      0,
      { MEMINFO("4194304"),
        IN_V2("/a"),
        { V2 "/a/memory.max", "1073741824\n" },
        { V2 "/a/memory.current", "1073741824\n" },
        { V2 "/a/memory.stat", "anon 104857600\nfile 968884224\nshmem 0\ninactive_file 600000000\n"
                               "active_file 368884224\nunevictable 0\n" } } },
    { "a group whose cache is more than it has in use",
      GIB,
      "/a/memory.max",
      0,
      { IN_V2("/a"),
        { V2 "/a/memory.max", "1073741824\n" },
        { V2 "/a/memory.current", "4096\n" },
        { V2 "/a/memory.stat", "inactive_file 8192\nactive_file 8192\n" } } },
    { "a group that has more than it may",
      0,
      "/a/memory.max",
      0,
      { MEMINFO("4194304"),
        IN_V2("/a"),
        { V2 "/a/memory.max", "1000\n" },
        { V2 "/a/memory.current", "2000\n" } } },
    { "a group that slows down before its limit",
      500 * MIB,
      "/a/memory.high",
      0,
      { MEMINFO("4194304"),
        IN_V2("/a"),
        { V2 "/a/memory.max", "1073741824\n" },
        { V2 "/a/memory.high", "524288000\n" } } },
    { "a group above has less",
      300 * MIB,
      "cgroup/pod/memory.max",
      0,
      { MEMINFO("4194304"),
        IN_V2("/pod/container/x"),
        { V2 "/pod/container/memory.max", "1073741824\n" },
        { V2 "/pod/memory.max", "314572800\n" },
        { V2 "/memory.max", "2147483648\n" } } },
    { "a group above has more left, but a smaller limit in use below",
      200 * MIB,
      "/pod/container/memory.max",
      0,
      { IN_V2("/pod/container"),
        { V2 "/pod/container/memory.max", "1073741824\n" },
        { V2 "/pod/container/memory.current", "864026624\n" },
        { V2 "/pod/memory.max", "524288000\n" } } },
    { "a container that sees its own group as the root",
      2 * GIB,
      "cgroup/memory.max",
      0,
      { MEMINFO("4194304"),
        IN_V2("/"),
        { V2 "/memory.max", "2147483648\n" },
        { V2 "/memory.current", "0\n" } } },
    { "a container with the path of the host",
      2 * GIB,
      "cgroup/memory.max",
      0,
      { MEMINFO("4194304"), IN_V2("/docker/0123"), { V2 "/memory.max", "2147483648\n" } } },
    { "a path that leads outside",
      2 * GIB,
      "cgroup/memory.max",
      0,
      { IN_V2("/../../other"),
        { V2 "/memory.max", "2147483648\n" },
        { "/sys/other/memory.max", "1\n" } } },
    { "version 1",
      300 * MIB,
      "/docker/0123/memory.limit_in_bytes",
      0,
      { MEMINFO("4194304"),
        { "/proc/self/cgroup", "12:cpuset:/docker/0123\n3:memory:/docker/0123\n0::/\n" },
        { V1 "/docker/0123/memory.limit_in_bytes", "1073741824\n" },
        { V1 "/docker/0123/memory.usage_in_bytes", "1073741824\n" },
        { V1 "/docker/0123/memory.stat",
          "cache 0\ninactive_file 7\nactive_file 7\ntotal_inactive_file 104857600\n"
          "total_active_file 209715200\n" },
        { V1 "/memory.limit_in_bytes", UNLIMITED_V1 },
        { V1 "/memory.usage_in_bytes", "5000000000\n" } } },
    { "version 1 without a limit",
      4 * GIB,
      "MemAvailable",
      0,
      { MEMINFO("4194304"),
        { "/proc/self/cgroup", "3:cpu,memory:/\n" },
        { V1 "/memory.limit_in_bytes", UNLIMITED_V1 },
        { V1 "/memory.usage_in_bytes", "5000000000\n" } } },
    { "version 1, several controllers in a line",
      5 * MIB,
      "memory.limit_in_bytes",
      0,
      { { "/proc/self/cgroup", "3:cpu,memory,pids:/a\n" },
        { V1 "/a/memory.limit_in_bytes", "5242880\n" } } },
    { "a controller whose name only begins like memory",
      UINT64_MAX,
      "",
      0,
      { { "/proc/self/cgroup", "3:memoryless:/a\nno colons\n7:one\n" },
        { V1 "/a/memory.limit_in_bytes", "5242880\n" } } },
};

Test(memory_is_short, the_smallest_of_all_limits_counts)
{
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct machine m;
        machine_open(&m, machines[i].files, 10);
        struct weir_memory_room room;
        weir_memory_room(m.root, &room);
        cr_assert(eq(u64, room.bytes, machines[i].bytes), "%s: %s", machines[i].name, room.limit);
        cr_assert(ne(ptr, strstr(room.limit, machines[i].limit), NULL), "%s: %s", machines[i].name,
                  room.limit);
        cr_assert(eq(int, room.limit[0] == '\0', machines[i].bytes == UINT64_MAX));
        cr_assert(eq(u64, room.huge_bytes, machines[i].huge_bytes), "%s", machines[i].name);
        machine_close(&m);
    }
}

/* A path that fits nowhere, and files without an end. */
Test(memory_is_short, what_cannot_be_read_limits_nothing)
{
    struct machine m;
    static char text[20000];
    machine_open(&m, NULL, 0);
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "0::/", 4);
    machine_put(&m, "/proc/self/cgroup", text);
    machine_put(&m, "/proc/meminfo", text + 4);
    struct weir_memory_room room;
    weir_memory_room(m.root, &room);
    cr_assert(eq(u64, room.bytes, UINT64_MAX));
    /* The group above the path that does not fit still counts. */
    machine_put(&m, V2 "/memory.max", "4096\n");
    weir_memory_room(m.root, &room);
    cr_assert(eq(u64, room.bytes, 4096));
    machine_close(&m);
}

/* ---- A pool on such a machine ----------------------------------------------- */

struct pins {
    weir_device base;
    unsigned n_calls;
    bool refuse;
};

static int count_register(weir_device *device, void *address, uint64_t bytes)
{
    struct pins *pins = (struct pins *)device;
    (void)address;
    (void)bytes;
    pins->n_calls++;
    return pins->refuse ? -ENOMEM : 0;
}

static void count_unregister(weir_device *device, void *address)
{
    (void)device;
    (void)address;
}

static int is_well(weir_device *device)
{
    (void)device;
    return 0;
}

static const struct weir_device_ops pin_ops = {
    .name = "pins",
    .status = is_well,
    .host_register = count_register,
    .host_unregister = count_unregister,
};

Test(memory_is_short, a_pool_is_refused_before_anything_is_taken)
{
    static const struct file files[] = {
        MEMINFO("4194304"),
        IN_V2("/a"),
        { V2 "/a/memory.max", "8388608\n" },
        { V2 "/a/memory.current", "4194304\n" },
    };
    struct machine m;
    machine_open(&m, files, sizeof files / sizeof *files);
    for (uint64_t bytes = 4 * MIB - 4096; bytes <= 4 * MIB + 4096; bytes += 4096)
        for (int skip = 0; skip < 2; skip++) {
            struct log_capture capture = { 0 };
            weir_log log = log_capture_log(&capture);
            struct pins pins = { .base = { .ops = &pin_ops } };
            struct weir_host_memory_params params = { .bytes = bytes,
                                                      .granule = 1,
                                                      .touch_threads = 1,
                                                      .skip_memory_check = skip,
                                                      .root = m.root };
            struct weir_host_memory *memory = NULL;
            bool refused = bytes > 4 * MIB && !skip;
            cr_assert(eq(int, weir_host_memory_create(&memory, &pins.base, &params, &log),
                         refused ? -ENOMEM : 0));
            cr_assert(eq(u32, pins.n_calls, refused ? 0 : 1));
            cr_assert(eq(u32, capture.lines, refused));
            if (refused) {
                /* The limit, what it leaves, what was asked for and the way around. */
                cr_assert(ne(ptr, strstr(capture.last, "room for 4194304"), NULL), "%s",
                          capture.last);
                cr_assert(ne(ptr, strstr(capture.last, "4198400"), NULL), "%s", capture.last);
                cr_assert(ne(ptr, strstr(capture.last, "skip_memory_check"), NULL));
                cr_assert(ne(ptr, strstr(capture.last, "/a/memory.max"), NULL));
            }
            weir_host_memory_destroy(&memory);
        }
    machine_close(&m);
}

/* Each pool is asked for its own bytes; what earlier ones took is gone from what
 * the kernel says, not added by the library a second time. */
Test(memory_is_short, pools_of_several_ranks_are_charged_once)
{
    static const struct file files[] = { IN_V2("/a"), { V2 "/a/memory.max", "8388608\n" } };
    struct machine m;
    machine_open(&m, files, sizeof files / sizeof *files);
    struct pins pins = { .base = { .ops = &pin_ops } };
    struct weir_host_memory_params params = {
        .bytes = 3 * MIB, .granule = 1, .touch_threads = 1, .root = m.root
    };
    struct weir_host_memory *pools[3] = { NULL };
    static const char *const used[] = { "0\n", "3145728\n", "6291456\n" };
    for (int i = 0; i < 3; i++) {
        machine_put(&m, V2 "/a/memory.current", used[i]);
        cr_assert(eq(int, weir_host_memory_create(&pools[i], &pins.base, &params, NULL),
                     i < 2 ? 0 : -ENOMEM));
    }
    for (int i = 0; i < 3; i++)
        weir_host_memory_destroy(&pools[i]);
    machine_close(&m);
}

/* The driver refuses to pin and does not say why: the log has every limit that it
 * may have been. */
Test(memory_is_short, a_refused_pin_names_the_limits)
{
    static const struct file files[] = { IN_V2("/a"), { V2 "/a/memory.max", "8388608\n" } };
    struct machine m;
    machine_open(&m, files, sizeof files / sizeof *files);
    struct pins pins = { .base = { .ops = &pin_ops }, .refuse = true };
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    struct weir_host_memory_params params = {
        .bytes = MIB, .granule = MIB, .touch_threads = 1, .root = m.root
    };
    struct weir_host_memory *memory = NULL;
    cr_assert(eq(int, weir_host_memory_create(&memory, &pins.base, &params, &log), -ENOMEM));
    cr_assert(eq(ptr, memory, NULL));
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(ne(ptr, strstr(capture.last, "-ENOMEM; ulimit -l is "), NULL), "%s", capture.last);
    cr_assert(ne(ptr, strstr(capture.last, "8388608 bytes by "), NULL), "%s", capture.last);
    cr_assert(ne(ptr, strstr(capture.last, "/a/memory.max"), NULL), "%s", capture.last);
    machine_close(&m);
}

/* ---- A rank on this machine -------------------------------------------------- */

/* All tensors and layers are counted, and nothing is taken of the device before. */
Test(memory_is_short, a_rank_counts_all_tensors_before_it_takes_anything)
{
    weir_tensor tensors[] = { { .page_bytes = 16 << 20, .row_bytes = 16384 },
                              { .page_bytes = 1 << 20, .row_bytes = 1024 } };
    weir_shape shape = { .page_tokens = 1024, .n_layers = 100, .n_tensors = 2, .tensors = tensors };
    struct log_capture capture = { 0 };
    weir_device *device;
    weir_cpu_device_params device_params;
    weir_cpu_device_params_init(&device_params);
    cr_assert(zero(int, weir_cpu_device_open(&device, &device_params)));
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = 1;
    params.host_pages = 1 << 20; /* 1.7 GiB each */
    params.segment_pages = 1;
    params.log = log_capture_log(&capture);
    /* With a device pool that cannot be had either: the host pool is asked first. */
    params.device_pages = 1 << 20;
    weir_rank *rank = NULL;
    cr_assert(eq(int, weir_rank_open(&rank, device, &params), -ENOMEM));
    cr_assert(eq(ptr, rank, NULL));
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%" PRIu64, UINT64_C(17) * 100 * MIB * params.host_pages);
    cr_assert(ne(ptr, strstr(capture.last, "host pool needs"), NULL), "%s", capture.last);
    cr_assert(ne(ptr, strstr(capture.last, bytes), NULL), "%s", capture.last);

    /* Told not to look, it finds out that there is no such memory. */
    params.device_pages = 1;
    params.skip_memory_check = true;
    params.host_pages = 1 << 25;
    shape.n_tensors = 1;
    cr_assert(eq(int, weir_rank_open(&rank, device, &params), -ENOMEM));
    cr_assert(ne(ptr, strstr(capture.last, "mapping"), NULL), "%s", capture.last);
    cr_assert(zero(int, weir_device_close(&device)));
}
