/* SPDX-License-Identifier: Apache-2.0 */

/* Counts the bytes of pages that differ from their pattern, as
 * weir_pattern_check does, but reads the pages as a modern attention kernel
 * does: by bulk copies to shared memory, which go through another proxy than
 * ordinary loads. Rows are a multiple of 16 bytes, and their pages aligned to 16.
 * Grid: (entries, tensors of the layer, parts of a piece).
 *
 * Wrong rows that bulk copies have read are told with their top bit set. Before
 * 9.0 there are no bulk copies, and they count nothing. */

#include "../../tools/kernels/pattern.cuh"

#define THREADS 128u
#define STAGE_BYTES 16384u
#define BY_BULK 0x80000000u

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

PATTERN_DEVICE uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

PATTERN_DEVICE void prepare_barrier(uint64_t *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

PATTERN_DEVICE void start_load(void *to, uint64_t from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

PATTERN_DEVICE void await_load(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

PATTERN_DEVICE void check_by_bulk(const weir_pattern_args &args, uint32_t part, uint32_t parts)
{
    __shared__ __align__(128) uint8_t stage[STAGE_BYTES];
    __shared__ __align__(8) uint64_t barrier;
    Piece piece = piece_of(args, blockIdx.x, blockIdx.y);
    uint64_t begin = static_cast<uint64_t>(piece.begin) * piece.row_bytes;
    uint64_t end = static_cast<uint64_t>(piece.end) * piece.row_bytes;
    if (threadIdx.x == 0)
        prepare_barrier(&barrier);
    __syncthreads();
    uint32_t wrong = 0;
    uint32_t wrong_row = 0;
    uint32_t parity = 0;
    uint64_t step = static_cast<uint64_t>(parts) * STAGE_BYTES;
    for (uint64_t at = begin + static_cast<uint64_t>(part) * STAGE_BYTES; at < end; at += step) {
        uint32_t bytes = static_cast<uint32_t>(end - at < STAGE_BYTES ? end - at : STAGE_BYTES);
        if (threadIdx.x == 0)
            start_load(stage, piece.address + at, bytes, &barrier);
        await_load(&barrier, parity);
        parity ^= 1;
        for (uint32_t i = threadIdx.x * 16; i < bytes; i += THREADS * 16) {
            uint32_t row = static_cast<uint32_t>((at + i) / piece.row_bytes);
            uint32_t index = static_cast<uint32_t>((at + i) % piece.row_bytes / 16);
            uint64_t seed = weir_pattern_mix(piece.place, piece.fingerprints[row]);
            uint32_t different = different_bytes(*reinterpret_cast<const ulonglong2 *>(stage + i),
                                                 pattern_of<ulonglong2>(seed, index));
            wrong += different;
            if (different)
                wrong_row = row;
        }
        __syncthreads(); /* the stage is read, before it is written again */
    }
    tell_wrong(args, wrong, blockIdx.x, blockIdx.y, wrong_row | BY_BULK);
}
#else
PATTERN_DEVICE void check_by_bulk(const weir_pattern_args &, uint32_t, uint32_t)
{
}
#endif

PATTERN_DEVICE void check_by_loads(const weir_pattern_args &args, uint32_t part, uint32_t parts)
{
    Piece piece = piece_of(args, blockIdx.x, blockIdx.y);
    uint32_t wrong = 0;
    uint32_t wrong_row = 0;
    each_word<ulonglong2>(piece, part * THREADS + threadIdx.x, parts * THREADS,
                          [&](const ulonglong2 *word, uint64_t seed, uint32_t index, uint32_t row) {
                              uint32_t different =
                                  different_bytes(*word, pattern_of<ulonglong2>(seed, index));
                              wrong += different;
                              if (different)
                                  wrong_row = row;
                          });
    tell_wrong(args, wrong, blockIdx.x, blockIdx.y, wrong_row);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    weir_test_check_bulk(const __grid_constant__ weir_pattern_args args)
{
    check_by_bulk(args, blockIdx.z, gridDim.z);
}

/* Each piece is read both ways, by blocks that start together: of the parts, the
 * odd ones read by bulk copies. */
extern "C" __global__ void __launch_bounds__(THREADS)
    weir_test_check_both(const __grid_constant__ weir_pattern_args args)
{
    if (blockIdx.z % 2)
        check_by_bulk(args, blockIdx.z / 2, gridDim.z / 2);
    else
        check_by_loads(args, blockIdx.z / 2, gridDim.z / 2);
}
