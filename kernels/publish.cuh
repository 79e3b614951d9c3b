/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_PUBLISH_CUH
#define WEIR_KERNELS_PUBLISH_CUH

/* Says that a layer has arrived.
 *
 *   warp 0   stores of layer l ─ complete ─ arrive ─────────────┐
 *   warp 1   stores of layer l ─ complete ──── arrive ──────────┤
 *   warp 2   stores of layer l ────────── complete ─ arrive: the last one
 *                                                    └─► words[l] = generation
 *
 * Why a reader that has seen the word sees the bytes:
 *   1. Before a warp arrives, each of its lanes has made its own stores final:
 *      ordinary stores by having been issued, bulk stores by wait_group without
 *      `.read` (which makes them visible to the thread that issued them; groups
 *      are a thread's own, so every lane waits for its own).
 *   2. The warp meets at __syncwarp, which orders all lanes' memory before lane
 *      0 that arrives.
 *   3. The arrival is one atomic with acquire and release of system scope. Those
 *      of all warps on one counter form one chain, so the last one is ordered
 *      after the stores of all.
 *   4. The last one stores the word with release of system scope. Causality is
 *      transitive, so who acquires the word (a stream's wait, the CPU) is
 *      ordered after all of them.
 * A warp arrives at l + 1 after it has stored word l, if that was its to store;
 * so words become visible in the order of the layers.
 *
 * The counters wrap to zero by themselves. */

#include "walk.cuh"

/* Lane 0, after a __syncwarp behind the warp's last stores of these layers. */
WEIR_DEVICE void publish_layers(const weir_pages_args &args, uint32_t begin, uint32_t end,
                                uint32_t warps)
{
    for (uint32_t layer = begin; layer < end; layer++)
        if (arrive_last(&args.arrivals[layer], warps - 1))
            store_release(&args.words[layer], args.generation);
}

/* What a warp has published so far; does nothing for jobs without words. */
class Publisher
{
  public:
    WEIR_MEMBER Publisher(const weir_pages_args &a, uint32_t n_warps)
        : args(&a), warps(n_warps), next(a.layer_begin)
    {
    }
    WEIR_MEMBER Publisher(const weir_rows_args &, uint32_t) : args(nullptr), warps(0), next(0)
    {
    }

    /* Whether layers below `end` are still to be published. */
    WEIR_MEMBER bool due(uint32_t end) const
    {
        return args && args->words && next < end;
    }

    /* Pre: each lane's stores of the layers below `end` are final. */
    WEIR_MEMBER void publish(uint32_t end)
    {
        warp_sync();
        if (lane_id() == 0)
            publish_layers(*args, next, end, warps);
        next = end;
    }

  private:
    const weir_pages_args *args;
    uint32_t warps;
    uint32_t next; /* the first layer not published */
};

#endif
