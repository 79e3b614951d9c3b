/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_BASE_LOG_H
#define WEIR_BASE_LOG_H

#include <weir/base.h>

/* Writes one line to `log` if it is not NULL and listens to `level`. Lines are
 * lower case, without a newline, cut at 511 characters. */
void weir_log_line(const weir_log *log, weir_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Logs at WEIR_LOG_ERROR and yields -EINVAL: one line that names the argument
 * and the limit it breaks. */
#define weir_invalid(log, ...) (weir_log_line((log), WEIR_LOG_ERROR, __VA_ARGS__), -EINVAL)

#endif
