/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRANSFORMER_CHECK_H
#define TRANSFORMER_CHECK_H

/* This example gives up at the first error that it does not expect, and says
 * where. A server would rather answer the request with an error. */

#include <weir/base.h>

#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                        \
    do {                                                                   \
        int check_rc = (call);                                             \
        if (check_rc)                                                      \
            give_up(__FILE__, __LINE__, #call, weir_error_name(check_rc)); \
    } while (0)

#define REQUIRE(condition)                                            \
    do {                                                              \
        if (!(condition))                                             \
            give_up(__FILE__, __LINE__, #condition, "does not hold"); \
    } while (0)

_Noreturn static inline void give_up(const char *file, int line, const char *what, const char *why)
{
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
    exit(1);
}

#endif
