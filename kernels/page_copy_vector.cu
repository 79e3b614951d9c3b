/* SPDX-License-Identifier: Apache-2.0 */

/* The vector kernel: any bytes, any GPU. Each warp of the grid is a worker of
 * its own that copies its chunks through registers, several loads in flight a
 * lane; no warp waits for another.
 *
 *   chunk    item 0 │ item 1 │ … up to 32 items, up to 8 KiB
 *            ├─ word 0, 1, 2 … ─┤   words of 16, 8, 4 or 1 bytes, the widest
 *                                   that all addresses of the plane allow
 *
 * Where the items of a chunk follow one another on both sides they are one run,
 * and a word's place needs no division. Layers are published as publish.cuh
 * says, when a warp comes to its first chunk of a later layer. */

#include "publish.cuh"

/* The chunk that a warp is about to copy; each lane holds one item. */
struct Chunk {
    Item item;
    uint32_t count;
    uint32_t bytes;
};

template <uint32_t BATCH> WEIR_DEVICE void copy_words_of_run(const Chunk &chunk, uint32_t words)
{
    uint4 *to = reinterpret_cast<uint4 *>(warp_get(chunk.item.to, 0));
    const uint4 *from = reinterpret_cast<const uint4 *>(warp_get(chunk.item.from, 0));
#pragma unroll 1
    for (uint32_t w = lane_id(); w < words; w += 32 * BATCH) {
        uint4 batch[BATCH] = {};
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (w + 32 * k < words)
                batch[k] = stream_load(from + w + 32 * k);
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (w + 32 * k < words)
                stream_store(to + w + 32 * k, batch[k]);
    }
}

/* A piece just above a chunk's limit is copied in halves just above a batch of
 * eight: then one wider batch, since each waits for its loads. */
WEIR_DEVICE void copy_run(const Chunk &chunk)
{
    uint32_t words = chunk.count * chunk.bytes / 16;
    if (words > 32 * 8 && words <= 32 * 12)
        copy_words_of_run<12>(chunk, words);
    else
        copy_words_of_run<8>(chunk, words);
}

/* BATCH words a lane, from word `first` on. Lanes past the end load the last word
 * again: a load that depends on a condition is waited for before the next. */
template <class Word, uint32_t BATCH>
WEIR_DEVICE void copy_words_of_items(const Chunk &chunk, uint32_t first, uint32_t words,
                                     uint32_t per_item, uint32_t magic)
{
    Word batch[BATCH];
    uint64_t to[BATCH];
#pragma unroll
    for (uint32_t k = 0; k < BATCH; k++) {
        uint32_t w = first + 32 * k + lane_id();
        w = w < words ? w : words - 1;
        uint32_t i = per_item > 1 ? high_product(w, magic) : w;
        uint32_t offset = (w - i * per_item) * static_cast<uint32_t>(sizeof(Word));
        to[k] = warp_get(chunk.item.to, i) + offset;
        uint64_t from = warp_get(chunk.item.from, i) + offset;
        batch[k] = stream_load(reinterpret_cast<const Word *>(from));
    }
#pragma unroll
    for (uint32_t k = 0; k < BATCH; k++)
        if (first + 32 * k + lane_id() < words)
            stream_store(reinterpret_cast<Word *>(to[k]), batch[k]);
}

template <class Word> WEIR_DEVICE void copy_items(const Chunk &chunk)
{
    constexpr uint32_t BATCH = sizeof(Word) > 4 ? 8 : 16;
    constexpr uint32_t REST = 4;
    uint32_t per_item = chunk.bytes / static_cast<uint32_t>(sizeof(Word));
    uint32_t words = chunk.count * per_item;
    /* w / per_item by one product: exact for w below 2^16, and a chunk is 8 KiB. */
    uint32_t magic = per_item > 1 ? 0xffffffffu / per_item + 1 : 0;
    uint32_t first = 0;
#pragma unroll 1
    for (; first + 32 * REST < words; first += 32 * BATCH)
        copy_words_of_items<Word, BATCH>(chunk, first, words, per_item, magic);
    if (first < words)
        copy_words_of_items<Word, REST>(chunk, first, words, per_item, magic);
}

/* Whether the chunk's items follow one another on both sides. */
WEIR_DEVICE bool is_run(const Chunk &chunk)
{
    uint64_t to_before = warp_up(chunk.item.to);
    uint64_t from_before = warp_up(chunk.item.from);
    bool joins =
        lane_id() == 0 || lane_id() >= chunk.count ||
        (chunk.item.to == to_before + chunk.bytes && chunk.item.from == from_before + chunk.bytes);
    return warp_ballot(joins) == 0xffffffffu;
}

template <class Job> WEIR_DEVICE void copy_all(const typename Job::Args &args)
{
    uint32_t warps_a_cta = blockDim.x / 32;
    uint32_t warps = gridDim.x * warps_a_cta;
    Walk<Job, 1> walk(args, blockIdx.x * warps_a_cta + threadIdx.x / 32, warps,
                      WEIR_VECTOR_CHUNK_BYTES);
    Publisher publisher(args, warps);
    while (walk.more()) {
        if (publisher.due(walk.layer()))
            publisher.publish(walk.layer());
        Chunk chunk = { { 0, 0 }, walk.count(), walk.bytes() };
        if (lane_id() < chunk.count)
            chunk.item = walk.locate(0);
        uint64_t bits = walk.job.alignment_bits();
        walk.advance(); /* the next indices travel while this chunk does */
        if (bits % 16 == 0 && is_run(chunk))
            copy_run(chunk);
        else if (bits % 16 == 0)
            copy_items<uint4>(chunk);
        else if (bits % 8 == 0)
            copy_items<uint2>(chunk);
        else if (bits % 4 == 0)
            copy_items<uint32_t>(chunk);
        else
            copy_items<uint8_t>(chunk);
    }
    if (publisher.due(walk.job.layer_end()))
        publisher.publish(walk.job.layer_end());
}

extern "C" __global__ void __launch_bounds__(WEIR_VECTOR_MAX_THREADS, 1)
    weir_pages_vector(const __grid_constant__ weir_pages_args args)
{
    copy_all<PagesJob<false>>(args);
}

extern "C" __global__ void __launch_bounds__(WEIR_VECTOR_MAX_THREADS, 1)
    weir_rows_vector(const __grid_constant__ weir_rows_args args)
{
    copy_all<RowsJob>(args);
}
