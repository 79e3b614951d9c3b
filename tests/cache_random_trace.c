/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_random.h"

#include <stdio.h>

void trace_call(const struct world *w, const char *what, uint32_t slot, int rc)
{
    if (w->trace)
        fprintf(stderr, "%llu: %s %u: %d\n", (unsigned long long)w->m.operation, what, slot, rc);
}

void trace_table(const struct world *w, uint32_t slot)
{
    const struct model_seq *seq = &w->m.seqs[slot];
    if (!w->trace)
        return;
    fprintf(stderr, "    %zu tokens hit, pages", seq->n_committed);
    for (uint32_t i = 0; i < seq->n_pages; i++)
        fprintf(stderr, " %d", seq->table[i]);
    fprintf(stderr, "\n");
}

static void trace_steps(const char *what, const uint64_t *steps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "%s %llu", i ? "" : what, (unsigned long long)steps[i]);
}

static void trace_moves(const char *what, const weir_move *moves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "%s %d/%d", i ? "" : what, moves[i].device.id, moves[i].host.id);
}

void trace_order(const struct world *w, const void *bytes, size_t n)
{
    weir_order o;
    if (!w->trace || weir_order_decode(&o, bytes, n, NULL) != 0)
        return;
    fprintf(stderr, "    step %llu, write-back %llu", (unsigned long long)o.step,
            (unsigned long long)o.write_ticket);
    trace_steps(", behind", o.fences, o.n_fences);
    trace_steps(", joins", o.joins, o.n_joins);
    trace_moves(", loads (device/host)", o.loads, o.n_loads);
    trace_steps(" behind", o.load_fences, o.n_load_fences);
    trace_moves(", writes", o.writes, o.n_writes);
    trace_steps(" behind", o.write_fences, o.n_write_fences);
    for (uint32_t i = 0; i < o.n_cancels; i++)
        fprintf(stderr, ", cancels %s %llu",
                o.cancels[i].kind == WEIR_REPORT_LOAD ? "load" : "write-back",
                (unsigned long long)o.cancels[i].number);
    for (uint32_t i = 0; i < o.n_copies; i++)
        fprintf(stderr, ", copies %d to %d behind load %llu", o.copies[i].from.id,
                o.copies[i].to.id, (unsigned long long)o.copies[i].load);
    fprintf(stderr, "\n");
}
