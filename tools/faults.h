/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_FAULTS_H
#define WEIR_TOOLS_FAULTS_H

/* Makes a device's calls fail and its copies stall, at random, on any device.
 *
 *   rank ─► faulty table ─┬─► -EIO                    now and then, where armed
 *                         └─► the device's own table
 *   copy ─► wait for a word ─► copy                   a stall; release ends it
 *
 * A copy that fails has enqueued some of its layers. Only threads that are armed
 * are struck, so that what the tool itself asks of the device always works. */

#include <weir/device.h>

#include <stdint.h>

struct weir_faults;

/* Puts the faulty table in the place of the device's own, until close. The
 * device is used by no other thread meanwhile. Shares: of 65536 calls. -ENOMEM, or
 * the device's error. */
int weir_faults_open(struct weir_faults **faults, weir_device *device, uint64_t seed,
                     uint32_t fail_share, uint32_t stall_share);

/* Ends all stalls. Before the device is closed. A NULL content is allowed. */
void weir_faults_close(struct weir_faults **faults);

/* Whether calls of this thread may be struck. */
void weir_faults_arm(bool armed);

/* Ends the stalls so far. Threads: any. */
void weir_faults_release(struct weir_faults *faults);

/* Ends them, and strikes nothing any more. Threads: any. */
void weir_faults_stop(struct weir_faults *faults);

/* How many calls have failed, and how many copies have been stalled. */
void weir_faults_count(const struct weir_faults *faults, uint64_t *failed, uint64_t *stalled);

#endif
