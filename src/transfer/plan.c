/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/plan.h"

/* ---- Runs ---------------------------------------------------------------- */

/* The end of the ascending sequence that starts at `from`. */
static uint32_t ascent_end(const weir_move *moves, uint32_t from, uint32_t n)
{
    uint32_t end = from + 1;
    while (end < n && moves[end - 1].device.id <= moves[end].device.id)
        end++;
    return end;
}

/* Merges moves[0..middle) and moves[middle..n), both ascending. The left one
 * moves to the scratch first, so that the result never overtakes the right. */
static void merge(weir_move *moves, uint32_t middle, uint32_t n, struct weir_run *scratch)
{
    for (uint32_t i = 0; i < middle; i++)
        scratch[i] = (struct weir_run){ moves[i].device.id, moves[i].host.id, 1 };
    uint32_t left = 0;
    uint32_t right = middle;
    for (uint32_t out = 0; left < middle; out++) {
        if (right < n && moves[right].device.id < scratch[left].device) {
            moves[out] = moves[right++];
        } else {
            moves[out] = (weir_move){ { scratch[left].device }, { scratch[left].host } };
            left++;
        }
    }
}

/* A natural merge sort: moves come as a few ascending sequences, one or more a
 * request, and mostly as one. */
static void sort_moves(weir_move *moves, uint32_t n, struct weir_run *scratch)
{
    bool merged = n > 1;
    while (merged) {
        merged = false;
        for (uint32_t begin = 0; begin < n;) {
            uint32_t middle = ascent_end(moves, begin, n);
            if (middle == n)
                break;
            uint32_t end = ascent_end(moves, middle, n);
            merge(moves + begin, middle - begin, end - begin, scratch);
            merged = true;
            begin = end;
        }
    }
}

static bool extends(const struct weir_geometry *g, const struct weir_run *run, weir_move move)
{
    return move.device.id == run->device + run->count && move.host.id == run->host + run->count &&
           ((uint32_t)move.host.id - 1) % g->segment_pages != 0;
}

uint32_t weir_plan_runs(const struct weir_geometry *geometry, weir_move *moves, uint32_t n,
                        struct weir_run *runs)
{
    sort_moves(moves, n, runs);
    uint32_t n_runs = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_runs > 0 && extends(geometry, &runs[n_runs - 1], moves[i]))
            runs[n_runs - 1].count++;
        else
            runs[n_runs++] = (struct weir_run){ moves[i].device.id, moves[i].host.id, 1 };
    }
    return n_runs;
}

/* ---- Copies -------------------------------------------------------------- */

static struct weir_copy make_copy(uint64_t row_bytes, uint64_t rows, uint64_t device_stride,
                                  uint64_t host_stride)
{
    return (struct weir_copy){ .row_bytes = row_bytes,
                               .rows = rows,
                               .device_stride = device_stride,
                               .host_stride = host_stride };
}

void weir_copies_begin(struct weir_copies *it, const struct weir_geometry *geometry,
                       uint32_t tensor, uint32_t layer, struct weir_run run)
{
    *it = (struct weir_copies){ 0 };
    int32_t index = geometry->layer_index[(size_t)tensor * geometry->n_layers + layer];
    if (index < 0 || run.count <= 0)
        return;
    const struct weir_geometry_tensor *t = &geometry->tensors[tensor];
    uint64_t device_stride = geometry->planes[t->first_plane + (uint32_t)index].page_stride;
    uint64_t pages = (uint64_t)run.count;
    uint64_t page_tokens = geometry->page_tokens;
    bool device_dense = device_stride == t->page_bytes;

    it->place = weir_geometry_place(geometry, t);
    it->blocks = 1;
    if (t->host_contiguous && device_dense && t->host_page_stride == t->page_bytes) {
        uint64_t bytes = pages * t->page_bytes;
        it->block = make_copy(bytes, 1, bytes, bytes);
    } else if (t->host_contiguous) {
        it->block = make_copy(t->page_bytes, pages, device_stride, t->host_page_stride);
    } else if (device_dense) { /* the tokens of all pages are evenly spaced on both sides */
        it->block =
            make_copy(t->row_bytes, pages * page_tokens, t->row_bytes, t->host_token_stride);
    } else {
        it->block = make_copy(t->row_bytes, page_tokens, t->row_bytes, t->host_token_stride);
        it->blocks = (uint32_t)run.count;
        it->block_device_stride = device_stride;
        it->block_host_stride = t->host_page_stride;
    }
    it->block.device =
        weir_geometry_device(geometry, tensor, layer, (weir_device_page){ run.device });
    it->block.host = weir_geometry_host(geometry, tensor, layer, (weir_host_page){ run.host }, 0);
}

static bool next_block(struct weir_copies *it)
{
    if (it->blocks == 0)
        return false;
    it->blocks--;
    it->rest = it->block;
    it->block.device += it->block_device_stride;
    it->block.host += it->block_host_stride;
    return true;
}

/* Gives out `bytes` of the first row, from where it is. */
static struct weir_copy take_part(struct weir_copies *it, uint64_t bytes)
{
    struct weir_copy copy = make_copy(bytes, 1, bytes, bytes);
    copy.device = it->rest.device + it->row_done;
    copy.host = it->rest.host + it->row_done;
    it->row_done += bytes;
    return copy;
}

static struct weir_copy take_rows(struct weir_copies *it, uint64_t rows)
{
    struct weir_copy copy = it->rest;
    copy.rows = rows;
    it->rest.rows -= rows;
    it->rest.device += rows * it->rest.device_stride;
    it->rest.host += rows * it->rest.host_stride;
    return copy;
}

bool weir_copies_next(struct weir_copies *it, struct weir_copy *copy)
{
    if (it->rest.rows == 0 && !next_block(it))
        return false;
    const struct weir_host_place *place = &it->place;
    const struct weir_copy *rest = &it->rest;
    if (place->chunk_bytes == 0) {
        *copy = take_rows(it, rest->rows);
        return true;
    }

    uint64_t done = rest->host + it->row_done - place->base;
    uint64_t room = place->chunk_bytes - done % place->chunk_bytes;
    uint64_t row_left = rest->row_bytes - it->row_done;
    if (row_left > room) {
        *copy = take_part(it, room);
    } else if (it->row_done) {
        *copy = take_part(it, row_left);
        take_rows(it, 1);
        it->row_done = 0;
    } else {
        uint64_t fit = (room - rest->row_bytes) / rest->host_stride + 1;
        *copy = take_rows(it, fit < rest->rows ? fit : rest->rows);
    }
    return true;
}
