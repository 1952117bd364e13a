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
static void read_stat(struct bag_process_stats *counters)
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
    counters->start_ns =
        boot_s() * 1000000000 + ticks * (1000000000 / (uint64_t)sysconf(_SC_CLK_TCK));
    counters->virtual_bytes = bytes;
    counters->resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void bag_process_sample(struct bag_process_stats *counters)
{
    struct rusage usage;
    struct rlimit fds;
    memset(counters, 0, sizeof *counters);
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        counters->cpu_ns = ns_of(usage.ru_utime) + ns_of(usage.ru_stime);
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0)
        counters->max_fds = fds.rlim_cur;
    counters->open_fds = count_open_fds();
    read_stat(counters);
}
