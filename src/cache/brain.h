/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CACHE_BRAIN_H
#define WEIR_CACHE_BRAIN_H

/* The cache's state, shared by the files of this folder.
 *
 *   seq ──pages[i]──► device page ──owner──► entry (one a radix ref)
 *    │                  ▲   │                 │ page[DEVICE], page[HOST]
 *    │ claim            │   └─ link: ticket   │ kids_hot[], writer
 *    ▼                  └─────────────────────┘
 *   claims (first come)
 *
 *   tier[DEVICE], tier[HOST]: page pool + eviction policy + offered window
 *   steps[id % max_steps], writes[ticket % max_write_backs]: what is in flight
 *
 * Files: tier.c moves entries in and out of the tiers; entry.c makes and drops
 * them; write.c queues write-backs; key.c deals with keys and their spans;
 * priority.c and pin.c keep pages longer (see retention.h); duplicates.c says
 * which host copies the device also holds; runs.c counts runs; break_even.c
 * weighs a load; cancel.c finds the transfers that nobody wants any more; fail.c
 * tells sequences what they have lost; deadline.c, when a load is late; tail.c
 * copies the pages in which a sequence goes on that it shares. seq.c, reserve.c,
 * fork.c, truncate.c, step.c, report.c, forget.c, drain.c, rank_lost.c and
 * export.c (with table.h) are the calls; stats.c writes the counters; check.c
 * recomputes all of this.
 *
 * Words: a copy is *hot* if it is in a tier, is not offered there and is not
 * being cleaned (written back in order to be offered). An entry is
 * a *candidate* of a tier if its copy there is hot, its page has no pins, and
 * none of its children has a hot copy there: so leaves go before parents. A
 * device page is *held* while a sequence has it in its table or a pin keeps it.
 *
 * Tails. A sequence that goes on inside a page that others have too (a fork, or a
 * cut into the index) gets that page's rows in a page of its own:
 *
 *     pages[source_index] ◄── copied by the next step ── source.page, held
 *
 * Until then it is due; the page of its own may be lacking until the next reserve.
 * The copy reads a whole page, of which others may write later rows: who writes
 * into a partial page, or copies it, comes behind the step that last did either
 * (device_page.tail_step). What was copied out of a load that is still running is
 * not put into the index before that load has ended well.
 *
 * Invariants (weir_cache_check):
 *   - a page of the radix tree is a live entry with a copy in a tier; every
 *     page with an owner is the copy of that entry, and the other way round
 *   - pins of a page = sequences that hold it + tickets that move it, + 1 if
 *     there is a weir_pin that keeps it
 *   - no path is longer than the device tier: who made its last page held all of it
 *   - kids_hot[t] = children with a hot copy in t; a hot device copy has a hot
 *     device copy above it, so a path in use is never cut
 *   - the policy of a tier has been given exactly its candidates
 *   - a page without owner and pins is free
 *   - duplicates, if there are any, holds exactly the host tier's candidates
 *     whose device copy is hot and has arrived
 *   - RUN_DEVICE, RUN_HOST: exactly the copies whose page lies right behind
 *     their parent's; n_joined is their number, n_copies that of all copies
 *   - a due copy's target, if it is there, is not in the index
 *   - what a sequence has put into the index is there without a gap, unless it is
 *     detached
 *   - n_held = device pages that are held; n_pending = those that only
 *     tickets pin; n_cleaning = entries being cleaned; n_claimed = sum of claims
 *   - a step's or a write-back's pages are linked in exactly one ticket, and
 *     each page's `mover` names it
 *   - a load is wanted while a sequence holds one of its pages, or something was
 *     computed on it or copied from it; a write-back, while one of its entries lives; n_unwanted
 *     counts those in flight that are not and were not cancelled yet
 *   - deadlines holds the sequences with a deadline */

#include <weir/cache.h>
#include <weir/order.h>
#include <weir/page_pool.h>
#include <weir/radix.h>

#include "base/log.h"
#include "base/memory.h"
#include "cache/break_even.h"
#include "cache/retention.h"
#include "policy/heap.h"

enum tier_id {
    DEVICE,
    HOST,
    N_TIERS
};

enum entry_flag {
    ENTRY_LIVE = 1 << 0,
    ENTRY_CANDIDATE_DEVICE = 1 << 1, /* << tier */
    ENTRY_CANDIDATE_HOST = 1 << 2,
    ENTRY_LOADING = 1 << 3,     /* the device copy has not arrived */
    ENTRY_WRITING = 1 << 4,     /* the host copy has not arrived */
    ENTRY_CLEANING = 1 << 5,    /* written back in order to be given up */
    ENTRY_KEPT_DEVICE = 1 << 6, /* pinned there */
    ENTRY_KEPT_HOST = 1 << 7,
    ENTRY_RUN_DEVICE = 1 << 8, /* << tier: its page lies behind its parent's */
    ENTRY_RUN_HOST = 1 << 9
};

#define MAX_HITS ((1u << 16) - 1)
#define MAX_PRIORITY ((1u << 4) - 1)

/* One page of the index; its index in entries[] is its radix ref. There are as
 * many as pages of both tiers: what concerns one copy is kept by the copy's page. */
struct entry {
    int32_t page[N_TIERS]; /* 0: no copy there */
    uint32_t kids_hot[N_TIERS];
    uint64_t writer; /* step that computed it; it may have ended */
    uint32_t depth;
    uint32_t hits : 16; /* at most MAX_HITS */
    uint32_t flags : 12;
    uint32_t priority : 4; /* the highest that lives */
};

/* What its policy calls an entry is the number of its page here, less one. */
struct tier {
    enum tier_id id;
    uint32_t n_pages;
    weir_page_pool *pool; /* NULL: the cache has no such tier */
    const weir_evict_policy *policy;
    void *policy_state;
    weir_allocator policy_hooks; /* take from and count in the cache's memory */
    uint32_t window;             /* pages to keep free or offered */
    uint64_t *since;             /* [n_pages + 1], radix clock when the copy there was made */
    uint32_t most;               /* pages of an alloc */
    int32_t *pages;              /* scratch of alloc, [most] */
    int32_t *owners;
    uint64_t evicted;
    uint32_t n_copies; /* of entries */
    uint32_t n_joined; /* of them, continue their parent's run */
};

/* Who moves a device page: n > 0, the load of flights[n - 1]; n < 0, the
 * write-back writes[-n - 1]. A page that waits is to be loaded by the next step
 * that uses it. */
enum {
    MOVER_NONE = 0,
    MOVER_WAITING = INT16_MAX
};

/* What a device page is doing, beside what the pool knows. */
struct device_page {
    uint32_t users;     /* sequences that hold it */
    int32_t partner;    /* host page of the ticket that moves it */
    int32_t next;       /* next device page of that ticket, 0: last */
    uint32_t tail_step; /* the last that wrote it when it was partial, or copied it; its low bits */
    int16_t mover;
    bool wrong; /* its load brings wrong bytes; also while a failed load is being told */
};

/* A chain of device pages through device_page.next, in order. */
struct page_chain {
    int32_t first;
    int32_t last;
    uint32_t count;
};

struct seq_page {
    int32_t page;  /* device page that the kernels use */
    int32_t ref;   /* its entry, WEIR_RADIX_NONE: not in the index */
    int32_t guard; /* device page of the entry if that is another one; pinned */
};

struct seq {
    uint64_t id; /* 0: the slot is free */
    void *user;
    uint32_t generation;
    uint32_t compute_at_least;
    uint32_t priority; /* for what it uses and commits */
    uint64_t ttl_ns;
    int32_t root; /* held */
    int32_t *tokens;
    size_t tokens_capacity;
    weir_span *spans; /* of the key */
    size_t spans_capacity;
    size_t n_spans;
    size_t n_spans_held; /* in the index, for pages that it has not got yet */
    size_t n_key;
    size_t n_tokens; /* known, with those that are pending */
    size_t n_committed;
    size_t n_pending; /* committed in the open step */
    size_t n_hit;
    size_t good_tokens;
    int failed_rc;        /* with failed */
    uint64_t deadline_ns; /* for its loads; 0: none */
    uint64_t lost_writer; /* newest step that wrote pages of which no entry says so; 0: none */
    uint32_t lost_from;   /* first such page */
    struct seq_page *pages;
    uint32_t pages_capacity;
    uint32_t n_pages;
    uint32_t n_indexed;     /* leading pages that are in the index */
    uint32_t n_load_scan;   /* leading pages whose loads are still to be started or joined */
    struct seq_page source; /* what the next step copies for it; page 0: no copy is due */
    uint32_t source_index;
    uint32_t tail_index;  /* the page that was copied out of tail_load's target */
    uint64_t tail_load;   /* 0: none, or it has not been the last to be copied */
    uint64_t first_step;  /* commits may name steps from this one on */
    int32_t born_of;      /* in the open step: forked off what this one computes there; -1: not */
    uint32_t n_claimed;   /* pages set aside; 0: not in line */
    size_t claim_use_hit; /* of the request that waits */
    size_t claim_tokens;
    weir_step_set fences; /* what the next step must wait for */
    weir_step_set steps;  /* that used the sequence */
    weir_step_set joins;  /* whose loads bring its pages */
    bool reserved;        /* the first reserve has succeeded */
    bool in_step;         /* added to the open step */
    bool closing;         /* closed while in the open step */
    bool detached;        /* its path is lost: nothing of it enters the index */
    bool forgotten;       /* and never will */
    bool failed;          /* a load that it uses has failed, or is late */
    bool tell_ready;
    bool tell_failed;
    bool claim_told;
    int32_t claim_next, claim_previous; /* in the line of claims, -1: end */
    int32_t event_next;                 /* in the queue of events */
    bool event_queued;
    int32_t step_next; /* in the open step */
    int32_t free_next;
};

/* A step that has ended here and is not retired. */
struct flight {
    uint64_t id;         /* 0: none */
    uint64_t step_ranks; /* ranks that have not reported the step */
    uint64_t load_ranks; /* ranks that have not reported its load */
    bool step_finished;  /* all ranks have reported it and that was dealt with */
    bool step_failed;
    bool load_failed;
    bool built_on;     /* a page of the index was computed on its load */
    bool unwanted;     /* its load, and no order says so yet */
    bool cancelled;    /* an order says so: the load's pages have left the index */
    uint32_t n_wanted; /* pages of its load that sequences hold */
    bool load_copied;  /* a tail was copied out of one of its targets */
    struct page_chain loads;
    void *order; /* order_capacity bytes */
};

struct write_back {
    uint64_t ticket; /* 0: none */
    uint64_t ranks;
    bool failed;
    bool unwanted;
    bool cancelled;
    uint32_t n_live; /* pages whose entries are in the index */
    struct page_chain pages;
};

struct weir_cache {
    uint32_t page_tokens;
    uint32_t n_ranks;
    uint32_t max_steps;
    uint32_t max_write_backs;
    uint64_t page_bytes;
    uint64_t all_ranks; /* a bit a rank */
    uint64_t now_ns;
    weir_log log;
    struct weir_memory memory; /* counts the cache itself, and all but index and pools */
    weir_allocator hooks;      /* of that memory, for the heap of deadlines */

    weir_radix *radix;
    uint32_t n_entries; /* capacity */
    struct entry *entries;
    struct tier tiers[N_TIERS];
    struct device_page *device_pages; /* [device pages + 1] */
    uint32_t n_held;
    uint32_t n_pending; /* device pages that only tickets pin */
    uint32_t n_cleaning;
    struct weir_heap *duplicates; /* NULL: the host tier does not tell them */
    struct priorities priorities;
    struct pins pins;
    struct rates rates;

    struct seq *seqs;
    uint32_t max_seqs;
    uint32_t n_seqs;
    int32_t free_seq;
    int32_t claim_first, claim_last;
    uint32_t n_claimed;
    int32_t event_first, event_last;

    weir_write_policy write_policy;
    struct page_chain write_queue; /* waits for an order */
    bool write_told;
    uint64_t recent_written;   /* see weir_write_facts; halved by write.c */
    uint64_t recent_host_hits; /* likewise */
    uint64_t written_since;    /* they were halved last */

    uint64_t next_step;
    uint64_t next_write;
    struct flight *flights;    /* [max_steps] */
    struct write_back *writes; /* [max_write_backs] */
    uint32_t n_flights;
    uint32_t n_writes;
    uint32_t n_unwanted; /* loads and write-backs to cancel with the next order */
    bool draining;
    struct weir_heap *deadlines; /* of sequences, by deadline_ns */

    bool step_open;
    int32_t step_first, step_last; /* sequences of the open step */
    size_t order_capacity;

    /* Scratch, so that no call allocates. */
    uint32_t n_device;         /* device pages */
    int32_t *path;             /* [n_device] refs of a match */
    int32_t *wanted;           /* [n_device] refs of device copies, to write back or to drop */
    uint32_t n_moves;          /* pages of the smaller tier */
    weir_move *moves[N_TIERS]; /* [n_moves] of an order: loads, writes */
    weir_cancel *cancels;      /* [max_steps + max_write_backs] */
    weir_page_copy *copies;    /* [max_copies] of an order */
    uint32_t max_copies;
    weir_stats stats;
};

/* ---- tier.c -------------------------------------------------------------- */

/* `most` pages can be taken at a time. -ENOMEM, or what the policy says. */
int weir_tier_create(weir_cache *cache, enum tier_id id, uint32_t n_pages, uint32_t most,
                     double offered, const weir_evict_policy *policy);
void weir_tier_destroy(weir_cache *cache, enum tier_id id);

/* A host copy that can be loaded. */
static inline bool entry_on_host(const struct entry *entry)
{
    return entry->page[HOST] && !(entry->flags & ENTRY_WRITING);
}

/* Gives an entry a copy on a USED page without owner. */
void weir_tier_gain(weir_cache *cache, enum tier_id tier, int32_t ref, int32_t page);

/* The entry's copy is gone; what happens to the page is the caller's matter. */
void weir_tier_lose(weir_cache *cache, enum tier_id tier, int32_t ref);

/* Makes a copy hot again that was offered or is being cleaned. */
void weir_tier_keep(weir_cache *cache, enum tier_id tier, int32_t ref);

/* The write-back for which a device copy waited has ended: offers it. */
void weir_tier_cleaned(weir_cache *cache, int32_t ref);

/* The entry has no device copy after all: what is hot below it, which no
 * sequence holds any more, is to be so no longer. */
void weir_tier_cool_below(weir_cache *cache, int32_t ref);

bool weir_tier_is_hot(const weir_cache *cache, enum tier_id tier, int32_t ref);
bool weir_tier_is_candidate(const weir_cache *cache, enum tier_id tier, int32_t ref);

/* Tells the policy whether the entry may go now. To be called when a pin or a
 * flag of its page has changed. */
void weir_tier_update(weir_cache *cache, enum tier_id tier, int32_t ref);

/* A request uses the entry: its place in the tiers' policies moves. */
void weir_tier_use(weir_cache *cache, int32_t ref);

/* The entry's priority has ended: the policies place it anew. */
void weir_tier_reconsider(weir_cache *cache, int32_t ref);

/* Offers candidates until `n` pages are free, offered, or (device tier) being
 * written back in order to be; returns how many are free or offered. */
uint32_t weir_tier_make_room(weir_cache *cache, enum tier_id tier, uint32_t n);

uint32_t weir_tier_available(const struct tier *tier);

/* Takes n available pages, which must be there, evicting what was offered on
 * them. They are in tier->pages, USED, without owner. */
void weir_tier_alloc(weir_cache *cache, enum tier_id tier, uint32_t n, int32_t after,
                     uint32_t expect);

/* Pins; unpin frees a page that has no owner and no pin left. */
void weir_tier_pin(weir_cache *cache, enum tier_id tier, int32_t page);
void weir_tier_unpin(weir_cache *cache, enum tier_id tier, int32_t page);

/* A sequence holds a device page, and lets go of it. */
void weir_device_hold(weir_cache *cache, int32_t page);
void weir_device_let_go(weir_cache *cache, int32_t page);

void weir_chain_push(weir_cache *cache, struct page_chain *chain, int32_t page, int32_t partner);

/* ---- entry.c ------------------------------------------------------------- */

/* A new page of the index, as yet without a copy. */
void weir_entry_make(weir_cache *cache, int32_t ref, uint32_t depth);

/* Takes an entry and all below it out of the index. Pages that are pinned are
 * freed with their last pin. */
void weir_entry_drop(weir_cache *cache, int32_t ref);

/* Gives a host-only entry the device page its load is to fill. */
void weir_entry_start_load(weir_cache *cache, int32_t ref, int32_t page);

/* A load that no order holds yet is not to be made: `page` gives up its pins,
 * and its entry, if it has one, the copy. */
void weir_entry_cancel_load(weir_cache *cache, int32_t page);

/* The entry's load is in an order, and nobody wants it: the page is left to the
 * ticket, the entry has its host copy as before. */
void weir_entry_abandon_load(weir_cache *cache, int32_t ref);

/* The load of a page that waited is in the order of `flight` now. */
void weir_entry_order_load(weir_cache *cache, int32_t page, struct flight *flight);

/* ---- duplicates.c -------------------------------------------------------- */

int weir_duplicates_create(weir_cache *cache);
bool weir_is_duplicate(const weir_cache *cache, int32_t ref);

/* To be called when an entry's candidacy on the host, its device copy or its
 * last use has changed. */
void weir_duplicates_update(weir_cache *cache, int32_t ref);

/* Takes out the entry whose host copy is to go first, there and in the host
 * tier's policy, and returns what that calls it; -1: there is none. */
int32_t weir_duplicates_next(weir_cache *cache);

/* ---- runs.c -------------------------------------------------------------- */

/* Whether an entry's page lies right behind its parent's. */
bool weir_run_goes_on(const weir_cache *cache, enum tier_id tier, int32_t ref);

/* An entry has got its page, or is about to lose it. */
void weir_run_gain(weir_cache *cache, enum tier_id tier, int32_t ref);
void weir_run_lose(weir_cache *cache, enum tier_id tier, int32_t ref);

/* Adds a ticket's runs and the sum of their squared lengths. */
void weir_run_count(const weir_cache *cache, const struct page_chain *chain, uint64_t *runs,
                    uint64_t *squares);

/* ---- break_even.c -------------------------------------------------------- */

/* Fills a hit of n entries; returns those that are worth using. price: only load_ns,
 * compute_ns and n_worth, the rest 0, and without a look at the entries while no
 * rate is known. */
uint32_t weir_hit_measure(const weir_cache *cache, const int32_t *path, uint32_t n, weir_hit *hit);
uint32_t weir_hit_price(const weir_cache *cache, const int32_t *path, uint32_t n, weir_hit *price);

/* ---- write.c ------------------------------------------------------------- */

weir_write_answer weir_write_ask(weir_cache *cache, int32_t ref, weir_write_event event);

/* Queues the write-back of `n` entries that have a device copy and no host
 * copy, parents before children; those for which the host tier has no room are
 * counted as skipped. Returns how many were queued, the first ones. */
uint32_t weir_write_queue(weir_cache *cache, const int32_t *refs, uint32_t n);

/* A write-back's pages have been moved, or not: rc is 0, -EIO, or -ECANCELED for
 * those that left the index before an order held them. */
void weir_write_finish(weir_cache *cache, struct page_chain *pages, int rc);

/* ---- key.c --------------------------------------------------------------- */

/* 0, or -EINVAL with a log line. */
int weir_key_check(const weir_cache *cache, const weir_key *key);

/* What a search for a namespace's root gave, with a log line if it is -EINVAL.
 * `call` begins it. */
int weir_key_root_result(const weir_cache *cache, int rc, const char *call);

/* The root of a key whose tokens may be any, also none: 0; -ENOENT: the index has
 * nothing of its namespace; -EINVAL, with a log line. */
int weir_key_find_root(const weir_cache *cache, const weir_key *key, const char *call,
                       int32_t *root);

/* Copies the spans of a key that is sound into a sequence without any, and sets
 * memory aside for the pages that they overlap. -ENOMEM, and the sequence is as
 * it was. clear: it has none, and nothing is set aside. */
int weir_seq_set_spans(weir_cache *cache, struct seq *seq, const weir_key *key);
void weir_seq_clear_spans(weir_cache *cache, struct seq *seq);

/* Sets aside again what the key's pages from `page` on take, which may have to enter
 * the index once more. -ENOMEM. */
int weir_seq_hold_spans(weir_cache *cache, struct seq *seq, uint32_t page);

/* Spans of the first `len` tokens of another, as weir_seq_set_spans; one that goes
 * beyond is cut. -ENOMEM. */
int weir_seq_fork_spans(weir_cache *cache, struct seq *kid, const struct seq *seq, size_t len);

/* The sequence's pages from `first` to before `end`, as the index takes them. */
weir_part weir_seq_part(const weir_cache *cache, const struct seq *seq, size_t first, size_t end);

/* What was set aside for these pages, which are about to be inserted. */
void weir_seq_use_spans(weir_cache *cache, struct seq *seq, const weir_part *part);

/* ---- cancel.c ------------------------------------------------------------ */

/* A page that a load moves is held by its first sequence, or by none any more. */
void weir_cancel_count_load(weir_cache *cache, int32_t page, int change);

/* The entry of a page that a write-back moves has left the index. */
void weir_cancel_count_write(weir_cache *cache, int32_t page);

/* A page of the index is computed on what these steps load. */
void weir_cancel_build_on(weir_cache *cache, const weir_step_set *loads);

/* The index is empty, so nothing is. */
void weir_cancel_unbuild(weir_cache *cache);

/* Its transfer has ended: nothing is left to cancel. */
void weir_cancel_forget(weir_cache *cache, bool *unwanted);

/* Cancels what nobody wants, for the order of step `before`; returns how many
 * are in cache->cancels. */
uint32_t weir_cancel_list(weir_cache *cache, uint64_t before);

/* ---- fail.c -------------------------------------------------------------- */

/* Of the sequence only good_tokens are right, and nothing of it enters the index,
 * also not what the open step is to commit. Tells it once, and again only if less
 * is right than it was told. */
void weir_fail_seq(weir_cache *cache, struct seq *seq, size_t good_tokens, int rc);

/* Drops entries whose content is wrong, with all that was computed on them, and
 * tells the sequences that have them, or pages that are marked wrong, or that
 * step's work. failed_step 0: none. */
void weir_fail_drop(weir_cache *cache, const int32_t *refs, uint32_t n, uint64_t failed_step);

/* ---- deadline.c ---------------------------------------------------------- */

/* 0: none. */
void weir_deadline_set(weir_cache *cache, struct seq *seq, uint64_t deadline_ns);

/* Tells those whose loads are late at cache->now_ns. */
void weir_deadline_poll(weir_cache *cache);

/* ---- forget.c ------------------------------------------------------------ */

/* Drops all entries; with `root`, of one namespace only, else WEIR_RADIX_NONE.
 * The sequences are not asked. */
void weir_forget_entries(weir_cache *cache, int32_t root);

/* ---- report.c ------------------------------------------------------------ */

/* These ranks, which had not reported it, have done a step's forward pass, its
 * load, a write-back: their bits are struck out of what is due, and if that was
 * the last, it is over. */
void weir_report_step(weir_cache *cache, struct flight *flight, bool failed);
void weir_report_load(weir_cache *cache, struct flight *flight, bool failed);
void weir_report_write(weir_cache *cache, struct write_back *write, bool failed);

/* ---- seq.c --------------------------------------------------------------- */

/* Its buffers. */
void weir_seq_free(weir_cache *cache, struct seq *seq);

struct seq *weir_seq_find(weir_seq handle, int *rc);
weir_seq weir_seq_handle(weir_cache *cache, const struct seq *seq);

/* Takes a free slot, which must be there, for a sequence below a root that is
 * held for it. Its tokens, spans and pages are the slot's. */
struct seq *weir_seq_make(weir_cache *cache, int32_t root, void *user);

/* -ENOMEM, and nothing has changed. */
int weir_seq_grow_tokens(weir_cache *cache, struct seq *seq, size_t n);
int weir_seq_grow_pages(weir_cache *cache, struct seq *seq, uint32_t n);

/* A page that a sequence held; the last one to let go of it takes along the load that
 * it waits for. */
void weir_seq_let_page_go(weir_cache *cache, int32_t page);

/* The sequence holds a page no more, nor what guards it. */
void weir_seq_let_go(weir_cache *cache, const struct seq *seq, const struct seq_page *sp);

/* Lets go of all pages but the first n, the last one first. */
void weir_seq_keep_pages(weir_cache *cache, struct seq *seq, uint32_t n);

/* Page i is the work of `writer` and maybe of steps before it, of which no entry tells:
 * what was forgotten, was copied, or duplicates a page of the index. */
void weir_seq_note_writer(const weir_cache *cache, struct seq *seq, uint32_t i, uint64_t writer);

/* Commits what is pending, written by `writer`. */
void weir_seq_apply_commit(weir_cache *cache, struct seq *seq, uint64_t writer);
void weir_seq_release(weir_cache *cache, struct seq *seq);
void weir_seq_drop_claim(weir_cache *cache, struct seq *seq);

/* What a sequence in line needs changes with what others hold and evict. */
void weir_seq_recount_claim(weir_cache *cache, struct seq *seq);
void weir_seq_queue_event(weir_cache *cache, struct seq *seq);

static inline int32_t seq_index(const weir_cache *cache, const struct seq *seq)
{
    return (int32_t)(seq - cache->seqs);
}

/* ---- tail.c -------------------------------------------------------------- */

/* Whether the load of a due copy's source is still to come, or running. */
static inline bool source_is_loading(const weir_cache *cache, const struct seq_page *source)
{
    return cache->device_pages[source->page].mover > 0;
}

/* The copy is not due any more, without having been made. */
void weir_tail_forget(weir_cache *cache, struct seq *seq);

/* A copy is due: page `index` of the sequence is to begin with what `source` holds,
 * which the sequence holds from now on. If a step that writes it goes wrong, so
 * does the sequence. */
void weir_tail_owe(weir_cache *cache, struct seq *seq, struct seq_page source, uint32_t index);

/* The sequence is in the step that ends: makes its copy if one is due, whose load
 * the step has begun or joined, and puts its partial page behind whoever wrote or
 * copied it last. A copy stays due if it has failed: what is good of it ends before. */
void weir_tail_settle(weir_cache *cache, struct seq *seq, uint64_t step, weir_step_set *fences,
                      weir_page_copy *copies, uint32_t *n_copies);

/* A load has failed: tells those that have copied its targets. */
void weir_tail_fail(weir_cache *cache, uint64_t load);

/* ---- truncate.c ---------------------------------------------------------- */

/* Which loads bring what the sequence has, of those that are in an order. */
void weir_seq_find_joins(weir_cache *cache, struct seq *seq);

/* Cuts a sequence that is in no step to so many tokens, which are committed; if it
 * is right as far as that, it is usable again. */
void weir_seq_cut(weir_cache *cache, struct seq *seq, size_t n_tokens);

/* ---- fork.c -------------------------------------------------------------- */

/* The open step, whose results the sequence was forked off, ends. */
void weir_fork_settle(weir_cache *cache, struct seq *seq, uint64_t step);

/* The open step, whose results the sequence was forked off, is aborted: it goes
 * back to the whole pages before. */
void weir_fork_undo(weir_cache *cache, struct seq *seq);

/* ---- step.c -------------------------------------------------------------- */

/* The flight of a step that is not retired, else NULL. */
static inline struct flight *flight_of(const weir_cache *cache, uint64_t step)
{
    struct flight *flight = &cache->flights[step % cache->max_steps];
    return step && flight->id == step ? flight : NULL;
}

/* Whether a step's forward pass may still run on a rank. */
static inline bool step_is_running(const weir_cache *cache, uint64_t step)
{
    const struct flight *flight = flight_of(cache, step);
    return flight && flight->step_ranks;
}

static inline bool load_is_running(const weir_cache *cache, uint64_t step)
{
    const struct flight *flight = flight_of(cache, step);
    return flight && flight->load_ranks;
}

#endif
