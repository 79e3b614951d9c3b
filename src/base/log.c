/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const level_names[] = { "error", "warning", "info", "debug" };

void weir_log_line(const weir_log *log, weir_log_level level, const char *format, ...)
{
    if (!log || !log->write || level > log->level)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log->write(log->user, level, text);
}

static void write_stderr(void *user, weir_log_level level, const char *text)
{
    (void)user;
    fprintf(stderr, "weir: %s: %s\n", level_names[level], text);
}

weir_log weir_log_stderr(weir_log_level level)
{
    return (weir_log){ .write = write_stderr, .user = NULL, .level = level };
}
