/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CACHE_MODEL_H
#define WEIR_TESTS_CACHE_MODEL_H

/* A naive model of what a cache may do, fed with nothing but the calls, the
 * block tables, the orders and the reports. It never looks into the cache.
 *
 *   order ──► flight: what each step reads and writes, its loads and writes
 *                │ reports of all ranks
 *                ▼
 *   device page ──► version ◄── host page
 *                     │ from: the version that its bytes were copied from, or
 *                     ▼       the page before, from which they were computed
 *                   version …                  (failed: so is all above it)
 *
 * A version says which prefix a page's bytes stand for, by a hash of all pages
 * up to it (its chain). Bytes are right if the chain is the one wanted and no
 * version below it has failed. Of a page that is not full a tail says how many
 * rows there are, of which page.
 *
 * Ordering is checked as a hazard between steps in flight: two steps that use
 * a page, one of them writing it, must be ordered by fences, directly or
 * through other steps in flight. A step is taken to write every page from its
 * sequence's first uncommitted token to the end of what is reserved: a server
 * may write rows there that it never commits. */

#include <weir/cache.h>
#include <weir/order.h>

#define MODEL_PAGES 64u /* of a tier, at most */
#define MODEL_RANKS 3u
#define MODEL_SEQS 10u
#define MODEL_FLIGHTS 256u

struct model_version {
    uint64_t chain;
    uint64_t load_step; /* 0: computed, or written back */
    int32_t from;       /* -1: nothing that could still fail */
    int32_t also;       /* likewise: its first rows were copied from there */
    bool arrived;       /* all ranks have reported the load */
    bool failing;       /* a rank has reported a failure */
    bool failed;        /* and all have reported */
};

/* The first rows of a page. */
struct model_tail {
    uint64_t chain; /* of the page that they begin */
    uint32_t rows;
    int32_t from; /* version that they were copied from, -1: none that could fail */
};

struct model_flight {
    uint64_t step; /* 0: the slot is free */
    uint64_t ticket;
    uint64_t *fences, *load_fences, *write_fences, *joins;
    uint32_t n_fences, n_load_fences, n_write_fences, n_joins;
    weir_move *loads, *writes;
    uint32_t n_loads, n_writes;
    int32_t *versions; /* of the loads, then of the writes */
    bool copies_late;  /* some, out of loads that are running */
    bool load_copied;  /* its load, while it was running */
    bool reads_page[MODEL_PAGES + 1];
    bool writes_page[MODEL_PAGES + 1];
    bool reported[WEIR_REPORT_WRITE_BACK + 1][MODEL_RANKS]; /* or nothing to report */
    bool cancelled[WEIR_REPORT_WRITE_BACK + 1];             /* by a later order */
    const void *order; /* the cache's own bytes, which are not to change */
    size_t order_bytes;
    uint64_t order_digest;
};

struct model_seq {
    bool open;
    bool closing; /* closed in the open step */
    bool in_step;
    bool reserved;
    bool waiting;                 /* told -EAGAIN */
    bool failure_told;            /* has had its event */
    bool lost;                    /* had pages when a rank was lost */
    bool late;                    /* a load was not there by the deadline */
    uint32_t late_pages;          /* pages before the first such */
    uint64_t deadline_ns;         /* 0: none */
    uint64_t chains[MODEL_PAGES]; /* of all pages that it may ever have */
    int32_t table[MODEL_PAGES];
    uint32_t n_pages;
    uint32_t n_step_pages; /* pages that its steps could write to */
    size_t n_committed;
    size_t n_pending; /* in the open step */
    int32_t source;   /* page that the next step copies for it, 0: none */
    uint32_t source_index;
    const struct model_seq *parent; /* with born */
    bool born;                      /* in the open step, of what that computes */
    bool unindexed;                 /* in part, for it was copied out of a load */
};

struct model {
    const char *name;
    uint64_t seed;
    uint64_t operation;
    uint32_t page_tokens;
    uint32_t device_pages;
    uint32_t host_pages;
    uint32_t n_ranks;
    uint64_t next_step;
    uint64_t loads_done, loads_failed, loads_cancelled;
    uint64_t writes_done, writes_failed, writes_cancelled;
    uint64_t copies_made;
    int32_t device[MODEL_PAGES + 1];   /* versions, -1: anything */
    uint64_t planned[MODEL_PAGES + 1]; /* chain that a load is to bring, if so */
    int32_t host[MODEL_PAGES + 1];
    struct model_tail tails[MODEL_PAGES + 1];
    struct model_version *versions;
    int32_t n_versions, versions_capacity;
    struct model_seq seqs[MODEL_SEQS];
    struct model_flight flights[MODEL_FLIGHTS];
};

/* Ends the test, saying where it was. */
#define model_must(model, condition, ...)     \
    do {                                      \
        if (!(condition))                     \
            model_fail((model), __VA_ARGS__); \
    } while (0)

void model_fail(const struct model *m, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));

void model_create(struct model *m);
void model_destroy(struct model *m);

/* The chain of a page with this content behind a prefix. */
uint64_t model_chain(uint64_t prefix, uint64_t content);

/* A reserve has succeeded: `table` is the sequence's whole block table now. */
void model_reserve(struct model *m, struct model_seq *seq, size_t n_hit, const int32_t *table,
                   size_t n);

/* Pages of its table whose loads are still to come. */
uint32_t model_missing(const struct model *m, const struct model_seq *seq);

/* A sequence has committed n tokens more, outside of a step or by one that has ended:
 * the pages that have become full hold their prefix from now on. */
void model_commit(struct model *m, struct model_seq *seq, size_t n);

/* A fork has succeeded: `table` is the kid's block table. The kid has its chains. */
void model_fork(struct model *m, const struct model_seq *seq, struct model_seq *kid, size_t len,
                const int32_t *table, size_t n);

/* A truncate has succeeded: `table` is the sequence's block table now. */
void model_truncate(struct model *m, struct model_seq *seq, size_t n_tokens, const int32_t *table,
                    size_t n);

/* The open step has ended with this order, or was aborted. */
void model_order(struct model *m, const void *order, size_t bytes);
void model_abort(struct model *m);

void model_close(struct model_seq *seq);

/* A poll at this time: some loads are late. */
void model_poll(struct model *m, uint64_t now_ns);

/* What a rank could report now: everything whose predecessors it has reported.
 * `items` holds 3 * MODEL_FLIGHTS. */
size_t model_reportable(const struct model *m, uint32_t rank, weir_report_item *items);

/* Whether a later order has cancelled what the item is about. */
bool model_is_cancelled(const struct model *m, const weir_report_item *item);

/* The cache has taken this item. */
void model_report(struct model *m, uint32_t rank, const weir_report_item *item);

/* The cache was told that a rank is lost: who has pages has none that is good, and
 * what the rank had not reported has failed. */
void model_rank_lost(struct model *m, uint32_t rank);

/* A peek has found n_tokens of a prompt with these chains. */
void model_peek(const struct model *m, const uint64_t *chains, const weir_hit *hit);

/* Pages of a sequence, with the one that a copy is due for. */
uint32_t model_pages(const struct model_seq *seq);

/* The first page of the sequence that is wrong because a load has failed, or
 * model_pages; with `early`, on some ranks so far. */
uint32_t model_good_pages(const struct model *m, const struct model_seq *seq, bool early);

/* Whether calls for the sequence answer -EIO until it is cut: something that it has
 * is wrong, or was late. */
bool model_is_doomed(const struct model *m, const struct model_seq *seq);

/* Steps or loads that a rank has not reported; and those or write-backs. */
uint32_t model_steps_in_flight(const struct model *m);
bool model_in_flight(const struct model *m);

/* Pages that no open sequence has in its table or, being a copy of what it has
 * there, keeps for it. */
uint32_t model_not_held(const struct model *m);

#endif
