/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_EXECUTOR_H
#define TRANSFORMER_EXECUTOR_H

/* A rank at work: takes plans from its end of the way, enqueues them, and sends
 * back what has ended. It decides nothing and never waits for the device. */

#include "forward.h"

struct executor_params {
    weir_device_kind device;
    uint32_t rank, n_ranks;
    uint32_t device_pages, host_pages;
    const struct model *model;
    struct exchange *exchange;
    int end; /* of the way to the scheduler */
};

/* Serves until PLAN_STOP, then closes all that it has opened. */
void executor_run(const struct executor_params *params);

#endif
