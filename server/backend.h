/* What computes: the instruction set of the kernels, and OpenBLAS for projections. */
#ifndef BAG_BACKEND_H
#define BAG_BACKEND_H

#include "kernels/pool.h"
#include "proto/problem.h"

/* Puts the kernels of that name to use; an empty name takes the best that the processor has. A name
 * that there is not, or that the processor cannot run, is rejected with the names it can. Before
 * there are threads. */
bool bag_isa_choose(const char *name, struct bag_problem *problem);

/* Loads the library once, told to use one thread and the processor's instruction set, which it may
 * be too old to know. To be called before there are threads, because both are said through the
 * environment; what is there already stays. NULL with the problem set where there is no library. */
bag_gemm_fn *bag_blas_load(struct bag_problem *problem);

#endif
