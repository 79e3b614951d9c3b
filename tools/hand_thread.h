/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_HAND_THREAD_H
#define WEIR_TOOLS_HAND_THREAD_H

/* A rank on a thread of its own, as in a server with several GPUs.
 *
 *   scheduler ──give──► jobs ──► begin, forward, end ─┐
 *       ▲                                             │ weir_rank_report
 *       └────take──── reports ◄───────────────────────┘
 *
 * Jobs are carried out in order. The thread looks for what has ended after each
 * and now and then between them. A full box of reports holds up the reports, not
 * the jobs. */

#include "hands.h"

struct weir_hand_thread;

/* The hands must outlive the thread. -ENOMEM, -EAGAIN. */
int weir_hand_thread_start(struct weir_hand_thread **thread, struct weir_hands *hands,
                           uint32_t rank);

/* Waits for the jobs given. A NULL content is allowed. */
void weir_hand_thread_stop(struct weir_hand_thread **thread);

/* Gives the order of a work item, which stays valid until all of it has been
 * reported. */
void weir_hand_thread_give(struct weir_hand_thread *thread, size_t work, const void *order,
                           size_t bytes);

/* Takes the oldest report; *bytes is 0 if there is none. The first error of a
 * job, again and again. */
int weir_hand_thread_take(struct weir_hand_thread *thread, void *report, size_t capacity,
                          size_t *bytes);

#endif
