/* SPDX-License-Identifier: Apache-2.0 */

/* The gather by bulk copies: a warp relays its share of the bytes through a stage
 * in shared memory; a CTA has a warp for each stage of its ring.
 *
 *   source ── bulk loads ──► stage ── bulk stores ──► target
 *                              │ full: a barrier that counts bytes
 *
 *   a stage   ├─ piece 0 ────────┼─ piece 1 ─┼ … up to 32 pieces, one a lane,
 *                                              each in one line of one bank
 *
 * Large rows fill a stage with one piece. Small ones share it, so that a ring is
 * full of bytes on their way whatever the banks are. What is next is found while
 * a load is on its way. Banks that bulk copies cannot copy are the share of a
 * CTA's other warps.
 *
 * Why it is right: as in page_copy_tma.cu. */

#include "gather.cuh"

/* What a stage holds next; `mine` and `at` are a lane's own. */
struct StagePieces {
    uint32_t bytes; /* of all lanes; 0: none is left */
    uint32_t at;    /* in the stage */
    GatherPiece mine;
};

/* The next pieces of the walk, as many as a stage holds. The whole warp. */
template <class Args>
WEIR_DEVICE StagePieces find_pieces(GatherWalk<Args> &walk, uint32_t stage_bytes)
{
    StagePieces pieces = { 0, 0, { 0, 0, 0 } };
    uint32_t n = 0;
    uint32_t used = 0;
    while (n < WEIR_GATHER_PIECES && used < stage_bytes && walk.more()) {
        GatherPiece piece = walk.take(stage_bytes - used);
        if (piece.bytes == 0)
            continue;
        if (n == lane_id()) {
            pieces.mine = piece;
            pieces.at = used;
        }
        n++;
        pieces.bytes += piece.bytes;
        used += (piece.bytes + WEIR_GATHER_CUT - 1) / WEIR_GATHER_CUT * WEIR_GATHER_CUT;
    }
    return pieces;
}

WEIR_DEVICE void load_pieces(const StagePieces &pieces, uint32_t stage, uint32_t barrier)
{
    if (lane_id() == 0)
        barrier_arm(barrier, pieces.bytes);
    warp_sync();
    if (pieces.mine.bytes > 0)
        bulk_load(stage + pieces.at, pieces.mine.from, pieces.mine.bytes, barrier);
}

/* As one group a lane. */
WEIR_DEVICE void store_pieces(const StagePieces &pieces, uint32_t stage)
{
    if (pieces.mine.bytes > 0)
        bulk_store(pieces.mine.to, stage + pieces.at, pieces.mine.bytes);
    bulk_commit();
}

template <class Args> WEIR_DEVICE void gather_by_bulk(const Args &args, uint32_t warp)
{
    const uint32_t warps = args.head.bulk_warps;
    const uint32_t stage_bytes = args.head.stage_bytes;
    GatherWalk<Args> walk(args, 0);
    const uint32_t ring = shared_address(dynamic_shared());
    const uint32_t stage = ring + warp * stage_bytes;
    const uint32_t barrier = ring + warps * stage_bytes + warp * 8;
    if (lane_id() == 0)
        barrier_init(barrier);
    barrier_init_fence();
    warp_sync();
    walk.start(blockIdx.x * warps + warp);

    StagePieces pieces = find_pieces(walk, stage_bytes);
    if (pieces.bytes > 0)
        load_pieces(pieces, stage, barrier);
    uint32_t parity = 0;
    while (pieces.bytes > 0) {
        StagePieces next = find_pieces(walk, stage_bytes);
        barrier_wait(barrier, parity);
        parity ^= 1;
        store_pieces(pieces, stage);
        if (next.bytes > 0) {
            bulk_wait_read<0>();
            warp_sync();
            load_pieces(next, stage, barrier);
        }
        pieces = next;
    }
    bulk_wait<0>();
    walk.report();
}

template <class Args> WEIR_DEVICE void gather_by_tma(const Args &args)
{
    uint32_t warp = threadIdx.x / 32;
    uint32_t others = blockDim.x / 32 - args.head.bulk_warps;
    if (warp >= args.head.bulk_warps)
        gather_through_registers(args, blockIdx.x * others + warp - args.head.bulk_warps);
    else if (args.head.parts[0].begin < args.head.parts[0].end)
        gather_by_bulk(args, warp);
}

extern "C" __global__ void __launch_bounds__(WEIR_GATHER_MAX_THREADS, 1)
    weir_gather_tma(const __grid_constant__ weir_gather_args args)
{
    gather_by_tma(args);
}

extern "C" __global__ void __launch_bounds__(WEIR_GATHER_MAX_THREADS, 1)
    weir_gather_few_tma(const __grid_constant__ weir_gather_few_args args)
{
    gather_by_tma(args);
}
