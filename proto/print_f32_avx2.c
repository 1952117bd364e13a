/* The printing of FP32 by AVX2; see print_f32.h. */
#if defined(__x86_64__)
#define BAG_PRINT_F32 bag_f32_print_avx2
#include "print_f32.h"
#endif
