/* Where workers run, and behind whom.
 *
 * Two workers that the system puts on one processor halve the speed. Where the operator names
 * processors, each worker takes the next of them when it first works. A loop that has to wait for a
 * processor keeps all clients waiting, a worker only those whose turn it is: so workers step back.
 */
#ifndef BAG_AFFINITY_H
#define BAG_AFFINITY_H

#include "proto/problem.h"

#include <sched.h>

struct bag_affinity {
    cpu_set_t processors; /* empty: workers stay where the system puts them */
    int nice;             /* added to the nice value that workers begin with */
};

/* Reads a list such as "2,4-7". The empty text is the empty set. False with *problem where it is no
 * such list, or names a processor that the process may not use. */
bool bag_affinity_parse(const char *text, cpu_set_t *processors, struct bag_problem *problem);

/* `text` is one that bag_affinity_parse takes. */
void bag_affinity_init(struct bag_affinity *affinity, const char *text, int nice);

/* Puts the calling worker on its processor and sets its nice value, the first time that it is
 * called there. The workers are the process's: whichever set it is called with, each takes the next
 * position. */
void bag_affinity_thread(const struct bag_affinity *affinity);

#endif
