/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include "pattern.h"

#include "device/device.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#define DEVICES 64u /* that are faulty at a time */

struct weir_faults {
    weir_device *device;
    const struct weir_device_ops *real;
    struct weir_device_ops table;
    uint32_t *word; /* copies wait for it to reach their number */
    uint32_t fail_share;
    uint32_t stall_share;
    atomic_uint_fast64_t random;
    atomic_uint stalls; /* numbers given so far */
    atomic_bool stopped;
    atomic_uint_fast64_t failed;
};

/* The tables are found by device: calls carry nothing else. */
static struct weir_faults *all[DEVICES];
static _Thread_local bool armed_here;

static struct weir_faults *faults_of(const weir_device *device)
{
    for (uint32_t i = 0; i < DEVICES; i++)
        if (all[i] && all[i]->device == device)
            return all[i];
    return NULL; /* not reached: only faulty devices have the table */
}

static uint64_t draw(struct weir_faults *faults)
{
    uint64_t n = atomic_fetch_add(&faults->random, 1);
    return weir_pattern_mix(n, UINT64_C(0x9e3779b97f4a7c15));
}

static bool strikes(struct weir_faults *faults, uint32_t share)
{
    return armed_here && !atomic_load(&faults->stopped) && draw(faults) % 65536 < share;
}

static bool fails(struct weir_faults *faults)
{
    if (!strikes(faults, faults->fail_share))
        return false;
    atomic_fetch_add(&faults->failed, 1);
    return true;
}

/* ---- The table ----------------------------------------------------------- */

static int event_record(weir_device *device, weir_event *event, weir_stream *stream)
{
    struct weir_faults *faults = faults_of(device);
    return fails(faults) ? -EIO : faults->real->event_record(device, event, stream);
}

static int stream_wait_event(weir_device *device, weir_stream *stream, weir_event *event)
{
    struct weir_faults *faults = faults_of(device);
    return fails(faults) ? -EIO : faults->real->stream_wait_event(device, stream, event);
}

static int stream_write_word(weir_device *device, weir_stream *stream, uint32_t *word,
                             uint32_t value)
{
    struct weir_faults *faults = faults_of(device);
    return fails(faults) ? -EIO : faults->real->stream_write_word(device, stream, word, value);
}

static int stream_wait_word(weir_device *device, weir_stream *stream, const uint32_t *word,
                            uint32_t value)
{
    struct weir_faults *faults = faults_of(device);
    return fails(faults) ? -EIO : faults->real->stream_wait_word(device, stream, word, value);
}

static int copy(weir_device *device, weir_stream *stream, const struct weir_transfer *transfer,
                uint32_t *enqueued)
{
    struct weir_faults *faults = faults_of(device);
    if (strikes(faults, faults->stall_share)) {
        uint32_t number = atomic_fetch_add(&faults->stalls, 1) + 1;
        (void)faults->real->stream_wait_word(device, stream, faults->word, number);
    }
    if (!fails(faults))
        return faults->real->copy(device, stream, transfer, enqueued);
    struct weir_transfer part = *transfer;
    uint32_t layers = transfer->layer_end - transfer->layer_begin;
    part.layer_end = transfer->layer_begin + (uint32_t)(draw(faults) % layers);
    *enqueued = transfer->layer_begin;
    int rc =
        part.layer_end > part.layer_begin ? faults->real->copy(device, stream, &part, enqueued) : 0;
    return rc ? rc : -EIO;
}

/* ---- Opening and closing ------------------------------------------------- */

int weir_faults_open(struct weir_faults **faults, weir_device *device, uint64_t seed,
                     uint32_t fail_share, uint32_t stall_share)
{
    uint32_t slot = 0;
    while (slot < DEVICES && all[slot])
        slot++;
    struct weir_faults *made = slot < DEVICES ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return -ENOMEM;
    made->device = device;
    made->real = device->ops;
    made->fail_share = fail_share;
    made->stall_share = stall_share;
    atomic_init(&made->random, weir_pattern_mix(seed, slot));
    int rc = made->real->words_alloc(device, 1, &made->word);
    if (rc) {
        free(made);
        return rc;
    }
    made->table = *made->real;
    made->table.event_record = event_record;
    made->table.stream_wait_event = stream_wait_event;
    made->table.stream_write_word = stream_write_word;
    made->table.stream_wait_word = stream_wait_word;
    made->table.copy = copy;
    device->ops = &made->table;
    all[slot] = made;
    *faults = made;
    return 0;
}

void weir_faults_close(struct weir_faults **faults)
{
    struct weir_faults *closed = *faults;
    if (!closed)
        return;
    weir_faults_stop(closed);
    for (uint32_t i = 0; i < DEVICES; i++)
        if (all[i] == closed)
            all[i] = NULL;
    closed->device->ops = closed->real;
    closed->real->words_free(closed->device, closed->word);
    free(closed);
    *faults = NULL;
}

void weir_faults_arm(bool armed)
{
    armed_here = armed;
}

void weir_faults_release(struct weir_faults *faults)
{
    faults->real->word_store(faults->device, faults->word, atomic_load(&faults->stalls));
}

/* A stall that is given out while this runs has its number before `stopped` is
 * seen, or never begins; so the store covers it, or the word is far ahead. */
void weir_faults_stop(struct weir_faults *faults)
{
    atomic_store(&faults->stopped, true);
    faults->real->word_store(faults->device, faults->word,
                             atomic_load(&faults->stalls) + (1u << 30));
}

void weir_faults_count(const struct weir_faults *faults, uint64_t *failed, uint64_t *stalled)
{
    *failed = atomic_load(&faults->failed);
    *stalled = atomic_load(&faults->stalls);
}
