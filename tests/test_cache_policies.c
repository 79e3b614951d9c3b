/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include <weir/policy.h>

/* A server's own policies in a cache. */

/* ---- An eviction policy that gives up the entry with the highest number --- */

struct highest {
    uint32_t capacity;
    bool evictable[];
};

static unsigned n_created, n_destroyed, n_used, n_forgotten, n_victims;
static int32_t last_victim;
static bool not_the_highest;

static int highest_create(void **state, uint32_t capacity)
{
    struct highest *highest = calloc(1, sizeof *highest + capacity);
    if (!highest)
        return -ENOMEM;
    highest->capacity = capacity;
    n_created++;
    *state = highest;
    return 0;
}

static void highest_destroy(void *state)
{
    n_destroyed++;
    free(state);
}

static void highest_add(void *state, const weir_evict_entry *entry)
{
    struct highest *highest = state;
    cr_assert(lt(u32, entry->entry, highest->capacity));
    cr_assert(not(highest->evictable[entry->entry]));
    highest->evictable[entry->entry] = true;
}

static void highest_use(void *state, const weir_evict_entry *entry)
{
    const struct highest *highest = state;
    cr_assert(lt(u32, entry->entry, highest->capacity));
    n_used++;
}

static void highest_remove(void *state, uint32_t entry)
{
    struct highest *highest = state;
    highest->evictable[entry] = false;
}

static void highest_forget(void *state, uint32_t entry)
{
    n_forgotten++;
    highest_remove(state, entry);
}

static int32_t highest_next(void *state)
{
    struct highest *highest = state;
    int32_t victim = (int32_t)highest->capacity;
    while (--victim >= 0 && !highest->evictable[victim]) {
    }
    if (victim < 0)
        return -1;
    highest->evictable[victim] = false;
    n_victims++;
    not_the_highest |= last_victim >= 0 && victim > last_victim;
    last_victim = victim;
    return victim;
}

static const weir_evict_policy highest_first = {
    .create = highest_create,
    .destroy = highest_destroy,
    .add = highest_add,
    .use = highest_use,
    .remove = highest_remove,
    .forget = highest_forget,
    .next = highest_next,
};

/* Four prompts of a page, of which two are made newest by hits; then
 * room for two. The numbers of entries grow in the order of their making, so
 * this policy gives up the last two made, whichever were hit, and lru the two
 * that were not. */
static void evict_two(struct rig *r, const char *first_hit, const char *second_hit)
{
    static const char *const letters[] = { "A", "B", "C", "D" };
    for (size_t i = 0; i < 4; i++)
        rig_compute(r, letters[i]);
    rig_compute(r, first_hit);
    rig_compute(r, second_hit);
    last_victim = -1;
    not_the_highest = false;
    weir_seq seq = rig_seq(r, "", 1);
    gives(r, rig_reserve(r, seq, 3 * (size_t)r->t, NULL), 0);
    rig_done(r, &seq);
}

Test(cache_policies, own_eviction_of_the_device_tier)
{
    struct rig r;
    weir_cache_params params = rig_params(16, 5, 0);
    params.eviction = "no such policy"; /* not looked at */
    params.eviction_policy = &highest_first;
    rig_open(&r, params);
    cr_expect(eq(u32, n_created, 1), "a tier without pages has no policy");
    evict_two(&r, "C", "D");
    rig_expect_hit(&r, "A", 1, 0, 0);
    rig_expect_hit(&r, "B", 1, 0, 0);
    rig_expect_hit(&r, "C", 0, 0, 0);
    rig_expect_hit(&r, "D", 0, 0, 0);
    cr_expect(eq(u32, n_victims, 2));
    cr_expect(not(not_the_highest));
    cr_expect(eq(u32, n_used, 2));
    cr_expect(eq(u32, n_forgotten, 2));
    rig_close(&r);
    cr_expect(eq(u32, n_destroyed, 1));
}

/* The same by lru: the test above tells the two apart. */
Test(cache_policies, lru_gives_up_others)
{
    struct rig r;
    rig_open(&r, rig_params(16, 5, 0));
    evict_two(&r, "C", "D");
    rig_expect_hit(&r, "A", 0, 0, 0);
    rig_expect_hit(&r, "B", 0, 0, 0);
    rig_expect_hit(&r, "C", 1, 0, 0);
    rig_expect_hit(&r, "D", 1, 0, 0);
    rig_close(&r);
    cr_expect(zero(u32, n_created));
}

/* Which policy a tier gets: pages of the host tier are given up when the third
 * prompt is written; with lru it is the first that goes. */
Test(cache_policies, which_tier_gets_which)
{
    static const struct {
        const weir_evict_policy *device, *host;
        const char *device_name, *host_name;
        unsigned created;
        bool own_host;
    } rows[] = {
        { NULL, NULL, "lru", NULL, 0, false },
        { &highest_first, NULL, "lru", NULL, 2, true }, /* as the device tier */
        { &highest_first, NULL, "lru", "lru", 1, false },
        { NULL, &highest_first, "lru", NULL, 1, true },
        { NULL, &highest_first, NULL, "no such policy", 1, true },
        { &highest_first, &highest_first, NULL, NULL, 2, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rig r;
        weir_cache_params params = rig_params(16, 8, 2);
        params.eviction_policy = rows[i].device;
        params.host_eviction_policy = rows[i].host;
        params.eviction = rows[i].device_name;
        params.host_eviction = rows[i].host_name;
        n_created = n_destroyed = 0;
        rig_open(&r, params);
        cr_expect(eq(u32, n_created, rows[i].created), "row %zu", i);
        rig_compute(&r, "A");
        rig_settle(&r);
        rig_compute(&r, "B");
        rig_settle(&r);
        rig_compute(&r, "C");
        rig_settle(&r);
        rig_push_out(&r);
        rig_expect_hit(&r, "A", 0, rows[i].own_host, 0);
        rig_expect_hit(&r, "B", 0, !rows[i].own_host, 0);
        rig_expect_hit(&r, "C", 0, 1, 0);
        rig_close(&r);
        cr_expect(eq(u32, n_destroyed, n_created), "row %zu", i);
    }
}

static int create_fails(void **state, uint32_t capacity)
{
    (void)state;
    (void)capacity;
    return -ENOMEM;
}

Test(cache_policies, what_is_not_complete_is_refused)
{
    for (int host = 0; host < 2; host++) {
        for (int lacks = 0; lacks < 8; lacks++) {
            weir_evict_policy policy = highest_first;
            switch (lacks) {
            case 0:
                policy.create = NULL;
                break;
            case 1:
                policy.destroy = NULL;
                break;
            case 2:
                policy.add = NULL;
                break;
            case 3:
                policy.use = NULL;
                break;
            case 4:
                policy.remove = NULL;
                break;
            case 5:
                policy.forget = NULL;
                break;
            case 6:
                policy.next = NULL;
                break;
            default:
                policy.create = create_fails;
                break;
            }
            struct log_capture log = { 0 };
            weir_cache_params params = rig_params(16, 8, 8);
            params.log = log_capture_log(&log);
            *(host ? &params.host_eviction_policy : &params.eviction_policy) = &policy;
            weir_cache *cache = NULL;
            int rc = weir_cache_create(&cache, &params);
            cr_expect(eq(int, rc, lacks < 7 ? -EINVAL : -ENOMEM), "%d, host %d", lacks, host);
            cr_expect(zero(ptr, cache));
            cr_expect(eq(u32, log.lines, 1));
            if (lacks < 7)
                cr_expect(not(zero(ptr, strstr(log.last, host ? "host_eviction_policy lacks"
                                                              : "eviction_policy lacks"))),
                          "\"%s\"", log.last);
        }
    }
    if (__lsan_do_recoverable_leak_check)
        cr_expect(zero(int, __lsan_do_recoverable_leak_check()));
}

/* ---- A hook that writes every second page -------------------------------- */

struct asked {
    unsigned n;
    weir_write_facts last;
};
static struct asked asked[3];

static weir_write_answer every_nth(const weir_write_facts *facts, uint32_t parameter)
{
    asked[facts->event].n++;
    asked[facts->event].last = *facts;
    if (facts->event == WEIR_WRITE_ON_EVICT)
        return WEIR_WRITE_DROP;
    return facts->depth % parameter == parameter - 1 ? WEIR_WRITE_NOW : WEIR_WRITE_LATER;
}

static weir_cache_params hook_params(uint32_t device, uint32_t host)
{
    weir_cache_params params = rig_params(16, device, host);
    params.write_back = "no such policy"; /* not looked at */
    params.write_policy = (weir_write_policy){ .decide = every_nth, .parameter = 2 };
    params.page_bytes = 4096;
    params.offered = 0.25;
    return params;
}

Test(cache_policies, own_write_back_writes_every_second_page)
{
    struct rig r;
    rig_open(&r, hook_params(8, 8));
    rig_compute(&r, "ABCDE");
    cr_expect(eq(u32, asked[WEIR_WRITE_ON_COMMIT].n, 5));
    rig_settle(&r);
    cr_expect(eq(u64, rig_stats(&r).written_pages, 2));
    rig_close(&r);
}

Test(cache_policies, own_write_back_is_told_the_facts)
{
    struct rig r;
    rig_open(&r, hook_params(8, 8));
    rig_compute(&r, "ABCD");
    const weir_write_facts *facts = &asked[WEIR_WRITE_ON_COMMIT].last;
    cr_expect(eq(u32, facts->hits, 1));
    cr_expect(eq(u32, facts->depth, 3));
    cr_expect(eq(u64, facts->bytes, 4096));
    cr_expect(eq(u32, facts->host_pages, 8));
    cr_expect(eq(u32, facts->host_room, 8), "all are asked about before any is given room");
    cr_expect(eq(u32, facts->host_window, 2));
    rig_settle(&r);

    /* two of four have host copies; the others are asked about again */
    rig_compute(&r, "ABCD");
    facts = &asked[WEIR_WRITE_ON_HIT].last;
    cr_expect(eq(u32, asked[WEIR_WRITE_ON_HIT].n, 2));
    cr_expect(eq(u32, facts->hits, 2));
    cr_expect(eq(u32, facts->depth, 2));
    cr_expect(eq(u32, facts->host_room, 6));
    cr_expect(eq(u64, facts->host_written, 2));
    cr_expect(eq(u64, facts->host_hits, 0));
    rig_settle(&r);
    rig_push_out(&r);
    cr_expect(eq(u32, asked[WEIR_WRITE_ON_EVICT].n, 2));
    cr_expect(eq(u32, asked[WEIR_WRITE_ON_EVICT].last.host_pages, 8));
    rig_close(&r);
}

/* Eight host pages, eight pages written: from then on what was counted before
 * counts half. */
Test(cache_policies, own_write_back_is_told_of_late)
{
    struct rig r;
    rig_open(&r, hook_params(32, 8));
    static const char *const prompts[] = { "ABCD", "EFGH", "IJKL", "MNOP" };
    const weir_write_facts *facts = &asked[WEIR_WRITE_ON_COMMIT].last;
    for (uint64_t i = 0; i < 4; i++) {
        rig_compute(&r, prompts[i]);
        cr_expect(eq(u64, facts->host_written, 2 * i), "%s", prompts[i]);
        rig_settle(&r);
    }
    rig_compute(&r, "QRST");
    cr_expect(eq(u64, facts->host_written, 4));
    rig_settle(&r);
    rig_compute(&r, "UVWX");
    cr_expect(eq(u64, facts->host_written, 6));
    rig_settle(&r);
    cr_expect(eq(u64, rig_stats(&r).written_pages, 12));
    rig_close(&r);
}

Test(cache_policies, no_host_tier_asks_nothing)
{
    struct rig r;
    rig_open(&r, hook_params(8, 0));
    rig_compute(&r, "ABCD");
    rig_compute(&r, "ABCD");
    rig_push_out(&r);
    for (size_t i = 0; i < 3; i++)
        cr_expect(zero(u32, asked[i].n));
    rig_close(&r);
}

/* ---- adaptive in a cache ------------------------------------------------- */

/* Sixteen host pages, of which none is kept free: prompts of two pages are
 * written until at most one page is left. Then only what is used again is, as
 * long as nothing was hit in host memory. */
Test(cache_policies, adaptive_fills_the_host_tier_and_then_chooses)
{
    struct rig r;
    weir_cache_params params = rig_params(16, 32, 16);
    params.write_back = "adaptive";
    rig_open(&r, params);
    static const char *const prompts[] = { "AB", "CD", "EF", "GH", "IJ", "KL", "MN", "OP", "QR" };
    for (uint64_t i = 0; i < 9; i++) {
        rig_compute(&r, prompts[i]);
        rig_settle(&r);
        cr_expect(eq(u64, rig_stats(&r).written_pages, i < 8 ? 2 * (i + 1) : 16), "%s", prompts[i]);
    }
    rig_compute(&r, "QR");
    rig_settle(&r);
    cr_expect(eq(u64, rig_stats(&r).written_pages, 18));
    cr_expect(eq(u64, rig_stats(&r).evicted_host_pages, 2));

    /* six hits for eighteen pages written: a full tier that is worth it */
    rig_push_out(&r);
    rig_compute(&r, "EF");
    rig_compute(&r, "GH");
    rig_compute(&r, "IJ");
    cr_expect(eq(u64, rig_stats(&r).hit_pages_host, 6));
    rig_compute(&r, "ST");
    rig_settle(&r);
    cr_expect(eq(u64, rig_stats(&r).written_pages, 20));
    rig_close(&r);
}
