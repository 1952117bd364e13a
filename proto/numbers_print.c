/* Prints arrays of numbers as JSON text; see numbers.h.
 *
 * Numbers are written in blocks that extend past their end, into the memory of the elements that
 * follow. The last elements of an array are therefore written into a separate buffer. */
#include "kernels/isa.h"
#include "numbers.h"

#include <string.h>

/* Each function that writes a number returns its end and may overwrite this many bytes after it. */
#define REACH_BYTES 16

/* ---- integers and booleans ------------------------------------------------------------------- */

/* Writes a number in up to three blocks of eight digits, of which the first has no leading zeros.
 */
static inline char *put_unsigned(char *out, uint64_t number)
{
    const uint64_t block = 100000000;
    if (number < block)
        return bag_digits_put_short(out, (uint32_t)number);
    uint64_t front = number / block, first = front / block;
    if (first)
        out = bag_digits_put_eight(bag_digits_put_short(out, (uint32_t)first),
                                   (uint32_t)(front % block));
    else
        out = bag_digits_put_short(out, (uint32_t)front);
    return bag_digits_put_eight(out, (uint32_t)(number % block));
}

/* Writes the minus sign in any case, and overwrites it unless the number is negative. A branch on
 * the sign could not be predicted. */
static inline char *put_signed(char *out, int64_t number)
{
    *out = '-';
    return put_unsigned(out + (number < 0), number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

static inline char *put_bool(char *out, uint8_t yes)
{
    memcpy(out, yes ? "true\0" : "false", 5);
    return out + (yes ? 4 : 5);
}

/* ---- FP32 in batches ------------------------------------------------------------------------- */

/* Writes floats with the widest instruction set that the processor has and the operator allows. */
static char *put_many_f32(const char *data, size_t count, char *out)
{
#if defined(__x86_64__)
    enum bag_isa isa = bag_isa_used();
    if (isa == BAG_ISA_AVX512)
        return bag_f32_print_avx512(data, count, out);
    if (isa == BAG_ISA_AVX2)
        return bag_f32_print_avx2(data, count, out);
#endif
    return bag_f32_print_generic(data, count, out);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* X(dtype, type to load an element as, function that writes it, maximum length with a comma) */
#define INTEGERS(X)                        \
    X(BAG_BOOL, uint8_t, put_bool, 6)      \
    X(BAG_U8, uint8_t, put_unsigned, 4)    \
    X(BAG_U16, uint16_t, put_unsigned, 6)  \
    X(BAG_U32, uint32_t, put_unsigned, 11) \
    X(BAG_U64, uint64_t, put_unsigned, 21) \
    X(BAG_I8, int8_t, put_signed, 5)       \
    X(BAG_I16, int16_t, put_signed, 7)     \
    X(BAG_I32, int32_t, put_signed, 12)    \
    X(BAG_I64, int64_t, put_signed, 21)

#define F32_TEXT     20
#define LONGEST_TEXT 25

/* This number of elements, of two bytes or more, provides the space that is written past a number's
 * end. */
#define LAST_ELEMENTS 16

/* The other elements of an FP32 array are whole batches. */
#define MOST_LAST_ELEMENTS (LAST_ELEMENTS + BAG_F32_BATCH - 1)

size_t bag_numbers_max_text(enum bag_dtype dtype)
{
    static const size_t bytes[BAG_DTYPE_COUNT] = {
#define BAG_X(id, type, put, most) [id] = (most),
        INTEGERS(BAG_X)
#undef BAG_X
            [BAG_F32] = F32_TEXT,
        [BAG_F64] = LONGEST_TEXT,
    };
    return bytes[dtype];
}

/* Writes elements with a comma after each. Overwrites bytes after the end. */
static char *put_elements(const char *data, size_t count, enum bag_dtype dtype, char *out)
{
    if (dtype == BAG_F32)
        return put_many_f32(data, count, out);
    if (dtype == BAG_F64)
        return bag_f64_print(data, count, out);
    switch (dtype) {
#define BAG_X(id, type, put, most)                                               \
    case id:                                                                     \
        for (size_t i = 0; i < count; i++, data += sizeof(type), *out++ = ',') { \
            type element;                                                        \
            memcpy(&element, data, sizeof element);                              \
            out = put(out, element);                                             \
        }                                                                        \
        return out;
        INTEGERS(BAG_X)
#undef BAG_X
    default:
        return out;
    }
}

char *bag_numbers_print(const void *data, size_t count, enum bag_dtype dtype, char *out)
{
    char last[MOST_LAST_ELEMENTS * LONGEST_TEXT + REACH_BYTES];
    *out++ = '[';
    if (count) {
        size_t beside = count < LAST_ELEMENTS ? count : LAST_ELEMENTS;
        if (dtype == BAG_F32)
            beside += (count - beside) % BAG_F32_BATCH;
        const char *tail = (const char *)data + (count - beside) * bag_dtypes[dtype].bytes;
        out = put_elements(data, count - beside, dtype, out);
        size_t bytes = (size_t)(put_elements(tail, beside, dtype, last) - last) - 1;
        memcpy(out, last, bytes); /* without the last comma */
        out += bytes;
    }
    *out++ = ']';
    return out;
}
