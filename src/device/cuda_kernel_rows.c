/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_kernels.h"

#include "transfer/copy_rows.h"

/* Rows by index: no table, no list; all that the kernel needs travels with the
 * launch, so it can be captured. */

/* Boxes load strided rows of one layer's host buffer, where its size is known. */
static uint32_t make_maps(const struct weir_cuda_kernels *kernels,
                          const weir_copy_rows_params *params, struct weir_rows_args *args)
{
    const weir_copy_side *from = &params->from;
    if (params->direction != WEIR_COPY_HOST_TO_DEVICE || from->n_rows == 0 ||
        from->stride == params->row_bytes)
        return 0;
    uint32_t rows = weir_cuda_kernels_box_rows(params->row_bytes, 0);
    for (uint32_t i = 0; i < params->n_buffers; i++)
        if (!weir_cuda_kernels_encode(kernels, &args->maps[i], from->buffers[i], params->row_bytes,
                                      1, from->stride, from->n_rows, from->stride, rows))
            return 0;
    return rows;
}

int weir_cuda_kernels_rows(struct weir_cuda_kernels *kernels, CUstream stream,
                           const weir_copy_rows_params *params, bool tables)
{
    weir_transfer_engine engine = weir_copy_rows_engine(
        params, tables, kernels->compute, kernels->stages ? kernels->shared_bytes : 0);
    const struct weir_launch launch = { engine, params->ctas, params->threads, params->stages,
                                        params->stage_bytes };
    struct weir_cuda_grid grid;
    int rc = weir_cuda_kernels_grid(kernels, WEIR_KERNEL_ROWS_TMA, WEIR_KERNEL_ROWS_VECTOR, &launch,
                                    "copy rows", &grid);
    if (rc)
        return rc;
    struct weir_rows_args args = {
        .to = { params->to.buffers[0], params->to.buffers[1] },
        .from = { params->from.buffers[0], params->from.buffers[1] },
        .to_stride = params->to.stride,
        .from_stride = params->from.stride,
        .to_rows = params->to.indices,
        .from_rows = params->from.indices,
        .row_bytes = params->row_bytes,
        .n_rows = params->n_rows,
        .n_buffers = params->n_buffers,
        .n_layers = tables ? params->n_layers : 1,
        .tables = tables,
        .wide = params->index_bytes == 8,
        .stage_bytes = grid.stage_bytes,
    };
    if (engine == WEIR_ENGINE_TMA && !tables)
        args.box_rows = make_maps(kernels, params, &args);
    return weir_cuda_kernels_launch(kernels, &grid, stream, &args);
}
