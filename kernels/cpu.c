/* Asking the processor.
 *
 * An instruction set may be there and yet not be usable: where the operating system does not save
 * the wide registers, a switch of threads would lose them. XGETBV says what it saves.
 *
 * Must not know: kernels. */
#include "cpu.h"
#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* CPUID leaf 1, ECX */
#define FMA     (1u << 12)
#define OSXSAVE (1u << 27)
#define AVX     (1u << 28)
#define F16C    (1u << 29)
/* leaf 7, EBX */
#define AVX2     (1u << 5)
#define AVX512F  (1u << 16)
#define AVX512DQ (1u << 17)
#define AVX512BW (1u << 30)
#define AVX512VL (1u << 31)
/* XCR0: SSE and AVX registers; those and the mask and upper AVX-512 registers */
#define SAVES_AVX    0x06u
#define SAVES_AVX512 0xe6u

static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has(unsigned flags, unsigned wanted)
{
    return (flags & wanted) == wanted;
}

unsigned bag_cpu_isas(void)
{
    const unsigned wide = AVX512F | AVX512DQ | AVX512BW | AVX512VL;
    unsigned a, b, leaf1, d, leaf7 = 0;
    unsigned isas = 1u << BAG_ISA_GENERIC;
    if (!__get_cpuid(1, &a, &b, &leaf1, &d) || !has(leaf1, OSXSAVE | AVX | FMA | F16C))
        return isas;
    if (!__get_cpuid_count(7, 0, &a, &leaf7, &b, &d))
        return isas;
    unsigned saved = saved_registers();
    if (has(leaf7, AVX2) && has(saved, SAVES_AVX))
        isas |= 1u << BAG_ISA_AVX2;
    if (has(leaf7, AVX2 | wide) && has(saved, SAVES_AVX512))
        isas |= 1u << BAG_ISA_AVX512;
    return isas;
}

#elif defined(__aarch64__)
unsigned bag_cpu_isas(void)
{
    return 1u << BAG_ISA_GENERIC | 1u << BAG_ISA_NEON; /* every aarch64 processor has it */
}
#else
unsigned bag_cpu_isas(void)
{
    return 1u << BAG_ISA_GENERIC;
}
#endif
