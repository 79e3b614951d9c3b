/* SPDX-License-Identifier: Apache-2.0 */

/* The expert cache's update: one CTA, one launch, nothing read by the host.
 *
 *   ids ─► look up ─┬─ hits ────► touched (a bit a slot)
 *                   └─ misses ──► missing (a bit an expert: ascending, once each)
 *                                    │
 *       order ─► first that count and are not touched: the victims, in order
 *                                    │
 *       tables ◄─ i-th missing takes the i-th victim ─► touched
 *       order  ◄─ all touched, in ascending order
 *       slots  ◄─ looked up again
 *
 * Hazards, each met by a barrier of the CTA:
 *   - a hit must be marked before any victim is looked for, or it could be evicted
 *   - misses are all found before the tables change, so that all copies of an id
 *     see the same answer
 *   - order is read before it is squeezed in place: what is written lies before
 *     all that is still to be read
 * An id's own thread reads it before it writes the slot there. */

#include "ptx.cuh"
#include "expert_args.h"

namespace expert
{
struct Shared {
    uint64_t *sums; /* a warp each */
    uint32_t *head; /* as this call leaves it */
    uint32_t *missing;
    uint32_t *touched;
};

WEIR_DEVICE Shared divide_shared(const weir_expert_args &args)
{
    uint64_t *sums = reinterpret_cast<uint64_t *>(dynamic_shared());
    uint32_t *head = reinterpret_cast<uint32_t *>(sums + 32);
    uint32_t *missing = head + 2;
    return { sums, head, missing, missing + WEIR_EXPERT_WORDS(args.n_experts) };
}

/* ---- Sums over the CTA ----------------------------------------------------- */

WEIR_DEVICE uint64_t warp_sum_up_to(uint64_t value)
{
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
        bool far = lane_id() >= distance;
        uint64_t before = warp_get(value, far ? lane_id() - distance : lane_id());
        value += far ? before : 0;
    }
    return value;
}

/* The sum of all warps before this one, of what their last lanes give; *total: of
 * all warps. */
WEIR_DEVICE uint64_t sum_of_warps_before(const Shared &shared, uint64_t warp_sum, uint64_t *total)
{
    uint32_t warp = threadIdx.x / 32;
    cta_sync(); /* the sums before these have been read */
    if (lane_id() == 31)
        shared.sums[warp] = warp_sum;
    cta_sync();
    uint64_t sums = warp_sum_up_to(lane_id() < blockDim.x / 32 ? shared.sums[lane_id()] : 0);
    *total = warp_get(sums, 31);
    uint64_t before = warp_get(sums, (warp + 31) % 32);
    return warp > 0 ? before : 0;
}

/* The sum of the threads before this one. */
WEIR_DEVICE uint64_t sum_before(const Shared &shared, uint64_t value, uint64_t *total)
{
    uint64_t up_to = warp_sum_up_to(value);
    return sum_of_warps_before(shared, up_to, total) + up_to - value;
}

/* How many threads before this one say yes. */
WEIR_DEVICE uint32_t count_before(const Shared &shared, bool yes, uint32_t *total)
{
    uint32_t votes = warp_ballot(yes);
    uint64_t all;
    uint64_t before = sum_of_warps_before(shared, popcount(votes), &all);
    *total = static_cast<uint32_t>(all);
    return static_cast<uint32_t>(before) + popcount(votes & ((1u << lane_id()) - 1));
}

/* ---- Sets ------------------------------------------------------------------ */

WEIR_DEVICE bool has(const uint32_t *set, uint32_t number)
{
    return set[number / 32] >> number % 32 & 1;
}

WEIR_DEVICE void put(uint32_t *set, uint32_t number)
{
    shared_or(set + number / 32, 1u << number % 32);
}

/* The words of a set that are this thread's: consecutive, so that the numbers of
 * the threads before it are the smaller ones. */
struct Part {
    const uint32_t *words;
    uint32_t begin;
    uint32_t end;
};

WEIR_DEVICE Part part_of(const uint32_t *set, uint32_t n)
{
    uint32_t words = WEIR_EXPERT_WORDS(n);
    uint32_t each = (words + blockDim.x - 1) / blockDim.x;
    uint32_t begin = threadIdx.x * each;
    uint32_t end = begin + each;
    return { set, begin < words ? begin : words, end < words ? end : words };
}

WEIR_DEVICE uint32_t size_of(const Part &part)
{
    uint32_t n = 0;
    for (uint32_t w = part.begin; w < part.end; w++)
        n += popcount(part.words[w]);
    return n;
}

/* Calls use(number, rank) for each of the part's numbers. */
template <class Use> WEIR_DEVICE void each_of(const Part &part, uint32_t rank, Use use)
{
    for (uint32_t w = part.begin; w < part.end; w++)
        for (uint32_t bits = part.words[w]; bits != 0; bits &= bits - 1)
            use(32 * w + first_set(bits) - 1, rank++);
}

/* ---- The steps of a call --------------------------------------------------- */

struct Found {
    uint32_t hits;
    uint32_t misses;
    uint32_t invalid;
    uint32_t missing_before; /* missing ids in the parts of the threads before */
};

/* Marks each id as touched or missing. */
WEIR_DEVICE Found look_up(const weir_expert_args &args, const Shared &shared)
{
    uint32_t words = WEIR_EXPERT_WORDS(args.n_experts) + WEIR_EXPERT_WORDS(args.n_slots);
    for (uint32_t w = threadIdx.x; w < words; w += blockDim.x)
        shared.missing[w] = 0;
    cta_sync();
    uint32_t invalid = 0;
    for (uint32_t i = threadIdx.x; i < args.n; i += blockDim.x) {
        uint32_t expert = static_cast<uint32_t>(args.ids[i]);
        if (expert >= args.n_experts) {
            invalid += expert != 0xffffffffu;
            continue;
        }
        int32_t slot = args.slot_of[args.id_base + expert];
        if (slot >= 0)
            put(shared.touched, static_cast<uint32_t>(slot));
        else
            put(shared.missing, expert);
    }
    cta_sync();
    /* Three sums in one: 20 bits hold all experts, 20 all slots, 24 all ids. */
    uint64_t mine = size_of(part_of(shared.missing, args.n_experts)) |
                    static_cast<uint64_t>(size_of(part_of(shared.touched, args.n_slots))) << 20 |
                    static_cast<uint64_t>(invalid) << 40;
    uint64_t all;
    uint64_t before = sum_before(shared, mine, &all);
    return { static_cast<uint32_t>(all >> 20) & 0xfffffu, static_cast<uint32_t>(all) & 0xfffffu,
             static_cast<uint32_t>(all >> 40), static_cast<uint32_t>(before) & 0xfffffu };
}

WEIR_DEVICE int32_t entry_that_counts(const weir_expert_args &args, const Shared &shared,
                                      uint32_t position, uint32_t tail)
{
    if (static_cast<int32_t>(tail - position) <= 0)
        return -1;
    int32_t slot = args.order[position & args.order_mask];
    bool counts = args.place[slot] == position && !has(shared.touched, static_cast<uint32_t>(slot));
    return counts ? slot : -1;
}

/* The first n slots in order that are not touched; there are as many. The new
 * head is behind the last of them. */
WEIR_DEVICE void choose_victims(const weir_expert_args &args, const Shared &shared, uint32_t n,
                                uint32_t head, uint32_t tail)
{
    uint32_t found = 0;
#pragma unroll 1
    for (uint32_t at = head; found < n; at += blockDim.x) {
        uint32_t position = at + threadIdx.x;
        int32_t slot = entry_that_counts(args, shared, position, tail);
        uint32_t total;
        uint32_t rank = found + count_before(shared, slot >= 0, &total);
        if (slot >= 0 && rank < n) {
            args.dst_rows[rank] = slot;
            if (rank == n - 1)
                *shared.head = position + 1;
        }
        found += total;
    }
    cta_sync();
}

WEIR_DEVICE void give_slots(const weir_expert_args &args, const Shared &shared, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        int32_t slot = args.dst_rows[i];
        int32_t id = static_cast<int32_t>(args.id_base) + args.src_rows[i];
        int32_t before = args.id_of[slot];
        if (before >= 0)
            args.slot_of[before] = -1;
        args.id_of[slot] = id;
        args.slot_of[id] = slot;
        put(shared.touched, static_cast<uint32_t>(slot));
    }
    cta_sync();
}

/* Leaves what counts and is not touched, from head on; the new tail. */
WEIR_DEVICE uint32_t squeeze(const weir_expert_args &args, const Shared &shared, uint32_t head,
                             uint32_t tail)
{
    uint32_t to = head;
#pragma unroll 1
    for (uint32_t at = head; static_cast<int32_t>(tail - at) > 0; at += blockDim.x) {
        int32_t slot = entry_that_counts(args, shared, at + threadIdx.x, tail);
        uint32_t total;
        uint32_t position = to + count_before(shared, slot >= 0, &total);
        if (slot >= 0) {
            args.order[position & args.order_mask] = slot;
            args.place[slot] = position;
        }
        to += total;
    }
    return to;
}

/* Appends all that is touched; the new tail. */
WEIR_DEVICE uint32_t append_touched(const weir_expert_args &args, const Shared &shared,
                                    uint32_t head, uint32_t tail)
{
    Part part = part_of(shared.touched, args.n_slots);
    uint64_t total;
    uint32_t rank = static_cast<uint32_t>(sum_before(shared, size_of(part), &total));
    uint32_t touched = static_cast<uint32_t>(total);
    if (tail - head + touched > args.order_mask + 1)
        tail = squeeze(args, shared, head, tail);
    each_of(part, tail + rank, [&](uint32_t slot, uint32_t position) {
        args.order[position & args.order_mask] = static_cast<int32_t>(slot);
        args.place[slot] = position;
    });
    return tail + touched;
}

WEIR_DEVICE void answer(const weir_expert_args &args)
{
    for (uint32_t i = threadIdx.x; i < args.n; i += blockDim.x) {
        uint32_t expert = static_cast<uint32_t>(args.ids[i]);
        args.slots[i] = expert < args.n_experts ? args.slot_of[args.id_base + expert] : -1;
    }
}

WEIR_DEVICE void account(const weir_expert_args &args, const Found &found, uint32_t given)
{
    uint64_t add[WEIR_EXPERT_TOTALS] = { 1, found.hits, given, found.misses - given,
                                         found.invalid };
#pragma unroll
    for (uint32_t i = 0; i < WEIR_EXPERT_TOTALS; i++) {
        uint64_t total = args.totals[i] + add[i];
        args.totals[i] = total;
        stream_store(args.published + i, total);
    }
}

} // namespace expert

extern "C" __global__ void __launch_bounds__(WEIR_EXPERT_MAX_THREADS, 1)
    weir_expert_ensure(const __grid_constant__ weir_expert_args args)
{
    using namespace expert;
    Shared shared = divide_shared(args);
    uint32_t head = args.ends[0];
    uint32_t tail = args.ends[1];
    Found found = look_up(args, shared);
    uint32_t room = args.n_slots - found.hits;
    uint32_t given = found.misses < room ? found.misses : room;
    if (given > 0) {
        each_of(part_of(shared.missing, args.n_experts), found.missing_before,
                [&](uint32_t expert, uint32_t rank) {
                    if (rank < given)
                        args.src_rows[rank] = static_cast<int32_t>(expert);
                });
        choose_victims(args, shared, given, head, tail);
        head = *shared.head;
        give_slots(args, shared, given);
    }
    tail = append_touched(args, shared, head, tail);
    answer(args);
    if (threadIdx.x == 0) {
        args.ends[0] = head;
        args.ends[1] = tail;
        *args.count = given;
        account(args, found, given);
    }
}

/* All slots empty, in ascending order; totals at zero. */
extern "C" __global__ void __launch_bounds__(WEIR_EXPERT_MAX_THREADS, 1)
    weir_expert_reset(const __grid_constant__ weir_expert_args args)
{
    for (uint32_t id = threadIdx.x; id < args.n_ids; id += blockDim.x)
        args.slot_of[id] = -1;
    for (uint32_t slot = threadIdx.x; slot < args.n_slots; slot += blockDim.x) {
        args.id_of[slot] = -1;
        args.place[slot] = slot;
        args.order[slot] = static_cast<int32_t>(slot);
    }
    if (threadIdx.x < WEIR_EXPERT_TOTALS) {
        args.totals[threadIdx.x] = 0;
        stream_store(args.published + threadIdx.x, static_cast<uint64_t>(0));
    }
    if (threadIdx.x == 0) {
        args.ends[0] = 0;
        args.ends[1] = args.n_slots;
        *args.count = 0;
    }
}
