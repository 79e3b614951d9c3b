/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_CLUSTER_H
#define TRANSFORMER_CLUSTER_H

/* The ranks of a server, each in a thread of its own or in a process of its own.
 * To the scheduler they are the same: an end of a way each. */

#include "executor.h"

#define MAX_RANKS N_GROUPS

struct cluster_params {
    weir_device_kind device;
    uint32_t n_ranks;
    bool processes;
    uint32_t device_pages, host_pages;
    const struct model *model;
};

struct cluster {
    uint32_t n_ranks;
    int ends[MAX_RANKS]; /* the scheduler's */
    struct exchange *exchange;
    struct executor_params executors[MAX_RANKS];
    bool processes;
    pthread_t threads[MAX_RANKS];
    pid_t children[MAX_RANKS];
};

/* Pre, with processes: this one has no other thread. */
void cluster_start(struct cluster *cluster, const struct cluster_params *params);

/* Lets the ranks stop and waits for them. */
void cluster_stop(struct cluster *cluster);

#endif
