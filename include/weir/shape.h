/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_SHAPE_H
#define WEIR_SHAPE_H

/* What a page holds and where its bytes lie in both tiers.
 *
 * A page is page_tokens consecutive tokens. Per layer it stores one piece for
 * each tensor of that layer: K and V, an MLA latent, index keys, scales. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_MAX_PAGE_TOKENS 1024u
#define WEIR_MAX_ROW_BYTES 65536u
#define WEIR_MAX_LAYERS 1024u
#define WEIR_MAX_TENSORS 32u

/* One tensor of a page.
 *
 *   name        for messages; NULL is allowed
 *   page_bytes  bytes of one page in one layer, 1 or more
 *   row_bytes   bytes of one token, 1..WEIR_MAX_ROW_BYTES, with
 *               page_bytes == row_bytes * page_tokens; 0: the page is opaque
 *               (as in a head-major layout) and moves as a whole
 *   layers      the layers that have this tensor, strictly ascending, each
 *               below the shape's n_layers; NULL with n_layers 0: all layers
 *   n_layers    length of `layers`
 *   replicated  every rank holds the same bytes (an MLA latent under tensor
 *               parallelism), not a shard of its own; ranks of one process may
 *               then share one host copy: see weir/host_share.h */
typedef struct weir_tensor {
    const char *name;
    uint64_t page_bytes;
    uint32_t row_bytes;
    uint32_t n_layers;
    const uint32_t *layers;
    bool replicated;
} weir_tensor;

/* The tensors of a page on one rank.
 *
 *   page_tokens  1..WEIR_MAX_PAGE_TOKENS
 *   n_layers     1..WEIR_MAX_LAYERS
 *   n_tensors    1..WEIR_MAX_TENSORS */
typedef struct weir_shape {
    uint32_t page_tokens;
    uint32_t n_layers;
    uint32_t n_tensors;
    const weir_tensor *tensors;
} weir_shape;

/* How the host pool orders its bytes. P is the number of host pages, T a
 * page's tokens, and page p (1..P) has index i = p - 1: the host tier spends
 * no memory on the dummy page. For every layout but the first, a tensor with
 * L layers is one block, and the blocks of the tensors follow one another.
 *
 *   SEGMENTED          segments of S pages, each [tensor][layer][page], so
 *                      that neighbouring pages are adjacent within a layer;
 *                      a segment is padded to a multiple of 4096 bytes
 *   LAYER_FIRST        [L][P][T] rows
 *   PAGE_FIRST         [P*T][L] rows: the tokens of a piece are L rows apart;
 *                      needs row_bytes
 *   PAGE_FIRST_DIRECT  [P][L][T] rows: a piece is contiguous
 *
 * The last three have the strides of SGLang's HiCache host pools. */
typedef enum weir_host_layout {
    WEIR_HOST_SEGMENTED = 0,
    WEIR_HOST_LAYER_FIRST = 1,
    WEIR_HOST_PAGE_FIRST = 2,
    WEIR_HOST_PAGE_FIRST_DIRECT = 3
} weir_host_layout;

/* The name used on command lines: "segmented", "layer_first", "page_first",
 * "page_first_direct"; NULL for a value that is no layout. */
WEIR_API const char *weir_host_layout_name(weir_host_layout layout) WEIR_NOEXCEPT;

/* The layout with this name. -EINVAL: none has it. */
WEIR_API int weir_host_layout_parse(const char *name, weir_host_layout *layout) WEIR_NOEXCEPT;

/* Where one tensor of one layer lies in device memory: page p is at
 * base + p * page_stride, its bytes contiguous. A server's buffer holds
 * n_device_pages + 1 pages, the dummy page first. K and V may interleave: two
 * planes may share a range of addresses as long as no two pieces overlap.
 *
 *   base         device address of page 0
 *   page_stride  bytes from one page to the next, at least page_bytes */
typedef struct weir_device_plane {
    uint64_t base;
    uint64_t page_stride;
} weir_device_plane;

/* Bytes of one page over all tensors and layers. Returns -EINVAL for a shape
 * that breaks a limit above or overflows 64 bits; *bytes is then untouched.
 * `log` receives one line that names the field; NULL is silent. */
WEIR_API int weir_shape_page_bytes(const weir_shape *shape, const weir_log *log,
                                   uint64_t *bytes) WEIR_NOEXCEPT;

/* How many pages fit into so many bytes. All ranks have the same page counts, also
 * where their shapes differ (pipeline stages of 40 and 41 layers): ask for each
 * rank with its own shape and budget, and give the smallest answer to the cache
 * and to all of them.
 *
 *   device  of a device pool that the rank allocates: dummy page and alignment
 *           counted
 *   host    of a host pool with this layout, segment_pages as in
 *           weir_rank_params, its padding counted. With a weir_host_share ask with
 *           two shapes, that of the replicated tensors and that of the others
 *
 * *pages is 0 if not one fits, and at most 2^30. -EINVAL: the shape, as above, or no
 * such layout. `log` as above. Threads: any. */
WEIR_API int weir_shape_device_pages(const weir_shape *shape, uint64_t bytes, const weir_log *log,
                                     uint32_t *pages) WEIR_NOEXCEPT;
WEIR_API int weir_shape_host_pages(const weir_shape *shape, weir_host_layout layout,
                                   uint32_t segment_pages, uint64_t bytes, const weir_log *log,
                                   uint32_t *pages) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
