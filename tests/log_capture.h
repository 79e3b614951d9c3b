/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_TESTS_LOG_CAPTURE_H
#define WEIR_TESTS_LOG_CAPTURE_H

#include <weir/base.h>

#include <stdio.h>

/* A log that keeps its last line and counts all. */
struct log_capture {
    unsigned lines;
    char last[512];
};

static inline void log_capture_write(void *user, weir_log_level level, const char *text)
{
    struct log_capture *capture = user;
    (void)level;
    capture->lines++;
    snprintf(capture->last, sizeof capture->last, "%s", text);
}

static inline weir_log log_capture_log(struct log_capture *capture)
{
    return (weir_log){ log_capture_write, capture, WEIR_LOG_DEBUG };
}

#endif
