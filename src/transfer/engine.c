/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/engine.h"

#include "base/log.h"

#include <errno.h>

/* Loads are what a forward pass waits for. */
#define LOAD_PRIORITY 1
#define WRITE_BACK_PRIORITY 0

/* ---- Lanes ---------------------------------------------------------------- */

static void mark(struct weir_engine *engine, struct weir_lane *lane)
{
    int rc = engine->device->ops->stream_write_word(engine->device, lane->stream, lane->word,
                                                    (uint32_t)(lane->issued + 1));
    lane->unmarked = rc != 0;
    if (rc == 0)
        lane->issued++;
}

static uint32_t *layer_words(const struct weir_engine *engine, uint32_t slot)
{
    return engine->words + (size_t)slot * engine->geometry->n_layers;
}

static struct weir_transfer plan(struct weir_engine *engine, enum weir_direction direction,
                                 uint32_t n)
{
    const struct weir_geometry *geometry = engine->geometry;
    return (struct weir_transfer){
        .geometry = geometry,
        .runs = engine->runs,
        .n_runs = weir_plan_runs(geometry, engine->moves, n, engine->runs),
        .direction = direction,
        .layer_begin = 0,
        .layer_end = geometry->n_layers,
        .device_pool = engine->device_pool,
        .host_pool = engine->host_pool,
        .shared_pool = engine->shared_pool,
        .tuning = engine->tuning[direction],
        .max_enqueue_us = engine->max_enqueue_us,
        .exclusive_sms = engine->exclusive_sms,
        .state = engine->transfer_state,
    };
}

/* Enqueues the copy; *enqueued receives how many layers were accepted. */
static int copy(struct weir_engine *engine, const struct weir_transfer *transfer,
                uint32_t *enqueued)
{
    return engine->device->ops->copy(engine->device, engine->lanes[transfer->direction].stream,
                                     transfer, enqueued);
}

/* ---- Captured waits ------------------------------------------------------- */

static weir_event *slot_event(const struct weir_engine *engine, uint32_t slot, uint32_t layer)
{
    return engine->events[(size_t)slot * engine->geometry->n_layers + layer];
}

bool weir_engine_is_captured(const struct weir_engine *engine, uint32_t slot)
{
    return engine->captured && engine->captured[slot];
}

static int record(struct weir_engine *engine, uint32_t slot, uint32_t layer)
{
    return engine->device->ops->event_record(engine->device, slot_event(engine, slot, layer),
                                             engine->lanes[WEIR_LOAD].stream);
}

int weir_engine_join_slot(struct weir_engine *engine, uint32_t slot)
{
    int rc = 0;
    if (weir_engine_is_captured(engine, slot))
        for (uint32_t layer = 0; layer < engine->geometry->n_layers && !rc; layer++)
            rc = record(engine, slot, layer);
    return rc;
}

/* A load that the slot's step began before this has told its words alone: the
 * events are recorded behind it now, before any launch of the graph. */
int weir_engine_capture_wait(struct weir_engine *engine, uint32_t slot, uint32_t layer,
                             weir_stream *stream)
{
    if (!engine->events)
        return -EINVAL;
    int rc = engine->device->ops->stream_wait_event_external(engine->device, stream,
                                                             slot_event(engine, slot, layer));
    if (rc || engine->captured[slot])
        return rc;
    engine->captured[slot] = true;
    rc = weir_engine_join_slot(engine, slot);
    engine->captured[slot] = rc == 0;
    return rc;
}

static void close_ticket(struct weir_engine *engine, enum weir_direction direction, int rc,
                         struct weir_ticket *ticket)
{
    struct weir_lane *lane = &engine->lanes[direction];
    ticket->sequence = lane->issued + 1;
    ticket->rc = rc ? -EIO : 0;
    mark(engine, lane);
}

/* ---- Transfers ------------------------------------------------------------ */

/* In the stream where possible, so that who waits comes behind what the load
 * came behind; from the host otherwise. */
static void publish(struct weir_engine *engine, uint32_t *word, uint32_t generation)
{
    const struct weir_device_ops *ops = engine->device->ops;
    if (ops->stream_write_word(engine->device, engine->lanes[WEIR_LOAD].stream, word, generation))
        ops->word_store(engine->device, word, generation);
}

void weir_engine_load(struct weir_engine *engine, uint32_t slot, uint32_t n, bool failed,
                      struct weir_ticket *ticket)
{
    struct weir_transfer transfer = plan(engine, WEIR_LOAD, n);
    transfer.words = layer_words(engine, slot);
    transfer.generation = ++engine->generations[slot];
    uint32_t enqueued = 0;
    int rc = -EIO;
    if (weir_engine_is_captured(engine, slot))
        transfer.events = &engine->events[(size_t)slot * engine->geometry->n_layers];
    if (!failed)
        rc = copy(engine, &transfer, &enqueued);
    if (rc)
        for (uint32_t layer = enqueued; layer < engine->geometry->n_layers; layer++)
            publish(engine, &transfer.words[layer], transfer.generation);
    ticket->slot = slot;
    ticket->generation = transfer.generation;
    close_ticket(engine, WEIR_LOAD, rc, ticket);
}

void weir_engine_my_block(const struct weir_engine *engine, uint32_t n, uint64_t number,
                          uint32_t *begin, uint32_t *end)
{
    uint64_t ranks = engine->share_ranks;
    uint64_t block = (engine->share_index + number % ranks) % ranks;
    *begin = (uint32_t)(n * block / ranks);
    *end = (uint32_t)(n * (block + 1) / ranks);
}

/* Cuts a transfer's runs down to its pages begin..end-1. */
static void cut_runs(struct weir_run *runs, struct weir_transfer *transfer, uint32_t begin,
                     uint32_t end)
{
    uint32_t n = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < transfer->n_runs; i++) {
        struct weir_run run = runs[i];
        uint32_t next = at + (uint32_t)run.count;
        uint32_t from = begin > at ? begin - at : 0;
        uint32_t to = next < end ? (uint32_t)run.count : end > at ? end - at : 0;
        if (from < to)
            runs[n++] = (struct weir_run){ run.device + (int32_t)from, run.host + (int32_t)from,
                                           (int32_t)(to - from) };
        at = next;
    }
    transfer->n_runs = n;
}

static int copy_part(struct weir_engine *engine, const struct weir_write_part *part,
                     struct weir_transfer *transfer)
{
    uint32_t enqueued;
    if (!part->view || transfer->n_runs == 0)
        return 0;
    transfer->geometry = part->view;
    transfer->state = part->state;
    return copy(engine, transfer, &enqueued);
}

void weir_engine_write_back(struct weir_engine *engine, uint32_t n, uint64_t number, bool failed,
                            struct weir_ticket *ticket)
{
    struct weir_transfer transfer = plan(engine, WEIR_WRITE_BACK, n);
    uint32_t enqueued;
    int rc = -EIO;
    if (!failed && engine->share_ranks == 0) {
        rc = copy(engine, &transfer, &enqueued);
    } else if (!failed) {
        uint32_t begin, end;
        rc = copy_part(engine, &engine->own, &transfer);
        weir_engine_my_block(engine, n, number, &begin, &end);
        cut_runs(engine->runs, &transfer, begin, end);
        if (rc == 0)
            rc = copy_part(engine, &engine->other, &transfer);
    }
    close_ticket(engine, WEIR_WRITE_BACK, rc, ticket);
}

bool weir_engine_ended(struct weir_engine *engine, enum weir_direction direction,
                       const struct weir_ticket *ticket)
{
    struct weir_lane *lane = &engine->lanes[direction];
    uint32_t seen = engine->device->ops->word_load(engine->device, lane->word);
    lane->done += (uint32_t)(seen - (uint32_t)lane->done);
    return lane->done >= ticket->sequence;
}

int weir_engine_wait_layer(struct weir_engine *engine, const struct weir_ticket *load,
                           uint32_t layer, weir_stream *stream)
{
    if (weir_engine_ended(engine, WEIR_LOAD, load))
        return 0;
    return engine->device->ops->stream_wait_word(
        engine->device, stream, layer_words(engine, load->slot) + layer, load->generation);
}

void weir_engine_repair(struct weir_engine *engine)
{
    for (int i = 0; i < 2; i++)
        if (engine->lanes[i].unmarked)
            mark(engine, &engine->lanes[i]);
}

/* ---- The object ----------------------------------------------------------- */

static size_t n_words(const struct weir_engine *engine)
{
    return (size_t)engine->n_slots * engine->geometry->n_layers + 2;
}

static int prepare(struct weir_engine *engine, const struct weir_geometry *geometry, void **state,
                   const weir_log *log)
{
    int rc =
        engine->device->ops->transfer_prepare(engine->device, geometry, engine->max_moves, state);
    if (rc)
        weir_log_line(log, WEIR_LOG_ERROR, "preparing the device for copies failed with %s",
                      weir_error_name(rc));
    return rc;
}

static int check_tuning(struct weir_engine *engine, const void *state,
                        enum weir_direction direction, const weir_log *log)
{
    weir_device *device = engine->device;
    int rc = device->ops->transfer_tune(device, state, direction, &engine->tuning[direction]);
    if (rc)
        weir_log_line(log, WEIR_LOG_ERROR, "params.%s: the device refuses it with %s",
                      direction == WEIR_LOAD ? "load" : "write_back", weir_error_name(rc));
    return rc;
}

static int create_part(struct weir_engine *engine, struct weir_write_part *part, bool shared,
                       const weir_log *log)
{
    int rc = weir_geometry_view(engine->memory, &part->view, engine->geometry, shared);
    if (rc)
        weir_log_line(log, WEIR_LOG_ERROR, "no memory for the view of a share");
    else if (part->view)
        rc = prepare(engine, part->view, &part->state, log);
    /* Kernels may do for some tensors what they cannot for all together. */
    if (rc == 0 && part->view)
        rc = check_tuning(engine, part->state, WEIR_WRITE_BACK, log);
    return rc;
}

static void destroy_part(struct weir_engine *engine, struct weir_write_part *part)
{
    engine->device->ops->transfer_release(engine->device, part->state);
    weir_geometry_destroy_view(&part->view);
}

static int create_lane(struct weir_engine *engine, enum weir_direction direction, int priority)
{
    struct weir_lane *lane = &engine->lanes[direction];
    lane->word = engine->words + n_words(engine) - 2 + direction;
    return engine->device->ops->stream_create(engine->device, priority, &lane->stream);
}

static int create_parts(struct weir_engine *engine, const weir_log *log)
{
    weir_device *device = engine->device;
    size_t n = engine->max_moves ? engine->max_moves : 1;
    engine->generations =
        weir_memory_take(engine->memory, engine->n_slots, sizeof *engine->generations);
    engine->moves = weir_memory_take(engine->memory, n, sizeof *engine->moves);
    engine->runs = weir_memory_take(engine->memory, n, sizeof *engine->runs);
    if (!engine->generations || !engine->moves || !engine->runs) {
        weir_log_line(log, WEIR_LOG_ERROR, "no memory for plans of %u moves", engine->max_moves);
        return -ENOMEM;
    }
    int rc = prepare(engine, engine->geometry, &engine->transfer_state, log);
    if (rc == 0)
        rc = check_tuning(engine, engine->transfer_state, WEIR_LOAD, log);
    if (rc == 0)
        rc = check_tuning(engine, engine->transfer_state, WEIR_WRITE_BACK, log);
    if (rc == 0 && engine->share_ranks > 0)
        rc = create_part(engine, &engine->own, false, log);
    if (rc == 0 && engine->share_ranks > 0)
        rc = create_part(engine, &engine->other, true, log);
    if (rc)
        return rc;
    rc = device->ops->words_alloc(device, (uint32_t)n_words(engine), &engine->words);
    if (rc) {
        weir_log_line(log, WEIR_LOG_ERROR, "allocating %zu completion words failed with %s",
                      n_words(engine), weir_error_name(rc));
        return rc;
    }
    rc = create_lane(engine, WEIR_LOAD, LOAD_PRIORITY);
    if (rc == 0)
        rc = create_lane(engine, WEIR_WRITE_BACK, WRITE_BACK_PRIORITY);
    if (rc)
        weir_log_line(log, WEIR_LOG_ERROR, "creating a side stream failed with %s",
                      weir_error_name(rc));
    return rc;
}

static int create_events(struct weir_engine *engine, const weir_log *log)
{
    size_t n = (size_t)engine->n_slots * engine->geometry->n_layers;
    engine->events = weir_memory_take(engine->memory, n, sizeof(weir_event *));
    engine->captured = weir_memory_take(engine->memory, engine->n_slots, sizeof *engine->captured);
    int rc = engine->events && engine->captured ? 0 : -ENOMEM;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = engine->device->ops->event_create(engine->device, &engine->events[i]);
    if (rc)
        weir_log_line(log, WEIR_LOG_ERROR, "creating %zu events for captured waits failed with %s",
                      n, weir_error_name(rc));
    return rc;
}

int weir_engine_create(struct weir_engine *engine, weir_device *device,
                       const struct weir_geometry *geometry,
                       const struct weir_engine_params *params, const weir_log *log)
{
    *engine = (struct weir_engine){
        .device = device,
        .geometry = geometry,
        .n_slots = params->n_slots,
        .tuning = { [WEIR_LOAD] = params->load, [WEIR_WRITE_BACK] = params->write_back },
        .max_enqueue_us = params->max_enqueue_us,
        .exclusive_sms = params->exclusive_sms,
        .memory = params->memory,
        .share_ranks = params->share_ranks,
        .share_index = params->share_index,
        .max_moves = geometry->device_pages < geometry->host_pages ? geometry->device_pages
                                                                   : geometry->host_pages,
    };
    int rc = create_parts(engine, log);
    if (rc == 0 && params->captured_waits)
        rc = create_events(engine, log);
    if (rc)
        weir_engine_destroy(engine);
    return rc;
}

void weir_engine_destroy(struct weir_engine *engine)
{
    weir_device *device = engine->device;
    if (!device)
        return;
    for (int i = 0; i < 2; i++)
        if (engine->lanes[i].stream)
            device->ops->stream_destroy(device, engine->lanes[i].stream);
    destroy_part(engine, &engine->own);
    destroy_part(engine, &engine->other);
    device->ops->transfer_release(device, engine->transfer_state);
    size_t n_events = engine->events ? (size_t)engine->n_slots * engine->geometry->n_layers : 0;
    for (size_t i = 0; i < n_events && engine->events[i]; i++)
        device->ops->event_destroy(device, engine->events[i]);
    size_t n_moves = engine->max_moves ? engine->max_moves : 1;
    struct weir_memory *m = engine->memory;
    weir_memory_give(m, engine->events, n_events, sizeof(weir_event *));
    weir_memory_give(m, engine->captured, engine->n_slots, sizeof *engine->captured);
    if (engine->words)
        device->ops->words_free(device, engine->words);
    weir_memory_give(m, engine->generations, engine->n_slots, sizeof *engine->generations);
    weir_memory_give(m, engine->moves, n_moves, sizeof *engine->moves);
    weir_memory_give(m, engine->runs, n_moves, sizeof *engine->runs);
    *engine = (struct weir_engine){ 0 };
}

uint64_t weir_engine_device_bytes(const struct weir_engine *engine)
{
    weir_device *device = engine->device;
    return device->ops->transfer_bytes(device, engine->transfer_state) +
           device->ops->transfer_bytes(device, engine->own.state) +
           device->ops->transfer_bytes(device, engine->other.state);
}

uint64_t weir_engine_pinned_bytes(const struct weir_engine *engine)
{
    return n_words(engine) * sizeof(uint32_t) + weir_engine_device_bytes(engine);
}

void weir_engine_start_at(struct weir_engine *engine, uint32_t value)
{
    const struct weir_device_ops *ops = engine->device->ops;
    for (size_t i = 0; i < n_words(engine); i++)
        ops->word_store(engine->device, &engine->words[i], value);
    for (uint32_t i = 0; i < engine->n_slots; i++)
        engine->generations[i] = value;
    for (int i = 0; i < 2; i++)
        engine->lanes[i].issued = engine->lanes[i].done = value;
}
