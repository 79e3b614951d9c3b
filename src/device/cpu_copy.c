/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cpu.h"
#include "device/cpu_random.h"

#include <errno.h>
#include <string.h>

/* How a layer's bytes are copied, without a buffer between:
 *
 *     source read at        begin                       end
 *     the beginning         destination = source ^ key  destination ^= key
 *     the end               destination = key           destination = source
 *
 * In between the destination is garbage either way. The key and the choice come
 * from the op's seed, anew for each 2-D copy, and the end goes through blocks in
 * a shuffled order. */

#define BLOCK_BYTES 4096u

struct side {
    uint8_t *to;
    const uint8_t *from;
    uint64_t to_stride;
    uint64_t from_stride;
};

static struct side side_of(const struct weir_copy *copy, enum weir_direction direction)
{
    uint8_t *device = (uint8_t *)(uintptr_t)copy->device;
    uint8_t *host = (uint8_t *)(uintptr_t)copy->host;
    if (direction == WEIR_LOAD)
        return (struct side){ device, host, copy->device_stride, copy->host_stride };
    return (struct side){ host, device, copy->host_stride, copy->device_stride };
}

static uint64_t key_word(uint64_t key, uint64_t index)
{
    uint64_t word = key + index * WEIR_CPU_ODD_STEP;
    return word ^ word >> 29;
}

static void scramble_word(uint8_t *to, const uint8_t *from, size_t bytes, uint64_t key_word)
{
    uint64_t word = 0;
    if (from)
        memcpy(&word, from, bytes);
    word ^= key_word;
    memcpy(to, &word, bytes);
}

/* to = from ^ key, or to = key if `from` is NULL; word `index` of the key first. */
static void scramble(uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t key, uint64_t index)
{
    uint64_t at = 0;
    for (; at + 8 <= bytes; at += 8)
        scramble_word(to + at, from ? from + at : NULL, 8, key_word(key, index++));
    if (at < bytes)
        scramble_word(to + at, from ? from + at : NULL, (size_t)(bytes - at), key_word(key, index));
}

static uint64_t words_per_row(const struct weir_copy *copy)
{
    return (copy->row_bytes + 7) / 8;
}

void weir_cpu_piece_begin(const struct weir_copy *copy, enum weir_direction direction, uint64_t key)
{
    struct side side = side_of(copy, direction);
    bool read_now = key & 1;
    for (uint64_t row = 0; row < copy->rows; row++)
        scramble(side.to + row * side.to_stride,
                 read_now ? side.from + row * side.from_stride : NULL, copy->row_bytes, key,
                 row * words_per_row(copy));
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void weir_cpu_piece_end(const struct weir_copy *copy, enum weir_direction direction, uint64_t key)
{
    struct side side = side_of(copy, direction);
    bool read_before = key & 1;
    uint64_t row_blocks = (copy->row_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t blocks = copy->rows * row_blocks;
    if (blocks == 0)
        return;
    /* Steps of a length that shares no divisor with their number visit each. */
    uint64_t step = (key >> 1) % blocks;
    while (common_divisor(step, blocks) != 1)
        step = (step + 1) % blocks;
    uint64_t block = (key >> 32) % blocks;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t row = block / row_blocks;
        uint64_t at = block % row_blocks * BLOCK_BYTES;
        uint64_t bytes = copy->row_bytes - at < BLOCK_BYTES ? copy->row_bytes - at : BLOCK_BYTES;
        uint8_t *to = side.to + row * side.to_stride + at;
        if (read_before)
            scramble(to, to, bytes, key, row * words_per_row(copy) + at / 8);
        else
            memcpy(to, side.from + row * side.from_stride + at, bytes);
        block += step;
        if (block >= blocks)
            block -= blocks;
    }
}

static void each_copy(const struct weir_cpu_op *op,
                      void (*act)(const struct weir_copy *, enum weir_direction, uint64_t))
{
    const struct weir_cpu_copy *c = &op->copy;
    const struct weir_run *runs = (const struct weir_run *)op->payload->data;
    uint64_t random = op->seed;
    for (uint32_t tensor = 0; tensor < c->geometry->n_tensors; tensor++) {
        for (uint32_t i = 0; i < c->n_runs; i++) {
            struct weir_copies it;
            struct weir_copy copy;
            weir_copies_begin(&it, c->geometry, tensor, c->layer, runs[i]);
            while (weir_copies_next(&it, &copy))
                act(&copy, c->direction, weir_cpu_random(&random));
        }
    }
}

void weir_cpu_copy_begin(const struct weir_cpu_op *op)
{
    each_copy(op, weir_cpu_piece_begin);
}

void weir_cpu_copy_end(const struct weir_cpu_op *op)
{
    each_copy(op, weir_cpu_piece_end);
}

/* ---- The race check ------------------------------------------------------ */

static bool has_layer(const struct weir_geometry *geometry, uint32_t tensor, uint32_t layer)
{
    return geometry->layer_index[(size_t)tensor * geometry->n_layers + layer] >= 0;
}

static void check_pinned(struct weir_cpu_device *device, const struct weir_cpu_copy *c,
                         uint32_t tensor, struct weir_run run, uint32_t stream)
{
    struct weir_copies it;
    struct weir_copy copy;
    weir_copies_begin(&it, c->geometry, tensor, c->layer, run);
    while (weir_copies_next(&it, &copy)) {
        uint64_t bytes = (copy.rows - 1) * copy.host_stride + copy.row_bytes;
        if (weir_ranges_find(&device->registrations, copy.host, bytes))
            continue;
        struct weir_cpu_race_report report = { .kind = WEIR_CPU_RACE_UNPINNED,
                                               .stream = stream,
                                               .write = c->direction == WEIR_WRITE_BACK,
                                               .address = copy.host };
        weir_cpu_race_report(&device->race, &report);
    }
}

void weir_cpu_copy_check(struct weir_cpu_device *device, const struct weir_cpu_op *op,
                         const struct weir_cpu_accessor *accessor)
{
    const struct weir_cpu_copy *c = &op->copy;
    const struct weir_run *runs = (const struct weir_run *)op->payload->data;
    bool load = c->direction == WEIR_LOAD;
    for (uint32_t tensor = 0; tensor < c->geometry->n_tensors; tensor++) {
        if (!has_layer(c->geometry, tensor, c->layer))
            continue;
        const struct weir_geometry_tensor *t = &c->geometry->tensors[tensor];
        for (uint32_t i = 0; i < c->n_runs; i++) {
            const struct weir_run *run = &runs[i];
            check_pinned(device, c, tensor, *run, accessor->component);
            weir_cpu_race_access(&device->race, accessor, c->device_pool, run->device, run->count,
                                 t->id, c->layer, load);
            weir_cpu_race_access(&device->race, accessor, t->shared ? c->shared_pool : c->host_pool,
                                 run->host, run->count, t->shared ? t->shared_id : t->id, c->layer,
                                 !load);
        }
    }
}

/* ---- Enqueueing ---------------------------------------------------------- */

static uint64_t layer_page_bytes(const struct weir_geometry *geometry, uint32_t layer)
{
    uint64_t bytes = 0;
    for (uint32_t tensor = 0; tensor < geometry->n_tensors; tensor++)
        if (has_layer(geometry, tensor, layer))
            bytes += geometry->tensors[tensor].page_bytes;
    return bytes;
}

/* One layer; `word` may be NULL. */
static int enqueue_layer(struct weir_cpu_device *device, weir_stream *stream,
                         const struct weir_transfer *transfer, uint32_t layer, uint64_t pages,
                         struct weir_cpu_word *word, struct weir_cpu_payload *runs)
{
    weir_cpu_call call =
        transfer->direction == WEIR_LOAD ? WEIR_CPU_CALL_COPY_LOAD : WEIR_CPU_CALL_COPY_WRITE_BACK;
    struct weir_cpu_op *op;
    int rc = weir_cpu_op_new(device, stream, call, WEIR_CPU_OP_COPY, word != NULL, &op);
    if (rc)
        return rc;
    op->word = word;
    op->value = transfer->generation;
    op->payload = runs;
    runs->refs++;
    op->copy =
        (struct weir_cpu_copy){ .geometry = transfer->geometry,
                                .direction = transfer->direction,
                                .layer = layer,
                                .n_runs = transfer->n_runs,
                                .device_pool = transfer->device_pool,
                                .host_pool = transfer->host_pool,
                                .shared_pool = transfer->shared_pool,
                                .bytes = pages * layer_page_bytes(transfer->geometry, layer) };
    return weir_cpu_submit(device, op);
}

static int enqueue_layers(struct weir_cpu_device *device, weir_stream *stream,
                          const struct weir_transfer *transfer, struct weir_cpu_word *words,
                          uint32_t *enqueued)
{
    if (atomic_load(&device->lost))
        return -EIO;
    struct weir_cpu_payload *runs =
        weir_cpu_payload_new(device, transfer->runs, transfer->n_runs * sizeof *transfer->runs);
    if (!runs)
        return -ENOMEM;
    uint64_t pages = weir_transfer_pages(transfer);
    int rc = 0;
    for (uint32_t layer = transfer->layer_begin; layer < transfer->layer_end && !rc; layer++) {
        struct weir_cpu_word *word = words ? &words[layer - transfer->layer_begin] : NULL;
        rc = enqueue_layer(device, stream, transfer, layer, pages, word, runs);
        if (!rc)
            *enqueued = layer + 1;
    }
    weir_cpu_payload_unref(device, runs);
    return rc;
}

/* Layer by layer, each with its event behind it. */
static int copy_recording(weir_device *base, weir_stream *stream,
                          const struct weir_transfer *transfer, uint32_t *enqueued)
{
    struct weir_transfer one = *transfer;
    one.events = NULL;
    int rc = 0;
    for (uint32_t layer = transfer->layer_begin; layer < transfer->layer_end && !rc; layer++) {
        one.layer_begin = layer;
        one.layer_end = layer + 1;
        rc = weir_cpu_copy(base, stream, &one, enqueued);
        if (!rc)
            rc = weir_cpu_event_record(base, transfer->events[layer], stream);
    }
    return rc;
}

int weir_cpu_copy(weir_device *base, weir_stream *stream, const struct weir_transfer *transfer,
                  uint32_t *enqueued)
{
    int rc = weir_cpu_check_stream(base, stream, "copy");
    if (rc)
        return rc;
    rc = weir_transfer_check(transfer, enqueued, &base->log);
    if (rc)
        return rc;
    if (transfer->events)
        return copy_recording(base, stream, transfer, enqueued);
    uint32_t n = transfer->layer_end - transfer->layer_begin;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_word *words = NULL;
    if (transfer->words && n > 0)
        words = weir_cpu_word_find(device, transfer->words + transfer->layer_begin, n);
    bool unknown = transfer->words && n > 0 && !words;
    if (!unknown)
        rc = enqueue_layers(device, stream, transfer, words, enqueued);
    weir_cpu_leave(device);
    if (unknown)
        return weir_invalid(&base->log, "copy: words %u..%u are not words of this device",
                            transfer->layer_begin, transfer->layer_end);
    return rc;
}
