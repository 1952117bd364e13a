/* Choosing the kernels once, and one of them per call.
 *
 * Must not know: how a kernel works. */
#include "dispatch.h"
#include "cpu.h"
#include "isa.h"
#include "pool_ref.h"

const struct bag_kernels bag_generic_kernels = {.pool = {
#define BAG_X(id, bits, vocabulary) [BAG_KIND_OF_##id] = bag_ref_block,
                                                    BAG_ROW_KINDS(BAG_X)
#undef BAG_X
                                                        [BAG_KIND_OF_INTEGERS] = bag_ref_block}};

/* NULL where this build has none. */
static const struct bag_kernels *const tables[BAG_ISA_COUNT] = {
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

const char *const bag_isa_names[BAG_ISA_COUNT] = {
#define BAG_X(id, name) [BAG_ISA_##id] = name,
    BAG_ISAS(BAG_X)
#undef BAG_X
};

enum bag_isa bag_isa_find(const char *name, size_t name_bytes)
{
    for (int i = 0; i < BAG_ISA_COUNT; i++)
        if (strlen(bag_isa_names[i]) == name_bytes &&
            memcmp(bag_isa_names[i], name, name_bytes) == 0)
            return (enum bag_isa)i;
    return BAG_ISA_COUNT;
}

bool bag_isa_usable(enum bag_isa isa)
{
    return tables[isa] && (bag_cpu_isas() >> isa & 1);
}

enum bag_isa bag_isa_best(void)
{
    int isa = BAG_ISA_COUNT - 1;
    while (isa > BAG_ISA_GENERIC && !bag_isa_usable((enum bag_isa)isa))
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

static enum bag_row_kind kind_of(const struct bag_table *table)
{
    switch (table->row_format) {
    case BAG_ROWS_INT8:
        return BAG_KIND_OF_INT8;
    case BAG_ROWS_INT4:
        return BAG_KIND_OF_INT4;
    case BAG_ROWS_F8_E4M3:
        return BAG_KIND_OF_E4M3;
    case BAG_ROWS_F8_E5M2:
        return BAG_KIND_OF_E5M2;
    case BAG_ROWS_PLAIN:
    case BAG_ROW_FORMAT_COUNT:
        break;
    }
    switch (table->dtype) {
    case BAG_F32:
        return BAG_KIND_OF_F32;
    case BAG_F16:
        return BAG_KIND_OF_F16;
    case BAG_BF16:
        return BAG_KIND_OF_BF16;
    case BAG_F64:
        return BAG_KIND_OF_F64;
    default:
        return BAG_KIND_OF_INTEGERS;
    }
}

bag_block_fn *bag_kernel_for(const struct bag_table *table)
{
    return tables[used]->pool[kind_of(table)];
}
