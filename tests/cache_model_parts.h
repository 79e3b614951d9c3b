/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_CACHE_MODEL_PARTS_H
#define WEIR_TESTS_CACHE_MODEL_PARTS_H

/* What the parts of the cache's model ask of each other; tests include
 * cache_model.h alone.
 *
 *   cache_model_order.c    an order: what it may ask for, and what that does
 *        │        │
 *        │   cache_model_seq.c      sequences: tables, tails, forks and cuts
 *        │        │
 *   cache_model_flight.c   what is in flight, fences, reports
 *        │
 *   cache_model.c          versions: which bytes are right
 *
 * Invariants:
 *   - a version is newer than those below it (`from`, `also`), and is never removed
 *   - a device page has a version, or is planned, or is anything with a tail
 *   - a flight is there from its order until all ranks have reported all of it;
 *     what it moves nobody else moves meanwhile, but for a load that reads a host
 *     page beside a cancelled one */

#include "cache_model.h"

#define MODEL_NONE (-1) /* no version */

/* ---- Versions ------------------------------------------------------------- */

int32_t model_add_version(struct model *m, uint64_t chain, int32_t from, uint64_t load_step);

/* Whether a version or one below it has failed; with `early`, on some ranks so far. */
bool model_is_bad(const struct model *m, int32_t version, bool early);

/* Cuts the way down where nothing can fail any more, so that it stays short. */
void model_shorten(struct model *m, int32_t version);

/* Whether it holds the bytes that the chain wants, and they are right. */
bool model_holds(const struct model *m, int32_t version, uint64_t chain);

/* ---- Flights -------------------------------------------------------------- */

/* `bytes` is the order's encoding, which is the cache's and is not copied. */
struct model_flight *model_new_flight(struct model *m, const weir_order *order, const void *bytes,
                                      size_t n_bytes);
void model_free_flight(struct model_flight *f);

/* By step; by what a report names. NULL: none such is in flight. */
struct model_flight *model_find_flight(const struct model *m, uint64_t step);
struct model_flight *model_flight_of(const struct model *m, uint32_t kind, uint64_t number);

bool model_all_reported(const struct model *m, const struct model_flight *f, uint32_t kind);

/* Whether one who waits for these steps comes behind `step`. */
bool model_is_behind(const struct model *m, const uint64_t *fences, uint32_t n, uint64_t step);

/* The flight whose unreported load or write-back moves a device or host page. A
 * load may read a host page that a cancelled one still reads. */
const struct model_flight *model_mover(const struct model *m, int32_t device, int32_t host,
                                       bool for_load);

/* ---- Sequences ------------------------------------------------------------ */

/* An open sequence other than `self` with this page in its table, or to copy it, and
 * where. */
const struct model_seq *model_holder(const struct model *m, const struct model_seq *self,
                                     int32_t page, uint32_t *index);

/* The open step is over, whether it ended or was aborted. */
void model_leave_step(struct model_seq *seq);

#endif
