/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/policy.h>

#include <errno.h>
#include <string.h>

/* The built-in write-back policies. Each is a function of the page's facts and
 * of one number, so that the same facts always get the same answer. */

#define SELECTIVE_DEFAULT 2u
#define SELECTIVE_MAX 1000u

#define ADAPTIVE_HITS 2u
#define ADAPTIVE_WRITES_A_HIT 4u
#define ADAPTIVE_ROOM_SHARE 16u /* a 16th of the tier: more than one long prompt's pages */

static weir_write_answer write_through(const weir_write_facts *facts, uint32_t parameter)
{
    (void)parameter;
    return facts->event == WEIR_WRITE_ON_EVICT ? WEIR_WRITE_DROP : WEIR_WRITE_NOW;
}

static weir_write_answer write_through_selective(const weir_write_facts *facts, uint32_t parameter)
{
    if (facts->event == WEIR_WRITE_ON_EVICT)
        return WEIR_WRITE_DROP;
    return facts->hits >= parameter ? WEIR_WRITE_NOW : WEIR_WRITE_LATER;
}

static weir_write_answer write_back(const weir_write_facts *facts, uint32_t parameter)
{
    (void)parameter;
    return facts->event == WEIR_WRITE_ON_EVICT ? WEIR_WRITE_NOW : WEIR_WRITE_LATER;
}

static weir_write_answer never(const weir_write_facts *facts, uint32_t parameter)
{
    (void)parameter;
    return facts->event == WEIR_WRITE_ON_EVICT ? WEIR_WRITE_DROP : WEIR_WRITE_LATER;
}

/* Whether the host tier pays for a page with another one, and to little avail.
 *
 * What the tier keeps free or offered at any rate is no sign of room: a full
 * tier has that too. So only what it has beyond that counts, and it must be
 * more than a share, for all pages of a prompt are asked about before any takes
 * room. But a tier that is large for its load is full as well after a while,
 * and what it gives up is cold; there a threshold would give hits away. A small
 * one loses pages before they are asked for again, which shows in that few of
 * those written are ever hit. Choosing raises that share, so the answers
 * settle at about so many writes a hit. */
static bool under_pressure(const weir_write_facts *facts)
{
    uint64_t kept = (uint64_t)facts->host_window + facts->host_pages / ADAPTIVE_ROOM_SHARE;
    return facts->host_room <= kept &&
           facts->host_hits < facts->host_written / ADAPTIVE_WRITES_A_HIT;
}

static weir_write_answer adaptive(const weir_write_facts *facts, uint32_t parameter)
{
    (void)parameter;
    if (facts->event == WEIR_WRITE_ON_EVICT)
        return WEIR_WRITE_DROP;
    if (facts->hits >= ADAPTIVE_HITS || !under_pressure(facts))
        return WEIR_WRITE_NOW;
    return WEIR_WRITE_LATER;
}

/* max_parameter 0: the name stands alone. */
static const struct built_in {
    weir_write_policy policy;
    uint32_t max_parameter;
} built_ins[] = {
    { { "write_through", write_through, 0 }, 0 },
    { { "write_through_selective", write_through_selective, SELECTIVE_DEFAULT }, SELECTIVE_MAX },
    { { "write_back", write_back, 0 }, 0 },
    { { "never", never, 0 }, 0 },
    { { "adaptive", adaptive, 0 }, 0 },
};

#define N_BUILT_INS (sizeof built_ins / sizeof *built_ins)

/* Exactly "(n)": decimal digits without sign, space or leading zero, 1..max. */
static bool parse_parameter(const char *text, uint32_t max, uint32_t *parameter)
{
    uint32_t value = 0;
    if (*text++ != '(' || *text == '0')
        return false;
    for (; *text >= '0' && *text <= '9'; text++) {
        value = value * 10 + (uint32_t)(*text - '0');
        if (value > max)
            return false;
    }
    if (value == 0 || strcmp(text, ")") != 0)
        return false;
    *parameter = value;
    return true;
}

int weir_write_policy_parse(const char *text, weir_write_policy *policy)
{
    if (!text || !policy)
        return -EINVAL;
    size_t name_length = strcspn(text, "(");
    for (size_t i = 0; i < N_BUILT_INS; i++) {
        weir_write_policy found = built_ins[i].policy;
        if (strlen(found.name) != name_length || memcmp(found.name, text, name_length) != 0)
            continue;
        if (text[name_length] &&
            !parse_parameter(text + name_length, built_ins[i].max_parameter, &found.parameter))
            return -EINVAL;
        *policy = found;
        return 0;
    }
    return -EINVAL;
}

const char *weir_write_policy_name_at(size_t i)
{
    return i < N_BUILT_INS ? built_ins[i].policy.name : NULL;
}
