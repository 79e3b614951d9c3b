/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

struct page_groups pages_groups(uint32_t rank, uint32_t n_ranks)
{
    uint32_t n = N_GROUPS / n_ranks;
    return (struct page_groups){ rank * n, n };
}

weir_shape pages_shape(struct page_groups groups, weir_tensor tensors[N_PAGE_TENSORS])
{
    static const char *const names[] = { [PAGE_KEYS] = "keys", [PAGE_VALUES] = "values" };
    uint32_t row_bytes = groups.n * HEAD_DIM * (uint32_t)sizeof(float);
    for (uint32_t t = 0; t < N_PAGE_TENSORS; t++)
        tensors[t] = (weir_tensor){ .name = names[t],
                                    .page_bytes = (uint64_t)row_bytes * PAGE_TOKENS,
                                    .row_bytes = row_bytes };
    return (weir_shape){ .page_tokens = PAGE_TOKENS,
                         .n_layers = N_LAYERS,
                         .n_tensors = N_PAGE_TENSORS,
                         .tensors = tensors };
}

void pages_view(struct page_view *view, const weir_rank *rank, enum page_tensor tensor,
                uint32_t layer, struct page_groups groups, uint32_t group,
                const struct plan_part *part)
{
    view->row_floats = groups.n * HEAD_DIM;
    for (uint32_t i = 0; i < part->n_pages; i++) {
        weir_device_page page = { part->pages[i] };
        uint64_t address = weir_rank_device_address(rank, tensor, layer, page);
        view->pages[i] = (float *)(uintptr_t)address + (size_t)(group - groups.first) * HEAD_DIM;
    }
}

float *pages_row(const struct page_view *view, uint32_t position)
{
    return view->pages[position / PAGE_TOKENS] +
           (size_t)(position % PAGE_TOKENS) * view->row_floats;
}

const float *pages_row_of(const void *view, uint32_t position)
{
    return pages_row(view, position);
}

size_t pages_accesses(const weir_rank *rank, uint32_t layer, const struct plan *plan,
                      weir_cpu_access accesses[MAX_ACCESSES])
{
    uint32_t pool = weir_rank_cpu_pool(rank);
    size_t n = 0;
    for (uint32_t p = 0; p < plan->n_parts; p++) {
        const struct plan_part *part = &plan->parts[p];
        uint32_t first_written = plan->rows[part->first_row].input.position / PAGE_TOKENS;
        for (uint32_t i = 0; i < part->n_pages; i++)
            for (uint16_t tensor = 0; tensor < N_PAGE_TENSORS; tensor++)
                accesses[n++] = (weir_cpu_access){ .pool = pool,
                                                   .page = part->pages[i],
                                                   .tensor = tensor,
                                                   .layer = (uint16_t)layer,
                                                   .write = i >= first_written };
    }
    return n;
}
