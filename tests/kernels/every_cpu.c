/* In place of kernels/cpu.c where a test emulates AVX-512: the processor is said to have it. */
#include "kernels/cpu.h"
#include "kernels/isa.h"

unsigned bag_cpu_isas(void)
{
    return 1u << BAG_ISA_GENERIC | 1u << BAG_ISA_AVX2 | 1u << BAG_ISA_AVX512;
}
