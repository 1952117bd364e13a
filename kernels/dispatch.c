/* The kernels of every instruction set, and the choice among them. */
#include "pool_block.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

const struct bag_kernels bag_generic_kernels = {
    .pool =
        {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = bag_ref_block,
            BAG_ROW_KINDS(BAG_X)
#undef BAG_X
                [BAG_KIND_OF_INTEGERS] = bag_ref_block,
        },
    .ids_valid = bag_ref_ids_valid,
};

/* NULL where this build has none. */
static const struct bag_kernels *const kernels_of[BAG_ISA_COUNT] = {
    [BAG_ISA_GENERIC] = &bag_generic_kernels,
#if defined(__x86_64__)
    [BAG_ISA_AVX2] = &bag_avx2_kernels,
    [BAG_ISA_AVX512] = &bag_avx512_kernels,
#elif defined(__aarch64__)
    [BAG_ISA_NEON] = &bag_neon_kernels,
#endif
};

/* Written before there are threads. */
static enum bag_isa used = BAG_ISA_GENERIC;

/* ---- the processor --------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* clang 14 does not know this feature's name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* The builtin reports AVX and AVX-512 only where the operating system saves their registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
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
    used = isa;
}

enum bag_isa bag_isa_used(void)
{
    return used;
}

/* ---- the kernel of a call -------------------------------------------------------------------- */

bag_block_fn *bag_kernel_for(const struct bag_table *table)
{
    return kernels_of[used]->pool[bag_row_kind(table)];
}

bag_ids_fn *bag_ids_kernel(void)
{
    return kernels_of[used]->ids_valid;
}
