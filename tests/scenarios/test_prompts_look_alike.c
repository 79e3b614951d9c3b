/* SPDX-License-Identifier: Apache-2.0 */

/* Prompts made to be taken for others: equal hashes, equal pages behind other
 * prefixes, tokens that differ in one bit. And page ids that are taken for others:
 * the compiler refuses them. */

#include "cache_rig.h"
#include "random.h"

static struct rig rig;

/* ---- Prompts ------------------------------------------------------------------ */

/* What the index holds of these tokens, in pages. */
static size_t hit_of(const int32_t *tokens, size_t n)
{
    const weir_key key = { .tokens = tokens, .n_tokens = n };
    weir_hit hit;
    cr_assert(zero(int, weir_cache_peek(rig.cache, &key, &hit)));
    return hit.n_tokens / rig.t;
}

static void compute(const int32_t *tokens, size_t n)
{
    const weir_key key = { .tokens = tokens, .n_tokens = n };
    weir_seq seq;
    gives(&rig, weir_seq_open(&seq, rig.cache, &key, NULL), 0);
    gives(&rig, rig_reserve(&rig, seq, n, NULL), 0);
    rig_begin(&rig);
    rig_add(&rig, seq);
    gives(&rig, weir_seq_commit(seq, NULL, n - rig_info(&rig, seq).n_committed), 0);
    rig_ack(&rig, rig_end(&rig)->step);
    rig_done(&rig, &seq);
}

/* So few pages that every bucket of the index has some, which is what an attacker
 * who knows the hash makes of a large one: whatever is looked up meets pages of its
 * own hash, and is none of them. */
Test(prompts_look_alike, equal_hashes_are_no_hit)
{
    struct random random = { 3 };
    int32_t tokens[4 * 4];
    rig_open(&rig, rig_params(4, 48, 0));
    for (int32_t i = 0; i < 48; i++) {
        for (uint32_t at = 0; at < 4; at++)
            tokens[at] = i * 4 + (int32_t)at;
        compute(tokens, 4);
    }
    for (int32_t i = 0; i < 48; i++) {
        for (uint32_t at = 0; at < 4; at++)
            tokens[at] = i * 4 + (int32_t)at;
        cr_assert(eq(sz, hit_of(tokens, 4), 1));
    }
    for (uint32_t i = 0; i < 50000; i++) {
        for (uint32_t at = 0; at < 4; at++)
            tokens[at] = (int32_t)(1000 + random_below(&random, 1u << 30));
        cr_assert(zero(sz, hit_of(tokens, 4)));
    }
    rig_close(&rig);
}

/* Any one bit of any token of any page parts two prompts there. */
Test(prompts_look_alike, one_bit_is_another_prompt)
{
    int32_t tokens[3 * 16];
    rig_open(&rig, rig_params(16, 16, 16));
    for (int32_t i = 0; i < 3 * 16; i++)
        tokens[i] = 7000 + 31 * i;
    compute(tokens, 3 * 16);
    for (size_t at = 0; at < 3 * 16; at++)
        for (uint32_t bit = 0; bit < 31; bit++) {
            tokens[at] ^= 1 << bit;
            cr_assert(eq(sz, hit_of(tokens, 3 * 16), at / 16));
            tokens[at] ^= 1 << bit;
        }
    cr_assert(eq(sz, hit_of(tokens, 3 * 16), 3));
    rig_close(&rig);
}

/* The same page behind other prefixes is another page each time, also where a split
 * has made one prefix of two nodes. */
Test(prompts_look_alike, equal_pages_behind_other_prefixes)
{
    static const char *const prompts[] = { "X", "AX", "BX", "ABX", "BAX", "AAX", "ABCX", "XX" };
    const size_t n = sizeof prompts / sizeof *prompts;
    rig_open(&rig, rig_params(4, 60, 60));
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            size_t pages = strlen(prompts[k]);
            bool known = rig_peek(&rig, prompts[k]).n_tokens == pages;
            cr_assert(eq(int, known, k < i), "%s before %s", prompts[k], prompts[i]);
        }
        rig_compute(&rig, prompts[i]);
    }
    rig_close(&rig);
}

/* A field's bytes never run into the next field's: an adapter with the name of
 * another tenant's salt, the same bytes cut elsewhere, nothing at all. */
Test(prompts_look_alike, names_made_of_the_same_bytes)
{
    enum {
        ADAPTER = 1,
        SALT = 2
    };
    static const weir_field names[][2] = {
        { { ADAPTER, 4, "acme" }, { SALT, 0, "" } },    { { SALT, 4, "acme" }, { ADAPTER, 0, "" } },
        { { ADAPTER, 0, "" }, { SALT, 4, "acme" } },    { { ADAPTER, 2, "ac" }, { SALT, 2, "me" } },
        { { ADAPTER, 4, "acme" }, { SALT, 1, "\0" } },  { { ADAPTER, 1, "a" }, { SALT, 3, "cme" } },
        { { ADAPTER, 4, "acme" }, { ADAPTER, 0, "" } },
    };
    int32_t tokens[4] = { 1, 2, 3, 4 };
    rig_open(&rig, rig_params(4, 32, 32));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k <= i; k++) {
            const weir_key key = {
                .tokens = tokens, .n_tokens = 4, .fields = names[i], .n_fields = 2
            };
            weir_hit hit;
            weir_seq seq;
            gives(&rig, weir_cache_peek(rig.cache, &key, &hit), 0);
            cr_assert(eq(sz, hit.n_tokens, k == 0 ? 0 : 4), "name %zu", i);
            gives(&rig, weir_seq_open(&seq, rig.cache, &key, NULL), 0);
            gives(&rig, rig_reserve(&rig, seq, 4, NULL), 0);
            rig_begin(&rig);
            rig_add(&rig, seq);
            gives(&rig, weir_seq_commit(seq, NULL, 4 - rig_info(&rig, seq).n_committed), 0);
            rig_ack(&rig, rig_end(&rig)->step);
            rig_done(&rig, &seq);
        }
    rig_close(&rig);
}

/* ---- Page ids ------------------------------------------------------------------- */

#define KIND(id) _Generic((id), weir_device_page : 'd', weir_host_page : 'h', default : 'n')

_Static_assert(KIND(((weir_move *)0)->device) == 'd', "a device page has a type of its own");
_Static_assert(KIND(((weir_move *)0)->host) == 'h', "a host page has another");
_Static_assert(KIND(((weir_move *)0)->device.id) == 'n', "neither is a number");

/* A slot is a number, and no order can name page 0 or a page behind the end. */
Test(prompts_look_alike, ids_out_of_range_are_refused)
{
    static const int32_t wrong[] = { 0, -1, 9, INT32_MAX, INT32_MIN };
    uint64_t buffer[64];
    size_t bytes;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (int host = 0; host < 2; host++)
            for (int write = 0; write < 2; write++) {
                weir_move move = { { host ? 1 : wrong[i] }, { host ? wrong[i] : 1 } };
                weir_order order = { .step = 1, .device_pages = 8, .host_pages = 8 };
                order.write_ticket = write;
                order.n_writes = write;
                order.n_loads = !write;
                order.loads = order.writes = &move;
                cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &bytes, NULL),
                             -EINVAL));
            }
}
