/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "log_capture.h"

#include <weir/version.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <criterion/redirect.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

static bool same(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static const weir_log_level levels[] = { WEIR_LOG_ERROR, WEIR_LOG_WARN, WEIR_LOG_INFO,
                                         WEIR_LOG_DEBUG };
#define N_LEVELS (sizeof levels / sizeof *levels)

struct seen {
    unsigned lines;
    weir_log_level level;
    char text[600];
};

static void see(void *user, weir_log_level level, const char *text)
{
    struct seen *seen = user;
    seen->lines++;
    seen->level = level;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

Test(log, lines_above_the_level_are_not_written)
{
    for (size_t listen = 0; listen < N_LEVELS; listen++)
        for (size_t line = 0; line < N_LEVELS; line++) {
            struct seen seen = { 0 };
            weir_log log = { see, &seen, levels[listen] };
            weir_log_line(&log, levels[line], "%s is %d", "page", 7);
            cr_assert(eq(u32, seen.lines, line <= listen));
            if (seen.lines)
                cr_assert(seen.level == levels[line] && same(seen.text, "page is 7"));
        }
}

Test(log, none_and_silent_logs_are_allowed)
{
    weir_log silent = { 0 };
    weir_log_line(NULL, WEIR_LOG_ERROR, "nobody listens");
    weir_log_line(&silent, WEIR_LOG_ERROR, "nobody listens");
    cr_expect(eq(int, weir_invalid(NULL, "nobody listens"), -EINVAL));
    cr_expect(eq(int, weir_invalid(&silent, "nobody listens"), -EINVAL));
}

Test(log, long_lines_are_cut)
{
    char text[600];
    for (size_t n = 500; n < 520; n++) {
        struct seen seen = { 0 };
        weir_log log = { see, &seen, WEIR_LOG_DEBUG };
        memset(text, 'x', n);
        text[n] = '\0';
        weir_log_line(&log, WEIR_LOG_INFO, "%s", text);
        cr_assert(eq(sz, strlen(seen.text), n < 511 ? n : 511));
    }
}

Test(log, invalid_is_one_line_and_the_error)
{
    struct log_capture capture = { 0 };
    weir_log log = log_capture_log(&capture);
    cr_expect(eq(int, weir_invalid(&log, "n is %d, must be %d", 3, 4), -EINVAL));
    cr_expect(eq(u32, capture.lines, 1));
    cr_expect(same(capture.last, "n is 3, must be 4"));
}

Test(log, standard_error, .init = cr_redirect_stderr)
{
    static const char *const names[] = { "error", "warning", "info", "debug" };
    char expected[256] = "";
    for (size_t i = 0; i < N_LEVELS; i++) {
        weir_log log = weir_log_stderr(levels[i]);
        cr_assert(log.level == levels[i]);
        for (size_t line = 0; line < N_LEVELS; line++) {
            weir_log_line(&log, levels[line], "line %zu", i);
            if (line <= i)
                snprintf(expected + strlen(expected), sizeof expected - strlen(expected),
                         "weir: %s: line %zu\n", names[line], i);
        }
    }
    fflush(stderr);
    cr_assert_stderr_eq_str(expected);
}

Test(log, names_of_errors)
{
    static const struct {
        int code;
        const char *name;
    } rows[] = {
        { EAGAIN, "-EAGAIN" },
        { EBUSY, "-EBUSY" },
        { ECANCELED, "-ECANCELED" },
        { EINVAL, "-EINVAL" },
        { EIO, "-EIO" },
        { ENODEV, "-ENODEV" },
        { ENOMEM, "-ENOMEM" },
        { ENOSPC, "-ENOSPC" },
        { ENOTSUP, "-ENOTSUP" },
        { ESTALE, "-ESTALE" },
        { EDEADLK, "-EDEADLK" },
        { E2BIG, "-E2BIG" },
        { ENOENT, "-ENOENT" },
        { ETIMEDOUT, "-ETIMEDOUT" },
    };
    cr_expect(same(weir_error_name(0), "0"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect(same(weir_error_name(rows[i].code), rows[i].name), "%s", rows[i].name);
        cr_expect(same(weir_error_name(-rows[i].code), rows[i].name), "%s", rows[i].name);
    }
    static const int others[] = { 1, -1, EPERM, 4095, -4096, INT_MAX, INT_MIN };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_expect(same(weir_error_name(others[i]), "unknown"), "%d", others[i]);
}

Test(log, version_is_that_of_the_header)
{
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR,
             WEIR_VERSION_PATCH);
    cr_expect(same(weir_version(), text));
}
