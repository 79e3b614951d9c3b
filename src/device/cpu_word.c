/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "device/cpu.h"

#include <errno.h>
#include <stdlib.h>

#define WORD_ALIGN 64u

int weir_cpu_words_alloc(weir_device *base, uint32_t n, uint32_t **words)
{
    if (n == 0 || !words)
        return weir_invalid(&base->log, "words alloc: %s",
                            words ? "n is 0, must be at least 1" : "words is NULL");
    struct weir_cpu_device *device = weir_cpu_enter(base);
    uint64_t stall_round;
    int rc = weir_cpu_count(device, WEIR_CPU_CALL_WORDS_ALLOC, &stall_round);
    if (!rc) {
        size_t bytes = ((size_t)n * sizeof **words + WORD_ALIGN - 1) / WORD_ALIGN * WORD_ALIGN;
        uint32_t *values = aligned_alloc(WORD_ALIGN, bytes);
        struct weir_cpu_word *states = calloc(n, sizeof *states);
        rc = -ENOMEM;
        if (values && states)
            rc = weir_ranges_add(&device->words, values, (uint64_t)n * sizeof *values, states);
        if (rc) {
            free(values);
            free(states);
        } else {
            for (uint32_t i = 0; i < n; i++) {
                values[i] = 0;
                states[i].value = &values[i];
            }
            *words = values;
        }
    }
    weir_cpu_leave(device);
    return rc;
}

static void free_block(struct weir_cpu_device *device, const struct weir_range *block)
{
    struct weir_cpu_word *states = block->attached;
    size_t n = (block->end - block->begin) / sizeof(uint32_t);
    uint32_t *values = states[0].value;
    for (size_t i = 0; i < n; i++)
        weir_cpu_point_unref(&device->points, states[i].last);
    free(states);
    weir_ranges_remove(&device->words, values);
    free(values);
}

void weir_cpu_words_free(weir_device *base, uint32_t *words)
{
    if (!words)
        return;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    const struct weir_range *block =
        weir_ranges_find(&device->words, (uintptr_t)words, sizeof *words);
    if (block && block->begin == (uintptr_t)words)
        free_block(device, block);
    weir_cpu_leave(device);
}

void weir_cpu_free_words(struct weir_cpu_device *device)
{
    while (device->words.n > 0)
        free_block(device, &device->words.items[0]);
}

struct weir_cpu_word *weir_cpu_word_find(struct weir_cpu_device *device, const uint32_t *words,
                                         uint32_t n)
{
    uintptr_t address = (uintptr_t)words;
    const struct weir_range *block =
        weir_ranges_find(&device->words, address, (uint64_t)n * sizeof *words);
    if (!block || address % sizeof *words != 0)
        return NULL;
    return (struct weir_cpu_word *)block->attached + (address - block->begin) / sizeof *words;
}

void weir_cpu_word_publish(struct weir_cpu_device *device, struct weir_cpu_word *word,
                           uint32_t value, struct weir_cpu_point *point)
{
    struct weir_cpu_point *before = word->last;
    word->last = weir_cpu_point_ref(point);
    word->seen = false;
    weir_cpu_point_unref(&device->points, before);
    __atomic_store_n(word->value, value, __ATOMIC_RELEASE);
}

uint32_t weir_cpu_word_load(weir_device *base, const uint32_t *word)
{
    struct weir_cpu_device *device = weir_cpu_from(base);
    if (!device->check_races)
        return __atomic_load_n(word, __ATOMIC_ACQUIRE);
    weir_cpu_enter(base);
    struct weir_cpu_word *state = weir_cpu_word_find(device, word, 1);
    if (state && state->last && !state->seen) {
        weir_cpu_host_learns(device, state->last);
        state->seen = true;
    }
    uint32_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    weir_cpu_leave(device);
    return value;
}

void weir_cpu_word_store(weir_device *base, uint32_t *word, uint32_t value)
{
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_word *state = weir_cpu_word_find(device, word, 1);
    if (state) {
        weir_cpu_word_publish(device, state, value, device->host);
        weir_cpu_kick(device);
    }
    weir_cpu_leave(device);
    if (!state)
        weir_log_line(&base->log, WEIR_LOG_ERROR, "word store: %p is no word of this device",
                      (void *)word);
}

/* Both ways of using a word in a stream: MARK writes it. */
static int enqueue(weir_device *base, weir_stream *stream, const uint32_t *word, uint32_t value,
                   weir_cpu_call call, enum weir_cpu_op_kind kind)
{
    const char *name = kind == WEIR_CPU_OP_MARK ? "write word" : "wait word";
    int rc = weir_cpu_check_stream(base, stream, name);
    if (rc)
        return rc;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    struct weir_cpu_word *state = weir_cpu_word_find(device, word, 1);
    if (state) {
        struct weir_cpu_op *op;
        rc = weir_cpu_op_new(device, stream, call, kind, kind == WEIR_CPU_OP_MARK, &op);
        if (!rc) {
            op->word = state;
            op->value = value;
            rc = weir_cpu_submit(device, op);
        }
    }
    weir_cpu_leave(device);
    if (!state)
        return weir_invalid(&base->log, "%s: word %p is no word of this device", name,
                            (const void *)word);
    return rc;
}

int weir_cpu_stream_write_word(weir_device *base, weir_stream *stream, uint32_t *word,
                               uint32_t value)
{
    return enqueue(base, stream, word, value, WEIR_CPU_CALL_STREAM_WRITE_WORD, WEIR_CPU_OP_MARK);
}

int weir_cpu_stream_wait_word(weir_device *base, weir_stream *stream, const uint32_t *word,
                              uint32_t value)
{
    return enqueue(base, stream, word, value, WEIR_CPU_CALL_STREAM_WAIT_WORD,
                   WEIR_CPU_OP_WAIT_WORD);
}
