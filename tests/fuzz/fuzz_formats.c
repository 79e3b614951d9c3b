/* SPDX-License-Identifier: Apache-2.0 */

/* Orders and reports from untrusted bytes. An input is used in two ways:
 *
 *   - as an order and as a report: decoding must refuse it, or give something
 *     that encodes to the same bytes;
 *   - as the fields of an order and of a report: what encoding accepts must
 *     decode to the same fields, and no more once a byte of it is changed. */

#include "input.h"

#include <weir/order.h>

#include <errno.h>

enum {
    MAX_BYTES = 1 << 16,
    MAX_ITEMS = 32
};

static bool same_array(const void *a, const void *b, size_t n, size_t item_bytes)
{
    return n == 0 || memcmp(a, b, n * item_bytes) == 0;
}

static bool same_order(const weir_order *a, const weir_order *b)
{
    return a->step == b->step && a->write_ticket == b->write_ticket &&
           a->device_pages == b->device_pages && a->host_pages == b->host_pages &&
           a->n_fences == b->n_fences && a->n_load_fences == b->n_load_fences &&
           a->n_write_fences == b->n_write_fences && a->n_joins == b->n_joins &&
           a->n_loads == b->n_loads && a->n_writes == b->n_writes && a->n_cancels == b->n_cancels &&
           a->n_copies == b->n_copies &&
           same_array(a->fences, b->fences, a->n_fences, sizeof *a->fences) &&
           same_array(a->load_fences, b->load_fences, a->n_load_fences, sizeof *a->fences) &&
           same_array(a->write_fences, b->write_fences, a->n_write_fences, sizeof *a->fences) &&
           same_array(a->joins, b->joins, a->n_joins, sizeof *a->joins) &&
           same_array(a->loads, b->loads, a->n_loads, sizeof *a->loads) &&
           same_array(a->writes, b->writes, a->n_writes, sizeof *a->writes) &&
           same_array(a->cancels, b->cancels, a->n_cancels, sizeof *a->cancels) &&
           same_array(a->copies, b->copies, a->n_copies, sizeof *a->copies);
}

/* Encodes what has been decoded from `bytes` and compares. */
static void encode_again(const weir_order *order, const void *bytes, size_t n)
{
    static _Alignas(8) uint8_t again[MAX_BYTES];
    size_t written;
    require(weir_order_bytes(order) == n);
    require(weir_order_encode(order, again, sizeof again, &written, NULL) == 0);
    require(written == n && memcmp(again, bytes, n) == 0);
}

static void decode_order(const void *bytes, size_t n)
{
    weir_order order;
    int rc = weir_order_decode(&order, bytes, n, NULL);
    require(rc == 0 || rc == -EINVAL);
    if (rc == 0)
        encode_again(&order, bytes, n);
}

static void decode_report(const void *bytes, size_t n)
{
    static _Alignas(8) uint8_t again[MAX_BYTES];
    const weir_report_item *items;
    size_t n_items, written;
    int rc = weir_report_decode(&items, &n_items, bytes, n, NULL);
    require(rc == 0 || rc == -EINVAL);
    if (rc != 0)
        return;
    require(weir_report_encode(items, n_items, again, sizeof again, &written, NULL) == 0);
    require(written == n && memcmp(again, bytes, n) == 0);
}

/* Ascending step numbers up to `limit`, most of the time. */
static uint32_t take_steps(struct input *input, uint64_t *steps, uint64_t limit)
{
    uint32_t n = take_below(input, MAX_ITEMS);
    uint64_t step = 0;
    for (uint32_t i = 0; i < n; i++) {
        step += 1 + take_below(input, 4);
        if (step > limit && take_below(input, 16) > 0)
            return i;
        steps[i] = step;
    }
    return n;
}

static uint32_t take_moves(struct input *input, weir_move *moves, const weir_order *order)
{
    uint32_t n = take_below(input, MAX_ITEMS);
    for (uint32_t i = 0; i < n; i++) {
        moves[i].device.id = (int32_t)take_below(input, order->device_pages + 1);
        moves[i].host.id = (int32_t)take_below(input, order->host_pages + 1);
    }
    return n;
}

static uint32_t take_copies(struct input *input, weir_page_copy *copies, const weir_order *order)
{
    uint32_t n = take_below(input, MAX_ITEMS);
    for (uint32_t i = 0; i < n; i++) {
        copies[i].from.id = (int32_t)take_below(input, order->device_pages + 1);
        copies[i].to.id = (int32_t)take_below(input, order->device_pages + 1);
        copies[i].load = take_below(input, 4) ? 0 : take_below(input, (uint32_t)order->step + 2);
    }
    return n;
}

static void encode_order(struct input *input)
{
    static _Alignas(8) uint8_t bytes[MAX_BYTES];
    uint64_t fences[4][MAX_ITEMS];
    weir_move loads[MAX_ITEMS], writes[MAX_ITEMS];
    weir_cancel cancels[MAX_ITEMS];
    weir_page_copy copies[MAX_ITEMS];
    weir_order order = { .step = 1 + take_below(input, 256),
                         .device_pages = 1 + take_below(input, 256),
                         .host_pages = take_below(input, 256),
                         .fences = fences[0],
                         .load_fences = fences[1],
                         .write_fences = fences[2],
                         .joins = fences[3],
                         .loads = loads,
                         .writes = writes,
                         .cancels = cancels,
                         .copies = copies };
    order.n_fences = take_steps(input, fences[0], order.step - 1);
    order.n_load_fences = take_steps(input, fences[1], order.step - 1);
    order.n_write_fences = take_steps(input, fences[2], order.step);
    order.n_joins = take_steps(input, fences[3], order.step - 1);
    order.n_loads = take_moves(input, loads, &order);
    order.n_writes = take_moves(input, writes, &order);
    order.n_cancels = take_below(input, MAX_ITEMS);
    for (uint32_t i = 0; i < order.n_cancels; i++)
        cancels[i] = (weir_cancel){ .number = take_below(input, 256),
                                    .kind = WEIR_REPORT_LOAD + take_below(input, 2) };
    order.n_copies = take_copies(input, copies, &order);
    order.write_ticket = order.n_writes > 0 ? 1 + take_below(input, 256) : take_below(input, 2);

    size_t n;
    if (weir_order_encode(&order, bytes, sizeof bytes, &n, NULL) != 0)
        return;
    weir_order decoded;
    require(weir_order_decode(&decoded, bytes, n, NULL) == 0);
    require(same_order(&order, &decoded));
    bytes[take_below(input, (uint32_t)n)] ^= (uint8_t)(1 + take_below(input, 255));
    require(weir_order_decode(&decoded, bytes, n, NULL) == -EINVAL);
}

static void encode_report(struct input *input)
{
    static _Alignas(8) uint8_t bytes[MAX_BYTES];
    static const int32_t results[] = { 0, -EIO, -ECANCELED, -EINVAL };
    weir_report_item items[MAX_ITEMS];
    size_t n_items = take_below(input, MAX_ITEMS), n;
    for (size_t i = 0; i < n_items; i++)
        items[i] = (weir_report_item){ .number = take_below(input, 256),
                                       .rc = results[take_below(input, 4)],
                                       .kind = take_below(input, 6) };
    if (weir_report_encode(items, n_items, bytes, sizeof bytes, &n, NULL) != 0)
        return;
    const weir_report_item *decoded;
    size_t n_decoded;
    require(weir_report_decode(&decoded, &n_decoded, bytes, n, NULL) == 0);
    require(n_decoded == n_items && same_array(decoded, items, n_items, sizeof *items));
    bytes[take_below(input, (uint32_t)n)] ^= (uint8_t)(1 + take_below(input, 255));
    require(weir_report_decode(&decoded, &n_decoded, bytes, n, NULL) == -EINVAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A copy of its own, of exactly the input's size, so that a read past its
     * end is seen; malloc aligns it. */
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    require(bytes != NULL);
    if (size > 0)
        memcpy(bytes, data, size);
    decode_order(bytes, size);
    decode_report(bytes, size);
    free(bytes);

    struct input fields = { data, size };
    encode_order(&fields);
    encode_report(&fields);
    return 0;
}
