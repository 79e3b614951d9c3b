/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/brain.h"
#include "policy/heap.h"

#include <errno.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- Invariants ---------------------------------------------------------- */

/* What the pins and counters ought to be, gathered from those who hold them. */
struct tally {
    uint32_t *pins[N_TIERS]; /* [pool size + 1] */
    uint32_t *users;         /* [device pages + 1] */
    uint32_t *entry_pins;    /* [entries], scratch of weir_pin_fault */
    uint32_t n_copies[N_TIERS], n_joined[N_TIERS];
    uint32_t n_live;
    uint32_t n_cleaning;
    uint32_t n_duplicates;
};

static void tally_ticket(const weir_cache *cache, struct tally *tally,
                         const struct page_chain *chain)
{
    for (int32_t page = chain->first; page; page = cache->device_pages[page].next) {
        tally->pins[DEVICE][page]++;
        tally->pins[HOST][cache->device_pages[page].partner]++;
    }
}

static void tally_page(struct tally *tally, const struct seq_page *sp)
{
    tally->users[sp->page]++;
    if (sp->guard)
        tally->users[sp->guard]++;
}

static void tally_all(const weir_cache *cache, struct tally *tally)
{
    for (uint32_t i = 0; i < cache->max_seqs; i++) {
        const struct seq *seq = &cache->seqs[i];
        for (uint32_t j = 0; seq->id && j < seq->n_pages; j++)
            tally_page(tally, &seq->pages[j]);
        if (seq->id && seq->source.page)
            tally_page(tally, &seq->source);
    }
    for (uint32_t ref = 0; ref < cache->n_entries; ref++) {
        const struct entry *entry = &cache->entries[ref];
        if (entry->flags & ENTRY_KEPT_DEVICE)
            tally->users[entry->page[DEVICE]]++;
        if (entry->flags & ENTRY_KEPT_HOST)
            tally->pins[HOST][entry->page[HOST]]++;
    }
    for (uint32_t page = 1; page <= weir_page_pool_size(cache->tiers[DEVICE].pool); page++)
        tally->pins[DEVICE][page] = tally->users[page];
    for (uint32_t i = 0; i < cache->max_steps; i++)
        tally_ticket(cache, tally, &cache->flights[i].loads);
    for (uint32_t i = 0; i < cache->max_write_backs; i++)
        tally_ticket(cache, tally, &cache->writes[i].pages);
    tally_ticket(cache, tally, &cache->write_queue);
    for (uint32_t page = 1; page <= weir_page_pool_size(cache->tiers[DEVICE].pool); page++)
        if (cache->device_pages[page].mover == MOVER_WAITING) {
            tally->pins[DEVICE][page]++;
            tally->pins[HOST][cache->device_pages[page].partner]++;
        }
    for (uint32_t ref = 0; ref < cache->n_entries; ref++) {
        const struct entry *entry = &cache->entries[ref];
        if (!(entry->flags & ENTRY_LIVE))
            continue;
        tally->n_live++;
        tally->n_cleaning += (entry->flags & ENTRY_CLEANING) != 0;
        tally->n_duplicates += weir_is_duplicate(cache, (int32_t)ref);
        for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
            tally->n_copies[id] += entry->page[id] != 0;
            tally->n_joined[id] += (entry->flags & ENTRY_RUN_DEVICE << id) != 0;
        }
    }
}

static const char *entry_fault(const weir_cache *cache, int32_t ref)
{
    const struct entry *entry = &cache->entries[ref];
    if (!weir_radix_tokens(cache->radix, ref))
        return "cache: a live entry is not in the index";
    if (!entry->page[DEVICE] && !entry->page[HOST])
        return "cache: an entry has no copy";
    if ((entry->flags & ENTRY_LOADING) && !(entry->page[DEVICE] && entry->page[HOST]))
        return "cache: a loading entry lacks a copy";
    if ((entry->flags & ENTRY_WRITING) && !(entry->page[DEVICE] && entry->page[HOST]))
        return "cache: an entry that is being written lacks a copy";
    if (entry->depth >= cache->n_device)
        return "cache: a path is longer than the device tier";
    int32_t parent = weir_radix_parent(cache->radix, ref);
    if (parent >= 0 && !(cache->entries[parent].flags & ENTRY_LIVE))
        return "cache: an entry's parent is not live";
    if (parent >= 0 && entry->depth != cache->entries[parent].depth + 1)
        return "cache: an entry's depth is wrong";
    if (parent >= 0 && weir_tier_is_hot(cache, DEVICE, ref) &&
        !weir_tier_is_hot(cache, DEVICE, parent))
        return "cache: a hot device copy lies below one that is not";
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        uint32_t kids = 0;
        for (int32_t child = weir_radix_first_child(cache->radix, ref); child >= 0;
             child = weir_radix_next_sibling(cache->radix, child))
            kids += weir_tier_is_hot(cache, id, child);
        if (kids != entry->kids_hot[id])
            return "cache: a count of hot children is wrong";
        bool flagged = (entry->flags & (ENTRY_CANDIDATE_DEVICE << id)) != 0;
        if (flagged != weir_tier_is_candidate(cache, id, ref))
            return "cache: a tier's candidates are not those of its policy";
        if (entry->page[id] && weir_page_pool_owner(cache->tiers[id].pool, entry->page[id]) != ref)
            return "cache: a copy's page belongs to another entry";
        bool joined = (entry->flags & (ENTRY_RUN_DEVICE << id)) != 0;
        if (joined != weir_run_goes_on(cache, id, ref))
            return "cache: a copy's run goes on behind its parent's, or does not";
    }
    if (cache->duplicates && weir_is_duplicate(cache, ref) &&
        !weir_heap_has(cache->duplicates, (uint32_t)entry->page[HOST] - 1))
        return "cache: the host tier does not know one of its duplicates";
    return NULL;
}

static const char *page_fault(const weir_cache *cache, enum tier_id id, int32_t page,
                              const struct tally *tally)
{
    const weir_page_pool *pool = cache->tiers[id].pool;
    int32_t owner = weir_page_pool_owner(pool, page);
    if (owner >= 0 && !(cache->entries[owner].flags & ENTRY_LIVE))
        return "cache: a page's owner is not live";
    if (owner >= 0 && cache->entries[owner].page[id] != page)
        return "cache: a page's owner has its copy elsewhere";
    if (weir_page_pool_pins(pool, page) != tally->pins[id][page])
        return "cache: pins differ from the sequences and tickets that hold them";
    if (weir_page_pool_state(pool, page) == WEIR_PAGE_USED && owner < 0 &&
        tally->pins[id][page] == 0)
        return "cache: a page is lost: used, without owner and pins";
    return NULL;
}

static const char *count_fault(const weir_cache *cache, const struct tally *tally)
{
    uint32_t n_held = 0, n_pending = 0, n_claimed = 0, n_seqs = 0;
    size_t n_spans_held = 0;
    for (uint32_t page = 1; page <= weir_page_pool_size(cache->tiers[DEVICE].pool); page++) {
        if (tally->users[page] != cache->device_pages[page].users)
            return "cache: a device page's users are not the sequences that hold it";
        n_held += tally->users[page] > 0;
        n_pending += tally->users[page] == 0 && tally->pins[DEVICE][page] > 0;
    }
    for (int32_t i = cache->claim_first; i >= 0; i = cache->seqs[i].claim_next)
        n_claimed += cache->seqs[i].n_claimed;
    for (uint32_t i = 0; i < cache->max_seqs; i++) {
        n_seqs += cache->seqs[i].id != 0;
        n_spans_held += cache->seqs[i].n_spans_held;
    }
    if (n_spans_held != weir_radix_spans_held(cache->radix))
        return "cache: what is set aside for spans is not what sequences have asked for";
    if (n_held != cache->n_held || n_pending != cache->n_pending)
        return "cache: the count of held or pending pages is wrong";
    if (n_claimed != cache->n_claimed || n_seqs != cache->n_seqs)
        return "cache: the count of claims or sequences is wrong";
    if (tally->n_live != weir_radix_pages(cache->radix))
        return "cache: entries and index differ";
    for (enum tier_id id = DEVICE; id < N_TIERS; id++)
        if (tally->n_copies[id] != cache->tiers[id].n_copies ||
            tally->n_joined[id] != cache->tiers[id].n_joined)
            return "cache: the count of a tier's copies or runs is wrong";
    if (cache->duplicates && tally->n_duplicates != cache->duplicates->n)
        return "cache: the host tier takes for duplicates what is none";
    if (tally->n_cleaning != cache->n_cleaning)
        return "cache: the count of entries being cleaned is wrong";
    return NULL;
}

/* Whether a load or write-back names its pages, and they it; adds what it moves
 * to *n_moved. */
static bool names_its_pages(const weir_cache *cache, const struct page_chain *chain, int mover,
                            uint32_t *n_moved)
{
    uint32_t n = 0;
    for (int32_t page = chain->first; page; page = cache->device_pages[page].next) {
        if (cache->device_pages[page].mover != mover)
            return false;
        n++;
    }
    *n_moved += n;
    return n == chain->count;
}

static const char *ticket_fault(const weir_cache *cache)
{
    uint32_t n_moved = 0, n_unwanted = 0;
    for (uint32_t i = 0; i < cache->max_steps; i++) {
        const struct flight *flight = &cache->flights[i];
        uint32_t n_wanted = 0;
        for (int32_t page = flight->loads.first; page; page = cache->device_pages[page].next)
            n_wanted += cache->device_pages[page].users > 0;
        if (!names_its_pages(cache, &flight->loads, (int)i + 1, &n_moved))
            return "cache: a load and its pages do not name each other";
        if (flight->loads.count == 0)
            continue;
        bool unwanted =
            n_wanted == 0 && !flight->built_on && !flight->load_copied && !flight->cancelled;
        if (n_wanted != flight->n_wanted || unwanted != flight->unwanted)
            return "cache: a load is wanted by others than those that hold its pages";
        n_unwanted += unwanted;
    }
    for (uint32_t i = 0; i < cache->max_write_backs; i++) {
        const struct write_back *write = &cache->writes[i];
        uint32_t n_live = 0;
        for (int32_t page = write->pages.first; page; page = cache->device_pages[page].next)
            n_live += weir_page_pool_owner(cache->tiers[DEVICE].pool, page) >= 0;
        if (!names_its_pages(cache, &write->pages, -(int)i - 1, &n_moved))
            return "cache: a write-back and its pages do not name each other";
        if (write->ticket == 0)
            continue;
        bool unwanted = n_live == 0 && !write->cancelled;
        if (n_live != write->n_live || unwanted != write->unwanted)
            return "cache: a write-back is wanted though its entries are gone, or not";
        n_unwanted += unwanted;
    }
    for (uint32_t page = 1; page <= weir_page_pool_size(cache->tiers[DEVICE].pool); page++) {
        const struct device_page *device_page = &cache->device_pages[page];
        n_moved -= device_page->mover != MOVER_NONE && device_page->mover != MOVER_WAITING;
        if (device_page->wrong && (device_page->mover <= 0 || device_page->mover == MOVER_WAITING))
            return "cache: a page is marked wrong that no load brings";
        int32_t ref = weir_page_pool_owner(cache->tiers[DEVICE].pool, (int32_t)page);
        if (ref >= 0 &&
            ((cache->entries[ref].flags & ENTRY_LOADING) != 0) != (device_page->mover > 0))
            return "cache: an entry is loading and its page is not, or the other way round";
        if (device_page->mover == MOVER_WAITING && device_page->users == 0)
            return "cache: a page waits for a load that no sequence wants";
    }
    if (n_moved)
        return "cache: a page names a ticket that does not move it";
    return n_unwanted == cache->n_unwanted ? NULL : "cache: the count of unwanted tickets is wrong";
}

static const char *deadline_fault(const weir_cache *cache)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cache->max_seqs; i++) {
        const struct seq *seq = &cache->seqs[i];
        bool waits = seq->id && seq->deadline_ns;
        if (waits != weir_heap_has(cache->deadlines, i))
            return "cache: a deadline is not that of an open sequence";
        n += waits;
    }
    return n == cache->deadlines->n ? NULL : "cache: the count of deadlines is wrong";
}

static const char *seq_fault(const weir_cache *cache, const struct seq *seq)
{
    for (uint32_t i = 0; i < seq->n_indexed && !seq->detached; i++)
        if (seq->pages[i].ref < 0)
            return "cache: a sequence's path has a gap";
    if (seq->born_of >= 0 && !(seq->in_step && cache->step_open))
        return "cache: a sequence was born in no step";
    if (!seq->source.page)
        return NULL;
    if (seq->failed && seq->good_tokens > (size_t)seq->source_index * cache->page_tokens)
        return "cache: a failed sequence is right beyond a copy that is due";
    if (!seq->failed &&
        seq->source_index !=
            (seq->n_committed + (seq->born_of >= 0 ? seq->n_pending : 0)) / cache->page_tokens)
        return "cache: a copy is due that is not of the last page";
    if (seq->n_pages < seq->source_index)
        return "cache: a copy is due beyond the table";
    if (seq->n_pages == seq->source_index)
        return NULL;
    int32_t target = seq->pages[seq->source_index].page;
    if (weir_page_pool_owner(cache->tiers[DEVICE].pool, target) != WEIR_NO_OWNER)
        return "cache: a copy is due into a page of the index";
    return NULL;
}

static const char *find_fault(const weir_cache *cache, const struct tally *tally)
{
    const char *fault = NULL;
    for (uint32_t ref = 0; ref < cache->n_entries && !fault; ref++)
        if (cache->entries[ref].flags & ENTRY_LIVE)
            fault = entry_fault(cache, (int32_t)ref);
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        uint32_t n = weir_page_pool_size(cache->tiers[id].pool);
        for (uint32_t page = 1; page <= n && !fault; page++)
            fault = page_fault(cache, id, (int32_t)page, tally);
    }
    if (!fault)
        fault = ticket_fault(cache);
    if (!fault)
        fault = deadline_fault(cache);
    if (!fault)
        fault = weir_priority_fault(cache);
    if (!fault)
        fault = weir_pin_fault(cache, tally->entry_pins);
    for (uint32_t i = 0; i < cache->max_seqs && !fault; i++)
        if (cache->seqs[i].id)
            fault = seq_fault(cache, &cache->seqs[i]);
    return fault ? fault : count_fault(cache, tally);
}

int weir_cache_check(const weir_cache *cache, const char **reason)
{
    if (!cache)
        return -EINVAL;
    const char *text = NULL;
    int rc = weir_radix_check(cache->radix, &text);
    for (enum tier_id id = DEVICE; id < N_TIERS && !rc; id++)
        if (cache->tiers[id].pool)
            rc = weir_page_pool_check(cache->tiers[id].pool, &text);
    if (!rc) {
        struct tally tally = { 0 };
        struct weir_memory memory = { .allocator = cache->memory.allocator };
        size_t sizes[] = { weir_page_pool_size(cache->tiers[DEVICE].pool) + (size_t)1,
                           weir_page_pool_size(cache->tiers[HOST].pool) + (size_t)1 };
        for (enum tier_id id = DEVICE; id < N_TIERS; id++)
            tally.pins[id] = weir_memory_take(&memory, sizes[id], sizeof *tally.pins[id]);
        tally.users = weir_memory_take(&memory, sizes[DEVICE], sizeof *tally.users);
        tally.entry_pins = weir_memory_take(&memory, cache->n_entries, sizeof *tally.entry_pins);
        if (!tally.pins[DEVICE] || !tally.pins[HOST] || !tally.users || !tally.entry_pins) {
            rc = -ENOMEM;
        } else {
            tally_all(cache, &tally);
            text = find_fault(cache, &tally);
            rc = text ? -EIO : 0;
        }
        for (enum tier_id id = DEVICE; id < N_TIERS; id++)
            weir_memory_give(&memory, tally.pins[id], sizes[id], sizeof *tally.pins[id]);
        weir_memory_give(&memory, tally.users, sizes[DEVICE], sizeof *tally.users);
        weir_memory_give(&memory, tally.entry_pins, cache->n_entries, sizeof *tally.entry_pins);
    }
    if (rc == -EIO && reason)
        *reason = text;
    return rc;
}

/* ---- Digest -------------------------------------------------------------- */

static void mix(uint64_t *digest, const uint64_t *words, size_t n)
{
    *digest = XXH3_64bits_withSeed(words, n * sizeof *words, *digest);
}

static void mix_chain(const weir_cache *cache, uint64_t *digest, const struct page_chain *chain)
{
    for (int32_t page = chain->first; page; page = cache->device_pages[page].next) {
        const struct device_page *moved = &cache->device_pages[page];
        uint64_t words[] = { (uint64_t)page, (uint64_t)moved->partner, moved->wrong };
        mix(digest, words, 3);
    }
}

static void mix_entry(const weir_cache *cache, uint64_t *digest, int32_t ref)
{
    const struct entry *e = &cache->entries[ref];
    uint64_t words[] = {
        (uint64_t)ref,
        (uint64_t)weir_radix_parent(cache->radix, ref),
        weir_radix_hash(cache->radix, ref),
        (uint64_t)e->page[DEVICE],
        (uint64_t)e->page[HOST],
        e->kids_hot[DEVICE],
        e->kids_hot[HOST],
        e->page[DEVICE] ? cache->tiers[DEVICE].since[e->page[DEVICE]] : 0,
        e->page[HOST] ? cache->tiers[HOST].since[e->page[HOST]] : 0,
        e->writer,
        e->page[DEVICE] ? (uint64_t)cache->device_pages[e->page[DEVICE]].mover : 0,
        e->hits,
        e->depth,
        e->flags,
        e->priority,
        weir_pin_count(cache, ref),
        weir_radix_last_use(cache->radix, ref),
    };
    mix(digest, words, sizeof words / sizeof *words);
    const struct priorities *p = &cache->priorities;
    if (p->n)
        mix(digest, &p->until[(size_t)ref * p->n], p->n);
}

static void mix_pins(uint64_t *digest, const struct pins *pins)
{
    for (int32_t i = pins->oldest; i >= 0; i = pins->slots[i].newer) {
        const struct pin *pin = &pins->slots[i];
        uint64_t words[] = { pin->id, (uint64_t)pin->tip, pin->n_pages, pin->since_ns };
        mix(digest, words, sizeof words / sizeof *words);
    }
}

static void mix_page(uint64_t *digest, const struct seq_page *sp)
{
    uint64_t words[] = { (uint64_t)sp->page, (uint64_t)sp->ref, (uint64_t)sp->guard };
    mix(digest, words, 3);
}

static void mix_seq(uint64_t *digest, const struct seq *seq)
{
    uint64_t words[] = {
        seq->id,
        seq->n_tokens,
        seq->n_committed,
        seq->n_pending,
        seq->n_hit,
        seq->n_pages,
        seq->n_indexed,
        seq->n_claimed,
        seq->priority,
        seq->ttl_ns,
        (uint64_t)seq->claim_next,
        seq->fences.newest,
        seq->fences.before,
        seq->steps.newest,
        seq->steps.before,
        seq->joins.newest,
        seq->joins.before,
        seq->tail_load,
        seq->tail_index,
        seq->source_index,
        seq->first_step,
        (uint64_t)seq->born_of,
        (uint64_t)(seq->reserved | seq->in_step << 1 | seq->closing << 2 | seq->detached << 3 |
                   seq->failed << 4 | seq->tell_ready << 5 | seq->tell_failed << 6),
        seq->good_tokens,
        (uint64_t)seq->failed_rc,
        seq->deadline_ns,
        seq->lost_writer,
        seq->lost_from,
        XXH3_64bits(seq->tokens, seq->n_tokens * sizeof *seq->tokens),
        seq->n_spans,
        seq->n_spans_held,
    };
    mix(digest, words, sizeof words / sizeof *words);
    for (size_t i = 0; i < seq->n_spans; i++) {
        const weir_span *s = &seq->spans[i];
        uint64_t span[] = { s->first, s->n_tokens, XXH3_64bits(s->digest, s->digest_bytes) };
        mix(digest, span, 3);
    }
    for (uint32_t i = 0; i < seq->n_pages; i++)
        mix_page(digest, &seq->pages[i]);
    mix_page(digest, &seq->source);
}

uint64_t weir_cache_digest(const weir_cache *cache)
{
    if (!cache)
        return 0;
    uint64_t digest = weir_radix_clock(cache->radix);
    for (uint32_t ref = 0; ref < cache->n_entries; ref++)
        if (cache->entries[ref].flags & ENTRY_LIVE)
            mix_entry(cache, &digest, (int32_t)ref);
    for (enum tier_id id = DEVICE; id < N_TIERS; id++) {
        const weir_page_pool *pool = cache->tiers[id].pool;
        for (uint32_t page = 1; page <= weir_page_pool_size(pool); page++) {
            int32_t p = (int32_t)page;
            weir_step_set steps = weir_page_pool_steps(pool, p);
            uint64_t words[] = { weir_page_pool_state(pool, p),
                                 weir_page_pool_pins(pool, p),
                                 (uint64_t)weir_page_pool_owner(pool, p),
                                 weir_page_pool_generation(pool, p),
                                 steps.newest,
                                 steps.before,
                                 id == DEVICE ? cache->device_pages[page].tail_step : 0 };
            mix(&digest, words, sizeof words / sizeof *words);
        }
    }
    for (uint32_t i = 0; i < cache->max_seqs; i++)
        if (cache->seqs[i].id)
            mix_seq(&digest, &cache->seqs[i]);
    for (uint32_t i = 0; i < cache->max_steps; i++) {
        const struct flight *flight = &cache->flights[i];
        uint64_t words[] = { flight->id, flight->step_ranks, flight->load_ranks,
                             (uint64_t)(flight->built_on | flight->cancelled << 1 |
                                        flight->load_copied << 2) };
        mix(&digest, words, 4);
        mix_chain(cache, &digest, &flight->loads);
    }
    for (uint32_t i = 0; i < cache->max_write_backs; i++) {
        uint64_t words[] = { cache->writes[i].ticket, cache->writes[i].ranks,
                             cache->writes[i].cancelled };
        mix(&digest, words, 3);
        mix_chain(cache, &digest, &cache->writes[i].pages);
    }
    mix_chain(cache, &digest, &cache->write_queue);
    for (uint32_t page = 1; page <= weir_page_pool_size(cache->tiers[DEVICE].pool); page++)
        if (cache->device_pages[page].mover == MOVER_WAITING) {
            uint64_t words[] = { page, (uint64_t)cache->device_pages[page].partner };
            mix(&digest, words, 2);
        }
    mix_pins(&digest, &cache->pins);
    uint64_t words[] = { cache->next_step,          cache->next_write,
                         cache->n_claimed,          cache->n_held,
                         cache->n_pending,          cache->n_cleaning,
                         cache->draining,           cache->recent_written,
                         cache->recent_host_hits,   cache->written_since,
                         cache->rates.ns_per_token, cache->rates.bytes_per_second };
    mix(&digest, words, sizeof words / sizeof *words);
    return digest;
}
