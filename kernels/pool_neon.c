/* The kernels for aarch64's Advanced SIMD, which every such processor has. */
#if defined(__aarch64__)
#include "simd_neon.h"

#define BAG_KERNELS           bag_neon_kernels
#define BAG_BELOW(kind)       bag_ref_block
#define BAG_WHOLE_VECTORS     8
#define BAG_LONG_TILE_VECTORS 8
#define BAG_FAR_BYTES         8192
#define BAG_FAR_CACHE         2
#include "pool_instances.h"
#endif
