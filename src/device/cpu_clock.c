/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu_clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void destroy(struct weir_cpu_point *point)
{
    free(point->time);
    free(point);
}

struct weir_cpu_point *weir_cpu_point_new(struct weir_cpu_points *points)
{
    struct weir_cpu_point *point = points->free;
    if (point) {
        points->free = point->next_free;
        point->next_free = NULL;
    } else {
        point = calloc(1, sizeof *point);
        if (!point)
            return NULL;
    }
    if (weir_cpu_point_grow(point, points->size)) {
        destroy(point);
        return NULL;
    }
    for (uint32_t i = 0; i < point->size; i++)
        point->time[i] = 0;
    point->refs = 1;
    point->done = false;
    return point;
}

struct weir_cpu_point *weir_cpu_point_ref(struct weir_cpu_point *point)
{
    point->refs++;
    return point;
}

void weir_cpu_point_unref(struct weir_cpu_points *points, struct weir_cpu_point *point)
{
    if (!point || --point->refs > 0)
        return;
    point->next_free = points->free;
    points->free = point;
}

void weir_cpu_points_free(struct weir_cpu_points *points)
{
    while (points->free) {
        struct weir_cpu_point *point = points->free;
        points->free = point->next_free;
        destroy(point);
    }
}

int weir_cpu_point_grow(struct weir_cpu_point *point, uint32_t size)
{
    if (size <= point->size)
        return 0;
    uint64_t *time = realloc(point->time, size * sizeof *time);
    if (!time)
        return -ENOMEM;
    memset(time + point->size, 0, (size - point->size) * sizeof *time);
    point->time = time;
    point->size = size;
    return 0;
}

bool weir_cpu_point_covers(const struct weir_cpu_point *a, const struct weir_cpu_point *b)
{
    for (uint32_t i = 0; i < b->size; i++)
        if (b->time[i] > (i < a->size ? a->time[i] : 0))
            return false;
    return true;
}
