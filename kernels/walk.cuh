/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_KERNELS_WALK_CUH
#define WEIR_KERNELS_WALK_CUH

/* What is copied, in which order, by whom: the part that both kernels and both
 * kinds of job (pages, rows) share.
 *
 *   plane   one tensor (or buffer) of one layer; layer after layer
 *   unit    contiguous on both sides: a piece, or a row where rows are strided
 *   item    a unit, or a part of one that is larger than a chunk may be
 *   chunk   consecutive items of a plane, all of one size
 *
 *     layer 0                           layer 1
 *     plane 0         plane 1           plane 2 …
 *     c0 c1 c2 … c7   c8 c9 … c15       c16 …       worker w of W walks chunks
 *                                                   w, w + W, w + 2W, …
 *
 * Numbering ignores where runs begin and end, so a chunk's place is arithmetic
 * and nothing is searched. Runs are found afterwards, among the items of a
 * chunk, and decide only how many operations copy it.
 *
 * Invariants: layers never decrease along a worker's walk; each byte belongs to
 * exactly one item; a chunk of more than one item has items of one size. */

#include "args.h"
#include "ptx.cuh"

/* One item's two sides, `to` and `from` by the direction of the job. */
struct Item {
    uint64_t to;
    uint64_t from;
};

/* How a plane is cut into chunks. */
struct Cut {
    uint32_t parts; /* of a unit */
    uint32_t item_bytes;
    uint32_t tail_bytes;  /* of a unit's last part */
    uint32_t chunk_items; /* the most that a chunk holds */
    uint32_t items;
    uint32_t chunks;
};

/* `group`: chunks hold multiples of so many items, where more than one. */
WEIR_DEVICE Cut cut_plane(uint64_t unit_bytes, uint32_t units, uint32_t chunk_bytes,
                          uint32_t chunk_items, uint32_t group)
{
    Cut cut;
    if (unit_bytes <= chunk_bytes) {
        cut.parts = 1;
        cut.item_bytes = static_cast<uint32_t>(unit_bytes);
        cut.tail_bytes = cut.item_bytes;
        uint32_t fit = chunk_bytes / cut.item_bytes;
        cut.chunk_items = fit < chunk_items ? fit : chunk_items;
        if (cut.chunk_items >= group)
            cut.chunk_items -= cut.chunk_items % group;
    } else {
        /* Equal parts, so that no stage is filled for a few bytes. */
        cut.parts = static_cast<uint32_t>((unit_bytes + chunk_bytes - 1) / chunk_bytes);
        cut.item_bytes = static_cast<uint32_t>((unit_bytes + cut.parts - 1) / cut.parts);
        cut.item_bytes = (cut.item_bytes + 127) / 128 * 128;
        cut.parts = static_cast<uint32_t>((unit_bytes + cut.item_bytes - 1) / cut.item_bytes);
        cut.tail_bytes = static_cast<uint32_t>(unit_bytes - static_cast<uint64_t>(cut.parts - 1) *
                                                                cut.item_bytes);
        cut.chunk_items = 1;
    }
    cut.items = units * cut.parts;
    cut.chunks = cut.items / cut.chunk_items + (cut.items % cut.chunk_items != 0);
    return cut;
}

/* n / d for d's magic. */
WEIR_DEVICE uint32_t quotient(uint32_t n, uint64_t magic)
{
    return magic ? static_cast<uint32_t>(high_product(static_cast<uint64_t>(n), magic)) : n;
}

/* ---- Jobs ---------------------------------------------------------------- */

/* A job opens one plane at a time and then says where its units are. The index
 * of a unit is what has to be fetched from memory to know that. */
/* `KEEP`: the plane is held in registers. The TMA kernel has them to spare and
 * takes every chunk's addresses from it; in the vector kernel it would crowd out
 * the bytes. */
template <bool KEEP> class PagesJob
{
  public:
    using Args = weir_pages_args;
    using Index = weir_page_pair;

    WEIR_MEMBER explicit PagesJob(const Args &a) : args(a)
    {
    }
    WEIR_MEMBER uint32_t layer_begin() const
    {
        return args.layer_begin;
    }
    WEIR_MEMBER uint32_t layer_end() const
    {
        return args.layer_end;
    }
    WEIR_MEMBER uint32_t first_plane(uint32_t layer) const
    {
        return args.plane_begin[layer];
    }
    WEIR_MEMBER void open(uint32_t plane)
    {
        at = &args.planes[plane];
        if (KEEP)
            kept = *at;
    }
    WEIR_MEMBER uint64_t unit_bytes() const
    {
        return plane().unit_bytes;
    }
    WEIR_MEMBER uint32_t units() const
    {
        return args.n_pages * plane().units;
    }

    /* Boxes serve the load side of strided rows. */
    WEIR_MEMBER uint32_t box_rows() const
    {
        return args.load ? plane().box_rows : 0;
    }
    WEIR_MEMBER const void *map() const
    {
        return &args.maps[plane().map];
    }
    WEIR_MEMBER uint32_t map_layer() const
    {
        return plane().map_layer;
    }
    WEIR_MEMBER uint32_t map_row(uint32_t unit, Index pages) const
    {
        uint32_t in_page = unit - quotient(unit, plane().units_magic) * plane().units;
        return static_cast<uint32_t>(pages.host - 1) * args.page_tokens + in_page;
    }

    WEIR_MEMBER Index fetch(uint32_t unit) const
    {
        return args.pages[(args.first + quotient(unit, plane().units_magic)) & args.mask];
    }

    WEIR_MEMBER Item locate(uint32_t unit, Index pages, uint64_t offset) const
    {
        uint32_t in_page = unit - quotient(unit, plane().units_magic) * plane().units;
        uint32_t index = static_cast<uint32_t>(pages.host - 1);
        uint64_t device =
            plane().device_base +
            static_cast<uint64_t>(static_cast<uint32_t>(pages.device)) * plane().device_stride +
            in_page * plane().unit_bytes + offset;
        uint32_t segment = quotient(index, args.segment_magic);
        uint64_t host = plane().host_base + segment * plane().segment_stride +
                        (index - segment * args.segment_pages) * plane().host_stride +
                        in_page * plane().unit_stride + offset;
        return args.load ? Item{ device, host } : Item{ host, device };
    }

    /* Every bit that an address or a length of the plane may have. */
    WEIR_MEMBER uint64_t alignment_bits() const
    {
        return plane().device_base | plane().device_stride | plane().host_base | plane().segment_stride |
               plane().host_stride | (plane().units > 1 ? plane().unit_stride : 0) | plane().unit_bytes;
    }

  private:
    WEIR_MEMBER const weir_copy_plane &plane() const
    {
        return KEEP ? kept : *at;
    }
    const Args &args;
    const weir_copy_plane *at;
    weir_copy_plane kept;
};

class RowsJob
{
  public:
    using Args = weir_rows_args;
    struct Index {
        uint64_t to;
        uint64_t from;
    };

    WEIR_MEMBER explicit RowsJob(const Args &a) : args(a)
    {
    }
    WEIR_MEMBER uint32_t layer_begin() const
    {
        return 0;
    }
    WEIR_MEMBER uint32_t layer_end() const
    {
        return args.n_layers;
    }
    WEIR_MEMBER uint32_t first_plane(uint32_t layer) const
    {
        return layer * args.n_buffers;
    }
    WEIR_MEMBER void open(uint32_t plane)
    {
        buffer = plane % args.n_buffers;
        to = base(args.to[buffer], plane / args.n_buffers);
        from = base(args.from[buffer], plane / args.n_buffers);
    }
    WEIR_MEMBER uint64_t unit_bytes() const
    {
        return args.row_bytes;
    }
    WEIR_MEMBER uint32_t units() const
    {
        return args.n_rows;
    }

    WEIR_MEMBER uint32_t box_rows() const
    {
        return args.box_rows;
    }
    WEIR_MEMBER const void *map() const
    {
        return &args.maps[buffer];
    }
    WEIR_MEMBER uint32_t map_layer() const
    {
        return 0;
    }
    WEIR_MEMBER uint32_t map_row(uint32_t, Index rows) const
    {
        return static_cast<uint32_t>(rows.from);
    }

    WEIR_MEMBER Index fetch(uint32_t unit) const
    {
        return Index{ row(args.to_rows, unit), row(args.from_rows, unit) };
    }

    WEIR_MEMBER Item locate(uint32_t, Index rows, uint64_t offset) const
    {
        return Item{ to + rows.to * args.to_stride + offset,
                     from + rows.from * args.from_stride + offset };
    }

    WEIR_MEMBER uint64_t alignment_bits() const
    {
        return to | from | args.to_stride | args.from_stride | args.row_bytes;
    }

  private:
    WEIR_MEMBER uint64_t base(uint64_t buffer_or_table, uint32_t layer) const
    {
        return args.tables ? reinterpret_cast<const uint64_t *>(buffer_or_table)[layer]
                           : buffer_or_table;
    }
    WEIR_MEMBER uint64_t row(const void *rows, uint32_t unit) const
    {
        return args.wide ? static_cast<const uint64_t *>(rows)[unit]
                         : static_cast<const uint32_t *>(rows)[unit];
    }

    const Args &args;
    uint64_t to;
    uint64_t from;
    uint32_t buffer;
};

/* ---- The walk ------------------------------------------------------------ */

/* A worker's place, and the indices of the chunk it is at, LANE_ITEMS a lane:
 * item i belongs to lane i % 32. */
template <class Job, uint32_t LANE_ITEMS> class Walk
{
  public:
    WEIR_MEMBER Walk(const typename Job::Args &args, uint32_t worker, uint32_t workers,
                     uint32_t chunk_bytes)
        : job(args), step(workers), bytes_limit(chunk_bytes), chunk(worker)
    {
        layer_ = job.layer_begin();
        next_plane = job.first_plane(layer_);
        last_plane = job.first_plane(layer_ + 1);
        cut.chunks = 0;
        part = 0;
        settle();
        fetch();
    }

    WEIR_MEMBER bool more() const
    {
        return layer_ < job.layer_end();
    }

    /* The layer of this chunk; the job's layer_end once there is none. */
    WEIR_MEMBER uint32_t layer() const
    {
        return layer_;
    }
    WEIR_MEMBER uint32_t count() const
    {
        uint32_t left = cut.items - chunk * cut.chunk_items;
        return left < cut.chunk_items ? left : cut.chunk_items;
    }
    WEIR_MEMBER uint32_t bytes() const
    {
        return cut.parts > 1 && part == cut.parts - 1 ? cut.tail_bytes : cut.item_bytes;
    }
    WEIR_MEMBER Item locate(uint32_t slot) const
    {
        uint64_t offset = static_cast<uint64_t>(part) * cut.item_bytes;
        return job.locate(unit(slot), index[slot], offset);
    }

    /* Rows of a box where boxes can be used for this plane; else 0. */
    WEIR_MEMBER uint32_t box_rows() const
    {
        return boxed ? job.box_rows() : 0;
    }
    WEIR_MEMBER uint32_t map_row(uint32_t slot) const
    {
        return job.map_row(unit(slot), index[slot]);
    }

    /* Goes to this worker's next chunk. The indices are on their way when this
     * returns; nothing waits for them before their first use. */
    WEIR_MEMBER void advance()
    {
        chunk += step;
        if (cut.parts > 1) {
            part += step_parts;
            whole += step_wholes;
            if (part >= cut.parts) {
                part -= cut.parts;
                whole++;
            }
        }
        settle();
        fetch();
    }

    Job job;

  private:
    /* The unit of this lane's item: chunks of units in parts hold one item. */
    WEIR_MEMBER uint32_t unit(uint32_t slot) const
    {
        return cut.parts > 1 ? whole : chunk * cut.chunk_items + slot * 32 + lane_id();
    }

    WEIR_MEMBER void settle()
    {
        while (chunk >= cut.chunks) {
            chunk -= cut.chunks;
            while (next_plane == last_plane) {
                if (++layer_ == job.layer_end())
                    return;
                last_plane = job.first_plane(layer_ + 1);
            }
            job.open(next_plane++);
            uint32_t rows = job.box_rows();
            boxed = rows > 0 && rows * job.unit_bytes() <= bytes_limit;
            cut = cut_plane(job.unit_bytes(), job.units(), bytes_limit, 32 * LANE_ITEMS,
                            boxed ? rows : 1);
            /* Divisions once a plane; from here on the place in it is kept by sums. */
            whole = chunk / cut.parts;
            part = chunk - whole * cut.parts;
            step_wholes = step / cut.parts;
            step_parts = step - step_wholes * cut.parts;
        }
    }

    WEIR_MEMBER void fetch()
    {
        if (!more())
            return;
        uint32_t n = count();
#pragma unroll
        for (uint32_t slot = 0; slot < LANE_ITEMS; slot++)
            if (slot * 32 + lane_id() < n)
                index[slot] = job.fetch(unit(slot));
    }

    uint32_t step;
    uint32_t bytes_limit;
    uint32_t chunk; /* within the plane */
    uint32_t layer_;
    uint32_t next_plane;
    uint32_t last_plane; /* of the layer, exclusive */
    uint32_t whole; /* unit and part of the chunk, where units are in parts */
    uint32_t part;
    uint32_t step_wholes; /* what a step adds to them */
    uint32_t step_parts;
    bool boxed;
    Cut cut;
    typename Job::Index index[LANE_ITEMS];
};

/* ---- Runs ---------------------------------------------------------------- */

/* Of 32 neighbouring items, which begin a run, and how long it is. `joins`: this
 * lane's item continues that of the lane before. */
WEIR_DEVICE uint32_t run_length(bool joins)
{
    uint32_t mask = warp_ballot(joins);
    return first_set(~((mask >> lane_id()) >> 1));
}

#endif
