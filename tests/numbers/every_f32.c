/* Compares the batched printing of FP32 with the printing of single values, for a range of bit
 * patterns and every instruction set of this processor. The unit tests check that single values are
 * printed as the shortest decimals.
 *
 *   every_f32 [STRIDE [FIRST [END]]]   every STRIDE-th pattern; 1, the whole of 2^32, takes about
 * ten minutes
 *
 * Exit code 1: some text differs; the first of them are printed. */
#include "kernels/pool.h"
#include "proto/numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOATS    4096 /* most in one array */
#define GUARD     64   /* bytes after the room of a text */
#define MOST_TEXT 20   /* bytes, with a comma: bag_numbers_max_text(BAG_F32) */

/* Returns any float, or one of five around a power of two or around the least that is printed in
 * batches. */
static uint32_t choose_float(bool around_bounds, uint64_t i)
{
    if (!around_bounds)
        return (uint32_t)(i * UINT64_C(0x9e3779b1));
    uint32_t bound = i % 256 < 255 ? (uint32_t)(i % 256) << 23 : 0x3727c5ac; /* 1e-5 */
    return bound + (uint32_t)(i / 256 % 5) - 2;
}

static size_t print_singly(const uint32_t *bits, size_t count, char *text)
{
    char *out = text;
    *out++ = '[';
    for (size_t i = 0; i < count; i++) {
        out = bag_f32_put(out, bits[i]);
        *out++ = ',';
    }
    out[-1] = ']';
    return (size_t)(out - text);
}

/* Prints the first float of an array whose text differs from `want`. */
static void show_difference(enum bag_isa isa, const uint32_t *bits, const char *want,
                            const char *got)
{
    size_t at = 0, index = 0, start = 1;
    while (want[at] == got[at]) {
        if (want[at++] == ',') {
            index++;
            start = at;
        }
    }
    printf("%s: %08x is \"%.*s\" in a batch, \"%.*s\" alone\n", bag_isa_names[isa], bits[index],
           (int)strcspn(got + start, ",]"), got + start, (int)strcspn(want + start, ",]"),
           want + start);
}

int main(int argc, char **argv)
{
    uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t next = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    uint64_t end = argc > 3 ? strtoull(argv[3], NULL, 0) : UINT64_C(1) << 32;
    static uint32_t bits[FLOATS];
    static char want[FLOATS * MOST_TEXT + 2 + GUARD], got[FLOATS * MOST_TEXT + 2 + GUARD];
    static const char guard[GUARD];
    unsigned long long floats = 0, differences = 0, arrays = 0, any = 0;
    if (stride == 0) {
        fputs("the stride must be at least 1\n", stderr);
        return 2;
    }
    while (next < end) {
        /* Long arrays of neighbours, and short ones of neighbours or of chosen floats. */
        size_t count = 0, most = arrays % 4 ? 1 + arrays / 4 % 100 : FLOATS;
        while (count < most && next < end) {
            bits[count++] = arrays % 2 ? choose_float(arrays % 4 == 3, any++) : (uint32_t)next;
            next += arrays % 2 ? 0 : stride;
        }
        size_t bytes = print_singly(bits, count, want), room = count * MOST_TEXT + 2;
        arrays++;
        want[bytes] = 0;
        for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
            if (!bag_isa_usable((enum bag_isa)isa))
                continue;
            bag_isa_use((enum bag_isa)isa);
            memset(got + room, 0, GUARD);
            char *got_end = bag_numbers_print(bits, count, BAG_F32, got);
            if (memcmp(got + room, guard, GUARD) != 0) {
                printf("%s: a text of %zu floats is written beyond its room\n", bag_isa_names[isa],
                       count);
                return 1;
            }
            *got_end = 0;
            if (strcmp(want, got) != 0 && differences++ < 20)
                show_difference((enum bag_isa)isa, bits, want, got);
        }
        floats += count;
    }
    printf("%llu floats, %llu arrays differ\n", floats, differences);
    return differences != 0;
}
