/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/memory_room.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 8192u
#define PATH_BYTES 1024u

/* A file of the kernel's, whole if it fits, else its beginning. */
struct text {
    char bytes[TEXT_BYTES];
};

static bool __attribute__((format(printf, 2, 3)))
read_text(struct text *text, const char *format, ...)
{
    char path[PATH_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    int file = length < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return false;
    size_t n = 0;
    ssize_t got;
    while (n < TEXT_BYTES - 1 && (got = read(file, text->bytes + n, TEXT_BYTES - 1 - n)) > 0)
        n += (size_t)got;
    close(file);
    text->bytes[n] = '\0';
    return n > 0;
}

/* The number behind a line's first word; `fallback` if there is no such line. */
static uint64_t value_of(const struct text *text, const char *word, uint64_t fallback)
{
    size_t length = strlen(word);
    for (const char *line = text->bytes; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, length) == 0 && line[length] == ' ')
            return strtoull(line + length, NULL, 10);
    }
    return fallback;
}

static void __attribute__((format(printf, 3, 4)))
limit_to(struct weir_memory_room *room, uint64_t bytes, const char *format, ...)
{
    if (bytes >= room->bytes)
        return;
    room->bytes = bytes;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(room->limit, sizeof room->limit, format, arguments);
    va_end(arguments);
}

/* ---- The machine ----------------------------------------------------------- */

static void look_at_machine(const char *root, struct weir_memory_room *room)
{
    struct text text;
    if (!read_text(&text, "%s/proc/meminfo", root))
        return;
    uint64_t available = value_of(&text, "MemAvailable:", UINT64_MAX);
    if (available < UINT64_MAX >> 10)
        limit_to(room, available << 10, "MemAvailable of %s/proc/meminfo", root);
    room->huge_bytes = value_of(&text, "HugePages_Free:", 0) * value_of(&text, "Hugepagesize:", 0)
                       << 10;
}

/* ---- Control groups -------------------------------------------------------- */

/* The files of one version. */
struct group_files {
    const char *mount;
    const char *limits[2];
    const char *used;
    const char *inactive; /* of memory.stat: the file cache */
    const char *active;
};

static const struct group_files version_2 = { "/sys/fs/cgroup",
                                              { "memory.max", "memory.high" },
                                              "memory.current",
                                              "inactive_file",
                                              "active_file" };
static const struct group_files version_1 = { "/sys/fs/cgroup/memory",
                                              { "memory.limit_in_bytes", NULL },
                                              "memory.usage_in_bytes",
                                              "total_inactive_file",
                                              "total_active_file" };

/* What the group has in use and cannot give back. */
static uint64_t group_used(const char *folder, const struct group_files *files)
{
    struct text text;
    if (!read_text(&text, "%s/%s", folder, files->used))
        return 0;
    uint64_t used = strtoull(text.bytes, NULL, 10);
    if (!read_text(&text, "%s/memory.stat", folder))
        return used;
    uint64_t cache = value_of(&text, files->inactive, 0) + value_of(&text, files->active, 0);
    return used > cache ? used - cache : 0;
}

static void look_at_group(const char *folder, const struct group_files *files,
                          struct weir_memory_room *room)
{
    for (size_t i = 0; i < sizeof files->limits / sizeof files->limits[0]; i++) {
        struct text text;
        if (!files->limits[i] || !read_text(&text, "%s/%s", folder, files->limits[i]) ||
            strncmp(text.bytes, "max", 3) == 0)
            continue;
        uint64_t limit = strtoull(text.bytes, NULL, 10);
        uint64_t used = group_used(folder, files);
        limit_to(room, limit > used ? limit - used : 0, "%s/%s", folder, files->limits[i]);
    }
}

/* A group's limit holds for all groups below it. In a container the path may be
 * the host's, which is not there; the container's own group is then the mount. */
static void look_at_groups(const char *root, const struct group_files *files, const char *path,
                           struct weir_memory_room *room)
{
    char folder[PATH_BYTES];
    int mount = snprintf(folder, sizeof folder, "%s%s", root, files->mount);
    if (mount >= (int)sizeof folder)
        return;
    if (strcmp(path, "/") != 0 && !strstr(path, ".."))
        snprintf(folder + mount, sizeof folder - (size_t)mount, "%s", path);
    for (;;) {
        look_at_group(folder, files, room);
        char *cut = strrchr(folder + mount, '/');
        if (!cut)
            return;
        *cut = '\0';
    }
}

/* Lines are number:controllers:path; version 2 has number 0 and no controllers. */
static void look_at_line(const char *root, char *line, struct weir_memory_room *room)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path)
        return;
    *path++ = '\0';
    if (strncmp(line, "0:", 3) == 0) {
        look_at_groups(root, &version_2, path, room);
        return;
    }
    char *rest = NULL;
    for (char *name = strtok_r(controllers + 1, ",", &rest); name;
         name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, "memory") == 0)
            look_at_groups(root, &version_1, path, room);
}

void weir_memory_room(const char *root, struct weir_memory_room *room)
{
    *room = (struct weir_memory_room){ .bytes = UINT64_MAX };
    look_at_machine(root, room);
    struct text text;
    if (!read_text(&text, "%s/proc/self/cgroup", root))
        return;
    char *rest = NULL;
    for (char *line = strtok_r(text.bytes, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        look_at_line(root, line, room);
}
