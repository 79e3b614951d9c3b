/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_MODEL_CHECK_H
#define WEIR_TESTS_MODEL_CHECK_H

/* What tests of kernels on the warp model say at their begin, and when a byte is
 * wrong: one condition a row, without the formatting that an assertion does even if
 * it holds. */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define must(condition, ...)       \
    do {                           \
        if (!(condition))          \
            cr_fatal(__VA_ARGS__); \
    } while (0)

#define SKIP_WITHOUT_KERNELS                                   \
    do {                                                       \
        if (!WEIR_HAVE_KERNELS)                                \
            cr_skip_test("the library is built without nvcc"); \
    } while (0)

#endif
