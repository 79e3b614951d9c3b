/* SPDX-License-Identifier: Apache-2.0 */

/* The gather through registers: any bytes, any GPU. Each warp of the grid is a
 * worker; see gather.cuh. */

#include "gather.cuh"

template <class Args> WEIR_DEVICE void gather_by_vector(const Args &args)
{
    gather_through_registers(args, blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
}

extern "C" __global__ void __launch_bounds__(WEIR_VECTOR_MAX_THREADS, 1)
    weir_gather_vector(const __grid_constant__ weir_gather_args args)
{
    gather_by_vector(args);
}

extern "C" __global__ void __launch_bounds__(WEIR_VECTOR_MAX_THREADS, 1)
    weir_gather_few_vector(const __grid_constant__ weir_gather_few_args args)
{
    gather_by_vector(args);
}
