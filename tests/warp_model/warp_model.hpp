/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_WARP_MODEL_HPP
#define WEIR_TESTS_WARP_MODEL_HPP

/* The names of kernels/ptx.cuh, on the model. */

#include <cstdint>

#define WEIR_DEVICE [[maybe_unused]] static
#define WEIR_MEMBER
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define gridDim (warp_model::here().grid)
#define blockDim (warp_model::here().block)
#define blockIdx (warp_model::here().block_index)
#define threadIdx (warp_model::here().thread_index)

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

namespace warp_model
{
struct Size {
    uint32_t x;
};
struct Here {
    Size grid, block, block_index, thread_index;
};
const Here &here();
/* Every lane gives a value and gets all 32. */
const uint64_t *exchange(uint64_t value);
uint8_t *shared();
} // namespace warp_model

WEIR_DEVICE uint32_t lane_id()
{
    return threadIdx.x % 32;
}
WEIR_DEVICE void warp_sync()
{
    warp_model::exchange(0);
}
WEIR_DEVICE uint32_t warp_ballot(bool vote)
{
    const uint64_t *votes = warp_model::exchange(vote);
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 32; i++)
        mask |= static_cast<uint32_t>(votes[i]) << i;
    return mask;
}
WEIR_DEVICE uint64_t warp_up(uint64_t value)
{
    const uint64_t *values = warp_model::exchange(value);
    return lane_id() == 0 ? value : values[lane_id() - 1];
}
WEIR_DEVICE uint64_t warp_get(uint64_t value, uint32_t lane)
{
    return warp_model::exchange(value)[lane];
}
WEIR_DEVICE uint32_t high_product(uint32_t a, uint32_t b)
{
    return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
WEIR_DEVICE uint64_t high_product(uint64_t a, uint64_t b)
{
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
WEIR_DEVICE uint32_t first_set(uint32_t bits)
{
    return static_cast<uint32_t>(__builtin_ffs(static_cast<int>(bits)));
}
WEIR_DEVICE uint32_t popcount(uint32_t bits)
{
    return static_cast<uint32_t>(__builtin_popcount(bits));
}
void cta_sync();
WEIR_DEVICE void shared_or(uint32_t *word, uint32_t bits)
{
    *word |= bits;
}
WEIR_DEVICE uint8_t *dynamic_shared()
{
    return warp_model::shared();
}
WEIR_DEVICE uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(static_cast<const uint8_t *>(p) - warp_model::shared());
}

void barrier_init(uint32_t barrier);
void barrier_init_fence();
void barrier_arm(uint32_t barrier, uint32_t bytes);
void barrier_wait(uint32_t barrier, uint32_t parity);
void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier);
void bulk_load_box(uint32_t to, const void *map, uint32_t layer, uint32_t row, uint32_t barrier);
void bulk_store(uint64_t to, uint32_t from, uint32_t bytes);
void bulk_commit();
void bulk_wait_group(uint32_t newest, bool read);
void map_acquire(const void *map);
bool arrive_last(uint32_t *counter, uint32_t last);
void store_release(uint32_t *word, uint32_t value);
WEIR_DEVICE uint32_t counter_add(uint32_t *counter, uint32_t n)
{
    return *counter += n;
}
WEIR_DEVICE uint32_t counter_load(const uint32_t *counter)
{
    return *counter;
}
WEIR_DEVICE void fence_system()
{
}

template <int N> void bulk_wait_read()
{
    bulk_wait_group(N, true);
}
template <int N> void bulk_wait()
{
    bulk_wait_group(N, false);
}
template <class T> T stream_load(const T *from)
{
    return *from;
}
template <class T> void stream_store(T *to, T value)
{
    *to = value;
}

#endif
