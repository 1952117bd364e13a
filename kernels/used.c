/* The kernels in use, which are those in plain C until dispatch.c chooses others. */
#include "pool_loop.h"

#define PLAIN_KERNELS                                                              \
    {                                                                              \
        .check = bag_ref_check, .ids_in_range = bag_ref_ids_in_range,              \
        .ids_ascend = bag_ref_ids_ascend, .find_keys = bag_ref_keys_find, .far = 1 \
    }

const struct bag_kernels bag_generic_kernels = PLAIN_KERNELS;

#ifdef BAG_PLAIN_KERNELS
/* Builds without the vector kernels have the plain C kernels in their place. */
const struct bag_kernels bag_avx2_kernels = PLAIN_KERNELS;
const struct bag_kernels bag_avx512_kernels = PLAIN_KERNELS;
#endif

const struct bag_kernels *bag_kernels_used = &bag_generic_kernels;
