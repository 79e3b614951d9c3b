/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_kernels.h"

#include "base/log.h"
#include "transfer/gate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#if WEIR_HAVE_KERNELS
/* From nvcc and bin2c: for each kernel file the code of several GPUs and the
 * intermediate code for later ones; the driver picks. */
extern const unsigned long long weir_fatbin_tma[];
extern const unsigned long long weir_fatbin_vector[];
extern const unsigned long long weir_fatbin_gather_tma[];
extern const unsigned long long weir_fatbin_gather_vector[];
extern const unsigned long long weir_fatbin_expert[];
#define IMAGE(name) weir_fatbin_##name
#else
#define IMAGE(name) NULL
#endif

/* TMA: since compute capability 9.0, with dynamic shared memory. */
static const struct {
    const void *image;
    bool tma;
} files[WEIR_CUDA_LIBRARIES] = {
    { IMAGE(vector), false },    { IMAGE(tma), true },     { IMAGE(gather_vector), false },
    { IMAGE(gather_tma), true }, { IMAGE(expert), false },
};

#define DEFAULT_CTAS 2u
#define MAX_CTAS 65535u

static const struct {
    const char *name;
    uint32_t library;
} kernel_names[WEIR_KERNEL_COUNT] = {
    [WEIR_KERNEL_PAGES_TMA] = { "weir_pages_tma", 1 },
    [WEIR_KERNEL_ROWS_TMA] = { "weir_rows_tma", 1 },
    [WEIR_KERNEL_PAGES_VECTOR] = { "weir_pages_vector", 0 },
    [WEIR_KERNEL_ROWS_VECTOR] = { "weir_rows_vector", 0 },
    [WEIR_KERNEL_GATHER_TMA] = { "weir_gather_tma", 3 },
    [WEIR_KERNEL_GATHER_FEW_TMA] = { "weir_gather_few_tma", 3 },
    [WEIR_KERNEL_GATHER_VECTOR] = { "weir_gather_vector", 2 },
    [WEIR_KERNEL_GATHER_FEW_VECTOR] = { "weir_gather_few_vector", 2 },
    [WEIR_KERNEL_EXPERT_ENSURE] = { "weir_expert_ensure", 4 },
    [WEIR_KERNEL_EXPERT_RESET] = { "weir_expert_reset", 4 },
};

/* ---- Loading ------------------------------------------------------------- */

static int attribute(const struct weir_cuda_device *device, CUdevice_attribute which)
{
    int value = 0;
    return device->driver->cuDeviceGetAttribute(&value, which, device->ordinal) ? 0 : value;
}

/* All that launching needs; the driver before 12.0 has none of it. */
static bool driver_suffices(const struct weir_cuda_driver *d)
{
    return d->cuLibraryLoadData && d->cuLibraryUnload && d->cuLibraryGetKernel &&
           d->cuKernelGetFunction && d->cuKernelSetAttribute && d->cuLaunchKernel &&
           d->cuMemcpyHtoDAsync;
}

/* Loads now what would else be loaded by the first launch, which might be in a
 * capture or beside a kernel that waits. */
static CUresult load_kernel(struct weir_cuda_kernels *k, enum weir_cuda_kernel which)
{
    const struct weir_cuda_driver *d = k->device->driver;
    CUkernel kernel;
    CUresult result = d->cuLibraryGetKernel(&kernel, k->libraries[kernel_names[which].library],
                                            kernel_names[which].name);
    if (result == CUDA_SUCCESS && files[kernel_names[which].library].tma)
        result = d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         (int)k->shared_bytes, kernel, k->device->ordinal);
    return result ? result : d->cuKernelGetFunction(&k->functions[which], kernel);
}

static int load_library(struct weir_cuda_kernels *k, uint32_t library)
{
    const struct weir_cuda_driver *d = k->device->driver;
    CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
    void *yes = (void *)(uintptr_t)1;
    CUresult result = d->cuLibraryLoadData(&k->libraries[library], files[library].image, NULL, NULL,
                                           0, &preserved, &yes, 1);
    for (uint32_t i = 0; i < WEIR_KERNEL_COUNT && result == CUDA_SUCCESS; i++)
        if (kernel_names[i].library == library)
            result = load_kernel(k, (enum weir_cuda_kernel)i);
    return weir_cuda_result(k->device, "loading a kernel", result);
}

/* A kernel that does not load is done without, unless the device is lost. */
static void try_library(struct weir_cuda_kernels *k, uint32_t library)
{
    if (!files[library].image || load_library(k, library) == 0)
        return;
    for (uint32_t i = 0; i < WEIR_KERNEL_COUNT; i++)
        if (kernel_names[i].library == library)
            k->functions[i] = NULL;
}

static void load_all(struct weir_cuda_kernels *k)
{
    struct weir_cuda_device *device = k->device;
    uint32_t compute =
        (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
        (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    k->shared_bytes =
        (uint32_t)attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (!driver_suffices(device->driver) || !device->same_address || compute < 75)
        return;
    bool tma = compute >= 90 && weir_gate_ring(k->shared_bytes, &k->stages, &k->stage_bytes);
    for (uint32_t i = 0; i < WEIR_CUDA_LIBRARIES; i++)
        if (tma || !files[i].tma)
            try_library(k, i);
    if (k->functions[WEIR_KERNEL_PAGES_VECTOR])
        k->compute = compute;
    if (!k->functions[WEIR_KERNEL_PAGES_TMA])
        k->stages = 0;
}

int weir_cuda_kernels_create(struct weir_cuda_kernels **kernels, struct weir_cuda_device *device)
{
    struct weir_cuda_kernels *k = calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->device = device;
    load_all(k);
    if (atomic_load(&device->lost)) {
        weir_cuda_kernels_destroy(&k);
        return -EIO;
    }
    *kernels = k;
    return 0;
}

void weir_cuda_kernels_destroy(struct weir_cuda_kernels **kernels)
{
    struct weir_cuda_kernels *k = *kernels;
    *kernels = NULL;
    if (!k)
        return;
    for (uint32_t i = 0; i < WEIR_CUDA_LIBRARIES; i++)
        if (k->libraries[i])
            (void)k->device->driver->cuLibraryUnload(k->libraries[i]);
    free(k);
}

/* ---- Launching ----------------------------------------------------------- */

/* Pre: grid->ctas. */
static int tma_grid(const struct weir_cuda_kernels *k, const struct weir_launch *launch,
                    const char *what, struct weir_cuda_grid *grid)
{
    const weir_log *log = &k->device->base.log;
    uint32_t stages = launch->stages ? launch->stages : weir_gate_stages(k->stages, grid->ctas);
    uint32_t bytes = launch->stage_bytes ? launch->stage_bytes : k->stage_bytes;
    if (stages < WEIR_TMA_MIN_STAGES || stages > WEIR_TMA_MAX_STAGES)
        return weir_invalid(log, "%s: stages is %u, must be %u..%u", what, stages,
                            WEIR_TMA_MIN_STAGES, WEIR_TMA_MAX_STAGES);
    if (bytes < WEIR_TMA_MIN_STAGE_BYTES || bytes > WEIR_TMA_MAX_STAGE_BYTES ||
        bytes % WEIR_TMA_STAGE_ALIGN != 0)
        return weir_invalid(log, "%s: stage_bytes is %u, must be a multiple of %u in %u..%u", what,
                            bytes, WEIR_TMA_STAGE_ALIGN, WEIR_TMA_MIN_STAGE_BYTES,
                            WEIR_TMA_MAX_STAGE_BYTES);
    uint64_t shared = weir_gate_ring_bytes(stages, bytes);
    if (shared > k->shared_bytes)
        return weir_invalid(log, "%s: a ring of %u stages of %u bytes does not fit %u bytes", what,
                            stages, bytes, k->shared_bytes);
    grid->stage_bytes = bytes;
    grid->threads = 32 * stages;
    grid->shared_bytes = (uint32_t)shared;
    return 0;
}

static int vector_grid(const struct weir_cuda_kernels *k, const struct weir_launch *launch,
                       const char *what, struct weir_cuda_grid *grid)
{
    uint32_t threads = launch->threads ? launch->threads : WEIR_VECTOR_MAX_THREADS;
    if (threads % 32 != 0 || threads > WEIR_VECTOR_MAX_THREADS)
        return weir_invalid(&k->device->base.log,
                            "%s: threads is %u, must be a multiple of 32 up to %u", what, threads,
                            WEIR_VECTOR_MAX_THREADS);
    grid->stage_bytes = 0;
    grid->threads = threads;
    grid->shared_bytes = 0;
    return 0;
}

int weir_cuda_kernels_grid(const struct weir_cuda_kernels *kernels, enum weir_cuda_kernel tma,
                           enum weir_cuda_kernel vector, const struct weir_launch *launch,
                           const char *what, struct weir_cuda_grid *grid)
{
    const weir_log *log = &kernels->device->base.log;
    bool is_tma = launch->engine == WEIR_ENGINE_TMA;
    if (!is_tma && launch->engine != WEIR_ENGINE_VECTOR)
        return weir_invalid(log, "%s: engine is %d, must be tma or vector", what,
                            (int)launch->engine);
    grid->function = kernels->functions[is_tma ? tma : vector];
    if (!grid->function) {
        weir_log_line(log, WEIR_LOG_ERROR, "%s: no %s kernel for this gpu", what,
                      weir_transfer_engine_name(launch->engine));
        return -ENOTSUP;
    }
    grid->ctas = launch->ctas ? launch->ctas : DEFAULT_CTAS;
    if (grid->ctas > MAX_CTAS)
        return weir_invalid(log, "%s: ctas is %u, must be 1..%u", what, grid->ctas, MAX_CTAS);
    return is_tma ? tma_grid(kernels, launch, what, grid)
                  : vector_grid(kernels, launch, what, grid);
}

int weir_cuda_kernels_launch(const struct weir_cuda_kernels *kernels,
                             const struct weir_cuda_grid *grid, CUstream stream, void *args)
{
    void *parameters[] = { args };
    return weir_cuda_result(
        kernels->device, "cuLaunchKernel",
        kernels->device->driver->cuLaunchKernel(grid->function, grid->ctas, 1, 1, grid->threads, 1,
                                                1, grid->shared_bytes, stream, parameters, NULL));
}

int weir_cuda_kernels_upload(const struct weir_cuda_kernels *kernels, CUdeviceptr to,
                             const void *from, uint64_t bytes)
{
    struct weir_cuda_device *device = kernels->device;
    const struct weir_cuda_driver *d = device->driver;
    CUstream stream;
    int rc = weir_cuda_result(device, "cuStreamCreateWithPriority",
                              d->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    if (rc)
        return rc;
    rc = weir_cuda_result(device, "cuMemcpyHtoDAsync",
                          d->cuMemcpyHtoDAsync(to, from, bytes, stream));
    int ended = weir_cuda_result(device, "cuStreamSynchronize", d->cuStreamSynchronize(stream));
    (void)d->cuStreamDestroy(stream);
    return rc ? rc : ended;
}

/* ---- Boxes --------------------------------------------------------------- */

uint32_t weir_cuda_kernels_box_rows(uint32_t row_bytes, uint32_t divisor)
{
    if (row_bytes == 0 || row_bytes % 16 != 0 || row_bytes > WEIR_TMA_BOX_ROW_BYTES)
        return 0;
    uint32_t rows = 1;
    while (rows * 2 <= WEIR_TMA_BOX_ROWS && rows * 2 * row_bytes <= WEIR_TMA_BOX_BYTES &&
           divisor % (rows * 2) == 0)
        rows *= 2;
    /* The next box in a stage must begin at a multiple of 128, too. */
    return rows > 1 && rows * row_bytes % WEIR_TMA_STAGE_ALIGN == 0 ? rows : 0;
}

bool weir_cuda_kernels_encode(const struct weir_cuda_kernels *kernels, struct weir_tensor_map *map,
                              uint64_t base, uint32_t row_bytes, uint32_t n_layers,
                              uint64_t layer_stride, uint64_t n_rows, uint64_t row_stride,
                              uint32_t box_rows)
{
    const struct weir_cuda_driver *d = kernels->device->driver;
    if (!d->cuTensorMapEncodeTiled || box_rows == 0 || n_rows >= UINT64_C(1) << 31 ||
        row_stride >= UINT64_C(1) << 40 || layer_stride >= UINT64_C(1) << 40)
        return false;
    const cuuint64_t dims[] = { row_bytes / 8, n_layers, n_rows };
    const cuuint64_t strides[] = { layer_stride, row_stride };
    const cuuint32_t box[] = { row_bytes / 8, 1, box_rows };
    const cuuint32_t steps[] = { 1, 1, 1 };
    CUtensorMap made = { .opaque = { 0 } };
    if (d->cuTensorMapEncodeTiled(&made, CU_TENSOR_MAP_DATA_TYPE_UINT64, 3, (void *)(uintptr_t)base,
                                  dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return false;
    memcpy(map, &made, sizeof *map);
    return true;
}
