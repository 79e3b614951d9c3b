/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_WARP_MODEL_H
#define WEIR_TESTS_WARP_MODEL_H

/* Runs the copy kernels' own source on the CPU, to find errors of logic before a
 * GPU does.
 *
 *   lane      a coroutine; a seed decides who goes on, and which warp does not
 *   bulk      a load's target is garbage from its issue until its barrier is
 *   copies    waited for; a store reads its source as late as wait_group.read
 *             allows and writes as late as wait_group does, or by chance earlier
 *   checked   alignment of every operand, bytes a barrier expects, that nothing
 *             is under way at the end, that nobody waits for ever
 *
 * It knows nothing of memory order: all lanes share one coherent memory. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct warp_model_launch {
    const char *kernel;
    const void *args;
    uint32_t ctas;
    uint32_t threads;
    uint32_t shared_bytes;
    uint64_t seed;
    /* Called when a kernel stores a word, at that moment. */
    void (*on_word)(void *user, uint32_t *word, uint32_t value);
    void *user;
};

/* What the launch did. */
struct warp_model_counts {
    uint64_t loads;
    uint64_t boxes;
    uint64_t stores;
    uint64_t arms;          /* of barriers */
    uint64_t cta_bytes[16]; /* that bulk loads of each CTA bring, the first 16 */
};

/* NULL, or what went wrong, static. */
const char *warp_model_run(const struct warp_model_launch *launch,
                           struct warp_model_counts *counts);

/* A map as the model reads it, in a tensor map's 128 bytes. */
struct warp_model_map {
    uint64_t base;
    uint64_t layer_stride;
    uint64_t row_stride;
    uint64_t n_layers;
    uint64_t n_rows;
    uint32_t row_bytes;
    uint32_t box_rows;
};

#ifdef __cplusplus
}
#endif

#endif
