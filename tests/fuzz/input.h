/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_FUZZ_INPUT_H
#define WEIR_TESTS_FUZZ_INPUT_H

/* An input of libFuzzer as a source of numbers, front to back, zeros past its end. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t size;
};

static inline void require(bool condition)
{
    if (!condition)
        abort();
}

static inline void take(struct input *input, void *value, size_t bytes)
{
    size_t n = bytes < input->size ? bytes : input->size;
    memset(value, 0, bytes);
    if (n > 0)
        memcpy(value, input->data, n);
    input->data += n;
    input->size -= n;
}

/* 0..limit-1, by one byte if that is enough. */
static inline uint32_t take_below(struct input *input, uint32_t limit)
{
    uint16_t value = 0;
    take(input, &value, limit > 256 ? 2 : 1);
    return value % limit;
}

#endif
