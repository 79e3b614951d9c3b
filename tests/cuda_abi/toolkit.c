/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <stddef.h>

#include "facts.h"

/* The driver's table once more, with the toolkit's types for weir's. */
#define WEIR_DEVICE_CUDA_TYPES_H
#include "device/cuda_driver.h"

#define SAME_PROTOTYPE(name, version, need, parameters)                                            \
    _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##version,                           \
                                                __typeof__(((struct weir_cuda_driver *)0)->name)), \
                   #name " is not the toolkit's of version " #version);
WEIR_CUDA_FUNCTIONS(SAME_PROTOTYPE)

const struct fact toolkit_facts[] = { FACTS };
