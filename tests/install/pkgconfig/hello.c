/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/weir.h>

#include <stdio.h>

int main(void)
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    printf("weir %s\n", weir_version());
    return params.struct_size == sizeof params ? 0 : 1;
}
