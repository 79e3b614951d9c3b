/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_PIN_H
#define WEIR_PIN_H

/* Pins keep what the cache must not give up: the system prompts and few-shot
 * examples that a server puts before most of its requests. A server computes
 * such a prompt once, pins it, and each request finds it where it was, however
 * great the pressure.
 *
 *     weir_cache_pin(&pin, cache, &system_prompt, NULL);
 *     …
 *     weir_cache_unpin(&pin);
 *
 * A pin keeps the leading pages of a key that the index holds when it is made;
 * what is committed later is not part of it. Each page is kept in one tier: in
 * device memory, if it and all pages before it are there, else in host memory.
 * A page that several pins keep is kept until the last of them is gone, and
 * counts once. Copies in the other tier come and go as ever.
 *
 * Pinned device pages are none that a reserve can have: it is answered with
 * -ENOSPC where only an unpin would help.
 *
 * A pin does not hold what is wrong or gone: pages whose load or step fails, or
 * that the server takes out of the index, leave it with all behind them. The
 * pin then keeps those before, maybe none, and is still to be unpinned.
 *
 * Threads: as the cache's. */

#include <weir/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A value, as weir_seq: a copy names the same pin, {0, 0} names none. A pin that
 * is gone is answered with -ESTALE, one of another cache with -EINVAL. */
typedef struct weir_pin {
    weir_cache *cache;
    uint64_t id;
} weir_pin;

/*   struct_size  written by weir_pin_params_init
 *   n_tokens     keep at most so many leading tokens (rounded down to pages);
 *                default WEIR_ALL_TOKENS
 *   user         comes back in weir_pin_info; default NULL */
typedef struct weir_pin_params {
    uint32_t struct_size;
    size_t n_tokens;
    void *user;
} weir_pin_params;

WEIR_API void weir_pin_params_init(weir_pin_params *params) WEIR_NOEXCEPT;

/* Pins the leading pages of a key. NULL params: the defaults. Counts as no use.
 *
 * -ENOENT  the index holds none of them
 * -ENOSPC  more of a tier than the cache's max_pinned would be pinned, or there
 *          are max_pins
 * -EAGAIN  sequences stand in line for device pages, and would in vain
 * -EINVAL
 * All without effect. Allocates nothing; O(pages) and O(log n) each. */
WEIR_API int weir_cache_pin(weir_pin *pin, weir_cache *cache, const weir_key *key,
                            const weir_pin_params *params) WEIR_NOEXCEPT;

/* Ends a pin and sets *pin to {0, 0}, which is itself allowed. -ESTALE, -EINVAL:
 * *pin is untouched. */
WEIR_API int weir_cache_unpin(weir_pin *pin) WEIR_NOEXCEPT;

/* What a pin keeps now.
 *
 *   n_tokens  leading tokens of its key
 *   n_device  of them, kept in device memory; the others in host memory
 *   since_ns  the clock of weir_cache_poll when it was made */
typedef struct weir_pin_info {
    size_t n_tokens;
    size_t n_device;
    uint64_t since_ns;
    void *user;
} weir_pin_info;

/* O(pages). -ESTALE, -EINVAL. */
WEIR_API int weir_cache_get_pin(weir_pin pin, weir_pin_info *info) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
