/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_LIFECYCLE_H
#define WEIR_LIFECYCLE_H

/* What happens to a cache as a whole: forgetting, standing still, beginning
 * anew, and losing a rank.
 *
 *   forget      weights or an adapter were reloaded: what was computed with
 *               them must not be hit again; who runs goes on
 *   drain       nothing new starts until resume; transfers come to an end
 *   reset       every sequence ends and the index is empty; the ranks go on
 *   rank_lost   a rank reports no more: all that it held a share of is gone
 *
 * Threads: as of every call to a cache, one at a time. None blocks or allocates. */

#include <weir/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forgets a namespace, or all: its pages leave the index at once, those that
 * are pinned are free with their last pin, and what is in flight for them ends
 * without harm (a write-back that no rank has entered is dropped).
 *
 * Sequences that are open go on with the pages that they hold, also with loads
 * that are still to come, but nothing of them enters the index any more, and one
 * that has not reserved yet hits nothing. A sequence that is opened later starts
 * anew, even while those are open. Allowed while a step is open.
 *
 *   fields, n_fields  the namespace as in weir_key; 0 fields: the common one
 *
 * A namespace that is not known is no error. -EINVAL. O(open sequences and
 * their pages, pages of the namespace); forget_all: O(all pages). */
WEIR_API int weir_cache_forget(weir_cache *cache, const weir_field *fields,
                               size_t n_fields) WEIR_NOEXCEPT;
WEIR_API int weir_cache_forget_all(weir_cache *cache) WEIR_NOEXCEPT;

/* Makes the cache stand still, and says whether it does: 0 if nothing is in
 * flight, else -EAGAIN; carry the reports and call again. From the first call on
 *
 *   - weir_step_begin is refused with -EBUSY (a step that is open can be ended)
 *   - a reserve that would take a load, or room that is neither free nor
 *     offered, is refused with -EBUSY; claims keep their place. So is a fork that
 *     would take such room
 *   - no page is queued to be written back: commits and hits that ask for it
 *     count in write_skipped_pages; those in the queue stay there
 *
 * All else goes on: opening, closing, commits, reports, polls. */
WEIR_API int weir_cache_drain(weir_cache *cache) WEIR_NOEXCEPT;

/* Ends it. No error if the cache was not drained. */
WEIR_API int weir_cache_resume(weir_cache *cache) WEIR_NOEXCEPT;

/* Ends every sequence, so that their handles are stale, without an event, and
 * empties the index. What is in flight stays in flight: its pages are free when
 * the reports have come, loads and write-backs that no rank has entered are
 * cancelled by the next order. Statistics go on counting, steps keep their
 * numbers. A drained cache stays drained. -EBUSY: a step is open; -EINVAL. */
WEIR_API int weir_cache_reset(weir_cache *cache) WEIR_NOEXCEPT;

/* Says that a rank will report no more: its process died, its GPU fell off.
 * What is in flight on it has failed. Its share of every page is lost, so the
 * index is emptied, and every sequence that has pages gets a
 * WEIR_EVENT_LOAD_FAILED with -EIO and 0 good tokens. Pages that other ranks
 * are still moving are free when these have reported.
 *
 *   first_step  receives the step with which another rank in its place begins:
 *               weir_rank_params.first_step. If a step is open, it is that one
 *
 * So: see to it that nobody reads an order for the lost rank any more, since those
 * that only it was due for are retired by this call. Call it, poll, and truncate or
 * close the sequences that are told. Close the lost rank and its device, open
 * another with first_step, and compute again what was pinned: the pins keep nothing
 * now and are to be unpinned and made anew. What the other ranks still answer of
 * steps before first_step is of no use.
 *
 * A report of the lost rank that comes late is refused with -EINVAL, for
 * nothing is in flight on it: keep it from being taken for the new rank's. The new
 * rank is given every order from first_step on, also those that end before it is
 * open; or call again when it is, and it begins later. -EINVAL: no such rank, or
 * first_step is NULL. */
WEIR_API int weir_cache_rank_lost(weir_cache *cache, uint32_t rank_index,
                                  uint64_t *first_step) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
