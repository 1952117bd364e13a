/* Where workers run, and behind whom; see affinity.h. */
#include "affinity.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Reads a number below CPU_SETSIZE; -1 where there is none. */
static int read_number(const char **at)
{
    char *end;
    if (**at < '0' || **at > '9')
        return -1;
    unsigned long number = strtoul(*at, &end, 10);
    *at = end;
    return number < CPU_SETSIZE ? (int)number : -1;
}

/* Reads "4" or "4-7" into the set. */
static bool read_range(const char **at, cpu_set_t *processors)
{
    int first = read_number(at), last = first;
    if (first >= 0 && **at == '-') {
        ++*at;
        last = read_number(at);
    }
    for (int i = first; i >= 0 && i <= last; i++)
        CPU_SET(i, processors);
    return first >= 0 && last >= first;
}

bool bag_affinity_parse(const char *text, cpu_set_t *processors, struct bag_problem *problem)
{
    const char *at = text;
    cpu_set_t allowed, both;
    CPU_ZERO(processors);
    bool ok = !*at || read_range(&at, processors);
    while (ok && *at == ',') {
        at++;
        ok = read_range(&at, processors);
    }
    if (!ok || *at)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "worker_cpus '%s': must be a list of processors such as 2,4-7",
                               text);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return true; /* not known; pinning will do what it can */
    CPU_AND(&both, processors, &allowed);
    if (CPU_EQUAL(&both, processors))
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "worker_cpus '%s': the process may use %d processors, and not all of "
                           "these are among them",
                           text, CPU_COUNT(&allowed));
}

void bag_affinity_init(struct bag_affinity *affinity, const char *text, int nice)
{
    struct bag_problem problem;
    affinity->nice = nice;
    if (!text || !bag_affinity_parse(text, &affinity->processors, &problem))
        CPU_ZERO(&affinity->processors);
}

/* The processor at `position` of the set, counted around. */
static int processor_at(const cpu_set_t *processors, unsigned position)
{
    int left = (int)(position % (unsigned)CPU_COUNT(processors)), processor = 0;
    while (!CPU_ISSET(processor, processors) || left-- > 0)
        processor++;
    return processor;
}

static void choose_processor(const struct bag_affinity *affinity)
{
    static _Thread_local bool pinned;
    static atomic_uint next;
    cpu_set_t one;
    if (pinned || CPU_COUNT(&affinity->processors) == 0)
        return;
    pinned = true;
    CPU_ZERO(&one);
    CPU_SET(processor_at(&affinity->processors, atomic_fetch_add(&next, 1)), &one);
    /* Where the system rejects, the worker stays where it is. */
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

/* Here a thread is what PRIO_PROCESS means. */
static void step_back(const struct bag_affinity *affinity)
{
    static _Thread_local bool stepped;
    if (stepped || affinity->nice == 0)
        return;
    stepped = true;
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + affinity->nice);
}

void bag_affinity_thread(const struct bag_affinity *affinity)
{
    choose_processor(affinity);
    step_back(affinity);
}
