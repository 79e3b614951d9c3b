/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_ALLOC_FAULT_H
#define WEIR_TESTS_ALLOC_FAULT_H

/* Allocations that fail on demand. The program is linked so that malloc, calloc,
 * realloc, aligned_alloc and mmap of the library and of the test come through
 * here (alloc_fault_link in tests/meson.build):
 *
 *     set(3, 1)   on ─ 1 ─ 2 ─ off ─ · ─ · ─ on ─ 3 ✗ ─ 4 ─ off
 *
 * Only what this thread allocates between on and off is counted and can fail. */

#include <stdint.h>

#define ALLOC_FAULT_FOREVER UINT64_MAX

/* The n-th counted allocation from now fails (n >= 1; 0: none), and so do the
 * next width - 1. Forgets what has struck so far; counting is off. */
void alloc_fault_set(uint64_t n, uint64_t width);

void alloc_fault_on(void);
void alloc_fault_off(void);

/* Memory is there again: nothing more fails until the next set. */
void alloc_fault_cure(void);

/* Allocations that failed since set; those that were counted. */
uint64_t alloc_fault_struck(void);
uint64_t alloc_fault_counted(void);

/* Blocks that are allocated now; bytes that are mapped now. */
int64_t alloc_fault_blocks(void);
int64_t alloc_fault_mapped(void);

#endif
