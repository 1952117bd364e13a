/* Instruction sets: those that exist, those that this machine supports, and the one that the
 * kernels use. The results have the same bits with all of them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* X(ID, name), from the slowest to the fastest. */
#define BAG_ISAS(X)       \
    X(GENERIC, "generic") \
    X(NEON, "neon")       \
    X(AVX2, "avx2")       \
    X(AVX512, "avx512")

enum bag_isa {
#define BAG_X(id, name) BAG_ISA_##id,
    BAG_ISAS(BAG_X)
#undef BAG_X
        BAG_ISA_COUNT
};

extern const char *const bag_isa_names[BAG_ISA_COUNT];

/* Returns the instruction set with this name, or BAG_ISA_COUNT if there is none. */
enum bag_isa bag_isa_find(const char *name, size_t name_bytes);

/* Returns whether this build has kernels for the instruction set, the processor supports it, and
 * the operating system saves its registers. Always true for GENERIC. */
bool bag_isa_usable(enum bag_isa isa);

/* Returns the fastest usable instruction set. */
enum bag_isa bag_isa_best(void);

/* Selects the instruction set of the kernels, which must be usable. No thread may be pooling
 * meanwhile. It is GENERIC until the first call. */
void bag_isa_use(enum bag_isa isa);

/* Returns the instruction set in use. */
enum bag_isa bag_isa_used(void);
