/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu.h"
#include "gather/expert_host.h"

static void ensure(void *args)
{
    weir_expert_host_ensure(args);
}

static void reset(void *args)
{
    weir_expert_host_reset(args);
}

static void touch(struct weir_cpu_race *race, const struct weir_cpu_accessor *accessor,
                  const void *args)
{
    uint32_t pool = ((const struct weir_expert_args *)args)->race_pool;
    weir_cpu_race_access(race, accessor, pool, 1, 1, 0, 0, true);
}

int weir_cpu_expert_launch(weir_device *base, weir_stream *stream,
                           const struct weir_expert_args *args, enum weir_expert_work work)
{
    return weir_cpu_launch_touching(base, stream, work == WEIR_EXPERT_RESET ? reset : ensure, args,
                                    sizeof *args, touch);
}
