/* SPDX-License-Identifier: Apache-2.0 */

/* A decode step as a CUDA graph that waits on a slot: captured once, replayed
 * with loads of every size, with none, and joining the load of another step. Exit
 * 77 without a GPU.
 *
 * usage: gpu_graph [REPLAYS]
 *   REPLAYS  of each way to copy (1000) */

#include "gpu_reader.h"

#define LAYERS 24u
#define DISTANCE 3u

/* What a graph cannot hold says so, and the capture survives being asked. */
static void check_refusals(struct reader *r)
{
    weir_stream *stream = r->rig->streams[1];
    CUgraph graph = NULL;
    int rc = weir_rank_capture_wait(r->rank, 0, 0, stream);
    CHECK(rc == -EINVAL, "not capturing: %s", weir_error_name(rc));
    rc = reader_begin(r, 1, 0, false, r->rig->streams[0]);
    REQUIRE(rc == 0, "%s", weir_error_name(rc));

    reader_enter(r);
    CHECK(r->calls.begin((CUstream)stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == 0, "capture");
    rc = weir_rank_wait_layer(r->rank, 1, 0, stream);
    CHECK(rc == -ENOTSUP, "wait: %s", weir_error_name(rc));
    rc = weir_rank_end(r->rank, 1, stream);
    CHECK(rc == -ENOTSUP, "end: %s", weir_error_name(rc));
    rc = reader_begin(r, 2, 1, false, stream);
    CHECK(rc == -ENOTSUP, "begin: %s", weir_error_name(rc));
    rc = weir_rank_capture_wait(r->rank, READER_SLOTS, 0, stream);
    CHECK(rc == -EINVAL, "slot: %s", weir_error_name(rc));
    rc = weir_rank_capture_wait(r->rank, 0, LAYERS, stream);
    CHECK(rc == -EINVAL, "layer: %s", weir_error_name(rc));
    /* The rank goes on beside the capture, and is no part of it. */
    rc = weir_rank_wait_layer(r->rank, 1, 0, r->rig->streams[0]);
    if (!rc)
        rc = weir_rank_end(r->rank, 1, r->rig->streams[0]);
    CHECK(rc == 0, "beside: %s", weir_error_name(rc));
    CHECK(r->calls.end((CUstream)stream, &graph) == 0 && graph, "the capture was broken");
    if (graph)
        CHECK(r->calls.destroy(graph) == 0, "a graph");
    reader_leave(r);

    rig_synchronize(r->rig, r->rig->streams[0]);
    reader_report(r);
    CHECK(r->reported_steps[1] == 1, "step %lu was reported", (unsigned long)r->reported_steps[1]);
}

/* Loads come before the first capture too, so that words and events change over. */
static void check_way(struct rig *rig, const struct reader_way *way, uint32_t n_replays)
{
    static struct reader reader;
    rig_at("%s, opening", way->name);
    reader_open(&reader, rig, LAYERS, DISTANCE, true, &way->tuning, true);
    rig_at("%s, refusals", way->name);
    check_refusals(&reader);
    reader_close(&reader);

    reader_open(&reader, rig, LAYERS, DISTANCE, true, &way->tuning, true);
    struct random *random = &reader.random;
    bool loaded = false; /* the step before has a load */
    double began = rig_now();
    for (uint32_t i = 0; i < n_replays + 2 * READER_SLOTS; i++) {
        if (i == READER_SLOTS)
            for (uint32_t slot = 0; slot < READER_SLOTS; slot++)
                reader_capture(&reader, slot, rig->streams[1]);
        rig_at("%s, step %u", way->name, i);
        uint32_t n = random_percent(random, 35) ? 0 : 1 + random_below(random, READER_PAGES);
        bool join = loaded && random_percent(random, 50);
        reader_step(&reader, n, join, rig->streams[random_below(random, 2)]);
        loaded = n > 0;
    }
    reader_drain(&reader);
    printf("%-12s %5u steps, %5lu loads, %5lu joins, %6.1f us a step, %lu stale bytes\n", way->name,
           n_replays + 2 * READER_SLOTS, (unsigned long)reader.n_loads,
           (unsigned long)reader.n_joins,
           (rig_now() - began) * 1e6 / (n_replays + 2 * READER_SLOTS),
           (unsigned long)reader.stale_bytes);
    reader_close(&reader);
}

int main(int argc, char **argv)
{
    uint32_t n_replays = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof reader_ways / sizeof *reader_ways; i++)
        check_way(&rig, &reader_ways[i], n_replays);
    return rig_close(&rig);
}
