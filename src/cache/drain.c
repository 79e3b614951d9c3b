/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"

#include <weir/lifecycle.h>

#include <errno.h>

int weir_cache_drain(weir_cache *cache)
{
    if (!cache)
        return -EINVAL;
    cache->draining = true;
    return cache->step_open || cache->n_flights || cache->n_writes ? -EAGAIN : 0;
}

int weir_cache_resume(weir_cache *cache)
{
    if (!cache)
        return -EINVAL;
    cache->draining = false;
    cache->write_told = false;
    return 0;
}
