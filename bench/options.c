/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "numbers.h"

#include <stdio.h>
#include <string.h>

enum {
    KEY_DEVICE = 512,
    KEY_ORDINAL,
    KEY_REPEATS,
    KEY_WARM_UP,
    KEY_LINK_GBPS,
    KEY_NO_VERIFY,
    KEY_PLANT_ERROR,
    KEY_JSON
};

static const struct argp_option common_options[] = {
    { 0, 0, 0, 0, "How it is measured:", 8 },
    { "device", KEY_DEVICE, "cpu|cuda|auto", 0, "auto: CUDA if there is a GPU (auto)", 0 },
    { "gpu", KEY_ORDINAL, "N", 0, "Which GPU (0)", 0 },
    { "repeats", KEY_REPEATS, "N", 0, "Timed calls of each mode (7)", 0 },
    { "warm-up", KEY_WARM_UP, "N", 0, "Calls of each mode before them (2)", 0 },
    { "link-gbps", KEY_LINK_GBPS, "RATE", 0,
      "The CPU device's link, a direction; 0: as fast as memcpy (10)", 0 },
    { "no-verify", KEY_NO_VERIFY, 0, 0, "Do not compare what was copied", 0 },
    { "plant-error", KEY_PLANT_ERROR, 0, 0,
      "Damage what was copied before each comparison, to see that it is found", 0 },
    { 0, 0, 0, 0, "The result:", 9 },
    { "json", KEY_JSON, "FILE", 0, "Write it as JSON; -: to standard output, without a table", 0 },
    { 0, 0, 0, 0, 0, 0 }
};

struct weir_bench_common weir_bench_common_defaults(void)
{
    return (struct weir_bench_common){
        .kind = WEIR_DEVICE_AUTO, .repeats = 7, .warm_up = 2, .link_gbps = 10, .verify = true
    };
}

static void read_device(struct argp_state *state, const char *text, weir_device_kind *kind)
{
    if (strcmp(text, "cpu") == 0)
        *kind = WEIR_DEVICE_CPU;
    else if (strcmp(text, "cuda") == 0)
        *kind = WEIR_DEVICE_CUDA;
    else if (strcmp(text, "auto") == 0)
        *kind = WEIR_DEVICE_AUTO;
    else
        argp_error(state, "--device %s is unknown; there are: cpu, cuda, auto", text);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct weir_bench_common *common = state->input;
    switch (key) {
    case KEY_DEVICE:
        read_device(state, text, &common->kind);
        break;
    case KEY_ORDINAL:
        weir_bench_read_u32(state, "gpu", text, 0, 1023, &common->ordinal);
        break;
    case KEY_REPEATS:
        weir_bench_read_u32(state, "repeats", text, 1, 100000, &common->repeats);
        break;
    case KEY_WARM_UP:
        weir_bench_read_u32(state, "warm-up", text, 0, 1000, &common->warm_up);
        break;
    case KEY_LINK_GBPS:
        weir_bench_read_double(state, "link-gbps", text, 0, 1e6, &common->link_gbps);
        break;
    case KEY_NO_VERIFY:
        common->verify = false;
        break;
    case KEY_PLANT_ERROR:
        common->plant_error = true;
        break;
    case KEY_JSON:
        common->json = text;
        break;
    case ARGP_KEY_ARG: /* no subject takes any */
        argp_error(state, "%s is no option", text);
        break;
    case ARGP_KEY_END:
        if (common->plant_error && !common->verify)
            argp_error(state, "--plant-error needs the comparison that --no-verify leaves out");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

const struct argp weir_bench_common_argp = { common_options, parse, NULL, NULL, NULL, NULL, NULL };
const struct argp_child weir_bench_common_children[] = { { &weir_bench_common_argp, 0, NULL, 0 },
                                                         { 0 } };

/* ---- Values --------------------------------------------------------------- */

void weir_bench_read_u32(struct argp_state *state, const char *name, const char *text,
                         uint32_t least, uint32_t most, uint32_t *value)
{
    uint64_t number = least;
    if (!weir_read_number(&text, 0, least, most, &number))
        argp_error(state, "--%s must be an integer from %u to %u", name, least, most);
    *value = (uint32_t)number;
}

void weir_bench_read_bytes(struct argp_state *state, const char *name, const char *text,
                           uint64_t *bytes)
{
    if (!weir_read_number(&text, 0, 1, UINT64_C(1) << 44, bytes))
        argp_error(state, "--%s must be an integer from 1 to 2^44", name);
}

void weir_bench_read_double(struct argp_state *state, const char *name, const char *text,
                            double least, double most, double *value)
{
    char *rest;
    double number = strtod(text, &rest);
    if (rest == text || *rest || !(number >= least && number <= most))
        argp_error(state, "--%s must be a number from %g to %g", name, least, most);
    *value = number;
}

static void append(struct argp_state *state, const char *name, struct weir_bench_list *list,
                   uint32_t value)
{
    if (list->n == WEIR_BENCH_LIST)
        argp_error(state, "--%s has more than %u values", name, WEIR_BENCH_LIST);
    else
        list->values[list->n++] = value;
}

void weir_bench_read_list(struct argp_state *state, const char *name, const char *text,
                          uint32_t least, uint32_t most, struct weir_bench_list *list)
{
    list->n = 0;
    bool more = true;
    while (more) {
        uint64_t number = least;
        more = strchr(text, ',') != NULL;
        if (!weir_read_number(&text, more ? ',' : 0, least, most, &number))
            argp_error(state, "--%s must be integers from %u to %u with commas between them", name,
                       least, most);
        append(state, name, list, (uint32_t)number);
    }
}

void weir_bench_read_rings(struct argp_state *state, const char *text, struct weir_bench_list *list)
{
    list->n = 0;
    bool more = true;
    while (more) {
        uint64_t stages = 0;
        uint64_t bytes = 0;
        more = strchr(text, ',') != NULL;
        if (!weir_read_number(&text, 'x', 1, 64, &stages) ||
            !weir_read_number(&text, more ? ',' : 0, 1, 1u << 20, &bytes))
            argp_error(state, "--rings must be STAGESxBYTES, such as 6x32768, with commas between");
        append(state, "rings", list, WEIR_BENCH_RING(stages, bytes));
    }
}

static void complain_of_name(struct argp_state *state, const char *name, size_t length,
                             const char *text, const char *(*name_of)(uint32_t))
{
    char names[256] = "";
    for (uint32_t i = 0; name_of(i); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", name_of(i));
    }
    argp_error(state, "--%s: %.*s is unknown; there are: %s", name, (int)length, text, names);
}

void weir_bench_read_names(struct argp_state *state, const char *name, const char *text,
                           const char *(*name_of)(uint32_t), struct weir_bench_list *list)
{
    list->n = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        uint32_t value = 0;
        const char *known;
        while ((known = name_of(value)) &&
               (strlen(known) != length || strncmp(known, text, length) != 0))
            value++;
        if (!known)
            complain_of_name(state, name, length, text, name_of);
        append(state, name, list, value);
        if (!text[length])
            return;
        text += length + 1;
    }
}

const char *weir_bench_engine_name(uint32_t engine)
{
    return engine == WEIR_BENCH_REGISTER ? "register" : weir_transfer_engine_name(engine);
}

const char *weir_bench_layout_name(uint32_t layout)
{
    return weir_host_layout_name(layout);
}
