/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BENCH_OPTIONS_H
#define WEIR_BENCH_OPTIONS_H

/* The options that all benchmarks share, and readers for the values of others.
 *
 *   weir-bench SUBJECT [its options] [--device … --repeats … --json …]
 *
 * A subject's argp names weir_bench_common_argp as a child and gives it a
 * struct weir_bench_common at ARGP_KEY_INIT. */

#include <weir/device.h>
#include <weir/shape.h>
#include <weir/transfer.h>

#include <argp.h>

enum weir_bench_exit {
    WEIR_BENCH_WRONG = 1,     /* a wrong byte, a failed transfer */
    WEIR_BENCH_BAD_INPUT = 2, /* options */
    WEIR_BENCH_BROKEN = 3     /* anything else */
};

struct weir_bench_common {
    weir_device_kind kind;
    uint32_t ordinal;
    uint32_t repeats;
    uint32_t warm_up;
    double link_gbps; /* of the CPU device's link; 0: unlimited */
    bool verify;
    bool plant_error;
    const char *json; /* NULL: none; "-": standard output, and no table */
};

struct weir_bench_common weir_bench_common_defaults(void);

extern const struct argp weir_bench_common_argp;
extern const struct argp_child weir_bench_common_children[];

#define WEIR_BENCH_LIST 32u

struct weir_bench_list {
    uint32_t n; /* 0: not given */
    uint32_t values[WEIR_BENCH_LIST];
};

/* Engines as a benchmark knows them: those of a transfer, and one that is not
 * weir's. */
enum {
    WEIR_BENCH_REGISTER = 4,
    WEIR_BENCH_ENGINES = 5
};

/* "register", or the transfer engine's name. */
const char *weir_bench_engine_name(uint32_t engine);

/* A ring as one number of a list: stages in the upper bits. */
#define WEIR_BENCH_RING(stages, stage_bytes) ((uint32_t)(stages) << 24 | (uint32_t)(stage_bytes))
#define WEIR_BENCH_RING_STAGES(ring) ((ring) >> 24)
#define WEIR_BENCH_RING_BYTES(ring) ((ring)&0xffffffu)

/* Each ends the program with a message if the text is no such value. */
void weir_bench_read_u32(struct argp_state *state, const char *name, const char *text,
                         uint32_t least, uint32_t most, uint32_t *value);
void weir_bench_read_bytes(struct argp_state *state, const char *name, const char *text,
                           uint64_t *bytes);
void weir_bench_read_double(struct argp_state *state, const char *name, const char *text,
                            double least, double most, double *value);
void weir_bench_read_list(struct argp_state *state, const char *name, const char *text,
                          uint32_t least, uint32_t most, struct weir_bench_list *list);
void weir_bench_read_rings(struct argp_state *state, const char *text,
                           struct weir_bench_list *list);

/* A list of names, each the name_of a value from 0 on; name_of gives NULL after
 * the last one. */
void weir_bench_read_names(struct argp_state *state, const char *name, const char *text,
                           const char *(*name_of)(uint32_t), struct weir_bench_list *list);

const char *weir_bench_layout_name(uint32_t layout);

#endif
