/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_parts.h"

#include <weir/lifecycle.h>

#include <errno.h>
#include <stdio.h>

int weir_chaos_check(struct weir_chaos *chaos)
{
    const char *reason = "";
    int rc = weir_cache_check(chaos->cache, &reason);
    chaos->result->checks++;
    if (rc)
        snprintf(chaos->result->error, sizeof chaos->result->error, "weir_cache_check: %s", reason);
    return rc;
}

static int abandon(struct weir_chaos *chaos)
{
    if (!chaos->n_lives)
        return 0;
    chaos->result->abandoned++;
    return weir_life_close(chaos, &chaos->lives[weir_chaos_below(chaos, (uint32_t)chaos->n_lives)]);
}

static int forget(struct weir_chaos *chaos)
{
    const weir_field field =
        weir_chaos_namespace(chaos, weir_chaos_below(chaos, WEIR_CHAOS_NAMESPACES));
    bool all = weir_chaos_happens(chaos, 200);
    chaos->result->forgets++;
    int rc = all ? weir_cache_forget_all(chaos->cache) : weir_cache_forget(chaos->cache, &field, 1);
    return rc ? weir_chaos_fail(chaos, rc, "weir_cache_forget") : 0;
}

/* Every sequence ends; nobody looks at what their steps still read. */
static int reset(struct weir_chaos *chaos)
{
    chaos->result->resets++;
    int rc = weir_cache_reset(chaos->cache);
    if (rc)
        return weir_chaos_fail(chaos, rc, "weir_cache_reset");
    for (size_t i = 0; i < chaos->n_lives; i++)
        weir_life_put(chaos, &chaos->lives[i]);
    chaos->n_lives = 0;
    return 0;
}

static int drain(struct weir_chaos *chaos)
{
    chaos->result->drains++;
    int rc = -EAGAIN;
    for (uint32_t i = 0; rc == -EAGAIN && i < WEIR_CHAOS_DRAIN_TRIES; i++) {
        rc = weir_chaos_carry(chaos, true);
        if (rc)
            return rc;
        rc = weir_cache_drain(chaos->cache);
        if (rc == -EAGAIN)
            weir_hands_wait(chaos->hands);
    }
    if (rc)
        return weir_chaos_fail(chaos, rc, "weir_cache_drain");
    rc = weir_chaos_check(chaos);
    return rc ? rc : weir_cache_resume(chaos->cache);
}

int weir_chaos_act(struct weir_chaos *chaos)
{
    static const struct {
        uint32_t share; /* of a thousand turns */
        int (*act)(struct weir_chaos *);
    } acts[] = { { 15, abandon },       { 40, weir_life_fork },
                 { 40, weir_life_cut }, { 5, weir_chaos_check },
                 { 3, forget },         { 1, reset },
                 { 2, drain } };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof acts / sizeof *acts; i++)
        if (weir_chaos_happens(chaos, acts[i].share))
            rc = acts[i].act(chaos);
    return rc;
}
