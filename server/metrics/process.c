/* The process as /proc shows it; see process.h. */
#include "process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The descriptor that counts is not counted. */
static uint64_t count_open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (!folder)
        return 0;
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1;
}

static uint64_t ns_of(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_usec * 1000;
}

/* When the machine started, in seconds since 1970: it does not wander as the difference of two
 * clocks would. */
static uint64_t boot_s(void)
{
    char line[256];
    unsigned long long seconds = 0;
    FILE *file = fopen("/proc/stat", "re");
    while (file && !seconds && fgets(line, sizeof line, file))
        sscanf(line, "btime %llu", &seconds);
    if (file)
        fclose(file);
    return seconds;
}

/* What stands in /proc/self/stat behind the name, which may hold anything: the start is the 22nd
 * field, sizes the 23rd (bytes) and 24th (pages). */
static void read_stat(struct bag_process_figures *figures)
{
    char text[1024];
    unsigned long long ticks, bytes, pages;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *name_end = strrchr(text, ')');
    if (!name_end || sscanf(name_end + 1,
                            " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%*d %*d %llu %llu %llu",
                            &ticks, &bytes, &pages) != 3)
        return;
    figures->start_ns =
        boot_s() * 1000000000 + ticks * (1000000000 / (uint64_t)sysconf(_SC_CLK_TCK));
    figures->virtual_bytes = bytes;
    figures->resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void bag_process_look(struct bag_process_figures *figures)
{
    struct rusage usage;
    struct rlimit fds;
    memset(figures, 0, sizeof *figures);
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        figures->cpu_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0)
        figures->max_fds = fds.rlim_cur;
    figures->open_fds = count_open_fds();
    read_stat(figures);
}
