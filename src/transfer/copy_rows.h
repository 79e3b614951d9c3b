/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TRANSFER_COPY_ROWS_H
#define WEIR_TRANSFER_COPY_ROWS_H

/* Between the public call and a device's kernels.
 *
 *   weir_copy_rows ──► check ──► ops->copy_rows ──► engine ──► launch
 *                      (any device)    (CUDA: this GPU's abilities)
 *
 * Invariant: a device sees checked parameters only, with n_rows above 0. */

#include <weir/copy.h>

/* `tables`: buffers are tables of buffers. -EINVAL with a log line. */
int weir_copy_rows_check(const weir_copy_rows_params *params, bool tables, const weir_log *log);

/* The engine for checked parameters: the one asked for, or for AUTO what the
 * gate says. */
weir_transfer_engine weir_copy_rows_engine(const weir_copy_rows_params *params, bool tables,
                                           uint32_t compute, uint32_t shared_bytes);

#endif
