/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos_parts.h"

#include "faults.h"
#include "pattern.h"
#include "server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FAIL_SHARE 400u /* of 65536 device calls */
#define STALL_SHARE 2000u
#define RELEASE_EVERY_US 3000u

int weir_chaos_fail(struct weir_chaos *chaos, int rc, const char *what)
{
    if (!chaos->result->error[0])
        snprintf(chaos->result->error, sizeof chaos->result->error, "%s: %s", what,
                 weir_error_name(rc));
    return rc;
}

uint32_t weir_chaos_below(struct weir_chaos *chaos, uint32_t n)
{
    chaos->random = weir_pattern_mix(chaos->random, chaos->seed);
    return (uint32_t)((chaos->random >> 32) % n);
}

bool weir_chaos_happens(struct weir_chaos *chaos, uint32_t n)
{
    return weir_chaos_below(chaos, 1000) < n;
}

/* ---- Faults -------------------------------------------------------------- */

static void *release_stalls(void *arg)
{
    struct weir_chaos *chaos = arg;
    while (!atomic_load(&chaos->stop)) {
        nanosleep(&(struct timespec){ .tv_nsec = RELEASE_EVERY_US * 1000l }, NULL);
        for (uint32_t rank = 0; rank < chaos->options.n_ranks; rank++)
            if (chaos->faults[rank])
                weir_faults_release(chaos->faults[rank]);
    }
    return NULL;
}

static void stop_faults(struct weir_chaos *chaos)
{
    atomic_store(&chaos->stop, true);
    if (chaos->has_releaser)
        pthread_join(chaos->releaser, NULL);
    chaos->has_releaser = false;
    for (uint32_t rank = 0; chaos->faults && rank < chaos->options.n_ranks; rank++)
        if (chaos->faults[rank])
            weir_faults_stop(chaos->faults[rank]);
}

static bool has_device_of_earlier(const struct weir_chaos *chaos, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (weir_hands_device(chaos->hands, i) == weir_hands_device(chaos->hands, rank))
            return true;
    return false;
}

static int open_faults(struct weir_chaos *chaos)
{
    uint32_t n_ranks = chaos->options.n_ranks;
    chaos->faults = calloc(n_ranks, sizeof(struct weir_faults *));
    if (!chaos->faults)
        return -ENOMEM;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        if (has_device_of_earlier(chaos, rank))
            continue;
        int rc = weir_faults_open(&chaos->faults[rank], weir_hands_device(chaos->hands, rank),
                                  chaos->seed + rank, FAIL_SHARE, STALL_SHARE);
        if (rc)
            return rc;
    }
    int rc = -pthread_create(&chaos->releaser, NULL, release_stalls, chaos);
    chaos->has_releaser = rc == 0;
    return rc;
}

/* ---- The run ------------------------------------------------------------- */

static int open_chaos(struct weir_chaos *chaos)
{
    const struct weir_replay_options *options = &chaos->options;
    const char *call;
    int rc = weir_server_open(options, options->device_pages, options->active + 1, &chaos->pool,
                              &chaos->cache, &chaos->hands, &call);
    if (rc)
        return weir_chaos_fail(chaos, rc, call);
    chaos->lives = calloc(options->active, sizeof *chaos->lives);
    chaos->parts = calloc(options->active, sizeof *chaos->parts);
    chaos->part_lives = calloc(options->active, sizeof(struct weir_life *));
    if (!chaos->lives || !chaos->parts || !chaos->part_lives)
        return weir_chaos_fail(chaos, -ENOMEM, "requests");
    rc = open_faults(chaos);
    if (!rc)
        rc = weir_hands_start(chaos->hands);
    return rc ? weir_chaos_fail(chaos, rc, "faults and threads") : 0;
}

static void close_chaos(struct weir_chaos *chaos)
{
    stop_faults(chaos);
    for (size_t i = 0; i < chaos->n_lives; i++)
        weir_seq_close(&chaos->lives[i].request->seq);
    if (chaos->hands)
        weir_hands_quiesce(chaos->hands);
    for (uint32_t rank = 0; chaos->faults && rank < chaos->options.n_ranks; rank++)
        weir_faults_close(&chaos->faults[rank]);
    weir_hands_close(&chaos->hands);
    weir_cache_destroy(&chaos->cache);
    weir_request_pool_free(&chaos->pool);
    free(chaos->faults);
    free(chaos->lives);
    free(chaos->parts);
    free(chaos->part_lives);
}

/* All requests to their end, all reports home, nothing left over. */
static int wind_up(struct weir_chaos *chaos)
{
    stop_faults(chaos);
    while (chaos->n_lives) {
        struct weir_life *life = &chaos->lives[0];
        int rc = weir_life_close(chaos, life);
        if (rc)
            return rc;
    }
    weir_stats stats = { .struct_size = sizeof stats };
    for (uint32_t i = 0; i < WEIR_CHAOS_DRAIN_TRIES; i++) {
        int rc = weir_chaos_carry(chaos, true);
        if (!rc)
            rc = weir_chaos_step(chaos);
        if (!rc)
            rc = weir_cache_get_stats(chaos->cache, &stats);
        if (rc)
            return rc;
        if (stats.write_backs_in_flight == 0 && i > WEIR_REPLAY_STEPS)
            break;
    }
    for (uint32_t i = 0; stats.orders_in_flight && i < WEIR_CHAOS_DRAIN_TRIES; i++) {
        int rc = weir_hands_wait(chaos->hands);
        if (!rc)
            rc = weir_chaos_carry(chaos, true);
        if (!rc)
            rc = weir_cache_get_stats(chaos->cache, &stats);
        if (rc)
            return rc;
    }
    if (stats.orders_in_flight || stats.write_backs_in_flight)
        return weir_chaos_fail(chaos, -EAGAIN, "orders in flight are never retired");
    weir_available available;
    int rc = weir_cache_available(chaos->cache, &available);
    if (!rc && (available.pending || available.claimed))
        return weir_chaos_fail(chaos, -EIO, "pages are pending or claimed with nothing in flight");
    return rc ? rc : weir_chaos_check(chaos);
}

static void count(struct weir_chaos *chaos)
{
    struct weir_chaos_result *result = chaos->result;
    weir_stats stats = { .struct_size = sizeof stats };
    if (weir_cache_get_stats(chaos->cache, &stats) == 0) {
        result->loaded_pages = stats.loaded_pages;
        result->written_pages = stats.written_pages;
    }
    result->steps = chaos->step;
    result->failed_transfers = weir_hands_failures(chaos->hands);
    result->races = weir_hands_races(chaos->hands);
    for (uint32_t rank = 0; rank < chaos->options.n_ranks; rank++) {
        uint64_t failed = 0;
        uint64_t stalled = 0;
        if (chaos->faults[rank])
            weir_faults_count(chaos->faults[rank], &failed, &stalled);
        result->failed_calls += failed;
        result->stalled_copies += stalled;
    }
}

int weir_chaos_run(const struct weir_trace *trace, const struct weir_replay_options *options,
                   uint64_t seed, double seconds, struct weir_chaos_result *result)
{
    struct weir_chaos chaos = {
        .trace = trace, .options = *options, .result = result, .seed = seed, .pass = 1
    };
    *result = (struct weir_chaos_result){ 0 };
    chaos.options.judge_later = chaos.options.verify = true;
    if (!chaos.options.active)
        chaos.options.active = 16;
    double began = weir_server_seconds();
    int rc = open_chaos(&chaos);
    while (!rc && weir_server_seconds() - began < seconds) {
        rc = weir_chaos_carry(&chaos, false);
        if (!rc)
            rc = weir_chaos_act(&chaos);
        if (!rc)
            rc = weir_lives_turn_over(&chaos);
        if (!rc)
            rc = weir_chaos_step(&chaos);
    }
    if (!rc)
        rc = wind_up(&chaos);
    if (chaos.hands && chaos.faults)
        count(&chaos);
    result->seconds = weir_server_seconds() - began;
    close_chaos(&chaos);
    return rc;
}

void weir_chaos_print(const struct weir_chaos_result *result)
{
#define COUNT(name, text) printf("%-22s %12" PRIu64 "  %s\n", #name, result->name, text);
    WEIR_CHAOS_COUNTS(COUNT)
#undef COUNT
    printf("%-22s %12.1f  time\n", "seconds", result->seconds);
}
