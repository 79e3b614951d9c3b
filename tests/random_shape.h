/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_RANDOM_SHAPE_H
#define WEIR_TESTS_RANDOM_SHAPE_H

#include "random.h"

#include <weir/shape.h>

#define RANDOM_SHAPE_TENSORS 5u
#define RANDOM_SHAPE_LAYERS 6u

/* A shape with all that it points to; it must not be moved. */
struct random_shape {
    weir_shape shape;
    weir_tensor tensors[RANDOM_SHAPE_TENSORS];
    uint32_t layers[RANDOM_SHAPE_TENSORS][RANDOM_SHAPE_LAYERS];
};

static inline void random_tensor(struct random *random, struct random_shape *s, uint32_t index,
                                 bool opaque)
{
    static const uint32_t row_bytes[] = { 1, 3, 16, 132, 576, 656, 1152, 65536 };
    weir_tensor *t = &s->tensors[index];
    *t = (weir_tensor){ .row_bytes = row_bytes[random_below(random, 8)] };
    t->page_bytes = (uint64_t)t->row_bytes * s->shape.page_tokens;
    if (opaque) {
        t->row_bytes = 0;
        t->page_bytes = 1 + random_below(random, 5000);
    }
    if (random_percent(random, 50))
        return;
    for (uint32_t l = 0; l < s->shape.n_layers; l++) {
        bool must = l + 1 == s->shape.n_layers && t->n_layers == 0;
        if (must || random_percent(random, 50))
            s->layers[index][t->n_layers++] = l;
    }
    t->layers = s->layers[index];
}

/* 1..5 tensors, with rows or opaque, on all or some of 1..6 layers. A page has
 * at most max_page_bytes, which is 65536 or more. */
static inline void random_shape(struct random *random, struct random_shape *s, bool allow_opaque,
                                uint64_t max_page_bytes)
{
    static const uint32_t page_tokens[] = { 1, 2, 3, 4, 8, 16, 64 };
    uint64_t bytes = 0;
    do {
        s->shape = (weir_shape){
            .page_tokens = page_tokens[random_below(random, 7)],
            .n_layers = 1 + random_below(random, RANDOM_SHAPE_LAYERS),
            .n_tensors = 1 + random_below(random, RANDOM_SHAPE_TENSORS),
            .tensors = s->tensors,
        };
        for (uint32_t i = 0; i < s->shape.n_tensors; i++)
            random_tensor(random, s, i, allow_opaque && random_percent(random, 30));
    } while (weir_shape_page_bytes(&s->shape, NULL, &bytes) || bytes > max_page_bytes);
}

#endif
