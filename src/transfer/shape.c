/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/shape.h>

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const char *const layout_names[] = {
    [WEIR_HOST_SEGMENTED] = "segmented",
    [WEIR_HOST_LAYER_FIRST] = "layer_first",
    [WEIR_HOST_PAGE_FIRST] = "page_first",
    [WEIR_HOST_PAGE_FIRST_DIRECT] = "page_first_direct",
};

enum {
    N_LAYOUTS = sizeof layout_names / sizeof *layout_names
};

const char *weir_host_layout_name(weir_host_layout layout)
{
    return (unsigned)layout < N_LAYOUTS ? layout_names[layout] : NULL;
}

int weir_host_layout_parse(const char *name, weir_host_layout *layout)
{
    if (!name || !layout)
        return -EINVAL;
    for (unsigned i = 0; i < N_LAYOUTS; i++) {
        if (strcmp(name, layout_names[i]) == 0) {
            *layout = (weir_host_layout)i;
            return 0;
        }
    }
    return -EINVAL;
}

static int check_layers(const weir_shape *shape, uint32_t index, const weir_log *log)
{
    const weir_tensor *t = &shape->tensors[index];
    if (!t->layers && t->n_layers)
        return weir_invalid(log, "tensors[%u].layers: must not be NULL with n_layers %u", index,
                            t->n_layers);
    if (t->layers && (t->n_layers == 0 || t->n_layers > shape->n_layers))
        return weir_invalid(log, "tensors[%u].n_layers is %u: must be 1..%u", index, t->n_layers,
                            shape->n_layers);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        if (t->layers[i] >= shape->n_layers)
            return weir_invalid(log, "tensors[%u].layers[%u] is %u: must be below n_layers %u",
                                index, i, t->layers[i], shape->n_layers);
        if (i > 0 && t->layers[i] <= t->layers[i - 1])
            return weir_invalid(log, "tensors[%u].layers[%u] is %u: must be above the %u before it",
                                index, i, t->layers[i], t->layers[i - 1]);
    }
    return 0;
}

static int check_tensor(const weir_shape *shape, uint32_t index, const weir_log *log)
{
    const weir_tensor *t = &shape->tensors[index];
    if (t->page_bytes == 0)
        return weir_invalid(log, "tensors[%u].page_bytes is 0: must be 1 or more", index);
    if (t->row_bytes > WEIR_MAX_ROW_BYTES)
        return weir_invalid(log, "tensors[%u].row_bytes is %u: must be at most %u", index,
                            t->row_bytes, WEIR_MAX_ROW_BYTES);
    uint64_t rows_bytes = (uint64_t)t->row_bytes * shape->page_tokens;
    if (t->row_bytes && t->page_bytes != rows_bytes)
        return weir_invalid(log,
                            "tensors[%u].page_bytes is %" PRIu64 ": must be row_bytes %u * "
                            "page_tokens %u",
                            index, t->page_bytes, t->row_bytes, shape->page_tokens);
    return check_layers(shape, index, log);
}

int weir_shape_page_bytes(const weir_shape *shape, const weir_log *log, uint64_t *bytes)
{
    if (!shape || !bytes)
        return weir_invalid(log, "%s: must not be NULL", shape ? "bytes" : "shape");
    if (shape->page_tokens == 0 || shape->page_tokens > WEIR_MAX_PAGE_TOKENS)
        return weir_invalid(log, "page_tokens is %u: must be 1..%u", shape->page_tokens,
                            WEIR_MAX_PAGE_TOKENS);
    if (shape->n_layers == 0 || shape->n_layers > WEIR_MAX_LAYERS)
        return weir_invalid(log, "n_layers is %u: must be 1..%u", shape->n_layers, WEIR_MAX_LAYERS);
    if (shape->n_tensors == 0 || shape->n_tensors > WEIR_MAX_TENSORS)
        return weir_invalid(log, "n_tensors is %u: must be 1..%u", shape->n_tensors,
                            WEIR_MAX_TENSORS);
    if (!shape->tensors)
        return weir_invalid(log, "tensors: must not be NULL");

    uint64_t total = 0;
    for (uint32_t i = 0; i < shape->n_tensors; i++) {
        int rc = check_tensor(shape, i, log);
        if (rc)
            return rc;
        const weir_tensor *t = &shape->tensors[i];
        uint64_t all_layers;
        if (__builtin_mul_overflow(t->page_bytes, t->layers ? t->n_layers : shape->n_layers,
                                   &all_layers) ||
            __builtin_add_overflow(total, all_layers, &total))
            return weir_invalid(log,
                                "tensors[%u].page_bytes is %" PRIu64 ": the bytes of a page over "
                                "all tensors and layers must be below 2^64",
                                i, t->page_bytes);
    }
    *bytes = total;
    return 0;
}
