/* SPDX-License-Identifier: Apache-2.0 */
#include "expert_model.h"
#include "gather/expert_host.h"
#include "warp_model/model_driver.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

/* The kernel's own source on the warp model, beside the host's function: after
 * each call every array is the same, whatever order the lanes run in. */

struct twins {
    struct weir_expert_args kernel;
    struct weir_expert_args host;
    uint32_t max_ids;
    uint32_t rows;
    int32_t *ids;
    int32_t *slots[2];
};

static void twins_open(struct twins *t, uint32_t n_slots, uint32_t n_layers, uint32_t n_experts,
                       uint32_t max_ids, uint32_t order_length)
{
    expert_state_open(&t->kernel, n_slots, n_layers, n_experts, max_ids, order_length);
    expert_state_open(&t->host, n_slots, n_layers, n_experts, max_ids, order_length);
    t->max_ids = max_ids;
    t->rows = max_ids < n_experts ? max_ids : n_experts;
    t->rows = t->rows < n_slots ? t->rows : n_slots;
    t->ids = malloc(max_ids * sizeof *t->ids);
    for (int i = 0; i < 2; i++)
        t->slots[i] = malloc(max_ids * sizeof *t->ids);
}

static void twins_close(struct twins *t)
{
    expert_state_close(&t->kernel);
    expert_state_close(&t->host);
    free(t->ids);
    free(t->slots[0]);
    free(t->slots[1]);
}

static bool same(const void *a, const void *b, uint64_t n, size_t bytes)
{
    return memcmp(a, b, n * bytes) == 0;
}

/* NULL, or which array of the two differs. */
static const char *difference(const struct twins *t)
{
    const struct weir_expert_args *a = &t->kernel, *b = &t->host;
    if (!same(a->slot_of, b->slot_of, a->n_ids, 4) || !same(a->id_of, b->id_of, a->n_slots, 4))
        return "tables";
    if (!same(a->ends, b->ends, 2, 4))
        return "ends";
    if (!same(a->place, b->place, a->n_slots, 4) ||
        !same(a->order, b->order, (uint64_t)a->order_mask + 1, 4))
        return "order";
    if (*a->count != *b->count || !same(a->dst_rows, b->dst_rows, t->rows, 4) ||
        !same(a->src_rows, b->src_rows, t->rows, 4))
        return "lists";
    if (!same(a->totals, b->totals, WEIR_EXPERT_TOTALS, 8) ||
        !same(a->published, b->published, WEIR_EXPERT_TOTALS, 8))
        return "totals";
    return NULL;
}

static void run(const char *kernel, const struct weir_expert_args *args, uint32_t threads,
                uint64_t seed)
{
    struct warp_model_launch launch = { .kernel = kernel,
                                        .args = args,
                                        .ctas = 1,
                                        .threads = threads,
                                        .shared_bytes = WEIR_EXPERT_SHARED_BYTES(args->n_slots,
                                                                                 args->n_experts),
                                        .seed = seed };
    const char *failure = warp_model_run(&launch, NULL);
    cr_assert(failure == NULL, "%s: %s", kernel, failure);
}

static void twins_reset(struct twins *t, uint32_t threads, uint64_t seed)
{
    run("weir_expert_reset", &t->kernel, threads, seed);
    weir_expert_host_reset(&t->host);
    const char *differs = difference(t);
    cr_assert(differs == NULL, "after a reset: %s", differs);
}

static void twins_step(struct twins *t, uint32_t layer, uint32_t n, bool in_place, uint32_t threads,
                       uint64_t seed)
{
    for (int i = 0; i < 2; i++) {
        struct weir_expert_args call = i ? t->host : t->kernel;
        memcpy(t->slots[i], t->ids, n * sizeof *t->ids);
        call.ids = in_place ? t->slots[i] : t->ids;
        call.slots = t->slots[i];
        call.n = n;
        call.id_base = layer * call.n_experts;
        if (i)
            weir_expert_host_ensure(&call);
        else
            run("weir_expert_ensure", &call, threads, seed);
    }
    const char *differs = difference(t);
    cr_assert(differs == NULL, "%s", differs);
    cr_assert(same(t->slots[0], t->slots[1], n, 4), "the slots' numbers");
}

struct size {
    uint32_t n_slots, n_layers, n_experts, max_ids, order_length, threads, steps;
};

static void twins_random(const struct size *size, uint64_t seed)
{
    struct twins t;
    struct random random = { seed };
    twins_open(&t, size->n_slots, size->n_layers, size->n_experts, size->max_ids,
               size->order_length);
    twins_reset(&t, size->threads, seed);
    for (uint32_t i = 0; i < size->steps; i++) {
        uint32_t n = random_below(&random, size->max_ids + 1);
        expert_ids_random(&random, size->n_experts, t.ids, n);
        twins_step(&t, random_below(&random, size->n_layers), n, random_percent(&random, 50),
                   size->threads, random_next(&random));
    }
    twins_close(&t);
}

Test(expert_kernel, leaves_what_the_host_leaves)
{
    static const struct size sizes[] = {
        { 1, 1, 1, 1, 0, 32, 20 },        { 1, 2, 5, 4, 0, 32, 60 },
        { 8, 3, 8, 8, 0, 32, 100 },       { 33, 4, 32, 16, 0, 64, 80 },
        { 64, 2, 33, 200, 100, 96, 40 },  { 100, 4, 64, 64, 0, 128, 40 },
        { 200, 4, 64, 64, 0, 64, 40 },    { 1500, 3, 300, 96, 0, 32, 30 },
        { 2100, 3, 2100, 40, 0, 64, 20 }, { 70, 1, 200, 300, 0, 1024, 3 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        twins_random(&sizes[i], 100 + i);
}

/* Every thread has many words of both sets, and the limits fill all bits of the
 * three sums in one. */
Test(expert_kernel, at_the_limits)
{
    struct twins t;
    uint32_t n = WEIR_EXPERT_MAX_EXPERTS;
    twins_open(&t, WEIR_EXPERT_MAX_SLOTS, 4, n, n, 0);
    twins_reset(&t, 256, 1);
    for (uint32_t layer = 0; layer < 4; layer++) {
        for (uint32_t i = 0; i < n; i++)
            t.ids[i] = (int32_t)(n - 1 - i);
        twins_step(&t, layer, n, true, 256, layer);
    }
    for (uint32_t i = 0; i < n; i++) /* hits, and invalid ones */
        t.ids[i] = (int32_t)(2 * i);
    twins_step(&t, 2, n, false, 256, 1);
    cr_assert(eq(u64, t.kernel.totals[WEIR_EXPERT_MISSES], 4 * n));
    cr_assert(eq(u64, t.kernel.totals[WEIR_EXPERT_HITS], n / 2));
    cr_assert(eq(u64, t.kernel.totals[WEIR_EXPERT_INVALID], n / 2));
    twins_close(&t);
}

Test(expert_kernel, positions_wrap)
{
    struct random random = { 5 };
    for (uint32_t before = 0; before < 40; before += 5) {
        struct twins t;
        twins_open(&t, 12, 2, 16, 8, 0);
        twins_reset(&t, 32, before);
        expert_state_begin_at(&t.kernel, UINT32_MAX - before);
        expert_state_begin_at(&t.host, UINT32_MAX - before);
        for (uint32_t i = 0; i < 20; i++) {
            expert_ids_random(&random, 16, t.ids, 8);
            twins_step(&t, i % 2, 8, false, 32, random_next(&random));
        }
        cr_assert(lt(u32, t.kernel.ends[0], 1000), "the head has not wrapped");
        twins_close(&t);
    }
}

/* ---- The launch ------------------------------------------------------------ */

Test(expert_kernel, the_library_launches_it)
{
    if (!WEIR_HAVE_KERNELS)
        cr_skip_test("the library is built without nvcc");
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    model_start(&device, 80);
    cr_assert(zero(int, weir_cuda_kernels_create(&kernels, &device)));
    struct twins t;
    twins_open(&t, 40, 2, 24, 300, 0);
    cr_assert(
        zero(int, weir_cuda_kernels_expert(kernels, MODEL_STREAM, &t.kernel, WEIR_EXPERT_RESET)));
    cr_assert(model.failure == NULL, "%s", model.failure);
    weir_expert_host_reset(&t.host);
    struct random random = { 3 };
    for (uint32_t n = 0; n <= 300; n += 100) {
        expert_ids_random(&random, 24, t.ids, n);
        struct weir_expert_args call = t.kernel;
        call.ids = t.ids;
        call.slots = t.slots[0];
        call.n = n;
        call.id_base = 24;
        cr_assert(
            zero(int, weir_cuda_kernels_expert(kernels, MODEL_STREAM, &call, WEIR_EXPERT_ENSURE)));
        cr_assert(model.failure == NULL, "%s", model.failure);
        struct weir_expert_args same_call = t.host;
        same_call.ids = t.ids;
        same_call.slots = t.slots[1];
        same_call.n = n;
        same_call.id_base = 24;
        weir_expert_host_ensure(&same_call);
        const char *differs = difference(&t);
        cr_assert(differs == NULL, "%u ids: %s", n, differs);
        cr_assert(same(t.slots[0], t.slots[1], n, 4));
    }
    cr_assert(eq(u32, model.launches, 5));
    model.fail_launch = true;
    cr_assert(eq(int, weir_cuda_kernels_expert(kernels, MODEL_STREAM, &t.kernel, WEIR_EXPERT_RESET),
                 -EIO));
    twins_close(&t);
    weir_cuda_kernels_destroy(&kernels);
}

Test(expert_kernel, a_gpu_too_old_has_none)
{
    struct weir_cuda_device device;
    struct weir_cuda_kernels *kernels;
    model_start(&device, 70);
    cr_assert(zero(int, weir_cuda_kernels_create(&kernels, &device)));
    struct weir_expert_args args = { .n_slots = 1, .n_experts = 1 };
    cr_assert(eq(int, weir_cuda_kernels_expert(kernels, MODEL_STREAM, &args, WEIR_EXPERT_ENSURE),
                 -ENOTSUP));
    weir_cuda_kernels_destroy(&kernels);
}
