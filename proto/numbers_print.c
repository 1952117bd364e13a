/* Arrays of numbers as JSON text; see numbers.h.
 *
 * Numbers are written in blocks that reach past their end, into the room of the elements that
 * follow. The last elements of an array are written beside it for that reason. */
#include "numbers.h"
#include "numbers_text.h"

/* X(dtype, type to load an element as, what writes it, the most bytes of its text with a comma) */
#define TEXTS(X)                                 \
    X(BAG_BOOL, uint8_t, put_bool, 6)            \
    X(BAG_U8, uint8_t, put_unsigned, 4)          \
    X(BAG_U16, uint16_t, put_unsigned, 6)        \
    X(BAG_U32, uint32_t, put_unsigned, 11)       \
    X(BAG_U64, uint64_t, put_unsigned, 21)       \
    X(BAG_I8, int8_t, put_signed, 5)             \
    X(BAG_I16, int16_t, put_signed, 7)           \
    X(BAG_I32, int32_t, put_signed, 12)          \
    X(BAG_I64, int64_t, put_signed, 21)          \
    X(BAG_F32, uint32_t, bag_number_put_f32, 20) \
    X(BAG_F64, uint64_t, bag_number_put_f64, 25)

#define LONGEST_TEXT 25

/* So many elements have room for any number's blocks: 16 * 4 bytes. */
#define LAST_ELEMENTS 16

size_t bag_numbers_max_text(enum bag_dtype dtype)
{
    static const size_t bytes[BAG_DTYPE_COUNT] = {
#define BAG_X(id, type, put, most) [id] = (most),
        TEXTS(BAG_X)
#undef BAG_X
    };
    return bytes[dtype];
}

/* ---- elements: each returns the end of the text ---------------------------------------------- */

static inline char *put_unsigned(char *out, uint64_t number)
{
    const uint64_t block = 100000000;
    if (number < block)
        return bag_number_put_short(out, (uint32_t)number);
    uint64_t front = number / block, first = front / block;
    if (first)
        out = bag_number_put_eight(bag_number_put_short(out, (uint32_t)first),
                                   (uint32_t)(front % block));
    else
        out = bag_number_put_short(out, (uint32_t)front);
    return bag_number_put_eight(out, (uint32_t)(number % block));
}

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

/* ---- the array ------------------------------------------------------------------------------- */

/* Writes elements with a comma after each, and scribbles on what follows. */
static char *put_elements(const char *data, size_t count, enum bag_dtype dtype, char *out)
{
    switch (dtype) {
#define BAG_X(id, type, put, most)                                               \
    case id:                                                                     \
        for (size_t i = 0; i < count; i++, data += sizeof(type), *out++ = ',') { \
            type element;                                                        \
            memcpy(&element, data, sizeof element);                              \
            out = put(out, element);                                             \
        }                                                                        \
        return out;
        TEXTS(BAG_X)
#undef BAG_X
    default:
        return out;
    }
}

char *bag_numbers_print(const void *data, size_t count, enum bag_dtype dtype, char *out)
{
    char last[LAST_ELEMENTS * LONGEST_TEXT + BAG_NUMBER_REACH];
    *out++ = '[';
    if (count) {
        size_t beside = count < LAST_ELEMENTS ? count : LAST_ELEMENTS;
        const char *tail = (const char *)data + (count - beside) * bag_dtypes[dtype].bytes;
        out = put_elements(data, count - beside, dtype, out);
        size_t bytes = (size_t)(put_elements(tail, beside, dtype, last) - last) - 1;
        memcpy(out, last, bytes); /* without the last comma */
        out += bytes;
    }
    *out++ = ']';
    return out;
}
