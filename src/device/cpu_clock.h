/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_DEVICE_CPU_CLOCK_H
#define WEIR_DEVICE_CPU_CLOCK_H

/* Vector clocks, and the points in a stream's work that carry them.
 *
 *   component     0   1   2   3          one a stream; the host has none, since
 *   time         12   0   7   3          what it touches is not checked
 *
 * A clock says of each stream how many of its ops are ordered before. A point
 * is a clock that events, words and ops share by counting references: an event
 * holds its newest record, a wait the record it is bound to, a word its last
 * publication, an op the host's knowledge when it was submitted.
 *
 * Invariants: a point that can still be written has points.size components or more, so
 * join and copy lose nothing, and is zero beyond those; a point that is done never changes, except
 * the host's while nobody else refers to it. All under the device's lock. */

#include <stdbool.h>
#include <stdint.h>

struct weir_cpu_point {
    uint32_t refs;
    uint32_t size;
    bool done; /* the work before it has ended */
    uint64_t *time;
    struct weir_cpu_point *next_free;
};

struct weir_cpu_points {
    struct weir_cpu_point *free;
    uint32_t size; /* components that a new point has; 0: no race check */
};

/* A point with all times zero, not done, one reference. NULL: no memory. */
struct weir_cpu_point *weir_cpu_point_new(struct weir_cpu_points *points);
struct weir_cpu_point *weir_cpu_point_ref(struct weir_cpu_point *point);
/* NULL is allowed. */
void weir_cpu_point_unref(struct weir_cpu_points *points, struct weir_cpu_point *point);
void weir_cpu_points_free(struct weir_cpu_points *points);

/* Gives a point at least `size` components. -ENOMEM and no effect. */
int weir_cpu_point_grow(struct weir_cpu_point *point, uint32_t size);

/* Joins `from` into `to`. Components that `to` lacks are zero in `from`: memory for them
 * ran out half-way, and no stream has them. */
static inline void weir_cpu_point_join(struct weir_cpu_point *to, const struct weir_cpu_point *from)
{
    for (uint32_t i = 0; i < from->size && i < to->size; i++)
        if (to->time[i] < from->time[i])
            to->time[i] = from->time[i];
}

/* Whether all that is ordered before `b` is ordered before `a`. */
bool weir_cpu_point_covers(const struct weir_cpu_point *a, const struct weir_cpu_point *b);

#endif
