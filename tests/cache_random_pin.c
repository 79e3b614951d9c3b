/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <weir/pin.h>
#include <errno.h>

/* A pin keeps what it kept, unless something has failed, and on the device what
 * it says. */
void world_check_pin(struct world *w, struct pinned *pin)
{
    weir_pin_info info[2];
    if (!pin->handles[0].cache)
        return;
    must(w, both(w, weir_cache_get_pin(pin->handles[i], &info[i])) == 0, "get_pin");
    must(w, info[0].n_tokens == info[1].n_tokens && info[0].n_device == info[1].n_device,
         "two caches pin different tokens");
    must(w, info[0].user == pin, "another user pointer");
    if (pin->prompt.epoch != w->epochs[pin->prompt.name_space]) {
        must(w, info[0].n_tokens == 0, "%zu forgotten tokens are pinned", info[0].n_tokens);
        return;
    }
    must(w,
         info[0].n_tokens == pin->n_tokens ||
             (w->load_failures && info[0].n_tokens < pin->n_tokens),
         "a pin kept %zu tokens and keeps %zu", pin->n_tokens, info[0].n_tokens);
    pin->n_tokens = info[0].n_tokens;
    if (pin->n_tokens == 0)
        return;
    weir_hit hit = world_peek(w, &pin->prompt, pin->n_tokens);
    must(w, hit.n_tokens == pin->n_tokens && hit.n_device >= info[0].n_device,
         "of %zu pinned tokens %zu are there, on the device %zu of %zu", pin->n_tokens,
         hit.n_tokens, hit.n_device, info[0].n_device);
}

void world_unpin(struct world *w, struct pinned *pin)
{
    weir_pin old = pin->handles[0];
    must(w, both(w, weir_cache_unpin(&pin->handles[i])) == 0, "unpin");
    must(w, !pin->handles[0].cache && !pin->handles[0].id, "handle not reset");
    must(w, !old.cache || weir_cache_unpin(&old) == -ESTALE, "a pin ends twice");
}

/* Whether so many more pinned pages could be too many in a tier. */
static bool over_limit(struct world *w, size_t n_pages)
{
    weir_stats stats = { .struct_size = sizeof stats };
    must(w, weir_cache_get_stats(w->caches[0], &stats) == 0, "stats");
    return stats.pinned_device_pages + n_pages > w->max_pinned[0] ||
           stats.pinned_host_pages + n_pages > w->max_pinned[1];
}

void op_pin(struct world *w)
{
    struct pinned *pin = &w->pins[random_below(&w->random, WORLD_PINS)];
    if (pin->handles[0].cache) {
        world_check_pin(w, pin);
        world_unpin(w, pin);
        trace_call(w, "unpin", (uint32_t)(pin - w->pins), 0);
        return;
    }
    uint32_t slot = world_pick(w), held = 0;
    for (uint32_t k = 0; k < WORLD_PINS; k++)
        held += w->pins[k].handles[0].cache != NULL;
    pin->prompt = slot == MODEL_SEQS || random_percent(&w->random, 20) ? world_prompt(w)
                                                                       : w->users[slot].prompt;
    pin->prompt.epoch = w->epochs[pin->prompt.name_space];
    weir_pin_params params;
    weir_pin_params_init(&params);
    params.user = pin;
    size_t n = pin->prompt.n_key;
    if (random_percent(&w->random, 50))
        params.n_tokens = n = random_below(&w->random, (uint32_t)n + 1);
    weir_hit hit = world_peek(w, &pin->prompt, n);
    weir_key key = world_key(w, &pin->prompt, pin->prompt.n_key);
    uint64_t before = weir_cache_digest(w->caches[0]);
    int rc = both(w, weir_cache_pin(&pin->handles[i], w->caches[i], &key, &params));
    trace_call(w, "pin", (uint32_t)(pin - w->pins), rc);
    must(w, (rc == -ENOENT) == (hit.n_tokens == 0), "pin of %zu tokens: %d", hit.n_tokens, rc);
    if (rc == 0) {
        weir_pin_info info;
        must(w, weir_cache_get_pin(pin->handles[0], &info) == 0, "get_pin");
        must(w, info.n_tokens <= hit.n_tokens && info.n_tokens > 0, "%zu tokens pinned of %zu",
             info.n_tokens, hit.n_tokens);
        pin->n_tokens = info.n_tokens;
        must(w, !over_limit(w, 0), "more is pinned than may be");
        world_check_pin(w, pin);
        return;
    }
    must(w, weir_cache_digest(w->caches[0]) == before, "a pin that failed changes the cache");
    if (rc == -EAGAIN)
        must(w, world_others_wait(w, MODEL_SEQS), "-EAGAIN, and nobody stands in line");
    else if (rc == -ENOSPC)
        must(w, held == WORLD_PINS - 1 || over_limit(w, hit.n_tokens / w->m.page_tokens),
             "-ENOSPC for %zu tokens", hit.n_tokens);
    else
        must(w, rc == -ENOENT, "pin: %d", rc);
}

void op_rates(struct world *w)
{
    uint64_t ns = random_percent(&w->random, 20) ? 0 : 1 + random_below(&w->random, 1000);
    uint64_t rate = random_percent(&w->random, 20) ? 0 : 1 + random_below(&w->random, 10000000);
    must(w, both(w, weir_cache_set_rates(w->caches[i], ns, rate)) == 0, "set_rates");
}
