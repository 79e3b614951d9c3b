/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict.h"

#include <string.h>

static const weir_evict_policy *const policies[] = {
    &weir_evict_lru, &weir_evict_slru, &weir_evict_lfu,      &weir_evict_fifo,
    &weir_evict_mru, &weir_evict_filo, &weir_evict_priority, &weir_evict_cost,
};

const weir_evict_policy *weir_evict_policy_at(size_t i)
{
    return i < sizeof policies / sizeof *policies ? policies[i] : NULL;
}

const weir_evict_policy *weir_evict_policy_find(const char *name)
{
    const weir_evict_policy *policy = NULL;
    if (!name)
        return NULL;
    for (size_t i = 0; (policy = weir_evict_policy_at(i)); i++)
        if (strcmp(policy->name, name) == 0)
            break;
    return policy;
}
