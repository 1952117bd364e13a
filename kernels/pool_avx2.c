/* The kernels for AVX2, FMA and F16C. Compiled for these alone: nothing here runs unless
 * the processor has them. */
#if defined(__x86_64__)
#include "simd_avx2.h"

#define BAG_KERNELS           bag_avx2_kernels
#define BAG_BELOW(kind)       bag_ref_block
#define BAG_WHOLE_VECTORS     8
#define BAG_LONG_TILE_VECTORS 8
#define BAG_FAR_BYTES         4096
#define BAG_FAR_CACHE         1
#include "pool_instances.h"
#endif
