/* Which instruction set pools: the best one, or the one that the configuration names. */
#ifndef BAG_SERVER_ISA_H
#define BAG_SERVER_ISA_H

#include "kernels/isa.h"
#include "proto/problem.h"

/* Puts the kernels of that name to use; an empty name takes the best that the processor has. A name
 * that there is not, or that the processor cannot run, is rejected with the names it can. Before
 * there are threads. */
bool bag_isa_choose(const char *name, struct bag_problem *problem);

#endif
