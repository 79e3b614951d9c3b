/* SPDX-License-Identifier: Apache-2.0 */

/* A rank on a real GPU, byte for byte: random steps over every host layout, every
 * way to copy and rows of many sizes, then pools of more than 4 GiB. Exit 77
 * without a GPU.
 *
 * usage: gpu_rank [STEPS [NAME]]
 *   STEPS  of each case (40)
 *   NAME   only cases whose name contains it */

#include "gpu_world.h"

#define SMALL_PAGES 22u
#define SMALL_HOSTS 19u
#define LARGE_PAGES 8500u /* of 512 KiB: 4.15 GiB */
#define MAX_PLANES 16u

/* ---- Cases --------------------------------------------------------------- */

struct way {
    const char *name;
    weir_transfer_tuning load;
    weir_transfer_tuning write_back;
};

static const struct way ways[] = {
    { "auto", { 0 }, { 0 } },
    { "tma, one launch",
      { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_ONE },
      { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_ONE } },
    { "tma, a launch a layer",
      { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 4 },
      { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 1 } },
    { "tma, a small ring",
      { .engine = WEIR_ENGINE_TMA, .ctas = 1, .stages = 3, .stage_bytes = 4096 },
      { .engine = WEIR_ENGINE_TMA, .ctas = 3, .stages = 2, .stage_bytes = 2048 } },
    { "vector, one launch",
      { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_ONE },
      { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_ONE } },
    { "vector, a launch a layer",
      { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 5 },
      { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 7 } },
    { "copy engine", { .engine = WEIR_ENGINE_COPY }, { .engine = WEIR_ENGINE_COPY } },
};

struct form {
    const char *name;
    uint32_t page_tokens;
    uint32_t n_layers;
    uint32_t row_bytes[2]; /* 0 in the first: opaque; in the second: one tensor */
    uint64_t page_bytes[2];
    bool sparse; /* the second tensor is in layers 0 and 2 only */
};

static const struct form forms[] = {
    { "K and V of 2048", 32, 2, { 2048, 2048 }, { 0 }, false },
    { "512, pages of 128", 128, 3, { 512, 512 }, { 0 }, false },
    { "1152", 64, 3, { 1152 }, { 0 }, false },
    { "576 and 132 in some layers", 64, 3, { 576, 132 }, { 0 }, true },
    { "656, pages of 16", 16, 4, { 656 }, { 0 }, false },
    { "opaque", 16, 2, { 0, 0 }, { 65552, 100016 }, false },
    { "opaque and odd", 16, 3, { 0, 0 }, { 1001, 4099 }, true },
    { "1 and 24, pages of 7", 7, 3, { 1, 24 }, { 0 }, false },
    { "40000, pages of 2", 2, 2, { 40000 }, { 0 }, false },
    { "pages of one row of 1152", 1, 5, { 1152 }, { 0 }, false },
};

static const uint32_t sparse_layers[] = { 0, 2 };

static weir_shape shape_of(const struct form *form, weir_tensor *tensors)
{
    weir_shape shape = { .page_tokens = form->page_tokens,
                         .n_layers = form->n_layers,
                         .tensors = tensors };
    for (int t = 0; t < 2; t++) {
        uint64_t page_bytes = form->row_bytes[t] ? (uint64_t)form->row_bytes[t] * form->page_tokens
                                                 : form->page_bytes[t];
        if (page_bytes == 0)
            break;
        tensors[t] = (weir_tensor){ .page_bytes = page_bytes, .row_bytes = form->row_bytes[t] };
        if (t == 1 && form->sparse) {
            tensors[t].layers = sparse_layers;
            tensors[t].n_layers = 2;
        }
        shape.n_tensors++;
    }
    return shape;
}

static bool can_bulk(const struct rig *rig, const weir_shape *shape)
{
    bool can = rig->has_bulk;
    for (uint32_t t = 0; t < shape->n_tensors; t++)
        can =
            can && shape->tensors[t].page_bytes % 16 == 0 && shape->tensors[t].row_bytes % 16 == 0;
    return can;
}

static weir_rank_params params_of(struct world *w, weir_host_layout layout, const struct way *way)
{
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = w->shape;
    params.device_pages = w->n_pages;
    params.host_pages = w->n_hosts;
    params.host_layout = layout;
    params.max_steps = WORLD_IN_FLIGHT;
    params.load = way->load;
    params.write_back = way->write_back;
    params.log = weir_log_stderr(WEIR_LOG_WARN);
    return params;
}

/* ---- Small pools, compared whole ----------------------------------------- */

/* The device's pool and what it is compared with. */
struct memory {
    uint64_t base;
    uint64_t bytes;
    bool own; /* the server's, with gaps between pages; else the rank's */
    weir_device_plane planes[MAX_PLANES];
    uint32_t *mirror; /* pinned */
    unsigned char *model;
};

static void copy(struct rig *rig, uint64_t to, uint64_t from, uint64_t bytes)
{
    int rc = weir_gpu_copy(&rig->tests, rig->streams[0], to, from, bytes);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    rig_synchronize(rig, rig->streams[0]);
}

static void open_memory(struct world *w, struct memory *memory, weir_rank_params *params)
{
    struct rig *rig = w->rig;
    memory->own = random_percent(&w->random, 50);
    int rc = 0;
    if (memory->own) {
        memory->bytes = model_spaced_planes(w->shape, w->n_pages, memory->planes);
        rc = rig->ops->memory_alloc(rig->device, memory->bytes, &memory->base);
        for (uint32_t i = 0; i < MAX_PLANES; i++)
            memory->planes[i].base += memory->base;
        params->planes = memory->planes;
    }
    if (!rc)
        rc = weir_rank_open(&w->rank, rig->device, params);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    if (!memory->own) {
        memory->base = w->rank->device_base;
        memory->bytes = w->rank->geometry->device_bytes;
    }
    rc = rig->ops->words_alloc(rig->device, (uint32_t)((memory->bytes + 3) / 4), &memory->mirror);
    memory->model = malloc(memory->bytes);
    REQUIRE(rc == 0 && memory->model, "%s", weir_error_name(rc));
    memset(memory->mirror, WORLD_GUARD_DEVICE, memory->bytes);
    copy(rig, memory->base, (uintptr_t)memory->mirror, memory->bytes);
    memset(w->rank->host->base, WORLD_GUARD_HOST, w->rank->host->bytes);
}

static void compare(const void *got, const void *expected, uint64_t bytes, const char *name)
{
    if (memcmp(got, expected, bytes) == 0)
        return;
    uint64_t at = 0;
    while (((const char *)got)[at] == ((const char *)expected)[at])
        at++;
    CHECK(false, "%s differs from byte %lu of %lu on", name, (unsigned long)at,
          (unsigned long)bytes);
}

/* Every byte of both tiers, pages or not. */
static void compare_memory(struct world *w, struct memory *memory)
{
    const struct weir_geometry *g = w->rank->geometry;
    struct content_image device = { .geometry = g, .bytes = memory->model, .origin = memory->base };
    memset(memory->model, WORLD_GUARD_DEVICE, memory->bytes);
    for (uint32_t p = 1; p <= w->n_pages; p++)
        content_write(device, (int32_t)p, w->pages[p].content);
    copy(w->rig, (uintptr_t)memory->mirror, memory->base, memory->bytes);
    compare(memory->mirror, memory->model, memory->bytes, "device memory");

    uint64_t bytes = w->rank->host->bytes;
    struct content_image host = content_host(w->rank);
    host.bytes = malloc(bytes);
    REQUIRE(host.bytes, "memory");
    memset(host.bytes, WORLD_GUARD_HOST, bytes);
    for (uint32_t h = 1; h <= w->n_hosts; h++)
        content_write(host, (int32_t)h, w->hosts[h].content);
    compare(w->rank->host->base, host.bytes, bytes, "host memory");
    free(host.bytes);
}

static void close_memory(struct world *w, struct memory *memory)
{
    w->rig->ops->words_free(w->rig->device, memory->mirror);
    free(memory->model);
    if (memory->own)
        w->rig->ops->memory_free(w->rig->device, memory->base);
}

static void check_small(struct rig *rig, const struct form *form, weir_host_layout layout,
                        const struct way *way, uint32_t n_steps, struct world_counts *counts)
{
    weir_tensor tensors[2];
    weir_shape shape = shape_of(form, tensors);
    struct memory memory = { 0 };
    struct world w = { .rig = rig,
                       .random = { (uint64_t)(form - forms) * 100 + (uint64_t)(way - ways) * 10 +
                                   layout },
                       .shape = &shape,
                       .by_bulk = can_bulk(rig, &shape),
                       .n_pages = SMALL_PAGES,
                       .n_hosts = SMALL_HOSTS,
                       .n_candidates = SMALL_PAGES,
                       .n_host_candidates = SMALL_HOSTS };
    for (uint32_t i = 0; i < WORLD_CANDIDATES; i++) {
        w.candidates[i] = (int32_t)i + 1;
        w.host_candidates[i] = (int32_t)i + 1;
    }
    weir_rank_params params = params_of(&w, layout, way);
    params.segment_pages = 8;
    open_memory(&w, &memory, &params);
    world_start(&w);
    for (uint32_t i = 0; i < n_steps; i++)
        world_random_step(&w);
    world_settle(&w);
    world_all_pages(&w, false);
    compare_memory(&w, &memory);
    world_stop(&w);
    close_memory(&w, &memory);
    counts->loads += w.counts.loads;
    counts->writes += w.counts.writes;
    counts->reads += w.counts.reads;
    counts->joins += w.counts.joins;
}

/* ---- Large pools --------------------------------------------------------- */

/* The first and the last page, those about 4 GiB, and some between. */
static uint32_t pick_candidates(struct random *random, int32_t *candidates)
{
    static const int32_t fixed[] = { 1, 2, 4095, 4096, 8190, 8191, 8192, 8193, 8194, 8499, 8500 };
    uint32_t n = sizeof fixed / sizeof *fixed;
    memcpy(candidates, fixed, sizeof fixed);
    for (int32_t p = 100; n < WORLD_CANDIDATES; p += 300)
        candidates[n++] = p + (int32_t)random_below(random, 200);
    return n;
}

static bool is_zero_row(const struct content_image *image, uint32_t row, uint64_t row_bytes)
{
    const unsigned char *bytes = content_row(image, 0, 0, row, row_bytes);
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, row_bytes - 1) == 0;
}

/* The host pages that took part, and those beside them, which never did. */
static void check_large_hosts(struct world *w)
{
    struct content_image image = content_host(w->rank);
    uint64_t row_bytes = w->shape->tensors[0].row_bytes;
    uint64_t place = weir_pattern_place(0, 0, 0);
    for (uint32_t i = 0; i < w->n_host_candidates; i++)
        for (int32_t h = w->host_candidates[i] - 1; h <= w->host_candidates[i] + 1; h++) {
            if (h < 1 || h > (int32_t)w->n_hosts)
                continue;
            image.page = h;
            uint64_t content = w->hosts[h].content;
            uint32_t wrong = 0;
            for (uint32_t row = 0; row < w->shape->page_tokens; row++)
                wrong += content ? weir_pattern_compare(content_row(&image, 0, 0, row, row_bytes),
                                                        row_bytes, place,
                                                        content_fingerprint(content, row)) > 0
                                 : !is_zero_row(&image, row, row_bytes);
            CHECK(wrong == 0, "host page %d: %u rows", h, wrong);
        }
}

static void check_large(struct rig *rig, weir_host_layout layout, const struct way *way,
                        uint32_t n_steps)
{
    weir_tensor tensor = { .page_bytes = 2048 * 256, .row_bytes = 2048 };
    weir_shape shape = { .page_tokens = 256, .n_layers = 1, .n_tensors = 1, .tensors = &tensor };
    struct world w = { .rig = rig,
                       .random = { layout },
                       .shape = &shape,
                       .by_bulk = can_bulk(rig, &shape),
                       .n_pages = LARGE_PAGES,
                       .n_hosts = LARGE_PAGES };
    w.n_candidates = pick_candidates(&w.random, w.candidates);
    w.n_host_candidates = pick_candidates(&w.random, w.host_candidates);
    weir_rank_params params = params_of(&w, layout, way);
    int rc = weir_rank_open(&w.rank, rig->device, &params);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));
    world_start(&w);
    for (uint32_t i = 0; i < n_steps; i++)
        world_random_step(&w);
    world_settle(&w);
    world_all_pages(&w, false);
    check_large_hosts(&w);
    world_stop(&w);
}

/* ---- All ----------------------------------------------------------------- */

static bool begin_case(const char *name, const char *form, weir_host_layout layout, const char *way)
{
    rig_at("%s; %s; %s", form, weir_host_layout_name(layout), way);
    return strstr(rig_where, name) != NULL;
}

static void check_form(struct rig *rig, const struct form *form, uint32_t n_steps, const char *name)
{
    unsigned failed_before = rig_n_failed;
    double began = rig_now();
    uint32_t n = 0;
    struct world_counts counts = { 0 };
    for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if ((layout == WEIR_HOST_PAGE_FIRST && form->row_bytes[0] == 0) ||
                !begin_case(name, form->name, (weir_host_layout)layout, ways[i].name))
                continue;
            n++;
            check_small(rig, form, (weir_host_layout)layout, &ways[i], n_steps, &counts);
        }
    if (n)
        printf("%-28s %2u cases, %6lu loads, %6lu write-backs, %6lu reads, %5lu joins, %4.1f s  "
               "%s\n",
               form->name, n, (unsigned long)counts.loads, (unsigned long)counts.writes,
               (unsigned long)counts.reads, (unsigned long)counts.joins, rig_now() - began,
               rig_n_failed == failed_before ? "ok" : "FAILED");
}

static void check_large_all(struct rig *rig, uint32_t n_steps, const char *name)
{
    static const size_t large_ways[] = { 1, 4, 6 };
    for (int layout = 0; layout <= WEIR_HOST_PAGE_FIRST_DIRECT; layout++)
        for (size_t i = 0; i < sizeof large_ways / sizeof *large_ways; i++) {
            const struct way *way = &ways[large_ways[i]];
            if (!begin_case(name, "above 4 GiB", (weir_host_layout)layout, way->name))
                continue;
            unsigned failed_before = rig_n_failed;
            double began = rig_now();
            check_large(rig, (weir_host_layout)layout, way, n_steps);
            printf("%-60s %4.1f s  %s\n", rig_where, rig_now() - began,
                   rig_n_failed == failed_before ? "ok" : "FAILED");
        }
}

int main(int argc, char **argv)
{
    uint32_t n_steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 40;
    const char *name = argc > 2 ? argv[2] : "";
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check_form(&rig, &forms[i], n_steps, name);
    check_large_all(&rig, n_steps, name);
    return rig_close(&rig);
}
