/* SPDX-License-Identifier: Apache-2.0 */
#include "gather/gather.h"

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

void weir_gather_params_init(weir_gather_params *params)
{
    if (params)
        *params = (weir_gather_params){ .struct_size = sizeof *params, .index_bytes = 4 };
}

/* ---- Life ---------------------------------------------------------------- */

static int register_rows(struct weir_gather *gather)
{
    weir_device *device = gather->device;
    uint64_t most = 0;
    for (uint32_t i = 0; i < gather->params.n_banks; i++) {
        uint64_t rows = gather->banks[i].dst_rows;
        if (rows == 0)
            return 0;
        most = rows > most ? rows : most;
    }
    if (most * gather->params.n_banks > WEIR_GATHER_RACE_ROWS)
        return 0;
    return device->ops->pool_register(device, (uint32_t)most, gather->params.n_banks, 1,
                                      &gather->cpu_pool);
}

static void stop(struct weir_gather *gather)
{
    weir_device *device = gather->device;
    device->ops->pool_unregister(device, gather->cpu_pool);
    device->ops->words_free(device, gather->skipped);
}

/* The device has all that the gather needs, or nothing. */
static int start(struct weir_gather *gather)
{
    weir_device *device = gather->device;
    int rc = device->ops->words_alloc(device, 1, &gather->skipped);
    if (rc)
        return rc;
    rc = register_rows(gather);
    if (!rc)
        rc = device->ops->gather_prepare(device, gather, &gather->state);
    if (rc)
        stop(gather);
    return rc;
}

int weir_gather_create(weir_gather **gather, weir_device *device, const weir_gather_params *params)
{
    if (!device)
        return -EINVAL;
    if (!gather || !params)
        return weir_invalid(&device->log, "gather: %s is NULL", gather ? "params" : "gather");
    if (params->struct_size != sizeof *params)
        return weir_invalid(&device->log,
                            "gather: struct_size is %u, not %zu: use weir_gather_params_init",
                            params->struct_size, sizeof *params);
    struct weir_gather *made = calloc(1, sizeof *made);
    if (!made)
        return -ENOMEM;
    made->device = device;
    made->params = *params;
    made->params.banks = NULL;
    made->log = params->log.write ? params->log : device->log;
    int rc = weir_gather_check(params, &made->log, made->banks);
    if (!rc)
        rc = start(made);
    if (rc) {
        free(made);
        return rc;
    }
    atomic_fetch_add(&device->users, 1);
    *gather = made;
    return 0;
}

void weir_gather_destroy(weir_gather **gather)
{
    if (!gather || !*gather)
        return;
    struct weir_gather *g = *gather;
    *gather = NULL;
    g->device->ops->gather_release(g->device, g->state);
    stop(g);
    atomic_fetch_sub(&g->device->users, 1);
    free(g);
}

/* ---- Launching ----------------------------------------------------------- */

static int check_list(const struct weir_gather *gather, const char *name, const void *list,
                      uint32_t bytes)
{
    if (!list || (uintptr_t)list % bytes != 0)
        return weir_invalid(&gather->log, "gather: %s is %p, must be a multiple of %u", name, list,
                            bytes);
    return 0;
}

static int set_bases(const struct weir_gather *gather, const weir_bank_bases *bases,
                     weir_bank_bases *out)
{
    for (uint32_t i = 0; i < gather->params.n_banks; i++) {
        const weir_bank *bank = &gather->banks[i];
        out[i] = bases ? bases[i] : (weir_bank_bases){ bank->dst, bank->src };
        if (out[i].dst == 0 || out[i].src == 0)
            return weir_invalid(&gather->log, "gather: bank %u: %s is 0", i,
                                out[i].dst ? "src" : "dst");
        if (bank->dst_row_stride * bank->dst_rows > UINT64_MAX - out[i].dst ||
            bank->src_row_stride * bank->src_rows > UINT64_MAX - out[i].src)
            return weir_invalid(&gather->log,
                                "gather: bank %u at 0x%" PRIx64 " and 0x%" PRIx64
                                " ends beyond all addresses",
                                i, out[i].dst, out[i].src);
    }
    return 0;
}

int weir_gather_launch(weir_gather *gather, const weir_gather_rows *rows,
                       const weir_bank_bases *bases, weir_stream *stream)
{
    if (!gather)
        return -EINVAL;
    if (!rows || !stream)
        return weir_invalid(&gather->log, "gather: %s is NULL", rows ? "stream" : "rows");
    struct weir_gather_call call;
    call.gather = gather;
    call.rows = *rows;
    int rc = check_list(gather, "dst_rows", rows->dst_rows, gather->params.index_bytes);
    if (!rc)
        rc = check_list(gather, "src_rows", rows->src_rows, gather->params.index_bytes);
    if (!rc && rows->count)
        rc = check_list(gather, "count", rows->count, sizeof *rows->count);
    if (!rc)
        rc = set_bases(gather, bases, call.bases);
    return rc ? rc : gather->device->ops->gather_launch(gather->device, stream, &call);
}

uint32_t weir_gather_cpu_pool(const weir_gather *gather)
{
    return gather ? gather->cpu_pool : 0;
}

int weir_gather_errors(weir_gather *gather, uint32_t *n)
{
    if (!gather)
        return -EINVAL;
    if (!n)
        return weir_invalid(&gather->log, "gather: n is NULL");
    *n = gather->device->ops->word_load(gather->device, gather->skipped);
    return 0;
}
