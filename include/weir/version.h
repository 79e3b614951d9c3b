/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_VERSION_H
#define WEIR_VERSION_H

#include <weir/base.h>

/* The one place where the version is written; the build reads it from here.
 * The major number is the ABI: it is also the number in the SONAME. */
#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the library that is loaded, which may differ from
 * the headers compiled against, as "major.minor.patch". The string is static.
 * Threads: any. Never blocks. */
WEIR_API const char *weir_version(void) WEIR_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
