/* SPDX-License-Identifier: Apache-2.0 */

/* Budgets in bytes to page counts, against what a rank really takes. */

#include "log_capture.h"
#include "random_shape.h"
#include "transfer/geometry.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <string.h>

enum {
    HOST_PAGE = 4096
};

/* Bytes of the pools that a rank with so many pages would make. */
static void taken(const weir_shape *shape, weir_host_layout layout, uint32_t segment_pages,
                  uint32_t pages, uint64_t *device, uint64_t *host)
{
    struct weir_geometry *g = NULL;
    cr_assert(zero(
        int, weir_geometry_create(&g, shape, NULL, pages, layout, pages, segment_pages, NULL)));
    *device = weir_geometry_device_bytes(g);
    *host = (g->host_bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    weir_geometry_destroy(&g);
}

/* The budget is that of a known number of pages, a byte more and a byte less. */
Test(shape_pages, are_what_fits_and_no_fewer)
{
    struct random random = { 11 };
    for (int i = 0; i < 400; i++) {
        struct random_shape s;
        random_shape(&random, &s, false, 1 << 20);
        weir_host_layout layout = (weir_host_layout)(i % 4);
        uint32_t pages = 1 + random_below(&random, 300);
        uint32_t segment = random_percent(&random, 50) ? 0 : 1 + random_below(&random, 40);
        uint64_t device, host, next_device, next_host;
        taken(&s.shape, layout, segment, pages, &device, &host);
        uint32_t n = 0;
        cr_assert(zero(int, weir_shape_device_pages(&s.shape, device, NULL, &n)));
        cr_assert(ge(u32, n, pages)); /* alignment may leave room for more */
        taken(&s.shape, layout, segment, n + 1, &next_device, &next_host);
        cr_assert(next_device > device, "%d", i);
        cr_assert(zero(int, weir_shape_device_pages(&s.shape, device - 1, NULL, &n)));
        cr_assert(lt(u32, n, pages));

        cr_assert(zero(int, weir_shape_host_pages(&s.shape, layout, segment, host, NULL, &n)));
        cr_assert(ge(u32, n, pages), "%d: %u, not %u", i, n, pages);
        taken(&s.shape, layout, segment, n, &next_device, &next_host);
        cr_assert(le(u64, next_host, host));
        for (uint32_t more = n + 1; more < n + 60; more++) { /* none of the next is less */
            taken(&s.shape, layout, segment, more, &next_device, &next_host);
            cr_assert(next_host > host, "%d: %u pages", i, more);
        }
    }
}

/* Two pipeline stages with one budget: the server takes the smaller count. */
Test(shape_pages, of_stages_with_40_and_41_layers)
{
    const weir_tensor kv[] = { { .name = "k", .row_bytes = 2048, .page_bytes = 64 * 2048 },
                               { .name = "v", .row_bytes = 2048, .page_bytes = 64 * 2048 } };
    uint32_t pages[2];
    uint64_t budget = UINT64_C(60) << 30;
    for (uint32_t i = 0; i < 2; i++) {
        const weir_shape stage = { 64, 40 + i, 2, kv };
        cr_assert(zero(int, weir_shape_device_pages(&stage, budget, NULL, &pages[i])));
        cr_assert(eq(u64, pages[i] + 1, budget / ((40 + i) * 2 * 64 * 2048)));
    }
    cr_assert(lt(u32, pages[1], pages[0]));
}

Test(shape_pages, arguments)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    weir_tensor tensor = { .row_bytes = 16, .page_bytes = 64 };
    const weir_shape shape = { 4, 1, 1, &tensor };
    uint32_t n = 77;
    cr_assert(eq(int, weir_shape_device_pages(NULL, 1, &log, &n), -EINVAL));
    cr_assert(eq(int, weir_shape_device_pages(&shape, 1, &log, NULL), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "pages is NULL"), NULL));
    cr_assert(eq(int, weir_shape_host_pages(NULL, WEIR_HOST_SEGMENTED, 0, 1, &log, &n), -EINVAL));
    cr_assert(
        eq(int, weir_shape_host_pages(&shape, WEIR_HOST_SEGMENTED, 0, 1, &log, NULL), -EINVAL));
    cr_assert(eq(int, weir_shape_host_pages(&shape, (weir_host_layout)9, 0, 1, &log, &n), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "layout is 9"), NULL));
    cr_assert(eq(u32, n, 77));
    cr_assert(zero(int, weir_shape_device_pages(&shape, 0, &log, &n)));
    cr_assert(zero(u32, n));
    cr_assert(zero(int, weir_shape_host_pages(&shape, WEIR_HOST_PAGE_FIRST, 0, 63, &log, &n)));
    cr_assert(zero(u32, n));
    cr_assert(zero(int, weir_shape_device_pages(&shape, UINT64_MAX, &log, &n)));
    cr_assert(eq(u32, n, 1u << 30));
    cr_assert(
        zero(int, weir_shape_host_pages(&shape, WEIR_HOST_SEGMENTED, 0, UINT64_MAX, &log, &n)));
    cr_assert(eq(u32, n, 1u << 30));
}
