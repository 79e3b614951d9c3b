/* SPDX-License-Identifier: Apache-2.0 */

/* Rows that other caches' kernels crash on, refuse or leave half copied: 576 bytes
 * of a latent, 656 with scales, 132 of index keys, single bytes. Pools that end in
 * the middle of a kernel's chunk. The kernels' own code, on the warp model. */

#include "kernel_world.h"
#include "transfer/gate.h"

#include <stdio.h>

static const uint32_t some_rows[] = { 1,   4,   8,   16,   24,   72,   128,       132,
                                      528, 576, 656, 1152, 2048, 4096, 32768 + 16 };
#define N_ROWS (sizeof some_rows / sizeof *some_rows)

/* The first pages of both tiers, the last ones, and some in between. */
static void copy_pages(struct world *w, enum weir_direction direction,
                       const struct weir_launch *launch, const char *name)
{
    struct random random = { w->seed };
    w->runs[0] = (struct weir_run){ 1, 1, 1 };
    w->runs[1] = (struct weir_run){ 7, 11, 3 };
    w->runs[2] = (struct weir_run){ 20, 28, 1 };
    w->transfer = (struct weir_transfer){ .geometry = w->geometry,
                                          .runs = w->runs,
                                          .n_runs = 3,
                                          .direction = direction,
                                          .layer_end = w->geometry->n_layers,
                                          .words = w->words,
                                          .generation = w->transfer.generation + 1 };
    fill(w, &random);
    for (uint32_t layer = 0; layer < w->geometry->n_layers; layer++)
        expect_layer(w, layer);
    bool load = direction == WEIR_LOAD;
    w->next_word = 0;
    model.on_word = check_word;
    model.user = w;
    uint32_t launches = model.launches;
    int rc = weir_cuda_kernels_copy(w->pages, MODEL_STREAM, &w->transfer, 0, w->geometry->n_layers,
                                    launch, load);
    must(rc == 0, "%s: rc %d", name, rc);
    must(!model.failure, "%s: %s", name, model.failure);
    must(model.launches == launches + 1, "%s: layers are grouped in one launch", name);
    must(w->next_word == (load ? w->geometry->n_layers : 0), "%s: layers", name);
    for (uint32_t i = 0; i < 2; i++)
        must(memcmp(w->tier[i], w->expected[i], w->bytes[i]) == 0, "%s: tier %u differs", name, i);
}

static void copy_shape(const weir_shape *shape, weir_transfer_engine engine, uint32_t seed)
{
    const struct weir_launch launch = { .engine = engine, .ctas = 1 + seed % 3 };
    for (int layout = 0; layout < 4; layout++) {
        struct world w;
        char name[96];
        snprintf(name, sizeof name, "engine %d, %u tokens of %u bytes, layout %d", (int)engine,
                 shape->page_tokens, shape->tensors[0].row_bytes, layout);
        world_open(&w, seed + 1, shape, layouts[layout], 90);
        copy_pages(&w, WEIR_LOAD, &launch, name);
        copy_pages(&w, WEIR_WRITE_BACK, &launch, name);
        world_close(&w);
    }
}

static void copy_rows(uint32_t row_bytes, uint32_t page_tokens, uint32_t seed)
{
    weir_tensor tensor = { .page_bytes = (uint64_t)row_bytes * page_tokens,
                           .row_bytes = row_bytes };
    weir_shape shape = { page_tokens, 2, 1, &tensor };
    copy_shape(&shape, WEIR_ENGINE_VECTOR, seed);
    if (row_bytes % 16 == 0)
        copy_shape(&shape, WEIR_ENGINE_TMA, seed);
}

Test(rows_of_any_size, each_row_is_copied_by_each_kernel, .timeout = 100)
{
    SKIP_WITHOUT_KERNELS;
    static const uint32_t tokens[] = { 1, 3, 16 };
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (uint32_t t = 0; t < 3; t++)
            if (t == 0 || some_rows[i] * tokens[t] <= 12000)
                copy_rows(some_rows[i], tokens[t], i + t);
}

/* Pages of one chunk and r rows more, for each r: nothing is read or written behind
 * the last page of a pool, which AddressSanitizer guards, and no wait is for bytes
 * that lie there. */
Test(rows_of_any_size, a_pool_ends_within_a_chunk, .timeout = 100)
{
    SKIP_WITHOUT_KERNELS;
    for (uint32_t tokens = 17; tokens <= 32; tokens++)
        copy_rows(16, tokens, tokens);
    for (uint32_t tokens = 17; tokens <= 23; tokens += 2)
        copy_rows(656, tokens, tokens);
    copy_rows(32, 129, 1); /* chunks have at most 128 rows */
    copy_rows(32, 255, 2);
}

/* Why a box has no tail: its rows divide the page's. */
Test(rows_of_any_size, boxes_divide_the_page)
{
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (uint32_t tokens = 1; tokens <= WEIR_MAX_PAGE_TOKENS; tokens++) {
            uint32_t rows = weir_cuda_kernels_box_rows(some_rows[i], tokens);
            must(rows == 0 || (tokens % rows == 0 && some_rows[i] % 16 == 0),
                 "%u rows of %u bytes in pages of %u tokens", rows, some_rows[i], tokens);
        }
}

/* A latent and its index keys in one page: by one kernel, each layer published when
 * both are there. A tensor that the fast kernel cannot copy takes all to the other;
 * none is left behind. */
Test(rows_of_any_size, tensors_of_a_page_go_together, .timeout = 100)
{
    SKIP_WITHOUT_KERNELS;
    static const uint32_t pairs[][2] = { { 576, 132 }, { 656, 128 }, { 1, 4096 }, { 528, 24 } };
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        static const uint32_t second[] = { 1 };
        weir_tensor tensors[2] = { { .page_bytes = 3 * pairs[i][0], .row_bytes = pairs[i][0] },
                                   { .page_bytes = 3 * pairs[i][1],
                                     .row_bytes = pairs[i][1],
                                     .layers = second,
                                     .n_layers = 1 } };
        weir_shape shape = { 3, 2, 2, tensors };
        copy_shape(&shape, WEIR_ENGINE_VECTOR, i);
        if (pairs[i][0] % 16 == 0 && pairs[i][1] % 16 == 0)
            copy_shape(&shape, WEIR_ENGINE_TMA, i);
    }
}

/* One function decides for all rows, and what it answers can do it. */
Test(rows_of_any_size, every_row_has_an_engine)
{
    static const uint32_t computes[] = { 0, 75, 80, 90, 100, 120 };
    for (uint32_t i = 0; i < N_ROWS; i++)
        for (uint32_t c = 0; c < sizeof computes / sizeof *computes; c++)
            for (int write_back = 0; write_back < 2; write_back++) {
                weir_transfer_case transfer;
                weir_transfer_case_init(&transfer);
                transfer.compute = computes[c];
                transfer.shared_bytes = computes[c] == 120 ? 99 << 10 : 227 << 10;
                transfer.page_tokens = 64;
                transfer.row_bytes = some_rows[i];
                transfer.page_bytes = UINT64_C(64) * some_rows[i];
                transfer.alignment = some_rows[i] & -some_rows[i];
                transfer.copies = 100000; /* beyond the CPU's budget */
                transfer.write_back = write_back;
                weir_transfer_choice choice;
                must(weir_transfer_explain(&transfer, NULL, &choice) == 0, "%u", some_rows[i]);
                must(choice.engine != WEIR_ENGINE_TMA ||
                         (computes[c] >= 90 && some_rows[i] % 16 == 0),
                     "rows of %u bytes by TMA on %u", some_rows[i], computes[c]);
                must((choice.engine == WEIR_ENGINE_COPY) == (computes[c] == 0),
                     "rows of %u bytes on %u: %s", some_rows[i], computes[c], choice.reason);
            }
}

/* The blocks of a kernel are the server's to choose, for each direction and size;
 * the bytes do not depend on them. */
Test(rows_of_any_size, any_number_of_blocks_copies_the_same, .timeout = 100)
{
    SKIP_WITHOUT_KERNELS;
    static const uint32_t blocks[] = { 1, 2, 3, 8, 33 };
    weir_tensor tensor = { .page_bytes = 8 * 576, .row_bytes = 576 };
    weir_shape shape = { 8, 3, 1, &tensor };
    for (uint32_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        for (int engine = WEIR_ENGINE_TMA; engine <= WEIR_ENGINE_VECTOR; engine++) {
            const struct weir_launch launch = { .engine = (weir_transfer_engine)engine,
                                                .ctas = blocks[i] };
            struct world w;
            world_open(&w, i + 1, &shape, layouts[i % 4], 90);
            copy_pages(&w, WEIR_LOAD, &launch, "blocks");
            copy_pages(&w, WEIR_WRITE_BACK, &launch, "blocks");
            world_close(&w);
        }
}
