/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_CUDA_H
#define WEIR_CUDA_H

/* A server's CUDA streams as weir's. Needs no header of the CUDA toolkit: the
 * handle type below is what CUstream and cudaStream_t point to.
 *
 *     weir_rank_begin(rank, order, bytes, slot, weir_stream_from_cuda(stream), &step);
 *
 * A stream must belong to the device's primary context, the one that the
 * runtime API uses. Conversion costs nothing and owns nothing: the server keeps
 * a stream until all that it gave to weir with it has ended. The default stream of a
 * thread (cudaStreamPerThread) has one handle for all threads: a rank that is given it
 * is used by one thread only. */

#include <weir/base.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* The default stream, which the runtime spells 0, becomes the handle 1 that the
 * driver and the runtime know it by too, since to weir a NULL stream is a
 * mistake. */
static inline weir_stream *weir_stream_from_cuda(struct CUstream_st *stream)
{
    return stream ? (weir_stream *)stream : (weir_stream *)(uintptr_t)1;
}

static inline struct CUstream_st *weir_cuda_from_stream(weir_stream *stream)
{
    return (struct CUstream_st *)stream;
}

#ifdef __cplusplus
}
#endif

#endif
