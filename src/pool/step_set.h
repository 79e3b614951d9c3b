/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_POOL_STEP_SET_H
#define WEIR_POOL_STEP_SET_H

/* Sets of step numbers, see weir_step_set: the newest step and a bit for each
 * of the 64 before it. Older ones fall out, which is safe because at most 64
 * steps are in flight and a step that is not needs no fence. */

#include <weir/page_pool.h>

static inline weir_step_set weir_step_set_merge(weir_step_set a, weir_step_set b)
{
    if (a.newest < b.newest) {
        weir_step_set swap = a;
        a = b;
        b = swap;
    }
    if (b.newest == 0)
        return a;
    uint64_t distance = a.newest - b.newest;
    if (distance == 0) {
        a.before |= b.before;
        return a;
    }
    if (distance <= 64)
        a.before |= UINT64_C(1) << (distance - 1);
    if (distance < 64)
        a.before |= b.before << distance;
    return a;
}

static inline weir_step_set weir_step_set_add(weir_step_set set, uint64_t step)
{
    return weir_step_set_merge(set, (weir_step_set){ step, 0 });
}

static inline bool weir_step_set_has(weir_step_set set, uint64_t step)
{
    if (step == set.newest)
        return step != 0;
    if (step > set.newest || set.newest - step > 64)
        return false;
    return (set.before >> (set.newest - step - 1)) & 1;
}

#endif
