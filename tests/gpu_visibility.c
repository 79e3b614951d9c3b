/* SPDX-License-Identifier: Apache-2.0 */

/* Whether a kernel right behind a layer's wait sees all of the layer, by ordinary
 * loads and by bulk copies, for each way that a wait can be released. Exit 77
 * without a GPU.
 *
 * usage: gpu_visibility [LAYERS]
 *   LAYERS  of each of the three main ways (1000000); the others have fewer */

#include "gpu_reader.h"

#define LAYERS 64u

struct way {
    const char *name;
    weir_transfer_tuning tuning;
    bool captured;
    uint32_t share; /* of the layers: one in so many */
};

static const struct way ways[] = {
    { "words, tma, one launch",
      { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_ONE, .ctas = 2 },
      false,
      1 },
    { "words, tma, a launch a layer",
      { .engine = WEIR_ENGINE_TMA, .launch = WEIR_LAUNCH_PER_LAYER, .ctas = 2 },
      false,
      1 },
    { "events, tma, captured waits", { .engine = WEIR_ENGINE_TMA, .ctas = 2 }, true, 1 },
    { "words, vector, one launch",
      { .engine = WEIR_ENGINE_VECTOR, .launch = WEIR_LAUNCH_ONE, .ctas = 4 },
      false,
      4 },
    { "words, copy engine", { .engine = WEIR_ENGINE_COPY }, false, 10 },
    { "events, copy engine, captured waits", { .engine = WEIR_ENGINE_COPY }, true, 10 },
};

static void check_way(struct rig *rig, const struct way *way, uint64_t n_layers)
{
    static struct reader reader;
    uint64_t n_steps = (n_layers / way->share + LAYERS - 1) / LAYERS;
    rig_at("%s", way->name);
    reader_open(&reader, rig, LAYERS, 1, false, &way->tuning, way->captured);
    for (uint32_t slot = 0; way->captured && slot < READER_SLOTS; slot++)
        reader_capture(&reader, slot, rig->streams[0]);
    double began = rig_now();
    for (uint64_t i = 0; i < n_steps; i++) {
        if (i % 1000 == 0)
            rig_at("%s, step %lu of %lu", way->name, (unsigned long)i, (unsigned long)n_steps);
        reader_step(&reader, READER_PAGES, false, rig->streams[0]);
    }
    reader_drain(&reader);
    double seconds = rig_now() - began;
    printf("%-38s %9lu layers, %8.0f layers/s, %5.1f GB/s, %lu stale bytes\n", way->name,
           (unsigned long)(n_steps * LAYERS), (double)(n_steps * LAYERS) / seconds,
           (double)(n_steps * LAYERS * READER_PAGES) * READER_PAGE_TOKENS * READER_ROW_BYTES /
               seconds / 1e9,
           (unsigned long)reader.stale_bytes);
    reader_close(&reader);
}

int main(int argc, char **argv)
{
    uint64_t n_layers = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000;
    if (n_layers == 0) {
        fprintf(stderr, "usage: gpu_visibility [LAYERS], 1 or more\n");
        return 2;
    }
    struct rig rig;
    rig_open(&rig);
    if (!rig.has_bulk)
        printf("this GPU has no bulk copies: ordinary loads only\n");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        check_way(&rig, &ways[i], n_layers);
    return rig_close(&rig);
}
