/* SPDX-License-Identifier: Apache-2.0 */

/* The TMA kernel: a warp relays bytes through a ring of stages in shared memory;
 * no byte passes through a register. A CTA has a few such warps, each with a ring
 * and chunks of its own, because one warp takes longer to find out where a chunk
 * belongs than the link takes to bring it.
 *
 *   source ── bulk load ──► stage ── bulk store ──► target
 *                             │ full: a barrier that counts bytes
 *
 *   loads      … c+5  c+4  c+3  c+2  c+1 ┊ c ┊            in flight, ahead
 *   stores                               ┊ c ┊ c-1        in flight, behind
 *                                          ▲
 *              one turn: wait for c, store it, wait until the stage of
 *              c - behind has been read, load chunk c - behind + stages there,
 *              ask for the indices of the chunk after that
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
 *     read ones, and it comes late: only the stores older than the newest
 *     PUBLISH_BEHIND have to be complete, while loads go on, so that the ring
 *     does not drain where a layer ends. */

#include "publish.cuh"

constexpr uint32_t LANE_ITEMS = WEIR_TMA_LANE_ITEMS;
constexpr int PUBLISH_BEHIND = 3;

/* The facts of the chunk in a stage. */
struct StageFacts {
    uint32_t count;
    uint32_t bytes;
    uint32_t layer;
    uint32_t unused;
};

/* Shared memory: the stages of all warps, then for each warp targets
 * [stage][item], facts [stage], barriers. */
class Stages
{
  public:
    WEIR_MEMBER explicit Stages(const weir_ring &ring)
    {
        bytes = ring.stage_bytes;
        uint32_t warp = threadIdx.x / 32;
        uint32_t warps = blockDim.x / 32;
        uint8_t *base = dynamic_shared();
        data = shared_address(base) + warp * ring.stages * bytes;
        targets_ = reinterpret_cast<uint64_t *>(base + warps * ring.stages * bytes +
                                                warp * ring.stages * WEIR_TMA_STAGE_OVERHEAD);
        facts_ = reinterpret_cast<StageFacts *>(targets_ + ring.stages * WEIR_TMA_CHUNK_ITEMS);
        barriers = shared_address(facts_ + ring.stages);
    }
    WEIR_MEMBER uint32_t at(uint32_t stage) const
    {
        return data + stage * bytes;
    }
    WEIR_MEMBER uint32_t barrier(uint32_t stage) const
    {
        return barriers + stage * 8;
    }
    WEIR_MEMBER uint64_t *targets(uint32_t stage) const
    {
        return targets_ + stage * WEIR_TMA_CHUNK_ITEMS;
    }
    WEIR_MEMBER StageFacts *facts(uint32_t stage) const
    {
        return facts_ + stage;
    }

  private:
    uint32_t bytes;
    uint32_t data;
    uint32_t barriers;
    uint64_t *targets_;
    StageFacts *facts_;
};

WEIR_DEVICE void wait_read(uint32_t behind)
{
    switch (behind) {
    case 0:
        return bulk_wait_read<0>();
    case 1:
        return bulk_wait_read<1>();
    case 2:
        return bulk_wait_read<2>();
    case 3:
        return bulk_wait_read<3>();
    case 4:
        return bulk_wait_read<4>();
    case 5:
        return bulk_wait_read<5>();
    case 6:
        return bulk_wait_read<6>();
    default:
        return bulk_wait_read<7>();
    }
}

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

/* Loads the chunk that `walk` is at. The whole warp. */
template <class Job>
WEIR_DEVICE void load_chunk(const Walk<Job, LANE_ITEMS> &walk, const Stages &stages, uint32_t stage)
{
    uint32_t count = walk.count();
    uint32_t bytes = walk.bytes();
    uint32_t barrier = stages.barrier(stage);
    if (lane_id() == 0) {
        *stages.facts(stage) = StageFacts{ count, bytes, walk.layer(), 0 };
        barrier_arm(barrier, count * bytes);
    }
    warp_sync();
    uint32_t box = walk.box_rows();
    if (count == 1 && box == 0) { /* a large piece: no runs to look for */
        if (lane_id() == 0) {
            Item item = walk.locate(0);
            stages.targets(stage)[0] = item.to;
            bulk_load(stages.at(stage), item.from, bytes, barrier);
        }
        return;
    }
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_ITEMS; slot++) {
        if (slot * 32 >= count)
            break;
        uint32_t i = slot * 32 + lane_id();
        bool active = i < count;
        uint32_t to = stages.at(stage) + i * bytes;
        Item item = { 0, 0 };
        if (active) {
            item = walk.locate(slot);
            stages.targets(stage)[i] = item.to;
        }
        bool boxed = false;
        if (box > 0) {
            uint32_t row = active ? walk.map_row(slot) : 0;
            boxed = in_box(box, active, row);
            if (boxed && lane_id() % box == 0)
                bulk_load_box(to, walk.job.map(), walk.job.map_layer(), row, barrier);
        }
        /* An item in a box ends no run and begins none: it gives out address 0. */
        uint64_t from = boxed ? 0 : item.from;
        uint64_t before = warp_up(from);
        bool joins = active && !boxed && lane_id() > 0 && before != 0 && from == before + bytes;
        uint32_t length = run_length(joins);
        if (active && !boxed && !joins)
            bulk_load(to, from, length * bytes, barrier);
    }
}

/* Stores a stage that has been filled, as one group a lane. The whole warp. */
WEIR_DEVICE void store_chunk(const Stages &stages, uint32_t stage)
{
    uint32_t count = stages.facts(stage)->count;
    uint32_t bytes = stages.facts(stage)->bytes;
    if (count == 1) {
        if (lane_id() == 0)
            bulk_store(stages.targets(stage)[0], stages.at(stage), bytes);
        bulk_commit();
        return;
    }
#pragma unroll
    for (uint32_t slot = 0; slot < LANE_ITEMS; slot++) {
        if (slot * 32 >= count)
            break;
        uint32_t i = slot * 32 + lane_id();
        bool active = i < count;
        uint64_t to = active ? stages.targets(stage)[i] : 0;
        uint64_t before = warp_up(to);
        bool joins = active && lane_id() > 0 && to == before + bytes;
        uint32_t length = run_length(joins);
        if (active && !joins)
            bulk_store(to, stages.at(stage) + i * bytes, length * bytes);
    }
    bulk_commit();
}

template <class Job> WEIR_DEVICE void relay(const typename Job::Args &args)
{
    Stages stages(args.ring);
    const uint32_t n_stages = args.ring.stages;
    if (lane_id() < n_stages)
        barrier_init(stages.barrier(lane_id()));
    barrier_init_fence();
    warp_sync();

    const uint32_t warps_a_cta = blockDim.x / 32;
    const uint32_t warps = gridDim.x * warps_a_cta;
    Walk<Job, LANE_ITEMS> walk(args, blockIdx.x * warps_a_cta + threadIdx.x / 32, warps,
                               args.ring.stage_bytes);
    Publisher publisher(args, warps);
    if (publisher.due(walk.layer()))
        publisher.publish(walk.layer()); /* this warp has no part in these layers */

    uint32_t filled = 0; /* chunks loaded */
    uint32_t fill_stage = 0;
    for (; filled < n_stages - args.ring.behind && walk.more(); filled++) {
        load_chunk(walk, stages, fill_stage++);
        walk.advance();
    }

    /* done[i]: layers below it end with the chunks stored up to i turns ago. */
    uint32_t done[PUBLISH_BEHIND + 1];
#pragma unroll
    for (int i = 0; i <= PUBLISH_BEHIND; i++)
        done[i] = 0;
    uint32_t stage = 0;
    uint32_t parity = 0;
    for (uint32_t stored = 0; stored < filled; stored++) {
        barrier_wait(stages.barrier(stage), parity);
        store_chunk(stages, stage);
        if (++stage == n_stages) {
            stage = 0;
            parity ^= 1;
        }
        if (walk.more()) {
            wait_read(args.ring.behind);
            warp_sync();
            if (fill_stage == n_stages)
                fill_stage = 0;
            load_chunk(walk, stages, fill_stage++);
            filled++;
            walk.advance();
        }
        warp_sync();
#pragma unroll
        for (int i = PUBLISH_BEHIND; i > 0; i--)
            done[i] = done[i - 1];
        done[0] = stored + 1 < filled ? stages.facts(stage)->layer : walk.job.layer_end();
        if (publisher.due(done[PUBLISH_BEHIND])) {
            bulk_wait<PUBLISH_BEHIND>();
            publisher.publish(done[PUBLISH_BEHIND]);
        }
    }
    bulk_wait<0>();
    if (publisher.due(walk.job.layer_end()))
        publisher.publish(walk.job.layer_end());
}

extern "C" __global__ void __launch_bounds__(32 * WEIR_TMA_MAX_WARPS, 1)
    weir_pages_tma(const __grid_constant__ weir_pages_args args)
{
    if (lane_id() < args.n_maps)
        map_acquire(&args.maps[lane_id()]);
    warp_sync();
    relay<PagesJob<true>>(args);
}

extern "C" __global__ void __launch_bounds__(32 * WEIR_TMA_MAX_WARPS, 1)
    weir_rows_tma(const __grid_constant__ weir_rows_args args)
{
    relay<RowsJob>(args);
}
