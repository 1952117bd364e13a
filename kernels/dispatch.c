/* The kernels of every instruction set, the choice between them, and the names for the lists of
 * bag.h, table.h and isa.h. */
#include "part.h"
#include "pool.h"
#include "pool_loop.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define PLAIN_KERNELS                                                           \
    {                                                                           \
        .ids_in_range = bag_ref_ids_in_range, .ids_ascend = bag_ref_ids_ascend, \
        .find_keys = bag_ref_keys_find, .far = 1                                \
    }

const struct bag_kernels bag_generic_kernels = PLAIN_KERNELS;

#ifdef BAG_PLAIN_KERNELS
/* Builds without the vector kernels have the plain C kernels in their place. */
const struct bag_kernels bag_avx2_kernels = PLAIN_KERNELS;
const struct bag_kernels bag_avx512_kernels = PLAIN_KERNELS;
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

const struct bag_kernels *bag_kernels_used = &bag_generic_kernels;

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

/* Returns the sizes of the processor's caches. Leaf 4 describes each cache under a number of its
 * own. AMD's processors leave it empty and have the same description in another leaf. */
struct bag_caches bag_caches_of_processor(void)
{
    struct bag_caches caches = BAG_CACHES_USUAL;
#if defined(__x86_64__)
    static const unsigned leaves[] = {4, 0x8000001d};
    enum { DATA_CACHE = 1 };
    unsigned a, b, c, d;
    for (size_t i = 0; i < 2; i++) {
        for (unsigned n = 0; __get_cpuid_count(leaves[i], n, &a, &b, &c, &d) && (a & 31); n++) {
            unsigned level = a >> 5 & 7;
            size_t ways = (b >> 22) + 1, parts = (b >> 12 & 1023) + 1, line = (b & 4095) + 1;
            size_t bytes = ways * parts * line * ((size_t)c + 1);
            if (level == 1 && (a & 31) == DATA_CACHE)
                caches.first = bytes;
            if (level == 2)
                caches.second = caches.third = bytes;
            if (level == 3)
                caches.third = bytes;
        }
    }
#endif
    return caches;
}

struct bag_caches bag_caches = BAG_CACHES_USUAL;

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

/* ---- names ----------------------------------------------------------------------------------- */

const struct bag_dtype_info bag_dtypes[BAG_DTYPE_COUNT] = {
#define BAG_X(id, name, bytes, kind) [BAG_##id] = {name, bytes, BAG_KIND_##kind},
    BAG_DTYPES(BAG_X)
#undef BAG_X
};

const char *const bag_reduction_names[BAG_REDUCTION_COUNT] = {BAG_REDUCTIONS(BAG_NAME)};

const char *const bag_input_names[BAG_INPUT_COUNT] = {BAG_INPUTS(BAG_NAME)};

const char *const bag_status_keywords[BAG_STATUS_COUNT] = {BAG_STATUSES(BAG_NAME)};

const char *const bag_missing_names[BAG_MISSING_COUNT] = {BAG_MISSINGS(BAG_NAME)};

const char *const bag_form_names[BAG_FORM_COUNT] = {BAG_FORMS(BAG_NAME)};

const char *const bag_row_format_names[BAG_ROW_FORMAT_COUNT] = {BAG_ROW_FORMATS(BAG_NAME)};

const char *const bag_part_way_names[BAG_PART_WAY_COUNT] = {BAG_PART_WAYS(BAG_NAME)};

const char *const bag_isa_names[BAG_ISA_COUNT] = {BAG_ISAS(BAG_NAME)};

static bool is_word(const char *word, const char *name, size_t name_bytes)
{
    return strlen(word) == name_bytes && memcmp(word, name, name_bytes) == 0;
}

/* Returns the index of a name among `count`, or `count` if it is not there. */
static unsigned find(const char *const *words, unsigned count, const char *name, size_t name_bytes)
{
    unsigned i = 0;
    while (i < count && !is_word(words[i], name, name_bytes))
        i++;
    return i;
}

enum bag_dtype bag_dtype_find(const char *name, size_t name_bytes)
{
    unsigned i = 0;
    while (i < BAG_DTYPE_COUNT && !is_word(bag_dtypes[i].name, name, name_bytes))
        i++;
    return (enum bag_dtype)i;
}

enum bag_reduction bag_reduction_find(const char *name, size_t name_bytes)
{
    return (enum bag_reduction)find(bag_reduction_names, BAG_REDUCTION_COUNT, name, name_bytes);
}

enum bag_row_format bag_row_format_find(const char *name, size_t name_bytes)
{
    return (enum bag_row_format)find(bag_row_format_names, BAG_ROW_FORMAT_COUNT, name, name_bytes);
}

enum bag_part_by bag_part_way_find(const char *name, size_t name_bytes)
{
    return (enum bag_part_by)find(bag_part_way_names, BAG_PART_WAY_COUNT, name, name_bytes);
}

enum bag_isa bag_isa_find(const char *name, size_t name_bytes)
{
    return (enum bag_isa)find(bag_isa_names, BAG_ISA_COUNT, name, name_bytes);
}
