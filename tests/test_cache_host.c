/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

/* The host tier: which copies it gives up, and how the runs of both tiers are
 * counted. */

static struct rig rig;

/* Every host page mirrors a page that the device holds: a new page is written
 * all the same, and costs a mirror, not a device copy. */
Test(cache_host, a_host_tier_smaller_than_the_device_is_written_on)
{
    for (size_t i = 0; i < RIG_N_EVICTIONS; i++) {
        for (int drops = 0; drops < 2; drops++) {
            struct rig *r = &rig;
            weir_cache_params params = rig_params(4, 20, 4);
            params.eviction = rig_evictions[i];
            params.host_drops_duplicates = drops;
            rig_open(r, params);
            static const char *const prompts[] = { "AB", "CD", "EF", "GH", "IJ", "KL", "MN", "OP" };
            for (uint64_t k = 0; k < 8; k++) {
                rig_compute(r, prompts[k]);
                rig_settle(r);
                cr_assert(eq(u64, rig_stats(r).written_pages, 2 * (k + 1)), "%s", prompts[k]);
            }
            cr_assert(zero(u64, rig_stats(r).write_skipped_pages));
            cr_assert(eq(u64, rig_stats(r).evicted_host_pages, 12));
            for (uint64_t k = 0; k < 8; k++)
                rig_expect_hit(r, prompts[k], 2, 0, 0);
            rig_close(r);
        }
    }
}

/* A and B are on the host only, and older than all that comes: without the
 * option they go first, with it never while there are mirrors. */
Test(cache_host, mirrors_go_before_only_copies)
{
    for (int drops = 0; drops < 2; drops++) {
        struct rig *r = &rig;
        weir_cache_params params = rig_params(4, 8, 4);
        params.host_drops_duplicates = drops;
        rig_open(r, params);
        rig_compute(r, "A");
        rig_compute(r, "B");
        rig_settle(r);
        rig_push_out(r);
        static const char *const prompts[] = { "C", "D", "E", "F" };
        for (size_t k = 0; k < 4; k++) {
            rig_compute(r, prompts[k]);
            rig_settle(r);
        }
        rig_expect_hit(r, "A", 0, drops, 0);
        rig_expect_hit(r, "B", 0, drops, 0);
        cr_assert(eq(u64, rig_stats(r).written_pages, 6));
        /* the mirror that was used last went first */
        rig_push_out(r);
        rig_expect_hit(r, "C", 0, 1, 0);
        rig_expect_hit(r, "D", 0, !drops, 0);
        rig_expect_hit(r, "E", 0, !drops, 0);
        rig_expect_hit(r, "F", 0, 1, 0);
        rig_close(r);
    }
}

/* A device copy that is offered is about to go: its host copy is no mirror. */
Test(cache_host, what_the_device_offers_has_no_mirror)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(4, 8, 4);
    params.host_drops_duplicates = true;
    params.offered = 0.5;
    rig_open(r, params);
    static const char *const prompts[] = { "A", "B", "C", "D", "E", "F", "G" };
    for (size_t k = 0; k < 7; k++) {
        rig_compute(r, prompts[k]);
        rig_settle(r);
    }
    rig_push_out(r);
    cr_assert(lt(sz, 0, rig_peek(r, "A").n_host));
    cr_assert(lt(sz, 0, rig_peek(r, "B").n_host));
    rig_close(r);
}

static void expect_runs(struct rig *r, uint64_t device, uint64_t device_runs, uint64_t host,
                        uint64_t host_runs)
{
    weir_stats s = rig_stats(r);
    cr_assert(s.device_copies == device && s.device_runs == device_runs,
              "device: %d pages in %d runs", (int)s.device_copies, (int)s.device_runs);
    cr_assert(s.host_copies == host && s.host_runs == host_runs, "host: %d pages in %d runs",
              (int)s.host_copies, (int)s.host_runs);
}

Test(cache_host, runs_of_the_tiers)
{
    struct rig *r = &rig;
    weir_cache_params params = rig_params(4, 12, 12);
    params.page_bytes = 1000;
    rig_open(r, params);
    expect_runs(r, 0, 0, 0, 0);
    rig_compute(r, "ABCD");
    expect_runs(r, 4, 1, 4, 1); /* the copies have their pages before they are there */
    rig_settle(r);
    expect_runs(r, 4, 1, 4, 1);
    weir_stats s = rig_stats(r);
    cr_assert(s.write_runs == 1 && s.write_run_squares == 16 && s.written_bytes == 4000);
    rig_compute(r, "ABXY"); /* XY begin a run of their own: C lies behind B */
    rig_settle(r);
    expect_runs(r, 6, 2, 6, 2);
    rig_push_out(r);
    expect_runs(r, 0, 0, 6, 2);
    rig_compute(r, "ABXY"); /* on the device now a single run */
    expect_runs(r, 4, 1, 6, 2);
    s = rig_stats(r);
    cr_assert(s.load_runs == 2 && s.load_run_squares == 8 && s.loaded_bytes == 4000);
    cr_assert(s.write_runs == 2 && s.write_run_squares == 20 && s.written_bytes == 6000);
    rig_close(r);
}
