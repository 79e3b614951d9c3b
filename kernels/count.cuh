/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_COUNT_CUH
#define WEIR_KERNELS_COUNT_CUH

/* A count that the host reads without asking the driver.
 *
 *   counter   device memory: atomic additions
 *   word      pinned: a copy of the newest value, for the host
 *
 * Additions to pinned memory would be atomic on no PCIe bus. A thread that has
 * shown its value looks again whether another has added meanwhile: either it
 * sees that and shows the newer one, or the other adds later and shows later. */

#include "ptx.cuh"

WEIR_DEVICE void show_count(uint32_t *counter, uint32_t *word, uint32_t n)
{
    uint32_t value = counter_add(counter, n);
    for (;;) {
        store_release(word, value);
        fence_system();
        uint32_t now = counter_load(counter);
        if (now == value)
            return;
        value = now;
    }
}

#endif
