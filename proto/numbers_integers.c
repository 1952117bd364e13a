/* Runs of integers, exact over 64 bits; see numbers_reader.h. */
#include "decimal.h"
#include "numbers_reader.h"

/* Reads the digits of a number of 8 digits or more; NULL where it does not fit 64 bits. */
static const char *read_long(const char *at, const char *end, uint64_t *magnitude)
{
    unsigned count;
    do {
        uint64_t bytes = bag_digits_load(at, end);
        count = bag_digits_run(bytes);
        if (__builtin_mul_overflow(*magnitude, bag_tens[count], magnitude) ||
            __builtin_add_overflow(*magnitude, bag_digits_value(bytes, count), magnitude))
            return NULL;
        at += count;
    } while (count == 8);
    return at;
}

/* Reads a JSON integer without its sign; returns its end, or NULL where there is none. */
static inline const char *read_magnitude(const char *at, const char *end, uint64_t *magnitude)
{
    uint64_t bytes = bag_digits_load(at, end);
    unsigned count = bag_digits_run(bytes);
    if (count == 0 || ((bytes & 0xFF) == '0' && count > 1))
        return NULL;
    *magnitude = bag_digits_value(bytes, count);
    return count < 8 ? at + count : read_long(at + count, end, magnitude);
}

/* The largest magnitudes of elements of `bytes` bytes. */
struct range {
    uint64_t positive, negative;
};

static inline struct range range_of(size_t bytes, bool is_signed)
{
    uint64_t most = UINT64_MAX >> (64 - 8 * bytes);
    return is_signed ? (struct range){most / 2, most / 2 + 1} : (struct range){most, 0};
}

static inline __attribute__((always_inline)) bool run(struct bag_number_reader *reader,
                                                      size_t bytes, bool is_signed)
{
    const struct range range = range_of(bytes, is_signed);
    const char *end = reader->end, *next = reader->at, *element, *after;
    do {
        element = next;
        uint64_t magnitude = 0;
        bool negative = __builtin_expect(*element == '-', 0);
        char *out = bag_number_room(reader, element, bytes);
        after = read_magnitude(element + negative, end, &magnitude);
        if (!after || magnitude > (negative ? range.negative : range.positive))
            return bag_number_reject(reader, element);
        uint64_t value = negative ? 0 - magnitude : magnitude;
        memcpy(out, &value, bytes); /* the low bytes */
        next = bag_number_next(after, end);
    } while (next);
    return bag_number_pause(reader, element, after);
}

bool bag_number_run_integers(struct bag_number_reader *reader)
{
    bool is_signed = bag_dtypes[reader->dtype].kind == BAG_KIND_SIGNED;
    switch (bag_dtypes[reader->dtype].bytes) {
    case 1:
        return is_signed ? run(reader, 1, true) : run(reader, 1, false);
    case 2:
        return is_signed ? run(reader, 2, true) : run(reader, 2, false);
    case 4:
        return is_signed ? run(reader, 4, true) : run(reader, 4, false);
    default:
        return is_signed ? run(reader, 8, true) : run(reader, 8, false);
    }
}
