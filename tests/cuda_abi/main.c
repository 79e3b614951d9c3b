/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_types.h"

#include "facts.h"

#include <stdio.h>

static const struct fact facts[] = { FACTS };

int main(void)
{
    size_t n = sizeof facts / sizeof *facts;
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        if (facts[i].value == toolkit_facts[i].value)
            continue;
        n_wrong++;
        printf("%s is %llu, in the toolkit %llu\n", facts[i].name, facts[i].value,
               toolkit_facts[i].value);
    }
    printf("%zu facts, %zu wrong\n", n, n_wrong);
    return n_wrong > 0;
}
