/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/order.h>

#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* The bytes of an order and of a report, in units of eight, so that no byte is
 * padding and every bit is covered by a rule or by the checksum.
 *
 *   frame   magic u32, version u32, bytes of the whole u64, checksum u64
 *   order   step u64, write_ticket u64, device_pages u32, host_pages u32,
 *           n_fences … n_copies 8 x u32,
 *           fences, load_fences, write_fences, joins     u64 each
 *           loads, writes                                device i32, host i32
 *           cancels                                      number u64, kind u32, unused u32
 *           copies                                       from i32, to i32, load u64
 *   report  n_items u64,
 *           items                                        number u64, rc i32, kind u32
 *
 * Numbers are in the machine's byte order: read in the other one, the magic is
 * wrong. */
#define ORDER_MAGIC UINT32_C(0x524f5257)
#define REPORT_MAGIC UINT32_C(0x50525257)
#define FORMAT_VERSION UINT32_C(2)

struct frame {
    uint32_t magic;
    uint32_t version;
    uint64_t bytes;
    uint64_t checksum;
};

struct order_head {
    struct frame frame;
    uint64_t step;
    uint64_t write_ticket;
    uint32_t device_pages;
    uint32_t host_pages;
    uint32_t n_fences;
    uint32_t n_load_fences;
    uint32_t n_write_fences;
    uint32_t n_joins;
    uint32_t n_loads;
    uint32_t n_writes;
    uint32_t n_cancels;
    uint32_t n_copies;
};

struct report_head {
    struct frame frame;
    uint64_t n_items;
};

_Static_assert(sizeof(struct order_head) == 80 && sizeof(struct report_head) == 32,
               "heads without padding");
_Static_assert(sizeof(weir_move) == 8 && sizeof(weir_report_item) == 16 &&
                   sizeof(weir_cancel) == 16 && sizeof(weir_page_copy) == 16,
               "items without padding");

#define MAX_REPORT_ITEMS ((SIZE_MAX - sizeof(struct report_head)) / sizeof(weir_report_item))

/* ---- Frame --------------------------------------------------------------- */

static uint64_t checksum(const void *bytes, size_t n)
{
    const struct frame *frame = bytes;
    uint64_t seed = XXH3_64bits(frame, offsetof(struct frame, checksum));
    return XXH3_64bits_withSeed(frame + 1, n - sizeof *frame, seed);
}

/* Can `n` bytes go to `buffer`? */
static int check_buffer(const char *what, const void *buffer, size_t capacity, size_t n,
                        const size_t *bytes, const weir_log *log)
{
    if (!buffer || !bytes)
        return weir_invalid(log, "%s: %s must not be NULL", what, buffer ? "bytes" : "buffer");
    if ((uintptr_t)buffer % 8)
        return weir_invalid(log, "%s: buffer must be 8-byte aligned", what);
    return capacity < n ? -ENOSPC : 0;
}

static void seal(void *bytes, size_t n, uint32_t magic)
{
    struct frame *frame = bytes;
    *frame = (struct frame){ .magic = magic, .version = FORMAT_VERSION, .bytes = n };
    frame->checksum = checksum(bytes, n);
}

/* After this the head can be read, and all bytes are as they were sealed. */
static int check_frame(const char *what, const void *bytes, size_t n, uint32_t magic,
                       size_t head_bytes, const weir_log *log)
{
    if (!bytes)
        return weir_invalid(log, "%s: bytes must not be NULL", what);
    if ((uintptr_t)bytes % 8)
        return weir_invalid(log, "%s: bytes must be 8-byte aligned", what);
    if (n < head_bytes)
        return weir_invalid(log, "%s: truncated to %zu bytes, the head alone has %zu", what, n,
                            head_bytes);
    const struct frame *frame = bytes;
    if (frame->magic != magic)
        return weir_invalid(log, "%s: magic is %#" PRIx32 ", must be %#" PRIx32, what, frame->magic,
                            magic);
    if (frame->version != FORMAT_VERSION)
        return weir_invalid(log, "%s: version is %" PRIu32 ", must be %" PRIu32, what,
                            frame->version, FORMAT_VERSION);
    if (frame->bytes != n)
        return weir_invalid(log, "%s: %zu bytes were given, must be %" PRIu64, what, n,
                            frame->bytes);
    if (frame->checksum != checksum(bytes, n))
        return weir_invalid(log, "%s: corrupted, its checksum must be %#" PRIx64, what,
                            frame->checksum);
    return 0;
}

/* ---- Order: rules -------------------------------------------------------- */

static int check_steps(const char *name, const uint64_t *steps, uint32_t n, uint64_t last,
                       const weir_log *log)
{
    if (n && !steps)
        return weir_invalid(log, "order: %s must not be NULL with a count of %u", name, n);
    uint64_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (steps[i] <= before || steps[i] > last)
            return weir_invalid(
                log, "order: %s[%u] is %" PRIu64 ", must be above %" PRIu64 " and at most %" PRIu64,
                name, i, steps[i], before, last);
        before = steps[i];
    }
    return 0;
}

static bool is_page(int32_t id, uint32_t pages)
{
    return id > 0 && (uint32_t)id <= pages;
}

static int check_moves(const char *name, const weir_move *moves, uint32_t n,
                       const weir_order *order, const weir_log *log)
{
    if (n && !moves)
        return weir_invalid(log, "order: %s must not be NULL with a count of %u", name, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!is_page(moves[i].device.id, order->device_pages))
            return weir_invalid(log, "order: %s[%u].device is %d, must be 1..%u", name, i,
                                moves[i].device.id, order->device_pages);
        if (!is_page(moves[i].host.id, order->host_pages))
            return weir_invalid(log, "order: %s[%u].host is %d, must be 1..%u", name, i,
                                moves[i].host.id, order->host_pages);
    }
    return 0;
}

static int check_cancels(const weir_order *o, const weir_log *log)
{
    if (o->n_cancels && !o->cancels)
        return weir_invalid(log, "order: cancels must not be NULL with a count of %u",
                            o->n_cancels);
    weir_cancel before = { 0, WEIR_REPORT_LOAD, 0 };
    for (uint32_t i = 0; i < o->n_cancels; i++) {
        const weir_cancel *cancel = &o->cancels[i];
        bool load = cancel->kind == WEIR_REPORT_LOAD;
        if ((!load && cancel->kind != WEIR_REPORT_WRITE_BACK) || cancel->kind < before.kind ||
            cancel->unused)
            return weir_invalid(log,
                                "order: cancels[%u] has kind %u and unused %u, must be %d, then "
                                "%d, and 0",
                                i, cancel->kind, cancel->unused, WEIR_REPORT_LOAD,
                                WEIR_REPORT_WRITE_BACK);
        uint64_t least = cancel->kind == before.kind ? before.number : 0;
        if (cancel->number <= least ||
            (load ? cancel->number >= o->step : cancel->number == o->write_ticket))
            return weir_invalid(log,
                                "order: cancels[%u] is %" PRIu64 ", must be above %" PRIu64
                                " and not of step %" PRIu64 " or later",
                                i, cancel->number, least, o->step);
        before = *cancel;
    }
    return 0;
}

/* Whether the order begins or joins the load of this step. */
static bool has_load(const weir_order *o, uint64_t step)
{
    if (step == o->step)
        return o->n_loads > 0;
    uint32_t first = 0;
    for (uint32_t n = o->n_joins; n > 0;) {
        uint32_t half = n / 2;
        if (o->joins[first + half] < step) {
            first += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return first < o->n_joins && o->joins[first] == step;
}

/* A cancelled load may be dropped, and nothing waits for it. */
static bool cancels_load(const weir_order *o, uint64_t step)
{
    for (uint32_t i = 0; i < o->n_cancels && o->cancels[i].kind == WEIR_REPORT_LOAD; i++)
        if (o->cancels[i].number == step)
            return true;
    return false;
}

/* The joins and the cancels have been checked. */
static int check_copies(const weir_order *o, const weir_log *log)
{
    if (o->n_copies && !o->copies)
        return weir_invalid(log, "order: copies must not be NULL with a count of %u", o->n_copies);
    for (uint32_t i = 0; i < o->n_copies; i++) {
        const weir_page_copy *copy = &o->copies[i];
        if (!is_page(copy->from.id, o->device_pages) || !is_page(copy->to.id, o->device_pages) ||
            copy->from.id == copy->to.id)
            return weir_invalid(log,
                                "order: copies[%u] is from %d to %d, must be two pages of 1..%u", i,
                                copy->from.id, copy->to.id, o->device_pages);
        if (copy->load && (!has_load(o, copy->load) || cancels_load(o, copy->load)))
            return weir_invalid(log,
                                "order: copies[%u].load is %" PRIu64
                                ", must be 0 or a step whose load is begun or joined, and "
                                "not cancelled",
                                i, copy->load);
    }
    return 0;
}

static int check_order(const weir_order *o, const weir_log *log)
{
    if (o->step == 0)
        return weir_invalid(log, "order: step is 0, must be 1 or more");
    if ((o->write_ticket != 0) != (o->n_writes != 0))
        return weir_invalid(log,
                            "order: write_ticket is %" PRIu64 ", must be %s with n_writes %" PRIu32,
                            o->write_ticket, o->n_writes ? "1 or more" : "0", o->n_writes);
    int rc = check_steps("fences", o->fences, o->n_fences, o->step - 1, log);
    if (!rc)
        rc = check_steps("load_fences", o->load_fences, o->n_load_fences, o->step - 1, log);
    if (!rc)
        rc = check_steps("write_fences", o->write_fences, o->n_write_fences, o->step, log);
    if (!rc)
        rc = check_steps("joins", o->joins, o->n_joins, o->step - 1, log);
    if (!rc)
        rc = check_moves("loads", o->loads, o->n_loads, o, log);
    if (!rc)
        rc = check_moves("writes", o->writes, o->n_writes, o, log);
    if (!rc)
        rc = check_cancels(o, log);
    if (!rc)
        rc = check_copies(o, log);
    return rc;
}

/* ---- Order: bytes -------------------------------------------------------- */

/* Eight counts below 2^32 of eight or sixteen bytes each: no overflow. */
static uint64_t encoded_bytes(const weir_order *o)
{
    uint64_t n = (uint64_t)o->n_fences + o->n_load_fences + o->n_write_fences + o->n_joins +
                 o->n_loads + o->n_writes;
    return sizeof(struct order_head) + 8 * n + sizeof(weir_cancel) * (uint64_t)o->n_cancels +
           sizeof(weir_page_copy) * (uint64_t)o->n_copies;
}

size_t weir_order_bytes(const weir_order *order)
{
    return order ? (size_t)encoded_bytes(order) : 0;
}

static void append(char **end, const void *items, size_t bytes)
{
    if (bytes == 0)
        return;
    memcpy(*end, items, bytes);
    *end += bytes;
}

int weir_order_encode(const weir_order *order, void *buffer, size_t capacity, size_t *bytes,
                      const weir_log *log)
{
    if (!order)
        return weir_invalid(log, "order: must not be NULL");
    size_t n = weir_order_bytes(order);
    int rc = check_buffer("order", buffer, capacity, n, bytes, log);
    if (!rc)
        rc = check_order(order, log);
    if (rc)
        return rc;

    struct order_head *head = buffer;
    *head = (struct order_head){
        .step = order->step,
        .write_ticket = order->write_ticket,
        .device_pages = order->device_pages,
        .host_pages = order->host_pages,
        .n_fences = order->n_fences,
        .n_load_fences = order->n_load_fences,
        .n_write_fences = order->n_write_fences,
        .n_joins = order->n_joins,
        .n_loads = order->n_loads,
        .n_writes = order->n_writes,
        .n_cancels = order->n_cancels,
        .n_copies = order->n_copies,
    };
    char *end = (char *)(head + 1);
    append(&end, order->fences, order->n_fences * sizeof *order->fences);
    append(&end, order->load_fences, order->n_load_fences * sizeof *order->load_fences);
    append(&end, order->write_fences, order->n_write_fences * sizeof *order->write_fences);
    append(&end, order->joins, order->n_joins * sizeof *order->joins);
    append(&end, order->loads, order->n_loads * sizeof *order->loads);
    append(&end, order->writes, order->n_writes * sizeof *order->writes);
    append(&end, order->cancels, order->n_cancels * sizeof *order->cancels);
    append(&end, order->copies, order->n_copies * sizeof *order->copies);
    seal(buffer, n, ORDER_MAGIC);
    *bytes = n;
    return 0;
}

int weir_order_decode(weir_order *order, const void *bytes, size_t n, const weir_log *log)
{
    if (!order)
        return weir_invalid(log, "order: must not be NULL");
    int rc = check_frame("order", bytes, n, ORDER_MAGIC, sizeof(struct order_head), log);
    if (rc)
        return rc;
    const struct order_head *head = bytes;
    weir_order o = {
        .step = head->step,
        .write_ticket = head->write_ticket,
        .device_pages = head->device_pages,
        .host_pages = head->host_pages,
        .n_fences = head->n_fences,
        .n_load_fences = head->n_load_fences,
        .n_write_fences = head->n_write_fences,
        .n_joins = head->n_joins,
        .n_loads = head->n_loads,
        .n_writes = head->n_writes,
        .n_cancels = head->n_cancels,
        .n_copies = head->n_copies,
    };
    if (encoded_bytes(&o) != n)
        return weir_invalid(log, "order: has %zu bytes, its counts need %" PRIu64, n,
                            encoded_bytes(&o));
    o.fences = (const uint64_t *)(head + 1);
    o.load_fences = o.fences + o.n_fences;
    o.write_fences = o.load_fences + o.n_load_fences;
    o.joins = o.write_fences + o.n_write_fences;
    o.loads = (const weir_move *)(o.joins + o.n_joins);
    o.writes = o.loads + o.n_loads;
    o.cancels = (const weir_cancel *)(o.writes + o.n_writes);
    o.copies = (const weir_page_copy *)(o.cancels + o.n_cancels);
    rc = check_order(&o, log);
    if (rc)
        return rc;
    *order = o;
    return 0;
}

/* ---- Report -------------------------------------------------------------- */

static int check_items(const weir_report_item *items, size_t n, const weir_log *log)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i].number == 0)
            return weir_invalid(log, "report: items[%zu].number is 0, must be 1 or more", i);
        if (items[i].rc != 0 && items[i].rc != -EIO && items[i].rc != -ECANCELED)
            return weir_invalid(log, "report: items[%zu].rc is %d, must be 0, -EIO or -ECANCELED",
                                i, items[i].rc);
        if (items[i].kind < WEIR_REPORT_STEP || items[i].kind > WEIR_REPORT_PAGE)
            return weir_invalid(log, "report: items[%zu].kind is %u, must be 1..4", i,
                                items[i].kind);
        if (items[i].kind == WEIR_REPORT_PAGE &&
            (items[i].rc != -EIO || items[i].number > INT32_MAX))
            return weir_invalid(log,
                                "report: items[%zu] is of page %" PRIu64 " with rc %d, must be a "
                                "page with -EIO",
                                i, items[i].number, items[i].rc);
    }
    return 0;
}

size_t weir_report_bytes(size_t n_items)
{
    if (n_items > MAX_REPORT_ITEMS)
        return SIZE_MAX;
    return sizeof(struct report_head) + n_items * sizeof(weir_report_item);
}

int weir_report_encode(const weir_report_item *items, size_t n_items, void *buffer, size_t capacity,
                       size_t *bytes, const weir_log *log)
{
    if (n_items && !items)
        return weir_invalid(log, "report: items must not be NULL with n_items %zu", n_items);
    if (n_items > MAX_REPORT_ITEMS)
        return weir_invalid(log, "report: n_items is %zu, must be at most %zu", n_items,
                            MAX_REPORT_ITEMS);
    size_t n = weir_report_bytes(n_items);
    int rc = check_buffer("report", buffer, capacity, n, bytes, log);
    if (!rc)
        rc = check_items(items, n_items, log);
    if (rc)
        return rc;

    struct report_head *head = buffer;
    *head = (struct report_head){ .n_items = n_items };
    char *end = (char *)(head + 1);
    append(&end, items, n_items * sizeof *items);
    seal(buffer, n, REPORT_MAGIC);
    *bytes = n;
    return 0;
}

int weir_report_decode(const weir_report_item **items, size_t *n_items, const void *bytes, size_t n,
                       const weir_log *log)
{
    if (!items || !n_items)
        return weir_invalid(log, "report: %s must not be NULL", items ? "n_items" : "items");
    int rc = check_frame("report", bytes, n, REPORT_MAGIC, sizeof(struct report_head), log);
    if (rc)
        return rc;
    const struct report_head *head = bytes;
    size_t room = n - sizeof *head;
    if (room % sizeof **items || head->n_items != room / sizeof **items)
        return weir_invalid(log,
                            "report: n_items is %" PRIu64 ", must fill %zu bytes with %zu each",
                            head->n_items, room, sizeof **items);
    const weir_report_item *first = (const weir_report_item *)(head + 1);
    rc = check_items(first, (size_t)head->n_items, log);
    if (rc)
        return rc;
    *items = first;
    *n_items = (size_t)head->n_items;
    return 0;
}

int weir_order_acknowledge(const void *order, size_t order_bytes, void *report, size_t capacity,
                           size_t *bytes, const weir_log *log)
{
    weir_order o;
    int rc = weir_order_decode(&o, order, order_bytes, log);
    if (rc)
        return rc;
    weir_report_item items[3];
    size_t n = 0;
    if (o.n_loads)
        items[n++] = (weir_report_item){ .number = o.step, .kind = WEIR_REPORT_LOAD };
    items[n++] = (weir_report_item){ .number = o.step, .kind = WEIR_REPORT_STEP };
    if (o.n_writes)
        items[n++] = (weir_report_item){ .number = o.write_ticket, .kind = WEIR_REPORT_WRITE_BACK };
    return weir_report_encode(items, n, report, capacity, bytes, log);
}
