/* SPDX-License-Identifier: Apache-2.0 */

/* The parts of weir-replay and weir-trace-gen below their command lines. */

#include "chat.h"
#include "pattern.h"
#include "replay.h"
#include "trace.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In long loops: an assertion that holds costs a message. */
#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

/* ---- The reader ---------------------------------------------------------- */

static int read_text(const char *text, struct weir_trace **trace, struct weir_trace_error *error)
{
    char path[] = "/tmp/weir-trace-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(ge(int, fd, 0));
    cr_assert(eq(sz, (size_t)write(fd, text, strlen(text)), strlen(text)));
    close(fd);
    int rc = weir_trace_read(trace, path, error);
    unlink(path);
    return rc;
}

#define REQUEST(ids) \
    "{\"timestamp\": 1, \"input_length\": 33, \"output_length\": 9, \"hash_ids\": [" ids "]}\n"

Test(trace, reads_requests_with_their_lines)
{
    struct weir_trace *trace = NULL;
    struct weir_trace_error error;
    /* no newline at the end, a blank line, an unknown member, a real timestamp */
    const char *text = REQUEST("0, 7, 8") "  \n"
                                          "{\"hash_ids\": [0, 9], \"input_length\": 20, \"x\": {}, "
                                          "\"output_length\": 0, \"timestamp\": 2.5}";
    cr_assert(eq(int, read_text(text, &trace, &error), 0));
    cr_assert(eq(sz, trace->n_requests, 2));
    cr_assert(eq(sz, trace->n_ids, 5));
    const int64_t ids[] = { 0, 7, 8, 0, 9 };
    for (size_t i = 0; i < 5; i++)
        cr_assert(eq(i64, trace->ids[i], ids[i]));
    const struct weir_trace_request *last = &trace->requests[1];
    cr_assert(eq(u64, trace->requests[0].line, 1));
    cr_assert(eq(sz, trace->requests[0].n_ids, 3));
    cr_assert(eq(u64, last->line, 3));
    cr_assert(eq(u64, last->input_length, 20));
    cr_assert(eq(u64, last->output_length, 0));
    cr_assert(eq(sz, last->first_id, 3));
    cr_assert(eq(sz, last->n_ids, 2));
    weir_trace_destroy(&trace);
    cr_assert(eq(ptr, trace, NULL));
    weir_trace_destroy(&trace);
}

Test(trace, names_the_bad_line)
{
    static const struct {
        const char *text;
        uint64_t line;
        const char *says;
    } cases[] = {
        { "", 0, "no request" },
        { "\n\n", 0, "no request" },
        { "{\n", 1, "column" },
        { REQUEST("1") "nonsense\n", 2, "column" },
        { REQUEST("1") "\n" REQUEST("1") "{} {}\n", 4, "column" },
        { REQUEST("1") "[1]\n", 2, "object" },
        { REQUEST(""), 1, "hash_ids" },
        { REQUEST("1, 2.5"), 1, "hash_ids[1]" },
        { REQUEST("1, \"2\""), 1, "hash_ids[1]" },
        { REQUEST("99999999999999999999"), 1, "big" },
        { "{\"timestamp\": 1, \"input_length\": 33, \"output_length\": 9}", 1, "hash_ids" },
        { "{\"timestamp\": 1, \"input_length\": -1, \"output_length\": 9, \"hash_ids\": [1]}", 1,
          "input_length" },
        { "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 2147483648, "
          "\"hash_ids\": [1]}",
          1, "output_length" },
        { "{\"input_length\": 1, \"output_length\": 9, \"hash_ids\": [1]}", 1, "timestamp" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weir_trace *trace = NULL;
        struct weir_trace_error error = { .line = 77 };
        cr_assert(eq(int, read_text(cases[i].text, &trace, &error), -EINVAL), "case %zu", i);
        cr_assert(eq(u64, error.line, cases[i].line), "case %zu", i);
        must(strstr(error.text, cases[i].says), "case %zu says: %s", i, error.text);
        cr_assert(eq(ptr, trace, NULL));
    }
}

Test(trace, tells_why_a_file_cannot_be_read)
{
    struct weir_trace *trace = NULL;
    struct weir_trace_error error;
    cr_assert(eq(int, weir_trace_read(&trace, "/nowhere/at.all", &error), -ENOENT));
    cr_assert(eq(u64, error.line, 0));
    cr_assert(eq(int, weir_trace_read(&trace, "/", &error), -EISDIR));
}

/* ---- Tokens and bytes ---------------------------------------------------- */

Test(pattern, tokens_are_told_apart_by_id_pass_and_source)
{
    enum {
        N = 64
    };
    int32_t all[2][4][50][N];
    for (uint32_t source = 0; source < 2; source++)
        for (uint32_t pass = 0; pass < 4; pass++)
            for (uint32_t id = 0; id < 50; id++) {
                int32_t *tokens = all[source][pass][id];
                weir_pattern_tokens(tokens, N, (enum weir_pattern_source)source, id, pass);
                for (size_t i = 0; i < N; i++)
                    must(tokens[i] >= 0, "token %d", tokens[i]);
                int32_t shorter[N / 2];
                weir_pattern_tokens(shorter, N / 2, (enum weir_pattern_source)source, id, pass);
                cr_assert(eq(int, memcmp(shorter, tokens, sizeof shorter), 0));
            }
    /* no two blocks share even their first four tokens */
    int32_t(*blocks)[N] = &all[0][0][0];
    for (size_t i = 0; i < 2 * 4 * 50; i++)
        for (size_t k = 0; k < i; k++)
            must(memcmp(blocks[i], blocks[k], 4 * sizeof(int32_t)) != 0, "blocks %zu, %zu", i, k);
}

Test(pattern, fingerprints_depend_on_all_before)
{
    enum {
        N = 32
    };
    int32_t tokens[N];
    uint64_t whole[N];
    uint64_t changed[N];
    weir_pattern_tokens(tokens, N, WEIR_PATTERN_PROMPT, 5, 1);
    weir_pattern_fingerprints(whole, tokens, N, 0);
    /* in two parts, as when an answer grows */
    weir_pattern_fingerprints(changed, tokens, 10, 0);
    weir_pattern_fingerprints(changed + 10, tokens + 10, N - 10, changed[9]);
    cr_assert(eq(int, memcmp(whole, changed, sizeof whole), 0));
    for (size_t at = 0; at < N; at++) {
        tokens[at] ^= 1;
        weir_pattern_fingerprints(changed, tokens, N, 0);
        tokens[at] ^= 1;
        for (size_t i = 0; i < N; i++)
            must((i < at) == (whole[i] == changed[i]), "token %zu, change at %zu", i, at);
    }
}

Test(pattern, every_wrong_byte_is_counted)
{
    unsigned char row[40];
    uint64_t place = weir_pattern_place(1, 2, 3);
    for (size_t bytes = 1; bytes <= sizeof row - 1; bytes++) {
        memset(row, 0xee, sizeof row);
        weir_pattern_fill(row, bytes, place, 99);
        cr_assert(eq(u8, row[bytes], 0xee), "wrote behind %zu bytes", bytes);
        cr_assert(eq(sz, weir_pattern_compare(row, bytes, place, 99), 0));
        for (size_t i = 0; i < bytes; i++) {
            row[i] ^= 0x80;
            must(weir_pattern_compare(row, bytes, place, 99) == 1, "byte %zu of %zu", i, bytes);
            row[i] ^= 0x80;
        }
    }
}

Test(pattern, rows_differ_by_place_and_token)
{
    unsigned char row[64];
    uint64_t place = weir_pattern_place(0, 1, 2);
    weir_pattern_fill(row, sizeof row, place, 7);
    const uint64_t others[] = { weir_pattern_place(1, 0, 2), weir_pattern_place(0, 2, 1),
                                weir_pattern_place(2, 1, 0), weir_pattern_place(0, 1, 1) };
    for (size_t i = 0; i < 4; i++)
        cr_assert(lt(sz, 48, weir_pattern_compare(row, sizeof row, others[i], 7)));
    cr_assert(lt(sz, 48, weir_pattern_compare(row, sizeof row, place, 8)));
}

/* ---- The generator ------------------------------------------------------- */

static char *generate(const struct weir_chat_options *options, size_t *size)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, size);
    cr_assert(ne(ptr, file, NULL));
    cr_assert(eq(int, weir_chat_write(file, options), 0));
    fclose(file);
    return text;
}

Test(chat, gives_the_trace_that_is_shipped)
{
    const struct weir_chat_options options = {
        .requests = 600, .seed = 1, .block_tokens = 16, .systems = 4, .turns = 8
    };
    size_t size;
    char *text = generate(&options, &size);
    FILE *file = fopen(WEIR_DEMO_TRACE, "r");
    cr_assert(ne(ptr, file, NULL));
    char *shipped = malloc(size + 1);
    cr_assert(eq(sz, fread(shipped, 1, size + 1, file), size));
    cr_assert(eq(int, memcmp(shipped, text, size), 0));
    fclose(file);
    free(shipped);
    free(text);
}

Test(chat, can_be_read_and_shares_prefixes)
{
    static const struct weir_chat_options cases[] = {
        { .requests = 1, .seed = 0, .block_tokens = 512, .systems = 1, .turns = 1 },
        { .requests = 400, .seed = 3, .block_tokens = 16, .systems = 2, .turns = 6 },
        { .requests = 200, .seed = 3, .block_tokens = 1, .systems = 1, .turns = 2 },
        { .requests = 200, .seed = 9, .block_tokens = 1000, .systems = 5, .turns = 40 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t size;
        char *text = generate(&cases[c], &size);
        struct weir_trace *trace = NULL;
        struct weir_trace_error error;
        cr_assert(eq(int, read_text(text, &trace, &error), 0), "%s", error.text);
        cr_assert(eq(sz, trace->n_requests, cases[c].requests));
        int64_t largest = 0;
        size_t seen = 0;
        for (size_t r = 0; r < trace->n_requests; r++) {
            const struct weir_trace_request *request = &trace->requests[r];
            uint64_t block = cases[c].block_tokens;
            must(request->n_ids == (request->input_length + block - 1) / block, "line %zu", r + 1);
            const int64_t *ids = &trace->ids[request->first_id];
            bool fresh = false;
            for (size_t i = 0; i < request->n_ids; i++) {
                bool was_seen = ids[i] <= largest && r > 0;
                must(!(fresh && was_seen), "an old id after a new one, line %zu", r + 1);
                fresh = fresh || !was_seen;
                seen += was_seen;
            }
            for (size_t i = 0; i < request->n_ids; i++)
                largest = ids[i] > largest ? ids[i] : largest;
        }
        if (cases[c].block_tokens <= 16)
            cr_assert(lt(sz, trace->n_ids / 4, seen));
        weir_trace_destroy(&trace);
        free(text);
    }
}

/* ---- An unlimited device tier -------------------------------------------- */

Test(unlimited, counts_each_prefix_once)
{
    struct weir_trace *trace = NULL;
    struct weir_trace_error error;
    /* 5 different prefixes; 7 under 0 and 7 under 1 are two */
    const char *text = REQUEST("0, 7") REQUEST("0, 7, 8") REQUEST("1, 7") REQUEST("0, 7");
    cr_assert(eq(int, read_text(text, &trace, &error), 0));
    struct weir_replay_options options = {
        .block_tokens = 32, .page_tokens = 16, .batch = 1, .passes = 1
    };
    /* and room for sequences that run at once, each of at most 3 blocks */
    const uint32_t running = (WEIR_REPLAY_STEPS + 1) * (3 * 2 + 1);
    uint32_t pages;
    cr_assert(eq(int, weir_replay_unlimited(trace, &options, &pages), 0));
    cr_assert(eq(u32, pages, 5 * 2 + running + 1));
    options.passes = 3;
    cr_assert(eq(int, weir_replay_unlimited(trace, &options, &pages), 0));
    cr_assert(eq(u32, pages, 3 * 5 * 2 + running + 1));
    options.offered = 0.5;
    cr_assert(eq(int, weir_replay_unlimited(trace, &options, &pages), 0));
    cr_assert(eq(u32, pages, 2 * (3 * 5 * 2 + running) + 1));
    options.block_tokens = 1u << 20;
    options.page_tokens = 1;
    options.passes = 1000;
    cr_assert(eq(int, weir_replay_unlimited(trace, &options, &pages), -E2BIG));
    weir_trace_destroy(&trace);
}
