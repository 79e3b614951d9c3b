/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/base.h>

#include <errno.h>

static const struct {
    int code;
    const char *name;
} names[] = {
    { 0, "0" },
    { EAGAIN, "-EAGAIN" },
    { EBUSY, "-EBUSY" },
    { ECANCELED, "-ECANCELED" },
    { EDEADLK, "-EDEADLK" },
    { EINVAL, "-EINVAL" },
    { EIO, "-EIO" },
    { ENODEV, "-ENODEV" },
    { ENOENT, "-ENOENT" },
    { ENOMEM, "-ENOMEM" },
    { ENOSPC, "-ENOSPC" },
    { ENOTSUP, "-ENOTSUP" },
    { ESTALE, "-ESTALE" },
    { ETIMEDOUT, "-ETIMEDOUT" },
    { E2BIG, "-E2BIG" },
};

const char *weir_error_name(int rc)
{
    /* -INT_MIN overflows, so compare in the negative range. */
    int negative = rc > 0 ? -rc : rc;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (-names[i].code == negative)
            return names[i].name;
    return "unknown";
}
