/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/weir.h>

#include <iostream>

int main()
{
    weir_cache_params params;
    weir_cache_params_init(&params);
    std::cout << "weir " << weir_version() << std::endl;
    return params.struct_size == sizeof params ? 0 : 1;
}
