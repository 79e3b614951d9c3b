/* SPDX-License-Identifier: Apache-2.0 */
#include "log_capture.h"
#include "random.h"

#include <weir/order.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MAX_ITEMS 20u

/* In loops over single bits: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

/* An order with room for its arrays; it must not be moved. */
struct sample {
    weir_order order;
    uint64_t fences[MAX_ITEMS];
    uint64_t load_fences[MAX_ITEMS];
    uint64_t write_fences[MAX_ITEMS];
    uint64_t joins[MAX_ITEMS];
    weir_move loads[MAX_ITEMS];
    weir_move writes[MAX_ITEMS];
    weir_cancel cancels[MAX_ITEMS];
    weir_page_copy copies[MAX_ITEMS];
};

static uint32_t random_steps(struct random *random, uint64_t *steps, uint64_t last)
{
    uint32_t n = 0;
    for (uint64_t step = 1 + random_below(random, 5); step <= last && n < MAX_ITEMS;
         step += 1 + random_below(random, 9)) {
        steps[n++] = step;
        if (random_percent(random, 15))
            break;
    }
    return n;
}

static uint32_t random_moves(struct random *random, weir_move *moves, const weir_order *order)
{
    uint32_t n = order->host_pages ? random_below(random, MAX_ITEMS + 1) : 0;
    for (uint32_t i = 0; i < n; i++) {
        moves[i].device.id = 1 + (int32_t)random_below(random, order->device_pages);
        moves[i].host.id = 1 + (int32_t)random_below(random, order->host_pages);
    }
    return n;
}

static uint32_t random_cancels(struct random *random, weir_cancel *cancels, const weir_order *order)
{
    uint32_t n = 0;
    for (uint64_t step = 1 + random_below(random, 5); step < order->step && n < MAX_ITEMS / 2;
         step += 1 + random_below(random, 300))
        cancels[n++] = (weir_cancel){ .number = step, .kind = WEIR_REPORT_LOAD };
    uint64_t ticket = 1000001; /* above any of an order */
    for (uint32_t i = random_below(random, MAX_ITEMS / 2 + 1); i > 0; i--) {
        cancels[n++] = (weir_cancel){ .number = ticket, .kind = WEIR_REPORT_WRITE_BACK };
        ticket += 1 + random_below(random, 9);
    }
    return n;
}

static bool cancels_load(const weir_order *order, uint64_t step)
{
    for (uint32_t i = 0; i < order->n_cancels; i++)
        if (order->cancels[i].kind == WEIR_REPORT_LOAD && order->cancels[i].number == step)
            return true;
    return false;
}

static uint32_t random_copies(struct random *random, weir_page_copy *copies,
                              const weir_order *order)
{
    uint32_t n = order->device_pages > 1 ? random_below(random, MAX_ITEMS + 1) : 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t from = 1 + (int32_t)random_below(random, order->device_pages - 1);
        copies[i] = (weir_page_copy){ .from = { from }, .to = { from + 1 } };
        uint64_t join = order->n_joins ? order->joins[random_below(random, order->n_joins)] : 0;
        if (join && !cancels_load(order, join) && random_percent(random, 50))
            copies[i].load = join;
        else if (order->n_loads && random_percent(random, 50))
            copies[i].load = order->step;
    }
    return n;
}

static void random_order(struct random *random, struct sample *s)
{
    weir_order *o = &s->order;
    *o = (weir_order){
        .step = 1 + random_below(random, random_percent(random, 50) ? 3 : 1000),
        .device_pages = 1 + random_below(random, 1u << 30),
        .host_pages = random_below(random, random_percent(random, 20) ? 2 : 1u << 30),
        .fences = s->fences,
        .load_fences = s->load_fences,
        .write_fences = s->write_fences,
        .joins = s->joins,
        .loads = s->loads,
        .writes = s->writes,
        .cancels = s->cancels,
        .copies = s->copies,
    };
    o->n_fences = random_steps(random, s->fences, o->step - 1);
    o->n_load_fences = random_steps(random, s->load_fences, o->step - 1);
    o->n_write_fences = random_steps(random, s->write_fences, o->step);
    o->n_joins = random_steps(random, s->joins, o->step - 1);
    o->n_loads = random_moves(random, s->loads, o);
    o->n_writes = random_moves(random, s->writes, o);
    o->n_cancels = random_cancels(random, s->cancels, o);
    o->n_copies = random_copies(random, s->copies, o);
    o->write_ticket = o->n_writes ? 1 + random_below(random, 1000000) : 0;
}

/* Bytes on the heap, of exactly that size, so that ASan sees a read beyond. */
static void *encode(const weir_order *order, size_t *n)
{
    size_t bytes = weir_order_bytes(order);
    void *buffer = malloc(bytes);
    int rc = weir_order_encode(order, buffer, bytes, n, NULL);
    must(rc == 0, "rc %d", rc);
    must(*n == bytes, "%zu bytes", *n);
    return buffer;
}

static bool same(const void *a, const void *b, size_t n_a, size_t n_b, size_t item)
{
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a * item) == 0);
}

static bool same_order(const weir_order *a, const weir_order *b)
{
    return a->step == b->step && a->write_ticket == b->write_ticket &&
           a->device_pages == b->device_pages && a->host_pages == b->host_pages &&
           same(a->fences, b->fences, a->n_fences, b->n_fences, 8) &&
           same(a->load_fences, b->load_fences, a->n_load_fences, b->n_load_fences, 8) &&
           same(a->write_fences, b->write_fences, a->n_write_fences, b->n_write_fences, 8) &&
           same(a->joins, b->joins, a->n_joins, b->n_joins, 8) &&
           same(a->loads, b->loads, a->n_loads, b->n_loads, sizeof(weir_move)) &&
           same(a->writes, b->writes, a->n_writes, b->n_writes, sizeof(weir_move)) &&
           same(a->cancels, b->cancels, a->n_cancels, b->n_cancels, sizeof(weir_cancel)) &&
           same(a->copies, b->copies, a->n_copies, b->n_copies, sizeof(weir_page_copy));
}

/* A checksum that fits, for bytes that only the rules can refuse. */
static void reseal(void *bytes, size_t n)
{
    unsigned char *at = bytes;
    uint64_t seed = XXH3_64bits(at, 16);
    uint64_t checksum = XXH3_64bits_withSeed(at + 24, n - 24, seed);
    memcpy(at + 16, &checksum, 8);
}

/* ---- Orders -------------------------------------------------------------- */

Test(order, round_trip)
{
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct random random = { seed };
        struct sample s;
        size_t n;
        weir_order decoded;
        random_order(&random, &s);
        void *bytes = encode(&s.order, &n);
        must(weir_order_decode(&decoded, bytes, n, NULL) == 0, "seed %d", (int)seed);
        must(same_order(&s.order, &decoded), "seed %d", (int)seed);
        free(bytes);
    }
}

Test(order, empty)
{
    weir_order order = { .step = 1 };
    weir_order decoded;
    size_t n;
    void *bytes = encode(&order, &n);
    cr_assert(eq(sz, n, 80));
    cr_assert(eq(int, weir_order_decode(&decoded, bytes, n, NULL), 0));
    cr_assert(same_order(&order, &decoded));
    free(bytes);
}

/* The order that the tests below break: one of everything and more. */
static void fixed_order(struct sample *s)
{
    *s = (struct sample){
        .fences = { 2, 5 },
        .load_fences = { 1, 9 },
        .write_fences = { 3, 10 },
        .joins = { 7, 8, 9 },
        .loads = { { { 1 }, { 200 } }, { { 100 }, { 1 } } },
        .writes = { { { 50 }, { 2 } } },
        .cancels = { { 3, WEIR_REPORT_LOAD, 0 },
                     { 9, WEIR_REPORT_LOAD, 0 },
                     { 2, WEIR_REPORT_WRITE_BACK, 0 },
                     { 76, WEIR_REPORT_WRITE_BACK, 0 } },
        .copies = { { { 3 }, { 4 }, 8 }, { { 100 }, { 5 }, 10 } },
    };
    s->order = (weir_order){
        .step = 10,
        .write_ticket = 77,
        .device_pages = 100,
        .host_pages = 200,
        .n_fences = 2,
        .n_load_fences = 2,
        .n_write_fences = 2,
        .n_joins = 3,
        .n_loads = 2,
        .n_writes = 1,
        .n_cancels = 4,
        .n_copies = 2,
        .fences = s->fences,
        .load_fences = s->load_fences,
        .write_fences = s->write_fences,
        .joins = s->joins,
        .loads = s->loads,
        .writes = s->writes,
        .cancels = s->cancels,
        .copies = s->copies,
    };
}

Test(order, every_truncation_is_refused)
{
    struct sample s;
    size_t n;
    fixed_order(&s);
    unsigned char *bytes = encode(&s.order, &n);
    for (size_t length = 0; length < n; length++) {
        unsigned char *part = malloc(length ? length : 1);
        memcpy(part, bytes, length);
        struct log_capture capture = { 0 };
        weir_log log = log_capture_log(&capture);
        weir_order decoded = { .step = 12345 };
        must(weir_order_decode(&decoded, part, length, &log) == -EINVAL, "%zu bytes", length);
        must(capture.lines == 1 && decoded.step == 12345, "%zu bytes", length);
        uint64_t total = length; /* even if the head agrees */
        if (length >= 80) {
            memcpy(part + 8, &total, 8);
            reseal(part, length);
            must(weir_order_decode(&decoded, part, length, &log) == -EINVAL, "%zu bytes", length);
            must(strstr(capture.last, "its counts need") != NULL, "%s", capture.last);
        }
        free(part);
    }
    unsigned char *longer = calloc(1, n + 8);
    memcpy(longer, bytes, n);
    cr_assert(eq(int, weir_order_decode(&s.order, longer, n + 8, NULL), -EINVAL));
    cr_assert(eq(int, weir_order_decode(&s.order, longer, n, NULL), 0));
    free(longer);
    free(bytes);
}

Test(order, every_flipped_bit_is_refused)
{
    struct sample s;
    size_t n;
    fixed_order(&s);
    unsigned char *bytes = encode(&s.order, &n);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        weir_order decoded = { .step = 12345 };
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        must(weir_order_decode(&decoded, bytes, n, NULL) == -EINVAL, "bit %zu", bit);
        must(decoded.step == 12345, "bit %zu", bit);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    cr_assert(eq(int, weir_order_decode(&s.order, bytes, n, NULL), 0));
    free(bytes);
}

/* A head of another kind, even under a checksum that fits. */
Test(order, a_wrong_head_is_refused)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *text;
    } cases[] = {
        { 0, 0x57524f52, "magic is 0x57524f52" },
        { 4, 1, "version is 1" },
        { 4, 3, "version is 3" },
        { 8, 264, "must be 264" },
        { 8, 280, "must be 280" },
        { 12, 1, "must be 4294967568" },
        { 48, 1, "its counts need 264" },
        { 60, 4, "its counts need 280" },
        { 72, 3, "its counts need 256" },
        { 76, 1, "its counts need 256" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sample s;
        size_t n;
        struct log_capture capture = { 0 };
        weir_log log = log_capture_log(&capture);
        fixed_order(&s);
        unsigned char *bytes = encode(&s.order, &n);
        memcpy(bytes + cases[i].at, &cases[i].value, 4);
        reseal(bytes, n);
        cr_assert(eq(int, weir_order_decode(&s.order, bytes, n, &log), -EINVAL), "case %zu", i);
        cr_assert(ne(ptr, strstr(capture.last, cases[i].text), NULL), "%s", capture.last);
        free(bytes);
    }
}

/* Each rule twice: when an order is encoded, and in bytes whose checksum fits. */
static void check_rule(const struct sample *broken, const char *text)
{
    struct sample good;
    size_t n;
    fixed_order(&good);
    unsigned char *bytes = encode(&good.order, &n);
    unsigned char *untouched = malloc(n);
    memcpy(untouched, bytes, n);

    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    size_t written = 12345;
    cr_assert(eq(int, weir_order_encode(&broken->order, bytes, n, &written, &log), -EINVAL), "%s",
              text);
    cr_assert(eq(u32, capture.lines, 1));
    cr_assert(ne(ptr, strstr(capture.last, text), NULL), "\"%s\", not \"%s\"", capture.last, text);
    cr_assert(eq(sz, written, 12345));
    cr_assert(eq(int, memcmp(bytes, untouched, n), 0), "%s", text);

    /* Step, ticket and pool sizes, then the arrays, as the format has them. */
    memcpy(bytes + 24, &broken->order.step, 8);
    memcpy(bytes + 32, &broken->order.write_ticket, 8);
    memcpy(bytes + 40, &broken->order.device_pages, 4);
    memcpy(bytes + 44, &broken->order.host_pages, 4);
    memcpy(bytes + 80, broken->fences, 16);
    memcpy(bytes + 96, broken->load_fences, 16);
    memcpy(bytes + 112, broken->write_fences, 16);
    memcpy(bytes + 128, broken->joins, 24);
    memcpy(bytes + 152, broken->loads, 16);
    memcpy(bytes + 168, broken->writes, 8);
    memcpy(bytes + 176, broken->cancels, 64);
    memcpy(bytes + 240, broken->copies, 32);
    reseal(bytes, n);
    weir_order decoded = { .step = 12345 };
    cr_assert(eq(int, weir_order_decode(&decoded, bytes, n, &log), -EINVAL), "%s", text);
    cr_assert(eq(u32, capture.lines, 2));
    cr_assert(ne(ptr, strstr(capture.last, text), NULL), "\"%s\", not \"%s\"", capture.last, text);
    cr_assert(eq(u64, decoded.step, 12345));
    free(untouched);
    free(bytes);
}

#define broken(text, change)  \
    do {                      \
        struct sample s;      \
        fixed_order(&s);      \
        change;               \
        check_rule(&s, text); \
    } while (0)

Test(order, every_rule_is_checked)
{
    broken("step is 0", s.order.step = 0);
    broken("write_ticket is 0, must be 1 or more", s.order.write_ticket = 0);
    broken("fences[0] is 0", s.fences[0] = 0);
    broken("fences[1] is 2", s.fences[1] = 2);
    broken("fences[1] is 1", s.fences[1] = 1);
    broken("fences[1] is 10", s.fences[1] = 10);
    broken("load_fences[0] is 0", s.load_fences[0] = 0);
    broken("load_fences[1] is 1", s.load_fences[1] = 1);
    broken("load_fences[1] is 10", s.load_fences[1] = 10);
    broken("write_fences[0] is 0", s.write_fences[0] = 0);
    broken("write_fences[1] is 3", s.write_fences[1] = 3);
    broken("write_fences[1] is 11", s.write_fences[1] = 11);
    broken("joins[0] is 0", s.joins[0] = 0);
    broken("joins[2] is 8", s.joins[2] = 8);
    broken("joins[2] is 10", s.joins[2] = 10);
    broken("loads[0].device is 0", s.loads[0].device.id = 0);
    broken("loads[0].device is -1", s.loads[0].device.id = -1);
    broken("loads[1].device is 101", s.loads[1].device.id = 101);
    broken("loads[1].device is 100, must be 1..99", s.order.device_pages = 99);
    broken("loads[1].host is 0", s.loads[1].host.id = 0);
    broken("loads[0].host is 201", s.loads[0].host.id = 201);
    broken("loads[0].host is 200, must be 1..199", s.order.host_pages = 199);
    broken("loads[0].host is -2147483648", s.loads[0].host.id = INT32_MIN);
    broken("writes[0].device is 0", s.writes[0].device.id = 0);
    broken("writes[0].device is 101", s.writes[0].device.id = 101);
    broken("writes[0].host is 0", s.writes[0].host.id = 0);
    broken("writes[0].host is 201", s.writes[0].host.id = 201);
    broken("cancels[0] is 0", s.cancels[0].number = 0);
    broken("cancels[1] is 3", s.cancels[1].number = 3);
    broken("cancels[1] is 2", s.cancels[1].number = 2);
    broken("cancels[1] is 10", s.cancels[1].number = 10);
    broken("cancels[2] is 0", s.cancels[2].number = 0);
    broken("cancels[3] is 2", s.cancels[3].number = 2);
    broken("cancels[3] is 77", s.cancels[3].number = 77);
    broken("cancels[0] has kind 1", s.cancels[0].kind = WEIR_REPORT_STEP);
    broken("cancels[3] has kind 4", s.cancels[3].kind = 4);
    broken("cancels[3] has kind 2", s.cancels[3].kind = WEIR_REPORT_LOAD);
    broken("cancels[1] has kind 2 and unused 1", s.cancels[1].unused = 1);
    broken("copies[0] is from 0 to 4", s.copies[0].from.id = 0);
    broken("copies[1] is from 101 to 5", s.copies[1].from.id = 101);
    broken("copies[1] is from 100 to -1", s.copies[1].to.id = -1);
    broken("copies[0] is from 3 to 101", s.copies[0].to.id = 101);
    broken("copies[1] is from 5 to 5", s.copies[1].from.id = 5);
    broken("copies[0].load is 6", s.copies[0].load = 6);
    broken("copies[0].load is 11", s.copies[0].load = 11);
    broken("copies[1].load is 18446744073709551615", s.copies[1].load = UINT64_MAX);
    broken("copies[0].load is 9", s.copies[0].load = 9); /* cancelled */
}

/* Of this step, a copy may be behind a load only if there is one. */
Test(order, a_copy_behind_no_load_is_refused)
{
    weir_page_copy copy = { { 1 }, { 2 }, 3 };
    weir_order order = { .step = 3, .device_pages = 2, .n_copies = 1, .copies = &copy };
    uint64_t buffer[16];
    size_t n;
    cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &n, NULL), -EINVAL));
    copy.load = 0;
    cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &n, NULL), 0));
}

Test(order, a_ticket_without_writes_is_refused)
{
    weir_order order = { .step = 1, .write_ticket = 1 };
    uint64_t buffer[16];
    size_t n;
    cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &n, NULL), -EINVAL));
    order.write_ticket = 0;
    cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &n, NULL), 0));
    buffer[4] = 1;
    reseal(buffer, n);
    cr_assert(eq(int, weir_order_decode(&order, buffer, n, NULL), -EINVAL));
}

Test(order, counts_that_lie_are_refused)
{
    for (uint32_t count = 0; count < 8; count++) {
        static const uint32_t huge[] = { UINT32_MAX, 1u << 31, 1u << 29, 100, 5 };
        for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
            struct sample s;
            size_t n;
            fixed_order(&s);
            unsigned char *bytes = encode(&s.order, &n);
            memcpy(bytes + 48 + 4 * count, &huge[i], 4);
            reseal(bytes, n);
            cr_assert(eq(int, weir_order_decode(&s.order, bytes, n, NULL), -EINVAL), "count %u",
                      count);
            free(bytes);
        }
    }
    weir_order order = { .step = 1,
                         .n_fences = UINT32_MAX,
                         .n_load_fences = UINT32_MAX,
                         .n_write_fences = UINT32_MAX,
                         .n_joins = UINT32_MAX,
                         .n_loads = UINT32_MAX,
                         .n_writes = UINT32_MAX,
                         .n_cancels = UINT32_MAX,
                         .n_copies = UINT32_MAX };
    uint64_t buffer[10];
    size_t n;
    cr_assert(eq(u64, weir_order_bytes(&order), 80 + UINT64_C(80) * UINT32_MAX));
    cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &n, NULL), -ENOSPC));
}

Test(order, bad_arguments)
{
    struct sample s;
    uint64_t buffer[64];
    size_t n = 12345;
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    fixed_order(&s);
    const weir_order *o = &s.order;
    size_t exact = weir_order_bytes(o);
    void *odd = (char *)buffer + 4;

    cr_assert(eq(int, weir_order_encode(NULL, buffer, sizeof buffer, &n, &log), -EINVAL));
    cr_assert(eq(int, weir_order_encode(o, NULL, sizeof buffer, &n, &log), -EINVAL));
    cr_assert(eq(int, weir_order_encode(o, buffer, sizeof buffer, NULL, &log), -EINVAL));
    cr_assert(eq(int, weir_order_encode(o, odd, sizeof buffer - 8, &n, &log), -EINVAL));
    cr_assert(eq(u32, capture.lines, 4));
    cr_assert(eq(int, weir_order_encode(o, buffer, exact - 1, &n, &log), -ENOSPC));
    cr_assert(eq(int, weir_order_encode(o, buffer, 0, &n, &log), -ENOSPC));
    cr_assert(eq(sz, n, 12345));
    cr_assert(eq(u32, capture.lines, 4));
    for (int array = 0; array < 7; array++) {
        weir_order no_array = *o;
        no_array.fences = array == 0 ? NULL : o->fences;
        no_array.load_fences = array == 1 ? NULL : o->load_fences;
        no_array.write_fences = array == 2 ? NULL : o->write_fences;
        no_array.joins = array == 3 ? NULL : o->joins;
        no_array.loads = array == 4 ? NULL : o->loads;
        no_array.writes = array == 5 ? NULL : o->writes;
        no_array.cancels = array == 6 ? NULL : o->cancels;
        no_array.copies = array == 6 ? NULL : o->copies;
        cr_assert(eq(int, weir_order_encode(&no_array, buffer, sizeof buffer, &n, &log), -EINVAL));
    }
    cr_assert(eq(u32, capture.lines, 11));
    cr_assert(eq(int, weir_order_encode(o, buffer, exact, &n, &log), 0));
    cr_assert(eq(sz, n, exact));

    weir_order decoded;
    cr_assert(eq(int, weir_order_decode(NULL, buffer, n, &log), -EINVAL));
    cr_assert(eq(int, weir_order_decode(&decoded, NULL, n, &log), -EINVAL));
    memmove(odd, buffer, n);
    cr_assert(eq(int, weir_order_decode(&decoded, odd, n, &log), -EINVAL));
    cr_assert(eq(u32, capture.lines, 14));
    cr_assert(eq(sz, weir_order_bytes(NULL), 0));
}

/* ---- Reports ------------------------------------------------------------- */

static const weir_report_item three_items[3] = { { 7, 0, WEIR_REPORT_STEP },
                                                 { 8, -EIO, WEIR_REPORT_LOAD },
                                                 { 9, -ECANCELED, WEIR_REPORT_WRITE_BACK } };

Test(report, round_trip)
{
    static const int codes[] = { 0, -EIO, -ECANCELED };
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct random random = { seed };
        weir_report_item items[MAX_ITEMS];
        size_t n_items = random_below(&random, MAX_ITEMS + 1);
        for (size_t i = 0; i < n_items; i++) {
            items[i] = (weir_report_item){ .number = 1 + random_next(&random) / 2,
                                           .rc = codes[random_below(&random, 3)],
                                           .kind = 1 + random_below(&random, 4) };
            if (items[i].kind == WEIR_REPORT_PAGE)
                items[i] = (weir_report_item){ 1 + random_next(&random) % INT32_MAX, -EIO,
                                               WEIR_REPORT_PAGE };
        }
        size_t bytes = weir_report_bytes(n_items);
        void *buffer = malloc(bytes);
        size_t n;
        const weir_report_item *decoded;
        size_t n_decoded;
        must(weir_report_encode(n_items ? items : NULL, n_items, buffer, bytes, &n, NULL) == 0,
             "seed %d", (int)seed);
        must(n == bytes, "seed %d", (int)seed);
        must(weir_report_decode(&decoded, &n_decoded, buffer, n, NULL) == 0, "seed %d", (int)seed);
        must(same(items, decoded, n_items, n_decoded, sizeof *items), "seed %d", (int)seed);
        free(buffer);
    }
}

Test(report, truncations_and_flipped_bits_are_refused)
{
    size_t n = weir_report_bytes(3);
    unsigned char *bytes = malloc(n);
    cr_assert(eq(int, weir_report_encode(three_items, 3, bytes, n, &n, NULL), 0));
    const weir_report_item *items = NULL;
    size_t n_items = 12345;
    for (size_t length = 0; length < n; length++) {
        unsigned char *part = malloc(length ? length : 1);
        memcpy(part, bytes, length);
        must(weir_report_decode(&items, &n_items, part, length, NULL) == -EINVAL, "%zu", length);
        uint64_t total = length;
        if (length >= 32) {
            memcpy(part + 8, &total, 8);
            reseal(part, length);
            must(weir_report_decode(&items, &n_items, part, length, NULL) == -EINVAL, "%zu",
                 length);
        }
        free(part);
    }
    unsigned char *longer = calloc(1, n + 8);
    uint64_t more = n + 8; /* three items and a half */
    memcpy(longer, bytes, n);
    memcpy(longer + 8, &more, 8);
    reseal(longer, n + 8);
    cr_assert(eq(int, weir_report_decode(&items, &n_items, longer, n + 8, NULL), -EINVAL));
    free(longer);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        must(weir_report_decode(&items, &n_items, bytes, n, NULL) == -EINVAL, "bit %zu", bit);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    cr_assert(eq(ptr, (void *)items, NULL));
    cr_assert(eq(sz, n_items, 12345));
    static const uint64_t huge[] = { 2, 4, UINT64_MAX, UINT64_C(1) << 60, (UINT64_C(1) << 60) + 3 };
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        memcpy(bytes + 24, &huge[i], 8);
        reseal(bytes, n);
        cr_assert(eq(int, weir_report_decode(&items, &n_items, bytes, n, NULL), -EINVAL));
    }
    free(bytes);
}

Test(report, every_rule_is_checked)
{
    static const struct {
        weir_report_item item;
        const char *text;
    } cases[] = {
        { { 0, 0, WEIR_REPORT_STEP }, "items[1].number is 0" },
        { { 1, 1, WEIR_REPORT_STEP }, "items[1].rc is 1" },
        { { 1, -EINVAL, WEIR_REPORT_STEP }, "items[1].rc is -22" },
        { { 1, 0, 0 }, "items[1].kind is 0" },
        { { 1, 0, 5 }, "items[1].kind is 5" },
        { { 1, 0, WEIR_REPORT_PAGE }, "items[1] is of page 1 with rc 0" },
        { { 1, -ECANCELED, WEIR_REPORT_PAGE }, "must be a page with -EIO" },
        { { UINT64_C(1) << 31, -EIO, WEIR_REPORT_PAGE }, "items[1] is of page 2147483648" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weir_report_item items[2] = { three_items[0], cases[i].item };
        uint64_t buffer[8];
        size_t n;
        struct log_capture capture = { 0 };
        weir_log log = log_capture_log(&capture);
        cr_assert(eq(int, weir_report_encode(items, 2, buffer, sizeof buffer, &n, &log), -EINVAL));
        cr_assert(ne(ptr, strstr(capture.last, cases[i].text), NULL), "%s", capture.last);
        cr_assert(eq(int, weir_report_encode(three_items, 2, buffer, sizeof buffer, &n, &log), 0));
        memcpy(buffer + 6, &cases[i].item, sizeof(weir_report_item));
        reseal(buffer, n);
        const weir_report_item *decoded;
        size_t n_decoded;
        capture.last[0] = '\0';
        cr_assert(eq(int, weir_report_decode(&decoded, &n_decoded, buffer, n, &log), -EINVAL));
        cr_assert(ne(ptr, strstr(capture.last, cases[i].text), NULL), "%s", capture.last);
        cr_assert(eq(u32, capture.lines, 2));
    }
}

Test(report, bad_arguments)
{
    uint64_t buffer[32];
    size_t n = 12345;
    const weir_report_item *items;
    size_t n_items;
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    void *odd = (char *)buffer + 4;
    cr_assert(eq(int, weir_report_encode(NULL, 3, buffer, sizeof buffer, &n, &log), -EINVAL));
    cr_assert(eq(int, weir_report_encode(three_items, 3, NULL, sizeof buffer, &n, &log), -EINVAL));
    cr_assert(
        eq(int, weir_report_encode(three_items, 3, buffer, sizeof buffer, NULL, &log), -EINVAL));
    cr_assert(
        eq(int, weir_report_encode(three_items, 3, odd, sizeof buffer - 8, &n, &log), -EINVAL));
    cr_assert(eq(int, weir_report_encode(three_items, SIZE_MAX, buffer, sizeof buffer, &n, &log),
                 -EINVAL));
    cr_assert(
        eq(int, weir_report_encode(three_items, SIZE_MAX / 16 + 1, buffer, sizeof buffer, &n, &log),
           -EINVAL));
    cr_assert(eq(u32, capture.lines, 6));
    cr_assert(eq(int,
                 weir_report_encode(three_items, 3, buffer, weir_report_bytes(3) - 1, &n, &log),
                 -ENOSPC));
    cr_assert(eq(sz, n, 12345));
    cr_assert(eq(sz, weir_report_bytes(SIZE_MAX), SIZE_MAX));
    cr_assert(eq(sz, weir_report_bytes(SIZE_MAX / 16), SIZE_MAX));

    cr_assert(eq(int, weir_report_encode(three_items, 3, buffer, sizeof buffer, &n, NULL), 0));
    cr_assert(eq(int, weir_report_decode(NULL, &n_items, buffer, n, &log), -EINVAL));
    cr_assert(eq(int, weir_report_decode(&items, NULL, buffer, n, &log), -EINVAL));
    cr_assert(eq(int, weir_report_decode(&items, &n_items, NULL, n, &log), -EINVAL));
    memmove(odd, buffer, n);
    cr_assert(eq(int, weir_report_decode(&items, &n_items, odd, n, &log), -EINVAL));
    cr_assert(eq(u32, capture.lines, 10));
}

Test(report, an_order_is_not_a_report)
{
    weir_order order = { .step = 1 };
    uint64_t buffer[32];
    size_t n;
    const weir_report_item *items;
    size_t n_items;
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    cr_assert(eq(int, weir_order_encode(&order, buffer, sizeof buffer, &n, NULL), 0));
    cr_assert(eq(int, weir_report_decode(&items, &n_items, buffer, n, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "magic"), NULL));
    cr_assert(eq(int, weir_report_encode(three_items, 3, buffer, sizeof buffer, &n, NULL), 0));
    cr_assert(eq(int, weir_order_decode(&order, buffer, n, &log), -EINVAL));
    cr_assert(ne(ptr, strstr(capture.last, "magic"), NULL));
}

/* ---- Acknowledging ------------------------------------------------------- */

Test(acknowledge, reports_all_that_an_order_asks_for)
{
    for (unsigned what = 0; what < 4; what++) {
        struct sample s;
        fixed_order(&s);
        if (!(what & 1)) {
            s.order.n_loads = 0;
            s.order.n_copies = 1; /* the other one is behind the load */
        }
        if (!(what & 2)) {
            s.order.n_writes = 0;
            s.order.write_ticket = 0;
        }
        size_t n;
        void *order = encode(&s.order, &n);
        uint64_t report[10];
        size_t bytes;
        cr_assert(
            eq(int, weir_order_acknowledge(order, n, report, sizeof report, &bytes, NULL), 0));
        const weir_report_item *items;
        size_t n_items;
        cr_assert(eq(int, weir_report_decode(&items, &n_items, report, bytes, NULL), 0));
        unsigned found = 0;
        for (size_t i = 0; i < n_items; i++) {
            cr_assert(eq(int, items[i].rc, 0));
            bool write = items[i].kind == WEIR_REPORT_WRITE_BACK;
            cr_assert(eq(u64, items[i].number, write ? 77 : 10));
            found |= 1u << items[i].kind;
        }
        unsigned expected = 1u << WEIR_REPORT_STEP;
        expected |= what & 1 ? 1u << WEIR_REPORT_LOAD : 0;
        expected |= what & 2 ? 1u << WEIR_REPORT_WRITE_BACK : 0;
        cr_assert(eq(u32, found, expected));
        cr_assert(eq(sz, n_items, 1 + (what & 1) + (what >> 1)));
        bytes = 12345;
        cr_assert(eq(
            int,
            weir_order_acknowledge(order, n, report, weir_report_bytes(n_items) - 1, &bytes, NULL),
            -ENOSPC));
        cr_assert(eq(int, weir_order_acknowledge(order, n - 1, report, sizeof report, &bytes, NULL),
                     -EINVAL));
        cr_assert(eq(sz, bytes, 12345));
        free(order);
    }
}
