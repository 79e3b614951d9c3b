/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/checks.h"

#include "device/device.h"

#include <errno.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- The object ----------------------------------------------------------- */

/* Room for a state wherever the block begins. */
#define STATE_BYTES (sizeof(XXH3_state_t) + _Alignof(XXH3_state_t))

static int create_queue(struct weir_checks *checks, struct weir_check_queue *queue)
{
    queue->items = weir_memory_take(checks->memory, checks->capacity, sizeof *queue->items);
    queue->block = weir_memory_take(checks->memory, 1, STATE_BYTES);
    if (!queue->items || !queue->block)
        return -ENOMEM;
    size_t alignment = _Alignof(XXH3_state_t);
    queue->state = queue->block + alignment - (uintptr_t)queue->block % alignment;
    return 0;
}

int weir_checks_create(struct weir_checks *checks, struct weir_memory *memory, uint32_t every,
                       uint32_t bytes, uint32_t host_pages, uint32_t capacity,
                       const struct weir_geometry *own, const struct weir_geometry *shared,
                       uint64_t *shared_sums)
{
    *checks = (struct weir_checks){ .memory = memory };
    if (every == 0 || capacity == 0)
        return 0;
    checks->capacity = capacity;
    checks->host_pages = host_pages;
    checks->own_sums = weir_memory_take(memory, host_pages, sizeof *checks->own_sums);
    int rc = checks->own_sums ? 0 : -ENOMEM;
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = create_queue(checks, &checks->queues[i]);
    if (rc)
        return rc;
    checks->every = every;
    checks->bytes = bytes;
    checks->parts[0] = (struct weir_check_part){ own, checks->own_sums };
    checks->parts[1] = (struct weir_check_part){ shared, shared_sums };
    return 0;
}

void weir_checks_destroy(struct weir_checks *checks)
{
    struct weir_memory *m = checks->memory;
    for (int i = 0; i < 2; i++) {
        struct weir_check_queue *queue = &checks->queues[i];
        weir_memory_give(m, queue->items, checks->capacity, sizeof *queue->items);
        weir_memory_give(m, queue->block, 1, STATE_BYTES);
    }
    weir_memory_give(m, checks->own_sums, checks->host_pages, sizeof *checks->own_sums);
    *checks = (struct weir_checks){ 0 };
}

/* ---- Queueing ------------------------------------------------------------- */

static void push(struct weir_checks *checks, enum weir_direction direction, int32_t host,
                 uint32_t parts)
{
    struct weir_check_queue *queue = &checks->queues[direction];
    if (parts && queue->tail - queue->head < checks->capacity)
        queue->items[queue->tail++ % checks->capacity] = (struct weir_check_item){ host, parts };
}

uint64_t weir_checks_load(struct weir_checks *checks, const weir_move *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n && checks->every; i++) {
        uint32_t parts = 0;
        for (uint32_t p = 0; p < 2; p++)
            if (checks->parts[p].geometry && checks->parts[p].sums[moves[i].host.id - 1])
                parts |= 1u << p;
        push(checks, WEIR_LOAD, moves[i].host.id, parts);
    }
    return checks->queues[WEIR_LOAD].tail;
}

uint64_t weir_checks_write(struct weir_checks *checks, const weir_move *moves, uint32_t n,
                           uint32_t begin, uint32_t end, bool failed)
{
    for (uint32_t i = 0; i < n && checks->every; i++) {
        uint32_t parts = checks->parts[0].geometry ? 1 : 0;
        if (checks->parts[1].geometry && i >= begin && i < end)
            parts |= 2;
        for (uint32_t p = 0; p < 2; p++)
            if (parts >> p & 1)
                checks->parts[p].sums[moves[i].host.id - 1] = 0;
        if (!failed && checks->n_written++ % checks->every == 0)
            push(checks, WEIR_WRITE_BACK, moves[i].host.id, parts);
    }
    return checks->queues[WEIR_WRITE_BACK].tail;
}

static void pop(struct weir_check_queue *queue)
{
    queue->head++;
    queue->cursor = (struct weir_check_cursor){ 0 };
}

void weir_checks_skip_writes(struct weir_checks *checks, uint64_t end)
{
    struct weir_check_queue *queue = &checks->queues[WEIR_WRITE_BACK];
    while (queue->head < end)
        pop(queue);
}

/* ---- Hashing -------------------------------------------------------------- */

/* The bytes that lie together at the cursor; false: the layer is over. */
static bool at_cursor(const struct weir_geometry *g, const struct weir_check_cursor *at,
                      int32_t host, const unsigned char **bytes, uint64_t *n)
{
    const struct weir_geometry_tensor *t = &g->tensors[at->tensor];
    bool has_layer = g->layer_index[(size_t)at->tensor * g->n_layers + at->layer] >= 0;
    if (!has_layer || at->unit == (t->host_contiguous ? 1 : g->page_tokens))
        return false;
    uint64_t address =
        weir_geometry_host(g, at->tensor, at->layer, (weir_host_page){ host }, at->unit);
    *bytes = (const unsigned char *)(uintptr_t)address + at->done;
    *n = (t->host_contiguous ? t->page_bytes : t->row_bytes) - at->done;
    return true;
}

/* Hashes of the tensors of a part what `*left` bytes are enough for; whether that was
 * all. */
static bool hash_part(struct weir_check_queue *queue, const struct weir_geometry *g, int32_t host,
                      uint64_t *left)
{
    struct weir_check_cursor *at = &queue->cursor;
    while (at->tensor < g->n_tensors) {
        const unsigned char *bytes;
        uint64_t n;
        if (at_cursor(g, at, host, &bytes, &n)) {
            if (*left == 0)
                return false;
            uint64_t taken = n < *left ? n : *left;
            XXH3_64bits_update(queue->state, bytes, taken);
            *left -= taken;
            at->done = taken < n ? at->done + taken : 0;
            at->unit += taken == n;
            continue;
        }
        at->unit = 0;
        if (++at->layer < g->n_layers)
            continue;
        at->layer = 0;
        at->tensor++;
    }
    return true;
}

/* Goes on with the part at the cursor; 0: not all of it yet. */
static uint64_t sum_part(struct weir_check_queue *queue, const struct weir_geometry *g,
                         int32_t host, uint64_t *left)
{
    struct weir_check_cursor *at = &queue->cursor;
    if (!at->begun)
        XXH3_64bits_reset(queue->state);
    at->begun = true;
    if (!hash_part(queue, g, host, left))
        return 0;
    *at = (struct weir_check_cursor){ .part = at->part };
    uint64_t sum = XXH3_64bits_digest(queue->state);
    return sum ? sum : 1;
}

/* Goes on with the sums of a queue's pages up to `end`: takes them behind a
 * write-back, compares them behind a load. BAD: *host is a page whose sum differs. */
static enum weir_check_result go_on(struct weir_checks *checks, enum weir_direction direction,
                                    uint64_t end, uint64_t *bytes, int32_t *host)
{
    struct weir_check_queue *queue = &checks->queues[direction];
    while (queue->head < end) {
        const struct weir_check_item *item = &queue->items[queue->head % checks->capacity];
        for (uint32_t *p = &queue->cursor.part; *p < 2; ++*p) {
            const struct weir_check_part *part = &checks->parts[*p];
            if (!(item->parts >> *p & 1))
                continue;
            uint64_t sum = sum_part(queue, part->geometry, item->host, bytes);
            uint64_t *kept = &part->sums[item->host - 1];
            if (sum == 0)
                return WEIR_CHECK_LATER;
            if (direction == WEIR_WRITE_BACK)
                *kept = sum;
            if (sum == *kept)
                continue;
            *host = item->host;
            pop(queue);
            return WEIR_CHECK_BAD;
        }
        pop(queue);
    }
    return WEIR_CHECK_DONE;
}

enum weir_check_result weir_checks_load_on(struct weir_checks *checks, uint64_t end,
                                           uint64_t *bytes, int32_t *host)
{
    return go_on(checks, WEIR_LOAD, end, bytes, host);
}

enum weir_check_result weir_checks_write_on(struct weir_checks *checks, uint64_t end,
                                            uint64_t *bytes)
{
    int32_t none;
    return go_on(checks, WEIR_WRITE_BACK, end, bytes, &none);
}
