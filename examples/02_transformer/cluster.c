/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster.h"

#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void *thread_main(void *argument)
{
    executor_run(argument);
    return NULL;
}

/* The child shares with this process the exchange and the way, nothing else. */
static pid_t fork_executor(struct cluster *cluster, uint32_t rank)
{
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a rank alone would wait for the others for ever */
    for (uint32_t r = 0; r <= rank; r++)
        close(cluster->ends[r]);
    executor_run(&cluster->executors[rank]);
    _exit(0);
}

void cluster_start(struct cluster *cluster, const struct cluster_params *params)
{
    *cluster = (struct cluster){ .n_ranks = params->n_ranks, .processes = params->processes };
    cluster->exchange = exchange_create(params->n_ranks);
    for (uint32_t r = 0; r < params->n_ranks; r++) {
        int ends[2];
        way_open(ends);
        cluster->ends[r] = ends[0];
        cluster->executors[r] = (struct executor_params){
            .device = params->device,
            .rank = r,
            .n_ranks = params->n_ranks,
            .device_pages = params->device_pages,
            .host_pages = params->host_pages,
            .model = params->model,
            .exchange = cluster->exchange,
            .end = ends[1],
        };
        if (params->processes) {
            cluster->children[r] = fork_executor(cluster, r);
            close(ends[1]);
        } else {
            REQUIRE(pthread_create(&cluster->threads[r], NULL, thread_main,
                                   &cluster->executors[r]) == 0);
        }
    }
}

void cluster_stop(struct cluster *cluster)
{
    struct plan stop = { .kind = PLAN_STOP };
    for (uint32_t r = 0; r < cluster->n_ranks; r++)
        plan_send(cluster->ends[r], &stop);
    for (uint32_t r = 0; r < cluster->n_ranks; r++) {
        if (cluster->processes) {
            int status;
            REQUIRE(waitpid(cluster->children[r], &status, 0) == cluster->children[r]);
            REQUIRE(status == 0);
        } else {
            REQUIRE(pthread_join(cluster->threads[r], NULL) == 0);
            close(cluster->executors[r].end);
        }
        close(cluster->ends[r]);
    }
    exchange_destroy(cluster->exchange);
}
