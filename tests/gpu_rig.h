/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_GPU_RIG_H
#define WEIR_TESTS_GPU_RIG_H

/* What the tests on a GPU share: the device, a watchdog, and contents. A content
 * is a number that stands for all bytes of a page: row r of any piece is the
 * pattern's row with the fingerprint of (content, r). */

#include "pattern.h"
#include "pattern_gpu.h"
#include "random.h"
#include "transfer/rank.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RIG_SKIP 77
#define RIG_PATIENCE 240u /* seconds */

struct rig {
    weir_device *device;
    const struct weir_device_ops *ops;
    struct weir_pattern_gpu pattern;
    struct weir_gpu tests; /* the tests' own kernels */
    CUfunction check_bulk;
    CUfunction check_both;
    bool has_bulk; /* check_bulk counts */
    weir_stream *streams[2];
};

/* ---- Complaints ---------------------------------------------------------- */

static unsigned rig_n_failed;
static char rig_where[256] = "the start";

/* Fails the test; only the first lines are printed. */
#define CHECK(condition, ...)                                                              \
    do {                                                                                   \
        if (!(condition) && rig_n_failed++ < 20) {                                         \
            printf("%s:%d: not so: %s (%s): ", __FILE__, __LINE__, #condition, rig_where); \
            printf(__VA_ARGS__);                                                           \
            putchar('\n');                                                                 \
        }                                                                                  \
    } while (0)

/* For what leaves nothing to go on with. */
#define REQUIRE(condition, ...)                    \
    do {                                           \
        if (!(condition)) {                        \
            CHECK(false, "required: " #condition); \
            printf(__VA_ARGS__);                   \
            putchar('\n');                         \
            exit(1);                               \
        }                                          \
    } while (0)

static inline void rig_bark(int signal_number)
{
    (void)signal_number;
    static const char text[] = "\nno end in sight at: ";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    ignored = write(STDERR_FILENO, rig_where, strlen(rig_where));
    ignored = write(STDERR_FILENO, "\n", 1);
    (void)ignored;
    _exit(1);
}

/* Says where the test is and lets the watchdog begin anew. */
static inline void __attribute__((format(printf, 1, 2))) rig_at(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rig_where, sizeof rig_where, format, arguments);
    va_end(arguments);
    signal(SIGALRM, rig_bark);
    alarm(RIG_PATIENCE);
}

static inline double rig_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- The device ---------------------------------------------------------- */

#if WEIR_HAVE_KERNELS
extern const unsigned long long weir_test_image[];
static const void *const rig_image = weir_test_image;
#else
static const void *const rig_image = NULL;
#endif

/* Exits with RIG_SKIP where there is no such GPU, or were no kernels to be had. */
static inline void rig_open_gpu(struct rig *rig, uint32_t ordinal)
{
    *rig = (struct rig){ 0 };
    rig_at("opening the device");
    setvbuf(stdout, NULL, _IOLBF, 0);
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    params.ordinal = ordinal;
    params.log = weir_log_stderr(WEIR_LOG_INFO);
    int rc = weir_device_open(&rig->device, &params);
    if (rc == -ENODEV || (rc == 0 && !rig_image)) {
        printf("skipped: %s\n", rc ? "no GPU of that number" : "built without nvcc");
        exit(RIG_SKIP);
    }
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    rig->ops = rig->device->ops;
    rc = weir_pattern_gpu_open(&rig->pattern, rig->device);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    rc = weir_gpu_open(&rig->tests, rig->device, rig_image);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    rc = weir_gpu_function(&rig->tests, "weir_test_check_bulk", &rig->check_bulk);
    if (!rc)
        rc = weir_gpu_function(&rig->tests, "weir_test_check_both", &rig->check_both);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    int major = 0;
    (void)rig->tests.driver->cuDeviceGetAttribute(
        &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, rig->tests.device->ordinal);
    rig->has_bulk = major >= 9;
    for (int i = 0; i < 2; i++)
        REQUIRE(rig->ops->stream_create(rig->device, 0, &rig->streams[i]) == 0, "a stream");
}

static inline void rig_open(struct rig *rig)
{
    rig_open_gpu(rig, 0);
}

/* The test's exit status. */
static inline int rig_close(struct rig *rig)
{
    rig_at("closing the device");
    for (int i = 0; i < 2; i++)
        rig->ops->stream_destroy(rig->device, rig->streams[i]);
    weir_gpu_close(&rig->tests);
    weir_pattern_gpu_close(&rig->pattern);
    int rc = weir_device_close(&rig->device);
    CHECK(rc == 0, "%s", weir_error_name(rc));
    printf("%u checks failed\n", rig_n_failed);
    return rig_n_failed > 0;
}

static inline void rig_synchronize(struct rig *rig, weir_stream *stream)
{
    int rc = rig->ops->stream_synchronize(rig->device, stream);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
}

/* ---- Contents ------------------------------------------------------------ */

static inline uint64_t content_fingerprint(uint64_t content, uint32_t row)
{
    return weir_pattern_mix(content, row);
}

/* Writes an entry and its fingerprints, at `index` of the batch. */
static inline void content_entry(struct weir_pattern_batch *batch, const weir_shape *shape,
                                 struct weir_pattern_entry *entry, uint32_t index, int32_t page,
                                 uint64_t content)
{
    uint32_t first = index * shape->page_tokens;
    *entry = (struct weir_pattern_entry){ page, 0, shape->page_tokens, first };
    for (uint32_t row = 0; row < shape->page_tokens; row++)
        batch->fingerprints[first + row] = content_fingerprint(content, row);
}

/* Calls work for all rows that a page has: rank number 0. */
typedef void content_work(void *user, uint32_t tensor, uint32_t layer, uint32_t row,
                          uint64_t row_bytes, uint64_t place, uint64_t fingerprint);

static inline void content_rows(const struct weir_geometry *g, uint64_t content, content_work *work,
                                void *user)
{
    for (uint32_t tensor = 0; tensor < g->n_tensors; tensor++) {
        const struct weir_geometry_tensor *t = &g->tensors[tensor];
        uint32_t n_rows = t->row_bytes ? g->page_tokens : 1;
        for (uint32_t layer = 0; layer < g->n_layers; layer++) {
            if (g->layer_index[(size_t)tensor * g->n_layers + layer] < 0)
                continue;
            uint64_t place = weir_pattern_place(0, layer, tensor);
            for (uint32_t row = 0; row < n_rows; row++)
                work(user, tensor, layer, row, t->row_bytes ? t->row_bytes : t->page_bytes, place,
                     content_fingerprint(content, row));
        }
    }
}

/* A copy of a tier's memory, or that memory itself. */
struct content_image {
    const struct weir_geometry *geometry;
    unsigned char *bytes;
    uint64_t origin; /* address of bytes[0] in the tier */
    int32_t page;
    bool host;
};

static inline unsigned char *content_row(const struct content_image *image, uint32_t tensor,
                                         uint32_t layer, uint32_t row, uint64_t row_bytes)
{
    uint64_t address = image->host ? weir_geometry_host(image->geometry, tensor, layer,
                                                        (weir_host_page){ image->page }, row)
                                   : weir_geometry_device(image->geometry, tensor, layer,
                                                          (weir_device_page){ image->page }) +
                                         row * row_bytes;
    return image->bytes + (address - image->origin);
}

static inline void content_write_row(void *user, uint32_t tensor, uint32_t layer, uint32_t row,
                                     uint64_t row_bytes, uint64_t place, uint64_t fingerprint)
{
    weir_pattern_fill(content_row(user, tensor, layer, row, row_bytes), row_bytes, place,
                      fingerprint);
}

static inline void content_write(struct content_image image, int32_t page, uint64_t content)
{
    image.page = page;
    content_rows(image.geometry, content, content_write_row, &image);
}

/* The rank's host pool. */
static inline struct content_image content_host(const weir_rank *rank)
{
    return (struct content_image){ .geometry = rank->geometry,
                                   .bytes = rank->host->base,
                                   .origin = rank->geometry->host_base,
                                   .host = true };
}

#endif
