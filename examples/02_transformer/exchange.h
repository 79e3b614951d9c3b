/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_EXCHANGE_H
#define TRANSFORMER_EXCHANGE_H

/* Where the ranks put their partial sums: an all-gather in shared memory.
 *
 *   rank 0 writes group 0 ─┐         ┌─ reads both, adds in the groups' order
 *                          ├─ meet ──┤
 *   rank 1 writes group 1 ─┘         └─ likewise: both get the same bits
 *
 * Two sides take turns: who has met may read this one while others already
 * write the other, and cannot come to write this one again before all have met
 * once more. It blocks a stream until the other rank's stream gets there, as a
 * collective on GPUs does; both ranks run the same steps in the same order. */

#include "messages.h"

#include <pthread.h>

struct exchange {
    uint32_t n_ranks;
    pthread_barrier_t barrier;
    float partials[2][MAX_ROWS][N_GROUPS][D_MODEL];
};

/* In memory that processes forked later share. */
struct exchange *exchange_create(uint32_t n_ranks);
void exchange_destroy(struct exchange *exchange);

void exchange_meet(struct exchange *exchange);

#endif
