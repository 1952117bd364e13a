/* Chooses among the kernels of the instruction sets. Code that pools uses the chosen ones (used.c),
 * and nothing of this file. */
#include "pool.h"
#include "pool_loop.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The kernels of each instruction set; NULL: this build has none. */
static const struct bag_kernels *const kernels_of[BAG_ISA_COUNT] = {
    [BAG_ISA_GENERIC] = &bag_generic_kernels,
#if defined(__x86_64__)
    [BAG_ISA_AVX2] = &bag_avx2_kernels,
    [BAG_ISA_AVX512] = &bag_avx512_kernels,
#elif defined(__aarch64__)
    [BAG_ISA_NEON] = &bag_neon_kernels,
#endif
};

/* ---- the processor --------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Returns whether the processor has F16C, which clang 14 does not know by name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Returns whether the processor has LZCNT, which clang 14 does not know by name. */
static bool has_lzcnt(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
}

/* Returns whether AVX2 is usable. The builtin reports AVX and AVX-512 only if the operating system
 * saves their registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
           has_lzcnt() && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

bool bag_isa_usable(enum bag_isa isa)
{
    switch (isa) {
    case BAG_ISA_GENERIC:
        return true;
#if defined(__x86_64__)
    case BAG_ISA_AVX2:
        return has_avx2();
    case BAG_ISA_AVX512:
        return has_avx512();
#elif defined(__aarch64__)
    case BAG_ISA_NEON: /* every aarch64 processor has it */
        return true;
#endif
    default:
        return false;
    }
}

enum bag_isa bag_isa_best(void)
{
    int isa = BAG_ISA_COUNT - 1;
    while (!bag_isa_usable((enum bag_isa)isa))
        isa--;
    return (enum bag_isa)isa;
}

void bag_isa_use(enum bag_isa isa)
{
    bag_kernels_used = kernels_of[isa];
    bag_caches = bag_caches_of_processor();
}

enum bag_isa bag_isa_used(void)
{
    int isa = 0;
    while (kernels_of[isa] != bag_kernels_used)
        isa++;
    return (enum bag_isa)isa;
}
