/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CUDA_ABI_FACTS_H
#define WEIR_TESTS_CUDA_ABI_FACTS_H

/* Sizes, offsets and constants of the driver's interface, listed once and
 * compiled twice: with weir's declarations and with the toolkit's. */

struct fact {
    const char *name;
    unsigned long long value;
};

#define FACT(expression)                              \
    {                                                 \
#expression, (unsigned long long)(expression) \
    }
#define OFFSET(type, field) FACT(offsetof(type, field))

/* clang-format off */
#define FACTS                                                                                      \
    FACT(sizeof(CUdevice)), FACT(sizeof(CUdeviceptr)), FACT(sizeof(CUresult)),                     \
    FACT(sizeof(CUDA_MEMCPY2D)), FACT(sizeof(CUmemcpyAttributes)), FACT(sizeof(CUtensorMap)),      \
    FACT(_Alignof(CUtensorMap)), FACT(sizeof(CUstreamCaptureMode)),                                \
    OFFSET(CUDA_MEMCPY2D, srcMemoryType), OFFSET(CUDA_MEMCPY2D, srcHost),                          \
    OFFSET(CUDA_MEMCPY2D, srcDevice), OFFSET(CUDA_MEMCPY2D, srcPitch),                             \
    OFFSET(CUDA_MEMCPY2D, dstMemoryType), OFFSET(CUDA_MEMCPY2D, dstHost),                          \
    OFFSET(CUDA_MEMCPY2D, dstDevice), OFFSET(CUDA_MEMCPY2D, dstPitch),                             \
    OFFSET(CUDA_MEMCPY2D, WidthInBytes), OFFSET(CUDA_MEMCPY2D, Height),                            \
    OFFSET(CUmemcpyAttributes, srcAccessOrder), OFFSET(CUmemcpyAttributes, srcLocHint),            \
    OFFSET(CUmemcpyAttributes, dstLocHint), OFFSET(CUmemcpyAttributes, flags),                     \
    FACT(CUDA_ERROR_INVALID_VALUE), FACT(CUDA_ERROR_OUT_OF_MEMORY),                                \
    FACT(CUDA_ERROR_NOT_INITIALIZED), FACT(CUDA_ERROR_DEINITIALIZED),                              \
    FACT(CUDA_ERROR_NO_DEVICE), FACT(CUDA_ERROR_INVALID_DEVICE),                                   \
    FACT(CUDA_ERROR_INVALID_CONTEXT), FACT(CUDA_ERROR_NO_BINARY_FOR_GPU),                          \
    FACT(CUDA_ERROR_ECC_UNCORRECTABLE), FACT(CUDA_ERROR_NVLINK_UNCORRECTABLE),                     \
    FACT(CUDA_ERROR_INVALID_HANDLE), FACT(CUDA_ERROR_NOT_FOUND), FACT(CUDA_ERROR_NOT_READY),       \
    FACT(CUDA_ERROR_ILLEGAL_ADDRESS), FACT(CUDA_ERROR_LAUNCH_TIMEOUT),                             \
    FACT(CUDA_ERROR_CONTEXT_IS_DESTROYED), FACT(CUDA_ERROR_ASSERT),                                \
    FACT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),                                               \
    FACT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED), FACT(CUDA_ERROR_HARDWARE_STACK_ERROR),            \
    FACT(CUDA_ERROR_ILLEGAL_INSTRUCTION), FACT(CUDA_ERROR_MISALIGNED_ADDRESS),                     \
    FACT(CUDA_ERROR_INVALID_ADDRESS_SPACE), FACT(CUDA_ERROR_INVALID_PC),                           \
    FACT(CUDA_ERROR_LAUNCH_FAILED), FACT(CUDA_ERROR_NOT_PERMITTED),                                \
    FACT(CUDA_ERROR_NOT_SUPPORTED), FACT(CUDA_ERROR_MPS_CLIENT_TERMINATED),                        \
    FACT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), FACT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),      \
    FACT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION), FACT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),           \
    FACT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD), FACT(CUDA_ERROR_EXTERNAL_DEVICE),                \
    FACT(CUDA_ERROR_UNKNOWN), FACT(CU_GET_PROC_ADDRESS_SUCCESS),                                   \
    FACT(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),                                                    \
    FACT(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT), FACT(CU_GET_PROC_ADDRESS_LEGACY_STREAM),     \
    FACT(CU_DEVICE_ATTRIBUTE_MAX_PITCH), FACT(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),           \
    FACT(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),                                                  \
    FACT(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),                                            \
    FACT(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),                                            \
    FACT(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),                             \
    FACT(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),                        \
    FACT(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),                                   \
    FACT(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED),                                         \
    FACT(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID),                                                        \
    FACT(CU_MEMHOSTALLOC_PORTABLE), FACT(CU_MEMHOSTALLOC_DEVICEMAP),                               \
    FACT(CU_MEMHOSTREGISTER_PORTABLE), FACT(CU_MEMHOSTREGISTER_DEVICEMAP),                         \
    FACT(CU_STREAM_LEGACY), FACT(CU_STREAM_NON_BLOCKING), FACT(CU_EVENT_DISABLE_TIMING),           \
    FACT(CU_EVENT_WAIT_DEFAULT), FACT(CU_EVENT_WAIT_EXTERNAL), FACT(CU_STREAM_WAIT_VALUE_GEQ),     \
    FACT(CU_STREAM_WRITE_VALUE_DEFAULT), FACT(CU_STREAM_CAPTURE_STATUS_NONE),                      \
    FACT(CU_STREAM_CAPTURE_STATUS_ACTIVE), FACT(CU_STREAM_CAPTURE_STATUS_INVALIDATED),             \
    FACT(CU_STREAM_CAPTURE_MODE_GLOBAL), FACT(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),                \
    FACT(CU_STREAM_CAPTURE_MODE_RELAXED), FACT(CU_MEMORYTYPE_HOST), FACT(CU_MEMORYTYPE_DEVICE),    \
    FACT(CU_MEMORYTYPE_UNIFIED), FACT(CU_MEM_LOCATION_TYPE_INVALID),                               \
    FACT(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM), FACT(CU_LIBRARY_BINARY_IS_PRESERVED),                 \
    FACT(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), FACT(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),       \
    FACT(CU_FUNC_ATTRIBUTE_NUM_REGS), FACT(CU_FUNC_ATTRIBUTE_BINARY_VERSION),                      \
    FACT(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), FACT(CU_TENSOR_MAP_DATA_TYPE_UINT8),    \
    FACT(CU_TENSOR_MAP_DATA_TYPE_UINT64), FACT(CU_TENSOR_MAP_INTERLEAVE_NONE),                     \
    FACT(CU_TENSOR_MAP_SWIZZLE_NONE), FACT(CU_TENSOR_MAP_L2_PROMOTION_NONE),                       \
    FACT(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
/* clang-format on */

extern const struct fact toolkit_facts[];

#endif
