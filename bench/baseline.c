/* SPDX-License-Identifier: Apache-2.0 */
#include "baseline.h"

#include <weir/cpu_device.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weir_bench_baseline {
    struct weir_bench_rig *rig;
    uint32_t ctas;
    uint32_t n_rows;
    uint32_t launches;                 /* a layer: two tensors in each */
    int64_t *rows;                     /* the host's [n_rows], then the device's */
    uint64_t uploaded;                 /* the same where kernels read it */
    struct weir_bench_rows_args *args; /* [direction][layer][launch] */
};

static struct weir_bench_rows_args *args_of(struct weir_bench_baseline *baseline,
                                            enum weir_direction direction, uint32_t layer)
{
    size_t n_layers = baseline->rig->layout.n_layers;
    return &baseline->args[(direction * n_layers + layer) * baseline->launches];
}

/* ---- Opening and closing -------------------------------------------------- */

static int make_rows(struct weir_bench_baseline *baseline)
{
    const struct weir_bench_rig *rig = baseline->rig;
    const struct weir_bench_layout *layout = &rig->layout;
    uint64_t first = weir_geometry_host(rig->rank->geometry, 0, 0, (weir_host_page){ 1 }, 0);
    int64_t *host = baseline->rows;
    int64_t *device = baseline->rows + baseline->n_rows;
    for (uint32_t i = 0; i < layout->n_pages; i++)
        for (uint32_t token = 0; token < layout->page_tokens; token++) {
            uint64_t offset =
                weir_geometry_host(rig->rank->geometry, 0, 0, rig->moves[i].host, token) - first;
            if (offset % layout->row_bytes)
                return -ENOTSUP;
            *host++ = (int64_t)(offset / layout->row_bytes);
            *device++ = (int64_t)rig->moves[i].device.id * layout->page_tokens + token;
        }
    return 0;
}

static int upload_rows(struct weir_bench_baseline *baseline)
{
    struct weir_bench_device *device = baseline->rig->device;
    uint64_t bytes = 2 * (uint64_t)baseline->n_rows * sizeof *baseline->rows;
    if (!device->gpu) {
        baseline->uploaded = (uintptr_t)baseline->rows;
        return 0;
    }
    int rc = device->ops->memory_alloc(device->device, bytes, &baseline->uploaded);
    if (!rc)
        rc = weir_bench_gpu_copy(device->gpu, device->stream, baseline->uploaded,
                                 (uintptr_t)baseline->rows, bytes);
    return rc ? rc : device->ops->stream_synchronize(device->device, device->stream);
}

/* Where kernels find the host's pool. */
static int alias_of(const struct weir_bench_rig *rig, uint64_t host, uint64_t *alias)
{
    if (!rig->device->gpu) {
        *alias = host;
        return 0;
    }
    struct weir_cuda_device *device = rig->device->gpu->device;
    CUdeviceptr address;
    CUstreamCaptureMode mode;
    int rc = weir_cuda_enter(device, &mode);
    if (rc)
        return rc;
    rc = weir_cuda_alias(device, host, rig->layout.row_bytes, &address);
    weir_cuda_leave(device, mode);
    *alias = address;
    return rc;
}

static int make_args(struct weir_bench_baseline *baseline, uint32_t layer, uint32_t tensor)
{
    const struct weir_bench_rig *rig = baseline->rig;
    const struct weir_geometry *geometry = rig->rank->geometry;
    const int64_t *rows = (const int64_t *)(uintptr_t)baseline->uploaded;
    uint64_t host;
    int rc =
        alias_of(rig, weir_geometry_host(geometry, tensor, layer, (weir_host_page){ 1 }, 0), &host);
    if (rc)
        return rc;
    uint64_t device = weir_geometry_device(geometry, tensor, layer, (weir_device_page){ 0 });
    for (int direction = WEIR_LOAD; direction <= WEIR_WRITE_BACK; direction++) {
        bool load = direction == WEIR_LOAD;
        struct weir_bench_rows_args *args =
            &args_of(baseline, (enum weir_direction)direction, layer)[tensor / 2];
        args->to[tensor % 2] = load ? device : host;
        args->from[tensor % 2] = load ? host : device;
        args->to_rows = rows + (load ? baseline->n_rows : 0);
        args->from_rows = rows + (load ? 0 : baseline->n_rows);
        args->n_rows = baseline->n_rows;
        args->row_bytes = rig->layout.row_bytes;
        args->n_buffers = tensor % 2 + 1;
    }
    return 0;
}

static int open_parts(struct weir_bench_baseline *baseline)
{
    const struct weir_bench_layout *layout = &baseline->rig->layout;
    if (layout->row_bytes % WEIR_BENCH_ROW_STEP)
        return -ENOTSUP;
    baseline->n_rows = layout->n_pages * layout->page_tokens;
    baseline->launches = (layout->n_tensors + 1) / 2;
    baseline->rows = calloc(2 * (size_t)baseline->n_rows, sizeof *baseline->rows);
    baseline->args =
        calloc(2 * (size_t)layout->n_layers * baseline->launches, sizeof *baseline->args);
    if (!baseline->rows || !baseline->args)
        return -ENOMEM;
    int rc = make_rows(baseline);
    if (!rc)
        rc = upload_rows(baseline);
    for (uint32_t layer = 0; layer < layout->n_layers && !rc; layer++)
        for (uint32_t tensor = 0; tensor < layout->n_tensors && !rc; tensor++)
            rc = make_args(baseline, layer, tensor);
    return rc;
}

int weir_bench_baseline_open(struct weir_bench_baseline **baseline, struct weir_bench_rig *rig,
                             uint32_t ctas)
{
    struct weir_bench_baseline *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->rig = rig;
    made->ctas = ctas;
    int rc = open_parts(made);
    if (rc == -ENOTSUP)
        snprintf(rig->device->reason, sizeof rig->device->reason,
                 "rows must be multiples of %u bytes, whole rows apart", WEIR_BENCH_ROW_STEP);
    if (rc)
        weir_bench_baseline_close(&made);
    else
        *baseline = made;
    return rc;
}

void weir_bench_baseline_close(struct weir_bench_baseline **baseline)
{
    struct weir_bench_baseline *closed = *baseline;
    if (!closed)
        return;
    struct weir_bench_device *device = closed->rig->device;
    if (device->gpu && closed->uploaded)
        device->ops->memory_free(device->device, closed->uploaded);
    free(closed->rows);
    free(closed->args);
    free(closed);
    *baseline = NULL;
}

/* ---- Copying -------------------------------------------------------------- */

static void copy_on_cpu(void *arg)
{
    const struct weir_bench_rows_args *args = arg;
    for (uint32_t i = 0; i < args->n_rows; i++)
        for (uint32_t b = 0; b < args->n_buffers; b++)
            memcpy((char *)(uintptr_t)args->to[b] + args->to_rows[i] * args->row_bytes,
                   (const char *)(uintptr_t)args->from[b] + args->from_rows[i] * args->row_bytes,
                   args->row_bytes);
}

int weir_bench_baseline_copy(struct weir_bench_baseline *baseline, enum weir_direction direction,
                             uint32_t layer, weir_stream *stream)
{
    struct weir_bench_device *device = baseline->rig->device;
    int rc = 0;
    for (uint32_t i = 0; i < baseline->launches && !rc; i++) {
        struct weir_bench_rows_args *args = &args_of(baseline, direction, layer)[i];
        void *parameters[] = { args };
        rc = device->gpu
                 ? weir_bench_gpu_run(device->gpu, stream, WEIR_BENCH_REGISTER_COPY, baseline->ctas,
                                      1, WEIR_BENCH_ROWS_THREADS, 0, parameters)
                 : weir_cpu_launch(device->device, stream, copy_on_cpu, args, NULL, 0);
    }
    return rc;
}

int weir_bench_baseline_time(struct weir_bench_baseline *baseline, enum weir_direction direction,
                             uint32_t n, double *seconds)
{
    struct weir_bench_device *device = baseline->rig->device;
    uint32_t n_layers = baseline->rig->layout.n_layers;
    double start = weir_bench_now();
    int rc = 0;
    for (uint32_t i = 0; i < n * n_layers && !rc; i++)
        rc = weir_bench_baseline_copy(baseline, direction, i % n_layers, device->side);
    if (!rc)
        rc = weir_bench_mark(device, device->side);
    if (!rc)
        rc = weir_bench_wait(device, device->side);
    *seconds = (weir_bench_now() - start) / n;
    return rc;
}
