/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_GPU_GRAPHS_H
#define WEIR_TESTS_GPU_GRAPHS_H

/* The server's part of the driver, which weir itself never calls: graphs, and how
 * much device memory is left. */

#include "device/cuda_driver.h"

#include <stddef.h>
#include <string.h>

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

struct gpu_graphs {
    CUresult (*begin)(CUstream stream, CUstreamCaptureMode mode);
    CUresult (*end)(CUstream stream, CUgraph *graph);
    CUresult (*instantiate)(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
    CUresult (*launch)(CUgraphExec exec, CUstream stream);
    CUresult (*destroy_exec)(CUgraphExec exec);
    CUresult (*destroy)(CUgraph graph);
    CUresult (*memory)(size_t *available, size_t *total);
};

/* *name is the function that was looked for last. */
static inline int gpu_graphs_find(struct gpu_graphs *calls, const char **name)
{
    static const struct {
        const char *name;
        int version;
        size_t offset;
    } table[] = {
        { "cuStreamBeginCapture", 10010, offsetof(struct gpu_graphs, begin) },
        { "cuStreamEndCapture", 10000, offsetof(struct gpu_graphs, end) },
        { "cuGraphInstantiateWithFlags", 11040, offsetof(struct gpu_graphs, instantiate) },
        { "cuGraphLaunch", 10000, offsetof(struct gpu_graphs, launch) },
        { "cuGraphExecDestroy", 10000, offsetof(struct gpu_graphs, destroy_exec) },
        { "cuGraphDestroy", 10000, offsetof(struct gpu_graphs, destroy) },
        { "cuMemGetInfo", 3020, offsetof(struct gpu_graphs, memory) },
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof table / sizeof *table; i++) {
        void *function = NULL;
        *name = table[i].name;
        rc = weir_cuda_driver_find(table[i].name, table[i].version, &function);
        memcpy((char *)calls + table[i].offset, &function, sizeof function);
    }
    return rc;
}

#endif
