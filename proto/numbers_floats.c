/* Runs of floats: the grammar of JSON numbers and the three words beside them; see
 * numbers_reader.h. Rounding is decimal.h's. */
#include "decimal_round.h"
#include "numbers_reader.h"

/* In a run's loop everything stays in registers. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* An exponent beyond this is out of range, however many digits stand before it: no text has that
 * many bytes. */
#define EXPONENT_LIMIT INT64_C(100000000000000000)

/* Appends all digits at `at` to *digits, which wraps around where they are many; returns their end.
 */
static const char *take_digits(const char *at, const char *end, uint64_t *digits)
{
    unsigned count;
    do {
        uint64_t bytes = bag_digits_load(at, end);
        count = bag_digits_run(bytes);
        *digits = *digits * bag_tens[count] + bag_digits_value(bytes, count);
        at += count;
    } while (count == 8);
    return at;
}

/* Reads "e-12" at `at`; returns its end, or NULL where it is malformed. */
static const char *read_exponent(const char *at, const char *end, int64_t *exponent)
{
    int64_t value = 0;
    at++;
    bool negative = at < end && *at == '-';
    at += negative || (at < end && *at == '+');
    const char *start = at;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (value < EXPONENT_LIMIT)
            value = 10 * value + (*at - '0');
    }
    *exponent += negative ? -value : value;
    return at > start ? at : NULL;
}

/* Keeps the first digits of a number that has too many. */
static struct bag_decimal cut_digits(struct bag_decimal decimal)
{
    unsigned kept = 0;
    decimal.digits = 0;
    for (size_t i = 0; i < decimal.text_bytes; i++) {
        unsigned digit = (unsigned)decimal.text[i] - '0';
        if (decimal.text[i] == '.' || (digit == 0 && kept == 0))
            continue;
        if (kept < BAG_DECIMAL_DIGITS) {
            decimal.digits = 10 * decimal.digits + digit;
            kept++;
        } else {
            decimal.more |= digit != 0;
            decimal.exponent++;
        }
    }
    return decimal;
}

/* Reads a JSON number that has no sign; returns its end, or NULL where there is none. */
static const char *read_decimal(const char *at, const char *end, struct bag_decimal *decimal)
{
    struct bag_decimal read = {.text = at};
    at = take_digits(at, end, &read.digits);
    size_t count = (size_t)(at - read.text);
    if (count == 0 || (*read.text == '0' && count > 1))
        return NULL;
    if (at < end && *at == '.') {
        const char *fraction = ++at;
        at = take_digits(at, end, &read.digits);
        if (at == fraction)
            return NULL;
        read.exponent = fraction - at;
        count += (size_t)(at - fraction);
    }
    read.text_bytes = (size_t)(at - read.text);
    if (at < end && (*at == 'e' || *at == 'E')) {
        at = read_exponent(at, end, &read.exponent);
        if (!at)
            return NULL;
    }
    *decimal = count > BAG_DECIMAL_DIGITS ? cut_digits(read) : read;
    return at;
}

static uint64_t round_decimal(const struct bag_decimal *decimal, struct bag_float_format format)
{
    uint64_t bits;
    if (decimal->digits == 0 || decimal->exponent < BAG_POWER_LEAST)
        return 0; /* less than half of the least subnormal */
    if (decimal->exponent > 308)
        return format.infinity;
    if (bag_decimal_round(decimal->digits, (int)decimal->exponent, decimal->more, format, &bits))
        return bits;
    return bag_decimal_settle(decimal, format);
}

/* Reads any element but for its sign; returns its end, or NULL where there is none. */
static __attribute__((noinline)) const char *
read_any(const char *at, const char *end, struct bag_float_format format, uint64_t *bits)
{
    struct bag_decimal decimal;
    const char *after = read_decimal(at, end, &decimal);
    if (after) {
        *bits = round_decimal(&decimal, format);
        return *bits < format.infinity ? after : NULL;
    }
    *bits = format.infinity;
    if (bag_number_word(at, end, "Infinity"))
        return at + 8;
    *bits |= UINT64_C(1) << (format.fraction_bits - 1);
    return bag_number_word(at, end, "NaN") && at[-1] != '-' ? at + 3 : NULL;
}

/* ---- the common forms ------------------------------------------------------------------------ */

/* Reads d.ddd whose digits fit 64 bits, and with up to 15 after the point has no branch that
 * depends on how many: among 6 to 9 it would often be foretold wrongly. NULL for everything else,
 * which read_any reads. */
static ALWAYS_INLINE const char *read_common(const char *at, const char *end,
                                             struct bag_float_format format, uint64_t *bits)
{
    if (end - at < 18 || at[1] != '.' || *at < '0' || *at > '9')
        return NULL;
    uint64_t digits = (uint64_t)(*at - '0');
    uint64_t front = bag_digits_load(at + 2, end), back = bag_digits_load(at + 10, end);
    unsigned fronts = bag_digits_run(front), backs = fronts == 8 ? bag_digits_run(back) : 0;
    unsigned count = fronts + backs, lasts = 0;
    digits = digits * bag_tens[fronts] + bag_digits_value(front, fronts);
    digits = digits * bag_tens[backs] + bag_digits_value(back, backs);
    if (count == 16) { /* as doubles have it */
        uint64_t last = bag_digits_load(at + 18, end);
        lasts = bag_digits_run(last);
        if (__builtin_mul_overflow(digits, bag_tens[lasts], &digits) ||
            __builtin_add_overflow(digits, bag_digits_value(last, lasts), &digits))
            return NULL;
        count += lasts;
    }
    at += 2 + count;
    if (count == 0 || lasts == 8 || digits == 0 || at == end || *at == 'e' || *at == 'E')
        return NULL;
    return bag_decimal_round(digits, -(int)count, false, format, bits) ? at : NULL;
}

static ALWAYS_INLINE bool run(struct bag_number_reader *reader, size_t bytes,
                              struct bag_float_format format)
{
    const char *end = reader->end, *next = reader->at, *element, *after;
    do {
        element = next;
        char *out = bag_number_room(reader, element, bytes);
        bool negative = *element == '-';
        uint64_t bits = 0;
        after = read_common(element + negative, end, format, &bits);
        if (!after) {
            uint64_t any = 0;
            after = read_any(element + negative, end, format, &any);
            if (!after)
                return bag_number_reject(reader, element);
            bits = any;
        }
        bits |= (uint64_t)negative << (8 * bytes - 1);
        memcpy(out, &bits, bytes);
        next = bag_number_next(after, end);
    } while (next);
    return bag_number_pause(reader, element, after);
}

bool bag_number_run_f32(struct bag_number_reader *reader)
{
    return run(reader, 4, BAG_F32_FORMAT);
}

bool bag_number_run_f64(struct bag_number_reader *reader)
{
    return run(reader, 8, BAG_F64_FORMAT);
}
