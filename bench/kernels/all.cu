/* SPDX-License-Identifier: Apache-2.0 */

/* All kernels of weir-bench as one image. */

#include "gather_baseline.cu"
#include "gemm.cu"
#include "load.cu"
#include "pattern.cu"
#include "register_copy.cu"
