/* The printing of FP32 for any processor; see print_f32.h. */
#define BAG_PRINT_F32 bag_f32_print_generic
#include "print_f32.h"
