/* The TMA kernel: a warp relays bytes through a stage in shared memory; no byte
 * passes through a register. A CTA has as many warps as its ring has stages, each
 * with a stage and chunks of its own: what one warp spends on finding out where a
 * chunk belongs, the loads of the others hide.
 *
 *   source ── bulk load ──► stage ── bulk store ──► target
 *                             │ full: a barrier that counts bytes
 *
 *   warp 0   load c0 ·········│ store │ load c12 ·········│ store │ …
 *   warp 1      load c1 ·········│ store │ load c13 ·········│ store │ …
 *   …
 *              one turn: while the load is on its way find the next chunk's
 *              addresses and runs; wait for the load, store it, wait until the
 *              stage has been read, load the next chunk there
 *
 * Why it is right:
 *   - A stage is stored from once its barrier has counted all its bytes; each
 *     lane waits on the barrier itself. Loads and stores are both of the async
 *     proxy, so there is no proxy fence between them.
 *   - A stage is loaded into once its store has been read: each lane waits for
 *     its own groups (`.read`), then the lanes meet, then any of them may load.
 *     A lane that stored nothing commits an empty group, so that all count
 *     alike.
 *   - Every load is waited for and every store is complete before a CTA ends.
 *   - Publishing is explained in publish.cuh. It needs complete stores, not
 *     read ones, and it comes a turn late: the stores of the turn before are
 *     complete by then, while the next load goes on. */

#include "publish.cuh"

constexpr uint32_t LANE_ITEMS = WEIR_TMA_LANE_ITEMS;

constexpr uint32_t NO_ROW = ~0u;

/* A chunk, and where the items of it that this lane looks after are to go. The
 * first lane of a run or of a box copies all of it. */
struct StageChunk {
    uint32_t count; /* items, of all lanes; 0: no chunk */
    uint32_t bytes; /* of an item */
    uint32_t layer;
    uint32_t map_layer;
    const void *map; /* NULL: no boxes */
    Item items[LANE_ITEMS];
    uint32_t load_bytes[LANE_ITEMS]; /* of the run at the source; 0: begins none */
    uint32_t store_bytes[LANE_ITEMS];
    uint32_t rows[LANE_ITEMS]; /* with a map: the first of the box; NO_ROW: begins none */
};

/* Whether this lane's item lies in a group of `rows` items, whole and
 * consecutive at the source, so that one box loads it. */
WEIR_DEVICE bool in_box(uint32_t rows, bool active, uint32_t row)
{
    uint32_t place = lane_id() % rows;
    uint64_t before = warp_up(row);
    bool follows = active && (place == 0 || before + 1 == row);
    uint32_t mask = warp_ballot(follows);
    uint32_t group = (0xffffffffu >> (32 - rows)) << (lane_id() - place);
    return (mask & group) == group;
}

/* The length in bytes of the run that begins at this lane's item; 0 if none does. */
WEIR_DEVICE uint32_t run_bytes(bool active, uint64_t address, uint32_t bytes)
{
    uint64_t before = warp_up(address);
    bool joins = active && lane_id() > 0 && before != 0 && address == before + bytes;
    uint32_t length = run_length(joins);
    return active && !joins ? length * bytes : 0;
}

/* Finds the addresses of the chunk that `walk` is at. The whole warp. */
template <class Job> WEIR_DEVICE StageChunk find_chunk(const Walk<Job, LANE_ITEMS> &walk)
{
    StageChunk chunk = {};
    chunk.count = walk.count();
    chunk.bytes = walk.bytes();
    chunk.layer = walk.layer();
    const uint32_t box = walk.box_rows();
    if (box > 0) {
        chunk.map = walk.job.map();
        chunk.map_layer = walk.job.map_layer();
    }
    if (chunk.count == 1 && box == 0) { /* a large piece: no runs to look for */
        chunk.items[0] = walk.locate(0);
        chunk.load_bytes[0] = chunk.store_bytes[0] = lane_id() == 0 ? chunk.bytes : 0;
        return chunk;
    }
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_ITEMS; slot++) {
        if (slot * 32 >= chunk.count)
            break;
        bool active = slot * 32 + lane_id() < chunk.count;
        Item item = { 0, 0 };
        if (active)
            item = walk.locate(slot);
        bool boxed = false;
        if (box > 0) {
            uint32_t row = active ? walk.map_row(slot) : 0;
            boxed = in_box(box, active, row);
            chunk.rows[slot] = boxed && lane_id() % box == 0 ? row : NO_ROW;
        }
        chunk.items[slot] = item;
        /* An item in a box ends no run and begins none: it gives out address 0. */
        chunk.load_bytes[slot] = run_bytes(active && !boxed, boxed ? 0 : item.from, chunk.bytes);
        chunk.store_bytes[slot] = run_bytes(active, item.to, chunk.bytes);
    }
    return chunk;
}

/* Loads a chunk into the warp's stage. The whole warp. */
WEIR_DEVICE void load_chunk(const StageChunk &chunk, uint32_t stage, uint32_t barrier)
{
    if (lane_id() == 0)
        barrier_arm(barrier, chunk.count * chunk.bytes);
    warp_sync();
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_ITEMS; slot++) {
        if (slot * 32 >= chunk.count)
            break;
        uint32_t to = stage + (slot * 32 + lane_id()) * chunk.bytes;
        if (chunk.load_bytes[slot] > 0)
            bulk_load(to, chunk.items[slot].from, chunk.load_bytes[slot], barrier);
        if (chunk.map && chunk.rows[slot] != NO_ROW)
            bulk_load_box(to, chunk.map, chunk.map_layer, chunk.rows[slot], barrier);
    }
}

/* Stores the stage that has been filled, as one group a lane. The whole warp. */
WEIR_DEVICE void store_chunk(const StageChunk &chunk, uint32_t stage)
{
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_ITEMS; slot++) {
        if (slot * 32 >= chunk.count)
            break;
        if (chunk.store_bytes[slot] > 0)
            bulk_store(chunk.items[slot].to, stage + (slot * 32 + lane_id()) * chunk.bytes,
                       chunk.store_bytes[slot]);
    }
    bulk_commit();
}

template <class Job> WEIR_DEVICE void relay(const typename Job::Args &args)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t warps_a_cta = blockDim.x / 32;
    const uint32_t warps = gridDim.x * warps_a_cta;
    const uint32_t ring = shared_address(dynamic_shared());
    const uint32_t stage = ring + warp * args.stage_bytes;
    const uint32_t barrier = ring + warps_a_cta * args.stage_bytes + warp * 8;
    if (lane_id() == 0)
        barrier_init(barrier);
    barrier_init_fence();
    warp_sync();

    Walk<Job, LANE_ITEMS> walk(args, blockIdx.x * warps_a_cta + warp, warps, args.stage_bytes);
    Publisher publisher(args, warps);
    if (publisher.due(walk.layer()))
        publisher.publish(walk.layer()); /* this warp has no part in these layers */

    StageChunk chunk = {};
    if (walk.more()) {
        chunk = find_chunk(walk);
        load_chunk(chunk, stage, barrier);
        walk.advance();
    }
    uint32_t parity = 0;
    uint32_t done = 0; /* layers below it end with the chunks stored before this turn */
    while (chunk.count > 0) {
        StageChunk next = {};
        next.layer = walk.layer();
        if (walk.more()) {
            next = find_chunk(walk);
            walk.advance();
        }
        barrier_wait(barrier, parity);
        parity ^= 1;
        store_chunk(chunk, stage);
        if (next.count > 0) {
            bulk_wait_read<0>();
            warp_sync();
            load_chunk(next, stage, barrier);
        }
        if (publisher.due(done)) {
            bulk_wait<1>();
            publisher.publish(done);
        }
        done = next.layer;
        chunk = next;
    }
    bulk_wait<0>();
    if (publisher.due(walk.job.layer_end()))
        publisher.publish(walk.job.layer_end());
}

extern "C" __global__ void __launch_bounds__(32 * WEIR_TMA_MAX_STAGES, 1)
    weir_pages_tma(const __grid_constant__ weir_pages_args args)
{
    if (lane_id() < args.n_maps)
        map_acquire(&args.maps[lane_id()]);
    warp_sync();
    relay<PagesJob<true>>(args);
}

extern "C" __global__ void __launch_bounds__(32 * WEIR_TMA_MAX_STAGES, 1)
    weir_rows_tma(const __grid_constant__ weir_rows_args args)
{
    relay<RowsJob>(args);
}
