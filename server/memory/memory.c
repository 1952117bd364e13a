/* Determines how much memory the machine has left, and keeps the budget of requests; see
 * memory.h. */
#include "memory.h"

#include "server/system/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bag_format_bytes bag_format_bytes(size_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct bag_format_bytes text;
    size_t unit = 0;
    double value = (double)bytes / 1024;
    if (bytes < 1024) {
        snprintf(text.text, sizeof text.text, "%zu %s", bytes, bytes == 1 ? "byte" : "bytes");
        return text;
    }
    /* From this value on, two decimals would print 1024.00. */
    for (; value >= 1023.995; value /= 1024)
        unit++;
    snprintf(text.text, sizeof text.text, "%.2f %s", value, units[unit]);
    return text;
}

/* ---- what is left ---------------------------------------------------------------------------- */

/* The maximum size of a file that is read here, and of its path. */
#define FILE_BYTES (16 * 1024)
#define PATH_BYTES 4096

/* The smallest amount found so far. */
struct room {
    size_t bytes;           /* bytes that are left; SIZE_MAX: no limit is known */
    size_t limit_bytes;     /* limit of the control group */
    char group[PATH_BYTES]; /* path of the control group; empty: the machine's memory is the
                               smallest */
};

/* ---- small files ----------------------------------------------------------------------------- */

/* Reads the file into text[FILE_BYTES], as far as it fits, and appends a NUL. */
static bool read_text(const char *path, char *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t bytes = bag_file_read_bytes(fd, text, FILE_BYTES - 1, 0);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes >= 0;
}

/* Reads a decimal number at text[0]. Returns false for a word such as "max". */
static bool read_number(const char *text, size_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && errno == 0;
}

/* Reads the number after `key` at the beginning of a line: "MemAvailable:   123 kB". */
static bool find_number(const char *text, const char *key, size_t *number)
{
    size_t key_bytes = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_bytes) != 0)
            continue;
        const char *value = line + key_bytes;
        size_t blanks = strspn(value, " \t");
        if (blanks > 0)
            return read_number(value + blanks, number);
    }
    return false;
}

/* ---- control groups -------------------------------------------------------------------------- */

struct hierarchy {
    const char *mount; /* relative to sys/fs/cgroup */
    const char *limit, *usage;
    const char *cache[2]; /* keys in memory.stat */
};

static const struct hierarchy version_1 = {"/memory",
                                           "memory.limit_in_bytes",
                                           "memory.usage_in_bytes",
                                           {"total_inactive_file", "total_active_file"}};
static const struct hierarchy version_2 = {
    "", "memory.max", "memory.current", {"inactive_file", "active_file"}};

/* Checks one group, whose files are in `directory`. A missing file, as in the root group, is no
 * limit. */
static void check_group(const struct hierarchy *hierarchy, const char *directory, const char *group,
                        struct room *room)
{
    char path[PATH_BYTES + 64], text[FILE_BYTES];
    size_t limit, usage, cache;
    snprintf(path, sizeof path, "%s/%s", directory, hierarchy->limit);
    if (!read_text(path, text) || !read_number(text, &limit))
        return;
    snprintf(path, sizeof path, "%s/%s", directory, hierarchy->usage);
    if (!read_text(path, text) || !read_number(text, &usage))
        return;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    for (int i = 0; i < 2; i++)
        if (read_text(path, text) && find_number(text, hierarchy->cache[i], &cache))
            usage -= cache < usage ? cache : usage;
    size_t left = usage < limit ? limit - usage : 0;
    if (left < room->bytes) {
        room->bytes = left;
        room->limit_bytes = limit;
        snprintf(room->group, sizeof room->group, "%s", group);
    }
}

/* Checks the group and all groups around it up to the root, because each may have a limit. In a
 * container the path may be the host's, which does not exist here; the container's own group is
 * then the root that it sees. */
static void check_groups(const char *sys, const struct hierarchy *hierarchy, const char *group,
                         struct room *room)
{
    char path[PATH_BYTES];
    int written = snprintf(path, sizeof path, "%s/fs/cgroup%s%s", sys, hierarchy->mount, group);
    if (written < 0 || (size_t)written >= sizeof path || strstr(group, "/.."))
        return;
    char *root = path + strlen(sys) + strlen("/fs/cgroup") + strlen(hierarchy->mount);
    for (;;) {
        check_group(hierarchy, path, *root ? root : "/", room);
        char *slash = strrchr(root, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Returns whether the comma-separated list names the memory controller. */
static bool controls_memory(const char *controllers)
{
    char *rest = NULL, list[256];
    snprintf(list, sizeof list, "%s", controllers);
    for (char *name = strtok_r(list, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, "memory") == 0)
            return true;
    return false;
}

/* Checks the groups of this process. Lines are "number:controllers:path". Version 2 has the number
 * 0 and no controllers. */
static void check_membership(const char *proc, const char *sys, struct room *room)
{
    char path[PATH_BYTES], text[FILE_BYTES], *rest = NULL;
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    if (!read_text(path, text))
        return;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        if (strcmp(line, "0:") == 0)
            check_groups(sys, &version_2, group, room);
        else if (controls_memory(controllers + 1))
            check_groups(sys, &version_1, group, room);
    }
}

/* ---- the machine ----------------------------------------------------------------------------- */

static struct room find_room(const char *proc, const char *sys)
{
    struct room room = {.bytes = SIZE_MAX};
    char path[PATH_BYTES], text[FILE_BYTES];
    size_t kib;
    snprintf(path, sizeof path, "%s/meminfo", proc);
    if (read_text(path, text) && find_number(text, "MemAvailable:", &kib))
        room.bytes = kib > SIZE_MAX / 1024 ? SIZE_MAX : kib * 1024;
    check_membership(proc, sys, &room);
    return room;
}

size_t bag_memory_left(void)
{
    return find_room("/proc", "/sys").bytes;
}

bool bag_memory_check_in(const char *proc, const char *sys, size_t needed_bytes,
                         struct bag_problem *problem)
{
    struct room room = find_room(proc, sys);
    if (needed_bytes <= room.bytes)
        return true;
    if (!room.group[0])
        return bag_problem_set(
            problem, BAG_ERROR_NO_MEMORY,
            "the tables need %s of memory, but the machine has only %s available",
            bag_format_bytes(needed_bytes).text, bag_format_bytes(room.bytes).text);
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                           "the tables need %s of memory, but the control group %s has only %s "
                           "left of its limit of %s",
                           bag_format_bytes(needed_bytes).text, room.group,
                           bag_format_bytes(room.bytes).text,
                           bag_format_bytes(room.limit_bytes).text);
}

bool bag_memory_check(size_t needed_bytes, struct bag_problem *problem)
{
    return bag_memory_check_in("/proc", "/sys", needed_bytes, problem);
}

/* ---- the budget of requests ------------------------------------------------------------------ */

#define SMALL_BYTES ((size_t)1 << 20)

/* The minimum of the default budget. With less, the server could not answer anything. */
#define MIN_DEFAULT_BYTES ((size_t)64 << 20)

void bag_budget_init(struct bag_budget *budget, size_t max_bytes, size_t other_bytes)
{
    budget->max_bytes = max_bytes;
    atomic_init(&budget->used_bytes, 0);
    atomic_init(&budget->most_bytes, 0);
    atomic_init(&budget->num_pools, 0);
    if (max_bytes)
        return;
    size_t left = bag_memory_left();
    budget->max_bytes = left > other_bytes ? (left - other_bytes) / 2 : 0;
    if (budget->max_bytes < MIN_DEFAULT_BYTES)
        budget->max_bytes = MIN_DEFAULT_BYTES;
}

bool bag_budget_take(struct bag_budget *budget, size_t bytes)
{
    if (!budget)
        return true;
    size_t max_bytes = budget->max_bytes;
    if (bytes >= SMALL_BYTES)
        max_bytes -= max_bytes / 8;
    size_t used = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
    do {
        if (used > max_bytes || bytes > max_bytes - used)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    used += bytes;
    size_t most = atomic_load_explicit(&budget->most_bytes, memory_order_relaxed);
    while (used > most &&
           !atomic_compare_exchange_weak_explicit(&budget->most_bytes, &most, used,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    return true;
}

void bag_budget_forget_most(struct bag_budget *budget)
{
    atomic_store(&budget->most_bytes, atomic_load(&budget->used_bytes));
}

void bag_budget_give(struct bag_budget *budget, size_t bytes)
{
    if (budget)
        atomic_fetch_sub_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
}

bool bag_budget_reject(const struct bag_budget *budget, const char *what, size_t bytes,
                       struct bag_problem *problem)
{
    if (!budget)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "not enough memory for %s of %zu bytes", what, bytes);
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                           "not enough memory for %s of %zu bytes: requests, and buffers that are "
                           "kept for later ones (at most %zu bytes), hold %zu bytes; the limit "
                           "(max_memory) is %zu",
                           what, bytes, budget->max_bytes / BAG_BUDGET_KEPT_PART,
                           atomic_load(&budget->used_bytes), budget->max_bytes);
}
