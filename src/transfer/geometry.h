/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_GEOMETRY_H
#define WEIR_TRANSFER_GEOMETRY_H

/* Where every piece lies in both tiers of one rank.
 *
 *   device, one plane a (tensor, layer):
 *
 *     base ┌────────┬────────┬────────┬─ ─
 *          │ page 0 │ page 1 │ page 2 │        page p at base + p * page_stride,
 *          └────────┴────────┴────────┴─ ─     its rows one after another
 *           (dummy)
 *
 *   host, four layouts, one formula. With i = p - 1, s = i / segment_pages,
 *   j = i % segment_pages, and l the layer's index within the tensor:
 *
 *     host_base + offset + s*segment_stride + l*layer_stride
 *               + j*page_stride + token*token_stride
 *
 *     layout             segment_pages  layer_stride     page_stride    token_stride
 *     segmented          S              S*page_bytes     page_bytes     row_bytes
 *     layer_first        P              P*page_bytes     page_bytes     row_bytes
 *     page_first         P              row_bytes        T*L*row_bytes  L*row_bytes
 *     page_first_direct  P              page_bytes       L*page_bytes   row_bytes
 *
 *   With a share (weir_geometry_share) the replicated tensors lie in another
 *   memory, by the same formula with its own base and segment stride:
 *
 *     own memory     K V K V …       host_base, segment_stride, chunk_bytes
 *     the share's    latent …        shared.base, shared.segment_stride, …
 *
 *   Both have segments of the same pages, so that a run is one in each.
 *
 * A view (weir_geometry_view) is the geometry of the tensors of one of the two
 * memories alone: what a rank that shares the writing copies of it.
 *
 * Invariants: device pages are 1..device_pages, host pages 1..host_pages; no
 * two pieces of a tier overlap; every address is below 2^63; a copy never
 * crosses a registration (a multiple of chunk_bytes from host_base). The object
 * is constant after weir_geometry_bind. */

#include "base/memory.h"

#include <weir/shape.h>

struct weir_geometry_tensor {
    uint64_t page_bytes;
    uint32_t row_bytes; /* 0: opaque */
    uint32_t n_layers;
    uint32_t first_plane; /* of planes[], one a layer of the tensor */
    uint32_t id;          /* in the shape, also in a view */
    uint32_t shared_id;   /* among the tensors of the share */
    bool replicated;
    bool shared;          /* it lies in the share's memory */
    bool host_contiguous; /* a page's rows follow one another on the host */
    uint64_t host_offset;
    uint64_t host_layer_stride;
    uint64_t host_page_stride;
    uint64_t host_token_stride;
};

/* A memory that tensors lie in. */
struct weir_host_place {
    uint64_t base;           /* set by bind */
    uint64_t bytes;          /* padding included */
    uint64_t segment_stride; /* 0 for the layouts with one segment */
    uint64_t chunk_bytes;    /* of one registration; 0: one registration */
};

struct weir_geometry {
    uint32_t page_tokens;
    uint32_t n_layers;
    uint32_t n_tensors;
    uint32_t n_planes;
    uint32_t device_pages;
    uint32_t host_pages;
    uint32_t segment_pages;
    weir_host_layout host_layout;
    uint64_t segment_stride;              /* 0 for the layouts with one segment */
    uint64_t page_bytes;                  /* all tensors, all layers */
    uint64_t host_bytes;                  /* of the whole host pool, padding included */
    uint64_t device_bytes;                /* of the rank's own planes; 0: the server's */
    uint64_t host_base;                   /* set by bind */
    uint64_t chunk_bytes;                 /* of one registration; 0: one registration */
    struct weir_host_place shared;        /* all 0 without a share */
    struct weir_geometry_tensor *tensors; /* [n_tensors] */
    int32_t *layer_index;                 /* [n_tensors][n_layers]; -1: none */
    weir_device_plane *planes;            /* [n_planes] */
    struct weir_memory *memory;
};

#define WEIR_GEOMETRY_MAX_PAGES (1u << 30)
#define WEIR_GEOMETRY_PLANE_ALIGN 256u
#define WEIR_GEOMETRY_SEGMENT_ALIGN 4096u
#define WEIR_GEOMETRY_MIN_SEGMENT_PAGES 32u
#define WEIR_GEOMETRY_STRIPE_BYTES (2u << 20)

/* The pages of a segment where the caller leaves that open: see
 * weir_geometry_create. `smallest`: bytes of the smallest tensor's page. */
uint32_t weir_geometry_segment(uint64_t smallest, uint32_t host_pages);

/* Checks the shape and computes all strides. `planes` may be NULL: then each
 * plane gets page_stride = page_bytes and a base to be set by bind. Both page
 * counts are at most WEIR_GEOMETRY_MAX_PAGES; host_pages 0: no host tier.
 *
 * segment_pages 0 chooses: enough pages that every stripe (one tensor, one
 * layer) reaches WEIR_GEOMETRY_STRIPE_BYTES, at least 32, then as many more,
 * fewer than double, as let the segments share the pages evenly, so that less
 * than a page a segment is left over. A segment never has more than host_pages
 * pages. The other layouts ignore it. Errors as for weir_rank_open. */
int weir_geometry_create(struct weir_geometry **geometry, const weir_shape *shape,
                         const weir_device_plane *planes, uint32_t device_pages,
                         weir_host_layout host_layout, uint32_t host_pages, uint32_t segment_pages,
                         const weir_log *log);

/* Likewise, from a memory that must outlive the geometry; NULL: libc. */
int weir_geometry_create_in(struct weir_memory *memory, struct weir_geometry **geometry,
                            const weir_shape *shape, const weir_device_plane *planes,
                            uint32_t device_pages, weir_host_layout host_layout,
                            uint32_t host_pages, uint32_t segment_pages, const weir_log *log);
void weir_geometry_destroy(struct weir_geometry **geometry);

/* Bytes of device memory that planes of the rank's own need, each plane
 * aligned to 256 bytes, the dummy page included; 0 if they are the server's. */
uint64_t weir_geometry_device_bytes(const struct weir_geometry *geometry);

/* Lays the rank's own planes out from device_base on (0: the planes are the
 * server's) and sets where the host pool is. Pre: device_base is a multiple of
 * 256; neither pool reaches 2^63. */
void weir_geometry_bind(struct weir_geometry *geometry, uint64_t device_base, uint64_t host_base,
                        uint64_t chunk_bytes);

/* Moves the replicated tensors to a memory of their own; segment_pages as given
 * to create, 0 now chooses by those tensors alone, so that ranks whose other
 * tensors differ agree. Pre: not bound; the geometry has replicated tensors. */
void weir_geometry_share(struct weir_geometry *geometry, uint32_t segment_pages);

/* Says where the share's memory is. Pre: weir_geometry_share. */
void weir_geometry_bind_shared(struct weir_geometry *geometry, uint64_t base, uint64_t chunk_bytes);

/* Makes the view of the tensors that are `shared`, or of those that are not. Uses the
 * planes of `geometry`, which must be bound and outlive it. *view is NULL if
 * there is no such tensor. `memory` as for create_in. -ENOMEM. */
int weir_geometry_view(struct weir_memory *memory, struct weir_geometry **view,
                       const struct weir_geometry *geometry, bool shared);
void weir_geometry_destroy_view(struct weir_geometry **view);

static inline struct weir_host_place weir_geometry_place(const struct weir_geometry *g,
                                                         const struct weir_geometry_tensor *t)
{
    if (t->shared)
        return g->shared;
    return (struct weir_host_place){ g->host_base, g->host_bytes, g->segment_stride,
                                     g->chunk_bytes };
}

/* Address of a piece; the layer must exist in the tensor (layer_index >= 0). */
static inline uint64_t weir_geometry_device(const struct weir_geometry *g, uint32_t tensor,
                                            uint32_t layer, weir_device_page page)
{
    uint32_t index = (uint32_t)g->layer_index[(size_t)tensor * g->n_layers + layer];
    const weir_device_plane *plane = &g->planes[g->tensors[tensor].first_plane + index];
    return plane->base + (uint64_t)page.id * plane->page_stride;
}

/* Address of a token's row on the host; token 0 for the piece itself. */
static inline uint64_t weir_geometry_host(const struct weir_geometry *g, uint32_t tensor,
                                          uint32_t layer, weir_host_page page, uint32_t token)
{
    const struct weir_geometry_tensor *t = &g->tensors[tensor];
    uint32_t index = (uint32_t)g->layer_index[(size_t)tensor * g->n_layers + layer];
    uint32_t i = (uint32_t)page.id - 1;
    uint64_t base = t->shared ? g->shared.base : g->host_base;
    uint64_t stride = t->shared ? g->shared.segment_stride : g->segment_stride;
    return base + t->host_offset + (i / g->segment_pages) * stride + index * t->host_layer_stride +
           (i % g->segment_pages) * t->host_page_stride + token * t->host_token_stride;
}

#endif
