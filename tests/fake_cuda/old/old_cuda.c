/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_types.h"

/* A driver from before CUDA 12: without cuGetProcAddress_v2. */

__attribute__((visibility("default"))) CUresult cuInit(unsigned int flags);

__attribute__((visibility("default"))) CUresult cuInit(unsigned int flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}
