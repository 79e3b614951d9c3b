/* SPDX-License-Identifier: Apache-2.0 */

/* Tiers that are full, smaller than the one above, of a single page or not there;
 * every policy on them; traffic that comes once. Full is a result like another: each
 * request is served, every byte that is hit is right, and what does not fit is
 * counted. */

#include "cuda_server.h"

/* Prompts that share prefixes, each short enough for the device. */
static void serve_some(struct server *s, uint32_t n, uint32_t longest, struct random *random)
{
    for (uint32_t i = 0; i < n; i++) {
        char letters[SERVER_LETTERS + 1] = { 0 };
        uint32_t length = 1 + random_below(random, longest);
        for (uint32_t at = 0; at < length; at++)
            letters[at] = (char)('A' + random_below(random, 2));
        server_serve(s, letters);
    }
}

static void serve_and_close(struct server *s, uint32_t n, uint32_t device_pages, weir_stats *stats)
{
    struct random random = { 9 };
    serve_some(s, n, device_pages - 1 < 6 ? device_pages - 1 : 6, &random);
    server_settle(s);
    *stats = server_stats(s);
    cr_assert(eq(u64, stats->requests, n));
    cr_assert(zero(u32, s->n_load_failures));
    server_close(s);
}

Test(tiers_of_any_size, each_pair_of_sizes, .timeout = 60)
{
    static const uint32_t device[] = { 2, 3, 7, 20 };
    static const uint32_t host[] = { 0, 1, 2, 6, 7, 8, 100 };
    for (size_t d = 0; d < sizeof device / sizeof *device; d++)
        for (size_t h = 0; h < sizeof host / sizeof *host; h++) {
            struct server s;
            weir_stats stats;
            server_open(&s, device[d], host[h], WEIR_HOST_SEGMENTED);
            serve_and_close(&s, 120, device[d], &stats);
            cr_assert(eq(int, stats.written_pages > 0, host[h] > 0));
            cr_assert(le(u64, stats.index_pages, device[d] + host[h]));
            if (host[h] >= device[d] && device[d] < 20)
                cr_assert(lt(u64, 0, stats.loaded_pages), "%u and %u pages", device[d], host[h]);
        }
    rig_check_clean(fake_cuda_find());
}

/* No policy, of either tier or of writing, changes a byte or stops a request. */
Test(tiers_of_any_size, each_policy, .timeout = 60)
{
    static const char *const writes[] = { "write_through", "write_through_selective(2)",
                                          "write_back", "never", "adaptive" };
    size_t n_policies = 0;
    for (; weir_evict_policy_at(n_policies); n_policies++)
        for (size_t w = 0; w < sizeof writes / sizeof *writes; w++) {
            struct server s;
            weir_stats stats;
            weir_cache_params params = server_cache_params(7, 12);
            params.eviction = weir_evict_policy_at(n_policies)->name;
            params.write_back = writes[w];
            server_open_with(&s, params, WEIR_HOST_PAGE_FIRST_DIRECT);
            serve_and_close(&s, 60, 7, &stats);
            cr_assert(eq(int, stats.written_pages > 0, strcmp(writes[w], "never") != 0), "%s, %s",
                      params.eviction, writes[w]);
        }
    cr_assert(ge(sz, n_policies, 6));
    rig_check_clean(fake_cuda_find());
}

/* Prompts that come once cost no link where pages are to be used twice first, and do
 * not drive out what is. */
Test(tiers_of_any_size, traffic_that_comes_once)
{
    struct server s;
    weir_cache_params params = server_cache_params(8, 12);
    params.write_back = "write_through_selective(2)";
    server_open_with(&s, params, WEIR_HOST_SEGMENTED);
    server_serve(&s, "WXYZ");
    server_serve(&s, "WXYZ"); /* the second use: written */
    for (int i = 0; i < 3; i++)
        server_carry(&s, NULL);
    server_idle(&s);
    cr_assert(eq(u64, server_stats(&s).written_pages, 4));
    for (char c = 'a'; c < 'a' + 24; c++) {
        const char once[] = { c, (char)(c + 1), c, '\0' };
        server_serve(&s, once);
    }
    cr_assert(eq(u64, server_stats(&s).written_pages, 4));
    weir_hit hit = server_serve(&s, "WXYZ");
    cr_assert(eq(sz, hit.n_tokens, 4 * SERVER_TOKENS));
    cr_assert(eq(sz, hit.n_host, 4 * SERVER_TOKENS));
    server_settle(&s);
    server_close(&s);
    rig_check_clean(s.rig.fake);
}
