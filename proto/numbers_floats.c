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
static const char *take_many(const char *at, const char *end, uint64_t *digits)
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

/* Likewise, for up to 15 digits without a branch that depends on how many they are: among 6 to 9,
 * it would often be foretold wrongly. */
static ALWAYS_INLINE const char *take_fraction(const char *at, const char *end, uint64_t *digits)
{
    unsigned fronts = 0, backs = 8;
    uint64_t value = *digits;
    if (end - at >= 16) {
        uint64_t front = bag_digits_load(at, end), back = bag_digits_load(at + 8, end);
        fronts = bag_digits_run(front);
        backs = fronts == 8 ? bag_digits_run(back) : 0;
        value = value * bag_tens[fronts] + bag_digits_value(front, fronts);
        value = value * bag_tens[backs] + bag_digits_value(back, backs);
        at += fronts + backs;
    }
    if (backs == 8) {
        uint64_t more = value; /* so that `value` need not be in memory */
        at = take_many(at, end, &more);
        value = more;
    }
    *digits = value;
    return at;
}

/* Takes the digits before the point, most often a single one. */
static ALWAYS_INLINE const char *take_whole(const char *at, const char *end, uint64_t *digits)
{
    uint64_t many = 0;
    if (end - at >= 2 && at[1] == '.' && *at >= '0' && *at <= '9') {
        *digits = (uint64_t)(*at - '0');
        return at + 1;
    }
    at = take_many(at, end, &many);
    *digits = many;
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
    *exponent = negative ? -value : value;
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
static ALWAYS_INLINE const char *read_decimal(const char *at, const char *end,
                                              struct bag_decimal *decimal)
{
    struct bag_decimal read = {.text = at};
    at = take_whole(at, end, &read.digits);
    size_t count = (size_t)(at - read.text);
    if (count == 0 || (*read.text == '0' && count > 1))
        return NULL;
    if (at < end && *at == '.') {
        const char *fraction = ++at;
        at = take_fraction(at, end, &read.digits);
        if (at == fraction)
            return NULL;
        read.exponent = fraction - at;
        count += (size_t)(at - fraction);
    }
    read.text_bytes = (size_t)(at - read.text);
    if (at < end && (*at == 'e' || *at == 'E')) {
        int64_t exponent;
        at = read_exponent(at, end, &exponent);
        if (!at)
            return NULL;
        read.exponent += exponent;
    }
    *decimal = count > BAG_DECIMAL_DIGITS ? cut_digits(read) : read;
    return at;
}

static const char *read_word(const char *at, const char *end, const char *word)
{
    return bag_number_word(at, end, word) ? at + strlen(word) : NULL;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Reads one element into `bits`; returns its end, or NULL where there is none. */
static ALWAYS_INLINE const char *read_float(const char *at, const char *end,
                                            struct bag_float_format format, uint64_t *bits)
{
    struct bag_decimal decimal;
    bool negative = *at == '-';
    at += negative;
    const char *after = read_decimal(at, end, &decimal);
    if (after) {
        *bits = bag_decimal_round(&decimal, format);
        if (*bits == format.infinity)
            return NULL;
    } else if ((after = read_word(at, end, "Infinity")) != NULL) {
        *bits = format.infinity;
    } else if (!negative && (after = read_word(at, end, "NaN")) != NULL) {
        *bits = format.infinity | UINT64_C(1) << (format.fraction_bits - 1);
    }
    return after;
}

static ALWAYS_INLINE bool run(struct bag_number_reader *reader, size_t bytes,
                              struct bag_float_format format)
{
    const char *end = reader->end, *next = reader->at, *element, *after;
    do {
        element = next;
        char *out = bag_number_room(reader, element, bytes);
        uint64_t bits = 0;
        after = read_float(element, end, format, &bits);
        if (!after)
            return bag_number_refuse(reader, element);
        bits |= (uint64_t)(*element == '-') << (8 * bytes - 1);
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
