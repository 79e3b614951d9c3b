/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TOOLS_NUMBERS_H
#define WEIR_TOOLS_NUMBERS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Reads a decimal number from least to most that ends at `end` (a character,
 * 0 for the text's end); *text moves behind it. */
static inline bool weir_read_number(const char **text, char end, uint64_t least, uint64_t most,
                                    uint64_t *number)
{
    if (**text < '0' || **text > '9')
        return false;
    char *rest;
    errno = 0;
    unsigned long long value = strtoull(*text, &rest, 10);
    if (errno || *rest != end || value < least || value > most)
        return false;
    *text = rest + (end != 0);
    *number = value;
    return true;
}

#endif
