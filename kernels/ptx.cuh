/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_PTX_CUH
#define WEIR_KERNELS_PTX_CUH

/* What the kernels ask of the machine, one function an instruction. Addresses
 * in shared memory are 32 bits, all others 64. A host compiler takes the same
 * names from the tests, which run the kernels' own code on a warp made of
 * coroutines. */

#ifndef __CUDACC__
#include <warp_model.hpp>
#else

#include <cstdint>

#define WEIR_DEVICE static __device__ __forceinline__
#define WEIR_MEMBER __device__ __forceinline__

/* ---- Warps --------------------------------------------------------------- */

#define WEIR_FULL_WARP 0xffffffffu

WEIR_DEVICE uint32_t lane_id()
{
    return threadIdx.x % 32;
}

WEIR_DEVICE void warp_sync()
{
    __syncwarp();
}

WEIR_DEVICE uint32_t warp_ballot(bool vote)
{
    return __ballot_sync(WEIR_FULL_WARP, vote);
}

/* The value of the lane before; lane 0 keeps its own. */
WEIR_DEVICE uint64_t warp_up(uint64_t value)
{
    return __shfl_up_sync(WEIR_FULL_WARP, value, 1);
}

WEIR_DEVICE uint64_t warp_get(uint64_t value, uint32_t lane)
{
    return __shfl_sync(WEIR_FULL_WARP, value, lane);
}

WEIR_DEVICE uint32_t high_product(uint32_t a, uint32_t b)
{
    return __umulhi(a, b);
}

WEIR_DEVICE uint64_t high_product(uint64_t a, uint64_t b)
{
    return __umul64hi(a, b);
}

/* 1 + the index of the lowest set bit; 0 if there is none. */
WEIR_DEVICE uint32_t first_set(uint32_t bits)
{
    return static_cast<uint32_t>(__ffs(static_cast<int>(bits)));
}

WEIR_DEVICE uint32_t popcount(uint32_t bits)
{
    return static_cast<uint32_t>(__popc(bits));
}

/* ---- Blocks -------------------------------------------------------------- */

/* All threads of the block meet; what they wrote before, all see behind. */
WEIR_DEVICE void cta_sync()
{
    __syncthreads();
}

WEIR_DEVICE void shared_or(uint32_t *word, uint32_t bits)
{
    atomicOr(word, bits);
}

/* ---- Shared memory and barriers ------------------------------------------ */

WEIR_DEVICE uint8_t *dynamic_shared()
{
    extern __shared__ __align__(1024) uint8_t weir_dynamic_shared[];
    return weir_dynamic_shared;
}

WEIR_DEVICE uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

#if __CUDA_ARCH__ >= 900

WEIR_DEVICE void barrier_init(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/* Makes initialised barriers known to the engine that completes on them. */
WEIR_DEVICE void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The barrier's one arrival: the phase ends when `bytes` more have come. */
WEIR_DEVICE void barrier_arm(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

WEIR_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- Bulk copies --------------------------------------------------------- */

/* `.shared::cta`, never `.shared::cluster`: on some chips the latter brings a
 * system call whose stack costs gigabytes of device memory. */
WEIR_DEVICE void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* A box of the map, from its first row on, always whole. */
WEIR_DEVICE void bulk_load_box(uint32_t to, const void *map, uint32_t layer, uint32_t row,
                               uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(layer), "r"(row), "r"(barrier)
                 : "memory");
}

WEIR_DEVICE void bulk_store(uint64_t to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

WEIR_DEVICE void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* All but the newest N groups of this thread have read their source … */
template <int N> WEIR_DEVICE void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* … or have been written, for this thread to see. */
template <int N> WEIR_DEVICE void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* A map in global memory, before this CTA uses it. */
WEIR_DEVICE void map_acquire(const void *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}

#endif

/* ---- Memory order -------------------------------------------------------- */

/* Counts to `last` and starts over: true for the one that found `last`. Releases
 * what this thread has seen, acquires what those before it released. */
WEIR_DEVICE bool arrive_last(uint32_t *counter, uint32_t last)
{
    uint32_t before;
    asm volatile("atom.acq_rel.sys.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(last)
                 : "memory");
    return before == last;
}

WEIR_DEVICE void store_release(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

WEIR_DEVICE uint32_t counter_add(uint32_t *counter, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(n)
                 : "memory");
    return before + n;
}

WEIR_DEVICE uint32_t counter_load(const uint32_t *counter)
{
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

WEIR_DEVICE void fence_system()
{
    asm volatile("fence.sc.sys;" ::: "memory");
}

/* ---- Streaming access: read once, written once ---------------------------- */

template <class T> WEIR_DEVICE T stream_load(const T *from)
{
    return __ldcs(from);
}

template <class T> WEIR_DEVICE void stream_store(T *to, T value)
{
    __stcs(to, value);
}

#endif
#endif
