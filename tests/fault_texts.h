/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_FAULT_TEXTS_H
#define WEIR_TESTS_FAULT_TEXTS_H

/* Texts that fork, are cut and go on inside a page, for the server of
 * fault_server.h.
 *
 *   open ─► fork, cut, write ─► pass: reserve ─► step ─► reports ─► events
 *                                ▲                                    │
 *                                └──── cut to what is good ◄──────────┘
 *
 * A text is a letter a token, and a row of its pages holds what the letters up to
 * there tell. A forward pass writes the rows that are new and looks at all others,
 * and a text keeps the first that it has seen wrong. So it shows whether an event
 * tells the truth: what a text is told to be good is right, and all of it is if
 * there is no event.
 *
 * A page of one letter holds what it holds for a request with that letter. */

#include "fault_server.h"

enum {
    TALK_TEXTS = 5,
    TEXT_TOKENS = SERVER_DEVICE_PAGES * SERVER_TOKENS
};

struct text {
    char letters[TEXT_TOKENS + 1];
    size_t n;           /* tokens that steps have computed */
    size_t first_wrong; /* seen in the steps since they were last looked at */
};

/* texts[i] is served by requests[i], whose seq is {0, 0} if there is none. */
struct talk {
    struct request requests[TALK_TEXTS];
    struct text texts[TALK_TEXTS];
    bool in_step[TALK_TEXTS];
    size_t from[TALK_TEXTS]; /* the step writes from here on */
};

/* ---- What is in a row ----------------------------------------------------- */

static inline uint64_t text_content(const struct text *text, size_t row)
{
    uint64_t pages = 1, page = 0;
    for (size_t i = 0; i <= row; i++) {
        uint64_t letter = (unsigned char)text->letters[i];
        if (i % SERVER_TOKENS == 0) {
            pages = i ? pages * 131 + page : pages;
            page = letter;
        } else if (text->letters[i] != text->letters[i - 1]) {
            page = page * 257 + letter;
        }
    }
    return pages * 131 + page;
}

static inline void text_tokens(const struct text *text, int32_t *tokens)
{
    for (size_t i = 0; text->letters[i]; i++)
        tokens[i] = text->letters[i] * 100 + (int32_t)(i % SERVER_TOKENS);
}

/* ---- A forward pass ------------------------------------------------------- */

struct text_kernel {
    struct hand *hand;
    struct text *text;
    struct text now; /* when it was launched */
    size_t from;
    uint32_t layer;
    int32_t table[SERVER_DEVICE_PAGES];
};

static inline void text_run_row(struct text_kernel *k, size_t row)
{
    uint64_t content = text_content(&k->now, row);
    for (uint32_t t = 0; t < server_shape.n_tensors; t++) {
        uint32_t bytes = server_tensors[t].row_bytes;
        size_t first = row % SERVER_TOKENS * bytes;
        unsigned char *piece = (unsigned char *)(uintptr_t)weir_rank_device_address(
            k->hand->rank, t, k->layer, (weir_device_page){ k->table[row / SERVER_TOKENS] });
        for (size_t at = first; at < first + bytes; at++) {
            unsigned char value = hand_byte(k->hand, content, t, k->layer, at);
            if (row >= k->from)
                piece[at] = value;
            else if (piece[at] != value && row < k->text->first_wrong)
                k->text->first_wrong = row;
        }
    }
}

static inline void text_run(void *arg)
{
    struct text_kernel *k = arg;
    for (size_t row = 0; k->now.letters[row]; row++)
        text_run_row(k, row);
    free(k);
}

static inline void text_launch(struct server *s, struct text_kernel *k)
{
    if (s->fake) {
        works_at_last(s, s->device->ops->stream_synchronize(s->device, k->hand->stream));
        text_run(k);
        return;
    }
    weir_cpu_access accesses[SERVER_DEVICE_PAGES * 2];
    size_t n = 0, n_pages = (strlen(k->now.letters) + SERVER_TOKENS - 1) / SERVER_TOKENS;
    for (size_t i = 0; i < n_pages; i++)
        for (uint32_t t = 0; t < server_shape.n_tensors; t++)
            accesses[n++] = (weir_cpu_access){ .pool = weir_rank_cpu_pool(k->hand->rank),
                                               .page = k->table[i],
                                               .tensor = (uint16_t)t,
                                               .layer = (uint16_t)k->layer,
                                               .write = i >= k->from / SERVER_TOKENS };
    works(s, weir_cpu_launch(s->device, k->hand->stream, text_run, k, accesses, n));
}

static inline void talk_run_layer(struct server *s, struct hand *hand, uint32_t layer, void *pass)
{
    struct talk *talk = pass;
    for (size_t i = 0; i < TALK_TEXTS; i++) {
        size_t n;
        if (!talk->in_step[i])
            continue;
        struct text_kernel *k = malloc(sizeof *k);
        cr_assert(ne(ptr, k, NULL));
        *k = (struct text_kernel){ .hand = hand,
                                   .text = &talk->texts[i],
                                   .now = talk->texts[i],
                                   .from = talk->from[i],
                                   .layer = layer };
        works(s, weir_seq_pages(talk->requests[i].seq, 0, SERVER_TOKENS, k->table,
                                SERVER_DEVICE_PAGES, &n));
        text_launch(s, k);
    }
}

/* ---- Its steps ------------------------------------------------------------ */

/* Pages for all letters of a text; false: it has failed meanwhile. */
static inline bool talk_reserve(struct server *s, struct talk *talk, size_t i)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = strlen(talk->texts[i].letters);
    int rc = -EAGAIN;
    for (int tries = 0; tries < SERVER_TRIES && rc == -EAGAIN; tries++) {
        rc = weir_seq_reserve(talk->requests[i].seq, &request, NULL);
        if (rc == -EAGAIN)
            server_settle(s);
    }
    server_check(s);
    if (rc == -EIO)
        cr_assert(talk->requests[i].failed, "failed, and nobody was told");
    else
        works(s, rc);
    return rc == 0;
}

/* All texts that have pages for their letters and have not failed are in the step. */
static inline void talk_step(struct server *s, struct talk *talk)
{
    weir_step step;
    bool ready[TALK_TEXTS];
    for (size_t i = 0; i < TALK_TEXTS; i++)
        ready[i] = talk->requests[i].seq.cache && talk_reserve(s, talk, i);
    works(s, weir_step_begin(&step, s->cache));
    for (size_t i = 0; i < TALK_TEXTS; i++) {
        struct text *text = &talk->texts[i];
        int32_t tokens[TEXT_TOKENS];
        talk->in_step[i] = ready[i] && !talk->requests[i].failed;
        talk->from[i] = text->n;
        if (!talk->in_step[i])
            continue;
        text_tokens(text, tokens);
        works(s, weir_step_add(step, talk->requests[i].seq));
        works(s, weir_seq_commit(talk->requests[i].seq, tokens + text->n,
                                 strlen(text->letters) - text->n));
        text->n = strlen(text->letters);
    }
    server_end_step(s, step, talk_run_layer, talk);
}

static inline void talk_cut(struct server *s, struct talk *talk, size_t i, size_t n)
{
    works(s, weir_seq_truncate(talk->requests[i].seq, n));
    server_check(s);
    talk->texts[i].n = n;
    talk->requests[i].failed = false;
}

/* With all that the texts need ended: nobody has been told too much, and who has
 * failed is as long as it was good. Returns how many have. */
static inline uint32_t talk_look(struct server *s, struct talk *talk)
{
    uint32_t n = 0;
    for (size_t i = 0; i < TALK_TEXTS; i++) {
        struct request *r = &talk->requests[i];
        struct text *text = &talk->texts[i];
        size_t good = r->failed ? r->good_tokens : text->n;
        if (!r->seq.cache)
            continue;
        cr_assert(text->first_wrong >= good, "text %d: row %d is wrong, %d are good", (int)i,
                  (int)text->first_wrong, (int)good);
        text->first_wrong = SIZE_MAX;
        if (!r->failed)
            continue;
        weir_seq more = r->seq;
        if (good < text->n)
            cr_assert(eq(int, weir_seq_truncate(more, good + 1), -EIO));
        talk_cut(s, talk, i, good < text->n ? good : text->n);
        n++;
    }
    s->text_failures += n;
    return n;
}

static inline bool talk_is_done(const struct talk *talk)
{
    bool done = true;
    for (size_t i = 0; i < TALK_TEXTS; i++)
        done &= !talk->requests[i].seq.cache || talk->texts[i].n == strlen(talk->texts[i].letters);
    return done;
}

/* Steps until all letters of all texts are computed; those in flight count. */
static inline void talk_pass(struct server *s, struct talk *talk)
{
    for (int tries = 0; tries == 0 || !talk_is_done(talk); tries++) {
        cr_assert(lt(int, tries, SERVER_TRIES), "one fault fails everything");
        talk_step(s, talk);
        server_pump(s, talk->requests, TALK_TEXTS);
        talk_look(s, talk);
    }
}

/* ---- Texts come and go ---------------------------------------------------- */

static inline void talk_begin(struct server *s, struct talk *talk)
{
    *talk = (struct talk){ 0 };
    s->watched = talk->requests;
    s->n_watched = TALK_TEXTS;
}

/* Text i is the first `len` of these letters, of which n are computed. */
static inline void talk_take_place(struct talk *talk, size_t i, const char *letters, size_t len,
                                   size_t n)
{
    cr_assert(zero(ptr, talk->requests[i].seq.cache));
    talk->requests[i] = (struct request){ 0 };
    talk->texts[i] = (struct text){ .n = n, .first_wrong = SIZE_MAX };
    memcpy(talk->texts[i].letters, letters, len);
}

/* Text i is open, with what the index has of it and pages for the rest. */
static inline void talk_open(struct server *s, struct talk *talk, size_t i, const char *letters)
{
    weir_seq *seq = &talk->requests[i].seq;
    weir_seq_info info;
    int32_t tokens[TEXT_TOKENS];
    talk_take_place(talk, i, letters, strlen(letters), 0);
    text_tokens(&talk->texts[i], tokens);
    weir_key key = { .tokens = tokens, .n_tokens = strlen(letters) };
    works(s, weir_seq_open(seq, s->cache, &key, NULL));
    cr_assert(talk_reserve(s, talk, i));
    works(s, weir_seq_get_info(*seq, &info));
    talk->texts[i].n = info.n_committed;
}

/* Text `kid` begins as the first `len` letters of text i. */
static inline void talk_fork(struct server *s, struct talk *talk, size_t i, size_t kid, size_t len)
{
    talk_take_place(talk, kid, talk->texts[i].letters, len, len);
    int rc = -EAGAIN;
    for (int tries = 0; tries < SERVER_TRIES && (rc == -EAGAIN || rc == -EIO); tries++) {
        rc = weir_seq_fork(&talk->requests[kid].seq, 1, talk->requests[i].seq, len, NULL);
        if (rc == -EAGAIN)
            server_settle(s);
        else if (rc == -EIO)
            talk_pass(s, talk);
    }
    works(s, rc);
    server_check(s);
}

/* What text i is to say next; it is computed by the next step. */
static inline void talk_write(struct talk *talk, size_t i, const char *letters)
{
    char *all = talk->texts[i].letters;
    size_t n = strlen(all);
    snprintf(all + n, TEXT_TOKENS + 1 - n, "%s", letters);
}

/* Text i is to say something else from letter n on. */
static inline void talk_rewrite(struct server *s, struct talk *talk, size_t i, size_t n,
                                const char *letters)
{
    talk_cut(s, talk, i, n);
    talk->texts[i].letters[n] = '\0';
    talk_write(talk, i, letters);
}

static inline void talk_close(struct server *s, struct talk *talk, size_t i)
{
    works(s, weir_seq_close(&talk->requests[i].seq));
    server_check(s);
}

/* Sequences may be closed while their steps run; those must not outlive the talk. */
static inline void talk_end(struct server *s, struct talk *talk)
{
    for (size_t i = 0; i < TALK_TEXTS; i++)
        talk_close(s, talk, i);
    server_pump(s, NULL, 0);
    s->watched = NULL;
    s->n_watched = 0;
}

#endif
