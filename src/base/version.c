/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/version.h>

#define STRING(x) #x
#define JOIN(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

const char *weir_version(void)
{
    return JOIN(WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
}
