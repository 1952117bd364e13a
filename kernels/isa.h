/* Instruction sets: which there are, which this machine can run, and which one pools. The results
 * have the same bits on all of them. */
#ifndef BAG_ISA_H
#define BAG_ISA_H

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

/* The instruction set of that name, or BAG_ISA_COUNT. */
enum bag_isa bag_isa_find(const char *name, size_t name_bytes);

/* Whether this build has kernels for it, the processor can run them, and the operating system saves
 * the registers they use. GENERIC always is. */
bool bag_isa_usable(enum bag_isa isa);

/* The fastest usable one. */
enum bag_isa bag_isa_best(void);

/* Makes `isa`, which must be usable, the one that pools from now on. Must not run while any thread
 * pools; until the first call it is GENERIC. */
void bag_isa_use(enum bag_isa isa);

/* The one that pools. */
enum bag_isa bag_isa_used(void);

#endif
