/* The library that multiplies matrices: OpenBLAS, loaded only where a projection asks for it. */
#ifndef BAG_BLAS_H
#define BAG_BLAS_H

#include "kernels/project.h"
#include "proto/problem.h"

/* Loads the library once, told to use one thread and the processor's instruction set, which it may
 * be too old to know. To be called before there are threads, because both are said through the
 * environment; what is there already stays. NULL with the problem set where there is no library. */
bag_gemm_fn *bag_blas_load(struct bag_problem *problem);

#endif
